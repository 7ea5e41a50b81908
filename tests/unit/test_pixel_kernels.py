"""Pixels of random and absurd coefficients are libjpeg-turbo's at every level of SIMD."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import native_shim
import pytest

CSRC = native_shim.CSRC
SOURCES = native_shim.core_files(
    *("base/simd_level.cpp", "resample/*.cpp", "resample/float/*.cpp", "jpeg/entropy/huffman.cpp"),
    *("jpeg/pixels/*.cpp", "jpeg/region_pixels.cpp", "tests/pixels.cpp"),
)
FLAGS = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", f"-I{CSRC}"]


def run(command: list[str], **environment: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("pixels") / "pixels")
    run(["g++", *FLAGS, "-O1", *map(str, SOURCES), "-ljpeg", "-o", path])
    return path


@pytest.mark.slow
@pytest.mark.parametrize("instructions", ["best", "sse2", "none"])
def test_pixels_are_those_of_libjpeg_with_any_instructions(program: str, instructions: str) -> None:
    assert "comparisons of levels" in run([program, "2000"], **{f"JSIMD_FORCE{instructions.upper()}": "1"})


@pytest.mark.skipif(
    shutil.which("aarch64-linux-gnu-g++") is None or shutil.which("qemu-aarch64") is None,
    reason="needs g++-aarch64-linux-gnu and qemu-user",
)
@pytest.mark.slow
def test_neon_agrees_under_emulation(tmp_path: Path) -> None:
    program = str(tmp_path / "pixels")
    run(["aarch64-linux-gnu-g++", *FLAGS, "-O2", "-static", *map(str, SOURCES), "-o", program])
    assert "best level neon" in run(["qemu-aarch64", program, "600"])
