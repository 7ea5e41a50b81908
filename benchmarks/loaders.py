"""The loader alone, against the number of threads, beside its peers: ``python -m benchmarks loaders``.

Nothing is done with the batches: normalized float32 images on the GPU (without one: in host memory). Every contender
has a process of its own, and stands still while another has its turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks._peers import attempt, by_threads, rate_figures, run, take_turns, warm_up
from benchmarks._setup import add_peer_arguments, add_threads_argument
from benchmarks.contenders._job import Job

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from benchmarks._peers import Gathering, Question
    from benchmarks._setup import Setup
    from benchmarks.contenders._remote import Remote

THREADS = (1, 2, 4, 8, 16)


def measure(gathering: Gathering, setup: Setup, threads: int) -> dict[str, Any]:
    """Every contender at one number of threads."""
    team = gathering.team
    job = Job(data=gathering.folder, threads=threads, batch_size=setup.batch_size, device=setup.device)
    team.open(gathering.present(setup), job)
    batches: dict[str, int] = {}
    for remote in gathering.present(setup):
        with attempt(remote), remote.turn():
            batches[remote.name] = warm_up(remote, threads, setup.seconds)

    def turn(remote: Remote) -> dict[str, Any]:
        return remote.ask("run", batches=batches[remote.name])

    answers = take_turns(gathering.present(setup), turn, setup.repeats)
    team.close_feeds()
    return {name: {**rate_figures(turns), "batches_per_turn": batches[name]} for name, turns in answers.items()}


def describe(result: Mapping[str, Any]) -> str:
    """A contender's figures in words."""
    rate = result["images_per_s"]
    return (
        f"{rate['median']:,.0f} images/s ({rate['min']:,.0f} to {rate['max']:,.0f}), "
        f"{result['processor_ms_per_image']['median']:.2f} ms of processor per image, "
        f"main thread {result['main_thread_us_per_batch']['median']:,.0f} µs per batch"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``python -m benchmarks loaders``."""
    add_peer_arguments(parser)
    add_threads_argument(parser, THREADS)


def question(args: argparse.Namespace, setup: Setup) -> Question:
    """What is asked."""
    return by_threads("loaders", args, setup, THREADS, measure, describe)


def main(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks loaders``."""
    return run(args, question)
