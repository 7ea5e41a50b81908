"""A process that makes single samples with the user's own objects, for what the native core does not take.

The user's transforms draw from torch's default generator, which belongs to the whole process: whatever else draws there
at the same time would shift the sample, and be shifted. So samples are made in a process that does nothing else, as
torch's workers do. By the loader's own start method, it also keeps what workers keep (the working directory, Pillow's
settings, the transforms), whatever becomes of them in this process. A sample that never ends, such as a named pipe that
nobody writes to, ends with it.
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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch
from PIL import Image, ImageFile
from torch.utils.data import _utils, default_collate

from fastload.engines.decode_batch import TookTooLongError, check_size, working_directory, wrapped
from fastload.nvtx import stages
from fastload.pipeline.reader import BytesPath, pixel_limit
from fastload.torch_workers.processes import forking_workers
from fastload.torch_workers.signals import deferred_signals, usual_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from fastload.pipeline.reader import Recipe

LOOK_S = 1.0  # how often each of two processes looks whether the other still lives
READY_S = 5.0  # what a forked process may take to its first request; usually 10 ms
STARTS = 3
JOIN_S = 5.0  # as long as torch waits for a worker


class SampleProcess:
    """Answers one request at a time, once it is started. Not thread-safe, except for :meth:`kill`.

    Forking takes some 20 ms, and more where memory is written afterwards, so it waits for the first sample; what
    workers keep from their start and samples depend on is noted beforehand. A process that is not forked sets it
    by itself, and is therefore started at once.

    Args:
        recipe: How to make samples; whatever it refers to must not change any more.
        context: The loader's ``multiprocessing_context``; ``None`` is the default start method.
        note_use: Called when a sample is to be made.

    Raises:
        Exception: See :meth:`start`.
    """

    def __init__(self, recipe: Recipe, context: Any = None, *, note_use: Callable[[], None] = lambda: None) -> None:
        self._note_use = note_use
        self.started = self._ready = self._closed = self._killed = self._wanted = False
        self._answers: queue.SimpleQueue[None] = queue.SimpleQueue()  # to who waits for the start
        self._error: Exception | None = None
        self._pid = os.getpid()
        self._context = context or multiprocessing.get_context()
        self._recipe = recipe
        forks = self._context.get_start_method() == "fork"
        self._settings = _Settings.now() if forks else None
        if not forks:
            self.start()

    def start(self) -> None:
        """Start the process, unless it is started. Not in another thread than the one that uses the loader.

        Raises:
            Exception: What starting one of torch's workers raises here, such as an error of pickling.
        """
        for _ in range(STARTS):
            if not self.started:
                with deferred_signals(), forking_workers(), _may_have_children():
                    self._start()
            if self._answers_at_last():
                return
        raise RuntimeError(f"a process for samples made in Python did not answer, {STARTS} times")

    def _answers_at_last(self) -> bool:
        """Whether the process has come as far as its first request; else it is ended.

        Another thread may draw from torch's generator in the moment of the fork. The child then has the generator's
        lock, and nobody who gives it back: it would wait for ever.
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
        """Have the loader's own thread start the process, in another one. Blocks.

        Where other threads run, only that one may fork: it holds no lock that the child would find held for ever.

        Args:
            wake: Called when the loader's own thread is to look.

        Raises:
            RuntimeError: The process cannot be started, or :meth:`kill` was called.
        """
        self._note_use()
        while not self.started:
            self._wanted = True
            wake()
            self._answers.get()
            error, self._error = self._error, None
            if self._killed or error is not None:
                raise RuntimeError(f"a process for samples made in Python cannot be started: {error}") from error

    def start_if_wanted(self) -> None:
        """In the loader's own thread: start the process if another thread waits for that."""
        if not self._wanted:
            return
        self._wanted = False
        try:
            self.start()
        except Exception as error:  # noqa: BLE001 - for who waits
            self._error = error
        finally:
            self._answers.put(None)

    def _start(self) -> None:
        ends: tuple[Connection, Connection] = self._context.Pipe()
        self._connection, theirs = ends
        # The plan cannot be pickled, and is of no use there.
        recipe = replace(self._recipe, plan=None)  # type: ignore[arg-type]
        forked = () if self._settings is None else (self._connection,)  # one end of it is inherited
        arguments = theirs, recipe, self._settings, os.getpid(), *forked
        self._process = self._context.Process(target=_serve, args=arguments, name="fastload-samples", daemon=True)
        try:
            self._process.start()
        except BaseException:
            self._connection.close()
            raise
        finally:
            theirs.close()
        self.started = True
        # Else a child that is forked off this process would end it when it exits: it takes it for its own.
        multiprocessing.process._children.discard(self._process)  # type: ignore[attr-defined]
        if self._killed or self._closed:  # meanwhile, by another thread, which found nothing to end
            self._process.kill()
            self._process.join(JOIN_S)
            self._connection.close()

    @functools.cached_property
    def max_pixels(self) -> int:
        """The size of image, in pixels, above which Pillow objects in that process; 0 is no limit. May block."""
        return pixel_limit(self._ask(("max_pixels",)) if self._settings is None else self._settings.max_pixels)

    def sample(
        self, source: Any, state: bytes | None, *, size: tuple[int, ...], worker: int, where: str
    ) -> tuple[Any, bytes]:
        """Make one sample from a state of torch's default generator. Blocks.

        Returns:
            Its pixels, ``(H, W, 3)`` uint8, and its box to erase; or the error that torch's worker would send. And the
            generator's state afterwards.

        Raises:
            RuntimeError: The process has ended.
        """
        return self._ask(("sample", _sendable(source), state, size, worker, where))  # type: ignore[no-any-return]

    def located(self, index: Any, timeout_s: float | None) -> tuple[Any, Any] | str:
        """The encoded image of the dataset's sample and its target, or the name of the error that this raises.

        Raises:
            TookTooLongError: It is not there in time.
            RuntimeError: The process has ended.
        """
        return self._ask(("located", index), timeout_s)  # type: ignore[no-any-return]

    def batch(self, index: Any, state: bytes, timeout_s: float | None) -> tuple[Any, bytes]:
        """The dataset's own sample as a batch of one (``None`` if it raises), drawn from a state; and the state then.

        Raises:
            TookTooLongError: It is not there in time.
            RuntimeError: The process has ended.
        """
        return self._ask(("batch", index, state), timeout_s)  # type: ignore[no-any-return]

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
                if not self._process.is_alive():  # yet another process may hold its end of the connection open
                    raise EOFError
            answer = pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            raise RuntimeError(f"DataLoader worker (pid(s) {self._process.pid}) exited unexpectedly") from None
        if isinstance(answer, _UnsendableError):
            raise answer
        return answer

    def kill(self) -> None:
        """End the process, whatever it is at. From any thread; who waits for it or an answer gets a RuntimeError."""
        self._killed = True
        self._answers.put(None)
        if os.getpid() == self._pid and self.started and not self._closed:
            self._process.kill()

    def close(self) -> None:
        """End the process and wait for it. Idempotent."""
        if self._closed or os.getpid() != self._pid:  # a forked child: the process is its parent's
            return
        self._closed = True
        if not self.started:
            return
        with contextlib.suppress(OSError):  # it has ended
            self._connection.send_bytes(pickle.dumps(None))
        self._connection.close()
        self._process.join(JOIN_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(JOIN_S)

    def __del__(self) -> None:
        if vars(self).get("started") and not self._closed:  # nobody waits for an answer any more
            self.kill()
            self.close()


@dataclass(frozen=True)
class _Settings:
    """What a sample depends on, that the program can change at any time, and that workers keep from their start."""

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
    """A daemonic process, as torch's workers are, may have none, which would outlive it. Ours looks for its parent."""
    config = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]
    daemonic = config.pop("daemon", None)
    try:
        yield
    finally:
        if daemonic is not None:
            config["daemon"] = daemonic


