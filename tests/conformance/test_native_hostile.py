"""The native engine behaves as torch does when a training script changes anything.

It may change its loader, its samplers, its dataset and its transforms.
"""

from __future__ import annotations

import gc
import io
import itertools
import multiprocessing.util
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest import mock

import effort
import interpreters
import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from backends import simulated
from children import exit_code, forked
from interrupts import interrupted_at_every_opcode
from leaks import Holdings, survivors
from photos import Encoded, both, drained, epochs_of, jpeg, make_folder, mix_in, photos_fixture, train_v1, train_v2
from photos import assert_same as assert_equal
from PIL import ExifTags, Image, ImageFile, ImageOps
from plans import text_of
from references import kept
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, RandomSampler, Subset, WeightedRandomSampler
from torch.utils.data._utils.collate import default_collate_fn_map
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import functional

from fastload import FastLoader
from fastload.native import iterator as decode_threads
from fastload.native.pipeline import DecodePipeline
from fastload.pipeline.recipe import read_recipe
from fastload.python_samples import sample_process
from fastload.python_samples.sample_process import SampleProcess

NATIVE = {"device": "cpu", "engine": "native"}
RUN = {"batch_size": 3, "num_workers": 2, "shuffle": True}
folder = photos_fixture(17)
mixed = photos_fixture(12, mixed=True)


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


@pytest.mark.each_value
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
    theirs = kept(lambda: run(lambda: DataLoader(dataset, **arguments, sampler=Breaking(after))))
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
    theirs = kept(lambda: run(lambda: DataLoader(dataset, **RUN, persistent_workers=persistent)))
    assert_equal(run(lambda: FastLoader(dataset, **RUN, **NATIVE, persistent_workers=persistent)), theirs)


@pytest.mark.slow
def test_a_loader_inside_the_loop_over_another(mixed):
    def run(make):
        torch.manual_seed(1)
        outer, inner, seen = make(), make(), []
        for batch in outer:
            seen += [batch, *inner, torch.get_rng_state()]
        return seen

    dataset = ImageFolder(mixed, train_v1())
    theirs = kept(lambda: run(lambda: DataLoader(dataset, **RUN)))
    assert_equal(run(lambda: FastLoader(dataset, **RUN, **NATIVE)), theirs)


def test_a_loader_consumed_in_another_thread(mixed):
    dataset = ImageFolder(mixed, train_v1())
    theirs = kept(lambda: epochs_of(lambda: DataLoader(dataset, **RUN)))
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
    """A dataset whose samples are epochs of a native loader, made in a worker process."""

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
    theirs = kept(lambda: epochs_of(lambda: DataLoader(dataset, **RUN), count=1)[:-1])
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
    assert exit_code(child) == 0
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

    theirs = kept(lambda: run(lambda dataset: DataLoader(dataset, **RUN)))
    assert_equal(run(lambda dataset: FastLoader(dataset, **RUN, **NATIVE)), theirs)


@pytest.mark.each_value
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
    theirs = kept(lambda: run(lambda dataset: DataLoader(dataset, **arguments)))
    assert_equal(run(lambda dataset: FastLoader(dataset, **arguments, **NATIVE)), theirs)


# What is patched, or set, below the transforms


def upright():
    original = Image.open
    return mock.patch.object(Image, "open", lambda *args, **kwargs: ImageOps.exif_transpose(original(*args, **kwargs)))


def flipped():
    return mock.patch.object(functional, "hflip", functional.vflip)


@contextmanager
def in_doubles():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


