"""The verdict on a loader: what its consumer waits for, the evidence, the remedy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fastload._display import card, paragraphs
from fastload._machine import usable_cpus
from fastload._result import Result
from fastload.stats.gil import holds_gil
from fastload.stats.verdict import (
    BUSY_MIN,
    DECODE_COST_MIN,
    IDLE,
    IDLE_MAX,
    LESS_ON_GPU,
    MORE_WORKERS,
    REMEDIES,
    STALL_MIN,
    Bottleneck,
    Verdict,
    limit_outside_loader,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastload.stats.stats import Stats

BATCHES_MIN: Final = 4
_QUEUED_MIN: Final = 0.25  # share of fetch time; mentioned in the evidence from here on
_READ: Final = (Bottleneck.STORAGE, Bottleneck.DECODE, Bottleneck.PYTHON)
_MADE: Final = (*_READ, Bottleneck.COLLATE)
_BY_GIL: Final = (Bottleneck.COLLATE, Bottleneck.PIN)  # what threads of this process do
_PYTHON_MIN: Final = 0.02  # share of samples made in Python that is worth a remedy
_TAKING: Final = "free cores for the training process, or put less into a batch (bytes, Python objects)"
_CONVERT: Final = "convert those files to JPEG; print(loader.plan) says what is decoded natively"
_EITHER: Final = (
    "nothing to gain in the loader: whether the GPU takes the time or the loop's own code, fastload profile tells, and "
    "this report may after some seconds where nvidia-ml-py is installed"
)
_CUT: Final = "far as its driver tells, whose samples have pauses between epochs in them"
_WHICH: Final = "fastload profile shows which of them it is"
_PY_SPY: Final = "py-spy dump shows which thread that is"
_ASK: Final = "let it ask FastLoader, by super().__iter__() or self._get_iterator(), or use fastload.prefetch_to_device"


@dataclass(frozen=True, slots=True)
class Culprits:
    """What figures do not name, each as part of a sentence.

    Attributes:
        thread: The thread that holds the GIL when the loop's thread waits for it, and where; ``None`` if unknown.
        programs: Other programs on the GPU, those that use most of it first.
        unpinned: Why batches are not pinned; ``None`` if they are, or if the figures say it.
    """

    thread: str | None = None
    programs: tuple[str, ...] = ()
    unpinned: str | None = None


@dataclass(frozen=True, slots=True)
class Report(Result):
    """A verdict and the figures behind it; ``print`` it.

    Attributes:
        verdict: One sentence, with its evidence.
        stats: The figures.
        shares: Each bottleneck's share of the time spent waiting for batches.
        notes: What the figures leave out, and how epochs differ.
        memory: The worker processes' memory, if there were some.
    """

    verdict: Verdict
    stats: Stats
    shares: Mapping[Bottleneck, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    memory: str | None = None

    def __repr__(self) -> str:
        return f"Report({self.verdict.name}: {', '.join(self.verdict.evidence)})"

    def _repr_html_(self) -> str:
        """Show the report in a notebook."""
        verdict = self.verdict
        evidence = f"{', '.join(verdict.evidence)}; {verdict.remedy}."
        return card(verdict.name, paragraphs([evidence, *self._lines()]))

    def __str__(self) -> str:
        return "\n".join([str(self.verdict), *(f"  {line}" for line in self._lines())])

    def _lines(self) -> list[str]:
        return [*self.notes, *_figures(self.stats), *([self.memory] if self.memory else [])]


def report(stats: Stats, unseen: str | None = None, culprits: Culprits | None = None) -> Report:
    """Judge a loader by its statistics.

    Args:
        stats: The figures.
        unseen: Why it may have made batches that are not among them.
        culprits: Names that they do not have, as far as they are known.
    """
    if unseen is not None and not stats.batches:
        return Report(Verdict(None, (f"no batch was seen: {unseen}",), _ASK), stats)
    seconds = _waited_for(stats)
    total = sum(seconds.values())
    shares = {which: spent / total for which, spent in seconds.items() if spent > 0}
    return Report(_verdict(stats, shares, culprits or Culprits()), stats, shares)


def _verdict(stats: Stats, shares: Mapping[Bottleneck, float], culprits: Culprits) -> Verdict:
    if stats.batches - stats.epochs < BATCHES_MIN:
        too_few = f"{count(stats.batches, 'batch', 'batches')} in {count(stats.epochs, 'epoch')} are too few to tell"
        return Verdict(None, (too_few,), "ask again after a few more")
    stall, who = _stall(stats)
    waited = f"the {who} waited for batches {stall:.0%} of the time"
    limit = _limit_outside_loader(stats, stall)
    if limit is not None:
        return _not_the_loader(stats, limit, stall, waited, culprits)
    if holds_gil(stats.totals.get("gil_s", 0.0)) and (not shares or max(shares, key=shares.__getitem__) in _BY_GIL):
        return _waits_for_gil(stats, waited, culprits.thread)
    if not shares:
        evidence = [waited, "each wait was too short to attribute"]
        return Verdict(None, tuple(evidence), "larger batches are waited for less often")
    which = max(shares, key=lambda key: shares[key])
    if which in _READ and not _fetch_is_sampled(stats):
        reading = sum(shares.get(each, 0.0) for each in _READ)
        unknown = f"{reading:.0%} of that while samples were read; no fetch has been sampled yet"
        return Verdict(None, (waited, unknown), "ask again after a few more batches")
    if which is Bottleneck.COLLATE and _were_ready(stats):
        ready = f"although {stats.ready_mean:.1f} batches were ready when it asked, on average"
        return Verdict(None, (waited, ready), _TAKING)
    evidence = [waited, f"{shares[which]:.0%} of that {_meanwhile(stats, which)}"]
    if which is Bottleneck.PIN and (why := _unpinned(stats, culprits)) is not None:
        evidence.append(why)
    if stats.python_images and which in (Bottleneck.DECODE, Bottleneck.PYTHON):
        evidence.append(_made_in_python(stats))
    if stats.fetch.queued > _QUEUED_MIN and which is not Bottleneck.STORAGE and which in _MADE:
        there = f"{count(stats.workers, 'worker')}, {count(usable_cpus(), 'core')}"
        evidence.append(f"{_readers(stats)} waited for a core {stats.fetch.queued:.0%} of fetch ({there})")
    remedy = _remedy(stats, which)
    if stats.workers >= (cores := usable_cpus()):
        there = f"{count(stats.workers, 'worker')} on {count(cores, 'core')} already"
        remedy = remedy.replace(MORE_WORKERS, f"run on more cores ({there})")
    return Verdict.of(which, *evidence, remedy=remedy)


def _limit_outside_loader(stats: Stats, stall: float) -> Bottleneck | None:
    """The limit if it is not the loader; of bounds, if both say the same."""
    if stats.device is None:
        return limit_outside_loader(stall, None, stats.gpu_busy_least)
    busy, had = stats.gpu_utilization, stats.gpu_busy_least
    if busy is None and (bounds := _bounds(stats)) is not None:
        found = {limit_outside_loader(stall, share, had) for share in bounds}
        if len(found) == 1:
            return found.pop()
    return limit_outside_loader(stall, busy, had)


def _bounds(stats: Stats) -> tuple[float, float] | None:
    """Bounds of the share in which kernels ran, where the driver tells no more."""
    if stats.gpu_utilization is not None or "gpu:most" not in stats.totals:
        return None
    return max(stats.totals["gpu:least"], min(stats.gpu_busy_least, stats.totals["gpu:most"])), stats.totals["gpu:most"]


def _not_the_loader(stats: Stats, limit: Bottleneck, stall: float, waited: str, culprits: Culprits) -> Verdict:
    """Give the evidence on a loop that has its batches in time."""
    if limit in (Bottleneck.LOOP, Bottleneck.STEP) and holds_gil(stats.totals.get("gil_s", 0.0)):
        return _waits_for_gil(stats, waited, culprits.thread)
    if limit is Bottleneck.GPU and (shared := _shared(stats, waited, culprits.programs)) is not None:
        return shared
    spare: list[str] = []
    if stats.workers and "fetch" in stats.stages:
        spare.append(f"{stats.ready_mean:.1f} batches were ready when it asked, on average")
    if (rate := stats.loader_images_per_s) > stats.images_per_s:
        asked = f"was asked for {stats.images_per_s:,.0f}"
        spare.append(f"the loader could deliver about {rate:,.0f} images/s and {asked}")
    bounds = _bounds(stats)
    if limit is Bottleneck.STEP:
        if bounds is not None:
            spare.insert(0, f"kernels ran on the GPU {_between(bounds)} of it, as {_CUT}")
        return Verdict.of(limit, waited, *spare, remedy=None if stats.device is None else _EITHER)
    remedy = None
    if limit is Bottleneck.GPU and stats.gpu_decode_share >= DECODE_COST_MIN:
        spare.insert(0, f"decoding there {_cost(stats)}")
        remedy = LESS_ON_GPU
    if stats.gpu_busy_least >= BUSY_MIN:
        had = f"the GPU had work for at least {stats.gpu_busy_least:.0%} of it"
        return Verdict.of(limit, waited, had, *spare, remedy=remedy)
    share = f"{stats.gpu_utilization:.0%}" if bounds is None else ""
    if bounds is not None:
        share = f"at least {bounds[0]:.0%}" if limit is Bottleneck.GPU else f"at most {bounds[1]:.0%}"
    ran = f"kernels ran on the GPU {share} of it, as its driver says"
    if limit is Bottleneck.GPU:
        return Verdict.of(limit, waited, f"{ran} (other programs' included)", *spare, remedy=remedy)
    why = "it is the loop that leaves it idle, not the loader"
    if stall >= STALL_MIN:
        why = "the loop leaves it idle for longer than the loader does"
    hardly = (bounds[1] if bounds is not None else stats.gpu_utilization or 0.0) <= IDLE_MAX
    return Verdict.of(limit, waited, ran, why, *spare, remedy=IDLE if hardly else f"{REMEDIES[limit]}; {_WHICH}")


def _between(bounds: tuple[float, float]) -> str:
    return f"{bounds[0]:.0%} to {bounds[1]:.0%}"


def _were_ready(stats: Stats) -> bool:
    """Whether the loop was slow to take batches that workers had made."""
    mostly = stats.waited_for.get("hand-over", 0.0) > 0.5 * stats.batch_wait_s
    return mostly and 0 < stats.workers <= stats.ready_mean


def _waits_for_gil(stats: Stats, waited: str, thread: str | None) -> Verdict:
    waits_ms = 1e3 * stats.totals["gil_s"]
    again = f"the loop's thread waited {waits_ms:,.1f} ms to get the GIL back when it had let go of it"
    if thread is None:
        return Verdict.of(Bottleneck.GIL, again, waited, remedy=f"{REMEDIES[Bottleneck.GIL]}; {_PY_SPY}")
    return Verdict.of(Bottleneck.GIL, again, f"which was held by {thread}", waited)


def _shared(stats: Stats, waited: str, by: tuple[str, ...]) -> Verdict | None:
    """The verdict on a busy GPU that other programs use, too."""
    others, programs = stats.totals.get("gpu:others", 0.0), stats.totals.get("gpu:programs", 1.0)
    named = [f"namely by {', '.join(by)}"] if by else []
    if others >= 1.0 - BUSY_MIN:
        ran = f"other programs' kernels ran on the GPU for at least {others:.0%} of it, as its driver says"
        return Verdict.of(Bottleneck.SHARED, waited, ran, *named)
    if programs < 2:
        return None
    there = f"the GPU was busy, but {programs:.0f} programs are on it, and whose kernels ran is not known"
    beside = [f"beside this one there is {', '.join(by)}"] if by else []
    return Verdict(None, (waited, there, *beside), REMEDIES[Bottleneck.SHARED])


def _fetch_is_sampled(stats: Stats) -> bool:
    """Whether the parts of a fetch are known: from samples, or from native threads."""
    return stats.fetch.sampled_s > 0 or "decode" in stats.stages


def _stall(stats: Stats) -> tuple[float, str]:
    """The share of time the consumer waited, and the consumer's name."""
    stall = stats.device_stall
    if stall is not None and stats.device is not None and stats.device.copies >= BATCHES_MIN:
        return stall, "GPU"
    return stats.batch_stall, "training loop"


