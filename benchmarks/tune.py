"""Measure ``num_workers="auto"`` beside every fixed number of workers: ``python -m benchmarks tune``.

Three workloads: photographs through the native engine, a transform in plain Python through worker processes, and a
light one whose model is heavy. Every number has a first look for a moment; those far behind the fastest are left out of
what follows. The loaders of the others are open at the same time, with persistent workers, and take turns at the same
training step. A turn is an epoch for all of them, the beginning left out: ``"auto"`` sizes worker processes when one
begins.

``"auto"`` should train at 97% of the best fixed number's rate or more, with at most 1.25 times its workers. That number
is the smallest whose median rate is within noise (3%) of the highest: more of them would gain nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.verdicts import Model, Ready, Texts
from fastload import FastLoader
from fastload._arguments import check_names
from fastload.autoscale.policy import AutoWorkers, cores_for_loading
from fastload.bench._data import EndlessDraws, check_data, image_pool, open_images
from fastload.bench._steps import TrainingStep, check_model
from fastload.measurement.clock import clock_for
from fastload.measurement.console import console
from fastload.measurement.record import Spread, environment, extent, interleave, ratio, save
from fastload.measurement.throughput import NATIVE_AHEAD, Rate, endless, in_flight, loop_rate

Step = Callable[[Any], object]
NOISE: Final = 0.03  # rates that differ by less than this share are equal
SHARE_MIN: Final = 0.97
WORKERS_MAX: Final = 1.25

_EPOCH_S: Final = 1.5  # a turn: natively "auto" decides twice a second
_NEAR: Final = 0.7  # of the fastest at first look
_SETTLED: Final = 3  # epochs of the same number, before the turns begin
_SETTLE_MAX: Final = 20


@dataclass(frozen=True)
class Workload:
    """A loader and a training step."""

    # function that makes a loader, of a number of batches per epoch and of workers
    loader: Callable[[int, int | str], FastLoader[Any]]
    step: Step  # function that trains on a batch
    is_native: bool = False  # whether the native engine runs it


def workloads(device: torch.device, *, quick: bool, data: Path | None, model: str) -> dict[str, Callable[[], Workload]]:
    """Functions that make the three workloads."""
    gpu = device.type == "cuda"
    own: dict[str, Any] = {"device": device, "persistent_workers": True, "drop_last": True}

    def photographs() -> Workload:
        from torchvision import transforms

        dataset, _ = open_images(data, quick or not gpu)
        if not gpu:
            steps = [transforms.RandomResizedCrop(112), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
            dataset.transform = transforms.Compose(steps)
        pool, batch_size = image_pool(dataset), 256 if gpu else 16

        def loader(batches: int, num_workers: Any) -> FastLoader[Any]:
            draws = EndlessDraws(pool, batches * batch_size)
            return FastLoader(dataset, batch_size, sampler=draws, num_workers=num_workers, engine="native", **own)

        if not gpu:
            return Workload(loader, model_of(device, 10e-3), is_native=True)
        train = TrainingStep(model, device, channels_last=True)
        return Workload(loader, lambda batch: train(*batch), is_native=True)

    def samples(dataset: Any, step_s: float) -> Workload:
        def loader(batches: int, num_workers: Any) -> FastLoader[Any]:
            part = torch.utils.data.Subset(dataset, range(32 * batches))
            return FastLoader(part, batch_size=32, num_workers=num_workers, **own)

        return Workload(loader, model_of(device, step_s))

    light = Ready(torch.zeros(3, 64, 64, dtype=torch.uint8))
    return {
        "photographs, native": photographs,
        "Python transform, worker processes": lambda: samples(Texts(800), 6e-3 if gpu else 50e-3),
        "light samples, heavy model": lambda: samples(light, 4e-3 if gpu else 30e-3),
    }


def model_of(device: torch.device, seconds: float) -> Model:
    """A model whose step takes about ``seconds`` by itself."""
    side, trials = 1024 if device.type == "cuda" else 256, 50
    clock, trial, batch = clock_for(device), Model(device, trials, side), torch.zeros(1, device=device)
    trial(batch)
    begin = clock.mark()
    trial(batch)
    end = clock.mark()
    clock.finish()
    return Model(device, max(1, round(trials * seconds / clock.between_s(begin, end))), side)


@dataclass
class TunedLoader:
    """A loader with one number of workers, or ``"auto"``."""

    measure: Callable[[], tuple[Rate, int]]  # function that takes a turn
    rates: list[Rate] = field(default_factory=list)  # rates of all turns
    workers: list[int] = field(default_factory=list)  # numbers of workers of all turns
    seen: list[dict[str, Any]] = field(default_factory=list)  # the loader's own statistics of its epochs

    def turn(self) -> float:
        """Take one; returns images/s."""
        rate, workers = self.measure()
        self.rates.append(rate)
        self.workers.append(workers)
        return rate.images_per_s


def first_look(workload: Workload, loader: FastLoader[Any], device: torch.device, seconds: float) -> float:
    """Images/s of a loader with a fixed number of workers, for a moment."""
    workers = int(loader.num_workers)
    ready = NATIVE_AHEAD if workload.is_native else in_flight(loader)
    rounds = 1 if workload.is_native else workers
    feed = endless(loader)
    return loop_rate(feed, workload.step, device, seconds=seconds, warm_steps=ready, rounds_of=rounds).images_per_s


def by_epoch(workload: Workload, loader: FastLoader[Any], device: torch.device, batches: int) -> TunedLoader:
    """A loader whose turn is an epoch."""
    seen: list[dict[str, Any]] = []

    def measure() -> tuple[Rate, int]:
        before, epoch = loader.stats(), iter(loader)
        first = min(NATIVE_AHEAD if workload.is_native else in_flight(loader), batches // 2)
        rate = loop_rate(epoch, workload.step, device, seconds=0.0, warm_steps=first, steps=max(1, batches - first - 1))
        for batch in epoch:
            workload.step(batch)
        stats, workers = loader.stats().since(before), workers_of(loader)
        shares = {place: stats.wait_share(place) for place in stats.waited_for if place != "gpu"}
        cost_ms = 1e3 * stats.making_s / max(1, stats.images)  # of one worker, per sample
        known = {"workers": workers, "stall": stats.stall, "device_stall": stats.device_stall}
        seen.append({**known, "waited_for": shares, "cost_ms": cost_ms})
        return rate, workers

    return TunedLoader(measure, seen=seen)


def workers_of(loader: FastLoader[Any]) -> int:
    """The current number of a loader's workers; natively, with ``"auto"``, of its threads."""
    workers: Any = loader.num_workers
    is_auto = isinstance(workers, AutoWorkers)
    threads = workers.sizing.threads if is_auto and loader.plan.engine == "native" else None
    return int(threads or workers)