class Halving(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out / 2 if func is torch.rand else out


def doubled(batch, *, collate_fn_map=None):
    return torch.stack(batch) * 2


PATCHES = {
    "Image.open": (upright, train_v1, "PIL.Image.open was patched"),
    "hflip": (flipped, train_v1, "torchvision.transforms.functional.hflip was patched"),
    "default dtype": (in_doubles, train_v2, "default dtype is torch.float64"),
    "mode": (Halving, train_v1, "Halving may change"),
    "collate": (
        lambda: mock.patch.dict(default_collate_fn_map, {torch.Tensor: doubled}),
        train_v1,
        "default_collate_fn_map has doubled",
    ),
    "tv_tensors": (lambda: tv_tensors.set_return_type("TVTensor"), train_v2, "set_return_type('TVTensor')"),
}


@pytest.fixture(scope="module")
def turned(tmp_path_factory):
    """Photos that lie on their side, as their EXIF says."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    folder = tmp_path_factory.mktemp("turned")
    (folder / "class").mkdir()
    for i in range(9):
        (folder / "class" / f"{i}.jpg").write_bytes(jpeg(i, 60 + i, 150 - i, exif=exif))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", PATCHES)
def test_what_is_patched_between_epochs_is_what_workers_run(turned, name):
    """While the patch lasts, torch's workers run it; before and after, the native engine runs."""
    patch, transform, reason = PATCHES[name]

    def run(make, patch, epochs=3):
        torch.manual_seed(1)
        loader = make(ImageFolder(turned, transform()))
        engines, seen = [], []
        for epoch in range(epochs):
            with patch() if epoch == 1 else nullcontext():
                seen += list(loader)
                if isinstance(loader, FastLoader):
                    engines.append(loader.plan.engine)
                    assert (reason in text_of(loader)) == (epoch == 1)
        return seen, engines

    theirs, _ = kept(lambda: run(lambda dataset: DataLoader(dataset, **RUN), patch))
    ours, engines = run(lambda dataset: FastLoader(dataset, **RUN, device="cpu"), patch)
    assert engines == ["native", "torch", "native"]
    assert_equal(ours, theirs)
    unpatched, _ = kept(lambda: run(lambda dataset: DataLoader(dataset, **RUN), nullcontext, epochs=2))
    with pytest.raises(AssertionError):  # it makes a difference
        assert_equal(unpatched, theirs[: len(unpatched)])


# Errors


class Failing(Encoded):
    """Bytes in memory; what ``at`` names goes wrong."""

    def __init__(self, transform, at=(), error=None):
        super().__init__(transform, 12, 60)
        self.at, self.error = at, error

    def encoded(self, index):
        if index in self.at:
            raise self.error
        return self.files[index], index


class Leaves(BaseException):
    """No error of a sample: torch's worker would end."""


@pytest.mark.parametrize("error", [SystemExit(0), Leaves("gone"), KeyboardInterrupt()], ids=lambda e: type(e).__name__)
def test_what_ends_a_worker_is_an_error_here_too(error):
    """SystemExit(0), raised in the consumer's thread, would end the training as if all were well."""
    dataset = Failing(train_v1(), {4}, error)
    with FastLoader(dataset, 3, num_workers=1, **NATIVE) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(RuntimeError, match=f"exited unexpectedly: sample 4 raised {type(error).__name__}"):
            next(iterator)
        assert len(list(iterator)) == 2


def test_a_process_that_is_killed_is_the_error_of_the_batches_that_need_it(mixed):
    def run(loader, victim):
        iterator = iter(loader)
        seen = [next(iterator)]
        os.kill(victim(iterator), signal.SIGKILL)
        with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid\(s\) \d+\) exited unexpectedly"):
            seen.extend(iterator)
        return seen

    dataset = ImageFolder(mixed, train_v1())
    arguments = {"batch_size": 2, "num_workers": 1, "prefetch_factor": 1}
    with FastLoader(dataset, **arguments, **NATIVE) as loader:
        assert run(loader, lambda iterator: iterator.decode_pipeline._process._process.pid)
    assert run(DataLoader(dataset, **arguments), lambda iterator: iterator._workers[0].pid)


