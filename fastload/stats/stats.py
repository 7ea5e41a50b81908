"""What a loader has done so far, counted as it goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Totals(dict[str, float]):
    """Sums by name; what has not been added to is 0."""

    def __missing__(self, key: str) -> float:
        return 0.0

    def add(self, other: Mapping[str, float]) -> None:
        """Add all sums of another."""
        for key, value in other.items():
            self[key] += value

    def copy(self) -> Totals:
        """As it is now, in one step."""
        return Totals(self)


@dataclass(frozen=True, slots=True)
class StageTime:
    """One stage of a batch's path.

    Attributes:
        count: Batches that were measured: all of them on the host, a sample on the device.
        total_s: Seconds that they spent there, added up over workers and threads.
    """

    count: int
    total_s: float

    @property
    def mean_s(self) -> float:
        """Seconds per batch."""
        return self.total_s / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True)
class Fetch:
    """What workers did while they read samples, as shares of that time. Of batches and moments that were looked at.

    Attributes:
        blocked: Neither computing nor ready to: they waited for a disk, a network, a lock.
        queued: Could have computed, but all cores were taken.
        decoding: Computed in a codec.
        computing: Computed elsewhere: the dataset's own code and its transforms.
        looked_s: Seconds that these shares are taken of.
        waits_at: Where workers mostly waited, as far as somebody looked at their stacks.
        computes_at: Where they mostly computed.
    """

    blocked: float = 0.0
    queued: float = 0.0
    decoding: float = 0.0
    computing: float = 0.0
    looked_s: float = 0.0
    waits_at: tuple[str, ...] = ()
    computes_at: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """What the device did, by its own clock, in the steps and copies that were timed there.

    Attributes:
        steps: How many were timed, each counted as often as steps that were not timed stand behind it.
        total_s: Their length, from the end of the work on one batch to the end of the work on the next.
        idle_s: Of that: the device had done its work and the next batch was not there.
        copying_s: Of ``idle_s``: that batch was being copied.
        copies: How many were timed.
        copied_bytes: That they had.
        pageable_bytes: Of ``copied_bytes``: from memory that was not pinned.
    """

    steps: float = 0
    total_s: float = 0.0
    idle_s: float = 0.0
    copying_s: float = 0.0
    copies: int = 0
    copied_bytes: int = 0
    pageable_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters of a loader, over all its epochs; :meth:`since` takes those of a part of them.

    Attributes:
        batches: Handed to the consumer.
        images: That they had (samples, of whatever kind).
        copied: Batches copied to the device.
        device_bytes: That they had, as they crossed the link.
        slot_batches: Of ``copied``: written by workers straight into pinned slots. A hit.
        missed: Batches that took torch's ordinary path although slots are on, by reason. Misses.
        slots: How many slots there are now.
        slot_bytes: Bytes of each.
        pinned_bytes: Bytes of pinned memory that the slots hold.
        epochs: Begun.
        startup_s: Seconds that the consumer waited for the first batch of its epochs.
        wait_s: Seconds that it waited for the others.
        step_s: Seconds from a batch's hand-over to the moment that the next was asked for.
        waited_for: ``wait_s`` by where the batch was that was waited for: ``before`` (its worker had yet to begin),
            ``fetch``, ``collate``, ``ipc`` (on its way between processes), ``pin``, ``decode`` (native threads),
            ``epilogue`` (on the host), ``gpu`` (the device was more than two batches behind), ``h2d``, ``hand-over``.
        stages: Seconds per stage: ``fetch``, ``decode``, ``python``, ``collate``, ``pin``, ``h2d``, ``epilogue``, as
            far as the engine has them. Worker processes decode in ``fetch``, which native threads spend on files alone;
            ``python`` is what the native engine waited for samples that it does not decode, in batches that had any.
        fetch: What fetching consisted of.
        device: What the device did, where there is one.
        gpu_utilization: The share of the time in which kernels ran on the device, those of other programs included, as
            its driver says; ``None`` if it was not asked (it takes ``nvidia-ml-py``) or does not say.
        workers: Processes or threads that make batches; 0 is the main process by itself.
        queues: Batches between two stages now: ``ready`` (made, not taken), ``device`` (copied, not taken).
        ready_mean: Batches that were ready when the consumer asked, on average.
        batches_held: Batches that the loader holds now, on host and device.
    """

    batches: int = 0
    images: int = 0
    copied: int = 0
    device_bytes: int = 0
    slot_batches: int = 0
    missed: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    slots: int = 0
    slot_bytes: int = 0
    pinned_bytes: int = 0
    epochs: int = 0
    startup_s: float = 0.0
    wait_s: float = 0.0
    step_s: float = 0.0
    waited_for: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    stages: Mapping[str, StageTime] = field(default_factory=lambda: MappingProxyType({}))
    fetch: Fetch = Fetch()
    device: DeviceTimes | None = None
    gpu_utilization: float | None = None
    workers: int = 0
    queues: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    ready_mean: float = 0.0
    batches_held: int = 0
    totals: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}), repr=False, compare=False)

    @property
    def stall(self) -> float:
        """The share of its time that the consumer waited, start-up left out; 0 before the second batch.

        The host's view: with a device, see :attr:`device_stall`.
        """
        elapsed = self.wait_s + self.step_s
        return self.wait_s / elapsed if elapsed else 0.0

    @property
    def batch_wait_s(self) -> float:
        """``wait_s`` without the time in which the batch was there and had to wait for the device."""
        return self.wait_s - self.waited_for.get("gpu", 0.0)

    def wait_share(self, *places: str) -> float:
        """The share of ``batch_wait_s`` in which the batch was at ``places``; not ``gpu``, of ``waited_for``."""
        waited = self.batch_wait_s
        return sum(self.waited_for.get(place, 0.0) for place in places) / waited if waited > 0 else 0.0

    @property
    def device_stall(self) -> float | None:
        """The share of its time that the device had nothing to do for want of a batch; ``None`` if nobody measured.

        By the steps that were timed; but workers deliver in bursts, and all of those may have come without a wait. So
        it is at least what the device's work leaves of the time between all batches, as far as the host waited.
        """
        device, elapsed = self.device, self.wait_s + self.step_s
        if device is None or not device.total_s or not elapsed:
            return None
        busy_s = (device.total_s - device.idle_s) / device.steps * self.totals.get("asked", 0.0)
        unseen = min(1.0 - busy_s / elapsed, self.batch_wait_s / elapsed)
        return max(device.idle_s / device.total_s, unseen)

    @property
    def gpu_busy_least(self) -> float:
        """Lower bound of the share of its time in which the device worked; 0 if nothing is known of it.

        It worked throughout each step at whose end it was more than two batches behind, and for as long as the loop
        waited inside ``next()``, except where it had nothing to do for want of a batch.
        """
        stall, elapsed = self.device_stall, self.wait_s + self.step_s
        return 0.0 if stall is None else max(self.totals.get("behind_s", 0.0) / elapsed, self.stall - stall)

    @property
    def images_per_s(self) -> float:
        """Images that the consumer got per second, start-up left out."""
        return self._per_second(self.wait_s + self.step_s)

    @property
    def consumer_images_per_s(self) -> float:
        """The consumption rate: images per second that the consumer would have taken, had it never waited."""
        device = self.device
        if device is not None and device.steps and device.total_s > device.idle_s:
            return self._images_per_batch * device.steps / (device.total_s - device.idle_s)
        return self._per_second(self.step_s)

    @property
    def loader_images_per_s(self) -> float:
        """The loader's rate: images per second that its slowest stage can deliver, all workers together. 0: unknown.

        By the time that stages take, and never more than the waits allow: while it is waited for, a loader delivers all
        that it can.
        """
        totals, stages, rates = self.totals, self.stages, []
        spent = sum(stages[name].total_s for name in ("fetch", "decode") if name in stages)
        made = max((stages[name].count for name in ("fetch", "decode") if name in stages), default=0)
        if (spent := spent + totals.get("made:collate_s", 0.0)) > 0:
            rates.append(made * max(1, self.workers) / spent)
        # The native engine finishes batches in one thread; on a device its epilogue is not that thread's.
        ending = ("python", "collate", "epilogue") if self.device is None else ("python", "collate")
        if (spent := sum(totals.get(f"stage:{name}:s", 0.0) for name in ending)) > 0:
            rates.append(totals.get("stage:decode:count", 0.0) / spent)
        alone = [stages[name].mean_s for name in ("pin", "h2d") if name in stages]
        rates += [1 / seconds for seconds in alone if seconds]
        if rates and self.batch_wait_s > 0:
            rates.append(totals.get("asked", 0.0) / self.batch_wait_s)
        return min(rates) * self._images_per_batch if rates else 0.0

    @property
    def _images_per_batch(self) -> float:
        return self.images / self.batches if self.batches else 0.0

    def _per_second(self, seconds: float) -> float:
        timed = self.totals.get("asked", 0.0)  # steps and waits that the clock has seen both of
        return self._images_per_batch * timed / seconds if seconds > 0 else 0.0

    def since(self, earlier: Stats) -> Stats:
        """What has come since ``earlier`` was taken; what is of the moment (slots, queues) stays as it is now."""
        return make_stats(
            Totals({key: value - earlier.totals.get(key, 0.0) for key, value in self.totals.items()}),
            places=(self.fetch.waits_at, self.fetch.computes_at),
            missed={why: count - earlier.missed.get(why, 0) for why, count in self.missed.items()},
            workers=self.workers,
            slots=(self.slots, self.slot_bytes, self.pinned_bytes),
            queues=self.queues,
            looks=self.totals,
        )