def _waited_for(stats: Stats) -> dict[Bottleneck, float]:
    """Seconds spent waiting for batches, by bottleneck."""
    waited = dict(stats.waited_for)
    waited.pop("gpu", None)
    stages = stats.stages
    making = {name: stages[name].total_s for name in ("fetch", "decode", "collate") if name in stages}
    all_of_it, elapsed = sum(making.values()), stats.elapsed_s
    in_python = _in_python(stats, waited)
    before = waited.pop("before", 0.0)
    ipc, pin = waited.get("ipc", 0.0) + waited.get("hand-over", 0.0), waited.get("pin", 0.0)
    if "pin" in stages and elapsed > 0:  # one thread receives and pins, so a batch waits while it pins another
        busy = min(1.0, stages["pin"].total_s / elapsed)
        ipc, pin = ipc * (1 - busy), pin + ipc * busy
    if stats.workers and elapsed > 0:
        # Workers that are never idle are the limit; faster IPC would change nothing. They even slow it down: the thread
        # that sends a batch contends for the GIL with the Python code that makes the next one. And where workers wait
        # for a core, so does the thread that receives from them, because the work takes all cores.
        busy = max(min(1.0, all_of_it / (stats.workers * elapsed)), stats.fetch.queued)
        ipc, before = ipc * (1 - busy), before + ipc * busy
    for name, seconds in making.items():  # "before": the worker was making another batch
        waited[name] = waited.get(name, 0.0) + (before * seconds / all_of_it if all_of_it else 0.0)
    fetch = stats.fetch
    reading = waited.get("fetch", 0.0) + waited.get("decode", 0.0)
    known = fetch.blocked + fetch.decoding + fetch.computing
    seconds_of = {
        Bottleneck.STORAGE: reading * fetch.blocked / known if known else 0.0,
        Bottleneck.DECODE: reading * fetch.decoding / known if known else waited.get("decode", 0.0),
        Bottleneck.PYTHON: in_python + (reading * fetch.computing / known if known else waited.get("fetch", 0.0)),
        Bottleneck.EPILOGUE: waited.get("epilogue", 0.0),
        Bottleneck.COLLATE: waited.get("collate", 0.0) + ipc,
        Bottleneck.PIN: pin,
    }
    by = Bottleneck.PIN if _is_pageable(stats) else Bottleneck.LINK
    device, stall = stats.device, stats.device_stall
    if device is None or stall is None or device.copies < BATCHES_MIN:
        seconds_of[by] = seconds_of.get(by, 0.0) + waited.get("h2d", 0.0)
        return seconds_of
    # The device's clock gives the copy's share of its idle time; the host's clock divides the rest. A batch is copied
    # while the next is made, so the copy can delay the loop only while the link is busy.
    copying = device.copying_s / device.idle_s if device.idle_s else 0.0
    idle_s = stall * elapsed
    crossing_s = idle_s * copying * _link_busy(stats)
    decoding_s = _gpu_decoding_s(stats)
    total, rest = sum(seconds_of.values()), idle_s - crossing_s - decoding_s
    seconds_of = {key: rest * value / total if total else 0.0 for key, value in seconds_of.items()}
    seconds_of[by] = seconds_of.get(by, 0.0) + crossing_s + (0.0 if total else rest)
    seconds_of[Bottleneck.DECODE] = seconds_of.get(Bottleneck.DECODE, 0.0) + decoding_s
    return seconds_of


