"""Users' programs whose tensors are deferred see and send what torch's do."""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import functools
import gc
import io
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import random
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import torch
from deferred.files import DAMAGED, OTHERS, SOUND, write_files
from deferred.outcomes import Cases, as_list, described, generator_states, raised, seed_all
from deferred.probing import in_child, in_thread
from deferred.programs import Program, Runs
from deferred.random_programs import program
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info

from fastload import FastLoader

from .damage import damaged
from .fit import slope
from .holdings import Holdings, beyond, resident_kb
from .outcome import Outcome, Setting, more_than_torch
from .programs import left_in
from .varied import picture, varied

TITLE = "users' programs in workers, with deferred tensors"
COUNT, EACH, OUTSIDE, PROGRAM = 400, 1, False, 10
LIMIT_S = 240.0
TIMEOUT_S = 90.0  # of a loader
SHARED_MEMORY = Path("/dev/shm")
SHARED = "pieces of shared memory left"  # by a worker that was killed, or kept a tensor that it has sent by its name
LEAKS_EACH, LEAKS_EPOCHS = 40, 100  # one trial in so many looks for leaks instead, for so many epochs
KB_PER_EPOCH_MAX = 12.0  # an epoch has 12 samples of 8 KB and more
ours = functools.partial(FastLoader, device="cpu")


# What a dataset does with the samples that programs make. Each function gets the programs, the samples that it has kept
# in this process, and a program's number.


def _plain(runs: Runs, kept: list[Any], number: int) -> Any:
    return runs(number)


def _keeps_last(runs: Runs, kept: list[Any], number: int) -> Any:
    kept.append(runs(number))
    return {"sample": kept[-1]["sample"], "looks": kept.pop(0) if len(kept) > 1 else None}


def _caches(runs: Runs, kept: list[Any], number: int) -> Any:
    """Make few samples, and give them out again and again."""
    if len(kept) < 3:
        kept.append(runs(number))
    return kept[number % len(kept)]


def _looks_later(runs: Runs, kept: list[Any], number: int) -> Any:
    """Look at a sample when the next one is made."""
    sample = runs(number)
    kept.append(lambda: described(sample))
    return {"sample": sample["sample"], "looks": kept.pop(0)() if len(kept) > 1 else None}


def _reads_in_threads(runs: Runs, kept: list[Any], number: int) -> Any:
    sample = runs(number)
    with ThreadPoolExecutor(2) as pool:
        return {**sample, "looks": list(pool.map(described, [sample, sample["sample"], sample]))}


def _makes_in_a_thread(runs: Runs, kept: list[Any], number: int) -> Any:
    made = in_thread(lambda: runs(number))
    return {"sample": made["sample"], "looks": None} if isinstance(made, dict) else {"sample": made, "looks": None}


def _reads_in_a_child(runs: Runs, kept: list[Any], number: int) -> Any:
    sample = runs(number)
    return {**sample, "looks": in_child(lambda: sample)}


def _makes_in_a_child(runs: Runs, kept: list[Any], number: int) -> Any:
    return {"sample": runs(number)["sample"], "looks": in_child(lambda: runs(number))}


def _drops(runs: Runs, kept: list[Any], number: int) -> Any:
    """Make samples that no one wants."""
    with contextlib.suppress(Exception):
        runs(number)
    gc.collect(0)
    return runs(number)


HABITS = {
    each.__name__.strip("_"): each
    for each in (
        *(_plain, _keeps_last, _caches, _looks_later, _reads_in_threads, _makes_in_a_thread),
        *(_reads_in_a_child, _makes_in_a_child, _drops),
    )
}
REMEMBERING = ("keeps_last", "caches", "looks_later")


