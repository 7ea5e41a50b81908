"""Tell pauses of the consumer, and when to try again what failed."""

from __future__ import annotations

from typing import Final

PAUSE: Final = 4.0
IDLE: Final = 0.75


def is_pause(interval_s: float, idle_s: float, usual_s: float) -> bool:
    """Whether the consumer paused before it took a batch, as for a validation.

    Args:
        interval_s: Seconds from one batch to the next.
        idle_s: Part of them in which the loader waited for the consumer: more than :data:`IDLE` in a pause.
        usual_s: Usual seconds from batch to batch: a pause is more than :data:`PAUSE` times as long.
    """
    return 0.0 < PAUSE * usual_s < interval_s and idle_s > IDLE * interval_s


class Hold:
    """Says when a failed choice may be tried again: after a hold that doubles.

    Args:
        shortest: Length of the first hold, in batches or windows.
        longest: Length that holds do not exceed.

    Attributes:
        until: End of the last hold; 0 if nothing has failed.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self.until = 0
        self._shortest = self._length = shortest
        self._longest = longest

    def fail(self, at: int, *, again: bool) -> None:
        """Begin a hold; ``again`` doubles it."""
        if again:
            self._length = min(2 * self._length, self._longest)
        self.until = at + self._length

    def reset(self) -> None:
        """Make the next hold the shortest again."""
        self._length = self._shortest

    def allows(self, at: int) -> bool:
        """Whether the last hold is over."""
        return at >= self.until
