"""Test ``python -m benchmarks epochs``: what it measures, and its table."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from benchmarks.__main__ import main as run_benchmark
from benchmarks.epochs import Epochs
from benchmarks.tables import shown


class Slow:
    """Three batches, after these seconds each."""

    def __init__(self, *seconds: float) -> None:
        self.seconds = seconds

    def __iter__(self) -> Any:
        for number, seconds in enumerate(self.seconds):
            time.sleep(seconds)
            yield number


def test_the_start_is_the_first_batchs_and_the_longest_wait_any_batchs() -> None:
    epochs = Epochs(lambda: Slow(0.02, 0.1, 0.0), copies=True)
    assert 0.02 <= epochs.start_s() < 0.1 <= epochs.longest_s
    assert epochs.longest_s < 0.2


@pytest.mark.slow
def test_the_command_writes_every_figure(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_benchmark(["epochs", "--quick", "--augment", "--json", str(tmp_path / "epochs.json")]) == 0
    record = json.loads((tmp_path / "epochs.json").read_text())
    assert len(record["loaders"]) == 8
    for one in record["loaders"].values():
        assert 0 < one["first_start_s"] <= one["longest_wait_s"] < 60
        assert len(one["start_s"]["values"]) == 1
    text = shown("epochs", record)
    assert text.count(" ms |") == 3 * 8
    assert "2 threads or workers, with RandAugment" in text
    assert "fastload, own dataset, persistent:" in capsys.readouterr().out
