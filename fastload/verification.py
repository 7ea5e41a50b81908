"""Compare FastLoader with torch's DataLoader, bit for bit, on the user's data."""

from __future__ import annotations

import functools
import itertools
import os
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch.utils import data

from fastload._compare import ComparedValues, difference
from fastload._display import card, paragraphs
from fastload.autoscale.policy import AutoWorkers
from fastload.loader import FastLoader
from fastload.loader_state import state_of
from fastload.options import LEVELS_OFF, has_own_iterator, length_of
from fastload.pipeline.datasets.folders import sample_name
from fastload.randomness.by_sample import SeededByIndex, seeded, show_own_dataset
from fastload.stats.progress import terminal_bar
from fastload.torch_workers.twin import independent_twin
from fastload.torch_workers.view import view_of
from fastload.workers.start import route_of, start_epoch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.utils.data import DataLoader


BATCHES: Final = 20
"""Number of batches that are compared unless another is given: seconds, and enough to see each step at work."""


@dataclass(frozen=True, slots=True)
class Verification:
    """Result of a comparison; true if all compared batches were equal, or none can differ.

    Attributes:
        batches: Number of batches requested from both loaders.
        engine: FastLoader's engine in the comparison.
        difference: Place and values of the first difference; ``None`` if there is none.
        errors: Batches that failed with an error of the same type in both loaders: number and error.
        notes: Why FastLoader, or its workers, ran the dataset and its transforms unchanged, if they did.
        opaque: Places and types of objects in the batches that cannot be compared.
        blind: Number of batches that contain only such objects.
        bound: How far values of images may differ, because ``exact=False`` runs an approximation; 0: not at all.
        largest: The largest difference of such values that was found.
        epoch: Number of batches of an epoch, if it is known.
        is_torchs: Whether there is nothing to compare, because FastLoader is torch's own loader here.
    """

    batches: int
    engine: str
    difference: str | None
    errors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()
    blind: int = 0
    bound: float = 0.0
    largest: float = 0.0
    epoch: int | None = None
    is_torchs: bool = False

    @property
    def compared(self) -> int:
        """Number of batches whose values were compared: neither failed nor blind."""
        return self.batches - len(self.errors) - self.blind

    def __bool__(self) -> bool:
        return self.is_torchs or (self.difference is None and self.compared > 0)

    def __repr__(self) -> str:
        return f"Verification({self._heading()})"

    def _repr_html_(self) -> str:
        """Show the result in a notebook."""
        return card(self._heading(), paragraphs(self._notes()))

    def __str__(self) -> str:
        return "\n".join([self._heading(), *(f"  {note}" for note in self._notes())])

    def _heading(self) -> str:
        failed = f"{len(self.errors)} failed in both loaders, the first: {self.errors[0]}" if self.errors else ""
        if self.difference is not None:
            return f"different, engine {self.engine}: {self.difference}"
        if self.is_torchs:
            return "nothing to compare: this is torch's own loader"
        if not self.batches:
            return "nothing was compared: both loaders are empty"
        if not self.compared:
            blind = f"{self.blind} hold nothing but objects that cannot be compared" if self.blind else ""
            return f"nothing was compared: of {self.batches} batches, {'; '.join(filter(None, (blind, failed)))}"
        how = f"at most {self.largest:g} apart, within {self.bound:g}" if self.bound else "equal to the bit"
        of_all = f" of {self.epoch}" if self.epoch is not None and self.epoch > self.batches else ""
        text = f"{how}: {self.compared}{of_all} batches, engine {self.engine}"
        return f"{text}; of {self.batches} batches, {failed}" if failed else text

    def _notes(self) -> list[str]:
        return [f"note: {note}" for note in (*(f"not compared: {what}" for what in self.opaque), *self.notes)]


class VerificationInterrupted(KeyboardInterrupt):
    """Ctrl-C while batches were compared.

    Attributes:
        result: The result so far.
    """

    def __init__(self, result: Verification) -> None:
        super().__init__(f"so far {result if result.batches else 'nothing was compared'}")
        self.result = result


