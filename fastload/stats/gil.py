"""Whether a loop's thread waits for the GIL, and which Python thread holds it then."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from typing import Final

from fastload.stats.stack_sampler import place_of

LOOKS_MAX: Final = 50  # a look takes as long as the wait, 5 ms by Python's default
_SHARE_MIN: Final = 0.5  # least share of a wait in which a thread computed, for it to have held the GIL
_NAP_S: Final = 2e-4  # in which a thread that waits for the GIL wakes and takes it


def gil_wait_s() -> float:
    """Return how long it takes to get the GIL back, without waits for a core."""
    queued, began = _scheduled("thread-self")[1], time.monotonic()
    time.sleep(_NAP_S)
    return max(0.0, time.monotonic() - began - _NAP_S - (_scheduled("thread-self")[1] - queued))


def holds_gil(wait_s: float) -> bool:
    """Whether waits of this mean length say that another thread holds the GIL.

    Each takes the switch interval if that thread runs just then, which it may not where cores are scarce. One of three
    has to; fewer are what busy cores cost.
    """
    return wait_s >= 0.33 * sys.getswitchinterval()


def _scheduled(thread: str) -> tuple[float, float]:
    """Seconds that a thread has run, and has waited for a core; 0 if unknown."""
    try:
        with open(f"/proc/{thread}/schedstat", encoding="ascii") as file:
            ran, queued, *_ = file.read().split()
            return int(ran) * 1e-9, int(queued) * 1e-9
    except (OSError, ValueError):
        return 0.0, 0.0


class GilHolders:
    """Names the thread that computes while the calling thread waits for the GIL. Thread-safe."""

    def __init__(self) -> None:
        self._found: Counter[tuple[str, str]] = Counter()
        self._looks = 0

    def look(self) -> None:
        """Wait for the GIL once more, and see which other Python thread computes meanwhile."""
        if self._looks >= LOOKS_MAX:
            return
        self._looks += 1
        others = [thread for thread in threading.enumerate() if thread.ident != threading.get_ident()]
        ran_s = {thread: _scheduled(f"self/task/{thread.native_id}")[0] for thread in others}
        wait_s = gil_wait_s()
        if not holds_gil(wait_s):
            return
        frames = sys._current_frames()
        del frames[threading.get_ident()]  # which would keep itself, and these, alive
        for thread, before_s in ran_s.items():
            frame = frames.get(thread.ident or 0)
            if frame is not None and _scheduled(f"self/task/{thread.native_id}")[0] - before_s >= _SHARE_MIN * wait_s:
                self._found[thread.name, place_of(frame)] += 1

    def most(self) -> str | None:
        """The thread that held it most often, and its most frequent line; ``None`` if unknown."""
        found, threads = Counter(self._found.copy()), Counter[str]()
        for (name, _), times in found.items():
            threads[name] += times
        if not threads:
            return None
        name = threads.most_common(1)[0][0]
        place = max((times, place) for (thread, place), times in found.items() if thread == name)[1]
        return f"thread {name!r}, mostly at {place}"
