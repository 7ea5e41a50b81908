"""Check at run time that the core's steps give Pillow's and torchvision's bits."""

from __future__ import annotations

import sys
import threading
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from PIL import Image, ImageFilter
from torchvision.transforms import functional

from fastload import _core

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fastload.pipeline.nodes import Node

_SHIFTS: Final = (0, 5, 94, 127, 129, 223, 255)
_lock: Final = threading.Lock()


def _pad(image: Image.Image, *, margins: tuple[int, int, int, int], mode: str, fill: Any) -> Image.Image:
    top, left, bottom, right = margins
    result: Image.Image = functional.pad(image, [left, top, right, bottom], fill, mode)
    return result


def _crop(image: Image.Image, *, margins: tuple[int, int, int, int]) -> Image.Image:
    top, left, bottom, right = margins
    return image.crop((left, top, image.width - right, image.height - bottom))


def _rotation(image: Image.Image, *, jitters: Any, center: Any, sampling: str, fill: Any) -> Image.Image:
    mode = functional.InterpolationMode(sampling)
    result: Image.Image = functional.rotate(image, jitters[0][0], mode, False, center, fill)
    return result


def _affine_by(module: str) -> Callable[..., Any]:
    def affine(
        image: Image.Image, *, jitters: Any, center: Any, sampling: str, fill: Any, translate: None
    ) -> Image.Image:
        angle, scale, x, y = (
            otherwise if pair is None else pair[0]
            for pair, otherwise in zip(jitters, (0.0, 1.0, 0.0, 0.0), strict=True)
        )
        mode = functional.InterpolationMode(sampling)
        result: Image.Image = sys.modules[module].affine(image, angle, [0, 0], scale, [x, y], mode, fill, center)
        return result

    return affine


def _by_core(kind: str) -> Callable[..., Image.Image]:
    def function(image: Image.Image, **fields: Any) -> Image.Image:
        levels = np.array(image)
        _core.apply_steps([(kind, fields)], levels, levels)
        return Image.fromarray(levels)

    return function


