"""Measure pinned shared slots beside pinning by torch: ``python -m benchmarks slots``.

FastLoader beside ``DataLoader(pin_memory=True)`` with ``.cuda(non_blocking=True)``: same dataset of ready tensors, same
workers, delivered on the GPU. Workers persist; a figure is a whole epoch, from ``iter()`` to the last byte on the
device; the loaders take turns. Both yield the same bits, which is checked first.

The parts of the path are also measured one by one (stacking in the workers, first touch of the pages, the link), to
show which one is the limit. Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Subset

from benchmarks import tables
from benchmarks.memory import Sampled
from benchmarks.verdicts import Batches
from fastload import FastLoader
from fastload._arguments import check_names
from fastload._batch import map_tensors
from fastload._compare import difference
from fastload.measurement.console import console
from fastload.measurement.record import Spread, environment, interleave, ratio, save
from fastload.memory.arena import Arena
from fastload.memory.packing import Packer

IMAGE = (3, 224, 224)


class ReadyTensors(Dataset[Any]):
    """Images that only have to be stacked: ``length`` samples of ``distinct`` tensors."""

    def __init__(self, dtype: torch.dtype, length: int, distinct: int = 512) -> None:
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (distinct, *IMAGE), dtype=torch.uint8, generator=generator)
        self._images = images if dtype == torch.uint8 else images.to(dtype).div_(255)
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._images[index % len(self._images)], index


def many_small(length: int) -> Dataset[Any]:
    """A whole batch per index: 30 tensors of 1 KB."""
    batch = {f"field {i}": torch.arange(256, dtype=torch.float32) + i for i in range(30)}
    return Subset(Batches(batch), range(length))


class Tokens(Dataset[Any]):
    """Sequences of 32 to 2048 tokens."""

    def __init__(self, length: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self._lengths = torch.randint(32, 2049, (length,), generator=generator).tolist()

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((self._lengths[index],), index)


def as_dict(samples: list[Any]) -> Any:
    """A custom collate function, as users write it."""
    images, numbers = zip(*samples, strict=True)
    return {"images": torch.stack(images), "numbers": torch.tensor(numbers)}


def pad_to_longest(samples: list[torch.Tensor]) -> torch.Tensor:
    """One batch of tokens."""
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison."""

    dataset: Callable[[], Dataset[Any]]  # function that makes the dataset
    arguments: dict[str, Any]  # arguments of both loaders
    aim: float  # speed-up that is asked for


