from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("skimage")

from fastload.bench.photos import PhotoSet, write_photos

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="tests of a checkout")


def train(data: Path, epochs: int) -> list[tuple[float, float]]:
    """Run the script; return loss and top-1 per epoch."""
    arguments = [str(data), "--model", "resnet18", "--epochs", str(epochs), "--batch-size", "8", "--image-size", "48"]
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "train_imagenet.py"), *arguments, "--workers", "1", "--lr", "0.1"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # tiny tensors: threads would only get in each other's way
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("engine ")  # the plan
    found = re.findall(r"epoch (\d): loss ([\d.]+), top-1 ([\d.]+)%, [\d,]+ images/s", done.stdout)
    assert [int(epoch) for epoch, *_ in found] == list(range(1, epochs + 1))
    return [(float(loss), float(accuracy)) for _, loss, accuracy in found]


def test_training_script_learns_at_a_small_size(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", PhotoSet(count=32, classes=2, edge_px=64))
    epochs = train(tmp_path / "photos", epochs=3)
    assert epochs[-1][0] < epochs[0][0]
    assert epochs[-1][1] > 60


def test_training_script_takes_a_folder_with_train_and_val(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos" / "train", PhotoSet(count=8, classes=2, edge_px=64))
    write_photos(tmp_path / "photos" / "val", PhotoSet(count=2, classes=2, edge_px=64, seed=1))
    ((_, accuracy),) = train(tmp_path / "photos", epochs=1)
    assert accuracy in (0, 50, 100)  # two images to validate on
