"""Find where a loop's steady state begins, and keep the statistics from there.

The first steps of a run compile, search for kernels and fill queues, so they say little about the rest. The times
between batches are summed in blocks, each with a snapshot of all counts at its start. The steady state begins with the
first block that is like most of the latter half of the run.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fastload.stats.gil import GilHolders, gil_wait_s, holds_gil
from fastload.stats.stats import Stats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ALIKE: Final = 1.5  # factor up to which two blocks have the same pace
ALIKE_S: Final = 50e-6  # seconds per step that make no difference
STEPS_MIN: Final = 4  # least steps of a block; with more workers as many as these, since they deliver in turn
BLOCK_S: Final = 20e-3  # least length of a block: its end takes some 0.5 ms
BLOCKS_MIN: Final = 2  # blocks that a verdict needs
BLOCKS_LONG: Final = 16  # blocks of a run that may be judged although it has not settled
BLOCKS_MAX: Final = 32
_STRETCHES: Final = 512


@dataclass(slots=True)
class _Block:
    """Some successive steps; pauses between epochs are not among them."""

    before: Stats  # when it began
    began: float
    steps: int
    seconds: float
    gil_s: float  # wait for the GIL at its end

    @property
    def pace_s(self) -> float:
        return self.seconds / self.steps


@dataclass(frozen=True, slots=True)
class Stretch:
    """The steps that a verdict rests on.

    Attributes:
        before: The statistics when it began; ``None`` if there are too few steps.
        began: The time then.
        more: Number of steps that are missing.
        has_settled: Whether the times between batches have.
        gil_s: How long the loop's thread waited for the GIL when it had let go of it.
    """

    before: Stats | None
    began: float = 0.0
    more: int = 0
    has_settled: bool = True
    gil_s: float = 0.0


class SteadyState:
    """Follows one loader's batches over all its epochs. Its consumer calls all but :meth:`stretch`.

    Args:
        snapshot: Returns the loader's statistics.

    Attributes:
        at: Time of the last batch.
        left: Number of steps until a block may end; it does once :data:`BLOCK_S` have passed, too.
        seconds: Sum of the times between batches in this block.
        first: The statistics of the first epoch; ``None`` until it is over.
        holders: Threads that held the GIL when the loop's thread waited for it.
    """

    def __init__(self, snapshot: Callable[[], Stats]) -> None:
        self._snapshot = snapshot
        self._lock = threading.RLock()  # reentrant: the collector may end an iterator in a thread that holds it
        self._blocks: list[_Block] = []
        self._before, self._began = Stats(), 0.0  # of the block that is not full yet
        self._length = self.left = STEPS_MIN
        self.seconds = 0.0
        self._in_flight = 0
        self._epochs = 0
        self.first: Stats | None = None
        self.holders = GilHolders()
        self._stretches: deque[tuple[float, float]] = deque(maxlen=_STRETCHES)  # of epochs that are over
        self._epoch_began = self.at = 0.0

    def follow(self, workers: int, in_flight: int) -> None:
        """Expect an iterator's batches from so many workers, and so many made ahead."""
        with self._lock:
            self._in_flight = in_flight
            if not self._blocks and self.left == self._length:
                self._length = self.left = max(STEPS_MIN, workers)

    def begun(self, waited_s: float) -> None:
        """Record the first batch of an epoch, and the wait for it."""
        now = time.monotonic()
        if self._epochs:
            self._stretches.append((self._epoch_began, self.at))
            self.seconds += waited_s
        if self._epochs == 1:
            self.first = self._snapshot()
        self._epochs += 1
        self._epoch_began = self.at = now

    def add(self, seconds: float, now: float) -> None:
        """Record another batch and the seconds since the one before."""
        self.at = now
        self.seconds += seconds
        self.left -= 1
        if self.left <= 0 and self.seconds > BLOCK_S:
            self.end_block(now)

    def end_block(self, now: float) -> None:
        """End the block."""
        before, gil_s = self._snapshot(), gil_wait_s()
        if holds_gil(gil_s):
            self.holders.look()
        with self._lock:
            steps = self._length - self.left
            self._blocks.append(_Block(self._before, self._began, steps, self.seconds, gil_s))
            if len(self._blocks) >= BLOCKS_MAX:
                self._halve()
            self._before, self._began = before, now
            self.left, self.seconds = self._length, 0.0

    def _halve(self) -> None:
        """Forget the warm-up, and join blocks in pairs."""
        blocks = self._blocks[self._settled() or 0 :]
        if len(blocks) > BLOCKS_LONG:
            blocks = [
                _Block(a.before, a.began, a.steps + b.steps, a.seconds + b.seconds, (a.gil_s + b.gil_s) / 2)
                for a, b in zip(blocks[::2], blocks[1::2], strict=False)
            ]
            self._length *= 2
        self._blocks = blocks

    def _settled(self) -> int | None:
        return settled([block.pace_s for block in self._blocks], math.ceil(self._in_flight / self._length))

    def stretch(self) -> Stretch:
        """The stretch to judge. Thread-safe."""
        with self._lock:
            blocks, begin = self._blocks, self._settled()
            has_settled = begin is not None
            if begin is None and len(blocks) >= BLOCKS_LONG:
                begin = len(blocks) // 2
            if begin is None or len(blocks) - begin < BLOCKS_MIN:
                missing = max(1, BLOCKS_MIN - len(blocks)) if begin is None else BLOCKS_MIN - len(blocks) + begin
                return Stretch(None, more=self._steps_of(missing))
            block = blocks[begin]
            waits_s = [each.gil_s for each in blocks[begin:]]
            often = sum(map(holds_gil, waits_s)) > 1  # once may be by chance
            gil_s = statistics.mean(waits_s) if often else min(waits_s)
            return Stretch(block.before, block.began, has_settled=has_settled, gil_s=gil_s)

    def _steps_of(self, blocks: int) -> int:
        """Number of steps until so many more blocks have ended."""
        steps = self._length - self.left
        quick = math.ceil((blocks * BLOCK_S - self.seconds) * steps / self.seconds) if steps and self.seconds else 0
        return max(1, quick, (blocks - 1) * self._length + self.left)

    def trained(self, begin: float, end: float) -> float:
        """Return the share of the time between two times in which the loop trained."""
        if end <= begin:
            return 0.0
        inside = 0.0
        for since, until in reversed(self._all_stretches()):
            if until <= begin:
                break
            inside += max(0.0, min(end, until) - max(begin, since))
        return inside / (end - begin)

    def _all_stretches(self) -> list[tuple[float, float]]:
        return [*self._stretches.copy(), (self._epoch_began, self.at)]


