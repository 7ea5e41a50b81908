"""Test what a transfer does without a GPU; ``gpu/`` tests its streams and lifetimes."""

from __future__ import annotations

import contextlib
import threading

import pytest
import torch
from backends import raised_by
from backends.batches import Movable, Opaque, Record, Shown

from fastload import loader_state
from fastload._batch import moved, pinned
from fastload.device.normalize import finish
from fastload.device.transfer import AT_ONCE_MAX_BYTES, Transfer, _pageable_bytes

CPU = torch.device("cpu")
META = torch.device("meta")  # a device that takes copies and keeps nothing


def test_a_batch_arrives_as_it_was():
    transfer = Transfer(CPU, None, None, None)
    batch = {"x": torch.arange(3), "rest": [None, "s", 1.5], "record": Record(torch.ones(2), "r")}
    assert transfer.take(transfer.start(batch)) is batch


def test_every_tensor_moves():
    transfer = Transfer(META, None, None, None)
    grad = torch.ones(2, requires_grad=True)
    batch = [torch.ones(2), {"y": torch.ones(3)}, Movable(torch.ones(1)), grad, torch.eye(2).to_sparse(), "s"]
    there = transfer.take(transfer.start(batch))
    assert [there[0].device, there[1]["y"].device, there[2].x.device] == [META] * 3
    assert (there[3].device, there[3].requires_grad) == (META, True)
    assert there[4].device == META
    assert there[5] == "s"
    assert batch[0].device == CPU


def test_what_is_copied_is_counted():
    transfer = Transfer(META, None, None, None)
    for _ in range(3):
        transfer.take(transfer.start([torch.ones(4, dtype=torch.float64), torch.ones(2, dtype=torch.uint8), "s"]))
    assert (transfer.batches, transfer.nbytes) == (3, 3 * 34)


def test_the_source_is_free_again_after_the_copy():
    freed = []
    transfer = Transfer(CPU, None, None, None)
    transfer.start(torch.ones(2), on_copied=lambda: freed.append(1))
    assert freed == [1]


def test_small_tensors_cross_as_one_and_keep_their_layouts():
    transfer = Transfer(CPU, None, None, None)
    slot = torch.zeros(64, dtype=torch.uint8)
    floats = slot[:24].view(torch.float32).as_strided((3, 2), (1, 3)).copy_(torch.arange(6.0).reshape(3, 2))
    bytes_ = slot[32:35].copy_(torch.tensor([7, 8, 9]))
    large = torch.full((5,), 2)
    copied = transfer.start([floats, bytes_, large], small=slot)
    first, second, third = transfer.take(copied)
    assert first.stride() == (1, 3)
    assert first.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert second.tolist() == [7, 8, 9]
    assert third.tolist() == [2] * 5


@pytest.mark.parametrize("dtype", [None, torch.float64, torch.bfloat16])
def test_only_floating_point_is_cast(dtype):
    transfer = Transfer(CPU, None, None, dtype)
    moved = transfer.take(
        transfer.start([torch.ones(2), torch.ones(2, dtype=torch.int32), torch.ones(2, requires_grad=True)])
    )
    assert [tensor.dtype for tensor in moved] == [dtype or torch.float32, torch.int32, dtype or torch.float32]


def test_only_images_are_laid_out_anew():
    image = torch.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    for tensor, changes in (
        (image.float(), True),
        (image.to(torch.uint8), True),
        (image, False),  # int64 is no image
        (image[0].float(), False),
        (image[None].float(), False),
    ):
        moved = finish(tensor, torch.channels_last, None)
        assert (moved is not tensor) == changes
        assert torch.equal(moved, tensor)
        assert not changes or moved.is_contiguous(memory_format=torch.channels_last)
    for leave in (None, torch.preserve_format):
        assert finish(image.float().transpose(1, 2), leave, None).stride() == image.transpose(1, 2).stride()


def test_a_custom_type_that_cannot_move_raises_its_own_error():
    class Fixed(Movable):
        def to(self, device, *, non_blocking=False):
            raise LookupError("stays here")

    transfer = Transfer(META, None, None, None)
    error = raised_by(lambda: transfer.take(transfer.start([Fixed(torch.ones(1))])))
    assert str(error) == "stays here"


def test_a_type_that_nobody_can_move_stays():
    transfer = Transfer(META, None, None, None)
    opaque = Opaque(torch.ones(1))
    assert transfer.take(transfer.start([opaque]))[0] is opaque


