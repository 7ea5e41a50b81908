"""Write random programs: operations on images and tensors, with looks in between."""

from __future__ import annotations

import random
from typing import Any

from .files import DAMAGED, OTHERS, SOUND
from .programs import Program

_FILTERS = ("NEAREST", "BILINEAR", "BICUBIC", "LANCZOS", "BOX", "HAMMING")
_TURNS = ("FLIP_LEFT_RIGHT", "FLIP_TOP_BOTTOM", "ROTATE_90", "ROTATE_180", "ROTATE_270", "TRANSPOSE", "TRANSVERSE")

_OPENS = (
    *(['image = Image.open(path).convert("RGB")'] * 8),
    'with open(path, "rb") as file:\n    image = Image.open(file).convert("RGB")',
    'image = Image.open(io.BytesIO(Path(path).read_bytes())).convert("RGB")',
    'with Image.open(path) as file:\n    image = file.convert("RGB")',
    "image = Image.open(path)",
    "image = Image.open(path)\nimage.load()",
    'image = ImageOps.exif_transpose(Image.open(path)).convert("RGB")',
    'image = Image.open(path)\nimage.draft("RGB", (40, 40))\nimage = image.convert("RGB")',
    'try:\n    image = Image.open(path).convert("RGB")\n'
    'except OSError:\n    image = Image.new("RGB", (32, 32), (3, 2, 1))',
    'image = Image.open(path).convert("RGB")\nsource = image',
)


def _usual_image_step(r: random.Random) -> str:
    """Return a statement that pending pixels can note, so that chains of them arise."""
    f, n, m, t = round(r.uniform(0.1, 2.5), 2), r.randrange(8, 60), r.randrange(8, 60), r.choice(("v1", "v2"))
    to = r.choice(
        (
            *(f"{t}.RandomHorizontalFlip()(image)", f"{t}.RandomVerticalFlip(1.0)(image)", "F.hflip(image)"),
            *(f"image.transpose(Image.Transpose.{turn})" for turn in _TURNS[:2]),
            *(f"{t}.ColorJitter(0.4, 0.4, 0.4, 0.1)(image)", f"{t}.RandAugment()(image)"),
            *(f"{t}.RandomGrayscale(0.5)(image)", f"{t}.RandomAffine(10)(image)"),
            *(f"ImageEnhance.{name}(image).enhance({f})" for name in ("Brightness", "Contrast", "Color", "Sharpness")),
            *(f"ImageOps.{name}(image)" for name in ("autocontrast", "equalize", "invert", "mirror")),
            *(f"ImageOps.posterize(image, {r.randrange(1, 9)})", f"ImageOps.solarize(image, {r.randrange(256)})"),
            *(f"image.filter(ImageFilter.GaussianBlur({f}))", f"F.adjust_hue(image, {r.uniform(-0.5, 0.5):.2f})"),
            *(f"{t}.RandomResizedCrop({n})(image)", f"image.resize(({n}, {m}), 2)"),
            *("image.crop((2, 1, image.width - 3, image.height - 1))", "image.copy()"),
        )
    )
    return f"image = {to}"


