"""The state of a batch in the decode pipeline, and the pipeline's errors."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torchvision.transforms import functional

from fastload import _core
from fastload.engines.packed_states import digest_of
from fastload.pipeline.arrays import Pixels
from fastload.pipeline.datasets import OddPath
from fastload.pipeline.samples import one_of
from fastload.stats.stats import Totals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from queue import SimpleQueue

    from fastload.engines.host_images import HostImages
    from fastload.pipeline.erasing import Patch
    from fastload.pipeline.reader import Recipe
    from fastload.pipeline.samples import Collated


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
    def made_of(self) -> Any:
        """What a finished batch is made of: files for a GPU, host images or pixels."""
        return self.staged or self.host or self.pixels

    @property
    def is_answered(self) -> bool:
        """Whether :meth:`locate` will not wait for the dataset's answer."""
        return self.answer is None or self.answer.done()

    @property
    def is_staged(self) -> bool:
        """Whether it can be issued without a wait and without Python, for a GPU."""
        if self.error is not None or self.staged is None:
            return False
        return self.job.wait(0.0) == "done" and not failed_of(self.job)

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
                return
            if seed_of is None and self.answer is None and (found := recipe.paths_of(self.indices)) is not None:
                self.sources, self.targets = found
                self.at_once = True
                return
            sources: list[Any] = []
            self.sources = sources
            resolved = self.indices if seed_of is not None else recipe.resolve(self.indices)
            locate = recipe.locate if seed_of is not None else recipe.locate_resolved
            entries = map(locate, resolved) if self.answer is None else recipe.taken(self.answer, len(resolved))
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


def first_untaken(batches: tuple[Batch, ...], empty: int) -> int:
    """Return the number of the first batch not taken; ``empty`` without batches."""
    number = empty
    for batch in batches:
        if not batch.taken:
            return batch.number
        number = batch.number + 1
    return number


def as_output(pixels: torch.Tensor) -> np.ndarray[Any, Any]:
    """View a batch's pixels as the core takes them, with large pages if useful."""
    out: np.ndarray[Any, Any] = pixels.numpy()
    if out.nbytes >= _LARGE_PAGE:
        _core.advise_large_pages(out)
    return out


def woken_by(wakeups: SimpleQueue[object]) -> object:
    """Wait until something is in a queue.

    Empties it up to the first entry that is not ``None``, which it returns.
    """
    reason = wakeups.get()
    while reason is None and not wakeups.empty():  # one look at the batches will do for all
        reason = wakeups.get_nowait()
    return reason


def failed_of(job: _core.Job) -> list[int]:
    """List the samples that a finished job has not made."""
    statuses = job.statuses()
    return [sample for sample, status in enumerate(statuses) if status] if any(statuses) else []


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


class PythonError(Exception):
    """A sample raised in Python.

    Carries the error that torch's worker would have sent, and the state of its generator at that time.
    """

    def __init__(self, sample: int, wrapper: ExceptionWrapper, state: bytes | None) -> None:
        super().__init__(sample)
        self.sample = sample
        self.wrapper = wrapper
        self.state = state


class TookTooLongError(Exception):
    """A batch was not ready in time."""


class ClosedError(Exception):
    """The loader was closed while the batch was made."""


def wrapped(worker: int, where: str | None) -> ExceptionWrapper:
    """Wrap the current exception as torch's worker does, and name the sample in its message."""
    result: ExceptionWrapper = ExceptionWrapper(where=f"in DataLoader worker process {worker}")  # type: ignore[no-untyped-call]
    if where is not None:
        result.exc_msg = f"{result.exc_msg}\n{where}"
    return result


def check_size(pixels: Any, size: tuple[int, ...]) -> None:
    """Raise the error that default_collate raises if images differ in size."""
    if pixels.shape[:2] != size:
        torch.stack([torch.empty(3, *size), torch.empty(3, *pixels.shape[:2])])


def checked(source: Any) -> Any:
    """Check and keep a sample's encoded image, or several.

    Raises what a worker would of a path.
    """
    if type(source) is str and source.isascii() and "\0" not in source:  # the usual case, decided quickly
        return source
    if type(source) is tuple:
        return tuple(map(checked, source))
    if isinstance(source, str | os.PathLike) and not _is_name(source):
        open(source, "rb").close()  # raises the same error as in a worker
    return unchanging(source)


def _is_name(path: Any) -> bool:
    """Whether a file may have such a path."""
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def unchanging(source: Any) -> Any:
    """Copy an encoded image that may be overwritten before threads read it."""
    if type(source) is tuple:
        return tuple(map(unchanging, source))
    if isinstance(source, str | os.PathLike | np.ndarray | OddPath):  # an array is a copy
        return source
    data = memoryview(source)
    if data.ndim != 1:  # the core would take it for pixels
        return bytes(data)
    return data if data.readonly and data.c_contiguous else bytes(data)


