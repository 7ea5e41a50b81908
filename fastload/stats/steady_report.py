"""Report on a loader's steady state: what is left out, and how epochs differ."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fastload.stats.diagnosis import BATCHES_MIN, Culprits, Report, count, report
from fastload.stats.gpu_utilization import EVERY_S, Seen
from fastload.stats.verdict import Bottleneck, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastload.stats.gpu_utilization import Utilization
    from fastload.stats.stats import Stats
    from fastload.stats.steady_state import SteadyState, Stretch

DIFFERS_MIN: Final = 0.2  # difference of the first epoch that is reported: of its rate, or of its stall
STARTUP_MIN: Final = 0.25  # share of the time spent on first batches from which on other waits do not tell the limit
TOLD_AFTER_S: Final = 5.0  # seconds after which a driver that has not said anything is not waited for
_OUTSIDE: Final = (Bottleneck.GPU, Bottleneck.LOOP, Bottleneck.STEP)


def report_steady(
    now: Stats,
    steady: SteadyState,
    utilizations: Sequence[Utilization] = (),
    unseen: str | None = None,
    unpinned: str | None = None,
) -> Report:
    """Judge a loader's steady state.

    Args:
        now: The figures so far.
        steady: Where the steady state begins.
        utilizations: The devices'; the last one is that in use.
        unseen: See :func:`~fastload.stats.diagnosis.report`.
        unpinned: See :class:`~fastload.stats.diagnosis.Culprits`.
    """
    if not now.batches:
        return report(now, unseen)
    notes = _epochs_differ(now, steady.first)
    stretch = steady.stretch()
    if stretch.before is None:
        return Report(_too_early(stretch.more, "the times between batches have to settle"), now, notes=notes)
    judged, seen = now.since(stretch.before), Seen()
    for utilization in utilizations[-1:]:
        utilization.look(now.elapsed_s / max(1.0, now.totals.get("asked", 0.0)), at_once=True)
        seen = utilization.since(stretch.began)
    more = {"gil_s": stretch.gil_s, "gpu:others": seen.others, "gpu:programs": float(seen.programs)}
    if seen.bounds is not None:
        more["gpu:least"], more["gpu:most"] = seen.bounds
    judged = replace(judged, gpu_utilization=seen.busy, totals={**judged.totals, **more})
    told = report(judged, unseen, Culprits(steady.holders.most(), seen.by, unpinned))
    verdict = told.verdict
    if verdict.bottleneck is Bottleneck.STEP and judged.device is not None and seen.is_told:
        verdict = _without_driver(verdict, judged)
    if verdict.bottleneck in _OUTSIDE:
        verdict = _mostly_first_batches(verdict, now, judged, stretch, steady.first)
    return replace(told, verdict=verdict, notes=(*_left_out(now, stretch), *notes))


def _too_early(more: int, why: str) -> Verdict:
    return Verdict(None, (f"too early: {count(more, 'more step')}", why), "ask again then")


def _left_out(now: Stats, stretch: Stretch) -> tuple[str, ...]:
    before = 0 if stretch.before is None else stretch.before.batches
    if not before:
        return ()
    some = f"of {count(now.batches, 'batch', 'batches')},"
    if stretch.has_settled:
        return (f"{some} the first {count(before, 'step')}, warm-up, are left out",)
    return (f"{some} the last {count(now.batches - before, 'step')} are judged: their times have not settled",)


def _without_driver(verdict: Verdict, judged: Stats) -> Verdict:
    """Wait for the driver's figures, unless it should have given them."""
    if judged.elapsed_s > TOLD_AFTER_S:
        return verdict
    more = math.ceil(EVERY_S * judged.totals.get("asked", 0.0) / judged.elapsed_s)
    return _too_early(max(1, more), "batches came in time, and the GPU's driver has yet to say how busy it was")


def _mostly_first_batches(
    verdict: Verdict, now: Stats, judged: Stats, stretch: Stretch, first: Stats | None
) -> Verdict:
    """Judge nothing if the waits for epochs' first batches took the time."""
    if stretch.before is not None and not stretch.before.epochs:  # the first start takes longer than others
        if first is None:
            return verdict
        judged = now.since(first)
    share = judged.startup_s / (judged.startup_s + judged.elapsed_s) if judged.startup_s else 0.0
    if share < STARTUP_MIN:
        return verdict
    waited = f"the training loop waited for the first batches of its epochs {share:.0%} of the time"
    length = round(judged.batches / max(1, judged.epochs))
    why = f"epochs of {count(length, 'batch', 'batches')} are too short to tell for what"
    return Verdict(None, (waited, why), "keep the workers (persistent_workers=True), or make epochs longer")


def _epochs_differ(now: Stats, first: Stats | None) -> tuple[str, ...]:
    if first is None:
        return ()
    later = now.since(first)
    if min(each.totals.get("asked", 0.0) for each in (first, later)) < BATCHES_MIN:
        return ()
    rates, stalls = [each.images_per_s for each in (first, later)], [_stall(each) for each in (first, later)]
    if abs(rates[0] - rates[1]) <= DIFFERS_MIN * min(rates) and abs(stalls[0] - stalls[1]) <= DIFFERS_MIN:
        return ()
    parts = [
        f"{which}: {rate:,.0f} images/s, stall {stall:.0%}"
        for which, rate, stall in zip(("first epoch", "later ones"), rates, stalls, strict=True)
    ]
    return ("; ".join(parts),)


def _stall(stats: Stats) -> float:
    return stats.batch_stall if stats.device_stall is None else stats.device_stall
