"""``num_workers="auto"``: choose the number of workers from sample cost and consumer rate.

Batches never depend on a measurement. Natively, the random streams are those of :data:`NATIVE_STREAMS` workers on every
machine, and changing the number of threads does not change the batches. With worker processes, each worker has its own
random stream, so their number is fixed for an epoch, and the epoch equals that of torch's DataLoader with the same
``num_workers``.

Before the first epoch a trial measures the cost of a sample (:mod:`fastload.autoscale.probe`), and as many workers
start as could help any consumer. The first epoch measures the consumer's rate; later epochs get the number that keeps
it fed with 10% to spare. If the consumer still waits, or fewer workers turn out slower, the number grows, by a quarter
at most, as long as that helps.
"""

from __future__ import annotations

import math
import operator
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from torch.utils.data import IterableDataset

from fastload._machine import usable_cpus
from fastload.options import length_of

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from fastload.autoscale.probe import Trial
    from fastload.stats.stats import Stats

NATIVE_STREAMS: Final = 8
"""Workers whose random streams a native pipeline reproduces under ``num_workers="auto"``."""

SPARE: Final = 1.1
"""Target speed of the workers relative to the consumer."""

STARVED: Final = 0.02
"""A consumer that waits for workers for more than this share of the time needs more of them."""

GROWTH: Final = 1.25
"""Largest growth of the number of workers at a time."""

FAR_LESS: Final = 0.4
"""A need below this share of the former one means that the consumer has changed."""

WINDOW_BATCHES: Final = 8
"""Fewer batches say too little about the consumer."""

# Lower bound on the time to receive a batch: a message between processes, and copying its bytes on one core.
_TAKE_S: Final = 2e-4
_TAKE_BYTES_PER_S: Final = 1e10

_BUSY: Final = 0.5  # workers that fetch and collate for more than this share of their time are busy
_SLACK: Final = 0.05  # tolerance around SPARE, so that noise does not restart workers
_WORTH: Final = 0.25  # minimum gain in rate, as a share of the proportional gain
_SLOWER: Final = 0.95  # of the former rate


@dataclass
class Sizing:
    """Autoscaling state, shared by loaders that frameworks rebuild from one another.

    Attributes:
        processes: Worker processes of the next epoch; ``None`` before the trial.
        threads: Decode threads that sufficed; ``None`` before the first native epoch.
        why: Reason for ``processes``, in words.
        too_few: Number of worker processes that made the consumer wait; 0 if none has.
        estimate: Worker count predicted when ``too_few`` was observed.
        former: The previous number of processes and its samples per second.
        most: Largest number of processes and threads; ``None`` for this process's share of the cores.
    """

    processes: int | None = None
    threads: int | None = None
    why: str = "a short trial before the first epoch decides"
    too_few: int = 0
    estimate: int = 0
    former: tuple[int, float] | None = None
    most: int | None = None

    @property
    def cores(self) -> int:
        """Largest number of processes and threads."""
        return cores_for_loading() if self.most is None else self.most


@dataclass(frozen=True, slots=True)
class Consumption:
    """The consumer's rate and waits in one epoch.

    Attributes:
        rate: Samples per second that the consumer takes when it never waits.
        cost_s: Worker seconds per sample.
        got: Samples per second that the consumer got.
        stall: Share of the time that it waited for batches.
        for_workers: Share of the time spent in waits that more workers would shorten.
    """

    rate: float
    cost_s: float
    got: float
    stall: float
    for_workers: float


class AutoWorkers(int):
    """The int that torch and frameworks see for ``num_workers="auto"``.

    A FastLoader that is given it treats it as ``"auto"`` again.
    """

    sizing: Sizing

    def __new__(cls, count: int, sizing: Sizing) -> AutoWorkers:
        """Make an int of ``count`` that carries its ``sizing``."""
        self = super().__new__(cls, count)
        self.sizing = sizing
        return self

    def __reduce__(self) -> Any:
        return AutoWorkers, (int(self), self.sizing)


def auto_workers(num_workers: Any, dataset: Any) -> AutoWorkers | None:
    """Return an :class:`AutoWorkers` if ``num_workers`` is ``"auto"`` or was; else ``None``.

    Raises:
        TypeError: It is neither ``"auto"`` nor an integer.
        ValueError: The dataset's samples depend on the number of workers.
    """
    if not (isinstance(num_workers, str) and num_workers == "auto"):
        try:
            if num_workers != 0:  # torch accepts 0.0, and also 2.5, but then fails to start the workers
                operator.index(num_workers)
        except TypeError:
            raise TypeError(f"num_workers must be an int >= 0 or 'auto', got {num_workers!r}") from None
        if not isinstance(num_workers, AutoWorkers):
            return None
    if isinstance(dataset, IterableDataset):
        raise ValueError(
            "num_workers='auto' needs a dataset with __getitem__: which samples an IterableDataset yields depends on "
            f"the number of workers, got {type(dataset).__name__}; give a number ('fastload tune' finds one)"
        )
    return num_workers if isinstance(num_workers, AutoWorkers) else AutoWorkers(cores_for_loading(), Sizing())


def cores_for_loading() -> int:
    """Cores for the workers of this process: its share of the machine's.

    Launchers set ``LOCAL_WORLD_SIZE`` to the number of training processes on the machine.
    """
    beside = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, usable_cpus() // max(1, int(beside) if beside.isdigit() else 1))