@dataclasses.dataclass
class Habit:
    """Makes samples of programs by a habit.

    Attributes:
        forgets: Whether a program finds nothing that others have kept: which ones a worker has run may be chance.
        dies_at: The number at which the first worker to reach it kills itself.
        grave: A file that tells that one has.
        usual: Folder of files for the first samples.
    """

    runs: Runs
    name: str
    forgets: bool = False
    dies_at: int = -1
    grave: Path = Path()
    usual: Path = Path()
    kept: list[Any] = dataclasses.field(default_factory=list)
    begun: bool = False

    def __call__(self, number: int) -> Any:
        if not self.begun:  # what is compared with Pillow's at a worker's start is compared now
            self.begun = True
            plain = Cases(self.runs, 0, self.usual, Path(os.devnull))
            for at in range(3):
                plain[at]
        if number == self.dies_at and get_worker_info() is not None:
            with contextlib.suppress(FileExistsError):
                self.grave.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        if self.forgets:
            self.runs.kept.clear()
        return HABITS[self.name](self.runs, self.kept, number)


def stacked(samples: list[Any]) -> Any:
    """Collate what can be collated."""
    rest = [{**sample, "value": None} for sample in samples]
    try:
        return {"batch": default_collate([sample["value"]["sample"] for sample in samples]), "rest": rest}
    except Exception as error:
        return {"batch": raised(error), "rest": rest}


