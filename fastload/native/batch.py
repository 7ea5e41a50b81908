"""A batch of the decode pipeline, and the workers' generators after it."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from torch._utils import ExceptionWrapper

from fastload import _core
from fastload.python_samples.dialogue import checked, failed_of, wrapped
from fastload.randomness.packed import digest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    import torch

    from fastload.bad_samples import Failed
    from fastload.device.host_images import HostImages
    from fastload.pipeline.datasets.arrays import Pixels
    from fastload.pipeline.datasets.samples import Collated
    from fastload.pipeline.ops.erasing import Patch
    from fastload.pipeline.recipe import Recipe


_LARGE_PAGE: Final = 1 << 21  # bytes


def _held() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(eq=False, slots=True)
class Batch:
    """One batch of an epoch.

    The consumer waits for ``ready``, a lock released once, after ``made`` is set. An interrupt can leave a condition,
    which is written in Python, in an inconsistent state, but not a lock.
    """

    worker: int
    number: int
    draw: tuple[Any]  # the indices as the sampler returned them
    answer: Future[Sequence[Any]] | None = None  # of a dataset that was asked for all samples at once
    indices: list[Any] = field(default_factory=list)
    sources: list[Any] | Pixels = field(default_factory=list)  # one for each of a sample's views is decoded
    targets: list[Any] = field(default_factory=list)
    at_once: bool = False  # they were located without the user's code
    seeds: list[int] = field(default_factory=list)  # one per sample if randomness is by index
    error: ExceptionWrapper | None = None  # of the sample after the last of `sources`, or of collating the targets
    pixels: Any = None  # the tensor that `job` fills
    host: HostImages | None = None  # the images that `job` writes, too, if they stay in host memory
    staged: Any = None  # its files, if a GPU decodes it
    job: Any = None
    issued: tuple[Any, Collated] | None = None  # what was passed on, whose pixels may not be there yet, and the rest
    wanted: bool = False  # the consumer waits for it, or has
    after: bytes | None = None  # the worker's generator after it, if Python has drawn
    awaited: tuple[float, float] = (0.0, 0.0)  # begin and end of the pipeline's wait for the pixels
    patches: list[list[Patch]] = field(default_factory=list)  # what erases each sample
    images: int = 0
    dropped: bool = False  # not wanted any more: only its random numbers are drawn
    made: bool = False
    owner: int | None = None  # the thread that is about to take it, which frees its place in the pipeline
    taken: bool = False
    ready: threading.Lock = field(default_factory=_held)
    decoded_at: float = 0.0  # when pixels and targets were complete
    made_at: float = 0.0
    data: Any = None  # set when made; an ExceptionWrapper if torch's worker would have sent one
    failure: BaseException | None = None  # an error of the pipeline, not of the worker
    remaining: Any = None  # a Remaining: what it is made of, if samples that raise are left out or replaced
    failed: list[Failed] = field(default_factory=list)  # these samples, of so many that were tried
    tried: int = 0

    def release(self) -> None:
        """Wake the thread that waits for the batch."""
        with contextlib.suppress(RuntimeError):  # it is free
            self.ready.release()

    def ask(self, recipe: Recipe, wake: Callable[[Any], object]) -> None:
        """Ask the dataset for all samples.

        ``wake`` is called, in any thread, when there is an answer.
        """
        if self.answer is None and self.pixels is None:
            self.answer = recipe.ask(self.draw[0])
            self.answer.add_done_callback(lambda _: wake(None))

    def cancel(self) -> None:
        """Tell the dataset that its answer is not wanted any more."""
        if self.answer is not None:
            self.answer.cancel()

    def outputs(self) -> dict[str, Any]:
        """Return the arguments of ``_core.Pool.submit`` that say where its samples go."""
        staging = None if self.staged is None else self.staged.staging
        return {"out": as_output(self.pixels), "staging": staging} | ({} if self.host is None else self.host.options)

    @property
    def submitted(self) -> Any:
        """What decode threads get.

        What begins from a state of its own is left to Python.
        """
        if self.remaining is None or not self.remaining.starts:
            return self.sources
        starts = self.remaining.starts
        return [b"" if number in starts else self.sources[number] for number in range(len(self.sources))]

    @property
    def made_of(self) -> Any:
        """What a finished batch is made of: files for a GPU, host images or pixels."""
        return self.staged or self.host or self.pixels

    @property
    def is_answered(self) -> bool:
        """Whether :meth:`locate` will not wait for the dataset's answer."""
        return self.answer is None or self.answer.done()

    def staged_within(self, timeout_s: float) -> bool | None:
        """Wait until it can be issued without Python, for a GPU; return whether it can.

        ``None`` if it never can.
        """
        if self.error is not None or self.staged is None or self.job is None:
            return None
        state = self.job.wait(timeout_s)
        if state == "timeout":
            return False
        return True if state == "done" and not failed_of(self.job) else None

    def locate(self, recipe: Recipe, seed_of: Callable[[Any], int] | None) -> None:
        """Find the samples' encoded images and targets.

        Args:
            recipe: Locates them.
            seed_of: Returns a sample's seed from its index, if randomness is by index. Samples are then read one by
                one.

        Raises:
            RuntimeError: The user's dataset raised an exception that ends a worker, such as SystemExit.
        """
        index = None
        try:
            self.indices = list(self.draw[0])
            if (arrays := recipe.pixels_of(self.indices)) is not None:
                self.seeds = [] if seed_of is None else [*map(seed_of, self.indices)]
                self.sources, self.targets = arrays
                self.at_once = True
                self._found(None)
                return
            if seed_of is None and self.answer is None and (found := recipe.paths_of(self.indices)) is not None:
                self.sources, self.targets = found
                self.at_once = True
                self._found(None)
                return
            sources: list[Any] = []
            self.sources = sources
            each = seed_of is not None or self.remaining is not None
            resolved = self.indices if each else recipe.resolve(self.indices)
            locate = recipe.locate if each else recipe.locate_resolved
            answer = self.answer
            if answer is not None and self.remaining is not None and answer.exception() is not None:
                answer = None  # each sample is asked for by itself
            entries = map(locate, resolved) if answer is None else recipe.taken(answer, len(resolved))
            if self._found(entries):
                return
            for index in self.indices:
                seed = 0 if seed_of is None else seed_of(index)
                source, target = next(entries)
                sources.append(checked(source))
                self.targets.append(target)
                self.seeds.append(seed)
        except Exception:  # noqa: BLE001 - any error of the user's dataset or sampler; raised in the batch's turn
            self.error = wrapped(self.worker, None if index is None else recipe.described(index))
            if recipe.fetches_batches and seed_of is None:  # fails in its turn, and then the dataset fetches the batch
                self.sources, self.targets = [b""], [None]
        except BaseException as error:
            raise RuntimeError(f"DataLoader worker exited unexpectedly: sample {index!r} raised {error!r}") from error

    def _found(self, entries: Iterator[tuple[Any, Any]] | None) -> bool:
        """Let what remains of the batch take its samples; see :meth:`Remaining.locate`. Returns whether it does."""
        if self.remaining is not None:
            self.remaining.locate(entries)
        return self.remaining is not None


