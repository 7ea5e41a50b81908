"""The loader alone against the size of the images and of the batch, beside its peers: ``fastload bench scaling``.

Images of 256 to 4000 px (long edge) are cropped and resized to 224 px as ever, at batches that shrink as the images
grow; batches of 16 to 1024 are made of images of the usual size. With ``--data`` only the batches change.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastload._machine import usable_cpus
from fastload.bench import loaders
from fastload.bench._measure import write_json
from fastload.bench._peers import add_peer_arguments, gathered, numbers, setup_of
from fastload.bench._show import console, refuse
from fastload.bench.photos import PhotoSet, write_photos

if TYPE_CHECKING:
    import argparse

    from fastload.bench._peers import Setup

EDGES = {256: 1000, 500: 1000, 1000: 500, 2000: 160, 4000: 64}
"""Long edge in pixels, and how many images of it: enough to be varied, few enough to be written soon."""

BATCH_SIZES = (16, 64, 256, 1024)
USUAL_EDGE = 500


def batch_size_for(edge_px: int) -> int:
    """256 for images of the usual size; as many pixels for larger ones, but no fewer than 16 images."""
    return max(16, min(256, round(256 * (USUAL_EDGE / edge_px) ** 2)))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``fastload bench scaling``."""
    add_peer_arguments(parser)
    parser.add_argument("--threads", type=int, help="threads or workers (default: the usable cores, at most 16)")
    parser.add_argument("--edges", type=numbers, help=f"long edges in px (default: {','.join(map(str, EDGES))})")
    parser.add_argument("--batches", type=numbers, help=f"(default: {','.join(map(str, BATCH_SIZES))})")


def main(args: argparse.Namespace) -> int:
    """Run ``fastload bench scaling``."""
    try:
        setup = setup_of(args)
        threads = args.threads or (min(2, usable_cpus()) if setup.quick else min(16, usable_cpus()))
        edges = args.edges or ((64, 128) if setup.quick else tuple(EDGES))
        batch_sizes = args.batches or ((4, 8) if setup.quick else BATCH_SIZES)
        records = []
        points: list[dict[str, Any]] = []
        for edge_px in () if setup.data is not None else edges:
            data = write_photos(
                Path(".fastload") / f"photos-{edge_px}px",
                PhotoSet(count=24 if setup.quick else EDGES.get(edge_px, 64), edge_px=edge_px),
            )
            batch_size = setup.batch_size if setup.quick else batch_size_for(edge_px)
            sized = replace(setup, data=data.path, batch_size=batch_size)
            records.append(_measure(sized, threads, [batch_size], {"edge_px": edge_px}, points))
        records.append(_measure(setup, threads, batch_sizes, {}, points))
    except (ValueError, FileNotFoundError, FileExistsError) as error:
        return refuse(error)
    if args.json:
        datasets = [record["dataset"] for record, _ in records]
        whole = {**records[-1][0], "datasets": datasets, "points": points}
        console().print(f"figures: {write_json(args.json, whole)}")
    return 0 if all(right for _, right in records) else 1


def _measure(
    setup: Setup, threads: int, batch_sizes: Any, known: dict[str, Any], points: list[dict[str, Any]]
) -> tuple[dict[str, Any], bool]:
    """One data set at some batch sizes; the figures go to ``points``."""
    with gathered("scaling", setup, {"threads": threads}) as gathering:
        for batch_size in batch_sizes:
            results = loaders.measure(gathering, replace(setup, batch_size=batch_size), threads)
            points.append({**known, "batch_size": batch_size, "threads": threads, "contenders": results})
            where = f"{known['edge_px']} px, " if known else ""
            for name, result in results.items():
                title = gathering.team.title(name)
                console().print(f"{where}batches of {batch_size}, {title}: {loaders.describe(result)}")
        return gathering.finished(), gathering.all_right
