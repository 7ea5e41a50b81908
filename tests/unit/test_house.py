"""The house plan, kept by tests: who imports whom, what is public, how long a file is, what the constructor takes."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

import fastload
from fastload import FastLoader

PACKAGE = Path(fastload.__file__).parent
LINES_MAX = 450

# From top to bottom; a file imports only from lines below its own, or from its own folder.
LAYERS = [
    {"__main__"},
    {"cli"},
    {"kernels"},
    {"profile"},
    {"tune"},
    {"run", "doctor", "bench", "_bootstrap"},
    {"standin", "rates"},
    {"fastload"},  # the public names
    {"verify"},
    {"loader"},
    {"device_iterator"},
    {"runtime"},
    {"plan"},
    {"lowered"},
    {"engines", "device"},
    {"memory"},
    {"host", "insight", "vision"},
    {"options", "_factory", "_checks", "_checks_gpu", "_checks_pil"},
    {"_shutdown"},
    {"_nvtx", "_machine", "_version", "_core", "_interrupts"},
    {"_ranges"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
SIBLINGS = {"_checks": "checks", "_checks_gpu": "checks", "_checks_pil": "checks"}  # one folder in all but name

PUBLIC = [
    "DataLoader",
    "FastLoader",
    "JpegInfo",
    "Plan",
    "Report",
    "Stats",
    "Step",
    "Verification",
    "__version__",
    "annotate",
    "annotate_modules",
    "capture",
    "jpeg_info",
    "prefetch_to_device",
    "progress",
    "verify",
]

OWN = {
    "device": "auto",
    "memory_format": torch.channels_last,
    "dtype": None,
    "device_prefetch": 1,
    "engine": "auto",
    "max_pinned_bytes": None,
    "randomness": "worker",
}


def test_nothing_lies_in_the_temporary_folder_under_a_name_that_others_can_guess() -> None:
    folders = [Path(__file__).parents[2] / name for name in ("benchmarks", "examples", "fastload", "scripts", "tests")]
    found = [path for folder in folders for path in folder.rglob("*.py") if path != Path(__file__)]
    assert len(found) > 200
    guessable = re.compile(r"gettempdir|tempfile\.mktemp|[\"']/tmp\b")
    assert [path for path in found if guessable.search(path.read_text())] == []


def sources() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    """``fastload.device.transfer`` of its file; the package itself is ``fastload``."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path) for path in sources()} | {"fastload._core"}


def place(module: str) -> str:
    """Its place in the house: the file or folder right below the package."""
    return module.split(".")[1] if "." in module else "fastload"


def imports_of(path: Path) -> set[str]:
    """The modules of the package that a file imports when it runs, in functions too; not those for types alone."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for child in node.orelse:
                visit(child)
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names if alias.name in MODULES)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively, line {node.lineno}"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.update({name if name in MODULES else node.module} & MODULES)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


def is_below(importer: str, imported: str) -> bool:
    upper, lower = place(importer), place(imported)
    if SIBLINGS.get(upper, upper) == SIBLINGS.get(lower, lower):
        return True
    return RANK[upper] < RANK[lower]


@pytest.mark.parametrize("path", sources(), ids=name_of)
def test_a_file_imports_only_from_below(path):
    name = name_of(path)
    assert place(name) in RANK, f"{name} has no place in LAYERS: give it one"
    wrong = sorted(imported for imported in imports_of(path) if not is_below(name, imported))
    assert not wrong, f"{name} imports {wrong} from above or beside it"


def test_no_file_imports_itself_by_way_of_others():
    graph = {name_of(path): imports_of(path) for path in sources()}
    done: set[str] = set()

    def walk(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " → ".join([*trail, name])
        if name in done:
            return
        for imported in sorted(graph.get(name, ())):
            if imported != "fastload" or name_of(PACKAGE / "__init__.py") != name:
                walk(imported, (*trail, name))
        done.add(name)

    for name in sorted(graph):
        walk(name, ())


def test_the_parser_of_imports_sees_what_it_should(tmp_path):
    source = tmp_path / "some.py"
    source.write_text(
        "from typing import TYPE_CHECKING\n"
        "import torch\n"
        "from fastload import _nvtx, FastLoader\n"
        "from fastload._batch import HostBatch\n"
        "if TYPE_CHECKING:\n"
        "    from fastload.plan import Plan\n"
        "def late():\n"
        "    import fastload.device.transfer\n"
    )
    assert imports_of(source) == {"fastload.nvtx.stages", "fastload", "fastload._batch", "fastload.device.transfer"}
    assert is_below("fastload.loader", "fastload._batch")
    assert not is_below("fastload._batch", "fastload.loader")
    assert not is_below("fastload.engines.workers", "fastload.device.transfer")
    assert is_below("fastload.prefetch", "fastload.device.transfer")


@pytest.mark.parametrize("path", sources(), ids=name_of)
def test_files_stay_short(path):
    lines = len(path.read_text().splitlines())
    assert lines < LINES_MAX, f"{path.name} has {lines} lines: it is two files"


def test_the_public_names_are_these():
    assert fastload.__all__ == PUBLIC
    assert fastload.__all__ == sorted(fastload.__all__)
    assert all(hasattr(fastload, name) for name in fastload.__all__)


def test_the_package_defines_nothing_of_its_own():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    kinds = {
        type(node) for node in tree.body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    }
    assert kinds <= {ast.ImportFrom, ast.Import, ast.Assign}
    assigned = [ast.unparse(target) for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    assert assigned == ["__all__"]


def test_the_package_is_typed():
    assert (PACKAGE / "py.typed").exists()


def test_the_constructor_takes_torchs_arguments_and_its_own():
    """Same names, order, kinds and defaults as the installed torch's; its own are keyword-only and come last."""
    torchs = inspect.signature(DataLoader).parameters
    ours = inspect.signature(FastLoader).parameters
    assert list(ours) == [*torchs, *OWN]
    for name, parameter in torchs.items():
        assert (ours[name].kind, ours[name].default) == (parameter.kind, parameter.default), name
    for name, default in OWN.items():
        assert (ours[name].kind, ours[name].default) == (inspect.Parameter.KEYWORD_ONLY, default), name
