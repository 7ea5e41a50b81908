"""The rungs of the ladder, and how one of them is measured."""

from __future__ import annotations

import copy
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets.vision import StandardTransform

from fastload import FastLoader
from fastload.bench._data import ENDLESS, EndlessDraws
from fastload.bench._steps import run_steps, whole_bursts
from fastload.bench._trace import GpuActivity
from fastload.measurement.record import Spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from fastload.bench._steps import Batch, StepMarks
    from fastload.measurement.clock import Clock

PREFETCH_FACTOR = 2  # batches that every worker may have ready: torch's default, the same on every rung
WARM_STEPS = 10  # until the loop runs as it will go on, once the loader does
SLOTS_S = 30.0  # the longest that slots are waited for


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One loop to measure; every rung keeps what the one below it has.

    Attributes:
        number: 1 to 5 are torch alone, 6 to 8 FastLoader; 0 is the ceiling, whose data is on the GPU already.
        name: What this rung changes.
        workers: Worker processes.
        channels_last: Memory format of weights and images.
        pinned: Whether batches pass through pinned memory.
        side_stream: Whether FastLoader copies one batch ahead on a stream of its own.
        slots: Whether its workers write batches straight into pinned memory.
        native: Whether it decodes natively: then ``workers`` are threads.
        loader_alone: Whether the rung says something without a GPU: then the loader runs without training.
    """

    number: int
    name: str
    workers: int
    channels_last: bool = False
    pinned: bool = False
    side_stream: bool = False
    slots: bool = False
    native: bool = False
    loader_alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """How long a rung is measured.

    Attributes:
        steps: Training steps of a rung in one climb (see :func:`window_steps`).
        repeats: Climbs: every rung is measured once in each, so that what comes and goes on a machine meets them all.
    """

    steps: int = 30
    repeats: int = 5

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 1:
                raise ValueError(f"{name} must be >= 1, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One rung in one climb.

    Attributes:
        images: How many were trained on.
        steps: In how many steps.
        seconds: In how long.
        waited_s: Of that: the GPU had finished a step and the loop had no next batch yet.
        copied_s: Of that: the GPU's compute stream was taken by the copy of a batch.
        gpu: What the profiler recorded afterwards, if it did.
    """

    images: int
    steps: int
    seconds: float
    waited_s: float
    copied_s: float
    gpu: GpuActivity | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RungResult:
    """What a rung measured.

    Attributes:
        rung: The rung.
        images_per_s: One value per climb.
        ms_per_step: One value per climb.
        wait_share: Share of the time in which the GPU had finished a step and the loop had no next batch yet.
        copy_share: Share of the time in which the GPU's compute stream was taken by the copy of a batch.
        gpu: What the profiler recorded; ``None`` where nothing was trained.
    """

    rung: Rung
    images_per_s: Spread
    ms_per_step: Spread
    wait_share: float | None
    copy_share: float | None
    gpu: GpuActivity | None

    @classmethod
    def of(cls, rung: Rung, turns: Sequence[Turn], *, trained: bool) -> RungResult:
        """Summarize a rung's turns; without training there are no waits and no copies."""
        total_s = sum(turn.seconds for turn in turns)
        return cls(
            rung=rung,
            images_per_s=Spread.of([turn.images / turn.seconds for turn in turns]),
            ms_per_step=Spread.of([1e3 * turn.seconds / turn.steps for turn in turns]),
            wait_share=sum(turn.waited_s for turn in turns) / total_s if trained else None,
            copy_share=sum(turn.copied_s for turn in turns) / total_s if trained else None,
            gpu=next((turn.gpu for turn in reversed(turns) if turn.gpu is not None), None),
        )

    def record(self) -> dict[str, Any]:
        """As it stands in the JSON file."""
        gpu = self.gpu
        return {
            **asdict(self.rung),
            "images_per_s": self.images_per_s.record(),
            "ms_per_step": self.ms_per_step.record(),
            "wait_share": self.wait_share,
            "copy_share": self.copy_share,
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
    return (
        Rung(number=1, name="few workers", workers=few, loader_alone=True),
        Rung(number=2, name="more workers", workers=more, loader_alone=True),
        Rung(number=3, name="channels_last", workers=more, channels_last=True),
        Rung(number=4, name="more workers again", workers=most, channels_last=True, loader_alone=True),
        Rung(number=5, name="pinned memory", workers=most, channels_last=True, pinned=True),
        Rung(number=6, name="side stream", workers=most, channels_last=True, pinned=True, side_stream=True),
        Rung(
            number=7, name="pinned slots", workers=most, channels_last=True, pinned=True, side_stream=True, slots=True
        ),
        Rung(
            number=8,
            name="native engine",
            workers=most,
            channels_last=True,
            pinned=True,
            side_stream=True,
            slots=True,
            native=True,
            loader_alone=True,
        ),
        Rung(number=0, name="ceiling", workers=0, channels_last=True),
    )


class StepFeed:
    """The batches of one rung: a running loader, and how batches reach the device.

    Args:
        rung: Which loader.
        dataset: What it loads; unused by the ceiling.
        pool: Indices to draw from.
        batch_size: Images per batch; there is no last batch.
        device: Where they have to go; ``None`` leaves them where the loader puts them.
    """

    def __init__(
        self,
        rung: Rung,
        dataset: Any,
        pool: Sequence[int],
        batch_size: int,
        device: torch.device | None,
    ) -> None:
        self._rung = rung
        self._device = device
        self._loader: FastLoader[Any] | None = None
        self.batches: Iterator[Batch]
        if not rung.workers:
            self.batches = self._same_batch(batch_size)
            return
        arguments: dict[str, Any] = {
            "batch_size": batch_size,
            "sampler": EndlessDraws(pool, ENDLESS),
            "num_workers": rung.workers,
            "prefetch_factor": PREFETCH_FACTOR,
            "pin_memory": rung.pinned,
        }
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
        images = images.to(self._device, non_blocking=rung.pinned)
        labels = labels.to(self._device, non_blocking=rung.pinned)
        return images, labels

    def lay_out(self, images: Tensor) -> Tensor:
        """Bring a batch that is on the device into this rung's memory format."""
        return images.contiguous(memory_format=torch.channels_last) if self._rung.channels_last else images

    def settle(self) -> None:
        """Take batches as quickly as they come, until they come as they will go on.

        Training would leave for long what the workers had time to prefetch, if they are nearly as quick as it is. Slots
        are made while the first batches come.
        """
        on_gpu = self._device is not None and self._device.type == "cuda"
        loader = self._loader
        if self._rung.slots and not self._rung.native and loader is not None and on_gpu:
            take_until(lambda: loader.stats().slots > 0, self.batches)
        for _ in range(self._rung.workers * PREFETCH_FACTOR):
            next(self.batches)

    def close(self) -> None:
        """Stop the workers and block until they have ended.

        The next rung then has the machine to itself.
        """
        ending: Any = self.batches if self._loader is None else self._loader  # with which its slots go
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
    """Arguments of FastLoader for what a rung has and has not."""
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


def window_steps(rung: Rung, length: Length) -> int:
    """Steps of one turn: at least ``length.steps``, and a multiple of the workers.

    A turn that held one burst of batches more or less than the next would say nothing.
    """
    return whole_bursts(length.steps, max(1, rung.workers))


def measure(
    rung: Rung,
    feed: StepFeed,
    train: Callable[[Tensor, Tensor], object] | None,
    clock: Clock,
    batch_size: int,
    length: Length,
    trace: Callable[[Callable[[], object], Callable[[int], object], int], GpuActivity] | None = None,
) -> Turn:
    """Measure one rung once, in steady state.

    Args:
        rung: What is measured.
        feed: Its batches.
        train: The training step; ``None`` runs the loader alone.
        clock: Marks the steps.
        batch_size: Images per step.
        length: How long.
        trace: :func:`fastload.bench._trace.record_activity`, or ``None`` for no record.
    """

    def step(images: Tensor, labels: Tensor) -> None:
        if train is not None:
            train(feed.lay_out(images), labels)

    def advance(count: int) -> list[StepMarks]:
        return run_steps(feed.batches, feed.move, step, clock, count)

    def warm_up() -> StepMarks:
        feed.settle()
        return advance(WARM_STEPS)[-1]

    steps = window_steps(rung, length)
    before = warm_up()
    marks = advance(steps)
    clock.finish()
    ends = [before.ended, *(mark.ended for mark in marks)]
    return Turn(
        images=steps * batch_size,
        steps=steps,
        seconds=clock.between_s(ends[0], ends[-1]),
        waited_s=sum(clock.between_s(end, mark.arrived) for end, mark in zip(ends, marks, strict=False)),
        copied_s=sum(clock.between_s(mark.arrived, mark.copied) for mark in marks),
        gpu=None if trace is None else trace(warm_up, advance, steps),
    )
