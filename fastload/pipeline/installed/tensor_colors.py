"""Check at run time which changes of colour of uint8 tensors match the installed torchvision."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch

from fastload import _core
from fastload.pipeline.installed.steps import REFERENCES, differing_step

_EXAMPLES: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    "torch_brightness": ({"value": 0.88}, {"value": 1.7}),
    "torch_contrast": ({"value": 0.6}, {"value": 1.4}),
    "torch_saturation": ({"value": 0.6}, {"value": 1.4}),
    "torch_sharpness": ({"value": 0.73}, {"value": 1.27}),
    "torch_hue": ({"value": -0.31}, {"value": 0.04}, {"value": 0.5}),
    "torch_permute": ({"order": (2, 0, 1)}, {"order": (0, 2, 1)}),
    "torch_invert": ({},),
    "torch_posterize": ({"value": 3.0}, {"value": 6.0}),
    "torch_solarize": ({"value": 128.0}, {"value": 179.0}),
    "torch_autocontrast": ({},),
    "torch_equalize": ({},),
}

TAIL: Final = 16
"""Values that torch's kernels take at once; of what is left, they may round some otherwise."""

PIXELS_MAX: Final = 2**24
"""The largest image whose contrast the core changes as torch does."""

EXACT_PIXELS: Final = 2**24 // 255
"""Below, float32 adds up all grays exactly, in any order."""


def colors_alike() -> frozenset[str]:
    """Kinds of steps that give the installed torchvision's bits; of contrast, by one thread.

    Thread-safe.
    """
    return _alike(torch.backends.cpu.get_cpu_capability())


@lru_cache(maxsize=4)
def _alike(capability: str) -> frozenset[str]:
    return frozenset(
        kind for kind, all_fields in _EXAMPLES.items() if differing_step((kind, each) for each in all_fields) is None
    )


@lru_cache(maxsize=TAIL)
def rounded_twice(rest: int) -> int | None:
    """Learn which values torch's ``add_`` rounds twice.

    It adds one value times a factor to all of them.

    Args:
        rest: How many values more than a multiple of :data:`TAIL` there are.

    Returns:
        Bit ``i`` is that of the ``i``-th value from the end. ``None`` if others are rounded twice as well.
    """
    levels, factor, mean = np.float32(151.95221), np.float32(0.33791122), np.float32(100.47123)
    once = np.float32(np.float64(mean) * np.float64(factor) + np.float64(levels))
    twice = mean * factor + levels
    with torch._C.DisableTorchFunction():
        made = torch.full((1, 1, 2 * TAIL + rest), float(levels))
        made.add_(torch.full((1, 1, 1), float(mean)), alpha=float(factor))
    values = made.flatten().numpy()[::-1]
    is_twice = values == twice
    if not np.all(is_twice | (values == once)) or is_twice[rest:].any():
        return None
    return sum(1 << int(place) for place in np.flatnonzero(is_twice))


@lru_cache(maxsize=64)
def rounds_sharpness_alike(factor: float) -> bool:
    """Whether sharpened levels are the same with one rounding and with two.

    Which of their values torch's kernels round twice depends on places and layouts.
    """
    level = np.arange(256, dtype=np.float32)
    change, share = level - level[:, None], np.float32(1.0 - factor)  # from each level to each smooth one
    once = (level[:, None] + change.astype(np.float64) * np.float64(share)).astype(np.float32)
    twice = level[:, None] + change * share
    levels = [np.clip(values, 0, 255).astype(np.uint8) for values in (once, twice)]
    return np.array_equal(levels[0], levels[1])


@lru_cache(maxsize=4)
def sums_alike(capability: str) -> bool:
    """Whether the core adds up grays as one of torch's threads does, where that rounds.

    Means are whole numbers, so that a factor of 0 tells a sum that is less from one that is not.
    """
    draw = np.random.default_rng(0)
    contrast = REFERENCES["torch_contrast"]
    for height, width in ((520, 500), (700, 401), (333, 1000), (613, 787)):
        for mean in (203, 218, 221):
            levels = draw.integers(mean - 30, mean + 31, (height, width), dtype=np.int64)
            over = int((levels - mean).sum())
            levels.reshape(-1)[: abs(over)] -= np.sign(over)
            gray = np.repeat((levels + 1).astype(np.uint8)[..., None], 3, axis=2)  # whose gray is one less
            made = np.empty_like(gray)
            _core.apply_steps([("torch_contrast", {"value": 0.0})], gray.copy(), made)
            if not np.array_equal(made, contrast(torch.from_numpy(gray).permute(2, 0, 1), value=0.0)):
                return False
    return True
