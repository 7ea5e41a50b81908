"""Batches sent in memory files equal torch's, in every respect that a program can see."""

from __future__ import annotations

import collections
import dataclasses
import errno
import os
import pickle
import socket
import sys
import unittest.mock
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
from children import exit_code, forked
from torch.multiprocessing import reductions
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate, get_worker_info
from torchvision import tv_tensors

from fastload import FastLoader
from fastload.memory import memory_files, sending
from fastload.memory.packing import SMALL_BYTES, collate_into
from fastload.memory.sending import FileStacker, Sent

LARGE = SMALL_BYTES // 4 + 1  # float32 elements


@pytest.fixture(autouse=True)
def no_sharer_and_files():
    yield
    resource_sharer.stop(timeout=5)
    for files in memory_files.of_processes.values():
        files.close()


def sent(data):
    """What arrives; ``data`` must be a batch to which nothing else refers."""
    message = bytes(ForkingPickler.dumps(data))
    reductions.shared_cache.clear()  # else torch finds the storage in this process
    return pickle.loads(message)


def files_of(data):
    """How many files and small tensors a batch would move."""
    return sum(1 for _ in sending._alone([data.data]))


TENSORS = {
    "large": lambda: torch.rand(3, LARGE),
    "small": lambda: torch.rand(5),
    "number": lambda: torch.tensor(7),
    "int64": lambda: torch.arange(LARGE),
    "bool": lambda: torch.rand(4 * LARGE) > 0.5,
    "bfloat16": lambda: torch.rand(4 * LARGE).to(torch.bfloat16),
    "complex": lambda: torch.rand(LARGE, dtype=torch.complex64),
    "channels last": lambda: torch.rand(2, 3, 90, 80).contiguous(memory_format=torch.channels_last),
    "of NumPy": lambda: torch.as_tensor(np.random.default_rng(0).random((3, LARGE))),
    "part": lambda: torch.rand(9, LARGE)[2:4, ::3],
    "transposed": lambda: torch.rand(9, LARGE).t(),
    "nothing": lambda: torch.empty(0, 3),
    "expanded": lambda: torch.rand(1).expand(3, 4),
}


@pytest.mark.parametrize("kind", TENSORS)
@pytest.mark.parametrize(
    "holder",
    [lambda t: [t], lambda t: (1, {"a": t, "b": None}), lambda t: t, lambda t: Holder(collections.UserDict(a=t))],
)
def test_a_tensor_arrives_as_torch_sends_it(kind, holder):
    def leaf(data):
        while not isinstance(data, torch.Tensor):
            data = data.tensor if isinstance(data, Holder) else data
            data = data[0] if isinstance(data, list) else data[1] if isinstance(data, tuple) else data["a"]
        return data

    torch.manual_seed(0)
    ours = leaf(sent(Sent(holder(TENSORS[kind]()))))
    torch.manual_seed(0)
    theirs = leaf(sent(holder(TENSORS[kind]())))
    assert type(ours) is torch.Tensor
    assert torch.equal(ours, theirs)
    for figure in ("dtype", "requires_grad"):
        assert getattr(ours, figure) == getattr(theirs, figure)
    for figure in ("size", "stride", "storage_offset", "is_shared", "is_inference"):
        assert getattr(ours, figure)() == getattr(theirs, figure)()
    assert ours.untyped_storage().nbytes() == theirs.untyped_storage().nbytes()
    assert ours.untyped_storage().resizable() == theirs.untyped_storage().resizable()


def test_an_unshared_tensor_is_moved_in_one_message_with_others():
    batch = Sent(([torch.rand(LARGE) for _ in range(3)], {"small": torch.rand(2)}))
    assert files_of(batch) == 4
    assert batch.__reduce__()[1][2] == 3


class Holder:
    KEPT = ()  # set by a test

    def __init__(self, tensor):
        self.tensor = tensor


def with_attributes(attributes):
    made = Holder(None)
    made.__dict__ = attributes
    return made


def replaced(kept, tensor):
    kept[0] = tensor
    return tensor


class WithProperty:
    @property
    def __dict__(self):
        raise ValueError("no attributes")