def working_directory() -> str | None:
    """The process's working directory, or ``None`` if it has been removed."""
    try:
        return os.getcwd()
    except OSError:
        return None


def submitted(sources: Any, views: int, directory: str | None) -> dict[str, Any]:
    """Return the arguments of ``_core.Pool.submit`` that give a batch's images.

    Args:
        sources: See :class:`Batch`.
        views: How many of each image.
        directory: What relative paths start from; ``None``: the working directory.
    """
    if isinstance(sources, Pixels):
        return {"inputs": sources.images, "indices": sources.indices}
    if views == 1 and _are_absolute(sources):
        return {"inputs": sources}
    return {"inputs": [as_seen_from(directory, one_of(source, view)) for source in sources for view in range(views)]}


def _are_absolute(sources: list[Any]) -> bool:
    """Whether all are absolute paths, the usual case, which is decided quickly."""
    try:
        return all(map(str.startswith, sources, itertools.repeat("/")))
    except TypeError:  # some are no strings
        return False


def as_seen_from(directory: str | None, source: Any) -> Any:
    """Resolve ``source`` against ``directory`` if it is a relative path.

    An odd one becomes no image, and so is left to Python.
    """
    if isinstance(source, OddPath):
        return b""
    if directory is None or not isinstance(source, str | os.PathLike):
        return source
    path = os.fspath(source)
    return source if os.path.isabs(path) else os.path.join(directory, os.fsdecode(path))


def drawn(plan: _core.DrawPlan, job: _core.Job, sample: int, before: bytes, views: int = 1) -> bytes | None:
    """The core's generator state after drawing for a sample; ``None`` if it cannot."""
    _, _, width, height, *_ = job.outcome(sample)
    known: list[tuple[str, list[float], list[float]]] = []
    while True:
        generator = _core.Generator(0)
        generator.set_state(before)
        status, _, question = plan.draw(generator, width, height, known, sample % views)
        if status in ("ok", "crop_too_large"):
            return generator.get_state() if status == "ok" else None
        known.append((status, question, answer_to(status, question)))


def answer_to(kind: str, question: list[float]) -> list[float]:
    """What torch and torchvision compute, for :class:`_core.DrawPlan`.

    Args:
        kind: ``"exp"``, in float32, or ``"perspective"``, torchvision's coefficients.
        question: One number; or an image's width and height, and the x and y of where its four corners go.

    Returns:
        One number, or eight; none if it raises an error.
    """
    if kind == "exp":
        return torch.exp(torch.tensor(question, dtype=torch.float32)).tolist()
    width, height, *ends = map(int, question)
    starts = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    try:
        coefficients: list[float] = functional._get_perspective_coeffs(
            starts, [ends[i : i + 2] for i in range(0, 8, 2)]
        )
    except RuntimeError:  # torch.linalg's
        return []
    return coefficients


def stage_totals(
    work: tuple[float, float, float, float],
    batches: int,
    collate_s: float,
    epilogue_s: float | None,
    python: tuple[int, int, float],
    images: tuple[int, int],
) -> Totals:
    """Time spent by stage.

    Args:
        work: See ``_core.Pool.work_times``.
        batches: Number of decoded batches.
        collate_s: Seconds of collating targets.
        epilogue_s: Seconds of making images of pixels; ``None`` if that is no stage of its own here.
        python: Number of samples made in Python, of batches with any, and the seconds that these took.
        images: Number of all samples, and of those that a GPU has decoded.
    """
    seconds, busy, read, read_busy = work
    spent = {"fetch": read, "decode": seconds - read, "collate": collate_s}
    if epilogue_s is not None:
        spent["epilogue"] = epilogue_s
    counts = dict.fromkeys(spent, float(batches))
    in_python, of_batches, seconds_in_python = python
    if in_python:
        spent["python"], counts["python"] = seconds_in_python, float(of_batches)
    return Totals(
        {
            **{f"stage:{name}:count": count for name, count in counts.items()},
            **{f"stage:{name}:s": took for name, took in spent.items()},
            "python_images": float(in_python),
            "gpu_images": float(images[1]),
            "thread_images": float(max(0, images[0] - images[1] - in_python)),
            "made:sampled_s": seconds,
            "made:busy_s": busy,
            "made:queued_s": max(0.0, seconds - busy - (read - read_busy)),
            "made:decode_s": busy,
        }
    )