def cases(workers: int, batch_size: int, batches: int) -> dict[str, Case]:
    """The comparisons, at ``workers`` workers (small batches: half as many)."""
    images = {"batch_size": batch_size, "num_workers": workers}
    few = max(1, workers // 2)
    count = batches * batch_size
    return {
        "fp32 images": Case(lambda: ReadyTensors(torch.float32, count), images, 7.0),
        "uint8 images": Case(lambda: ReadyTensors(torch.uint8, count), images, 6.0),
        "custom collate": Case(lambda: ReadyTensors(torch.float32, count), {**images, "collate_fn": as_dict}, 2.0),
        "30 small tensors": Case(lambda: many_small(4 * batches), {"batch_size": None, "num_workers": few}, 1.0),
        "padded tokens": Case(
            lambda: Tokens(32 * 10 * batches), {"batch_size": 32, "num_workers": few, "collate_fn": pad_to_longest}, 1.0
        ),
    }


def to_cuda(batch: Any) -> Any:
    """Copy a pinned batch to the GPU, as a training loop does."""
    return map_tensors(lambda leaf: leaf.cuda(non_blocking=True), batch)


def deliveries(loader: DataLoader[Any]) -> Iterator[Any]:
    """Batches on the GPU, however they are copied there."""
    fast = isinstance(loader, FastLoader)
    for batch in loader:
        yield batch if fast else to_cuda(batch)


def epoch_s(loader: DataLoader[Any]) -> float:
    """Seconds of one epoch, up to the last byte on the device."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in deliveries(loader):
        pass
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def held_bytes(loader: DataLoader[Any] | None) -> int:
    """Pinned memory, torch's cache of it included, and what lies in ``/dev/shm``."""
    disk = os.statvfs("/dev/shm")
    held = (disk.f_blocks - disk.f_bfree) * disk.f_frsize
    held += int(torch.cuda.host_memory_stats().get("allocated_bytes.current", 0))
    return held + (loader.stats().pinned_bytes if isinstance(loader, FastLoader) else 0)


def memory_held(make: Callable[[], DataLoader[Any]]) -> dict[str, int]:
    """Return a loader's peak bytes in its first epoch and in its third.

    The baseline is taken before the loader is made.
    """
    gc.collect()
    before = held_bytes(None)
    loader = make()
    peaks = {}
    for epoch in ("first epoch", "second epoch", "third epoch"):
        with Sampled(partial(held_bytes, loader), 0.01) as held:
            epoch_s(loader)
        peaks[epoch] = max(held.values) - before
    if isinstance(loader, FastLoader):
        loader.close()
    return peaks


def check_same(loaders: dict[str, DataLoader[Any]], at_most: int = 40) -> int:
    """Compare an epoch's first batches of both loaders bit for bit; returns how many.

    Raises:
        RuntimeError: They differ.
    """
    compared = 0
    for number, batches in enumerate(zip(*map(deliveries, loaders.values()), strict=True)):
        if number < at_most:
            compared += 1
            if (found := difference(*batches)) is not None:
                raise RuntimeError(f"batch {number} differs between {' and '.join(loaders)}: {found}")
    return compared


def measure_case(case: Case, repeats: int) -> dict[str, Any]:
    """Measure one comparison; returns its JSON object."""
    dataset = case.dataset()
    common = {**case.arguments, "persistent_workers": True}
    makers: dict[str, Callable[[], DataLoader[Any]]] = {
        "fastload": lambda: FastLoader(dataset, memory_format=None, **common),
        "torch": lambda: DataLoader(dataset, pin_memory=True, **common),  # second: torch keeps what it has pinned
    }
    held = {name: memory_held(make) for name, make in makers.items()}
    loaders = {name: makers[name]() for name in ("torch", "fastload")}
    compared = check_same(loaders)  # an epoch of each: the warm-up, too
    for loader in loaders.values():
        epoch_s(loader)
    seconds = interleave({name: partial(epoch_s, loader) for name, loader in loaders.items()}, repeats)
    fast: Any = loaders["fastload"]
    stats = fast.stats()
    batches = len(fast)
    batch_bytes = stats.device_bytes / stats.copied

    def per_second(amount: float) -> dict[str, Any]:
        return {
            name: Spread.of([amount / value for value in spread.values]).record() for name, spread in seconds.items()
        }

    record = {
        "batches": batches,
        "batch_bytes": batch_bytes,
        "compared": compared,
        "seconds": {name: spread.record() for name, spread in seconds.items()},
        "gigabytes_per_s": per_second(batches * batch_bytes / 1e9),
        "batches_per_s": per_second(batches),
        "speedup": ratio(seconds["torch"], seconds["fastload"]).record(),
        "aim": case.aim,
        "held_bytes": held,
        "slots": {"count": stats.slots, "bytes": stats.slot_bytes, "pinned_bytes": stats.pinned_bytes},
        "in_slots": stats.slot_batches,
        "missed": dict(stats.missed),
        "plan": str(fast.plan),
    }
    fast.close()
    return record


def _stack_forever(arena: Arena, indices: list[int], samples: list[torch.Tensor], times: int) -> None:
    torch.set_num_threads(1)
    for turn in range(times):
        Packer(arena.mapping.slot(indices[turn % len(indices)])).stack(samples)


def parts_of_the_path(workers: int, batch_size: int) -> dict[str, Any]:
    """Measure each part of the path alone, in GB/s of batch bytes."""
    samples = list(torch.randint(0, 256, (batch_size, *IMAGE), dtype=torch.uint8).float())
    batch_bytes = batch_size * samples[0].nbytes
    begin = time.perf_counter()
    arena = Arena(1, 2 * workers, batch_bytes)
    registered_s = time.perf_counter() - begin
    context = torch.multiprocessing.get_context("fork")
    figures: dict[str, Any] = {"register_gigabytes_per_s": arena.nbytes / registered_s / 1e9}
    for count in sorted({1, workers}):
        for label, times in (("first touch", 2), ("steady", 40)):
            processes = [
                context.Process(target=_stack_forever, args=(arena, [2 * i, 2 * i + 1], samples, times))
                for i in range(count)
            ]
            begin = time.perf_counter()
            for process in processes:
                process.start()
            for process in processes:
                process.join()
            seconds = time.perf_counter() - begin
            figures[f"stack, {count} workers, {label}"] = count * times * batch_bytes / seconds / 1e9
    device = torch.empty(batch_bytes, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for turn in range(20):
        device.copy_(arena.mapping.slot(turn % arena.count), non_blocking=True)
    torch.cuda.synchronize()
    figures["link"] = 20 * batch_bytes / (time.perf_counter() - begin) / 1e9
    arena.close()
    return figures


def main(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks slots``."""
    chosen = cases(args.workers, args.batch_size, args.batches)
    check_names("--case", args.case or (), chosen)
    if not torch.cuda.is_available():
        console().print("bench slots: skipped, slots are registered with CUDA and torch finds no CUDA device here")
        return 0
    results = {}
    for name in args.case or chosen:
        begin = time.perf_counter()
        results[name] = record = measure_case(chosen[name], args.repeats)
        speedup = record["speedup"]["median"]
        console().print(
            f"{name}: {speedup:.2f} times as fast, {chosen[name].aim:g} asked for "
            f"({time.perf_counter() - begin:.0f} s to measure)"
        )
    parts = parts_of_the_path(args.workers, args.batch_size)
    console().print(tables.slots({"cases": results}), markup=False)
    for part, figure in parts.items():
        console().print(f"  {part}: {figure:.1f} GB/s")
    sizes = {"workers": args.workers, "batch_size": args.batch_size}
    record = {"benchmark": "slots", "environment": environment(), **sizes, "cases": results, "parts": parts}
    save(args.json, record)
    return 0
