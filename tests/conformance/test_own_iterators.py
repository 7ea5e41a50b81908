"""Loaders with an ``__iter__`` of their own, as detection and classification libraries have them.

Some ask for one endless iterator and keep it, some call torch's ``_get_iterator``, some reset what they keep. Each is
made over torch's DataLoader and over FastLoader.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import random
import signal
import textwrap
import weakref
from pathlib import Path

import interpreters
import numpy as np
import pytest
import torch
from backends import BACKENDS, assert_same, raised_by, simulated
from backends.datasets import Augmented, Failing, Numbers, collect, first
from backends.own_iterators import KEPT, LOADERS, changing, endless, past_us, repeating, resetting
from children import exit_code, forked
from photos import photos_fixture, train_v1
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from fastload import FastLoader, verify
from fastload.commands.run.patch import _noted

folder = photos_fixture(10)


def loaders(*quick):
    """Run a test for each loader; those that are not ``quick`` are slow."""
    marks = {name: () if name in quick else (pytest.mark.slow,) for name in LOADERS}
    rows = [pytest.param(LOADERS[name], id=name, marks=marks[name]) for name in LOADERS]
    return pytest.mark.parametrize("make", rows)


each_loader = pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)


def kept_by(loader):
    return next(value for name in KEPT if (value := vars(loader).get(name)) is not None)


def bound(make, loader_class):
    """Make the loader over a case's class, with the backend's arguments."""
    base, own = getattr(loader_class, "func", loader_class), getattr(loader_class, "keywords", {})
    return lambda *args, **kwargs: make(base)(*args, **own, **kwargs)


def alive():
    gc.collect()
    return len(multiprocessing.active_children())


def no_file():
    return LookupError("no such file")


def delegating(loader):
    yield from loader


def states():
    return torch.get_rng_state(), random.getstate(), np.random.get_state()[1]


@each_loader
@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_batches_draws_and_processes_are_torchs(backend, make, num_workers, persistent):
    if make is resetting and num_workers and not persistent:
        pytest.skip("torch's own iterator cannot be reset once its workers have ended")

    def case(loader_class):
        before = alive()
        generator = torch.Generator().manual_seed(4)
        own = {"shuffle": True, "generator": generator, "num_workers": num_workers, "persistent_workers": persistent}
        loader = bound(make, loader_class)(Augmented(10), batch_size=4, drop_last=False, **own)
        seen = []
        for epoch in range(4):
            if epoch == 2:
                loader.reset()
            seen.append((collect(loader), states(), generator.get_state(), alive() - before))
        iterator = kept_by(loader)
        host = getattr(iterator, "_num_workers", None), getattr(iterator, "_num_yielded", None)
        same = iterator._index_sampler is loader._index_sampler, hasattr(iterator._sampler_iter, "__next__")
        workers = [worker.is_alive() for worker in getattr(iterator, "_workers", ())]
        del iterator, loader
        return seen, host, same, workers, alive() - before

    epochs, host, *_, left = backend.same(case).value
    assert [len(batches) for batches, *_ in epochs] == [3] * 4
    assert host[0] == num_workers
    assert left == 0


@loaders("endless", "multi_epochs", "resetting")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_errors_are_torchs_and_the_next_epoch_goes_on_as_there(backend, make, num_workers):
    def case(loader_class):
        dataset = Failing(8, {5}, no_file)
        options = {"num_workers": num_workers, "persistent_workers": num_workers > 0}
        loader = bound(make, loader_class)(dataset, batch_size=2, **options)
        error = raised_by(lambda: collect(loader))
        return type(error), first(loader, 2), first(loader, 1)

    assert backend.same(case).value[0] is LookupError


class Interrupting:
    """Is interrupted while it draws the seventh index of each epoch."""

    def __iter__(self):
        for index in range(10):
            if index == 6:
                signal.raise_signal(signal.SIGINT)
            yield index

    def __len__(self):
        return 10


@loaders("endless", "resetting")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_interrupt_ends_an_epoch_and_leaves_no_process(backend, make, num_workers):
    def case(loader_class):
        before = alive()
        loader = bound(make, loader_class)(Numbers(10), 1, sampler=Interrupting(), num_workers=num_workers)
        seen = []
        with pytest.raises(KeyboardInterrupt):
            seen.extend(loader)
        running = alive() - before
        del loader
        return len(seen), running, alive() - before

    assert backend.same(case).value == (6 if not num_workers else 2, num_workers, 0)


@loaders("endless", "reusing", "resetting")
def test_batches_are_copied_counted_and_planned(make, monkeypatch):
    """What the plan says is what happens, and workers write into slots."""
    backend = BACKENDS["simulated"]
    backend.install(monkeypatch)
    loader = make(FastLoader)(Numbers(32), batch_size=4, num_workers=2, persistent_workers=True, **backend.own)
    for _ in range(3):
        assert len(collect(loader)) == 8
    stats = loader.stats()
    assert stats.batches == 24 <= stats.copied
    assert stats.slot_batches > 0
    assert loader.plan.engine == "workers"
    assert [step.name for step in loader.plan.steps] == ["fetch", "collate", "slots", "h2d", "epilogue"]
    assert not any("of its own" in note for note in loader.plan.notes)
    assert "24 batches" in str(loader.report())
    iterator = kept_by(loader)
    workers = [*iterator._workers]
    iterator._shutdown_workers()
    assert "closed" in str(raised_by(lambda: iterator._reset(loader)))
    loader.close()
    assert not any(worker.is_alive() for worker in workers)
    assert "closed" in str(raised_by(lambda: next(iterator)))
    assert "closed" in str(raised_by(lambda: iterator._reset(loader)))
    assert "closed" in str(raised_by(loader.reset))


@loaders("endless", "resetting")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_reset_frees_the_iterator_before_at_once(backend, make, num_workers):
    loader = bound(make, backend.loader)(Numbers(8), batch_size=2, num_workers=num_workers)
    first(loader, 1)
    gc.disable()
    try:
        for _ in range(3):
            before = kept_by(loader)
            gone, workers = weakref.ref(before), [*getattr(before, "_workers", ())]
            del before
            loader.reset()
            assert gone() is None
            assert not any(worker.is_alive() for worker in workers)
    finally:
        gc.enable()


@loaders("endless", "resetting")
@pytest.mark.parametrize("where", ["host", "device"])
def test_native_batches_are_torchs(make, where, folder, monkeypatch):
    own = {"device": "cpu"} if where == "host" else simulated.install_native(monkeypatch)

    def epochs(base, **own):
        torch.manual_seed(5)
        options = {"batch_size": 4, "shuffle": True, "num_workers": 2, "persistent_workers": True, **own}
        loader = make(base)(ImageFolder(folder, train_v1()), **options)
        batches = [collect(loader), first(delegating(loader) if make is resetting else loader, 2), collect(loader)]
        loader.reset()
        batches.append(collect(loader))
        state = torch.get_rng_state()
        return loader, batches, state

    _, *theirs = epochs(DataLoader)
    loader, *ours = epochs(FastLoader, **own)
    assert_same(ours, theirs)
    assert loader.plan.engine == "native"
    assert loader.stats().batches == sum(map(len, ours[0]))
    assert make is not resetting or loader.stats().epochs == 4
    assert loader.state_dict()["_num_yielded"] == (0 if make is LOADERS["restarting"] else 3)  # of the last iterator
    iterator = kept_by(loader)
    assert iterator._workers == []  # no processes, and no error for programs that end them
    iterator._shutdown_workers()
    assert "closed" in str(raised_by(lambda: next(iterator)))
    loader.close()


@loaders("endless", "multi_epochs")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_goes_on_in_another_loader(backend, make, num_workers):
    def loader_of():
        options = {"shuffle": True, "generator": torch.Generator().manual_seed(5), "num_workers": num_workers}
        return bound(make, backend.loader)(Augmented(10), batch_size=2, persistent_workers=num_workers > 0, **options)

    torch.manual_seed(6)
    loader = loader_of()
    collect(loader)
    first(loader, 3)
    state = loader.state_dict()
    drawn = [next(kept_by(loader)) for _ in range(2)]
    other = loader_of()
    other.load_state_dict(state)
    other.reset()
    assert_same([next(kept_by(other)) for _ in range(2)], drawn)


def test_a_loaded_state_needs_a_new_iterator(backend):
    loader = bound(resetting, backend.loader)(Numbers(4), num_workers=1, persistent_workers=True)
    collect(loader)
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(RuntimeError, match=r"load_state_dict\(\) needs a new iterator, but a former one was reset"):
        iter(loader)
    loader.reset()
    assert len(collect(loader)) == 4


def test_samples_are_seeded_by_the_epoch_of_a_reset(backend):
    """With ``randomness="sample"`` each reset is an epoch, whose draws depend on no worker."""
    epochs = []
    for num_workers in (0, 1, 2):
        torch.manual_seed(7)
        options = {"num_workers": num_workers, "persistent_workers": num_workers > 1, "randomness": "sample"}
        loader = bound(resetting, backend.loader)(Augmented(6), batch_size=2, **options)
        epochs.append([first(loader, 2) for _ in range(3)])
    assert_same(epochs[1:], [epochs[0]] * 2)
    assert len({batch[0][0][0, 0].item() for batch in epochs[0]}) == 3


def test_what_programs_do_with_an_iterator_reaches_torchs(backend):
    """They ask for a batch by torch's name, and let the rest run out."""

    def case(loader_class):
        loader = loader_class(Numbers(20), batch_size=2, num_workers=2)
        iterator = loader._get_iterator()
        seen = [iterator._next_data(), next(iterator)]
        iterator._sampler_iter = iter(())
        return seen, list(iterator), [worker.exitcode for worker in iterator._workers], loader._iterator

    assert len(backend.same(case).value[1]) == 4


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_generator_that_is_left_ends_no_iterator_that_it_delegates_to(backend, num_workers):
    def case(loader_class):
        persistent = num_workers > 0
        loader = loader_class(Augmented(8), 2, shuffle=True, num_workers=num_workers, persistent_workers=persistent)
        begun = [(first(delegating(loader), 2), loader._iterator) for _ in range(2)]
        kept = loader._get_iterator()
        same = begun[0][1] is begun[1][1]
        return begun[0][0], begun[1][0], same, first(delegating(kept), 1), collect(kept), collect(loader)

    backend.same(case)


