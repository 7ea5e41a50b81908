"""Measure what idle instrumentation costs: ``python -m benchmarks insight``.

Each figure is the difference between a loop with one of them in it and the same loop without, the
two taking turns, divided by the calls in it. No tool is attached, so this is what a program pays for annotations that
it carries all the time.

A question is a function that takes the repeats and returns its figures in nanoseconds; :data:`QUESTIONS` lists them.
What statistics and stages add up to is then set beside the time between two real batches, and the loader runs with and
without statistics; see :mod:`benchmarks._overhead`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from benchmarks import _overhead
from fastload import annotate, annotate_modules, capture
from fastload.measurement.console import console, refuse
from fastload.measurement.record import Spread, environment, interleave, write_json
from fastload.nvtx import stages
from fastload.nvtx.modules import hook_while_profiling

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping

LIMITS_NS: Final[Mapping[str, float]] = {"annotate_modules": 2000}
"""What a figure may be; those that are not here are for information."""

_MODULES = 200
_LAPS = 20
_BATCHES = 500


def cost_of_modules(repeats: int) -> dict[str, Spread]:
    """Measure a module's call: bare, annotated, and with hooks that have no listener."""

    def model() -> nn.Module:
        return nn.Sequential(*(nn.Identity() for _ in range(_MODULES)))

    bare, annotated, hooked = model(), model(), model()
    with annotate_modules(hooked):
        hook_while_profiling(True)
        with annotate_modules(annotated):
            figures = _differences(
                {"bare": _calls(bare), "annotate_modules": _calls(annotated), "its hooks, idle": _calls(hooked)},
                repeats,
                _LAPS * (_MODULES + 1),
            )
        hook_while_profiling(False)
    return figures


def cost_of_functions(repeats: int) -> dict[str, Spread]:
    """A call of an annotated function, beside a bare one."""
    calls = _LAPS * _MODULES

    def loop(function: Callable[[int], int]) -> Callable[[], object]:
        def run() -> None:
            for number in range(calls):
                function(number)

        return run

    with annotate(_Called, "annotated"):
        return _differences({"bare": loop(_Called.bare), "annotate": loop(_Called.annotated)}, repeats, calls)


def cost_of_stages(repeats: int) -> dict[str, Spread]:
    """A stage, of which a batch has half a dozen, beside nothing at all."""
    calls = _LAPS * _MODULES

    def staged() -> None:
        for number in range(calls):
            with stages.stage("h2d", number):
                pass

    def bare() -> None:
        for _ in range(calls):
            pass

    return _differences({"bare": bare, "stage": staged}, repeats, calls)


def cost_of_capture(repeats: int) -> dict[str, Spread]:
    """A batch outside the window of ``capture``, beside one without it."""
    batches = _LAPS * _MODULES
    source = range(batches)

    def drain(loop: Callable[[], Iterator[int]]) -> Callable[[], object]:
        def run() -> None:
            for _ in loop():
                pass

        return run

    captured = capture(source, warmup=10**12, steps=1)
    return _differences(
        {"bare": drain(lambda: iter(source)), "capture": drain(lambda: iter(captured))}, repeats, batches
    )


def cost_of_statistics(repeats: int) -> dict[str, Spread]:
    """Measure a batch with full statistics, worker's side included, and a batch without."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return _differences(_overhead.stats_of_a_batch(device, _BATCHES), repeats, _BATCHES)


QUESTIONS: Final[Mapping[str, Callable[[int], dict[str, Spread]]]] = {
    "a module's call": cost_of_modules,
    "a function's call": cost_of_functions,
    "a stage": cost_of_stages,
    "a batch": cost_of_capture,
    "a batch's way": cost_of_statistics,
}


class _Called:
    @staticmethod
    def bare(number: int) -> int:
        return number

    @staticmethod
    def annotated(number: int) -> int:
        return number


def _calls(model: nn.Module) -> Callable[[], object]:
    nothing = torch.zeros(1)

    def run() -> None:
        for _ in range(_LAPS):
            model(nothing)

    return run


def _differences(
    contenders: Mapping[str, Callable[[], object]], repeats: int, calls: int, bare: str = "bare"
) -> dict[str, Spread]:
    """Return each contender's extra processor nanoseconds per call over ``bare``, by round."""

    def timed(run: Callable[[], object]) -> Callable[[], float]:
        def measure() -> float:
            start = time.process_time_ns()  # all threads', and not that of others on the same cores
            run()
            return (time.process_time_ns() - start) / calls

        return measure

    for run in contenders.values():
        run()
    spreads = interleave({name: timed(run) for name, run in contenders.items()}, repeats)
    return {
        name: Spread.of([ours - plain for ours, plain in zip(spread.values, spreads[bare].values, strict=True)])
        for name, spread in spreads.items()
        if name != bare
    }


def ask(repeats: int) -> dict[str, Any]:
    """Ask every question and show the answers; returns the record for the JSON file."""
    record: dict[str, Any] = {
        "benchmark": "insight",
        "environment": environment(),
        "parameters": {"repeats": repeats},
        "tool_attached": stages.active(),
        "more_ns": {},
        "limits_ns": dict(LIMITS_NS),
    }
    for what, question in QUESTIONS.items():
        for name, spread in question(repeats).items():
            record["more_ns"][name] = spread.record()
            limit = f", at most {LIMITS_NS[name]:,.0f} wanted" if name in LIMITS_NS else ""
            low, high = min(spread.values), max(spread.values)
            console().print(f"{name}: {what} takes {spread.median:,.0f} ns more ({low:,.0f} to {high:,.0f}){limit}")
    return record


def shares(more_ns: Mapping[str, Mapping[str, Any]], seconds: float, repeats: int, *, quick: bool) -> dict[str, Any]:
    """What statistics and stages come to beside real batches, by engine; shows it too."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = {}
    for name, path in _overhead.paths(device, quick=quick).items():
        result = path.run(seconds, repeats)
        batch_ns = 1e9 / result["batches_per_s"]["on"]["median"]
        stage_count = _overhead.stages_of_a_batch(path.make, 4 if quick else 32)
        result |= {
            "batch_size": path.batch_size,
            "stages_per_batch": stage_count,
            "stats_share": more_ns["stats, native" if name == "native" else "stats"]["median"] / batch_ns,
            "nvtx_share": stage_count * more_ns["stage"]["median"] / batch_ns,
            "limit": _overhead.LOST_MAX,
        }
        found[name] = result
        lost = result["lost"]
        console().print(
            f"{name}, {result['images_per_s']['median']:,.0f} images/s in batches of {path.batch_size}: statistics "
            f"take {result['stats_share']:.3%} of the time between two batches, {stage_count:.1f} stages "
            f"{result['nvtx_share']:.4%}, at most {_overhead.LOST_MAX:.1%} wanted; with statistics the loader is "
            f"{lost['median']:.2%} slower ({lost['low']:.2%} to {lost['high']:.2%} by 95%)"
        )
    return found


def main(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks insight``."""
    repeats = args.repeats if args.repeats is not None else 5 if args.quick else 30
    if repeats < 1:
        return refuse(ValueError(f"repeats must be >= 1, got {repeats}"))
    if stages.active():
        return refuse(
            RuntimeError("a tool is attached to this process, and this measures what things cost without one")
        )
    record = ask(repeats)
    seconds, rounds = (0.02, 5) if args.quick else (0.25, max(6, repeats))
    record["shares"] = shares(record["more_ns"], seconds, rounds, quick=args.quick)
    if args.json:
        console().print(f"figures: {write_json(args.json, record)}")
    return 0
