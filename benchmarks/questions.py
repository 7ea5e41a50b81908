"""What contenders are asked: a table of the benchmarks against peers.

Every contender has a process of its own, and stands still while another has its turn. Batches are normalized float32
images on the GPU (without one: in host memory); only ``train`` does something with them.

* ``loaders``: the loader alone, against the number of threads.
* ``firstbatch``: time from making a loader to its first batch. Libraries are imported, the GPU is ready, the list of
  files is known; everything else counts: starting processes or threads, building pipelines, FastLoader's check.
* ``cpu``: processor seconds per image of all processes and threads of a contender, at a number of threads where none
  waits for a core; and what the training loop spends in ``next()``: Python, and starting copies and kernels.
* ``memory``, ``energy``, ``scaling``, ``train``: see the modules of these names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from benchmarks import energy, memory, scaling, train
from benchmarks._peers import Question, describe_rates, rates, run, spread_of, take_turns
from benchmarks.arguments import THREADS
from fastload._machine import usable_cpus
from fastload.measurement.console import console
from fastload.measurement.record import extent

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    from benchmarks._peers import Gathering, Points
    from benchmarks._setup import Setup
    from benchmarks.contenders._remote import Remote


@dataclass(frozen=True, slots=True)
class PeerBenchmark:
    """One benchmark against peers, as a command and as a question among several.

    Attributes:
        question: Makes the question that the options ask.
    """

    question: Callable[[argparse.Namespace, Setup], Question]

    def main(self, args: argparse.Namespace) -> int:
        """Run it as a command and return the exit code."""
        return run(args, self.question)


def by_threads(
    name: str,
    measure: Callable[[Gathering, Setup, int], dict[str, Any]],
    describe: Callable[[Mapping[str, Any]], str],
) -> PeerBenchmark:
    """Return a benchmark that depends on the number of threads.

    Args:
        name: The benchmark's; of its ``THREADS``, those that are more than the usable cores are left out.
        measure: Every contender at one number of threads: figures by contender.
        describe: One contender's figures in words.
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

    return PeerBenchmark(question)


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
    return {
        name: {
            "first_batch_s": spread_of(turns, lambda a: a["first_batch_s"]),
            "constructed_s": spread_of(turns, lambda a: a["constructed_s"]),
        }
        for name, turns in answers.items()
    }


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


LOADERS: Final = by_threads("loaders", rates, describe_rates)
TRAIN: Final = PeerBenchmark(train.question)
FIRSTBATCH: Final = by_threads("firstbatch", first_batch, describe_first_batch)
CPU: Final = by_threads("cpu", rates, describe_processor)
SCALING: Final = PeerBenchmark(scaling.question)
MEMORY: Final = by_threads("memory", memory.measure, memory.describe)
ENERGY: Final = by_threads("energy", energy.measure, energy.describe)

QUESTIONS: Final = {
    "loaders": LOADERS,
    "train": TRAIN,
    "firstbatch": FIRSTBATCH,
    "cpu": CPU,
    "scaling": SCALING,
    "memory": MEMORY,
    "energy": ENERGY,
}
