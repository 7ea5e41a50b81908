"""``num_workers="auto"``: how many workers a loader gets, from what a sample costs and how fast the consumer is.

What must not depend on a measurement does not: natively the random streams are those of :data:`NATIVE_STREAMS` workers,
on every machine, and the threads that serve them come and go without a trace in the batches. Worker processes *are* the
random streams, so their number stands for a whole epoch, and that epoch is the one of torch's DataLoader with that
``num_workers``. Before the first epoch a trial measures what a sample costs (:mod:`fastload.autoscale.probe`), and as
many workers start as could be of use to any consumer; the first epoch measures the consumer, and later ones get the
number that by its rate and a sample's cost keeps it fed with 10% to spare. Where the consumer waits for them all the
same, or fewer workers turn out slower, that number is raised, by a quarter at most, as long as it helps.
"""

from __future__ import annotations

import math
import operator
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from torch.utils.data import IterableDataset

from fastload._machine import usable_cpus
from fastload.autoscale.probe import run_trial

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from fastload.autoscale.probe import Trial
    from fastload.stats.stats import Stats

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
_FAR_LESS: Final = 0.4  # of the estimate before: the consumer is another one by now
_SLACK: Final = 0.05  # of what is spare: another number is only worth new workers if it is not a matter of noise
_A_FEW_MORE: Final = 1.25  # times the smallest number that may do
_WORTH: Final = 0.25  # of the rate that so many more workers should have added
_SLOWER: Final = 0.95  # of the rate before


@dataclass
class Sizing:
    """What has been found out so far; shared by loaders that frameworks rebuild from one another.

    Attributes:
        processes: Worker processes of the next epoch; ``None`` before the trial.
        threads: Decode threads that were enough; ``None`` before the first native epoch.
        why: How ``processes`` came about, in words.
        too_few: Worker processes that the consumer waited for; 0 before it did.
        estimate: The number that was said to be enough when ``too_few`` showed.
        former: The number before this one, and the samples per second with it.
    """

    processes: int | None = None
    threads: int | None = None
    why: str = "a short trial before the first epoch decides"
    too_few: int = 0
    estimate: int = 0
    former: tuple[int, float] | None = None


@dataclass(frozen=True, slots=True)
class Consumption:
    """What an epoch showed.

    Attributes:
        rate: Samples per second that the consumer takes when it never waits.
        cost_s: Seconds of a worker per sample.
        got: Samples per second that the consumer got.
        stall: Share of the time that it waited for batches.
        for_workers: Of the time too: such waits as more workers shorten.
    """

    rate: float
    cost_s: float
    got: float
    stall: float
    for_workers: float


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
        TypeError: It is neither ``"auto"`` nor an integer.
        ValueError: The dataset's samples depend on the number of workers.
    """
    if not (isinstance(num_workers, str) and num_workers == "auto"):
        try:
            if num_workers != 0:  # torch takes 0.0, and 2.5 too, but fails when it has to start so many
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
    seen = None if epoch is None or sizing.processes is None else consumption(epoch, sizing.processes)
    if sizing.processes is None:
        sizing.processes, sizing.why = _first(loader, run_trial(loader))
    elif seen is not None and (wanted := _again(sizing, sizing.processes, seen)) not in (None, sizing.processes):
        sizing.former, sizing.processes = (sizing.processes, seen.got), wanted
        sizing.why = f"the consumer takes {seen.rate:,.0f} samples/s, and a sample costs {seen.cost_s * 1e3:.3g} ms"
    loader.num_workers = AutoWorkers(sizing.processes, sizing)
    return epoch is None or seen is not None


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


def _again(sizing: Sizing, processes: int, seen: Consumption) -> int | None:
    """Another number than ``processes``; ``None``, or the same, to keep it."""
    cores = cores_for_loading()
    wanted = workers_needed(seen.rate, seen.cost_s, cores)
    fewest, most = (workers_needed(seen.rate, seen.cost_s, cores, SPARE + slack) for slack in (-_SLACK, _SLACK))
    former, got = sizing.former or (processes, seen.got)
    if processes < former and seen.stall > _STARVED and seen.got < _SLOWER * got:
        sizing.too_few, sizing.estimate = processes, wanted
        return min(cores, former)
    if seen.for_workers > _STARVED:  # workers that wait for each other's batches make fewer than their cost says
        if processes > former and seen.got / got - 1.0 < _WORTH * (processes / former - 1.0):
            return None  # something else is the limit
        sizing.too_few, sizing.estimate = processes, wanted
        faster = SPARE * processes / max(1e-3, 1.0 - seen.for_workers)
        return min(cores, max(wanted, processes + 1, min(math.ceil(faster), int(_A_FEW_MORE * (processes + 1)))))
    if fewest <= processes <= most:
        return None
    if wanted < _FAR_LESS * sizing.estimate:  # another consumer
        sizing.too_few = sizing.estimate = 0
    if wanted > sizing.too_few:
        return wanted
    if processes <= _A_FEW_MORE * (sizing.too_few + 1):
        return None
    return (sizing.too_few + 1 + processes) // 2


def consumption(epoch: Stats, processes: int) -> Consumption | None:
    """What an epoch of so many processes showed; ``None`` when it was too little."""
    made, elapsed = epoch.stages.get("fetch"), epoch.wait_s + epoch.step_s
    rate = epoch.consumer_images_per_s
    if epoch.totals.get("asked", 0) < _STEPS_MIN or made is None or not made.count or not epoch.images or not rate:
        return None
    making_s = sum(epoch.stages[name].total_s for name in ("fetch", "collate") if name in epoch.stages)
    waited = epoch.batch_wait_s / elapsed
    share = epoch.wait_share("before", "fetch", "collate")
    if making_s > _BUSY * processes * elapsed:
        # Workers that compute are slow to send; unless it is the thread that receives and pins which is the limit.
        pinning = min(1.0, epoch.stages["pin"].total_s / elapsed) if "pin" in epoch.stages else 0.0
        share += (1.0 - pinning) * epoch.wait_share("ipc", "hand-over")
    stall = waited if epoch.device_stall is None else min(waited, epoch.device_stall)
    return Consumption(
        rate=rate,
        cost_s=making_s / made.count / (epoch.images / epoch.batches),
        got=epoch.images_per_s,
        stall=stall,
        for_workers=min(waited * share, stall) if share > 0.5 else 0.0,  # else more of them would not help
    )


def _batches(loader: DataLoader[Any]) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def _cores_or_batches(most: int, cores: int) -> str:
    return "cores for them" if most == cores else "batches"