def _image_step(r: random.Random) -> str:
    """Return a statement that changes ``image``."""
    if r.random() < 0.6:
        return _usual_image_step(r)
    f, p = round(r.uniform(0.1, 2.5), 2), r.choice((0.0, 0.5, 1.0))
    n, m, t = r.randrange(8, 60), r.randrange(8, 60), r.choice(("v1", "v1", "v2"))
    left, top = r.randrange(20), r.randrange(20)
    sampling = f"Image.Resampling.{r.choice(_FILTERS)}"
    mode = f"v1.InterpolationMode.{r.choice(('NEAREST', 'BILINEAR', 'BICUBIC', 'LANCZOS'))}"
    to = r.choice(
        (
            f"{t}.RandomResizedCrop({n})(image)",
            f"{t}.RandomResizedCrop(({n}, {m}), interpolation={mode})(image)",
            f"{t}.RandomResizedCrop({n})(image)",
            f"{t}.RandomHorizontalFlip({p})(image)",
            f"{t}.RandomVerticalFlip({p})(image)",
            f"{t}.Resize({n}, interpolation={mode})(image)",
            f"{t}.Resize(({n}, {m}))(image)",
            f"{t}.CenterCrop({n})(image)",
            f"{t}.RandomCrop({n}, pad_if_needed=True)(image)",
            f"{t}.RandomCrop({n}, padding=4, pad_if_needed=True, padding_mode='reflect')(image)",
            f"{t}.Pad({r.choice((2, (1, 2), (1, 2, 3, 4)))!r}, fill={r.choice((0, 7, (1, 2, 3)))!r})(image)",
            f"{t}.ColorJitter(0.4, 0.4, 0.4, 0.1)(image)",
            f"{t}.ColorJitter(brightness={f})(image)",
            f"{t}.RandAugment({r.randrange(1, 4)}, {r.randrange(3, 30)})(image)",
            f"{t}.TrivialAugmentWide()(image)",
            f"{t}.AutoAugment()(image)",
            f"{t}.RandomGrayscale({p})(image)",
            f"{t}.RandomRotation(30, interpolation=v1.InterpolationMode.BILINEAR)(image)",
            f"{t}.RandomAffine(10, (0.1, 0.1), (0.8, 1.2), 5)(image)",
            f"{t}.RandomPerspective(0.4, {p})(image)",
            f"{t}.GaussianBlur({r.choice((3, 5, 9))}, ({f}, {f + 0.5}))(image)",
            f"{t}.RandomSolarize({r.randrange(256)}, {p})(image)",
            f"{t}.RandomPosterize({r.randrange(1, 8)}, {p})(image)",
            f"{t}.RandomAutocontrast({p})(image)",
            f"{t}.RandomEqualize({p})(image)",
            f"{t}.RandomInvert({p})(image)",
            f"{t}.RandomAdjustSharpness({f}, {p})(image)",
            f"{t}.RandomApply([{t}.RandomRotation((90, 90))], {p})(image)",
            f"F.adjust_hue(image, {r.uniform(-0.5, 0.5):.2f})",
            f"F.adjust_gamma(image, {f})",
            f"F.resized_crop(image, {top}, {left}, {n}, {m}, [{m}, {n}])",
            f"F.hflip(image) if random.random() < {p} else image",
            f"image.crop(({left}, {top}, {left + n}, {top + m}))",
            f"image.crop((-3, {top}, {left + n}, {top + m}))",
            f"image.resize(({n}, {m}), {sampling})",
            f"image.resize(({n}, {m}), {sampling}, (1, 2, image.width - 1, image.height - 0.5))",
            f"image.resize(({n}, {m}), {sampling}, reducing_gap=2.0)",
            f"image.transpose(Image.Transpose.{r.choice(_TURNS)})",
            f"image.rotate({r.randrange(-180, 180)}, {r.choice(('0', '2', '3'))}, expand={r.random() < 0.3})",
            f"image.transform(image.size, 0, (1, {r.uniform(-0.3, 0.3):.2f}, -2, 0.1, 0.9, 3), 2, fillcolor=(9, 8, 7))",
            f"image.filter(ImageFilter.GaussianBlur({f}))",
            f"image.filter(ImageFilter.{r.choice(('BLUR', 'SHARPEN', 'MedianFilter(3)', 'BoxBlur(2)'))})",
            f"image.point(lambda v: 255 - v // {r.randrange(1, 4)})",
            f"image.reduce({r.randrange(1, 3)})",
            "image.copy()",
            'image.convert("RGB")',
            'image.convert("L").convert("RGB")',
            f"ImageOps.{r.choice(('autocontrast', 'equalize', 'invert', 'mirror', 'flip'))}(image)",
            f"ImageOps.posterize(image, {r.randrange(1, 9)})",
            f"ImageOps.solarize(image, {r.randrange(256)})",
            f"ImageOps.expand(image, {r.randrange(1, 5)}, (1, 20, 250))",
            f"ImageOps.fit(image, ({n}, {m}))",
            f"ImageOps.pad(image, ({n}, {m}), color=(5, 5, 5))",
            f"ImageEnhance.{r.choice(('Brightness', 'Contrast', 'Color', 'Sharpness'))}(image).enhance({f})",
            f"ImageChops.offset(image, {r.randrange(9)}, {r.randrange(9)})",
            f"Image.blend(image, ImageOps.mirror(image), {p})",
            "Image.merge('RGB', image.split()[::-1])",
            "Image.fromarray(np.asarray(image)[::2, 1:])",
        )
    )
    odd = r.random()
    if odd < 0.03:
        return f"image = image.copy()\nimage.thumbnail(({n}, {m}))"
    if odd < 0.06:
        return f"image = image.copy()\nImageDraw.Draw(image).ellipse((1, 2, {n}, {m}), fill=({n}, 2, 3))"
    if odd < 0.09:
        return f"image = image.copy()\nimage.paste(({m}, 0, 9), (0, 0, {n}, 5))"
    return f"image = {to}"


