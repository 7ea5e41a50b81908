"""Compile the core's arithmetic into a small ctypes library, for tests and benchmarks."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"
FILTERS = {
    "nearest": (0, Image.Resampling.NEAREST),
    "box": (1, Image.Resampling.BOX),
    "bilinear": (2, Image.Resampling.BILINEAR),
    "hamming": (3, Image.Resampling.HAMMING),
    "bicubic": (4, Image.Resampling.BICUBIC),
    "lanczos": (5, Image.Resampling.LANCZOS),
}
SIMD_LEVELS = {"portable": 0, "avx2": 1, "avx512": 2, "neon": 3}


class _Job(ctypes.Structure):
    _fields_ = [
        ("width", ctypes.c_int),
        ("height", ctypes.c_int),
        ("out_width", ctypes.c_int),
        ("out_height", ctypes.c_int),
        ("whole", ctypes.c_int),
        ("box", ctypes.c_float * 4),
        ("window", ctypes.c_int * 4),
        ("flip_horizontal", ctypes.c_int),
        ("flip_vertical", ctypes.c_int),
        ("filter", ctypes.c_int),
        ("vertical_first", ctypes.c_int),
        ("channels", ctypes.c_int),
    ]


def compiled(sources: Sequence[Path], *flags: str) -> str:
    """Compile ``sources`` into a shared library, unless ``build/shims`` has it; return its path."""
    compiler = os.environ.get("FASTLOAD_SHIM_CXX", "g++").split()
    command = [*compiler, "-std=c++17", f"-I{CSRC}", *flags, "-fPIC", "-shared", *map(str, sources), "-o"]
    digest = hashlib.sha256(repr(command).encode() + subprocess.check_output([compiler[0], "--version"]))
    for path in sorted({*CSRC.rglob("*.h"), *sources}):
        digest.update(path.read_bytes())
    target = ROOT / "build" / "shims" / f"{sources[-1].stem}-{digest.hexdigest()[:16]}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            subprocess.run([*command, f"{folder}/{target.name}"], check=True)
            os.replace(f"{folder}/{target.name}", target)
    return str(target)


def compiled_text(text: str, *flags: str) -> str:
    """Compile a file of this text, as :func:`compiled` does."""
    source = ROOT / "build" / "shims" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.cpp"
    if not source.exists():
        source.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=source.parent, delete=False) as file:
            file.write(text)
        os.replace(file.name, source)
    return compiled([source], *flags)


def core_files(*patterns: str) -> list[Path]:
    """Return the core's files of these names, of which each matches some."""
    found = [sorted(CSRC.glob(pattern)) for pattern in patterns]
    assert all(found), f"csrc has no files for some of {patterns}"
    return [path for paths in found for path in paths]


@cache
def library() -> ctypes.CDLL:
    """Compile the shim, and load it once per process.

    ``FASTLOAD_SHIM_CXX`` sets the compiler and extra flags, for sanitizers: ``"g++ -g -fsanitize=address,undefined"``.
    """
    parts = core_files(
        "base/simd_level.cpp",
        "resample/*.cpp",
        "resample/float/*.cpp",
        "rng/*.cpp",
        "image/transform/*.cpp",
        "tests/shim.cpp",
    )
    lib = ctypes.CDLL(compiled(parts, "-O3", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off"))
    lib.shim_error.restype = ctypes.c_char_p
    return lib


def simd_levels() -> list[str]:
    """SIMD levels that this machine supports, portable first. Leaves the best one in use."""
    lib = library()
    best = lib.shim_simd()
    levels = [name for name, number in SIMD_LEVELS.items() if lib.shim_set_simd(number)]
    lib.shim_set_simd(best)
    return levels


@dataclass(frozen=True)
class Region:
    """A rectangle of source pixels."""

    top: int
    left: int
    height: int
    width: int


class Resize:
    """A prepared job on this thread's resampler, valid until the next one is prepared."""

    def __init__(
        self,
        size: tuple[int, int],
        out_size: tuple[int, int],
        *,
        resample: str = "bilinear",
        box: tuple[float, float, float, float] | None = None,
        window: tuple[int, int, int, int] | None = None,
        flip_horizontal: bool = False,
        flip_vertical: bool = False,
        vertical_first: bool = False,
        channels: int = 3,
    ) -> None:
        self.channels = channels
        self.window = window or (0, 0, out_size[1], out_size[0])
        self.job = _Job(
            width=size[0],
            height=size[1],
            out_width=out_size[0],
            out_height=out_size[1],
            whole=box is None,
            box=(ctypes.c_float * 4)(*(box or (0, 0, 0, 0))),
            window=(ctypes.c_int * 4)(*self.window),
            flip_horizontal=flip_horizontal,
            flip_vertical=flip_vertical,
            filter=FILTERS[resample][0],
            vertical_first=vertical_first,
            channels=channels,
        )
        region = (ctypes.c_int * 4)()
        if not library().shim_prepare(ctypes.byref(self.job), region):
            raise ValueError(library().shim_error().decode())
        self.region = Region(*region)

    def __call__(self, pixels: np.ndarray, *, margin: int = 0, stream: int | None = None) -> np.ndarray:
        """Resize ``pixels``, HxWxC uint8, passing only the needed region and a margin.

        Args:
            pixels: The whole source.
            margin: Random pixels around the region in the core's buffer.
            stream: Rows per push; None resizes the buffer in one call.
        """
        r = self.region
        height, width = r.height + 2 * margin, r.width + 2 * margin
        buffer = np.random.default_rng(0).integers(0, 256, (height, width, self.channels), np.uint8)
        buffer[margin : margin + r.height, margin : margin + r.width] = pixels[
            r.top : r.top + r.height, r.left : r.left + r.width
        ].reshape(r.height, r.width, self.channels)
        box = (ctypes.c_int * 4)(r.top - margin, r.left - margin, height, width)
        guard = 16
        row_bytes = self.window[3] * self.channels
        out = np.full((self.window[2] + 2, row_bytes + guard), 0xA5, np.uint8)
        arguments = (ctypes.c_void_p(buffer.ctypes.data), ctypes.c_ssize_t(buffer.strides[0]), box)
        target = (ctypes.c_void_p(out[1:].ctypes.data), ctypes.c_ssize_t(out.strides[0]))
        if stream is None:
            library().shim_run(*arguments, *target)
        else:
            assert library().shim_stream(*arguments, self.channels, stream, *target)
        written = out != 0xA5
        written[1:-1, :row_bytes] = False
        assert not written.any(), "wrote outside of the window"
        return out[1:-1, :row_bytes].reshape(self.window[2], self.window[3], self.channels)

    def time_us(self, pixels: np.ndarray, *, stream: bool = False, repeats: int = 200) -> tuple[float, float]:
        """Median microseconds of prepare and run together, and of prepare alone.

        ``pixels`` is the whole source.
        """
        lib = library()
        lib.shim_time.restype = ctypes.c_double
        out = np.empty((self.window[2], self.window[3], self.channels), np.uint8)
        prepare_us = ctypes.c_double()
        total = lib.shim_time(
            ctypes.byref(self.job),
            ctypes.c_void_p(pixels.ctypes.data),
            ctypes.c_ssize_t(pixels.strides[0]),
            (ctypes.c_int * 4)(0, 0, pixels.shape[0], pixels.shape[1]),
            stream,
            repeats,
            ctypes.c_void_p(out.ctypes.data),
            ctypes.c_ssize_t(out.strides[0]),
            ctypes.byref(prepare_us),
        )
        return total, prepare_us.value
