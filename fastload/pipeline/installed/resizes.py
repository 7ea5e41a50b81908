"""Check at run time which resizes of uint8 tensors match the installed torchvision.

These resizes are torch's, not Pillow's. On x86 with AVX2 torch resizes bytes with 16-bit weights, as the core does;
elsewhere torchvision may convert to float, which rounds differently. Only what gives the same bits on this machine is
supported natively.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torchvision.transforms import InterpolationMode

TENSOR_FILTERS = {"bilinear": "torch_bilinear", "bicubic": "torch_bicubic", "lanczos": "torch_lanczos"}
"""Pillow's names of interpolations, and the core's names for the same on tensors."""

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


def _resizes_alike(name: str, core: str) -> bool:
    from torchvision.transforms.v2 import functional  # here, because the import takes 0.1 s

    from fastload import _core

    rng = np.random.default_rng(0)
    for (height, width), size in _RESIZES:
        whole = rng.integers(0, 256, (height + 3, width + 5, 3), dtype=np.uint8)
        crop = whole[2 : 2 + height, 1 : 1 + width]
        tensor = torch.from_numpy(whole).permute(2, 0, 1)[:, 2 : 2 + height, 1 : 1 + width]
        try:
            expected = functional.resize(tensor, list(size), InterpolationMode(name), antialias=True)
        except (ValueError, NotImplementedError):  # an older torchvision has no Lanczos for tensors
            return False
        out = np.empty((*size, 3), np.uint8)
        _core.resize(crop, out, core)
        if not np.array_equal(out, expected.permute(1, 2, 0).numpy()):
            return False
    return True
