"""Natively as in torch, whatever a training script does to its loader, its samplers, its dataset and its transforms."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from photos import assert_same as assert_equal
from photos import both, epochs_of, jpeg, make_folder, mix_in, train_v1
from torch.utils.data import DataLoader, RandomSampler, Subset, WeightedRandomSampler
from torchvision.datasets import ImageFolder

from fastload import FastLoader
from fastload.engines import decoding

NATIVE = {"device": "cpu", "accelerate": "require"}
RUN = {"batch_size": 3, "num_workers": 2, "shuffle": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("photos"), 17)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    return mix_in(make_folder(tmp_path_factory.mktemp("mixed"), 12))


def check(folder, **arguments):
    dataset_of = arguments.pop("dataset_of", lambda: ImageFolder(folder, train_v1()))
    ours, theirs = both(dataset_of, FastLoader, NATIVE, **{**RUN, **arguments})
    assert_equal(ours, theirs)
    return ours


# Samplers


INDICES = {
    "numpy integers": lambda: list(np.array([3, 1, 4, 1, 5, 9, 2, 6])),
    "tensors": lambda: list(torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])),
    "a tensor": lambda: torch.tensor([3, 1, 4, 1, 5, 9, 2, 6]),
    "negative": lambda: [-1, -17, 0, -2],
    "out of range below": lambda: [0, 1, 2, -18, 4],
    "floats": lambda: [0, 1.0, 2],
    "strings": lambda: ["0", "1"],
    "none": lambda: [],
    "weighted": lambda: WeightedRandomSampler(torch.arange(17).float(), 20),
    "own generator": lambda: RandomSampler(range(17), generator=torch.Generator().manual_seed(5)),
}


@pytest.mark.parametrize("name", INDICES)
def test_samplers(folder, name):
    check(folder, shuffle=None, build=lambda: {"sampler": INDICES[name]()})


class Iterators:
    """Its batches can be gone through once."""

    def __iter__(self):
        return iter([iter([0, 1]), iter([2, 3, 4])])


BATCHES = {
    "tuples": lambda: [(0, 1), (2, 3, 4)],
    "arrays": lambda: [np.array([0, 1]), np.array([2, 3, 4])],
    "tensors": lambda: [torch.tensor([0, 1]), torch.tensor([2, 3, 4])],
    "iterators": lambda: Iterators(),
    "an empty one": lambda: [[0, 1], [], [2]],
    "a single index": lambda: [[0, 1], 5, [2]],
    "none at all": lambda: [],
}


@pytest.mark.parametrize("name", BATCHES)
def test_batch_samplers(folder, name):
    check(folder, shuffle=None, batch_size=1, build=lambda: {"batch_sampler": BATCHES[name]()})


class Breaking:
    """A sampler that raises after some indices."""

    def __init__(self, after):
        self.after = after

    def __iter__(self):
        yield from range(self.after)
        raise KeyError("the sampler broke")

    def __len__(self):
        return 17


@pytest.mark.parametrize("after", [0, 2, 13, 16])
@pytest.mark.parametrize("persistent", [True, False])
def test_a_sampler_that_raises(folder, after, persistent):
    def run(make):
        torch.manual_seed(1)
        loader, seen = make(), []
        for _ in range(2):
            try:
                seen += list(loader)
            except KeyError as error:
                seen.append(error.with_traceback(None))
            seen.append(torch.get_rng_state())
        if persistent and isinstance(loader, FastLoader):
            loader.close()
        return seen

    arguments = {**RUN, "shuffle": None, "persistent_workers": persistent}
    dataset = ImageFolder(folder, train_v1())
    theirs = run(lambda: DataLoader(dataset, **arguments, sampler=Breaking(after)))
    assert_equal(run(lambda: FastLoader(dataset, **arguments, **NATIVE, sampler=Breaking(after))), theirs)


def test_an_empty_dataset(folder):
    check(folder, shuffle=False, dataset_of=lambda: Subset(ImageFolder(folder, train_v1()), []))


@pytest.mark.parametrize("indices", [torch.tensor([5, 1, 2, 9]), np.array([5, 1, 2, 9]), range(3, 9)], ids=type)
def test_subsets_of_any_sequence(folder, indices):
    check(folder, dataset_of=lambda: Subset(ImageFolder(folder, train_v1()), indices))


# Loaders


@pytest.mark.parametrize("persistent", [True, False])
def test_two_live_iterators_over_one_loader(folder, persistent):
    def run(make):
        torch.manual_seed(1)
        loader, seen = make(), []
        first, second = iter(loader), iter(loader)
        for one, other in zip(first, second, strict=False):
            seen += [one, other, torch.get_rng_state()]
        del first, second
        if isinstance(loader, FastLoader):
            loader.close()
        return seen

    dataset = ImageFolder(folder, train_v1())
    theirs = run(lambda: DataLoader(dataset, **RUN, persistent_workers=persistent))
    assert_equal(run(lambda: FastLoader(dataset, **RUN, **NATIVE, persistent_workers=persistent)), theirs)


def test_a_loader_inside_the_loop_over_another(mixed):
    def run(make):
        torch.manual_seed(1)
        outer, inner, seen = make(), make(), []
        for batch in outer:
            seen += [batch, *inner, torch.get_rng_state()]
        return seen

    dataset = ImageFolder(mixed, train_v1())
    theirs = run(lambda: DataLoader(dataset, **RUN))
    assert_equal(run(lambda: FastLoader(dataset, **RUN, **NATIVE)), theirs)


def test_a_loader_consumed_in_another_thread(mixed):
    dataset = ImageFolder(mixed, train_v1())
    theirs = epochs_of(lambda: DataLoader(dataset, **RUN))
    seen = []
    thread = threading.Thread(
        target=lambda: seen.extend(epochs_of(lambda: FastLoader(dataset, **RUN, **NATIVE))), daemon=True
    )
    thread.start()
    thread.join(60)
    assert_equal(seen, theirs)


def test_what_is_asked_for_after_the_end(folder):
    iterator = iter(FastLoader(ImageFolder(folder, train_v1()), **RUN, **NATIVE))
    list(iterator)
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(iterator)


class InWorkers:
    """A dataset each of whose samples is an epoch of a native loader, made in a worker process."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return 2

    def __getitem__(self, index):
        with FastLoader(self.dataset, 17, num_workers=1, **NATIVE) as loader:
            return next(iter(loader))[1]


