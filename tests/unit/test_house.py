"""Check the package's structure: imports, public names, file lengths, and constructor arguments."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import multiprocessing.queues
import multiprocessing.synchronize
import pkgutil
import re
import threading
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.utils.data.dataloader
from torch.utils.data import DataLoader

import fastload
from fastload import FastLoader
from scripts.architecture import (
    CORE_RANK,
    PAGE,
    PICTURE,
    RANK,
    arrows,
    draw,
    imports_of,
    includes_of_core,
    modules_of,
    page,
    place,
)

PACKAGE = Path(fastload.__file__).parent
LINES_MAX = 900
CORE_FILES_MAX = 13  # of a folder
FOLDERS = [Path(__file__).parents[2] / name for name in ("benchmarks", "examples", "fastload", "scripts", "tests")]
CSRC = Path(__file__).parents[2] / "csrc"
FILES = [path for folder in FOLDERS for path in folder.rglob("*.py")]
WORDS_MAX = 15
# With brackets, the patterns of this file do not match themselves.
ODD_WORDS = re.compile(r"\b(who[e]ver|some[b]ody|no[b]ody|like[w]ise|said[ ]to be|seen[ ]through)\b", re.IGNORECASE)

PUBLIC = [
    "DataLoader",
    "FallbackWarning",
    "FastLoader",
    "JpegInfo",
    "Plan",
    "Report",
    "Stats",
    "Step",
    "Verification",
    "__version__",
    "all_gather_stats",
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
    "exact": True,
    "max_index_bytes": 256 << 20,
    "jpeg_index": None,
    "decode": "auto",
    "deferred": True,
    "device_cache_bytes": 0,
    "on_error": "raise",
    "max_errors": 0.01,
}


@pytest.mark.lint
def test_nothing_lies_in_the_temporary_folder_under_a_name_that_others_can_guess() -> None:
    guessable = re.compile(r"gettempdi[r]|tempfile\.m[k]temp|[\"']/[t]mp\b")
    assert len(FILES) > 200
    assert [path for path in FILES if guessable.search(path.read_text())] == []


MODULES = modules_of(PACKAGE)
NAMES = {*MODULES, "fastload._core"}


def is_below(importer: str, imported: str) -> bool:
    upper, lower = place(importer), place(imported)
    return upper == lower or RANK[upper] < RANK[lower]


@pytest.mark.lint
def test_files_import_only_from_below():
    homeless = [name for name in NAMES if place(name) not in RANK]
    assert not homeless, f"{homeless} have no place in the LAYERS of scripts/architecture.py: give them one"
    pairs = [(name, imported) for name, path in MODULES.items() for imported in imports_of(path, NAMES)]
    assert [f"{name} imports {imported}" for name, imported in pairs if not is_below(name, imported)] == []


@pytest.mark.lint
def test_the_drawing_and_the_table_of_the_layers_are_current():
    for path, text in ((PICTURE, draw(PACKAGE)), (PAGE, page(PACKAGE))):
        assert path.read_text() == text, f"run scripts/architecture.py, which writes {path.name}"


def test_finalizers_lose_no_interrupt():
    users = [name for name, path in MODULES.items() if "weakref.finalize(" in path.read_text()]
    assert users == [], "use Finalizer of fastload/torch_workers/signals.py"


def test_arrows_are_imports_that_no_other_arrows_imply(tmp_path):
    (tmp_path / "fastload" / "stats").mkdir(parents=True)
    for name, text in {
        "__init__": "from fastload.loader import FastLoader",
        "loader": "from fastload import plan, _batch\nfrom fastload.stats import stats",
        "plan": "import fastload.stats.stats",
        "_batch": "",
        "stats/__init__": "",
        "stats/stats": "",
    }.items():
        (tmp_path / "fastload" / f"{name}.py").write_text(text)
    assert arrows(tmp_path / "fastload") == [("fastload", "loader"), ("loader", "plan"), ("plan", "stats")]


OTHERS_PACKAGE = re.compile(
    r"\b(?:pip[x3]?|uv|poetry|pdm|conda|mamba)\b[^\n`]*\b(?:install|add|download)\b[^\n`#]*?(?<![\w./-])fast[l]oad(?![\w/.'’-])"
    r"|\bfast[l]oad\[\w"
)
"""A command that would take fastload from an index, where another project has the name; or one of its extras."""


def test_no_text_names_an_index_for_fastload():
    suffixes = {".py", ".md", ".sh", ".ipynb", ".txt", ".yml", ".json", ".toml", ".cpp", ".h"}
    root = PACKAGE.parent
    texts = [path for path in root.iterdir() if (path.is_file() and path.suffix in suffixes) or path.name == "Makefile"]
    for folder in (*FOLDERS, root / "docs", root / ".ci", root / "csrc", root / "notebooks"):
        texts += [path for path in folder.rglob("*") if path.suffix in suffixes and path.is_file()]
    assert len(texts) > 300
    said = {path: re.sub(r"[\"']\s*\n\s*f?[\"']", "", path.read_text()) for path in texts}  # lines of one string
    assert {path: found[0] for path, text in said.items() if (found := OTHERS_PACKAGE.search(text))} == {}


@pytest.mark.parametrize(
    "text",
    [
        "pip install US",
        "pip install --force-reinstall --no-deps US (in a clone)",
        "pip install 'US[cuda]'",
        "uv pip install US==0.1",
        "conda install -c x US",
        "pip install -U torch US",
        "with US[stores]",
    ],
)
def test_a_text_that_names_an_index_is_found(text):
    assert OTHERS_PACKAGE.search(text.replace("US", "fastload"))
    ours = (
        "pip install .",
        "in fastload's checkout: pip install '.[cuda]'",
        "pip install dist/fastload_torch-0.1-cp311.whl",
        "pip install 'fastload-torch[cuda]'",
    )
    assert not any(map(OTHERS_PACKAGE.search, ours))


# Tables of what is imported when it is first used; they name modules in strings.
TABLES = {"fastload", "fastload.sources", "fastload.commands.cli", "fastload.commands.bench"}


def texts_in(tree: ast.AST) -> set[str]:
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def modules_named_in(tree: ast.AST) -> set[str]:
    """Return strings that are a module's name or path.

    A name may be the beginning of an f-string. A path may be put together of several strings, from ``__file__`` on.
    Docstrings and messages may name modules.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = None  # a docstring
    names = MODULES.keys() - {"fastload"}
    parts = {part for name in names for part in name.split(".")}
    paths = {name.removeprefix("fastload.").replace(".", "/") for name in names if name.count(".") > 1}
    texts = texts_in(tree)
    found = {text for text in texts if text.partition(":")[0].rstrip(".") in names or text.removesuffix(".py") in paths}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.Return | ast.Expr):
            source = ast.unparse(node)
            if "__file__" in source and ".parents[" in source:
                found |= texts_in(node) & parts
    return found


