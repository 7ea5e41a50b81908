"""Measure programs of today beside torch's DataLoader: ``python -m benchmarks programs``.

Each program of :mod:`benchmarks._programs` loads the benchmarks' photographs as its authors load their data, in a
process of its own. Two epochs of FastLoader are compared with torch's first, to the bit, with the states of torch's,
NumPy's and Python's generators after each. Then the loaders take turns, an epoch each: as long as a loader needs for
``--turn-seconds``, or as long as it is where the program has a sampler of its own or a stream. A row says what
FastLoader saves of the clock and of processors, the engine, and how often the program looked at deferred images.

``--parts train`` trains what :mod:`benchmarks._programs.training` knows from either loader, and from batches that are
on the device already, in turn: how much of that ceiling each loader leaves. It needs a GPU unless the run is quick.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import functools
import importlib.util
import itertools
import logging
import math
import multiprocessing
import os
import random
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import DataLoader

from benchmarks._checkout import ROOT
from benchmarks._peers import prepared
from benchmarks._programs import PROGRAMS
from benchmarks._programs._program import Program, seed_all
from benchmarks._programs.training import TRAINED, ProgramStep
from benchmarks._recipes import Source
from benchmarks.commands import PROGRAM_PARTS
from benchmarks.contenders._processes import children, processor_s
from benchmarks.recipes import FASTER, NATIVE, choose, to_gpu, where
from fastload import FastLoader
from fastload._arguments import check_names
from fastload._compare import ComparedValues, difference
from fastload.bench._compare import lengthen, race
from fastload.bench._data import ENDLESS, EndlessDraws, check_shared_memory
from fastload.bench._steps import whole_bursts
from fastload.measurement.console import console
from fastload.measurement.record import Spread, environment, extent, interleave, ratio, save

LOADERS: Final[dict[str, type[Any]]] = {"torch": DataLoader, "fastload": FastLoader}
COMPARED: Final = 9  # half batches of an epoch that is compared
QUEUES: Final = 4
"""At least so many queues of batches are in a turn."""

EPOCHS: Final = 2  # of these
RESIDENT: Final = 8  # batches of the ceiling, which it trains on in turn
OFFLINE: Final = {"NO_ALBUMENTATIONS_UPDATE": "1", "YOLO_OFFLINE": "true", "HF_HUB_OFFLINE": "1"}
"""Settings by which libraries do not ask for news of themselves."""


class Metered:
    """Iterates a loader for some epochs, and notes their processor seconds, workers included."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches
        self.epochs = 1
        self.spent_s: list[float] = []

    def __iter__(self) -> Iterator[Any]:
        begun = _spent_s()
        for _ in range(self.epochs):
            yield from self._batches
        self.spent_s.append(_spent_s() - begun)


def _spent_s() -> float:
    own = os.getpid()
    return processor_s({own, *children(own)})


class Opened:
    """A program's loader, torch's or ours, and what the program iterates.

    Args:
        name: Name of one of :data:`LOADERS`.
        order: Indices of an epoch, instead of the program's own ``shuffle``.
    """

    def __init__(self, program: Program, name: str, given: dict[str, Any], order: Iterable[int] | None = None) -> None:
        own, base = program.loader(), LOADERS[name]
        kind = base if own is DataLoader else own
        if not issubclass(kind, base):  # the program's class on FastLoader, as `fastload run` gives it
            kind = type(own.__name__, (own, base), {})
        if order is not None:
            given = {**{key: value for key, value in given.items() if key != "shuffle"}, "sampler": order}
        self.loader = kind(**given)
        self.batches = program.around(self.loader)

    def close(self) -> None:
        """End FastLoader's workers and threads; torch's end with the last reference."""
        if isinstance(self.loader, FastLoader):
            FastLoader.close(self.loader)


def arguments(program: Program, source: Source, workers: int) -> dict[str, Any]:
    """Return a program's arguments, always from the same seeds, with the benchmark's."""
    seed_all()
    given = {"batch_size": source.batch_size, "num_workers": workers, "pin_memory": torch.cuda.is_available()}
    given |= program.arguments(source)
    return {**given, "persistent_workers": given["num_workers"] > 0}