@pytest.mark.slow
def test_nobody_elses_draws_reach_a_sample_made_in_python_nor_the_other_way_round(mixed):
    """Torch's default generator belongs to the whole process: each thread would shift the others."""
    dataset = ImageFolder(mixed, train_v1())
    of = lambda kind, seed, **own: kind(  # noqa: E731
        dataset, 3, shuffle=True, num_workers=2, generator=torch.Generator().manual_seed(seed), **own
    )
    theirs = [list(of(DataLoader, seed)) for seed in range(4)]
    torch.manual_seed(11)
    numbers = torch.rand(200_000)
    torch.manual_seed(11)
    seen: list = [None] * 4

    def consume(seed):
        seen[seed] = list(of(FastLoader, seed, **NATIVE))

    threads = [threading.Thread(target=consume, args=(seed,), daemon=True) for seed in range(4)]
    for thread in threads:
        thread.start()
    drawn = []
    while any(thread.is_alive() for thread in threads) and len(drawn) < len(numbers):
        drawn.append(torch.rand(1))
    for thread in threads:
        thread.join(60)
    assert torch.equal(torch.cat(drawn), numbers[: len(drawn)])
    for ours, wanted in zip(seen, theirs, strict=True):
        assert_equal(ours, wanted)


def test_a_process_is_forked_when_a_sample_needs_it_and_by_the_loaders_own_thread(folder, mixed, monkeypatch):
    """A child of the asking thread would inherit locks, such as that of torch's generator."""
    started = []
    real = SampleProcess._start

    def start(process):
        started.append(threading.current_thread())
        real(process)

    monkeypatch.setattr(SampleProcess, "_start", start)
    for root, wanted in ((folder, 1), (mixed, 3)):
        started.clear()
        with FastLoader(ImageFolder(root, train_v1()), **RUN, **NATIVE) as loader:
            for _ in range(3):
                assert len(list(loader)) == 6
            assert started == [threading.main_thread()] * wanted
            iter(loader)._shutdown_workers()
            assert len(started) == (4 if wanted == 3 else 1)  # where some are known to come, when torch would fork


def test_a_process_that_cannot_be_started_is_the_error_of_the_batches_that_need_it(mixed, monkeypatch):
    dataset = ImageFolder(mixed, train_v1())
    dataset.samples.sort(key=lambda sample: sample[0].endswith("000.bmp"))
    with FastLoader(dataset, 16, num_workers=1, shuffle=False, **NATIVE) as loader:
        list(loader)
        loader._state.checks.python_used = False  # else the process is started with the epoch
        monkeypatch.setattr(SampleProcess, "_start", lambda _: (_ for _ in ()).throw(BlockingIOError("no more")))
        iterator = iter(loader)
        with pytest.raises(RuntimeError, match="cannot be started: no more"):
            list(iterator)


def test_a_batch_of_samples_made_in_python_is_late_after_the_timeout(mixed, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    dataset = ImageFolder(mixed, train_v1())
    dataset.samples[3] = (str(tmp_path / "fifo"), 0)
    with FastLoader(dataset, 2, num_workers=2, timeout=60, **NATIVE) as loader:
        iterator = iter(loader)
        next(iterator)
        iterator._timeout = 0.3
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"timed out after 0\.3 seconds"):
                next(iterator)


@pytest.mark.parametrize("threads", [2, 4])
def test_threads_share_an_iterator(mixed, threads):
    dataset = Subset(ImageFolder(mixed, train_v1()), list(range(17)) * 3)
    torch.manual_seed(3)
    theirs = kept(lambda: list(DataLoader(dataset, **RUN)))
    torch.manual_seed(3)
    with FastLoader(dataset, **RUN, **NATIVE) as loader:
        iterator = iter(loader)
        seen = [[] for _ in range(threads)]
        workers = [threading.Thread(target=part.extend, args=(iterator,), daemon=True) for part in seen]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
    ours = {tuple(images.flatten()[:50].tolist()): batch for part in seen for batch in part for images in batch[:1]}
    assert_equal([ours.pop(tuple(images.flatten()[:50].tolist())) for images, _ in theirs], theirs)
    assert not ours


