"""Measure ``state_dict()`` and going on from it: ``python -m benchmarks state``.

A shuffled epoch as long as ImageNet's, of samples that cost nothing, in worker processes. torchdata's
``StatefulDataLoader`` takes part if it is installed; it is set as it is by default, with a snapshot of its workers for
each batch.
"""

from __future__ import annotations

import importlib.metadata
import io
import time
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.data import Dataset

from fastload import FastLoader
from fastload.measurement.console import console, refuse
from fastload.measurement.record import Spread, environment, interleave, write_json

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

SAMPLES: Final = 1_281_167
STEPS: Final = (1, 1_000, 100_000)
BATCH_SIZE: Final = 8  # so that an epoch has 100,000 batches
WORKERS: Final = 2


class Numbers(Dataset[int]):
    """Samples that cost nothing."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


def kept(samples: list[int]) -> list[int]:
    """A collate function that costs nothing."""
    return samples


def contenders(samples: int) -> dict[str, Callable[[], Any]]:
    """Return what makes each loader, by name."""
    options: dict[str, Any] = {"batch_size": BATCH_SIZE, "shuffle": True, "num_workers": WORKERS, "collate_fn": kept}
    found: dict[str, Callable[[], Any]] = {"fastload": lambda: FastLoader(Numbers(samples), device="cpu", **options)}
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ImportError:
        console().print("torchdata is not installed, so FastLoader is measured alone")
    else:
        found["torchdata"] = lambda: StatefulDataLoader(Numbers(samples), **options)
    return found


def measure(make: Callable[[], Any], steps: tuple[int, ...], middle: int, repeats: int) -> tuple[dict[str, Any], bytes]:
    """Measure batches and states up to the last step; returns the middle's state too."""
    torch.manual_seed(0)
    loader = make()
    iterator = iter(loader)
    costs: dict[str, Any] = {}
    state = b""
    busy_s = 0.0
    last = max(*steps, middle)
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
    next(iter(loader))
    return time.perf_counter() - begin


def main(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks state``."""
    repeats = args.repeats if args.repeats is not None else 1 if args.quick else 5
    if repeats < 1:
        return refuse(ValueError(f"repeats must be >= 1, got {repeats}"))
    samples, steps = (200, (1, 10)) if args.quick else (SAMPLES, STEPS)
    middle = samples // BATCH_SIZE // 2
    made = contenders(samples)
    record: dict[str, Any] = {
        "benchmark": "state",
        "environment": environment()
        | {"torchdata": importlib.metadata.version("torchdata") if "torchdata" in made else None},
        "parameters": {"samples": samples, "batch_size": BATCH_SIZE, "workers": WORKERS, "middle": middle},
        "contenders": {},
    }
    states = {}
    for name, make in made.items():
        costs, states[name] = measure(make, steps, middle, 10 * repeats)
        record["contenders"][name] = costs
        console().print(f"{name}: {costs['batch_us']:,.0f} us for a batch, with all that it does for a state")
        for step, cost in costs["steps"].items():
            console().print(
                f"{name}, step {step}: {cost['bytes']:,} bytes, {cost['call_us']['median']:,.1f} us for a state_dict()"
            )
    turns = {
        (name, when): lambda make=make, saved=saved: first_batch_s(make, saved)
        for name, make in made.items()
        for when, saved in {"middle": states[name], "beginning": None}.items()
    }
    spreads = interleave({"/".join(key): turn for key, turn in turns.items()}, repeats)
    for name, when in turns:
        spread = spreads[f"{name}/{when}"]
        record["contenders"][name][f"first_batch_s_{when}"] = spread.record()
        console().print(f"{name}, from the epoch's {when}: {spread.median:.3f} s to the first batch")
    if args.json:
        console().print(f"figures: {write_json(args.json, record)}")
    return 0