def _tensor_of(image: Image.Image) -> torch.Tensor:
    """An image's pixels, ``(3, H, W)``, with ``pil_to_tensor``'s strides, never deferred."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def _on_tensor(name: str) -> Callable[..., np.ndarray[Any, Any]]:
    def function(image: Image.Image | torch.Tensor, **fields: Any) -> np.ndarray[Any, Any]:
        tensor = _tensor_of(image) if isinstance(image, Image.Image) else image
        v2 = sys.modules["torchvision.transforms.v2.functional"]
        return np.asarray(getattr(v2, name)(tensor, *fields.values()).permute(1, 2, 0))

    return function


def _contrast_of_tensor(
    image: Image.Image | torch.Tensor, value: float, *, planar: bool = False, twice: int = 0
) -> np.ndarray[Any, Any]:
    tensor = _tensor_of(image) if isinstance(image, Image.Image) else image
    return _on_tensor("adjust_contrast")(tensor.contiguous() if planar else tensor, value=value)


REFERENCES: Final[dict[str, Callable[..., Any]]] = {
    "brightness": lambda image, value: functional.adjust_brightness(image, value),
    "contrast": lambda image, value: functional.adjust_contrast(image, value),
    "saturation": lambda image, value: functional.adjust_saturation(image, value),
    "sharpness": lambda image, value: functional.adjust_sharpness(image, value),
    "grayscale": lambda image: functional.to_grayscale(image, 3),
    "invert": functional.invert,
    "posterize": lambda image, value: functional.posterize(image, int(value)),
    "solarize": lambda image, value: functional.solarize(image, value),
    "autocontrast": functional.autocontrast,
    "equalize": functional.equalize,
    "hue": lambda image, value: functional.adjust_hue(image, (value if value < 128 else value - 256) / 255),
    "flip_horizontal": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "flip_vertical": lambda image: image.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
    "rotate_90": lambda image: image.transpose(Image.Transpose.ROTATE_90),
    "rotate_180": lambda image: image.transpose(Image.Transpose.ROTATE_180),
    "rotate_270": lambda image: image.transpose(Image.Transpose.ROTATE_270),
    "affine": lambda image, matrix, sampling, fill: image.transform(
        image.size, Image.Transform.AFFINE, matrix, Image.Resampling[sampling.upper()], fillcolor=fill
    ),
    "perspective": lambda image, coefficients, sampling, fill: image.transform(
        image.size, Image.Transform.PERSPECTIVE, coefficients, Image.Resampling[sampling.upper()], fillcolor=fill
    ),
    "gaussian_blur": lambda image, radii: image.filter(ImageFilter.GaussianBlur(radii)),
    "convolve": _by_core(
        "convolve"
    ),  # the core's own, as torch's depends on its settings; lazy/blur.py compares the two
    "pad": _pad,
    "crop": _crop,
    "torch_gather": _by_core("torch_gather"),  # of places that torch computes
    "torch_brightness": _on_tensor("adjust_brightness"),
    "torch_contrast": _contrast_of_tensor,
    "torch_saturation": _on_tensor("adjust_saturation"),
    "torch_sharpness": _on_tensor("adjust_sharpness"),
    "torch_hue": _on_tensor("adjust_hue"),
    "torch_permute": _on_tensor("permute_channels"),
    "torch_grayscale": lambda image: _on_tensor("rgb_to_grayscale")(image, channels=3),
    "torch_invert": _on_tensor("invert"),
    "torch_posterize": lambda image, value: _on_tensor("posterize")(image, bits=int(value)),
    "torch_solarize": _on_tensor("solarize"),
    "torch_autocontrast": _on_tensor("autocontrast"),
    "torch_equalize": _on_tensor("equalize"),
    "random_rotation": _rotation,
    "random_affine_v1": _affine_by("torchvision.transforms.functional"),
    "random_affine_v2": _affine_by("torchvision.transforms.v2.functional"),
}
"""What Pillow or torchvision does for each kind of step."""


def leaves(nodes: Iterable[Node]) -> Iterator[Node]:
    """Go through the nodes, and those in branches instead of what draws among these."""
    for kind, fields in nodes:
        if "branches" in fields:
            for branch in fields["branches"]:
                yield from leaves(branch)
        else:
            yield kind, fields


def differing_step(nodes: Iterable[Node]) -> str | None:
    """Compare each step with Pillow's or torchvision's, once per process. Thread-safe.

    Returns:
        The kind of a step whose bits differ, or ``None``.
    """
    with _lock:
        for kind, fields in leaves(nodes):
            if kind in ("color_jitter", "torch_color_jitter"):
                names = [kind.replace("color_jitter", name) for name in ("brightness", "contrast", "saturation")]
                pairs = zip(names, fields["jitters"], strict=False)
                steps = [(name, value) for name, pair in pairs if pair is not None for value in (*pair, sum(pair) / 2)]
                if fields["jitters"][3] is not None:
                    steps += [("hue", value) for value in _SHIFTS]
                for name, value in steps:
                    if not _same_as_reference(name, (("value", value),)):
                        return name
            elif kind.startswith(("random_rotation", "random_affine")):
                if not all(_same_as_reference(kind, tuple(sorted(one.items()))) for one in _narrowed(fields)):
                    return kind
                if not all(_same_as_reference(turn, ()) for turn in ("rotate_90", "rotate_180", "rotate_270")):
                    return kind
            elif kind == "random_perspective":
                if not all(map(_same_perspective, (fields["sampling"],) * 4, (fields["fill"],) * 4, range(4))):
                    return kind
            elif kind == "random_gaussian":
                if not all(
                    map(
                        _is_near_reference,
                        (fields["height"],) * 3,
                        (fields["width"],) * 3,
                        _spread(*fields["jitters"][0]),
                    )
                ):
                    return kind
            elif kind in REFERENCES and not _same_as_reference(kind, tuple(sorted(fields.items()))):
                return kind
    return None


def is_reference(node: Node, function: Callable[[Image.Image], Image.Image]) -> bool:
    """Whether a function does what a step's reference does, tried on one image."""
    kind, fields = node
    wanted, got = REFERENCES[kind](probe(), **fields), function(probe())
    return bool(np.array_equal(np.asarray(got), np.asarray(wanted)))


