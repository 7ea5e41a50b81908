"""Start and check contenders once, then ask them one question or several.

A question is a benchmark such as ``loaders``. ``python -m benchmarks peers`` asks several of the same processes, so
that the seconds in which a dozen libraries are imported are spent once.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import math
import mmap
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._outputs import check_outputs
from benchmarks._setup import Setup, setup_of
from benchmarks.contenders._remote import ContenderError, Remote, Team
from fastload.bench._data import image_pool, open_images
from fastload.measurement.console import console
from fastload.measurement.record import Spread, environment, extent, save

Points = Generator[dict[str, Any], None, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One benchmark of all contenders."""

    name: str
    setup: Setup  # contenders, and the length of their turns
    parameters: Mapping[str, Any]  # parameters of its own, for the record
    measure: Callable[[Gathering], Points]  # function that yields the points as they are measured


@dataclass(frozen=True, slots=True)
class Gathering:
    """Contenders whose outputs have been checked."""

    team: Team  # their processes
    folder: str  # folder of the data set
    described: Mapping[str, Any]  # description of the data set, for the record
    # result of the check of each contender's output, by recipe and name
    checked: Mapping[str, Mapping[str, Mapping[str, Any]]]
    environment: Mapping[str, Any]  # machine and software, for the record
    deadline: float | None = None  # time (time.monotonic) after which no point begins; None: never

    def late(self) -> bool:
        """Whether time is up."""
        return self.deadline is not None and time.monotonic() > self.deadline

    def present(self, setup: Setup) -> list[Remote]:
        """Contenders of the setup that can answer."""
        return [remote for remote in self.team.present if remote.name in setup.names]

    def answer(
        self, question: Question, keep: Callable[[dict[str, Any]], object] = lambda record: None
    ) -> tuple[dict[str, Any], bool]:
        """Ask; return the record and whether every available contender succeeded.

        ``keep`` gets the record so far after each point, so that a run that is cut off keeps its points.
        """
        setup = question.setup
        self.team.restart_failed()
        names = ("batch_size", "repeats", "seconds", "recipe", "row_seconds")
        asked = {name: getattr(setup, name) for name in names}
        record: dict[str, Any] = {
            "benchmark": question.name,
            "environment": self.environment,
            "dataset": self.described,
            "parameters": {**asked, "device": setup.device, "quick": setup.quick, **question.parameters},
            "complete": False,
            "contenders": {},
            "points": [],
        }
        points = question.measure(self)
        while not self.late() and (point := next(points, None)) is not None:
            # What was asked stands in each point: those of a question that is asked twice are in one record.
            record["points"].append({**asked, **point, "repeats": _rounds(point) or setup.repeats})
            record["contenders"] = {
                name: {**known, **self.checked.get(setup.recipe, {}).get(name, {})}
                for name, known in self.team.record().items()
                if name in setup.names
            }
            keep(record)
        points.close()
        record["complete"] = True
        keep(record)
        has_failed = any("failed" in entry for entry in record["contenders"].values())
        return record, bool(self.present(setup)) and not has_failed


@contextlib.contextmanager
def gathered(setup: Setup, recipes: Sequence[str] = (), deadline: float | None = None) -> Iterator[Gathering]:
    """Start the contenders, cache the data set, and check outputs by ``recipes`` or the setup's."""
    folder, described = prepared(setup.data, quick=setup.quick)
    with Team(setup.names, setup.device, setup.interpreters) as team:
        for remote in team.all:
            if remote.missing is not None:
                console().print(f"missing: {remote.contender.title}: {remote.missing}")
        checked = {}
        for recipe in recipes or (setup.recipe,):
            checked[recipe] = check_outputs(team, folder, recipe)
            for remote in team.loading:
                reason = checked[recipe].get(remote.name, {}).get("failed")
                if reason is not None:
                    console().print(f"failed: {remote.contender.title}: {reason}")
                    remote.refuse(reason)
        yield Gathering(team, folder, described, checked, environment(), deadline)


def prepared(data: Path | None, *, quick: bool) -> tuple[str, dict[str, Any]]:
    """Cache a data set's files (``None``: photographs); return its folder and description."""
    dataset, described = open_images(data, quick)
    pool = image_pool(dataset)
    files = [dataset.samples[index][0] for index in pool]
    described |= {"drawn_from": len(pool), "page_cache_share": resident_share(files)}
    return str(Path(dataset.root).resolve()), described


def resident_share(files: Sequence[str | Path]) -> float | None:
    """Return the share of files in the page cache, by mincore(2); ``None`` without it."""
    try:
        mincore = ctypes.CDLL(None, use_errno=True).mincore
    except (OSError, AttributeError):
        return None
    pages = resident = 0
    for file in files:
        with open(file, "rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            if not size:
                continue
            with mmap.mmap(
                opened.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
            ) as view:
                count = -(-size // mmap.PAGESIZE)
                marks = (ctypes.c_ubyte * count)()
                start = ctypes.c_char.from_buffer(view)
                failed = mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), marks)
                del start  # or the mapping could not be closed
                if failed:
                    return None
                pages += count
                resident += sum(mark & 1 for mark in marks)
    return resident / pages if pages else None