class Keeping:
    """Collates, and keeps the last batches."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def __call__(self, samples: list[Any]) -> Any:
        self.kept = [*self.kept[-1:], stacked(samples)]
        return {"batch": self.kept[-1], "former": described(self.kept[0]["rest"]), "samples": len(samples)}


def _start_nothing(worker: int) -> None:
    pass


def _start_fault_handler(worker: int) -> None:
    faulthandler.enable()


def _start_handlers(worker: int) -> None:
    for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)


def _start_threads(worker: int) -> None:
    torch.set_num_threads(3)


def _start_doubles(worker: int) -> None:
    torch.set_default_dtype(torch.float64)


def _start_on_the_cpu(worker: int) -> None:
    torch.set_default_device("cpu")


def _start_without_denormals(worker: int) -> None:
    torch.set_flush_denormal(True)


STARTS: tuple[Callable[[int], None], ...] = (
    *[_start_nothing] * 5,
    *(_start_fault_handler, _start_handlers, _start_threads, _start_doubles, _start_on_the_cpu),
    _start_without_denormals,
)


@dataclasses.dataclass
class Start:
    """Starts a worker."""

    start: Callable[[int], None]
    strategy: str

    def __call__(self, worker: int) -> None:
        torch.multiprocessing.set_sharing_strategy(self.strategy)  # which a spawned one does not inherit
        self.start(worker)


@dataclasses.dataclass(frozen=True)
class Case:
    """A trial, but for the programs.

    Attributes:
        way: How the loader is used.
        breaks: After how many batches the first epochs end.
    """

    arguments: dict[str, Any]
    collate: str
    start: Callable[[int], None]
    strategy: str
    habit: str
    way: str
    epochs: int
    breaks: int
    seeds: bool
    catches: bool

    @classmethod
    def drawn(cls, rng: random.Random) -> Case:
        batch_size = rng.choice((None, 1, 2, 3, 4, 4, 6))
        method = rng.choices(("fork", "spawn", "forkserver"), (30, 1, 1))[0]
        persistent, in_order = rng.random() < 0.4, rng.random() < 0.85
        habit = rng.choice(list(HABITS))
        way = rng.choices(("alone", "two iterators", "threads", "killed"), (12, 3, 3, 2))[0]
        alone = in_order and way == "alone"
        collate = rng.choice(("list", "stacked", "stacked", "keeping" if alone else "list")) if batch_size else "none"
        # Which samples a worker has made before may be chance; and torch changes tensors' memory when it sends them.
        is_chance = (habit in REMEMBERING and not alone) or (habit == "looks_later" and collate in ("list", "none"))
        arguments = {
            "batch_size": batch_size,
            "shuffle": rng.random() < 0.4,
            "num_workers": rng.randint(1, 3) if method == "fork" else 1,
            "prefetch_factor": rng.choice((None, 1, 2, 5)),
            "persistent_workers": persistent and way != "two iterators",
            "pin_memory": rng.random() < 0.2,
            "drop_last": batch_size is not None and rng.random() < 0.3,
            "multiprocessing_context": method,
            "in_order": in_order,
            "timeout": TIMEOUT_S if way != "killed" else 0,  # else a death is noticed after that
        }
        return cls(
            arguments,
            collate,
            rng.choice(STARTS),
            rng.choice(("file_descriptor", "file_descriptor", "file_system")),
            "plain" if is_chance else habit,
            way,
            epochs=rng.randint(1, 3) if method == "fork" else 1,
            breaks=rng.choice((0, 0, 0, 1, 2, 5)) if in_order else 0,
            seeds=not alone or rng.random() < 0.7,
            catches=rng.random() < 0.7,
        )

    def loader(self, kind: Callable[..., DataLoader[Any]], dataset: Dataset[Any], seed: int = 5) -> Any:
        collate = {"list": as_list, "stacked": stacked, "keeping": Keeping(), "none": None}[self.collate]
        generator = torch.Generator().manual_seed(seed)
        start = Start(self.start, self.strategy)
        return kind(dataset, **self.arguments, collate_fn=collate, generator=generator, worker_init_fn=start)


@cache
def usual_files(scratch: Path) -> Path:
    """Write the files that do not vary, once per program."""
    return write_files(Path(tempfile.mkdtemp(dir=scratch)))


def write_programs(rng: random.Random, folder: Path) -> list[Program]:
    """Write a few programs, of JPEG files of all kinds, damaged ones, and others."""
    files: list[str] = []
    for at in range(6):
        data = varied(rng)
        (folder / f"{at}.jpg").write_bytes(data)
        (folder / f"{at}-damaged.jpg").write_bytes(damaged(rng, data))
        out = io.BytesIO()
        picture(rng).convert(rng.choice(["RGB", "RGB", "L", "RGBA"])).save(out, "PNG")
        (folder / f"{at}.png").write_bytes(out.getvalue())
        files += [f"{at}.jpg"] * 6 + [f"{at}-damaged.jpg", f"{at}.png"]
    programs = []
    for _ in range(rng.randint(3, 8)):
        written = program(rng.randrange(10**9))
        for _ in range(rng.choice((1, 4))):
            usual = str(usual_files(folder.parent) / rng.choice(SOUND * 6 + OTHERS + DAMAGED))
            programs.append(dataclasses.replace(written, file=usual if rng.random() < 0.5 else rng.choice(files)))
    return programs


def _events(batches: Iterator[Any], most: int = 0) -> Iterator[Any]:
    """Describe batches and errors."""
    count = 0
    while not most or count < most:
        count += 1
        try:
            yield described(next(batches))
        except StopIteration:
            return
        except Exception as error:
            event = raised(error)
            yield event
            if is_death(event):
                return


def is_death(event: Any) -> bool:
    """Whether an event is the error of a dead or stuck worker or its connection."""
    if not isinstance(event, tuple) or len(event) != 3:
        return False
    return event[0].startswith(("Connection", "BrokenPipe", "EOF")) or event[1].startswith("DataLoader ")


def run(case: Case, kind: Callable[..., DataLoader[Any]], habit: Habit, folder: Path) -> list[Any]:
    """Return the events of all epochs, and the states of this process's generators."""
    torch.multiprocessing.set_sharing_strategy(case.strategy)
    cases = Cases(habit, len(habit.runs.programs), folder, folder / "journal", case.catches, case.seeds)
    seed_all(5)
    events: list[Any] = []
    if case.way == "threads":
        found: dict[int, list[Any]] = {}
        loaders = [case.loader(kind, cases, seed) for seed in (5, 6)]
        threads = [
            threading.Thread(target=lambda at=at: found.__setitem__(at, list(_events(iter(loaders[at])))))
            for at in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        events += found[0] + found[1]
    else:
        loaders = [case.loader(kind, cases)]
        for epoch in range(case.epochs):
            try:
                batches = iter(loaders[0])
            except RuntimeError as error:  # of persistent workers, one of which has died
                events.append(raised(error))
                break
            if case.way == "two iterators":
                others = iter(loaders[0])
                events += _events(others, 2)
                events += _events(batches)
                events += _events(others)
                del others
            else:
                events += _events(batches, case.breaks if epoch + 1 < case.epochs else 0)
            del batches
            events.append(generator_states())
        if case.way == "killed":
            events.append("again")
            events += _events(iter(case.loader(kind, cases)))
    for loader in loaders:
        getattr(loader, "close", lambda: None)()
    return events if case.arguments["in_order"] else sorted(events, key=repr)


def differing(ours: list[Any], theirs: list[Any], case: Case, programs: list[Program]) -> list[str]:
    """Describe the first event that differs, and the programs of its batch."""
    if case.way == "killed":
        if "again" not in ours or "again" not in theirs:
            return [f"{case}: {ours[-1]} instead of {theirs[-1]}"]
        at, their = ours.index("again"), theirs.index("again")
        ended = [event for event in ours[:at] if is_death(event)]
        last = next((n for n, event in enumerate(theirs) if is_death(event)), their)
        first = next((n for n, event in enumerate(ours) if is_death(event)), at)
        if bool(ended) != any(map(is_death, theirs[:their])):
            return [f"{case}: {ended} at the death of a worker"]
        both = min(first, last)
        ours, theirs = ours[:both] + ours[at:], theirs[:both] + theirs[their:]
    for at, (our, their) in enumerate(zip(ours, theirs, strict=False)):
        if our != their:
            numbers = sorted({int(n) for n in re.findall(r"\('number', \('int', (\d+)\)", str(our) + str(their))})
            texts = "\n".join(str(programs[number]) for number in numbers)
            where, a, b = first_difference(our, their)
            return [f"event {at}, {where}: {str(a)[:300]} instead of {str(b)[:300]}\n{case}\n{texts}"[:6000]]
    return [] if len(ours) == len(theirs) else [f"{len(ours)} events instead of {len(theirs)}: {case}"]


def first_difference(a: Any, b: Any, where: str = "") -> tuple[str, Any, Any]:
    """Return the first place at which two descriptions differ, and what is there."""
    if isinstance(a, list | tuple) and type(a) is type(b) and len(a) == len(b):
        for at, (one, other) in enumerate(zip(a, b, strict=True)):
            if one != other:
                return first_difference(one, other, f"{where}[{at}]")
    return where, a, b


def trial(number: int, setting: Setting) -> Outcome:
    """Run the same programs with both loaders."""
    rng = random.Random(f"deferred {setting.seed} {number}")
    outcome = Outcome()
    torch.set_num_threads(1)  # a worker that is forked when there are more, and sets their number, hangs
    folder = Path(tempfile.mkdtemp(dir=setting.scratch))
    try:
        if number % LEAKS_EACH == LEAKS_EACH - 1:
            _leaks(rng, folder, setting, outcome)
        else:
            _compare(rng, folder, outcome)
    finally:
        shutil.rmtree(folder)
        torch.multiprocessing.set_sharing_strategy("file_descriptor")
    return outcome


def _compare(rng: random.Random, folder: Path, outcome: Outcome) -> None:
    case, programs = Case.drawn(rng), write_programs(rng, folder)
    dies_at = rng.randrange(len(programs)) if case.way == "killed" else -1
    multiprocessing.resource_tracker.ensure_running()  # which stays
    if case.arguments["multiprocessing_context"] == "forkserver":
        multiprocessing.forkserver.ensure_running()
    if case.strategy == "file_system":
        torch.multiprocessing.set_sharing_strategy(case.strategy)
        torch.zeros(1).share_memory_()  # starts a process that stays
    outcome.counts["programs"] += len(programs)
    outcome.counts[f"{case.way}, {case.arguments['multiprocessing_context']}"] += 1
    results = []
    for kind, counts in ((DataLoader, outcome.torch), (ours, outcome.counts)):
        shared, before = set(os.listdir(SHARED_MEMORY)), Holdings.now()
        forgets = case.way != "alone" or not case.arguments["in_order"]
        habit = Habit(
            Runs(programs, folder),
            case.habit,
            forgets,
            dies_at,
            folder / f"grave{len(results)}",
            usual_files(folder.parent),
        )
        results.append(run(case, kind, habit, folder))
        counts["errors"] += sum(isinstance(event, tuple) and len(event) == 3 for event in results[-1])
        del habit
        gc.collect()
        kinds = ("threads", "processes", "descriptors")  # torch's file_system leaves a connection to its process
        left = beyond(before, kinds[: 3 - (case.strategy == "file_system")])
        files = {name for name in left_in(SHARED_MEMORY, shared) if name.startswith("torch_")}
        counts[SHARED] += len(files)
        for name in files:
            (SHARED_MEMORY / name).unlink()
        if files and case.way != "killed" and case.strategy != "file_system":
            left.append(f"{files} left in {SHARED_MEMORY}")
        if kind is ours:
            outcome.failures += [f"{what}: {case}" for what in left]
    if any(is_death(event) and "timed out" in event[1] for event in results[0]):  # on a machine that is too busy
        outcome.torch["hung"] += 1
    else:
        outcome.failures += differing(results[1], results[0], case, programs)


@dataclasses.dataclass
class Holding(Dataset[Any]):
    """Says with the first sample what its worker holds."""

    cases: Cases

    def __len__(self) -> int:
        return len(self.cases)

    def __getitem__(self, index: int) -> Any:
        if index:
            return {"sample": self.cases[index]}
        held = Holdings.now()
        return {"held": (resident_kb(), float(held.mappings), float(held.descriptors)), "sample": self.cases[index]}


def _leaks(rng: random.Random, folder: Path, setting: Setting, outcome: Outcome) -> None:
    """Run many epochs in one worker, and watch what it holds."""
    programs = [one for _ in range(4) for one in write_programs(rng, folder)][:12]
    runs = Habit(Runs(programs, folder), rng.choice(list(HABITS)), usual=usual_files(folder.parent))
    cases = Cases(runs, len(programs), folder, folder / "journal")
    epochs = max(10, round(LEAKS_EPOCHS * setting.share))
    points: list[list[tuple[int, float]]] = [[], [], []]
    with ours(
        Holding(cases), batch_size=4, num_workers=1, persistent_workers=True, collate_fn=as_list, timeout=TIMEOUT_S
    ) as loader:
        for epoch in range(epochs):
            held = next(batch[0]["held"] for batch in list(loader)[::-1] if "held" in batch[0])
            if epoch >= epochs // 2:
                for at, value in enumerate(held):
                    points[at].append((epoch, value))
    kb, mappings, descriptors = map(slope, points)
    outcome.counts["epochs that were watched"] += epochs
    outcome.figures[runs.name] = {"kb_per_epoch": round(kb, 2), "mappings_per_epoch": round(mappings, 3)}
    if epochs >= LEAKS_EPOCHS and (kb > KB_PER_EPOCH_MAX or mappings > 0.2 or descriptors > 0.2):
        what = f"{kb:.1f} KB, {mappings:.2f} mappings and {descriptors:.2f} descriptors more with each epoch"
        outcome.failures.append(f"{runs.name}: {what}")


def conclude(total: Outcome) -> list[str]:
    """Check that our workers leave no more shared memory than torch's."""
    return more_than_torch(total, SHARED)
