"""Test what the peer benchmarks count, on simulated /proc files and real contender processes."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import optional
import pytest
from torchvision import transforms

from benchmarks import _peers, _ranks, multigpu, questions
from benchmarks.__main__ import main as run_benchmark
from benchmarks._outputs import _wrong
from benchmarks._setup import Setup, setup_of
from benchmarks.commands import BENCHMARKS
from benchmarks.contenders import _processes, _serve, fastload_loaders
from benchmarks.contenders._job import Feed, Job
from benchmarks.contenders._registry import CONTENDERS, RECIPES, Tolerance
from benchmarks.contenders._remote import ContenderError, Interpreters, Remote, Team
from benchmarks.memory import host_bytes
from fastload.bench import _rungs
from fastload.bench.photos import PhotoSet, write_photos
from fastload.commands import cli

optional.needed("skimage", "rich")


def memory(**given: int) -> _processes.Memory:
    names = ("pss_bytes", "uss_bytes", "unshared_pss_bytes", "shared_memory_bytes", "available_bytes")
    return _processes.Memory(**{name: given.get(name, 0) for name in names})


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Two processes of group 7, one of another, as /proc shows them."""
    for pid, group, pss in ((7, 7, 100), (8, 7, 60), (9, 9, 999)):
        folder = tmp_path / str(pid)
        folder.mkdir()
        fields = ["S", "1", str(group), *["0"] * 8, "5", "3", "2", "1"]
        (folder / "stat").write_text(f"{pid} (a) odd (name) {' '.join(fields)}")
        (folder / "smaps_rollup").write_text(f"Pss: {pss} kB\nPss_Shmem: 40 kB\nPrivate_Dirty: 10 kB\n")
    (tmp_path / "meminfo").write_text("MemAvailable: 5000 kB\nShmem: 300 kB\n")
    return tmp_path


def test_memory_counts_each_page_once(machine) -> None:
    seen = _processes.memory(7, machine)
    assert (seen.pss_bytes, seen.uss_bytes, seen.available_bytes) == (160 * 1024, 20 * 1024, 5000 * 1024)
    assert seen.host_bytes == (160 - 2 * 40 + 300) * 1024


def test_without_a_rollup_the_mappings_are_added_up(machine) -> None:
    whole = _processes.memory(7, machine)
    (machine / "7" / "smaps_rollup").unlink()
    mapping = "7f00-7f01 r-xp 0 00:01 5 /lib: odd\nPss: {} kB\nPss_Shmem: 20 kB\nPrivate_Dirty: 5 kB\n"
    (machine / "7" / "smaps").write_text(mapping.format(70) + mapping.format(30))
    assert _processes.memory(7, machine) == whole


def test_processor_time_is_that_of_the_group(machine) -> None:
    assert _processes.processor_s(_processes.members(7, machine), machine) == 2 * 11 / _processes.TICKS_PER_S


def test_pinned_memory_is_counted_where_the_kernel_does_not() -> None:
    before, peak = memory(unshared_pss_bytes=10), memory(unshared_pss_bytes=110)
    pinned = {"torch_bytes": 1000, "arena_bytes": 5000}
    assert host_bytes(before, peak, pinned, {"torch": 1.0, "arena": 1.0}) == 100
    assert host_bytes(before, peak, pinned, {"torch": 0.0, "arena": 1.0}) == 1100
    assert host_bytes(before, peak, pinned, {"torch": 0.02, "arena": 0.0}) == 6100


def test_pixels_may_be_off_by_the_tolerance_alone() -> None:
    seen = {"labels_equal": True, "equal": False, "mean_difference": 0.4}
    assert _wrong(seen, Tolerance(mean=0.5, why="")) is None
    assert "0.3" in (_wrong(seen, Tolerance(mean=0.3, why="")) or "")
    assert "bit for bit" in (_wrong(seen, None) or "")
    assert "labels" in (_wrong({**seen, "labels_equal": False}, Tolerance(mean=0.5, why="")) or "")