def make_stats(
    totals: Totals,
    *,
    places: tuple[tuple[str, ...], tuple[str, ...]] = ((), ()),
    missed: Mapping[str, int] | None = None,
    workers: int = 0,
    slots: tuple[int, int, int] = (0, 0, 0),
    queues: Mapping[str, int] | None = None,
    looks: Mapping[str, float] | None = None,
) -> Stats:
    """Put counts into words.

    Args:
        totals: Of :class:`~fastload.stats.meter.Meter`, the transfers and the scheduler.
        places: Where workers waited and computed.
        missed: See :class:`Stats`.
        workers: Likewise.
        slots: How many, bytes of each, and of all.
        queues: See :class:`Stats`.
        looks: Counts whose looks at the workers' stacks stand in where ``totals`` has none: workers are looked at for
            some seconds only.
    """
    now = queues or {}
    return Stats(
        batches=int(totals["batches"]),
        images=int(totals["images"]),
        copied=int(totals["copied"]),
        device_bytes=int(totals["device_bytes"]),
        slot_batches=int(totals["slot_batches"]),
        missed=MappingProxyType({why: count for why, count in (missed or {}).items() if count}),
        slots=slots[0],
        slot_bytes=slots[1],
        pinned_bytes=slots[2],
        epochs=int(totals["epochs"]),
        startup_s=totals["startup_s"],
        wait_s=totals["wait_s"],
        step_s=totals["step_s"],
        waited_for=MappingProxyType(
            {key.partition(":")[2]: seconds for key, seconds in totals.items() if key.startswith("waited:") and seconds}
        ),
        stages=MappingProxyType(_stages(totals)),
        fetch=_fetch(totals, places, looks or totals),
        device=_device(totals),
        gpu_utilization=totals["gpu:busy"] / totals["gpu:looks"] if totals["gpu:busy"] > 0 else None,
        workers=workers,
        queues=MappingProxyType(dict(now)),
        ready_mean=totals["ready_sum"] / totals["asked"] if totals["asked"] else 0.0,
        batches_held=sum(now.values()),
        totals=MappingProxyType(dict(totals)),
    )