def test_a_forked_child_that_asks_for_a_batch_hears_that_it_is_not_its_own(folder):
    with FastLoader(ImageFolder(folder, train_v1()), **RUN, **NATIVE) as loader:
        iterator = iter(loader)
        next(iterator)
        held = threading.Event()
        lets_go = threading.Event()

        def hold():
            with iterator.turn:
                held.set()
                lets_go.wait(60)

        other = threading.Thread(target=hold, daemon=True)  # a lock that is never released in the child
        other.start()
        held.wait(60)
        assert exit_code(forked(lambda: refused(next, iterator))) == 0
        lets_go.set()
        other.join(60)


def refused(function, *arguments):
    with pytest.raises(RuntimeError, match="in the process that made it"):
        function(*arguments)


def test_a_child_that_exits_leaves_its_parents_process_alone(mixed):
    """Python's own exit ends all daemonic processes that it knows, also its parent's."""
    dataset = ImageFolder(mixed, train_v1())
    theirs = kept(lambda: epochs_of(lambda: DataLoader(dataset, **RUN), count=1)[:-1])
    torch.manual_seed(3)
    with FastLoader(dataset, **RUN, **NATIVE) as loader:
        iterator = iter(loader)
        seen = [next(iterator)]
        assert exit_code(forked(multiprocessing.util._exit_function)) == 0
        assert_equal([*seen, *iterator], theirs)


def with_a_pipe(folder, tmp_path, at):
    """A dataset one of whose files is a named pipe without a writer."""
    os.mkfifo(tmp_path / "fifo")
    dataset = ImageFolder(folder, train_v1())
    dataset.samples[at] = (str(tmp_path / "fifo"), 0)
    return dataset


def test_persistent_workers_that_are_stuck_are_late_when_the_next_epoch_begins(folder, tmp_path):
    arguments = {"batch_size": 2, "num_workers": 1, "persistent_workers": True}
    loader = FastLoader(with_a_pipe(folder, tmp_path, 3), **arguments, timeout=60, **NATIVE)
    iterator = iter(loader)
    next(iterator)
    iterator._timeout = 0.3
    with pytest.raises(RuntimeError, match=r"timed out after 0\.3 seconds"):
        iter(loader)
    with pytest.raises(RuntimeError, match="was closed"):
        next(iterator)  # not None: what is left of that epoch is unknown
    assert iter(loader) is not iterator
    loader.close()


def test_a_forked_child_that_begins_another_epoch_has_threads_of_its_own(folder):
    with FastLoader(ImageFolder(folder, train_v1()), **RUN, persistent_workers=True, **NATIVE) as loader:
        iterator = iter(loader)
        next(iterator)

        def in_child():
            assert len(list(loader)) == len(loader)
            loader.close()

        assert exit_code(forked(in_child)) == 0
        assert len(list(iterator)) == len(loader) - 1


def test_a_batch_that_a_signals_handler_takes_is_not_taken_twice(monkeypatch):
    dataset = Numbered(12)
    with FastLoader(dataset, 1, num_workers=1, **NATIVE) as loader:
        iterator = iter(loader)
        taken = [next(iterator)]
        real = iterator.decode_pipeline._wait_for

        def interrupted(batch, timeout_s):
            iterator.decode_pipeline._wait_for = real
            taken.append(next(iterator))  # as a handler does that runs while the loop waits
            real(batch, timeout_s)

        iterator.decode_pipeline._wait_for = interrupted
        taken += iterator
    assert [int(number) for _, number in taken] == list(range(12))


@pytest.mark.slow
def test_a_process_that_is_forked_while_another_thread_draws_is_forked_again(mixed, tmp_path, monkeypatch):
    """Such a child would inherit torch's generator locked; here something else blocks the first child."""
    dataset = ImageFolder(mixed, train_v1())
    theirs = kept(lambda: epochs_of(lambda: DataLoader(dataset, **RUN), count=1))
    real, waited = sample_process._Settings.restore, tmp_path / "waited"

    def restore(settings):
        if not waited.exists():
            waited.touch()
            threading.Event().wait()
        real(settings)

    monkeypatch.setattr(sample_process._Settings, "restore", restore)
    monkeypatch.setattr(sample_process, "READY_S", 1.0)
    assert_equal(epochs_of(lambda: FastLoader(dataset, **RUN, **NATIVE), count=1), theirs)
    assert waited.exists()