def settle(contender: TunedLoader) -> tuple[float, list[int]]:
    """Take turns until the number stays; returns how long that took, and all numbers."""
    begin = time.monotonic()
    seen: list[int] = []
    while len(seen) < _SETTLE_MAX and (len(seen) < _SETTLED or len(set(seen[-_SETTLED:])) > 1):
        seen.append(contender.measure()[1])
    return time.monotonic() - begin, seen


def measure(
    workload: Workload, device: torch.device, counts: Sequence[int], *, seconds: float, epoch_s: float, repeats: int
) -> dict[str, Any]:
    """Let all contenders take turns at one workload."""
    looks = {}
    for count in counts:
        with workload.loader(1_000_000, count) as loader:
            looks[count] = first_look(workload, loader, device, seconds)
            batch_size = loader.batch_size or 1
            ready = NATIVE_AHEAD if workload.is_native else max(NATIVE_AHEAD, in_flight(loader))
    fastest = max(looks.values())
    batches = 2 * int(epoch_s * fastest / batch_size / 2) + 2 * ready
    with contextlib.ExitStack() as opened:
        contenders = {}
        numbers: list[int | str] = [count for count, rate in looks.items() if rate >= _NEAR * fastest]
        for number in [*numbers, "auto"]:
            loader = opened.enter_context(workload.loader(batches, number))
            contenders[str(number)] = by_epoch(workload, loader, device, batches)
        settled_s, while_settling = settle(contenders["auto"])
        spreads = interleave({name: contender.turn for name, contender in contenders.items()}, repeats)
        plan = str(loader.plan)
    return evaluate(spreads, contenders["auto"].workers) | {
        "wait_share": {
            name: Spread.of([rate.wait_share for rate in contender.rates]).record()
            for name, contender in contenders.items()
        },
        "first_look_images_per_s": {str(count): rate for count, rate in looks.items()},
        "seen_by_auto": contenders["auto"].seen,
        "settled_s": settled_s,
        "numbers_while_settling": while_settling,
        "batches_per_epoch": batches,
        "plan": plan.splitlines(),
    }