def verify(
    loader: DataLoader[Any] | Callable[[], DataLoader[Any]], batches: int | None = BATCHES, *, seed: int = 0
) -> Verification:
    """Run torch's DataLoader and FastLoader from the same seed and compare every batch.

    Blocks until both are done, with a progress bar on a terminal if tqdm is installed. Where FastLoader is torch's own
    loader (no accelerator, and a pipeline that is not supported), nothing is compared, and the result says so. Seeds
    only torch's random state. A FastLoader with a ``dtype`` differs from torch by that.

    Both begin an epoch of their own, with copies of the loader's samplers, generators and, if it is read in this
    process, dataset (tensors and arrays of more than 1 GiB are shared). So the loader stays as it is: its epoch,
    workers, statistics and generators, and the global generators of torch, ``random`` and NumPy.

    Args:
        loader: A loader (a FastLoader keeps its own arguments), or a function that makes one, which it must do anew
            where the sampler or dataset cannot be copied.
        batches: Maximum number of batches to compare, 20 by default; ``None`` for a whole epoch.
        seed: Seed of torch's default generator, for both loaders.

    Raises:
        TypeError: ``loader`` is neither, or cannot be copied, or the function does not return a DataLoader.
        ValueError: ``batches`` is less than 1.
        VerificationInterrupted: Ctrl-C; its ``result`` is what was compared so far.
    """
    if batches is not None and batches < 1:
        raise ValueError(f"batches must be >= 1 or None for all, got {batches}")
    kept = torch.get_rng_state(), *_other_states()
    try:
        torchs = _as_torch(_make_twin(loader, seed))
        theirs, made = _batches(torchs, seed, batches, kept[1:]), _make_twin(loader, seed)
        with made if isinstance(made, FastLoader) else FastLoader.wrap(made) as fast:
            if (route := route_of(fast)).engine == "torch" and not (route.is_lazy or route.for_opencv):
                return Verification(0, route.engine, None, notes=fast.plan.notes, is_torchs=True)
            ours = _batches(fast, seed, batches, kept[1:])
            if isinstance(fast.num_workers, AutoWorkers):  # the epoch's number of workers is known once it has begun
                ours = itertools.chain(list(itertools.islice(ours, 1)), ours)
                torchs.num_workers = int(fast.num_workers)
            return _compare(fast, torchs, theirs, ours, batches)
    finally:
        _set_states(*kept)


def _other_states() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state(legacy=False)


def _set_states(of_torch: torch.Tensor, of_python: Any, of_numpy: Any) -> None:
    torch.set_rng_state(of_torch)
    random.setstate(of_python)
    np.random.set_state(of_numpy)