def settled(paces: Sequence[float], backlog: int) -> int | None:
    """Return the first block of the steady state; ``None`` if unknown yet.

    It may be beyond the last block: a loop that was slower at first has a backlog of batches, which then come at once.

    Args:
        paces: Seconds per step of each block.
        backlog: Number of blocks that were made ahead.
    """
    if len(paces) < BLOCKS_MIN:
        return None
    usual = statistics.median(paces[len(paces) // 2 :])
    if not _alike(paces[-1], usual):
        recent = statistics.median(paces[-3:])  # one slow block is a pause, but a quick one the end of a warm-up
        is_pause = len(paces) >= BLOCKS_LONG or (len(paces) > 3 and paces[-1] > usual)
        if not (is_pause and _alike(recent, usual)):
            return None

    def is_steady(index: int) -> bool:  # a single odd block, as with a pause, does not matter
        return _alike(paces[index], usual) and _alike(statistics.median(paces[index : index + 3]), usual)

    begin = next((index for index in range(len(paces)) if is_steady(index)), None)
    if begin is None:
        return None
    slower = [index for index in range(begin) if paces[index] > usual and not _alike(paces[index], usual)]
    if not slower:
        return begin
    begin = max(begin, slower[-1] + 1 + backlog)
    return next((index for index in range(begin, len(paces)) if is_steady(index)), max(begin, len(paces)))


def _alike(pace_s: float, usual_s: float) -> bool:
    low, high = sorted((pace_s, usual_s))
    return high <= ALIKE * low or high - low <= ALIKE_S
