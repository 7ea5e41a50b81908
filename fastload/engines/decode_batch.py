"""A batch on its way through the decode threads, and the errors that it may meet there."""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch._utils import ExceptionWrapper

from fastload import _core

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.pipeline.reader import Recipe


def _held() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(eq=False)
class Batch:
    """One batch of the epoch, from its indices on.

    Its consumer waits for ``ready``, a lock that is let go of once, after ``made`` is set: unlike a condition, which is
    written in Python, waiting for a lock is not left half done by an interrupt.
    """

    worker: int
    number: int
    draw: tuple[Any]  # its indices, as the sampler gave them
    indices: list[Any] = field(default_factory=list)
    sources: list[Any] = field(default_factory=list)
    targets: list[Any] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)  # of each sample, where randomness is by index
    error: ExceptionWrapper | None = None  # of the sample after the last of `sources`
    pixels: Any = None  # the tensor and the job that fills it, once it is started
    job: Any = None
    awaited: tuple[float, float] = (0.0, 0.0)  # from when to when its pixels were waited for, by whoever saw it through
    boxes: torch.Tensor | None = None  # to be erased, where that is done
    images: int = 0
    dropped: bool = False  # nobody wants it: only its draws are made
    made: bool = False
    owner: int | None = None  # the thread that is about to take it; it makes room for another
    taken: bool = False
    ready: threading.Lock = field(default_factory=_held)
    decoded_at: float = 0.0  # when its pixels and targets were there
    made_at: float = 0.0
    data: Any = None  # once made; an ExceptionWrapper for what torch's worker would have sent
    failure: BaseException | None = None  # ours, not the worker's

    def release(self) -> None:
        """Wake who waits for the batch."""
        with contextlib.suppress(RuntimeError):  # it is free
            self.ready.release()

    def locate(self, recipe: Recipe, seed_of: Callable[[Any], int] | None) -> None:
        """Find the samples' encoded images and targets.

        Args:
            recipe: Knows where they are.
            seed_of: A sample's seed by its index, where randomness is by index. Samples are asked for one by one then.

        Raises:
            RuntimeError: The user's dataset has raised what ends a worker, such as SystemExit.
        """
        index = None
        try:
            self.indices = list(self.draw[0])
            resolved = self.indices if seed_of is not None else recipe.resolve(self.indices)
            locate = recipe.locate if seed_of is not None else recipe.locate_resolved
            for index, its in zip(self.indices, resolved, strict=True):
                seed = 0 if seed_of is None else seed_of(index)
                source, target = locate(its)
                if isinstance(source, str | os.PathLike):
                    if "\0" in os.fsdecode(source):
                        open(source, "rb").close()  # raises what it raises in a worker
                else:
                    source = memoryview(source)
                    if not (source.readonly and source.c_contiguous):
                        source = bytes(source)  # it may be written again before the threads have read it
                self.sources.append(source)
                self.targets.append(target)
                self.seeds.append(seed)
        except Exception:  # noqa: BLE001 - the user's dataset or sampler, whatever it raises: in the batch's turn
            self.error = wrapped(self.worker, None if index is None else f"sample {index!r}")
        except BaseException as error:
            raise RuntimeError(f"DataLoader worker exited unexpectedly: sample {index!r} raised {error!r}") from error


class PythonError(Exception):
    """A sample raised in Python; carries what torch's worker would have sent, and where its generator stood then."""

    def __init__(self, sample: int, wrapper: ExceptionWrapper, state: bytes | None) -> None:
        super().__init__(sample)
        self.sample = sample
        self.wrapper = wrapper
        self.state = state


class TookTooLongError(Exception):
    """A batch was not there in time."""


class ClosedError(Exception):
    """The loader was closed meanwhile."""


def wrapped(worker: int, where: str | None) -> ExceptionWrapper:
    """The exception being handled, as torch's worker sends it; its message says which sample it was."""
    result: ExceptionWrapper = ExceptionWrapper(where=f"in DataLoader worker process {worker}")  # type: ignore[no-untyped-call]
    if where is not None:
        result.exc_msg = f"{result.exc_msg}\n{where}"
    return result


def check_size(pixels: Any, size: tuple[int, ...]) -> None:
    """Raise what default_collate raises of images that differ in size."""
    if pixels.shape[:2] != size:
        torch.stack([torch.empty(3, *size), torch.empty(3, *pixels.shape[:2])])


def working_directory() -> str | None:
    """The process's, if there is one."""
    try:
        return os.getcwd()
    except OSError:  # it has been removed
        return None


def as_seen_from(directory: str | None, source: Any) -> Any:
    """``source``, where a path that is relative means what it meant in that directory."""
    if directory is None or not isinstance(source, str | os.PathLike):
        return source
    path = os.fspath(source)
    return source if os.path.isabs(path) else os.path.join(directory, os.fsdecode(path))


def drawn(plan: _core.DrawPlan, job: _core.Job, sample: int, before: bytes) -> bytes | None:
    """Where the core's generator stood after a sample that it drew for and then could not decode."""
    generator = _core.Generator(0)
    generator.set_state(before)
    _, _, width, height, *_ = job.outcome(sample)
    status, *_ = plan.draw(generator, width, height)
    return generator.get_state() if status == "ok" else None
