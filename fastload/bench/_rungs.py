"""The rungs of the ladder, and how one of them is measured."""

from __future__ import annotations

import copy
import functools
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets.vision import StandardTransform

from fastload import FastLoader
from fastload.bench._data import ENDLESS, EndlessDraws
from fastload.bench._steps import run_steps, time_steps, whole_bursts
from fastload.measurement.record import Spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from fastload.bench._steps import Batch, StepTimes
    from fastload.bench._trace import GpuActivity
    from fastload.measurement.clock import Clock

PREFETCH_FACTOR = 2  # batches that every worker may have ready: torch's default, the same on every rung
WARM_STEPS = 10  # until the loop runs as it will go on, once the loader does
SLOTS_S = 30.0  # the longest that slots are waited for


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One loop to measure; every rung keeps what the one below it has."""

    # place on the ladder: 1 to 5 are torch alone, 6 to 8 FastLoader, 0 the ceiling, whose data is on the GPU
    number: int
    name: str  # name of the change
    workers: int  # number of worker processes
    channels_last: bool = False  # whether weights and images are in channels_last memory format
    pinned: bool = False  # whether batches pass through pinned memory
    side_stream: bool = False  # whether FastLoader copies one batch ahead on a stream of its own
    slots: bool = False  # whether its workers write batches straight into pinned memory
    native: bool = False  # whether it decodes natively; then `workers` are threads
    loader_alone: bool = False  # whether the rung is measured without a GPU, too, by the loader alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One rung in one climb."""

    images: int  # number of images per step
    steps: int
    times: StepTimes  # time of all steps, and its parts
    gpu: GpuActivity | None = None  # the profiler's record of some steps afterwards, in the last climb on a GPU


def summary(rung: Rung, turns: Sequence[Turn], *, trained: bool) -> dict[str, Any]:
    """A rung's JSON object; without training it has no waits and no copies."""
    total_s = sum(turn.times.seconds for turn in turns)
    gpu = next((turn.gpu for turn in reversed(turns) if turn.gpu is not None), None)
    return {
        **asdict(rung),
        "images_per_s": Spread.of([turn.steps * turn.images / turn.times.seconds for turn in turns]).record(),
        "ms_per_step": Spread.of([1e3 * turn.times.seconds / turn.steps for turn in turns]).record(),
        "wait_share": sum(turn.times.waited_s for turn in turns) / total_s if trained else None,
        "copy_share": sum(turn.times.copied_s for turn in turns) / total_s if trained else None,
        "gpu_busy_share": None if gpu is None else gpu.busy_share,
        "h2d_gb_per_s": None if gpu is None else gpu.copy_gb_per_s,
    }