def test_a_process_that_starts_while_its_loader_is_closed_ends(mixed, monkeypatch):
    before = Holdings.now()
    loader = FastLoader(ImageFolder(mixed, train_v1()), **RUN, **NATIVE)
    list(loader)
    starts, closed, real = threading.Event(), threading.Event(), SampleProcess._start

    def start(process):
        starts.set()
        closed.wait(30)
        real(process)

    monkeypatch.setattr(SampleProcess, "_start", start)
    process = SampleProcess(read_recipe(loader.dataset))
    other = threading.Thread(target=process.start)
    other.start()
    starts.wait(30)
    process.kill()
    process.close()
    closed.set()
    other.join(60)
    loader.close()
    assert not survivors(before)


@pytest.mark.parametrize("limit", [0, 0.5, -1, float("inf"), float("nan"), 2**70, None])
def test_any_limit_of_pixels(folder, monkeypatch, limit):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    check(folder, run={"count": 1})


@pytest.mark.parametrize("workers", [0, 1])
def test_pillows_limit_holds_for_crops_of_enlarged_images(folder, monkeypatch, workers):
    """They may have more pixels than the file."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 16_000)
    steps = [v1.Resize(200), v1.CenterCrop(190), v1.Resize(20), v1.ToTensor()]
    seen = check(folder, dataset_of=lambda: ImageFolder(folder, v1.Compose(steps)), num_workers=workers, shuffle=False)
    assert any(isinstance(item, Image.DecompressionBombError) for item in seen)


def test_who_waits_for_a_batch_hears_that_the_loader_was_closed(tmp_path, folder):
    os.mkfifo(tmp_path / "fifo")
    dataset = ImageFolder(folder, train_v1())
    dataset.samples[0] = (str(tmp_path / "fifo"), 0)
    errors = []
    waits = threading.Event()

    def consume():
        try:
            waits.set()
            next(iterator)
        except RuntimeError as error:
            errors.append(str(error))

    with FastLoader(dataset, batch_size=4, num_workers=1, **NATIVE) as loader:
        iterator = iter(loader)
        consumer = threading.Thread(target=consume, daemon=True)
        consumer.start()
        waits.wait(30)
        time.sleep(0.05)
        iterator._shutdown_workers()
        consumer.join(60)
    assert errors == ["the FastLoader of this iterator was closed"]


class Numbered:
    """One image many times, each sample with its number; ``in_python`` lists those of Python."""

    def __init__(self, count, in_python=()):
        self.count, self.in_python, self.transform = count, in_python, train_v1()
        self.files = [jpeg(1, 30, 30), jpeg(1, 30, 30, mode="CMYK")]

    def __len__(self):
        return self.count

    def encoded(self, index):
        return self.files[index in self.in_python], index

    def __getitem__(self, index):
        return self.transform(Image.open(io.BytesIO(self.encoded(index)[0])).convert("RGB")), index


@pytest.mark.parametrize("backend", ["host", "device"])
def test_samples_made_in_python_are_counted(monkeypatch, backend):
    own = NATIVE
    if backend == "device":
        own = {**NATIVE, **simulated.install_native(monkeypatch)}
    with FastLoader(Numbered(48, range(0, 48, 8)), 8, num_workers=2, **own) as loader:
        for epoch in (1, 2):
            assert len(list(loader)) == 6
            assert loader.stats().python_images == 6 * epoch
        before = loader.stats()
        list(loader)
        assert loader.stats().since(before).python_images == 6
        made = re.search(r"(\d+) of (\d+) samples \(12%\) were made in Python", str(loader.report()))
        assert made is not None
        assert 8 * int(made[1]) == int(made[2])  # one a batch, however long the warm-up was


@pytest.mark.parametrize("backend", ["host", "device"])
def test_an_interrupt_anywhere_in_next_loses_no_batch_and_hangs_nothing(monkeypatch, backend):
    """Interrupt each bytecode of ``next()``. An interrupt inside a Python sampler would end it."""
    count = 4000
    own = NATIVE
    if backend == "device":
        own = {**NATIVE, **simulated.install_native(monkeypatch)}
    dataset = Numbered(count, range(0, count, 40))
    loader = FastLoader(dataset, batch_sampler=[[i] for i in range(count)], num_workers=2, prefetch_factor=1, **own)
    iterator, seen, interrupts = iter(loader), [], []

    def act(_):
        seen.extend(itertools.islice(iterator, 1))

    def check(_, interrupted):
        interrupts.append(interrupted)
        seen.extend(itertools.islice(iterator, 1))
        assert int(seen[-1][1]) == len(seen) - 1

    assert interrupted_at_every_opcode(lambda: None, act, check) > 300
    assert len(seen) < count
    assert sum(interrupts) * effort.stride() > 250
    loader.close()


@pytest.mark.slow
def test_an_interrupt_anywhere_in_close_leaves_nothing(tmp_path):
    dataset = ImageFolder(mix_in(make_folder(tmp_path, 6)), train_v1())

    def make():
        iterator = iter(FastLoader(dataset, 2, num_workers=2, prefetch_factor=1, **NATIVE))
        next(iterator)
        return iterator

    def check(iterator, interrupted):
        iterator._shutdown_workers()
        assert not iterator.decode_pipeline._thread.is_alive()

    assert interrupted_at_every_opcode(make, lambda iterator: iterator._shutdown_workers(), check, stride=17) > 20


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_anywhere_while_an_iterator_is_dropped_leaves_no_thread(folder):
    loader = FastLoader(ImageFolder(folder, train_v1()), **RUN, **NATIVE)
    pipelines, raised = [], []

    def make():
        iterator = iter(loader)
        next(iterator)
        pipelines.append(iterator.decode_pipeline)
        return [iterator]

    def check(_, interrupted):
        raised.append(interrupted)  # afterwards, as Python drops what is raised in a finalizer
        thread = pipelines.pop()._thread
        thread.join(10)
        assert not thread.is_alive()

    assert interrupted_at_every_opcode(make, list.clear, check, stride=3 * effort.stride()) > 100
    # Lost are those that come where Python begins to call back: a finalizer of ours, or WeakSet's function.
    assert raised.count(False) <= 3 + 0.012 * len(raised)


@pytest.mark.slow
def test_an_interrupt_anywhere_in_the_start_leaves_nothing(tmp_path):
    dataset = ImageFolder(make_folder(tmp_path, 6), train_v1())
    loader = FastLoader(dataset, 2, num_workers=2, **NATIVE)
    list(loader)
    before = Holdings.now()

    kept = []  # until it is checked: an interrupt while a dropped iterator is finalized would be lost

    def check(_, interrupted):
        while kept:
            kept.pop()._shutdown_workers()
        left = survivors(before)
        assert not left

    def start(loader):
        kept.extend(map(iter, [loader]))

    assert interrupted_at_every_opcode(lambda: loader, start, check, at_most=10**6, stride=1009) > 10_000


def test_an_interrupt_as_the_pipeline_has_been_made_leaves_no_thread(folder, monkeypatch):
    loader = FastLoader(ImageFolder(folder, train_v1()), **RUN, **NATIVE)
    list(loader)
    before = Holdings.now()

    def made(*arguments, **named):
        pipeline = DecodePipeline(*arguments, **named)
        signal.raise_signal(signal.SIGINT)
        return pipeline

    monkeypatch.setattr(decode_threads, "DecodePipeline", made)
    with pytest.raises(KeyboardInterrupt):
        iter(loader)
    assert not survivors(before)


def test_an_interrupt_while_the_recipe_is_checked_comes_through(folder, monkeypatch):
    before = Holdings.now()
    monkeypatch.setattr(SampleProcess, "batch", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        iter(FastLoader(ImageFolder(folder, train_v1()), **RUN, device="cpu"))
    assert not survivors(before)


def test_where_no_thread_can_be_started_that_is_the_error(folder, monkeypatch):
    before = Holdings.now()

    def start(thread):
        raise RuntimeError("can't start new thread")

    loader = FastLoader(ImageFolder(folder, train_v1()), **RUN, **NATIVE)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            iter(loader)
    loader.close()
    assert not survivors(before)


# What torch's workers keep from when they start


@pytest.mark.parametrize("persistent", [True, False])
def test_a_relative_path_means_what_it_meant_at_the_start(mixed, tmp_path, monkeypatch, persistent):
    (tmp_path / "elsewhere").mkdir()

    def run(make):
        torch.manual_seed(1)
        monkeypatch.chdir(mixed.parent)
        loader, seen = make(ImageFolder(mixed.name, train_v1())), []
        for _ in range(2):
            monkeypatch.chdir(mixed.parent)
            for batch in loader:
                monkeypatch.chdir(tmp_path / "elsewhere")
                seen.append(batch)
        if isinstance(loader, FastLoader):
            loader.close()
        return seen

    arguments = {**RUN, "persistent_workers": persistent}
    theirs = kept(lambda: run(lambda dataset: DataLoader(dataset, **arguments)))
    assert_equal(run(lambda dataset: FastLoader(dataset, **arguments, **NATIVE)), theirs)


@pytest.mark.each_value
@pytest.mark.parametrize("name", ["LOAD_TRUNCATED_IMAGES", "MAX_IMAGE_PIXELS"])
@pytest.mark.parametrize("persistent", [True, False])
def test_pillows_settings_are_those_of_the_start(tmp_path, monkeypatch, persistent, name):
    root = make_folder(tmp_path, 12)
    (root / "class1" / "004.jpg").write_bytes(jpeg(4, 90, 120)[:-900])
    module, value = (ImageFile, True) if name == "LOAD_TRUNCATED_IMAGES" else (Image, 70 * 90)

    def run(make):
        torch.manual_seed(1)
        loader, seen = make(ImageFolder(root, train_v1())), []
        with monkeypatch.context() as patch:
            for _ in range(2):
                iterator = iter(loader)
                patch.setattr(module, name, value)
                seen += drained(iterator)
        if isinstance(loader, FastLoader):
            loader.close()
        return seen

    arguments = {**RUN, "persistent_workers": persistent}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        theirs = kept(lambda: run(lambda dataset: DataLoader(dataset, **arguments)))
        assert_equal(run(lambda dataset: FastLoader(dataset, **arguments, **NATIVE)), theirs)
    assert any(isinstance(batch, Exception) for batch in theirs)


SPAWNED = """
import sys
sys.path[:0] = {path!r}
import torch
from PIL import Image, ImageFile
from backends import simulated
from interrupts import interrupted_at_every_opcode
from photos import assert_same, epochs_of, train_v1
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from fastload import FastLoader
if __name__ == "__main__":
    ImageFile.LOAD_TRUNCATED_IMAGES = True  # workers that are spawned do not see it, nor this
    Image.MAX_IMAGE_PIXELS = 70 * 90
    dataset = ImageFolder({root!r}, train_v1())
    arguments = {{"batch_size": 3, "num_workers": 1, "shuffle": True, "multiprocessing_context": "spawn"}}
    own = {{"device": "cpu", "engine": "native"}}
    ours = epochs_of(lambda: FastLoader(dataset, **arguments, **own), count=1)
    theirs = epochs_of(lambda: DataLoader(dataset, **arguments), count=1)
    assert_same(ours, theirs)
    print([type(batch).__name__ for batch in ours if isinstance(batch, Exception)])