def _gpu_decoding_s(stats: Stats) -> float:
    """Seconds in which the device idled for lack of a batch that it was decoding.

    Like a copy, that delays the loop only while the kernels are busy.
    """
    device, decode = stats.device, stats.stages.get("gpu_decode")
    if device is None or decode is None or not device.idle_s or not stats.elapsed_s:
        return 0.0
    on_gpu = stats.gpu_images / max(1, stats.images)
    busy = min(1.0, decode.mean_s * on_gpu * stats.totals.get("asked", 0.0) / stats.elapsed_s)
    return (stats.device_stall or 0.0) * stats.elapsed_s * busy * device.decoding_s / device.idle_s


def _is_gpu_decode(stats: Stats, which: Bottleneck) -> bool:
    """Whether a loop that is decode-bound waits for the GPU's kernels rather than for threads."""
    if which is not Bottleneck.DECODE:
        return False
    return _gpu_decoding_s(stats) > 0.5 * _waited_for(stats)[Bottleneck.DECODE]


def _cost(stats: Stats) -> str:
    """What decoding on the GPU costs, as the end of a sentence."""
    cost_s = stats.gpu_decode_cost_s or 0.0
    most = "" if stats.gpu_decode_is_compared else "up to "
    share = f" ({stats.gpu_decode_share:.1%})" if stats.gpu_decode_share else ""
    return f"makes a step {most}{1e3 * cost_s:,.2f} ms longer{share}"


