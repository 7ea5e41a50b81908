"""JPEG files of all kinds that occur, more often usual ones."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
from jpeg_writer import FACTORS, write_jpeg
from PIL import Image, ImageFile

ImageFile.MAXBLOCK = 1 << 22  # or Pillow fails to write some files with options


def picture(rng: random.Random) -> Image.Image:
    """Waves and noise, of any contrast; mostly small, rarely as large as a photograph."""
    height, width = (rng.randint(1, rng.choice([16, 80, 200, 200, 400, 700])) for _ in range(2))
    draw = np.random.default_rng(rng.getrandbits(32))
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    waves = [np.sin(x / rng.uniform(2, 60) + y / rng.uniform(2, 60) + c) for c in range(3)]
    levels = np.stack(waves, -1) * rng.choice([5, 60, 127, 300]) + rng.uniform(0, 255)
    levels += rng.choice([0, 2, 20, 90]) * draw.standard_normal(levels.shape, dtype=np.float32)
    return Image.fromarray(levels.clip(0, 255).astype(np.uint8))


def varied(rng: random.Random) -> bytes:
    """Write a file of a kind that occurs, more often a usual one."""
    if rng.random() < 0.08:
        factors = FACTORS[rng.choice(list(FACTORS))]
        restart, progressive = rng.choice([0, 0, 2]), rng.random() < 0.3
        size = rng.randint(8, 90), rng.randint(8, 90)
        return write_jpeg(*size, factors, seed=rng.getrandbits(16), restart=restart, progressive=progressive)
    options: dict[str, Any] = {"quality": rng.choice([rng.randint(1, 100), rng.randint(60, 95)])}
    options["subsampling"] = rng.choice([0, 1, 2, 2])
    rare = [("optimize", True), ("restart_marker_rows", 1), ("restart_marker_blocks", rng.randint(1, 9))]
    options |= dict(rng.choices(rare, k=rng.randint(0, 2)))
    if rng.random() < 0.08:
        options["progressive"] = True
    image = picture(rng).convert(rng.choice(["RGB"] * 8 + ["L", "CMYK"]))
    out = io.BytesIO()
    image.save(out, "JPEG", **options)
    return out.getvalue()
