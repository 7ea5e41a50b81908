"""Measure ``state_dict()`` and going on from it: ``python -m benchmarks state``.

A shuffled epoch as long as ImageNet's, of samples that cost nothing, in worker processes. torchdata's
``StatefulDataLoader`` takes part if it is installed: as it is by default, with a snapshot of its workers for each
batch; with one every 1,000 batches, as its documentation recommends for large states; and with torch's own
``RandomSampler``. Iterable datasets, with and without a state of their own, have samples that cost 20 us, because those
without are read again.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import torch
from torch.utils.data import IterableDataset, RandomSampler, get_worker_info

from fastload import FastLoader
from fastload.measurement.console import console
from fastload.measurement.record import Spread, environment, interleave, save

SAMPLES: Final = 1_281_167
STEPS: Final = (1, 1_000, 100_000)
BATCH_SIZE: Final = 8  # so that an epoch has 100,000 batches
WORKERS: Final = 2
SAMPLE_S: Final = 20e-6
STREAM_SHARE: Final = 10  # an iterable dataset has one of so many samples


class Stream(IterableDataset[int]):
    """Samples that cost :data:`SAMPLE_S`, without a state."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.first = 0

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        share = self.count // (1 if info is None else info.num_workers)
        first, self.first = self.first, 0
        for self.place in range(first, share):
            until = time.perf_counter() + SAMPLE_S
            while time.perf_counter() < until:
                pass
            yield self.place


class PlacedStream(Stream):
    """The same with its place as its state."""

    place = -1

    def state_dict(self) -> dict[str, int]:
        """Return the next place."""
        return {"place": self.place + 1}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Begin there."""
        self.first = state["place"]


def kept(samples: list[int]) -> list[int]:
    """A collate function that costs nothing."""
    return samples


def contenders(samples: int) -> dict[str, Callable[[], Any]]:
    """Return what makes each loader, by name."""
    options: dict[str, Any] = {"batch_size": BATCH_SIZE, "num_workers": WORKERS, "collate_fn": kept}
    shuffled = {**options, "shuffle": True}
    few = samples // STREAM_SHARE

    def fastload(dataset: Callable[[int], Any], count: int, **more: Any) -> Callable[[], Any]:
        return lambda: FastLoader(dataset(count), device="cpu", **more)

    found = {
        "fastload": fastload(range, samples, **shuffled),
        "fastload, iterable with a state": fastload(PlacedStream, few, **options),
        "fastload, iterable without a state": fastload(Stream, few, **options),
    }
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ImportError:
        console().print("torchdata is not installed, so FastLoader is measured alone")
        return found

    def torchs_sampler() -> Any:
        dataset = range(samples)
        return StatefulDataLoader(dataset, sampler=RandomSampler(dataset), **options)

    return found | {
        "torchdata": lambda: StatefulDataLoader(range(samples), **shuffled),
        "torchdata, a snapshot every 1,000 batches": lambda: StatefulDataLoader(
            range(samples), snapshot_every_n_steps=1_000, **shuffled
        ),
        "torchdata, torch's RandomSampler": torchs_sampler,
        "torchdata, iterable with a state": lambda: StatefulDataLoader(PlacedStream(few), **options),
        "torchdata, iterable without a state": lambda: StatefulDataLoader(Stream(few), **options),
    }


def measure(make: Callable[[], Any], steps: tuple[int, ...], middle: int, repeats: int) -> tuple[dict[str, Any], bytes]:
    """Measure batches and states up to the last step; returns the middle's state too."""
    torch.manual_seed(0)
    loader = make()
    iterator = iter(loader)
    costs: dict[str, Any] = {}
    state = b""
    busy_s = 0.0
    last = max((*steps, middle))
    for step in range(1, last + 1):
        begin = time.perf_counter()
        next(iterator)
        busy_s += time.perf_counter() - begin if step > 1 else 0.0  # workers start in the first
        if step in steps:
            costs[str(step)] = {
                "bytes": len(_saved(loader.state_dict())),
                "call_us": Spread.of([_call_us(loader) for _ in range(repeats)]).record(),
            }
        if step == middle:
            state = _saved(loader.state_dict())
    return {"batch_us": 1e6 * busy_s / max(1, last - 1), "steps": costs}, state


def _saved(state: Any) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def _call_us(loader: Any) -> float:
    begin = time.perf_counter()
    loader.state_dict()
    return 1e6 * (time.perf_counter() - begin)


def first_batch_s(make: Callable[[], Any], saved: bytes | None) -> float:
    """Measure the seconds from a state, if any, to a new loader's first batch."""
    loader = make()
    begin = time.perf_counter()
    if saved is not None:
        loader.load_state_dict(torch.load(io.BytesIO(saved), weights_only=False))
    iterator = iter(loader)  # torchdata's loader keeps it; ending its workers is no part of the time
    next(iterator)
    return time.perf_counter() - begin


def main(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks state``."""
    samples, steps = (1_000, (1, 10)) if args.quick else (SAMPLES, STEPS)
    middle = samples // BATCH_SIZE // 2
    middles = {True: middle // STREAM_SHARE, False: middle}
    made = contenders(samples)
    torchdata = importlib.metadata.version("torchdata") if "torchdata" in made else None
    sizes = {"samples": samples, "batch_size": BATCH_SIZE, "workers": WORKERS, "middle": middle, "sample_s": SAMPLE_S}
    sizes |= {"iterable_samples": samples // STREAM_SHARE, "iterable_middle": middles[True]}
    costs: dict[str, dict[str, Any]] = {}
    states = {}
    for name, make in made.items():
        each = steps if name in ("fastload", "torchdata") else ()
        costs[name], states[name] = measure(make, each, middles["iterable" in name], 10 * args.repeats)
        console().print(f"{name}: {costs[name]['batch_us']:,.0f} us for a batch, with all that it does for a state")
        for step, cost in costs[name]["steps"].items():
            console().print(
                f"{name}, step {step}: {cost['bytes']:,} bytes, {cost['call_us']['median']:,.1f} us for a state_dict()"
            )
    turns = {
        f"{name}/{when}": partial(first_batch_s, make, saved)
        for name, make in made.items()
        for when, saved in {"middle": states[name], "beginning": None}.items()
    }
    for key, spread in interleave(turns, args.repeats).items():
        name, _, when = key.partition("/")
        costs[name][f"first_batch_s_{when}"] = spread.record()
        console().print(f"{name}, from the epoch's {when}: {spread.median:.3f} s to the first batch")
    record = {"benchmark": "state", "environment": environment() | {"torchdata": torchdata}, "parameters": sizes}
    save(args.json, {**record, "contenders": costs})
    return 0
