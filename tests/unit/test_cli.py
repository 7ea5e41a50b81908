"""The command line: the table of commands, exit codes, and what an error looks like."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import types

import interpreters
import pytest

import fastload
from fastload.commands import cli
from fastload.commands.cli import Command, Group
from fastload.commands.run import script


def leaves(table, prefix=()):
    for name, entry in table.items():
        if isinstance(entry, Group):
            yield from leaves(entry.commands, (*prefix, name))
        else:
            yield " ".join((*prefix, name)), entry


@pytest.fixture
def command(monkeypatch):
    """Adds the command ``probe`` to the table and lets a test say what it does."""
    module = types.ModuleType("fastload_test_probe")
    module.add_arguments = lambda parser: parser.add_argument("--number", type=int, default=0)
    module.main = lambda args: args.number
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(cli.COMMANDS, "probe", Command(module.__name__, "for this test", "bench"))
    return module


@pytest.mark.parametrize(("name", "entry"), list(leaves(cli.COMMANDS)))
def test_every_command_in_the_table_has_its_two_functions(name, entry):
    module = importlib.import_module(entry.module)
    module.add_arguments(argparse.ArgumentParser(prog=f"fastload {name}"))
    assert callable(module.main)


def test_a_command_is_imported_only_when_chosen():
    modules = {entry.module for _, entry in leaves(cli.COMMANDS)}
    code = (
        "import sys, fastload\n"
        "before = set(sys.modules)\n"
        f"import fastload.commands.cli\nprint({modules!r} & (sys.modules.keys() - before))"
    )
    done = interpreters.run(["-c", code])
    assert done.stdout == "set()\n"


def test_the_package_runs_as_a_module():
    done = interpreters.run(["-m", "fastload", "--version"])
    assert (done.returncode, done.stdout) == (0, f"fastload {fastload.__version__}\n")


def test_arguments_reach_the_command_and_its_result_is_the_exit_code(command):
    assert cli.main(["probe", "--number", "7"]) == 7


def test_groups_nest(command, monkeypatch):
    monkeypatch.setitem(cli.COMMANDS, "group", Group({"inner": cli.COMMANDS["probe"]}, "for this test"))
    assert cli.main(["group", "inner", "--number", "5"]) == 5


def test_help_lists_every_command(capsys):
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["--help"])
    assert exit_info.value.code == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in cli.COMMANDS)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["bogus"], "argument command: invalid choice: 'bogus'"),
        (["bench", "bogus"], "argument command: invalid choice: 'bogus'"),
        ([], "the following arguments are required: command"),
        (["--bogus"], "the following arguments are required: command"),
        (["probe", "--bogus"], "unrecognized arguments: --bogus"),
        (["probe", "--num", "1"], "unrecognized arguments: --num 1"),
    ],
)
def test_a_wrong_command_line_gives_the_error_of_argparse(command, capsys, argv, message):
    with pytest.raises(SystemExit) as exit_info:
        cli.main(argv)
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err


def test_ctrl_c_gives_130_and_no_traceback(command, capsys):
    def interrupted(args):
        raise KeyboardInterrupt

    command.main = interrupted
    assert cli.main(["probe"]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_missing_optional_dependency_is_one_sentence_that_names_the_extra(command, capsys):
    def needs_more(args):
        import fastload_test_absent.part  # noqa: F401

    command.main = needs_more
    assert cli.main(["probe"]) == 1
    assert capsys.readouterr().err == "fastload probe needs fastload_test_absent: pip install 'fastload[bench]'\n"


def test_a_module_of_our_own_that_is_missing_is_not_blamed_on_an_extra(command):
    def broken(args):
        import fastload.no_such_module  # noqa: F401

    command.main = broken
    with pytest.raises(ModuleNotFoundError, match=r"fastload\.no_such_module"):
        cli.main(["probe"])


class Started(Exception):
    """In place of the process that ``fastload run`` would become."""


@pytest.fixture
def started(monkeypatch):
    def execve(executable, argv, environment):
        raise Started(executable, argv, environment)

    monkeypatch.setattr(script.os, "execve", execve)
    monkeypatch.setattr(script, "_interpreter_options", list)
    monkeypatch.delenv("PYTHONPATH", raising=False)

    def start(*argv):
        with pytest.raises(Started) as started:
            cli.main(["run", *argv])
        executable, command, environment = started.value.args
        assert executable == command[0] == sys.executable
        return command[1:], environment

    return start


@pytest.mark.parametrize(
    ("given", "program"),
    [
        (["train.py"], ["train.py"]),
        (["--", "train.py", "--", "x"], ["train.py", "--", "x"]),
        (
            ["--device", "cpu", "train.py", "--device", "x", "-m", "--help"],
            ["train.py", "--device", "x", "-m", "--help"],
        ),
        (["--explain", "-m", "train", "--explain"], ["-m", "train", "--explain"]),
        (["-mtrain", "a", "-c"], ["-m", "train", "a", "-c"]),
        (["-c", "pass", "-m", "x"], ["-c", "pass", "-m", "x"]),
    ],
)
def test_run_leaves_the_program_and_its_arguments_alone(started, given, program):
    assert started(*given)[0] == program


def test_run_puts_its_folder_on_the_search_path_once(started, monkeypatch):
    folder = str(script.BOOTSTRAP)
    assert started("a.py")[1]["PYTHONPATH"] == folder
    monkeypatch.setenv("PYTHONPATH", f"/one:{folder}:/two")
    assert started("a.py")[1]["PYTHONPATH"] == f"{folder}:/one:/two"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--device", "cuda:x", "a.py"], "must be auto, cpu or the name of a torch device, got 'cuda:x'"),
        (["--device-prefetch", "-1", "a.py"], "must be an integer >= 0, got '-1'"),
        (["--max-pinned-bytes", "1e9", "a.py"], "must be an integer >= 0, got '1e9'"),
        (["--dtype", "int8", "a.py"], "invalid choice: 'int8'"),
        (["--memory-format", "nchw", "a.py"], "invalid choice: 'nchw'"),
        (["--engine", "yes", "a.py"], "invalid choice: 'yes'"),
    ],
)
def test_run_refuses_a_wrong_value_at_once(capsys, argv, message):
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["run", *argv])
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("argv", [[], ["--explain"], ["-m"], ["-c"], ["--"]])
def test_run_without_a_program_says_so(capsys, argv):
    assert cli.main(["run", *argv]) == 2
    assert capsys.readouterr().err.startswith("fastload run: nothing to run: name a script")


@pytest.mark.parametrize("option", ["-E", "-I"])
@pytest.mark.slow
def test_run_refuses_a_python_that_ignores_its_environment(option):
    command = [sys.executable, option, "-m", "fastload", "run", "-c", "pass"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "PYTHONPATH and sitecustomize, which the options -E, -I and -S of Python turn off" in done.stderr