KEPT = {
    "tensor": lambda kept: kept[0],
    "view": lambda kept: kept[0][:],
    "row": lambda kept: kept[0].view(-1, 2)[0],
    "detached": lambda kept: kept[0].detach(),
    "view of a view": lambda kept: replaced(kept, kept[0][:])[2:],
    "weight": lambda kept: replaced(kept, torch.ones(LARGE, requires_grad=True)).detach(),
    "object": lambda kept: Holder(kept[0]),
    "object of a container": lambda kept: Holder(kept),
    "attributes": lambda kept: with_attributes(vars(Holder.KEPT[0])),
    "kept object": lambda kept: Holder.KEPT[0],
    "property": lambda kept: WithProperty(),
    "container": lambda kept: kept,
    "array": lambda kept: kept[0],
}


@pytest.mark.parametrize("kind", KEPT)
def test_a_tensor_that_is_kept_is_left_to_torch(kind, monkeypatch):
    kept = [torch.rand(2 * LARGE)]
    monkeypatch.setattr(Holder, "KEPT", [Holder(torch.rand(LARGE))])
    batch = Sent([KEPT[kind](kept)])
    if kind == "array":
        kept[0] = kept[0].numpy()
    assert files_of(batch) == 0


@dataclasses.dataclass
class Sample:
    pixels: torch.Tensor
    target: dict[str, torch.Tensor]


def test_tensors_in_attributes_are_moved():
    batch = Sent([Sample(torch.rand(LARGE), {"box": torch.rand(4)}) for _ in range(20)])
    assert files_of(batch) == 40
    assert batch.__reduce__()[1][2] == 20


VIEWS = {
    "part": lambda: torch.rand(9, LARGE)[2:4, ::3],
    "transposed twice": lambda: torch.rand(2, 3, LARGE).permute(1, 2, 0).transpose(0, 1),
    "of a subclass": lambda: tv_tensors.Mask(torch.rand(LARGE)).as_subclass(torch.Tensor),
    "looked at": lambda: looked_at(torch.rand(LARGE)[3:]),
}


def looked_at(view):
    assert view._base is not None
    return view


@pytest.mark.parametrize("kind", VIEWS)
def test_a_view_of_what_nothing_else_has_is_moved(kind):
    batch = Sent([VIEWS[kind]()])
    assert files_of(batch) == 1
    base = batch.data[0]._base
    assert files_of(batch) == 0  # the base may be looked at
    expected = batch.data[0].clone()
    del base
    assert torch.equal(sent(batch)[0], expected)


class WithView(Holder):
    def __getstate__(self):
        return {"tensor": self.tensor, "view": self.tensor[:2]}


def test_a_tensor_whose_view_is_made_to_be_pickled_stays_with_it():
    received = sent(Sent(WithView(torch.rand(LARGE))))
    received.view.fill_(7)
    assert received.tensor[:2].tolist() == [7, 7]


def test_what_is_nested_too_deep_to_be_searched_is_sent():
    class Chain:
        def __reduce__(self):
            return Holder, (None,)

    chain = None
    for _ in range(2 * sys.getrecursionlimit()):
        made = Chain()
        made.next, chain = chain, made
    del made
    batch = Sent(chain)
    del chain
    assert sent(batch).tensor is None


def test_a_long_list_of_numbers_is_not_searched():
    # Not made within the assertions, which would refer to the tensors.
    short, long = Sent([*range(15), torch.rand(2)]), Sent([*range(16), torch.rand(2)])
    assert (files_of(short), files_of(long)) == (1, 0)
    assert torch.equal(sent(Sent([*range(17), torch.ones(2)]))[-1], torch.ones(2))
    rows, tensors = (
        Sent([{"ids": [float(row)]} for row in range(17)]),
        Sent([{"ids": [torch.rand(2)]} for _ in range(17)]),
    )
    with unittest.mock.patch.object(sending, "is_packable", side_effect=sending.is_packable) as looked_at:
        assert (files_of(rows), looked_at.call_count, files_of(tensors)) == (0, 0, 17)
    endless = []
    endless.append(endless)
    assert len(sent(Sent([endless] * 17))) == 17


def test_twice_the_same_tensor_is_the_same_tensor():
    one = torch.rand(LARGE)
    batch = Sent([one, one])
    del one
    ours = sent(batch)
    assert ours[0] is ours[1]


