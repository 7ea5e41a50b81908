"""Measure what the always-on statistics cost.

The cost is a batch's share of processor time, and the loader's throughput without statistics.

There is no switch for the statistics, so the loader without them is one whose hooks are taken out while it is made and
while it runs. It takes turns with the loader as it is, in the same process.

Throughput on a busy machine says little about half a per cent. So there are two answers: the difference in throughput,
with the interval that its median is in by 95%; and the processor time that the hooks take per batch, measured on a
loader that does next to nothing else, as a share of the time between two real batches.
"""

from __future__ import annotations

import contextlib
import math
import sys
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from fastload import FastLoader
from fastload import loader as loader_module
from fastload.autoscale.policy import cores_for_loading
from fastload.device import transfer as transfer_module
from fastload.engines import iterators, workers
from fastload.engines.copy_scheduler import CopyScheduler
from fastload.measurement.record import Spread, interleave
from fastload.measurement.throughput import NATIVE_AHEAD, endless, in_flight, loop_rate
from fastload.nvtx import stages
from fastload.state.place import Position
from fastload.stats import fetch_timer, meter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fastload.measurement.throughput import Rate

LOST_MAX = 0.005
"""Share of the throughput that statistics may cost, and NVTX without a tool."""


@contextlib.contextmanager
def without_stats() -> Iterator[None]:
    """No statistics in loaders that are made and run within."""
    with contextlib.ExitStack() as patches:

        def put(place: Any, name: str, value: Any) -> None:
            patches.enter_context(mock.patch.object(place, name, value))

        put(meter.Meter, "ask", lambda self: 0.0)
        put(meter.Meter, "got", lambda self, *rest, **more: None)
        for module in (loader_module, iterators):
            put(module, "measure", lambda iterator, measured: measured)
        put(iterators, "measure_here", lambda iterator, measured: None)
        put(workers, "MeasuredWorker", lambda first_call, counters: first_call or (lambda worker_id: None))
        put(Position, "follow", lambda self, *rest: None)  # which reads the meter
        put(transfer_module, "DeviceClock", lambda module: None)
        yield


def stats_of_a_batch(device: torch.device, batches: int) -> dict[str, Callable[[], object]]:
    """Epochs of a loader whose batches cost nothing.

    ``bare`` is without statistics; ``stats`` has them at their most thorough, the worker's side too; ``stats, native``
    has what the native engine has of them, where no worker fetches. Batches are copied when they are asked for, on the
    side stream, in the one thread that there is: two that contend for the interpreter's lock take time that has nothing
    to do with it.
    """
    samples: Any = torch.zeros(batches, 1)

    def epoch(*patches: Callable[[], contextlib.AbstractContextManager[Any]]) -> Callable[[], object]:
        loader: FastLoader[Any] = FastLoader(samples, batch_size=1, collate_fn=_first, device=device)

        def run() -> None:
            with contextlib.ExitStack() as patched:
                patched.enter_context(mock.patch.object(iterators, "CopyScheduler", _copied_when_asked_for))
                for patch in patches:
                    patched.enter_context(patch())
                for _ in loader:
                    pass

        return run

    def no_fetches(module: Any) -> Callable[[], contextlib.AbstractContextManager[Any]]:
        return lambda: mock.patch.object(module, "measure_here", return_value=None)

    return {
        "bare": epoch(without_stats),
        "stats": epoch(lambda: mock.patch.object(fetch_timer, "CLOSELY_S", -1.0)),
        "stats, native": epoch(no_fetches(meter), no_fetches(iterators)),
    }


def _copied_when_asked_for(transfer: Any, *, ahead: int, **arguments: Any) -> CopyScheduler:
    del ahead
    return CopyScheduler(transfer, ahead=0, **arguments)


def _first(samples: Any) -> Any:
    return samples[0]


