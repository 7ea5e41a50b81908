"""Ask contenders one question or several: the benchmarks against peers.

Every contender has a process of its own, and is stopped while another has its turn. Batches are normalized float32
images on the GPU (without one: in host memory); only ``train`` does something with them.

* ``loaders``: the loader alone, against the number of threads.
* ``firstbatch``: time from making a loader to its first batch. Libraries are imported, the GPU is ready, the list of
  files is known; everything else counts: starting processes or threads, building pipelines, FastLoader's check.
* ``cpu``: processor seconds per image of all processes and threads of a contender, at a number of threads where none
  waits for a core; and what the training loop spends in ``next()``: Python, and starting copies and kernels.
* ``scaling``: images of 256 to 4000 px (long edge), cropped and resized to 224 px as ever, at batches that shrink as
  the images grow; then batches of 16 to 1024 of images of the usual size. With ``--data`` only the batches change.
* ``train``: training fed by each loader, as a share of the step with its data on the GPU already. bf16 autocast, SGD,
  channels_last. Times are those of the GPU's clock between the ends of steps; the main thread's is its processor time
  in ``next()``, which the next step waits for. ``--cores`` limits a contender and all that it starts to so many cores,
  with as many threads; ``--threads`` leaves it all cores.
* ``total``: seconds of a whole training of some passes through the images, from making the loader to the end of the
  last step: of a program that trains, all but its imports and the search for the model's kernels. Every turn has a new
  loader.
* ``memory`` and ``energy``: see the modules of these names.

``python -m benchmarks peers "loaders --threads 4,16" "train --models resnet50"`` asks several of the same processes, so
that the seconds in which a dozen libraries are imported are spent once. A question is a benchmark with options of its
own, which otherwise are those of the command.
"""

from __future__ import annotations

import argparse
import copy
import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from benchmarks import commands, energy, memory
from benchmarks._peers import (
    Gathering,
    Points,
    Question,
    attempt,
    describe_rates,
    gathered,
    prepared,
    rates,
    run,
    settle,
    spread_of,
    take_turns,
)
from benchmarks._setup import Setup, setup_of
from benchmarks.commands import EDGES, MODELS, THREADS
from benchmarks.contenders._remote import Remote
from fastload._arguments import UsageError, check_names, settled
from fastload._machine import usable_cpus
from fastload.bench import TINY
from fastload.bench._steps import check_model, whole_bursts
from fastload.bench.photos import PhotoSet, write_photos
from fastload.measurement.console import console
from fastload.measurement.record import Spread, extent, ratio, save

CEILING: Final = "ceiling"
WARM_STEPS: Final = 10  # in which the libraries choose their kernels
USUAL_EDGE: Final = 500


def by_threads(
    name: str, measure: Callable[[Gathering, Setup, int], dict[str, Any]], describe: Callable[[Mapping[str, Any]], str]
) -> Callable[[argparse.Namespace, Setup], Question]:
    """Return what makes a question that depends on the number of threads.

    Of the benchmark's ``THREADS``, those that are more than the usable cores are left out. ``measure`` returns figures
    by contender, ``describe`` says one contender's in words.
    """

    def question(args: argparse.Namespace, setup: Setup) -> Question:
        most = min(2, usable_cpus()) if setup.quick else usable_cpus()
        counts = args.threads or tuple(n for n in THREADS[name] if n <= most) or (most,)

        def points(gathering: Gathering) -> Points:
            for threads in counts:
                results = measure(gathering, setup, threads)
                for contender, result in results.items():
                    console().print(f"{threads:3} threads, {gathering.team.title(contender)}: {describe(result)}")
                yield {"threads": threads, "contenders": results}

        return Question(name=name, setup=setup, parameters={"threads": counts}, measure=points)

    return question


