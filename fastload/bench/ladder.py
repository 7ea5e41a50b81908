"""The classic climb of a ResNet-50 training run, measured on this machine: ``fastload bench ladder``.

Eight rungs, one on top of the last, and the ceiling that no loader can pass: the same step with its data on the GPU
already. Per rung:

* images/s and ms per step: time between CUDA events at the ends of steps, median of as many climbs as there are
  repeats, each from the lowest rung to the ceiling;
* waiting: how long the GPU had finished a step and the loop had no next batch (CUDA events; see ``CudaClock``);
* GPU busy: how long at least one kernel ran, from the profiler's record of kernels (see ``record_activity``), measured
  by itself and not derived from the waiting;
* host to device: bytes copied per second of copying, from the profiler's record of copies. Events around the copy would
  say the same on rungs 1 to 5, but from rung 6 on the copy is on FastLoader's own stream.

Without a GPU it is skipped; with ``--quick``, which shows that it works, the rungs that change the number of workers,
and the native engine, run the loader alone, and the others are skipped by name.
"""

from __future__ import annotations

import importlib
import itertools
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fastload._machine import usable_cpus
from fastload.bench._chart import draw
from fastload.bench._data import (
    SharedMemoryError,
    check_data,
    check_shared_memory,
    image_pool,
    open_images,
)
from fastload.bench._rungs import Length, Rung, RungResult, StepFeed, Turn, measure, rungs, worker_counts
from fastload.bench._steps import TrainingStep, check_model, fixed_shapes
from fastload.bench._trace import record_activity
from fastload.measurement.clock import CudaClock, HostClock
from fastload.measurement.console import console, refuse
from fastload.measurement.record import environment, write_json

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """What to climb.

    Attributes:
        data: Folder with one folder of images per class; ``None`` writes photographs.
        model: A name that ``torchvision.models.get_model`` knows.
        batch_size: Images per step.
        length: How long each rung is measured.
        quick: Fewer images; for tests of the benchmark itself.
        cores: Cores that worker counts adapt to.
        device: Where to train.
        train: Whether to train; otherwise the loader runs alone.
    """

    data: Path | None = None
    model: str = "resnet50"
    batch_size: int = 256
    length: Length = field(default_factory=Length)
    quick: bool = False
    cores: int = field(default_factory=usable_cpus)
    device: torch.device = field(default_factory=lambda: torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    train: bool = field(default_factory=torch.cuda.is_available)

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be >= 1, got {self.batch_size}")
        check_data(self.data)
        check_model(self.model)
        check_shared_memory(max(worker_counts(self.cores)), self.batch_size)


def climb(
    ladder: Ladder,
    on_result: Callable[[Rung, RungResult | None], None],
    keep: Callable[[dict[str, Any]], object] = lambda record: None,
) -> dict[str, Any]:
    """Measure every rung, the lowest first, in as many climbs as there are repeats.

    Args:
        ladder: What to climb.
        on_result: Called with a rung and ``None`` when it is begun for the first time, and with its result so far after
            each of its turns; a rung that is skipped gets neither call.
        keep: Called with the record so far after each turn.

    Returns:
        The record for the JSON file.
    """
    dataset, data_record = open_images(ladder.data, ladder.quick)
    pool = image_pool(dataset)
    on_gpu = ladder.device.type == "cuda"
    clock = CudaClock() if on_gpu else HostClock()
    trainers: dict[bool, TrainingStep] = {}
    turns: dict[int, list[Turn]] = {}
    results: dict[int, RungResult] = {}
    climbed: list[Rung] = []
    skipped: list[dict[str, Any]] = []
    for rung in rungs(ladder.cores):
        if not ladder.train and (reason := _why_not_alone(rung, climbed)):
            skipped.append({"number": rung.number, "name": rung.name, "reason": reason})
        else:
            climbed.append(rung)
    where = environment()

    def record(*, complete: bool = False) -> dict[str, Any]:
        return {
            "benchmark": "ladder",
            "complete": complete,
            "environment": where,
            "dataset": data_record,
            "parameters": {
                "model": ladder.model,
                "batch_size": ladder.batch_size,
                "autocast": "bfloat16",
                "optimizer": "SGD, momentum 0.9",
                **asdict(ladder.length),
            },
            "trained": ladder.train,
            "rungs": [result.record() for result in results.values()],
            "skipped": skipped,
        }

    with fixed_shapes():
        for climb_number, rung in itertools.product(range(ladder.length.repeats), climbed):
            if rung.number not in turns:
                on_result(rung, None)
            train = None
            if ladder.train:
                if rung.channels_last not in trainers:
                    trainers.clear()  # one model on the GPU at a time
                    trainers[rung.channels_last] = TrainingStep(
                        ladder.model,
                        ladder.device,
                        channels_last=rung.channels_last,
                        classes=max(1000, len(dataset.classes)),
                    )
                train = trainers[rung.channels_last]
            feed = StepFeed(rung, dataset, pool, ladder.batch_size, ladder.device if ladder.train else None)
            try:
                trace = record_activity if on_gpu and climb_number == ladder.length.repeats - 1 else None
                turn = measure(rung, feed, train, clock, ladder.batch_size, ladder.length, trace)
            finally:
                feed.close()
            turns.setdefault(rung.number, []).append(turn)
            results[rung.number] = RungResult.of(rung, turns[rung.number], trained=ladder.train)
            on_result(rung, results[rung.number])
            keep(record())  # minutes: a climb that is cut off has shown something
    return record(complete=True)


def _why_not_alone(rung: Rung, lower: list[Rung]) -> str | None:
    if not rung.loader_alone:
        return "needs a GPU"
    if any(other.workers == rung.workers and other.native == rung.native for other in lower):
        return "no more cores"
    return None


def show(ladder: Ladder, keep: Callable[[dict[str, Any]], object] = lambda record: None) -> dict[str, Any]:
    """Run the ladder and update a table on the terminal; return the record.

    ``keep`` gets the record after each rung too.
    """
    from rich.box import SIMPLE_HEAD
    from rich.live import Live
    from rich.table import Table

    rows: dict[int, tuple[Rung, RungResult | None]] = {}
    screen = console()

    def table() -> Table:
        grown = Table(title=_title(ladder), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        grown.add_column("rung", no_wrap=True)
        for name in ("workers", "images/s", "±", *(_GPU_COLUMNS if ladder.train else ())):
            grown.add_column(name, justify="right", no_wrap=True)
        for rung, result in rows.values():
            cells = [f"{rung.number or '-'} {rung.name}", str(rung.workers) if rung.workers else "-"]
            cells += ["..."] if result is None else _cells(result, ladder.train)
            grown.add_row(*cells)
        return grown

    def on_result(rung: Rung, result: RungResult | None) -> None:
        rows[rung.number] = (rung, result)
        if screen.is_terminal:
            live.update(table(), refresh=True)
        elif result is not None:
            screen.print(f"{rung.name}: {result.images_per_s.values[-1]:,.0f} images/s")

    if screen.is_terminal:
        with Live(table(), console=screen, auto_refresh=False) as live:
            record = climb(ladder, on_result, keep)
    else:
        record = climb(ladder, on_result, keep)
        screen.print(table())
    for skip in record["skipped"]:
        screen.print(f"skipped: {skip['name']} ({skip['reason']})")
    return record


_GPU_COLUMNS = ("ms/step", "waiting", "busy", "GB/s")


def _title(ladder: Ladder) -> str:
    if not ladder.train:
        return f"no GPU here: the loader alone, batch {ladder.batch_size}, {ladder.cores} cores"
    name = torch.cuda.get_device_name() if ladder.device.type == "cuda" else str(ladder.device)
    return f"{ladder.model} on {name}, bf16, batch {ladder.batch_size}, {ladder.cores} cores"


def _cells(result: RungResult, trained: bool) -> list[str]:
    cells = [f"{result.images_per_s.median:,.0f}", result.images_per_s.plus_minus]
    if not trained:
        return cells
    speed = result.gpu.copy_gb_per_s if result.gpu and result.rung.workers else None
    return [
        *cells,
        f"{result.ms_per_step.median:.1f}",
        _share(result.wait_share),
        _share(result.gpu.busy_share if result.gpu else None),
        "-" if speed is None else f"{speed:.1f}",
    ]


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def main(args: argparse.Namespace) -> int:
    """Run ``fastload bench ladder``."""
    if args.plot:
        importlib.import_module("matplotlib")  # if it is missing, let that be known before minutes of measuring
    normal = Length(steps=2, repeats=2) if args.quick else Length()
    try:
        ladder = Ladder(
            data=args.data,
            model=args.model,
            batch_size=args.batch_size if args.batch_size is not None else (8 if args.quick else 256),
            length=Length(
                steps=args.steps if args.steps is not None else normal.steps,
                repeats=args.repeats if args.repeats is not None else normal.repeats,
            ),
            quick=args.quick,
        )
    except (ValueError, FileNotFoundError, SharedMemoryError) as error:
        return refuse(error)
    if not ladder.train and not args.quick:
        console().print("bench ladder: skipped, torch finds no CUDA device here; --quick shows that it works")
        return 0
    record = show(ladder, lambda record: write_json(args.json, record) if args.json else None)
    if args.json:
        console().print(f"figures: {write_json(args.json, record)}")
    if args.plot:
        draw(record, args.plot)
        console().print(f"chart: {args.plot}")
    return 0
