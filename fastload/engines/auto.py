"""``num_workers="auto"``: how many workers a loader gets, from what a sample costs and how fast the consumer is.

What must not depend on a measurement does not: natively the random streams are those of :data:`NATIVE_STREAMS` workers,
on every machine, and the threads that serve them come and go without a trace in the batches. Worker processes *are* the
random streams, so their number stands for a whole epoch, and that epoch is the one of torch's DataLoader with that
``num_workers``. Before the first epoch a trial measures what a sample costs (:mod:`fastload.engines.trial`), and as
many workers start as could be of use to any consumer; the first epoch measures the consumer, and later ones get the
smallest number that keeps it fed with 10% to spare.
"""

from __future__ import annotations

import math
import operator
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from torch.utils.data import IterableDataset

from fastload._machine import usable_cpus
from fastload.engines.trial import run_trial

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from fastload.engines.trial import Trial
    from fastload.insight.stats import Stats

NATIVE_STREAMS: Final = 8
"""Workers whose random streams a native pipeline has under ``num_workers="auto"``."""

SPARE: Final = 1.1
"""How much faster than the consumer the workers are to be."""

# A batch cannot be taken faster: a message between processes, and its bytes at what a core copies.
_TAKE_S: Final = 2e-4
_TAKE_BYTES_PER_S: Final = 1e10

_STEPS_MIN: Final = 8  # an epoch of fewer says too little about the consumer
_STARVED: Final = 0.02  # share of the time: the consumer waits
_BUSY: Final = 0.5  # share of the workers' time
_FAR_LESS: Final = 0.4  # of what was too few: the consumer is another one by now
_SLACK: Final = 0.05  # of what is spare: another number is only worth new workers if it is not a matter of noise
_A_FEW_MORE: Final = 1.25  # times the smallest number that may do


@dataclass
class Sizing:
    """What has been found out so far; shared by loaders that frameworks rebuild from one another.

    Attributes:
        processes: Worker processes of the next epoch; ``None`` before the trial.
        threads: Decode threads that were enough; ``None`` before the first native epoch.
        why: How ``processes`` came about, in words.
        too_few: Worker processes that the consumer waited for; 0 before it did.
    """

    processes: int | None = None
    threads: int | None = None
    why: str = "a short trial before the first epoch decides"
    too_few: int = 0


class AutoWorkers(int):
    """``num_workers="auto"`` as torch and frameworks see it: an int. Given to a FastLoader, it is ``"auto"`` again."""

    sizing: Sizing

    def __new__(cls, count: int, sizing: Sizing) -> AutoWorkers:
        """Stand for ``count`` workers, chosen with ``sizing``."""
        self = super().__new__(cls, count)
        self.sizing = sizing
        return self

    def __reduce__(self) -> Any:
        return AutoWorkers, (int(self), self.sizing)


def auto_workers(num_workers: Any, dataset: Any) -> AutoWorkers | None:
    """What stands for ``num_workers`` if it is ``"auto"``, or was; else ``None``.

    Raises:
        TypeError: It is another string: torch's error, with a note.
        ValueError: The dataset's samples depend on the number of workers.
    """
    if isinstance(num_workers, str) and num_workers != "auto":
        try:
            operator.lt(num_workers, 0)
        except TypeError as error:
            error.add_note(f"num_workers must be an int >= 0 or 'auto', got {num_workers!r}")
            raise
    if not isinstance(num_workers, str | AutoWorkers):
        return None
    if isinstance(dataset, IterableDataset):
        raise ValueError(
            "num_workers='auto' needs a dataset with __getitem__: which samples an IterableDataset yields depends on "
            f"the number of workers, got {type(dataset).__name__}; give a number ('fastload tune' finds one)"
        )
    return num_workers if isinstance(num_workers, AutoWorkers) else AutoWorkers(cores_for_loading(), Sizing())


def cores_for_loading() -> int:
    """Cores that the workers of one process may take: those of the machine, shared with the processes beside this one.

    Launchers say in ``LOCAL_WORLD_SIZE`` how many of those there are.
    """
    beside = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, usable_cpus() // max(1, int(beside) if beside.isdigit() else 1))


def workers_needed(images_per_s: float, cost_s: float, cores: int, spare: float = SPARE) -> int:
    """The smallest number of workers that keeps a consumer fed with 10% to spare; at least 1, at most ``cores``.

    Args:
        images_per_s: What the consumer takes when it never waits.
        cost_s: Seconds of one worker for one image.
        cores: Workers at most.
        spare: How much faster than the consumer they are to be.
    """
    return max(1, min(cores, math.ceil(spare * images_per_s * cost_s - 1e-9)))


