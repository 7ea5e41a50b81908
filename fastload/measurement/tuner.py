"""Find the number of workers that keeps a training step fed.

The step's rate on batches already in memory, and a sample's cost in one worker, give the first count to try. Every
count feeds the real step for a short time, and the answer is the smallest at which the step does not wait and the
loader could deliver 10% more than the step takes. If no count is enough, or there is no step, it is the smallest that
runs as fast as the best.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fastload.autoscale.policy import GROWTH, SPARE, STARVED, cores_for_loading, workers_needed
from fastload.loader import FastLoader
from fastload.measurement.throughput import ceiling_rate, endless, in_flight, loop_rate
from fastload.options import resolve_device
from fastload.stats.diagnosis import report
from fastload.torch_workers.twin import twin_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.utils.data import DataLoader

    from fastload.stats.verdict import Verdict

NOISE: Final = 0.03
"""Rates that differ by less than this share are equal."""


@dataclass(frozen=True, slots=True)
class Tried:
    """The measurement of one number of workers.

    Attributes:
        workers: Number of workers.
        prefetch_factor: Batches in flight per worker.
        images_per_s: The loop's rate.
        wait_share: Share of time in which the step waited for a batch.
        starved_share: Share of time in which the step waited and the batch was being made or its worker had yet to
            begin. The rest of ``wait_share`` is the transfer from the worker, which more workers do not shorten.
        loader_images_per_s: Rate that the loader could have delivered.
        cores: Average number of cores that loader and step kept busy.
        cost_s: Seconds of one worker for one image.
        verdict: The bottleneck.
    """

    workers: int
    prefetch_factor: int
    images_per_s: float
    wait_share: float
    starved_share: float
    loader_images_per_s: float
    cores: float
    cost_s: float
    verdict: Verdict = field(repr=False)

    @property
    def is_fed(self) -> bool:
        """Whether the step, even if 10% faster, does not wait for workers."""
        consumer = self.images_per_s / (1 - self.wait_share) if self.wait_share < 1 else math.inf
        return self.starved_share <= STARVED and self.loader_images_per_s >= SPARE * consumer


@dataclass(frozen=True, slots=True)
class Tuning:
    """The answer and its measurements; ``str`` is the line to paste.

    Attributes:
        chosen: The smallest count that is enough.
        tried: All counts, in the order tried.
        consumer_images_per_s: The step's rate with a perfect loader; ``None`` without a step.
        most: Largest number of workers allowed.
        engine: The engine that made the batches.
    """

    chosen: Tried
    tried: tuple[Tried, ...]
    consumer_images_per_s: float | None
    most: int
    engine: str

    def __str__(self) -> str:
        return f"num_workers={self.chosen.workers}, prefetch_factor={self.chosen.prefetch_factor}"

    @property
    def why(self) -> str:
        """The reason for this count, as a sentence."""
        chosen, spare, best = (
            self.chosen,
            f"{SPARE - 1:.0%} to spare",
            f"the smallest within {NOISE:.0%} of the fastest",
        )
        if self.consumer_images_per_s is None:
            return f"without a step the loader ran by itself: the smallest count within {NOISE:.0%} of the fastest"
        if chosen.is_fed:
            return f"the smallest count that keeps the step fed with {spare}"
        best = f"the smallest within {NOISE:.0%} of the fastest"
        up_to = f"up to {self.most} worker{'s' if self.most > 1 else ''}"
        if chosen.starved_share <= STARVED:
            return f"the step does not wait for workers, but {up_to} have no {spare}: {best}"
        waits = f"the step waits for workers {chosen.starved_share:.0%} of the time"
        return f"{up_to} cannot keep the step fed: {best}; {waits}"

    def record(self) -> dict[str, Any]:
        """Convert to a JSON object."""
        chosen = self.chosen
        return {
            "num_workers": chosen.workers,
            "prefetch_factor": chosen.prefetch_factor,
            "line": str(self),
            "why": self.why,
            "is_fed": self.consumer_images_per_s is not None and chosen.is_fed,
            "consumer_images_per_s": self.consumer_images_per_s,
            "cost_ms": 1e3 * chosen.cost_s,
            "engine": self.engine,
            "most": self.most,
            "verdict": str(chosen.verdict),
            "tried": [{**asdict(tried), "verdict": tried.verdict.name} for tried in self.tried],
        }


class Tuner:
    """Measures numbers of workers with one loader and one step.

    Args:
        loader: A FastLoader, or torch's DataLoader, which is then measured as torch runs it. It stays untouched: copies
            of it run, with persistent workers, so that starting workers does not distort short epochs.
        step: Trains on a batch; ``None`` measures the loader alone.
        seconds: Duration per count, after the warm-up.
        most: Most workers; ``None`` for the number of cores available to them.
        on_try: Called with each count before it is tried.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        step: Callable[[Any], object] | None = None,
        *,
        seconds: float = 2.0,
        most: int | None = None,
        on_try: Callable[[int], object] = lambda count: None,
    ) -> None:
        self._given = loader
        self._is_ours = isinstance(loader, FastLoader)
        self._loader = loader if isinstance(loader, FastLoader) else FastLoader.wrap(loader, device="cpu")
        self._device = resolve_device(loader.device if isinstance(loader, FastLoader) else "auto")
        self._step = step
        self._seconds = seconds
        self._most = cores_for_loading() if most is None else most
        self._on_try = on_try
        self._prefetch_factor = loader.prefetch_factor or 2
        self._engine = "torch"
        self.tried: list[Tried] = []

    def run(self) -> Tuning:
        """Find the smallest count that is enough. Blocks for some seconds per count."""
        consumer = None
        if self._step is not None:
            consumer = ceiling_rate(self._given, self._step, seconds=self._seconds)().images_per_s
        self._search(consumer)
        chosen = self._smallest()
        if self._step is not None and not chosen.is_fed and chosen.loader_images_per_s >= SPARE * chosen.images_per_s:
            deeper = self._try(chosen.workers, 2 * self._prefetch_factor)  # fast enough, but bursty
            if deeper.images_per_s > (1 + NOISE) * chosen.images_per_s:
                chosen = deeper
        return Tuning(chosen, tuple(self.tried), consumer, self._most, self._engine)

    def _search(self, consumer: float | None) -> None:
        """Try 1 worker, the count its cost suggests, more until enough, then bisect."""
        count, last = 1, self._try(1)
        if consumer is not None and last.cost_s:
            count = workers_needed(consumer, last.cost_s, self._most)
            last = last if count == 1 else self._try(count)
        while count < self._most and not self._is_plenty(last):
            count = min(self._most, max(count + 1, math.ceil(GROWTH * count) if consumer is not None else 2 * count))
            last = self._try(count)
        while True:
            enough = self._smallest().workers
            fewer = max((tried.workers for tried in self.tried if tried.workers < enough), default=0)
            if enough - fewer <= 1:
                return
            self._try((enough + fewer) // 2)

    def _is_plenty(self, tried: Tried) -> bool:
        """Whether more workers would not help."""
        if self._step is not None:
            return tried.is_fed
        best = max(self.tried, key=lambda one: one.images_per_s)
        return 2 * best.workers <= tried.workers

    def _smallest(self) -> Tried:
        enough = [tried for tried in self.tried if self._step is not None and tried.is_fed]
        if not enough:
            best = max(tried.images_per_s for tried in self.tried)
            enough = [tried for tried in self.tried if tried.images_per_s >= (1 - NOISE) * best]
        return min(enough, key=lambda tried: tried.workers)

    def _try(self, count: int, prefetch_factor: int | None = None) -> Tried:
        self._on_try(count)
        ahead = prefetch_factor or self._prefetch_factor
        changes: dict[str, Any] = {"num_workers": count, "prefetch_factor": ahead, "persistent_workers": True}
        if not self._is_ours:
            changes["engine"] = "torch"
        step = self._step or _nothing
        with warnings.catch_warnings(), twin_of(self._loader, **changes) as twin:
            warnings.filterwarnings(
                "ignore", "This DataLoader will create", UserWarning
            )  # the count is within the cores, or was requested
            feed = endless(twin)
            for _ in range(in_flight(twin)):
                step(next(feed))
            before = twin.stats()
            rate = loop_rate(feed, step, self._device, seconds=self._seconds, warm_steps=0, rounds_of=count)
            stats = twin.stats().since(before)
            self._engine = twin.plan.engine
        tried = Tried(
            workers=count,
            prefetch_factor=ahead,
            images_per_s=rate.images_per_s,
            wait_share=rate.wait_share,
            starved_share=rate.wait_share * min(1.0, stats.wait_share("before", "fetch", "collate", "decode")),
            loader_images_per_s=max(stats.loader_images_per_s, rate.images_per_s),
            cores=rate.cores,
            cost_s=stats.making_s / stats.images if stats.images else 0.0,
            verdict=report(stats).verdict,
        )
        self.tried.append(tried)
        return tried


def _nothing(batch: Any) -> None:
    """Do nothing: the step of a loop that only loads."""
