"""Measure what idle instrumentation costs: ``python -m benchmarks insight``.

Each figure is the difference between a loop with one of them in it and the same loop without, the two taking turns,
divided by the calls in it. No tool is attached, so this is what a program pays for annotations that it carries all the
time.

The sum of statistics and stages is then a share of the time between two real batches, and the loader runs with and
without statistics in turns, in the same process. There is no switch for the statistics: the loader without them is one
whose hooks are taken out while it is made and while it runs. Throughput on a busy machine says little about half a per
cent, so its difference has the interval that its median is in by 95%.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final
from unittest import mock

import torch
from torch import nn

from fastload import FastLoader, annotate, annotate_modules, capture, iterators
from fastload import loader as loader_module
from fastload._arguments import UsageError
from fastload.autoscale.policy import cores_for_loading
from fastload.bench._data import EndlessDraws, image_pool, open_images
from fastload.device import transfer as transfer_module
from fastload.device.copy_scheduler import CopyScheduler
from fastload.measurement.console import console
from fastload.measurement.record import Spread, environment, extent, interleave, save
from fastload.measurement.throughput import NATIVE_AHEAD, Rate, endless, in_flight, loop_rate
from fastload.nvtx import stages
from fastload.nvtx.modules import hook_while_profiling
from fastload.state import place
from fastload.stats import fetch_timer, meter
from fastload.workers import worker

LIMITS_NS: Final[Mapping[str, float]] = {"annotate_modules": 2000}
"""Largest figures that are wanted; the others are for information."""

LOST_MAX: Final = 0.005  # largest share of the throughput that is wanted for statistics, and for NVTX without a tool
_MODULES = 200
_LAPS = 20
_BATCHES = 500


def cost_of_modules(repeats: int) -> dict[str, Spread]:
    """Measure a module's call: bare, annotated, and with hooks that have no listener."""

    def model() -> nn.Module:
        return nn.Sequential(*(nn.Identity() for _ in range(_MODULES)))

    bare, annotated, hooked = model(), model(), model()
    with annotate_modules(hooked):
        hook_while_profiling(True)
        with annotate_modules(annotated):
            models = {"bare": bare, "annotate_modules": annotated, "its hooks, idle": hooked}
            contenders = {name: partial(_run, model) for name, model in models.items()}
            figures = _differences(contenders, repeats, _LAPS * (_MODULES + 1))
        hook_while_profiling(False)
    return figures


class _Called:
    @staticmethod
    def bare(number: int) -> int:
        return number

    @staticmethod
    def annotated(number: int) -> int:
        return number


def cost_of_functions(repeats: int) -> dict[str, Spread]:
    """A call of an annotated function, beside a bare one."""
    calls = _LAPS * _MODULES

    def loop(function: Callable[[int], int]) -> None:
        for number in range(calls):
            function(number)

    with annotate(_Called, "annotated"):
        contenders = {"bare": partial(loop, _Called.bare), "annotate": partial(loop, _Called.annotated)}
        return _differences(contenders, repeats, calls)


def cost_of_stages(repeats: int) -> dict[str, Spread]:
    """A stage, of which a batch has half a dozen, beside nothing at all."""
    calls = _LAPS * _MODULES

    def staged() -> None:
        for number in range(calls):
            with stages.stage("h2d", number):
                pass

    def bare() -> None:
        for _ in range(calls):
            pass

    return _differences({"bare": bare, "stage": staged}, repeats, calls)


def cost_of_capture(repeats: int) -> dict[str, Spread]:
    """A batch outside the window of ``capture``, beside one without it."""
    source = range(_LAPS * _MODULES)

    def drain(batches: Iterable[int]) -> None:
        for _ in batches:
            pass

    captured = capture(source, warmup=10**12, steps=1)
    return _differences({"bare": partial(drain, source), "capture": partial(drain, captured)}, repeats, len(source))


def cost_of_statistics(repeats: int) -> dict[str, Spread]:
    """Measure a batch with full statistics, worker's side included, and a batch without."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return _differences(stats_of_a_batch(device, _BATCHES), repeats, _BATCHES)


QUESTIONS: Final[Mapping[str, Callable[[int], dict[str, Spread]]]] = {
    "a module's call": cost_of_modules,
    "a function's call": cost_of_functions,
    "a stage": cost_of_stages,
    "a batch": cost_of_capture,
    "a batch's way": cost_of_statistics,
}


def _run(model: nn.Module) -> None:
    nothing = torch.zeros(1)
    for _ in range(_LAPS):
        model(nothing)


def _differences(contenders: Mapping[str, Callable[[], object]], repeats: int, calls: int) -> dict[str, Spread]:
    """Return each contender's extra processor nanoseconds per call over ``"bare"``, by round."""

    def timed(run: Callable[[], object]) -> float:
        start = time.process_time_ns()  # all threads', and not that of others on the same cores
        run()
        return (time.process_time_ns() - start) / calls

    for run in contenders.values():
        run()
    spreads = interleave({name: partial(timed, run) for name, run in contenders.items()}, repeats)
    bare = spreads.pop("bare")
    return {
        name: Spread.of([ours - plain for ours, plain in zip(spread.values, bare.values, strict=True)])
        for name, spread in spreads.items()
    }


