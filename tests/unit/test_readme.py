"""Everything README, AGENTS, CONTRIBUTING and docs/ tell users to type exists; README's commands run."""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from photos import make_folder

from benchmarks.commands import BENCHMARKS, ORDER
from fastload.commands import bench, cli

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "AGENTS", "CONTRIBUTING")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
pytestmark = pytest.mark.skipif(not PAGES[0].exists(), reason="tests of a checkout")


def blocks(language: str) -> list[str]:
    text = "\n".join(page.read_text() for page in PAGES)
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def commands(program: str) -> list[str]:
    """Lines of shell blocks, and commands between backticks in the text."""
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    for page in PAGES:
        lines += re.findall(rf"`({program} [^`\n]+)`", page.read_text())
    return sorted({line for line in lines if f"{line} ".startswith(f"{program} ")})


def test_pages_have_the_commands_that_these_tests_are_about() -> None:
    assert {"make demo", "make test"} <= set(commands("make"))
    assert "fastload doctor" in commands("fastload")
    launchers = ("make", "fastload", "pip", "python", "torchrun", "accelerate", "nsys", "ncu")
    assert all(line.split()[0] in launchers for block in blocks("sh") for line in block.splitlines())


@pytest.mark.parametrize("line", commands("make") if PAGES[0].exists() else [])
def test_make_target_exists(line: str) -> None:
    words = [word for word in shlex.split(line)[1:] if "=" not in word]
    assert words
    makefile = (ROOT / "Makefile").read_text()
    for target in words:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
    done = subprocess.run(["make", "--dry-run", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("line", commands("fastload") if PAGES[0].exists() else [])
def test_fastload_command_exists_and_takes_its_options(line: str) -> None:
    takes_its_options(cli.COMMANDS, shlex.split(line)[1:])


@pytest.mark.parametrize("line", commands("python -m benchmarks") if PAGES[0].exists() else [])
def test_benchmark_of_a_checkout_exists_and_takes_its_options(line: str) -> None:
    takes_its_options(BENCHMARKS, shlex.split(line)[3:])


def takes_its_options(table: cli.Table, words: list[str]) -> None:
    entry = table[words.pop(0)]
    if isinstance(entry, cli.Group) and words:
        entry = entry.load().COMMANDS[words.pop(0)]
    if isinstance(entry, cli.Group):
        return
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    entry.add_arguments(parser)
    parser.parse_args(words)


def shell_lines(program: str, pages: list[Path]) -> list[str]:
    text = "\n".join(page.read_text() for page in pages if page.exists())
    shell = "\n".join(re.findall(r"^```sh\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE))
    return sorted({line for line in shell.splitlines() if line.split()[:1] == [program]})


@pytest.mark.parametrize("line", shell_lines("make", [ROOT / "docs" / "quickstart.md"]))
def test_make_command_of_the_quick_start_is_run_before_a_merge(line: str) -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    assert re.search(rf"^part {re.escape(line)}(-all| ARGS=--(quick|slow))?$", ci, flags=re.MULTILINE)


@pytest.mark.parametrize("line", [line for line in shell_lines("fastload", PAGES) if " bench " in line])
def test_benchmark_of_the_pages_is_run_before_a_merge(line: str) -> None:
    """.ci/run runs all of them; the options, too, are taken."""
    run = re.findall(r"^ *bench ([a-z,]+)", (ROOT / ".ci" / "run").read_text(), flags=re.MULTILINE)
    assert sorted(",".join(run).split(",")) == sorted(ORDER)
    assert shlex.split(line)[2] in bench.COMMANDS


@pytest.mark.parametrize(
    "line", [line for line in shell_lines("fastload", PAGES) if not re.search(" bench | examples/", line)]
)
@pytest.mark.slow
def test_command_of_the_pages_runs(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with the files that it speaks of."""
    script = "from torch.utils.data import DataLoader; print([batch.tolist() for batch in DataLoader(range(30))])"
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "my").mkdir()
    (tmp_path / "my" / "training.py").write_text(script)
    (tmp_path / "my_training.py").write_text(
        "from fastload import DataLoader\ndef make_loader():\n    return DataLoader(range(8), batch_size=2)\n"
    )
    make_folder(tmp_path / "data" / "train", 4)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(line)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    if line.startswith("fastload kernels") and done.returncode:  # Nsight Compute and a GPU it takes
        assert re.search(r"Nsight Compute|GPU|CUDA", done.stderr)
        return
    # The doctor says with 1 that something is missing, which may be so where tests run.
    assert done.returncode in ((0, 1) if "doctor" in line else (0,)), done.stderr
    assert done.stdout


def test_python_in_the_pages_compiles_and_its_imports_exist() -> None:
    assert blocks("python")
    for block in blocks("python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom):
                module = importlib.import_module(str(node.module))
                assert all(hasattr(module, name.name) for name in node.names)


def test_the_readme_is_short_and_in_order() -> None:
    lines = PAGES[0].read_text().splitlines()
    assert len(lines) <= 130
    assert [line[3:] for line in lines if line.startswith("## ")] == [
        "Install",
        "Does it fit my pipeline?",
        "Quick start",
        "Check it on your data",
        "Find the bottleneck",
        "How it works",
        "Beside other libraries",
        "When not to use it, and limits",
        "Contributing and licence",
    ]
    first_screen = "\n".join(lines[:32])
    for shown in ("+from fastload import DataLoader", "share of full GPU speed", "no loader will help", "## Install"):
        assert shown in first_screen


def test_links_to_files_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_source_files_and_folders_between_backticks_exist() -> None:
    """Named from the checkout's root, the package's or the core's."""
    for page in PAGES:
        for path in re.findall(r"`(?![.])([\w.-]+/(?:[\w./-]*(?:/|\.(?:py|pyi|sh|cpp|h|cu)))?)`", page.read_text()):
            known = "NAME" in path or any((base / path).exists() for base in (ROOT, ROOT / "fastload", ROOT / "csrc"))
            assert known, f"{page.name}: {path}"


def test_table_of_options_names_each_with_its_default() -> None:
    import inspect

    from fastload import FastLoader
    from fastload.options import Options

    table = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", (ROOT / "docs/options.md").read_text(), flags=re.MULTILINE)
    own = inspect.signature(Options).parameters
    assert [name for name, _ in table] == list(own)
    for name, text in table:
        default = inspect.signature(FastLoader).parameters[name].default
        assert text.replace('"', "'") == (str(default) if not isinstance(default, str) else repr(default))
