"""Check at run time that the core's steps give Pillow's and torchvision's bits."""

from __future__ import annotations

import threading
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from PIL import Image, ImageFilter
from torchvision.transforms import functional

from fastload import _core

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fastload.pipeline.ops import Node

_SHIFTS: Final = (0, 5, 94, 127, 129, 223, 255)
_lock: Final = threading.Lock()


def _pad(image: Image.Image, *, margins: tuple[int, int, int, int], mode: str, fill: Any) -> Image.Image:
    top, left, bottom, right = margins
    result: Image.Image = functional.pad(image, [left, top, right, bottom], fill, mode)
    return result


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
    "gaussian_blur": lambda image, radii: image.filter(ImageFilter.GaussianBlur(radii)),
    "pad": _pad,
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
            if kind == "color_jitter":
                names = ("brightness", "contrast", "saturation")
                pairs = zip(names, fields["jitters"], strict=False)
                steps = [(name, value) for name, pair in pairs if pair is not None for value in (*pair, sum(pair) / 2)]
                if fields["jitters"][3] is not None:
                    steps += [("hue", value) for value in _SHIFTS]
                for name, value in steps:
                    if not _same_as_reference(name, (("value", value),)):
                        return name
            elif kind in REFERENCES and not _same_as_reference(kind, tuple(sorted(fields.items()))):
                return kind
    return None


@cache
def _probe() -> Image.Image:
    """Noise, gradients and flat areas, 61 pixels high and 47 wide."""
    rows, columns = np.mgrid[0:61, 0:47]
    pixels = np.stack([rows * 4, columns * 5, rows + columns], axis=-1).astype(np.uint8)
    pixels[20:40] = np.random.default_rng(0).integers(0, 256, (20, 47, 3))
    pixels[50:, :20] = (200, 200, 200)
    return Image.fromarray(pixels)


@cache
def _same_as_reference(kind: str, fields: tuple[tuple[str, Any], ...]) -> bool:
    wanted = np.asarray(REFERENCES[kind](_probe(), **dict(fields)))
    got = np.empty_like(wanted)
    fits = _core.apply_steps([(kind, dict(fields))], np.array(_probe()), got)
    return fits and bool(np.array_equal(got, wanted))