class _NoCounters:
    begin = end = fail = paint = note_deferred = staticmethod(lambda *arguments: None)


@contextlib.contextmanager
def without_stats() -> Iterator[None]:
    """No statistics in loaders that are made and run within."""
    with contextlib.ExitStack() as patches:

        def put(place: Any, name: str, value: Any) -> None:
            patches.enter_context(mock.patch.object(place, name, value))

        put(meter.Meter, "ask", lambda self: 0.0)
        put(meter.Meter, "got", lambda self, *rest, **more: None)
        for module in (loader_module, iterators):
            put(module, "measure", lambda iterator, measured, **more: measured)
        put(iterators, "measure_here", lambda iterator, measured, **more: None)
        put(worker, "WorkerCounters", lambda *arguments, **more: _NoCounters)
        put(worker, "listen", lambda *arguments: None)
        put(place.Position, "follow", lambda self, *rest: None)  # which reads the meter
        put(transfer_module, "DeviceClock", lambda module: None)
        yield


def stats_of_a_batch(device: torch.device, batches: int) -> dict[str, Callable[[], object]]:
    """Epochs of a loader whose batches cost nothing.

    ``bare`` is without statistics; ``stats`` has all of them, the worker's side too; ``stats, native`` has those of the
    native engine, where no worker fetches. Batches are copied when they are asked for, on the side stream, in the one
    thread that there is: two would also measure their contention for the interpreter's lock.
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
    return CopyScheduler(transfer, ahead=0, **arguments)


def _first(samples: Any) -> Any:
    return samples[0]


class Compared:
    """One path of batches, run with and without statistics.

    Args:
        make: Function that makes the loader.
        batch_size: Images per batch.
        device: Device of the batches.
        rush: Number of batches that may be ready when a turn begins; ``None`` for what workers prefetch.
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
        with self._opened(bare=True) as off, self._opened(bare=False) as on:
            rates: dict[str, list[Rate]] = {"off": [], "on": []}

            def turn(name: str, feed: tuple[Iterator[Any], int, int]) -> float:
                batches, rush, rounds = feed
                with without_stats() if name == "off" else contextlib.nullcontext():
                    rate = loop_rate(batches, id, self._device, seconds=seconds, warm_steps=rush, rounds_of=rounds)
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


def interval_of_median(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95% confidence interval of the median.

    Both ends are order statistics, so the interval holds for any distribution. With fewer than 6 values it is all of
    them.
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


def ask(repeats: int) -> dict[str, Any]:
    """Ask every question and show the answers; returns the record for the JSON file."""
    record: dict[str, Any] = {
        "benchmark": "insight",
        "environment": environment(),
        "parameters": {"repeats": repeats},
        "tool_attached": stages.active(),
        "more_ns": {},
        "limits_ns": dict(LIMITS_NS),
    }
    for what, question in QUESTIONS.items():
        for name, spread in question(repeats).items():
            record["more_ns"][name] = spread.record()
            limit = f", at most {LIMITS_NS[name]:,.0f} wanted" if name in LIMITS_NS else ""
            shown = f"{spread.median:,.0f} ns more ({extent(spread.record(), ',.0f')})"
            console().print(f"{name}: {what} takes {shown}{limit}")
    return record


def shares(more_ns: Mapping[str, Mapping[str, Any]], seconds: float, repeats: int, *, quick: bool) -> dict[str, Any]:
    """What statistics and stages come to beside real batches, by engine; shows it too."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = {}
    for name, path in paths(device, quick=quick).items():
        result = path.run(seconds, repeats)
        batch_ns = 1e9 / result["batches_per_s"]["on"]["median"]
        stage_count = stages_of_a_batch(path.make, 4 if quick else 32)
        result |= {
            "batch_size": path.batch_size,
            "stages_per_batch": stage_count,
            "stats_share": more_ns["stats, native" if name == "native" else "stats"]["median"] / batch_ns,
            "nvtx_share": stage_count * more_ns["stage"]["median"] / batch_ns,
            "limit": LOST_MAX,
        }
        found[name] = result
        lost = result["lost"]
        console().print(
            f"{name}, {result['images_per_s']['median']:,.0f} images/s in batches of {path.batch_size}: statistics "
            f"take {result['stats_share']:.3%} of the time between two batches, {stage_count:.1f} stages "
            f"{result['nvtx_share']:.4%}, at most {LOST_MAX:.1%} wanted; with statistics the loader is "
            f"{lost['median']:.2%} slower ({lost['low']:.2%} to {lost['high']:.2%} by 95%)"
        )
    return found


def main(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks insight``."""
    if stages.active():
        raise UsageError("a tool is attached to this process, and this measures what things cost without one")
    record = ask(args.repeats)
    seconds, rounds = (0.02, 5) if args.quick else (0.25, max(6, args.repeats))
    record["shares"] = shares(record["more_ns"], seconds, rounds, quick=args.quick)
    save(args.json, record)
    return 0