def test_a_native_loader_in_a_worker_of_another(folder):
    dataset = ImageFolder(folder, train_v1())
    with FastLoader(dataset, **RUN, **NATIVE) as held:
        live = iter(held)
        next(live)  # its threads run while the workers are forked
        for targets in DataLoader(InWorkers(dataset), num_workers=1, batch_size=None):
            assert targets.tolist() == dataset.targets
        next(live)


def test_a_child_forked_mid_epoch_leaves_and_its_parent_goes_on(folder):
    dataset = ImageFolder(folder, train_v1())
    theirs = epochs_of(lambda: DataLoader(dataset, **RUN), count=1)[:-1]
    torch.manual_seed(3)
    loader = FastLoader(dataset, **RUN, **NATIVE)
    iterator = iter(loader)
    seen = [next(iterator)]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            loader.close()
            del iterator, loader
            gc.collect()
            code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + 30
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended == (child, 0)
    assert_equal([*seen, *iterator], theirs)


# What changes while batches are under way


def test_a_transform_that_changes_between_epochs(mixed):
    """Progressive resizing: by another size, and by another transform."""

    def run(make):
        torch.manual_seed(1)
        dataset = ImageFolder(mixed, train_v1())
        loader, seen = make(dataset), []
        seen += list(loader)
        dataset.transform.transforms[0].size = (24, 20)
        seen += list(loader)
        dataset.transform = train_v1()
        dataset.transform.transforms[1].p = 1.0
        dataset.transform.transforms.insert(0, dataset.transform.transforms.pop(0))
        seen += list(loader)
        return seen

    theirs = run(lambda dataset: DataLoader(dataset, **RUN))
    assert_equal(run(lambda dataset: FastLoader(dataset, **RUN, **NATIVE)), theirs)


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("what", ["size", "transform", "samples", "sample", "indices"])
def test_workers_do_not_see_what_changes_while_they_live(mixed, what, persistent):
    def change(dataset, part):
        if what == "size":
            dataset.transform.transforms[0].size = (24, 20)
        elif what == "transform":
            dataset.transform = None
        elif what == "samples":
            dataset.samples = dataset.samples[::-1]
        elif what == "sample":
            dataset.samples[:] = dataset.samples[::-1]
        else:
            part.indices[:] = part.indices[::-1]

    def run(make):
        torch.manual_seed(1)
        dataset = ImageFolder(mixed, train_v1())
        part = Subset(dataset, list(range(17)))
        loader = make(part)
        iterator = iter(loader)
        seen = [next(iterator)]
        change(dataset, part)
        seen += list(iterator)
        if persistent:
            seen += list(loader)
        if isinstance(loader, FastLoader):
            loader.close()
        return seen

    arguments = {**RUN, "persistent_workers": persistent, "prefetch_factor": 1}
    theirs = run(lambda dataset: DataLoader(dataset, **arguments))
    assert_equal(run(lambda dataset: FastLoader(dataset, **arguments, **NATIVE)), theirs)


