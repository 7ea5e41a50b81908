from __future__ import annotations

import argparse
import json
import re
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optional
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from fastload import FastLoader
from fastload.bench import demo, step
from fastload.bench._compare import count_same, race
from fastload.bench.photos import PhotoSet, write_photos
from fastload.bench.step import StepSetup, compare_feeds, instant_batches, time_both_next, time_next
from fastload.commands import cli
from fastload.measurement.clock import HostClock
from fastload.measurement.record import Spread

optional.needed("skimage", "rich")

CPU = torch.device("cpu")
TINY = StepSetup(batch_size=2, steps=3, repeats=2, calls=4, side_px=8)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("data") / "photos", PhotoSet(count=40, classes=2, edge_px=64)).path


class Pairs(Dataset[Any]):
    """Random images whose every pixel is drawn anew, and labels that can be falsified."""

    def __init__(self, length: int = 10, wrong: int | None = None, dtype: torch.dtype = torch.float32) -> None:
        self.length, self.wrong, self.dtype = length, wrong, dtype

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return torch.rand(3, 4, 4).to(self.dtype), index + (index == self.wrong)


def loader(kind: type = DataLoader, **changes: Any) -> Any:
    return kind(Pairs(**changes), batch_size=4, shuffle=True, num_workers=2)


def test_all_batches_of_equal_loaders_are_counted() -> None:
    assert count_same(loader(FastLoader), loader()) == 3


