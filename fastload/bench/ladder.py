"""The classic climb of a ResNet-50 training run, measured on this machine: ``fastload bench ladder``.

Eight rungs, one on top of the last, and the ceiling that no loader can pass: the same step with its data on the GPU
already. Per rung:

* images/s and ms per step: time between CUDA events at the ends of steps, median of as many climbs as there are
  repeats, each from the lowest rung to the ceiling;
* waiting: how long the GPU had finished a step and the loop had no next batch (CUDA events; see ``CudaClock``);
* GPU busy: how long at least one kernel ran, from the profiler's record of kernels (see ``profiled``), measured by
  itself and not derived from the waiting;
* host to device: bytes copied per second of copying, from the profiler's record of copies. Events around the copy would
  say the same on rungs 1 to 5, but from rung 6 on the copy is on FastLoader's own stream.

Without a GPU it is skipped; with ``--quick``, which shows that it works, the rungs that change the number of workers,
and the native engine, run the loader alone, and the others are skipped by name.
"""

from __future__ import annotations

import importlib
import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fastload._machine import usable_cpus
from fastload.bench._charts import draw_ladder
from fastload.bench._data import check_data, check_shared_memory, image_pool, open_images, readable
from fastload.bench._rungs import Rung, StepFeed, Turn, measure, rungs, summary, worker_counts
from fastload.bench._steps import TrainingStep, check_model, fixed_shapes
from fastload.bench._trace import profiled, summarize
from fastload.measurement.clock import clock_for
from fastload.measurement.console import console
from fastload.measurement.record import Spread, environment, save

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from fastload.bench._trace import GpuActivity

