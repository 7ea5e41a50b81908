"""Count how many small changes of the code the tests notice: ``make mutants``.

    python scripts/mutants.py --count 300 --out benchmarks/results/mutants.json

Cosmic Ray makes the mutants of four folders of ``fastload/``; a fixed seed draws a sample of positions, and a mutant of
each. Tests run in copies of the checkout, one for each job, whose environments find the copy's package and no other:

1. The quick suite runs once, with a mark in front of every statement of the sample. This tells which tests reach a
   mutant, in whatever thread or process, how long they take, and which fail anyway; those are left out.
2. For each mutant, the tests that reach it run, until one fails or hangs: the quickest, then the quickest of each file
   in turn, for at most ``--budget`` seconds by the times of the first run. A mutant that no test reaches survives.
3. Tests that killed run once more, unchanged: what fails there has killed nothing.
4. The mutants that are left meet the slow suite in the same way: tests marked slow, and all examples of Hypothesis.

Times and each mutant's end are kept in ``build/mutants``: a run that was stopped goes on. Delete it after a change.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import contextlib
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import Queue
from typing import Any, Final, cast

import pytest

HERE: Final = Path(__file__).resolve()
FOLDERS: Final = tuple(
    f"fastload/{name}"
    for name in (
        "check",
        "device",
        "lazy",
        "memory",
        "native",
        "pipeline",
        "python_samples",
        "randomness",
        "state",
        "workers",
    )
)
# The same for what they compare here (None, enums, small numbers), or in need of arguments.
LEFT_OUT: Final = ("Is_Eq", "IsNot_NotEq", "Eq_Is", "NotEq_IsNot", "VariableReplacer", "VariableInserter")
FIRST_SHARE: Final = 0.1  # of the budget
OTHER_PACKAGE: Final = 70  # exit code
TEXTS: Final = ("_log", "log", "warnings.", "TypeVar")
TYPES: Final = ("dataclass", "overload", "override")
MARKS: Final = """
import builtins, mmap, pathlib
with pathlib.Path(__file__).with_suffix(".bytes").open("r+b") as file:
    builtins._mutant_marks = mmap.mmap(file.fileno(), 0)
"""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file."""

    file: str
    line: int
    operator: str
    before: str
    after: str
    code: str


class Source:
    """A file and its possible mutants."""

    def __init__(self, tree: Path, file: str) -> None:
        from cosmic_ray.ast import ast_nodes, get_ast

        self.file, self.code = file, (tree / file).read_text()
        skipped = list(_skipped(ast.parse(self.code)))
        nodes = list(ast_nodes(get_ast(self.code)))
        self.positions: dict[tuple[int, int], list[tuple[str, int]]] = {}
        for name, operator in _operators().items():
            found = [start for node in nodes for start, _ in operator.mutation_positions(node)]
            for occurrence, start in enumerate(found):
                if not any(first <= start < last for first, last in skipped):
                    self.positions.setdefault(start, []).append((name, occurrence))

    def mutant(self, line: int, name: str, occurrence: int) -> Mutant | None:
        """Make one mutant; None if it is the same program, or none at all."""
        from cosmic_ray.mutating import mutate_code

        code = mutate_code(self.code, _operators()[name], occurrence)
        with contextlib.suppress(SyntaxError):
            if code is not None and ast.dump(ast.parse(code)) != ast.dump(ast.parse(self.code)):
                pairs = zip(self.code.splitlines(), code.splitlines(), strict=False)
                before, after = next((a.strip(), b.strip()) for a, b in pairs if a != b)
                return Mutant(self.file, line, name, before, after, code)
        return None


@cache
def _operators() -> dict[str, Any]:
    from cosmic_ray.plugins import get_operator, operator_names

    names = sorted(name for name in operator_names() if not name.endswith(LEFT_OUT))
    return {name.removeprefix("core/"): get_operator(name)() for name in names}


