"""PNG and WebP files put together wrongly have Pillow's pixels or are left to it."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest
from torture.codecs import compared, png_file, webp_file

from fastload import _core
from fastload.vision import calibrate

pytestmark = pytest.mark.skipif("WebP" not in _core.codec_versions(), reason="built without")
TRIALS = int(os.environ.get("FASTLOAD_MUTATIONS", "1500"))


@pytest.fixture(autouse=True)
def calibrated() -> None:
    assert {"PNG", "WebP (lossy)", "WebP (lossless)"} == calibrate().formats


def outcome(data: bytes) -> str:
    """Decode by the core and by Pillow; a difference fails."""
    status, failure = compared(data)
    assert failure is None, failure
    return status


@pytest.mark.slow
@pytest.mark.parametrize("make", [png_file, webp_file])
def test_files_put_together_wrongly(make) -> None:
    rng = random.Random(5)
    seen = Counter(outcome(make(rng)) for _ in range(TRIALS))
    assert min(seen["ok"], seen["corrupt"], seen["unsupported"]) > TRIALS // 50, seen


@pytest.mark.thorough
@pytest.mark.parametrize("make", [png_file, webp_file])
def test_ten_thousand_files_put_together_wrongly(make) -> None:
    rng = random.Random(6)
    seen = Counter(outcome(make(rng)) for _ in range(10_000))
    assert seen["ok"] > 1000, seen
