"""What a batch may be, and that it arrives as what it was."""

from __future__ import annotations

import dataclasses
import warnings
from functools import partial

import pytest
import torch
from backends import BACKENDS, assert_same, normal, raised_by
from backends.batches import COLLATES, ODD, Collator, Movable, Opaque
from backends.datasets import Images, Numbers, collect, configure
from torch.utils.data import default_collate

from fastload.workers.start import __file__ as WORKERS_FILE

workers = pytest.mark.parametrize("num_workers", [0, 1])


@pytest.mark.parametrize("kind", COLLATES)
def test_collate_results(backend, kind):
    def case(loader_class):
        return collect(loader_class(Numbers(5), batch_size=2, collate_fn=COLLATES[kind]))

    backend.same(case)


@pytest.mark.parametrize("kind", ODD)
def test_tensors_that_a_device_may_not_know(backend, kind):
    with warnings.catch_warnings(action="ignore"):  # torch warns once in a process
        ODD[kind]([Numbers(1)[0]])
    backend.same(lambda loader_class: collect(loader_class(Numbers(5), batch_size=2, collate_fn=ODD[kind])), anew=True)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_batch_that_contains_itself(backend, method):
    loader = backend.loader(Numbers(2), batch_size=2, num_workers=1, collate_fn=cyclic, multiprocessing_context=method)
    (batch,) = loader
    assert batch["again"][0] is batch
    assert_same(batch["x"], torch.tensor([[0.0, 0.5], [1.0, 1.5]]))


def cyclic(samples):
    batch = {"x": default_collate(samples)[0]}
    batch["again"] = [batch]
    return batch


def everything(samples):
    reluctantly_sent = ("requires grad", "sparse", "sparse image")
    return {name: collate(samples) for name, collate in COLLATES.items() if name not in reluctantly_sent}


@pytest.mark.matrix
def test_collate_results_that_travelled_between_processes(backend):
    def case(loader_class):
        return collect(loader_class(Numbers(5), batch_size=2, num_workers=2, collate_fn=everything))

    backend.same(case)


def in_a_list(sample):
    return [sample]


@workers
def test_samples_without_batching(backend, num_workers):
    def case(loader_class):
        data = [torch.ones(2), (torch.zeros(1), "s"), {"k": [1, None]}, "text", 5, None]
        converted = collect(loader_class(data, batch_size=None, num_workers=num_workers))
        own = collect(loader_class(data, batch_size=None, num_workers=num_workers, collate_fn=in_a_list))
        return converted, own

    backend.same(case)


@workers
@pytest.mark.matrix
def test_default_collate(backend, num_workers):
    def case(loader_class):
        data = [{"x": torch.ones(2) * i, "pair": (i, str(i)), "name": str(i), "flag": i > 2} for i in range(5)]
        loader = loader_class(data, batch_size=2, num_workers=num_workers)
        return collect(loader), loader.collate_fn is default_collate

    backend.same(case)


@workers
def test_batches_with_nothing_to_copy(backend, num_workers):
    def case(loader_class):
        return collect(loader_class(["a", "b", "c"], batch_size=2, num_workers=num_workers))

    assert backend.same(case).value == [["a", "b"], ["c"]]


def test_images_keep_values_and_shape(backend):
    batches = backend.same(lambda loader_class: collect(loader_class(Images(6), batch_size=4, num_workers=1))).value
    assert batches[0][0].shape == (4, 3, 4, 5)