def _skipped(module: ast.Module) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Find what is no behaviour: annotations, options of dataclasses, texts."""
    for node in ast.walk(module):
        parts: list[Any] = []
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Call) and ast.unparse(node.func).startswith(TEXTS)):
            parts = [node]
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            parts = [node.test, *node.body]
        elif isinstance(node, ast.arg | ast.AnnAssign):
            parts = [node.annotation]
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            parts = [d for d in node.decorator_list if ast.unparse(d).startswith(TYPES)]
            parts += [node.returns] if isinstance(node, ast.FunctionDef) else []
        for part in filter(None, parts):  # a decorator begins with its @, one column earlier
            yield (part.lineno, max(0, part.col_offset - 1)), (part.end_lineno, part.end_col_offset)


def sample(sources: Sequence[Source], count: int, seed: int) -> list[Mutant]:
    """Draw ``count`` positions, and one mutant of each."""
    generator, drawn = random.Random(seed), []
    positions = [(source, *start) for source in sources for start in sorted(source.positions)]
    for source, line, column in generator.sample(positions, len(positions)):
        mutant = source.mutant(line, *generator.choice(source.positions[line, column]))
        if mutant is not None:
            drawn.append(mutant)
        if len(drawn) == count:
            break
    return drawn


def matching(sources: Sequence[Source], wanted: Sequence[dict[str, Any]]) -> list[Mutant]:
    """Find the mutants that change the same text in the same way as ``wanted``."""
    found = {}
    for source in sources:
        lines = source.code.splitlines()
        for (line, _), variants in source.positions.items():
            for name, occurrence in variants:
                for entry in wanted:
                    if entry["operator"] == name and entry["before"] == lines[line - 1].strip():
                        mutant = source.mutant(line, name, occurrence)
                        if mutant is not None and mutant.after == entry["after"]:
                            found.setdefault((name, mutant.before, mutant.after), mutant)
    return list(found.values())


def marked(code: str, lines: dict[int, int], module: int) -> tuple[str, set[int]]:
    """Put marks in front of statements.

    Args:
        code: A module's source.
        lines: Line to mark.
        module: The mark for every function.

    Returns:
        The code, and the marks of lines that run while the module is imported: they have no mark of their own.
    """
    text = code.splitlines(keepends=True)
    marks: set[tuple[int, int]] = set()
    places: dict[int, int] = {}

    def walk(node: ast.AST, place: int | None) -> None:
        for child in ast.iter_child_nodes(node):
            here = place
            if isinstance(child, ast.stmt):
                first = min([child.lineno, *(d.lineno for d in getattr(child, "decorator_list", []))])
                if isinstance(node, ast.ClassDef | ast.Module):
                    here = None
                elif not _docstring(child) and not text[first - 1][: child.col_offset].strip():
                    here = place if text[first - 1].lstrip().startswith("elif") else first
                if here is not None:
                    span = range(first, (child.end_lineno or first) + 1)
                    places.update({lines[line]: here for line in span if line in lines})
                    if isinstance(node, ast.FunctionDef):
                        marks.add((first, module))
            walk(child, here)

    walk(ast.parse(code), None)
    marks.update((line, mark) for mark, line in places.items())
    for line, mark in sorted(marks, reverse=True):
        indent = text[line - 1][: len(text[line - 1]) - len(text[line - 1].lstrip())]
        text.insert(line - 1, f"{indent}_mutant_marks[{mark}] = 1\n")
    return "".join(text), set(lines.values()) - set(places)


def _docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


class Copy:
    """A copy of the checkout, with a process that forks a pytest for each request."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.folder = folder
        listed = subprocess.run(["git", "-C", tree, "ls-files", "-z"], capture_output=True, text=True, check=True)
        for name in filter(None, listed.stdout.split("\0")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / name, folder / name)
        core = importlib.util.find_spec("fastload._core")
        shutil.copy2(str(core and core.origin), folder / "fastload")
        venv.create(folder / ".venv", symlinks=True)
        (packages,) = (folder / ".venv").glob("lib/python*/site-packages")
        outer = [path for path in sys.path if path.endswith("-packages")]
        (packages / "copy.pth").write_text("\n".join([str(folder), *outer, "import _mutant_marks"]))
        (packages / "_mutant_marks.py").write_text(MARKS)
        (packages / "_mutant_marks.bytes").write_bytes(bytes(4096))
        command = [folder / ".venv/bin/python", HERE, "--serve"]
        self.server = subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.requests, self.answers = cast("Any", self.server.stdin), cast("Any", self.server.stdout)
        if self.answers.readline() != b"ready\n":
            raise RuntimeError(f"no process for tests could be started in {folder}")

    def run(self, tests: dict[str, float], suite: str, *, limit_s: float = 1800, stop: bool = False) -> tuple[int, Any]:
        """Run tests in this order; return pytest's exit code and what its plugin saw.

        Args:
            tests: Tests or files of tests; for tests, with the seconds that each takes.
            suite: "quick", or "slow": what only --all runs, such as all examples of Hypothesis.
            limit_s: After so many seconds, all is killed.
            stop: Whether nothing runs after a failure.
        """
        with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as folder:
            request = {"tests": tests, "suite": suite, "stop": stop, "folder": folder}
            self.requests.write(json.dumps(request).encode() + b"\n")
            self.requests.flush()
            program = int(self.answers.readline())
            timer = threading.Timer(limit_s, _kill, [program])
            timer.start()
            code = int(self.answers.readline())
            timer.cancel()
            _kill(program)  # what it started
            seen = Path(folder, "seen.json")
            return code, json.loads(seen.read_text()) if seen.exists() else {}

    def write(self, file: str, code: str) -> None:
        """Put ``code`` into ``file``, and leave no compiled file beside it."""
        path = self.folder / file
        path.write_text(code)
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)

    def close(self) -> None:
        """End the process and delete the copy."""
        self.server.kill()
        self.server.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def serve() -> None:
    """Fork a pytest for each line of standard input."""
    sys.path.insert(0, str(HERE.parents[1] / "tests"))
    import fork_server
    import hypothesis  # noqa: F401
    import torchvision.transforms.v2  # noqa: F401

    request = fork_server.serve()
    sys.path.pop(0)
    del sys.modules["fork_server"]
    os.setpgid(0, 0)
    os.environ["TMPDIR"] = tempfile.tempdir = request["folder"]
    for descriptor, path in enumerate((os.devnull, "log", "log")):
        opened = os.open(Path(request["folder"], path), os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, descriptor)
        os.close(opened)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options = ["-q", "-p", "no:cacheprovider"]
    options += ["-x", "-o", "timeout_method=thread"] * request["stop"]
    options += ["--all"] * (request["suite"] == "slow" and "--all" in Path("tests/conftest.py").read_text())
    plugin = Plugin(request["tests"], request["suite"], Path(request["folder"], "seen.json"))
    code = pytest.main([*options, *dict.fromkeys(name.split("::")[0] for name in request["tests"])], plugins=[plugin])
    package = sys.modules.get("fastload")
    own = package is None or str(package.__file__).startswith(str(Path.cwd()))
    os._exit(int(code) if own else OTHER_PACKAGE)


