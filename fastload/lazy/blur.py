"""Replace torchvision's ``gaussian_blur`` of Pillow's images in worker processes, with its bits.

Pending pixels get a step with the kernel that the user's own call computes by torch; other images are blurred at once.

torch's ``conv2d`` adds up the products of one pixel one after the other, each with one rounding. Whether it does so for
a size of image and kernel, with this torch and CPU, is tried once per process: all sums must be the same to the bit.
"""

from __future__ import annotations

import functools
import inspect
import sys
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import torch
from PIL import Image

from fastload import _core
from fastload.pipeline.errors import Refused
from fastload.pipeline.installed.patches import is_written_in
from fastload.pipeline.installed.settings import check_modes
from fastload.pipeline.installed.steps import REFERENCES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Change: TypeAlias = Callable[[Any, str, dict[str, Any]], Image.Image | None]

TRIED_MAX: Final = 16
"""Sizes that are tried, each of which takes torch's time twice. Images of others are blurred by torch."""

_V1: Final = "torchvision.transforms."
_V2: Final = "torchvision.transforms.v2.functional._misc"
_PLACES: Final = (
    (_V1 + "functional", "gaussian_blur", _V1 + "_functional_tensor", "gaussian_blur"),
    (_V2, "_gaussian_blur_image_pil", _V2, "gaussian_blur_image"),
)
"""Module and name of each function for Pillow's images, and of that for tensors beside ``_get_gaussian_kernel2d``."""


def functions(change: Change) -> Iterator[tuple[Any, str, Any]]:
    """Find torchvision's functions that are imported and not patched: module, name, and what replaces it.

    Args:
        change: As of ``lazy.functions.install``.
    """
    for name, function, tensors, of_tensor in _PLACES:
        module, parts = sys.modules.get(name), sys.modules.get(tensors)
        original = getattr(module, function, None)
        ours = (original, getattr(parts, of_tensor, None), getattr(parts, "_get_gaussian_kernel2d", None))
        if all(is_written_in(each, name) or is_written_in(each, tensors) for each in ours):
            yield module, function, _blur(original, parts, of_tensor, change)


def _blur(original: Any, parts: Any, of_tensor: str, change: Change) -> Any:
    tried: dict[Any, bool] = {}
    names = tuple(inspect.signature(original).parameters)  # an image, kernel_size, sigma

    @functools.wraps(original)
    def gaussian_blur(*arguments: Any, **rest: Any) -> Any:
        fields = blurred = None
        given = {**dict(zip(names, arguments, strict=False)), **rest}
        if len(arguments) + len(rest) == 3 and given.keys() == set(names):
            image, kernel_size, sigma = (given[name] for name in names)
            fields = _step_fields(image, kernel_size, sigma, parts, of_tensor, tried)
        if fields is not None:
            blurred = None if _flushes() else change(image, "convolve", fields)
            blurred = REFERENCES["convolve"](image, **fields) if blurred is None else blurred
        return original(*arguments, **rest) if blurred is None else blurred

    return gaussian_blur


def _step_fields(
    image: Any, kernel_size: Any, sigma: Any, parts: Any, of_tensor: str, tried: dict[Any, bool]
) -> dict[str, Any] | None:
    """Return the fields of torch's step; ``None`` if they are not known."""
    if not isinstance(image, Image.Image) or image.mode != "RGB" or not _is_plain(kernel_size, sigma):
        return None
    (width, height), (columns, rows) = kernel_size, image.size
    if width // 2 >= columns or height // 2 >= rows or torch.is_autocast_enabled("cpu"):
        return None
    try:
        check_modes()
    except Refused:
        return None
    size, spread = [width, height], [float(value) for value in sigma]
    key = width, height, columns, rows, *_settings()
    if key not in tried:
        if len(tried) == TRIED_MAX:
            return None
        tried[key] = _is_torchs(rows, columns, size, parts, of_tensor)
    if not tried[key]:
        return None
    kernel = _kernel(size, spread, parts)
    return {"height": height, "width": width, "weights": kernel.tobytes()} if np.isfinite(kernel).all() else None


def _is_plain(kernel_size: Any, sigma: Any) -> bool:
    if not all(type(pair) in (list, tuple) and len(pair) == 2 for pair in (kernel_size, sigma)):
        return False
    odd = all(type(side) is int and side > 0 and side % 2 == 1 for side in kernel_size)
    return odd and all(type(value) is float and 0 < value < np.inf for value in sigma)


def _settings() -> tuple[Any, ...]:
    """Return what may choose another implementation of ``conv2d``."""
    mkldnn: Any = torch.backends.mkldnn
    precision = getattr(getattr(mkldnn, "conv", None), "fp32_precision", None)
    return torch.get_num_threads(), mkldnn.enabled, precision


def _flushes() -> bool:
    """Whether this thread takes the smallest numbers for 0 (``torch.set_flush_denormal``); who paints may not."""
    return sys.float_info.min / 2 == 0


def _kernel(size: list[int], sigma: list[float], parts: Any) -> NDArray[np.float32]:
    kernel = parts._get_gaussian_kernel2d(size, sigma, dtype=torch.float32, device=torch.device("cpu"))
    weights: NDArray[np.float32] = kernel.contiguous().numpy()
    return weights


def _is_torchs(rows: int, columns: int, size: list[int], parts: Any, of_tensor: str) -> bool:
    """Compare all sums of an image of noise with torch's, before rounding."""
    pixels = np.random.default_rng(0).integers(0, 256, (rows, columns, 3), dtype=np.uint8)
    blur: Callable[..., torch.Tensor] = getattr(parts, of_tensor)
    wide = [0.3 * side for side in size]
    expected = blur(torch.from_numpy(pixels).permute(2, 0, 1).float(), size, wide)
    sums = np.empty(pixels.shape, np.float32)
    _core.convolve(pixels, _kernel(size, wide, parts), sums)
    return np.array_equal(sums, expected.permute(1, 2, 0).numpy())