def _in_python(stats: Stats, waited: dict[str, float]) -> float:
    """Remove from ``waited``, and return, the seconds spent on samples made in Python.

    The native engine waits for its decode threads and for Python in turn, so the wait is split by how busy each is.
    """
    stages = stats.stages
    if "python" in waited or "python" not in stages:
        return waited.pop("python", 0.0)
    alone = stages["python"].total_s
    threads = sum(stages[name].total_s for name in ("fetch", "decode") if name in stages) / max(1, stats.workers)
    seconds = waited.get("decode", 0.0) * alone / (alone + threads)
    waited["decode"] = waited.get("decode", 0.0) - seconds
    return seconds


def _link_busy(stats: Stats) -> float:
    """The share of time spent copying, or in the epilogue that follows on the device."""
    elapsed, steps = stats.elapsed_s, stats.totals.get("asked", 0.0)
    each = sum(stats.stages[name].mean_s for name in ("h2d", "epilogue") if name in stats.stages)
    return min(1.0, each * steps / elapsed) if elapsed > 0 else 1.0


def _is_pageable(stats: Stats) -> bool:
    device = stats.device
    return device is not None and 2 * device.pageable_bytes > device.copied_bytes


def _unpinned(stats: Stats, culprits: Culprits) -> str | None:
    """Why batches came from memory that is not pinned, if it is known."""
    if not _is_pageable(stats):
        return None
    if stats.missed:
        why, times = max(stats.missed.items(), key=lambda missed: missed[1])
        return f"no pinned slot for {count(times, 'batch', 'batches')}: {why}"
    return None if culprits.unpinned is None else f"not pinned: {culprits.unpinned}"