def workers_needed(images_per_s: float, cost_s: float, cores: int, spare: float = SPARE) -> int:
    """Smallest number of workers, 1 to ``cores``, that feeds a consumer with 10% spare.

    Args:
        images_per_s: The consumer's rate when it never waits.
        cost_s: Worker seconds per image.
        cores: Maximum number of workers.
        spare: Target speed of the workers relative to the consumer.
    """
    return max(1, min(cores, math.ceil(spare * images_per_s * cost_s - 1e-9)))


def choose_processes(loader: DataLoader[Any], epoch: Stats | None) -> bool:
    """Set ``loader.num_workers`` for the next epoch of worker processes.

    Args:
        loader: A loader whose ``num_workers`` is an :class:`AutoWorkers`.
        epoch: Measurements since the last choice; ``None`` before the first epoch.

    Returns:
        Whether there was enough information to choose anew.
    """
    workers: Any = loader.num_workers
    sizing: Sizing = workers.sizing
    used = None if epoch is None or sizing.processes is None else consumption(epoch, sizing.processes)
    if sizing.processes is None:
        from fastload.autoscale.probe import run_trial

        sizing.processes, sizing.why = _first(loader, run_trial(loader), sizing.cores)
    elif used is not None and (wanted := _again(sizing, sizing.processes, used)) not in (None, sizing.processes):
        sizing.former, sizing.processes = (sizing.processes, used.got), wanted
        sizing.why = f"the consumer takes {used.rate:,.0f} samples/s, and a sample costs {used.cost_s * 1e3:.3g} ms"
    loader.num_workers = AutoWorkers(sizing.processes, sizing)
    return epoch is None or used is not None


def _first(loader: DataLoader[Any], trial: Trial | None, cores: int) -> tuple[int, str]:
    batches = length_of(loader)
    most = cores if batches is None else max(1, min(cores, batches))
    if trial is None:
        return most, f"as many as there are {_cores_or_batches(most, cores)}: the trial finished no batch in time"
    take_s = _TAKE_S + trial.batch_bytes / _TAKE_BYTES_PER_S
    useful = max(1, math.ceil(SPARE * trial.batch_s / take_s))
    cost = f"a sample costs {trial.cost_s * 1e3:.3g} ms"
    if useful < most:
        return useful, f"{cost}; more workers would make batches faster than the consumer can take them"
    return most, f"{cost}; as many as there are {_cores_or_batches(most, cores)}, until the consumer's rate is known"


def _again(sizing: Sizing, processes: int, used: Consumption) -> int | None:
    """A new number of processes; ``None`` or the same number to keep it."""
    cores = sizing.cores
    wanted = workers_needed(used.rate, used.cost_s, cores)
    fewest, most = (workers_needed(used.rate, used.cost_s, cores, SPARE + slack) for slack in (-_SLACK, _SLACK))
    former, got = sizing.former or (processes, used.got)
    if processes < former and used.stall > STARVED and used.got < _SLOWER * got:
        sizing.too_few, sizing.estimate = processes, wanted
        return min(cores, former)
    if used.for_workers > STARVED:  # workers that wait for each other make fewer batches than their cost suggests
        if processes > former and used.got / got - 1.0 < _WORTH * (processes / former - 1.0):
            return None  # something else is the limit
        sizing.too_few, sizing.estimate = processes, wanted
        faster = SPARE * processes / max(1e-3, 1.0 - used.for_workers)
        return min(cores, max(wanted, processes + 1, min(math.ceil(faster), int(GROWTH * (processes + 1)))))
    if fewest <= processes <= most:
        return None
    if wanted < FAR_LESS * sizing.estimate:  # the consumer has changed
        sizing.too_few = sizing.estimate = 0
    if wanted > sizing.too_few:
        return wanted
    if processes <= GROWTH * (sizing.too_few + 1):
        return None
    return (sizing.too_few + 1 + processes) // 2


def consumption(epoch: Stats, processes: int) -> Consumption | None:
    """Evaluate an epoch with this number of processes; ``None`` if it was too short."""
    made, elapsed = epoch.stages.get("fetch"), epoch.elapsed_s
    rate = epoch.consumer_images_per_s
    if epoch.totals.get("asked", 0) < WINDOW_BATCHES or made is None or not made.count or not epoch.images or not rate:
        return None
    share = epoch.wait_share("before", "fetch", "collate")
    if epoch.making_s > _BUSY * processes * elapsed:
        # Busy workers are slow to send, so count these waits too, except for the share in which pinning is the limit.
        pinning = min(1.0, epoch.stages["pin"].total_s / elapsed) if "pin" in epoch.stages else 0.0
        share += (1.0 - pinning) * epoch.wait_share("ipc", "hand-over")
    stall = epoch.batch_stall if epoch.device_stall is None else min(epoch.batch_stall, epoch.device_stall)
    return Consumption(
        rate=rate,
        cost_s=epoch.making_s / made.count / (epoch.images / epoch.batches),
        got=epoch.images_per_s,
        stall=stall,
        for_workers=min(epoch.batch_stall * share, stall) if share > 0.5 else 0.0,  # else more workers would not help
    )


def _cores_or_batches(most: int, cores: int) -> str:
    return "available cores" if most == cores else "batches"
