"""Measure well-known training recipes beside torch's DataLoader: ``python -m benchmarks recipes``.

For each recipe of :mod:`benchmarks._recipes`: the batches are compared with torch's, bit for bit, from the same seeds;
then both loaders take turns, an epoch each: as long as a loader needs for ``--turn-seconds``, or ``--images`` long
where the recipe has a sampler of its own or a stream. With a GPU both bring their batches there.

``python -m benchmarks onecore`` measures augmentations in the same way, on one core: the process and its one worker, or
decode thread, share it, so that images/s are what a core is worth.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import torch
from torch.utils.data import DataLoader

from benchmarks._checkout import on_cores
from benchmarks._recipes import PIPELINES, RECIPES, Source, TrainingRecipe
from fastload import FastLoader, verify
from fastload._arguments import UsageError
from fastload._batch import map_tensors
from fastload.bench._compare import lengthen, race
from fastload.bench._data import check_data, check_shared_memory
from fastload.bench.photos import PhotoSet, write_photos
from fastload.measurement.console import console
from fastload.measurement.record import environment, extent, ratio, save
from fastload.plan import ON_LAZY_IMAGES, Plan

FASTER: Final = 1.3  # times torch's speed, to count a recipe as faster
NATIVE: Final = "threads"
AROUND: Final = "workers, native samples"
LAZY: Final = "workers, lazy images"


class _Named(Protocol):
    @property
    def name(self) -> str: ...


Chosen = TypeVar("Chosen", bound=_Named)


def where(plan: Plan) -> str:
    """Say what runs a loader's transforms."""
    if plan.engine == "native":
        return AROUND if any(step.name == "collate" for step in plan.steps) else NATIVE
    return LAZY if any(ON_LAZY_IMAGES in step.what for step in plan.steps) else "workers, as in torch"


def measure(recipe: TrainingRecipe, source: Source, workers: int, repeats: int, turn_seconds: float) -> dict[str, Any]:
    """Compare, then time one recipe; returns its row of the record."""
    row: dict[str, Any] = {"recipe": recipe.name, "what": recipe.what}
    if recipe.needs is not None and importlib.util.find_spec(recipe.needs) is None:
        return {**row, "skipped": f"{recipe.needs} is not installed"}
    on_gpu = torch.cuda.is_available()
    given: dict[str, Any] = {"batch_size": source.batch_size, "num_workers": workers, "pin_memory": on_gpu}
    given |= {"persistent_workers": True, **recipe.arguments(source)}
    same = verify(lambda: FastLoader(**given, exact=recipe.exact), batches=4)
    if not same:
        return {**row, "same": False, "difference": str(same)}
    receive = {"torch": to_gpu} if on_gpu else {}
    # At first a batch of each worker; it is lengthened in place.
    first = range(source.batch_size * max(1, workers) if given.pop("shuffle", None) else 0)
    orders = {name: [index % source.images for index in first] for name in ("torch", "fastload") if first}
    sampled = {name: {**given, "sampler": orders[name]} if first else given for name in ("torch", "fastload")}
    with FastLoader(**sampled["fastload"], exact=recipe.exact) as ours:
        loaders: dict[str, DataLoader[Any]] = {"torch": DataLoader(**sampled["torch"]), "fastload": ours}
        lengthen(loaders, orders, turn_seconds, receive)
        images = {name: len(orders.get(name, ())) or source.images for name in loaders}
        speeds = race(loaders, images, repeats, receive)
        plan = ours.plan
    return {
        **row,
        "same": True,
        "where": where(plan),
        "why": [note for note in plan.notes if plan.engine != "native"],
        "images": images,
        "images_per_s": {name: spread.record() for name, spread in speeds.items()},
        "speedup": ratio(speeds["fastload"], speeds["torch"]).record(),
    }


def to_gpu(batch: Any) -> None:
    """Copy a pinned batch to the GPU, images in channels_last, as a training loop does."""

    def moved(tensor: Any) -> Any:
        there = tensor.to("cuda", non_blocking=True)
        return there.contiguous(memory_format=torch.channels_last) if there.dim() == 4 else there

    map_tensors(moved, batch)


def counts(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Count recipes: all, skipped, same, wholly native, faster than :data:`FASTER`."""
    done = [row for row in rows if "speedup" in row]
    return {
        "recipes": len(rows),
        "skipped": sum("skipped" in row for row in rows),
        "same": sum(row.get("same", False) for row in rows),
        "native": sum(row["where"] == NATIVE for row in done),
        "faster": sum(row["speedup"]["median"] > FASTER for row in done),
    }


def main(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks recipes`` or ``onecore``; 1 if batches differ from torch's."""
    if args.benchmark == "recipes":
        return measure_all(args, RECIPES)
    with on_cores(1):
        return measure_all(args, PIPELINES)


def measure_all(args: argparse.Namespace, recipes: Sequence[TrainingRecipe]) -> int:
    """Measure the chosen recipes; 1 if batches differ from torch's."""
    check_data(args.data)
    chosen = choose(recipes, args.only)
    check_shared_memory(args.workers, 10 * args.batch_size)
    count = 16 if args.quick else 512
    folder = args.data or write_photos(Path(".fastload") / f"photos-{count}", PhotoSet(count=count)).path
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    parameters = {
        name: getattr(args, name) for name in ("images", "batch_size", "workers", "turn_seconds", "repeats", "quick")
    }
    record = {"benchmark": args.benchmark, "environment": environment(), "parameters": parameters, "note": args.note}
    with tempfile.TemporaryDirectory(prefix="fastload-recipes-") as scratch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")  # fewer cores than workers
        source = Source(folder, args.images, Path(scratch), args.batch_size, max(4, args.workers))
        for recipe in chosen:
            try:
                rows.append(measure(recipe, source, args.workers, args.repeats, args.turn_seconds))
            except Exception as error:  # noqa: BLE001 - one recipe's end does not end the others
                rows.append({"recipe": recipe.name, "what": recipe.what, "failed": f"{type(error).__name__}: {error}"})
            console().print(_line(rows[-1]), markup=False)
            whole = len(rows) == len(recipes)
            save(args.json, {**record, "rows": rows, "counts": counts(rows), "complete": whole})
    found = counts(rows)
    console().print(
        "{native} of {recipes} recipes run wholly natively, {faster} are faster than 1.3 times; "
        "{same} with the same bits, {skipped} skipped".format(**found)
    )
    return int(found["same"] + found["skipped"] < found["recipes"])


def choose(recipes: Sequence[Chosen], only: str | None) -> list[Chosen]:
    """Return the recipes, or programs, whose names contain one of the parts of ``--only``."""
    parts = (only or "").lower().split(",")
    for part in parts:
        if not any(part in recipe.name.lower() for recipe in recipes):
            names = ", ".join(repr(recipe.name) for recipe in recipes)
            raise UsageError(f"--only must be part of a name, got {part!r}; the names are {names}")
    return [recipe for recipe in recipes if any(part in recipe.name.lower() for part in parts)]


def _line(row: dict[str, Any]) -> str:
    if "speedup" not in row:
        return f"{row['recipe']:<28} {row.get('skipped') or row.get('failed') or row['difference']}"
    speed = {name: row["images_per_s"][name]["median"] for name in ("fastload", "torch")}
    gain = row["speedup"]
    return (
        f"{row['recipe']:<28} {row['where']:<21} {gain['median']:5.2f}× ({extent(gain, '.2f')})  "
        f"{speed['fastload']:,.0f} images/s, torch {speed['torch']:,.0f}"
    )