@pytest.mark.thorough
def test_an_image_that_cannot_be_read_is_refused_in_one_line(tmp_path, capsys) -> None:
    data = write_photos(tmp_path / "photos", PhotoSet(count=8, classes=2, edge_px=64)).path
    broken = min(data.glob("*/*.jpg"))
    broken.write_bytes(b"nothing")
    common = ["--quick", "--contenders", "ceiling", "--data", str(data)]
    assert run_benchmark(["loaders", "--threads", "1", *common]) == 2
    said = capsys.readouterr().err
    assert broken.name in said
    assert said.count("\n") == 1


def test_fewer_images_than_a_batch_are_refused(tmp_path, capsys) -> None:
    data = write_photos(tmp_path / "photos", PhotoSet(count=4, classes=2, edge_px=64)).path
    assert cli.main(["bench", "ceiling", "--quick", "--workers", "1", "--data", str(data)]) == 2
    assert "at least 1 batch" in capsys.readouterr().err


def test_what_was_ready_before_a_turn_is_not_measured(monkeypatch) -> None:
    taken: list[tuple[int, int]] = []
    rank = _ranks.Rank.__new__(_ranks.Rank)
    rank._ready, rank._device, rank._workers = {"torch-pinned": 18}, "cpu", {}
    rank._feeds, rank._step, rank._clock = {"torch-pinned": iter(()), "ceiling": iter(())}, None, None

    def time_steps(feed, step, clock, count: int, *, warm: int) -> SimpleNamespace:
        taken.append((warm, count))
        return SimpleNamespace(seconds=float(count))

    monkeypatch.setattr(_ranks, "time_steps", time_steps)
    monkeypatch.setattr(_ranks.dist, "all_reduce", lambda *_, **__: None)
    assert [rank.train(name, 5) for name in ("torch-pinned", "ceiling")] == [5, 5]
    assert taken == [(18, 5), (_ranks._WARM_STEPS, 5)]


def test_what_was_ready_before_training_is_taken_first() -> None:
    asked: list[tuple[str, int]] = []

    def ask(what: str, *, batches: int = 0, warm_steps: int = 0, steps: int = 0, model: str = "") -> dict[str, float]:
        asked.append((what, batches or steps + warm_steps))
        return {"settled": True, "images": 10, "seconds": 1.0, "wait_share": 0.0, "main_thread_s": 0.0, "batches": 1}

    remote = SimpleNamespace(name="torch-pinned", failed=None, turn=contextlib.nullcontext, ask=ask)
    team = SimpleNamespace(open=lambda remotes, job: None, close_feeds=lambda: None)
    gathering = SimpleNamespace(team=team, folder="", present=lambda setup: [remote])
    setup = Setup(batch_size=4, device="cpu", repeats=1)
    measured = questions.training(gathering, setup, "tiny", threads=8, steps=12)
    assert asked == [("settle", 0), ("run", 16), ("train", 1 + questions.WARM_STEPS), ("train", 16 + 4)]
    assert measured["torch-pinned"]["images_per_s"]["median"] == 10