def test_indices_are_those_of_a_subclass(backend):
    assert len(backend.same(lambda loader_class: collect(bound(repeating, loader_class)(Numbers(6), 2))).value) == 6


@pytest.mark.parametrize("where", ["host", "device"])
def test_native_indices_are_those_of_a_subclass(where, folder, monkeypatch):
    own = {"device": "cpu"} if where == "host" else simulated.install_native(monkeypatch)
    torch.manual_seed(6)
    theirs = collect(repeating(DataLoader)(ImageFolder(folder, train_v1()), 3, num_workers=2))
    torch.manual_seed(6)
    loader = repeating(FastLoader)(ImageFolder(folder, train_v1()), 3, num_workers=2, **own)
    assert loader.plan.engine == "native"
    assert_same(collect(loader), theirs)
    assert verify(loader, 3)
    loader.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_get_iterator_that_is_set_on_a_loader_may_call_the_usual_one(backend, num_workers):
    def case(loader_class):
        loader = loader_class(Augmented(6), 2, num_workers=num_workers)
        usual = loader._get_iterator
        loader._get_iterator = lambda: zip(usual(), "abc", strict=True)
        return collect(loader), collect(loader)

    backend.same(case)


def test_an_iterator_of_a_parent_is_not_reset_in_a_child(backend):
    if backend.name == "forkserver":
        pytest.skip("multiprocessing's server of forks is the parent's, and starts no process for a child")
    loader = bound(resetting, backend.loader)(Numbers(8), num_workers=2, persistent_workers=True)
    first(loader, 1)

    def child():
        with pytest.raises(RuntimeError, match=r"this is a forked child|closed"):
            iter(loader)
        loader.reset()
        assert len(collect(loader)) == 8

    assert exit_code(forked(child)) == 0
    assert len(collect(loader)) == 8


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_iterator_that_the_loader_makes_itself_is_told_of(num_workers, monkeypatch):
    """Nothing of it is called FastLoader's, and what is measured is reported."""
    BACKENDS["simulated"].install(monkeypatch)
    dataset = [torch.tensor(i) for i in range(10)]
    options = {"batch_size": 2, "num_workers": num_workers, "device": "cuda"}

    by_iter = past_us(FastLoader)(dataset, **options)
    asked = "PastUs has an __iter__ of its own, which has not asked FastLoader for an iterator so far"
    assert any(note.startswith(asked) and "none of this is true of that" in note for note in by_iter.plan.notes)
    assert len(collect(by_iter)) == 5
    assert str(by_iter.report()).startswith(f"Undecided: no batch was seen: {asked}; let it ask FastLoader")

    own = changing(FastLoader)(dataset, **options)
    said = "this loader makes its iterator itself: Changing has a _get_iterator of its own"
    assert any(note.startswith(said) and "stay in host memory" in note for note in own.plan.notes)
    assert own.plan.device == torch.device("cpu")
    assert f"no batch was seen: {said}; " in str(own.report())
    assert_same(collect(own), [-torch.tensor([i, i + 1]) for i in range(0, 10, 2)])
    assert (own.stats().batches, own.stats().copied) == (5, 0)  # of torch's iterator within its own
    assert "5 batches" in str(own.report())

    torchs = endless(FastLoader)(dataset, **options)
    assert not any("of its own" in note for note in torchs.plan.notes)  # it has asked in its __init__
    own = FastLoader(dataset, **options)
    own._get_iterator = lambda: iter(["its own"])
    assert collect(own) == ["its own"]
    assert any(note.startswith("this loader makes its iterator itself") for note in own.plan.notes)


