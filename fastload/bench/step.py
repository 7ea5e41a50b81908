"""Measure what the device side adds to a training step: ``fastload bench step``.

Without a GPU, it measures what the loader costs.

Three questions, each answered by figures of its own:

* fed: a training step fed by ``prefetch_to_device`` from an instant source of pinned tensors, beside the same step with
  its data on the GPU already, and beside a copy on the compute stream. The contenders take turns; CUDA events.
* next: host time inside ``next()`` when a batch is ready on the device.
* parity: FastLoader with ``device="cpu", engine="torch"`` beside torch's DataLoader, same images, same workers, in
  turn.

Without a GPU only the last is asked.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset

from fastload import FastLoader, prefetch_to_device
from fastload.bench._compare import count_same, race
from fastload.bench._data import (
    EndlessDraws,
    SharedMemoryError,
    check_data,
    image_pool,
    loader_size,
    open_images,
)
from fastload.bench._steps import TrainingStep, check_model, fixed_shapes, run_steps
from fastload.measurement.clock import CudaClock
from fastload.measurement.console import console, refuse
from fastload.measurement.record import Spread, environment, interleave, ratio, write_json

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from fastload.bench._steps import Batch
    from fastload.measurement.clock import Clock

_WARM_STEPS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSetup:
    """How the questions are asked.

    Attributes:
        model: A name that ``torchvision.models.get_model`` knows.
        batch_size: Images per step.
        steps: Steps per repeat.
        repeats: Repeats per contender.
        calls: How many ``next()`` are timed.
        side_px: Height and width of the images of the instant source.
    """

    model: str = "resnet50"
    batch_size: int = 256
    steps: int = 30
    repeats: int = 5
    calls: int = 200
    side_px: int = 224

    def __post_init__(self) -> None:
        for name in ("batch_size", "steps", "repeats", "calls"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        check_model(self.model)


def instant_batches(setup: StepSetup, *, pinned: bool, count: int = 4) -> list[Batch]:
    """``count`` different batches of random images, fp32 NCHW, in host memory."""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(count):
        images = torch.randn(setup.batch_size, 3, setup.side_px, setup.side_px, generator=generator)
        labels = torch.randint(1000, (setup.batch_size,), generator=generator)
        batches.append((images.pin_memory(), labels.pin_memory()) if pinned else (images, labels))
    return batches


def compare_feeds(
    setup: StepSetup,
    device: torch.device,
    train: Callable[[Tensor, Tensor], object],
    clock: Clock,
    *,
    pinned: bool = True,
) -> dict[str, Spread]:
    """Compare milliseconds per training step across three ways to feed it.

    ``prefetch_to_device``, a copy on the compute stream, and no copy at all.

    Returns:
        ``"fed"``, ``"inline"`` and ``"resident"``, one value per repeat.
    """
    source = instant_batches(setup, pinned=pinned)

    def to_device(images: Tensor, labels: Tensor) -> Batch:
        images = images.to(device, non_blocking=True).contiguous(memory_format=torch.channels_last)
        return images, labels.to(device, non_blocking=True)

    def stay(images: Tensor, labels: Tensor) -> Batch:
        return images, labels

    fed: Any = iter(prefetch_to_device(_forever(source), device))
    inline = _forever(source)
    resident = _forever([to_device(*batch) for batch in source])

    def ms_per_step(batches: Iterator[Batch], move: Callable[[Tensor, Tensor], Batch]) -> float:
        before = run_steps(batches, move, train, clock, _WARM_STEPS)[-1]
        after = run_steps(batches, move, train, clock, setup.steps)[-1]
        clock.finish()
        return clock.between_s(before.ended, after.ended) / setup.steps * 1e3

    contenders = {
        "fed": lambda: ms_per_step(fed, stay),
        "inline": lambda: ms_per_step(inline, to_device),
        "resident": lambda: ms_per_step(resident, stay),
    }
    try:
        ms_per_step(resident, stay)  # cuDNN picks its kernels; the clocks of the GPU settle
        return interleave(contenders, setup.repeats)
    finally:
        fed.close()


def time_next(
    batches: Iterator[Batch], train: Callable[[Tensor, Tensor], object], clock: Clock, calls: int, settle_s: float
) -> Spread:
    """Microseconds of host time inside ``next()`` when the batch is ready.

    Between the calls the device finishes the step, then the loader gets ``settle_s`` seconds to bring up the next
    batch, then the device finishes its copy. The last batch has been let go of by then.
    """
    values = []
    for _ in range(_WARM_STEPS + calls):
        start = time.perf_counter_ns()
        images, labels = next(batches)
        values.append((time.perf_counter_ns() - start) / 1e3)
        train(images, labels)
        del images, labels
        clock.finish()
        time.sleep(settle_s)
        clock.finish()
    return Spread.of(values[_WARM_STEPS:])


class InstantImages(Dataset[Any]):
    """The same image again and again: a dataset that costs nothing.

    Args:
        count: Its length.
        side_px: Height and width of the image.
    """

    def __init__(self, count: int, side_px: int) -> None:
        self._count = count
        self._image = torch.randn(3, side_px, side_px, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._image, index % 1000


def time_both_next(
    setup: StepSetup,
    device: torch.device,
    train: Callable[[Tensor, Tensor], object],
    clock: Clock,
    *,
    pinned: bool = True,
) -> dict[str, Spread]:
    """:func:`time_next` of ``prefetch_to_device`` and of ``FastLoader`` with two workers and small batches."""
    prefetched: Any = iter(prefetch_to_device(_forever(instant_batches(setup, pinned=pinned)), device))
    try:
        times = {"prefetch_to_device": time_next(prefetched, train, clock, setup.calls, settle_s=0.005)}
    finally:
        prefetched.close()
    batch_size = min(setup.batch_size, 32)
    dataset = InstantImages((setup.calls + _WARM_STEPS) * batch_size, setup.side_px)
    with FastLoader(dataset, batch_size, num_workers=2, device=device) as loader:
        times["FastLoader"] = time_next(iter(loader), train, clock, setup.calls, settle_s=0.05)

    def to_device(images: Tensor, labels: Tensor) -> object:
        return train(images.to(device, non_blocking=True), labels.to(device, non_blocking=True))

    theirs = iter(DataLoader(dataset, batch_size, num_workers=2, pin_memory=pinned))
    times["DataLoader"] = time_next(theirs, to_device, clock, setup.calls, settle_s=0.05)
    return times


def compare_loaders(data: Path | None, *, quick: bool, repeats: int) -> tuple[dict[str, Any], dict[str, Spread]]:
    """Compare images/s of FastLoader and DataLoader on the CPU, after checking equal batches.

    FastLoader runs torch's worker processes here, natively nothing: what it adds to them is asked.

    Returns:
        What was loaded and how; images/s by loader.
    """
    dataset, data_record = open_images(data, quick)
    pool = image_pool(dataset)
    workers, batch_size = loader_size(quick)
    images = batch_size * workers * (2 if quick else 8)
    arguments: dict[str, Any] = {
        "batch_size": batch_size,
        "sampler": EndlessDraws(pool, images),
        "num_workers": workers,
        "persistent_workers": True,
    }
    theirs = DataLoader(dataset, **arguments)
    with FastLoader(dataset, **arguments, device="cpu", engine="torch") as ours:
        same = count_same(ours, theirs)
        speeds = race({"FastLoader": ours, "DataLoader": theirs}, images, repeats)
    parameters = {"batch_size": batch_size, "workers": workers, "images": images, "same_batches": same}
    return {"dataset": data_record, **parameters}, speeds


def ask(setup: StepSetup, data: Path | None, keep: Callable[[dict[str, Any]], object], *, quick: bool) -> None:
    """Ask every question that this machine can answer, and show the answers.

    Args:
        setup: How.
        data: An ImageFolder for the last question; ``None``: photographs.
        keep: Called with the record for the JSON file after each question.
        quick: Whether the last question is asked at a tiny size.
    """
    screen = console()
    record: dict[str, Any] = {
        "benchmark": "step",
        "environment": environment(),
        "parameters": asdict(setup),
        "skipped": [],
        "complete": False,
    }
    if torch.cuda.is_available():
        with fixed_shapes():
            for answer in _on_gpu(setup, torch.device("cuda", torch.cuda.current_device())):
                record |= answer
                keep(record)
    else:
        record["skipped"] = ["fed", "next"]
        screen.print("skipped: fed, next (need a GPU)")
    loaded, speeds = compare_loaders(data, quick=quick, repeats=setup.repeats)
    quotient = ratio(speeds["FastLoader"], speeds["DataLoader"])
    record["parity"] = {
        **loaded,
        "images_per_s": {name: spread.record() for name, spread in speeds.items()},
        "fastloader_over_dataloader": quotient.record(),
    }
    screen.print(
        f"on the CPU, {loaded['same_batches']} batches the same: "
        f"FastLoader {speeds['FastLoader'].median:,.0f} images/s, DataLoader {speeds['DataLoader'].median:,.0f}, "
        f"ratio {quotient.median:.3f} ({min(quotient.values):.3f} to {max(quotient.values):.3f})"
    )
    record["complete"] = True
    keep(record)


def _on_gpu(setup: StepSetup, device: torch.device) -> Iterator[dict[str, Any]]:
    """Answer the two questions that need a GPU; yield each as it is answered."""
    train = TrainingStep(setup.model, device, channels_last=True)
    ms = compare_feeds(setup, device, train, CudaClock())
    fed: dict[str, Any] = {"ms_per_step": {name: spread.record() for name, spread in ms.items()}}
    for name in ("fed", "inline"):
        quotient = ratio(ms[name], ms["resident"])
        fed[f"{name}_over_resident"] = quotient.record()
        console().print(
            f"{name}: {ms[name].median:.2f} ms per step, resident: {ms['resident'].median:.2f} ms, "
            f"ratio {quotient.median:.4f} ({min(quotient.values):.4f} to {max(quotient.values):.4f})"
        )
    yield fed
    times = time_both_next(setup, device, train, CudaClock())
    for name, us in times.items():
        console().print(f"{name}: next() takes {us.median:.0f} µs, p99 {us.percentile(99):.0f} µs")
    yield {
        "next_us": {
            name: {"median": us.median, "p99": us.percentile(99), "max": max(us.values)} for name, us in times.items()
        }
    }


def _forever(batches: list[Batch]) -> Iterator[Batch]:
    # A generator, so that its consumer can close it; itertools.cycle has no close().
    yield from itertools.cycle(batches)


def main(args: argparse.Namespace) -> int:
    """Run ``fastload bench step``."""
    values = {"batch_size": 8, "steps": 2, "repeats": 2, "calls": 10} if args.quick else {}
    given = {name: getattr(args, name) for name in ("batch_size", "steps", "repeats", "calls")}
    values |= {name: value for name, value in given.items() if value is not None}
    try:
        check_data(args.data)
        loader_size(args.quick)
        setup = StepSetup(model=args.model, **values)
    except (ValueError, FileNotFoundError, SharedMemoryError) as error:
        return refuse(error)
    ask(setup, args.data, lambda record: write_json(args.json, record) if args.json else None, quick=args.quick)
    if args.json:
        console().print(f"figures: {args.json}")
    return 0
