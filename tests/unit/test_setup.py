"""Test what scripts/setup.sh installs and prints on incomplete machines."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETUP = ROOT / "scripts" / "setup.sh"
pytestmark = pytest.mark.skipif(not SETUP.exists(), reason="tests of a checkout")


class Machine:
    """A checkout and a PATH whose commands are scripts that log themselves."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.tree = folder / "tree"
        self.log = folder / "log"
        for path in (self.bin, self.tree / "scripts", self.tree / "csrc"):
            path.mkdir(parents=True)
        shutil.copy(SETUP, self.tree / "scripts")
        (self.tree / "pyproject.toml").touch()
        (self.tree / "CMakeLists.txt").touch()
        for name in ("bash", "dirname", "cat", "find", "xargs", "echo", "grep", "touch", "mkdir", "rm"):
            (self.bin / name).symlink_to(shutil.which(name) or name)
        # A Python that has everything, and makes environments that have everything.
        self.command(
            "python3",
            'case "$*" in *version_info\\[:2\\]*) echo 3.12;; '
            '"-m venv"*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; cp "$0" "$3/bin/pip";; esac',
        )
        (self.bin / "cp").symlink_to(shutil.which("cp") or "cp")
        self.command("c++", "exit 0")
        self.command("id", "echo 1000")

    def command(self, name: str, body: str) -> None:
        path = self.bin / name
        path.write_text(f'#!/bin/bash\necho "{name} $*" >>{self.log}\n{body}\n')
        path.chmod(0o755)

    def run(self, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(self.tree / "scripts" / "setup.sh")],
            env={"PATH": str(self.bin), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    def logged(self, start: str) -> list[str]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if line.startswith(start)]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_complete_machine_needs_no_system_package_and_a_second_run_does_nothing(machine: Machine) -> None:
    machine.command("apt-get", "exit 1")
    done = machine.run()
    assert done.returncode == 0, done.stderr
    assert machine.logged("apt-get") == []
    assert any("-e .[dev]" in line for line in machine.logged("python3"))  # .venv/bin/pip is a copy
    machine.log.unlink()
    assert machine.run().returncode == 0
    assert not machine.log.exists()


def test_changed_core_is_built_again_without_looking_at_other_packages(machine: Machine) -> None:
    assert machine.run().returncode == 0
    machine.log.unlink()
    stamp = machine.tree / ".venv" / ".fastload-core"
    os.utime(stamp, (0, stamp.stat().st_mtime - 1))  # the clock of the file system is coarse
    (machine.tree / "csrc" / "new.cpp").touch()
    assert machine.run().returncode == 0
    installs = [line for line in machine.logged("python3") if " install " in line]
    assert len(installs) == 1
    assert "--no-deps -e ." in installs[0]
    assert "FASTLOAD_WERROR=OFF" in installs[0]
    machine.log.unlink()
    assert machine.run(FASTLOAD_WERROR="ON").returncode == 0
    assert "FASTLOAD_WERROR=ON" in " ".join(machine.logged("python3"))


def test_the_demo_installs_what_it_needs_and_all_else_comes_with_the_first_test(machine: Machine) -> None:
    assert machine.run(EXTRAS="bench").returncode == 0
    assert any("-e .[bench]" in line for line in machine.logged("python3"))
    machine.log.unlink()
    assert machine.run(EXTRAS="bench").returncode == 0
    assert not machine.log.exists()
    assert machine.run().returncode == 0
    assert any("-e .[dev]" in line for line in machine.logged("python3"))
    machine.log.unlink()
    assert machine.run(EXTRAS="bench").returncode == 0  # dev has what the demo needs
    assert not machine.log.exists()


@pytest.mark.parametrize("extras", ["bench", "dev"])
def test_the_demo_uses_a_torch_that_is_there(machine: Machine, extras: str) -> None:
    packages = machine.tree / "packages"
    packages.mkdir()
    machine.command(
        "python3",
        'case "$*" in *version_info\\[:2\\]*) echo 3.12;;\n'
        '"-m venv"*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; cp "$0" "$3/bin/pip";;\n'
        f"*torch.__file__*) echo /opt/torch;;\n*purelib*) echo {packages};; esac",
    )
    done = machine.run(EXTRAS=extras)
    assert done.returncode == 0, done.stderr
    link = packages / "fastload-torch.pth"
    assert link.exists() is ("uses the torch in /opt/torch" in done.stdout) is (extras == "bench")
    assert extras == "dev" or link.read_text() == "/opt/torch\n"


