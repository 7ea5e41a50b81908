"""Programs that gain nothing, paired turns of them, and their intervals."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks import overhead
from benchmarks.__main__ import main as run_benchmark
from benchmarks.overhead import Made, Program, compare, programs


def test_intervals_are_those_of_the_logarithms_of_paired_ratios(monkeypatch):
    ratios = iter([1.0, 2.0, 8.0])  # the first turns warm up

    def epoch(loader_class, program, samples):
        return (1.0, 1.0) if loader_class is overhead.FastLoader else (ratio := next(ratios), 1 / ratio)

    monkeypatch.setattr(overhead, "epoch", epoch)
    found = compare(Program(lambda count: Made(float, count), 8, 4, 0), 8, 2)
    assert found["processor"]["mean"] == pytest.approx(4.0)
    half = overhead.STANDARD_ERRORS * math.log(2.0)  # of ln 2 and ln 8: standard deviation ln 4 / sqrt 2
    assert found["processor"]["high"] == pytest.approx(4.0 * math.exp(half))
    assert found["clock"]["low"] == pytest.approx(1 / found["processor"]["high"])


def test_other_batches_are_an_error():
    calls = iter(range(100))
    with pytest.raises(ValueError, match="the batches must be torch's"):
        compare(Program(lambda count: Made(lambda index: next(calls), count), 8, 4, 0), 8, 2)


def test_the_command_writes_every_program(tmp_path, monkeypatch):
    monkeypatch.setattr(overhead, "epoch", lambda *_: (1.0, 1.0))
    monkeypatch.setattr(overhead, "programs", lambda: dict(list(programs().items())[-1:]))
    assert run_benchmark(["overhead", "--quick", "--json", str(tmp_path / "overhead.json")]) == 0
    (found,) = json.loads((tmp_path / "overhead.json").read_text())["programs"].values()
    assert found["clock"] == {"low": 1.0, "mean": 1.0, "high": 1.0}