def _narrowed(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Narrow the ranges to their ends and to a value between them."""
    ranges = fields["jitters"]
    for share in (0.0, 0.3, 1.0):
        values = [None if pair is None else pair[0] + share * (pair[1] - pair[0]) for pair in ranges]
        jitters = tuple(None if value is None else (float(np.float32(value)),) * 2 for value in values)
        yield {**fields, "jitters": jitters, **({"translate": None} if "translate" in fields else {})}


def _spread(low: float, high: float) -> tuple[float, ...]:
    return tuple(float(np.float32(value)) for value in (low, (low + high) / 2, high))


@cache
def _is_near_reference(height: int, width: int, sigma: float) -> bool:
    """Whether a blur is at most one level off."""
    image = probe().resize((max(47, width), max(61, height)))
    wanted = np.asarray(functional.gaussian_blur(image, [width, height], [sigma, sigma]))
    got = np.empty_like(wanted)
    fields = {"height": height, "width": width, "jitters": [(sigma, sigma), None, None, None]}
    fits = _core.apply_steps([("random_gaussian", fields)], np.array(image), got)
    return fits and int(np.abs(got.astype(int) - wanted).max()) <= 1


@cache
def _same_perspective(sampling: str, fill: Any, seed: int) -> bool:
    """Compare an image that is distorted so much, and the coefficients of more."""
    draws = np.random.default_rng(seed)
    for size in ((224, 224), (500, 375), (32, 48), probe().size):
        for _ in range(4):
            starts = [[x, y] for x, y in ((0, 0), (size[0] - 1, 0), (size[0] - 1, size[1] - 1), (0, size[1] - 1))]
            moved = draws.integers(0, [side // 2 for side in size], (4, 2)).tolist()
            ends = [[abs(at - by) for at, by in zip(*pair, strict=True)] for pair in zip(starts, moved, strict=True)]
            wanted = functional._get_perspective_coeffs(starts, ends)
            if _core.perspective_coefficients([*size, *(at for end in ends for at in end)]) not in (None, wanted):
                return False
    how = (("coefficients", tuple(wanted)), ("sampling", sampling), ("fill", fill))
    return _same_as_reference("perspective", how)


@cache
def probe() -> Image.Image:
    """An image to try steps on: noise, gradients, flat areas; 61 x 47 pixels."""
    rows, columns = np.mgrid[0:61, 0:47]
    pixels = np.stack([rows * 4, columns * 5, rows + columns], axis=-1).astype(np.uint8)
    pixels[20:40] = np.random.default_rng(0).integers(0, 256, (20, 47, 3))
    pixels[50:, :20] = (200, 200, 200)
    return Image.fromarray(pixels)


@cache
def _same_as_reference(kind: str, fields: tuple[tuple[str, Any], ...]) -> bool:
    sizes = [(47, 61)]
    if kind == "torch_contrast":  # whose bits are torch's only where 32 divides how many there are
        sizes = [(32, 61)]
    elif kind == "gaussian_blur":  # Pillow-SIMD's bits are others in images of one row or column
        sizes += [(47, 1), (1, 61)]
    levels = np.asarray(probe())  # crop() asks for the user's MAX_IMAGE_PIXELS
    return all(_same_for(Image.fromarray(levels[:height, :width]), kind, fields) for width, height in sizes)


def _same_for(image: Image.Image, kind: str, fields: tuple[tuple[str, Any], ...]) -> bool:
    wanted = np.asarray(REFERENCES[kind](image, **dict(fields)))
    got = np.empty_like(wanted, order="C")
    fits = _core.apply_steps([(kind, dict(fields))], np.array(image), got)
    if kind.startswith("torch_"):  # whatever the tensor's layout
        again = REFERENCES[kind](_tensor_of(image).contiguous(), **dict(fields))
        fits = fits and bool(np.array_equal(got, again))
    return fits and bool(np.array_equal(got, wanted))