_GPU_COLUMNS = ("ms/step", "waiting", "busy", "GB/s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """Settings of a climb."""

    data: Path | None = None  # folder with one folder of images per class; None writes photographs
    model: str = "resnet50"  # name that torchvision.models.get_model knows
    batch_size: int = 256  # images per step
    steps: int = 30  # least number of training steps of a rung in one climb
    repeats: int = 5  # number of climbs: every rung is measured once in each, so that a passing load meets them all
    quick: bool = False  # whether few images are written
    cores: int = field(default_factory=usable_cpus)  # number of cores that worker counts adapt to
    device: torch.device = field(default_factory=lambda: torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    train: bool = field(default_factory=torch.cuda.is_available)  # whether to train; otherwise the loader runs alone

    def __post_init__(self) -> None:
        check_data(self.data)
        check_model(self.model)
        check_shared_memory(max(worker_counts(self.cores)), self.batch_size)


def climb(
    ladder: Ladder,
    on_rung: Callable[[dict[str, Any]], object],
    keep: Callable[[dict[str, Any]], object] = lambda record: None,
) -> dict[str, Any]:
    """Measure every rung, the lowest first, in as many climbs as there are repeats.

    Args:
        ladder: Settings.
        on_rung: Function that gets a rung's figures so far: before its first turn only what the rung is, then after
            each turn its JSON object. A rung that is skipped has no call.
        keep: Function that gets the record so far after each turn.

    Returns:
        The record for the JSON file.

    Raises:
        UsageError: An image cannot be read.
    """
    dataset, described = open_images(ladder.data, ladder.quick)
    pool = image_pool(dataset)
    clock = clock_for(ladder.device)
    trainers: dict[bool, TrainingStep] = {}
    turns: dict[int, list[Turn]] = {}
    results: dict[int, dict[str, Any]] = {}
    climbed: list[Rung] = []
    skipped: list[dict[str, Any]] = []
    for rung in rungs(ladder.cores):
        if not ladder.train and (reason := _why_not_alone(rung, climbed)):
            skipped.append({"number": rung.number, "name": rung.name, "reason": reason})
        else:
            climbed.append(rung)
    sizes = {name: getattr(ladder, name) for name in ("model", "batch_size", "steps", "repeats")}
    record: dict[str, Any] = {
        "benchmark": "ladder",
        "complete": False,
        "environment": environment(),
        "dataset": described,
        "parameters": {**sizes, "autocast": "bfloat16", "optimizer": "SGD, momentum 0.9"},
        "trained": ladder.train,
        "rungs": [],
        "skipped": skipped,
    }

    def trainer(rung: Rung) -> TrainingStep | None:
        if ladder.train and rung.channels_last not in trainers:
            trainers.clear()  # one model on the GPU at a time
            classes = max(1000, len(dataset.classes))
            made = TrainingStep(ladder.model, ladder.device, channels_last=rung.channels_last, classes=classes)
            trainers[rung.channels_last] = made
        return trainers.get(rung.channels_last)

    def recorded(warm_up: Callable[[], object], advance: Callable[[], object]) -> GpuActivity:
        return summarize(*profiled(advance, warm_up))

    with fixed_shapes(), readable(dataset, pool):
        for number, rung in itertools.product(range(ladder.repeats), climbed):
            if not number:
                on_rung({"number": rung.number, "name": rung.name, "workers": rung.workers})
            train = trainer(rung)
            trace = recorded if ladder.device.type == "cuda" and number == ladder.repeats - 1 else None
            feed = StepFeed(rung, dataset, pool, ladder.batch_size, ladder.device if ladder.train else None)
            try:
                turn = measure(rung, feed, train, clock, ladder.batch_size, ladder.steps, trace)
            finally:
                feed.close()
            turns.setdefault(rung.number, []).append(turn)
            results[rung.number] = summary(rung, turns[rung.number], trained=ladder.train)
            on_rung(results[rung.number])
            record["rungs"] = list(results.values())
            keep(record)  # a climb takes minutes: one that is cut off has measured something
    record["complete"] = True
    return record


def _why_not_alone(rung: Rung, lower: list[Rung]) -> str | None:
    if not rung.loader_alone:
        return "needs a GPU"
    if any(other.workers == rung.workers and other.native == rung.native for other in lower):
        return "no more cores"
    return None


def show(ladder: Ladder, keep: Callable[[dict[str, Any]], object] = lambda record: None) -> dict[str, Any]:
    """Run the ladder and update a table on the terminal; return the record.

    ``keep`` gets the record after each turn, too.
    """
    from rich.box import SIMPLE_HEAD
    from rich.live import Live
    from rich.table import Table

    rows: dict[int, dict[str, Any]] = {}
    screen = console()

    def table() -> Table:
        grown = Table(title=_title(ladder), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        grown.add_column("rung", no_wrap=True)
        for name in ("workers", "images/s", "±", *(_GPU_COLUMNS if ladder.train else ())):
            grown.add_column(name, justify="right", no_wrap=True)
        for rung in rows.values():
            grown.add_row(f"{rung['number'] or '-'} {rung['name']}", str(rung["workers"] or "-"), *_cells(rung))
        return grown

    def on_rung(rung: dict[str, Any]) -> None:
        rows[rung["number"]] = rung
        if screen.is_terminal:
            live.update(table(), refresh=True)
        elif "images_per_s" in rung:
            screen.print(f"{rung['name']}: {rung['images_per_s']['values'][-1]:,.0f} images/s")

    if screen.is_terminal:
        with Live(table(), console=screen, auto_refresh=False) as live:
            record = climb(ladder, on_rung, keep)
    else:
        record = climb(ladder, on_rung, keep)
        screen.print(table())
    for skip in record["skipped"]:
        screen.print(f"skipped: {skip['name']} ({skip['reason']})")
    return record


def _title(ladder: Ladder) -> str:
    if not ladder.train:
        return f"no GPU here: the loader alone, batch {ladder.batch_size}, {ladder.cores} cores"
    name = torch.cuda.get_device_name() if ladder.device.type == "cuda" else str(ladder.device)
    return f"{ladder.model} on {name}, bf16, batch {ladder.batch_size}, {ladder.cores} cores"


def _cells(rung: dict[str, Any]) -> list[str]:
    """A rung's figures; the last four are of training alone."""
    if "images_per_s" not in rung:
        return ["..."]
    rates = Spread.of(rung["images_per_s"]["values"])
    cells = [f"{rates.median:,.0f}", rates.plus_minus]
    if rung["wait_share"] is None:
        return cells
    shares = ["-" if rung[name] is None else f"{rung[name]:.1%}" for name in ("wait_share", "gpu_busy_share")]
    speed = rung["h2d_gb_per_s"] if rung["workers"] else None
    return [*cells, f"{rung['ms_per_step']['median']:.1f}", *shares, "-" if speed is None else f"{speed:.1f}"]


def main(args: argparse.Namespace) -> int:
    """Run ``fastload bench ladder``."""
    if args.plot:
        importlib.import_module("matplotlib")  # if it is missing, let that be known before minutes of measuring
    sizes = {name: getattr(args, name) for name in ("data", "model", "batch_size", "steps", "repeats", "quick")}
    ladder = Ladder(**sizes)
    if not ladder.train and not args.quick:
        console().print("bench ladder: skipped, torch finds no CUDA device here; --quick shows that it works")
        return 0
    record = show(ladder, lambda record: save(args.json, record))
    save(args.json, record)
    if args.plot:
        draw_ladder(record, args.plot)
        console().print(f"chart: {args.plot}")
    return 0
