"""Programs that make tensors of masks, and change, join and read them."""

from __future__ import annotations

import random

from .programs import Program

_OPENS = ("mask = Image.open(path)", "mask = Image.open(path)\nmask.load()", 'mask = Image.open(path).convert("L")')
_IMAGE_STEPS = (
    "mask = mask.resize(({n}, {m}), Image.Resampling.NEAREST)",
    "mask = F.hflip(mask)",
    "mask = F.vflip(mask)",
    "mask = mask.crop((3, 2, 60, 50))",
    "mask = F.pad(mask, [0, 0, 5, 7], fill=255)",
    "mask = F.pad(mask, [4, 0, 0, 7], fill=0)",
)
_MAKERS = (
    *(["x = F.pil_to_tensor(mask)", "x = tv_tensors.Mask(F.pil_to_tensor(mask))"] * 3),
    "x = v1.PILToTensor()(mask)",
    "x = v2.PILToTensor()(mask)",
    "x = tv_tensors.Mask(mask)",
    "x = VF.to_image(mask)",
    "x = F.to_tensor(mask)",
    "x = torch.as_tensor(np.array(mask))",
    "x = torch.as_tensor(np.array(mask), dtype=torch.int64)[None]",
)
_STEPS = (
    *(["x = VF.resize(x, [{n}, {m}], v2.InterpolationMode.NEAREST)"] * 3),
    *(["x = VF.pad(x, [0, 2, 7, 0], fill=255)", "x = VF.horizontal_flip(x)", "x = x[..., 3:-2, 1:20]"] * 2),
    "x = VF.resize(x, [{n}], v2.InterpolationMode.NEAREST)",
    "x = VF.resize(x, [{n}, {m}], v2.InterpolationMode.NEAREST_EXACT)",
    "x = nn.interpolate(x[None] if x.dim() == 3 else x[None, None], ({n}, {m}))[0]",
    "x = VF.resized_crop(x, 2, 3, 20, 21, [{n}, {m}], v2.InterpolationMode.NEAREST)",
    "x = VF.vertical_flip(x)",
    "x = x.flip((-2, -1))",
    "x = VF.crop(x, 1, 2, 18, 19)",
    "x = VF.pad(x, [{p}, 0, 0, 0], fill=0)",
    "x = VF.pad(x, [1, 1, 1, 1], padding_mode='reflect')",
    "x = x.to(torch.int64)",
    "x = VF.to_dtype(x, torch.int64)",
    "x = VF.to_dtype(x, torch.float32, scale=True)",
    "x = x.long()",
    "x = x.to(torch.float64)",
    "x = x.float() / 255",
    "x = x.squeeze(0)",
    "x = x[0] if x.dim() > 2 else x[None]",
    "x = x.unsqueeze(0) if x.dim() < 4 else x",
    "x = x.as_subclass(torch.Tensor)",
    "x = x == 3",
    "x = x * 2",
    "x = x.clone()",
    "x = x.contiguous()",
    "x = x.clone(memory_format=torch.contiguous_format)",
    "x = x.reshape(-1, *x.shape[-2:])",
    "x = x.transpose(-1, -2)",
    "x = x[..., ::2, :]",
    "x = torch.tensor(x)",
    "x = torch.where(x > 9, x, 0 * x)",
    "x[..., 2:9, 3:5] = 1",
    "x[x == 3] = 7",
    "x += 1",
    "x -= torch.ones(3, 1, 1, dtype=x.dtype)[:1]",
    "look(x.unique()[:4])",
    "look((x.shape, x.stride(), x.is_contiguous(), x.is_contiguous(memory_format=torch.channels_last)))"
    " if x.dim() == 4 else look(x.stride())",
)
_ENDS = (
    *(["return x"] * 3),
    "return torch.stack([x, x.flip(-1), x])",
    "return torch.stack([x, x])[1] + 1",
    "return torch.cat([x, x.flip(-1)])",
    "return torch.cat([torch.stack([x, x]), torch.stack([x])]), x.dim()",
    "return default_collate([x, x.flip(-1)])",
    "h, w = x.shape[-2:]\nbatch = x.new({k}, h + 2, w + 3).fill_(1)\n"
    "for each in batch:\n    each[..., :h, :w].copy_(x.reshape(-1, h, w)[0])\nreturn batch, batch[0]",
    "h, w = x.shape[-2:]\nbatch = x.new_zeros({k}, 1, h, w)\n"
    "batch[0] = x\nbatch[1, :, 2:] = 1\nreturn batch, batch[:1]",
    "h, w = x.shape[-2:]\nbatch = x.new_full((3, h, w), 1)\nbatch[0] += x.reshape(-1, h, w)[0]\nreturn batch * 2",
    "return torch.zeros_like(x), torch.empty_like(x).stride(), x",
    "return {{'mask': x.squeeze(), 'image': F.to_tensor(mask.convert('RGB'))}}",
)


def mask_program(seed: int) -> Program:
    """Write a program from a seed."""
    r = random.Random(f"masks {seed}")
    lines = [r.choice(_OPENS), *r.choices(_IMAGE_STEPS, k=r.choice((0, 0, 1, 2))), r.choice(_MAKERS)]
    lines += [*r.choices(_STEPS, k=r.randrange(7)), r.choice(_ENDS)]
    text = "from torch.utils.data import default_collate\n" + "\n".join(
        line.format(n=r.randrange(4, 90), m=r.randrange(4, 90), k=r.randrange(2, 5), p=r.randrange(3)) for line in lines
    )
    return Program(f"masks {seed}", text, r.choice(("grey.png", "palette.png")))