def test_a_closed_loader_gives_a_loader_of_its_own_ways_no_iterator():
    for make in (changing, endless, resetting):
        loader = make(FastLoader)([1, 2])
        loader.close()
        assert "closed" in str(raised_by(loader._get_iterator))


@loaders("endless")
def test_verify_compares_what_the_loader_asks_for_and_leaves_what_it_keeps(make, folder):
    loader = make(FastLoader)(ImageFolder(folder, train_v1()), batch_size=4, num_workers=2, device="cpu")
    expected = collect(make(FastLoader)(ImageFolder(folder, train_v1()), batch_size=4, num_workers=2, device="cpu"))
    result = verify(loader, 3)
    assert result, result
    assert result.batches == 3
    assert [batch[1].tolist() for batch in loader] == [batch[1].tolist() for batch in expected]


PROGRAM = """
    import json, sys
    import torch
    from torch.utils.data import DataLoader
    from torch.utils.data.dataloader import _SingleProcessDataLoaderIter
    from backends import own_iterators as loaders
    dataset = [torch.tensor(i) for i in range(8)]

    class ByTorchs(DataLoader):
        def __iter__(self):
            yield from _SingleProcessDataLoaderIter(self)

    class Own(DataLoader):
        def __init__(self, *args):
            super().__init__(*args)
            self.taken = 0
        def _get_iterator(self):
            return iter(["a", "b"])
        def __iter__(self):
            yield from self._get_iterator()

    found = {}
    def note(make, run):
        loader = make(DataLoader)(dataset, 2)
        epochs = [len(run(loader)) for _ in range(2)]
        found[type(loader).__name__] = [epochs, loader.stats().batches, [*loader.plan.notes], str(loader.report())]
        globals()["kept_" + type(loader).__name__] = loader
"""
MAKERS = [
    *(f"loaders.{name}" for name in (*LOADERS, "past_us", "changing")),
    "lambda base: ByTorchs",
    "lambda base: Own",
]