def test_a_whole_training_begins_with_its_loader(monkeypatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(questions, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    asked: list[tuple[str, int]] = []

    def ask(what: str, *, steps: int = 0, warm_steps: int = 0, model: str = "", **job: object) -> dict[str, float]:
        asked.append((what, steps + warm_steps))
        clock.now += {"open": 3.0, "train": steps + warm_steps, "close": 100.0}[what]
        return {"first_batch_s": 3.0}

    remote = SimpleNamespace(name="torch-pinned", failed=None, turn=contextlib.nullcontext, ask=ask)
    team = SimpleNamespace(open=lambda remotes, job: None, close_feeds=lambda: asked.append(("closed", 0)))
    described = {"drawn_from": 30}
    gathering = SimpleNamespace(team=team, folder="", present=lambda setup: [remote], described=described)
    setup = Setup(batch_size=4, device="cpu", repeats=2)
    measured = questions.whole_training(gathering, setup, "tiny", threads=2, passes=3)
    turn = [("open", 0), ("train", 21), ("close", 0)]  # of 22 batches
    assert asked == [("train", 1 + questions.WARM_STEPS), ("closed", 0), *turn, *turn]
    assert measured["torch-pinned"]["total_s"]["values"] == [24, 24]
    assert measured["torch-pinned"]["first_batch_s"]["median"] == 3


# A turn is the row's time over eight, or as many steps as there are threads. The probes end after 8.4 s.
@pytest.mark.parametrize(
    ("row_s", "most", "fast", "rounds"),
    [(32, 100, 20, 3), (32, 8, 8, 3), (16, 100, 12, 1)],
    ids=["long", "few", "short"],
)
def test_a_row_keeps_to_its_time(monkeypatch, row_s, most, fast, rounds) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("benchmarks._setup.time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr("benchmarks._peers.time", SimpleNamespace(monotonic=lambda: clock.now))
    asked: dict[str, list[int]] = {"fast": [], "slow": []}

    def remote(name: str, step_s: float) -> SimpleNamespace:
        def ask(what: str, *, steps: int = 0, **more: object) -> dict[str, float]:
            asked[name] += [steps] * (what == "train")
            clock.now += steps * step_s
            answer = {"settled": True, "images": steps, "seconds": steps * step_s, "wait_share": 0.0}
            return {**answer, "main_thread_s": 0.0, "batches": steps}

        return SimpleNamespace(name=name, failed=None, turn=contextlib.nullcontext, ask=ask)

    remotes = [remote("fast", 0.1), remote("slow", 2.0)]
    team = SimpleNamespace(open=lambda remotes, job: None, close_feeds=lambda: None)
    gathering = SimpleNamespace(team=team, folder="", present=lambda setup: remotes)
    setup = replace(Setup(device="cpu", names=()), repeats=6, row_seconds=row_s)
    measured = questions.training(gathering, setup, "tiny", threads=4, steps=most)
    assert asked == {"fast": [4] + [fast] * rounds, "slow": [4] * (1 + rounds)}
    assert [measured[name]["steps"] for name in asked] == [fast, 4]
    assert _peers._rounds({"contenders": measured}) == rounds


def test_no_point_begins_when_time_is_up(monkeypatch) -> None:
    clock, ended = SimpleNamespace(now=0.0), []
    monkeypatch.setattr("benchmarks._peers.time", SimpleNamespace(monotonic=lambda: clock.now))

    def measure(gathering):
        try:
            for number in range(4):
                clock.now += 10
                yield {"number": number, "contenders": {}}
        finally:
            ended.append(number)

    team = SimpleNamespace(restart_failed=lambda: None, present=[], record=dict)
    gathering = _peers.Gathering(team, "", {}, {}, {}, deadline=15.0)
    question = _peers.Question(name="loaders", setup=Setup(device="cpu"), parameters={}, measure=measure)
    record, _ = gathering.answer(question)
    assert [point["number"] for point in record["points"]] == [0, 1]
    assert record["complete"] is True
    assert ended == [1]
    assert gathering.late()
    clock.now = 0.0
    assert len(_peers.Gathering(team, "", {}, {}, {}).answer(question)[0]["points"]) == 4


def test_one_round_is_measured_however_late_it_is() -> None:
    remote = SimpleNamespace(name="torch", failed=None, turn=contextlib.nullcontext)
    assert _peers.take_turns([remote], lambda one: {"turn": 1}, 3, deadline=0.0) == {"torch": [{"turn": 1}]}
    assert len(_peers.take_turns([remote], lambda one: {"turn": 1}, 3)["torch"]) == 3


def test_who_tries_settings_opens_alone() -> None:
    team, opened = Team.__new__(Team), []
    team.together = lambda remotes, do: opened.append([remote.name for remote in remotes])
    remotes = [
        SimpleNamespace(name=name, contender=CONTENDERS[name]) for name in ("dali-gpu", "torch", "dali-cpu", "timm")
    ]
    team.open(remotes, Job(data="", threads=1, batch_size=1))
    assert opened == [["torch", "timm"], ["dali-gpu"], ["dali-cpu"]]


@pytest.mark.thorough
def test_questions_may_differ_in_recipe(tmp_path) -> None:
    data = write_photos(tmp_path / "photos", PhotoSet(count=32, classes=2, edge_px=64)).path
    common = ["--quick", "--contenders", "fastload", "--data", str(data), "--json", str(tmp_path)]
    asked = ["train --threads 1 --contenders fastload,torch-decode-jpeg", "train --threads 1 --recipe randaugment"]
    assert run_benchmark(["peers", *asked, *common]) == 0
    record = json.loads((tmp_path / "train.json").read_text())
    assert [point["recipe"] for point in record["points"]] == ["crops", "randaugment"]
    assert [sorted(point["contenders"]) for point in record["points"]] == [
        ["ceiling", "fastload", "torch-decode-jpeg"],
        ["ceiling", "fastload"],
    ]
    assert record["contenders"]["fastload"]["check_training"]["equal"] is True


@pytest.mark.slow
def test_several_gpus_that_are_cut_off_keep_their_points(tmp_path, monkeypatch) -> None:
    data = write_photos(tmp_path / "photos", PhotoSet(count=8, classes=2, edge_px=64)).path
    file, kept = tmp_path / "multigpu.json", []

    def measure(plan_of, keep) -> None:
        for processes in plan_of:
            keep([{"processes": count} for count in plan_of if count <= processes])
            kept.append(json.loads(file.read_text()))

    monkeypatch.setattr(multigpu, "measure", measure)
    given = ["--quick", "--processes", "1,2", "--data", data, "--json", file]
    assert _run("multigpu", *given) == 0
    assert [(len(record["points"]), record["complete"]) for record in kept] == [(1, False), (2, True)]


@pytest.mark.parametrize("given", [["--cores", 10_000], ["--contenders", "fastload,dali-gpu"]])
def test_several_gpus_refuse_what_is_not_there(given, capsys) -> None:
    assert _run("multigpu", "--quick", *given) == 2
    assert given[0] in capsys.readouterr().err


def test_each_of_several_processes_has_cores_of_its_own(monkeypatch) -> None:
    kept: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {9, 4, 5, 6, 7})
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cores: kept.append(cores))
    for rank in range(3):
        _ranks.bind(rank, 2)
    assert kept == [{4, 5}, {6, 7}, {9, 4}]


def test_several_gpus_are_skipped_where_there_is_none(monkeypatch, capsys) -> None:
    monkeypatch.setattr(multigpu.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(multigpu, "measure", lambda *_: pytest.fail("nothing is measured"))
    assert _run("multigpu") == 0
    assert "bench multigpu: skipped, torch finds no CUDA device here" in " ".join(capsys.readouterr().out.split())


def test_scaling_is_measured_by_one_process() -> None:
    first = {"processes": 1, "threads": 4, "images_per_s": {"fastload": [90, 100], "ceiling": [200, 200]}}
    four = {"processes": 4, "threads": 4, "images_per_s": {"fastload": [300, 460], "ceiling": [800, 800]}}
    result = multigpu._with_shares(four, first)["contenders"]["fastload"]
    assert result["scaling_efficiency"] == pytest.approx(380 / 4 / 95)
    assert result["share_of_ceiling"]["values"] == [0.375, 0.575]


@pytest.fixture
def ceiling():
    remote = Remote("ceiling", "cpu", Interpreters())
    yield remote
    remote.end()


@pytest.mark.thorough
def test_a_contender_keeps_to_its_cores(ceiling) -> None:
    usable = len(os.sched_getaffinity(0))
    assert ceiling.ask("limit", cores=1) == {"cores": 1}
    status = Path(f"/proc/{ceiling.group}/task")
    allowed = {(task / "status").read_text().split("Cpus_allowed:\t")[1].split()[0] for task in status.iterdir()}
    assert len(allowed) == 1
    assert int(allowed.pop().replace(",", ""), 16).bit_count() == 1
    assert ceiling.ask("limit", cores=None) == {"cores": usable}


def test_a_loader_is_given_the_time_to_settle(monkeypatch) -> None:
    server = _serve.Server("ceiling")
    taken = []
    batches = map(taken.append, itertools.count())
    server._feed = Feed(batches, lambda: None, is_settled=lambda: len(taken) >= 3)
    assert server.settle() == {"settled": True}
    assert len(taken) == 3
    server._feed = Feed(batches, lambda: None)
    assert server.settle() == {"settled": True}
    assert len(taken) == 3
    monkeypatch.setattr(_rungs, "SLOTS_S", 0.01)
    server._feed = Feed(batches, lambda: None, is_settled=lambda: False)
    assert server.settle() == {"settled": False}


@pytest.mark.parametrize("settled", [True, False])
def test_a_loader_that_did_not_settle_is_named(settled, capsys) -> None:
    contender = SimpleNamespace(title="FastLoader, workers")
    _peers.settle(SimpleNamespace(ask=lambda what: {"settled": settled}, contender=contender))
    assert ("FastLoader, workers: measured before its slots were ready" in capsys.readouterr().out) is not settled


@pytest.mark.parametrize(
    ("variant", "slots", "settled"), [("workers", 0, False), ("workers", 8, True), ("native", 0, True)]
)
def test_our_workers_settle_when_there_are_slots(tmp_path, monkeypatch, variant, slots, settled) -> None:
    class Loader:
        plan = SimpleNamespace(engine=variant)

        def __init__(self, dataset, **arguments) -> None:
            self.stats = lambda: SimpleNamespace(slots=slots, pinned_bytes=0)

        def __iter__(self):
            return iter(())

        def close(self) -> None:
            pass

    monkeypatch.setattr(fastload_loaders, "FastLoader", Loader)
    data = write_photos(tmp_path / "photos", PhotoSet(count=4, classes=2, edge_px=64)).path
    job = Job(data=str(data), threads=1, batch_size=2, device="cuda")
    assert fastload_loaders.open_feed(job, variant).is_settled() is settled


def test_threads_that_end_or_begin_meanwhile_do_not_stop_that(monkeypatch) -> None:
    server = _serve.Server("ceiling")
    listed = iter([["1", "2"], ["1", "3"], ["1", "3"]])
    kept = {}

    def keep_to(thread, cores) -> None:
        if thread == 2:
            raise ProcessLookupError
        kept[thread] = list(cores)

    monkeypatch.setattr(os, "listdir", lambda folder: next(listed))
    monkeypatch.setattr(os, "sched_setaffinity", keep_to)
    server.limit(1)
    usable = sorted(os.sched_getaffinity(0))
    assert kept == {1: usable[:1], 3: usable[:1]}


@pytest.mark.thorough
def test_a_contender_that_dies_is_an_error_and_can_begin_again(ceiling) -> None:
    os.kill(ceiling.group, 9)
    with pytest.raises(ContenderError, match="ceiling"):
        ceiling.ask("close")
    ceiling.fail("died")
    assert ceiling.record()["failed"] == "died"
    ceiling.restart()
    assert "failed" not in ceiling.record()


@pytest.mark.thorough
def test_another_interpreter_finds_the_package(tmp_path) -> None:
    elsewhere = tmp_path / "python"
    elsewhere.write_text(f'#!/bin/sh\ncd / && exec {sys.executable} "$@"\n')
    elsewhere.chmod(0o755)
    remote = Remote("ceiling", "cpu", Interpreters(pythons={"ceiling": str(elsewhere)}))
    try:
        assert remote.missing is None
    finally:
        remote.end()


@pytest.mark.thorough
def test_questions_are_answered_by_contenders_that_were_checked(tmp_path, monkeypatch) -> None:
    ask, requests = Remote.ask, []

    def noted(remote, what, **more):
        if remote.name == "fastload":
            requests.append(what)
        return ask(remote, what, **more)

    monkeypatch.setattr(Remote, "ask", noted)
    data = write_photos(tmp_path / "photos", PhotoSet(count=32, classes=2, edge_px=64)).path
    common = ["--quick", "--contenders", "fastload", "--data", str(data), "--json", str(tmp_path / "out")]
    asked = ["loaders --threads 1", "memory --threads 1", "train --threads 1", "loaders --threads 2 --batch-size 4"]
    assert run_benchmark(["peers", *asked, *common]) == 0
    for question in ("loaders", "memory", "train"):
        record = json.loads((tmp_path / "out" / f"{question}.json").read_text())
        assert record["contenders"]["fastload"]["check_training"]["equal"] is True
        assert "fastload" in record["points"][0]["contenders"]
    assert record["points"][0]["contenders"]["ceiling"]["share_of_ceiling"]["median"] == 1
    assert [what for before, what in itertools.pairwise(requests) if before == "open"] == ["settle"] * 4
    whole = json.loads((tmp_path / "out" / "loaders.json").read_text())
    assert whole["complete"] is True
    points = whole["points"]
    assert [(point["threads"], point["batch_size"]) for point in points] == [(1, 8), (2, 4)]


@pytest.mark.skipif(importlib.util.find_spec("spdl") is not None, reason="SPDL is installed")
@pytest.mark.slow
def test_a_question_that_nobody_can_answer_is_no_success(tmp_path, capsys) -> None:
    data = write_photos(tmp_path / "photos", PhotoSet(count=32, classes=2, edge_px=64)).path
    common = ["--quick", "--contenders", "spdl", "--data", str(data)]
    assert run_benchmark(["loaders", "--threads", "1", *common]) == 1
    assert "missing: SPDL: " in capsys.readouterr().out


def test_who_failed_in_one_answer_has_failed() -> None:
    def answer(**known):
        return {"points": [1], "contenders": {"spdl": known}, "parameters": {}, "complete": True}

    for answers in ([answer(failed="died"), answer()], [answer(), answer(failed="died")]):
        whole = questions.joined(answers)
        assert whole["contenders"]["spdl"] == {"failed": "died"}
        assert (whole["points"], whole["complete"]) == ([1, 1], True)
    assert answers[0]["points"] == [1]


@pytest.mark.thorough
def test_a_question_that_is_cut_off_keeps_its_points(tmp_path, monkeypatch) -> None:
    data = write_photos(tmp_path / "photos", PhotoSet(count=32, classes=2, edge_px=64)).path
    out = tmp_path / "out"

    def cut_off(gathering, setup, threads):
        if threads == 2:
            raise KeyboardInterrupt
        return _peers.rates(gathering, setup, threads)

    loaders = questions.by_threads("loaders", cut_off, _peers.describe_rates)
    monkeypatch.setitem(questions.QUESTIONS, "loaders", loaders)
    asked = ["loaders --threads 1", "loaders --threads 3,2"]
    common = ["--quick", "--contenders", "fastload", "--data", data, "--json"]
    assert _run("peers", *asked, *common, out) == 130
    record = json.loads((out / "loaders.json").read_text())
    assert [point["threads"] for point in record["points"]] == [1, 3]
    assert record["complete"] is False
    one = tmp_path / "one.json"
    assert _run("loaders", "--threads", "1,2", *common, one) == 130
    assert len(json.loads(one.read_text())["points"]) == 1


def _run(name: str, *given: object) -> int:
    return run_benchmark([name, *map(str, given)])


def test_a_recipe_is_for_those_that_have_it() -> None:
    parse = functools.partial(BENCHMARKS["peers"].parse, "peers")
    setup = setup_of(parse(["--recipe", "randaugment"]))
    ours = {"fastload-workers", "fastload", "fastload-new", "fastload-kept", "fastload-cpu", "fastload-gpu"}
    assert set(setup.names) == {"torch", "torch-pinned", "dali-cpu", "dali-gpu", *ours}
    for recipe in RECIPES:
        assert replace(setup, recipe=recipe).job("", 1).transform() is not None
    steps = setup.job("", 1).transform().transforms
    assert [type(step) for step in steps[2::3]] == [transforms.RandAugment, transforms.RandomErasing]
    for given in (["--recipe", "nope"], ["--recipe", "randaugment", "--contenders", "timm"]):
        with pytest.raises(ValueError, match="must"):
            setup_of(parse(given))