def _stages(totals: Totals) -> dict[str, StageTime]:
    stages = {}
    made = int(totals["made:batches"])
    if made:
        stages["fetch"] = StageTime(made, totals["made:fetch_s"])
        stages["collate"] = StageTime(made, totals["made:collate_s"])
    for name in ("fetch", "decode", "python", "collate", "pin", "h2d", "epilogue"):
        if count := int(totals[f"stage:{name}:count"]):  # beside workers, where epochs of both engines were run
            before = stages.get(name, StageTime(0, 0.0))
            stages[name] = StageTime(before.count + count, before.total_s + totals[f"stage:{name}:s"])
    return stages


def _fetch(totals: Totals, places: tuple[tuple[str, ...], tuple[str, ...]], looks: Mapping[str, float]) -> Fetch:
    looked = totals["made:looked_s"]
    if looked <= 0:
        return Fetch(waits_at=places[0], computes_at=places[1])
    busy, queued = totals["made:busy_s"] / looked, totals["made:queued_s"] / looked
    decode_s, python_s = (totals[name] for name in ("made:decode_s", "made:python_s"))
    if decode_s + python_s <= 0:
        decode_s, python_s = (looks.get(name, 0.0) for name in ("made:decode_s", "made:python_s"))
    in_codec = decode_s / (decode_s + python_s) if decode_s + python_s > 0 else 0.0
    return Fetch(
        blocked=max(0.0, 1.0 - busy - queued),
        queued=queued,
        decoding=busy * in_codec,
        computing=busy * (1.0 - in_codec),
        looked_s=looked,
        waits_at=places[0],
        computes_at=places[1],
    )


def _device(totals: Totals) -> DeviceTimes | None:
    if not totals["device:copies"]:
        return None
    return DeviceTimes(
        steps=totals["device:steps"],
        total_s=totals["device:total_s"],
        idle_s=totals["device:idle_s"],
        copying_s=totals["device:copying_s"],
        copies=int(totals["device:copies"]),
        copied_bytes=int(totals["device:copied_bytes"]),
        pageable_bytes=int(totals["device:pageable_bytes"]),
    )