class Plugin:
    """Chooses and orders tests; notes what each reaches, its time, and a failure."""

    def __init__(self, tests: dict[str, float], suite: str, path: Path) -> None:
        self.tests, self.suite, self.path, self.marks = tests, suite, path, vars(builtins)["_mutant_marks"]
        self.marks[:] = bytes(len(self.marks))
        self.imported: list[int] = []
        self.seen: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the tests that are asked for by name, in their order."""
        self.imported = self.reached()
        if any("::" in name for name in self.tests):
            items[:] = [item for item in items if item.nodeid in self.tests]
            items.sort(key=lambda item: list(self.tests).index(item.nodeid))
            for item in items:
                item.add_marker(pytest.mark.timeout(30 + 10 * self.tests[item.nodeid]), append=False)
        elif self.suite == "slow":
            items[:] = [item for item in items if _slow(item) or hasattr(getattr(item, "obj", None), "hypothesis")]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        """Note what a test reaches."""
        start = time.perf_counter()
        self.marks[:] = bytes(len(self.marks))
        entry: dict[str, Any] = {"failed": True}  # until it ends
        self.seen[item.nodeid] = entry
        self.path.write_text(json.dumps(self.seen))
        entry["failed"] = False
        result = yield
        reached = sorted({*self.imported, *self.reached()})
        entry.update(seconds=round(time.perf_counter() - start, 3), reached=reached)
        self.path.write_text(json.dumps(self.seen))
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure."""
        self.seen[report.nodeid]["failed"] |= report.failed

    def reached(self) -> list[int]:
        """Return the marks that were reached since they were last reset."""
        return [mark for mark, byte in enumerate(self.marks[:]) if byte]


