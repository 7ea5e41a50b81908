"""``fastload tune module:factory``: find the number of workers that keeps a training step fed."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from fastload._arguments import FactoryError, add_factory_argument, at_least, call_factory, positive

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    from fastload.measurement.tuner import Tried, Tuner


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``fastload tune``."""
    add_factory_argument(parser)
    parser.add_argument("--seconds", type=positive, default=2.0, help="for each count (default: %(default)s)")
    parser.add_argument(
        "--max-workers", type=at_least(1), help="try no more (default: the cores that there are for them)"
    )
    parser.add_argument("--json", action="store_true", help="print every figure for programs")


def main(args: argparse.Namespace) -> int:
    """Tune; returns 0 with an answer, 2 on a bad factory, 130 after Ctrl-C.

    A factory is bad if it does not exist or its loader has no batch.
    """
    from fastload.measurement.console import console
    from fastload.measurement.record import environment
    from fastload.measurement.throughput import EmptyLoaderError
    from fastload.measurement.tuner import Tuner

    tuner: Tuner | None = None
    try:
        loader, step = call_factory(args.factory, args.arg)
        with console().status("measuring the step" if step is not None else "starting") as status:
            tuner = Tuner(
                loader,
                step,
                seconds=args.seconds,
                most=args.max_workers,
                on_try=lambda count: status.update(f"trying num_workers={count}"),
            )
            tuning = tuner.run()
    except (FactoryError, EmptyLoaderError) as error:
        sys.stderr.write(f"fastload tune: {error}\n")
        return 2
    except KeyboardInterrupt:
        if tuner is not None and tuner.tried and not args.json:
            _show(tuner.tried, None, None)
        sys.stderr.write("fastload tune: interrupted, so there is no answer\n")
        return 130
    if args.json:
        record = {"environment": environment(), "factory": args.factory, **tuning.record()}
        sys.stdout.write(f"{json.dumps(record, indent=2, allow_nan=False)}\n")
        return 0
    _show(tuning.tried, tuning.chosen, tuning.consumer_images_per_s)
    cost = f"a sample costs {1e3 * tuning.chosen.cost_s:.3g} ms of one worker"
    if tuning.consumer_images_per_s is not None:
        cost = f"the step takes {tuning.consumer_images_per_s:,.0f} images/s from a perfect loader, {cost}"
    console().print(f"{cost}; {tuning.why}")
    if step is not None and not tuning.chosen.is_fed:
        console().print(str(tuning.chosen.verdict))
    console().print(f"\n    {tuning}\n")
    return 0


def _show(tried: Any, chosen: Tried | None, consumer: float | None) -> None:
    """Print all counts tried as a table, by count."""
    from rich.table import Table

    from fastload.measurement.console import console

    table = Table(title="What was tried", title_justify="left", box=None, padding=(0, 2, 0, 0))
    least = min(one.prefetch_factor for one in tried)
    columns: Mapping[str, Callable[[Tried], str]] = {
        "workers": lambda one: (
            f"{one.workers}" + (f", prefetch {ahead}" if (ahead := one.prefetch_factor) > least else "")
        ),
        "images/s": lambda one: f"{one.images_per_s:,.0f}",
        "of step": lambda one: f"{one.images_per_s / consumer:.0%}" if consumer else "",
        "stall": lambda one: f"{one.wait_share:.0%}" if consumer else "",
        "starved": lambda one: f"{one.starved_share:.0%}" if consumer else "",
        "could be": lambda one: f"{one.loader_images_per_s:,.0f}",
        "cores": lambda one: f"{one.cores:.1f}",
        "": lambda one: "chosen" if one is chosen else "",
    }
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for one in sorted(tried, key=lambda one: (one.workers, one.prefetch_factor)):
        table.add_row(*(cell(one) for cell in columns.values()), style="bold" if one is chosen else None)
    console().print(table)