def test_what_is_shared_already_is_left_to_torch():
    batch = Sent([torch.rand(LARGE)])
    assert files_of(batch) == 1
    batch.data[0].share_memory_()
    assert files_of(batch) == 0


def test_more_tensors_than_fit_one_message():
    batch = Sent([torch.full((LARGE,), float(number)) for number in range(sending.FILES_MAX + 3)])
    assert batch.__reduce__()[1][2] == sending.FILES_MAX
    ours = sent(batch)
    assert [tensor[-1].item() for tensor in ours] == list(range(sending.FILES_MAX + 3))


def test_content_that_finds_no_place_among_the_files_of_one_message_goes_in_it(monkeypatch):
    monkeypatch.setattr(sending, "FILES_MAX", 1)
    batch = Sent([torch.ones(LARGE), b"a" * 2 * sending.CONTENT_BYTES])
    content, _, files = batch.__reduce__()[1]
    assert (len(content) > sending.CONTENT_BYTES, files) == (True, 1)


def none_left(*arguments):
    raise OSError(errno.EMFILE, "none left")


def test_torch_sends_what_finds_no_memory_file(monkeypatch):
    batch = Sent([torch.ones(LARGE), b"a" * 2 * sending.CONTENT_BYTES])
    monkeypatch.setattr(os, "memfd_create", none_left)
    tensor, content = sent(batch)
    assert torch.equal(tensor, torch.ones(LARGE))
    assert len(content) == 2 * sending.CONTENT_BYTES


def test_what_finds_no_socket_goes_in_the_message(monkeypatch):
    monkeypatch.setattr(sending._sharer(), "register", none_left)
    assert len(sent(Sent(b"a" * 2 * sending.CONTENT_BYTES))) == 2 * sending.CONTENT_BYTES


def test_what_is_large_without_its_tensors_comes_in_a_file(monkeypatch):
    sends, send = [], socket.send_fds
    monkeypatch.setattr(socket, "send_fds", lambda *arguments: sends.append(len(arguments[2])) or send(*arguments))
    array = np.arange(sending.CONTENT_BYTES // 8, dtype=np.float64)
    before = len(os.listdir("/proc/self/fd"))
    message = ForkingPickler.dumps(Sent({"array": array, "tensor": torch.ones(LARGE)}))
    assert len(message) < 1000
    ours = pickle.loads(bytes(message))
    assert np.array_equal(ours["array"], array)
    ours["array"][0] = 7  # it is no view of the file
    assert torch.equal(ours["tensor"], torch.ones(LARGE))
    assert len(ForkingPickler.dumps(Sent(array[:-1000]))) > 1000  # so that there is a limit
    del ours
    resource_sharer.stop(timeout=5)
    assert sends == [2]
    assert len(os.listdir("/proc/self/fd")) <= before


def test_files_wait_in_the_worker_and_are_closed_once_sent(monkeypatch):
    sends, send = [], socket.send_fds
    monkeypatch.setattr(socket, "send_fds", lambda *arguments: sends.append(len(arguments[2])) or send(*arguments))
    sent(Sent([torch.ones(LARGE)]))  # starts the thread that sends
    sends.clear()
    before = len(os.listdir("/proc/self/fd"))
    messages = [bytes(ForkingPickler.dumps(Sent([torch.ones(LARGE), torch.ones(LARGE)]))) for _ in range(3)]
    assert (sends, len(os.listdir("/proc/self/fd")) - before) == ([], 6)
    for message in messages:
        assert torch.equal(pickle.loads(message)[1], torch.ones(LARGE))
    resource_sharer.stop(timeout=5)
    assert sends == [2, 2, 2]
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_reducer_of_the_user_is_called(monkeypatch):
    table = ForkingPickler._extra_reducers
    monkeypatch.setitem(table, torch.Tensor, lambda tensor: (torch.full, ((1,), -tensor[0].item())))
    assert sent(Sent([torch.ones(LARGE)]))[0].item() == -1


def test_files_that_do_not_arrive_are_an_error_of_too_many(monkeypatch):
    message = bytes(ForkingPickler.dumps(Sent([torch.ones(LARGE), torch.ones(LARGE)])))
    receive = socket.recv_fds

    def one_less(*arguments):
        content, files, *rest = receive(*arguments)
        os.close(files.pop())
        return content, files, *rest

    monkeypatch.setattr(socket, "recv_fds", one_less)
    with pytest.raises(OSError, match=os.strerror(errno.EMFILE)) as raised:
        pickle.loads(message)
    assert raised.value.errno == errno.EMFILE


def test_a_descriptor_of_torchs_that_does_not_arrive_is_raised_for_torch_to_explain(monkeypatch):
    """Torch then says how to raise the limit of open files."""
    kept = [torch.ones(LARGE)]
    message = bytes(ForkingPickler.dumps(Sent(kept)))
    reductions.shared_cache.clear()
    receive = socket.socket.recvmsg
    monkeypatch.setattr(socket.socket, "recvmsg", lambda near, size, _: receive(near, size))
    with pytest.raises(RuntimeError, match="received 0 items of ancdata"):
        pickle.loads(message)


def test_a_call_that_writes_a_part_is_repeated(monkeypatch):
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, content, offset: write(file, content[:1000], offset))
    content = torch.arange(LARGE)
    assert torch.equal(sent(Sent([content.clone()]))[0], content)


