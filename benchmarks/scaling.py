"""Measure loaders against image and batch size: ``python -m benchmarks scaling``.

Images of 256 to 4000 px (long edge) are cropped and resized to 224 px as ever, at batches that shrink as the images
grow; batches of 16 to 1024 are made of images of the usual size. With ``--data`` only the batches change.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks._peers import Question, describe_rates, prepared, rates
from benchmarks.arguments import BATCH_SIZES, EDGES
from fastload._machine import usable_cpus
from fastload.bench.photos import PhotoSet, write_photos
from fastload.measurement.console import console

if TYPE_CHECKING:
    import argparse

    from benchmarks._peers import Gathering, Points
    from benchmarks._setup import Setup

USUAL_EDGE = 500


def batch_size_for(edge_px: int) -> int:
    """Return 256 for images of the usual size, and fewer for larger ones.

    The number of pixels stays the same; the least is 16 images.
    """
    return max(16, min(256, round(256 * (USUAL_EDGE / edge_px) ** 2)))


def question(args: argparse.Namespace, setup: Setup) -> Question:
    """What is asked."""
    threads = args.threads or (min(2, usable_cpus()) if setup.quick else min(16, usable_cpus()))
    edges = args.edges or ((64, 128) if setup.quick else tuple(EDGES))
    batch_sizes = args.batches or ((4, 8) if setup.quick else BATCH_SIZES)
    if setup.data is not None:
        edges = ()

    def points(gathering: Gathering) -> Points:
        for edge_px in edges:
            photos = PhotoSet(count=24 if setup.quick else EDGES.get(edge_px, 64), edge_px=edge_px)
            written = write_photos(Path(".fastload") / f"photos-{edge_px}px", photos)
            folder, described = prepared(written.path, quick=setup.quick)
            sized = replace(setup, batch_size=setup.batch_size if setup.quick else batch_size_for(edge_px))
            known = {"edge_px": edge_px, "dataset": described}
            yield _point(replace(gathering, folder=folder), sized, threads, known)
        for size in batch_sizes:
            yield _point(gathering, replace(setup, batch_size=size), threads, {})

    return Question(name="scaling", setup=setup, parameters={"threads": threads}, measure=points)


def _point(gathering: Gathering, setup: Setup, threads: int, known: dict[str, Any]) -> dict[str, Any]:
    results = rates(gathering, setup, threads)
    where = f"{known['edge_px']} px, " if known else ""
    for name, result in results.items():
        title = gathering.team.title(name)
        console().print(f"{where}batches of {setup.batch_size}, {title}: {describe_rates(result)}")
    return {**known, "batch_size": setup.batch_size, "threads": threads, "contenders": results}
