"""Split a torchvision pipeline into geometry, changes of values, and erasing.

A crop or flip moves pixels without changing them, so it may come before or after per-pixel changes. A resize computes
new values: Pillow's (images) and torch's (uint8 tensors) give different bits. Resizes of float tensors give others
again and are not supported natively.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torchvision.transforms.functional import pil_modes_mapping, pil_to_tensor

from fastload.pipeline.calibration import FILTERS
from fastload.pipeline.erasing import Erasing, erased_by, read_erasing
from fastload.pipeline.errors import Refused, name_of
from fastload.pipeline.library_settings import check_dtype, check_modes
from fastload.pipeline.monkeypatch_check import is_own
from fastload.pipeline.supported import FLIPS, GEOMETRY, ORIGINALS, RANDOM, RESIZES, is_v2, role_of
from fastload.pipeline.tensor_resize import TENSOR_FILTERS
from fastload.pipeline.watched_functions import check_libraries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TABLE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A transform in parts.

    Attributes:
        geometry: The user's transforms that move or resize pixels, in order.
        tensor: The user's transform that makes a tensor of the image, and those that change its values, in order.
        pixel_steps: ``geometry`` and the transform that makes a tensor, in order.
        ops: ``geometry`` and ``erasing`` for ``_core.DrawPlan.add``.
        interpolation: The core's filter for the resize, Pillow's or torch's; ``"bilinear"`` if there is none.
        size: ``(height, width)`` of every image at the end, pixels.
        draws: Whether anything is drawn at random.
        table: ``(3, 256)``: value that ``tensor`` gives each level of each channel; ``None`` if images stay uint8.
        erasing: Random erasing at the end; ``None`` if there is none.
        image: Type of a sample's image when it is collated.
    """

    geometry: tuple[Callable[[Any], Any], ...]
    tensor: tuple[Callable[[Any], Any], ...]
    pixel_steps: tuple[Callable[[Any], Any], ...]
    ops: tuple[tuple[str, dict[str, Any]], ...]
    interpolation: str
    size: tuple[int, int]
    draws: bool
    table: torch.Tensor | None
    erasing: Erasing | None
    image: type[torch.Tensor]

    def pixels(self, image: Image.Image) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Compute a sample's pixels, ``(H, W, 3)``, with the user's transforms and torch's default generator."""
        result: Any = image
        for step in self.pixel_steps:
            result = pil_to_tensor(result) if role_of(step) == "to_tensor" else step(result)
        return result.permute(1, 2, 0).numpy() if isinstance(result, torch.Tensor) else np.array(result)

    def erased(self) -> tuple[int, int, int, int]:
        """Draw the box to erase, ``(top, left, height, width)``, in the same way."""
        return (0, 0, 0, 0) if self.erasing is None else erased_by(self.erasing, self.size)


def read_transform(transform: Any) -> Pipeline:
    """Split a transform into its parts.

    Raises:
        Refused: Part of it is not supported natively; says which, and what to change.
    """
    if transform is None:
        raise Refused("the dataset has no transform, so its samples are PIL images; end one in ToTensor()")
    steps = list(_flat(transform, 0))
    roles = [role_of(step) for step in steps]
    draws = any(role in (*RANDOM, "erasing") for role in roles)
    check_libraries(v2=any(is_v2(step) for step in (transform, *steps)))
    check_modes()
    if draws:
        check_dtype()
    geometry = [step for step, role in zip(steps, roles, strict=True) if role in GEOMETRY]
    tensor: list[Any] = []
    for position, (step, role) in enumerate(zip(steps, roles, strict=True)):
        if role in RESIZES and tensor:
            _check_tensor_resize(step, tensor)
        elif role == "center_crop" and tensor:
            _check_padding(step, tensor)
        elif role == "to_tensor":
            if tensor:
                raise Refused(f"{name_of(step)} comes after {name_of(tensor[0])}, which made a tensor; leave it out")
            tensor.append(step)
        elif role == "elementwise":
            if not tensor:
                raise Refused(f"{name_of(step)} comes before the image becomes a tensor; put it after ToImage()")
            if type(step).__name__ == "ToDtype" and not isinstance(step.dtype, torch.dtype):
                raise Refused(f"{name_of(step)} has a dtype for each type of input; give it one torch.dtype")
            tensor.append(step)
        elif role == "erasing":
            if not tensor:
                raise Refused(f"{name_of(step)} comes before the image becomes a tensor; put it after ToTensor()")
            if late := [later for later in steps[position + 1 :] if role_of(later) in (*GEOMETRY, "erasing")]:
                raise Refused(f"{name_of(late[0])} comes after {name_of(step)}; put it before")
    if not tensor:
        raise Refused("the transform ends with a PIL image; end it with ToTensor()")
    ops, interpolation = _lower(steps)
    size = _final_size(ops)
    table = table_of(tensor)
    erasing = None
    if "erasing" in roles:
        place = roles.index("erasing")
        parts = steps[:place], steps[place + 1 :]
        before, after = ([other for other in part if role_of(other) not in GEOMETRY] for part in parts)
        erasing, op = read_erasing(steps[place], before, after)
        ops = [*ops, op]
    pixel_steps = tuple(step for step in steps if role_of(step) in (*GEOMETRY, "to_tensor"))
    image = type(_through(tensor, np.zeros((1, 1, 3), np.uint8)))
    return Pipeline(
        tuple(geometry), tuple(tensor), pixel_steps, tuple(ops), interpolation, size, draws, table, erasing, image
    )


