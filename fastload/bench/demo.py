"""What FastLoader is about, in a minute, on real photographs: ``fastload bench demo``.

Loads the same images with torch's DataLoader and with FastLoader, compares every batch bit for bit, and times both in
turn. Both bring their batches to the GPU in channels_last, where there is one: DataLoader with pinned memory and a
hand-written copy. ``--ladder`` goes on to train ResNet-50 on a GPU, rung by rung.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from fastload import FastLoader
from fastload._arguments import UsageError
from fastload.bench import ladder
from fastload.bench._charts import draw_ladder, draw_race
from fastload.bench._compare import count_same, race
from fastload.bench._data import check_data, image_pool, loader_size, open_images, readable
from fastload.measurement.console import console
from fastload.measurement.record import environment, save, write_json

if TYPE_CHECKING:
    import argparse

    from fastload.measurement.record import Spread

OUTPUT = Path(".fastload")

PASTE = """
In your own script:

    from fastload import DataLoader        # instead of torch.utils.data's
    loader = DataLoader(dataset, ...)      # your arguments, unchanged
    print(loader.plan)                     # what runs where, and why
"""


def compare(data: Path | None, *, quick: bool, repeats: int) -> dict[str, Any]:
    """Compare and time both loaders.

    Returns:
        The record for the JSON file.

    Raises:
        ValueError: A batch differs.
        UsageError: An image cannot be read.
    """
    dataset, data_record = open_images(data, quick)
    pool = image_pool(dataset)
    images = torch.utils.data.Subset(dataset, pool)
    workers, batch_size = loader_size(quick)
    on_gpu = torch.cuda.is_available()
    arguments: dict[str, Any] = {"batch_size": batch_size, "shuffle": True, "num_workers": workers}
    arguments |= {"pin_memory": on_gpu, "persistent_workers": True}
    theirs = DataLoader(images, **arguments)
    with readable(dataset, pool), FastLoader(images, **arguments) as ours:
        screen = console()
        screen.print(f"{len(images)} photographs, batches of {batch_size}, {workers} workers: comparing ...")
        batches = count_same(ours, theirs)
        screen.print(f"{batches} of {batches} batches are the same, bit for bit\n")
        screen.print("what FastLoader does here:")
        screen.print(str(ours.plan), markup=False)

        def to_gpu(batch: list[torch.Tensor]) -> None:
            photographs, labels = (tensor.to("cuda", non_blocking=True) for tensor in batch)
            photographs.contiguous(memory_format=torch.channels_last)
            labels.sum()

        loaders: dict[str, DataLoader[Any]] = {"torch DataLoader": theirs, "FastLoader": ours}
        speeds = race(loaders, len(images), repeats, {"torch DataLoader": to_gpu} if on_gpu else None)
    _show(speeds, "on the GPU" if on_gpu else "on the CPU")
    return {
        "benchmark": "demo",
        "environment": environment(),
        "dataset": data_record,
        "parameters": {"batch_size": batch_size, "workers": workers, "repeats": repeats},
        "same_batches": batches,
        "images_per_s": {name: spread.record() for name, spread in speeds.items()},
    }


def _show(speeds: dict[str, Spread], where: str) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=f"batches {where}", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("loader")
    table.add_column("images/s", justify="right")
    table.add_column("±", justify="right")
    for name, spread in speeds.items():
        table.add_row(name, f"{spread.median:,.0f}", spread.plus_minus)
    console().print()
    console().print(table)


def main(args: argparse.Namespace) -> int:
    """Run ``fastload bench demo``."""
    check_data(args.data)
    loader_size(args.quick)
    if args.ladder and not torch.cuda.is_available():
        raise UsageError("--ladder trains on a GPU, and torch finds no CUDA device here")
    screen = console()
    record = compare(args.data, quick=args.quick, repeats=args.repeats)
    save(args.json, record)
    picture = OUTPUT / "demo.png"
    draw_race(record, picture)
    if args.ladder:
        _climb(args)
    screen.print(f"picture: {picture.absolute()}")
    screen.print(PASTE, markup=False)
    return 0


def _climb(args: argparse.Namespace) -> None:
    sizes: dict[str, Any] = {"batch_size": 8, "steps": 2, "repeats": 2} if args.quick else {"repeats": 3}
    climbed = ladder.show(ladder.Ladder(data=args.data, quick=args.quick, **sizes))
    write_json(OUTPUT / "ladder.json", climbed)
    draw_ladder(climbed, OUTPUT / "ladder.png")
    console().print(f"every figure: {OUTPUT / 'ladder.json'}; the chart: {OUTPUT / 'ladder.png'}")