class Raising:
    """Raises when it is pickled, or when it is unpickled."""

    def __init__(self, error, when="pickled"):
        self.error, self.when = error, when

    def __reduce__(self):
        if self.when == "pickled":
            raise self.error
        return raises, (self.error,)


def raises(error):
    raise error


def local_error():
    class LocalError(ValueError):
        pass

    return LocalError("of a class that cannot be imported")


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    """Takes no note."""

    text: str


class Lying:
    """Says that it is a dict."""

    __class__ = property(lambda self: dict)

    def __reduce__(self):
        return str, ("an object",)


class Nameless(int):
    def __repr__(self):
        raise ValueError

    __str__ = __repr__


class Sends(Dataset):
    """Has samples that do not arrive, with one that does after each."""

    samples = (
        (lambda: lambda: None, (AttributeError, pickle.PicklingError), "Can't"),  # the latter from Python 3.14 on
        (lambda: torch.ones(2, requires_grad=True) * 2, RuntimeError, "non-leaf tensor which requires_grad"),
        (lambda: Raising(IndexError("odd")), IndexError, "odd"),  # the thread that sends drops it without a word
        (lambda: [torch.ones(LARGE), Raising(KeyError("odd"))], KeyError, "odd"),
        # From Python 3.14 on, pickle adds notes of its own.
        (lambda: Raising(FrozenError("odd")), (FrozenError, dataclasses.FrozenInstanceError), "odd"),
        (lambda: Raising(SystemExit("odd")), RuntimeError, "SystemExit: odd"),
        (
            lambda: Raising(ZeroDivisionError("odd"), "unpickled"),
            ZeroDivisionError,
            "a batch of a worker's was unpickled",
        ),
        (lambda: Raising(EOFError("odd"), "unpickled"), EOFError, "a batch of a worker's was unpickled"),
        (lambda: [torch.ones(LARGE), Raising(FileNotFoundError(2, "odd", "/file"), "unpickled")], OSError, "/file"),
        (lambda: raises(local_error()), ValueError, "LocalError: of a class that cannot be imported"),
    )

    def __len__(self):
        return 2 * len(self.samples)

    def __getitem__(self, index):
        return torch.tensor(float(index)) if index % 2 else self.samples[index // 2][0]()


@pytest.mark.parametrize("options", [{}, {"engine": "torch"}, {"dtype": torch.float32}])
def test_what_cannot_be_sent_is_an_error_in_its_turn(options):
    given = {"collate_fn": listed, "num_workers": 2, "batch_size": 1, "device": "cpu", "timeout": 60}
    with FastLoader(Sends(), **given, **options) as loader:
        iterator = iter(loader)
        for number, (_, error, says) in enumerate(Sends.samples):
            with pytest.raises(error, match=says) as raised:
                next(iterator)
            if number < 6:
                assert f"when the batch of indices [{2 * number}] was pickled" in str(raised.value)
            assert next(iterator)[0].item() == 2 * number + 1
        assert next(iterator, None) is None


def test_indices_that_cannot_be_shown_do_not_hide_an_error():
    with pytest.raises(KeyError, match=r"when the batch of indices .*Nameless instance.* was pickled"):
        sent(Sent(Raising(KeyError("odd")), [Nameless()])).reraise()


def test_an_object_is_what_its_type_says():
    received = sent(Sent([Lying()]))  # pytest would keep the list in an assertion
    assert received == ["an object"]


def fails(worker):
    raise local_error()


class HasState(Sends):
    def state_dict(self):
        return 1

    def load_state_dict(self, state):
        if get_worker_info() is not None:
            raise local_error()


@pytest.mark.parametrize("how", ["worker_init_fn", "load_state_dict"])
def test_an_error_of_a_local_class_before_the_first_sample_arrives(how):
    given = {"num_workers": 1, "batch_size": 1, "device": "cpu", "timeout": 60, "sampler": [1, 3, 5]}
    first_call = fails if how == "worker_init_fn" else None
    with FastLoader(HasState(), worker_init_fn=first_call, **given) as loader:
        iterator = iter(loader)
        if how == "load_state_dict":
            next(iterator)
            loader.load_state_dict(loader.state_dict())
            iterator = iter(loader)
        with pytest.raises(ValueError, match="LocalError: of a class"):
            next(iterator)


def test_an_error_of_a_class_that_the_receiver_lacks_is_one_of_its_base(monkeypatch):
    monkeypatch.setattr(
        sys.modules[__name__], "Known", type("Known", (LookupError,), {"__module__": __name__}), raising=False
    )
    message = bytes(ForkingPickler.dumps(Sent(Raising(vars(sys.modules[__name__])["Known"]("odd")))))
    monkeypatch.undo()
    with pytest.raises(LookupError, match="odd"):
        pickle.loads(message).reraise()


SAMPLES = {
    "floats": lambda: [torch.rand(LARGE) for _ in range(3)],
    "strided": lambda: [torch.rand(70, 80, 3).permute(2, 0, 1) for _ in range(3)],
    "nested": lambda: [{"a": torch.rand(LARGE), "b": (number, [torch.rand(2)])} for number in range(3)],
    "two sizes": lambda: [torch.rand(LARGE), torch.rand(LARGE + 1)],
    "two dtypes": lambda: [torch.rand(LARGE), torch.rand(LARGE).double()],
    "tensor and number": lambda: [torch.rand(LARGE), 3.0],
    "small": lambda: [torch.rand(3, 90) for _ in range(99)],
    "small, strided": lambda: [torch.rand(90, 3).t() for _ in range(99)],
    "small, of two sizes": lambda: [torch.rand(300 + number % 2) for number in range(99)],
    "small, of two dtypes": lambda: [
        torch.rand(300).to((torch.float, torch.double)[number % 2]) for number in range(99)
    ],
    "small, with a gradient": lambda: [torch.rand(300, requires_grad=number == 5) for number in range(99)],
}


@pytest.mark.parametrize("kind", SAMPLES)
def test_samples_are_stacked_as_torch_stacks_them(kind):
    def outcome(collate):
        torch.manual_seed(0)
        try:
            return collate(SAMPLES[kind]())
        except Exception as error:
            return type(error), str(error)

    ours, theirs = outcome(lambda samples: collate_into(FileStacker(), samples)), outcome(default_collate)
    if kind == "nested":
        assert torch.equal(ours["b"][0], theirs["b"][0])
        ours, theirs = ours["a"], theirs["a"]
    if isinstance(theirs, tuple):
        assert ours == theirs
    else:
        assert torch.equal(ours, theirs)
        assert (ours.dtype, ours.stride()) == (theirs.dtype, theirs.stride())


def written(batch, monkeypatch):
    """Sizes of the writes that stacking and sending a batch takes."""
    sizes, write = [], os.pwrite
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda *arguments: sizes.append(write(*arguments)) or sizes[-1])
        sent(Sent(collate_into(FileStacker(), batch)))
    return sizes