def test_nan_is_the_same_as_itself() -> None:
    images = torch.full((1, 2), float("nan"))
    assert count_same([(images, torch.ones(1))], [(images.clone(), torch.ones(1))]) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ours", "message"),
    [
        ({"wrong": 7}, r"the labels of batch \d must be the same bit for bit"),
        ({"dtype": torch.float16}, r"images of batch 0 must be torch.float32 \(4, 3, 4, 4\), got torch.float16"),
        ({"length": 12}, r"images of batch 2|labels of batch 0"),
        ({"length": 3}, "labels|images|shorter"),
    ],
)
def test_a_difference_is_found_and_named(ours: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        count_same(loader(FastLoader, **ours), loader())


def test_one_bit_is_a_difference() -> None:
    images = torch.zeros(1, 2)
    with pytest.raises(ValueError, match="bit for bit"):
        count_same([(-images, torch.ones(1))], [(images, torch.ones(1))])  # type: ignore[arg-type]


def test_race_runs_every_loader_once_more_than_it_counts_and_uses_its_batches() -> None:
    epochs: list[str] = []
    used: list[int] = []

    class Named(list[int]):
        def __init__(self, name: str) -> None:
            super().__init__([1, 2])
            self.name = name

        def __iter__(self) -> Any:
            epochs.append(self.name)
            return super().__iter__()

    result = race({"a": Named("a"), "b": Named("b")}, 8, 2, {"a": used.append})  # type: ignore[dict-item]
    assert epochs == ["a", "b", "a", "b", "b", "a"]
    assert used == [1, 2] * 3
    assert [len(spread.values) for spread in result.values()] == [2, 2]


def test_feeds_take_turns_and_train_on_the_same_batches() -> None:
    expected = [float(images.sum()) for images, _ in instant_batches(TINY, pinned=False)]
    seen: list[float] = []

    def train(images: torch.Tensor, labels: torch.Tensor) -> None:
        seen.append(float(images.sum()))

    result = compare_feeds(TINY, CPU, train, HostClock(), pinned=False)
    assert list(result) == ["fed", "inline", "resident"]
    assert [len(spread.values) for spread in result.values()] == [2, 2, 2]
    per_repeat = step._WARM_STEPS + TINY.steps
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
        clock.now += 1.0 if calls % (step._WARM_STEPS + TINY.steps) < step._WARM_STEPS else 0.002
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
            time.now_us += cost if number < step._WARM_STEPS else 40.0
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
    assert len(handed) == 2 * (step._WARM_STEPS + 3)


def test_next_of_all_loaders_is_timed_without_cuda() -> None:
    times = time_both_next(TINY, CPU, lambda images, labels: None, HostClock(), pinned=False)
    assert list(times) == ["prefetch_to_device", "FastLoader", "DataLoader"]
    assert [len(spread.values) for spread in times.values()] == [4, 4, 4]


@pytest.mark.parametrize("name", ["batch_size", "steps", "repeats", "calls"])
def test_bad_setups_are_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be >= 1, got 0"):
        StepSetup(**{name: 0})


def test_step_command_writes_figures(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = []

    class Planned(FastLoader[Any]):
        def __iter__(self) -> Iterator[Any]:
            engines.append((self.device, self.plan.engine))
            return super().__iter__()

    monkeypatch.setattr(step, "FastLoader", Planned)
    parser = argparse.ArgumentParser()
    cli.BENCH["step"].add_arguments(parser)
    arguments = ["--quick", "--data", str(photos), "--json", str(tmp_path / "s.json")]
    assert step.main(parser.parse_args(arguments)) == 0
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

    def both_next(*given: object) -> dict[str, Spread]:
        kept.append(json.loads((tmp_path / "s.json").read_text()))
        return {"FastLoader": Spread.of([2.0])}

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(step, "environment", dict)
    monkeypatch.setattr(step, "TrainingStep", lambda *given, **options: None)
    monkeypatch.setattr(step, "CudaClock", HostClock)
    feeds = dict.fromkeys(("fed", "inline", "resident"), Spread.of([1.0, 1.0]))
    monkeypatch.setattr(step, "compare_feeds", lambda *given: feeds)
    monkeypatch.setattr(step, "time_both_next", both_next)
    monkeypatch.setattr(step, "compare_loaders", interrupt)
    parser = argparse.ArgumentParser()
    cli.BENCH["step"].add_arguments(parser)
    with pytest.raises(KeyboardInterrupt):
        step.main(parser.parse_args(["--quick", "--json", str(tmp_path / "s.json")]))
    fed, both = kept
    assert fed["fed_over_resident"]["median"] == fed["inline_over_resident"]["median"] == 1
    assert "next_us" not in fed
    assert both["next_us"]["FastLoader"]["median"] == 2
    assert not fed["complete"]
    assert not both["complete"]
    assert not torch.backends.cudnn.benchmark


@pytest.mark.usefixtures("fonts_are_open")
def test_demo_compares_and_times(
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    parser = argparse.ArgumentParser()
    cli.BENCH["demo"].add_arguments(parser)
    arguments = ["--quick", "--data", str(photos), "--repeats", "1", "--json", str(tmp_path / "d.json")]
    assert demo.main(parser.parse_args(arguments)) == 0
    record = json.loads((tmp_path / "d.json").read_text())
    assert record["same_batches"] == 5
    assert all(spread["median"] > 0 for spread in record["images_per_s"].values())
    shown = capsys.readouterr().out.rstrip()
    assert len(re.findall(r"(torch DataLoader|FastLoader) +[\d,]+ +– *$", shown, re.MULTILINE)) == 2  # of one repeat
    *_, picture, blank, first, _, line, loader, plan = shown.splitlines()
    assert picture == f"picture: {tmp_path / '.fastload' / 'demo.png'}"
    assert (tmp_path / ".fastload" / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert (blank, first) == ("", "In your own script:")
    pasted = "\n".join(text.strip() for text in (line, loader.replace("(dataset, ...)", "(range(4))"), plan))
    given: dict[str, object] = {}
    exec(pasted, given)
    assert given["DataLoader"] is FastLoader
    assert capsys.readouterr().out.startswith("engine torch")
    if not torch.cuda.is_available():
        assert demo.main(parser.parse_args(["--ladder"])) == 2
        assert "--ladder trains on a GPU" in capsys.readouterr().err
