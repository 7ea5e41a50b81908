"""How fast would training be with a perfect loader? ``fastload bench ceiling``.

The same training loop twice, in turn: fed by the loader, and fed by its own first batches again and again, from the
device (:meth:`fastload.FastLoader.replay`). What is missing between the two is all that a faster loader could gain.

Without a factory the loader is FastLoader on photographs, and the step trains ResNet-50, or a small net where there is
no GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fastload._factory import FactoryError, call_factory
from fastload._machine import usable_cpus
from fastload.measurement.console import console, refuse
from fastload.measurement.record import Spread, environment, extent, ratio, write_json
from fastload.measurement.throughput import EmptyLoaderError, Rate, ceiling_rate, fed_rate

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from torch.utils.data import DataLoader

FED_SHARE = 0.98  # of the ceiling: from here on a faster loader would gain nothing that can be told from noise


def measure(
    loader: DataLoader[Any], step: Callable[[Any], object], *, seconds: float, repeats: int, hold: int
) -> dict[str, Any]:
    """Measure both loops in turn.

    Returns:
        Images/s of both, the share that the loader reaches, and the share of the time in which the step waited for it.
    """
    perfect = ceiling_rate(loader, step, seconds=seconds, hold=hold)
    rates: dict[str, list[Rate]] = {"loader": [], "ceiling": []}
    for _ in range(repeats):
        rates["ceiling"].append(perfect())
        rates["loader"].append(fed_rate(loader, step, seconds=seconds))
    spreads = {name: Spread.of([rate.images_per_s for rate in found]) for name, found in rates.items()}
    return {
        "images_per_s": {name: spread.record() for name, spread in spreads.items()},
        "share": ratio(spreads["loader"], spreads["ceiling"]).record(),
        "wait_share": Spread.of([rate.wait_share for rate in rates["loader"]]).record(),
        "steps": {name: sum(rate.steps for rate in found) for name, found in rates.items()},
        "num_workers": loader.num_workers,
        "batch_size": loader.batch_size,
    }


def verdict(record: dict[str, Any]) -> str:
    """What the figures say, in one sentence."""
    share = record["share"]["median"]
    if share >= FED_SHARE:
        return f"the loader keeps the step fed ({share:.1%} of the ceiling): only a faster step trains faster"
    return (
        f"the loader holds training at {share:.1%} of the ceiling: a faster one gains up to {1 / share:.2f} times; "
        "print(loader.plan) says what is in the way, and fastload tune finds the number of workers"
    )


def _built_in(arguments: argparse.Namespace) -> tuple[DataLoader[Any], Callable[[Any], object]]:
    from torchvision import transforms

    from fastload import FastLoader
    from fastload.bench._data import open_images
    from fastload.bench._small import SmallStep
    from fastload.bench._steps import TrainingStep, check_model

    check_model(arguments.model or "resnet50")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    small = arguments.quick or device.type == "cpu"
    dataset, _ = open_images(arguments.data, small)
    if small:
        steps = [transforms.RandomResizedCrop(64), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
        dataset.transform = transforms.Compose(steps)
    loader = FastLoader(
        dataset,
        batch_size=arguments.batch_size or (16 if small else 256),
        shuffle=True,
        num_workers=arguments.workers or max(1, usable_cpus() - usable_cpus() // 8),
        drop_last=True,
        persistent_workers=True,
        device=device,
    )
    train: SmallStep | TrainingStep
    if arguments.model or not small:
        train = TrainingStep(arguments.model or "resnet50", device, channels_last=True)
    else:
        train = SmallStep(device, passes=2)
    return loader, lambda batch: train(*batch)


def main(arguments: argparse.Namespace) -> int:
    """Run ``fastload bench ceiling``."""
    from rich.table import Table

    seconds = arguments.seconds if arguments.seconds is not None else (0.3 if arguments.quick else 5.0)
    repeats = arguments.repeats if arguments.repeats is not None else (1 if arguments.quick else 3)
    try:
        _check(arguments)
        loader, step = call_factory(arguments.factory, arguments.arg) if arguments.factory else _built_in(arguments)
        if step is None:
            raise FactoryError(
                f"{arguments.factory} must return (loader, step): the ceiling is how fast step(batch) runs; it "
                "returned a loader alone"
            )
    except (FactoryError, ValueError, FileNotFoundError) as error:
        return refuse(error)
    record = {"benchmark": "ceiling", "environment": environment(), "factory": arguments.factory}
    try:
        record |= measure(loader, step, seconds=seconds, repeats=repeats, hold=arguments.hold)
    except EmptyLoaderError as error:
        return refuse(error)
    table = Table(title="The same training loop")
    for column in ("fed by", "images/s", "spread", "of the ceiling"):
        table.add_column(column, justify="left" if column == "fed by" else "right")
    names = {"loader": f"the loader, {record['num_workers']} workers", "ceiling": "a perfect loader (replay)"}
    for name, label in names.items():
        rates = record["images_per_s"][name]
        share = record["share"]["median"] if name == "loader" else 1.0
        table.add_row(label, f"{rates['median']:,.0f}", extent(rates, ",.0f"), f"{share:.1%}")
    console().print(table)
    console().print(f"verdict: {verdict(record)}")
    if arguments.json:
        console().print(f"figures: {write_json(arguments.json, record)}")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    for name in ("batch_size", "workers"):
        if arguments.factory and getattr(arguments, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} goes without a factory: the factory's loader has its own")
