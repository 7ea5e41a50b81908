"""JPEG files of the kinds that a GPU decodes, and one that it does not."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

KINDS: list[dict[str, Any]] = [
    {"quality": 90},
    {"quality": 75, "subsampling": 0},
    {"quality": 60, "subsampling": 1},
    {"quality": 100, "subsampling": 0},
    {"quality": 95, "restart_marker_blocks": 5},
    {"quality": 80, "restart_marker_rows": 1},
    {"quality": 30, "optimize": True},
    {"quality": 90, "progressive": True},
]
"""Arguments for Pillow; the last makes a progressive file."""


def noise(height: int, width: int, seed: int) -> Image.Image:
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    levels = [127 + 90 * np.sin(x / 9 + y / 31 + c) + 25 * rng.standard_normal((height, width)) for c in range(3)]
    return Image.fromarray(np.stack(levels, -1).clip(0, 255).astype(np.uint8))
