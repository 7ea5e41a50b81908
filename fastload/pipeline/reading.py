"""Read a recipe again only where something that it was read from may have changed."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from fastload.pipeline.installed.stamp import RecipeStamp
    from fastload.pipeline.recipe import Recipe

STAMPS_MAX: Final = 8
"""How many stamps may break or not be whole, one after the other, while the recipe is the same; then none is made."""

READ: Final = (
    *("batch_sampler", "collate_fn", "dataset", "engine", "exact", "in_order", "num_workers", "randomness"),
    "worker_init_fn",
)
"""Attributes of a loader that its recipe depends on."""

Known: TypeAlias = "tuple[Any, Recipe, Any]"
"""What identifies a recipe, the recipe, and what was made of it."""


class RecipeReader:
    """Knows a recipe, and reads it anew if it may have changed.

    Attributes:
        known: What was read last; ``None`` if there is no recipe.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Read anew next time."""
        self.known: Known | None = None
        self._stamp: RecipeStamp | None = None
        self._is_proved = False  # the stamp lay between two readings of the same recipe
        self._broken = 0  # stamps in a row

    def read(self) -> Known | None:
        """Return what is known of the recipe.

        It is read again unless a stamp says that nothing has changed.
        """
        former, stamp = self.known, self._stamp
        holds = former is not None and stamp is not None and stamp.holds()
        if holds and self._is_proved:
            return former
        known = self.read_anew()
        if known is None:
            return None
        same = former is not None and known[0] == former[0] and known[1].dataset is former[1].dataset
        self._is_proved = holds and same
        self._broken = self._broken + 1 if same and not holds else 0
        if self._is_proved:
            return known
        self._stamp = None
        if self._broken < STAMPS_MAX:
            from fastload.pipeline.installed.stamp import RecipeStamp

            stamp = RecipeStamp(known[1], whole=True, **self.looked_at())
            self._stamp = stamp if stamp.is_whole else None
        return known

    @abstractmethod
    def read_anew(self) -> Known | None:
        """Read the recipe from the dataset and its transforms."""

    def looked_at(self) -> dict[str, Any]:
        """Return what else :meth:`read_anew` looks at, as arguments of a :class:`RecipeStamp`."""
        return {}