def _check_tensor_resize(step: Any, tensor: list[Any]) -> None:
    """Refuse to resize a tensor, unless it is uint8, by v2, with antialiasing."""
    name = name_of(step)
    before = f"put it before {name_of(tensor[0])}"
    if not is_v2(step):
        raise Refused(f"{name} of torchvision's v1 resizes tensors by way of floats; use v2's, or {before}")
    try:
        is_uint8 = table_of(tensor) is None
    except Refused:
        is_uint8 = False
    if not is_uint8:
        raise Refused(f"{name} comes after {name_of(tensor[-1])} and would resize floats; {before}")
    if step.antialias is not True:
        raise Refused(f"{name} resizes a tensor with antialias={step.antialias}; use True, or {before}")
    if _pillow_filter(step) not in TENSOR_FILTERS:
        raise Refused(f"{name} resizes a tensor with {step.interpolation!r}; use BILINEAR, or {before}")


def _check_padding(step: Any, tensor: list[Any]) -> None:
    """Refuse a crop that may pad with 0 where black is not 0."""
    table = table_of(tensor)
    if table is not None and not _same(table[:, 0], torch.zeros(3, dtype=table.dtype)):
        raise Refused(
            f"{name_of(step)} comes after {name_of(tensor[-1])} and would pad small images with 0, which is not black "
            "there; put it before"
        )


def _flat(transform: Any, depth: int) -> Iterator[Any]:
    role = role_of(transform)
    if role is None:
        raise Refused(f"transform {name_of(transform)} {_why_unknown(type(transform))}")
    if (patched := ORIGINALS.patched(transform)) is not None:
        raise Refused(patched)
    if role == "compose":
        if depth > 50:
            raise Refused("Compose is nested more than 50 deep")
        for part in transform.transforms:
            yield from _flat(part, depth + 1)
    elif role != "identity":
        yield transform


def _why_unknown(cls: type) -> str:
    if is_own(cls):
        return "is not supported natively yet"
    known = next((base for base in cls.__mro__[1:] if base in ORIGINALS), None)
    if known is not None:
        return f"is a subclass of {known.__name__}, whose methods may be its own; use {known.__name__} itself"
    return "is your own, and only torchvision's run natively; leave it out or replace it by one of those"


def _lower(steps: list[Any]) -> tuple[list[tuple[str, dict[str, Any]]], str]:
    ops: list[tuple[str, dict[str, Any]]] = []
    interpolation, is_tensor = "bilinear", False
    for step in steps:
        role = role_of(step)
        is_tensor = is_tensor or role == "to_tensor"
        if role is None or role not in GEOMETRY:
            continue
        try:
            ops.append(_op(step, role))
        except (TypeError, ValueError) as error:
            raise Refused(f"{name_of(step)} has arguments that are not supported natively ({error})") from error
        if role in RESIZES:
            interpolation = _pillow_filter(step)
            if is_tensor:
                interpolation = TENSOR_FILTERS[interpolation]
            elif getattr(step, "antialias", True) not in (True, None):
                raise Refused(f"{name_of(step)} has antialias={step.antialias}, which PIL images ignore; use True")
    return ops, interpolation


