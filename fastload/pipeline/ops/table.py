"""The table of ops: torchvision's transforms of images that the native core runs.

An op says how a transform is read: what the core draws for it, and the steps that it makes of the draws. Transforms
that make a tensor, change its values or erase a box of it are read elsewhere (:mod:`fastload.pipeline.transforms`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from PIL import Image

from fastload.pipeline.errors import Refused, name_of
from fastload.pipeline.installed.resizes import TENSOR_FILTERS
from fastload.pipeline.installed.steps import is_reference
from fastload.pipeline.nodes import SAMPLINGS, is_v2, pillow_fill, pillow_filter, solarize_threshold
from fastload.pipeline.ops.affine import random_affine, random_perspective, random_rotation
from fastload.pipeline.ops.blur import gaussian_blur
from fastload.pipeline.ops.order import random_apply, random_choice, random_order
from fastload.pipeline.ops.timm import auto_augment, crop_or_pad, rand_augment, resize_keep_ratio, resized_crop

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.pipeline.nodes import Node, Place

_INTEGERS = "Pillow computes it in integers"
_FLOATS = "Pillow computes it in float32, without fused operations"
_DOUBLES = "Python and Pillow compute it in doubles, with the C library's functions"
_COEFFICIENTS = "Pillow computes it in doubles; torch's coefficients are bounded, or torch is asked for them"
_INNER = "its transforms' are"
_MOVES = "it moves pixels"


@dataclass(frozen=True, slots=True)
class Op:
    """A row of the table.

    Attributes:
        read: Reads a transform into nodes, and changes the place to the one behind it.
        draws: Whether it draws random numbers.
        moves: Whether it only moves pixels, so that it may also follow what makes a tensor.
        why: Why its bits are right.
    """

    read: Callable[[Any, Place], list[Node]]
    draws: bool
    moves: bool
    why: str


def _flip(kind: str) -> Callable[[Any, Place], list[Node]]:
    return lambda step, place: [(kind, {"p": float(step.p)})]


def _center_crop(step: Any, place: Place) -> list[Node]:
    place.size = height, width = _size_of(step)
    return [("center_crop", {"height": height, "width": width})]


def _random_crop(step: Any, place: Place) -> list[Node]:
    if step.pad_if_needed:
        raise Refused(f"{name_of(step)} pads if needed, so that what it draws depends on the image; leave it out")
    before = []
    if step.padding is not None and (not is_v2(step) or any(step.padding)):
        if place.is_tensor:
            raise Refused(f"{name_of(step)} pads a tensor; put it before what makes a tensor of the image")
        padding = step.padding
        if is_v2(step):
            left, right, top, bottom = padding
            padding = [left, top, right, bottom]
        before = _padded(step, padding, place)
    place.size = height, width = _size_of(step)
    return [*before, ("random_crop_v2" if is_v2(step) else "random_crop_v1", {"height": height, "width": width})]


def _pad(step: Any, place: Place) -> list[Node]:
    return _padded(step, step.padding, place)


def _padded(step: Any, padding: Any, place: Place) -> list[Node]:
    sides = [padding] if isinstance(padding, int) else list(padding)
    if len(sides) not in (1, 2, 4) or not all(isinstance(side, int) and side >= 0 for side in sides):
        raise Refused(f"{name_of(step)} has padding {padding!r}; give it 1, 2 or 4 numbers that are not negative")
    left, top, right, bottom = (sides * 4)[:4]
    if place.size is not None:
        place.size = place.size[0] + top + bottom, place.size[1] + left + right
    fields = {
        "margins": (top, left, bottom, right),
        "mode": str(step.padding_mode),
        "fill": pillow_fill(step, step.fill),
    }
    return [("pad", fields)]


def _random_resized_crop(step: Any, place: Place) -> list[Node]:
    height, width = _size_of(step)
    scale = tuple(float(value) for value in step.scale)
    ratio = tuple(float(value) for value in step.ratio)
    if len(scale) != 2 or len(ratio) != 2:
        raise ValueError("scale and ratio must be pairs")
    log_ratio = step._log_ratio if is_v2(step) else torch.log(torch.tensor(step.ratio))
    if log_ratio.dtype != torch.float32:
        raise ValueError("ratio must be of float32")
    place.size = height, width
    fields = {"height": height, "width": width, "scale": scale, "ratio": ratio, "log_ratio": tuple(log_ratio.tolist())}
    return [("random_resized_crop", {**fields, "filter": resize_filter(step, place)})]


def _resize(step: Any, place: Place) -> list[Node]:
    size = [step.size] if isinstance(step.size, int) else step.size
    if size is None:
        raise Refused(f"{name_of(step)} has size=None, so images differ in size; give it a size")
    sides = [int(side) for side in size]
    how = {"filter": resize_filter(step, place)}
    if len(sides) == 2:
        if step.max_size is not None:
            raise Refused(f"{name_of(step)} has a size of two and max_size; leave out max_size")
        place.size = sides[0], sides[1]
        return [("resize", {"height": sides[0], "width": sides[1], **how})]
    square = place.size is not None and place.size[0] == place.size[1] and step.max_size is None
    place.size = (sides[0], sides[0]) if square else None
    return [("resize_shorter", {"height": sides[0], "max_size": int(step.max_size or 0), **how})]


def resize_filter(step: Any, place: Place) -> str:
    """Name the core's filter for a transform that resizes.

    Raises:
        Refused: The core has none for it.
    """
    pillow = pillow_filter(step)
    if place.is_tensor:
        return TENSOR_FILTERS[pillow]
    if getattr(step, "antialias", True) not in (True, None):
        raise Refused(f"{name_of(step)} has antialias={step.antialias}, which PIL images ignore; use True")
    return pillow


def _size_of(step: Any) -> tuple[int, int]:
    height, width = (int(side) for side in step.size)
    return height, width


def _color_jitter(step: Any, place: Place) -> list[Node]:
    ranges = [step.brightness, step.contrast, step.saturation, step.hue]
    jitters = [None if pair is None else (float(pair[0]), float(pair[1])) for pair in ranges]
    return [("color_jitter", {"jitters": jitters})]


def _grayscale(step: Any, place: Place) -> list[Node]:
    if place.gray and step.num_output_channels == 3:
        place.gray = False
        return []
    if step.num_output_channels != 3:
        raise Refused(f"{name_of(step)} leaves {step.num_output_channels} channel; give it num_output_channels=3")
    return [("grayscale", {})]


def _rgb(step: Any, place: Place) -> list[Node]:
    if place.gray and place.is_tensor:
        raise Refused(f"{name_of(step)} comes where gray images are tensors; put it before")
    place.gray = False
    return []


def _to_rgb(step: Any, place: Place) -> list[Node]:
    if place.is_tensor:
        raise Refused("a function that converts images to RGB comes where images are tensors; put it before")
    return _rgb(step, place)


def _chance(kind: str, comparison_v1: str, value: str | None = None) -> Callable[[Any, Place], list[Node]]:
    """Return a reader of transforms that take a step with probability ``p``.

    Args:
        kind: Of the step.
        comparison_v1: How v1 compares a draw with ``p``.
        value: Name of the attribute with the step's parameter.
    """

    def read(step: Any, place: Place) -> list[Node]:
        fields = {} if value is None else {"value": _parameter(kind, getattr(step, value))}
        comparison = "less" if is_v2(step) else comparison_v1
        return [("chance", {"p": float(step.p), "comparison": comparison, "branches": [[(kind, fields)]]})]

    return read


def _parameter(kind: str, value: float) -> float:
    if kind == "solarize":
        return solarize_threshold(value)
    if kind == "posterize" and not 1 <= value <= 8:
        raise ValueError("bits must be from 1 to 8")
    return float(value)


def _rand_augment(step: Any, place: Place) -> list[Node]:
    branches = []
    for name, magnitudes, signed in _space(step, step.num_magnitude_bins, place.sized(step)):
        magnitude = None if magnitudes is None else magnitudes[step.magnitude]
        branches.append(_signed(step, name, magnitude, signed, place))
    return [("choose", {"branches": branches})] * step.num_ops


def _trivial_augment(step: Any, place: Place) -> list[Node]:
    branches: list[list[Node]] = []
    for name, magnitudes, signed in _space(step, step.num_magnitude_bins, place.sized(step)):
        if magnitudes is None:
            branches.append(_named(step, name, 0.0, place))
        else:
            choices = [_signed(step, name, magnitude, signed, place) for magnitude in magnitudes]
            branches.append([("choose", {"branches": choices})])
    return [("choose", {"branches": branches})]


def _auto_augment(step: Any, place: Place) -> list[Node]:
    space = {name: (magnitudes, signed) for name, magnitudes, signed in _space(step, 10, place.sized(step))}
    policies = step._policies if is_v2(step) else step.policies
    branches: list[list[Node]] = []
    chances: list[float] = []
    for policy in policies:
        alternatives: list[Node] = []
        for name, p, index in policy:
            magnitudes, signed = space[name]
            magnitude = None if magnitudes is None or index is None else magnitudes[index]
            chances.append(float(p))
            if is_v2(step):
                inner = _signed(step, name, magnitude, signed, place)
                chance = {"p": float(p), "comparison": "less_or_equal", "branches": [inner]}
                alternatives.append(("chance", chance))
            else:
                amount = 0.0 if magnitude is None else magnitude
                branches.append(_named(step, name, -amount if signed else amount, place))
                branches.append(_named(step, name, amount, place))
        if is_v2(step):
            branches.append(alternatives)
    if is_v2(step):
        return [("choose", {"branches": branches})]
    return [("auto_augment_v1", {"branches": branches, "chances": chances})]


def _space(step: Any, bins: int, size: tuple[int, int]) -> list[tuple[str, list[float] | None, bool]]:
    """List a policy's choices: name, magnitudes and whether these get a random sign."""
    choices: list[tuple[str, Any, bool]]
    if is_v2(step):
        choices = [(name, made(bins, *size), signed) for name, (made, signed) in step._AUGMENTATION_SPACE.items()]
    else:
        arguments = (bins,) if type(step).__name__ == "TrivialAugmentWide" else (bins, size)
        choices = [(name, *entry) for name, entry in step._augmentation_space(*arguments).items()]
    return [
        (name, None if magnitudes is None or magnitudes.ndim == 0 else [float(m) for m in magnitudes], signed)
        for name, magnitudes, signed in choices
    ]


