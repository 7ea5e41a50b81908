"""The harness of ``make torture`` sees each kind of fault; otherwise it would pass everything."""

from __future__ import annotations

import json
import os
import random
from argparse import Namespace
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from png_writer import write_png
from torture import codecs, mutations, planted, series, timers
from torture.__main__ import Record
from torture.fit import slope
from torture.holdings import Holdings, beyond
from torture.interrupts import NOISE
from torture.outcome import Outcome, Setting
from torture.programs import Launcher, session


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    launcher = Launcher(tmp_path_factory.mktemp("torture"), "tests")
    yield launcher
    launcher.close()


@pytest.mark.thorough
def test_a_process_that_stays_is_named_and_ended(launcher):
    program = launcher.start("torture.planted:leave_a_process")
    ended = program.finish(30.0, grace_s=0.1)
    assert ended.code == 0
    assert [line.split()[0] for line in ended.left] == ["process"]
    assert session(program.pid) == []


@pytest.mark.slow
def test_shared_memory_that_stays_is_named(launcher):
    try:
        assert launcher.start("torture.planted:leave_shared_memory").finish(30.0).left == ("/dev/shm/planted",)
    finally:
        Path("/dev/shm/planted").unlink(missing_ok=True)  # where the programs may not have one of their own


@pytest.mark.slow
def test_a_program_that_hangs_is_ended_and_says_where(launcher):
    program = launcher.start("torture.planted:hang")
    assert program.next(30.0) == {"phase": "hanging"}
    ended = program.finish(0.1)
    assert ended.code is None
    assert "in hang" in ended.output
    assert session(program.pid) == []


@pytest.mark.slow
def test_a_series_goes_on_after_each_fault(launcher, tmp_path):
    outcomes = {}
    series.supervise(planted, range(5), Setting(tmp_path, 0, 1.0, 0.0), launcher, outcomes.__setitem__)
    said = {number: "".join(outcome.failures) for number, outcome in outcomes.items()}
    assert said[0] == ""
    assert "still busy after 2 s" in said[planted.HANGS]
    assert "in trial" in said[planted.HANGS]
    assert "ended with code -9" in said[planted.DIES]
    assert said[planted.RAISES].startswith("Traceback")
    assert "KeyError: 'planted'" in said[planted.RAISES]
    assert said[planted.WRONG] == "planted"


def test_a_descriptor_that_stays_is_counted(monkeypatch):
    monkeypatch.setattr("torture.holdings.GRACE_S", 0.0)
    before = Holdings.now()
    descriptor = os.dup(0)
    try:
        assert "1 descriptors left" in beyond(before)
    finally:
        os.close(descriptor)
    assert not any("descriptors" in line for line in beyond(before))


def test_the_slope_is_that_of_most_points():
    points = [(at, 3.0 * at) for at in range(20)]
    points[7] = (7, 1e6)
    assert slope(points) == pytest.approx(3.0, rel=0.02)
    assert slope([(0, 1.0)]) == 0.0


@pytest.mark.parametrize(
    ("got", "lost"), [([1, 2, 3], 0), ([1, 3], 1), ([3], 2), ([], 0), ([1, 1], -1), ([2, 1], -1), ([9], -1)]
)
def test_lost_batches_are_counted_and_others_found(got, lost):
    assert timers.missing(got, [1, 2, 3]) == lost


def test_losing_more_than_torch_in_proportion_is_a_failure():
    total = Outcome(counts=Counter({"interrupts": 1000, "batches lost": 40}))
    total.torch = Counter({"interrupts": 100, "batches lost": 4})
    assert timers.conclude(total) == []
    total.counts["batches lost"] = 80
    assert timers.conclude(total) == ["batches lost: 80; torch in proportion: 40.0"]


def test_what_python_ignored_is_told_from_what_ended_the_program():
    head = "Traceback (most recent call last):\n  File a, line 1\n    x\n\n"
    ignored = NOISE.findall(f"Exception ignored in: <f>\n{head}KeyboardInterrupt: \n{head}RuntimeError: ended\n")
    assert [text.rstrip().removesuffix(":").endswith("KeyboardInterrupt") for text in ignored] == [True]


def test_mutated_files_are_the_same_each_time_and_differ():
    files = [mutations.mutated(random.Random(number)) for number in range(60)]
    assert files == [mutations.mutated(random.Random(number)) for number in range(60)]
    assert len(set(files)) > 50


@pytest.mark.parametrize("fault", ["pixels", "refused", "said to decode"])
def test_pixels_that_pillow_has_not_are_a_failure(fault, monkeypatch, tmp_path):
    if fault != "pixels":
        monkeypatch.setattr(mutations, "pillow", lambda data: None)
    else:
        real = mutations.decode
        monkeypatch.setattr(mutations, "decode", lambda *args, **kwargs: real(*args, **kwargs) ^ 1)
    monkeypatch.setattr(mutations, "MUTATIONS", (lambda rng, data: None,))
    monkeypatch.setattr(mutations.Image, "MAX_IMAGE_PIXELS", mutations.PIXELS_MAX)
    failures = [what for n in range(4) for what in mutations.trial(n, Setting(tmp_path, 0, 1.0, 0.0)).failures]
    starts = {
        "pixels": "other pixels",
        "refused": "Pillow refuses what the core",
        "said to decode": "Pillow refuses what is",
    }
    assert any(what.startswith(starts[fault]) for what in failures)


@pytest.mark.parametrize("fault", ["other pixels", "another crop", "Pillow refuses"])
def test_pixels_of_other_formats_that_pillow_has_not_are_a_failure(fault, monkeypatch):
    real, file = codecs.decode, write_png(np.zeros((3, 4, 3), np.int64))
    assert codecs.compared(file) == ("ok", None)
    if fault == "Pillow refuses":
        monkeypatch.setattr(codecs.Image, "open", lambda file: None)
    else:
        monkeypatch.setattr(codecs, "decode", lambda *args: real(*args) ^ (len(args) == 1 + (fault == "another crop")))
    assert codecs.compared(file)[1].startswith(fault)


def test_the_record_has_each_failure_at_once_and_keeps_other_families(tmp_path):
    path, arguments = tmp_path / "torture.json", Namespace(share=1.0, seed=0, jobs=1)
    record = Record(path, arguments)
    record.begin("kills", "kills", 2)
    record.add("kills", 1, Outcome(failures=["planted"]), 1.0)
    kept = json.loads(path.read_text())
    assert kept["trials"]["kills"]["failures"] == [{"number": 1, "what": "planted"}]
    assert (kept["complete"], "commit" in kept["environment"]) == (False, True)
    again = Record(path, arguments)
    again.begin("forks", "forks", 1)
    again.write()
    assert set(json.loads(path.read_text())["trials"]) == {"kills", "forks"}
