"""Compares the native core with the installed torchvision's resize of uint8 tensors, which is torch's and not Pillow's.

On x86 with AVX2 torch resizes bytes with 16-bit weights, which the core does too; elsewhere torchvision may go by way
of floats, which round otherwise. So what is supported natively is what has been seen to give the same bits here.
"""

from __future__ import annotations

import threading
from functools import lru_cache

import numpy as np
import torch
from torchvision.transforms import InterpolationMode

TENSOR_FILTERS = {"bilinear": "torch_bilinear", "bicubic": "torch_bicubic", "lanczos": "torch_lanczos"}
"""Interpolations by Pillow's names, and the core's of the same kind for tensors."""

# (height, width) of source and target: both shrink, by little and by much; both grow; one of each; one side only; the
# weights' precision at its least and at its most; a crop of a larger image, as the transforms make it.
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

_LOCK = threading.Lock()


def tensor_filters() -> frozenset[str]:
    """Those values of :data:`TENSOR_FILTERS` that give the installed torchvision's bits. Thread-safe."""
    with _LOCK:
        return _compared(torch.backends.cpu.get_cpu_capability())


@lru_cache(maxsize=4)
def _compared(capability: str) -> frozenset[str]:
    return frozenset(core for name, core in TENSOR_FILTERS.items() if _resizes_alike(name, core))


def _resizes_alike(name: str, core: str) -> bool:
    from torchvision.transforms.v2 import functional  # only where the user has imported it: it takes 0.1 s

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
