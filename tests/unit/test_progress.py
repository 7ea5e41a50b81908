"""``fastload.progress``: a bar with images per second and the stall."""

from __future__ import annotations

import builtins
import io

import pytest
import torch

import fastload
from fastload import FastLoader
from fastload.stats import progress as progress_module
from fastload.stats.progress import _words
from fastload.stats.stats import Totals, make_stats


@pytest.fixture
def bar(monkeypatch):
    from tqdm.auto import tqdm

    monkeypatch.setattr(tqdm, "monitor_interval", 0)  # a thread of tqdm's own, which stays for good
    return {"file": io.StringIO(), "mininterval": 0}


def test_batches_pass_and_the_bar_says_how_fast(bar, monkeypatch):
    monkeypatch.setattr(progress_module, "EVERY_S", 0.0)
    loader = FastLoader(torch.arange(40.0), batch_size=4, device="cpu")
    assert [batch.sum().item() for batch in fastload.progress(loader, **bar)] == [
        batch.sum().item() for batch in loader
    ]
    shown = bar["file"].getvalue()
    assert "10/10" in shown
    assert "images/s, stall" in shown


def test_the_words_are_of_the_devices_stall_where_it_was_measured():
    totals = Totals({"batches": 11, "images": 88, "asked": 10, "wait_s": 0.5, "step_s": 0.5})
    assert _words(make_stats(totals)) == "80 images/s, stall 50%"
    totals["waited:gpu"] = 0.4  # no waiting for a batch
    assert _words(make_stats(totals)) == "80 images/s, stall 10%"
    totals.update({"device:copies": 10, "device:steps": 10, "device:total_s": 1.0, "device:idle_s": 0.03})
    assert _words(make_stats(totals)) == "80 images/s, stall 3%"


def test_any_iterable_has_a_plain_bar(bar):
    assert list(fastload.progress(iter("abc"), desc="letters", **bar)) == ["a", "b", "c"]
    assert "letters" in bar["file"].getvalue()
    assert "stall" not in bar["file"].getvalue()


def test_breaking_off_closes_the_bar_and_the_loader_goes_on(bar):
    loader = FastLoader(torch.arange(40.0), batch_size=4, device="cpu")
    for _ in fastload.progress(loader, **bar):
        break
    assert bar["file"].getvalue().endswith("\n")
    assert len(list(loader)) == 10


def test_without_tqdm_it_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def no_tqdm(name, *rest, **more):
        if name.partition(".")[0] == "tqdm":
            raise ModuleNotFoundError("No module named 'tqdm'", name="tqdm")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", no_tqdm)
    with pytest.raises(ModuleNotFoundError, match=r"pip install '\.\[progress\]'"):
        fastload.progress([])