def test_it_can_be_closed_from_within():
    """As the garbage collector does, which may run at any allocation."""
    transfer = Transfer(CPU, None, None, None)
    closed = threading.Event()

    def close():
        with transfer._lock:
            transfer.close()
        closed.set()

    threading.Thread(target=close, daemon=True).start()
    assert closed.wait(20)
    transfer.close()


class _MovesToAPair:
    """A custom type whose ``to`` returns a container."""

    def pin_memory(self):
        return self

    def to(self, device, non_blocking=False):
        return [torch.ones(1), torch.zeros(1)]

    def record_stream(self, stream):
        pass


def test_a_leaf_that_becomes_a_container_does_not_shift_the_others() -> None:
    transfer = Transfer(torch.device("cpu"), None, None, None)
    first, second, last = transfer.take(transfer.start([torch.full((1,), 5.0), _MovesToAPair(), torch.full((1,), 7.0)]))
    assert first.item() == 5.0
    assert [part.item() for part in second] == [1.0, 0.0]
    assert last.item() == 7.0


@pytest.mark.parametrize("interrupt", [False, True])
def test_a_copy_that_fails_has_ended_before_its_source_is_free(monkeypatch, interrupt):
    """Others may have been issued, from memory that is used again."""

    class Fails(Movable):
        def record_stream(self, stream):
            pass

        def to(self, *_, **__):
            done.append("issued")
            raise KeyboardInterrupt if interrupt else RuntimeError("no")

    class Module:
        @staticmethod
        def current_stream(device):
            return Module

        @staticmethod
        def synchronize():
            done.append("waited")

    done = []
    transfer = Transfer(META, None, None, None)
    monkeypatch.setattr(transfer, "_module", Module)
    with pytest.raises(KeyboardInterrupt if interrupt else RuntimeError):
        transfer.start([torch.ones(2), Fails(torch.ones(1))], on_copied=lambda: done.append("copied"))
    assert done == ["issued", "waited"]


def test_a_copy_that_is_issued_after_the_end_waits_for_itself(monkeypatch):
    """As by a thread that outlasts its iterator, whose memory is used again."""
    transfer, waited = Transfer(CPU, None, None, None), []
    monkeypatch.setattr(transfer, "wait_copied", lambda: waited.append(len(transfer._sources)))
    transfer.start(torch.ones(2))
    assert waited == []
    transfer.close()
    transfer.start(torch.ones(2))
    assert len(waited) == 2


def test_only_large_tensors_count_as_pageable():
    small = torch.zeros(AT_ONCE_MAX_BYTES, dtype=torch.uint8)
    assert _pageable_bytes(small) == 0
    assert _pageable_bytes(torch.zeros(AT_ONCE_MAX_BYTES + 1, dtype=torch.uint8)) == AT_ONCE_MAX_BYTES + 1
    assert _pageable_bytes(Movable(small)) == 0


def test_threads_that_ask_for_the_copy_stream_at_once_get_the_same(monkeypatch):
    def new_stream(_):
        if not others:  # another thread comes in between, and is done first
            others.append(None)
            thread = threading.Thread(target=lambda: others.append(state.copy_stream(device)))
            thread.start()
            thread.join()
        return object()

    state, device, others = loader_state.LoaderState(), torch.device("cuda", 0), []
    monkeypatch.setattr(loader_state, "new_stream", new_stream)
    stream = state.copy_stream(device)
    assert others == [None, stream]
    assert state.copy_stream(device) is stream


CALLED = []


def called(device, non_blocking=None):
    """Note how a ``to()`` was called, and return what it moved."""
    CALLED.append((device, non_blocking))
    return "moved"


TO = {
    "torch's": lambda self, device, non_blocking=False: called(device, non_blocking),
    "device": lambda self, device: called(device),
    "any name": lambda self, where, /: called(where),
    "keywords": lambda self, *, device=None, non_blocking=False: called(device, non_blocking),
    "a keyword": lambda self, *, dtype=None, device: called(device),
    "second": lambda self, dtype=None, device=None: called(device),
    "anything": lambda self, *args, **kwargs: called(*args, **kwargs),
    "any keyword": lambda self, **kwargs: called(**kwargs),
    "any positional": lambda self, *args: called(*args),
}


def of_type(**members):
    return type("Custom", (), {"pin_memory": lambda self: self, **members})()


