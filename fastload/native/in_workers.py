"""Samples made natively in worker processes, around the user's own functions.

A loader's ``collate_fn``, ``worker_init_fn`` and ``target_transform`` may do anything, so they run where torch runs
them: in its workers, on their copies, with their generators. Only the samples are made by the native core, as by
:class:`~fastload.native.in_next.InProcessFetcher`: the worker's generator has the state of torch's at each of the
user's calls. What the core does not support, and all that raises, the worker makes as torch does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastload import _core
from fastload.check.results import warn_fallback
from fastload.lazy import images as lazy_images
from fastload.native.in_next import InProcessFetcher
from fastload.native.sample_lists import COMPARED, images_alone
from fastload.pipeline.recipe import Refusal, read_recipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.pipeline.recipe import Recipe


class _Torchs:
    """A fetcher of torch's that makes batches by ``fetch``."""

    def __init__(self, fetcher: Any, fetch: Callable[[Any], Any]) -> None:
        self.dataset, self.collate_fn, self.fetch = fetcher.dataset, fetcher.collate_fn, fetch
        if hasattr(fetcher, "on_error"):
            self.on_error = fetcher.on_error


class WorkerFetcher(InProcessFetcher):
    """Makes the samples of one worker with one thread.

    Args:
        collate_fn: Stands for the user's; ``None`` is ``default_collate``.
        exact: Whether all samples must have the same bits.
    """

    def __init__(self, collate_fn: Callable[[Any], Any] | None, *, exact: bool) -> None:
        self._collate_fn = collate_fn
        self._exact = exact
        self._threads: _core.Pool | None = None
        self.begin()

    def in_place_of(self, fetcher: Any, fetch: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return what makes batches from now on.

        Args:
            fetcher: Torch's.
            fetch: Makes a batch as it does.
        """
        self.replaced = _Torchs(fetcher, fetch)
        return self.fetch

    def pool(self) -> _core.Pool:  # noqa: D102
        if self._threads is None:
            self._threads = _core.Pool(1)
        return self._threads

    def options(self, recipe: Recipe) -> dict[str, Any]:  # noqa: D102
        return recipe.options

    def makes_samples(self, recipe: Recipe) -> bool:  # noqa: D102
        return True

    def looked_at(self) -> dict[str, Any]:  # noqa: D102
        return {}

    def read_anew(self) -> tuple[Any, Recipe, Callable[..., Any]] | None:  # noqa: D102
        if self.gave_up:
            return None
        recipe = read_recipe(self.replaced.dataset, self._collate_fn, exact=self._exact)
        if isinstance(recipe, Refusal):  # the user's functions have changed something
            why = "; ".join(recipe.reasons)
            warn_fallback(why)
            self.give_up(why)
            return None
        key = recipe.key
        if self.known is not None and self.known[0] == key:
            return key, recipe, self.known[2]
        self.to_compare = COMPARED
        return key, recipe, images_alone(recipe)

    def give_up(self, why: str | None = None) -> None:  # noqa: D102
        super().give_up(why)
        lazy_images.install()
