"""Programs that fill tensors of constants with images, pad them, and copy them."""

from __future__ import annotations

import random

from .files import SOUND
from .odd_programs import written
from .programs import Program

_TEXTS = """
# timm
x = [(F.pil_to_tensor(v1.RandomResizedCrop(24)(image)), k) for k in range(4)]
tensor = torch.zeros((4, *x[0][0].shape), dtype=torch.uint8)
for i in range(4):
    look(tensor[i].copy_(x[i][0]) is tensor)
look((tensor._version, x[0][0]._version, tensor.is_contiguous()))
return tensor, torch.tensor([k for _, k in x])
# timm, by sums
x = [F.pil_to_tensor(v1.RandomResizedCrop(24)(image)) for _ in range(3)]
tensor = torch.zeros((3, *x[0].shape), dtype=torch.uint8)
for i in range(3):
    tensor[i] += x[i]
look(tensor._version)
tensor[1] += x[1]
return tensor, x[0]
# torchvision's cat_list
x = [F.normalize(F.to_tensor(image.resize((20 + k, 30 - k))), MEAN, STD) for k in range(4)]
size = tuple(max(s) for s in zip(*[each.shape for each in x]))
batch = x[0].new(*(4, *size)).fill_(0.3)
for each, place in zip(x, batch):
    place[..., : each.shape[-2], : each.shape[-1]].copy_(each)
look((batch._version, x[0]._version))
return batch
# nested tensors
x = [F.to_tensor(image.resize((20 + k, 30 - k))) for k in range(3)]
b, c, h, w = 3, 3, 30, 22
tensor = torch.zeros((b, c, h, w), dtype=x[0].dtype, device=x[0].device)
mask = torch.ones((b, h, w), dtype=torch.bool)
for img, pad_img, m in zip(x, tensor, mask):
    pad_img[: img.shape[0], : img.shape[1], : img.shape[2]].copy_(img)
    m[: img.shape[1], : img.shape[2]] = False
return tensor, mask
# batch_images of detection
x = [F.to_tensor(image.resize((20 + k, 30 - k))) for k in range(3)]
batch = x[0].new_full((3, 3, 32, 32), 0.5)
for i in range(3):
    img = x[i]
    batch[i, : img.shape[0], : img.shape[1], : img.shape[2]].copy_(img)
return batch, batch[1], batch[:, :, 2:9]
# one image in a square
x = F.to_tensor(image.resize((20, 31)))
square = torch.full((3, 40, 40), 0.447)
square[:, 3:34, 5:25] = x
return square, F.normalize(square, MEAN, STD), square.flip(-1), square.flip((1, 2))[:, 2:30, 4:37], square * 2 + 1
# squares that are stacked
made = []
for k in range(3):
    square = torch.zeros(3, 40, 40)
    square[:, :30, : 20 + k] = F.to_tensor(image.resize((20 + k, 30)))
    made.append(square)
return torch.stack(made), torch.stack(made).half()
# parts of a square
square = torch.ones(3, 40, 40)
square[:, 4:34, 6:26] = F.to_tensor(image.resize((20, 30)))
parts = square[:, :3], square[:, 5:9, 8:20], square[:, :, :15]
return parts, square[:, 35:, 30:].clone(), square[:, 2:38, 3:30].clone()
# squares in squares
inner = torch.full((2, 3, 30, 20), 2.0)
inner[0, :, 5:25, 4:14] = F.to_tensor(image.resize((10, 20)))
outer = torch.full((2, 3, 40, 40), 3.0)
outer[:, :, 3:33, 8:28] = inner
return outer, inner, outer.flip(-2)
# a mosaic
x = F.pil_to_tensor(image.resize((20, 20)))
canvas = torch.full((3, 40, 40), 114, dtype=torch.uint8)
for top, left in ((0, 0), (0, 20), (20, 0), (20, 20)):
    canvas[:, top : top + 20, left : left + 20] = x.flip(-1)
return canvas, x
# twice in one place
x, y = F.to_tensor(image.resize((20, 20))), F.to_tensor(image.resize((20, 20))).flip(-1)
canvas = torch.zeros(2, 3, 30, 30)
canvas[0, :, 5:25, 5:25] = x
canvas[0, :, 5:25, 5:25] = y
canvas[1, :, 5:25, 5:25] = x
canvas[1, :, 2:22, 2:22] = y
return canvas
# other values
canvas = torch.zeros(3, 3, 24, 24)
canvas[0] = F.to_tensor(image.resize((24, 24)))
canvas[1] = F.normalize(F.to_tensor(image.resize((24, 24))), MEAN, STD)
return canvas
# other values in the same place
canvas = torch.zeros(1, 3, 24, 24)
canvas[0] = F.to_tensor(image.resize((24, 24)))
canvas[0] = F.normalize(F.to_tensor(image.resize((24, 24))), MEAN, STD)
return canvas
# other types
x, y = F.to_tensor(image.resize((24, 24))), F.pil_to_tensor(image.resize((24, 24)))
made = []
for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.uint8, torch.int64, torch.bool):
    for each in (x, y):
        canvas = torch.ones((1, 3, 26, 26), dtype=dtype)
        canvas[:, :, 1:25, 1:25] = each
        canvas[0, :, 1:25, 1:25].copy_(each, non_blocking=True)
        look((canvas._version, each._version))
        made.append(canvas)
return made
# sums with other things
x = F.to_tensor(image.resize((24, 24)))
canvas = torch.full((3, 3, 24, 24), -0.0)
canvas[0] += x - 0.5
canvas[1].add_(x, alpha=2)
canvas[2, :, 2:22, 2:22] += x[:, 2:22, 2:22]
canvas[2, :, 2:22, 2:22] += 1
return canvas, (canvas[0] == 0).sum()
# negative zeros and values that are none
x = F.to_tensor(image.resize((24, 24)))
canvas = torch.zeros(4, 3, 24, 24)
canvas[0] += -x
canvas[1] = -x
canvas[2] += x * float("inf")
canvas[3] += x / 0.0
return canvas
# sums of types
x = F.pil_to_tensor(image.resize((24, 24)))
canvas = torch.zeros(2, 3, 24, 24)
canvas[0] += x
canvas = torch.zeros((2, 3, 24, 24), dtype=torch.uint8)
try:
    canvas[0] += x.float()
except RuntimeError as error:
    look(str(error))
canvas[1] += 250
canvas[1] += x
return canvas
# errors
x = F.to_tensor(image.resize((24, 24)))
canvas = torch.zeros(2, 3, 24, 24)
wrong = (2, x), ((0, 1, 2, 3, 4), x), (0, x[:, :5]), ((slice(None, None, 2), 0), x), ("a", x), (0, x[None])
for index, value in wrong:
    try:
        canvas[index] = value
    except Exception as error:
        look((type(error), str(error)))
try:
    canvas[0].copy_(x[:, 1:])
except RuntimeError as error:
    look(str(error))
try:
    torch.zeros(2, 3, -4, 24)
except RuntimeError as error:
    look(str(error).splitlines()[0])
return canvas, x
# leaves and gradients
x = F.to_tensor(image.resize((24, 24)))
canvas = torch.zeros((2, 3, 24, 24), requires_grad=True)
try:
    canvas[0] = x
except RuntimeError as error:
    look(str(error).splitlines()[0])
with torch.no_grad():
    canvas[0] = x
look((canvas._version, canvas.is_leaf))
other = torch.zeros(2, 3, 24, 24)
other[0] = canvas[0].detach() * 2
other[1] = x
return canvas.detach(), other.requires_grad_(True).detach()
# inference
with torch.inference_mode():
    canvas = torch.zeros(2, 3, 24, 24)
    canvas[0] = F.to_tensor(image.resize((24, 24)))
    look(canvas.is_inference())
try:
    canvas[1] = F.to_tensor(image.resize((24, 24)))
except RuntimeError as error:
    look(str(error).splitlines()[0])
with torch.inference_mode():
    plain = F.to_tensor(image.resize((24, 24)))
other = torch.zeros(2, 3, 24, 24)
other[1].copy_(plain)
return canvas.clone(), other
# writes after reads
x = F.to_tensor(image.resize((24, 24)))
canvas = torch.zeros(3, 3, 24, 24)
view = canvas[1]
canvas[0] = x
look((canvas[0, 0, 3, 4].item(), view.sum().item()))
canvas[1] = x
look(view.sum())
canvas[2].copy_(x)
x.zero_()
return canvas, view, x
# sources that change later
x = F.to_tensor(image.resize((24, 24)))
canvas = torch.zeros(2, 3, 24, 24)
canvas[0] = x
x.mul_(2)
canvas[1] = x
x[:, 3:9, 3:9] = 0
return canvas, x
# views of the canvas
x = F.to_tensor(image.resize((24, 24)))
canvas = torch.zeros(4, 3, 24, 24)
views = list(canvas) + [canvas[1:3], canvas.view(2, 2, 3, 24, 24), canvas.permute(0, 2, 3, 1), canvas.data]
canvas[1:3] = torch.stack([x, x.flip(-1)])
look([v._version for v in views])
canvas[0:1].copy_(x[None])
views[3].copy_(x)
return views, canvas
# rows of itself
x = F.to_tensor(image.resize((24, 24)))
canvas = torch.zeros(3, 3, 24, 24)
canvas[0] = x
canvas[1] = canvas[0]
canvas[2] = canvas[1].flip(-1)
canvas[0] = canvas[0]
try:
    canvas[:2].copy_(canvas[1:])
except RuntimeError as error:
    look(str(error).splitlines()[0])
return canvas, canvas._version
# constants in canvases
x = F.to_tensor(image.resize((24, 24)))
canvas = torch.empty(3, 3, 24, 24)
canvas.fill_(7)
canvas[0] = x
canvas[0, :, 3:9, 4:12] = 0.5
canvas[1].zero_()
canvas[0, :, 5:11].fill_(True)
canvas[2, 1] = 3
canvas[2, :, 2:5, 3:9].fill_(2)
return canvas, canvas._version
# fills of images
x, y = F.to_tensor(image.resize((24, 24))), F.pil_to_tensor(image.resize((24, 24)))
look((x[:, 3:9, 4:11].fill_(0.25)._version, y[:, 3:9].zero_()._version))
for value in (300, -1, 1.5, float("nan"), True):
    try:
        y[:, 9:12, 2:4].fill_(value)
    except Exception as error:
        look((type(error), str(error)))
torch.fill_(x[:, 20:, 1:3], float("nan"))
z = F.to_tensor(image.resize((24, 24))).zero_()
return x, y, z
# filled later
canvas = torch.empty(2, 3, 24, 24)
for i in range(2):
    canvas[i] = F.to_tensor(image.resize((24, 24)))
other = torch.empty_like(canvas)
other[0], other[1] = canvas[1], canvas[0]
return canvas, other, torch.zeros_like(canvas), torch.ones_like(canvas[0]), torch.full_like(canvas, 2)
# never filled
x = F.to_tensor(image.resize((24, 24)))
zeros = torch.zeros(2, 3, 24, 24)
ones = x.new_ones(3, 24, 24)
return zeros, ones, zeros + 1, ones.flip(-1), x.new_zeros((2, 3, 24, 24), dtype=torch.uint8), torch.stack([ones, ones])
# ways to say it
x = F.to_tensor(image.resize((24, 24)))
made = [torch.zeros(3, 24, 24), torch.zeros([3, 24, 24]), torch.zeros(size=(3, 24, 24))]
made += [torch.zeros((3, 24, 24), dtype=torch.int16)]
made += [torch.full((3, 24, 24), 3), torch.full(size=(3, 24, 24), fill_value=2.5), torch.full((3, 24, 24), True)]
made += [torch.full((3, 24, 24), 3, dtype=torch.uint8), torch.ones(3, 24, 24, device="cpu"), x.new_zeros(3, 24, 24)]
made += [x.new(3, 24, 24).zero_(), x.new_full((3, 24, 24), 9), torch.zeros(3, 24, 24, dtype=torch.complex64)]
made += [torch.zeros(3, 24, 24, layout=torch.strided), torch.zeros(0, 3, 24, 24), torch.zeros(2, 2, 3, 24, 24)]
made += [torch.empty((2, 3, 24, 24), memory_format=torch.channels_last).fill_(3), torch.ones(4, 24, 24)]
made += [torch.zeros_like(x, dtype=torch.int32), torch.full_like(x, 3), torch.zeros_like(x.flip(-1).permute(0, 2, 1))]
look([(type(m), m.dtype, m.stride(), m._version, m.requires_grad, m.is_leaf) for m in made])
look([m.untyped_storage().resizable() for m in made])
look(torch.zeros(3, 24, 24, out=torch.empty(0)).shape)
for wrong in (lambda: torch.zeros(3, 24, 24, dtype="x"), lambda: torch.full((3, 24, 24)), lambda: x.new(3, -2, 24)):
    try:
        wrong()
    except Exception as error:
        look((type(error), str(error).splitlines()[0]))
with torch.device("meta"):
    look(torch.zeros(3, 24, 24).device)
return made
# new
x = F.to_tensor(image.resize((24, 24)))
look((x.new(2, 3).shape, x.new([1.5, 2]), x.new().shape, x.new(x.untyped_storage()).shape if False else 0))
look(x.new(F.to_tensor(image.resize((24, 24)))).sum())
return x
# resizes
x = F.to_tensor(image.resize((24, 24)))
canvas = torch.zeros(2, 3, 24, 24)
canvas[0] = x
canvas.resize_(1, 3, 24, 24)
other = torch.zeros(2, 3, 24, 24)
other[0] = x
view = other[0]
torch.add(x, 1, out=other[1])
third = torch.zeros(3, 3, 24, 24)
torch.stack([x, x, x], out=third)
return canvas, other, view, third
# memory
x = F.to_tensor(image.resize((24, 24)))
canvas = torch.zeros(2, 3, 24, 24)
array = canvas.numpy()
canvas[0] = x
look(array.sum())
other = torch.zeros(2, 3, 24, 24)
other[1] = x
look(np.asarray(other)[1].mean())
other[0] = x
return canvas, array.copy(), other
# threads
x = F.to_tensor(image.resize((24, 24)))
canvas = torch.zeros(4, 3, 24, 24)
canvas[0] = x
with ThreadPoolExecutor(2) as pool:
    list(pool.map(lambda k: canvas[k].copy_(x), (1, 2)))
canvas[3] = x
return canvas
# images of torchvision
x = tv_tensors.Image(F.to_tensor(image.resize((24, 24))))
canvas = torch.zeros(2, 3, 24, 24)
canvas[0] = x
look((type(canvas[1].copy_(x)), type(torch.zeros_like(x)), type(x.new_zeros(3, 24, 24)), type(x.new(3, 24, 24))))
other = tv_tensors.Image(torch.zeros(3, 24, 24))
other[:, :] = x
return canvas, other
# copies by torch.tensor
x, y = F.to_tensor(image.resize((24, 24))), F.pil_to_tensor(image.resize((24, 24)))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    made = [torch.tensor(x), torch.tensor(y), torch.tensor(x, dtype=torch.float32)]
    made += [torch.tensor(x, dtype=torch.float16)]
    made += [torch.tensor(x, device="cpu"), torch.tensor(x, requires_grad=True).detach(), torch.tensor(x[:, 2:9, 1:])]
    made += [torch.as_tensor(x), torch.asarray(y), torch.tensor(torch.stack([x, x]))]
look([(str(w.message), w.category, w.filename.split("/")[-1], w.lineno) for w in caught])
with warnings.catch_warnings():
    warnings.simplefilter("error")
    try:
        torch.tensor(x)
    except UserWarning as error:
        look(str(error))
look([(m._version, m.stride(), m.requires_grad, m.untyped_storage().nbytes()) for m in made])
x.add_(1)
return made, x
# memory formats
x, y = F.to_tensor(image.resize((24, 20))), F.pil_to_tensor(image.resize((24, 20)))
b, c = torch.stack([x, x.flip(-1)]), torch.stack([y])
formats = (torch.contiguous_format, torch.channels_last, torch.preserve_format)
made = []
for each in (x, y, b, c, b[:, :, 3:9], y[None]):
    for f in formats:
        calls = [lambda: each.to(memory_format=f), lambda: each.contiguous(memory_format=f)]
        calls += [lambda: each.float().to(memory_format=f), lambda: each.to(torch.float16, memory_format=f)]
        calls += [lambda: each.clone(memory_format=f), lambda: each.to(each.dtype, False, True, memory_format=f)]
        for call in calls:
            try:
                z = call()
                look((z is each, z.stride(), z._version))
                made.append(z)
            except Exception as error:
                look((type(error), str(error).splitlines()[0]))
return made[::3]
# pads
x, y = F.to_tensor(image.resize((24, 20))), F.pil_to_tensor(image.resize((24, 20)))
made = []
batches = torch.stack([x, x]), torch.stack([y, y.flip(-1)])
pads = [([1, 2, 3, 4], {}), ((2, 3), {}), ([0, 0, 0, 0], {}), ([0, 5, 0, 3], {"value": 0.4}), ([1], {})]
pads += [([1, 1, 1, 1], {"mode": "reflect"}), ([1, 0, 0, 0], {"value": 114}), ([-1, 2, 3, -2], {})]
pads += [([1, 2, 0, 0, 0, 0], {"value": 2}), ([3, 3], {"mode": "constant", "value": None})]
pads += [([1, 1, 1, 1], {"value": 300})]
for each in (x, y, x[None], y[None], *batches, x[:, 2:9], F.normalize(x, MEAN, STD)):
    for edges, more in pads:
        try:
            z = nn.pad(each, edges, **more)
            look((z.stride(), z.dtype, z._version))
            made.append(z)
        except Exception as error:
            look((type(error), str(error).splitlines()[0]))
made.append(nn.pad(x, (1, 2, 3, 4)).flip(-1)[:, 1:25].mul(2))
return made
# pads by transforms
x = F.pil_to_tensor(image.resize((24, 20)))
steps = [v2.Pad((1, 2, 3, 4)), v2.Pad(3, fill=7), v2.RandomCrop(30, pad_if_needed=True), v2.CenterCrop(40)]
steps += [v2.Pad(2, fill=[1, 2, 3])]
made = [step(each) for step in steps for each in (x, F.convert_image_dtype(x), tv_tensors.Image(x))]
made += [v1.Pad(3, fill=2)(x), F.pad(F.to_tensor(image), [3, 3], fill=0.5), F.center_crop(x, [28, 30])]
return made, v2.RandomZoomOut(fill=3, p=1.0)(tv_tensors.Image(x))
"""