def _signed(step: Any, name: str, magnitude: float | None, signed: bool, place: Place) -> list[Node]:
    if magnitude is None:
        return _named(step, name, 0.0, place)
    positive = _named(step, name, magnitude, place)
    if not signed:
        return positive
    negative = _named(step, name, magnitude * -1.0, place)
    if is_v2(step):
        return [("chance", {"p": 0.5, "comparison": "less_or_equal", "branches": [negative, positive]})]
    return [("choose", {"branches": [positive, negative]})]


_FACTORS: Final = {"Brightness": "brightness", "Color": "saturation", "Contrast": "contrast", "Sharpness": "sharpness"}
_PLAIN: Final = {"AutoContrast": "autocontrast", "Equalize": "equalize", "Invert": "invert"}


_named_nodes: Final[dict[tuple[Any, ...], list[Node]]] = {}


def _named(step: Any, name: str, magnitude: float, place: Place) -> list[Node]:
    """Read one of the operations that torchvision's policies name.

    Raises:
        Refused: The installed torchvision does something else by that name.
    """
    key = type(step), name, magnitude, step.interpolation, repr(step.fill), place.sized(step)
    if key not in _named_nodes:
        _named_nodes[key] = _nodes_of(step, name, magnitude, place)
    return _named_nodes[key]


