"""RandomErasing: boxes drawn by the core, color by the user's transforms, noise by torch.

How torch's ``normal_`` rounds depends on the CPU, but not how many numbers it draws. So the core skips these and notes
the state of torch's generator before them; torch makes the noise from that state.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from PIL import Image

from fastload.pipeline.errors import Refused, name_of
from fastload.pipeline.installed.timm import MODULES, check_same_erasing
from fastload.pipeline.installed.torch_stream import calibrate_stream
from fastload.pipeline.nodes import is_v2
from fastload.pipeline.ops import timm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fastload.pipeline.nodes import Node

Box: TypeAlias = "tuple[int, int, int, int]"
"""Top, left, height and width, pixels."""
Patch: TypeAlias = "tuple[Box, torch.Tensor | None]"
"""What fills a box: ``(3, height, width)`` or ``(3, 1, 1)`` float32, or ``None`` for the erasing's color."""


@dataclass(frozen=True, slots=True)
class Erasing:
    """A RandomErasing that is supported natively.

    Attributes:
        step: The user's transform.
        color: ``(3,)``, in the dtype of the finished images: the fill value after the later transforms. ``None`` if
            each box has values of its own.
        noise: What these are: ``"pixels"``, ``"colors"`` (one value for each channel) or ``"none"`` (zeros).
    """

    step: Callable[[Any], Any]
    color: torch.Tensor | None
    noise: str = "none"

    def patches(self, erased: Iterable[tuple[list[Box], bytes | None]]) -> list[list[Patch]]:
        """Return each sample's patches, in order, from what the core has drawn for it."""
        if self.color is not None:
            return [[(box, None) for box in boxes] for boxes, _ in erased]
        return [list(zip(boxes, self._values(boxes, state), strict=True)) for boxes, state in erased]

    def _values(self, boxes: list[Box], state: bytes | None) -> list[torch.Tensor]:
        if state is None:
            return [torch.zeros(3, 1, 1, dtype=torch.float32) for _ in boxes]
        generator = torch.Generator()
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
        sizes = [box[2:] if self.noise == "pixels" else (1, 1) for box in boxes]
        return [torch.empty(3, *size, dtype=torch.float32).normal_(generator=generator) for size in sizes]


def read_erasing(
    step: Any, before: Sequence[Callable[[Any], Any]], after: Sequence[Callable[[Any], Any]]
) -> tuple[Erasing, Node]:
    """Read a RandomErasing and the transforms around it that change values.

    Returns:
        The erasing, and the arguments for ``_core.DrawPlan.add``.

    Raises:
        Refused: It has arguments that torchvision would not accept, or noise that is not torch's or changes afterwards.
    """
    name = name_of(step)
    if type(step).__module__ in MODULES:
        node = timm.erasing(step)
        erasing = _with_values(step, node[1]["noise"], before, after)
        check_same_erasing(step, node, erasing.patches)
        return erasing, node
    scale, ratio = (tuple(float(v) for v in pair) for pair in (step.scale, step.ratio))
    if len(scale) != 2 or len(ratio) != 2:
        raise Refused(f"{name} has a scale or ratio that is no pair (min, max)")
    log_ratio = step._log_ratio if is_v2(step) else torch.log(torch.tensor(step.ratio))
    if log_ratio.dtype != torch.float32:
        raise Refused(f"{name} has a ratio whose logarithm is {log_ratio.dtype}; give it two Python floats")
    fields = {"p": float(step.p), "scale": scale, "ratio": ratio, "log_ratio": tuple(log_ratio.tolist())}
    value = step.value
    if value is None or isinstance(value, str):
        return _with_values(step, "pixels", before, after), ("random_erasing", {**fields, "noise": "pixels"})
    if not isinstance(value, int | float | list | tuple):
        raise Refused(f"{name} has a value of type {type(value).__name__}; give it a number, or three")
    values = [float(v) for v in value] if isinstance(value, list | tuple) else [float(value)]
    if len(values) not in (1, 3):
        raise Refused(f"{name} has {len(values)} values; give it one, or one for each of 3 channels")
    return Erasing(step, _color(values, before, after)), ("random_erasing", fields)


def _with_values(
    step: Any, noise: str, before: Sequence[Callable[[Any], Any]], after: Sequence[Callable[[Any], Any]]
) -> Erasing:
    name = name_of(step)
    if changing := [later for later in after if type(later).__name__ != "ToPureTensor"]:
        raise Refused(f"{name_of(changing[0])} would change what {name} fills boxes with; put it before")
    dtype = _tensor(before).dtype
    if dtype != torch.float32:
        raise Refused(f"{name} fills boxes of {dtype} images with values; convert them to float32 before")
    stream = calibrate_stream()
    if noise != "none" and (stream is None or not stream.normals):
        raise Refused(f"torch {torch.__version__} draws normal numbers otherwise than the native core")
    return Erasing(step, None, noise)


def _tensor(steps: Sequence[Callable[[Any], Any]]) -> torch.Tensor:
    """Make a small black image into a tensor."""
    image: Any = Image.fromarray(np.zeros((2, 2, 3), np.uint8))
    for step in steps:
        image = step(image)
    return image  # type: ignore[no-any-return]


def _color(
    values: list[float], before: Sequence[Callable[[Any], Any]], after: Sequence[Callable[[Any], Any]]
) -> torch.Tensor:
    """Color of a fully erased image after all transforms."""
    image: Any = _tensor(before).clone()
    image[...] = torch.tensor(values)[:, None, None]
    for step in after:
        image = step(image)
    return image.as_subclass(torch.Tensor)[:, 0, 0].clone()  # type: ignore[no-any-return]


def erased_by(erasing: Erasing, pixels: np.ndarray[Any, np.dtype[np.uint8]], table: torch.Tensor | None) -> list[Patch]:
    """Erase an image with the user's transform and the default generators.

    Args:
        erasing: The erasing.
        pixels: ``(H, W, 3)``.
        table: Values of the levels; see :class:`~fastload.pipeline.transforms.Pipeline`.
    """
    if erasing.color is not None or table is None:
        step = copy.copy(erasing.step)
        step.value = [1.0]  # type: ignore[attr-defined]
        box = _around(step(torch.zeros(1, *pixels.shape[:2]))[0] > 0)
        return [(box, None)]
    levels = torch.from_numpy(pixels.astype(np.int64)).permute(2, 0, 1)
    image = torch.stack([values[level] for values, level in zip(table, levels, strict=True)])
    after = erasing.step(image.clone())
    top, left, height, width = box = _around((after.view(torch.int32) != image.view(torch.int32)).any(0))
    return [(box, after[:, top : top + height, left : left + width].clone())]


def _around(inside: torch.Tensor) -> Box:
    """The smallest box around some pixels; zeros if there are none."""
    rows, columns = inside.any(1).nonzero()[:, 0], inside.any(0).nonzero()[:, 0]
    if not len(rows):
        return 0, 0, 0, 0
    return int(rows[0]), int(columns[0]), int(rows[-1] - rows[0]) + 1, int(columns[-1] - columns[0]) + 1
