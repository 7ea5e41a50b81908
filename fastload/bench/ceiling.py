"""How fast would training be with a perfect loader? ``fastload bench ceiling``.

The same training loop twice, in turn: fed by the loader, and fed by its own first batches again and again, from the
device (:meth:`fastload.FastLoader.replay`). What is missing between the two is all that a faster loader could gain.

Without a factory the loader is FastLoader on photographs, and the step trains ResNet-50, or a small net where there is
no GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fastload import FastLoader
from fastload._arguments import UsageError, call_factory
from fastload._machine import usable_cpus
from fastload.bench import TINY
from fastload.measurement.console import console
from fastload.measurement.record import Spread, environment, extent, ratio, save
from fastload.measurement.throughput import Rate, endless, in_flight, loop_rate
from fastload.options import resolve_device
from fastload.torch_workers.twin import twin_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from torch.utils.data import DataLoader

    Step = Callable[[Any], object]

FED_SHARE = 0.98  # of the ceiling: from here on a faster loader would gain nothing that can be told from noise
_NO_END = 1 << 30


def fed_rate(loader: DataLoader[Any], step: Step, *, seconds: float) -> Rate:
    """Measure a loop fed by ``loader``, once its prefetched batches are used up.

    A plain loader's workers are shut down at the end. A FastLoader is measured by a copy; its own workers and iterators
    are left alone.
    """
    warm = in_flight(loader)
    if isinstance(loader, FastLoader):
        with twin_of(loader) as twin:
            device = resolve_device(loader.device)
            return loop_rate(endless(twin), step, device, seconds=seconds, warm_steps=warm)
    device = resolve_device("auto")
    feed = endless(loader)
    try:
        return loop_rate(feed, step, device, seconds=seconds, warm_steps=warm)
    finally:
        feed.close()  # type: ignore[attr-defined]
        iterator: Any = loader._iterator
        if iterator is not None:
            iterator._shutdown_workers()
            loader._iterator = None


def ceiling_rate(
    loader: DataLoader[Any], step: Step, *, seconds: float, hold: int = 8, warm_steps: int = 3
) -> Callable[[], Rate]:
    """Return a function that measures the loop fed by :meth:`FastLoader.replay`, a perfect loader.

    The first ``hold`` batches are taken now, and kept on the device. Each call measures for so many seconds.
    """
    if isinstance(loader, FastLoader):
        replay = loader.replay(hold, steps=_NO_END).load()
        device = resolve_device(loader.device)
    else:
        with FastLoader.wrap(loader, engine="torch") as wrapped:
            replay = wrapped.replay(hold, steps=_NO_END).load()
            device = resolve_device("auto")
    feed = endless(replay)
    return lambda: loop_rate(feed, step, device, seconds=seconds, warm_steps=warm_steps)


def measure(loader: DataLoader[Any], step: Step, *, seconds: float, repeats: int, hold: int) -> dict[str, Any]:
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


def _built_in(args: argparse.Namespace) -> tuple[DataLoader[Any], Step]:
    from torchvision import transforms

    from fastload.bench._data import check_data, open_images
    from fastload.bench._steps import TrainingStep, check_model

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    small = args.quick or device.type == "cpu"
    model = args.model or (TINY if small else "resnet50")
    check_model(model)
    check_data(args.data)
    dataset, _ = open_images(args.data, small)
    if small:
        steps = [transforms.RandomResizedCrop(64), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
        dataset.transform = transforms.Compose(steps)
    loader = FastLoader(
        dataset,
        batch_size=args.batch_size or (16 if small else 256),
        shuffle=True,
        num_workers=args.workers or max(1, usable_cpus() - usable_cpus() // 8),
        drop_last=True,
        persistent_workers=True,
        device=device,
    )
    train = TrainingStep(model, device, channels_last=True)
    return loader, lambda batch: train(*batch)


def main(args: argparse.Namespace) -> int:
    """Run ``fastload bench ceiling``."""
    from rich.table import Table

    for name in ("batch_size", "workers"):
        if args.factory and getattr(args, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} goes without a factory: the factory's loader has its own")
    loader, step = call_factory(args.factory, args.arg) if args.factory else _built_in(args)
    if step is None:
        raise UsageError(
            f"{args.factory} must return (loader, step): the ceiling is how fast step(batch) runs; it returned a "
            "loader alone"
        )
    record = {"benchmark": "ceiling", "environment": environment(), "factory": args.factory}
    record |= measure(loader, step, seconds=args.seconds, repeats=args.repeats, hold=args.hold)
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
    save(args.json, record)
    return 0
