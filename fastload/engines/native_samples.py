"""Samples made natively in worker processes, around the user's own functions.

A loader's ``collate_fn``, ``worker_init_fn`` and ``target_transform`` may do anything, so they run where torch runs
them: in its workers, on their copies, with their generators. Only the samples are made by the native core, as by
:class:`~fastload.engines.in_process.InProcessFetcher`: the worker's generator has the state of torch's at each of the
user's calls. What the core does not support, and all that raises, the worker makes as torch does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import get_worker_info

from fastload import _core
from fastload.engines import lazy_images
from fastload.engines.in_process import InProcessFetcher
from fastload.engines.parity_results import made_by, warn_fallback
from fastload.engines.sample_lists import COMPARED, images_alone
from fastload.pipeline.reader import Refusal, read_recipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.pipeline.reader import Recipe


class MakesNativeSamples:
    """A worker's first call: makes its samples natively, then runs ``first_call``.

    Picklable if ``first_call`` is.

    Args:
        first_call: Runs the user's ``worker_init_fn``.
        collate_fn: The user's; ``None`` is ``default_collate``.
        exact: Whether all samples must have the same bits.
    """

    def __init__(
        self, first_call: Callable[[int], None], collate_fn: Callable[[Any], Any] | None, *, exact: bool
    ) -> None:
        self.first_call = first_call
        self.collate_fn = collate_fn
        self.exact = exact

    def __call__(self, worker_id: int) -> None:  # noqa: D102
        from torch.utils.data._utils import fetch as torch_fetch

        kind: Any = torch_fetch._MapDatasetFetcher
        fetch, fetcher = kind.fetch, _WorkerFetcher(self.collate_fn, exact=self.exact)

        def fetch_natively(self: Any, possibly_batched_index: Any, *, __fastload__: Any = None) -> Any:
            info = get_worker_info()
            if info is None or self.dataset is not info.dataset or not self.auto_collation:
                return fetch(self, possibly_batched_index)
            return fetcher.fetch_for(_Torchs(self, fetch), possibly_batched_index)

        fetch_natively.__wrapped__ = fetch  # type: ignore[attr-defined]
        kind.fetch = fetch_natively
        self.first_call(worker_id)


class _Torchs:
    """A fetcher of torch's, with its own ``fetch``."""

    def __init__(self, fetcher: Any, fetch: Callable[[Any, Any], Any]) -> None:
        self.dataset, self.collate_fn = fetcher.dataset, fetcher.collate_fn
        self._fetcher, self._fetch = fetcher, fetch

    def fetch(self, indices: Any) -> Any:
        """Make a batch as torch does."""
        return self._fetch(self._fetcher, indices)


class _WorkerFetcher(InProcessFetcher):
    """Makes the samples of one worker with one thread."""

    def __init__(self, collate_fn: Callable[[Any], Any] | None, *, exact: bool) -> None:
        self._collate_fn = collate_fn
        self._exact = exact
        self._threads: _core.Pool | None = None
        self.begin()

    def fetch_for(self, torchs: _Torchs, indices: Any) -> Any:
        """Make a batch for torch's fetcher."""
        self.replaced = torchs
        return self.fetch(indices)

    def pool(self) -> _core.Pool:
        if self._threads is None:
            self._threads = _core.Pool(1)
        return self._threads

    def options(self, recipe: Recipe) -> dict[str, Any]:
        return recipe.options

    def makes_samples(self, recipe: Recipe) -> bool:
        return True

    def heeded(self) -> list[tuple[dict[str, Any], str]]:
        return []

    def heeded_types(self) -> list[type]:
        return []

    def read_anew(self) -> tuple[Any, Recipe, Callable[..., Any]] | None:
        if self.gave_up:
            return None
        recipe = read_recipe(self.replaced.dataset, self._collate_fn, exact=self._exact)
        if isinstance(recipe, Refusal):  # the user's functions have changed something
            warn_fallback("; ".join(recipe.reasons))
            self.give_up()
            return None
        key = made_by(recipe)
        if self.known is not None and self.known[0] == key:
            return key, recipe, self.known[2]
        self.to_compare = COMPARED
        return key, recipe, images_alone(recipe)

    def give_up(self) -> None:
        super().give_up()
        lazy_images.install()
