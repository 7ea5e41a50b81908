"""``fastload tune module:factory``: print the number of workers that ``num_workers="auto"`` chooses.

A copy of the loader runs with ``"auto"`` and feeds the real step, look by look, until its number stays. Whatever
chooses is ``"auto"``'s own code (:mod:`fastload.autoscale`), so that the printed number is the one it would settle at.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fastload._arguments import add_factory_argument, at_least, call_factory, positive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.utils.data import DataLoader

    from fastload.stats.verdict import Verdict

SETTLED: Final = 3  # looks in succession with the same number, after which it is the answer
LOOKS_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Look:
    """Measurement of a loop for a while."""

    workers: int  # number of worker processes, or of decode threads
    images_per_s: float  # rate of the loop
    consumer_images_per_s: float  # rate at which the step would take batches if it never waited
    wait_share: float  # share of time in which the step waited for a batch
    # share of time in which the step waited and the batch was being made or its worker had yet to begin. The rest of
    # wait_share is the transfer from the worker, which more workers do not shorten.
    starved_share: float
    loader_images_per_s: float  # rate that the loader could have delivered
    cores: float  # average number of cores that loader and step kept busy
    cost_s: float  # seconds of one worker for one image
    verdict: Verdict = field(repr=False)  # bottleneck


@dataclass(frozen=True, slots=True)
class Tuning:
    """The answer and its measurements; ``str`` is the line to paste."""

    looks: tuple[Look, ...]  # all looks, in order; the number of the last one is the answer
    has_step: bool  # whether a step trained on the batches; otherwise the loader ran by itself
    prefetch_factor: int  # batches in flight per worker, as the loader has it
    most: int  # largest number of workers allowed
    engine: str  # engine that made the batches

    def __str__(self) -> str:
        return f"num_workers={self.looks[-1].workers}, prefetch_factor={self.prefetch_factor}"

    @property
    def is_fed(self) -> bool:
        """Whether the step does not wait for workers."""
        from fastload.autoscale.policy import STARVED

        return self.has_step and self.looks[-1].starved_share <= STARVED

    @property
    def why(self) -> str:
        """The reason for this number, as a sentence."""
        last = self.looks[-1]
        cost = f"a sample costs {1e3 * last.cost_s:.3g} ms of one worker"
        if not self.has_step:
            return f"without a step the loader ran by itself; {cost}"
        takes = f"the step takes {last.consumer_images_per_s:,.0f} images/s when it never waits, {cost}"
        if self.is_fed:
            return f"{takes}; the step is fed with some to spare"
        up_to = f"{last.workers} of up to {self.most} worker{'s' if self.most > 1 else ''}"
        return f"{takes}; {up_to} do not keep it fed: it waits for them {last.starved_share:.0%} of the time"

    def record(self) -> dict[str, Any]:
        """Convert to a JSON object."""
        last = self.looks[-1]
        return {
            "num_workers": last.workers,
            "prefetch_factor": self.prefetch_factor,
            "line": str(self),
            "why": self.why,
            "is_fed": self.is_fed,
            "consumer_images_per_s": last.consumer_images_per_s if self.has_step else None,
            "cost_ms": 1e3 * last.cost_s,
            "engine": self.engine,
            "most": self.most,
            "verdict": str(last.verdict),
            "tried": [{**asdict(look), "verdict": look.verdict.name} for look in self.looks],
        }


def tune(
    loader: DataLoader[Any],
    step: Callable[[Any], object] | None = None,
    *,
    seconds: float = 2.0,
    most: int | None = None,
    looks: list[Look] | None = None,
    on_look: Callable[[int], object] = lambda count: None,
) -> Tuning:
    """Run a copy of a loader with ``num_workers="auto"`` until its number stays.

    Blocks for some seconds per look.

    Args:
        loader: A FastLoader, or torch's DataLoader, which is then measured as torch runs it. It stays untouched.
        step: Function that trains on a batch; ``None`` measures the loader alone.
        seconds: Duration of a look, after the warm-up.
        most: Largest number of workers; ``None`` for the number of cores available to them.
        looks: List that takes the looks as they are made.
        on_look: Function that gets each number when a look at it begins.
    """
    from fastload.autoscale.policy import AutoWorkers, Sizing, cores_for_loading
    from fastload.loader import FastLoader
    from fastload.torch_workers.twin import twin_of

    is_ours = isinstance(loader, FastLoader)
    ours: FastLoader[Any] = loader if isinstance(loader, FastLoader) else FastLoader.wrap(loader, device="cpu")
    sizing, ahead, made = Sizing(most=most), loader.prefetch_factor or 2, [] if looks is None else looks
    changes: dict[str, Any] = {"num_workers": AutoWorkers(1, sizing), "prefetch_factor": ahead}
    if not is_ours:
        changes["engine"] = "torch"
    with warnings.catch_warnings(), twin_of(ours, **changes, persistent_workers=True) as twin:
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        while len(made) < LOOKS_MAX and (len(made) < SETTLED or len({look.workers for look in made[-SETTLED:]}) > 1):
            made.append(_look(twin, sizing, step or id, seconds, on_look))
        most = cores_for_loading() if most is None else most
        return Tuning(tuple(made), step is not None, ahead, most, twin.plan.engine)


def _look(twin: Any, sizing: Any, step: Any, seconds: float, on_look: Callable[[int], object]) -> Look:
    """Feed the step from new epochs, at whose beginning the number may change."""
    from fastload.measurement.throughput import endless, in_flight, loop_rate
    from fastload.options import resolve_device
    from fastload.stats.diagnosis import report

    feed: Any = endless(twin)
    step(next(feed))
    on_look(_number_of(twin, sizing))
    for _ in range(in_flight(twin)):
        step(next(feed))
    before = twin.stats()
    rate = loop_rate(feed, step, resolve_device(twin.device), seconds=seconds, warm_steps=0)
    stats = twin.stats().since(before)
    feed.close()
    return Look(
        workers=_number_of(twin, sizing),
        images_per_s=rate.images_per_s,
        consumer_images_per_s=stats.consumer_images_per_s,
        wait_share=rate.wait_share,
        starved_share=rate.wait_share * min(1.0, stats.wait_share("before", "fetch", "collate", "decode")),
        loader_images_per_s=max(stats.loader_images_per_s, rate.images_per_s),
        cores=rate.cores,
        cost_s=stats.making_s / stats.images if stats.images else 0.0,
        verdict=report(stats).verdict,
    )


def _number_of(twin: Any, sizing: Any) -> int:
    """Threads or processes in use; threads begin as many as there may be."""
    return sizing.threads or sizing.cores if twin.plan.engine == "native" else int(twin.num_workers)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``fastload tune``."""
    add_factory_argument(parser)
    add = parser.add_argument
    add("--seconds", type=positive, default=2.0, help="length of each look (default: %(default)s)")
    add("--max-workers", type=at_least(1), help="choose no more (default: the cores that there are for them)")
    add("--json", action="store_true", help="print every figure for programs")


