"""Copy host batches to the device: copy stream, events, lifetime of device memory.

Only this file does so. The rules and their reasons:

* Copies and the epilogue run on one side stream, so that they overlap with the training step. Device memory is
  allocated there and belongs to that stream (the caching allocator keeps blocks per stream).
* The consumer's stream *at the moment of hand-over* waits for the batch's ready event, on the GPU; the host does not.
* ``record_stream`` tells the allocator that the consumer's stream uses the memory, so that a dropped batch is reused
  only when the work queued on it is done. It measured 0.3% of a ResNet-50 step; waiting for the whole consumer stream
  before each copy measured 1.7%.
* ``record_stream`` alone lets memory pile up: a host that runs ahead of the GPU drops batches that the GPU has yet to
  read. So at most two handed-over batches may be unfinished when a copy starts (the one in use, and one more).
* The source of a copy is kept alive until the copy's event has completed, whatever owns that memory.
"""

from __future__ import annotations

import functools
import operator
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from fastload._batch import Leaf, as_it_is, is_plain, map_tensors, moved
from fastload.device.normalize import CopiedImages, TableImages, finish
from fastload.device.timing import DeviceClock
from fastload.nvtx.stages import stage
from fastload.options import has_streams
from fastload.stats.stats import Totals
from fastload.torch_workers.signals import deferred_signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.device.timing import Timing
    from fastload.stats.gpu_utilization import Utilization

UNFINISHED_MAX = 2  # handed-over batches that the GPU may still be reading when another copy starts
AT_ONCE_MAX_BYTES = 64 << 10
"""CUDA takes so much pageable memory along with the call, and copies it later without blocking the host."""
_ENDS_AT_HAND = 2


class DeviceBatch:
    """A batch whose copy has been issued, and the event of its completion."""

    __slots__ = ("_data", "_late", "_ready", "_recorded", "_tensors", "nbytes", "room_at", "stages", "timing")

    def __init__(self, data: Any, tensors: list[Any], ready: Any, recorded: Any, late: bool, nbytes: int) -> None:
        self._data = data
        self._tensors = tensors
        self._ready = ready
        self._recorded = recorded  # the stream that the tensors are recorded for
        self._late = late
        self.nbytes = nbytes
        self.timing: Timing | None = None
        self.room_at = 0.0  # when there was room on the device, if that was waited for
        self.stages: tuple[tuple[str, float], ...] = ()  # until its copy had been issued, each with its end

    def wait_copied(self) -> None:
        """Block until the copy has completed, asleep rather than spinning."""
        if self._ready is not None:
            self._ready.synchronize()


class _Late(Leaf):
    """A leaf copied on the consumer's stream at hand-over, not on the side stream."""

    __slots__ = ("leaf",)

    def __init__(self, leaf: Any) -> None:
        self.leaf = leaf


def _copies_asynchronously(leaf: Any) -> bool:
    """Whether a side stream can copy ``leaf`` and protect its device memory."""
    if isinstance(leaf, torch.Tensor):
        # A tensor of another device was made on an unknown stream; autograd must see the copy of a leaf; others than
        # plain ones may not be recorded for a stream.
        return leaf.device.type == "cpu" and not leaf.requires_grad and is_plain(leaf)
    return _can_record(leaf)


def _can_record(leaf: Any) -> bool:
    """Whether ``leaf`` can record a stream.

    A custom type that cannot hides which memory it holds.
    """
    return isinstance(leaf, torch.Tensor) or callable(getattr(leaf, "record_stream", None))


def _pageable_bytes(leaf: Any) -> int:
    """Unpinned bytes of a large leaf that the side stream copies; 0 for others."""
    tensor = leaf.pixels if isinstance(leaf, TableImages) else leaf
    if not isinstance(tensor, torch.Tensor) or leaf.nbytes <= AT_ONCE_MAX_BYTES or tensor.is_pinned():
        return 0
    return int(leaf.nbytes)


def new_stream(device: torch.device) -> Any:
    """Make a side stream.

    From the device's own module, because the generic ``torch.Event`` spins where CUDA's own can sleep.
    """
    return torch.get_device_module(device).Stream(device)