def _meanwhile(stats: Stats, which: Bottleneck) -> str:
    """Describe what was happening to the batch that the consumer waited for."""
    fetch, stages, device = stats.fetch, stats.stages, stats.device
    if _is_gpu_decode(stats, which):
        return f"while the GPU decoded the next batch ({1e3 * stages['gpu_decode'].mean_s:,.2f} ms each)"
    known = fetch.blocked + fetch.decoding + fetch.computing or 1.0  # without time spent queueing for a core
    by = _readers(stats)
    if which is Bottleneck.STORAGE:
        return (
            f"while samples were read, {fetch.blocked / known:.0%} of which {by} were blocked and computed nothing"
            f"{at_most(fetch.waits_at)}"
        )
    if which is Bottleneck.DECODE and not fetch.sampled_s:
        return f"while {by} read and decoded"
    if which is Bottleneck.DECODE:
        where = at_most(fetch.computes_at)
        return f"while samples were read, {fetch.decoding / known:.0%} of which went into decoding{where}"
    if which is Bottleneck.PYTHON and "python" in stages:
        made = stages["python"]
        return (
            f"while samples that the native engine does not decode were made in Python, one after the other "
            f"({1e3 * made.mean_s:,.1f} ms in each of {count(made.count, 'batch', 'batches')})"
        )
    if which is Bottleneck.PYTHON:
        return (
            f"while samples were read, {fetch.computing / known:.0%} of which the dataset's own code and its "
            f"transforms computed{at_most(fetch.computes_at)}"
        )
    if which is Bottleneck.EPILOGUE:
        return (
            f"while boxes of decoded images were erased on the host, by one thread "
            f"({1e3 * stages['epilogue'].mean_s:,.1f} ms a batch)"
        )
    if which is Bottleneck.COLLATE:
        took = [f"{1e3 * stages[name].mean_s:,.1f} ms to {name}" for name in ("collate", "fetch") if name in stages]
        waited = stats.waited_for
        sending = waited.get("ipc", 0.0) + waited.get("hand-over", 0.0)
        if sending > waited.get("collate", 0.0):
            sent = f"{1e3 * sending / max(1.0, stats.totals.get('asked', 0.0)):,.1f} ms a batch"
            way = "while finished batches were on their way to the training loop"
            if waited.get("hand-over", 0.0) > waited.get("ipc", 0.0):  # torch draws indices before it returns a batch
                way += ", or the sampler drew the next indices"
            return f"{way} ({', '.join([sent, *took])})"
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