def _nodes_of(step: Any, name: str, magnitude: float, place: Place) -> list[Node]:
    if name in _PLAIN:
        node: Node = (_PLAIN[name], {})
    elif name in _FACTORS:
        node = _FACTORS[name], {"value": 1.0 + magnitude}
    elif name == "Posterize":
        node = "posterize", {"value": _parameter("posterize", int(magnitude))}
    elif name == "Solarize":
        node = "solarize", {"value": solarize_threshold(255.0 * magnitude if is_v2(step) else magnitude)}
    else:
        recorder = _Recorder(*place.sized(step))
        apply_named(step, recorder.image, name, magnitude)
        return recorder.nodes(step)
    if not is_reference(node, lambda image: apply_named(step, image, name, magnitude)):
        raise Refused(f"{name_of(step)}'s {name} is something else in torchvision than the native core knows")
    return [node]


def apply_named(step: Any, image: Any, name: str, magnitude: float) -> Any:
    """Apply an operation that torchvision's policies name, as torchvision does."""
    if is_v2(step):
        return step._apply_image_or_video_transform(image, name, magnitude, step.interpolation, step._fill)
    from torchvision.transforms import autoaugment

    return autoaugment._apply_op(image, name, magnitude, step.interpolation, step.fill)


class _Recorder:
    """An image of Pillow's that notes how it would be transformed, with torchvision's own arguments."""

    def __init__(self, height: int, width: int) -> None:
        self.image = cast("Any", Image.new("RGB", (width, height)))
        self.image.transform = self._transform
        self.image.transpose = self._transpose
        self._made: list[tuple[Any, ...]] = []

    def _transform(self, *arguments: Any, **rest: Any) -> Any:
        self._made.append(("transform", arguments, rest))
        return self.image

    def _transpose(self, method: Any) -> Any:
        self._made.append(("transpose", method))
        return self.image

    def nodes(self, step: Any) -> list[Node]:
        """Return what was noted."""
        return [node for made in self._made for node in self._node(step, *made)]

    def _node(self, step: Any, what: str, arguments: Any, rest: Any = None) -> list[Node]:
        if what == "transpose":
            turns = Image.Transpose.ROTATE_90, Image.Transpose.ROTATE_180, Image.Transpose.ROTATE_270
            return [(f"rotate_{90 * (turns.index(arguments) + 1)}", {})]
        size, method, matrix, resample = arguments
        plain = size == self.image.size and len(matrix) == 6 and rest.keys() <= {"fillcolor"}
        if not plain or method != Image.Transform.AFFINE or resample not in SAMPLINGS:
            raise Refused(f"{name_of(step)} transforms images in a way that is not supported natively")
        fields = {
            "matrix": tuple(float(number) for number in matrix),
            "sampling": SAMPLINGS[resample],
            "fill": pillow_fill(step, rest.get("fillcolor")),
        }
        return [("affine", fields)]