# Errors


class Encoded:
    """Bytes in memory; what ``at`` names goes wrong."""

    def __init__(self, transform, at=(), error=None):
        self.transform, self.at, self.error = transform, at, error
        self.files = [jpeg(i, 60, 70 + i) for i in range(12)]

    def __len__(self):
        return len(self.files)

    def encoded(self, index):
        if index in self.at:
            raise self.error
        return self.files[index], index

    def __getitem__(self, index):
        import io

        from PIL import Image

        data, target = self.encoded(index)
        return self.transform(Image.open(io.BytesIO(data)).convert("RGB")), target


class Leaves(BaseException):
    """No error of a sample: torch's worker would end."""


@pytest.mark.parametrize("error", [SystemExit(3), Leaves("gone"), KeyboardInterrupt()], ids=lambda e: type(e).__name__)
def test_what_ends_a_worker_does_not_hang(error):
    dataset = Encoded(train_v1(), {4}, error)
    with FastLoader(dataset, 3, num_workers=1, **NATIVE) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(type(error)):
            next(iterator)
        assert len(list(iterator)) == 2


def test_an_interrupt_while_a_sample_is_made_in_python_leaves_the_random_state(mixed, monkeypatch):
    dataset = ImageFolder(mixed, train_v1())
    with FastLoader(dataset, 17, num_workers=1, **NATIVE) as loader:
        iterator = iter(loader)
        state = torch.get_rng_state()
        with monkeypatch.context() as patched:
            patched.setattr(decoding, "check_size", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                next(iterator)
        assert torch.equal(torch.get_rng_state(), state)


def test_a_batch_that_is_begun_while_another_fails_draws_what_the_worker_draws(tmp_path, monkeypatch):
    """The generator goes back to where Python left it, also for a batch that is handed over at that very moment."""
    folder = make_folder(tmp_path, 12)
    arguments = {"batch_size": 2, "num_workers": 1, "shuffle": False}
    dataset = ImageFolder(folder, train_v1())
    with open(dataset.samples[2][0], "wb") as file:
        file.write(jpeg(1)[:900])
    theirs = epochs_of(lambda: DataLoader(dataset, **arguments), count=1)
    breaks_off = threading.Event()
    real_add, real_init, real_break_off = decoding.Line.add, decoding.Line.__init__, decoding.Line._break_off

    def add(line, worker, number, indices):
        if number == 2:
            with line._changed:
                assert line._changed.wait_for(lambda: line._batches[0].stuck, 30)
        real_add(line, worker, number, indices)

    def break_off(line, batch, state):
        breaks_off.set()
        real_break_off(line, batch, state)

    class Late:
        """A pool that takes batch 2 only when batch 1 is being broken off."""

        def __init__(self, pool):
            self.pool = pool

        def __getattr__(self, name):
            return getattr(self.pool, name)

        def submit(self, *args, number=0, **kwargs):
            if number == 2 and threading.current_thread().name == "fastload-feeder":
                assert breaks_off.wait(30)
                time.sleep(0.1)
            return self.pool.submit(*args, number=number, **kwargs)

    def init(line, *args, **kwargs):
        real_init(line, *args, **kwargs)
        line.pool = Late(line.pool)

    monkeypatch.setattr(decoding.Line, "add", add)
    monkeypatch.setattr(decoding.Line, "_break_off", break_off)
    monkeypatch.setattr(decoding.Line, "__init__", init)
    assert_equal(epochs_of(lambda: FastLoader(dataset, **arguments, **NATIVE), count=1), theirs)
    assert breaks_off.is_set()


def test_the_lines_thread_goes_on_after_a_pause(folder):
    """What was added meanwhile it has been told of, and could do nothing about."""
    dataset = ImageFolder(folder, train_v1())
    with FastLoader(dataset, batch_size=4, num_workers=1, prefetch_factor=1, **NATIVE) as loader:
        iterator = iter(loader)
        line = iterator._line
        with line._changed:
            assert line._changed.wait_for(lambda: line.ready == 1, 30)
        with line._alone():
            line._ahead = 2  # room for both
            line.add(0, 1, [0, 1, 2, 3])
            give_up = time.monotonic() + 30
            while not line._wanted._waiters and time.monotonic() < give_up:
                time.sleep(0.001)
            assert line._wanted._waiters
        added = line._batches[1]
        with line._changed:
            assert line._changed.wait_for(lambda: added.made, 30)


def test_who_waits_for_a_batch_hears_that_the_loader_was_closed(folder):
    errors = []

    def consume():
        try:
            list(iterator)
        except RuntimeError as error:
            errors.append(error)

    with FastLoader(ImageFolder(folder, train_v1()), batch_size=4, num_workers=1, **NATIVE) as loader:
        iterator = iter(loader)
        line = iterator._line
        with line._alone():  # nothing more is made
            consumer = threading.Thread(target=consume, daemon=True)
            consumer.start()
            give_up = time.monotonic() + 30
            while not line._changed._waiters and time.monotonic() < give_up:
                time.sleep(0.001)
            with line._changed:
                waiting = list(line._changed._waiters)
                assert len(waiting) == 1
                line.add(0, line._batches[-1].number + 1, [0])
                assert list(line._changed._waiters) == waiting  # not woken for what only the line's thread can do
            iterator.close()
            consumer.join(30)
    assert [str(error) for error in errors] == ["the FastLoader of this iterator was closed"]


def test_an_interrupt_between_two_batches_does_not_hang(folder):
    with FastLoader(ImageFolder(folder, train_v1()), batch_size=4, num_workers=1, **NATIVE) as loader:
        iterator = iter(loader)
        line = iterator._line
        with line._changed:
            assert line._changed.wait_for(lambda: line.ready == 1, 30)
        give_up = time.monotonic() + 30
        while not line._wanted._waiters and time.monotonic() < give_up:
            time.sleep(0.001)
        with line._changed:  # as far as take() gets when it is interrupted before it says that there is room
            assert line._wanted._waiters
            line._batches.popleft()
            line.ready -= 1
        assert next(iterator)[0].size(0) == 4


def test_a_batch_that_has_failed_is_not_begun_again(tmp_path, monkeypatch):
    """Seen: the line's thread took it for one that had yet to be started, and its draws were made a second time."""
    folder = make_folder(tmp_path, 12)
    arguments = {"batch_size": 3, "num_workers": 2, "shuffle": False, "persistent_workers": True}
    dataset = ImageFolder(folder, train_v1())
    os.truncate(dataset.samples[4][0], 700)
    theirs = epochs_of(lambda: DataLoader(dataset, **arguments), count=2)
    lines, held_up = [], []
    real_init = decoding.Line.__init__

    def init(line, *args, **kwargs):
        lines.append(line)
        real_init(line, *args, **kwargs)

    def set_slowly(batch, name, value):
        object.__setattr__(batch, name, value)
        if name == "job" and value is None and batch.stuck:
            with lines[0]._wanted:
                lines[0]._wanted.notify()
            time.sleep(0.1)
            held_up.append(batch)

    monkeypatch.setattr(decoding.Line, "__init__", init)
    monkeypatch.setattr(decoding.Batch, "__setattr__", set_slowly)
    assert_equal(epochs_of(lambda: FastLoader(dataset, **arguments, **NATIVE), count=2), theirs)
    assert len(held_up) == 2
    lines.clear()


# Processes that end


SCRIPT = """
import os, signal, sys, threading, time
import torch
import torchvision.transforms as v1
from torchvision.datasets import ImageFolder
from fastload import FastLoader
transform = v1.Compose([v1.RandomResizedCrop(20), v1.ToTensor()])
loader = FastLoader(ImageFolder({root!r}, transform), 2, num_workers=2, device="cpu", accelerate="require",
                    persistent_workers={persistent}, timeout=0)
iterator = iter(loader)
next(iterator)
{then}
"""


def ended(root, then, *, persistent=False, timeout=60):
    code = SCRIPT.format(root=str(root), then=then, persistent=persistent)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=timeout, check=False)


@pytest.mark.parametrize("persistent", [True, False])
def test_a_process_ends_in_the_middle_of_an_epoch(folder, persistent):
    ran = ended(folder, "", persistent=persistent)
    assert (ran.returncode, ran.stderr) == (0, "")


INTERRUPTED = """
os.mkfifo({fifo!r})
loader = FastLoader(loader.dataset, 2, num_workers=1, device="cpu", sampler=[0, 1, 3, 4])
loader.dataset.samples[3] = ({fifo!r}, 0)  # to be read from, it would wait for ever
iterator = iter(loader)
next(iterator)
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    next(iterator)
except KeyboardInterrupt:
    print("interrupted")
    os._exit(0)  # the thread that reads cannot be ended
"""


def test_control_c_while_a_batch_is_waited_for(folder, tmp_path):
    ran = ended(folder, INTERRUPTED.format(fifo=str(tmp_path / "fifo")))
    assert (ran.stdout, ran.returncode) == ("interrupted\n", 0), ran.stderr
