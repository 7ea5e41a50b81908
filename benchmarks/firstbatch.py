"""Time from making a loader to its first batch, beside its peers: ``python -m benchmarks firstbatch``.

Libraries are imported, the GPU is ready, the list of files is known to whoever needs one; everything else that a loader
does before its first batch counts: starting processes or threads, building pipelines, FastLoader's check of its recipe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks._peers import by_threads, run, spread_of, take_turns
from benchmarks._setup import add_peer_arguments, add_threads_argument
from benchmarks.contenders._job import Job

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from benchmarks._peers import Gathering, Question
    from benchmarks._setup import Setup
    from benchmarks.contenders._remote import Remote

THREADS = (8,)


def measure(gathering: Gathering, setup: Setup, threads: int) -> dict[str, Any]:
    """Every contender at one number of threads; the first loader of each process is not counted."""
    job = Job(data=gathering.folder, threads=threads, batch_size=setup.batch_size, device=setup.device)

    def turn(remote: Remote) -> dict[str, Any]:
        answer = remote.ask("open", **job.record())
        remote.ask("close")
        return answer

    gathering.team.open(gathering.present(setup), job)
    gathering.team.close_feeds()
    answers = take_turns(gathering.present(setup), turn, setup.repeats)
    return {
        name: {
            "first_batch_s": spread_of(turns, lambda a: a["first_batch_s"]),
            "constructed_s": spread_of(turns, lambda a: a["constructed_s"]),
        }
        for name, turns in answers.items()
    }


def describe(result: Mapping[str, Any]) -> str:
    """A contender's figures in words."""
    first = result["first_batch_s"]
    return f"first batch after {first['median']:.3f} s ({first['min']:.3f} to {first['max']:.3f})"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``python -m benchmarks firstbatch``."""
    add_peer_arguments(parser)
    add_threads_argument(parser, THREADS)


def question(args: argparse.Namespace, setup: Setup) -> Question:
    """What is asked."""
    return by_threads("firstbatch", args, setup, THREADS, measure, describe)


def main(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks firstbatch``."""
    return run(args, question)
