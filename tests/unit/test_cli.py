"""The command line: the table of commands, exit codes, and what an error looks like."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import interpreters
import pytest

import fastload
from benchmarks.__main__ import main as run_benchmark
from benchmarks._checkout import ROOT
from benchmarks.commands import BENCHMARKS
from fastload._arguments import file_in_new_folder, picture_file
from fastload.commands import bench, cli
from fastload.commands.cli import Command, Group
from fastload.commands.run import script


def leaves(table, prefix=()):
    for name, entry in table.items():
        if isinstance(entry, Group):
            yield from leaves(entry.load().COMMANDS, (*prefix, name))
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
    entry.add_arguments(argparse.ArgumentParser(prog=f"fastload {name}"))
    assert callable(entry.load().main)


LOADER_MODULES = 64
SLOW_TO_IMPORT = ("PIL", "numpy", "matplotlib", "nvtx", "rich", "scipy", "skimage", "torch", "torchvision", "tqdm")
HELP = """
import sys
from {program} import main
for command in {commands}:
    try:
        main([*command.split(), "--help"])
    except SystemExit as ended:
        assert ended.code == 0, command
    if loaded := sys.modules.keys() & {slow}:
        sys.exit(f"{{command}} imports {{loaded}}")
"""


@pytest.mark.parametrize(
    ("program", "names"),
    [
        ("fastload.commands.cli", ["", "bench", *(name for name, _ in leaves(cli.COMMANDS))]),
        ("benchmarks.__main__", ["", *BENCHMARKS]),
    ],
)
def test_help_needs_neither_torch_nor_any_other_package_that_takes_time(program, names):
    code = HELP.format(program=program, slow=set(SLOW_TO_IMPORT), commands=names)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("usage: ") == len(names)
    assert max(map(len, done.stdout.splitlines())) <= 80


def imported_by(code):
    """The modules that ``code`` imports after torch, without the standard library's and torch's own."""
    program = f"import sys, torch, torch.utils.data; old = set(sys.modules); {code}; print(*set(sys.modules) - old)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return [name for name in done.stdout.split() if name.partition(".")[0] not in {*sys.stdlib_module_names, "torch"}]


@pytest.mark.slow
def test_the_package_imports_little():
    assert sorted(imported_by("import fastload")) == ["fastload", "fastload._lazy", "fastload._version"]
    loader = imported_by("from fastload import DataLoader")
    assert {name.partition(".")[0] for name in loader} == {"fastload"}
    assert len(loader) <= LOADER_MODULES, "each costs about 0.5 ms of every start of a training script"


def test_the_package_runs_as_a_module():
    done = interpreters.run(["-m", "fastload", "--version"])
    assert (done.returncode, done.stdout) == (0, f"fastload {fastload.__version__}\n")


def test_arguments_reach_the_command_and_its_result_is_the_exit_code(command):
    assert cli.main(["probe", "--number", "7"]) == 7


def test_groups_nest(command, monkeypatch):
    command.COMMANDS, command.IN_CHECKOUT = {"inner": cli.COMMANDS["probe"]}, ()
    monkeypatch.setitem(cli.COMMANDS, "group", Group(command.__name__, "for this test"))
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


@pytest.mark.parametrize(("argv", "listed"), [([], cli.COMMANDS), (["bench"], bench.COMMANDS)])
def test_without_a_command_the_commands_are_listed(capsys, argv, listed):
    with pytest.raises(SystemExit) as exit_info:
        cli.main(argv)
    out, err = capsys.readouterr()
    assert (exit_info.value.code, out) == (2, "")
    assert all(f"\n    {name} " in err for name in listed)


def test_a_factory_in_a_file_is_named_as_a_module(capsys):
    assert cli.main(["verify", "train.py:make"]) == 2
    said = "the module must be given without .py, as train:make, got 'train.py:make'\n"
    assert capsys.readouterr().err == f"fastload verify: {said}"


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
    said = "fastload probe needs fastload_test_absent; in fastload's checkout: pip install '.[bench]'\n"
    assert capsys.readouterr().err == said


def test_a_missing_extra_is_found_before_the_command_begins(command, capsys, monkeypatch):
    begun = []
    command.main = lambda args: begun.append(args) or 0
    needs = {"fastload_test_absent": lambda args: args.number > 1, "skimage_absent": lambda args: args.number > 2}
    monkeypatch.setitem(cli.COMMANDS, "probe", Command(command.__name__, "for this test", "bench", needs))
    assert cli.main(["probe", "--number", "1"]) == 0
    assert (len(begun), capsys.readouterr().err) == (1, "")
    assert cli.main(["probe", "--number", "3"]) == 1
    said = "fastload probe needs fastload_test_absent, skimage_absent; in fastload's checkout: pip install '.[bench]'\n"
    assert (len(begun), capsys.readouterr().err) == (1, said)


def test_what_a_command_needs_is_in_its_extra():
    project = tomllib.loads((Path(fastload.__file__).parents[1] / "pyproject.toml").read_text())["project"]
    given = dict.fromkeys(("json", "png", "plot", "data", "factory"), "rich")
    for _, entry in leaves(cli.COMMANDS):
        for name, wanted in entry.needs.items():
            assert entry.extra is not None
            assert {"skimage": "scikit-image"}.get(name, name) in project["optional-dependencies"][entry.extra]
            assert wanted(argparse.Namespace(**given)) or wanted(argparse.Namespace(**dict.fromkeys(given)))


def test_a_reader_that_leaves_a_pipe_early_ends_the_command_without_a_traceback(tmp_path):
    (tmp_path / "fastload_probe.py").write_text(
        "def add_arguments(parser): pass\ndef main(args):\n    print('x' * 10**6)\n    return 0\n"
    )
    code = (
        "import sys; from fastload.commands import cli\n"
        "cli.COMMANDS['probe'] = cli.Command('fastload_probe', 'for this test'); sys.exit(cli.main(['probe']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as program:
        program.stdout.read(1)
        program.stdout.close()
        said = program.stderr.read()
    assert (program.returncode, said) == (141, b"")


def test_a_module_of_our_own_that_is_missing_is_not_blamed_on_an_extra(command):
    def broken(args):
        import fastload.no_such_module  # noqa: F401

    command.main = broken
    with pytest.raises(ModuleNotFoundError, match=r"fastload\.no_such_module"):
        cli.main(["probe"])


def numbers():
    for program, table in ((["bench"], bench.COMMANDS), ([], BENCHMARKS)):
        for name, entry in table.items():
            parser = argparse.ArgumentParser()
            entry.add_arguments(parser)
            for action in parser._actions:
                if action.type not in (None, Path, file_in_new_folder, picture_file, float):
                    yield [*program, name], action.option_strings[0]


@pytest.mark.parametrize(("command", "option"), list(numbers()), ids=str)
def test_a_benchmark_refuses_numbers_that_it_cannot_use(capsys, command, option):
    main = cli.main if command[0] == "bench" else run_benchmark
    for wrong in ("-1", "many", *(["0"] if option != "--seed" else [])):
        with pytest.raises(SystemExit):
            main([*command, option, wrong])
        assert f"error: argument {option}: must be " in capsys.readouterr().err


def test_a_benchmark_refuses_a_file_that_cannot_be_written_before_it_measures(tmp_path, capsys):
    (file := tmp_path / "file").touch()
    for wrong in (tmp_path, file / "x.json"):
        with pytest.raises(SystemExit):
            cli.main(["bench", "demo", "--json", str(wrong)])
        assert f"--json: must be a file that can be written, got '{wrong}'" in capsys.readouterr().err
    for right in (file, tmp_path / "new.json", tmp_path / "new" / "folder" / "x.json"):
        assert file_in_new_folder(str(right)) == right


def test_an_unknown_case_of_slots_is_refused_without_a_gpu_too(capsys):
    assert run_benchmark(["slots", "--case", "none"]) == 2
    assert "--case must be one of 'fp32 images', " in capsys.readouterr().err


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