def choose_processes(loader: DataLoader[Any], epoch: Stats | None) -> bool:
    """Set ``loader.num_workers`` for the next epoch of worker processes. Returns whether it was thought over.

    Args:
        loader: With :class:`AutoWorkers`.
        epoch: What has been measured since the number was chosen last; ``None`` before the first epoch.
    """
    workers: Any = loader.num_workers
    sizing: Sizing = workers.sizing
    measured = None if epoch is None else consumption(epoch)
    if sizing.processes is None:
        sizing.processes, sizing.why = _first(loader, run_trial(loader))
    elif measured is not None and (found := _again(sizing, sizing.processes, *measured)) is not None:
        sizing.processes, sizing.why = found
    loader.num_workers = AutoWorkers(sizing.processes, sizing)
    return epoch is None or measured is not None


def _first(loader: DataLoader[Any], trial: Trial | None) -> tuple[int, str]:
    cores = cores_for_loading()
    batches = _batches(loader)
    most = cores if batches is None else max(1, min(cores, batches))
    if trial is None:
        return most, f"as many as there are {_cores_or_batches(most, cores)}: the trial made no batch in its time"
    take_s = _TAKE_S + trial.batch_bytes / _TAKE_BYTES_PER_S
    useful = max(1, math.ceil(SPARE * trial.batch_s / take_s))
    cost = f"a sample costs {trial.cost_s * 1e3:.3g} ms"
    if useful < most:
        return useful, f"{cost}, so that more workers would make batches sooner than they can be taken"
    return most, f"{cost}; as many as there are {_cores_or_batches(most, cores)}, until an epoch has shown the consumer"


def _again(sizing: Sizing, processes: int, rate: float, cost_s: float, stall: float) -> tuple[int, str] | None:
    """Another number than ``processes``, and why; ``None`` to keep it."""
    cores = cores_for_loading()
    wanted = workers_needed(rate, cost_s, cores)
    fewest, most = (workers_needed(rate, cost_s, cores, SPARE + slack) for slack in (-_SLACK, _SLACK))
    if stall > _STARVED:  # workers that wait for each other's batches make fewer than their cost says
        sizing.too_few = processes
        faster = min(math.ceil(SPARE * processes / (1.0 - stall)), int(_A_FEW_MORE * (processes + 1)))
        wanted = min(cores, max(wanted, processes + 1, faster))
    elif fewest <= processes <= most:
        return None
    elif wanted < _FAR_LESS * sizing.too_few:
        sizing.too_few = 0
    elif wanted <= sizing.too_few < processes <= _A_FEW_MORE * (sizing.too_few + 1):
        return None
    else:
        wanted = min(cores, max(wanted, sizing.too_few + 1))
    if wanted == processes:
        return None
    return wanted, f"the consumer takes {rate:,.0f} samples/s, and a sample costs {cost_s * 1e3:.3g} ms"


def consumption(epoch: Stats) -> tuple[float, float, float] | None:
    """The consumer's rate in samples/s, seconds of a worker per sample, and the share of time it waited for workers.

    ``None`` when too little was measured.
    """
    made, elapsed = epoch.stages.get("fetch"), epoch.wait_s + epoch.step_s
    if epoch.totals.get("asked", 0) < _STEPS_MIN or made is None or not made.count or not epoch.images:
        return None
    collate = epoch.stages.get("collate")
    seconds = made.total_s + (collate.total_s if collate is not None else 0.0)
    cost_s = seconds / made.count / (epoch.images / epoch.batches)
    places = ["before", "fetch", "collate"]
    if elapsed and seconds > _BUSY * epoch.workers * elapsed:  # a worker that computes is slow to send what it has made
        places += ["ipc", "hand-over"]
    share = epoch.wait_share(*places)
    stall = epoch.batch_wait_s * share / elapsed if share > 0.5 and elapsed else 0.0  # else workers would not help
    if epoch.device_stall is not None:
        stall = min(stall, epoch.device_stall)
    rate = epoch.consumer_images_per_s
    return (rate, cost_s, stall) if rate > 0 else None


def _batches(loader: DataLoader[Any]) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def _cores_or_batches(most: int, cores: int) -> str:
    return "cores for them" if most == cores else "batches"
