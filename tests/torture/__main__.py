"""Run the families of trials, show their progress and record every outcome: ``make torture``."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fastload.measurement.record import environment, write_json

from . import series
from .outcome import Outcome, Setting
from .programs import Launcher

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

ROOT = Path(__file__).parents[2]
FAMILIES = (
    *("interrupts", "starts", "abandons", "timers", "kills", "forks", "mutations", "codecs", "crops", "damage"),
    *("pipelines", "deferred", "leaks", "threads", "soak"),
)
SOAK_MINUTES = 120.0
COUNTS = ("counts", "torch")
KEPT = 25  # failures per family that the record keeps in full


class Record:
    """The JSON file, with a part per family.

    Keeps the parts of an earlier run on the same code and machine.
    """

    def __init__(self, path: Path, arguments: argparse.Namespace) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._written = 0.0
        here = environment()
        parameters = {"share": arguments.share, "seed": arguments.seed, "jobs": arguments.jobs}
        self.content: dict[str, Any] = {"benchmark": "torture", "environment": here, "parameters": parameters}
        self.content |= {"complete": False, "trials": {}}
        if path.exists():
            earlier = json.loads(path.read_text())
            same = all(earlier["environment"].get(name) == value for name, value in here.items() if name != "date")
            if same and earlier["parameters"] == parameters:
                self.content["trials"] = earlier["trials"]

    def begin(self, family: str, title: str, planned: int) -> None:
        part = {"title": title, "date": environment()["date"], "complete": False}
        numbers = {"planned": planned, "done": 0, "failed": 0, "seconds": 0.0}
        self.content["trials"][family] = {**part, **numbers, "counts": {}, "torch": {}, "figures": {}, "failures": []}

    def add(self, family: str, number: int | None, outcome: Outcome, seconds: float) -> dict[str, Any]:
        """Add an outcome; write the file after a failure at once, else once a second."""
        with self._lock:
            part: dict[str, Any] = self.content["trials"][family]
            part["done"] += outcome.done
            part["failed"] += len(outcome.failures)
            part["seconds"] = round(seconds, 1)
            for name in COUNTS:
                for what, count in getattr(outcome, name).items():
                    part[name][what] = part[name].get(what, 0) + count
            part["figures"] |= outcome.figures
            room = KEPT - len(part["failures"])
            part["failures"] += [{"number": number, "what": what} for what in outcome.failures[: max(0, room)]]
            if outcome.failures or time.monotonic() > self._written + 1.0:
                self.write()
            return part

    def write(self) -> None:
        trials = self.content["trials"]
        self.content["complete"] = all(family in trials and trials[family]["complete"] for family in FAMILIES)
        write_json(self.path, self.content)
        self._written = time.monotonic()


def main() -> int:
    """Run the requested families; return 1 if anything failed."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    arguments = _arguments()
    minutes = SOAK_MINUTES * arguments.share if arguments.minutes is None else arguments.minutes
    whole = arguments.share == 1 and arguments.number is None and (arguments.minutes or SOAK_MINUTES) >= SOAK_MINUTES
    path = arguments.json or ROOT.joinpath(*("benchmarks", "results") if whole else ("build",), "torture.json")
    record, console = Record(path, arguments), Console(highlight=False)
    families = [family for family in FAMILIES if not arguments.only or family in arguments.only]
    columns = TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fastload-torture-")))
        setting = Setting(scratch, arguments.seed, arguments.share, minutes)
        launchers = [Launcher(scratch, f"job{place}") for place in range(arguments.jobs)]
        for launcher in launchers:
            stack.callback(launcher.close)
        ended = launchers[0].start("torture.loaders:prepare", str(scratch)).finish(300.0)
        if ended.code != 0:
            raise RuntimeError(f"the images could not be prepared: {ended.output}")
        progress = stack.enter_context(Progress(*columns, TextColumn("{task.fields[said]}"), console=console))
        for family in families:
            _run(family, setting, arguments, launchers, record, progress)
    console.print(_table(record.content, families))
    for family in families:
        for failure in record.content["trials"][family]["failures"][:3]:
            first = failure["what"].splitlines()[0][:300]
            again = f"make torture ARGS='--only {family} --seed {arguments.seed} --number {failure['number']}'"
            console.print(f"{family}: {first}\n  again: {again}", markup=False, soft_wrap=True)
    console.print(f"written to {path}")
    return int(any(record.content["trials"][family]["failed"] for family in families))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make torture ARGS='…'", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=FAMILIES, help="these families")
    parser.add_argument(
        "--share", type=float, default=1.0, help="of the full number of trials, and of the soak's minutes"
    )
    parser.add_argument("--minutes", type=float, help=f"of soak ({SOAK_MINUTES:g} times the share)")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn")
    parser.add_argument("--number", type=int, help="only this trial of the one family in --only")
    parser.add_argument("--jobs", type=int, default=min(4, len(os.sched_getaffinity(0)) + 1), help="trials at a time")
    parser.add_argument(
        "--json", type=Path, help="the record (benchmarks/results/torture.json; build/ if not all is run)"
    )
    arguments = parser.parse_args()
    if not 0 < arguments.share <= 1:
        parser.error(f"--share must be in (0, 1], got {arguments.share}")
    if arguments.number is not None and len(arguments.only or ()) != 1:
        parser.error("--number needs --only with one family")
    return arguments


