"""``benchmarks all`` runs every benchmark, also after one has failed."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

from benchmarks import _peers, commands, questions
from benchmarks import all as every
from benchmarks.__main__ import main as run_benchmark
from benchmarks._checkout import ROOT
from benchmarks.commands import BENCHMARKS
from benchmarks.questions import QUESTIONS
from fastload.commands import bench, cli


def common(*given: str) -> argparse.Namespace:
    return BENCHMARKS["peers"].parse("peers", given)


def test_no_benchmark_is_forgotten() -> None:
    assert {*every.ORDER, *QUESTIONS, "all", "arrays", "cluster", "demo", "figures", "objectstore", "photos"} == {
        *bench.COMMANDS,
        *BENCHMARKS,
    }
    assert set(QUESTIONS) == set(commands.QUESTIONS)


def test_a_benchmark_has_one_home_and_the_other_command_names_it(capsys) -> None:
    assert set(bench.IN_CHECKOUT) == set(BENCHMARKS)
    assert not set(bench.COMMANDS) & set(BENCHMARKS)
    for name in BENCHMARKS:
        assert cli.main(["bench", name, "--quick"]) == 2
        assert capsys.readouterr().err == f"fastload bench {name} runs from a checkout: python -m benchmarks {name}\n"


@pytest.mark.parametrize(("name", "entry"), BENCHMARKS.items())
def test_every_benchmark_in_the_table_has_options_and_a_function(name: str, entry: cli.Command) -> None:
    entry.add_arguments(argparse.ArgumentParser(prog=f"python -m benchmarks {name}"))
    assert callable(entry.load().main)


def test_benchmarks_run_as_a_module() -> None:
    command = [sys.executable, "-m", "benchmarks", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in BENCHMARKS)


def test_data_is_passed_on_to_those_that_take_it(tmp_path) -> None:
    for name in every.ORDER:
        parser = argparse.ArgumentParser()
        entry = bench.COMMANDS.get(name) or BENCHMARKS[name]
        entry.add_arguments(parser)
        takes = any("--data" in action.option_strings for action in parser._actions)
        assert (name not in every.WITHOUT_DATA) is takes, name
        command = every.command(name, tmp_path, quick=True, data=tmp_path / "images")
        assert (
            getattr(parser.parse_args(command[command.index(name) + 1 :]), "data", None) == tmp_path / "images"
        ) is takes


def test_data_that_is_none_is_refused(tmp_path, capsys) -> None:
    assert run_benchmark(["all", "--data", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err


@pytest.fixture
def scripts(monkeypatch, tmp_path):
    """Benchmarks that are one line of Python, by name."""
    programs = {
        "decode": "print('fine')",
        "slots": "import sys; print('it broke here'); sys.exit(3)",
        "step": f"open({str(tmp_path / 'ran')!r}, 'w')",
    }
    monkeypatch.setattr(every, "ORDER", tuple(programs))
    monkeypatch.setattr(every, "command", lambda name, folder, **_: [sys.executable, "-c", programs[name]])
    return tmp_path


def test_one_that_fails_keeps_no_other_from_running(scripts, capsys) -> None:
    assert run_benchmark(["all"]) == 1
    assert (scripts / "ran").exists()
    assert "failed (3)" in capsys.readouterr().out


def test_all_that_work_give_zero(scripts) -> None:
    assert run_benchmark(["all", "--only", "decode,step", "--json", str(scripts / "new")]) == 0
    assert (scripts / "new").is_dir()


def test_an_unknown_benchmark_is_refused(scripts, capsys) -> None:
    assert run_benchmark(["all", "--only", "decode,haste"]) == 2
    assert "haste" in capsys.readouterr().err


def test_a_question_takes_from_the_command_what_it_does_not_say() -> None:
    asked = questions.parse("loaders --threads 2 --repeats 7", common("--repeats", "3", "--seconds", "0.5", "--quick"))
    assert (asked.setup.repeats, asked.setup.seconds, asked.setup.quick) == (7, 0.5, True)
    assert asked.parameters == {"threads": (2,)}


def test_training_asks_the_ceiling_too() -> None:
    assert questions.parse("train --models resnet18", common("--contenders", "torch")).setup.names == (
        "torch",
        "ceiling",
    )


@pytest.mark.parametrize(
    "text",
    ["", "haste", "loaders --haste", "loaders --threads 0", "train --models haste", "loaders --quick", "cpu --json a"],
)
def test_what_is_no_question_is_refused(text) -> None:
    with pytest.raises(ValueError, match=r"haste|must be|'0'|unrecognized arguments: --(quick|json)"):
        questions.parse(text, common())


def test_parameters_that_differ_stand_in_the_points_alone() -> None:
    def answer(batch_size: int) -> dict[str, object]:
        known = {"batch_size": batch_size, "repeats": 5}
        return {"parameters": dict(known), "points": [known], "contenders": {str(batch_size): {}}, "complete": True}

    whole = questions.joined([answer(64), answer(256), answer(64)])
    assert whole["parameters"] == {"batch_size": None, "repeats": 5}
    assert [point["batch_size"] for point in whole["points"]] == [64, 256, 64]
    assert set(whole["contenders"]) == {"64", "256"}


def test_a_contender_that_fails_drops_out_and_the_others_go_on() -> None:
    class Stub:
        def __init__(self, name: str, answers: list[int]) -> None:
            self.name, self.answers, self.failed = name, answers, None
            self.contender = argparse.Namespace(title=name)

        def turn(self):
            return _peers.contextlib.nullcontext()

        def fail(self, reason: str) -> None:
            self.failed = reason

    def turn(stub: Stub) -> dict[str, int]:
        if not stub.answers:
            raise _peers.ContenderError("no more")
        return {"figure": stub.answers.pop(0)}

    steady, tired = Stub("steady", [1, 2, 3]), Stub("tired", [1])
    assert _peers.take_turns([steady, tired], turn, 3) == {"steady": [{"figure": n} for n in (1, 2, 3)]}
    assert tired.failed == "no more"
