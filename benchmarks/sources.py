"""Measure loaders over each source of images: ``python -m benchmarks sources``.

The same photographs in each source, cropped to 224 pixels, in batches of 64, by two workers or decode threads, or by as
many as asked. Batches are compared first, where both draw the same numbers; then the loaders of a source take turns, an
epoch each.
"""

from __future__ import annotations

import functools
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from benchmarks._source_rows import BATCH_SIZE, OURS, ROWS, Row
from fastload.bench._data import check_data
from fastload.bench.photos import PhotoSet, write_photos
from fastload.measurement.console import console, refuse
from fastload.measurement.record import Spread, environment, interleave, ratio, write_json

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

PHOTOS_PER_WORKER = 256


def epoch(loader: Any) -> float:
    """Read an epoch, and return images per second."""
    begun, images = time.perf_counter(), 0
    for batch in loader:
        images += max(len(leaf) for leaf in tree_leaves(batch))
    return images / (time.perf_counter() - begun)


def first_batches(make: Callable[[], Any], count: int = 2) -> list[torch.Tensor]:
    """Return the tensors of a seeded loader's first batches."""
    torch.manual_seed(0)
    iterator = iter(make())
    found = []
    for _ in range(count):
        found += [
            leaf if isinstance(leaf, torch.Tensor) else torch.tensor(leaf) for leaf in tree_leaves(next(iterator))
        ]
    return found


def different(row: Row, makers: dict[str, Callable[[], Any]]) -> list[str]:
    """List the contenders whose batches are not those of the first one."""
    if not row.same_bits:
        return []
    first, *others = (name for name in makers if name not in row.own_order)
    expected = first_batches(makers[first])
    return [name for name in others if not _are_equal(first_batches(makers[name]), expected)]


def _are_equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


def measure(row: Row, makers: dict[str, Callable[[], Any]], repeats: int) -> dict[str, Any]:
    """Compare a source's loaders, and let them take turns."""
    if wrong := different(row, makers):
        return {"different": wrong}
    loaders = {name: make() for name, make in makers.items()}
    for loader in loaders.values():
        epoch(loader)  # its workers start, and it checks itself
    spreads = interleave({name: functools.partial(epoch, loader) for name, loader in loaders.items()}, repeats)
    beside = next(iter(makers))
    return {
        "beside": beside,
        "compared": [name for name in makers if row.same_bits and name not in row.own_order],
        "images_per_s": {name: spread.record() for name, spread in spreads.items()},
        "speedup": {name: _over(spreads, name, beside) for name in makers if name != beside},
    }


def _over(spreads: dict[str, Spread], name: str, beside: str) -> dict[str, Any]:
    return ratio(spreads[name], spreads[beside]).record()


def main(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks sources``; 1 if batches differ."""
    repeats = args.repeats if args.repeats is not None else 1 if args.quick else 5
    count = BATCH_SIZE * 3 if args.quick else PHOTOS_PER_WORKER * args.workers
    try:
        if repeats < 1:
            raise ValueError(f"repeats must be >= 1, got {repeats}")
        if args.workers < 1:
            raise ValueError(f"workers must be >= 1, got {args.workers}")
        if args.data is not None:
            check_data(args.data)
        if unknown := set(args.only or ()) - set(ROWS):
            raise ValueError(f"--only must be of {', '.join(ROWS)}, got {', '.join(sorted(unknown))}")
    except (ValueError, OSError) as error:
        return refuse(error)
    photo_set = PhotoSet(count=count, edge_px=64 if args.quick else 500)
    name = f"photos-{count}-{photo_set.edge_px}"
    photos = args.data or write_photos(Path(".fastload") / name, photo_set).path
    record: dict[str, Any] = {
        "benchmark": "sources",
        "environment": environment(),
        "parameters": {"quick": args.quick, "batch_size": BATCH_SIZE, "workers": args.workers, "repeats": repeats},
        "rows": [],
    }
    wrong = 0
    with tempfile.TemporaryDirectory(suffix="-quick" if args.quick else "") as room:
        for key in args.only or ROWS:
            row = ROWS[key]
            try:
                answer = measure(row, row.make(Path(photos).resolve(), Path(room), args.workers), repeats)
            except ImportError as error:
                answer = {"skipped": f"{error.name or error} is not installed"}
            wrong += "different" in answer
            record["rows"].append({"source": key, "what": row.what, **answer})
            console().print(_line(key, answer))
            if args.json:
                write_json(args.json, record)
    if args.json:
        console().print(f"figures: {args.json}")
    return int(wrong > 0)


def _line(key: str, answer: dict[str, Any]) -> str:
    if "images_per_s" not in answer:
        return f"{key}: {answer.get('skipped') or 'batches differ: ' + ', '.join(answer['different'])}"
    speeds = (f"{name} {speed['median']:,.0f}" for name, speed in answer["images_per_s"].items())
    return f"{key}: {', '.join(speeds)} images/s; {answer['speedup'][OURS]['median']:.2f}x"
