"""Compare the core's resize with Pillow's: equal outputs, then microseconds per image, one thread.

Run from the repository's root: ``python scripts/time_resize.py``. The core's sources are compiled with g++.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import numpy as np
import PIL
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import native_shim

CASES = [  # (source width, height), (out width, height), filter
    ((355, 292), (224, 224), "bilinear"),
    ((300, 370), (224, 224), "bilinear"),
    ((160, 140), (224, 224), "bilinear"),
    ((500, 400), (224, 224), "bilinear"),
    ((500, 400), (224, 224), "bicubic"),
    ((500, 400), (224, 224), "lanczos"),
    ((500, 400), (320, 256), "bilinear"),
    ((500, 400), (224, 224), "nearest"),
    ((1600, 1200), (224, 224), "bilinear"),
    ((4000, 3000), (224, 224), "bilinear"),
    ((4000, 3000), (224, 224), "bicubic"),
]


def pillow_us(image: Image.Image, out_size: tuple[int, int], resample: Image.Resampling, repeats: int) -> float:
    """Median microseconds of Image.resize."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        image.resize(out_size, resample)
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def main() -> None:
    """Print one line per case."""
    pillow_13 = int(PIL.__version__.split(".")[0]) >= 13
    simd_fork = ".post" in PIL.__version__  # Pillow-SIMD: its 16-bit weights give other pixels than Pillow's
    lib = native_shim.library()
    levels = native_shim.simd_levels()
    write = sys.stdout.write
    write(f"Pillow {PIL.__version__}, microseconds per image (in brackets: prepare alone); H, V: the first pass\n")
    write(f"{'case':42}{'Pillow':>9}" + "".join(f"{level:>16}" for level in levels) + f"{'streamed':>12}\n")
    for size, out_size, resample in CASES:
        pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
        image = Image.fromarray(pixels)
        vertical_first = bool(lib.shim_pass_order(int(pillow_13), *size, *out_size))
        repeats = max(15, min(300, 40_000_000 // (size[0] * size[1])))
        line = f"{size[0]}x{size[1]} to {out_size[0]}x{out_size[1]} {resample} {'V' if vertical_first else 'H'}"
        line = f"{line:42}{pillow_us(image, out_size, native_shim.FILTERS[resample][1], repeats):9.0f}"
        expected = np.asarray(image.resize(out_size, native_shim.FILTERS[resample][1]))
        for level in levels:
            lib.shim_set_simd(native_shim.SIMD_LEVELS[level])
            job = native_shim.Resize(size, out_size, resample=resample, vertical_first=vertical_first)
            if not simd_fork and not np.array_equal(job(pixels), expected):
                raise RuntimeError(f"{line}: not Pillow's pixels ({level})")
            total, prepare = job.time_us(pixels, repeats=repeats)
            line += f"{total:9.1f} [{prepare:4.1f}]"
        write(line + f"{job.time_us(pixels, stream=True, repeats=repeats)[0]:12.1f}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
