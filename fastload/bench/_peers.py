"""What the benchmarks against peers share: their options, the check of outputs before any clock starts, and turns."""

from __future__ import annotations

import contextlib
import itertools
import math
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from fastload._machine import usable_cpus
from fastload.bench._data import add_data_argument, image_pool, open_images
from fastload.bench._measure import Spread, environment, interleave, write_json
from fastload.bench._pagecache import resident_share
from fastload.bench._show import console, refuse
from fastload.bench.contenders._job import Job
from fastload.bench.contenders._registry import CONTENDERS, loading
from fastload.bench.contenders._remote import ContenderError, Surroundings, Team

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fastload.bench.contenders._remote import Remote

CHECKED_BATCHES = 2
CHECKED_BATCH_SIZE = 16
CHECKED_WORKERS = 2
CHECKED_DRAWS = 16  # batches whose statistics are compared, where the crops are others

# Of normalized values. Means of two halves of 512 random crops of the photographs differ by less than 0.1.
STATISTICS_TOLERANCE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a benchmark against peers is asked for.

    Attributes:
        data: An ImageFolder; ``None`` writes photographs.
        names: Contenders.
        surroundings: Interpreters and packages.
        repeats: Turns of each contender.
        seconds: Of a turn, about.
        batch_size: Images per batch.
        quick: Tiny; the figures mean nothing.
        device: Where batches go.
    """

    data: Path | None = None
    names: tuple[str, ...] = field(default_factory=lambda: tuple(loading()))
    surroundings: Surroundings = field(default_factory=Surroundings)
    repeats: int = 5
    seconds: float = 2.0
    batch_size: int = 256
    quick: bool = False
    device: str = field(default_factory=lambda: "cuda" if torch.cuda.is_available() else "cpu")

    def __post_init__(self) -> None:
        for name in self.names:
            if name not in CONTENDERS:
                raise ValueError(f"--contenders must be among {', '.join(CONTENDERS)}, got {name!r}")
        for name, low in (("repeats", 1), ("batch_size", 1), ("seconds", 0)):
            if getattr(self, name) < low:
                raise ValueError(f"--{name.replace('_', '-')} must be >= {low}, got {getattr(self, name)}")


def add_peer_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what every benchmark against peers takes."""
    default = Setup()
    add_data_argument(parser)
    parser.add_argument(
        "--contenders", metavar="A,B", help=f"who takes part (default: all that can: {','.join(loading())})"
    )
    for name, what in (("python", "interpreter"), ("site", "folder with packages")):
        parser.add_argument(
            f"--{name}",
            metavar="NAME=PATH",
            action="append",
            default=[],
            help=f"{what} of one contender, or of a module of contenders; may be given again",
        )
    parser.add_argument("--repeats", type=int, help=f"turns of each contender (default: {default.repeats})")
    parser.add_argument("--seconds", type=float, help=f"of each turn, about (default: {default.seconds})")
    parser.add_argument("--batch-size", type=int, help=f"images per batch (default: {default.batch_size})")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every figure there")
    parser.add_argument("--quick", action="store_true", help="tiny, to see that it works; the figures mean nothing")


def add_threads_argument(parser: argparse.ArgumentParser, default: Sequence[int]) -> None:
    """Declare ``--threads``."""
    shown = ",".join(map(str, default))
    parser.add_argument(
        "--threads", type=numbers, help=f"threads, or worker processes, such as 4,16 (default: {shown})"
    )


def answer(
    question: str,
    args: argparse.Namespace,
    default_threads: Sequence[int],
    measure: Callable[[Gathering, Setup, int], dict[str, Any]],
    describe: Callable[[Mapping[str, Any]], str],
) -> int:
    """Answer a question that depends on the number of threads; returns the exit code.

    Args:
        question: The benchmark's name.
        args: Of :func:`add_peer_arguments` and :func:`add_threads_argument`.
        default_threads: When none are given; those that are more than the usable cores are left out.
        measure: Every contender at one number of threads: figures by contender.
        describe: One contender's figures in words.
    """
    try:
        setup = setup_of(args)
        most = min(2, usable_cpus()) if setup.quick else usable_cpus()
        counts = args.threads or tuple(n for n in default_threads if n <= most) or (most,)
        with gathered(question, setup, {"threads": counts}) as gathering:
            points = []
            for threads in counts:
                results = measure(gathering, setup, threads)
                points.append({"threads": threads, "contenders": results})
                for name, result in results.items():
                    console().print(f"{threads:3} threads, {gathering.team.title(name)}: {describe(result)}")
            record = {**gathering.finished(), "points": points}
            right = gathering.all_right
    except (ValueError, FileNotFoundError) as error:
        return refuse(error)
    if args.json:
        console().print(f"figures: {write_json(args.json, record)}")
    return 0 if right else 1