class _UnsendableError(RuntimeError):
    """An answer could not be pickled."""


def _sendable(source: Any) -> Any:
    """A sample's path or bytes, as plain as it can be."""
    if isinstance(source, os.PathLike):
        path = os.fspath(source)
        return path if isinstance(path, str) else BytesPath(path)
    return source if isinstance(source, str | bytes) else bytes(source)


def _serve(
    connection: Connection, recipe: Recipe, settings: _Settings | None, parent: int, *inherited: Connection
) -> None:
    """The process's main function."""
    for end in inherited:  # else this process would never see that its parent has closed it
        end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process, after its own KeyboardInterrupt
    usual_signals()
    if settings is not None:
        settings.restore()
    _utils.signal_handling._set_worker_signal_handlers()  # type: ignore[attr-defined]
    stages.name_thread("fl-samples")
    torch.set_num_threads(1)
    with contextlib.suppress(RuntimeError):  # no more threads
        # Of a fork server's child, the parent is the server, which ends with the program.
        first = parent if settings is not None else os.getppid()
        threading.Thread(target=_end_with, args=(first,), daemon=True).start()
    if settings is not None:
        torch.get_rng_state()  # may wait for ever, see SampleProcess._answers_at_last
        connection.send_bytes(b"ready")
    while True:
        try:
            request = pickle.loads(connection.recv_bytes())
            if request is None:
                return
            kind, *arguments = request
            connection.send_bytes(_pickled(_ANSWERS[kind](recipe, *arguments)))
        except (EOFError, OSError):  # the parent has ended
            return


