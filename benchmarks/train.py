"""Measure training fed by each loader: ``python -m benchmarks train``.

The result is a share of the step with its data on the GPU already.

bf16 autocast, SGD, channels_last. Times are those of the GPU's clock between the ends of steps; the main thread's is
its processor time in ``next()``, which the next step waits for. ``--cores`` limits a contender and all that it starts
to so many cores, with as many threads; ``--threads`` leaves it all cores.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks._peers import Question, attempt, settle, spread_of, take_turns
from benchmarks.arguments import MODELS
from fastload._machine import usable_cpus
from fastload.bench._steps import check_model, whole_bursts
from fastload.bench.arguments import TINY
from fastload.measurement.console import console
from fastload.measurement.record import Spread, ratio

if TYPE_CHECKING:
    import argparse

    from benchmarks._peers import Gathering, Points
    from benchmarks._setup import Setup
    from benchmarks.contenders._remote import Remote

CEILING = "ceiling"
WARM_STEPS = 10  # in which the libraries choose their kernels


def measure(gathering: Gathering, setup: Setup, model: str, threads: int, steps: int) -> dict[str, Any]:
    """Every contender, and the ceiling, with one model at one number of threads.

    Args:
        gathering: The contenders.
        setup: How often, and how long.
        model: What is trained.
        threads: Of each.
        steps: Most of a turn; fewer, by the contender's speed, if a point's time is limited.
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
    results = {}
    for name, turns in answers.items():
        results[name] = {
            "images_per_s": rates[name].record(),
            "steps": counted[name],
            "wait_share": spread_of(turns, lambda a: a["wait_share"]),
            "main_thread_us_per_batch": spread_of(turns, lambda a: 1e6 * a["main_thread_s"] / a["batches"]),
            "share_of_ceiling": ratio(rates[name], rates[CEILING]).record() if CEILING in rates else None,
        }
    return results


def question(args: argparse.Namespace, setup: Setup) -> Question:
    """What is asked."""
    models = args.models.split(",") if args.models else ([TINY] if setup.quick else list(MODELS))
    for model in models:
        check_model(model)
    steps = args.steps if args.steps is not None else (2 if setup.quick else 30)
    if steps < 1:
        raise ValueError(f"--steps must be >= 1, got {steps}")
    places = _places(args, quick=setup.quick)
    if CEILING not in setup.names:
        setup = replace(setup, names=(*setup.names, CEILING))

    def points(gathering: Gathering) -> Points:
        try:
            for cores, threads in places:
                _limit(gathering, cores)
                for model in models:
                    results = measure(gathering, setup, model, threads, steps)
                    _show(gathering, model, cores, threads, results)
                    yield {"model": model, "cores": cores, "threads": threads, "contenders": results}
        finally:
            _limit(gathering, None)

    parameters = {"models": models, "steps": steps, "autocast": "bfloat16"}
    return Question(name="train", setup=setup, parameters=parameters, measure=points)


def _limit(gathering: Gathering, cores: int | None) -> None:
    gathering.team.together(gathering.team.present, lambda remote: remote.ask("limit", cores=cores))


def _places(args: argparse.Namespace, *, quick: bool) -> list[tuple[int | None, int]]:
    """Pairs of cores (``None``: all) and threads."""
    threads = args.threads or (() if args.cores else (2,) if quick else (6, 16))
    for cores in args.cores or ():
        if cores > usable_cpus():
            raise ValueError(f"--cores must be <= {usable_cpus()}, the cores that this process may use, got {cores}")
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