_IMAGE_LOOKS = (
    "look(image.size)",
    "look(image.getpixel((1, 1)))",
    "look(image.tobytes()[:50])",
    "look(image.getextrema())",
    "look(ImageStat.Stat(image).mean)",
    "look(np.asarray(image).mean())",
    "look(image.getbbox())",
    "look((image.mode, sorted(image.info), type(image).__name__))",
    "look(image.histogram()[:20])",
    "image.load()",
)

_TO_BYTES = (
    "F.pil_to_tensor(image)",
    "v1.PILToTensor()(image)",
    "v2.PILToTensor()(image)",
    "v2.ToImage()(image)",
    "VF.to_image(image)",
    "VF.pil_to_tensor(image)",
    "tv_tensors.Image(image)",
    "torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)",
    "torch.as_tensor(np.array(image)).permute(2, 0, 1).contiguous()",
    "torch.tensor(np.array(image)).movedim(-1, 0)",
    "torch.from_numpy(np.array(image, np.uint8, copy=True)).permute((2, 0, 1))",
)
_TO_FLOATS = (
    *(["v1.ToTensor()(image)", "F.to_tensor(image)"] * 3),
    "v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])(image)",
    "VF.to_dtype(VF.to_image(image), torch.float32, scale=True)",
    "v2.ToTensor()(image)",
    "v1.ConvertImageDtype(torch.float32)(F.pil_to_tensor(image))",
    "F.pil_to_tensor(image).float().div(255)",
    "F.pil_to_tensor(image) / 255",
    "v1.Compose([v1.ToTensor(), v1.Normalize(MEAN, STD)])(image)",
    "v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])(image)",
    "torch.from_numpy(np.asarray(image).transpose(2, 0, 1).astype(np.float32) / 255)",
)

_SOURCE_CHANGES = (
    "ImageDraw.Draw(image).rectangle((0, 0, 5, 5), fill=(250, 1, 2))",
    "image.paste((9, 99, 199), (2, 2, 12, 12))",
    "image.putpixel((0, 0), (1, 2, 3))",
    "image.putdata([(4, 5, 6)] * 20)",
    "image.load()[1, 1] = (7, 8, 9)",
    'image.putalpha(7)\nimage = image.convert("RGB")',
    "image.frombytes(bytes(3 * image.width * image.height))",
    "image.close()",
    "image.im.paste((3, 4, 5), (0, 0, 4, 4))",
    "image = image.crop((0, 0, 9, 9))",
    "source = None\nimage = None\ngc.collect(0)",
    "os.environ.get('HOME')\nimage.info['more'] = 1",
    "image.thumbnail((9, 9))",
)

