"""Programs written by hand, as users write them for their tasks, and odd ones."""

from __future__ import annotations

import textwrap

from .files import OTHERS, SOUND
from .programs import Program

_TEXTS = """
# simclr
def view():
    crop = v1.RandomResizedCrop(32)(image)
    crop = v1.RandomApply([v1.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8)(v1.RandomHorizontalFlip()(crop))
    return v1.ToTensor()(v1.GaussianBlur(3)(v1.RandomGrayscale(0.2)(crop)))
return view(), view()
# dino
large = [v1.Normalize(MEAN, STD)(v1.ToTensor()(v1.RandomResizedCrop(32, (0.4, 1))(image))) for _ in range(2)]
small = [v1.Normalize(MEAN, STD)(v1.ToTensor()(v1.RandomResizedCrop(12, (0.05, 0.4))(image))) for _ in range(6)]
return large + small
# simclr, views stacked
transform = v1.Compose([v1.RandomResizedCrop(24), v1.ToTensor()])
return torch.stack([transform(image) for _ in range(4)])
# fixmatch
weak = v1.RandomHorizontalFlip()(image.resize((24, 24)))
strong = v1.RandAugment(2, 10)(weak)
to = v1.Compose([v1.ToTensor(), v1.Normalize(MEAN, STD)])
return {'weak': to(weak), 'strong': to(strong)}
# masked autoencoder
x = F.normalize(F.to_tensor(image.resize((32, 32), 3)), MEAN, STD)
patches = x.unfold(1, 8, 8).unfold(2, 8, 8).permute(1, 2, 0, 3, 4).reshape(16, -1)
keep = torch.rand(16).argsort()[:4]
return patches[keep], keep
# pixels for a mean
x = v1.ToTensor()(image)
return x.sum((1, 2)), (x ** 2).sum((1, 2)), x.shape[1] * x.shape[2]
# standardized by itself
x = F.to_tensor(image)
return (x - x.mean((1, 2), keepdim=True)) / x.std((1, 2), keepdim=True)
# hugging face
x = v1.Compose([v1.RandomResizedCrop(24), v1.ToTensor(), v1.Normalize(MEAN, STD)])
return {'pixel_values': x(image.convert("RGB")), 'label': number, 'image': None}
# ten crops
return torch.stack([F.to_tensor(crop) for crop in F.ten_crop(image.resize((40, 40)), 32)])
# ten crops by lambda
crops = v1.Compose([v1.TenCrop(16), v1.Lambda(lambda crops: torch.stack([v1.ToTensor()(c) for c in crops]))])
return crops(image.resize((40, 40)))
# five crops of a tensor
return torch.stack(F.five_crop(F.to_tensor(image), [20, 20]))
# segmentation
mask = Image.fromarray((np.asarray(image)[..., 0] > 100).astype(np.uint8))
top, left, height, width = v1.RandomCrop.get_params(image, (30, 30))
x = F.to_tensor(F.crop(image, top, left, height, width))
y = torch.as_tensor(np.array(F.crop(mask, top, left, height, width)), dtype=torch.int64)
return (F.hflip(x), y.flip(-1)) if torch.rand(1) < 0.5 else (x, y)
# segmentation with boxes
boxes = tv_tensors.BoundingBoxes([[1, 2, 30, 40]], format="XYXY", canvas_size=(image.height, image.width))
target = {"boxes": boxes, "mask": tv_tensors.Mask(torch.ones(1, image.height, image.width))}
steps = [v2.ToImage(), v2.RandomHorizontalFlip(1), v2.Resize((24, 24)), v2.ToDtype(torch.float32, scale=True)]
return v2.Compose(steps)(image, target)
# detection
x = F.to_tensor(image)
scale = 40 / min(x.shape[-2:])
x = nn.interpolate(x[None], scale_factor=scale, mode="bilinear", recompute_scale_factor=True)[0]
out = x.new_zeros(3, 64, 128)
out[:, : x.shape[1], : x.shape[2]].copy_(x[:, :64, :128])
return out, torch.tensor([[0.1, 0.2, 0.3, 0.4]])
# mosaic
out = torch.full((3, 32, 32), 114 / 255)
for at in range(4):
    part = F.to_tensor(v1.RandomCrop(16, pad_if_needed=True)(image))
    out[:, at // 2 * 16 : at // 2 * 16 + 16, at % 2 * 16 : at % 2 * 16 + 16] = part
return out
# letterbox by numpy
array = np.asarray(image.resize((30, 20)))
canvas = np.full((30, 30, 3), 114, np.uint8)
canvas[5:25] = array
return torch.from_numpy(np.ascontiguousarray(canvas.transpose(2, 0, 1)[::-1])).float() / 255
# mixed with another file
other = Image.open(os.path.join(os.path.dirname(path), "444.jpg")).convert("RGB").resize((24, 24))
x, y = F.to_tensor(image.resize((24, 24))), F.to_tensor(other)
weight = np.random.beta(0.4, 0.4)
return weight * x + (1 - weight) * y
# cut and pasted
other = Image.open(os.path.join(os.path.dirname(path), "420.jpg")).convert("RGB").resize((24, 24))
x, y = F.to_tensor(image.resize((24, 24))), F.to_tensor(other)
x[:, 5:15, 6:16] = y[:, 5:15, 6:16]
return x, 100 / 576
# blended images
other = Image.open(os.path.join(os.path.dirname(path), "rgb.png")).convert("RGB").resize(image.size)
return F.to_tensor(Image.blend(image, other, 0.3)), F.to_tensor(other)
# channels reversed
return F.to_tensor(image)[[2, 1, 0]] * 255 - torch.tensor([104.0, 117.0, 123.0]).view(3, 1, 1)
# channels reversed by flip
return F.to_tensor(image).flip(0).mul(255).round().to(torch.uint8)
# gray by weights
x = F.to_tensor(image)
return 0.299 * x[0] + 0.587 * x[1] + 0.114 * x[2]
# luminance and chroma
y, cb, cr = image.convert("YCbCr").split()
return F.to_tensor(y), torch.cat([F.to_tensor(cb), F.to_tensor(cr)])
# one channel
return F.to_tensor(image.getchannel("G")), F.to_tensor(image.convert("L")), F.to_tensor(image.convert("1"))
# other modes
modes = ("L", "RGBA", "CMYK", "HSV", "LAB", "YCbCr", "I", "F", "P", "RGBX")
return [F.pil_to_tensor(image.convert(mode)) for mode in modes]
# dct
x = F.to_tensor(image.resize((24, 24))).double()
return torch.fft.fft2(x).real.float()
# quantized
return (F.to_tensor(image) * 15).round().to(torch.uint8)
# tokens
x = F.pil_to_tensor(image.resize((16, 16)))
return (x.int() // 32 * torch.tensor([1, 8, 64]).view(3, 1, 1)).sum(0).flatten()
# tiles
x = F.to_tensor(image.resize((32, 32)))
return [tile for row in x.split(16, 1) for tile in row.split(16, 2)]
# pyramid
return [F.to_tensor(image.resize((size, size))) for size in (32, 16, 8, 4, 2, 1)]
# pyramid of tensors
x = F.to_tensor(image.resize((32, 32)))[None]
return [x[0]] + [nn.avg_pool2d(x, 2 ** at)[0] for at in range(1, 4)]
# thumbnail and original
x = F.to_tensor(image)
image.thumbnail((20, 20))
return x, F.to_tensor(image)
# super resolution
high = v1.RandomCrop(32, pad_if_needed=True)(image)
low = high.resize((16, 16), Image.BICUBIC)
return F.to_tensor(low), F.to_tensor(high) * 2 - 1
# denoising
x = F.to_tensor(image.resize((24, 24)))
return x + torch.randn_like(x) * 0.1, x
# denoising in place
x = F.to_tensor(image.resize((24, 24)))
noisy = x.clone().add_(torch.randn(x.shape), alpha=0.1).clamp_(0, 1)
return noisy, x
# salt and pepper
x = F.to_tensor(image.resize((24, 24)))
x[:, torch.rand(24, 24) < 0.1] = 0
x[:, torch.rand(24, 24) > 0.9] = 1
return x
# colorized
x = F.to_tensor(image)
gray = x.mean(0, keepdim=True)
return gray.expand(3, -1, -1), x - gray
# rotations as labels
turn = random.randrange(4)
return (
    F.to_tensor(image.resize((24, 24)).rotate(90 * turn)),
    torch.rot90(F.to_tensor(image.resize((24, 24))), turn, (1, 2)),
)
# jigsaw
x = F.to_tensor(image.resize((24, 24)))
tiles = [x[:, 8 * (at // 3) : 8 * (at // 3) + 8, 8 * (at % 3) : 8 * (at % 3) + 8] for at in range(9)]
order = np.random.permutation(9)
return torch.stack([tiles[at] for at in order]), order
# brightness decides
x = F.to_tensor(image)
return v1.Normalize(MEAN, STD)(x) if x.mean() > 0.5 else x.flip(-1)
# a pixel decides
x = F.to_tensor(image)
return F.normalize(x, MEAN, STD) if x[0, 0, 0] > 0.4 else x * 2
# size decides
x = F.to_tensor(image)
return x[:, :20, :20] if x.shape[1] > x.shape[2] else x[:, :30, :15]
# rejected until bright
for _ in range(10):
    x = F.to_tensor(v1.RandomResizedCrop(12)(image))
    if x.mean() > 0.45:
        break
return x
# checked
x = F.normalize(F.to_tensor(image), MEAN, STD)
assert torch.isfinite(x).all() and x.dtype == torch.float32 and x.shape[0] == 3
return x
# logged
x = F.to_tensor(image)
look(f"{number}: {tuple(x.shape)} {x.dtype} {x.min():.3f} {x.max():.3f}")
return F.normalize(x, MEAN, STD)
# printed
x = F.to_tensor(image)
print(x, file=io.StringIO())
return x
# logged but never formatted
import logging
x = F.to_tensor(image)
logging.getLogger("own").debug("made %s", x)
return x
# hashed
x = F.pil_to_tensor(image)
import hashlib
look(hashlib.md5(x.numpy().tobytes()).hexdigest())
return x
# dictionary of everything
x = F.to_tensor(image)
return {'x': x, 'flipped': x.flip(-1), 'mean': x.mean(), 'path': os.path.basename(path), 'size': image.size,
    'none': None}
# copies on disk
import tempfile
x = F.to_tensor(image)
with tempfile.TemporaryFile() as file:
    torch.save(x, file)
    file.seek(0)
    return torch.load(file), x
# saved as numpy
file = io.BytesIO()
np.savez(file, x=F.to_tensor(image))
return torch.from_numpy(np.load(io.BytesIO(file.getvalue()))["x"])
# cached
cache = kept.setdefault('images', {})
if path not in cache:
    cache[path] = F.to_tensor(image.resize((24, 24)))
return F.normalize(cache[path], MEAN, STD)
# cached and changed
cache = kept.setdefault('changed', {})
if path not in cache:
    cache[path] = F.to_tensor(image.resize((24, 24)))
cache[path].mul_(0.5)
return cache[path].clone()
# cached as image
cache = kept.setdefault('pillow', {})
if path not in cache:
    cache[path] = image.resize((24, 24))
return F.to_tensor(cache[path]), F.to_tensor(cache[path].rotate(90))
# cached by functools
@functools.lru_cache
def made(size):
    return F.to_tensor(image.resize((size, size)))
return made(12), made(12).flip(-1), made(13), made(12) is made(12)
# a history
history = kept.setdefault('history', [])
x = F.to_tensor(image.resize((24, 24)))
history.append(x)
return x, sum(history[-4:]) / len(history[-4:])
# a moving average
x = F.to_tensor(image.resize((24, 24)))
kept['average'] = x if 'average' not in kept else kept['average'].lerp(x, 0.1)
return x, kept['average'].clone()
# a moving average in place
x = F.to_tensor(image.resize((24, 24)))
average = kept.setdefault('in place', torch.zeros(3, 24, 24))
average.mul_(0.9).add_(x, alpha=0.1)
return x - average
# a buffer that is used again
buffer = kept.setdefault('buffer', torch.empty(3, 24, 24))
torch.sub(F.to_tensor(image.resize((24, 24))), 0.5, out=buffer)
return buffer.clone()
# copied to a buffer
buffer = kept.setdefault('copied', torch.empty(3, 24, 24))
buffer.copy_(F.to_tensor(image.resize((24, 24))))
return buffer * 1
# a running sum
kept['sum'] = kept.get('sum', 0) + F.to_tensor(image.resize((9, 9)))
return kept['sum']
# the one before
x = F.to_tensor(image.resize((24, 24)))
before = kept.get('before', x)
kept['before'] = x
return x - before
# a queue
queue = kept.setdefault('queue', collections.deque(maxlen=3))
queue.append(F.pil_to_tensor(image.resize((12, 12))))
return torch.stack(list(queue)).float().mean(0)
# a closure
def maker(x):
    def later():
        return x * 2
    return later
later = maker(F.to_tensor(image))
image = None
return later()
# a closure from before
former = kept.get('closure')
x = F.to_tensor(image.resize((12, 12)))
kept['closure'] = lambda: x + 1
return x, None if former is None else former()
# a generator function
def parts():
    x = F.to_tensor(image)
    yield x
    x.zero_()
    yield x.clone()
return list(parts())[1]
# a property
class Sample:
    def __init__(self):
        self._x = None
    @property
    def x(self):
        if self._x is None:
            self._x = F.to_tensor(image)
        return self._x
sample = Sample()
return sample.x, sample.x.sum()
# a module as transform
layer = torch.nn.Sequential(v1.Resize(20), v1.CenterCrop(16))
return layer(F.to_tensor(image)), F.to_tensor(layer(image))
# a module with parameters
torch.manual_seed(1)
layer = torch.nn.Conv2d(3, 2, 3, padding=1)
with torch.no_grad():
    return layer(F.to_tensor(image.resize((12, 12)))[None])[0]
# gradients
x = F.to_tensor(image.resize((12, 12))).requires_grad_()
(x * x).sum().backward()
return x.grad
# adversarial
x = F.to_tensor(image.resize((12, 12)))
delta = torch.zeros_like(x, requires_grad=True)
((x + delta) ** 2).sum().backward()
return (x + 0.1 * delta.grad.sign()).detach()
# edges
x = F.to_tensor(image)
return (x[:, 1:, :] - x[:, :-1, :]).abs(), (x[:, :, 1:] - x[:, :, :-1]).abs()
# edges by pillow
return F.to_tensor(image.filter(ImageFilter.FIND_EDGES)), F.to_tensor(image)
# histogram
return torch.tensor(image.histogram()).view(3, 256), F.to_tensor(image)
# equalized by hand
x = F.pil_to_tensor(image)
return v2.functional.equalize(x), F.equalize(x), F.pil_to_tensor(ImageOps.equalize(image))
# compared with pillow
x, y = F.pil_to_tensor(F.hflip(image)), F.pil_to_tensor(image).flip(-1)
look(torch.equal(x, y))
return x
# back and forth
x = F.to_tensor(F.to_pil_image(F.to_tensor(image)))
return x, torch.equal(x, F.to_tensor(image))
# back and forth by bytes
x = F.pil_to_tensor(image)
return F.pil_to_tensor(Image.frombytes("RGB", image.size, x.permute(1, 2, 0).contiguous().numpy().tobytes()))
# jpeg again
file = io.BytesIO()
image.save(file, "JPEG", quality=30)
return F.to_tensor(Image.open(io.BytesIO(file.getvalue())).convert("RGB")), F.to_tensor(image)
# jpeg by torchvision
import torchvision
x = F.pil_to_tensor(image)
return torchvision.io.decode_jpeg(torchvision.io.encode_jpeg(x, 50)), x
# decoded by torchvision
import torchvision
x = F.pil_to_tensor(image)
return x, torchvision.io.decode_image(torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=torch.uint8)).shape
# drawn upon before
image = image.copy()
ImageDraw.Draw(image).line((0, 0, 30, 30), fill=(255, 0, 0), width=3)
return F.to_tensor(image)
# drawn upon between
draw = ImageDraw.Draw(image)
x = F.to_tensor(image)
draw.rectangle((0, 0, 20, 20), fill=(255, 0, 0))
return x, F.to_tensor(image)
# drawn upon while a view is kept
copy_ = image.copy()
x = F.to_tensor(copy_)
ImageDraw.Draw(image).rectangle((0, 0, 20, 20), fill=(255, 0, 0))
copy_.paste((0, 0, 0), (5, 5, 10, 10))
return x, F.to_tensor(image), F.to_tensor(copy_)
# cropped, then the source changes
crop = image.crop((2, 2, 30, 30))
x = F.to_tensor(crop)
image.paste((1, 2, 3), (0, 0, 40, 40))
return x, F.to_tensor(crop), F.to_tensor(image)
# pixel access kept
pixels = image.load()
x = F.to_tensor(image)
pixels[0, 0] = (1, 2, 3)
return x, F.to_tensor(image), pixels[1, 1]
# array kept
array = np.asarray(image)
x = torch.from_numpy(array.copy())
y = F.to_tensor(image)
return x, y, array.flags.writeable
# array shared with torch
array = np.array(image)
x = torch.from_numpy(array)
array[:5] = 0
return x.permute(2, 0, 1)
# enhancer kept
enhancer = ImageEnhance.Contrast(image)
x = F.to_tensor(image)
return x, F.to_tensor(enhancer.enhance(1.5)), F.to_tensor(enhancer.enhance(0.5))
# pasted onto itself
image = image.copy()
x = F.to_tensor(image)
image.paste(image.resize((10, 10)), (3, 3))
return x, F.to_tensor(image)
# merged bands
r, g, b = image.split()
x = F.to_tensor(image)
r.paste(0, (0, 0, 10, 10))
return x, F.to_tensor(Image.merge("RGB", (b, g, r)))
# many crops of one image
return [F.to_tensor(image.crop((at, at, at + 8, at + 8))) for at in range(40)]
# one crop many times
x = F.to_tensor(image.crop((0, 0, 16, 16)))
return [x] * 5, [x.clone() for _ in range(3)]
# views of views
x = F.to_tensor(image.resize((24, 24)))
y = x[:, 2:-2][:, :, 2:-2][1:]
y[0, 0, 0] = 9
return x, y, y[..., ::3]
# view made before, changed after
x = F.to_tensor(image)
y = x[0]
x *= 0.5
y += 1
return x, y
# expanded
x = F.to_tensor(image.convert("L").resize((12, 12)))
return x.expand(3, 12, 12), x.repeat(3, 1, 1), x.expand(2, -1, -1).contiguous()
# flattened
x = F.to_tensor(image)
return x.flatten(), x.view(3, -1), x.reshape(-1, 3)
# strided
x = F.to_tensor(image)
return x[:, ::2, ::3], x[..., 1::2].contiguous(), x.as_strided((3, 4), (7, 2), 5)
# channels last
x = F.to_tensor(image)[None].contiguous(memory_format=torch.channels_last)
return x[0], x.is_contiguous(memory_format=torch.channels_last), x * 2
# turned over
x = F.to_tensor(image)
return x.permute(1, 2, 0), x.transpose(0, 2).contiguous(), x.mT, x.T if x.dim() == 2 else 0
# double and half
x = F.to_tensor(image)
return x.double() / 3, x.half() / 3, x.bfloat16() / 3, (x * 255).to(torch.int32), x.to(torch.float16, copy=True)
# all dtypes
return [
    F.convert_image_dtype(F.pil_to_tensor(image), t)
    for t in (torch.int16, torch.int32, torch.float64, torch.float16)
]
# all dtypes of v2
return [
    v2.ToDtype(t, scale=s)(v2.ToImage()(image))
    for t in (torch.float32, torch.uint8, torch.int32) for s in (True, False)
]
# dtypes by kind
return v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True)({'a': v2.ToImage()(image), 'b': 3})
# odd constants
x = F.to_tensor(image)
return (
    x * np.float32(0.1),
    x + np.float64(0.1),
    x - torch.tensor(0.1),
    x / torch.tensor([0.1, 0.2, 0.3]).view(-1, 1, 1),
    x * True,
)
# constants without room
x = F.pil_to_tensor(image)
return x + 200, x * 2, x - 100, 255 - x, x / 3, x // 7, x % 7, x ** 2, -x.to(torch.int16), x << 1, x & 15, ~x
# constants of the other dtype
x = F.pil_to_tensor(image)
return x * 0.5, x + 1.5, x.float() + 1, x.half() * 3, x * torch.tensor(2, dtype=torch.int64), x + torch.tensor(2.5)
# special numbers
x = F.to_tensor(image)
return x / 0, (x - x) / 0, x * float("nan"), x * -0.0, x * 1e-45, x * 3e38 * 10, torch.log(x), x.clamp(min=float("nan"))
# in place from end to end
x = F.to_tensor(image)
x.sub_(0.5).div_(0.25).clamp_(-1, 1).mul_(2).add_(1).neg_()
return x, x._version
# augmented assignments
x = F.to_tensor(image)
x -= 0.5
x /= 0.25
x[:, :3] *= 2
x[0] += 1
x[..., -1] = x[..., 0]
return x, x._version
# normalized twice
x = F.normalize(F.normalize(F.to_tensor(image), MEAN, STD), [0.1], [2.0])
return x
# normalized and back
x = F.normalize(F.to_tensor(image), MEAN, STD)
back = v1.Normalize([-m / s for m, s in zip(MEAN, STD)], [1 / s for s in STD])
return x, back(x)
# normalized in place, and the argument kept
x = F.to_tensor(image)
y = F.normalize(x, MEAN, STD, inplace=True)
return x, y, x is y, x._version
# normalized by tensors
x = F.to_tensor(image)
mean, std = torch.tensor(MEAN), torch.tensor(STD)
y = F.normalize(x, mean, std)
mean.zero_()
return y, F.normalize(x, mean, std)
# normalized by arrays
return (
    v1.Normalize(np.array(MEAN), np.array(STD))(F.to_tensor(image)),
    v1.Normalize(tuple(MEAN), tuple(STD))(F.to_tensor(image)),
)
# erased many times
x = F.to_tensor(image.resize((24, 24)))
for _ in range(4):
    x = v1.RandomErasing(0.9, (0.02, 0.2), value=random.choice([0, 1.0, (0.1, 0.2, 0.3)]))(x)
return x
# erased by hand
x = F.to_tensor(image.resize((24, 24)))
top, left = torch.randint(0, 12, (2,)).tolist()
x[:, top : top + 8, left : left + 8] = torch.tensor(MEAN)[:, None, None]
return x
# cutout by a mask
x = F.to_tensor(image.resize((24, 24)))
mask = torch.ones(24, 24)
mask[5:10, 6:12] = 0
return x * mask
# grid mask
x = F.to_tensor(image.resize((24, 24)))
x[:, ::4, ::4] = 0
return x
# erased with noise, then flipped
x = v1.RandomErasing(1.0, value="random")(F.to_tensor(image.resize((24, 24))))
return x.flip(-1), torch.rand(1)
# erased in place through a view
x = F.to_tensor(image.resize((24, 24)))
F.erase(x[:, 4:20], 0, 0, 5, 5, torch.zeros(3, 1, 1), inplace=True)
return x
# flipped at random by numpy
x = F.to_tensor(image)
if np.random.rand() < 0.5:
    x = torch.flip(x, dims=(2,))
if random.random() < 0.5:
    x = torch.flip(x, dims=(1,))
return x
# flipped and flipped
x = F.to_tensor(image)
return F.hflip(F.hflip(x)), F.vflip(F.hflip(x)), torch.fliplr(x), torch.flipud(x), x.flip(0, 1, 2)
# rolled
x = F.to_tensor(image)
return torch.roll(x, (3, -2), (1, 2)), x.rot90(2, (1, 2))
# padded
x = F.to_tensor(image.resize((12, 12)))
return (
    F.pad(x, [2]),
    F.pad(x, [1, 2, 3, 4], padding_mode="reflect"),
    nn.pad(x, (1, 1), value=0.5),
    nn.pad(x[None], (2, 2, 2, 2), "circular")[0],
)
# stacked, then indexed
x = torch.stack([F.to_tensor(image.resize((12, 12))), F.to_tensor(image.resize((12, 12)).rotate(180))])
return x[0], x[1], x[:, 0], x.mean(0)
# stacked, then changed
x = F.to_tensor(image.resize((12, 12)))
both = torch.stack([x, x])
x.zero_()
both[1].mul_(2)
return both, x
# stacked to video
return torch.stack([F.to_tensor(image.resize((12, 12)).rotate(10 * at)) for at in range(6)], dim=1)
# concatenated
x, y = F.to_tensor(image.resize((12, 12))), F.to_tensor(image.resize((12, 20)))
return torch.cat([x, y], 1), torch.cat((x, x, x)), torch.hstack([x, x]), torch.cat([x, torch.zeros(1, 12, 12)])
# with coordinates
x = F.to_tensor(image.resize((12, 12)))
grid = torch.stack(torch.meshgrid(torch.linspace(-1, 1, 12), torch.linspace(-1, 1, 12), indexing="ij"))
return torch.cat([x, grid])
# with an alpha channel
x = F.to_tensor(image.convert("RGBA"))
return x[:3] * x[3:], x
# chosen frames
frames = [F.to_tensor(image.resize((12, 12)).crop((at, 0, at + 6, 6))) for at in range(5)]
return random.choice(frames), random.sample(frames, 2)
# sorted by brightness
crops = [F.to_tensor(image.crop((at, at, at + 10, at + 10))) for at in range(0, 30, 5)]
return sorted(crops, key=lambda x: float(x.mean()))
# zipped
x, y = F.to_tensor(image), F.pil_to_tensor(image)
return [(a.sum(), b.max()) for a, b in zip(x, y)]
# compared
x, y = F.to_tensor(image), F.to_tensor(image)
return x == y, torch.allclose(x, y), (x - y).abs().max(), x is y
# same image twice, one changed
x, y = F.to_tensor(image), F.to_tensor(image)
x.mul_(2)
return x, y
# nested containers
x = F.to_tensor(image.resize((8, 8)))
return {'a': [x, (x.flip(0), {'b': Pair(x[0], Record(x[1]))})], 3: collections.OrderedDict(c=x), 'set': frozenset([1])}
# a class of its own
return Opaque({'x': F.to_tensor(image), 'y': [F.pil_to_tensor(image)]})
# a subclass of its own
return F.to_tensor(image).as_subclass(Marked), Marked(F.to_tensor(image)) + 1
# image and tensor
return image.resize((9, 9)), F.to_tensor(image), image
# tensor and its array
x = F.to_tensor(image)
return x, x.numpy().copy(), x.numpy().sum()
# array that outlives
array = F.to_tensor(image).numpy()
return torch.from_numpy(array) * 2
# nothing returned
x = F.to_tensor(image)
return None
# number returned
return float(F.to_tensor(image).mean())
# dropped and made again
x = F.to_tensor(image)
del x
x = F.to_tensor(image)
return x
# attribute
x = F.to_tensor(image)
x.path = os.path.basename(path)
return x, x.path, x.clone().__dict__
# named by the user
x = tv_tensors.Image(F.to_tensor(image))
return x, x * 2, tv_tensors.wrap(x * 2, like=x), x[0], torch.stack([x, x])
# video
return tv_tensors.Video(torch.stack([v2.functional.to_image(image.resize((9, 9)))] * 3))
# thread makes
results = []
thread = threading.Thread(target=lambda: results.append(F.to_tensor(image)))
thread.start()
thread.join()
return results[0] * 2
# threads read
x = F.to_tensor(image)
with ThreadPoolExecutor(2) as pool:
    return x, list(pool.map(lambda at: x[at].sum(), range(3)))
# thread continues
x = F.to_tensor(image)
with ThreadPoolExecutor(1) as pool:
    return pool.submit(F.normalize, x, MEAN, STD).result(), x
# pool of samples
with ThreadPoolExecutor(3) as pool:
    return list(pool.map(lambda size: F.to_tensor(image.resize((size, size))), (8, 9, 10, 11)))
# future dropped
x = F.to_tensor(image)
pool = ThreadPoolExecutor(1)
future = pool.submit(x.sum)
pool.shutdown()
return x, future.result()
# inference mode
with torch.inference_mode():
    x = F.normalize(F.to_tensor(image), MEAN, STD)
return x.clone(), x.is_inference()
# no gradients
with torch.no_grad():
    x = F.normalize(F.to_tensor(image), MEAN, STD)
return x, x.requires_grad
# a decorated function
@torch.no_grad()
def made():
    return F.to_tensor(image) * 2
return made()
# default dtype
torch.set_default_dtype(torch.float64)
try:
    x = F.to_tensor(image)
finally:
    torch.set_default_dtype(torch.float32)
return x, F.to_tensor(image)
# default dtype changes after
x = F.to_tensor(image)
torch.set_default_dtype(torch.float64)
try:
    y = x * 0.1 + torch.tensor(0.5)
finally:
    torch.set_default_dtype(torch.float32)
return y
# seeded by the sample
torch.manual_seed(number)
random.seed(number)
return F.to_tensor(v1.RandomResizedCrop(16)(image)) + torch.rand(1)
# own generator
generator = torch.Generator().manual_seed(number)
x = F.to_tensor(image.resize((16, 16)))
return x + torch.rand(x.shape, generator=generator), torch.rand(1)
# error after the tensor
x = F.normalize(F.to_tensor(image), MEAN, STD)
raise ValueError(f"rejected {tuple(x.shape)}")
# error that is caught
x = F.to_tensor(image)
try:
    x.view(7, 7)
except RuntimeError as error:
    look(str(error))
return x
# error in normalize
x = F.to_tensor(image)
try:
    F.normalize(x, [0.5], [0.0])
except ValueError as error:
    look(str(error))
return F.normalize(x, MEAN, STD)
# error in place
x = F.pil_to_tensor(image)
try:
    x.mul_(0.5)
except RuntimeError as error:
    look(str(error))
return x
# error keeps the tensor
x = F.to_tensor(image)
try:
    raise LookupError(x)
except LookupError as error:
    kept['error'] = error.args[0]
return x, kept['error'].sum()
# another file instead
try:
    x = F.to_tensor(Image.open(os.path.join(os.path.dirname(path), "truncated.jpg")).convert("RGB"))
except OSError as error:
    look(str(error))
    x = F.to_tensor(image)
return x
# truncated images allowed
from PIL import ImageFile
ImageFile.LOAD_TRUNCATED_IMAGES = True
try:
    return F.to_tensor(Image.open(os.path.join(os.path.dirname(path), "truncated.jpg")).convert("RGB"))
finally:
    ImageFile.LOAD_TRUNCATED_IMAGES = False
# no file at all
return (
    F.to_tensor(Image.new("RGB", (9, 9), (number % 256, 2, 3))),
    F.to_tensor(Image.effect_noise((9, 9), 0).convert("RGB")),
)
# verified first
Image.open(path).verify()
return F.to_tensor(Image.open(path).convert("RGB"))
# header only
header = Image.open(path)
return header.size, header.mode, header.format
# format asked after
opened = Image.open(path)
x = F.to_tensor(opened.convert("RGB"))
return x, opened.format, opened.size, opened.getpixel((0, 0))
# without convert
return F.pil_to_tensor(Image.open(path))
# opened with a context
with Image.open(path) as opened:
    x = F.to_tensor(opened.convert("RGB"))
return x, opened.size
# opened lazily, closed early
opened = Image.open(path)
crop = opened.convert("RGB").crop((1, 1, 20, 20))
opened.close()
return F.to_tensor(crop)
# draft
opened = Image.open(path)
opened.draft("RGB", (20, 20))
return F.to_tensor(opened.convert("RGB"))
# reduced
return F.to_tensor(image.reduce(3)), F.to_tensor(image.resize((20, 20), reducing_gap=1.5))
# exif
x = F.to_tensor(ImageOps.exif_transpose(Image.open(path)).convert("RGB"))
return x, dict(Image.open(path).getexif())
# palette
return F.pil_to_tensor(image.quantize(16).convert("RGB")), F.pil_to_tensor(image.convert("P", palette=Image.ADAPTIVE))
# statistic of pillow
stat = ImageStat.Stat(image)
return F.normalize(F.to_tensor(image), [m / 255 for m in stat.mean], [s / 255 for s in stat.stddev])
# pillow pickled
again = pickle.loads(pickle.dumps(image))
return F.to_tensor(again), F.to_tensor(copy.deepcopy(image)), F.to_tensor(copy.copy(image))
# subclass of pillow's image
class Own(Image.Image):
    pass
own = Own()
own.__dict__.update(image.__dict__)
return F.to_tensor(own.copy() if hasattr(own, "copy") else image), F.to_tensor(image)
# numpy from end to end
array = np.asarray(image).astype(np.float32) / 255
array = (array - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
return torch.from_numpy(array.transpose(2, 0, 1).copy())
# numpy in the middle
x = F.to_tensor(image)
array = x.numpy()
array[:, :5] = 0
return x, torch.as_tensor(array[:, ::-1].copy())
# numpy writes
x = F.to_tensor(image)
np.multiply(x.numpy(), 2, out=x.numpy())
return x, x._version
# a map
x = F.to_tensor(image.resize((6, 6)))
return torch.tensor([[v.item() for v in row] for row in x[0]]), list(map(float, x[1, 0]))
# dispatch by type
x = v2.functional.to_image(image)
return v2.functional.horizontal_flip(x), v2.functional.get_size(x), v2.functional.to_dtype(x, torch.float32, scale=True)
# v2 with several inputs
steps = v2.Compose([v2.RandomResizedCrop(16), v2.RandomHorizontalFlip(), v2.ToImage(),
    v2.ToDtype(torch.float32, scale=True)])
return steps(image, {'other': image, 'label': 3}, F.pil_to_tensor(image))
# v2 on a list
return v2.Compose([v2.ToImage(), v2.CenterCrop(9)])([image, image.rotate(90)])
# lambda
steps = v1.Compose([v1.ToTensor(), v1.Lambda(lambda x: x * 2 - 1), v1.Lambda(lambda x: x[:, 1:-1])])
return steps(image)
# partial
to = functools.partial(F.normalize, mean=MEAN, std=STD)
return to(F.to_tensor(image)), functools.reduce(lambda x, f: f(x), [F.to_tensor, F.hflip, torch.abs], image)
# transform of a subclass
class Own(v1.ToTensor):
    def __call__(self, image):
        return super().__call__(image) * 255
return Own()(image)
# transform that replaces one
class Own(v1.Normalize):
    def forward(self, tensor):
        return super().forward(tensor).flip(-1)
return Own(MEAN, STD)(F.to_tensor(image))
# transform with a state
class Own:
    count = 0
    def __call__(self, x):
        self.count += 1
        return x * self.count
own = Own()
return own(F.to_tensor(image)), own(F.to_tensor(image))
# functions renamed
to_tensor, norm = F.to_tensor, F.normalize
return norm(to_tensor(image), MEAN, STD), norm(tensor=to_tensor(image), mean=MEAN, std=STD)
# functions by name
return getattr(torch, "flip")(getattr(F, "to_tensor")(image), [0]), torch.Tensor.mul(F.to_tensor(image), 2)
# methods of the class
x = F.to_tensor(image)
return torch.Tensor.add(x, 1), torch.Tensor.__mul__(x, 2), torch.Tensor.flip(x, 0), torch.Tensor.__getitem__(x, 0)
# operators of python
import operator
x = F.to_tensor(image)
return operator.mul(x, 2), operator.sub(1, x), operator.itemgetter(0)(x), operator.imul(x, 2)
# keywords
x = F.to_tensor(pic=image)
return (
    torch.mul(input=x, other=2),
    torch.add(x, other=1, alpha=2),
    torch.flip(input=x, dims=[-1]),
    torch.clamp(x, max=0.5),
)
# out of several
x = F.to_tensor(image)
out = torch.empty(0)
torch.mul(x, 2, out=out)
return out, x
# where
x = F.to_tensor(image)
return torch.where(x > 0.5, x, 0.0), x.masked_fill(x < 0.1, 1.0), x.clamp(0.2, 0.8), torch.maximum(x, torch.tensor(0.3))
# lookup
table = torch.linspace(1, 0, 256)
return table[F.pil_to_tensor(image).long()], F.pil_to_tensor(image.point(lambda v: 255 - v))
# gamma
return F.adjust_gamma(F.to_tensor(image), 2.2), F.to_tensor(F.adjust_gamma(image, 2.2)), F.to_tensor(image) ** 2.2
# hue of a tensor
return F.adjust_hue(F.to_tensor(image), 0.2), F.to_tensor(F.adjust_hue(image, 0.2))
# posterized tensor
return F.posterize(F.pil_to_tensor(image), 3), F.solarize(F.to_tensor(image), 0.5), F.invert(F.to_tensor(image))
# autocontrast of a tensor
return F.autocontrast(F.to_tensor(image)), F.adjust_sharpness(F.to_tensor(image), 2.0)
# augmented tensor
return v1.RandAugment()(F.pil_to_tensor(image)), v2.RandAugment()(v2.ToImage()(image))
# augmix
return F.to_tensor(v1.AugMix()(image.resize((24, 24)))), v1.AugMix()(F.pil_to_tensor(image.resize((24, 24))))
# elastic
return v1.ElasticTransform()(F.to_tensor(image.resize((24, 24))))
# perspective of a tensor
return v1.RandomPerspective(p=1.0)(F.to_tensor(image)), v1.RandomAffine(20)(F.to_tensor(image))
# resized tensor
x = F.to_tensor(image)
return (
    F.resize(x, [16, 16], antialias=True),
    F.resize(x, [40, 44], F.InterpolationMode.NEAREST),
    nn.interpolate(x[None], (9, 9))[0],
)
# whole batch in a sample
x = torch.stack([F.to_tensor(v1.RandomResizedCrop(12)(image)) for _ in range(8)])
return x[torch.randperm(8)], x.mean((0, 2, 3)), x.flatten(1)
# contrastive pairs in one tensor
x = F.to_tensor(v1.RandomResizedCrop(12)(image))
y = F.to_tensor(v1.RandomResizedCrop(12)(image))
return torch.cat([x, y]).unflatten(0, (2, 3))
# weights
x = F.to_tensor(image)
return torch.einsum("chw,c->hw", x, torch.tensor([0.2, 0.3, 0.5])), x.movedim(0, -1) @ torch.eye(3)
# garbage in between
x = F.to_tensor(image)
for _ in range(5):
    F.to_tensor(image.rotate(90))
gc.collect(0)
return x
# references in a cycle
class Node:
    pass
node = Node()
node.self, node.x = node, F.to_tensor(image)
x = node.x
del node
gc.collect(0)
return x * 2
"""


def odd_programs() -> list[Program]:
    """Return each program with another file."""
    return written(_TEXTS, (*SOUND, *OTHERS[:2]))


def written(texts: str, files: tuple[str, ...]) -> list[Program]:
    """Return programs, each of a name and a body, with files in turn."""
    programs: list[Program] = []
    for name, body in parts(texts):
        text = 'image = Image.open(path).convert("RGB")\n' + textwrap.dedent(body)
        programs.append(Program(name, text, files[len(programs) % len(files)]))
    return programs


def parts(texts: str) -> list[tuple[str, str]]:
    """Split texts, each below its name."""
    split = [part.removeprefix("# ").partition("\n") for part in texts.strip().split("\n# ")]
    return [(name, body) for name, _, body in split]