_LOOKS_MIN: Final = 10
"""A look at pixels for so many images is worth a remedy."""


def _remedy(stats: Stats, which: Bottleneck) -> str:
    if stats.workers == 0 and which in _MADE:
        return "set num_workers >= 1, so that batches are made beside the steps and not between them"
    native = "decode" in stats.stages
    if _is_gpu_decode(stats, which):
        return f"{LESS_ON_GPU}; or store smaller images"
    if which is Bottleneck.DECODE and native and stats.python_images > _PYTHON_MIN * stats.images:
        return f"{_CONVERT}; then {MORE_WORKERS}, or store smaller images"
    if which is Bottleneck.DECODE and native:
        return f"{MORE_WORKERS}, or store smaller images (these are decoded natively)"
    if which is Bottleneck.PYTHON and "python" in stats.stages:
        return _CONVERT
    if which in (Bottleneck.DECODE, Bottleneck.PYTHON) and stats.looks * _LOOKS_MIN > stats.images:
        return (
            f"let the transforms leave pixels alone before the batch is sent (they are looked at"
            f"{at_most(stats.fetch.looks_at)}); or {REMEDIES[which]}"
        )
    if which is Bottleneck.COLLATE and native:
        return "keep targets plain (numbers, small tensors), which one thread collates, and other Python threads few"
    if which is Bottleneck.COLLATE and stats.device is not None and stats.slot_batches < stats.copied:
        return f"{REMEDIES[which]}; print(loader.plan) says what keeps batches out of pinned slots"
    return REMEDIES[which]


def _made_in_python(stats: Stats) -> str:
    made, samples = stats.python_images, stats.images
    return f"{made:,} of {count(samples, 'sample')} ({made / max(1, samples):.0%}) were made in Python"


def _readers(stats: Stats) -> str:
    return "decode threads" if "decode" in stats.stages else "workers" if stats.workers else "the main process"