@pytest.mark.parametrize("form", TO)
@pytest.mark.parametrize("late", [False, True])
def test_a_custom_type_is_moved_in_the_way_that_its_to_takes_a_device(form, late):
    CALLED.clear()
    members = {"to": TO[form]} | ({} if late else {"record_stream": lambda self, stream: None})
    transfer = Transfer(META, None, None, None)
    assert transfer.take(transfer.start([of_type(**members)])) == ["moved"]
    names = TO[form].__code__.co_varnames
    assert [(META, True if "non_blocking" in names or "kwargs" in names else None)] == CALLED


@pytest.mark.parametrize(
    "members",
    [
        {"to": "a.b@example.org"},
        {"to": None},
        {"to": torch.zeros(2)},
        {"to": lambda self: pytest.fail("it takes no device")},
        {"to": lambda self, one, two: pytest.fail("it takes more than a device")},
        {"to": lambda self, device: pytest.fail("it cannot be pinned"), "pin_memory": True},
        {"__getattr__": lambda self, name: {}[name], "pin_memory": property(lambda self: {}["p"])},
    ],
    ids=["text", "none", "tensor", "nothing", "too much", "flag", "error"],
)
def test_what_only_looks_like_a_custom_type_is_handed_over(members):
    custom = of_type(**members)
    transfer = Transfer(META, None, None, None)
    assert transfer.take(transfer.start([custom, torch.ones(1)]))[0] is custom


def test_a_custom_type_that_moves_in_place_stays_itself_and_moves_once():
    custom = of_type(to=lambda self, device: CALLED.append(device))
    CALLED.clear()
    transfer = Transfer(META, None, None, None)
    assert transfer.take(transfer.start({"a": custom}))["a"] is custom
    assert CALLED == [META]


def test_what_the_device_does_not_know_is_handed_over_as_it_is():
    image = torch.empty(2, 3, 4, 5, device="meta")
    transfer = Transfer(CPU, None, torch.channels_last, torch.float64)
    batch = transfer.take(transfer.start([image, Shown(torch.ones(2)), torch.ones(1)]))
    assert batch[0] is image
    assert type(batch[1]) is Shown
    assert batch[2].dtype == torch.float64
    sparse = torch.ones(2, 3, 2, 2).to_sparse()
    assert transfer.take(transfer.start(sparse)).dtype == torch.float64  # cast, and not laid out


class Picky(torch.Tensor):
    """Raises an error when it is moved or pinned."""

    error = RuntimeError("no")

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in (torch.Tensor.to, torch.Tensor.pin_memory):
            raise cls.error
        return super().__torch_function__(function, types, args, kwargs or {})


@pytest.mark.parametrize("act", [pinned, lambda leaf: moved(leaf, META)])
@pytest.mark.parametrize(
    ("error", "layout", "raises"),
    [
        (RuntimeError("no"), "plain", True),
        (RuntimeError("no"), "conjugate", False),
        (TypeError("no"), "conjugate", False),
        (NotImplementedError("no"), "plain", False),
        (torch.OutOfMemoryError("no"), "conjugate", True),
        (ValueError("no"), "conjugate", True),
    ],
    ids=str,
)
def test_only_errors_of_a_tensors_kind_leave_it_where_it_is(monkeypatch, act, error, layout, raises):
    tensor = torch.ones(2, dtype=torch.complex64)
    tensor = (tensor if layout == "plain" else tensor.conj()).as_subclass(Picky)
    monkeypatch.setattr(Picky, "error", error)
    if raises:
        with pytest.raises(type(error)):
            act(tensor)
    else:
        assert act(tensor) is tensor


class Streams:
    """A module of a device with streams that do nothing."""

    Event = staticmethod(lambda: Streams)
    stream = staticmethod(lambda stream: contextlib.nullcontext())
    current_stream = staticmethod(lambda device: "the consumer's")
    record = staticmethod(lambda stream: None)

    def __init__(self):
        self.waited = 0

    def synchronize(self, device):
        self.waited += 1


class Recorded(Movable):
    def record_stream(self, stream):
        pass


def test_memory_that_cannot_be_recorded_for_a_stream_is_not_used_again():
    """A copy of another type is kept, and later ones use no side stream."""
    transfer = Transfer(CPU, "the side stream", None, None)
    transfer._module = Streams()
    first = transfer.start([Recorded(torch.ones(1))])
    (kept,) = transfer._held
    assert not first._late
    assert transfer.take(first)[0] is kept
    second = transfer.start([Recorded(torch.ones(1))])
    assert second._late
    assert type(transfer.take(second)[0]) is Movable
    assert transfer._held == [kept]
    transfer.close()
    assert transfer._module.waited == 1
    assert transfer._held == []
