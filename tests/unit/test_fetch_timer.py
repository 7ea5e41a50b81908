"""The fetch timer measures torch's fetchers, replaced ones, and nested loaders."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import fetch as torch_fetch

from fastload import FastLoader
from fastload.stats import stack_sampler
from fastload.stats.diagnosis import report
from fastload.stats.fetch_timer import WorkerCounters
from fastload.stats.meter import counters_for
from fastload.stats.shared_counters import TEXT_BYTES, SharedCounters
from fastload.stats.stats import Totals, make_stats
from fastload.stats.steady_state import SteadyState
from fastload.stats.verdict import Bottleneck


class Numbers(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor(index)


class Nested(Numbers):
    """Iterates a loader of its own for each sample."""

    def __getitem__(self, index):
        time.sleep(0.001)
        return sum(batch.sum() for batch in DataLoader(Numbers(), batch_size=2)) + index


class Replaced:
    """A fetcher that is not as torch's are: it has no collate function."""

    def __init__(self, dataset, auto_collation, collate_fn, drop_last):
        self.dataset, self.auto_collation = dataset, auto_collation

    def fetch(self, indices):
        time.sleep(0.005)  # longer than what else is done to a batch takes
        return torch.stack([self.dataset[index] for index in indices])


def test_a_replaced_fetcher_that_takes_no_attributes_still_works(monkeypatch):
    kind = type(
        "Fixed",
        (),
        {**{name: vars(Replaced)[name] for name in ("__init__", "fetch")}, "__slots__": ("dataset", "auto_collation")},
    )
    monkeypatch.setattr(torch_fetch, "_MapDatasetFetcher", kind)
    with FastLoader(Numbers(), batch_size=2, num_workers=1, device="cpu") as loader:
        assert torch.cat(list(loader)).tolist() == list(range(8))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_replaced_fetcher_works_and_all_of_it_counts_as_fetching(monkeypatch, num_workers):
    monkeypatch.setattr(torch_fetch, "_MapDatasetFetcher", Replaced)
    with FastLoader(Numbers(), batch_size=2, num_workers=num_workers, device="cpu") as loader:
        assert torch.cat(list(loader)).tolist() == list(range(8))
        stages = loader.stats().stages
    assert stages["fetch"].count == 4
    assert stages["fetch"].total_s > stages["collate"].total_s


def test_loaders_within_a_dataset_are_not_counted():
    with FastLoader(Nested(), batch_size=2, num_workers=1, device="cpu") as loader:
        assert len(list(loader)) == 4
        stats = loader.stats()
    assert stats.stages["fetch"].count == 4
    assert stats.stages["fetch"].total_s >= 8 * 0.001
    assert stats.ready_mean <= 4


def test_what_was_seen_of_decoding_stands_when_nobody_looks_any_more():
    """Workers are looked at for a second or two; a profiler's window opens later."""
    first = {"batches": 101.0, "images": 808.0, "epochs": 1.0, "asked": 100.0, "step_s": 0.1, "wait_s": 9.0}
    first |= {
        "waited:fetch": 9.0,
        "made:batches": 101.0,
        "made:fetch_s": 9.0,
        "made:sampled_s": 9.0,
        "made:busy_s": 9.0,
    }
    looks = {"made:decode_s": 1.4, "made:python_s": 0.1}
    before = make_stats(Totals(first | looks), workers=1)
    after = make_stats(Totals({name: 2 * value for name, value in first.items()} | looks), workers=1)
    window = after.since(before)
    assert window.fetch.decoding > 0.9
    assert report(window).verdict.bottleneck is Bottleneck.DECODE


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/usr/lib/python3/dist-packages/PIL/JpegImagePlugin.py", True),
        ("/venv/lib/python3.12/site-packages/PIL/ImageFile.py", True),
        ("/venv/lib/python3.12/site-packages/av/container/core.py", True),
        (os.__file__.replace("os.py", "zipfile.py"), True),
        ("/home/av/project/dataset.py", False),
        ("/data/zarr/zipfile.py", False),
    ],
)
def test_codecs_are_told_from_folders_that_are_called_like_them(path, expected):
    assert bool(stack_sampler._CODECS.search(path)) is expected


def test_lazy_images_count_as_a_codec():
    from fastload.lazy import files as lazy_files
    from fastload.lazy import functions as lazy_functions
    from fastload.lazy import images as lazy_images
    from fastload.lazy import pixels as pending_pixels

    functions = lazy_functions.install, lazy_images.install, lazy_files.note, pending_pixels.Pending.cropped
    assert {function.__code__.co_filename for function in functions} <= stack_sampler._registered


