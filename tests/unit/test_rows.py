"""Batches of a TensorDataset's rows equal torch's.

What is not known exactly is left to torch.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from backends import simulated
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, StackDataset, Subset, TensorDataset, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from fastload import FastLoader
from fastload._compare import same_bits
from fastload.memory import rows
from fastload.memory.rows import COMPARED, ROW_MAX_BYTES, RowBatches
from fastload.workers.start import Collate

ROWS = 40


def tensors() -> tuple[torch.Tensor, ...]:
    drawn = torch.Generator().manual_seed(5)
    of_dtypes = [torch.arange(ROWS).to(dtype) for dtype in (torch.uint8, torch.float16, torch.complex64, torch.bool)]
    shapes = (ROWS, 1, 4, 4), (ROWS, 3, 1, 1), (ROWS, 1, 1, 1), (ROWS, 2), (ROWS,)
    return (*(torch.rand(shape, generator=drawn) for shape in shapes), *of_dtypes, torch.full((ROWS, 2), torch.nan))


class Own(TensorDataset):
    def __getitem__(self, index: int) -> Any:
        return tuple(-tensor for tensor in super().__getitem__(index))


class Rising:
    """A sequence that gives something else each time."""

    def __init__(self) -> None:
        self.asked = -1

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> int:
        self.asked += 1
        return self.asked % ROWS


def plain() -> TensorDataset:
    return TensorDataset(*tensors())


def with_tensors(made: Any) -> TensorDataset:
    dataset = plain()
    dataset.tensors = made
    return dataset


def with_rows(dataset: Any) -> Any:
    dataset.__getitems__ = lambda indices: [(index,) for index in indices]
    return dataset


SERVED = {
    "plain": plain,
    "one": lambda: TensorDataset(torch.rand(ROWS, 3)),
    "subset": lambda: Subset(plain(), [*range(ROWS - 1, 3, -2)]),
    "subset of a subset": lambda: Subset(Subset(plain(), range(3, 33)), [0, 5, 5, 29, 7]),
}

LEFT = {
    "a subclass": lambda: Own(*tensors()),
    "a sequence of the user's": lambda: Subset(plain(), Rising()),
    "an array of indices": lambda: Subset(plain(), np.arange(ROWS)),
    "gradients": lambda: TensorDataset(torch.rand(ROWS, 3, requires_grad=True)),
    "channels last": lambda: TensorDataset(torch.rand(ROWS, 3, 4, 4).to(memory_format=torch.channels_last)),
    "columns": lambda: TensorDataset(torch.rand(ROWS, 6)[:, ::2]),
    "nothing in a row": lambda: TensorDataset(torch.rand(ROWS, 0)),
    "large rows": lambda: TensorDataset(torch.rand(ROWS, ROW_MAX_BYTES // 4 + 1)),
    "a subclass of tensors": lambda: TensorDataset(torch.rand(ROWS, 3).as_subclass(type("Odd", (torch.Tensor,), {}))),
    "sparse tensors": lambda: TensorDataset(torch.eye(ROWS).to_sparse()),
    "conjugates": lambda: TensorDataset(torch.rand(ROWS, 2, dtype=torch.complex64).conj()),
    "rows of the user's": lambda: with_rows(plain()),
    "rows of a subset of the user's": lambda: with_rows(Subset(plain(), [*range(ROWS)])),
    "a list of tensors": lambda: with_tensors([torch.rand(ROWS)]),
    "no tensors": lambda: with_tensors(()),
    "another dataset": lambda: StackDataset(torch.rand(ROWS), torch.rand(ROWS)),
}


def fetcher_of(dataset: Any, collate_fn: Any = default_collate) -> Any:
    return _MapDatasetFetcher(dataset, True, collate_fn, False)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", SERVED)
def test_rows_are_torchs_batches(kind: str, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = SERVED[kind]()
    assert RowBatches.serve(fetcher_of(dataset)) is not None
    monkeypatch.setattr(rows, "COMPARED", 0)
    taken = mock.Mock(side_effect=rows._rows)
    monkeypatch.setattr(rows, "_rows", taken)
    given = {"batch_size": 7 if len(dataset) > 7 else 2, "num_workers": workers}
    theirs = list(DataLoader(dataset, sampler=[*range(len(dataset))][::-1], **given))
    with FastLoader(dataset, sampler=[*range(len(dataset))][::-1], device="cpu", **given) as loader:
        ours = list(loader)
        assert loader.stats().images == len(dataset)
    assert len(ours) == len(theirs)
    assert taken.call_count == (0 if workers else len(ours))
    for our, their in zip(ours, theirs, strict=True):
        assert type(our) is type(their) is list
        for a, b in zip(our, their, strict=True):
            assert same_bits(a, b)
            assert (type(a), a.stride(), a.is_shared()) == (type(b), b.stride(), b.is_shared())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", LEFT)
def test_what_may_differ_is_left_to_torch(kind: str) -> None:
    assert RowBatches.serve(fetcher_of(LEFT[kind]())) is None


def makes(fetcher: Any, indices: Any) -> Any:
    served = RowBatches.serve(fetcher)
    return None if served is None else served.make(type(fetcher).fetch, fetcher, indices)


@pytest.mark.parametrize("indices", [[-1], [ROWS], [True], [np.int64(3)], [torch.tensor(3)], [], (1, 2), 3, [[1]]])
def test_odd_indices_are_left_to_torch(indices: Any) -> None:
    assert makes(fetcher_of(plain()), [1, 2]) is not None
    assert makes(fetcher_of(plain()), indices) is None
    assert makes(fetcher_of(Subset(plain(), [0, 7, ROWS])), [0, 2]) is None


def test_other_functions_than_torchs_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    assert makes(fetcher_of(plain(), lambda samples: samples), [1]) is None
    assert makes(_MapDatasetFetcher(plain(), False, default_collate, False), [1]) is None  # type: ignore[no-untyped-call]
    fetcher = fetcher_of(plain())
    served = RowBatches.serve(fetcher)
    assert served is not None
    with TorchFunctionMode():
        assert served.make(type(fetcher).fetch, fetcher, [1]) is None
    with torch.device("cpu"):
        assert served.make(type(fetcher).fetch, fetcher, [1]) is None
    with monkeypatch.context() as patched:
        patched.setattr(TensorDataset, "__getitem__", lambda dataset, index: (index,))
        assert makes(fetcher_of(plain()), [1]) is None
    with monkeypatch.context() as patched:
        patched.setattr(_MapDatasetFetcher, "fetch", lambda fetcher, indices: indices)
        assert makes(fetcher_of(plain()), [1]) is None


def test_tensors_may_change_between_batches() -> None:
    dataset = plain()
    fetcher = fetcher_of(dataset)
    served = RowBatches.serve(fetcher)
    assert served is not None
    dataset.tensors = (torch.rand(ROWS, 2, requires_grad=True),)
    assert served.make(type(fetcher).fetch, fetcher, [1]) is None


def test_the_first_batches_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def theirs(fetcher: Any, indices: Any) -> Any:
        asked.append(indices)
        return _MapDatasetFetcher.fetch(fetcher, indices)  # type: ignore[no-untyped-call]

    fetcher = fetcher_of(TensorDataset(torch.rand(ROWS, 2)))
    served = RowBatches.serve(fetcher)
    assert served is not None
    for index in range(COMPARED + 2):
        assert same_bits(served.make(theirs, fetcher, [index])[0], fetcher.dataset.tensors[0][[index]])
    assert len(asked) == COMPARED
    served = RowBatches.serve(fetcher)
    assert served is not None
    monkeypatch.setattr(rows, "_rows", lambda dataset, indices: [torch.zeros(len(indices), 2)])
    assert same_bits(served.make(theirs, fetcher, [3])[0], fetcher.dataset.tensors[0][[3]])
    assert served.make(theirs, fetcher, [4]) is None


def test_engine_torch_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowBatches, "make", lambda *_: pytest.fail("rows were taken at once"))
    with FastLoader(plain(), batch_size=7, device="cpu", engine="torch") as loader:
        assert len(list(loader)) == -(-ROWS // 7)


@pytest.mark.parametrize("kind", [*SERVED, "more than goes along with a call"])
def test_rows_on_their_way_to_a_device(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulated.install(monkeypatch)
    around = mock.Mock(side_effect=Collate.around, autospec=True)
    monkeypatch.setattr(Collate, "around", lambda *given: around(*given))
    is_small = kind == "one"  # others have many tensors, or large ones
    dataset = SERVED[kind]() if kind in SERVED else TensorDataset(torch.rand(ROWS, ROW_MAX_BYTES // 4))
    given: dict[str, Any] = {"batch_size": 2 if kind in SERVED else 7, "shuffle": True}
    torch.manual_seed(7)
    want = [list(DataLoader(dataset, **given)) for _ in range(2)]
    torch.manual_seed(7)
    with FastLoader(dataset, device="cuda", **given) as loader:
        ours = [list(loader) for _ in range(2)]
        stats = loader.stats()
    for their, our in zip(want, ours, strict=True):
        assert len(our) == len(their) > 2
        assert all(same_bits(a, b) for x, y in zip(our, their, strict=True) for a, b in zip(x, y, strict=True))
    assert around.call_count == 2 * len(want[0])
    assert stats.images == 2 * len(dataset)
    assert (stats.slots > 0) is not is_small
    # Slots are made beside the first batches, or later on a busy machine.
    assert (stats.slot_batches > 0) is not is_small


def test_the_first_batches_that_go_into_slots_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = TensorDataset(torch.rand(ROWS, 2))
    served = RowBatches.serve(fetcher := fetcher_of(dataset, Collate(default_collate, 0)))
    assert served is not None
    monkeypatch.setattr(rows, "_rows", lambda dataset, indices: [torch.zeros(len(indices), 2)])
    assert same_bits(served.make(type(fetcher).fetch, fetcher, [3]).data[0], dataset.tensors[0][[3]])
    assert served.make(type(fetcher).fetch, fetcher, [4]) is None
    assert RowBatches.serve(fetcher_of(dataset, Collate(lambda samples: samples, 0))) is None


def test_what_default_collate_runs_may_be_replaced_between_two_batches() -> None:
    dataset = TensorDataset(torch.ones(ROWS, 3))
    with FastLoader(dataset, batch_size=2, device="cpu") as loader:
        iterator = iter(loader)
        assert [next(iterator)[0].sum().item() for _ in range(COMPARED + 2)] == [6.0] * (COMPARED + 2)
        with mock.patch.dict(default_collate_fn_map, {torch.Tensor: lambda batch, **_: -torch.stack(batch)}):
            assert next(iterator)[0].sum().item() == -6.0
        assert next(iterator)[0].sum().item() == 6.0


def test_a_dtype_of_which_torch_selects_no_rows_is_left_to_torch() -> None:
    dataset = TensorDataset(torch.arange(ROWS, dtype=torch.uint8)[:, None].view(torch.quint8))
    assert makes(fetcher_of(dataset), [1, 2]) is None