_BYTE_STEPS = (
    *(["{x} = F.convert_image_dtype({x}, torch.float32)"] * 3),
    "{x} = v1.ConvertImageDtype(torch.float32)({x})",
    "{x} = v2.ToDtype(torch.float32, scale=True)({x})",
    "{x} = v2.ToDtype(torch.float32)({x})",
    "{x} = {x}.float() / 255",
    "{x} = {x}.float().div_(127.5).sub_(1)",
    "{x} = {x}.to(torch.float32).mul_(1 / 255)",
    "{x} = 255 - {x}",
    "{x} = {x} ^ 85",
    "{x} //= 2",
    "{x} = {x} + 100",
    "{x} = F.invert({x})",
    "{x} = F.posterize({x}, 4)",
    "{x} = F.solarize({x}, 128)",
    "{x} = {x}.double()",
    "{x} = {x}.to(torch.int16)",
)
_FLOAT_STEPS = (
    *(["{x} = F.normalize({x}, MEAN, STD)", "{x} = v1.Normalize(MEAN, STD)({x})"] * 3),
    "{x} = v1.Normalize(MEAN, STD, inplace=True)({x})",
    "F.normalize({x}, [0.5], [0.25], inplace=True)",
    "{x} = v2.Normalize([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])({x})",
    "{x} = v2.functional.normalize({x}, MEAN, STD)",
    "{x} = ({x} - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)",
    "{x} = ({x} - 0.5) / 0.25",
    "{x} = {x} * 2 - 1",
    "{x}.mul_(2).sub_(1)",
    "{x} *= 0.5",
    "{x} -= torch.tensor([0.1, 0.2, 0.3])[:, None, None]",
    "{x} = torch.sub(torch.mul({x}, 2.0), 1.0)",
    "{x} = torch.add({x}, 1, alpha=3)",
    "{x} = torch.addcmul({x}, {x}, {x}, value=0.5)",
    "{x} = 1 - {x}",
    "{x} = {x}.neg()",
    "{x} = {x}.clamp(-0.5, 0.5)",
    "{x}.clamp_(0.1)",
    "{x} = {x} ** 2.2",
    "{x} = {x}.abs().sqrt()",
    "{x} = {x}.pow(0.45)",
    "{x} = {x}.exp()",
    "{x} = {x}.lerp(torch.zeros_like({x}), 0.3)",
    "{x} = {x} + 0.01 * torch.randn_like({x})",
    "{x} = {x} + 0.1 * torch.randn({x}.shape)",
    "{x} = {x} * (torch.rand(1) + 0.5)",
    "{x} = {x} * torch.rand(3, 1, 1)",
    "{x} = {x} - {x}.mean()",
    "{x} = {x}.half()",
    "{x} = {x}.to(torch.bfloat16)",
    "{x} = {x}.to(torch.float16).float()",
    "{x} = {x}.to({x}.dtype)",
    "{x} = v2.ConvertImageDtype(torch.float16)({x})",
    "{x} = (F.convert_image_dtype({x}.clamp(0, 1), torch.uint8)).float()",
    "{x} = nn.avg_pool2d({x}, 2)",
    "{x} = F.gaussian_blur({x}, [3, 3])",
    "{x} = F.adjust_brightness({x}, 0.7)",
    "{x} = v1.ColorJitter(0.4, 0.4)({x}.clamp(0, 1))",
    "{x} = v1.RandomErasing(1.0)({x})",
    "{x} = v1.RandomErasing(0.7, value='random')({x})",
    "{x} = v1.RandomErasing(1.0, value=(0.1, 0.2, 0.3), inplace=True)({x})",
    "{x} = v2.RandomErasing(1.0, value=0.5)({x})",
    "{x} = v2.GaussianNoise()({x})",
)
_ANY_STEPS = (
    "{x} = torch.flip({x}, [-1])",
    "{x} = {x}.flip(-1)",
    "{x} = {x}.flip(1, 2)",
    "{x} = F.hflip({x})",
    "{x} = F.vflip({x})",
    "{x} = v1.RandomHorizontalFlip({p})({x})",
    "{x} = v2.RandomHorizontalFlip({p})({x})",
    "{x} = v2.functional.horizontal_flip({x})",
    "{x} = v2.RandomVerticalFlip({p})({x})",
    "{x} = {x}[:, {a}:-{b}, {b}:]",
    "{x} = {x}[..., {a}:{a} + 8]",
    "{x} = {x}[..., ::2]",
    "{x} = {x}.narrow(-1, 1, 4)",
    "{x} = F.crop({x}, {a}, {b}, 6, 7)",
    "{x} = v1.RandomCrop(7, pad_if_needed=True)({x})",
    "{x} = F.center_crop({x}, [6, 6])",
    "{x} = F.pad({x}, [{a}, {b}])",
    "{x} = nn.pad({x}, (1, 2, 3, 4))",
    "{x} = F.erase({x}, {a}, {b}, 3, 4, 0)",
    "{x} = F.erase({x}, 0, {b}, 4, 2, torch.tensor([1, 2, 3])[:, None, None].to({x}.dtype), inplace={e})",
    "{x} = v2.functional.erase({x}, 1, 1, 3, 3, torch.zeros(1, 1, 1).to({x}.dtype))",
    "{x}[:, {a}:{a} + 3, {b}:{b} + 2] = 0",
    "{x}[{c}] = 1",
    "{x}[..., 0] = {x}[..., 1]",
    "{x} = {x}.clone()",
    "{x} = {x}.detach()",
    "{x} = {x}.data",
    "{x} = {x}.contiguous()",
    "{x} = {x}.clone(memory_format=torch.contiguous_format)",
    "{x} = {x}.unsqueeze(0).contiguous(memory_format=torch.channels_last).squeeze(0)",
    "{x} = {x}[None].to(memory_format=torch.channels_last)[0]",
    "{x} = {x}.permute(1, 2, 0).contiguous().permute(2, 0, 1)",
    "{x} = {x}.transpose(1, 2)",
    "{x} = {x}.mT",
    "{x} = {x}[[2, 1, 0]]",
    "{x} = {x}.index_select(0, torch.tensor([2, 0, 1]))",
    "{x} = {x}.roll(2, -1)",
    "{x} = {x}.rot90(1, (1, 2))",
    "{x} = torch.cat([{x}, {x}], -1)",
    "{x} = torch.stack([{x}, {x}.flip(-1)])[{e}:].squeeze(0)",
    "{x} = torch.where({x} > 0.3, {x}, torch.zeros_like({x}))",
    "{x} = {x}.masked_fill({x} > 0.6, 0)",
    "{x}.masked_fill_({x} < 0.1, 1)",
    "{x} = F.resize({x}, [9, 11], antialias=True)",
    "{x} = v2.functional.resize({x}, [9, 11])",
    "{x} = F.rgb_to_grayscale({x}, 3)",
    "{x} = {x}.as_subclass(torch.Tensor)",
    "{x} = {x}.expand({x}.shape)",
    "{x} = {x}.reshape({x}.shape)",
    "{x} = {x}.view({x}.shape)",
    "{x} = copy.deepcopy({x})",
    "{x} = copy.copy({x})",
    "{x} = pickle.loads(pickle.dumps({x}))",
    "{x} = torch.from_numpy({x}.numpy().copy())",
    "{x} = torch.empty_like({x}).copy_({x})",
    "{x} = {x}.type_as({x})",
    "{x} = {x}.to('cpu')",
    "{x} = v2.ToPureTensor()({x})",
    "{x} = tv_tensors.Image({x})",
    "{x} = F.to_tensor(F.to_pil_image({x}))",
    "{x} = torch.transpose({x}, 1, 2).transpose(1, 2)",
    "{x}.unsqueeze_(0).squeeze_(0)",
    "{x} = {x}.unsqueeze(0)[0]",
    "{x} = next(iter([{x}]))",
    "{x} = torch.stack(list({x}))",
    "{x} = torch.stack({x}.unbind(0), dim=0)",
    "kept['{x}'] = {x}",
    "{x}.note = 'noted'",
    "with torch.no_grad():\n    {x} = {x} * 1",
    "with torch.inference_mode():\n    {x} = {x} + 0\n{x} = {x}.clone()",
    "with Counting():\n    {x} = {x}.flip(0)",
)
_SECOND = (
    "{y} = {x}",
    "{y} = {x}[:, 1:-1]",
    "{y} = {x}.flip(-1)",
    "{y} = {x}.clone()",
    "{y} = {x}.view(-1)",
    "{y} = {x}[0]",
    "{y} = {x}.detach()",
    "{y} = {x} * 2",
    "{y} = {x}.unsqueeze(0)",
    "{y} = F.to_tensor(image)",
    "{y} = F.pil_to_tensor(image)",
    "{y} = F.to_tensor(F.resize(image, [12, 12]))",
    "{y} = F.normalize(F.to_tensor(v1.RandomResizedCrop(16)(image)), MEAN, STD)",
    "{y} = v2.ToImage()(image)",
    "{y} = torch.zeros({x}.shape)",
    "{y} = image",
)
_MUTATIONS = (
    "{x}[..., :2] = 0.5",
    "{y}.mul_(2)",
    "{y}.zero_()",
    "{x}.fill_(3)",
    "{y}[0] = 7",
    "{x}.copy_({x}.flip(-1))",
    "np.asarray({y})[..., 0] = 1",
    "{x}.data.add_(1)",
    "ctypes.memset({y}.data_ptr(), 1, {y}.element_size())",
)
_LOOKS = (
    "look({x}[0, 0, 0].item())",
    "look({x}.sum())",
    "look(np.asarray({x}))",
    "look({x}.numpy().copy())",
    "look(repr({x}))",
    "look(pickle.loads(pickle.dumps({x})))",
    "look({x}.numpy().tobytes())",
    "{x}.data_ptr()",
    "look(ctypes.string_at({x}.data_ptr(), {x}.element_size()))",
    "buffer = io.BytesIO()\ntorch.save({x}, buffer)\nbuffer.seek(0)\nlook(torch.load(buffer, weights_only=False))",
    "look(bytes(memoryview({x}.contiguous().numpy())))",
    "look(torch.from_dlpack({x}))",
    "look({x}.tolist()[0][0])",
    "look({x}.mean(dtype=torch.float64).item())",
    "look({x}.float().std((1, 2)))",
    "look(({x}.min(), {x}.max()))",
    "look(({x}.shape, {x}.dtype, {x}.stride(), {x}.is_contiguous()))",
    "look({x}._version)",
    "look(({x}.storage_offset(), {x}.numel(), {x}.dim(), {x}.is_floating_point()))",
    "look(({x}.is_shared(), {x}.requires_grad, {x}.device))",
    "look(bool(({x} > 0.5).any()))",
    "look(torch.equal({x}, {x}.clone()))",
    "look(F.to_pil_image({x}))",
    "look(np.from_dlpack({x}.contiguous()))",
    "thread = threading.Thread(target=lambda: look({x}.numpy()))\nthread.start()\nthread.join()",
    "look(list(ThreadPoolExecutor(2).map(lambda _: float({x}.sum()), range(2))))",
    "look({x}.untyped_storage().nbytes())",
    "look(bytes({x}.untyped_storage())[:40])",
    "look(len({x}))",
    "look([row.sum() for row in {x}])",
    "look(f'{{{x}.flatten()[0]:.6f}}')",
    "look(({x} == {x}).all())",
    "look(kept.get('{x}'))",
    "look({x}.is_contiguous(memory_format=torch.channels_last) if {x}.dim() == 4 else 0)",
    "look(torch.histc({x}.float(), 5))",
    "look(np.add({x}, 1))",
    "assert not torch.isnan({x}.float()).any()",
    "assert {x}.shape[0] == 3",
)
_RETURNS = (
    *(["return {x}"] * 4),
    *(["return {{'pixel_values': {x}, 'labels': number}}"] * 3),
    *(["return {x}, number"] * 3),
    "return [{x}, {x}]",
    "return {x}, {x}[0]",
    "return Pair({x}, {{'more': [{x}]}})",
    "return Record({x}, Record({x}.flip(-1)))",
    "return Opaque({x})",
    "return torch.stack([{x}, {x}])",
    "return {x}.unbind(0)",
    "return {{'n': ({x}, [{x}.sum(), 'text', None])}}",
    "return types.SimpleNamespace(x={x})",
    "return np.asarray({x})",
    "return {x}.clone(), image.size",
    "return collections.OrderedDict(b={x}, a=1)",
    "kept['last'] = {x}\nreturn {x}",
    "before = kept.get('last')\nkept['last'] = {x}\nreturn {x}, before",
    "cache = kept.setdefault('cache', {{}})\ncache[path] = {x}\nlook(len(cache) > 0)\nreturn cache[path]",
    "return (lambda: {x})()",
)
_RETURNS_OF_TWO = (
    *(["return {x}, {y}"] * 3),
    "return torch.stack([{x}, {y}])",
    "return [{x}, {y}], number",
    "return {{'views': [{x}, {y}], 'label': number}}",
    "return {{'a': {x}, 'b': {{'c': {y}}}}}",
    "return Pair({y}, {x})",
    "return torch.cat([{x}.flatten(), {y}.flatten()])",
    "del {y}\nreturn {x}",
    "return {y}",
)