def test_what_the_user_passed_stays_on_the_loader(backend):
    collate = Collator(3.0)
    data = Numbers(4)
    loader = backend.loader(data, num_workers=1, collate_fn=collate, worker_init_fn=configure, persistent_workers=True)
    for _ in range(2):
        list(loader)
        assert loader.dataset is data
        assert loader.collate_fn is collate
        assert loader.worker_init_fn is configure
        assert loader.pin_memory is False


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator is found")
@workers
def test_pinning_asked_for_by_the_user(backend, num_workers):
    """With ``pin_memory=True`` torch walks through the batch itself, and so decides what its containers become."""

    def case(loader_class):
        def containers(samples):
            names = ["tuple", "namedtuple", "defaultdict", "list with an attribute", "range", "movable", "bytearray"]
            return {name: COLLATES[name](samples) for name in names} | {"pinnable": Pinnable(samples[0][0])}

        own = {"num_workers": num_workers, "collate_fn": containers}
        loader = loader_class(Numbers(5), batch_size=2, pin_memory=True, pin_memory_device="cuda", **own)
        return collect(loader), loader.pin_memory, loader.pin_memory_device

    backend.same(case, anew=True)


def test_a_type_that_nobody_can_move_is_passed_on(backend):
    loader = backend.loader(Numbers(2), batch_size=2, collate_fn=COLLATES["opaque"])
    (batch,) = loader
    assert isinstance(batch, Opaque)
    assert batch.x.device.type == "cpu"


class Pinnable(Opaque):
    """As in the example of torch's documentation: it can be pinned, but not moved."""

    def pin_memory(self):
        self.asked = True
        return self


class FailsToPin(Movable):
    def pin_memory(self):
        raise KeyError("cannot be pinned")


class FailsToMove(Movable):
    def pin_memory(self):
        return self

    def to(self, device, *, non_blocking=False):
        raise KeyError("cannot be moved")


def of_first(batch_type, samples):
    return batch_type(samples[0][0])


@workers
@pytest.mark.parametrize("batch_type", [FailsToPin, FailsToMove])
def test_an_error_of_a_custom_type_reaches_the_consumer(backend, num_workers, batch_type):
    if backend.name == "plain" or (backend.name == "wrapped" and batch_type is FailsToPin):
        pytest.skip("nothing is pinned or moved on this backend")
    loader = backend.loader(Numbers(4), num_workers=num_workers, collate_fn=partial(of_first, batch_type))
    iterator = iter(loader)
    error = raised_by(lambda: next(iterator))
    assert type(error) is KeyError
    assert "cannot be " in str(error)
    loader.close()


@pytest.mark.gpu
@workers
def test_every_tensor_is_on_the_device(num_workers):
    kinds = ["tuple", "namedtuple", "dict", "defaultdict", "UserDict", "deque", "movable", "sparse"]
    for kind in [*kinds, "requires grad", "strided", "uint8 image", "empty"]:
        loader = BACKENDS["gpu"].loader(Numbers(4), batch_size=2, num_workers=num_workers, collate_fn=COLLATES[kind])
        for batch in loader:
            tensors = list(_tensors(batch))
            assert tensors, kind
            assert all(tensor.device == torch.device("cuda", torch.cuda.current_device()) for tensor in tensors), kind


def _tensors(item):
    if isinstance(item, torch.Tensor):
        yield item
    elif isinstance(item, str):
        return
    elif hasattr(item, "values") and callable(item.values):
        for value in item.values():
            yield from _tensors(value)
    elif dataclasses.is_dataclass(item) or not hasattr(item, "__iter__"):
        for value in getattr(item, "__dict__", {}).values():
            yield from _tensors(value)
    else:
        for value in item:
            yield from _tensors(value)


def test_traces_of_two_runs_are_compared_without_what_must_differ():
    kept = '  File "/fastload/torch/fetch.py", line 55, in fetch\n    return self.collate_fn(data)\n           ^^^^\n'
    where = f'  File "{WORKERS_FILE}", line 41, in __call__\n'
    ours = f"{where}    data = self.collate_fn(samples)\n      ^^\n"
    last = '  File "/z/mine.py", line 3, in collate\n    raise ValueError\nValueError: at '
    head = "Caught ValueError in DataLoader worker process 0 (pid {}).\n"
    assert normal(f"{head.format(123)}{kept}{ours}{last}0x7f00") == f"{head.format('…')}{kept}{last}0x…"
