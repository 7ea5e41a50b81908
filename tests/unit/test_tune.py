"""``fastload tune``: the counts tried and chosen on simulated machines, and the command itself."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from fastload import FastLoader
from fastload.commands import cli, tune
from fastload.measurement import tuner
from fastload.measurement.throughput import Rate
from fastload.measurement.tuner import Tried, Tuner, Tuning
from fastload.stats.verdict import Bottleneck, Verdict

VERDICT = Verdict.of(Bottleneck.PYTHON, "of this test")


class Machine(Tuner):
    """A consumer of ``consumes`` images/s and workers of ``makes`` each, up to a limit."""

    def __init__(self, monkeypatch, *, consumes=None, makes=100.0, limit=1e9, most=16, bursts=False, overhead=0.0):
        super().__init__(DataLoader([0]), None if consumes is None else id, most=most)
        self.consumes, self.makes, self.limit, self.bursts, self.overhead = consumes, makes, limit, bursts, overhead
        monkeypatch.setattr(
            tuner, "ceiling_rate", lambda loader, step, *, seconds: lambda: Rate(consumes, 0.0, 1, seconds)
        )

    def _try(self, count, prefetch_factor=None):
        delivers = min(count * self.makes, self.limit)
        takes = delivers if self.consumes is None else min(self.consumes, delivers) * (1 - self.overhead)
        starved = 0.0 if self.consumes is None else max(0.0, 1 - delivers / self.consumes)
        if self.bursts and prefetch_factor is None:
            takes, starved = 0.8 * takes, 0.2
        made = Tried(
            workers=count,
            prefetch_factor=prefetch_factor or 2,
            images_per_s=takes,
            wait_share=min(1.0, starved + self.overhead),
            starved_share=starved,
            loader_images_per_s=delivers,
            cores=1.0,
            cost_s=1 / self.makes,
            verdict=VERDICT,
        )
        self.tried.append(made)
        return made


@pytest.mark.parametrize("needed", [0.3, 1, 1.5, 2.0, 4.7, 9.1, 14.4])
def test_the_smallest_count_with_ten_per_cent_to_spare_is_chosen(monkeypatch, needed):
    machine = Machine(monkeypatch, consumes=100 * needed)
    tuning = machine.run()
    assert 100 * tuning.chosen.workers >= 1.1 * 100 * needed
    assert 100 * (tuning.chosen.workers - 1) < 1.1 * 100 * needed
    counts = [tried.workers for tried in tuning.tried]
    assert counts[0] == 1
    assert len(counts) == len(set(counts)) <= 6
    assert tuning.why == "the smallest count that keeps the step fed with 10% to spare"
    assert str(tuning) == f"num_workers={tuning.chosen.workers}, prefetch_factor=2"


def test_counts_beyond_the_guess_are_tried_when_workers_hinder_each_other(monkeypatch):
    machine = Machine(monkeypatch, consumes=500)
    plain = machine._try

    def hindered(count, prefetch_factor=None):
        machine.makes = 100 / (1 + 0.05 * (count - 1))
        return plain(count, prefetch_factor)

    monkeypatch.setattr(machine, "_try", hindered)
    tuning = machine.run()
    assert tuning.chosen.is_fed
    assert tuning.chosen.workers == 8  # 8 * 100 / 1.35 = 593 >= 550 > 7 * 100 / 1.3 = 538
    assert 7 in [tried.workers for tried in tuning.tried]


def test_where_no_count_is_enough_it_is_the_smallest_as_fast_as_the_best(monkeypatch):
    tuning = Machine(monkeypatch, consumes=2000, limit=900).run()
    assert tuning.chosen.workers == 9
    assert not tuning.chosen.is_fed
    assert "up to 16 workers cannot keep the step fed" in tuning.why
    assert "the step waits for workers 55% of the time" in tuning.why


def test_a_wait_that_workers_do_not_shorten_asks_for_no_more_of_them(monkeypatch):
    tuning = Machine(monkeypatch, consumes=280, overhead=0.1).run()
    assert tuning.chosen.is_fed
    assert tuning.chosen.workers == 4  # of which 3 would have nothing to spare
    assert tuning.chosen.wait_share == pytest.approx(0.1)


def test_without_a_step_the_loader_runs_by_itself(monkeypatch):
    tuning = Machine(monkeypatch, limit=500).run()
    assert tuning.chosen.workers == 5
    assert [tried.workers for tried in tuning.tried][:4] == [1, 2, 4, 8]
    assert tuning.consumer_images_per_s is None
    assert "without a step" in tuning.why


def test_no_more_workers_are_tried_than_there_may_be(monkeypatch):
    machine = Machine(monkeypatch, consumes=5000, most=3)
    tuning = machine.run()
    assert max(tried.workers for tried in tuning.tried) == tuning.chosen.workers == 3
    assert Machine(monkeypatch, consumes=5000, most=1).run().chosen.workers == 1


def test_batches_that_come_in_bursts_are_given_more_room(monkeypatch):
    tuning = Machine(monkeypatch, consumes=280, bursts=True).run()
    assert tuning.chosen.prefetch_factor == 4
    assert str(tuning).endswith("prefetch_factor=4")


def test_the_record_is_plain_json(monkeypatch):
    tuning = Machine(monkeypatch, consumes=280).run()
    record = json.loads(json.dumps(tuning.record(), allow_nan=False))
    assert (record["num_workers"], record["is_fed"], record["cost_ms"]) == (4, True, 10.0)
    assert [tried["workers"] for tried in record["tried"]] == [1, 4, 2, 3]
    assert record["tried"][0]["verdict"] == "Python-bound"


def test_a_loop_that_does_nothing_but_wait_is_not_fed():
    waits = Tried(1, 2, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, VERDICT)
    assert not waits.is_fed
    assert not replace(waits, wait_share=0.0, starved_share=0.0, loader_images_per_s=1.05).is_fed
    assert replace(waits, wait_share=0.0, starved_share=0.0, loader_images_per_s=1.11).is_fed


class Numbers(Dataset):
    """Samples without any cost."""

    def __len__(self):
        return 256

    def __getitem__(self, index):
        return torch.full((8,), float(index))


@pytest.mark.parametrize("kind", [FastLoader, DataLoader])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_real_loader_is_tried_and_left_as_it_was(kind, num_workers):
    loader = kind(Numbers(), batch_size=8, num_workers=num_workers)
    seen = []
    tuning = Tuner(loader, seen.append, seconds=0.05, most=2).run()
    assert isinstance(tuning, Tuning)
    assert tuning.chosen.workers in (1, 2)
    assert all(tried.images_per_s > 0 and tried.cost_s > 0 for tried in tuning.tried)
    assert all(0 <= tried.starved_share <= tried.wait_share <= 1 for tried in tuning.tried)
    assert all(tried.cores > 0 for tried in tuning.tried)
    assert tuning.consumer_images_per_s > 0
    assert all(len(batch) == 8 for batch in seen)
    assert loader.num_workers == num_workers
    assert loader._iterator is None


@pytest.fixture
def factories(tmp_path, monkeypatch):
    (tmp_path / "tune_factories.py").write_text(
        "import torch\n"
        "from torch.utils.data import DataLoader\n"
        "from fastload import FastLoader\n"
        "def both(): return FastLoader(torch.arange(256.0), batch_size=8), lambda batch: batch.sum()\n"
        "def alone(): return DataLoader(torch.arange(256.0), batch_size=8, prefetch_factor=3, num_workers=1)\n"
        "def empty(): return FastLoader([], batch_size=8), len\n"
        "def dropped(): return FastLoader([1, 2], batch_size=8, drop_last=True)\n"
        "def nothing(): return None\n"
        "def failing(): return FastLoader(torch.arange(256.0), batch_size=8), lambda batch: 1 // 0\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_the_command_prints_a_table_and_the_line_to_paste(factories, capsys):
    assert cli.main(["tune", "tune_factories:both", "--seconds", "0.05", "--max-workers", "1"]) == 0
    shown = capsys.readouterr().out
    assert "What was tried" in shown
    assert re.search(r"\n    num_workers=1, prefetch_factor=[24]\n", shown)
    assert "images/s from a perfect loader" in shown


def test_the_command_prints_json_for_programs(factories, capsys):
    arguments = ["tune", "tune_factories:alone", "--seconds", "0.05", "--max-workers", "1", "--json"]
    assert cli.main(arguments) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["line"] == "num_workers=1, prefetch_factor=3"
    assert record["factory"] == "tune_factories:alone"
    assert record["consumer_images_per_s"] is None
    assert record["environment"]["torch"] == torch.__version__


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tune_factories:empty"], "fastload tune: the loader must yield at least 1 batch per epoch, got 0"),
        (["tune_factories:dropped"], "fastload tune: the loader must yield at least 1 batch per epoch, got 0"),
        (["tune_factories:nothing"], "must return a DataLoader, or (DataLoader, step), got NoneType"),
        (["tune_factories:absent"], "must have a function absent"),
        (["tune_factories"], "must be given as module:function, got 'tune_factories'"),
        (["tune_factories:both", "--seconds", "0"], "--seconds: must be a number > 0, got '0'"),
        (["tune_factories:both", "--seconds", "soon"], "--seconds: must be a number > 0, got 'soon'"),
        (["tune_factories:both", "--max-workers", "0"], "--max-workers: must be an integer >= 1, got '0'"),
        ([], "the following arguments are required: module:factory"),
    ],
)
def test_wrong_use_exits_with_2_and_says_what_is_wrong(factories, capsys, arguments, message):
    try:
        code = cli.main(["tune", *arguments])
    except SystemExit as error:  # argparse's own
        code = error.code
    assert code == 2
    assert message in capsys.readouterr().err


def test_what_the_step_raises_is_the_users_to_see(factories):
    with pytest.raises(ZeroDivisionError):
        cli.main(["tune", "tune_factories:failing", "--seconds", "0.05", "--max-workers", "1"])


def test_ctrl_c_shows_what_was_tried_until_then(factories, capsys, monkeypatch):
    plain = Tuner._try

    def interrupted(self, count, prefetch_factor=None):
        if self.tried:
            raise KeyboardInterrupt
        return plain(self, count, prefetch_factor)

    monkeypatch.setattr(Tuner, "_try", interrupted)
    monkeypatch.setattr(Tuner, "_is_plenty", lambda self, tried: False)
    assert cli.main(["tune", "tune_factories:both", "--seconds", "0.05", "--max-workers", "4"]) == 130
    shown = capsys.readouterr()
    assert "What was tried" in shown.out
    assert "interrupted, so there is no answer" in shown.err


def test_the_table_fits_80_columns(monkeypatch, capsys):
    from rich.console import Console

    console = Console(width=80)
    monkeypatch.setattr("fastload.measurement.console.console", lambda: console)
    tried = Tried(
        workers=128,
        prefetch_factor=4,
        images_per_s=123456.0,
        wait_share=1.0,
        starved_share=1.0,
        loader_images_per_s=1234567.0,
        cores=99.5,
        cost_s=1e-3,
        verdict=VERDICT,
    )
    tune._show([tried, replace(tried, prefetch_factor=2)], tried, 1e6)
    title, head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[0] == "workers"
    assert all(len(line) <= 80 and "…" not in line for line in (title, head, *rows))
    assert any(row.split()[:4] == ["128,", "prefetch", "4", "123,456"] and "chosen" in row for row in rows)