def program(seed: int) -> Program:
    """Write the program of a number."""
    r = random.Random(seed)
    chance = r.random()
    file = r.choice(SOUND if chance < 0.82 else OTHERS if chance < 0.91 else DAMAGED)
    lines = [r.choice(_OPENS)]
    if r.random() < 0.75:
        lines.append(f"image = v1.RandomResizedCrop({r.choice((8, 24, 32, 48))})(image)")
    for _ in range(r.choice((0, 0, 1, 1, 2, 3, 4))):
        lines.append(_image_step(r))
        if r.random() < 0.05:
            lines.append(r.choice(_IMAGE_LOOKS))
    is_bytes = r.random() < 0.4
    lines.append(f"x = {r.choice(_TO_BYTES if is_bytes else _TO_FLOATS)}")
    if r.random() < 0.1:
        lines.append(r.choice(_SOURCE_CHANGES))
    return Program(str(seed), "\n".join([*lines, *changed_tensor(r, is_bytes=is_bytes)]), file)


def changed_tensor(r: random.Random, *, is_bytes: bool) -> list[str]:
    """Write statements that change a tensor ``x`` and return what they made."""
    lines = []
    names = ["x"]
    looks = r.choice((0.0, 0.0, 0.1, 0.3))  # most programs look at nothing, or they would all be made early
    for _ in range(r.choice((0, 1, 2, 3, 4, 6))):
        x = r.choice(names)
        steps = _ANY_STEPS if r.random() < 0.5 else _BYTE_STEPS if is_bytes else _FLOAT_STEPS
        lines.append(_filled(r, r.choice(steps), x))
        if steps is _BYTE_STEPS and "float" in lines[-1]:
            is_bytes = False
        if len(names) == 1 and r.random() < 0.2:
            lines.append(_filled(r, r.choice(_SECOND), "x"))
            names.append("y")
            if r.random() < 0.3:
                lines.append(_filled(r, r.choice(_MUTATIONS), *r.choice((("x", "y"), ("y", "x")))))
        if r.random() < looks:
            lines.append(_filled(r, r.choice(_LOOKS), r.choice(names)))
    returns = _RETURNS_OF_TWO if len(names) > 1 and r.random() < 0.8 else _RETURNS
    lines.append(_filled(r, r.choice(returns), *names[:2] if len(names) > 1 else "xx"))
    return lines


def _filled(r: random.Random, text: str, x: str, y: str = "y") -> str:
    fields: dict[str, Any] = {"a": r.randrange(4), "b": r.randrange(1, 4), "c": r.randrange(3), "e": r.randrange(2)}
    return text.format(x=x, y=y, p=r.choice((0.0, 0.5, 1.0)), **fields)