def test_small_samples_are_written_at_once_and_large_ones_one_by_one(monkeypatch):
    small, large = torch.rand(300), torch.rand(sending.ONE_BY_ONE_BYTES // 4)
    assert written([{"a": small, "b": number} for number in range(99)], monkeypatch) == [99 * small.nbytes]
    assert written([large] * 3, monkeypatch) == [large.nbytes] * 3
    monkeypatch.setattr(sending, "AT_ONCE_MAX_BYTES", 98 * small.nbytes)
    with pytest.raises(TypeError):  # torch stacks them, in shared memory
        FileStacker().stack([small] * 99)


Pair = collections.namedtuple("Pair", ["image", "label"])


class Fields(dict):
    pass


@pytest.mark.parametrize("kind", [Pair, lambda image, label: Fields(image=image, label=label)])
def test_tensors_in_containers_of_other_types_are_moved(kind):
    batch = Sent(kind(torch.ones(LARGE), torch.ones(2)))
    assert files_of(batch) == 2
    ours = sent(batch)
    assert type(ours) is type(kind(0, 0))
    assert torch.equal((ours["image"] if isinstance(ours, dict) else ours.image), torch.ones(LARGE))


def test_samples_are_stacked_by_torch_without_memory_files(monkeypatch):
    def none(*arguments):
        raise OSError(errno.EMFILE, "none left")

    monkeypatch.setattr(os, "memfd_create", none)
    samples = SAMPLES["floats"]()
    assert torch.equal(collate_into(FileStacker(), samples), torch.stack(samples))


class Cached(Dataset):
    """Gives the tensors that it keeps, which a loop may change."""

    def __init__(self):
        self.kept = [torch.full((LARGE,), float(number)) for number in range(4)]

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.kept[index], torch.full((LARGE,), float(index))


class Loads(Dataset):
    """Makes its samples with a loader of its own."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        own = DataLoader([torch.full((LARGE,), float(index))] * 2, 2)
        return [type(batch).__name__ for batch in own], next(iter(own)), get_worker_info().id


class Stream(IterableDataset):
    def __iter__(self):
        return (torch.full((LARGE,), float(number)) for number in range(5))


def listed(samples):
    return samples


def changed_in_place(loader):
    """Two epochs' batches, each changed after it is seen."""
    seen = []
    for _ in range(2):
        for batch in loader:
            for kept, made in batch:
                seen.append((kept[-1].item(), made[-1].item(), kept.is_shared(), made.is_shared()))
                kept += 10
                made += 10
    return seen


def test_a_kept_tensor_stays_shared_with_the_worker():
    given = {"batch_size": 2, "num_workers": 1, "persistent_workers": True, "collate_fn": listed}
    with FastLoader(Cached(), device="cpu", **given) as loader:
        ours = changed_in_place(loader)
    assert ours == changed_in_place(DataLoader(Cached(), **given))
    assert ours[4][0] == 10.0  # what the loop added to the worker's tensor


def test_files_by_name_stay_torchs():
    def by_name():
        torch.multiprocessing.set_sharing_strategy("file_system")
        with FastLoader(Stream(), batch_size=None, num_workers=1, collate_fn=listed, device="cpu") as loader:
            for sample in loader:
                assert sample.is_shared()
                with open("/proc/self/maps") as maps:
                    assert "memfd:fastload-batch" not in maps.read()

    assert exit_code(forked(by_name)) == 0  # torch's process for such files lives as long as the one that started it


def test_a_loader_in_a_dataset_gives_it_tensors():
    with FastLoader(Loads(), batch_size=2, num_workers=1, collate_fn=listed, device="cpu") as loader:
        batches = list(loader)
    assert [name for batch in batches for names, _, _ in batch for name in names] == ["Tensor"] * 4
    assert [inner[-1, -1].item() for batch in batches for _, inner, _ in batch] == [0, 1, 2, 3]


@pytest.mark.parametrize("collate_fn", [None, listed])
def test_a_stream_of_large_samples_arrives_whole(collate_fn):
    with FastLoader(Stream(), batch_size=2, num_workers=1, collate_fn=collate_fn, device="cpu") as loader:
        values = [sample[-1].item() for batch in loader for sample in batch]
    assert values == [0, 1, 2, 3, 4]


def test_batches_of_workers_come_in_memory_files():
    given = {"batch_size": 4, "num_workers": 1, "device": "cpu"}
    for collate_fn in (None, listed):
        with FastLoader(Cached(), collate_fn=collate_fn, **given) as loader:
            batch = next(iter(loader))
            made = batch[0][1] if collate_fn else batch[0]
            with open("/proc/self/maps") as maps:
                assert "memfd:fastload-batch" in maps.read()
        assert made.is_shared()