def _end_with(parent: int) -> None:
    """End this process when its parent has ended, even if a sample is being made that never ends itself."""
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os._exit(1)


def _pickled(answer: Any) -> bytes:
    # Not as multiprocessing does it: tensors would travel in shared memory, each in a file of its own.
    try:
        return pickle.dumps(answer)
    except Exception as error:  # noqa: BLE001 - of an object of the user's
        return pickle.dumps(_UnsendableError(f"it cannot be pickled: {type(error).__name__}: {error}"))


def _max_pixels(recipe: Recipe) -> Any:
    return Image.MAX_IMAGE_PIXELS


def _sample(recipe: Recipe, source: Any, state: bytes | None, size: tuple[int, ...], worker: int, where: str) -> Any:
    if state is not None:
        torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    result: Any
    try:
        pixels = recipe.pixels(source)
        check_size(pixels, size)
        result = pixels, recipe.pipeline.erased()
    except Exception:  # noqa: BLE001 - whatever Pillow or the transforms raise, the worker would send
        result = wrapped(worker, where)
    return result, _state()


def _located(recipe: Recipe, index: Any) -> Any:
    try:
        source, target = recipe.locate(index)
        source = _sendable(source)
    except Exception as error:  # noqa: BLE001 - the user's dataset, whatever it raises
        return type(error).__name__
    return source, target


def _batch(recipe: Recipe, index: Any, state: bytes) -> Any:
    torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    info = _utils.worker.WorkerInfo(id=0, num_workers=1, seed=torch.initial_seed(), dataset=recipe.dataset)
    _utils.worker._worker_info = info
    try:
        batch = default_collate([recipe.dataset[index]])
    except Exception:  # noqa: BLE001 - a sample that raises is met again in its turn
        batch = None
    finally:
        _utils.worker._worker_info = None
    return batch, _state()


def _state() -> bytes:
    return torch.get_rng_state().numpy().tobytes()


_ANSWERS: Final[dict[str, Callable[..., Any]]] = {
    "max_pixels": _max_pixels,
    "sample": _sample,
    "located": _located,
    "batch": _batch,
}