def canvas_programs() -> list[Program]:
    """Return each program with files whose images are deferred."""
    return written(_TEXTS, SOUND[:2])


_KINDS = (
    "F.pil_to_tensor({i})",
    "F.to_tensor({i})",
    "F.normalize(F.to_tensor({i}), MEAN, STD)",
    "F.to_tensor({i}).half()",
)
_MADE = (
    "torch.zeros({n}, 3, {h}, {w}, dtype=x[0].dtype)",
    "torch.full(({n}, 3, {h}, {w}), {v}, dtype=x[0].dtype)",
    "x[0].new({n}, 3, {h}, {w}).fill_({v})",
    "x[0].new_zeros(({n}, 3, {h}, {w}))",
    "torch.empty({n}, 3, {h}, {w}, dtype=x[0].dtype).fill_({v})",
    "torch.zeros({n}, 3, {h}, {w})",
)
_STEPS = (
    *(["c[{k}, :, {t} : {t} + x[{j}].shape[1], {l} : {l} + x[{j}].shape[2]].copy_(x[{j}])"] * 3),
    *(["c[{k}, :, {t} : {t} + x[{j}].shape[1], {l} : {l} + x[{j}].shape[2]] = x[{j}]"] * 3),
    "c[{k}, :, : x[{j}].shape[1], : x[{j}].shape[2]] += x[{j}]",
    "c[{k}][..., {t} : {t} + 5, {l} : {l} + 6] = x[{j}][:, {t} : {t} + 5, {l} : {l} + 6]",
    "c[{k}, :, {t} : {t} + 9, {l}:] = {v}",
    "c[{k}, :, {t} : {t} + 4].fill_({v})",
    "c[{k}].zero_()",
    "c[{k}] = c[{j}]",
    "c = c.flip(-1)",
    "c = c[:, :, {t}:, {l}:].clone()",
    "c = c * 2",
    "c.mul_(2)",
    "c = nn.pad(c, ({t}, {l}, 0, 1), value={v})",
    "views.append(c[{k}])",
    "x[{j}] = x[{j}].flip(-2)",
    "x[{j}] = nn.pad(x[{j}], (1, 0, 2, 0))",
    "x[{j}][:, :3] = {v}",
    "look(c[{k}, 1, {t}, {l}])",
    "look(c._version)",
)