def first_batch(gathering: Gathering, setup: Setup, threads: int) -> dict[str, Any]:
    """Time the first batch of every contender, without the first loader of each process."""
    job = setup.job(gathering.folder, threads)

    def turn(remote: Remote) -> dict[str, Any]:
        answer = remote.ask("open", **job.record())
        remote.ask("close")
        return answer

    gathering.team.open(gathering.present(setup), job)
    gathering.team.close_feeds()
    answers = take_turns(gathering.present(setup), turn, setup.repeats)
    figures = ("first_batch_s", "constructed_s")
    return {name: {key: spread_of(turns, itemgetter(key)) for key in figures} for name, turns in answers.items()}


def describe_first_batch(result: Mapping[str, Any]) -> str:
    """A contender's figures in words."""
    first = result["first_batch_s"]
    return f"first batch after {first['median']:.3f} s ({extent(first, '.3f')})"


def describe_processor(result: Mapping[str, Any]) -> str:
    """A contender's figures in words."""
    per_image, main_thread = result["processor_ms_per_image"], result["main_thread_us_per_batch"]
    return (
        f"{per_image['median']:.3f} ms of processor per image ({extent(per_image, '.3f')}), "
        f"{main_thread['median']:,.0f} µs of the main thread per batch"
    )


def batch_size_for(edge_px: int) -> int:
    """Return 256, or fewer for larger images: as many pixels, but at least 16 images."""
    return max(16, min(256, round(256 * (USUAL_EDGE / edge_px) ** 2)))


def scaling(args: argparse.Namespace, setup: Setup) -> Question:
    """The question ``scaling``."""
    threads = args.threads

    def points(gathering: Gathering) -> Points:
        for edge_px in args.edges if setup.data is None else ():
            photos = PhotoSet(count=24 if setup.quick else EDGES.get(edge_px, 64), edge_px=edge_px)
            written = write_photos(Path(".fastload") / f"photos-{edge_px}px", photos)
            folder, described = prepared(written.path, quick=setup.quick)
            sized = replace(setup, batch_size=setup.batch_size if setup.quick else batch_size_for(edge_px))
            known = {"edge_px": edge_px, "dataset": described}
            yield _point(replace(gathering, folder=folder), sized, threads, known)
        for size in args.batches:
            yield _point(gathering, replace(setup, batch_size=size), threads, {})

    return Question(name="scaling", setup=setup, parameters={"threads": threads}, measure=points)


def _point(gathering: Gathering, setup: Setup, threads: int, known: dict[str, Any]) -> dict[str, Any]:
    results = rates(gathering, setup, threads)
    where = f"{known['edge_px']} px, " if known else ""
    for name, result in results.items():
        title = gathering.team.title(name)
        console().print(f"{where}batches of {setup.batch_size}, {title}: {describe_rates(result)}")
    return {**known, "batch_size": setup.batch_size, "threads": threads, "contenders": results}


