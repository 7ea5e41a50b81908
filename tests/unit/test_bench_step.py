"""Test ``python -m benchmarks step``: what is timed, and that answers are kept."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optional
import pytest
import torch

from benchmarks import step
from benchmarks.__main__ import main as run_benchmark
from benchmarks.commands import BENCHMARKS
from benchmarks.step import compare_feeds, instant_batches, time_each_next, time_next
from fastload import FastLoader
from fastload.bench.photos import PhotoSet, write_photos
from fastload.measurement.clock import HostClock
from fastload.measurement.record import Spread

optional.needed("skimage", "rich")

CPU = torch.device("cpu")
TINY = BENCHMARKS["step"].parse("step", ["--batch-size", "2", "--steps", "3", "--repeats", "2", "--calls", "4"])


@pytest.fixture(autouse=True)
def small_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "SIDE_PX", 8)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("data") / "photos", PhotoSet(count=40, classes=2, edge_px=64)).path


def test_feeds_take_turns_and_train_on_the_same_batches() -> None:
    expected = [float(images.sum()) for images, _ in instant_batches(2, pinned=False)]
    seen: list[float] = []

    def train(images: torch.Tensor, labels: torch.Tensor) -> None:
        seen.append(float(images.sum()))

    result = compare_feeds(TINY, CPU, train, HostClock(), pinned=False)
    assert list(result) == ["fed", "inline", "resident"]
    assert [len(spread.values) for spread in result.values()] == [2, 2, 2]
    per_repeat = step.WARM_STEPS + TINY.steps
    assert len(seen) == per_repeat * (1 + 3 * TINY.repeats)
    assert {round(value, 3) for value in seen} == {round(value, 3) for value in expected}


def test_only_steps_after_the_warm_up_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Timeline:
        now = 0.0

        def mark(self) -> float:
            return self.now

        def finish(self) -> None: ...

        def between_s(self, start: float, end: float) -> float:
            return end - start

    clock = Timeline()
    calls = 0

    def train(images: torch.Tensor, labels: torch.Tensor) -> None:
        nonlocal calls
        clock.now += 1.0 if calls % (step.WARM_STEPS + TINY.steps) < step.WARM_STEPS else 0.002
        calls += 1

    for spread in compare_feeds(TINY, CPU, train, clock, pinned=False).values():
        assert spread.values == pytest.approx((2, 2))


def test_next_is_timed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Time:
        now_us = 0.0

        def perf_counter_ns(self) -> float:
            return self.now_us * 1e3

        def perf_counter(self) -> float:
            self.now_us += 100  # so that a loop that waits for the clock ends
            return self.now_us / 1e6

        def sleep(self, seconds: float) -> None:
            self.now_us += seconds * 1e6

    time = Time()
    monkeypatch.setattr(step, "time", time)

    def batches() -> Any:
        cost = 1000.0  # warming up
        for number in range(100):
            time.now_us += cost if number < step.WARM_STEPS else 40.0
            yield torch.zeros(1), torch.zeros(1)

    def train(images: Any, labels: Any) -> None:
        time.now_us += 50_000

    spread = time_next(batches(), train, HostClock(), calls=10, settle_s=0.005)
    assert spread.values == pytest.approx([40.0] * 10)


def test_the_last_batch_has_been_let_go_of_before_next_is_timed() -> None:
    handed: list[weakref.ref[Any]] = []

    def batches() -> Iterator[Any]:
        for _ in range(100):
            assert [known() for known in handed] == [None] * len(handed)
            batch = torch.zeros(1), torch.zeros(1)
            handed.extend(map(weakref.ref, batch))
            yield batch
            del batch

    time_next(batches(), lambda images, labels: None, HostClock(), calls=3, settle_s=0.0)
    assert len(handed) == 2 * (step.WARM_STEPS + 3)


@pytest.mark.slow
def test_next_of_all_loaders_is_timed_without_cuda() -> None:
    times = time_each_next(TINY, CPU, lambda images, labels: None, HostClock(), pinned=False)
    assert list(times) == ["prefetch_to_device", "FastLoader", "DataLoader"]
    assert [len(spread.values) for spread in times.values()] == [4, 4, 4]


@pytest.mark.slow
def test_step_command_writes_figures(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = []

    class Planned(FastLoader[Any]):
        def __iter__(self) -> Iterator[Any]:
            engines.append((self.device, self.plan.engine))
            return super().__iter__()

    monkeypatch.setattr(step, "FastLoader", Planned)
    assert run_benchmark(["step", "--quick", "--data", str(photos), "--json", str(tmp_path / "s.json")]) == 0
    record = json.loads((tmp_path / "s.json").read_text())
    assert record["parity"]["fastloader_over_dataloader"]["median"] > 0
    assert record["parity"]["same_batches"] == 2 * record["parity"]["workers"]
    if not torch.cuda.is_available():
        assert record["skipped"] == ["fed", "next"]
    assert record["complete"] is True
    assert {engine for device, engine in engines if device == "cpu"} == {"torch"}


def test_a_run_that_is_cut_off_keeps_its_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []

    def interrupt(data: object, **sizes: object) -> None:
        kept.append(json.loads((tmp_path / "s.json").read_text()))
        raise KeyboardInterrupt

    def each_next(*given: object) -> dict[str, Spread]:
        kept.append(json.loads((tmp_path / "s.json").read_text()))
        return {"FastLoader": Spread.of([2.0])}

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(step, "environment", dict)
    monkeypatch.setattr(step, "TrainingStep", lambda *given, **options: None)
    monkeypatch.setattr(step, "CudaClock", HostClock)
    feeds = dict.fromkeys(("fed", "inline", "resident"), Spread.of([1.0, 1.0]))
    monkeypatch.setattr(step, "compare_feeds", lambda *given: feeds)
    monkeypatch.setattr(step, "time_each_next", each_next)
    monkeypatch.setattr(step, "compare_loaders", interrupt)
    assert run_benchmark(["step", "--quick", "--json", str(tmp_path / "s.json")]) == 130
    fed, both = kept
    assert fed["fed_over_resident"]["median"] == fed["inline_over_resident"]["median"] == 1
    assert "next_us" not in fed
    assert both["next_us"]["FastLoader"]["median"] == 2
    assert not fed["complete"]
    assert not both["complete"]
    assert not torch.backends.cudnn.benchmark
