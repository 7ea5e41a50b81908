"""RandomErasing with a constant value: box drawn by the core, color by the user's transforms."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from fastload.pipeline.errors import Refused, name_of
from fastload.pipeline.ops_common import is_v2

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True)
class Erasing:
    """A RandomErasing that is supported natively.

    Attributes:
        step: The user's transform.
        color: ``(3,)``, in the dtype of the finished images: the fill value after the later transforms.
    """

    step: Callable[[Any], Any]
    color: torch.Tensor


def read_erasing(
    step: Any, before: Sequence[Callable[[Any], Any]], after: Sequence[Callable[[Any], Any]]
) -> tuple[Erasing, tuple[str, dict[str, Any]]]:
    """Read a RandomErasing and the transforms around it that change values.

    Returns:
        The erasing, and the arguments for ``_core.DrawPlan.add``.

    Raises:
        Refused: It fills with noise, or has arguments that torchvision would not accept.
    """
    name = name_of(step)
    value = step.value
    if value is None or isinstance(value, str):
        raise Refused(f"{name} fills with {value or 'random'!r} values; give it a constant value")
    if not isinstance(value, int | float | list | tuple):
        raise Refused(f"{name} has a value of type {type(value).__name__}; give it a number, or three")
    values = [float(v) for v in value] if isinstance(value, list | tuple) else [float(value)]
    if len(values) not in (1, 3):
        raise Refused(f"{name} has {len(values)} values; give it one, or one for each of 3 channels")
    scale, ratio = (tuple(float(v) for v in pair) for pair in (step.scale, step.ratio))
    if len(scale) != 2 or len(ratio) != 2:
        raise Refused(f"{name} has a scale or ratio that is no pair (min, max)")
    log_ratio = step._log_ratio if is_v2(step) else torch.log(torch.tensor(step.ratio))
    if log_ratio.dtype != torch.float32:
        raise Refused(f"{name} has a ratio whose logarithm is {log_ratio.dtype}; give it two Python floats")
    fields = {"p": float(step.p), "scale": scale, "ratio": ratio, "log_ratio": tuple(log_ratio.tolist())}
    return Erasing(step, _color(values, before, after)), ("random_erasing", fields)


def _color(
    values: list[float], before: Sequence[Callable[[Any], Any]], after: Sequence[Callable[[Any], Any]]
) -> torch.Tensor:
    """Color of a fully erased image after all transforms."""
    image: Any = Image.fromarray(np.zeros((2, 2, 3), np.uint8))
    for step in before:
        image = step(image)
    image = image.clone()
    image[...] = torch.tensor(values)[:, None, None]
    for step in after:
        image = step(image)
    return image.as_subclass(torch.Tensor)[:, 0, 0].clone()  # type: ignore[no-any-return]


def erased_by(erasing: Erasing, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Draw the box ``(top, left, height, width)`` with the user's transform and torch's default generator."""
    step = copy.copy(erasing.step)
    step.value = [1.0]  # type: ignore[attr-defined]
    mask = step(torch.zeros(1, *size))[0] > 0
    rows, columns = mask.any(1).nonzero()[:, 0], mask.any(0).nonzero()[:, 0]
    if not len(rows):
        return 0, 0, 0, 0
    return int(rows[0]), int(columns[0]), len(rows), len(columns)