def _as_torch(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return torch's loader of the same batches, seeded by index if ``randomness="sample"``.

    Samples that ``on_error`` leaves out or replaces, torch's would raise; so its fetchers do the same.
    """
    if isinstance(loader, FastLoader) and loader.on_error != "raise":
        vars(loader).update(engine="torch", device="cpu", memory_format=None, dtype=None)
        return loader
    if has_own_iterator(loader):  # it makes its own batches, with FastLoader and without
        own: DataLoader[Any] = object.__new__(type(loader))
        vars(own).update(vars(loader), _iterator=None)
        return own
    changes: dict[str, Any] = {}
    if getattr(loader, "randomness", "worker") == "sample":
        changes = seeded(loader, {"worker_init_fn": functools.partial(_start_worker, loader.worker_init_fn)})
    if loader._auto_collation:
        changes["_index_sampler"] = _RecordingSampler(loader._index_sampler)
    return view_of(loader, **changes)


def _start_worker(worker_init_fn: Callable[[int], None] | None, worker_id: int) -> None:
    show_own_dataset()
    if worker_init_fn is not None:
        worker_init_fn(worker_id)


class _RecordingSampler:
    """A batch sampler that records its batches."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.drawn: list[Any] = []

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        for indices in self.sampler:
            self.drawn.append(indices)
            yield indices


def _make_twin(loader: Any, seed: int) -> DataLoader[Any]:
    torch.set_rng_state(torch.Generator().manual_seed(seed).get_state())  # torchdata's samplers draw when constructed
    is_loader = isinstance(loader, data.DataLoader)  # by this name, as fastload run replaces what a module holds
    made = loader if is_loader or not callable(loader) else loader()
    if not isinstance(made, data.DataLoader):
        raise TypeError(f"verify takes a DataLoader or a function that returns one, got {type(made).__name__}")
    try:
        return independent_twin(made, persistent_workers=False)
    except TypeError as error:
        if not is_loader:
            return made
        raise TypeError(
            f"verify(loader) leaves the loader as it is, and so copies it, but {error}; use verify(function), with a "
            "function that makes the loader and what cannot be copied"
        ) from error


def _batches(loader: DataLoader[Any], seed: int, count: int | None, others: tuple[Any, Any]) -> Iterator[Any]:
    """Yield batches, then the error if there is one, with separate random states per loader."""
    state, iterator, number = torch.Generator().manual_seed(seed).get_state(), None, 0
    while count is None or number < count:
        _set_states(state, *others)
        try:
            if iterator is None:
                # Not iter(loader): a subclass may go on with an iterator that it has kept, or change batches.
                iterator = FastLoader.__iter__(loader) if isinstance(loader, FastLoader) else start_epoch(loader)
            batch = next(iterator)
        except StopIteration:
            break
        except Exception as error:  # noqa: BLE001 - an error is a result, to be compared
            batch = error
        state, others = torch.get_rng_state(), _other_states()
        number += 1
        yield batch
        if iterator is None:
            return


def _compare(
    loader: FastLoader[Any], torchs: DataLoader[Any], theirs: Iterator[Any], ours: Iterator[Any], batches: int | None
) -> Verification:
    number = 0
    missing = object()
    errors: list[str] = []
    opaque: dict[str, None] = {}
    blind = 0
    bound, largest = _bound(loader), 0.0
    epoch = length_of(torchs)

    def result(found: str | None) -> Verification:
        plan = loader.plan  # read now, because the recipe may have failed its check
        is_native = plan.engine == "native" and state_of(loader).refused_in_workers is None
        notes = () if is_native else plan.notes
        seen = tuple(errors), notes, tuple(opaque), blind, bound, largest, epoch
        return Verification(number, plan.engine, found, *seen)

    total = epoch if batches is None or epoch is None else min(batches, epoch)
    with terminal_bar(total, desc="comparing") as (advance, _):
        try:
            while True:
                a, b = next(theirs, missing), next(ours, missing)
                if a is missing and b is missing:
                    return result(None)
                if a is missing or b is missing:
                    more = "FastLoader" if a is missing else "torch"
                    return result(f"{more} has more than {number} batches")
                compared = ComparedValues(bound=bound)
                found = difference(a, b, compared=compared)
                opaque.update(dict.fromkeys(compared.opaque))
                largest = max(largest, compared.largest)
                if found is not None:
                    return result(f"batch {number}, {found}{_file(torchs, number, found)}")
                blind += bool(compared.opaque) and not compared.values
                if isinstance(b, BaseException):
                    last = str(b).strip().rpartition("\n")[2]  # after the traceback: the error, or the sample and file
                    errors.append(f"batch {number}, {type(b).__name__}: {last.removeprefix(f'{type(b).__name__}: ')}")
                number += 1
                advance(1)
        except KeyboardInterrupt:
            raise VerificationInterrupted(result(None)) from None


def _bound(loader: FastLoader[Any]) -> float:
    """How far values of images may differ: ``LEVELS_OFF`` levels where ``exact=False`` approximates."""
    recipe = route_of(loader).recipe
    if recipe is None or recipe.pipeline.approximate is None:
        return 0.0
    table = recipe.pipeline.table
    return float(LEVELS_OFF) if table is None else LEVELS_OFF * float(table.double().diff().abs().max())


def _file(loader: DataLoader[Any], number: int, found: str) -> str:
    """Describe the sample of a difference and its file, if known."""
    place = found.partition("[")[2].partition("][")[2].partition(",")[0].partition("]")[0]
    if not isinstance(loader._index_sampler, _RecordingSampler) or not place.isdigit():
        return ""
    try:
        index = loader._index_sampler.drawn[number][int(place)]
        return f" (index {index}{_path(loader.dataset, index)})"
    except (LookupError, TypeError):  # batches that are not lists
        return ""


def _path(dataset: Any, index: Any) -> str:
    if isinstance(dataset, SeededByIndex):
        dataset = dataset.dataset
    if (name := sample_name(dataset, index)) is not None:
        return f", {name}"
    while type(dataset) is data.Subset:
        index, dataset = dataset.indices[index], dataset.dataset
    samples = getattr(dataset, "samples", None)
    if isinstance(samples, list):
        return f", {samples[index][0]}"
    entry = dataset.encoded(index) if callable(getattr(dataset, "encoded", None)) else None
    source = entry[0] if type(entry) is tuple else None
    return f", {os.fspath(source)}" if isinstance(source, str | os.PathLike) else ""
