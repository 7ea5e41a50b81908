"""Decide for each batch what decodes, and what finds the way into new files.

There are three sides: the threads decode; the GPU decodes, and finds the points of files that the index does not know;
the GPU decodes, and threads scan such files for their points. The GPU begins. Whenever another side may make the loop
faster, it is tried, and the faster one goes on. What is compared are the seconds from one batch to the next, first on
one side, then on the other. What threads would need is known from samples that they decode in between. Trials that lose
time may lose 1% of it in all.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from fastload.device.decode.intervals import RECENT_MIN, Intervals, error_of, mean_of
from fastload.stats.pace import Hold, is_pause

if TYPE_CHECKING:
    from collections.abc import Callable

Steps: TypeAlias = tuple[float, float, float]
Clock: TypeAlias = "Callable[[], Steps]"
Phase: TypeAlias = Literal["steady", "trial", "probe"]
NewFile: TypeAlias = Literal["find", "scan"]
Side: TypeAlias = Literal["threads", "find", "scan"]

STARVED: Final = 0.02
"""A device that waits for batches for more than this share of the time is starved."""

SPENT_MAX: Final = 0.01
"""Largest share of the time that trials of the slower side may take."""

SETTLE: Final = 6
"""Batches after a change that are not measured: they were prepared before it, or fill the queues behind it."""

SETTLE_EPOCH: Final = 2
"""The same at the start of an epoch, which may be short."""

TRIAL_MIN: Final = 12
TRIAL_MAX: Final = 64
"""Batches that a trial measures."""

KERNEL_KNOWN: Final = 2048
"""Batches for which the time of the GPU's kernels is believed; then it may be tried again."""

HOLD_MIN: Final = 64
HOLD_MAX: Final = 8192
"""Batches after a failed trial before the next; doubled each time."""

PROBE_FIRST: Final = 32
PROBE_MAX: Final = 512
"""Batches on the GPU between two of which threads decode a part, to know what they need; then four times as many."""

PROBE_SHARE: Final = 1 / 8
"""The part."""

PROBE_BEGIN: Final = 2
"""The first of them, from 0 on."""

PROBE_RARELY: Final = 8192
"""The same if threads need several times as long."""

COMPARE_FIRST: Final = 32
COMPARE_LATER: Final = 1024
"""Batches on threads that suffice before the GPU is tried, as decoding may take cores that the loop needs.

The first is for sides that have not been compared yet; the second becomes four times as many each time.
"""

_WINDOW: Final = 16  # batches between two looks at the device's clock
_STEPS_MIN: Final = 4  # timed steps that say something
_SIGNIFICANT: Final = 3.0  # standard errors
_TIE: Final = 0.005  # a side has to gain more than this share over those before it in the following list
_PREFERRED: Final[tuple[Side, ...]] = ("threads", "find", "scan")
_NEW_MIN: Final = 0.5  # share of new files in batches that say something about finding and scanning
_SCAN_SHARE: Final = 0.7  # of the time in which threads decode a new file, they scan it
_FAR: Final = 2.0  # intervals that are so many times as long end a trial at once,
_FAR_MIN: Final = 3  # if so many in succession are
_CHANGED: Final = 1.25  # intervals that differ by this factor are another loop's
_BLOCKED_MIN: Final = 0.05  # share of the time without work: the loader is ahead of the consumer
_UNDERESTIMATE_MAX: Final = 3.0
_IN_FLIGHT: Final = 3  # batches that were submitted before a decision
_FAR_TOO_SLOW: Final = 4.0  # threads that need so many times as long are asked rarely
_KERNELS_MIN: Final = 3  # batches whose kernels have to be timed
_BLANK_MIN: Final = 8  # batches without a file that the GPU decodes, after which it is offered few
_LOOK_MAX: Final = 16  # batches between two that are offered to the GPU while it decodes none of the files


_WITH: Final = {
    ("threads", "threads"): "with threads",
    ("find", "threads"): "with the GPU decoding",
    ("scan", "threads"): "with the GPU decoding",
    ("find", "find"): "with the GPU finding its way into new files",
    ("scan", "find"): "with threads scanning new files",
}