def run(args: argparse.Namespace, question: Callable[[argparse.Namespace, Setup], Question]) -> int:
    """Run one question as a program; returns the exit code."""
    asked = question(args, setup_of(args))
    with gathered(asked.setup) as gathering:
        _, right = gathering.answer(asked, lambda record: save(args.json, record))
    return 0 if right else 1


def settle(remote: Remote) -> None:
    """Take a new loader's first batches until its slots are made."""
    if not remote.ask("settle")["settled"]:
        console().print(f"{remote.contender.title}: measured before its slots were ready")


def warm_up(remote: Remote, threads: int, seconds: float) -> int:
    """Run a new loader until its rate is steady; returns a turn's number of batches.

    A turn takes about ``seconds``.

    Worker processes finish their batches at about the same time, so a turn is a multiple of ``threads`` batches.
    """
    settle(remote)
    remote.ask("run", batches=2 * threads + 2, seconds=seconds / 2)
    probe = remote.ask("run", batches=threads, seconds=seconds / 4)
    per_batch = probe["seconds"] / probe["batches"]
    return max(1, math.ceil(seconds / float(per_batch) / threads)) * threads


def take_turns(
    remotes: Sequence[Remote], turn: Callable[[Remote], dict[str, Any]], repeats: int, deadline: float | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Let each contender have ``repeats`` turns, interleaved; return each one's answers in order.

    One that fails drops out, and what it had answered is left out.

    Args:
        remotes: Contenders.
        turn: Function that asks one of them, which runs meanwhile while the others are stopped.
        repeats: Number of rounds; every second one runs backwards.
        deadline: Time (``time.monotonic``) after which only a first round begins.
    """
    answers: dict[str, list[dict[str, Any]]] = {remote.name: [] for remote in remotes}
    order = list(remotes)
    for number in range(repeats):
        if number and deadline is not None and time.monotonic() > deadline:
            break
        for remote in order:
            if remote.failed is None:
                with attempt(remote), remote.turn():
                    answers[remote.name].append(turn(remote))
        order.reverse()
    return {remote.name: answers[remote.name] for remote in remotes if remote.failed is None}


@contextlib.contextmanager
def attempt(remote: Remote) -> Iterator[None]:
    """Drop a contender that fails within; the others go on."""
    try:
        yield
    except ContenderError as error:
        console().print(f"failed: {remote.contender.title}: {error}")
        remote.fail(str(error))


def spread_of(answers: Sequence[Mapping[str, Any]], figure: Callable[[Mapping[str, Any]], float]) -> dict[str, Any]:
    """One figure of every turn, for the JSON file."""
    return Spread.of([figure(answer) for answer in answers]).record()


def rate_figures(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Images per second of each turn, and the processor time that they cost."""
    return {
        "images_per_s": spread_of(answers, lambda a: a["images"] / a["seconds"]),
        "processor_ms_per_image": spread_of(answers, lambda a: 1e3 * a["processor_s"] / a["images"]),
        "main_thread_us_per_batch": spread_of(answers, lambda a: 1e6 * a["main_thread_s"] / a["batches"]),
    }


def _rounds(point: Mapping[str, Any]) -> int:
    """How many turns each contender had; 0 if its figures do not say."""
    figures = [figure for result in point["contenders"].values() for figure in result.values()]
    return max(
        (len(figure["values"]) for figure in figures if isinstance(figure, dict) and "values" in figure), default=0
    )


def rates(gathering: Gathering, setup: Setup, threads: int) -> dict[str, Any]:
    """Measure the loader of every contender alone, at one number of threads."""
    deadline, seconds = setup.deadline(), setup.turn_seconds(len(gathering.present(setup)))
    team = gathering.team
    job = setup.job(gathering.folder, threads)
    team.open(gathering.present(setup), job)
    batches: dict[str, int] = {}
    for remote in gathering.present(setup):
        with attempt(remote), remote.turn():
            batches[remote.name] = warm_up(remote, threads, seconds)

    def turn(remote: Remote) -> dict[str, Any]:
        return remote.ask("run", batches=batches[remote.name])

    answers = take_turns(gathering.present(setup), turn, setup.repeats, deadline)
    team.close_feeds()
    return {name: {**rate_figures(turns), "batches_per_turn": batches[name]} for name, turns in answers.items()}


def describe_rates(result: Mapping[str, Any]) -> str:
    """A contender's figures in words."""
    rate = result["images_per_s"]
    return (
        f"{rate['median']:,.0f} images/s ({extent(rate, ',.0f')}), "
        f"{result['processor_ms_per_image']['median']:.2f} ms of processor per image, "
        f"main thread {result['main_thread_us_per_batch']['median']:,.0f} µs per batch"
    )