class Owned:
    pass


def test_a_sampler_keeps_nothing_of_the_stack_between_two_samples(monkeypatch):
    sampled = threading.Event()

    def is_fetching():
        monkeypatch.setattr(stack_sampler, "INTERVAL_S", 60.0)  # until the next sample
        sampled.set()
        return False

    sampler = stack_sampler.StackSampler(is_fetching, lambda *_: None)

    def call():
        owned = Owned()
        assert sampled.wait(30)
        return weakref.ref(owned)

    sampler.start()
    try:
        owned, until = call(), time.monotonic() + 10
        while owned() is not None and time.monotonic() < until:
            time.sleep(0.01)
        assert owned() is None
    finally:
        sampler.stop()


ENDS_WITHIN_AN_EPOCH = """
import atexit, threading

atexit.register(lambda: print(*sorted(thread.name for thread in threading.enumerate())))  # the last to be called
import time
import torch
from fastload import FastLoader

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        time.sleep(0.02)
        return index

iterator = iter(FastLoader(Slow(), device="cpu"))  # which nothing closes before Python ends
for _ in iterator:
    if "fastload-stack-sampler" in [thread.name for thread in threading.enumerate()]:
        raise SystemExit(0)
"""


@pytest.mark.slow
def test_a_program_that_ends_within_an_epoch_has_no_sampler_left():
    """A thread that frees what a frame owned while Python ends aborts the process."""
    ran = subprocess.run(
        [sys.executable, "-c", ENDS_WITHIN_AN_EPOCH], capture_output=True, text=True, check=False, timeout=120
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "MainThread\n", "")


class Rows(Dataset):
    """Small samples, one of which takes its time."""

    def __len__(self):
        return 401

    def __getitem__(self, index):
        if index == 300:
            time.sleep(0.05)
        return torch.tensor(index)


def test_batches_that_are_only_timed_are_counted_too():
    with FastLoader(Rows(), batch_size=2, device="cpu") as loader:
        iterator = iter(loader)
        assert len(list(iterator)) == 201
        stats = loader.stats()
        del iterator
        assert loader.stats().totals == stats.totals
    made = stats.totals["made:batches"], stats.totals["made:images"], stats.stages["collate"].count
    assert (stats.batches, stats.images, *made) == (201, 401, 201, 401, 201)
    assert stats.stages["fetch"].total_s > stats.waited_for["fetch"] > 0.05
    assert stats.wait_s >= sum(stats.waited_for.values()) > 0.05
    assert 0 < stats.fetch.sampled_s < stats.stages["fetch"].total_s


@pytest.mark.parametrize(
    ("own", "most"),
    [
        ({}, 4),  # the wait, the fetch, the collate function, the indices
        ({"dtype": torch.float32}, 56),  # all that a batch goes through for a device
    ],
)
def test_a_quick_batch_takes_few_calls(own, most, monkeypatch):
    monkeypatch.setattr(SteadyState, "end_block", lambda *_: None)  # which is not for each batch
    calls = []

    def note(frame, event, _):
        if event == "call" and "/fastload/" in frame.f_code.co_filename:
            calls.append(frame.f_code.co_name)

    with FastLoader(Rows(), batch_size=2, device="cpu", **own) as loader:
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        gc.disable()  # which may end loaders of other tests
        sys.setprofile(note)
        try:
            for _ in range(50):
                next(iterator)
        finally:
            sys.setprofile(None)
            gc.enable()
    assert len(calls) <= 50 * most, Counter(calls)


def test_stacks_that_have_been_sampled_are_not_sampled_again():
    loader = DataLoader(Rows(), num_workers=2)
    wanted = [counters_for(loader, Totals({"made:samples": number})) for number in (0, 119, 120)]
    sampled = [WorkerCounters(counters, 0, whole_process=False)._sampler is not None for counters in wanted]
    for counters in wanted:
        counters.close()
    assert sampled == [True, True, False]


def test_the_first_reason_why_nothing_is_native_is_kept_and_a_long_one_cut():
    shared = SharedCounters(2, 2)
    for worker, reason in enumerate(("é" * 300, "another")):
        counters = WorkerCounters(shared, worker, whole_process=False)
        for why in (reason, "late"):
            counters.note_refused(why)
    assert shared.read(0, 3) == "é" * ((TEXT_BYTES - 10) // 2) + " ..."
    assert shared.read(1, 3) == "another"