"""


@pytest.mark.thorough
def test_spawned_workers_do_not_see_what_main_has_set(tmp_path):
    root = make_folder(tmp_path / "photos", 12)
    (root / "class1" / "004.jpg").write_bytes(jpeg(4, 90, 120)[:-900])
    script = tmp_path / "script.py"
    script.write_text(SPAWNED.format(root=str(root), path=[str(Path(__file__).parent.parent)]))
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert ran.stdout == "['OSError']\n", ran.stderr


# Samples


@pytest.mark.slow
def test_of_a_subset_of_a_subset_all_indices_come_first(tmp_path):
    """An index out of range wins over a bad file, and draws nothing before it."""
    root = make_folder(tmp_path, 12)
    (root / "class0" / "000.jpg").write_bytes(b"no image")
    of = lambda *indices: Subset(Subset(Subset(ImageFolder(root, train_v1()), range(12)), range(12)), indices)  # noqa: E731
    for indices in ([1, 0, 2, 99, 3, 4], [1, 2, 0, 3, 99, 4], [1, 2, 99, 3, 4, 5]):
        part = Subset(of(*range(12)), range(6))
        build = lambda: {"sampler": indices}  # noqa: E731, B023
        check(root, shuffle=None, dataset_of=lambda: part, build=build)  # noqa: B023
        ours = check(root, shuffle=False, dataset_of=lambda: of(*indices))  # noqa: B023
        assert any(isinstance(batch, IndexError) for batch in ours)


def test_paths_that_are_bytes(mixed):
    def dataset_of():
        dataset = ImageFolder(mixed, train_v1())
        dataset.samples = [(os.fsencode(path), target) for path, target in dataset.samples]
        dataset.samples[5] = (b"no/such/file.jpg", 0)
        return dataset

    ours = check(mixed, dataset_of=dataset_of)
    errors = [batch for batch in ours if isinstance(batch, Exception)]
    assert errors
    assert all("b'no/such/file.jpg'" in str(error) for error in errors)


# Processes that end


SCRIPT = """
import os, signal, sys, threading, time
import torch
import torchvision.transforms as v1
from torchvision.datasets import ImageFolder
from fastload import FastLoader
transform = v1.Compose([v1.RandomResizedCrop(20), v1.ToTensor()])
loader = FastLoader(ImageFolder({root!r}, transform), 2, num_workers=2, device="cpu", engine="native",
                    persistent_workers={persistent}, timeout=0)
