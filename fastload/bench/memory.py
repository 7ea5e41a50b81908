"""Memory of the host and of the GPU that a running loader holds, beside its peers: ``fastload bench memory``.

What counts is what is added to a process in which everything is imported and the GPU is ready; every turn has a process
of its own, because libraries keep what they once had. Host memory is the private and file pages of the loader's
processes (each page shared by n of them counts 1/n in each) and all shared memory, pinned memory of CUDA included,
mapped or not. The peak of samples while batches are taken for some seconds.
"""

from __future__ import annotations

import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fastload.bench._measure import Spread
from fastload.bench._peers import add_peer_arguments, add_threads_argument, answer, take_turns
from fastload.bench.contenders._job import Job

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from fastload.bench._peers import Gathering, Setup
    from fastload.bench.contenders._processes import Memory
    from fastload.bench.contenders._remote import Remote

THREADS = (16,)
_INTERVAL_S = 0.2


class Sampler:
    """Samples a contender's host memory while it is entered.

    Args:
        remote: Whose.
    """

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="fastload-memory", daemon=True)
        self._samples: list[Memory] = []

    def _watch(self) -> None:
        while not self._stop.wait(_INTERVAL_S):
            self._samples.append(self._remote.memory())

    def peak(self) -> Memory:
        """The sample with the most host memory."""
        return max(self._samples, key=lambda sample: sample.host_bytes)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._samples.append(self._remote.memory())


def measure(gathering: Gathering, setup: Setup, threads: int) -> dict[str, Any]:
    """Every contender at one number of threads."""
    team = gathering.team
    job = Job(data=gathering.folder, threads=threads, batch_size=setup.batch_size, device=setup.device)

    def turn(remote: Remote) -> dict[str, Any]:
        remote.restart()
        device_before = remote.ask("device_memory")["used_bytes"]
        before = remote.memory()
        remote.ask("open", **job.record())
        with Sampler(remote) as sampler:
            remote.ask("run", batches=2 * threads + 2, seconds=setup.seconds)
        device_after = remote.ask("device_memory")["used_bytes"]
        peak = sampler.peak()
        remote.end()
        return {
            "host_bytes": peak.host_bytes - before.host_bytes,
            "device_bytes": None if device_after is None else device_after - device_before,
            "before": asdict(before),
            "peak": asdict(peak),
        }

    for remote in team.present:
        remote.end()  # its shared memory would be taken for another's
    answers = take_turns(team.present, turn, setup.repeats)
    results = {}
    for name, turns in answers.items():
        on_device = [turn["device_bytes"] for turn in turns]
        results[name] = {
            "host_bytes": Spread.of([turn["host_bytes"] for turn in turns]).record(),
            "device_bytes": None if None in on_device else Spread.of(on_device).record(),
            "turns": turns,
        }
    return results


def describe(result: Mapping[str, Any]) -> str:
    """A contender's figures in words."""
    device = result["device_bytes"]
    host = f"{result['host_bytes']['median'] / 1e6:,.0f} MB of the host"
    return host if device is None else f"{host}, {device['median'] / 1e6:,.0f} MB of the GPU"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``fastload bench memory``."""
    add_peer_arguments(parser)
    add_threads_argument(parser, THREADS)


def main(args: argparse.Namespace) -> int:
    """Run ``fastload bench memory``."""
    return answer("memory", args, THREADS, measure, describe)