OPS: Final[dict[str, Op]] = {
    "RandomResizedCrop": Op(_random_resized_crop, True, True, _INTEGERS),
    "Resize": Op(_resize, False, True, _INTEGERS),
    "CenterCrop": Op(_center_crop, False, True, _MOVES),
    "RandomCrop": Op(_random_crop, True, True, _MOVES),
    "RandomHorizontalFlip": Op(_flip("horizontal_flip"), True, True, _MOVES),
    "RandomVerticalFlip": Op(_flip("vertical_flip"), True, True, _MOVES),
    "Pad": Op(_pad, False, False, _MOVES),
    "RGB": Op(_rgb, False, True, _MOVES),
    "ToRGB": Op(_to_rgb, False, True, _MOVES),
    "Grayscale": Op(_grayscale, False, False, _INTEGERS),
    "ColorJitter": Op(_color_jitter, True, False, _FLOATS),
    "RandomGrayscale": Op(_chance("grayscale", "less"), True, False, _INTEGERS),
    "RandomInvert": Op(_chance("invert", "less_as_double"), True, False, _INTEGERS),
    "RandomPosterize": Op(_chance("posterize", "less_as_double", "bits"), True, False, _INTEGERS),
    "RandomSolarize": Op(_chance("solarize", "less_as_double", "threshold"), True, False, _INTEGERS),
    "RandomAutocontrast": Op(_chance("autocontrast", "less_as_double"), True, False, _INTEGERS),
    "RandomEqualize": Op(_chance("equalize", "less_as_double"), True, False, _INTEGERS),
    "RandomAdjustSharpness": Op(_chance("sharpness", "less_as_double", "sharpness_factor"), True, False, _FLOATS),
    "RandomRotation": Op(random_rotation, True, False, _DOUBLES),
    "RandomAffine": Op(random_affine, True, False, _DOUBLES),
    "RandomPerspective": Op(random_perspective, True, False, _COEFFICIENTS),
    "GaussianBlur": Op(gaussian_blur, True, False, "none: it is approximate"),
    "RandomApply": Op(random_apply, True, False, _INNER),
    "RandomOrder": Op(random_order, True, False, _INNER),
    "RandomChoice": Op(random_choice, True, False, _INNER),
    "RandAugment": Op(_rand_augment, True, False, _FLOATS),
    "TrivialAugmentWide": Op(_trivial_augment, True, False, _FLOATS),
    "AutoAugment": Op(_auto_augment, True, False, _FLOATS),
}
"""By the name of torchvision's class, v1 and v2, or of :class:`~fastload.pipeline.code.wrappers.ToRGB`."""


_FLIPS: Final = ("RandomHorizontalFlip", "RandomVerticalFlip")
_CROPS: Final = ("RandomCrop", "CenterCrop", "RandomResizedCrop", "Resize", "Pad", "Grayscale", "RGB", "ToRGB")
_TURNS: Final = ("RandomRotation", "RandomAffine", "RandomPerspective", "RandomApply", "RandomOrder", "RandomChoice")
ON_GRAY: Final = frozenset((*_FLIPS, *_CROPS, *_TURNS))
"""Ops that do the same to a gray image as to each channel of an RGB image."""


TIMMS_OPS: Final[dict[str, Op]] = {
    "RandomResizedCropAndInterpolation": Op(resized_crop, True, False, _INTEGERS),
    "ResizeKeepRatio": Op(resize_keep_ratio, True, False, _INTEGERS),
    "RandomCropOrPad": Op(crop_or_pad, True, False, _MOVES),
    "CenterCropOrPad": Op(crop_or_pad, False, False, _MOVES),
    "RandAugment": Op(rand_augment, True, False, _FLOATS),
    "AutoAugment": Op(auto_augment, True, False, _FLOATS),
}
"""By the name of timm's class."""
