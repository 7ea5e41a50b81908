"""A loader's statistics so far."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from fastload._display import card, table
from fastload._result import Result, flat_numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

Places: TypeAlias = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]
"""Where workers waited, computed, and looked at deferred pixels: a line of code of each worker that has any; and why
workers gave up making samples natively."""

COMPARED_MIN: Final = 16  # least number of timed steps on either side that are compared
_SUMS: Final = (  # fields of Stats that are sums of the same name
    *("batches", "images", "python_images", "gpu_images", "kept_images", "thread_images"),
    *("copied", "device_bytes", "slot_batches"),
    *("epochs", "startup_s", "wait_s", "step_s", "errors"),
)


class Totals(dict[str, float]):
    """Sums by name; 0 for unknown names."""

    def __missing__(self, key: str) -> float:
        return 0.0

    def add(self, other: Mapping[str, float]) -> None:
        """Add all sums of ``other``."""
        for key, value in other.items():
            self[key] += value

    def copy(self) -> Totals:
        """Copy in one step."""
        return Totals(self)


@dataclass(frozen=True, slots=True)
class StageTime:
    """The time that batches spent in one stage.

    Attributes:
        count: Batches measured: all of them on the host, a sample on the device.
        total_s: Seconds in this stage, summed over workers and threads.
    """

    count: int
    total_s: float

    @property
    def mean_s(self) -> float:
        """Seconds per batch."""
        return self.total_s / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True)
class Fetch:
    """What workers did while reading samples, as shares of the sampled time.

    Attributes:
        blocked: Share of waiting for a disk, a network or a lock.
        queued: Share of waiting for a core.
        decoding: Share of computing in a codec.
        computing: Share of computing elsewhere: in the dataset's own code and its transforms.
        sampled_s: The sampled time in seconds.
        waits_at: Lines of code at which workers mostly waited, by samples of their stacks.
        computes_at: Lines of code at which they mostly computed.
        looks_at: Lines of code that mostly had the pixels of deferred images made at once.
    """

    blocked: float = 0.0
    queued: float = 0.0
    decoding: float = 0.0
    computing: float = 0.0
    sampled_s: float = 0.0
    waits_at: tuple[str, ...] = ()
    computes_at: tuple[str, ...] = ()
    looks_at: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """Times of timed steps and copies, by the device's clock.

    Attributes:
        steps: Timed steps, weighted by sampling rate.
        total_s: Length of these steps, from the end of the work on one batch to the end of the work on the next.
        idle_s: Part of ``total_s`` in which the device had finished and the next batch was not there.
        copying_s: Part of ``idle_s`` in which that batch was being copied.
        decoding_s: Part of ``idle_s`` in which the device decoded it.
        gpu_steps: Timed steps during which the device decoded, not weighted.
        gpu_busy_s: Length of these steps without idle time.
        thread_steps: Timed steps during which decode threads decoded, not weighted.
        thread_busy_s: Length of these steps without idle time.
        copies: Timed copies.
        copied_bytes: Size of these copies.
        pageable_bytes: Part of ``copied_bytes`` that came from memory that was not pinned.
    """

    steps: float = 0
    total_s: float = 0.0
    idle_s: float = 0.0
    copying_s: float = 0.0
    decoding_s: float = 0.0
    gpu_steps: int = 0
    gpu_busy_s: float = 0.0
    thread_steps: int = 0
    thread_busy_s: float = 0.0
    copies: int = 0
    copied_bytes: int = 0
    pageable_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Stats(Result):
    """A loader's counters over all its epochs; :meth:`since` gives those of a period.

    Attributes:
        batches: Batches handed to the consumer.
        images: Images (samples of any kind) in them.
        python_images: Part of them that the native engine left to the user's own Python, such as PNG files.
        gpu_images: Part of them that the GPU decoded.
        kept_images: Part of these whose files were in its memory, and were not read (``device_cache_bytes``).
        thread_images: Part of them that decode threads made.
        deferred_images: Images of worker processes whose pixels were not made when the program made tensors of them.
        looks: How often the program then looked at some, so that they were made at once.
        gpu_decode_bytes: Bytes of the device's memory that decoding there takes now, without the batches that it makes.
        copied: Batches copied to the device.
        device_bytes: Size of these batches, as copied.
        slot_batches: Part of ``copied`` that workers wrote straight into pinned slots: hits.
        missed: Batches that took torch's ordinary path although slots are on, by reason: misses.
        slots: Current number of slots.
        slot_bytes: Bytes of each.
        pinned_bytes: Bytes of pinned memory that the slots hold.
        index_bytes: Bytes of the index of JPEG files.
        indexed: Images that were decoded with it.
        errors: Samples that raised, and that ``on_error`` left out or replaced; with those of states that were loaded.
        epochs: Epochs begun.
        startup_s: Seconds that the consumer waited for the first batch of its epochs.
        wait_s: Seconds that it waited for the other batches.
        step_s: Seconds from a batch's hand-over to the request for the next.
        waited_for: ``wait_s`` by the stage of the batch that was waited for: ``before`` (its worker had yet to begin),
            ``fetch``, ``collate``, ``ipc`` (sent between processes), ``pin``, ``decode`` (native threads), ``epilogue``
            (on the host), ``gpu`` (the device was more than two batches behind), ``h2d``, ``hand-over``.
        stages: Seconds per stage: ``fetch``, ``decode``, ``python``, ``collate``, ``pin``, ``h2d``, ``epilogue``, where
            the engine has them. Worker processes decode in ``fetch``; native threads only read files there. ``python``
            is how long the native engine waited for samples that it does not decode, in batches that had any;
            ``gpu_decode`` is the time of the GPU's kernels.
        fetch: The parts of fetching.
        device: The device's times, if there is a device.
        gpu_utilization: The share of time in which kernels ran on the device, including other programs', by its driver;
            ``None`` without ``nvidia-ml-py`` or if the driver does not report it.
        workers: Processes or threads that make batches; 0 is the main process alone.
        queues: Batches between two stages now: ``ready`` (made, not taken), ``device`` (copied, not taken).
        ready_mean: Average number of batches ready when the consumer asked.
        batches_held: Batches that the loader holds now, on host and device.
    """

    batches: int = 0
    images: int = 0
    python_images: int = 0
    gpu_images: int = 0
    kept_images: int = 0
    thread_images: int = 0
    deferred_images: int = 0
    looks: int = 0
    gpu_decode_bytes: int = 0
    copied: int = 0
    device_bytes: int = 0
    slot_batches: int = 0
    missed: Mapping[str, int] = field(default_factory=dict)
    slots: int = 0
    slot_bytes: int = 0
    pinned_bytes: int = 0
    index_bytes: int = 0
    indexed: int = 0
    errors: int = 0
    epochs: int = 0
    startup_s: float = 0.0
    wait_s: float = 0.0
    step_s: float = 0.0
    waited_for: Mapping[str, float] = field(default_factory=dict, metadata={"unit": "s"})
    stages: Mapping[str, StageTime] = field(default_factory=dict)
    fetch: Fetch = Fetch()
    device: DeviceTimes | None = None
    gpu_utilization: float | None = None
    workers: int = 0
    queues: Mapping[str, int] = field(default_factory=dict)
    ready_mean: float = 0.0
    batches_held: int = 0
    totals: Mapping[str, float] = field(default_factory=dict, repr=False, compare=False)

    def __repr__(self) -> str:
        *counts, (_, stall) = self._summary()
        return f"Stats({', '.join(f'{value} {name}' for name, value in counts)}, stall {stall})"

    def _repr_html_(self) -> str:
        """Show the figures in a notebook."""
        stages = ((name, stage.count, f"{1e3 * stage.mean_s:,.2f}") for name, stage in self.stages.items())
        return card("Stats", table(self._summary()), table(stages, ("stage", "batches", "ms each")))

    def _summary(self) -> list[tuple[str, str]]:
        shown = [("epochs", f"{self.epochs:,}"), ("batches", f"{self.batches:,}"), ("images", f"{self.images:,}")]
        if self.gpu_images:
            shown += [("by the GPU", f"{self.gpu_images:,}"), ("by threads", f"{self.thread_images:,}")]
        if self.errors:
            shown.append(("errors", f"{self.errors:,}"))
        return [*shown, ("images/s", f"{self.images_per_s:,.0f}"), ("stall", f"{self.loader_stall:.0%}")]

    @property
    def elapsed_s(self) -> float:
        """``wait_s`` and ``step_s`` together."""
        return self.wait_s + self.step_s

    @property
    def stall(self) -> float:
        """The share of time the consumer waited, without start-up.

        0 before the second batch. This is the host's view; with a device, see :attr:`device_stall`.
        """
        return self.wait_s / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def batch_wait_s(self) -> float:
        """``wait_s`` without the time in which the batch was ready and waited for the device."""
        return self.wait_s - self.waited_for.get("gpu", 0.0)

    @property
    def batch_stall(self) -> float:
        """``batch_wait_s`` as a share of the time."""
        return self.batch_wait_s / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def making_s(self) -> float:
        """Seconds in which workers and threads made batches: ``fetch``, ``decode`` and ``collate``."""
        return sum(self.stages[name].total_s for name in ("fetch", "decode", "collate") if name in self.stages)

    def wait_share(self, *places: str) -> float:
        """The share of ``batch_wait_s`` spent in ``places``: keys of ``waited_for`` except ``gpu``."""
        waited = self.batch_wait_s
        return sum(self.waited_for.get(place, 0.0) for place in places) / waited if waited > 0 else 0.0

    @property
    def device_stall(self) -> float | None:
        """The share of time the device lacked a batch; ``None`` if not measured.

        Lower bound. Timed steps may miss waits, so it is at least what the estimated busy time leaves of the wait.
        """
        device, elapsed = self.device, self.elapsed_s
        if device is None or not device.total_s or not elapsed:
            return None
        busy_s = (device.total_s - device.idle_s) / device.steps * self.totals.get("asked", 0.0)
        unseen = min(1.0 - busy_s / elapsed, self.batch_stall)
        return max(device.idle_s / device.total_s, unseen)

    @property
    def loader_stall(self) -> float:
        """The share of time without a batch: ``device_stall`` where measured, else ``batch_stall``."""
        return self.batch_stall if self.device_stall is None else self.device_stall

    @property
    def gpu_busy_least(self) -> float:
        """Lower bound of the share of time the device was busy; 0 if unknown.

        It was busy throughout each step that ended with the device more than two batches behind, and while the loop
        waited inside ``next()``, except where it idled for lack of a batch.
        """
        stall, elapsed = self.device_stall, self.elapsed_s
        return 0.0 if stall is None else max(self.totals.get("behind_s", 0.0) / elapsed, self.stall - stall)

    @property
    def gpu_decode_cost_s(self) -> float | None:
        """Seconds by which decoding on the GPU makes a step longer; ``None`` if unknown.

        Compared with steps beside decode threads if :attr:`gpu_decode_is_compared`; else the kernels', at most this.
        """
        device, decode = self.device, self.stages.get("gpu_decode")
        if device is None or decode is None:
            return None
        if self.gpu_decode_is_compared:
            return max(0.0, device.gpu_busy_s / device.gpu_steps - device.thread_busy_s / device.thread_steps)
        return decode.mean_s

    @property
    def gpu_decode_is_compared(self) -> bool:
        """Whether steps were timed both beside decoding on the GPU and beside decode threads."""
        device = self.device
        return device is not None and min(device.gpu_steps, device.thread_steps) >= COMPARED_MIN

    @property
    def gpu_decode_share(self) -> float:
        """:attr:`gpu_decode_cost_s` as a share of a step beside it; 0 if unknown."""
        cost_s, device = self.gpu_decode_cost_s, self.device
        if cost_s is None or device is None or not device.gpu_busy_s:
            return 0.0
        return cost_s * device.gpu_steps / device.gpu_busy_s

    @property
    def images_per_s(self) -> float:
        """Images per second that the consumer got, without start-up."""
        return self._per_second(self.elapsed_s)

    @property
    def consumer_images_per_s(self) -> float:
        """Images per second that the consumer would take if it never waited."""
        device = self.device
        if device is not None and device.steps and device.total_s > device.idle_s:
            return self._images_per_batch * device.steps / (device.total_s - device.idle_s)
        return self._per_second(self.step_s)

    @property
    def loader_images_per_s(self) -> float:
        """Images per second that the slowest stage can deliver, over all workers; 0 if unknown.

        From the stages' times, capped by the rate over the waits, in which the loader delivers all it can.
        """
        totals, stages, rates = self.totals, self.stages, []
        spent = sum(stages[name].total_s for name in ("fetch", "decode") if name in stages)
        made = max((stages[name].count for name in ("fetch", "decode") if name in stages), default=0)
        if (spent := spent + totals.get("made:collate_s", 0.0)) > 0:
            rates.append(made * max(1, self.workers) / spent)
        # The native engine finishes batches in one thread; with a device, the epilogue runs elsewhere.
        ending = ("python", "collate", "epilogue") if self.device is None else ("python", "collate")
        if (spent := sum(totals.get(f"stage:{name}:s", 0.0) for name in ending)) > 0:
            rates.append(totals.get("stage:decode:count", 0.0) / spent)
        alone = [stages[name].mean_s for name in ("pin", "h2d", "gpu_decode") if name in stages]
        rates += [1 / seconds for seconds in alone if seconds]
        if rates and self.batch_wait_s > 0:
            rates.append(totals.get("asked", 0.0) / self.batch_wait_s)
        return min(rates) * self._images_per_batch if rates else 0.0

    @property
    def _images_per_batch(self) -> float:
        return self.images / self.batches if self.batches else 0.0

    def _per_second(self, seconds: float) -> float:
        timed = self.totals.get("asked", 0.0)  # batches with both a step and a wait
        return self._images_per_batch * timed / seconds if seconds > 0 else 0.0

    def scalars(self, prefix: str = "fastload", separator: str = "/") -> dict[str, float]:
        """Return all numbers by name, for TensorBoard, Weights & Biases, Prometheus and the like.

        Names are those of ``to_dict()`` with ``separator`` between: ``fastload/images_per_s``,
        ``fastload/loader_stall``, ``fastload/stages/decode/mean_s``. What was not measured is left out.

        Args:
            prefix: The first part of all names.
            separator: What stands between parts: ``"_"`` for Prometheus, ``"."`` for OpenTelemetry.
        """
        plain = self.to_dict()
        return flat_numbers(plain | {"missed": sum(self.missed.values())}, prefix, separator)

    def since(self, earlier: Stats) -> Stats:
        """Difference from ``earlier``; current values (slots, queues) stay as they are."""
        return make_stats(
            Totals({key: value - earlier.totals.get(key, 0.0) for key, value in self.totals.items()}),
            places=(self.fetch.waits_at, self.fetch.computes_at, self.fetch.looks_at, ()),
            missed={why: count - earlier.missed.get(why, 0) for why, count in self.missed.items()},
            workers=self.workers,
            slots=(self.slots, self.slot_bytes, self.pinned_bytes),
            index=(self.index_bytes, self.indexed - earlier.indexed),
            queues=self.queues,
            gpu_decode_bytes=self.gpu_decode_bytes,
            stack_totals=self.totals,
        )


def make_stats(
    totals: Totals,
    *,
    places: Places = ((), (), (), ()),
    missed: Mapping[str, int] | None = None,
    workers: int = 0,
    slots: tuple[int, int, int] = (0, 0, 0),
    index: tuple[int, int] = (0, 0),
    queues: Mapping[str, int] | None = None,
    gpu_decode_bytes: int = 0,
    stack_totals: Mapping[str, float] | None = None,
) -> Stats:
    """Make :class:`Stats`, which explains arguments of the same name, from counts.

    ``totals`` are from :class:`~fastload.stats.meter.Meter`, the transfers and the scheduler. ``slots`` are their
    number, the bytes of each, and of all; ``index`` is its bytes, and the images that were decoded with it.
    ``stack_totals`` are counts whose stack samples are used if ``totals`` has none: workers are sampled for some
    seconds only.
    """
    now = queues or {}
    return Stats(
        **_figures(Stats, totals, {name: name for name in _SUMS}),
        deferred_images=int(totals["made:deferred"]),
        looks=int(totals["made:looked_at"]),
        gpu_decode_bytes=gpu_decode_bytes,
        missed={why: count for why, count in (missed or {}).items() if count},
        slots=slots[0],
        slot_bytes=slots[1],
        pinned_bytes=slots[2],
        index_bytes=index[0],
        indexed=index[1],
        waited_for={
            key.partition(":")[2]: seconds for key, seconds in totals.items() if key.startswith("waited:") and seconds
        },
        stages=_stages(totals),
        fetch=_fetch(totals, places, stack_totals or totals),
        device=_device(totals),
        gpu_utilization=totals["gpu:busy"] / totals["gpu:looks"] if totals["gpu:busy"] > 0 else None,
        workers=workers,
        queues=dict(now),
        ready_mean=totals["ready_sum"] / totals["asked"] if totals["asked"] else 0.0,
        batches_held=sum(now.values()),
        totals=dict(totals),
    )


def _stages(totals: Totals) -> dict[str, StageTime]:
    stages = {}
    made = int(totals["made:batches"])
    if made:
        stages["fetch"] = StageTime(made, totals["made:fetch_s"])
        stages["collate"] = StageTime(made, totals["made:collate_s"])
    for name in ("fetch", "decode", "python", "collate", "pin", "h2d", "gpu_decode", "epilogue"):
        if count := int(totals[f"stage:{name}:count"]):  # added to workers' counts if both engines have run
            before = stages.get(name, StageTime(0, 0.0))
            stages[name] = StageTime(before.count + count, before.total_s + totals[f"stage:{name}:s"])
    return stages


def _fetch(totals: Totals, places: Places, stack_totals: Mapping[str, float]) -> Fetch:
    sampled_s = totals["made:sampled_s"]
    if sampled_s <= 0:
        return Fetch(waits_at=places[0], computes_at=places[1], looks_at=places[2])
    busy, queued = totals["made:busy_s"] / sampled_s, totals["made:queued_s"] / sampled_s
    decode_s, python_s = (totals[name] for name in ("made:decode_s", "made:python_s"))
    if decode_s + python_s <= 0:
        decode_s, python_s = (stack_totals.get(name, 0.0) for name in ("made:decode_s", "made:python_s"))
    in_codec = decode_s / (decode_s + python_s) if decode_s + python_s > 0 else 0.0
    painted = min(busy, totals["made:painted_s"] / sampled_s)
    return Fetch(
        blocked=max(0.0, 1.0 - busy - queued),
        queued=queued,
        decoding=painted + (busy - painted) * in_codec,
        computing=(busy - painted) * (1.0 - in_codec),
        sampled_s=sampled_s,
        waits_at=places[0],
        computes_at=places[1],
        looks_at=places[2],
    )


def _device(totals: Totals) -> DeviceTimes | None:
    if not totals["device:copies"]:
        return None
    of_field = {each.name: f"device:{each.name.replace('thread_', 'threads_')}" for each in fields(DeviceTimes)}
    return DeviceTimes(**_figures(DeviceTimes, totals, of_field))


def _figures(kind: type[Any], totals: Totals, of_field: Mapping[str, str]) -> dict[str, Any]:
    """Fields of a dataclass from the sums of these names; whole where declared so."""
    whole = {each.name for each in fields(kind) if each.type == "int"}
    return {name: int(totals[key]) if name in whole else totals[key] for name, key in of_field.items()}