def as_output(pixels: torch.Tensor) -> np.ndarray[Any, Any]:
    """View a batch's pixels as the core takes them, with large pages if useful."""
    out: np.ndarray[Any, Any] = pixels.numpy()
    if out.nbytes >= _LARGE_PAGE:
        _core.advise_large_pages(out)
    return out


class StreamStates:
    """What the workers' generators are after the last batches that each worker made.

    Written by the pipeline's thread; other threads read.

    Args:
        first: Before the first batch; ``None`` for a worker that starts from its seed.
    """

    def __init__(self, first: Sequence[bytes | None]) -> None:
        self._first = list(first)
        self._kept: dict[int, tuple[int, bytes | None]] = {}

    def add(self, batch: Batch, draws: bool, handed_over: int) -> None:
        """Keep the state after ``batch``, and drop those that are too old."""
        after, workers = batch.after, len(self._first)
        if draws and after is None and batch.job is not None:
            after = batch.job.generator_before(len(batch.job))
        self._kept[batch.number] = digest_of(batch.indices), after
        for number in sorted(number for number in self._kept if number < handed_over - workers):
            self._first[number % workers] = self._kept[number][1] or self._first[number % workers]
            del self._kept[number]

    def at(self, handed_over: int) -> tuple[int, list[bytes | None]]:
        """Return the digest of the last batch handed over (0: unknown), and each worker's state."""
        workers = len(self._first)
        states = [self._before(number) for number in range(handed_over, handed_over + workers)]
        turn = handed_over % workers
        return self._kept.get(handed_over - 1, (0, None))[0], states[workers - turn :] + states[: workers - turn]

    def _before(self, number: int) -> bytes | None:
        """The state of a worker before a batch: after its last batch that drew."""
        worker = number % len(self._first)
        for earlier in range(number - len(self._first), -1, -len(self._first)):
            kept = self._kept.get(earlier)  # once: the pipeline's thread may drop it meanwhile
            if kept is None:
                break
            if kept[1] is not None:
                return kept[1]
        return self._first[worker]

    def begin_epoch(self, made: int) -> None:
        """Begin an epoch that goes on with the same generators, after ``made`` batches."""
        self._first = self.at(made)[1]
        self._kept.clear()
