"""A process that makes samples that the native core does not support.

The user's transforms draw from torch's default generator, which the whole process shares: other code that draws at the
same time would change the sample, and the sample would change its draws. So samples are made in a process that does
nothing else, as in torch's workers. It uses the loader's start method, so it also keeps what workers keep (the working
directory, Pillow's settings, the transforms) when these change in this process. Killing it ends a sample that would
never finish, such as a named pipe without a writer.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import pickle
import queue
import signal
import threading
import time
import traceback
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch
from PIL import Image, ImageFile
from torch.utils.data import _utils, default_collate

from fastload.nvtx import stages
from fastload.pipeline.datasets.folders import OddPath, sendable
from fastload.pipeline.recipe import OpenedImage, pixel_limit
from fastload.python_samples.dialogue import TookTooLongError, working_directory, wrapped
from fastload.python_samples.odd_samples import sized
from fastload.python_samples.worker_states import first_states
from fastload.randomness.generators import set_state, state_now
from fastload.torch_workers.orphans import LOOK_S, exit_with_parent
from fastload.torch_workers.processes import JOIN_S, forking_workers, release_free_memory
from fastload.torch_workers.signals import deferred_signals, finalizer, usual_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from torch._utils import ExceptionWrapper

    from fastload.pipeline.recipe import Recipe

READY_S = 5.0  # time allowed from the fork until the process accepts requests; usually 10 ms
STARTS = 3


class SampleProcess:
    """Answers one request at a time, once started. Not thread-safe, except for :meth:`kill`.

    Forking takes about 20 ms, and more for memory written afterwards, so it is delayed until the first sample; settings
    that samples depend on and workers keep from their start are recorded beforehand. A process that is not forked
    records them itself, and so starts at once.

    Args:
        recipe: How to make samples; nothing that it refers to may change afterwards.
        context: The loader's ``multiprocessing_context``; ``None`` is the default start method.
        note_use: Called before a sample is made.

    Raises:
        Exception: See :meth:`start`.
    """

    def __init__(self, recipe: Recipe, context: Any = None, *, note_use: Callable[[], None] = lambda: None) -> None:
        self._note_use = note_use
        self.started = self._ready = self._closed = self._killed = self._wanted = False
        self._start_done: queue.SimpleQueue[None] = queue.SimpleQueue()  # wakes the thread that waits for the start
        self._error: Exception | None = None
        self._pid = os.getpid()
        self._context = context or multiprocessing.get_context()
        self._recipe = recipe
        self.forks = self._context.get_start_method() == "fork"
        self._settings = _Settings.now() if self.forks else None
        if not self.forks:
            self.start()

    def start(self) -> None:
        """Start the process, unless started. Call it only in the thread that uses the loader.

        Raises:
            Exception: Any error that starting one of torch's workers would raise here, such as a pickling error.
        """
        for _ in range(STARTS):
            if not self.started:
                with deferred_signals(), forking_workers(), _may_have_children():
                    self._start()
            if self._wait_ready():
                self._recipe = self._recipe.without_dataset()  # the process has it
                return
        raise RuntimeError(f"a process for samples made in Python did not answer, {STARTS} times")

    def _wait_ready(self) -> bool:
        """Return whether the process accepts requests; end it if it does not in time.

        If another thread draws from torch's generator during the fork, the child inherits the generator's lock taken,
        and would wait for it forever.
        """
        if self._settings is None or self._ready or self._killed or self._closed:
            return True
        if self._connection.poll(READY_S):
            self._connection.recv_bytes()
            self._ready = True
            return True
        self._process.kill()
        self._process.join(JOIN_S)
        self._connection.close()
        self.started = False
        return False

    def wait_started(self, wake: Callable[[], None]) -> None:
        """Ask the loader's thread to start the process, and wait. Called in another thread.

        Only the loader's thread may fork: it holds no lock that would stay taken in the child.

        Args:
            wake: Wakes the loader's thread.

        Raises:
            RuntimeError: The process cannot be started, or :meth:`kill` was called.
        """
        self._note_use()
        while not self.started:
            self._wanted = True
            wake()
            self._start_done.get()
            error, self._error = self._error, None
            if self._killed or error is not None:
                raise RuntimeError(f"a process for samples made in Python cannot be started: {error}") from error

    def start_if_wanted(self) -> None:
        """Start the process if another thread waits for that. Called in the loader's thread."""
        if not self._wanted:
            return
        self._wanted = False
        try:
            self.start()
        except Exception as error:  # noqa: BLE001 - raised in the waiting thread
            self._error = error
        finally:
            self._start_done.put(None)

    def _start(self) -> None:
        ends: tuple[Connection, Connection] = self._context.Pipe()
        self._connection, theirs = ends
        # The plan cannot be pickled and is not needed there.
        recipe = replace(self._recipe, plan=None)  # type: ignore[arg-type]
        forked = () if self._settings is None else (self._connection,)  # one end of it is inherited
        arguments = theirs, recipe, self._settings, os.getpid(), *forked
        self._process = self._context.Process(
            target=_answer_requests, args=arguments, name="fastload-samples", daemon=True
        )
        try:
            release_free_memory()
            self._process.start()
        except BaseException:
            self._connection.close()
            raise
        finally:
            theirs.close()
        self.started = True
        # A child forked from this process would take the sample process for its own, and end it on exit.
        multiprocessing.process._children.discard(self._process)  # type: ignore[attr-defined]
        if self._killed or self._closed:  # by another thread, before there was a process to end
            self._process.kill()
            self._process.join(JOIN_S)
            self._connection.close()

    @functools.cached_property
    def max_pixels(self) -> int:
        """Pillow's limit on image size in that process, in pixels; 0 is none. May block."""
        limit = self._ask(("max_pixels",)) if self._settings is None else self._settings.max_pixels
        return pixel_limit(limit, self._recipe.pipeline.largest_crop)

    def sample(self, source: Any, state: bytes | None, *, worker: int, where: str, view: int = 0) -> tuple[Any, bytes]:
        """Make one view of a sample from a state of the generators. Blocks.

        Returns:
            A pair: the sample's pixels, ``(H, W, 3)`` uint8, with what erases them, or the error that torch's worker
            would send; and the generators' state afterwards.

        Raises:
            RuntimeError: The process has ended.
        """
        return self._ask(("sample", sendable(source), state, worker, where, view))  # type: ignore[no-any-return]

    def fetched(self, indices: list[Any], state: bytes | None, *, worker: int) -> tuple[ExceptionWrapper | None, bytes]:
        """Fetch a batch from the dataset; return its error, if any, and the generators' state.

        Raises:
            RuntimeError: The process has ended.
        """
        return self._ask(("fetched", indices, state, worker))  # type: ignore[no-any-return]

    def located(self, index: Any, timeout_s: float | None) -> tuple[Any, Any] | str:
        """Return a sample's encoded image and target, or the error raised, in words.

        Raises:
            TookTooLongError: There is no answer in time.
            RuntimeError: The process has ended.
        """
        return self._ask(("located", index), timeout_s)  # type: ignore[no-any-return]

    def batch(self, index: Any, state: bytes, timeout_s: float | None) -> tuple[Any, bytes]:
        """Make a batch of one sample by the dataset itself, from a generator state.

        Returns:
            The batch (``None`` if the sample raises), and the generator's state afterwards.

        Raises:
            TookTooLongError: There is no answer in time.
            RuntimeError: The process has ended.
        """
        return self._ask(("batch", index, state), timeout_s)  # type: ignore[no-any-return]

    def first_states(self, base_seed: int, workers: int) -> list[bytes]:
        """See :meth:`~fastload.python_samples.seeding_process.SeedingProcess.states`."""
        answer: list[bytes] | str = self._ask(("first_states", base_seed, workers))
        if isinstance(answer, str):
            raise RuntimeError(f"worker_init_fn raised {answer}")
        return answer

    @property
    def answers(self) -> bool:
        """Whether it is alive and this process's."""
        return self.started and os.getpid() == self._pid and not self._killed and self._process.is_alive()

    def _ask(self, request: tuple[Any, ...], timeout_s: float | None = None) -> Any:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            self._connection.send_bytes(pickle.dumps(request))
            while True:
                left = LOOK_S if until is None else min(LOOK_S, until - time.monotonic())
                if self._connection.poll(max(0.0, left)):
                    break
                if until is not None and time.monotonic() >= until:
                    raise TookTooLongError
                if not self._process.is_alive():  # a third process may hold its end of the connection open
                    raise EOFError
            answer = pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            raise RuntimeError(f"DataLoader worker (pid(s) {self._process.pid}) exited unexpectedly") from None
        if isinstance(answer, _UnsendableError):
            raise answer
        return answer

    def kill(self) -> None:
        """End the process at once. Callable from any thread; waiting threads get a RuntimeError."""
        self._killed = True
        self._start_done.put(None)
        if os.getpid() == self._pid and self.started and not self._closed:
            self._process.kill()

    def close(self) -> None:
        """End the process and wait for it. Idempotent."""
        if self._closed or os.getpid() != self._pid:  # a forked child: the process is the parent's
            return
        self._closed = True
        self._recipe = self._recipe.without_dataset()
        if not self.started:
            return
        with contextlib.suppress(OSError):  # it has ended
            self._connection.send_bytes(pickle.dumps(None))
        self._connection.close()
        self._process.join(JOIN_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(JOIN_S)

    @finalizer
    def __del__(self) -> None:
        if vars(self).get("started") and not self._closed:
            self.kill()
            self.close()


@dataclass(frozen=True)
class _Settings:
    """Process-wide settings that samples depend on and workers keep from their start."""

    directory: str | None
    load_truncated: bool
    max_pixels: Any
    dtype: torch.dtype

    @classmethod
    def now(cls) -> _Settings:
        return cls(
            working_directory(), ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS, torch.get_default_dtype()
        )

    def restore(self) -> None:
        if self.directory is not None:
            with contextlib.suppress(OSError):  # it has been removed
                os.chdir(self.directory)
        ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS = self.load_truncated, self.max_pixels
        torch.set_default_dtype(self.dtype)


@contextlib.contextmanager
def _may_have_children() -> Iterator[None]:
    """Let a daemonic process, such as one of torch's workers, start children.

    Python forbids it because the children could outlive their parent. The sample process watches its parent.
    """
    config = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]
    daemonic = config.pop("daemon", None)
    try:
        yield
    finally:
        if daemonic is not None:
            config["daemon"] = daemonic


