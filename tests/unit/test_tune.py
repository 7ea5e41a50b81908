"""``fastload tune``: it prints what ``num_workers="auto"`` chooses, with its measurements."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import replace

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from fastload import FastLoader
from fastload.autoscale import policy, probe
from fastload.autoscale.probe import Trial
from fastload.commands import cli, tune
from fastload.commands.tune import Look, Tuning
from fastload.stats.verdict import Bottleneck, Verdict

LOOK = Look(
    workers=4,
    images_per_s=270.0,
    consumer_images_per_s=280.0,
    wait_share=0.05,
    starved_share=0.01,
    loader_images_per_s=400.0,
    cores=1.0,
    cost_s=0.01,
    verdict=Verdict.of(Bottleneck.PYTHON, "of this test"),
)
FED = Tuning((replace(LOOK, workers=8), LOOK, LOOK, LOOK), has_step=True, prefetch_factor=2, most=16, engine="torch")


@pytest.mark.parametrize(
    ("numbers", "looks"), [([8, 6, 6, 5, 5, 5, 4], 6), ([3] * 9, 3), (range(1, 99), tune.LOOKS_MAX)]
)
def test_looks_end_when_the_number_stays(monkeypatch, numbers, looks):
    following = iter(numbers)
    monkeypatch.setattr(tune, "_look", lambda *given: replace(LOOK, workers=next(following)))
    tuning = tune.tune(DataLoader([0]), id)
    assert [look.workers for look in tuning.looks] == list(numbers)[:looks]
    assert str(tuning) == f"num_workers={numbers[looks - 1]}, prefetch_factor=2"


def test_why_says_whether_the_step_is_fed():
    assert FED.is_fed
    assert FED.why == (
        "the step takes 280 images/s when it never waits, a sample costs 10 ms of one worker; "
        "the step is fed with some to spare"
    )
    hungry = replace(FED, looks=(replace(LOOK, starved_share=0.55),))
    assert not hungry.is_fed
    assert "4 of up to 16 workers do not keep it fed: it waits for them 55% of the time" in hungry.why
    alone = replace(FED, has_step=False)
    assert not alone.is_fed
    assert alone.why == "without a step the loader ran by itself; a sample costs 10 ms of one worker"


def test_the_record_is_plain_json():
    record = json.loads(json.dumps(FED.record(), allow_nan=False))
    assert (record["num_workers"], record["is_fed"], record["cost_ms"]) == (4, True, 10.0)
    assert record["line"] == "num_workers=4, prefetch_factor=2"
    assert [tried["workers"] for tried in record["tried"]] == [8, 4, 4, 4]
    assert record["tried"][0]["verdict"] == "Python-bound"
    assert replace(FED, has_step=False).record()["consumer_images_per_s"] is None


class Numbers(Dataset):
    """Samples without any cost."""

    def __len__(self):
        return 256

    def __getitem__(self, index):
        return torch.full((8,), float(index))


@pytest.fixture
def costly(monkeypatch):
    """A trial of "auto" that finds samples of a second each."""
    monkeypatch.setattr(probe, "run_trial", lambda loader: Trial(batches=1, cost_s=1.0, batch_s=8.0, batch_bytes=256))


@pytest.mark.each_value
@pytest.mark.parametrize("kind", [FastLoader, DataLoader])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_copy_of_the_loader_begins_with_what_auto_would_and_no_more_than_allowed(kind, num_workers, costly):
    loader = kind(Numbers(), batch_size=8, num_workers=num_workers)
    seen, begun = [], []
    tuning = tune.tune(loader, seen.append, seconds=0.02, most=2, on_look=begun.append)
    assert len(begun) == len(tuning.looks)
    assert begun[0] == 2  # by the trial; whatever the consumer then shows, it may not be more
    assert {look.workers for look in tuning.looks} <= {1, 2}
    assert (tuning.engine, tuning.most, tuning.has_step) == ("torch", 2, True)
    assert all(look.images_per_s > 0 and look.cost_s >= 0 for look in tuning.looks)
    assert any(look.cost_s > 0 and look.cores > 0 for look in tuning.looks)  # a look of 20 ms may see no whole batch
    assert all(0 <= look.starved_share <= look.wait_share <= 1 for look in tuning.looks)
    assert all(len(batch) == 8 for batch in seen)
    assert loader.num_workers == num_workers
    assert loader._iterator is None


def test_tuning_decides_by_the_code_of_auto(monkeypatch, costly):
    decided = []

    def again(sizing, processes, used):
        decided.append(processes)
        return 1

    monkeypatch.setattr(policy, "_again", again)
    tuning = tune.tune(DataLoader(Numbers(), batch_size=4, num_workers=1), id, seconds=0.02, most=2)
    assert decided[0] == 2
    assert str(tuning) == "num_workers=1, prefetch_factor=2"


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
    assert re.search(r"\n    num_workers=1, prefetch_factor=2\n", shown)
    assert "images/s when it never waits" in shown


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
        (["tune_factories:empty"], "fastload tune: error: the loader must yield at least 1 batch per epoch, got 0"),
        (["tune_factories:dropped"], "fastload tune: error: the loader must yield at least 1 batch per epoch, got 0"),
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
    looks = iter([LOOK])

    def interrupted(*given):
        if (look := next(looks, None)) is None:
            raise KeyboardInterrupt
        return look

    monkeypatch.setattr(tune, "_look", interrupted)
    assert cli.main(["tune", "tune_factories:both"]) == 130
    shown = capsys.readouterr()
    assert "What was tried" in shown.out
    assert "interrupted, so there is no answer" in shown.err


def test_the_table_fits_80_columns(monkeypatch, capsys):
    from rich.console import Console

    monkeypatch.setattr("fastload.measurement.console.console", functools.partial(Console, width=80))
    wide = replace(LOOK, workers=128, images_per_s=123456.0, consumer_images_per_s=1e6, cores=99.5, wait_share=1.0)
    tune._show([wide, replace(wide, workers=64)], 64, has_step=True)
    title, head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[0] == "workers"
    assert all(len(line) <= 80 and "…" not in line for line in (title, head, *rows))
    assert [row.split()[:2] for row in rows if "chosen" in row] == [["64", "123,456"]]