_WAITS: Final = {"gpu": "for the GPU to end earlier steps"}
"""What a stage is called as something to wait for, if otherwise than the stage."""


def _figures(stats: Stats) -> list[str]:
    """The report's lines of figures."""
    size = stats.images / max(1, stats.batches)
    each = f" of {'' if size.is_integer() else 'about '}{count(round(size), 'image')}" if stats.batches else ""
    took = f"{1e3 * size / stats.images_per_s:,.1f} ms each, " if stats.images_per_s else ""
    rates = [f"{stats.batches:,} batches{each}, {took}{stats.images_per_s:,.0f} images/s"]
    if consumer := stats.consumer_images_per_s:
        rates.append(f"the consumer by itself could take {max(consumer, stats.images_per_s):,.0f}")
    if loader := stats.loader_images_per_s:
        rates.append(f"the loader deliver {loader:,.0f}")
    lines = ["; ".join([rates[0], ", ".join(rates[1:])]) if rates[1:] else rates[0]]
    if stats.stages:
        where = count(stats.workers, "worker") if stats.workers else "main process"
        stages = ", ".join(f"{name} {1e3 * stage.mean_s:,.2f}" for name, stage in stats.stages.items())
        lines.append(f"ms a batch: {stages} ({where})")
    if stats.python_images:
        lines.append(f"{_made_in_python(stats)}, which the native engine does not decode")
    if stats.deferred_images:
        looks = (
            f", which were looked at {count(stats.looks, 'time')} before{at_most(stats.fetch.looks_at)}"
            if stats.looks
            else ""
        )
        lines.append(f"{stats.deferred_images:,} images were not made before their batch was sent{looks}")
    if stats.gpu_images:
        took_ms = 1e3 * stats.stages["gpu_decode"].mean_s if "gpu_decode" in stats.stages else None
        took = "" if took_ms is None else f" ({took_ms:,.2f} ms a batch of its time; that {_cost(stats)})"
        took += f" in {stats.gpu_decode_bytes / 1e6:,.0f} MB of its memory" if stats.gpu_decode_bytes else ""
        took += f", {stats.kept_images:,} files were there and not read" if stats.kept_images else ""
        in_python = f", {stats.python_images:,} in Python" if stats.python_images else ""
        lines.append(
            f"decoded: {stats.gpu_images:,} images by the GPU{took}, {stats.thread_images:,} by threads{in_python}"
        )
    waits = sorted(stats.waited_for.items(), key=lambda item: -item[1])
    waits = [(name, seconds) for name, seconds in waits if seconds > 0.005 * stats.wait_s]
    lines.append(
        f"the loop waited {stats.wait_s:,.2f} s of {stats.elapsed_s:,.2f}"
        + (": " + ", ".join(f"{_WAITS.get(name, name)} {seconds:,.2f}" for name, seconds in waits) if waits else "")
        + (f"; {stats.startup_s:,.2f} s for the first batch" if stats.startup_s else "")
    )
    if (busy := stats.gpu_utilization) is not None:
        lines.append(f"kernels ran on the GPU {busy:.0%} of the time, as its driver says (other programs' included)")
    elif (bounds := _bounds(stats)) is not None:
        lines.append(f"kernels ran on the GPU {_between(bounds)} of the time, as {_CUT}")
    if stats.slots or stats.missed:
        missed = f"{sum(stats.missed.values()):,} misses"
        if stats.missed:
            missed += f" ({', '.join(f'{why}: {times:,}' for why, times in stats.missed.items())})"
        lines.append(f"slots: {stats.slot_batches:,} hits, {missed}, {stats.pinned_bytes / 1e6:,.0f} MB pinned")
    return lines


def count(number: int, one: str, many: str | None = None) -> str:
    """A number of things, in words."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def at_most(places: tuple[str, ...]) -> str:
    """The place reported by most workers."""
    if not places:
        return ""
    return f", mostly at {max(set(places), key=lambda place: (places.count(place), place))}"