def _op(step: Any, role: str) -> tuple[str, dict[str, Any]]:
    if role in FLIPS:
        return role, {"p": float(step.p)}
    if role == "resize":
        return _resize(step)
    height, width = (int(side) for side in step.size)
    fields: dict[str, Any] = {"height": height, "width": width}
    if role == "center_crop":
        return "center_crop", fields
    if role == "random_crop":
        if step.padding is not None or step.pad_if_needed:
            raise Refused(f"{name_of(step)} pads; leave out padding and pad_if_needed")
        return ("random_crop_v2" if is_v2(step) else "random_crop_v1"), fields
    scale = tuple(float(value) for value in step.scale)
    ratio = tuple(float(value) for value in step.ratio)
    if len(scale) != 2 or len(ratio) != 2:
        raise ValueError("scale and ratio must be pairs")
    log_ratio = step._log_ratio if is_v2(step) else torch.log(torch.tensor(step.ratio))
    if log_ratio.dtype != torch.float32:
        raise ValueError("ratio must be of float32")
    return "random_resized_crop", {**fields, "scale": scale, "ratio": ratio, "log_ratio": tuple(log_ratio.tolist())}


def _resize(step: Any) -> tuple[str, dict[str, Any]]:
    size = [step.size] if isinstance(step.size, int) else step.size
    if size is None:
        raise Refused(f"{name_of(step)} has size=None, so images differ in size; give it a size")
    sides = [int(side) for side in size]
    if len(sides) == 2:
        if step.max_size is not None:
            raise Refused(f"{name_of(step)} has a size of two and max_size; leave out max_size")
        return "resize", {"height": sides[0], "width": sides[1]}
    return "resize_shorter", {"height": sides[0], "max_size": 0 if step.max_size is None else int(step.max_size)}


def _pillow_filter(step: Any) -> str:
    for mode, number in pil_modes_mapping.items():
        if step.interpolation == mode or step.interpolation in (mode.value, number):
            for name, resampling in FILTERS.items():
                if int(resampling) == number:
                    return name
    raise Refused(
        f"{name_of(step)} has interpolation {step.interpolation!r}, which is not supported natively; use BILINEAR"
    )


def _final_size(ops: list[tuple[str, dict[str, Any]]]) -> tuple[int, int]:
    for kind, fields in reversed(ops):
        if kind == "resize_shorter":
            raise Refused("Resize of the shorter side leaves images of different sizes; add a CenterCrop")
        if "height" in fields:
            return fields["height"], fields["width"]
    raise Refused("nothing gives the images one size; add RandomResizedCrop, or Resize and CenterCrop")


def table_of(tensor: list[Any]) -> torch.Tensor | None:
    """Compute each channel's value per level with the user's transforms; ``None`` if they change nothing.

    Raises:
        Refused: No table describes the result: other dtype, other channels, or different values for equal levels.
    """
    ramp = np.arange(256, dtype=np.uint8)
    levels = np.stack([ramp, np.roll(ramp, 85), ramp[::-1]], axis=1)  # (256, 3): each level once per channel
    images = [levels.reshape(16, 16, 3), np.ascontiguousarray(levels[::-1].reshape(8, 32, 3))]
    tables = [_table(tensor, image) for image in images]
    if not _same(tables[0], tables[1]):
        raise Refused("what the transforms make of a pixel depends on more than its level and channel")
    table = tables[0]
    if table.dtype == torch.uint8:
        if not torch.equal(table, torch.arange(256, dtype=torch.uint8).expand(3, 256)):
            raise Refused("the transforms change pixels but leave them uint8; convert to float")
        return None
    if table.dtype not in _TABLE_DTYPES:
        raise Refused(
            f"the images become {table.dtype}; only float32, float16, bfloat16 and uint8 are supported natively"
        )
    return table


def _table(tensor: list[Any], pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> torch.Tensor:
    result = _through(tensor, pixels)
    if not isinstance(result, torch.Tensor) or result.shape != (3, *pixels.shape[:2]):
        raise Refused("the transforms do not keep three channels; the means and deviations must be three each")
    if result.requires_grad:
        raise Refused("the images would require gradients, which workers cannot send; detach what the transforms hold")
    plain = result.as_subclass(torch.Tensor).reshape(3, 256)
    table = torch.empty(3, 256, dtype=plain.dtype)
    for channel in range(3):
        table[channel, torch.from_numpy(pixels[..., channel].reshape(256).astype(np.int64))] = plain[channel]
    return table


def _through(tensor: list[Any], pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> Any:
    result: Any = Image.fromarray(pixels)
    try:
        for step in tensor:
            result = step(result)
    except Exception as error:  # bad arguments would raise in the workers too
        raise Refused(f"the transforms of the tensor raise {type(error).__name__}: {error}") from error
    return result


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Compare bits: NaN equals itself, 0.0 differs from -0.0."""
    return a.dtype == b.dtype and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