class Compared:
    """One path of batches, run with and without statistics.

    Args:
        make: Makes the loader.
        batch_size: Its batches'.
        device: Where they go.
        rush: Batches that may be waiting when a turn begins.
    """

    def __init__(
        self, make: Callable[[], FastLoader[Any]], batch_size: int, device: torch.device, rush: int | None = None
    ) -> None:
        self.make = make
        self.batch_size = batch_size
        self._device = device
        self._rush = rush

    def run(self, seconds: float, repeats: int) -> dict[str, Any]:
        """Let both take turns."""
        with contextlib.ExitStack() as opened:
            off = opened.enter_context(self._opened(bare=True))
            on = opened.enter_context(self._opened(bare=False))
            rates: dict[str, list[Rate]] = {"off": [], "on": []}

            def turn(name: str, feed: tuple[Iterator[Any], int, int]) -> float:
                batches, rush, rounds = feed
                with without_stats() if name == "off" else contextlib.nullcontext():
                    rate = loop_rate(
                        batches, _nothing, self._device, seconds=seconds, warm_steps=rush, rounds_of=rounds
                    )
                rates[name].append(rate)
                return rate.steps / rate.seconds

            spreads = interleave({"off": lambda: turn("off", off), "on": lambda: turn("on", on)}, repeats)
        pairs = zip(spreads["on"].values, spreads["off"].values, strict=True)
        lost = Spread.of([1 - ours / plain for ours, plain in pairs])
        low, high = interval_of_median(lost.values)
        return {
            "batches_per_s": {name: spread.record() for name, spread in spreads.items()},
            "images_per_s": Spread.of([rate.images_per_s for rate in rates["on"]]).record(),
            "lost": lost.record() | {"low": low, "high": high},
        }

    @contextlib.contextmanager
    def _opened(self, *, bare: bool) -> Iterator[tuple[Iterator[Any], int, int]]:
        with self.make() as loader:
            feed = endless(loader)
            with without_stats() if bare else contextlib.nullcontext():
                next(feed)
            rush = in_flight(loader) if self._rush is None else self._rush
            yield feed, rush, 1 if self._rush is not None else loader.num_workers


def _nothing(batch: Any) -> None:
    """The step of a loop that only loads."""


def interval_of_median(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95% confidence interval of the median.

    Both ends are order statistics, so the interval holds for any distribution.

    Fewer than 6 values are too few for that; then it is all of them.
    """
    ordered, count = sorted(values), len(values)
    outside = 0.0  # the chance that the median is left of the value at `rank`
    rank = 0
    while rank < count // 2 and outside + math.comb(count, rank) / 2**count <= 0.025:
        outside += math.comb(count, rank) / 2**count
        rank += 1
    rank = max(0, rank - 1)
    return ordered[rank], ordered[count - 1 - rank]


def stages_of_a_batch(make: Callable[[], FastLoader[Any]], batches: int) -> float:
    """Stages that this process opens per batch."""
    opened = 0
    plain = stages.stage

    def counted(name: Any, batch: int | None = None) -> Any:
        nonlocal opened
        opened += 1
        return plain(name, batch)

    with contextlib.ExitStack() as patches:
        for name, module in list(sys.modules.items()):
            if name.startswith("fastload.") and vars(module).get("stage") is plain:
                patches.enter_context(mock.patch.object(module, "stage", counted))
        with make() as loader:
            feed = endless(loader)
            for _ in range(batches):
                next(feed)
    return opened / batches


def paths(device: torch.device, *, quick: bool) -> dict[str, Compared]:
    """Photographs through each engine."""
    from fastload.bench._data import EndlessDraws, image_pool, open_images

    dataset, _ = open_images(None, quick or device.type == "cpu")
    pool, gpu, cores = image_pool(dataset), device.type == "cuda", cores_for_loading()

    def path(engine: Any, workers: int, batch_size: int, rush: int | None = None) -> Compared:
        batch_size = 8 if quick else batch_size if gpu else 32

        def make() -> FastLoader[Any]:
            draws = EndlessDraws(pool, 1_000_000 * batch_size)
            return FastLoader(dataset, batch_size, sampler=draws, num_workers=workers, engine=engine, device=device)

        return Compared(make, batch_size, device, rush)

    # Worker processes have many batches under way, all of which are made anew in each turn: few images in each.
    return {"native": path("native", cores, 256, NATIVE_AHEAD), "worker processes": path("torch", min(cores, 8), 64)}
