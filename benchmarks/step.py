"""Measure what the device side adds to a training step: ``python -m benchmarks step``.

Three questions:

* fed: a training step fed by ``prefetch_to_device`` from an instant source of pinned tensors, beside the same step with
  its data on the GPU already, and beside a copy on the compute stream. The contenders take turns; CUDA events.
* next: host time inside ``next()`` when a batch is ready on the device.
* parity: FastLoader with ``device="cpu", engine="torch"`` beside torch's DataLoader, same images, same workers, in
  turn.

Without a GPU only the last is asked.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from benchmarks.verdicts import Ready
from fastload import FastLoader, prefetch_to_device
from fastload.bench._compare import count_same, race
from fastload.bench._data import EndlessDraws, check_data, image_pool, loader_size, open_images
from fastload.bench._steps import Batch, TrainingStep, check_model, fixed_shapes, time_steps
from fastload.measurement.clock import Clock, CudaClock
from fastload.measurement.console import console
from fastload.measurement.record import Spread, environment, extent, interleave, ratio, save

Train = Callable[[Tensor, Tensor], object]

WARM_STEPS: Final = 5
SIDE_PX: Final = 224  # height and width of the images of the instant source


def instant_batches(batch_size: int, *, pinned: bool, count: int = 4) -> list[Batch]:
    """``count`` different batches of random images, fp32 NCHW, in host memory."""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(count):
        images = torch.randn(batch_size, 3, SIDE_PX, SIDE_PX, generator=generator)
        labels = torch.randint(1000, (batch_size,), generator=generator)
        batches.append((images.pin_memory(), labels.pin_memory()) if pinned else (images, labels))
    return batches


def compare_feeds(
    args: argparse.Namespace, device: torch.device, train: Train, clock: Clock, *, pinned: bool = True
) -> dict[str, Spread]:
    """Compare milliseconds per training step across three ways to feed it.

    Returns:
        ``"fed"`` by ``prefetch_to_device``, ``"inline"`` with a copy on the compute stream, and ``"resident"`` with no
        copy at all; one value per repeat.
    """
    source = instant_batches(args.batch_size, pinned=pinned)

    def to_device(images: Tensor, labels: Tensor) -> Batch:
        images = images.to(device, non_blocking=True).contiguous(memory_format=torch.channels_last)
        return images, labels.to(device, non_blocking=True)

    fed: Any = iter(prefetch_to_device(_forever(source), device))
    inline = _forever(source)
    resident = _forever([to_device(*batch) for batch in source])

    def ms_per_step(batches: Iterator[Batch], move: Callable[[Tensor, Tensor], Batch] | None = None) -> float:
        times = time_steps(batches, train, clock, args.steps, warm=WARM_STEPS, move=move)
        return float(times.seconds / args.steps * 1e3)

    contenders = {
        "fed": lambda: ms_per_step(fed),
        "inline": lambda: ms_per_step(inline, to_device),
        "resident": lambda: ms_per_step(resident),
    }
    try:
        ms_per_step(resident)  # cuDNN picks its kernels; the clocks of the GPU settle
        return interleave(contenders, args.repeats)
    finally:
        fed.close()


def time_next(batches: Iterator[Batch], train: Train, clock: Clock, calls: int, settle_s: float) -> Spread:
    """Microseconds of host time inside ``next()`` when the batch is ready.

    Between the calls the device finishes the step, then the loader gets ``settle_s`` seconds to bring up the next
    batch, then the device finishes its copy. The last batch has been let go of by then.
    """
    values = []
    for _ in range(WARM_STEPS + calls):
        start = time.perf_counter_ns()
        images, labels = next(batches)
        values.append((time.perf_counter_ns() - start) / 1e3)
        train(images, labels)
        del images, labels
        clock.finish()
        time.sleep(settle_s)
        clock.finish()
    return Spread.of(values[WARM_STEPS:])


def time_each_next(
    args: argparse.Namespace, device: torch.device, train: Train, clock: Clock, *, pinned: bool = True
) -> dict[str, Spread]:
    """:func:`time_next` of ``prefetch_to_device``, and of both loaders with two workers and small batches."""
    prefetched: Any = iter(prefetch_to_device(_forever(instant_batches(args.batch_size, pinned=pinned)), device))
    try:
        times = {"prefetch_to_device": time_next(prefetched, train, clock, args.calls, settle_s=0.005)}
    finally:
        prefetched.close()
    batch_size = min(args.batch_size, 32)
    image = torch.randn(3, SIDE_PX, SIDE_PX, generator=torch.Generator().manual_seed(0))
    dataset = Subset(Ready(image), range((args.calls + WARM_STEPS) * batch_size))
    with FastLoader(dataset, batch_size, num_workers=2, device=device) as loader:
        times["FastLoader"] = time_next(iter(loader), train, clock, args.calls, settle_s=0.05)

    def to_device(images: Tensor, labels: Tensor) -> object:
        return train(images.to(device, non_blocking=True), labels.to(device, non_blocking=True))

    theirs = iter(DataLoader(dataset, batch_size, num_workers=2, pin_memory=pinned))
    times["DataLoader"] = time_next(theirs, to_device, clock, args.calls, settle_s=0.05)
    return times


def compare_loaders(data: Path | None, *, quick: bool, repeats: int) -> dict[str, Any]:
    """Compare images/s of FastLoader and DataLoader on the CPU, after checking equal batches.

    FastLoader runs torch's worker processes here, natively nothing: what it adds to them is asked.
    """
    dataset, described = open_images(data, quick)
    pool = image_pool(dataset)
    workers, batch_size = loader_size(quick)
    images = batch_size * workers * (2 if quick else 8)
    arguments: dict[str, Any] = {"batch_size": batch_size, "sampler": EndlessDraws(pool, images)}
    arguments |= {"num_workers": workers, "persistent_workers": True}
    theirs = DataLoader(dataset, **arguments)
    with FastLoader(dataset, **arguments, device="cpu", engine="torch") as ours:
        same = count_same(ours, theirs)
        loaders: dict[str, DataLoader[Any]] = {"FastLoader": ours, "DataLoader": theirs}
        speeds = race(loaders, images, repeats)
    quotient = ratio(speeds["FastLoader"], speeds["DataLoader"])
    console().print(
        f"on the CPU, {same} batches the same: FastLoader {speeds['FastLoader'].median:,.0f} images/s, DataLoader "
        f"{speeds['DataLoader'].median:,.0f}, {_ratio(quotient, '.3f')}"
    )
    return {
        "dataset": described,
        **{"batch_size": batch_size, "workers": workers, "images": images, "same_batches": same},
        "images_per_s": {name: spread.record() for name, spread in speeds.items()},
        "fastloader_over_dataloader": quotient.record(),
    }


def _ratio(quotient: Spread, form: str) -> str:
    return f"ratio {quotient.median:{form}} ({extent(quotient.record(), form)})"


def on_gpu(args: argparse.Namespace, device: torch.device) -> Iterator[dict[str, Any]]:
    """Answer the two questions that need a GPU; yield each as it is answered."""
    train, clock = TrainingStep(args.model, device, channels_last=True), CudaClock()
    ms = compare_feeds(args, device, train, clock)
    fed: dict[str, Any] = {"ms_per_step": {name: spread.record() for name, spread in ms.items()}}
    for name in ("fed", "inline"):
        quotient = ratio(ms[name], ms["resident"])
        fed[f"{name}_over_resident"] = quotient.record()
        times = f"{ms[name].median:.2f} ms per step, resident: {ms['resident'].median:.2f} ms"
        console().print(f"{name}: {times}, {_ratio(quotient, '.4f')}")
    yield fed
    found = {}
    for name, us in time_each_next(args, device, train, clock).items():
        p99 = float(np.percentile(us.values, 99, method="inverted_cdf"))
        found[name] = {"median": us.median, "p99": p99, "max": max(us.values)}
        console().print(f"{name}: next() takes {us.median:.0f} µs, p99 {p99:.0f} µs")
    yield {"next_us": found}


def _forever(batches: list[Batch]) -> Iterator[Batch]:
    # A generator, so that its consumer can close it; itertools.cycle has no close().
    yield from itertools.cycle(batches)


def main(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks step``."""
    check_data(args.data)
    check_model(args.model)
    loader_size(args.quick)
    sizes = {name: getattr(args, name) for name in ("model", "batch_size", "steps", "repeats", "calls")}
    record: dict[str, Any] = {
        "benchmark": "step",
        "environment": environment(),
        "parameters": {**sizes, "side_px": SIDE_PX},
        "skipped": [],
        "complete": False,
    }

    def keep(answer: dict[str, Any]) -> None:
        record.update(answer)
        save(args.json, record)

    if torch.cuda.is_available():
        with fixed_shapes():
            for answer in on_gpu(args, torch.device("cuda", torch.cuda.current_device())):
                keep(answer)
    else:
        record["skipped"] = ["fed", "next"]
        console().print("skipped: fed, next (need a GPU)")
    keep({"parity": compare_loaders(args.data, quick=args.quick, repeats=args.repeats), "complete": True})
    return 0
