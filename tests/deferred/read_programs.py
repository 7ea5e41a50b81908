"""Programs that read images by torchvision.io, written by hand and at random."""

from __future__ import annotations

import random

from .files import DAMAGED, OTHERS, SOUND
from .odd_programs import parts
from .programs import Program
from .random_programs import changed_tensor

_READS = (
    *(['x = read_image(path, mode="RGB")', "x = decode_image(read_file(path))"] * 3),
    "x = read_image(path)",
    "x = decode_jpeg(read_file(path))",
    'x = decode_image(path, "rgb")',
    'x = decode_image(Path(path), "RGB", True)',
    "x = decode_image(read_file(path), ImageReadMode.UNCHANGED, apply_exif_orientation=True)",
    'data = read_file(path).clone()\nx = decode_jpeg(data, "RGB")\ndata.fill_(7)',
    "x = decode_jpeg(torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=torch.uint8), ImageReadMode.RGB)",
    'x = decode_jpeg([read_file(path)] * 2, mode="RGB")[1]',
    "x = torch.ops.image.decode_jpeg(read_file(path), 3)",
    'x = tv_tensors.Image(read_image(path, "RGB"))',
    'x = read_image(path, "GRAY").expand(3, -1, -1)',
    'with torch.inference_mode():\n    x = read_image(path, "RGB")',
    'with torch.no_grad():\n    x = read_image(path, "RGB")[:, 1:, 1:]',
    "x = read_image(path)[:3]",
)

_RESIZES = (
    *(["{x} = v2.RandomResizedCrop({m})({x})", "{x} = v2.Resize(({m}, {n}))({x})"] * 3),
    "{x} = v2.RandomResizedCrop(({m}, {n}), interpolation={mode})({x})",
    "{x} = v2.Resize({m}, interpolation={mode})({x})",
    "{x} = v2.CenterCrop({m})({x})",
    "{x} = v2.RandomCrop({m}, pad_if_needed=True)({x})",
    "{x} = VF.resized_crop({x}, 1, 2, {m}, {n}, [{n}, {m}], interpolation={mode})",
    "{x} = VF.resize({x}, [{m}, {n}], interpolation={mode}, antialias={e})",
    "{x} = VF.resize({x}[:, 2:9], [{m}, {n}])",
    "{x} = VF.resize({x}.contiguous(), [{m}, {n}])",
    "{x} = VF.resize({x}, None, max_size={m})",
    "{x} = F.resize({x}, [{m}, {n}], antialias=True)",
    '{x} = nn.interpolate({x}[None], ({m}, {n}), mode="bilinear", antialias=True)[0]',
    '{x} = nn.interpolate({x}[None], {m}, mode="bicubic", align_corners=False, antialias=True).squeeze(0)',
    '{x} = nn.interpolate({x}[None], scale_factor=0.7, mode="bilinear", antialias=True)[0]',
    '{x} = nn.interpolate({x}[None], ({m}, {n}), mode="bilinear", align_corners=True, antialias=True)[0]',
    '{x} = nn.interpolate({x}[None], size=({m}, 1), mode="bilinear", antialias=True)[0].expand(3, -1, 9)',
    '{x} = nn.interpolate({x}.float()[None], ({m}, {n}), mode="bilinear", antialias=True)[0].byte()',
    '{x} = nn.interpolate(torch.stack([{x}, {x}.flip(-1)]), ({m}, {n}), mode="bilinear", antialias=True)[{e}]',
    "{x} = {x}.as_strided((1, *{x}.shape), (1, *{x}.stride()))\n"
    '{x} = nn.interpolate({x}, {m}, mode="bilinear", antialias=True)[0]',
    "{x} = {x}.reshape(1, *{x}.shape).reshape({x}.shape)",
    "{x} = v2.ScaleJitter(({m}, {n}))({x})",
    "{x} = v2.RandomZoomOut()({x})",
    "{x} = v2.RandAugment()({x})",
    "{x} = v2.ColorJitter(0.4, 0.4, 0.4, 0.1)({x})",
    "{x} = v2.ToDtype(torch.uint8, scale=True)({x})",
    "{x}[:, :2] = 3",
)
_MODES = ("NEAREST", "NEAREST_EXACT", "BILINEAR", "BICUBIC", "LANCZOS")