def training(gathering: Gathering, setup: Setup, model: str, threads: int, steps: int) -> dict[str, Any]:
    """Train with every contender, and the ceiling, one model at one number of threads.

    A turn has ``steps`` steps; fewer, by the contender's speed, if a point's time is limited.
    """
    deadline, seconds = setup.deadline(), setup.turn_seconds(len(gathering.present(setup)))
    team = gathering.team
    job = setup.job(gathering.folder, threads)
    team.open(gathering.present(setup), job)
    counted = dict.fromkeys(setup.names, whole_bursts(steps, threads))
    for remote in gathering.present(setup):
        with attempt(remote), remote.turn():
            settle(remote)
            remote.ask("run", batches=2 * threads)  # training would leave for long what workers had time to prefetch
            probe = remote.ask("train", model=model, steps=1 if deadline is None else threads, warm_steps=WARM_STEPS)
            if deadline is not None:
                in_time = math.ceil(seconds * probe["batches"] / probe["seconds"])
                counted[remote.name] = whole_bursts(max(1, min(steps, in_time)), threads)

    def turn(remote: Remote) -> dict[str, Any]:
        return remote.ask("train", model=model, steps=counted[remote.name], warm_steps=max(3, threads // 2))

    answers = take_turns(gathering.present(setup), turn, setup.repeats, deadline)
    team.close_feeds()
    rates = {
        name: Spread.of([answer["images"] / answer["seconds"] for answer in turns]) for name, turns in answers.items()
    }
    return {
        name: {
            "images_per_s": rates[name].record(),
            "steps": counted[name],
            "wait_share": spread_of(turns, itemgetter("wait_share")),
            "main_thread_us_per_batch": spread_of(turns, lambda a: 1e6 * a["main_thread_s"] / a["batches"]),
            "share_of_ceiling": ratio(rates[name], rates[CEILING]).record() if CEILING in rates else None,
        }
        for name, turns in answers.items()
    }


def train(args: argparse.Namespace, setup: Setup) -> Question:
    """The question ``train``."""
    models = args.models.split(",") if args.models else ([TINY] if setup.quick else list(MODELS))
    for model in models:
        check_model(model)
    places = _places(args, quick=setup.quick)
    if CEILING not in setup.names:
        setup = replace(setup, names=(*setup.names, CEILING))

    def points(gathering: Gathering) -> Points:
        try:
            for cores, threads in places:
                _limit(gathering, cores)
                for model in models:
                    results = training(gathering, setup, model, threads, args.steps)
                    _show(gathering, model, cores, threads, results)
                    yield {"model": model, "cores": cores, "threads": threads, "contenders": results}
        finally:
            _limit(gathering, None)

    parameters = {"models": models, "steps": args.steps, "autocast": "bfloat16"}
    return Question(name="train", setup=setup, parameters=parameters, measure=points)


def whole_training(gathering: Gathering, setup: Setup, model: str, threads: int, passes: int) -> dict[str, Any]:
    """Train with every contender from the beginning, one model at one number of threads."""
    team, job = gathering.team, setup.job(gathering.folder, threads)
    steps = max(3, passes * gathering.described["drawn_from"] // setup.batch_size)
    team.open(gathering.present(setup), job)
    for remote in gathering.present(setup):
        with attempt(remote), remote.turn():
            remote.ask("train", model=model, steps=1, warm_steps=WARM_STEPS)
    team.close_feeds()

    def turn(remote: Remote) -> dict[str, Any]:
        begin = time.perf_counter()
        opened = remote.ask("open", **job.record())
        remote.ask("train", model=model, steps=steps - 2, warm_steps=1)  # the first batch is only waited for
        seconds = time.perf_counter() - begin
        remote.ask("close")
        return {"total_s": seconds, "first_batch_s": opened["first_batch_s"]}

    answers = take_turns(gathering.present(setup), turn, setup.repeats)
    figures = ("total_s", "first_batch_s")
    return {name: {key: spread_of(turns, itemgetter(key)) for key in figures} for name, turns in answers.items()}


def total(args: argparse.Namespace, setup: Setup) -> Question:
    """The question ``total``."""
    check_model(args.model)

    def points(gathering: Gathering) -> Points:
        for threads in args.threads:
            results = whole_training(gathering, setup, args.model, threads, args.passes)
            for name, result in results.items():
                seconds, first = result["total_s"], result["first_batch_s"]["median"]
                console().print(
                    f"{args.passes} passes, {threads} threads, {gathering.team.title(name)}: {seconds['median']:.1f} s "
                    f"({extent(seconds, '.1f')}), the first batch after {first:.2f} s"
                )
            yield {"threads": threads, "contenders": results}

    parameters = {"model": args.model, "passes": args.passes, "threads": args.threads, "autocast": "bfloat16"}
    return Question(name="total", setup=setup, parameters=parameters, measure=points)


def _limit(gathering: Gathering, cores: int | None) -> None:
    gathering.team.together(gathering.team.present, lambda remote: remote.ask("limit", cores=cores))


def _places(args: argparse.Namespace, *, quick: bool) -> list[tuple[int | None, int]]:
    """Pairs of cores (``None``: all) and threads."""
    threads = args.threads or (() if args.cores else (2,) if quick else (6, 16))
    for cores in args.cores or ():
        if cores > usable_cpus():
            raise UsageError(f"--cores must be <= {usable_cpus()}, the cores that this process may use, got {cores}")
    return [(count, count) for count in args.cores or ()] + [(None, count) for count in threads]


def _show(gathering: Gathering, model: str, cores: int | None, threads: int, results: dict[str, Any]) -> None:
    where = f"{threads} threads" if cores is None else f"{cores} cores"
    for name, result in results.items():
        rate, share = result["images_per_s"], result["share_of_ceiling"]
        console().print(
            f"{model}, {where}, {gathering.team.title(name)}: {rate['median']:,.0f} images/s"
            + ("" if share is None else f", {share['median']:.1%} of the ceiling")
            + f", GPU waited {result['wait_share']['median']:.0%}"
            + f", main thread {result['main_thread_us_per_batch']['median']:,.0f} µs per batch"
        )


QUESTIONS: Final = {
    "loaders": by_threads("loaders", rates, describe_rates),
    "train": train,
    "firstbatch": by_threads("firstbatch", first_batch, describe_first_batch),
    "cpu": by_threads("cpu", rates, describe_processor),
    "scaling": scaling,
    "total": total,
    "memory": by_threads("memory", memory.measure, memory.describe),
    "energy": by_threads("energy", energy.measure, energy.describe),
}
"""Functions that make the question of some options, by its name."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UsageError(f"{self.prog}: {message}")


def parse(text: str, common: argparse.Namespace) -> Question:
    """A question such as ``"train --models resnet50 --cores 6"``; else ``common`` options hold.

    Raises:
        UsageError: There is no such question or option.
    """
    name, *options = shlex.split(text) or [""]
    check_names("a question", [name], QUESTIONS)
    parser = _Parser(prog=name, add_help=False, allow_abbrev=False)
    for declare in (*commands.ASKED, *commands.QUESTIONS[name]):
        declare(parser)
    args = settled(parser.parse_args(options, copy.copy(common)))
    return QUESTIONS[name](args, setup_of(args))


def joined(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join all answers to one question; parameters that differ appear only in the points."""
    whole = copy.deepcopy(dict(records[0]))
    for record in records[1:]:
        whole["points"] += record["points"]
        whole["complete"] &= record["complete"]
        for name, known in record["contenders"].items():  # who failed in one answer has failed
            whole["contenders"][name] = {**known, **whole["contenders"].get(name, {})}
        parameters = whole["parameters"]
        for name, value in record["parameters"].items():
            if parameters[name] != value:
                parameters[name] = None
    return whole


def main(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks peers``, whose ``--json`` is a folder, or a question's own command."""
    if args.question:
        return run(args, QUESTIONS[args.question])
    texts = args.questions or list(QUESTIONS)
    asked = [parse(text, args) for text in texts]
    recipes = tuple(dict.fromkeys(question.setup.recipe for question in asked))
    names = tuple(dict.fromkeys(name for question in asked for name in question.setup.names))
    deadline = None if args.total_seconds is None else time.monotonic() + args.total_seconds
    all_right = True
    answers: dict[str, list[Mapping[str, Any]]] = {}

    def keep(record: dict[str, Any]) -> None:
        if args.json:
            before = answers.get(record["benchmark"], [])
            save(args.json / f"{record['benchmark']}.json", joined([*before, record]))

    with gathered(replace(asked[0].setup, names=names, recipe="crops"), recipes, deadline) as gathering:
        for text, question in zip(texts, asked, strict=True):
            if gathering.late():
                console().print(f"left out, time is up: {text}", markup=False)
                continue
            record, right = gathering.answer(question, keep)
            answers.setdefault(question.name, []).append(record)
            all_right &= right
    return 0 if all_right else 1