def canvas_program(seed: int) -> Program:
    """Return a random one."""
    r = random.Random(seed)
    n = r.randrange(1, 4)

    def filled(text: str) -> str:
        v = r.choice((0, 1, 7, 0.25)) if "x[0].dtype" not in text else r.choice((0, 1, 7))
        return text.format(
            i=f"image.resize(({r.randrange(10, 24)}, {r.randrange(10, 24)}))",
            **{"n": n, "h": r.randrange(30, 34), "w": r.randrange(30, 34), "v": v, "k": r.randrange(n)},
            **{
                "j": r.randrange(3) if text.count("c[{j}]") == 0 else r.randrange(n),
                "t": r.randrange(8),
                "l": r.randrange(8),
            },
        )

    kind = r.choice(_KINDS)
    lines = [f"x = [{', '.join(filled(kind) for _ in range(3))}]", f"c = {filled(r.choice(_MADE))}", "views = []"]
    for _ in range(r.randrange(1, 9)):
        step = filled(r.choice(_STEPS))
        lines += [
            "try:",
            f"    {step}",
            "except Exception as error:",
            "    look((type(error), str(error).splitlines()[0]))",
        ]
    lines.append("return c, views, x, torch.stack([c, c])[:, 0]")
    return Program(
        f"canvas {seed}", 'image = Image.open(path).convert("RGB")\n' + "\n".join(lines), r.choice(SOUND[:3])
    )
