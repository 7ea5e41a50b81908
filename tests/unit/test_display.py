"""What loaders and their results show of themselves, and what a loader logs."""

from __future__ import annotations

import logging
import re

import pytest
import torch
import torchvision.transforms as v1
from photos import eval_v1, photos_fixture
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler
from torchvision.datasets import ImageFolder

import fastload
from fastload import FastLoader, Plan, Report, Stats, Step, Verification
from fastload.stats.verdict import Bottleneck, Verdict
from fastload.torch_workers.twin import twin_of

root = photos_fixture(11)


class Secretive(torch.utils.data.Dataset):
    def __getitem__(self, index):
        return index

    def __len__(self):
        raise RuntimeError("not to be asked")


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


class Sized(Stream):
    def __len__(self):
        raise AssertionError("torch warns later if it was asked")


def test_a_loader_shows_its_dataset_and_settings_as_they_were_given():
    loader = FastLoader(range(1234), batch_size=8, num_workers=2, engine="torch", device="cpu")
    shown = "FastLoader(range of 1,234 samples, batch_size=8, num_workers=2, engine='torch', device='cpu')"
    assert repr(loader) == shown
    sampler = BatchSampler(SequentialSampler(range(10)), 2, False)
    shown = (
        "FastLoader(range of 10 samples, batch_sampler=BatchSampler, num_workers='auto', engine='auto', device='auto')"
    )
    assert repr(FastLoader(range(10), batch_sampler=sampler, num_workers="auto")) == shown
    assert repr(FastLoader(range(10), batch_size=None)).startswith("FastLoader(range of 10 samples, batch_size=None, ")


@pytest.mark.parametrize("dataset", [Secretive(), Stream(), Sized()])
def test_a_dataset_without_a_length_is_shown_by_its_name(dataset):
    sampler = None if isinstance(dataset, IterableDataset) else range(3)
    assert repr(FastLoader(dataset, sampler=sampler)).startswith(f"FastLoader({type(dataset).__name__}, batch_size=1, ")


def test_showing_a_loader_does_not_ask_for_an_accelerator(monkeypatch):
    loader = FastLoader(range(3))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: pytest.fail("asks for the accelerator"))
    assert "device='auto'" in repr(loader)
    assert "auto" in loader._repr_html_()


def test_a_subclass_is_shown_by_its_own_name():
    class Mine(FastLoader):
        pass

    assert repr(Mine(range(3))).startswith("Mine(range of 3 samples")


SHOWN = [
    (
        Plan("native", torch.device("cpu"), (Step("decode", "2 <threads>", "JPEG"),), 2_000_000, ("a & b",)),
        "Plan('native', batches on cpu: decode; 1 notes)",
        ["engine native, batches on cpu", "2 &lt;threads&gt;", "2.00 MB per batch", "note: a &amp; b"],
    ),
    (
        Report(Verdict.of(Bottleneck.STORAGE, "waited <90%>"), Stats(batches=3)),
        "Report(storage-bound: waited <90%>)",
        ["storage-bound", "waited &lt;90%&gt;; keep the data", "3 batches"],
    ),
    (
        Stats(epochs=2, batches=1500, images=3000),
        "Stats(2 epochs, 1,500 batches, 3,000 images, 0 images/s, stall 0%)",
        ["<td", "1,500"],
    ),
    (
        Verification(20, "native", None, notes=("x < y",), epoch=157),
        "Verification(equal to the bit: 20 of 157 batches, engine native)",
        ["equal to the bit: 20 of 157 batches", "note: x &lt; y"],
    ),
    (
        Verification(3, "native", "batch 2, batch[0][1]: 0.0 and 1.0"),
        "Verification(different, engine native: batch 2, batch[0][1]: 0.0 and 1.0)",
        ["different, engine native"],
    ),
]


@pytest.mark.parametrize(("value", "short", "inside"), SHOWN)
def test_results_are_short_in_a_terminal_and_complete_in_a_notebook(value, short, inside):
    assert repr(value) == short
    page = value._repr_html_()
    assert [text for text in inside if text not in page] == []
    assert len(re.findall(r"<(div|table|tr|td|th|p|b|thead|tbody)\b", page)) == page.count("</")


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, "fastload")
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "fastload"]


def test_a_loader_that_is_not_native_says_once_which_step_keeps_it_from_that(root, log):
    dataset = ImageFolder(root, v1.Compose([v1.GaussianBlur(3), eval_v1()]))
    loader = FastLoader(dataset, 4, device="cpu")
    assert log() == []  # nothing has been iterated
    for _ in range(2):
        next(iter(loader))
    ((level, said),) = log()
    assert level == "INFO"
    assert said.startswith(f"{loader!r} is not native: GaussianBlur")
    assert said.endswith("print(loader.plan) says what runs where")
    with twin_of(loader) as other:
        next(iter(other))
    assert len(log()) == 2  # a line per loader


def test_a_native_loader_logs_nothing(root, log):
    with FastLoader(ImageFolder(root, eval_v1()), 4, num_workers=1, device="cpu") as loader:
        assert len(list(loader)) == 3
        assert loader.plan.reasons == ()
    assert log() == []


def test_without_a_log_nothing_is_worked_out(monkeypatch):
    monkeypatch.setattr(FastLoader, "plan", property(lambda self: pytest.fail("the plan is read")))
    assert len(list(FastLoader(range(3)))) == 3


def test_all_results_with_a_repr_are_public():
    assert {type(value).__name__ for value, _, _ in SHOWN} <= set(fastload.__all__)
