from __future__ import annotations

import itertools
import json
import multiprocessing
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import optional
import pytest
import torch
from torch.utils.data import DataLoader

from fastload import FastLoader
from fastload.bench import _data, _rungs, ladder
from fastload.bench._charts import draw_ladder
from fastload.bench._data import EndlessDraws
from fastload.bench._rungs import (
    PREFETCH_FACTOR,
    WARM_STEPS,
    Rung,
    StepFeed,
    measure,
    rungs,
    summary,
    worker_counts,
)
from fastload.bench._steps import TrainingStep, run_steps, whole_bursts
from fastload.bench._trace import GpuActivity
from fastload.bench.ladder import Ladder, climb
from fastload.bench.photos import PhotoSet, write_photos
from fastload.commands import cli
from fastload.measurement.clock import HostClock

optional.needed("skimage", "matplotlib", "rich")
pytestmark = pytest.mark.usefixtures("fonts_are_open")

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("data") / "photos", PhotoSet(count=16, classes=2, edge_px=64)).path


class Timeline:
    """A clock that stands still except where the loop under test spends time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.finished = True

    def mark(self) -> float:
        self.finished = False
        return self.now

    def finish(self) -> None:
        self.finished = True

    def between_s(self, start: float, end: float) -> float:
        assert self.finished, "times are known only after finish()"
        return end - start


class ScriptedFeed:
    """Each batch takes ``wait_s`` to arrive and ``copy_s`` to copy."""

    def __init__(self, clock: Timeline, wait_s: float, copy_s: float) -> None:
        self.clock, self.wait_s, self.copy_s = clock, wait_s, copy_s
        self.asked = 0
        self.batches = self

    def __next__(self) -> Any:
        self.asked += 1
        self.clock.now += self.wait_s
        return torch.zeros(1), torch.zeros(1)

    def move(self, images: Any, labels: Any) -> Any:
        self.clock.now += self.copy_s
        return images, labels

    def lay_out(self, images: Any) -> Any:
        return images

    def settle(self) -> None:
        """As many batches as two workers prefetch."""
        for _ in range(4):
            next(self)


def test_measure_divides_the_time_into_waiting_copying_and_training() -> None:
    clock = Timeline()
    feed = ScriptedFeed(clock, wait_s=0.003, copy_s=0.001)

    def train(images: Any, labels: Any) -> None:
        clock.now += 0.006

    rung = Rung(number=1, name="x", workers=2)
    turns = []
    for wait_s in (0.003, 0.013):
        feed.wait_s = wait_s
        turns.append(measure(rung, feed, train, clock, 50, 4))  # type: ignore[arg-type]
    result = summary(rung, turns, trained=True)
    assert result["ms_per_step"]["values"] == pytest.approx((10, 20))
    assert result["images_per_s"]["values"] == pytest.approx((5000, 2500))
    assert result["wait_share"] == pytest.approx(16 / 30)
    assert result["copy_share"] == pytest.approx(2 / 30)
    assert result["gpu_busy_share"] is None
    alone = summary(rung, turns, trained=False)
    assert (alone["wait_share"], alone["copy_share"]) == (None, None)


def test_measure_leaves_the_warm_up_out() -> None:
    clock = Timeline()
    feed = ScriptedFeed(clock, wait_s=0, copy_s=0)
    calls = 0

    def train(images: Any, labels: Any) -> None:
        nonlocal calls
        calls += 1
        clock.now += 1.0 if calls <= WARM_STEPS else 0.01

    rung = Rung(number=1, name="x", workers=1)
    turn = measure(rung, feed, train, clock, 1, 3)  # type: ignore[arg-type]
    assert turn.times.seconds == pytest.approx(0.03)


def test_what_is_traced_is_warmed_up_again_and_as_long_as_a_turn() -> None:
    """While the profiler starts, workers run ahead, so that their batches come in bursts."""
    clock = Timeline()
    feed = ScriptedFeed(clock, wait_s=1, copy_s=0)
    asked = []

    def trace(warm_up: Any, advance: Any) -> GpuActivity:
        asked.append(feed.asked)
        warm_up()
        asked.append(feed.asked)
        advance()
        asked.append(feed.asked)
        return GpuActivity(0.5, 10, 1.0)

    rung = Rung(number=1, name="x", workers=2)
    turn = measure(rung, feed, None, clock, 1, 3, trace)  # type: ignore[arg-type]
    warm = 4 + WARM_STEPS
    assert asked == [warm + 4, 2 * warm + 4, 2 * warm + 8]
    assert turn.gpu == GpuActivity(0.5, 10, 1.0)
    assert turn.times.seconds == 4
    plain = measure(rung, feed, None, clock, 1, 4)  # type: ignore[arg-type]
    assert summary(rung, [plain, turn], trained=False)["gpu_busy_share"] == 0.5


def test_a_loader_that_is_nearly_quick_enough_is_measured_without_what_it_had_ready() -> None:
    """28 ready batches once lasted for two turns of 28 steps, which looked GPU-bound."""

    class Workers(ScriptedFeed):
        """Make a batch in 12 ms, 28 of them ahead; the step takes 10 ms."""

        made, made_at = 28.0, 0.0

        def __next__(self) -> Any:
            self.made += self.clock.now / 0.012 - self.made_at
            self.made_at = self.clock.now / 0.012
            self.made = min(self.made, 28.0)
            if self.made < 1:
                self.clock.now += (1 - self.made) * 0.012
                self.made_at, self.made = self.clock.now / 0.012, 1.0
            self.made -= 1
            return torch.zeros(1), torch.zeros(1)

        settle = StepFeed.settle

    clock = Timeline()
    feed: Any = Workers(clock, 0, 0)
    feed._rung = rung = Rung(number=5, name="x", workers=14)
    feed._device = feed._loader = None

    def train(images: Any, labels: Any) -> None:
        clock.now += 0.010

    turn = measure(rung, feed, train, clock, 1, 28)
    assert turn.times.seconds / turn.steps == pytest.approx(0.012, rel=0.01)


def test_turns_hold_whole_bursts() -> None:
    for workers in range(1, 33):
        steps = whole_bursts(30, workers)
        assert 30 <= steps < 30 + workers
        assert steps % workers == 0


def test_slots_are_there_before_the_clock_starts(photos: Path) -> None:
    """They are made while the first batches come."""
    rung = rungs(2)[6]
    feed = StepFeed(rung, _rungs_data(photos)[0], [0, 1, 2], batch_size=1, device=CPU)
    feed.close()
    taken = 0

    def batches() -> Any:
        nonlocal taken
        while True:
            taken += 1
            yield None

    feed.batches = batches()
    feed._device = torch.device("cuda")
    feed._loader = SimpleNamespace(stats=lambda: SimpleNamespace(slots=8 if taken >= 50 else 0))  # type: ignore[assignment]
    feed.settle()
    assert taken == 50 + rung.workers * PREFETCH_FACTOR


def test_worker_counts_grow_with_the_cores_and_never_exceed_them() -> None:
    assert [worker_counts(cores) for cores in (1, 2, 4, 8, 16)] == [
        (1, 1, 1),
        (1, 2, 2),
        (2, 3, 4),
        (2, 4, 7),
        (2, 8, 14),
    ]
    for cores in range(1, 257):
        few, more, most = worker_counts(cores)
        assert 1 <= few <= more <= most <= min(cores, 32)
        if cores >= 4:
            assert few < more < most


def test_each_rung_changes_one_thing() -> None:
    climbed = rungs(16)
    assert [rung.number for rung in climbed] == [1, 2, 3, 4, 5, 6, 7, 8, 0]
    assert [rung.workers for rung in climbed] == [2, 8, 8, 14, 14, 14, 14, 14, 0]
    properties = ("workers", "channels_last", "pinned", "side_stream", "slots", "native")
    for lower, upper in itertools.pairwise(climbed[:8]):
        changed = [name for name in properties if getattr(lower, name) != getattr(upper, name)]
        assert len(changed) == 1, (lower.name, upper.name)
    assert [name for name in properties if getattr(climbed[7], name)] == list(properties)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
def test_loaders_of_the_rungs_are_what_their_names_say(photos: Path) -> None:
    dataset, _ = _rungs_data(photos)
    for rung in rungs(2):
        feed = StepFeed(rung, dataset, [0, 1, 2], batch_size=2, device=CPU)
        try:
            images, labels = feed.move(*next(feed.batches))
            assert images.shape == (2, 3, 224, 224)
            assert labels.shape == (2,)
            assert feed.lay_out(images).is_contiguous(memory_format=torch.channels_last) == rung.channels_last
        finally:
            feed.close()


def _rungs_data(photos: Path) -> Any:
    return ladder.open_images(photos, quick=True)


def test_rungs_1_to_5_are_torchs_loader_and_the_others_ours(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, dict[str, Any]]] = []

    def record(kind: type) -> Any:
        def make(dataset: Any, **arguments: Any) -> Any:
            made.append((kind.__name__, arguments))
            return kind(dataset, **{**arguments, "pin_memory": False})

        return make

    monkeypatch.setattr(_rungs, "DataLoader", record(DataLoader))
    monkeypatch.setattr(_rungs, "FastLoader", record(FastLoader))
    dataset, _ = _rungs_data(photos)
    for rung in rungs(2)[:8]:
        StepFeed(rung, dataset, [0], batch_size=1, device=CPU).close()
    assert [name for name, _ in made] == ["DataLoader"] * 5 + ["FastLoader"] * 3
    assert [arguments["pin_memory"] for _, arguments in made] == [False] * 4 + [True] * 4
    assert [arguments["num_workers"] for _, arguments in made] == [1, 2, 2, 2, 2, 2, 2, 2]
    assert [arguments["device"] for _, arguments in made[5:]] == [CPU] * 3


@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
def test_rungs_6_to_8_are_the_engines_that_their_names_say(photos: Path) -> None:
    dataset, _ = _rungs_data(photos)
    plans = [
        FastLoader(num_workers=1, pin_memory=True, device=CPU, **_rungs.engine_of(rung, dataset)).plan
        for rung in rungs(2)[5:8]
    ]
    assert [plan.engine for plan in plans] == ["torch", "torch", "native"]
    assert "engine='torch'" in str(plans[0])
    assert "engine='torch'" not in str(plans[1])
    assert "transform Unchanged is your own" in " ".join(str(plans[1]).split())


class TinyStep:
    """A training step that notes what it was given."""

    seen: ClassVar[list[tuple[bool, bool]]] = []

    def __init__(self, model: str, device: torch.device, *, channels_last: bool, classes: int) -> None:
        assert classes == 1000
        self.channels_last = channels_last

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        TinyStep.seen.append((self.channels_last, images.is_contiguous(memory_format=torch.channels_last)))


@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
@pytest.mark.thorough
def test_whole_climb_without_cuda(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "TrainingStep", TinyStep)
    TinyStep.seen = []
    told: list[tuple[int, bool]] = []

    def on_rung(rung: dict[str, Any]) -> None:
        told.append((rung["number"], "images_per_s" in rung))
        assert multiprocessing.active_children() == []  # no rung's workers take cores from another rung

    kept: list[tuple[int, bool]] = []
    climbing = Ladder(data=photos, batch_size=2, steps=2, repeats=2, cores=2, device=CPU, train=True)
    record = climb(climbing, on_rung, lambda so_far: kept.append((len(so_far["rungs"]), so_far["complete"])))
    assert kept == [(min(count, 9), False) for count in range(1, 19)]
    assert record["complete"] is True
    numbers = (*range(1, 9), 0)
    assert told == [(number, done) for number in numbers for done in (False, True)] + [(n, True) for n in numbers]
    steps = [WARM_STEPS + whole_bursts(2, max(1, rung.workers)) for rung in rungs(2)]
    once = [(False, False)] * sum(steps[:2]) + [(True, True)] * sum(steps[2:])
    assert TinyStep.seen == 2 * once
    assert {len(rung["images_per_s"]["values"]) for rung in record["rungs"]} == {2}
    for rung in record["rungs"]:
        assert rung["images_per_s"]["median"] > 0
        assert 0 <= rung["wait_share"] <= 1
        assert rung["gpu_busy_share"] is None
    assert record["skipped"] == []
    json.dumps(record, allow_nan=False)
    draw_ladder(record, tmp_path / "ladder.png")
    assert (tmp_path / "ladder.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_without_a_gpu_only_worker_counts_are_measured_and_the_rest_is_named(photos: Path, tmp_path: Path) -> None:
    record = climb(Ladder(data=photos, batch_size=2, steps=2, repeats=2, cores=2, device=CPU, train=False), id)
    assert [rung["name"] for rung in record["rungs"]] == ["few workers", "more workers", "native engine"]
    assert [(skip["name"], skip["reason"]) for skip in record["skipped"]] == [
        ("channels_last", "needs a GPU"),
        ("more workers again", "no more cores"),
        ("pinned memory", "needs a GPU"),
        ("side stream", "needs a GPU"),
        ("pinned slots", "needs a GPU"),
        ("ceiling", "needs a GPU"),
    ]
    assert {rung["wait_share"] for rung in record["rungs"]} == {None}
    draw_ladder(record, tmp_path / "ladder.svg")
    shown = re.findall(r"<!-- +(.+?) -->", (tmp_path / "ladder.svg").read_text())
    assert shown.count("needs a GPU") == 5
    rates = [f"{rung['images_per_s']['median']:,.0f}" for rung in record["rungs"]]
    assert {*rates, "images/s", "slowest to fastest climb", "ceiling of this run"} <= set(shown)
    assert not any("reference" in text for text in shown)


@pytest.mark.slow
def test_command_writes_figures_and_chart(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, chart = tmp_path / "a" / "l.json", tmp_path / "l.png"
    assert run("--quick", "--data", photos, "--json", kept, "--plot", chart) == 0
    record = json.loads(kept.read_text())
    assert record["benchmark"] == "ladder"
    assert record["dataset"]["images"] == 16
    assert chart.stat().st_size > 10_000


def run(*given: object) -> int:
    return cli.main(["bench", "ladder", *map(str, given)])


def test_wrong_arguments_are_refused_with_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_data, "shared_memory_bytes", lambda: (64_000_000, 60_000_000))
    for argument, message in (
        (["--batch-size", "256"], "0.1 GB are free; give the container more"),
        (["--model", "resnet5"], "try resnet50"),
        (["--data", tmp_path / "none"], "--data must be a folder"),
    ):
        assert run(*argument) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"nothing", b"", None])
def test_an_image_that_cannot_be_read_ends_the_climb_with_its_name(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    folder = Path(shutil.copytree(photos, tmp_path / "images"))
    broken = sorted(folder.glob("*/*.jpg"))[3]
    broken.write_bytes(broken.read_bytes()[:-200] if content is None else content)
    assert run("--quick", "--data", folder, "--batch-size", 4, "--repeats", 1) == 2
    said = capsys.readouterr().err
    assert f"fastload bench ladder: error: --data must hold images that Pillow reads, but {broken} is none: " in said
    assert "Traceback" not in said


def test_without_a_gpu_it_says_that_it_is_skipped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(ladder, "show", lambda *_: pytest.fail("nothing is measured"))
    assert run() == 0
    assert "bench ladder: skipped, torch finds no CUDA device here" in " ".join(capsys.readouterr().out.split())


def test_draws_never_end_an_epoch_and_visit_everything() -> None:
    draws = list(EndlessDraws([10, 11, 12], 8, seed=3))
    assert len(draws) == len(EndlessDraws([10, 11, 12], 8)) == 8
    assert sorted(draws[:3]) == sorted(draws[3:6]) == [10, 11, 12]
    assert draws == list(EndlessDraws([10, 11, 12], 8, seed=3))
    with pytest.raises(ValueError, match="at least 1 image"):
        EndlessDraws([], 8)


def test_training_step_trains_in_the_asked_for_memory_format() -> None:
    step = TrainingStep("squeezenet1_1", CPU, channels_last=True)
    weights = {name: weight.detach().clone() for name, weight in step._model.named_parameters()}
    images, labels = torch.randn(2, 3, 64, 64), torch.tensor([0, 1])
    marks = run_steps(iter([(images, labels)]), step, HostClock(), 1)
    assert len(marks) == 1
    assert any(not torch.equal(weights[name], weight) for name, weight in step._model.named_parameters())
    convolutions = [module for module in step._model.modules() if isinstance(module, torch.nn.Conv2d)]
    assert all(module.weight.is_contiguous(memory_format=torch.channels_last) for module in convolutions)
    assert torch.is_autocast_enabled("cpu") is False
