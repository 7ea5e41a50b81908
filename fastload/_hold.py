"""How long something that has failed is not tried again."""

from __future__ import annotations


class Hold:
    """A wait that doubles with each failure, counted in whatever its owner counts.

    Args:
        first: Half of what the first failure holds.
        most: What a failure holds at most.

    Attributes:
        until: When it may be tried again; 0 before the first failure.
    """

    def __init__(self, first: int, most: int) -> None:
        self.until = 0
        self._first = self._length = first
        self._most = most

    def fail(self, now: int, *, doubles: bool = True) -> None:
        """Note a failure; unless it ``doubles``, it holds as long as the last."""
        if doubles:
            self._length = min(2 * self._length, self._most)
        self.until = now + self._length

    def is_over(self, now: int) -> bool:
        """Whether it may be tried again."""
        return now >= self.until

    def forget(self) -> None:
        """Let the next failure hold as long as the first."""
        self._length = self._first