def _raw_stream_of(device: torch.device) -> Callable[[], int] | None:
    """Return a function for the current stream's address, as torch's compiler uses, or None.

    ``torch.cuda.current_stream`` makes an object each time, in Python code that a training step has evicted from the
    CPU's caches.
    """
    raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if device.type != "cuda" or raw_stream is None:
        return None
    return functools.partial(raw_stream, device.index)


class Transfer:
    """Copies the batches of one iterator to one device.

    ``start`` may be called from any thread; ``take`` from the consumer's.

    Args:
        device: The target device, with an index.
        stream: The side stream to copy on (:func:`new_stream`); ``None`` copies on the consumer's stream on request.
        memory_format: See :func:`fastload.device.normalize.finish`.
        dtype: See :func:`fastload.device.normalize.finish`.
    """

    def __init__(
        self,
        device: torch.device,
        stream: Any,
        memory_format: torch.memory_format | None,
        dtype: torch.dtype | None,
    ) -> None:
        self.device = device
        self._module: Any = torch.get_device_module(device) if has_streams(device) else None
        self._raw_stream = _raw_stream_of(device)
        self._stream = stream
        self._memory_format = memory_format
        self._dtype = dtype
        # Reentrant: the garbage collector may end an iterator, and so close this, in a thread that holds the lock.
        self._lock = threading.RLock()
        self._turn = threading.Lock()  # one copy is issued at a time, or temporary memory adds up
        self._usual: Any = None  # the stream that batches were handed to last
        self._consumer: Any = None  # stream of the batch that was handed over last
        self._ends: deque[Any] = deque()  # prepared events for the ends of the next steps
        self._unfinished: deque[Any] = deque()  # ends of the steps on batches handed over before that one
        self._sources: deque[tuple[Any, Any, Callable[[], None] | None]] = deque()
        # Custom types that can record a stream, unlike what their to() returns. That is kept, so that its memory is not
        # used again, and later ones are copied on the consumer's stream.
        self._hiding: set[type] = set()
        self._held: list[Any] = []
        self._pid = os.getpid()
        self._closed = False
        self.batches = 0
        self.nbytes = 0
        self.clock = DeviceClock(self._module) if device.type == "cuda" and stream is not None else None
        self.utilization: Utilization | None = None  # the loader's, which lasts for longer

    def _event(self) -> Any:
        """Make an event to sleep on: ``torch.Event(blocking=True)`` spins on CUDA (seen in torch 2.11)."""
        return self._module.Event(blocking=True) if self.device.type == "cuda" else self._module.Event()

    def _step_end(self) -> Any:
        """Make an event for the end of a step."""
        return self._event() if self.clock is None else self.clock.event()

    def _prepare_ends(self) -> None:
        """Prepare events for step ends, so that the consumer's thread need not create them.

        CUDA creates an event when it is first recorded, the expensive part of marking a step. Two last from copy to
        copy if one batch is copied ahead; a consumer that needs more makes them. Called once per copy, one at a time;
        only the consumer takes events.
        """
        while len(self._ends) < _ENDS_AT_HAND:
            end = self._step_end()
            end.record(self._stream)
            self._ends.append(end)

    def _in_the_way(self) -> Any:
        """Return the end of the step that a copy waits for, or ``None``."""
        with self._lock:
            while self._unfinished and self._unfinished[0].query():
                self._unfinished.popleft()
            return self._unfinished[0] if len(self._unfinished) + 1 > UNFINISHED_MAX else None

    def has_room(self) -> bool:
        """Whether a copy need not wait: the GPU is not too far behind."""
        return self._in_the_way() is None

    def _wait_for_room(self) -> float:
        """Sleep until the GPU is at most two batches behind the consumer.

        Returns:
            When it was; 0 if nothing was waited for.
        """
        until = 0.0
        while (oldest := self._in_the_way()) is not None:
            oldest.synchronize()
            until = time.monotonic()
        return until

    def start(
        self,
        data: Any,
        batch: int | None = None,
        *,
        small: torch.Tensor | None = None,
        on_copied: Callable[[], None] | None = None,
    ) -> DeviceBatch:
        """Issue the copy of ``data``. Blocks while the GPU is over two batches behind.

        Args:
            data: A nested batch; tensors should be pinned, else the copy is slow and blocks the caller.
            batch: Its number, for the profile.
            small: 1-D uint8 memory that holds some tensors of ``data``; it is copied as one block, and they share one
                allocation on the device.
            on_copied: Called once the copy has completed and the source may be overwritten.
        """
        self.reap()
        with self._turn, stage("h2d", batch):
            begun = time.monotonic()
            room_at = self._wait_for_room()
            if self._stream is None:
                copied = self._issue_whole(data, small, None)
            else:
                # An interrupt halfway would leave the caller on the side stream.
                with deferred_signals(), self._module.stream(self._stream):
                    copied = self._issue_whole(data, small, self._stream)
        copied.room_at = room_at
        copied.stages = ("hand-over", begun), ("gpu", room_at), ("h2d", time.monotonic())
        with self._lock:
            self.batches += 1
            self.nbytes += copied.nbytes
            if copied._ready is not None:
                self._sources.append((copied._ready, data, on_copied))
        if copied._ready is None and on_copied is not None:
            on_copied()
        if self._closed:  # meanwhile: nothing else will wait for this copy
            self.wait_copied()
        self._look()
        return copied

    def _look(self) -> None:
        """Sample the device's utilization once a second, in the thread that copies."""
        if self.clock is not None and self.utilization is not None:
            self.utilization.look(self.clock.recent_s)

    def _issue_whole(self, data: Any, small: torch.Tensor | None, stream: Any) -> DeviceBatch:
        try:
            copied = self._issue(data, small, stream)
            if stream is not None:
                self._prepare_ends()
            return copied
        except BaseException:
            if self._module is not None:  # parts may still be copied from memory that the caller frees next
                self._module.current_stream(self.device).synchronize()
            raise

    def _issue(self, data: Any, small: torch.Tensor | None, stream: Any) -> DeviceBatch:
        leaves: list[Any] = []
        unchanged: list[Any] = []
        late = False
        nbytes = 0
        timing = None
        if self.clock is not None:
            with self._lock:
                timing = self.clock.begin(stream)
        moved_small = None if small is None else small.to(self.device, non_blocking=True)
        begin = 0 if small is None else small.data_ptr()
        end = begin if small is None else begin + small.numel()

        def copy(leaf: Any) -> Any:
            nonlocal late, nbytes
            unchanged.append(leaf)
            if type(leaf) in self._hiding or not _copies_asynchronously(leaf):
                late = True
                leaves.append(_Late(leaf))
            elif moved_small is not None and isinstance(leaf, torch.Tensor) and begin <= leaf.data_ptr() < end:
                offset = leaf.data_ptr() - begin
                own = moved_small[offset : offset + leaf.nbytes].view(leaf.dtype)
                nbytes += leaf.nbytes
                leaves.append(own.as_strided(leaf.size(), leaf.stride()))
            else:
                # Copy first, cast after: a cast on the host costs CPU time and may increase the bytes copied.
                nbytes += leaf.nbytes if isinstance(leaf, torch.Tensor | TableImages) else 0
                if isinstance(leaf, TableImages):
                    leaves.append(leaf.copy_pixels(self.device, non_blocking=True, timing=timing))
                else:
                    leaves.append(moved(leaf, self.device))
                    if stream is not None and not _can_record(leaves[-1]):
                        self._hiding.add(type(leaf))
                        self._held.append(leaves[-1])
            return leaf

        map_tensors(copy, data)
        timed = timing if timing is not None and timing.is_timed else None
        if timed is not None:
            crossed = [leaf for leaf in unchanged if _copies_asynchronously(leaf)]
            timed.nbytes, timed.pageable_bytes = nbytes, sum(map(_pageable_bytes, crossed))
            timed.copied = self.clock.event()  # type: ignore[union-attr]
            timed.copied.record(stream)
        with stage("epilogue"):
            leaves = [self._finish(leaf) for leaf in leaves]
            if not all(map(operator.is_, leaves, unchanged)):  # else on the CPU, with nothing to cast
                following = deque(leaves)
                data = map_tensors(lambda _: following.popleft(), data)
        ready = None
        if has_streams(self.device):
            ready = self.clock.event() if timed is not None else self._event()  # type: ignore[union-attr]
            ready.record(stream or self._module.current_stream(self.device))
        tensors = list(filter(_can_record, leaves))
        usual = self._usual if stream is not None else None
        if usual is not None:  # now rather than at hand-over, unless the consumer changes its stream: it holds the GIL
            for tensor in tensors:
                tensor.record_stream(usual)
        copied = DeviceBatch(data, tensors, ready, usual, late, nbytes)
        copied.timing = timing
        if timed is not None:
            timed.ready = ready
        return copied

    def _finish(self, leaf: Any) -> Any:
        if isinstance(leaf, CopiedImages):
            leaf = leaf.images()
        if not isinstance(leaf, torch.Tensor):
            return leaf
        try:
            return finish(leaf, self._memory_format, self._dtype)
        except (RuntimeError, TypeError) as error:
            return as_it_is(leaf, error)

    def take(self, copied: DeviceBatch) -> Any:
        """Hand a batch over to the caller's current stream. Does not block the host."""
        if self._stream is None:
            return self._settle(copied)
        current = self._current_stream()
        if copied._ready is not None and not copied._ready.query():
            current.wait_event(copied._ready)
        if copied._recorded is not current:
            for tensor in copied._tensors:
                tensor.record_stream(current)
        with self._lock:
            if self.clock is not None and copied.timing is not None:
                self.clock.handed(copied.timing, same_stream=self._usual is None or self._usual is current)
            self._consumer = self._usual = current
        return self._settle(copied)

    def _current_stream(self) -> Any:
        """The caller's stream; the same object as last time if unchanged."""
        usual = self._usual
        if usual is not None and self._raw_stream is not None and usual.cuda_stream == self._raw_stream():
            return usual
        current = self._module.current_stream(self.device)
        return current if usual is None or usual != current else usual  # a stream compares oddly with None

    def _settle(self, copied: DeviceBatch) -> Any:
        if not copied._late:
            return copied._data

        def move(leaf: Any) -> Any:
            if not isinstance(leaf, _Late):
                return leaf
            now = moved(leaf.leaf, self.device)
            stayed = isinstance(now, torch.Tensor) and now.device != self.device
            return now if stayed else self._finish(now)

        return map_tensors(move, copied._data)

    def mark_step(self) -> None:
        """Note that the consumer has queued all its work on the last batch.

        Called when it asks for the next one.
        """
        with self._lock:
            if self._consumer is not None:
                end = self._ends.popleft() if self._ends else self._step_end()
                end.record(self._consumer)
                self._unfinished.append(end)
                self._consumer = None
                if self.clock is not None:
                    self.clock.step_ended(end)

    def begin_epoch(self) -> None:
        """Begin an epoch: work queued since the last batch is not part of a step."""
        with self._lock:
            if self.clock is not None:
                self.clock.begin_epoch()

    def totals(self) -> Totals:
        """Counts of copies so far, and the device clock's measurements."""
        with self._lock:
            totals = Totals() if self.clock is None else self.clock.totals()
            totals.add({"copied": self.batches, "device_bytes": self.nbytes})
        return totals

    def reap(self) -> None:
        """Release the sources of completed copies."""
        done = []
        with self._lock:
            while self._sources and self._sources[0][0].query():
                done.append(self._sources.popleft())
        for _, _, on_copied in done:
            if on_copied is not None:
                on_copied()

    def wait_copied(self) -> None:
        """Sleep until the copies in flight have completed, and release their sources."""
        with self._lock:
            events = [event for event, _, _ in self._sources]
        for event in events:
            event.synchronize()
        self.reap()

    def close(self) -> None:
        """Wait for the copies in flight and release their sources. Idempotent.

        A copy that another thread issues later waits for itself.
        """
        if os.getpid() == self._pid:  # else a forked child: the copies are the parent's
            self._closed = True
            self.wait_copied()
            if self._held:
                self._module.synchronize(self.device)
                self._held.clear()