def _run(
    family: str,
    setting: Setting,
    arguments: argparse.Namespace,
    launchers: list[Launcher],
    record: Record,
    progress: Progress,
) -> None:
    module = importlib.import_module(f"torture.{family}")
    numbers = _numbers(module, arguments)
    planned = len(numbers) * (module.each(arguments.share) if hasattr(module, "each") else module.EACH)
    record.begin(family, module.TITLE, planned)
    task = progress.add_task(family, total=planned, said="")
    begun = time.monotonic()

    def report(number: int | None, outcome: Outcome) -> None:
        part = record.add(family, number, outcome, time.monotonic() - begun)
        said = f"[red]{part['failed']} failed[/]" if part["failed"] else ""
        progress.update(task, completed=part["done"], said=said)

    _in_turns(module, numbers, setting, launchers, report)
    part = record.content["trials"][family]
    if hasattr(module, "conclude") and arguments.number is None:
        total = Outcome.of({"counts": part["counts"], "torch": part["torch"]})
        report(None, Outcome(done=0, failures=module.conclude(total)))
    part["complete"] = arguments.number is None
    record.write()


def _numbers(module: ModuleType, arguments: argparse.Namespace) -> list[int]:
    if arguments.number is not None:
        return [arguments.number]
    if hasattr(module, "numbers"):
        found: list[int] = module.numbers(arguments.share)
        return found
    return list(range(math.ceil(module.COUNT * arguments.share / module.EACH)))


def _in_turns(
    module: ModuleType,
    numbers: list[int],
    setting: Setting,
    launchers: list[Launcher],
    report: Callable[[int | None, Outcome], None],
) -> None:
    """Run trials in one thread per launcher; raise the first thread's error."""
    waiting, lock = _batches(numbers, getattr(module, "PROGRAM", 1)), threading.Lock()
    errors: list[BaseException] = []

    def work(launcher: Launcher) -> None:
        try:
            for batch in _shared(waiting, lock):
                if not module.OUTSIDE:
                    series.supervise(module, batch, setting, launcher, report)
                    continue
                for number in batch:
                    report(number, module.trial(number, setting, launcher))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(launcher,), daemon=True) for launcher in launchers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _shared(waiting: Iterator[list[int]], lock: threading.Lock) -> Iterator[list[int]]:
    while True:
        with lock:
            batch = next(waiting, None)
        if batch is None:
            return
        yield batch


def _batches(numbers: list[int], size: int) -> Iterator[list[int]]:
    return (numbers[begin : begin + size] for begin in range(0, len(numbers), size))


def _table(content: dict[str, Any], families: list[str]) -> Table:
    from rich.table import Table

    table = Table(title="torture", title_justify="left", show_lines=True)
    for name in ("trials", "done", "failed", "minutes", "seen"):
        table.add_column(name, justify="right" if name in ("done", "failed", "minutes") else "left", overflow="fold")
    for family in families:
        part = content["trials"][family]
        seen, torchs = (
            ", ".join(f"{n:,} {what}" for what, n in part[name].items() if n) for name in ("counts", "torch")
        )
        failed = f"[red]{part['failed']:,}[/]" if part["failed"] else "0"
        seen += f"\n[dim]torch: {torchs}[/]" if torchs else ""
        table.add_row(f"{family}: {part['title']}", f"{part['done']:,}", failed, f"{part['seconds'] / 60:.1f}", seen)
    return table


if __name__ == "__main__":
    sys.exit(main())
