"""JPEG files of the kinds that a GPU decodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image

from fastload import _core

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
"""Arguments for Pillow; the last makes a progressive file, whose coefficients threads decode."""


def noise(height: int, width: int, seed: int) -> Image.Image:
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    levels = [127 + 90 * np.sin(x / 9 + y / 31 + c) + 25 * rng.standard_normal((height, width)) for c in range(3)]
    return Image.fromarray(np.stack(levels, -1).clip(0, 255).astype(np.uint8))


# Places in StagedImage, bytes.
OWNER, OUT_WIDTH, OUT_HEIGHT, OUT = 24, 92, 96, 120
QUANTIZATION = 152  # of the first component
INTERVAL_COUNT = 556  # of files whose points are to be found
VALUES, SCAN_COUNT, ROW_ENDS, PLANES = 0, 564, 600, 616  # of progressive files


def staged_number(memory: torch.Tensor, image: int, place: int) -> int:
    """Return one of the numbers that were staged of an image."""
    at = image * _core.Staging.bytes_per_image + place
    return int(memory[at : at + 4].view(torch.int32))