def evaluate(spreads: Mapping[str, Spread], workers: Sequence[int]) -> dict[str, Any]:
    """Compare ``"auto"``, with its ``workers`` by turn, with the fixed numbers, by images/s."""
    numbers = {int(name): spread for name, spread in spreads.items() if name != "auto"}
    fastest = max(numbers, key=lambda count: numbers[count].median)
    enough = min(n for n, spread in numbers.items() if spread.median >= (1 - NOISE) * numbers[fastest].median)
    share, many = ratio(spreads["auto"], numbers[fastest]), Spread.of([count / enough for count in workers])
    return {
        "images_per_s": {name: spread.record() for name, spread in spreads.items()},
        "fastest": fastest,
        "best": enough,
        "auto_workers": Spread.of(workers).record(),
        "share_of_fastest": share.record(),
        "workers_of_best": many.record(),
        "met": share.median >= SHARE_MIN and many.median <= WORKERS_MAX,
    }


def counts_up_to(cores: int) -> list[int]:
    """Every number up to 8, then every other."""
    return [*range(1, min(cores, 8) + 1), *range(10, cores + 1, 2)]


def main(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks tune``; 1 if a workload misses its limits."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    quick = args.quick
    seconds = args.seconds or (0.05 if quick else 0.25 if device.type == "cuda" else 0.8)
    counts = sorted(set(args.counts or ((1, 2) if quick else counts_up_to(cores_for_loading()))))
    check_model(args.model)
    check_data(args.data)
    chosen = workloads(device, quick=quick, data=args.data, model=args.model)
    check_names("--workload", args.workload or (), chosen)
    parameters = {"seconds": seconds, "repeats": args.repeats, "counts": counts, "model": args.model}
    limits = {"share_min": SHARE_MIN, "workers_max": WORKERS_MAX, "noise": NOISE}
    record = {"benchmark": "tune", "environment": environment(), "parameters": parameters, "limits": limits}
    wanted = args.workload or list(chosen)
    results: dict[str, Any] = {}
    for name in wanted:
        epoch_s = 0.1 if quick else max(_EPOCH_S, 2 * seconds)
        results[name] = measure(chosen[name](), device, counts, seconds=seconds, epoch_s=epoch_s, repeats=args.repeats)
        console().print(describe(name, results[name]))
        save(args.json, {**record, "complete": len(results) == len(wanted), "workloads": results})
    return 0 if quick or all(result["met"] for result in results.values()) else 1


def describe(name: str, result: Mapping[str, Any]) -> str:
    """One workload's figures in words."""
    share, many = result["share_of_fastest"], result["workers_of_best"]
    auto, best = (result["images_per_s"][key]["median"] for key in ("auto", str(result["best"])))
    return (
        f"{name}: auto reaches {share['median']:.1%} ({extent(share, '.1%')}) of the rate with {result['fastest']} "
        f"workers: {auto:,.0f} images/s with {result['auto_workers']['median']:g} workers, {many['median']:.2f} times "
        f"the {result['best']} that are enough ({best:,.0f} images/s)"
        + ("" if result["met"] else f"; wanted: {SHARE_MIN:.0%}, {WORKERS_MAX:g} times")
    )
