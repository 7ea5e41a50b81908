"""Make batches of a TensorDataset with one call for each tensor.

Torch makes two for each of its rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
import torch.utils.data._utils.fetch as torch_fetch
import torch.utils.data.dataset as torch_dataset
from torch.utils.data import Subset, TensorDataset

from fastload._compare import same_bits
from fastload.memory.packing import is_packable, stacks_into

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROW_MAX_BYTES: Final = 16 * 1024
"""Larger rows take longer to copy than to find."""

COMPARED: Final = 2
"""The first batches of an epoch, which torch makes as well."""

_OWN: Final = ((TensorDataset, "__getitem__"), (Subset, "__getitem__"), (Subset, "__getitems__"))


class CollateAround:
    """A collate function that calls another one, and handles the batch that it makes."""

    collate_fn: Callable[[Any], Any]  # the other one

    def around(self, batch: Any) -> Any:
        """Do with a batch what is done with one that ``collate_fn`` has made."""
        raise NotImplementedError


class RowBatches:
    """Makes a fetcher's batches of its dataset's rows.

    Args:
        fetcher: Torch's, for which :meth:`serve` has found that this can be done. Its own ``fetch`` is compared with.
    """

    __slots__ = ("_around", "_collate_fn", "_compared", "_dataset", "_differs", "_plain")

    def __init__(self, fetcher: Any) -> None:
        self._dataset = fetcher.dataset
        self._compared = 0
        self._differs = False
        self._around: Callable[[Any], Any] | None = None
        self._plain: Any = None  # a fetcher whose batches can be compared, if those of the fetcher cannot
        self._collate_fn = fetcher.collate_fn
        if isinstance(around := fetcher.collate_fn, CollateAround):
            self._around, self._collate_fn = around.around, around.collate_fn
            self._plain = type(fetcher)(fetcher.dataset, True, around.collate_fn, fetcher.drop_last)

    @classmethod
    def serve(cls, fetcher: Any) -> RowBatches | None:
        """Return what makes a new fetcher's batches; ``None`` if only torch does."""
        kind: Any = type(fetcher)
        if kind is not torch_fetch._MapDatasetFetcher or kind.fetch.__globals__ is not vars(torch_fetch):
            return None
        made = cls(fetcher)
        if not fetcher.auto_collation or not _runs_torchs(made._collate_fn):
            return None
        return made if _tensors_of(fetcher.dataset, ()) is not None else None

    def make(self, fetch: Any, fetcher: Any, indices: Any) -> Any:
        """Make a batch.

        Args:
            fetch: Torch's function, which makes the first batches as well.
            fetcher: Its first argument.
            indices: What the sampler has given.

        Returns:
            The batch; ``None`` if torch is to make it, or to raise its error.
        """
        if self._differs or type(indices) is not list or not _runs_torchs(self._collate_fn):
            return None
        made: Any = _rows(self._dataset, indices)
        if made is None:
            return None
        if self._compared < COMPARED:
            self._compared += 1
            theirs = fetch(fetcher if self._plain is None else self._plain, indices)
            self._differs = not _are_alike(made, theirs)
            made = theirs
        return made if self._around is None else self._around(made)


def _runs_torchs(collate_fn: Any) -> bool:
    """Whether nothing but torch's own functions would run.

    What these are may change between two batches.
    """
    own = all(getattr(vars(holder)[name], "__globals__", None) is vars(torch_dataset) for holder, name in _OWN)
    return own and stacks_into(collate_fn)


def _rows(dataset: Any, indices: list[int]) -> list[torch.Tensor] | None:
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():  # what watches each call
        return None
    found = _tensors_of(dataset, indices)
    if found is None or not found[1]:
        return None
    tensors, places = found
    if set(map(type, places)) != {int} or min(places) < 0 or max(places) >= min(len(tensor) for tensor in tensors):
        return None
    where = torch.tensor(places, device="cpu")
    try:
        return [tensor.index_select(0, where) for tensor in tensors]
    except RuntimeError:  # not for each dtype that torch stacks
        return None


def _tensors_of(dataset: Any, indices: Sequence[int]) -> tuple[tuple[torch.Tensor, ...], Sequence[int]] | None:
    """The tensors of a dataset and indices of their rows.

    Returns:
        ``None`` if it has others than plain ones with small rows.
    """
    while type(dataset) is Subset:
        within = dataset.indices
        if "__getitems__" in vars(dataset) or type(within) not in (
            list,
            range,
        ):  # may do anything
            return None
        try:
            indices = [within[index] for index in indices]
        except (IndexError, TypeError):
            return None
        dataset = dataset.dataset
    if type(dataset) is not TensorDataset or hasattr(dataset, "__getitems__"):  # a method that the user has added
        return None
    if type(dataset.tensors) is not tuple or not dataset.tensors:
        return None
    return (dataset.tensors, indices) if all(map(_has_small_rows, dataset.tensors)) else None


def _has_small_rows(tensor: Any) -> bool:
    if not is_packable(tensor) or not tensor.dim() or not tensor.is_contiguous():
        return False
    return bool(0 < tensor.nbytes <= ROW_MAX_BYTES * len(tensor))


def _are_alike(ours: list[torch.Tensor], theirs: Any) -> bool:
    if type(theirs) is not list or len(theirs) != len(ours):
        return False
    pairs = zip(ours, theirs, strict=True)
    return all(type(b) is torch.Tensor and a.stride() == b.stride() and same_bits(a, b) for a, b in pairs)