@pytest.mark.slow
def test_no_string_names_a_module():
    named = {name: modules_named_in(ast.parse(path.read_text())) for name, path in MODULES.items()}
    assert all(named[name] for name in TABLES), "a table that is gone needs no exception"
    wrong = {name: texts for name, texts in named.items() if texts and name not in TABLES}
    assert wrong == {}, "import the module, or let it register itself with the one that must not import it"


@pytest.mark.parametrize(
    "source",
    [
        'module = sys.modules.get("fastload.iterators")',
        'function.__globals__["__name__"] == "fastload.nvtx.wrapping"',
        'find("fastload.plan:Plan")',
        'f"fastload.bench.{name}"',
        'FILES = [str(Path(__file__).parents[1] / "native" / f"{name}.py") for name in NAMES]',
        'file.endswith("stats/meter.py")',
    ],
)
def test_a_string_that_names_a_module_is_found(source):
    assert modules_named_in(ast.parse(source))
    others = (
        "from fastload.stats import meter",
        "'fastload.stats.meter'",
        "print('see fastload.stats.meter')",
        "x = 'fastload'",
    )
    assert not any(modules_named_in(ast.parse(other)) for other in others)


def private(name: object) -> bool:
    return isinstance(name, str) and re.fullmatch(r"_(?!_)\w+", name) is not None


