"""Check at run time which resizes of uint8 tensors match the installed torchvision.

These resizes are torch's, not Pillow's. On x86 with AVX2 torch resizes bytes with 16-bit weights, as the core does;
elsewhere, and in its first transforms, torchvision converts to float, which rounds differently. Only what gives the
same bits on this machine is supported natively.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.functional import interpolate
from torchvision.transforms import InterpolationMode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

TENSOR_FILTERS = {"bilinear": "torch_bilinear", "bicubic": "torch_bicubic", "lanczos": "torch_lanczos"}
"""Pillow's names of interpolations, and the core's names for the same on tensors."""

FLOAT_FILTERS = {
    "bilinear": ("fma4_bilinear", "fma_bilinear", "float_bilinear"),
    "bicubic": ("fma4_bicubic", "fma_bicubic", "float_bicubic"),
}
"""By interpolation, the core's names for the same in float: torch's compiler decides how products are rounded."""

# (height, width) of source and target: both sides shrink, by little and by much; both grow; one of each; one side only;
# the lowest and the highest precision of the weights. Each source is a crop of a larger image, as transforms make it.
_RESIZES = (
    ((300, 243), (64, 61)),
    ((97, 64), (31, 40)),
    ((21, 17), (50, 44)),
    ((60, 150), (90, 33)),
    ((64, 48), (64, 31)),
    ((40, 50), (31, 50)),
    ((700, 5), (3, 40)),
    ((1, 9), (7, 4)),
)


def tensor_filters() -> frozenset[str]:
    """Values of :data:`TENSOR_FILTERS` that give the installed torchvision's bits.

    Thread-safe, without a lock that a fork may leave held.
    """
    return _compared(torch.backends.cpu.get_cpu_capability())


@lru_cache(maxsize=4)
def _compared(capability: str) -> frozenset[str]:
    return frozenset(core for name, core in TENSOR_FILTERS.items() if _resizes_alike(name, core))


def float_filters() -> Mapping[str, str]:
    """By interpolation, what resizes uint8 tensors as the installed torchvision's first transforms do.

    Thread-safe, without a lock that a fork may leave held.
    """
    return _compared_in_float(torch.backends.cpu.get_cpu_capability())


@lru_cache(maxsize=4)
def _compared_in_float(capability: str) -> Mapping[str, str]:
    alike = {
        mode: [core for core in cores if _resizes_alike_in_float(mode, core)] for mode, cores in FLOAT_FILTERS.items()
    }
    return {mode: cores[0] for mode, cores in alike.items() if cores}


_SHRINKS = (6, 10, 12, 14)
"""How many times smaller images become whose pixels are halves then. Their weights are not exact."""


def _halves(shrinks: int) -> NDArray[np.uint8]:
    """Make an image whose rows are resized to halves, but for what is rounded.

    About the centre of each output pixel, levels to the left and right have an odd sum. So what is rounded before
    decides which level it becomes.
    """
    between = np.random.default_rng(shrinks).integers(0, 256, (16, shrinks, 3), dtype=np.uint8)
    rows = np.tile(np.concatenate([between, 255 - between[:, ::-1]], axis=1), (1, 8, 1))
    return rows[:, shrinks // 2 : -shrinks // 2]


def _resizes_alike_in_float(mode: str, core: str) -> bool:
    cases = [(whole[2:-1, 1:-4], size) for whole, size in _sources()]
    for shrinks in _SHRINKS:
        rows = _halves(shrinks)
        cases += [(rows, (16, 15)), (rows.swapaxes(0, 1), (15, 16))]
    return all(_gives(pixels, size, core, _resized_in_float(pixels, size, mode)) for pixels, size in cases)


def _resized_in_float(pixels: NDArray[np.uint8], size: tuple[int, int], mode: str) -> torch.Tensor:
    """Resize as torchvision's first transforms do, ``(3, H, W)``."""
    tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None].to(torch.float32)
    made = interpolate(tensor, size=list(size), mode=mode, align_corners=False, antialias=True)
    return made.clamp(0, 255).round().to(torch.uint8)[0]


def _sources() -> Iterator[tuple[NDArray[np.uint8], tuple[int, int]]]:
    """Make images with margins, of which crops are resized, and the new sizes."""
    rng = np.random.default_rng(0)
    for (height, width), size in _RESIZES:
        yield rng.integers(0, 256, (height + 3, width + 5, 3), dtype=np.uint8), size


def _gives(pixels: NDArray[np.uint8], size: tuple[int, int], core: str, expected: torch.Tensor) -> bool:
    """Whether the core makes the tensor ``(3, H, W)`` that was expected."""
    from fastload import _core

    out = np.empty((*size, 3), np.uint8)
    _core.resize(np.ascontiguousarray(pixels), out, core)
    return np.array_equal(out, expected.permute(1, 2, 0).numpy())


def _resizes_alike(name: str, core: str) -> bool:
    from torchvision.transforms.v2 import functional  # here, because the import takes 0.1 s

    for whole, size in _sources():
        tensor = torch.from_numpy(whole).permute(2, 0, 1)[:, 2:-1, 1:-4]
        try:
            expected = functional.resize(tensor, list(size), InterpolationMode(name), antialias=True)
        except (ValueError, NotImplementedError):  # an older torchvision has no Lanczos for tensors
            return False
        if not _gives(whole[2:-1, 1:-4], size, core, expected):
            return False
    return True