def states() -> tuple[Any, ...]:
    """Return the states of torch's, NumPy's and Python's generators."""
    return torch.get_rng_state(), np.random.get_state(legacy=False), random.getstate()


def epochs(program: Program, name: str, source: Source, workers: int) -> list[tuple[list[Any], tuple[Any, ...]]]:
    """Return the batches of a loader's first epochs, and the generators' states after each."""
    opened = Opened(program, name, arguments(program, source, workers))
    with contextlib.closing(opened):
        seed_all(1)
        return [(list(opened.batches), states()) for _ in range(EPOCHS)]


def fewer(source: Source, count: int) -> Source:
    """Return a source of so many samples, its folder with links to these alone."""
    folder = source.scratch / f"photos-{count}"
    for number, (path, _) in enumerate(source.samples[:count]):
        (target := folder / "photos" / Path(path).parent.name).mkdir(parents=True, exist_ok=True)
        if not (link := target / f"{number}-{Path(path).name}").exists():
            link.symlink_to(path)
    return Source(folder / "photos", min(count, source.images), folder, source.batch_size, source.shards)


def compare(program: Program, source: Source, workers: int) -> dict[str, Any]:
    """Compare epochs of both loaders; returns what is the same and what differs."""
    few = fewer(source, source.batch_size * COMPARED // 2)
    theirs, ours = (epochs(program, name, few, workers) for name in LOADERS)
    compared = ComparedValues(layout=None if torch.cuda.is_available() else "theirs")
    differ: dict[str, str] = {}
    for number, (their, our) in enumerate(zip(theirs, ours, strict=True)):
        for what, a, b in zip(("batches", "states"), their, our, strict=True):
            found = difference(a, b, f"{what} of epoch {number}", compared=compared)
            if found is not None and (program.repeatable or what == "states"):
                differ.setdefault(what, found)
    same = {"same": "batches" not in differ if program.repeatable else None, "states_same": "states" not in differ}
    return {**same, "compared": compared.values, "opaque": len(compared.opaque), "difference": differ}


def measure(program: Program, source: Source, workers: int, repeats: int, turn_seconds: float) -> dict[str, Any]:
    """Compare, then time one program; returns its row of the record."""
    row = compare(program, source, workers)
    return row if row["difference"] else {**row, **take_turns(program, source, workers, repeats, turn_seconds)}


def known(program: Program, **found: Any) -> dict[str, Any]:
    """Return a row of the record: a program, and what was found."""
    return {"program": program.name, "what": program.what, "family": program.family, "reads": program.reads, **found}


def take_turns(program: Program, source: Source, workers: int, repeats: int, turn_seconds: float) -> dict[str, Any]:
    """Time both loaders of a program in turn, one epoch or some of each."""
    receive = {"torch": to_gpu} if torch.cuda.is_available() else {}
    with contextlib.ExitStack() as stack:
        given = {name: arguments(program, source, workers) for name in LOADERS}
        size = given["torch"]["batch_size"]
        # The order of an epoch may be another where the program has no sampler or stream of its own. At first it is as
        # long as some batches of each worker.
        count = len(given["torch"]["dataset"]) if given["torch"].get("shuffle") else 0
        orders = {name: [index % count for index in range(2 * size * max(1, workers))] for name in LOADERS if count}
        opened = {
            name: stack.enter_context(contextlib.closing(Opened(program, name, of, orders.get(name))))
            for name, of in given.items()
        }
        metered = {name: Metered(one.batches) for name, one in opened.items()}
        lengthen(metered, orders, turn_seconds, receive)
        images = {name: len(orders.get(name, ())) or source.images for name in LOADERS}
        # The workers of a program's own kind of loader may be ahead of its epochs: they fill the queue in the other
        # loader's turn.
        queued = 2 * (size or source.batch_size) * max(1, workers)
        for name, one in metered.items():
            if name not in orders:
                one.epochs = math.ceil(turn_seconds * race({name: one}, 1, 1, receive)[name].median)
            if program.loader() is not DataLoader:
                one.epochs = max(one.epochs, math.ceil(QUEUES * queued / images[name]))
            images[name] *= one.epochs
        ours = opened["fastload"].loader
        before = ours.stats()
        speeds = race(metered, images, repeats, receive)
        stats, plan = ours.stats(), ours.plan
    spent = {name: [s / images[name] for s in one.spent_s[-repeats:]] for name, one in metered.items()}
    costs = {name: Spread.of(seconds) for name, seconds in spent.items()}
    raced = images["fastload"] * (repeats + 1)
    return {
        "workers": given["torch"]["num_workers"],
        "batch_size": size,
        "engine": plan.engine,
        "where": where(plan),
        "why": list(plan.reasons or plan.notes),
        "images": images,
        "images_per_s": {name: speed.record() for name, speed in speeds.items()},
        "speedup": ratio(speeds["fastload"], speeds["torch"]).record(),
        "processor_ms_per_image": {name: 1e3 * cost.median for name, cost in costs.items()},
        # The clock of processors ticks every 10 ms: a tiny turn takes none of them.
        "processor_saving": ratio(costs["torch"], costs["fastload"]).record() if all(spent["fastload"]) else None,
        "deferred_per_image": (stats.deferred_images - before.deferred_images) / raced,
        "looks_per_image": (stats.looks - before.looks) / raced,
        "looks_at": next((_place(line) for line in stats.fetch.looks_at), None),
    }


def train(program: Program, source: Source, workers: int, repeats: int, steps: int, *, quick: bool) -> dict[str, Any]:
    """Train a program's model from each loader, and from batches on the device, in turn."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not quick:
        return {"skipped": "torch finds no CUDA device here"}
    step = ProgramStep(program.name, device, small=quick)
    with contextlib.ExitStack() as stack:
        given = {name: arguments(program, source, workers) for name in LOADERS}
        draws = EndlessDraws(range(len(given["torch"]["dataset"])), ENDLESS)
        opened = {
            name: stack.enter_context(contextlib.closing(Opened(program, name, of, draws)))
            for name, of in given.items()
        }
        feeds = {name: iter(one.batches) for name, one in opened.items()}
        feeds["resident"] = itertools.cycle([step.moved(next(feeds["torch"])) for _ in range(RESIDENT)])
        steps = whole_bursts(steps, workers)
        warm = 2 * workers + RESIDENT  # what was ready is used up

        def run(name: str, count: int) -> None:
            for batch in itertools.islice(feeds[name], count):
                step(batch)
            if device.type == "cuda":
                torch.cuda.synchronize()

        def ms(name: str) -> float:
            run(name, warm)
            begin = time.perf_counter()
            run(name, steps)
            return 1e3 * (time.perf_counter() - begin) / steps

        turns = {name: functools.partial(ms, name) for name in feeds}
        interleave(turns, 1)
        taken = interleave(turns, repeats)
        stats = opened["fastload"].loader.stats()
    return {
        "workers": workers,
        "batch_size": given["torch"]["batch_size"],
        "steps": steps,
        "ms_per_step": {name: spread.record() for name, spread in taken.items()},
        "share_of_ceiling": {name: ratio(taken["resident"], taken[name]).record() for name in LOADERS},
        "deferred_per_image": stats.deferred_images / max(1, stats.images),
    }


def _place(line: str) -> str:
    """Cut the folders of this machine off a line of code."""
    return line.rpartition("site-packages/")[2].removeprefix(f"{ROOT}/")


def measured(part: str, name: str, source: Source, args: argparse.Namespace) -> dict[str, Any]:
    """Measure a program in a process of its own.

    No other's libraries have patched Pillow or OpenCV there.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as process:
        return process.submit(_measure, part, name, source, args).result()


def _measure(part: str, name: str, source: Source, args: argparse.Namespace) -> dict[str, Any]:
    os.environ |= {**OFFLINE, "YOLO_CONFIG_DIR": str(source.scratch)}
    multiprocessing.set_start_method("fork", force=True)  # of workers, some of whose datasets hold closures
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of the libraries, and of fewer cores than workers
    logging.disable(logging.WARNING)  # theirs
    return run_part(part, PROGRAMS[name], source, args)


def run_part(part: str, program: Program, source: Source, args: argparse.Namespace) -> dict[str, Any]:
    """Measure a part of a program here; returns what is found."""
    if missing := [package for package in program.needs if importlib.util.find_spec(package) is None]:
        return {"skipped": f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"}
    if part == "train":
        return train(program, source, args.threads, args.repeats, args.steps, quick=args.quick)
    return measure(program, source, args.threads, args.repeats, args.turn_seconds)


def counts(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Count programs by what was found.

    Faster is faster than :data:`FASTER` times torch's speed, slower is slower than torch.
    """
    done = [row for row in rows if "speedup" in row]
    return {
        "programs": len(rows),
        "skipped": sum("skipped" in row for row in rows),
        "measured": sum("states_same" in row for row in rows),
        "compared": sum(row.get("same") is not None for row in rows),
        "same": sum(row.get("same") is True for row in rows),
        "states_same": sum(row.get("states_same") is True for row in rows),
        "native": sum(row["where"] == NATIVE for row in done),
        "faster": sum(row["speedup"]["median"] > FASTER for row in done),
        "slower": sum(row["speedup"]["median"] < 1 for row in done),
    }


def chosen(only: str | None, *, quick: bool) -> list[Program]:
    """Return the programs that ``--only`` names, else all; if quick, one of each family."""
    if only is None and quick:
        first = {one.family: one for one in reversed(PROGRAMS.values())}
        return [one for one in PROGRAMS.values() if first[one.family] is one]
    return choose(list(PROGRAMS.values()), only)


def main(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks programs``; 1 if one failed, or batches or generators differ."""
    parts = args.parts.split(",")
    check_names("--parts", parts, PROGRAM_PARTS)
    wanted = chosen(args.only, quick=args.quick)
    check_shared_memory(args.threads, 10 * args.batch_size)
    deadline = None if args.seconds is None else time.monotonic() + args.seconds
    folder, described = prepared(args.data, quick=args.quick)
    sizes = ("images", "batch_size", "threads", "turn_seconds", "steps", "repeats", "only", "seconds", "quick")
    parameters = {name: getattr(args, name) for name in sizes}
    record: dict[str, Any] = {"benchmark": "programs", "environment": environment(), "dataset": described}
    record |= {"parameters": parameters, "note": args.note}
    with tempfile.TemporaryDirectory(prefix="fastload-programs-") as scratch:
        source = Source(Path(folder), args.images, Path(scratch), args.batch_size, max(4, args.threads))
        for part in parts:
            rows: list[dict[str, Any]] = []
            for program in wanted:
                if part == "train" and program.name not in TRAINED:
                    continue
                if deadline is not None and time.monotonic() > deadline:
                    break
                try:
                    row = known(program, **measured(part, program.name, source, args))
                except Exception as error:  # noqa: BLE001 - one program's end does not end the others
                    last = (str(error).strip().splitlines() or [""])[-1]  # after a worker's traceback
                    row = known(program, failed=f"{type(error).__name__}: {last}")
                rows.append(row)
                console().print(_line(row), markup=False)
                record |= {"train": rows} if part == "train" else _loaded(rows)
                save(args.json, record)
    if "counts" in record:
        console().print(
            "{same} of {compared} programs get torch's batches, {skipped} of {programs} skipped".format(
                **record["counts"]
            )
        )
    rows = [*record.get("rows", ()), *record.get("train", ())]
    return int(any(row.get("difference") or "failed" in row for row in rows))


def _loaded(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"rows": rows, "counts": counts(rows), "complete": len(rows) == len(PROGRAMS)}


def _line(row: dict[str, Any]) -> str:
    if "share_of_ceiling" in row:
        shares = ", ".join(f"{name} {of['median']:.1%}" for name, of in row["share_of_ceiling"].items())
        return f"{row['program']:<26} trained on, share of the ceiling: {shares}"
    if "speedup" not in row:
        return f"{row['program']:<26} {row.get('skipped') or row.get('failed') or row['difference']}"
    gain, saving = row["speedup"], row["processor_saving"]
    spent = f"{saving['median']:.2f}×" if saving else "–"
    looks = (
        f"; {row['looks_per_image']:.2f} looks an image, most at {row['looks_at']}" if row["looks_per_image"] else ""
    )
    return (
        f"{row['program']:<26} {row['where']:<23} {gain['median']:5.2f}× ({extent(gain, '.2f')}), processors {spent}, "
        f"{row['deferred_per_image']:.2f} deferred{looks}"
    )