def private_names_defined_in(tree: ast.AST) -> set[str]:
    """Functions, classes, variables of modules and classes, and the attributes that methods set."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            found.add(node.attr)
        if isinstance(node, ast.Module | ast.ClassDef):
            for assignment in node.body:
                if isinstance(assignment, ast.Assign | ast.AnnAssign):  # with its value, for __slots__
                    parts = list(ast.walk(assignment))
                    found.update(n.id for n in parts if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
                    if "__slots__" in ast.unparse(assignment):
                        found.update(str(n.value) for n in parts if isinstance(n, ast.Constant))
    return {name for name in found if private(name)}


def private_names_used_in(tree: ast.AST) -> set[str]:
    """Attributes, also those that ``getattr`` and the like are asked for, and imported names."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr", "delattr"):
            found.update(n.value for n in node.args if isinstance(n, ast.Constant) and private(n.value))
        if isinstance(node, ast.ImportFrom):
            found.update(alias.name for alias in node.names if f"{node.module}.{alias.name}" not in MODULES)
    return {name for name in found if private(name)}


def private_names_of(*modules: ModuleType) -> set[str]:
    trees = [ast.parse(inspect.getsource(module)) for module in modules]
    return set().union(*(private_names_used_in(tree) | private_names_defined_in(tree) for tree in trees))


@functools.cache
def names_of_others(place: str) -> set[str]:
    """Private names in torch's loader; in torch_workers, which ends workers and releases locks, also Python's."""
    python = (multiprocessing.queues, multiprocessing.synchronize, threading) if place == "torch_workers" else ()
    return private_names_of(torch.utils.data.dataloader, *python)


@pytest.mark.lint
def test_files_use_no_private_names_of_each_other():
    trees = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}
    defined = {name: private_names_defined_in(tree) for name, tree in trees.items()}
    everywhere = set().union(*defined.values())
    wrong = {
        name: ((private_names_used_in(tree) - defined[name]) & everywhere) - names_of_others(place(name))
        for name, tree in trees.items()
    }
    assert {name: names for name, names in wrong.items() if names} == {}


@pytest.mark.lint
def test_a_class_name_stands_once_in_the_package():
    where: dict[str, list[str]] = {}
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name, []).append(name)
    assert {name: files for name, files in where.items() if len(files) > 1} == {}


@pytest.mark.lint
def test_no_file_imports_itself_by_way_of_others():
    graph = {name: imports_of(path, NAMES) for name, path in MODULES.items()}
    done: set[str] = set()

    def walk(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " → ".join([*trail, name])
        if name in done:
            return
        for imported in sorted(graph.get(name, ())):
            if imported != "fastload" or name != "fastload":
                walk(imported, (*trail, name))
        done.add(name)

    for name in sorted(graph):
        walk(name, ())


def test_the_parser_of_imports_sees_what_it_should(tmp_path):
    source = tmp_path / "some.py"
    source.write_text(
        "from typing import TYPE_CHECKING\n"
        "import torch\n"
        "from fastload.nvtx import stages\n"
        "from fastload import FastLoader\n"
        "from fastload._batch import HostBatch\n"
        "if TYPE_CHECKING:\n"
        "    from fastload.plan import Plan\n"
        "def late():\n"
        "    import fastload.device.transfer\n"
    )
    below = {"fastload.nvtx.stages", "fastload._batch", "fastload.device.transfer"}
    assert imports_of(source, NAMES) == {"fastload", "fastload.plan", *below}
    assert is_below("fastload.loader", "fastload._batch")
    assert not is_below("fastload._batch", "fastload.loader")
    assert not is_below("fastload.memory.slots", "fastload.stats.meter")
    assert is_below("fastload.prefetch", "fastload.device.transfer")


@pytest.mark.lint
def test_files_of_the_core_include_only_from_below():
    def is_below(includer: Path, included: Path) -> bool:
        upper, lower = str(includer.parent), str(included.parent)
        return upper == lower or CORE_RANK[upper] < CORE_RANK[lower]

    pairs = includes_of_core(CSRC)
    assert len(pairs) > 250
    assert [f"{includer} includes {included}" for includer, included in pairs if not is_below(includer, included)] == []


@pytest.mark.lint
def test_folders_of_the_core_have_a_place_and_few_files():
    counts = Counter(str(path.parent.relative_to(CSRC)) for path in CSRC.rglob("*") if path.is_file())
    assert counts.keys() == CORE_RANK.keys(), "give each folder a line of CORE in scripts/architecture.py"
    assert {folder: count for folder, count in counts.items() if count > CORE_FILES_MAX} == {}


@pytest.mark.lint
def test_files_stay_short():
    files = {**MODULES, **{str(path): path for path in CSRC.rglob("*") if path.is_file()}}
    lines = {name: len(path.read_text().splitlines()) for name, path in files.items()}
    assert {name: count for name, count in lines.items() if count >= LINES_MAX} == {}, "each is two files"


@pytest.mark.lint
def test_first_lines_of_docstrings_are_short_and_no_word_is_odd():
    found = []
    for path in FILES:
        text = path.read_text()
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        docs = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(text)) if isinstance(node, documented)]
        found += [(path.name, doc) for doc in docs if len(doc.partition("\n")[0].split()) > WORDS_MAX]
        found += [(path.name, odd[0]) for odd in ODD_WORDS.finditer(text)]
    assert found == []


