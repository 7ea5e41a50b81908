"""Crops of varied JPEG files: the core returns Pillow's pixels."""

from __future__ import annotations

import io
import random

import numpy as np
from PIL import Image

from fastload.pipeline.nodes import FILTERS
from fastload.vision import DecodeError, JpegIndex, decode

from .outcome import Outcome, Setting
from .varied import varied

TITLE = "crops of varied files against Pillow"
FILES, CROPS = 5, 20  # of a trial, and of each file
COUNT, EACH, OUTSIDE, PROGRAM = 1_000_000, FILES * CROPS, False, 500
LIMIT_S = 60.0


def trial(number: int, setting: Setting) -> Outcome:
    """Crop and resize several files, each several times with one index."""
    rng = random.Random(f"crops {setting.seed} {number}")
    outcome = Outcome(done=EACH)
    for _ in range(FILES):
        data, index = varied(rng), JpegIndex(1 << 20)
        image = Image.open(io.BytesIO(data))
        mode = image.mode
        image = image.convert("RGB")
        for visit in range(CROPS):
            top, left = rng.randrange(image.height), rng.randrange(image.width)
            crop = top, left, rng.randint(1, image.height - top), rng.randint(1, image.width - left)
            size = rng.choice([None, (rng.randint(1, 96), rng.randint(1, 96))])
            interpolation = rng.choice(list(FILTERS))
            try:
                pixels = decode(data, crop, size, interpolation=interpolation, index=index)
            except DecodeError:
                outcome.counts["refused"] += 1
                if mode != "CMYK":
                    outcome.failures.append(f"refused ({mode}, {crop}, {size}): {data.hex()}")
                continue
            expected = image.crop((left, top, left + crop[3], top + crop[2]))
            if size is not None:
                expected = expected.resize(size[::-1], FILTERS[interpolation])
            if not np.array_equal(pixels, np.asarray(expected)):
                what = f"{crop}, {size}, {interpolation}, visit {visit}"
                outcome.failures.append(f"other pixels than Pillow's ({what}): {data.hex()}")
        outcome.counts["indexed"] += index.totals().found
    return outcome