def main(args: argparse.Namespace) -> int:
    """Tune; returns 0 with an answer, 130 after Ctrl-C."""
    from fastload.measurement.console import console
    from fastload.measurement.record import environment

    looks: list[Look] = []
    loader, step = call_factory(args.factory, args.arg)
    try:
        with console().status("starting") as status:
            tuning = tune(
                loader,
                step,
                seconds=args.seconds,
                most=args.max_workers,
                looks=looks,
                on_look=lambda count: status.update(f"looking at num_workers={count}"),
            )
    except KeyboardInterrupt:
        if looks and not args.json:
            _show(looks, chosen=None, has_step=step is not None)
        sys.stderr.write("fastload tune: interrupted, so there is no answer\n")
        return 130
    if args.json:
        record = {"environment": environment(), "factory": args.factory, **tuning.record()}
        sys.stdout.write(f"{json.dumps(record, indent=2, allow_nan=False)}\n")
        return 0
    _show(looks, looks[-1].workers, has_step=step is not None)
    console().print(tuning.why)
    if step is not None and not tuning.is_fed:
        console().print(str(looks[-1].verdict))
    console().print(f"\n    {tuning}\n")
    return 0


def _show(looks: list[Look], chosen: int | None, *, has_step: bool) -> None:
    """Print the looks as a table, in order."""
    from rich.table import Table

    from fastload.measurement.console import console

    table = Table(title="What was tried", title_justify="left", box=None, padding=(0, 2, 0, 0))
    columns: Mapping[str, Callable[[Look], str]] = {
        "workers": lambda one: f"{one.workers}",
        "images/s": lambda one: f"{one.images_per_s:,.0f}",
        "of step": lambda one: f"{one.images_per_s / max(1e-9, one.consumer_images_per_s):.0%}" if has_step else "",
        "stall": lambda one: f"{one.wait_share:.0%}" if has_step else "",
        "starved": lambda one: f"{one.starved_share:.0%}" if has_step else "",
        "could be": lambda one: f"{one.loader_images_per_s:,.0f}",
        "cores": lambda one: f"{one.cores:.1f}",
        "": lambda one: "chosen" if one.workers == chosen else "",
    }
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for one in looks:
        table.add_row(*(cell(one) for cell in columns.values()), style="bold" if one.workers == chosen else None)
    console().print(table)