iterator = iter(loader)
next(iterator)
{then}
"""


def ended(root, then, *, persistent=False):
    code = SCRIPT.format(root=str(root), then=then, persistent=persistent)
    return interpreters.run(["-c", code])


def test_what_a_dropped_iterator_held_is_freed_without_the_collector(folder):
    """A worker forked later would otherwise collect it, and pinned memory cannot be freed there."""
    gc.collect()
    gc.disable()
    try:
        iterator = iter(FastLoader(ImageFolder(folder, train_v1()), 6, num_workers=2, device="cpu", engine="native"))
        assert len(list(iterator)) == 3
        freed = weakref.ref(iterator.decode_pipeline)
        del iterator
        until = time.monotonic() + 10
        while freed() is not None and time.monotonic() < until:  # its thread ends
            time.sleep(0.01)
        assert freed() is None
    finally:
        gc.enable()


@pytest.mark.slow
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
    print("interrupted", flush=True)
    {then}
"""


@pytest.mark.slow
@pytest.mark.parametrize("then", ["pass", "os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_control_c_while_a_batch_is_waited_for(folder, tmp_path, then):
    """No process is left: the watch over leftovers would see it at the interpreters' server."""
    ran = ended(folder, INTERRUPTED.format(fifo=str(tmp_path / "fifo"), then=then))
    assert (ran.stdout, ran.stderr) == ("interrupted\n", "")
