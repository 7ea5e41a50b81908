"""Measure a running loader's host and GPU memory: ``python -m benchmarks memory``.

A figure is the memory added to a process in which everything is imported and the GPU is ready; every turn has a process
of its own, because libraries keep memory that they once had. Host memory is

* the private and file pages of the loader's processes (a page that n of them share counts 1/n in each),
* all shared memory of the machine, mapped or not: batches on their way between processes, FastLoader's slots,
* pinned memory. Whether the kernel counts it among the above depends on the driver, so a process that pins some
  checks first, for memory that CUDA allocates and for memory that it registers. Where it is not counted, what torch's
  pinned allocator holds is added, and so are FastLoader's slots. Memory that a library pins itself (DALI) is not
  reported: its figure is then a lower bound, and the record says so.

The peak of samples while batches are taken for some seconds. Beside it stands by how much the machine's available
memory fell meanwhile: coarser, but it leaves out nothing.

Memory of the GPU is what all processes use, once a loader runs, over what they used before: torch's blocks, kernels,
and what a library allocates itself. The peak of what torch had allocated stands beside it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Generic, TypeVar

from benchmarks._peers import Gathering, settle, take_turns
from benchmarks._setup import Setup
from benchmarks.contenders._processes import Memory
from benchmarks.contenders._remote import Interpreters, Remote
from fastload.measurement.record import Spread

T = TypeVar("T")

_INTERVAL_S = 0.1
_PROBE_BYTES = 1 << 28


class Sampled(Generic[T]):
    """Samples of a quantity, taken by a thread while entered, and one at the end."""

    def __init__(self, sample: Callable[[], T], interval_s: float) -> None:
        self._sample = sample
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="fastload-memory", daemon=True)
        self.values: list[T] = []

    def _watch(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.values.append(self._sample())

    def __enter__(self) -> Sampled[T]:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.values.append(self._sample())


def counted_shares(device: str) -> dict[str, float]:
    """Share of pinned memory that :class:`Memory` sees by itself: torch's, and that of an arena."""
    shares = {"torch": 1.0, "arena": 1.0}
    if not device.startswith("cuda"):
        return shares
    for kind in shares:
        probe = Remote("ceiling", device, Interpreters())
        try:
            before = probe.memory().host_bytes
            probe.ask("pin", kind=kind, nbytes=_PROBE_BYTES)
            shares[kind] = (probe.memory().host_bytes - before) / _PROBE_BYTES
        finally:
            probe.end()
    return shares


def host_bytes(before: Memory, peak: Memory, pinned: Mapping[str, int], counted: Mapping[str, float]) -> int:
    """The memory added, with the pinned memory that the kernel did not count."""
    unseen = sum(pinned[f"{kind}_bytes"] for kind, share in counted.items() if share < 0.5)
    return peak.host_bytes - before.host_bytes + unseen


def measure(gathering: Gathering, setup: Setup, threads: int) -> dict[str, Any]:
    """Measure every contender at one number of threads."""
    team, remotes = gathering.team, gathering.present(setup)
    job = setup.job(gathering.folder, threads)
    team.together(team.present, Remote.end)  # shared memory of one would be taken for another's
    counted = counted_shares(setup.device)
    answers: dict[str, list[dict[str, Any]]] = {remote.name: [] for remote in remotes}

    def turn(remote: Remote) -> dict[str, Any]:
        try:
            device_before = remote.ask("device_memory")["used_bytes"]
            before = remote.memory()
            with Sampled(remote.memory, _INTERVAL_S) as sampled:
                remote.ask("open", **job.record())
                settle(remote)
                remote.ask("run", batches=2 * threads + 2, seconds=setup.seconds)
            device = remote.ask("device_memory")
            pinned = remote.ask("pinned_memory")
        finally:
            remote.end()
        peak = max(sampled.values, key=lambda sample: sample.host_bytes)
        least_available = min(sample.available_bytes for sample in sampled.values)
        return {
            "host_bytes": host_bytes(before, peak, pinned, counted),
            "device_bytes": None if device_before is None else device["used_bytes"] - device_before,
            "torch_peak_bytes": device["torch_peak_bytes"],
            "pinned": pinned,
            "available_fell_bytes": before.available_bytes - least_available,
            "before": asdict(before),
            "peak": asdict(peak),
        }

    for _ in range(setup.repeats):
        left = [remote for remote in remotes if remote.failed is None]
        team.together(left, Remote.restart)  # all at once: a process that stands still holds no batches
        for name, turns in take_turns([remote for remote in left if remote.failed is None], turn, 1).items():
            answers[name] += turns
    results = {}
    for remote in remotes:
        turns = answers[remote.name]
        if len(turns) < setup.repeats:
            continue
        on_device, by_torch = ([one[figure] for one in turns] for figure in ("device_bytes", "torch_peak_bytes"))
        results[remote.name] = {
            "host_bytes": Spread.of([one["host_bytes"] for one in turns]).record(),
            "device_bytes": None if None in on_device else Spread.of(on_device).record(),
            "torch_peak_bytes": None if None in by_torch else Spread.of(by_torch).record(),
            "lower_bound": remote.contender.pins_itself and counted["torch"] < 0.5,
            "counted": counted,
            "turns": turns,
        }
    return results


def describe(result: Mapping[str, Any]) -> str:
    """A contender's figures in words."""
    device = result["device_bytes"]
    bound = "at least " if result["lower_bound"] else ""
    host = f"{bound}{result['host_bytes']['median'] / 1e6:,.0f} MB of the host"
    return host if device is None else f"{host}, {device['median'] / 1e6:,.0f} MB of the GPU"