def _portions(tests: dict[str, float], budget_s: float) -> Iterator[dict[str, float]]:
    """Choose the quickest tests; then the quickest of each file in turn.

    Tests of one file see much the same.
    """
    order = sorted(tests, key=lambda name: tests[name])
    quickest = dict(_while_affordable(tests, order, FIRST_SHARE * budget_s))
    files: dict[str, list[str]] = {}
    turns = {}
    for name in order:
        if name not in quickest:
            of_file = files.setdefault(name.split("::")[0], [])
            turns[name] = len(of_file)
            of_file.append(name)
    rest = dict(_while_affordable(tests, sorted(turns, key=lambda n: (turns[n], tests[n])), budget_s))
    return (portion for portion in (quickest, rest) if portion)


def _while_affordable(tests: dict[str, float], order: Sequence[str], budget_s: float) -> Iterator[tuple[str, float]]:
    for name in order:
        if tests[name] <= budget_s:
            budget_s -= tests[name]
            yield name, tests[name]


def _slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


class Run:
    """Copies of the checkout, and what is kept of a run that was stopped."""

    def __init__(self, tree: Path, mutants: Sequence[Mutant], jobs: int, folder: Path, kept: Path) -> None:
        self.tree, self.mutants, self.kept = tree, mutants, kept
        kept.mkdir(parents=True, exist_ok=True)
        self.copies: Queue[Copy] = Queue()
        for number in range(jobs):
            self.copies.put(Copy(tree, folder / str(number)))
        self.all = list(self.copies.queue)
        self.files = sorted({mutant.file for mutant in mutants})
        places = [(mutant.file, mutant.line) for mutant in mutants]
        self.marks = [places.index(place) for place in places]  # mutants of one line have one mark
        self.modules = [len(mutants) + self.files.index(mutant.file) for mutant in mutants]

    def each(self, name: str, keys: Sequence[str], work: Callable[[Copy, str], Any]) -> dict[str, Any]:
        """Do ``work`` for each key that has no kept result, and keep it."""
        path = self.kept / f"{name}.json"
        results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

        def one(key: str) -> None:
            copy, start = self.copies.get(), time.perf_counter()
            try:
                results[key] = work(copy, key)
            finally:
                self.copies.put(copy)
            path.write_text(json.dumps(dict(results)))
            _say(f"{time.strftime('%X')} {time.perf_counter() - start:6.1f} s  {key}")

        with ThreadPoolExecutor(len(self.all)) as pool:
            list(pool.map(one, [key for key in keys if key not in results]))
        return results

    def map(self, suite: str, files: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Run a suite with marks; return what each of its tests reaches."""
        for number, file in enumerate(self.files):
            lines = {m.line: mark for m, mark in zip(self.mutants, self.marks, strict=True) if m.file == file}
            code, imported = marked((self.tree / file).read_text(), lines, len(self.mutants) + number)
            self.marks = [self.modules[i] if mark in imported else mark for i, mark in enumerate(self.marks)]
            for copy in self.all:
                copy.write(file, code)
        seen = self.each(f"{suite}-tests", files, lambda copy, key: copy.run({key: 0}, suite)[1])
        for file in self.files:
            for copy in self.all:
                copy.write(file, (self.tree / file).read_text())
        return {name: test for tests in seen.values() for name, test in tests.items()}

    def judge(
        self, suite: str, tests: dict[str, dict[str, Any]], budget_s: float, which: Sequence[int]
    ) -> dict[int, Any]:
        """Return which of a suite's tests kills each mutant of ``which``, if any does."""

        def one(copy: Copy, key: str) -> dict[str, Any]:
            index = int(key)
            mutant = self.mutants[index]
            reach = {n: t["seconds"] for n, t in tests.items() if not t["failed"] and self.marks[index] in t["reached"]}
            ran, killer = 0, None
            copy.write(mutant.file, mutant.code)
            for chosen in _portions(reach, budget_s):
                code, seen = copy.run(chosen, suite, limit_s=60 + 10 * sum(chosen.values()), stop=True)
                ran += len(seen)
                if code == OTHER_PACKAGE:
                    raise RuntimeError("another package than the copy's was imported")
                if code not in (0, 5):  # 5: no test was found
                    killer = next((name for name, entry in seen.items() if entry["failed"]), f"exit code {code}")
                    break
            copy.write(mutant.file, (self.tree / mutant.file).read_text())
            return {"reach": len(reach), "ran": ran, "killer": killer}

        ends = self.each(f"{suite}-mutants", [str(index) for index in which], one)
        killers = {e["killer"]: tests[e["killer"]]["seconds"] for e in ends.values() if e["killer"] in tests}
        keys = [", ".join(sorted(killers))] if killers else []
        again = self.each(f"{suite}-unchanged", keys, lambda copy, _: copy.run(killers, suite)[1])
        innocent = {name for seen in again.values() for name, entry in seen.items() if entry["failed"]}
        for end in ends.values():
            if end["killer"] in innocent:
                end["killer"] = None
        return {index: ends[str(index)] for index in which}


def main() -> None:
    """Sample, run, write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=300, help="mutants (300)")
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--jobs", type=int, default=2, help="copies that run tests side by side (2)")
    parser.add_argument("--budget", type=float, default=60, metavar="SECONDS", help="of tests for each mutant (60)")
    parser.add_argument("--first", type=int, metavar="N", help="run only the first mutants of the sample")
    parser.add_argument("--suites", nargs="+", default=["quick", "slow"], help="of: quick slow")
    parser.add_argument("--tree", type=Path, default=HERE.parents[1], help="another checkout, with its own interpreter")
    parser.add_argument("--folders", nargs="+", default=FOLDERS, help="folders or files to change")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="folders or files of tests (all)")
    parser.add_argument("--like", type=Path, help="no sample, but the survivors of this record")
    parser.add_argument("--out", type=Path, default=Path("build/mutants/mutants.json"))
    options = parser.parse_args()
    if options.serve:
        serve()
    from fastload.measurement.record import environment, write_json

    tree, out = options.tree.resolve(), options.out.resolve()
    os.chdir(tree)
    sources = [Source(tree, file) for file in _files(options.folders, "*.py")]
    if options.like:
        mutants = matching(sources, json.loads(options.like.read_text())["survivors"])
    else:
        mutants = sample(sources, options.count, options.seed)
    _say(f"{len(mutants)} mutants of {sum(len(source.positions) for source in sources)} positions")
    kept = Path("build/mutants", out.stem)
    killers: dict[int, dict[str, Any]] = {index: {} for index in range(len(mutants[: options.first]))}
    left_out = []
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        run = Run(tree, mutants, options.jobs, Path(folder), kept)
        try:
            for suite in options.suites:
                tests = run.map(suite, _files(options.tests, "test_*.py"))
                left_out += [name for name, test in tests.items() if test["failed"]]
                survivors = [index for index, ends in killers.items() if not any(e["killer"] for e in ends.values())]
                for index, end in run.judge(suite, tests, options.budget, survivors).items():
                    killers[index][suite] = end
        finally:
            for copy in run.all:
                copy.close()

    def entries(*, survive: str) -> list[dict[str, Any]]:
        names = ("file", "line", "operator", "before", "after")
        chosen = [i for i, ends in killers.items() if survive in ends and ends[survive]["killer"] is None]
        return [{name: getattr(mutants[i], name) for name in names} | {"runs": killers[i]} for i in chosen]

    survivors_of = {suite: entries(survive=suite) for suite in options.suites}
    record = {
        "benchmark": "mutants",
        "environment": environment(),
        "parameters": {name: getattr(options, name) for name in ("count", "seed", "budget", "tests", "folders")},
        "mutants": len(killers),
        "killed": {suite: len(killers) - len(survivors) for suite, survivors in survivors_of.items()},
        "tests_left_out": sorted(left_out),
        "survivors": survivors_of[options.suites[-1]],
        "survivors_of_quick_suite_only": [
            e for e in survivors_of[options.suites[0]] if e not in survivors_of[options.suites[-1]]
        ],
    }
    write_json(out, record)
    _say(f"{record['mutants']} mutants, killed: {record['killed']}")


def _files(folders: Sequence[str], pattern: str) -> list[str]:
    found = (Path(f).rglob(pattern) if Path(f).is_dir() else [Path(f)] for f in folders)
    return sorted(str(path) for paths in found for path in paths)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