@pytest.mark.lint
def test_scripts_import_names_that_exist():
    missing = []
    for path in FOLDERS[3].glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("fastload", "benchmarks"):
                module = importlib.import_module(node.module)
                found = {name.name for name in node.names if hasattr(module, name.name)}
                found |= {info.name for info in pkgutil.iter_modules(getattr(module, "__path__", []))}
                missing += [(path.name, name.name) for name in node.names if name.name not in found]
    assert missing == []


def test_the_public_names_are_these():
    assert fastload.__all__ == PUBLIC
    assert fastload.__all__ == sorted(fastload.__all__)
    assert all(hasattr(fastload, name) for name in fastload.__all__)


def test_the_package_defines_nothing_of_its_own():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    body = [node for node in tree.body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]
    assert {type(node) for node in body} <= {ast.ImportFrom, ast.If, ast.Assign}
    assigned = [ast.unparse(target) for node in body if isinstance(node, ast.Assign) for target in node.targets]
    assert assigned == ["__all__"]
    (only_for_types,) = (node for node in body if isinstance(node, ast.If))
    assert [ast.unparse(node.targets[0]) for node in only_for_types.orelse] == ["(__getattr__, __dir__)"]


def test_type_checkers_see_the_names_where_they_come_from():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    (only_for_types,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in only_for_types.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.asname or alias.name: f"{node.module}:{alias.name}" for node in imports for alias in node.names}
    assert seen == ast.literal_eval(only_for_types.orelse[0].value.args[1])
    assert sorted([*seen, "__version__"]) == fastload.__all__
    assert set(fastload.__all__) <= set(dir(fastload))
    with pytest.raises(AttributeError, match="module 'fastload' has no attribute 'no_such_name'"):
        getattr(fastload, "no_such_name")  # noqa: B009 - a type checker knows that there is none


def test_the_package_is_typed():
    assert (PACKAGE / "py.typed").exists()


def test_the_constructor_takes_torchs_arguments_and_its_own():
    """Torch's arguments have its names, order, kinds and defaults; ours are keyword-only and last."""
    torchs = inspect.signature(DataLoader).parameters
    ours = inspect.signature(FastLoader).parameters
    assert list(ours) == [*torchs, *OWN]
    for name, parameter in torchs.items():
        assert (ours[name].kind, ours[name].default) == (parameter.kind, parameter.default), name
    for name, default in OWN.items():
        assert (ours[name].kind, ours[name].default) == (inspect.Parameter.KEYWORD_ONLY, default), name