_TEXTS = """
# recipe
steps = [v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)]
return v2.Compose([*steps, v2.Normalize(MEAN, STD)])(read_image(path, "RGB")), number
# recipe of images
steps = [v2.ToImage(), v2.RandomResizedCrop(24), v2.RandomVerticalFlip(0.5), v2.ToDtype(torch.float32, scale=True)]
return v2.Compose([*steps, v2.Normalize(MEAN, STD), v2.ToPureTensor()])(decode_image(path, "RGB"))
# evaluation
steps = [v2.Resize(32), v2.CenterCrop(24), v2.ConvertImageDtype(torch.float32), v2.Normalize(MEAN, STD)]
return v2.Compose(steps)(decode_image(read_file(path)))
# first transforms
steps = [v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ConvertImageDtype(torch.float)]
return v1.Compose([*steps, v1.Normalize(MEAN, STD)])(read_image(path, "RGB")), number
# first transforms of a smaller image
crop = v1.Compose([v1.Resize(32, v1.InterpolationMode.BICUBIC), v1.CenterCrop(24), v1.RandomVerticalFlip()])
return crop(decode_image(path, "RGB"))
# floats
steps = [v1.ConvertImageDtype(torch.float), v1.Normalize(MEAN, STD), v1.Resize((28, 31)), v1.RandomCrop(24)]
x, y = v1.Compose(steps)(decode_image(path, "RGB")), v2.ToDtype(torch.float32, scale=True)(read_image(path, "RGB"))
return x, v2.RandomResizedCrop(24, interpolation=v2.InterpolationMode.BICUBIC)(v2.Normalize(MEAN, STD)(y))
# views
crop = v2.Compose([v2.RandomResizedCrop(16, (0.3, 1)), v2.RandomHorizontalFlip()])
x = read_image(path)
return torch.stack([crop(x) for _ in range(3)]), [v2.RandomResizedCrop(9)(x) for _ in range(3)]
# augmented
steps = [v2.RandomResizedCrop(24), v2.RandAugment(), v2.ToDtype(torch.float32, scale=True), v2.RandomErasing(1.0)]
return v2.Compose(steps)(read_image(path, "RGB"))
# kinds
for x in (decode_jpeg(read_file(path)), read_image(path), decode_image(path, "RGB")):
    storage = x.untyped_storage()
    look((type(x), x.dtype, x.shape, x.stride(), x.storage_offset(), storage.nbytes(), storage.resizable()))
    look((x.is_contiguous(), x.is_contiguous(memory_format=torch.contiguous_format), x._version, x.is_leaf, x.grad_fn))
    look((x.requires_grad, x.is_inference(), x.is_pinned(), x.is_shared(), x.layout, x.device))
return x
# modes
kinds = ("UNCHANGED", "GRAY", "gray_alpha", "RGB", "RGB_ALPHA", "RGBA", "none", 3, None, *ImageReadMode)
for kind in kinds:
    for read in (decode_jpeg, decode_image):
        try:
            look(read(read_file(path), kind))
        except Exception as error:
            look(error)
return number
# wrong arguments
data = read_file(path)
twice = data.repeat_interleave(2)
empty = torch.empty(0, dtype=torch.uint8)
for other in (data[None], data.float(), empty, data[:2], twice[::2], data.tolist(), None, data.numpy()):
    for read in (decode_jpeg, decode_image, lambda x: torch.ops.image.decode_jpeg(x, 3)):
        try:
            look(read(other))
        except Exception as error:
            look((type(error), str(error).splitlines()[0]))
odd = (), (data,), (data, 3, False, 1), (data, 9), (data, 3.0), (data, True), (data, 3, None), (data, 3, 1)
for arguments in odd:
    try:
        look(torch.ops.image.decode_image(*arguments))
    except Exception as error:
        look((type(error), str(error).splitlines()[0]))
return torch.ops.image.decode_image(data, mode=3)
# bytes that change
data = read_file(path).clone()
x = decode_image(data, "RGB")
data[len(data) // 2 :] = 0
y = decode_jpeg(data[:], "RGB") if len(data) > 5000 else None
data.resize_(0)
return x, y
# other operators
look(str(torch.ops.image.decode_image))
look(isinstance(torch.ops.image.decode_jpeg, torch._ops.OpOverloadPacket))
look((torch.ops.image.decode_jpeg.overloads(), torch.ops.image.decode_jpeg.__name__, str(torch.ops.image.decode_jpeg)))
return torch.ops.image.decode_jpeg.default(read_file(path), 3)
# scripts
x = read_image(path, "RGB")
scripts = kept.setdefault("scripts", [torch.jit.script(each) for each in (decode_image, VF.to_dtype, VF.normalize)])
decode, to_dtype, normalize = scripts
y = to_dtype(x, torch.float32, True)
return decode(read_file(path), ImageReadMode.RGB), y, normalize(y, MEAN, STD)
# in a mode
with Counting() as counting:
    x = decode_image(read_file(path), "RGB")
look(counting.count)
return x, VF.resize(x, [9, 8])
# in a thread
with ThreadPoolExecutor(1) as pool:
    x = pool.submit(read_image, path, "RGB").result()
y = read_image(path, "RGB")
with ThreadPoolExecutor(1) as pool:
    return x, pool.submit(VF.resize, y, [9, 8]).result(), y
# resized in place
x = read_image(path, "RGB")
y = read_image(path, "RGB").resize_(2, 3)
look(x.resize_(3, 200, 200).flatten()[:9])
return y, x.zero_()
# changed in place
x = read_image(path, "RGB")
x[..., :3] = 7
y = VF.resize(x, [12, 13])
x += 1
x.unsqueeze_(0).transpose_(-1, -2)
return x, y
# pointers
x = read_image(path, "RGB")
y = VF.resize(read_image(path, "RGB"), [9, 8])
look(ctypes.string_at(x.data_ptr(), 50))
look(np.from_dlpack(y)), look(y.numpy().tobytes())
return torch.from_dlpack(x).clone()
# levels that are others
x = 255 - read_image(path, "RGB")
y = read_image(path, "RGB").bitwise_and(240)
return [VF.resize(each, [9, 8]) for each in (x, y, x.to(torch.int8), x.view(torch.int8), y / 255)]
# dtypes
x = read_image(path, "RGB")
kinds = (torch.uint8, torch.float32, torch.float64, torch.float16, torch.int32, torch.uint16, torch.int64)
made = [VF.to_dtype(x, kind, scale=scale) for kind in kinds for scale in (False, True)]
look([each._version for each in made])
return made, VF.to_dtype(x), VF.convert_image_dtype(x), VF.to_dtype(made[3], torch.uint8, True), made[0] is x
# normalized
x = VF.to_dtype(read_image(path, "RGB"), torch.float32, scale=True)
y = VF.normalize(x, MEAN, STD)
z = VF.normalize(x.clone(), (0.5,), 0.25, True)
look([each._version for each in (x, y, z)])
for mean, std in ((MEAN, [0, 1, 1]), (MEAN, []), (0.5, torch.tensor([0.1, 0.2, 0.3])), (torch.tensor(MEAN), STD)):
    try:
        look(VF.normalize(x, mean, std))
    except Exception as error:
        look(error)
return y, z, VF.normalize(image=x, mean=MEAN, std=STD) if number < 0 else VF.normalize_image(x, mean=MEAN, std=STD)
# sizes
x = read_image(path, "RGB")
sizes = [5], 7, (9, 8), [1, 1], [2, 1], [2, 2], torch.Size([4, 5]), [np.int64(4), 5], [4.0, 5], [0, 5], [-1, 5], None
for size in (*sizes, [True, 5], 9.5, [], [1, 2, 3], torch.tensor([5, 6]), x.shape[-2:], [x.shape[-2], 9]):
    for resize in (VF.resize, lambda x, size: nn.interpolate(x[None], size, mode="bilinear", antialias=True)):
        try:
            look(resize(x, size))
        except Exception as error:
            look((type(error), str(error).splitlines()[0]))
return x
# options of a resize
x = read_image(path, "RGB")[None]
options = {"antialias": (1, False, None), "align_corners": (0, True, 0.0), "scale_factor": (0, 0.5, False)}
for option in ({}, *({name: value} for name, values in options.items() for value in values)):
    for mode in ("bilinear", "bicubic", "lanczos", "area", "nearest", "nearest-exact", "linear", None):
        try:
            look(nn.interpolate(**{"input": x, "size": (7, 6), "mode": mode, "antialias": True, **option}))
        except Exception as error:
            look((type(error), str(error).splitlines()[0]))
for other in (False, 0, 0.0):
    look(nn.interpolate(x, (7, 6), mode="bilinear", recompute_scale_factor=other, antialias=True))
return nn.interpolate(x, (7, 6), None, "bilinear", None, None, True)
# crops as samples
x = read_image(path, "RGB")
y = x[:, 3:40].contiguous()[:, 2:, 3:]
return x[:, 3:40, 5:50], x.permute(1, 2, 0)[3:40, 5:50], y, y.permute(1, 2, 0), x[:, 1:2], x[..., :1], x[1:]
# a cache
if path not in kept:
    kept[path] = read_image(path, "RGB")
return VF.resize(kept[path], [9, 8]), v2.RandomResizedCrop(12)(kept[path])
# a segmentation mask
image = tv_tensors.Image(read_image(path, "RGB"))
mask = tv_tensors.Mask((read_image(path, "RGB")[:1] > 100).to(torch.uint8))
boxes = tv_tensors.BoundingBoxes([[1, 2, 30, 40]], format="XYXY", canvas_size=image.shape[-2:])
dtypes = v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, True)
steps = v2.Compose([v2.RandomResizedCrop((20, 22)), v2.RandomHorizontalFlip(), dtypes])
return steps(image, {"boxes": boxes, "mask": mask})
# both libraries
x = VF.pil_to_tensor(Image.open(path).convert("RGB"))
y = read_image(path, "RGB")
return torch.stack([x, y]), VF.resize(torch.stack([x, y]), [9, 8]), torch.equal(x, y)
"""


def read_programs() -> list[Program]:
    """Return each program written by hand, with several files."""
    others = (*SOUND[3:], *OTHERS, *DAMAGED)
    programs = []
    for at, (name, body) in enumerate(parts(_TEXTS)):
        files = (*SOUND[:3], others[2 * at % len(others)], others[(2 * at + 1) % len(others)])
        programs += [Program(f"{name}, {file}", body, file) for file in files]
    return programs


def read_program(seed: int) -> Program:
    """Write the program of a number."""
    r = random.Random(seed)
    chance = r.random()
    file = r.choice(SOUND[:7] if chance < 0.85 else SOUND[7:] + OTHERS if chance < 0.93 else DAMAGED)
    lines = ['image = Image.new("RGB", (30, 20), (1, 2, 3))', r.choice(_READS)]
    for _ in range(r.choice((0, 1, 1, 1, 2, 3))):
        m, n, mode = r.randrange(2, 60), r.randrange(2, 60), f"v2.InterpolationMode.{r.choice(_MODES)}"
        lines.append(r.choice(_RESIZES).format(x="x", m=m, n=n, mode=mode, e=r.randrange(2)))
    return Program(str(seed), "\n".join([*lines, *changed_tensor(r, is_bytes=True)]), file)