class _UnsendableError(RuntimeError):
    """An answer could not be pickled."""


def _answer_requests(
    connection: Connection, recipe: Recipe, settings: _Settings | None, parent: int, *inherited: Connection
) -> None:
    """Answer requests until the parent ends: the process's main function."""
    for end in inherited:  # else this process would not notice that its parent has closed the connection
        end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process after its own KeyboardInterrupt
    usual_signals()
    if settings is not None:
        settings.restore()
    _utils.signal_handling._set_worker_signal_handlers()  # type: ignore[attr-defined]
    stages.name_thread("fl-samples")
    torch.set_num_threads(1)
    with contextlib.suppress(RuntimeError):  # no more threads
        threading.Thread(target=exit_with_parent, args=(parent,), daemon=True).start()
    if settings is not None:
        torch.get_rng_state()  # may block forever, see SampleProcess._wait_ready
        connection.send_bytes(b"ready")
    while True:
        try:
            request = pickle.loads(connection.recv_bytes())
            if request is None:
                return
            kind, *arguments = request
            connection.send_bytes(_pickled(_HANDLERS[kind](recipe, *arguments)))
        except (EOFError, OSError):  # the parent has ended
            return


def _pickled(answer: Any) -> bytes:
    # Plain pickle: multiprocessing's would put each tensor in shared memory, in a file of its own.
    try:
        return pickle.dumps(answer)
    except Exception as error:  # noqa: BLE001 - any error of the user's objects
        return pickle.dumps(_UnsendableError(f"it cannot be pickled: {type(error).__name__}: {error}"))


