"""The verdict on a loader: what its consumer waits for, how that shows, and what to change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fastload._machine import usable_cpus
from fastload.insight.verdict import REMEDIES, Bottleneck, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastload.insight.stats import Stats

STALL_MIN: Final = 0.1
"""A consumer that waits for a smaller share of its time is the bottleneck itself."""

BATCHES_MIN: Final = 4
_QUEUED_MIN: Final = 0.25  # of fetching: worth a word
_MADE: Final = (Bottleneck.STORAGE, Bottleneck.DECODE, Bottleneck.PYTHON, Bottleneck.COLLATE)


@dataclass(frozen=True, slots=True)
class Report:
    """A verdict and the figures that it rests on; ``print`` it.

    Attributes:
        verdict: In one sentence, with its evidence.
        stats: The figures.
        shares: Of the time for which batches were waited: how much each bottleneck had.
    """

    verdict: Verdict
    stats: Stats
    shares: Mapping[Bottleneck, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return "\n".join([str(self.verdict), *(f"  {line}" for line in _figures(self.stats))])


def report(stats: Stats) -> Report:
    """Judge a loader by its statistics."""
    seconds = _waited_for(stats)
    total = sum(seconds.values())
    shares = {which: spent / total for which, spent in seconds.items() if spent > 0}
    return Report(_verdict(stats, shares), stats, shares)


def _verdict(stats: Stats, shares: Mapping[Bottleneck, float]) -> Verdict:
    if stats.batches - stats.epochs < BATCHES_MIN:
        seen = f"{_count(stats.batches, 'batch', 'batches')} in {_count(stats.epochs, 'epoch')} are too few to tell"
        return Verdict(None, (seen,), "ask again after a few more")
    stall, who = _stall(stats)
    waited = f"the {who} waited for batches {stall:.0%} of the time"
    if stall < STALL_MIN or not shares:
        evidence = [waited, "the model is the limit"]
        if "fetch" in stats.stages:
            evidence.append(f"{stats.ready_mean:.1f} batches were ready when it asked, on average")
        if (spare := stats.loader_images_per_s) > stats.images_per_s:
            evidence.append(
                f"the loader could deliver {spare:,.0f} images/s and was asked for {stats.images_per_s:,.0f}"
            )
        return Verdict.of(Bottleneck.GPU, *evidence)
    which = max(shares, key=lambda key: shares[key])
    evidence = [waited, f"{shares[which]:.0%} of that {_meanwhile(stats, which)}"]
    if stats.fetch.queued > _QUEUED_MIN and which is not Bottleneck.STORAGE and which in _MADE:
        evidence.append(
            f"workers waited for a core {stats.fetch.queued:.0%} of fetch ({_count(stats.workers, 'worker')}, "
            f"{_count(usable_cpus(), 'core')})"
        )
    return Verdict.of(which, *evidence, remedy=_remedy(stats, which))


def _stall(stats: Stats) -> tuple[float, str]:
    """The share of its time for which the consumer waited, and who that is."""
    stall = stats.device_stall
    if stall is not None and stats.device is not None and stats.device.copies >= BATCHES_MIN:
        return stall, "GPU"
    elapsed = stats.wait_s + stats.step_s
    return (stats.batch_wait_s / elapsed if elapsed > 0 else 0.0), "training loop"


def _waited_for(stats: Stats) -> dict[Bottleneck, float]:
    """Seconds for which batches were waited, by what they were at."""
    waited = dict(stats.waited_for)
    waited.pop("gpu", None)
    stages = stats.stages
    making = {name: stages[name].total_s for name in ("fetch", "decode", "collate") if name in stages}
    all_of_it, elapsed = sum(making.values()), stats.wait_s + stats.step_s
    before = waited.pop("before", 0.0)
    ipc, pin = waited.get("ipc", 0.0) + waited.get("hand-over", 0.0), waited.get("pin", 0.0)
    if "pin" in stages and elapsed > 0:  # one thread receives and pins: this batch waited while it pinned another
        busy = min(1.0, stages["pin"].total_s / elapsed)
        ipc, pin = ipc * (1 - busy), pin + ipc * busy
    if stats.workers and elapsed > 0:
        # Workers that are never idle are the limit, and a quicker way from them would change nothing. They even make it
        # slower: the thread that sends a batch contends with the next one's Python code for the interpreter's lock. And
        # where workers have to wait for a core, so has whoever receives from them: it is the work that takes the cores.
        busy = max(min(1.0, all_of_it / (stats.workers * elapsed)), stats.fetch.queued)
        ipc, before = ipc * (1 - busy), before + ipc * busy
    for name, seconds in making.items():  # the worker was at another batch then
        waited[name] = waited.get(name, 0.0) + (before * seconds / all_of_it if all_of_it else 0.0)
    fetch = stats.fetch
    reading = waited.get("fetch", 0.0) + waited.get("decode", 0.0)
    known = fetch.blocked + fetch.decoding + fetch.computing
    seconds_of = {
        Bottleneck.STORAGE: reading * fetch.blocked / known if known else 0.0,
        Bottleneck.DECODE: reading * fetch.decoding / known if known else waited.get("decode", 0.0),
        Bottleneck.PYTHON: reading * fetch.computing / known if known else waited.get("fetch", 0.0),
        Bottleneck.COLLATE: waited.get("collate", 0.0) + waited.get("epilogue", 0.0) + ipc,
        Bottleneck.PIN: pin,
    }
    by = Bottleneck.PIN if _is_pageable(stats) else Bottleneck.LINK
    device, stall = stats.device, stats.device_stall
    if device is None or stall is None or device.copies < BATCHES_MIN:
        seconds_of[by] = seconds_of.get(by, 0.0) + waited.get("h2d", 0.0)
        return seconds_of
    # The device's clock says how much of its idling was the copy; the host's divides what remains. A batch is copied
    # while the next is made, so that the copy holds up no more than the link is busy.
    copying = device.copying_s / device.idle_s if device.idle_s else 0.0
    idle_s = stall * elapsed
    crossing_s = idle_s * copying * _link_busy(stats)
    total, rest = sum(seconds_of.values()), idle_s - crossing_s
    seconds_of = {key: rest * value / total if total else 0.0 for key, value in seconds_of.items()}
    seconds_of[by] = seconds_of.get(by, 0.0) + crossing_s + (0.0 if total else rest)
    return seconds_of


def _link_busy(stats: Stats) -> float:
    """The share of the time in which a copy was under way, or the epilogue that follows it on the device."""
    elapsed, steps = stats.wait_s + stats.step_s, stats.totals.get("asked", 0.0)
    each = sum(stats.stages[name].mean_s for name in ("h2d", "epilogue") if name in stats.stages)
    return min(1.0, each * steps / elapsed) if elapsed > 0 else 1.0


def _is_pageable(stats: Stats) -> bool:
    device = stats.device
    return device is not None and 2 * device.pageable_bytes > device.copied_bytes


def _meanwhile(stats: Stats, which: Bottleneck) -> str:
    """What the batch that was waited for was at."""
    fetch, stages, device = stats.fetch, stats.stages, stats.device
    known = fetch.blocked + fetch.decoding + fetch.computing or 1.0  # without the time that they had no core for
    by = "decode threads" if "decode" in stages else "workers" if stats.workers else "the main process"
    if which is Bottleneck.STORAGE:
        return (
            f"while samples were read, {fetch.blocked / known:.0%} of which {by} were blocked and computed nothing"
            f"{_at(fetch.waits_at)}"
        )
    if which is Bottleneck.DECODE:
        return (
            f"while samples were read, {fetch.decoding / known:.0%} of which went into decoding{_at(fetch.computes_at)}"
        )
    if which is Bottleneck.PYTHON:
        return (
            f"while samples were read, {fetch.computing / known:.0%} of which the dataset's own code and its "
            f"transforms computed{_at(fetch.computes_at)}"
        )
    if which is Bottleneck.COLLATE:
        took = [f"{1e3 * stages[name].mean_s:,.1f} ms to {name}" for name in ("collate", "fetch") if name in stages]
        sending = stats.waited_for.get("ipc", 0.0) + stats.waited_for.get("hand-over", 0.0)
        if sending > stats.waited_for.get("collate", 0.0) + stats.waited_for.get("epilogue", 0.0):
            sent = f"{1e3 * sending / max(1.0, stats.totals.get('asked', 0.0)):,.1f} ms a batch"
            return f"while finished batches were on their way to the training loop ({', '.join([sent, *took])})"
        return f"while batches were put together and sent ({', '.join(took)})"
    if which is Bottleneck.PIN and not _is_pageable(stats):
        pinning = f" ({1e3 * stages['pin'].mean_s:,.1f} ms a batch)" if "pin" in stages else ""
        return f"while batches were copied into pinned memory{pinning}"
    speed = ""
    if device is not None and device.copies and "h2d" in stages and stages["h2d"].total_s:
        rate = device.copied_bytes / stages["h2d"].total_s / 1e9
        speed = f" ({device.copied_bytes / device.copies / 1e6:,.1f} MB a batch at {rate:,.1f} GB/s)"
    memory = " from pageable memory" if _is_pageable(stats) else ""
    return f"while they were copied to the device{memory}{speed}"


def _remedy(stats: Stats, which: Bottleneck) -> str:
    if stats.workers == 0 and which in _MADE:
        return "set num_workers >= 1, so that batches are made beside the steps and not between them"
    if which is Bottleneck.DECODE and "decode" in stats.stages:
        return "raise num_workers up to the cores that there are, or store smaller images (these are decoded natively)"
    return REMEDIES[which]


def _figures(stats: Stats) -> list[str]:
    """A few lines of figures."""
    lines = [
        f"{stats.batches:,} batches, {stats.images_per_s:,.0f} images/s; the consumer by itself could take "
        f"{stats.consumer_images_per_s:,.0f}, the loader deliver {stats.loader_images_per_s:,.0f}"
    ]
    if stats.stages:
        where = _count(stats.workers, "worker") if stats.workers else "main process"
        stages = ", ".join(f"{name} {1e3 * stage.mean_s:,.2f}" for name, stage in stats.stages.items())
        lines.append(f"ms a batch: {stages} ({where})")
    waits = sorted(stats.waited_for.items(), key=lambda item: -item[1])
    waits = [(name, seconds) for name, seconds in waits if seconds > 0.005 * stats.wait_s]
    lines.append(
        f"waited {stats.wait_s:,.2f} s of {stats.wait_s + stats.step_s:,.2f}"
        + (": " + ", ".join(f"{name} {seconds:,.2f}" for name, seconds in waits) if waits else "")
        + (f"; {stats.startup_s:,.2f} s for the first batch" if stats.startup_s else "")
    )
    if stats.slots or stats.missed:
        missed = sum(stats.missed.values())
        lines.append(
            f"slots: {stats.slot_batches:,} hits, {missed:,} misses, {stats.pinned_bytes / 1e6:,.0f} MB pinned"
        )
    return lines


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _at(places: tuple[str, ...]) -> str:
    """The place that most workers name."""
    if not places:
        return ""
    return f", mostly at {max(set(places), key=lambda place: (places.count(place), place))}"