def setup_of(args: argparse.Namespace) -> Setup:
    """The setup that the arguments ask for.

    Raises:
        ValueError: An argument is not what it has to be.
    """
    values: dict[str, Any] = {"repeats": 1, "seconds": 0.1, "batch_size": 8} if args.quick else {}
    given = {name: getattr(args, name) for name in ("repeats", "seconds", "batch_size")}
    values |= {name: value for name, value in given.items() if value is not None}
    if args.contenders:
        values["names"] = tuple(name.strip() for name in args.contenders.split(","))
    surroundings = Surroundings(pythons=_pairs("--python", args.python), sites=_pairs("--site", args.site))
    return Setup(data=args.data, surroundings=surroundings, quick=args.quick, **values)


def numbers(text: str) -> tuple[int, ...]:
    """``"4,16"`` as numbers; for ``argparse``."""
    values = tuple(int(part) for part in text.split(","))
    if any(value < 1 for value in values):
        raise ValueError(f"numbers must be >= 1, got {text}")
    return values


def _pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    known = {*CONTENDERS, *(contender.group for contender in CONTENDERS.values())}
    pairs = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not equals or name not in known:
            raise ValueError(f"{option} must be NAME=PATH with a name among {', '.join(sorted(known))}, got {text!r}")
        if not Path(path).exists():
            raise ValueError(f"{option} must name something that exists, got {path!r}")
        pairs[name] = path
    return pairs


@dataclass(slots=True)
class Gathering:
    """Contenders whose outputs have been checked, and what stands in the record about them.

    Attributes:
        team: Their processes.
        folder: The data set.
        record: The beginning of the JSON record.
    """

    team: Team
    folder: str
    record: dict[str, Any]

    @property
    def all_right(self) -> bool:
        """Whether no contender gave wrong batches or failed."""
        return not any("failed" in known for known in self.finished()["contenders"].values())

    def finished(self) -> dict[str, Any]:
        """The record, with what is known of the contenders at the end."""
        for name, known in self.team.record().items():
            self.record["contenders"][name] |= known
        return self.record


@contextlib.contextmanager
def gathered(question: str, setup: Setup, parameters: Mapping[str, Any]) -> Iterator[Gathering]:
    """Start the contenders, read the data set into the page cache, and check every contender's output."""
    dataset, described = open_images(setup.data, setup.quick)
    pool = image_pool(dataset)
    files = [dataset.samples[index][0] for index in pool]
    described |= {"drawn_from": len(pool), "page_cache_share": resident_share(files)}
    with Team(setup.names, setup.device, setup.surroundings) as team:
        folder = str(Path(dataset.root).resolve())
        record = {
            "benchmark": question,
            "environment": environment(),
            "dataset": described,
            "parameters": {
                "batch_size": setup.batch_size,
                "repeats": setup.repeats,
                "seconds": setup.seconds,
                "device": setup.device,
                "quick": setup.quick,
                **parameters,
            },
            "contenders": {remote.name: {} for remote in team.all},
        }
        gathering = Gathering(team, folder, record)
        for remote in team.all:
            if remote.missing is not None:
                console().print(f"missing: {remote.contender.title}: {remote.missing}")
        check_outputs(gathering, setup)
        yield gathering


def check_outputs(gathering: Gathering, setup: Setup) -> None:
    """Compare each contender with torch's DataLoader; one that is off by more than it may be takes no further part."""
    with tempfile.TemporaryDirectory(prefix="fastload-") as folder:
        for train in (False, True):
            job = Job(
                data=gathering.folder,
                threads=CHECKED_WORKERS,
                batch_size=CHECKED_BATCH_SIZE,
                train=train,
                images=0 if train else CHECKED_BATCHES * CHECKED_BATCH_SIZE,
                device=setup.device,
                seed=1,
            )
            expected = Path(folder) / f"{train}.npz"
            usual = write_expected(job, expected)
            for remote in gathering.team.present:
                contender = remote.contender
                if not contender.loads:
                    continue
                known = gathering.record["contenders"][remote.name]
                own_draws = train and contender.tolerance is not None
                try:
                    with remote.turn():
                        if own_draws:
                            seen = remote.ask("statistics", batches=CHECKED_DRAWS, **job.record())
                        else:
                            seen = remote.ask("check", expected=str(expected), **job.record())
                except ContenderError as error:
                    reason: str | None = str(error)
                else:
                    known["check" if not train else "check_training"] = seen
                    reason = _unlike(seen, usual) if own_draws else _wrong(seen, contender.tolerance)
                if reason is not None:
                    known["failed"] = reason
                    console().print(f"failed: {contender.title}: {reason}")
                    gathering.team.drop(remote, reason)