def worker_counts(cores: int) -> tuple[int, int, int]:
    """Worker processes of rung 1, rung 2 and rung 4.

    2 at first, then half the cores, then nearly all: the training loop and the pin-memory
    thread need a core too (with 16 cores, 12 workers fed a GPU faster than 16). At most 32: no GPU takes more. Never
    more than there are cores, so that on one or two of them some counts are the same.
    """
    few = max(1, min(2, cores // 2))
    more = min(max(few + 1, min(cores // 2, 16)), cores)
    most = min(max(more + 1, min(cores - max(1, cores // 8), 32)), cores)
    return few, more, most


def rungs(cores: int) -> tuple[Rung, ...]:
    """The ladder on a machine with so many usable cores, the ceiling last."""
    few, more, most = worker_counts(cores)
    first = Rung(number=1, name="few workers", workers=few, loader_alone=True)
    steps: tuple[dict[str, Any], ...] = (
        {"name": "more workers", "workers": more, "loader_alone": True},
        {"name": "channels_last", "channels_last": True, "loader_alone": False},
        {"name": "more workers again", "workers": most, "loader_alone": True},
        {"name": "pinned memory", "pinned": True, "loader_alone": False},
        {"name": "side stream", "side_stream": True},
        {"name": "pinned slots", "slots": True},
        {"name": "native engine", "native": True, "loader_alone": True},
    )
    climbed = [first]
    for number, step in enumerate(steps, start=2):
        climbed.append(replace(climbed[-1], number=number, **step))
    return (*climbed, Rung(number=0, name="ceiling", workers=0, channels_last=True))


class StepFeed:
    """The batches of one rung: a running loader, and how batches reach the device.

    There is no last batch. ``None`` for the device leaves batches where the loader puts them.
    """

    def __init__(
        self, rung: Rung, dataset: Any, pool: Sequence[int], batch_size: int, device: torch.device | None
    ) -> None:
        self._rung = rung
        self._device = device
        self._loader: FastLoader[Any] | None = None
        self.batches: Iterator[Batch]
        if not rung.workers:
            self.batches = self._same_batch(batch_size)
            return
        arguments: dict[str, Any] = {"batch_size": batch_size, "sampler": EndlessDraws(pool, ENDLESS)}
        arguments |= {"num_workers": rung.workers, "prefetch_factor": PREFETCH_FACTOR, "pin_memory": rung.pinned}
        if rung.side_stream:
            where = "cpu" if device is None else device
            self._loader = FastLoader(**engine_of(rung, dataset), **arguments, device=where)
            self.batches = iter(self._loader)
        else:
            self.batches = iter(DataLoader(dataset, **arguments))

    def move(self, images: Tensor, labels: Tensor) -> Batch:
        """Copy a batch as this rung does."""
        rung = self._rung
        if self._device is None or rung.side_stream or not rung.workers:
            return images, labels
        return images.to(self._device, non_blocking=rung.pinned), labels.to(self._device, non_blocking=rung.pinned)

    def lay_out(self, images: Tensor) -> Tensor:
        """Bring a batch that is on the device into this rung's memory format."""
        return images.contiguous(memory_format=torch.channels_last) if self._rung.channels_last else images

    def settle(self) -> None:
        """Take ready batches, and wait for slots, until the loader runs in steady state.

        Workers that are nearly as fast as training would otherwise live on their prefetched batches for a whole turn.
        Slots are made while the first batches come.
        """
        on_gpu = self._device is not None and self._device.type == "cuda"
        loader = self._loader
        if self._rung.slots and not self._rung.native and loader is not None and on_gpu:
            take_until(lambda: loader.stats().slots > 0, self.batches)
        for _ in range(self._rung.workers * PREFETCH_FACTOR):
            next(self.batches)

    def close(self) -> None:
        """Stop the workers and free the slots; blocks until that is done."""
        ending: Any = self.batches if self._loader is None else self._loader
        shutdown = getattr(ending, "close", None) or ending._shutdown_workers  # torch's iterator has no other
        shutdown()

    def _same_batch(self, batch_size: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(batch_size, 3, 224, 224, generator=generator).to(self._device)
        labels = torch.randint(1000, (batch_size,), generator=generator).to(self._device)
        images = self.lay_out(images)
        while True:
            yield images, labels


def engine_of(rung: Rung, dataset: Any) -> dict[str, Any]:
    """Return the dataset and engine that a rung of FastLoader runs with."""
    if rung.native:
        return {"dataset": dataset, "engine": "native"}
    return {"dataset": in_workers(dataset)} if rung.slots else {"dataset": dataset, "engine": "torch"}


def take_until(is_settled: Callable[[], bool], batches: Iterator[Any]) -> bool:
    """Take batches until a loader has finished its own setup; return whether it has."""
    give_up = time.monotonic() + SLOTS_S
    while not is_settled() and time.monotonic() < give_up:
        next(batches)
    return is_settled()


class Unchanged:
    """A transform whose code is not read: workers run the transforms as they are."""

    def __call__(self, image: Any) -> Any:
        """Return the image."""
        return (image,)[0]


def in_workers(dataset: Any) -> Any:
    """Copy a dataset, with an unknown step before its transform."""
    part = copy.copy(dataset)
    part.transform = transforms.Compose([Unchanged(), dataset.transform])
    if hasattr(dataset, "transforms"):
        part.transforms = StandardTransform(part.transform, dataset.target_transform)
    return part


def measure(
    rung: Rung,
    feed: StepFeed,
    train: Callable[[Tensor, Tensor], object] | None,
    clock: Clock,
    batch_size: int,
    steps: int,
    trace: Callable[[Callable[[], object], Callable[[], object]], GpuActivity] | None = None,
) -> Turn:
    """Measure one rung once, in steady state.

    A turn is a multiple of the workers, which finish batches together: with one burst of batches more or less than the
    next it would say nothing. It has at least ``steps`` steps. ``None`` for ``train`` runs the loader alone; ``trace``
    records the GPU's activity of a function, after another that warms up.
    """
    steps = whole_bursts(steps, max(1, rung.workers))

    def step(images: Tensor, labels: Tensor) -> None:
        if train is not None:
            train(feed.lay_out(images), labels)

    run = functools.partial(run_steps, feed.batches, step, clock, move=feed.move)

    def warm_up() -> None:
        feed.settle()
        run(WARM_STEPS)

    feed.settle()
    times = time_steps(feed.batches, step, clock, steps, warm=WARM_STEPS, move=feed.move)
    gpu = None if trace is None else trace(warm_up, lambda: run(steps))
    return Turn(images=batch_size, steps=steps, times=times, gpu=gpu)
