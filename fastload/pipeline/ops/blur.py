"""Read torchvision's GaussianBlur, which runs natively only where an approximation will do (``exact=False``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fastload.options import LEVELS_OFF
from fastload.pipeline.errors import Refused, name_of
from fastload.pipeline.installed.steps import leaves

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastload.pipeline.nodes import Node, Place

_KEEP: Final = (
    *("center_crop", "random_crop_v1", "random_crop_v2", "horizontal_flip", "vertical_flip", "pad", "grayscale"),
    *("invert", "rotate_90", "rotate_180", "rotate_270"),
)
_POSITIVE: Final = ("nearest", "box", "bilinear", "hamming", "torch_bilinear")  # weights of at least 0


def gaussian_blur(step: Any, place: Place) -> list[Node]:
    """Read a GaussianBlur."""
    if place.exact:
        raise Refused(
            f"{name_of(step)} has torch's bits in worker processes only; exact=False runs it natively, at most "
            f"{LEVELS_OFF} of 256 levels off"
        )
    width, height = (int(side) for side in step.kernel_size)
    low, high = (float(value) for value in step.sigma)
    place.approximate = name_of(step)
    return [("random_gaussian", {"height": height, "width": width, "jitters": [(low, high), None, None, None]})]


def check_behind(step: Any, approximate: str | None, nodes: Iterable[Node]) -> None:
    """Refuse what could enlarge the error of an approximate op before it.

    Raises:
        Refused: It could.
    """
    if approximate is not None and any(map(_enlarges, leaves(nodes))):
        raise Refused(
            f"{name_of(step)} comes after {approximate}, which is approximate, and could enlarge the difference; put "
            "it before"
        )


def _enlarges(node: Node) -> bool:
    kind, fields = node
    if kind == "solarize":
        return bool(fields["value"] != 128)  # there, 127 stays, and 128 becomes 127
    return kind not in _KEEP and fields.get("filter", fields.get("sampling")) not in _POSITIVE