def _wrong(seen: Mapping[str, Any], tolerance: Any) -> str | None:
    if not seen["labels_equal"]:
        return "its labels are not those of the same images"
    if tolerance is None:
        return None if seen["equal"] else "its batches must be equal bit for bit, but differ"
    if seen["mean_difference"] <= tolerance.mean:
        return None
    return f"its pixels may be off by {tolerance.mean} of 255 on average, but are by {seen['mean_difference']:.2f}"


def _unlike(seen: Mapping[str, Any], usual: Mapping[str, Any]) -> str | None:
    for name in ("mean", "deviation"):
        off = max(abs(a - b) for a, b in zip(seen[name], usual[name], strict=True))
        if not off <= STATISTICS_TOLERANCE:  # so that NaN is not let through
            return (
                f"the {name} of its training images may be off by {STATISTICS_TOLERANCE} from that of the same images "
                f"by torchvision, but is by {off:.2f}"
            )
    return None


def write_expected(job: Job, path: Path) -> dict[str, list[float]]:
    """Write the first batches that torch's DataLoader gives of ``job``; returns mean and deviation of the channels."""
    dataset = job.dataset()
    torch.manual_seed(job.seed)
    loader = DataLoader(
        dataset, batch_size=job.batch_size, sampler=job.sampler(dataset), num_workers=job.threads if job.train else 0
    )
    arrays: dict[str, Any] = {}
    drawn = []
    for number, (images, labels) in enumerate(itertools.islice(loader, CHECKED_DRAWS if job.train else None)):
        drawn.append(images)
        if number < CHECKED_BATCHES:
            arrays |= {f"images{number}": images.numpy(), f"labels{number}": labels.numpy()}
    np.savez(path, **arrays)
    whole = torch.cat(drawn)
    return {"mean": whole.mean((0, 2, 3)).tolist(), "deviation": whole.std((0, 2, 3)).tolist()}


def warm_up(remote: Remote, threads: int, seconds: float) -> int:
    """Run a loader that was just opened until it goes steadily; returns the batches of a turn of about ``seconds``.

    Worker processes finish their batches at about the same time, so a turn is a multiple of ``threads`` batches.
    """
    with remote.turn():
        remote.ask("run", batches=2 * threads + 2, seconds=seconds / 2)
        probe = remote.ask("run", batches=threads, seconds=seconds / 4)
    per_batch = probe["seconds"] / probe["batches"]
    return max(1, math.ceil(seconds / float(per_batch) / threads)) * threads


def take_turns(
    remotes: Sequence[Remote], turn: Callable[[Remote], dict[str, Any]], repeats: int
) -> dict[str, list[dict[str, Any]]]:
    """Let each contender have ``repeats`` turns, interleaved; returns what each answered, in order.

    Args:
        remotes: Who.
        turn: Asks one of them, which runs meanwhile while the others stand still.
        repeats: Rounds.
    """
    answers: dict[str, list[dict[str, Any]]] = {remote.name: [] for remote in remotes}

    def one(remote: Remote) -> Callable[[], float]:
        def measure() -> float:
            with remote.turn():
                answers[remote.name].append(turn(remote))
            return 0.0

        return measure

    interleave({remote.name: one(remote) for remote in remotes}, repeats)
    return answers


def spread_of(answers: Sequence[Mapping[str, Any]], figure: Callable[[Mapping[str, Any]], float]) -> dict[str, Any]:
    """One figure of every turn, as it stands in the JSON file."""
    return Spread.of([figure(answer) for answer in answers]).record()


def rate_figures(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What ``run`` says: images per second, and what they cost the processor."""
    return {
        "images_per_s": spread_of(answers, lambda a: a["images"] / a["seconds"]),
        "processor_ms_per_image": spread_of(answers, lambda a: 1e3 * a["processor_s"] / a["images"]),
        "main_thread_us_per_batch": spread_of(answers, lambda a: 1e6 * a["main_thread_s"] / a["batches"]),
    }