class DecodedBatch(NamedTuple):
    """What is known about a batch once it has been passed on to the device.

    Attributes:
        side: Which it was on.
        images: How many it has.
        staged: How many of them the GPU decodes.
        new: How many of those the index did not know.
        interval_s: Seconds since the batch before was passed on; 0 for an epoch's first.
        blocked_s: Those of them in which the loader had nothing to do, as the consumer was busy.
        work_s: Seconds of work of all threads on it; 0 if unknown.
        threads: How many threads there are.
        kernel_s: Seconds that the GPU took to decode it; 0 if it was not timed.
        probed: How many of its images were left to the threads, to know what they need.
    """

    side: Side
    images: int
    staged: int
    new: int
    interval_s: float
    blocked_s: float = 0.0
    work_s: float = 0.0
    threads: int = 1
    kernel_s: float = 0.0
    probed: int = 0


def probed_of(samples: int) -> int:
    """How many of so many samples threads decode in a probe."""
    return min(samples, max(1, int(PROBE_SHARE * samples)))


class _Held(Hold):
    """When a side may be tried again: after its hold, or earlier in another loop."""

    def __init__(self) -> None:
        super().__init__(HOLD_MIN, HOLD_MAX)
        self._interval_s = 0.0  # at the last failure
        self._failed = 0
        self._again = False

    def lose(self, batch: int, interval_s: float) -> None:
        self.fail(batch, again=self._again)
        self._failed, self._interval_s, self._again = batch, interval_s, True

    def is_open(self, batch: int, interval_s: float) -> bool:
        changed = not self._interval_s / _CHANGED < interval_s < self._interval_s * _CHANGED
        if not self.allows(batch) and changed and batch >= self._failed + HOLD_MIN:  # nothing is known of this loop
            self.reset()
            self._again = False
            return True
        return self.allows(batch)


