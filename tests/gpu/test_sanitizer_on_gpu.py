"""Test that compute-sanitizer finds nothing in the decoding kernels, whatever bits they are given."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

SANITIZER = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
PROGRAM = Path(__file__).parents[1] / "hostile_kernels.py"


@pytest.mark.timeout(400)
@pytest.mark.skipif(SANITIZER is None, reason="compute-sanitizer is not installed")
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_the_sanitizer_finds_nothing(tool: str) -> None:
    watched = [SANITIZER or "", "--tool", tool, "--error-exitcode", "9", "--report-api-errors", "no"]
    path = os.pathsep.join([str(PROGRAM.parent), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [*watched, sys.executable, str(PROGRAM)],
        capture_output=True,
        text=True,
        timeout=380,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    assert re.search(r"ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards", ran.stdout), ran.stdout[-4000:]
    refused, augmented, kept = map(int, re.findall(r"refused (\d+), augmented (\d+), kept (\d+)", ran.stdout)[0])
    assert refused > 20
    assert augmented > 30
    assert kept > 20
