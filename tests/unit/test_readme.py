"""What the README and CONTRIBUTING tell people to type exists."""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from fastload import cli

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
pytestmark = pytest.mark.skipif(not PAGES[0].exists(), reason="tests of a checkout")


def blocks(language: str) -> list[str]:
    text = "\n".join(page.read_text() for page in PAGES)
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def commands(program: str) -> list[str]:
    """Lines of shell blocks, and commands between backticks in the text."""
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    for page in PAGES:
        lines += re.findall(rf"`({program} [^`\n]+)`", page.read_text())
    return sorted({line for line in lines if line.split()[:1] == [program]})


def test_pages_have_the_commands_that_these_tests_are_about() -> None:
    assert {"make demo", "make test"} <= set(commands("make"))
    assert "fastload doctor" in commands("fastload")
    assert all(line.split()[0] in ("make", "fastload") for block in blocks("sh") for line in block.splitlines())


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
    words = shlex.split(line)[1:]
    entry = cli.COMMANDS[words.pop(0)]
    if isinstance(entry, cli.Group) and words:
        entry = entry.commands[words.pop(0)]
    if isinstance(entry, cli.Group):
        return
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    importlib.import_module(entry.module).add_arguments(parser)
    parser.parse_args(words)


def test_python_in_the_pages_compiles_and_its_imports_exist() -> None:
    assert blocks("python")
    for block in blocks("python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom):
                module = importlib.import_module(str(node.module))
                assert all(hasattr(module, name.name) for name in node.names)


def test_links_to_files_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (ROOT / target).exists(), f"{page.name}: {target}"


def test_table_of_options_names_each_with_its_default() -> None:
    import inspect

    from fastload import FastLoader
    from fastload.options import Options

    table = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", PAGES[0].read_text(), flags=re.MULTILINE)
    own = inspect.signature(Options).parameters
    assert [name for name, _ in table] == list(own)
    for name, text in table:
        default = inspect.signature(FastLoader).parameters[name].default
        assert text.replace('"', "'") == (str(default) if not isinstance(default, str) else repr(default))