@pytest.mark.slow
def test_a_program_under_run_is_served_and_explained(tmp_path):
    script = tmp_path / "script.py"
    calls = [f"note({make}, lambda loader: [*loader])" for make in MAKERS]  # each at a line of its own
    script.write_text("\n".join([textwrap.dedent(PROGRAM), *calls, "print(json.dumps(found))"]))
    tests = Path(__file__).parents[1]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tests), str(tests / "conformance")]),
        "OMP_NUM_THREADS": "1",
    }
    done = interpreters.run(["-m", "fastload", "run", "--device", "cpu", "--explain", script], env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    itself = "this loader makes its iterator itself: {} has {} of its own"
    for name, (epochs, batches, notes, report) in found.items():
        said = [note for note in notes if "makes its iterator itself" in note]
        method = {"Changing": "a _get_iterator", "Own": "a _get_iterator", "PastUs": "an __iter__"}.get(name)
        method = "an __iter__" if name == "ByTorchs" else method
        assert len(said) == bool(method), (name, notes)
        if method is not None:
            assert said[0].startswith(itself.format(name, method))
        if name in ("ByTorchs", "Own"):
            assert batches == 0
            assert "no batch was seen: " + itself.format(name, method) in report
        else:
            assert (epochs, batches) == ([4, 4], 8), name
    explained = [line for line in done.stderr.splitlines() if "script.py:" in line]
    assert len(explained) == len(found), done.stderr
    assert done.stderr.count("this loader makes its iterator") == 4


def test_a_generator_under_run_is_sent_to_thrown_into_and_returns():
    def own(loader):
        told = []
        for number in range(3):
            try:
                told.append((yield number))
            except LookupError as error:
                told.append(str(error))
        return told

    def observed(iterate):
        iterator = iterate(FastLoader([1]))
        seen = [next(iterator), iterator.send("sent"), iterator.throw(LookupError("thrown"))]
        with pytest.raises(StopIteration) as end:
            next(iterator)
        thrown = iterate(FastLoader([1]))
        seen += [next(thrown), thrown.throw(LookupError("at the first"))]
        thrown.close()
        return seen, end.value.value, list(thrown), list(iterate(FastLoader([1])))

    assert observed(_noted(own)) == observed(own)
