"""What all ops' readers share: nodes, places, and torchvision's arguments for Pillow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from PIL import Image

from fastload.pipeline.errors import Refused, name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Node: TypeAlias = tuple[str, dict[str, Any]]
"""Arguments for ``_core.DrawPlan.add``: a kind and its fields."""

V2: Final = "torchvision.transforms.v2"
FILTERS: Final = {
    "nearest": Image.Resampling.NEAREST,
    "box": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "hamming": Image.Resampling.HAMMING,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
"""The core's interpolation names and Pillow's constants."""
SAMPLINGS: Final = {int(Image.Resampling[name.upper()]): name for name in ("nearest", "bilinear", "bicubic")}
"""The core's names of Pillow's filters for transforms."""


def is_v2(transform: Any) -> bool:
    """Whether a natively supported transform is from torchvision's v2."""
    return type(transform).__module__.startswith(f"{V2}.")


@dataclass(slots=True)
class Place:
    """Where in a pipeline a transform stands.

    Attributes:
        size: Height and width of its images, pixels; ``None`` if they differ.
        is_tensor: Whether its images are uint8 tensors; otherwise they are Pillow's.
        read: Reads the transforms within a transform.
        exact: Whether each op must give the same bits.
        approximate: Name of an op before it that doesn't, if any.
        checked_v2: Whether torchvision's v2 has been checked for patches.
        gray: Whether images have one channel. The core makes three equal ones of it, and keeps the first at the end.
    """

    size: tuple[int, int] | None
    is_tensor: bool
    read: Callable[[Iterable[Any], Place], list[Node]]
    exact: bool = True
    approximate: str | None = None
    checked_v2: bool = False
    gray: bool = False

    def sized(self, step: Any) -> tuple[int, int]:
        """Return the images' size.

        Raises:
            Refused: It is not known before the images are read.
        """
        if self.size is None:
            raise Refused(f"{name_of(step)} comes where images differ in size; put it after a crop to one size")
        return self.size


def pillow_filter(step: Any) -> str:
    """Name Pillow's filter of a transform's ``interpolation``.

    Raises:
        Refused: The core does not have it.
    """
    from torchvision.transforms.functional import pil_modes_mapping  # torchvision, which decoding does without

    for mode, number in pil_modes_mapping.items():
        if step.interpolation == mode or step.interpolation in (mode.value, number):
            for name, resampling in FILTERS.items():
                if int(resampling) == number:
                    return name
    raise Refused(
        f"{name_of(step)} has interpolation {step.interpolation!r}, which is not supported natively; use BILINEAR"
    )


def pillow_fill(step: Any, fill: Any) -> tuple[int, int, int]:
    """A constant fill for Pillow's images, as torchvision passes it on."""
    values = [0] if fill is None else [fill] if isinstance(fill, int | float) else fill
    if not isinstance(values, list | tuple) or len(values) not in (1, 3):
        raise Refused(f"{name_of(step)} has fill={fill!r}; give it a number, or three")
    if not all(isinstance(value, int | float) and value == int(value) and 0 <= value <= 255 for value in values):
        raise Refused(f"{name_of(step)} has fill={fill!r}; give it whole numbers from 0 to 255")
    red, green, blue = (int(value) for value in (list(values) * 3)[:3])
    return red, green, blue


def solarize_threshold(value: float) -> float:
    """The first level that solarizing inverts; Pillow compares whole levels with any number."""
    return float(max(0, min(256, math.ceil(value))))