@pytest.mark.parametrize("can_install", [True, False])
def test_a_library_that_the_core_can_do_without_is_installed_or_named(machine: Machine, can_install: bool) -> None:
    machine.command("c++", 'case "$*" in *-lwebp*) exit 1;; esac')
    machine.command("apt-get", "exit 0")
    machine.command("id", f"echo {0 if can_install else 1000}")
    (machine.bin / "env").symlink_to(shutil.which("env") or "env")
    done = machine.run()
    assert done.returncode == 0, done.stderr
    installs = machine.logged("apt-get install")
    assert [line.split()[-1] for line in installs] == (["libwebp-dev"] if can_install else [])
    assert ("goes on without libwebp-dev: WebP files will be left to Pillow" in done.stdout) is not can_install
    assert any("-e .[dev]" in line for line in machine.logged("python3"))


def test_failed_installation_is_tried_again(machine: Machine) -> None:
    with (machine.bin / "python3").open("a") as python:
        python.write('case "$1" in install) exit 1;; esac\n')
    assert machine.run().returncode != 0
    assert machine.run().returncode != 0
    assert not (machine.tree / ".venv" / ".fastload-packages").exists()


def test_old_python_is_refused_with_a_remedy(machine: Machine) -> None:
    machine.command("python3", 'case "$*" in --version) echo Python 3.9.2;; *version_info*) exit 1;; esac')
    done = machine.run()
    assert done.returncode == 1
    assert "needs Python 3.11 or newer, but python3 is Python 3.9.2" in done.stderr
    assert "make PYTHON=" in done.stderr
    done = machine.run(PYTHON="python9")
    assert "there is no python9 here" in done.stderr


def test_without_rights_it_says_the_exact_command(machine: Machine) -> None:
    machine.command("c++", "exit 1")
    machine.command("apt-get", "exit 0")
    done = machine.run()
    assert done.returncode == 1
    assert "sudo apt-get install libjpeg" in done.stderr
    assert "-dev" in done.stderr
    assert machine.logged("apt-get") == []
    assert not (machine.tree / ".venv").exists()


def test_with_passwordless_sudo_it_installs_what_is_missing(machine: Machine) -> None:
    machine.command("c++", f"[ -e {machine.bin}/installed ]")
    machine.command("sudo", 'if [ "$2" = env ]; then shift 2; "$@"; fi')
    machine.command("apt-get", f'case "$1" in install) touch {machine.bin}/installed;; esac')
    done = machine.run()
    assert done.returncode == 0, done.stderr
    (install,) = machine.logged("apt-get install")
    assert install.startswith("apt-get install -y --no-install-recommends libjpeg")
    assert machine.logged("apt-get update")


def test_packages_that_do_not_help_are_named(machine: Machine) -> None:
    machine.command("c++", "exit 1")
    machine.command("id", "echo 0")
    machine.command("apt-get", "exit 0")
    done = machine.run()
    assert done.returncode == 1
    assert "installed but not found: libjpeg" in done.stderr


def test_cpu_only_torch_that_does_not_fit_is_replaced(machine: Machine) -> None:
    """torchvision loads only once another torch than 9.9.9+cpu was installed."""
    machine.command(
        "python3",
        'here=$(dirname "$0")\n'
        'case "$*" in *version_info\\[:2\\]*) echo 3.12;;\n'
        '"-m venv"*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; cp "$0" "$3/bin/pip";;\n'
        "*metadata*) echo 9.9.9+cpu;;\n"
        '*torch!=9.9.9+cpu*) touch "$here/replaced";;\n'
        '*torchvision.ops*) [ -e "$here/replaced" ] || { echo "nms does not exist" >&2; exit 1; };;\n'
        "esac",
    )
    done = machine.run()
    assert done.returncode == 0, done.stderr
    assert (machine.tree / ".venv" / "bin" / "replaced").exists()


def test_torchvision_that_does_not_load_is_an_error_with_a_remedy(machine: Machine) -> None:
    machine.command(
        "python3",
        'case "$*" in *version_info\\[:2\\]*) echo 3.12;;\n'
        '"-m venv"*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; cp "$0" "$3/bin/pip";;\n'
        "*metadata*) echo 9.9.9;;\n"
        '*torchvision.ops*) echo "operator torchvision::nms does not exist" >&2; exit 1;;\n'
        "esac",
    )
    done = machine.run()
    assert done.returncode == 1
    assert "operator torchvision::nms does not exist" in done.stderr
    assert "does not load beside torch 9.9.9" in done.stderr
    assert "pip install --force-reinstall torch torchvision" in done.stderr
    assert not (machine.tree / ".venv" / ".fastload-packages").exists()


@pytest.mark.skipif(not (ROOT / "CMakeLists.txt").exists() or not shutil.which("cmake"), reason="needs cmake")
def test_without_a_compiler_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    command = [
        str(shutil.which("cmake")),
        "-G",
        "Unix Makefiles",
        "-DCMAKE_MAKE_PROGRAM=make",
        "-S",
        str(ROOT),
        "-B",
        ".",
    ]
    done = subprocess.run(command, env={"PATH": ""}, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert said.count("CMake Error") == 1
    assert "needs a C++ compiler and the headers of libjpeg-turbo and of Python" in said
    assert "apt-get install g++ libjpeg62-turbo-dev" in said