class _KernelTime:
    """The GPU's seconds for a batch, of late."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._timed = self._until = 0

    def add(self, batch: int, seconds: float) -> None:
        self._timed += 1
        # The first launches take long on the host. Later ones share the GPU with the consumer's work.
        self.seconds = min(1.1 * self.seconds, seconds) if self._timed > 1 else seconds
        self._until = batch + KERNEL_KNOWN

    def exceeds(self, batch: int, seconds: float) -> bool:
        return self._timed >= _KERNELS_MIN and batch < self._until and self.seconds > seconds


class DecodePolicy:
    """Decides for one loader and device, over all epochs.

    Thread-safe; takes a few microseconds a batch.

    Attributes:
        side: The one in use.
        why: Why, as a part of a sentence.
        needed_s: Seconds that the threads would need for a batch; 0 if unknown, as for the following.
        kernel_s: Seconds that the GPU took to decode a recent batch.
        starved: Share of the recent time in which the device lacked batches; ``None`` if unknown.
        available: Whether the GPU can decode any of the files.
    """

    def __init__(self) -> None:
        self.side: Side = "find"
        self.why = "how long threads take is not known yet"
        self.needed_s = self.kernel_s = 0.0
        self.starved: float | None = None
        self.available = True
        self._gave_up = False
        self._kernels = {finds: _KernelTime() for finds in (False, True)}  # with and without a search in new files
        self._blank = 0  # batches in succession of which the GPU decoded no file
        self._lock = threading.Lock()
        self._look_in, self._look_wait = 0, 1
        self._share = self._new_share = 0.0  # of a batch's images that the GPU decodes; those of them that are new
        self._phase: Phase = "steady"
        self._settle = SETTLE  # batches not to measure
        self._until_probe = PROBE_BEGIN + 1  # batches until one with a probe, with it; 0: none
        self._recent = Intervals()  # of the side in use
        self._before: list[float] = []  # those of the other side, before a trial
        self._far = self._pauses = 0  # in succession
        self._batch = 0
        self._usual_s = 0.0  # of an interval of late
        self._total_s = self._spent_s = self._lost_s = 0.0
        self._gpu_side: NewFile = "find"
        self._tried_from: Side = "threads"  # the side before a trial
        self._sides = {side: _Held() for side in _PREFERRED}
        self._compare_at, self._compare_wait = COMPARE_FIRST, COMPARE_LATER
        self._probe_at, self._probe_wait = 0, PROBE_FIRST
        self._underestimate = 1.0  # time that threads took, over the time that their work suggested
        self._staging_s = 0.0
        self._steps = (0.0, 0.0, 0.0)
        self._blocked_s = self._window_s = 0.0
        self._window_at = _WINDOW

    def begin(self, clock: Clock | None = None) -> None:
        """Begin an epoch, whose first batches fill the queues.

        Its device's clock may be another one.
        """
        steps = (0.0, 0.0, 0.0) if clock is None else clock()
        with self._lock:
            self._settle = max(self._settle, SETTLE_EPOCH)
            self._look_in, self._look_wait = 0, 1
            self._new_share = 0.0
            if self._awaits_probe and not self._until_probe:  # it was dropped with the rest of an epoch
                self._until_probe = 1
            window_at = self._window_at
            self._open_window(steps)
            self._window_at = window_at  # epochs may be shorter than a window

    @property
    def on_gpu(self) -> bool:
        """Whether the GPU decodes."""
        return self.side != "threads"

    def choose(self) -> tuple[Side, bool]:
        """Return the next batch's side, and whether threads decode a part for a probe."""
        # Without the lock: the usual case, and one batch more does no harm.
        if self.available and not self._until_probe:
            return self.side, False
        with self._lock:
            if self.available:
                if not self._until_probe or not self.on_gpu:
                    return self.side, False
                self._until_probe -= 1
                return self.side, not self._until_probe
            if self._look_in:
                self._look_in -= 1
                return "threads", False
            self._look_in, self._look_wait = self._look_wait, min(2 * self._look_wait, _LOOK_MAX)
            return self._gpu_side, False

    def give_up(self, why: str) -> None:
        """Leave everything to the threads."""
        with self._lock:
            if self.available or not self._gave_up:
                self._gave_up, self.available = True, False
                self._turn("threads", why)

    def note(self, made: DecodedBatch, clock: Clock | None = None) -> None:
        """Learn from a batch.

        Args:
            made: The batch.
            clock: Returns the steps that the device's clock has timed in this epoch, their seconds, and those of them
                in which the device waited for a batch.
        """
        with self._lock:
            self._batch += 1
            self._learn_needs(made)
            if self.on_gpu and self._batch <= _WINDOW and self._is_slow(self.side, self.needed_s):
                self._turn("threads", f"{self._needs()}, less than the GPU's {_ms(self.kernel_s)}")
            side, probes = self._side_of(made), self._phase == "probe"
            if probes:  # whatever the interval is: an epoch's first batch may be the probe
                self._after_probe(made.probed > 0)
            if side is None or not made.interval_s or self._is_pause(made):
                return
            self._total_s += made.interval_s
            if probes or side != self.side:  # the latter was prepared before a change
                return
            if self._phase == "trial":
                self._in_trial(made)
            elif self._settle:
                self._settle -= 1
            else:
                self._recent.add(made.interval_s, made.blocked_s)
                self._blocked_s += made.blocked_s
                self._window_s += made.interval_s
                if self._batch >= self._window_at:
                    self._look_at(clock)

    def _side_of(self, made: DecodedBatch) -> Side | None:
        """Where a batch was decoded; ``None`` if it was neither here nor there."""
        if made.side == "threads":
            return "threads"
        share = made.staged / max(1, made.images)
        self._new_share += 0.25 * (made.new / max(1, made.staged) - self._new_share)
        self._share = max(share, 0.95 * self._share)
        self._blank = 0 if made.staged else self._blank + 1
        available = made.staged > 0 or (self.available and self._blank < _BLANK_MIN)
        if not available and self.side == "scan":  # small files, say; kernels may still find their way
            self._give_up_scanning()
            return None
        if available != self.available:
            self.available = available
            self._look_wait = 1
            if self.available:
                fed = self.starved is not None and self.starved <= STARVED
                slow = self._is_slow(self._gpu_side, self.needed_s)
                self._turn("threads" if fed or slow else self._gpu_side, self._waited())
                self._compare_at = self._batch + COMPARE_FIRST
            else:
                self._turn("threads", "the GPU can decode none of the files")
            return None
        if not made.staged:
            return "threads"
        if share < self._share / 2:
            return None
        # Without new files both of the GPU's sides do the same.
        return made.side if made.new >= _NEW_MIN * made.staged or not self.on_gpu else self.side

    def _give_up_scanning(self) -> None:
        in_trial = self._phase == "trial"
        self._sides["scan"].lose(self._batch, mean_of(self._before) if in_trial else self._usual_s)
        self._blank = 0
        self._turn(self._tried_from if in_trial else "find", "threads can scan none of the new files")

    def _waited(self) -> str:
        if self.starved is None:
            return "how long threads take is not known yet"
        return f"with threads the GPU waited for batches {self.starved:.0%} of the time"

    def _is_slow(self, side: Side, seconds: float) -> bool:
        """Whether a side's kernels alone take longer than so many seconds, if any."""
        finds = side == "find" and self._new_share >= _NEW_MIN
        return seconds > 0.0 and self._kernels[finds].exceeds(self._batch, seconds)

    def _needs(self) -> str:
        return f"threads need {_ms(self.needed_s)} for a batch"

    def _learn_needs(self, made: DecodedBatch) -> None:
        if made.kernel_s:
            kernels = self._kernels[made.side == "find" and made.new >= _NEW_MIN * made.staged]
            kernels.add(self._batch, made.kernel_s)
            self.kernel_s = kernels.seconds
        needed_s = made.work_s / max(1, made.threads)
        if not needed_s:
            return
        if made.probed:
            if self._staging_s:
                rest_s = needed_s - self._staging_s * (1 - made.probed / made.images)
                probed_s = max(self._staging_s, rest_s * made.images / made.probed)
                self.needed_s = 0.5 * (self.needed_s + probed_s) if self.needed_s else probed_s
        elif made.staged:
            self._staging_s = needed_s if not self._staging_s else 0.9 * self._staging_s + 0.1 * needed_s
        else:
            steady = self.needed_s and not self.on_gpu
            self.needed_s = 0.9 * self.needed_s + 0.1 * needed_s if steady else needed_s

    def _is_pause(self, made: DecodedBatch) -> bool:
        """Whether the consumer did something else, such as a validation, before it took a batch."""
        usual = self._usual_s
        if is_pause(made.interval_s, made.blocked_s, usual):
            self._pauses += 1
            if self._pauses < 3:
                return True
            self._recent.clear()  # another loop
            usual = 0.0
        self._pauses = 0
        self._usual_s = 0.9 * (usual or made.interval_s) + 0.1 * made.interval_s
        return False

    def _turn(self, side: Side, why: str) -> None:
        """Go over to a side."""
        if side != self.side:
            self._settle = SETTLE
            self._recent.clear()
        if side != "threads":
            self._gpu_side = side
        self.side, self.why = side, why
        self._phase = "steady"
        self._open_window(self._steps)

    def _open_window(self, steps: Steps) -> None:
        self._steps = steps
        self._blocked_s = self._window_s = 0.0
        self._window_at = self._batch + _WINDOW

    def _look_at(self, clock: Clock | None) -> None:
        """Decide whether another side is worth a trial."""
        if self.on_gpu and len(self._recent) < TRIAL_MIN:  # others are compared with these
            return
        steps = self._steps if clock is None else clock()
        count, total_s, idle_s = (now - then for now, then in zip(steps, self._steps, strict=True))
        if count >= _STEPS_MIN and total_s > 0:
            self.starved = idle_s / total_s
        elif self._window_s > 0:
            self.starved = float(self._blocked_s < _BLOCKED_MIN * self._window_s)
        self._open_window(steps)
        recent = self._recent.values()
        if len(recent) < RECENT_MIN:
            return
        interval_s = mean_of(recent)
        affordable = self._spent_s <= SPENT_MAX * self._total_s
        if self.on_gpu:
            self._consider_threads(interval_s, affordable)
            if self._phase == "steady":
                self._consider_new_files(interval_s, affordable)
        elif self.available:
            self._consider_gpu(interval_s, affordable)

    def _consider_gpu(self, interval_s: float, affordable: bool) -> None:
        starved = self.starved is not None and self.starved > STARVED
        if starved:
            if self.needed_s:
                self._underestimate = min(_UNDERESTIMATE_MAX, max(1.0, interval_s / self.needed_s))
        elif not affordable or self._batch < self._compare_at:
            return
        sides = (self._gpu_side, self._other_side) if self._new_share >= _NEW_MIN else (self._gpu_side,)
        for side in sides:
            if self._is_open(side, interval_s, affordable):
                self._try(side)
                return

    def _consider_threads(self, interval_s: float, affordable: bool) -> None:
        known = self.needed_s * self._underestimate
        if not self._probe_at and self.needed_s:  # by the probe among the first batches
            self._put_probe_off()
        if self._batch >= self._probe_at:
            # Threads need longer to decode than to prepare a file. Do not ask if they are the limit already.
            if affordable and self._staging_s < 0.8 * interval_s:
                self._phase, self._until_probe = "probe", 1
                self._settle = SETTLE + 1
        elif 0.0 < known < interval_s and self._is_open("threads", interval_s, affordable):
            self._try("threads")

    def _consider_new_files(self, interval_s: float, affordable: bool) -> None:
        if self._new_share < _NEW_MIN or not self.needed_s:
            return
        scan_s = _SCAN_SHARE * self.needed_s * self._underestimate + self._staging_s
        other = self._other_side
        if (other == "find" or scan_s < interval_s) and self._is_open(other, interval_s, affordable):
            self._try(other)

    @property
    def _other_side(self) -> NewFile:
        return "scan" if self._gpu_side == "find" else "find"

    def _is_open(self, side: Side, interval_s: float, affordable: bool) -> bool:
        """Whether a side may be tried now."""
        held = self._sides[side]
        if side != "threads" and self._is_slow(side, interval_s):
            return False
        return not held.until or (affordable and held.is_open(self._batch, interval_s))

    def _try(self, side: Side) -> None:
        self._before, self._tried_from = self._recent.values(), self.side
        self._recent.clear()
        self._blocked_s = self._window_s = 0.0
        self._phase, self._settle, self._far, self._lost_s = "trial", SETTLE, 0, 0.0
        self.side = side

    @property
    def _awaits_probe(self) -> bool:
        return self._phase == "probe" and self._settle == SETTLE + 1

    def _after_probe(self, is_probe: bool) -> None:
        """Measure nothing until the batch with the probe and some behind it have come."""
        if self._awaits_probe and not is_probe:
            return
        self._settle -= 1
        if not self._settle:
            self._phase = "steady"
            self._window_at = self._batch + _WINDOW // 2
            self._probe_wait = min(4 * self._probe_wait, PROBE_MAX)
            self._put_probe_off()

    def _put_probe_off(self) -> None:
        hopeless = self.needed_s > _FAR_TOO_SLOW * mean_of(self._recent.values())
        self._probe_at = self._batch + (PROBE_RARELY if hopeless else self._probe_wait)

    def _in_trial(self, made: DecodedBatch) -> None:
        usual = mean_of(self._before)
        self._lost_s += made.interval_s - usual
        self._far = self._far + 1 if made.interval_s > _FAR * usual else 0
        if self._settle:
            self._settle -= 1
        else:
            self._recent.add(made.interval_s, made.blocked_s)
            self._blocked_s += made.blocked_s
            self._window_s += made.interval_s
        values, count = self._recent.values(), len(self._recent)
        if self._far >= _FAR_MIN:
            self._end_trial(usual, made.interval_s)
        elif count >= TRIAL_MIN and count % 4 == 0:
            mean = mean_of(values)
            error = math.sqrt(error_of(self._before, usual) + error_of(values, mean))
            if abs(mean - usual) > _SIGNIFICANT * error or count >= TRIAL_MAX:
                self._end_trial(usual, mean)

    def _end_trial(self, before_s: float, after_s: float) -> None:
        self._compare_at = self._batch + self._compare_wait
        self._compare_wait = min(4 * self._compare_wait, HOLD_MAX)
        tried, before = self.side, self._tried_from
        # The latter has to gain something.
        plain, other = sorted((tried, before), key=_PREFERRED.index)
        seconds = {tried: after_s, before: before_s}
        faster = other if seconds[other] < (1.0 - _TIE) * seconds[plain] else plain
        why = " and ".join(f"{_ms(seconds[side])} {_WITH[side, plain]}" for side in (other, plain))
        why = f"a batch took {why}"
        self._sides[plain if faster == other else other].lose(self._batch, seconds[faster])
        if faster == tried:
            self._turn(tried, why)
            return
        self._spent_s += max(0.0, self._lost_s + _IN_FLIGHT * (after_s - before_s))
        if tried == "threads" and self.needed_s and self._blocked_s < _BLOCKED_MIN * self._window_s:
            self._underestimate = min(_UNDERESTIMATE_MAX, max(self._underestimate, after_s / self.needed_s))
        self._turn(before, why)
        for interval_s in self._before:
            self._recent.add(interval_s)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.3g} ms"
