"""Every benchmark in turn: none is forgotten, one that fails keeps no other from running, and several questions."""

from __future__ import annotations

import argparse
import importlib
import sys

import pytest

pytest.importorskip("rich")

from fastload.bench import _peers, peers
from fastload.bench import all as every
from fastload.bench._setup import add_peer_arguments
from fastload.commands.cli import BENCH


def arguments(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    every.add_arguments(parser)
    return parser.parse_args(given)


def common(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_peer_arguments(parser)
    return parser.parse_args(given)


def test_no_benchmark_is_forgotten() -> None:
    assert {*every.ORDER, *peers.QUESTIONS, "all", "demo", "photos"} == set(BENCH)


def test_data_is_passed_on_to_those_that_take_it(tmp_path) -> None:
    for name in every.ORDER:
        parser = argparse.ArgumentParser()
        importlib.import_module(f"fastload.bench.{name}").add_arguments(parser)
        takes = any("--data" in action.option_strings for action in parser._actions)
        assert (name in every.TAKE_DATA) is takes, name
        given = every.command(name, tmp_path, quick=True, data=tmp_path / "images")[5:]
        assert (getattr(parser.parse_args(given), "data", None) == tmp_path / "images") is takes


def test_data_that_is_none_is_refused(tmp_path, capsys) -> None:
    assert every.main(arguments("--data", str(tmp_path / "nowhere"))) == 2
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
    assert every.main(arguments()) == 1
    assert (scripts / "ran").exists()
    assert "failed (3)" in capsys.readouterr().out


def test_all_that_work_give_zero(scripts) -> None:
    assert every.main(arguments("--only", "decode,step", "--json", str(scripts / "new"))) == 0
    assert (scripts / "new").is_dir()


def test_an_unknown_benchmark_is_refused(scripts, capsys) -> None:
    assert every.main(arguments("--only", "decode,haste")) == 2
    assert "haste" in capsys.readouterr().err


def test_a_question_takes_from_the_command_what_it_does_not_say() -> None:
    asked = peers.parse("loaders --threads 2 --repeats 7", common("--repeats", "3", "--seconds", "0.5", "--quick"))
    assert (asked.setup.repeats, asked.setup.seconds, asked.setup.quick) == (7, 0.5, True)
    assert asked.parameters == {"threads": (2,)}


def test_training_asks_the_ceiling_too() -> None:
    assert peers.parse("train --models resnet18", common("--contenders", "torch")).setup.names == ("torch", "ceiling")


@pytest.mark.parametrize(
    "text",
    ["", "haste", "loaders --haste", "loaders --threads 0", "train --models haste", "loaders --quick", "cpu --json a"],
)
def test_what_is_no_question_is_refused(text) -> None:
    with pytest.raises(ValueError, match=r"haste|must be|'0'"):
        peers.parse(text, common())


def test_parameters_that_differ_stand_in_the_points_alone() -> None:
    def answer(batch_size: int) -> dict[str, object]:
        known = {"batch_size": batch_size, "repeats": 5}
        return {"parameters": dict(known), "points": [known], "contenders": {str(batch_size): {}}, "complete": True}

    whole = peers.joined([answer(64), answer(256), answer(64)])
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
