"""``fastload kernels``, under an ``ncu`` that plays a table back, and the roofline that its table is classified by."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from fastload import cli, kernels

DATA = Path(__file__).parent.parent / "data"

NCU = """#!{python}
import subprocess, sys
if "--query-metrics" in sys.argv:
    sys.exit(1)
{writes}
sys.exit(subprocess.call(sys.argv[sys.argv.index("--metrics") + 2:]))
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def ncu(here, monkeypatch):
    """An ``ncu`` that runs the program and hands out a table made elsewhere, as if on that device."""

    def install(writes="pass"):
        path = here / "ncu"
        path.write_text(NCU.format(python=sys.executable, writes=writes))
        path.chmod(0o755)
        monkeypatch.setattr(kernels, "find_nsight", lambda _: path)
        monkeypatch.setattr(kernels, "cuda_available", lambda: True)
        monkeypatch.setattr(kernels.roofline, "measure", lambda: kernels.read_ceilings(DATA / "ncu"))

    return install


def plays_back(text: str) -> str:
    return f"open(sys.argv[sys.argv.index('--log-file') + 1], 'w').write({text!r})"


def run(*argv):
    return cli.main(["kernels", *map(str, argv)])


def test_a_range_is_measured_and_reported_on_again(here, ncu, capfd):
    ncu(plays_back((DATA / "ncu" / "ncu.csv").read_text()))
    assert run("--range", "forward", "--keep", "kept", "--", "python", "-c", "print('trains')") == 0
    out, _ = capfd.readouterr()
    assert out.startswith("trains\nforward on NVIDIA H200")
    assert run("--range", "forward", "--from", "kept") == 0
    assert capfd.readouterr().out == out.replace("trains\n", "")


@pytest.mark.parametrize("writes", ["pass", plays_back("==PROF== Connected to process 1\n")])
def test_the_code_of_a_program_that_fails_is_the_commands(here, ncu, capfd, writes):
    ncu(writes)
    assert run("--", "python", "-c", "import sys; sys.exit(3)") == 3
    assert capfd.readouterr().err.splitlines()[-1].startswith("fastload kernels: ncu ")


def test_a_signal_ends_the_command_as_it_ends_a_shell(here, ncu, monkeypatch):
    ncu("import os; os.kill(os.getpid(), 9)")
    assert run("--", "python", "-c", "pass") == 128 + 9


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--from", "absent"], "absent/ncu.csv cannot be read (No such file or directory): measure again with --keep"),
        (["--from", "empty"], "empty has no ceilings.json"),
        (["--keep", "file", "--", "true"], "file cannot be made a folder to keep files in: File exists"),
    ],
)
def test_a_folder_that_is_none_takes_one_line_to_say(here, capfd, argv, said):
    (here / "file").touch()
    (here / "empty").mkdir()
    shutil.copy(DATA / "ncu" / "ncu.csv", here / "empty")
    assert run(*argv) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"fastload kernels: {said}")