_images: Final = OpenedImage()


def _sample(recipe: Recipe, source: Any, state: bytes | None, worker: int, where: str, view: int) -> Any:
    if state is not None:
        set_state(state)
    try:
        if isinstance(source, OddPath):  # it comes without its path, which may be anything
            source, _ = recipe.locate_resolved(source.index)
        pixels = recipe.pixels(source, view, _images)
    except Exception:  # noqa: BLE001 - the worker would send any error of Pillow or the transforms
        return wrapped(worker, where), state_now(others=recipe.pipeline.draws_others)
    try:
        result: Any = sized(recipe, pixels, view)
    except Exception:  # noqa: BLE001 - of collating, as torch's worker would send it
        result = wrapped(worker, where)
        result.summary = None  # it is no sample's
    return result, state_now(others=recipe.pipeline.draws_others)


def _fetched(recipe: Recipe, indices: list[Any], state: bytes | None, worker: int) -> Any:
    if state is not None:
        set_state(state)
    error = None
    try:
        recipe.dataset.__getitems__(indices)
    except Exception:  # noqa: BLE001 - the worker would send any
        error = wrapped(worker, None)
    return error, state_now(others=recipe.pipeline.draws_others)


def located(recipe: Recipe, index: Any) -> Any:
    """Answer :meth:`SampleProcess.located` in this process."""
    try:
        source, target = recipe.locate(index)
        source = sendable(source)
    except Exception as error:  # noqa: BLE001 - any error of the user's dataset
        return "".join(traceback.format_exception_only(error)).strip()
    return source, target


def batch_of_one(recipe: Recipe, index: Any, state: bytes | None) -> tuple[Any, bytes]:
    """Answer :meth:`SampleProcess.batch` in this process; without a state, leave the generator as it is."""
    if state is not None:
        set_state(state)
    try:
        batch = default_collate([recipe.dataset[index]])
    except Exception:  # noqa: BLE001 - the sample raises again in its turn
        batch = None
    return batch, state_now(others=recipe.pipeline.draws_others)


def _batch(recipe: Recipe, index: Any, state: bytes) -> Any:
    info = _utils.worker.WorkerInfo(id=0, num_workers=1, seed=torch.initial_seed(), dataset=recipe.dataset)
    _utils.worker._worker_info = info
    try:
        return batch_of_one(recipe, index, state)
    finally:
        _utils.worker._worker_info = None


_HANDLERS: Final[dict[str, Callable[..., Any]]] = {
    "max_pixels": lambda recipe: Image.MAX_IMAGE_PIXELS,
    "sample": _sample,
    "fetched": _fetched,
    "located": located,
    "batch": _batch,
    "first_states": first_states,
}
