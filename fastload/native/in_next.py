"""Engine ``native`` with ``num_workers=0``: decode threads make each batch inside ``next()``.

Torch's own iterator runs unchanged: sampler, base seed and pinning are its own, and no batch is made before it is
requested. Only its fetcher is replaced. A collate function or ``target_transform`` of the user's own runs here, on
samples made natively, with the state that each would find. The new fetcher takes the state of torch's default
generator, lets the threads draw from there, and sets the state that the generator has after the batch. Samples that the
threads cannot make are made here by the user's transforms, from the state that these would find, and what these raise
is the batch's error. If anything else raises until then, the generator goes back and torch's fetcher makes the batch,
so that errors are torch's.

The dataset and its transforms may change during an epoch, and the next batch then changes too. So while the threads
work on a batch by the former recipe, a stamp of what that was read from says whether it is still the same; if it does
not, the recipe is read again.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Subset

from fastload import _core
from fastload._batch import HostBatch
from fastload.bad_samples import BatchIndices, Checked
from fastload.check.results import key_of, warn_fallback
from fastload.device.host_images import host_images_of
from fastload.device.normalize import layout_of, table_images
from fastload.loader_state import ITERATOR_CLOSED, state_of
from fastload.memory.buffers import pinned
from fastload.memory.limits import pins
from fastload.native.sample_lists import COMPARED, DifferenceError, FailedSample, Made, SampleList, images_alone
from fastload.pipeline.datasets.samples import collated
from fastload.pipeline.recipe import OpenedImage
from fastload.python_samples.dialogue import failed_of, submitted, unchanging
from fastload.python_samples.odd_samples import MisreadError, OddSamples, PythonError, sized
from fastload.python_samples.sample_process import batch_of_one, located
from fastload.randomness.by_sample import SeededByIndex, random_states_kept
from fastload.randomness.generators import set_state, state_now
from fastload.route import READ, RecipeReader, read_loader
from fastload.stats.stage_counts import StageCounts

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.options import LoaderConfig
    from fastload.pipeline.recipe import Recipe
    from fastload.stats.stats import Totals


READS_MAX = 3
"""How often a batch is begun anew because the recipe has changed meanwhile."""


class UnsupportedError(Exception):
    """The batch cannot be made natively."""


class InProcessFetcher(RecipeReader):
    """Replaces the fetcher of torch's iterator without workers.

    Args:
        loader: The iterator's loader.
        device: Where batches go.

    Raises:
        RuntimeError: The recipe fails its check and ``engine="native"``.
    """

    def __init__(self, loader: LoaderConfig[Any], device: torch.device) -> None:
        self._loader = loader
        self._device = device
        self.begin()
        self._pin = pins(loader, device)
        self.known = self.read()

    def begin(self) -> None:
        """Set everything that a fetcher counts to its start."""
        self.replaced: Any = None
        self._pin = False
        self._receiver: int | None = None
        self._number = 0
        self.images = 0  # this and the next line: of the last batch
        self.decoded_at = self.made_at = 0.0
        self._counts = StageCounts()
        self.to_compare = 0  # samples
        self.gave_up = False
        self.why: str | None = None
        self.forget()

    @property
    def is_native(self) -> bool:
        """Whether the next batch may be made natively."""
        return self.known is not None

    def give_up(self, why: str | None = None) -> None:
        """Leave all further batches to torch.

        Args:
            why: The reason; ``None`` where torch's may be different.
        """
        self.known, self.gave_up, self.why = None, True, why

    def install(self, iterator: Any, receiver: int | None = None) -> None:
        """Replace the fetcher of torch's iterator.

        Args:
            iterator: It has just been made.
            receiver: See :class:`~fastload._batch.HostBatch`; ``None`` returns batches as they are.
        """
        self.replaced, self._receiver = iterator._dataset_fetcher, receiver
        iterator._dataset_fetcher = iterator.decode_pipeline = self

    def fetch(self, indices: Any) -> Any:
        """Make a batch, and advance torch's default generator as torch does."""
        self._number += 1
        state = failure = data = samples = None
        leaves_out = hasattr(self.replaced, "on_error")
        before = state_now(others=True) if leaves_out and self._seeds is None else None
        try:
            if type(indices) in (list, tuple, BatchIndices):  # others may be iterated only once
                self.known = self.known or self.read()
                others = self.known is not None and self.known[1].pipeline.draws_others
                state = state_now(others=others) if self._seeds is None else None
                data = self._natively(indices, state)
        except DifferenceError as error:
            failure = str(error)
            self.give_up(failure)
            if state is not None:
                set_state(state)
        except Exception as error:  # noqa: BLE001 - torch's fetcher raises it again if it is the user's
            if not isinstance(error, UnsupportedError | MisreadError) and error.args != (ITERATOR_CLOSED,):
                failure = f"{type(error).__name__}: {error}"
            if state is not None and self.known is not None and self.known[1].pipeline.draws:
                set_state(state)
        finally:
            self.made_at = time.monotonic()
        try:
            if type(data) is FailedSample:
                raise data.error
            if type(data) is SampleList:
                samples, whole = data.completed()
                if not whole:
                    self.give_up()
                data = None
        except Exception:
            if not leaves_out:
                raise
            if before is not None:
                set_state(before)
            data = samples = None
        if samples is not None:
            data = self.replaced.collate_fn(samples)
        if data is not None:
            return Checked(data, len(indices), []) if leaves_out else data
        data = self.replaced.fetch(indices)
        if failure is not None and not (leaves_out and data.failed):
            warn_fallback(failure if self.gave_up else f"a batch that torch could make raised {failure}")
        self.images, self.decoded_at = 0, self.made_at
        return data

    @property
    def _seeds(self) -> SeededByIndex | None:
        dataset = self.replaced.dataset
        return dataset if isinstance(dataset, SeededByIndex) else None

    def looked_at(self) -> dict[str, Any]:  # noqa: D102
        return {"besides": [(vars(self._loader), name) for name in READ], "types": [type(self._loader)]}

    def read_anew(self) -> tuple[Any, Recipe, Callable[..., Any]] | None:
        """Read the recipe, and make what makes its images.

        That makes room for them if they stay in host memory, and is called with their number.
        """
        loader, former = self._loader, self.known
        recipe = ("",) if self.gave_up else read_loader(loader, self._device)
        if isinstance(recipe, tuple):
            return None
        if not recipe.in_python and not state_of(loader).checks.passes(loader, recipe, _SamplesHere(recipe)):
            return None
        key = key_of(loader, recipe)
        if former is not None and former[0] == key:
            return key, recipe, former[2]  # its table is on the device
        if recipe.in_python:  # not compared by running the user's own functions once more
            self.to_compare = COMPARED
            return key, recipe, images_alone(recipe)
        self.to_compare = 0
        if self._device.type == "cpu":
            return key, recipe, host_images_of(recipe)
        return key, recipe, table_images(recipe, layout_of(loader.memory_format))

    def pool(self) -> _core.Pool:
        """Return the threads that decode."""
        return state_of(self._loader).decode_pool()

    def options(self, recipe: Recipe) -> dict[str, Any]:
        """Return a recipe's arguments for the pool, with the loader's index of JPEG files."""
        return state_of(self._loader).with_index(self._loader, recipe).options

    def makes_samples(self, recipe: Recipe) -> bool:
        """Whether the collate function is called, or a batch made at once."""
        return bool(recipe.in_python)

    def _natively(self, indices: Any, state: bytes | None) -> Any:
        pool = self.pool()
        before = pool.work_times()
        seeds = None if self._seeds is None else [self._seeds.seed_here(index) for index in indices]
        for _ in range(READS_MAX):
            known = self.known = self.known or self.read()
            if known is None:
                raise UnsupportedError
            _, recipe, images_of = known
            if recipe.pipeline.draws_others and state is not None and len(state) == _core.Generator.STATE_BYTES:
                raise UnsupportedError  # the transforms have changed, and the others' states are not at hand
            sources: Any
            resolved = recipe.resolve(indices)
            if (arrays := recipe.pixels_of(indices)) is not None:
                sources, targets = arrays
            else:
                sources, targets = [], []
                entries = (
                    recipe.taken(recipe.ask(indices), len(indices))
                    if recipe.asks_many
                    else map(recipe.locate_resolved, resolved)
                )
                for source, target in entries:
                    sources.append(unchanging(source))
                    targets.append(target)
            pin = self._pin and not self.makes_samples(recipe)
            views = recipe.pipeline.views
            pixels = recipe.pipeline.room(len(sources), pinned if pin else None)
            _core.advise_large_pages(pixels)
            draws: dict[str, Any] = {}
            if recipe.pipeline.draws:
                draws = {"seeds": seeds} if state is None else {"stream": _core.RandomStream(state)}
            on_host = not self.makes_samples(recipe) and self._device.type == "cpu"  # workers make samples
            host = images_of(len(sources)) if on_host else None
            options = draws | self.options(recipe) | submitted(sources, views, None) | (host.options if host else {})
            job = pool.submit(out=pixels, plan=recipe.plan, number=self._number - 1, **options)
            self.known = self.read()
            if self.known is not None and self.known[0] == known[0]:
                break
            job.cancel()
        else:  # the user's code changes it whenever samples are located
            raise UnsupportedError
        recipe = self.known[1]
        odd, after = self._complete(recipe, job, indices, sources, seeds)
        if type(after) is FailedSample and recipe.target_transform is None:
            return after
        patches = recipe.pipeline.patches(job)
        odd.put(pixels, patches, host)
        batch = Made(recipe, job, indices, resolved, sources, targets, pixels, patches, after)
        if self.to_compare:
            self.to_compare -= batch.compare(odd.made, self.to_compare)
        self.images, self.decoded_at = len(sources), time.monotonic()
        data: Any
        if self.makes_samples(recipe):
            data, collated_at = batch.samples(), self.decoded_at
        else:
            rest = collated(targets)
            collated_at = time.monotonic()
            data = rest.around(host.images(patches) if host else images_of(pixels, patches))
        counts = self._counts
        counts.batches += 1
        counts.images += len(sources)
        counts.collate_s += collated_at - self.decoded_at
        counts.finish_s += time.monotonic() - collated_at
        spent = zip(counts.work, pool.work_times(), before, strict=True)
        counts.work = tuple(so_far + now - then for so_far, now, then in spent)  # type: ignore[assignment]
        if isinstance(after, bytes):
            set_state(after)
        return data if self._receiver is None or type(data) is SampleList else HostBatch(data, 0, self._receiver)

    def _complete(
        self, recipe: Recipe, job: _core.Job, indices: Any, sources: list[Any], seeds: list[int] | None
    ) -> tuple[OddSamples, bytes | FailedSample | None]:
        """Wait for the pixels, and make the samples that the core does not support.

        Returns:
            Those samples; and the default generator's state after the batch, or ``None`` if the batch does not draw
            from it, or the first sample that has failed, behind which none is made.
        """
        draws, views, others = recipe.pipeline.draws, recipe.pipeline.views, recipe.pipeline.draws_others
        images = OpenedImage()

        def make(sample: int, before: bytes | None) -> tuple[Any, bytes]:
            index, view = divmod(sample, views)
            with random_states_kept() if seeds is not None and draws else contextlib.nullcontext():
                if before is not None:
                    set_state(before)
                try:
                    pixels = recipe.pixels(sources[index], view, images)
                except Exception as error:  # the user's, raised in its turn
                    if recipe.fetches_batches:  # and fails for a batch at once
                        raise
                    if not getattr(error, "__notes__", None):
                        error.add_note(recipe.described(indices[index], sources[index]))
                    return error, state_now(others=others)
                return sized(recipe, pixels, view), state_now(others=others)

        odd = OddSamples(recipe, job, make, self._counts, seeds=seeds, rewinds=False)
        try:
            odd.answer()
            if not job.cancel(0.0):  # another thread has closed the pool, and one may yet write
                raise UnsupportedError
            odd.make(failed_of(job))
        except PythonError as failed:
            if failed.state is not None:
                set_state(failed.state)
            return odd, FailedSample(failed.sample // views, failed.error, failed.state)
        if not draws or seeds is not None:
            return odd, None
        after = job.generator_before(len(job))
        if after is None:
            raise UnsupportedError
        return odd, after

    @property
    def totals(self) -> Callable[[], Totals]:
        """Returns the time spent so far, by stage; does not refer to the loader."""
        return self._counts.totals


class _SamplesHere:
    """Makes the samples of a recipe's check in this process, and restores its random states.

    Other threads may use the generators meanwhile, so they are left alone where nothing draws.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self.max_pixels = recipe.options["max_pixels"]
        dataset = recipe.dataset
        while type(dataset) is Subset:
            dataset = dataset.dataset
        self._may_draw = recipe.pipeline.draws or hasattr(dataset, "encoded")

    def located(self, index: Any, timeout_s: float | None) -> Any:
        with self._states_kept():
            return located(self._recipe, index)

    def batch(self, index: Any, state: bytes, timeout_s: float | None) -> tuple[Any, bytes]:
        with self._states_kept():
            if self._may_draw:
                return batch_of_one(self._recipe, index, state)
            return batch_of_one(self._recipe, index, None)[0], state

    def _states_kept(self) -> contextlib.AbstractContextManager[None]:
        return random_states_kept() if self._may_draw else contextlib.nullcontext()
