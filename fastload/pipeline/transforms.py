"""Split a torchvision pipeline into ops on images, changes of values, and erasing.

A crop or flip moves pixels without changing them, so it may come before or after per-pixel changes. A resize computes
new values: Pillow's (images) and torch's (uint8 tensors) give different bits. Resizes of float tensors give others
again and are not supported natively.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torchvision.transforms.functional import pil_to_tensor

from fastload._compare import same_bits
from fastload.pipeline.code.own_transforms import own_transform
from fastload.pipeline.code.views import views_of
from fastload.pipeline.code.wrappers import ToRGB, parts_of
from fastload.pipeline.errors import Refused, name_of
from fastload.pipeline.installed.patches import is_own
from fastload.pipeline.installed.python_stream import check_others, draws_from_others
from fastload.pipeline.installed.resizes import TENSOR_FILTERS
from fastload.pipeline.installed.settings import check_dtype, check_modes
from fastload.pipeline.installed.steps import leaves
from fastload.pipeline.installed.watched import check_libraries
from fastload.pipeline.nodes import Node, Place, is_v2, pillow_filter
from fastload.pipeline.ops.blur import check_behind
from fastload.pipeline.ops.erasing import Erasing, Patch, erased_by, read_erasing
from fastload.pipeline.ops.table import ON_GRAY, OPS
from fastload.pipeline.ops.tensor import TENSOR_OPS
from fastload.pipeline.roles import ORIGINALS, op_of, patched, role_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fastload import _core

_TABLE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_CROPS = ("center_crop", "random_crop_v1", "random_crop_v2", "center_crop_or_pad", "python_crop_or_pad")
_ON_TENSORS = ("AugMix", "ElasticTransform")  # their grids are torch's matrix products and blurs
LAYOUT_BY_STRIDE = {(35, 7, 1): torch.contiguous_format, (1, 21, 3): torch.channels_last}  # of (3, 5, 7), by strides


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A transform in parts.

    Attributes:
        names: Names of the transforms of images, in order.
        tensor: The user's transform that makes a tensor of the image, and those that change its values, in order.
        pixel_steps: For each view, the user's transforms of images and the one that makes a tensor, in order.
        nodes: The transforms of images and ``erasing`` for ``_core.DrawPlan.add``, and ``view`` between two views.
        sizes: ``(height, width)`` of each view's images at the end, pixels.
        draws: Whether anything is drawn at random.
        draws_others: Whether some of it is drawn by Python's ``random`` or by NumPy.
        table: ``(C, 256)``: value that ``tensor`` gives each level of each channel; ``None`` if images stay uint8.
        erasing: Random erasing at the end; ``None`` if there is none.
        image: Type of a sample's image when it is collated.
        approximate: Name of an op whose bits are not torchvision's, if any.
        layout: Memory format of a sample's image; ``None`` if it may differ between samples.
        channels: Of a sample's image: 3, or 1 if it is gray. Pixels have three, which are then equal.
    """

    names: tuple[str, ...]
    tensor: tuple[Callable[[Any], Any], ...]
    pixel_steps: tuple[tuple[Callable[[Any], Any], ...], ...]
    nodes: tuple[Node, ...]
    sizes: tuple[tuple[int, int], ...]
    draws: bool
    draws_others: bool
    table: torch.Tensor | None
    erasing: Erasing | None
    image: type[torch.Tensor]
    approximate: str | None
    layout: torch.memory_format | None = None
    channels: int = 3

    @property
    def resizes_tensors(self) -> bool:
        """Whether a resize has torch's arithmetic for uint8 tensors."""
        return any(str(fields.get("filter", "")).startswith("torch_") for _, fields in self.nodes)

    @property
    def has_tensor_contrast(self) -> bool:
        """Whether a step's bits depend on how torch splits a uint8 tensor among its threads."""
        return any(
            kind == "torch_color_jitter" and fields["jitters"][1] is not None for kind, fields in leaves(self.nodes)
        )

    @property
    def largest_crop(self) -> int:
        """Pixels of the largest crop of a fixed size. Pillow limits these, too."""
        crops = [fields for kind, fields in leaves(self.nodes) if kind in _CROPS]
        return max((fields["height"] * fields["width"] for fields in crops), default=0)

    @property
    def views(self) -> int:
        """How many images a sample has; if several, they are in a list."""
        return len(self.pixel_steps)

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for pipelines that make equal samples of the same files, but for their layout."""
        table, erasing = self.table, self.erasing
        values = None if table is None else (table.dtype, table.contiguous().view(torch.uint8).numpy().tobytes())
        color = None if erasing is None or erasing.color is None else (erasing.color.dtype, erasing.color.tolist())
        erased = erasing and (erasing.noise, color)  # a tensor's repr() rounds
        return repr((self.nodes, self.sizes, self.channels, self.image, erased)), values

    def room(self, images: int, allocate: Callable[[int], torch.Tensor] | None = None) -> torch.Tensor:
        """Allocate a batch's pixels: all images' first views, then the second ones ...

        Args:
            images: Of the batch, each with all views.
            allocate: Returns so many bytes; ``None`` takes torch's usual memory.

        Returns:
            ``(N, H, W, 3)`` uint8, or ``(1, 1, pixels, 3)`` if views differ in size.
        """
        shape = (images * self.views, *self.sizes[0])
        if len(set(self.sizes)) > 1:
            shape = (1, 1, images * sum(height * width for height, width in self.sizes))
        if allocate is None:
            return torch.empty((*shape, 3), dtype=torch.uint8)
        return allocate(3 * math.prod(shape)).view(*shape, 3)

    def by_view(self, pixels: torch.Tensor) -> list[torch.Tensor]:
        """Return each view's part of what :meth:`room` returned, ``(images, H, W, 3)``."""
        if self.views == 1:
            return [pixels]
        areas = [height * width for height, width in self.sizes]
        images = pixels.numel() // (3 * sum(areas))
        parts = pixels.view(-1, 3).split_with_sizes([images * area for area in areas])
        return [part.view(images, *size, 3) for part, size in zip(parts, self.sizes, strict=True)]

    def pixels(self, image: Image.Image, view: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Compute a view's pixels, ``(H, W, 3)``, with the user's transforms and torch's default generator."""
        result: Any = image
        for step in self.pixel_steps[view]:
            result = pil_to_tensor(result) if role_of(step) == "to_tensor" else step(result)
        made = result.permute(1, 2, 0).numpy() if isinstance(result, torch.Tensor) else np.array(result)
        return made if self.channels == 3 else np.repeat(made.reshape(*made.shape[:2], 1), 3, axis=2)

    def patches(self, job: _core.Job) -> list[list[Patch]]:
        """Return what erases each sample of a finished job."""
        return [[]] * len(job) if self.erasing is None else self.erasing.patches(job.erased())

    def erased(self, pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> list[Patch]:
        """Draw what erases these pixels in the same way."""
        return [] if self.erasing is None else erased_by(self.erasing, pixels, self.table)


def read_transform(
    transform: Any, *, exact: bool = True, size: tuple[int, int] | None = None, gray: bool = False
) -> Pipeline:
    """Split a transform into its parts.

    Args:
        transform: The dataset's.
        exact: Whether all of it must give the same bits.
        size: ``(height, width)`` of every image at first, pixels; ``None`` if they differ.
        gray: Whether images are gray at first.

    Raises:
        Refused: Part of it is not supported natively; says which, and what to change.
    """
    if transform is None:
        raise Refused("the dataset has no transform, so its samples are PIL images; end one in ToTensor()")
    if role_of(transform) is None and (views := views_of(transform)) is not None:
        return _with_views(transform, [read_transform(view, exact=exact, size=size, gray=gray) for view in views])
    steps = list(_flat(transform, 0))
    roles = [role_of(step) for step in steps]
    pairs = list(zip(steps, roles, strict=True))
    draws = any(role == "erasing" or (role == "op" and op_of(step).draws) for step, role in pairs)
    v2 = any(is_v2(step) for step in (transform, *steps))
    check_libraries(v2=v2)
    check_modes()
    if draws:
        check_dtype()
    tensor: list[Any] = []
    for position, (step, role) in enumerate(pairs):
        if role == "op" and tensor:
            _check_on_tensor(step, tensor)
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
            if late := [later for later in steps[position + 1 :] if role_of(later) in ("op", "erasing")]:
                raise Refused(f"{name_of(late[0])} comes after {name_of(step)}; put it before")
    if not tensor:
        raise Refused("the transform ends with a PIL image; end it with ToTensor()")
    place = Place(size, is_tensor=False, read=_read_inner, exact=exact, checked_v2=v2, gray=gray)
    nodes = _read(steps, place)
    if place.size is None:
        raise Refused("nothing gives the images one size; add RandomResizedCrop, or Resize and CenterCrop")
    channels = 1 if place.gray else 3
    table = table_of(tensor, channels)
    erasing = None
    if "erasing" in roles and place.gray:
        raise Refused("RandomErasing of gray images is not supported natively; leave it out")
    if "erasing" in roles:
        position = roles.index("erasing")
        parts = steps[:position], steps[position + 1 :]
        before, after = ([other for other in part if role_of(other) != "op"] for part in parts)
        try:
            erasing, op = read_erasing(steps[position], before, after)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise Refused(_unread(steps[position], error)) from error
        nodes.append(op)
    pixel_steps = tuple(step for step in steps if role_of(step) in ("op", "to_tensor"))
    probe = _through(tensor, np.zeros((5, 7, 3) if channels == 3 else (5, 7), np.uint8))
    layout = None if role_of(pixel_steps[-1]) == "op" else LAYOUT_BY_STRIDE.get(probe.stride())
    if place.gray and probe.is_contiguous():  # whatever the stride of its one channel
        layout = torch.contiguous_format
    names = tuple(type(step).__name__ for step in steps if role_of(step) == "op" and type(step) is not ToRGB)
    draws_others = draws_from_others(nodes)
    if draws_others:
        check_others()
    read = names, tuple(tensor), (pixel_steps,), tuple(nodes), (place.size,), draws, draws_others, table, erasing
    return Pipeline(*read, type(probe), place.approximate, layout, channels)


def _with_views(transform: Any, views: list[Pipeline]) -> Pipeline:
    """Join the pipelines of several views of one image."""
    first, name = views[0], name_of(transform)
    if any(view.views > 1 for view in views):
        raise Refused(f"{name} makes views of views; make all in one list")
    if any(view.erasing is not None for view in views):
        raise Refused(f"{name} makes several views, of which one is erased; leave out the erasing")
    alike = [(view.image, None if view.table is None else view.table.dtype) for view in views]
    tables = [view.table for view in views if view.table is not None]
    if alike != alike[:1] * len(views) or any(not same_bits(tables[0], table) for table in tables):
        raise Refused(f"{name} makes views that differ in how they become tensors; make them alike")
    nodes = list(first.nodes)
    for view in views[1:]:
        nodes += [("view", {}), *view.nodes]
    return replace(
        first,
        names=tuple(name for view in views for name in view.names),
        pixel_steps=tuple(steps for view in views for steps in view.pixel_steps),
        nodes=tuple(nodes),
        sizes=tuple(size for view in views for size in view.sizes),
        draws=any(view.draws for view in views),
        draws_others=any(view.draws_others for view in views),
        approximate=next((view.approximate for view in views if view.approximate is not None), None),
    )


def repeated(pipeline: Pipeline, images: int, transform: Any) -> Pipeline:
    """Apply a transform to each of several images of a sample, in turn.

    Raises:
        Refused: It makes several views itself, or erases.
    """
    return _with_views(transform, [pipeline] * images)


def _read(steps: Iterable[Any], place: Place) -> list[Node]:
    """Read transforms into nodes. Those that make or change a tensor only change the place."""
    nodes: list[Node] = []
    for step in _flat_all(steps):
        role = role_of(step)
        place.is_tensor = place.is_tensor or role == "to_tensor"
        if role != "op":
            continue
        if place.gray:
            _check_on_gray(step, place)
        if is_v2(step) and not place.checked_v2:  # within a transform of v1
            check_libraries(v2=True)
            place.checked_v2 = True
        approximate = place.approximate
        try:
            on_tensor = place.is_tensor and not op_of(step).moves
            made = (TENSOR_OPS[type(step).__name__] if on_tensor else op_of(step).read)(step, place)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise Refused(_unread(step, error)) from error
        check_behind(step, approximate, made)
        nodes += made
    return nodes


def _check_on_gray(step: Any, place: Place) -> None:
    """Refuse what may treat gray images otherwise than the channels of RGB."""
    name = type(step).__name__
    resizes = name in ("Resize", "RandomResizedCrop")
    if name not in ON_GRAY or op_of(step) is not OPS[name] or (resizes and place.is_tensor):
        raise Refused(f"{name_of(step)} of gray images is not supported natively; put Grayscale(3) before it")
    fill = getattr(step, "fill", None)
    if fill is not None and type(fill) is not int:
        raise Refused(f"{name_of(step)} of gray images has fill={fill!r}; give it a whole number")


def _unread(step: Any, error: Exception) -> str:
    return f"{name_of(step)} has arguments that are not supported natively ({error})"


def _check_on_tensor(step: Any, tensor: list[Any]) -> None:
    """Refuse what gives a tensor other values than Pillow's image, or would resize floats."""
    name = name_of(step)
    before = f"put it before {name_of(tensor[0])}"
    if not op_of(step).moves:
        if op_of(step).read is own_transform:
            raise Refused(f"{name} runs your own code on tensors, which is not run natively; run it on whole batches")
        if not is_v2(step) or type(step).__name__ not in TENSOR_OPS or not _is_uint8(tensor):
            raise Refused(f"{name} comes after {name_of(tensor[-1])}, and changes such tensors otherwise; {before}")
        for inner in _flat_all(getattr(step, "transforms", ())):
            if role_of(inner) == "op":
                _check_on_tensor(inner, tensor)
    if type(step).__name__ == "CenterCrop":
        _check_padding(step, tensor)
    if type(step).__name__ not in ("Resize", "RandomResizedCrop"):
        return
    if not is_v2(step):
        raise Refused(f"{name} of torchvision's v1 resizes tensors by way of floats; use v2's, or {before}")
    if not _is_uint8(tensor):
        raise Refused(f"{name} comes after {name_of(tensor[-1])} and would resize floats; {before}")
    if step.antialias is not True:
        raise Refused(f"{name} resizes a tensor with antialias={step.antialias}; use True, or {before}")
    if pillow_filter(step) not in TENSOR_FILTERS:
        raise Refused(f"{name} resizes a tensor with {step.interpolation!r}; use BILINEAR, or {before}")


def _is_uint8(tensor: list[Any]) -> bool:
    try:
        return table_of(tensor) is None
    except Refused:
        return False


def _check_padding(step: Any, tensor: list[Any]) -> None:
    """Refuse a crop that may pad with 0 where black is not 0."""
    table = table_of(tensor)
    if table is not None and not same_bits(table[:, 0], torch.zeros(3, dtype=table.dtype)):
        raise Refused(
            f"{name_of(step)} comes after {name_of(tensor[-1])} and would pad small images with 0, which is not black "
            "there; put it before"
        )


def _read_inner(steps: Iterable[Any], place: Place) -> list[Node]:
    """Read the transforms within a transform, which are all of images."""
    inner = list(_flat_all(steps))
    if other := [step for step in inner if role_of(step) != "op"]:
        raise Refused(f"{name_of(other[0])} stands within another transform; put it outside")
    gray, nodes = place.gray, _read(inner, place)
    if place.gray is not gray:
        raise Refused("Grayscale or RGB of gray images stands within another transform; put it outside")
    return nodes


def _flat_all(steps: Iterable[Any]) -> Iterator[Any]:
    for step in steps:
        yield from _flat(step, 0)


def _flat(transform: Any, depth: int) -> Iterator[Any]:
    if depth > 50:
        raise Refused("transforms are nested more than 50 deep")
    role = role_of(transform)
    parts = parts_of(transform) if role is None else transform.transforms if role == "compose" else None
    if role is None and parts is None:
        raise Refused(f"transform {name_of(transform)} {_why_unknown(type(transform))}")
    if role is not None and (reason := patched(transform)) is not None:
        raise Refused(reason)
    if parts is not None:
        for part in parts:
            yield from _flat(part, depth + 1)
    elif role != "identity":
        yield transform


def _why_unknown(cls: type) -> str:
    if is_own(cls):
        if cls.__name__ in _ON_TENSORS:
            return "computes Pillow's images as tensors too, with bits that torch alone has; leave it out"
        return "is not supported natively yet"
    known = next((base for base in cls.__mro__[1:] if base in ORIGINALS), None)
    if known is not None:
        return f"is a subclass of {known.__name__}, whose methods may be its own; use {known.__name__} itself"
    return (
        "is your own, and does what the native core does not know; leave it out or replace it by one of torchvision's"
    )


def table_of(tensor: list[Any], channels: int = 3) -> torch.Tensor | None:
    """Compute each channel's value per level with the user's transforms; ``None`` if they change nothing.

    Raises:
        Refused: No table describes the result: other dtype, other channels, or different values for equal levels.
    """
    ramp = np.arange(256, dtype=np.uint8)
    levels = np.stack([ramp, np.roll(ramp, 85), ramp[::-1]], axis=1)  # (256, 3): each level once per channel
    levels = levels[:, :channels]
    images = [levels.reshape(16, 16, channels), np.ascontiguousarray(levels[::-1].reshape(8, 32, channels))]
    tables = [_table(tensor, image) for image in images]
    if not same_bits(tables[0], tables[1]):
        raise Refused("what the transforms make of a pixel depends on more than its level and channel")
    table = tables[0]
    if table.dtype == torch.uint8:
        if not torch.equal(table, torch.arange(256, dtype=torch.uint8).expand(channels, 256)):
            raise Refused("the transforms change pixels but leave them uint8; convert to float")
        return None
    if table.dtype not in _TABLE_DTYPES:
        raise Refused(
            f"the images become {table.dtype}; only float32, float16, bfloat16 and uint8 are supported natively"
        )
    return table


def _table(tensor: list[Any], pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> torch.Tensor:
    channels = pixels.shape[2]
    result = _through(tensor, pixels if channels == 3 else pixels[..., 0])
    if not isinstance(result, torch.Tensor) or result.shape != (channels, *pixels.shape[:2]):
        raise Refused(
            f"the transforms do not keep the channels, of which there {'is one' if channels == 1 else 'are three'}; "
            "there must be as many means and deviations"
        )
    if result.requires_grad:
        raise Refused("the images would require gradients, which workers cannot send; detach what the transforms hold")
    plain = result.as_subclass(torch.Tensor).reshape(channels, 256)
    table = torch.empty(channels, 256, dtype=plain.dtype)
    for channel in range(channels):
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
