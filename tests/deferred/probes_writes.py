"""Probes that change a tensor, its views or its image."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import torch
import torchvision.transforms as v1
import torchvision.transforms.functional as F
from PIL import ImageDraw
from torchvision.transforms import v2

from .probing import KINDS, enter_all, probe

MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)


def _changed(change: Any) -> Any:
    """Return a probe that only changes the tensor; what is sent shows the rest."""

    def run(x: torch.Tensor) -> Any:
        version = x._version
        result = change(x)
        same = result is x
        del result
        return same, x._version - version, x.stride(), x.is_contiguous(), x.dtype

    return run


enter_all(
    {
        f"in_place_{name}": _changed(change)
        for name, change in {
            "mul": lambda x: x.mul_(2),
            "add": lambda x: x.add_(1),
            "sub_of_channels": lambda x: x.sub_(MEAN.to(x.dtype)),
            "imul": lambda x: x.__imul__(3),
            "div": lambda x: x.div_(0.25) if x.is_floating_point() else x.floor_divide_(2),
            "zero": lambda x: x.zero_(),
            "fill": lambda x: x.fill_(2),
            "copy": lambda x: x.copy_(x.flip(-1)),
            "clamp": lambda x: x.clamp_(0, 1),
            "neg": lambda x: x.neg_(),
            "pow": lambda x: x.pow_(2),
            "exp": lambda x: x.exp_(),
            "random": lambda x: x.random_(0, 9),
            "normal": lambda x: x.normal_(),
            "bernoulli": lambda x: x.bernoulli_(0.5),
            "unsqueeze": lambda x: x.unsqueeze_(0).squeeze_(0),
            "transpose": lambda x: x.transpose_(1, 2),
            "t": lambda x: x.swapaxes_(0, 2),
            "as_strided": lambda x: x.as_strided_((2, 3), (50, 1)),
            "masked_fill": lambda x: x.masked_fill_(x > 0, 1),
            "masked_scatter": lambda x: x.masked_scatter_(x > 0, torch.zeros_like(x)),
            "index_put": lambda x: x.index_put_((torch.tensor([0, 1]),), torch.tensor(2, dtype=x.dtype)),
            "index_fill": lambda x: x.index_fill_(1, torch.tensor([3, 4]), 1),
            "index_copy": lambda x: x.index_copy_(0, torch.tensor([2]), x[:1].clone()),
            "index_add": lambda x: x.index_add_(0, torch.tensor([1]), x[:1].clone()),
            "scatter": lambda x: x.scatter_(0, torch.zeros(1, 5, 5, dtype=torch.int64), 1),
            "put": lambda x: x.put_(torch.tensor([1, 99]), torch.tensor([1, 2], dtype=x.dtype)),
            "fill_diagonal": lambda x: x[0].fill_diagonal_(1),
            "tril": lambda x: x.tril_(),
            "cumsum": lambda x: x.cumsum_(0),
            "item_set": lambda x: x.__setitem__((0, 1, 2), 1),
            "slice_set": lambda x: x.__setitem__((slice(None), slice(3, 9), slice(2, 5)), 0),
            "slice_set_by_tensor": lambda x: x.__setitem__((slice(None), slice(0, 2)), torch.ones(3, 2, 48)),
            "mask_set": lambda x: x.__setitem__(x > 0, 0),
            "channel_set": lambda x: x.__setitem__(0, x[1]),
            "self_overlap": lambda x: x[:, 1:].copy_(x[:, :-1].clone()),
            "foreach": lambda x: torch._foreach_mul_([x, x], 2),
            "data_mul": lambda x: x.data.mul_(2),
            "detached_mul": lambda x: x.detach().mul_(2),
            "numpy_write": lambda x: np.copyto(x.numpy(), 3),
            "numpy_iadd": lambda x: x.numpy().__iadd__(1),
            "numpy_element": lambda x: np.asarray(x).__setitem__((0, 0, 0), 9),
            "numpy_out": lambda x: np.add(x.numpy(), 1, out=x.numpy(), casting="unsafe"),
            "numpy_shuffle": lambda x: np.random.shuffle(x.numpy()),
            "dlpack_write": lambda x: torch.from_dlpack(x).mul_(2),
            "numpy_dlpack_write": lambda x: np.from_dlpack(x).sum(),
            "memoryview_write": lambda x: memoryview(x.numpy()).cast("B").__setitem__(slice(0, 4), b"abcd"),
            "storage_fill": lambda x: x.untyped_storage().fill_(1),
            "storage_item": lambda x: x.untyped_storage().__setitem__(5000, 7),
            "typed_storage_item": lambda x: x.storage().__setitem__(5, 7),
            "storage_copy": lambda x: x.untyped_storage().copy_(torch.arange(6912).to(x.dtype).untyped_storage()),
            "address_write": lambda x: ctypes.memmove(x.data_ptr() + 8, b"12345678", 8),
            "view_mul": lambda x: x.view(-1).mul_(2),
            "slice_view_mul": lambda x: x[:, 3:9].mul_(2),
            "select_fill": lambda x: x.select(0, 1).fill_(1),
            "narrow_fill": lambda x: x.narrow(1, 4, 6).fill_(1),
            "unbind_fill": lambda x: x.unbind(0)[2].fill_(1),
            "transposed_view_set": lambda x: x.mT.__setitem__((0, 1), 1),
            "diagonal_fill": lambda x: x.diagonal(0, 1, 2).fill_(1),
            "permuted_mul": lambda x: x.permute(1, 2, 0).mul_(2),
            "expanded_read": lambda x: x[0].expand(3, 48, 48).clone(),
            "bytes_view_fill": lambda x: x.view(torch.uint8)[..., 0].fill_(3),
            "normalize": lambda x: F.normalize(x, [0.5], [0.5], inplace=True),
            "normalize_v2": lambda x: v2.Normalize([0.5], [0.5], inplace=True)(x),
            "erase": lambda x: F.erase(x, 1, 2, 9, 8, torch.zeros(1, dtype=x.dtype), inplace=True),
            "erase_random": lambda x: v1.RandomErasing(1.0, value="random", inplace=True)(x),
            "out_add": lambda x: torch.add(x, 1, out=x),
            "out_clamp": lambda x: torch.clamp(x, 0, 1, out=x),
            "out_of_another": lambda x: torch.mul(torch.ones_like(x), 2, out=x),
            "out_resized": lambda x: torch.add(torch.zeros(2, 2), 1, out=x),
            "out_stack": lambda x: torch.stack([x[0].clone()] * 3, out=x),
            "requires_grad": lambda x: x.requires_grad_(True),
            "apply": lambda x: x.apply_(lambda v: v + 1),
            "no_grad_add": lambda x: torch.no_grad()(lambda: x.add_(1))(),
            "erasing_loop": lambda x: [x[:, at : at + 2].zero_() for at in range(0, 48, 6)],
            "set_grad": lambda x: setattr(x, "grad", torch.ones(3, 48, 48)),
        }.items()
    }
)


@probe
def not_in_place_leaves_it(x):
    y = F.normalize(x.float(), [0.5], [0.5])
    z = F.erase(x, 1, 1, 4, 4, torch.zeros(1, dtype=x.dtype))
    return y, z, x.flip(-1), 2 * x


@probe
def view_before_a_change(x):
    y = x[:, 5:9]
    x.mul_(2)
    return y, y._version, x._version


@probe
def view_of_a_view_after_a_change(x):
    y = x[1:][:, ::2]
    y[0].zero_()
    return x[1], y._base is x, x._version


@probe
def clone_before_a_change(x):
    y, z = x.clone(), x * 1
    x.zero_()
    return y, z, x


@probe
def array_before_a_change(x):
    array = x.numpy()
    x.add_(1)
    array[0] = 5
    return array, x


@probe
def flipped_before_a_change(x):
    y = torch.flip(x, [-1])
    x[..., 0] = 0
    y[..., 1] = 1
    return x, y


@probe
def stacked_before_a_change(x):
    both = torch.stack([x, x])
    x.zero_()
    both[0].add_(1)
    return both, x


@probe
def recorded_operands_that_change(x):
    """What was subtracted and divided by changes afterwards."""
    mean, std = MEAN.clone(), torch.full((3, 1, 1), 0.5)
    y = x.sub(mean).div(std)
    mean.fill_(9)
    std.fill_(9)
    return y


@probe
def list_of_means_that_changes(x):
    mean, std = [0.1, 0.2, 0.3], [0.5, 0.6, 0.7]
    y = F.normalize(x.float(), mean, std)
    mean[0], std[1] = 5.0, 6.0
    return y


@probe
def transform_whose_means_change(x, make):
    norm = v1.Normalize([0.5, 0.5, 0.5], [0.5, 0.5, 0.5])
    tensor = v1.ToTensor()(make.image())
    y = norm(tensor)
    norm.mean[0] = 0.9
    norm.std = [2.0, 2.0, 2.0]
    return y, norm(tensor)


@probe
def value_of_erasing_that_changes(x):
    value = torch.ones(3, 1, 1, dtype=x.dtype)
    y = F.erase(x, 2, 2, 9, 9, value)
    value.fill_(7)
    return y


@probe
def changing_default_dtype(x, make):
    torch.set_default_dtype(torch.float64)
    try:
        y = F.to_tensor(make.image())
        z = x.float() * 2
    finally:
        torch.set_default_dtype(torch.float32)
    return y, z, F.to_tensor(make.image())


def _image_changed(change: Any) -> Any:
    def run(x: torch.Tensor, make: Any) -> Any:
        image = make.image()
        y, z = F.to_tensor(image), F.pil_to_tensor(image)
        w = F.normalize(v1.ToTensor()(image), [0.5], [0.5])
        change(image)
        return [y, z, w, F.pil_to_tensor(image)]

    return run


enter_all(
    {
        f"image_changed_by_{name}": _image_changed(change)
        for name, change in {
            "drawing": lambda image: ImageDraw.Draw(image).rectangle((0, 0, 40, 30), fill=(1, 2, 3)),
            "pasting": lambda image: image.paste((9, 9, 9), (2, 2, 30, 30)),
            "pasting_an_image": lambda image: image.paste(image.copy().rotate(90), (5, 5)),
            "putpixel": lambda image: image.putpixel((1, 1), (255, 0, 0)),
            "putdata": lambda image: image.putdata([(0, 1, 2)] * 99),
            "access": lambda image: image.load().__setitem__((2, 2), (5, 6, 7)),
            "frombytes": lambda image: image.frombytes(bytes(3 * image.width * image.height)),
            "thumbnail": lambda image: image.thumbnail((20, 20)),
            "putalpha": lambda image: image.putalpha(3),
            "closing": lambda image: image.close() or image.__setstate__([{}, "RGB", (2, 1), None, b"abcdef"]),
            "core": lambda image: image.im.paste((1, 1, 1), (0, 0, 9, 9)),
            "setting_its_core": lambda image: setattr(image, "im", image.copy().rotate(180).im),
            "composite": lambda image: image.alpha_composite(image.convert("RGBA")) if image.mode == "RGBA" else None,
            "info": lambda image: image.info.clear(),
            "converting_its_core": lambda image: setattr(image, "im", image.im.convert("L").convert("RGB")),
        }.items()
    }
)


@probe
def image_file_that_changes(x, make):
    """The file is replaced after the tensor was made."""
    path = make.folder / f"own {id(make)}.jpg"
    path.write_bytes((make.folder / "444.jpg").read_bytes())
    make.file = path.name
    y = make("bytes")
    path.write_bytes((make.folder / "420.jpg").read_bytes())
    path.unlink()
    return y


@probe
def buffer_of_a_file_that_changes(x, make):
    """The bytes that Pillow has read from belong to the user."""
    import io

    from PIL import Image

    data = io.BytesIO((make.folder / "444.jpg").read_bytes())
    y = KINDS["bytes"](Image.open(data).convert("RGB"))
    with data.getbuffer() as buffer:
        buffer[:] = bytes(len(buffer))
    return y


@probe
def image_dropped_at_once(x, make):
    image = make.image()
    y = F.to_tensor(image.crop((3, 3, 40, 40)))
    image.close()
    del image
    gc.collect(0)
    return y


@probe
def many_at_once(x, make):
    """More tensors than a cap of protected pages may allow."""
    many = [F.to_tensor(make.image().crop((0, 0, 20 + at % 9, 20))) for at in range(150)]
    return [each.sum() for each in many[::-1]], len(many)


@probe
def tiny_and_odd_sizes(x, make):
    image = make.image()
    sizes = [(1, 1), (1, 50), (50, 1), (2, 3), (17, 13), (64, 64), (400, 3)]
    return [F.to_tensor(image.resize(size)) for size in sizes], [F.pil_to_tensor(image.resize(size)) for size in sizes]


@probe
def empty_crops(x, make):
    y = F.to_tensor(make.image())
    return y[:, :0], y[:, 5:5, :], y[:0], F.crop(y, 0, 0, 0, 4)


@probe
def long_chain(x):
    y = x.float()
    for step in range(30):
        y = y * 1.01 - 0.01 * step
    return y.flip(1).flip(2)[:, 3:-3, 4:-4].contiguous()


@probe
def rounding_of_a_chain(x):
    """Products and sums that rounding does not let merge."""
    return (x.float() * 3.3 + 0.7) * 1.1 - 0.3, x.float() / 3 * 3, (x.half() * 1.7 + 0.01) / 0.3, x.double() * 0.1


@probe
def special_numbers(x):
    y = x.float()
    infinite, nan = float("inf"), float("nan")
    return y * 0, y * -0.0, y / 0, y * infinite, y + nan, y.clamp(nan, 1), y * 1e-42, y * 1e38 * 1e38, 0 / (y * 0)


@probe
def numbers_of_other_types(x):
    half = np.float32(0.5)
    return (
        x * half,
        x * np.float64(0.3),
        x + True,
        x * torch.tensor(2),
        x * torch.tensor(2.5, dtype=torch.float64),
        x + 1j,
    )


@probe
def results_types(x):
    return [str((x + other).dtype) for other in (1, 1.0, True, torch.tensor([1.0]), torch.ones(1, dtype=torch.int64))]


@probe
def broadcasts(x):
    return x + torch.ones(2, 1, 1, 1), x * torch.rand(48), x - torch.rand(1, 48, 1), x + torch.rand(3, 48, 48)
