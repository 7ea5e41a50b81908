"""The batches of a native epoch on their way through the decode threads, and the thread that sees them through.

Batches are added in the consumer's thread, which draws their indices, and taken there. The thread between, the *line*,
finds their files, hands them to the decode threads, makes targets and images of what comes back, and passes it on (to
a device, say), so that a batch that is ready waits for nothing that the consumer has yet to do.

A sample that the core does not take goes through the user's own transforms in a process of its own
(:mod:`fastload.engines.sample_process`), from the state of torch's generator where the worker's would stand. A sample
that raises there raises in its batch's turn, and what the worker would not have drawn after it is not drawn.

The consumer may be interrupted between any two bytecodes. It therefore takes no part in a condition or another lock of
Python's own making: it waits for a batch's lock, and sends word through a ``SimpleQueue``, which C code does at one go.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import default_collate

from fastload import _core
from fastload.engines.decode_batch import (
    Batch,
    ClosedError,
    PythonError,
    TookTooLongError,
    as_seen_from,
    drawn,
    working_directory,
    wrapped,
)
from fastload.engines.sample_seeding import number_of
from fastload.nvtx.stages import stage
from fastload.stats.stats import Totals
from fastload.torch_workers.signals import deferred_signals

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from fastload.engines.sample_process import SampleProcess
    from fastload.pipeline.reader import Recipe

_Made: TypeAlias = "tuple[np.ndarray[Any, Any], tuple[int, int, int, int]]"  # a sample's pixels, and its box to erase

DECODING = 3  # submitted and not yet made: one being finished, one under way, one that threads can turn to


JOIN_S = 5.0  # as long as torch waits for a worker
LOOK_S = 5.0  # a signal right before a wait begins does not end it: its handler runs after so long


class DecodePipeline:
    """Batches under way. One thread adds and takes; the other is the line's own. Never refers to its user.

    Args:
        recipe: How to make samples.
        process: Makes those that the core does not take. The line's thread ends it.
        threads: To decode with.
        base_seed: Of the epoch's workers.
        workers: As many random streams as torch would have workers.
        by_index: Whether samples draw by their index.
        finish: Makes the batch of pixels (``(N, H, W, 3)`` uint8), boxes to erase (``(N, 4)`` int32, or ``None``),
            collated targets and its number; called in the line's thread.
        finish_is_epilogue: Whether that is the batches' epilogue, and not the way to one.
        pin: Whether the pixels lie in pinned memory.
        ahead: Batches to make before they are asked for, at least 1.
        device: Where ``finish`` works, if that is not the host.
    """

    def __init__(
        self,
        recipe: Recipe,
        process: SampleProcess,
        threads: int,
        *,
        base_seed: int,
        workers: int,
        by_index: bool,
        finish: Callable[[torch.Tensor, torch.Tensor | None, Any, int], Any],
        pin: bool,
        ahead: int,
        finish_is_epilogue: bool = False,
        device: torch.device | None = None,
    ) -> None:
        self.epoch = 0  # set by the user
        self._recipe = recipe
        self._process = process
        self._directory = working_directory()
        self._base_seed = base_seed
        self._by_index = by_index
        self._finish = finish
        self._finish_is_epilogue = finish_is_epilogue
        self._pin = pin
        self._device = device
        self._ahead = ahead
        self._streams = [_core.RandomStream.from_seed(base_seed + w) for w in range(workers)]
        self._batches: deque[Batch] = deque()
        self._number = 0  # of the next batch, when there is none before it
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()  # for the line's thread: there is something to see to
        self._draining = False
        self._last = False
        self._closed = False
        self._pid = os.getpid()
        self.images = 0  # of the batch that was taken last
        self.awaited = (0.0, 0.0)  # likewise
        self.decoded_at = self.made_at = 0.0  # likewise
        self._decoded = self._in_python_batches = 0
        self._collate_s = self._finish_s = self._in_python_s = 0.0
        self._thread: threading.Thread | None = None
        self.pool = _core.Pool(threads)
        thread = threading.Thread(target=self._run, name="fastload-pipeline", daemon=True)
        try:
            with deferred_signals():
                thread.start()
                self._thread = thread
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        """Batches that nobody has claimed."""
        return sum(batch.owner is None for batch in tuple(self._batches))

    @property
    def ready(self) -> int:
        """Batches that are made, and that nobody has claimed."""
        return sum(batch.made and batch.owner is None for batch in tuple(self._batches))

    def add(self, draw: tuple[Any]) -> None:
        """Append a batch, which is the next worker's. Adding the last one again changes nothing.

        Args:
            draw: Its indices, in a tuple that is this batch's alone.
        """
        last = self._batches[-1] if self._batches else None
        if last is None or last.draw is not draw:
            number = self._number if last is None else last.number + 1
            self._batches.append(Batch(number % len(self._streams), number, draw))
        self._news.put(None)

    def end(self) -> None:
        """No more batches will be added: once they are made, the process that makes samples can end."""
        self._last = True
        self._news.put(None)

    def first(self) -> Batch | None:
        """The first batch that no other thread has claimed; ``None`` if there is none.

        The caller's own claim counts as none: an interrupt came before it took the batch.
        """
        with contextlib.suppress(IndexError):  # closed meanwhile
            while self._batches[0].taken:
                self._number = self._batches[0].number + 1
                self._batches.popleft()
        me = threading.get_ident()
        for batch in tuple(self._batches):  # no generator: the interrupt that lands when one is dropped is lost
            if not batch.taken and batch.owner in (None, me):
                return batch
        return None

    def claim(self, batch: Batch, timeout_s: float) -> Any:
        """A batch's data, or an ExceptionWrapper, or an error of ours. Blocks.

        It stays the caller's :meth:`first` until that has set ``taken``, and should be the last thing that it does. A
        signal's handler may have taken it meanwhile.

        Args:
            batch: The caller's first.
            timeout_s: 0 waits for ever.

        Raises:
            TookTooLongError: It is not made in time.
        """
        self._wait_for(batch, timeout_s)
        batch.owner = threading.get_ident()
        self._news.put(None)  # there is room for another
        self.images, self.decoded_at, self.made_at = batch.images, batch.decoded_at, batch.made_at
        self.awaited = batch.awaited
        return batch.data if batch.failure is None else batch.failure

    def _wait_for(self, batch: Batch, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        while not batch.made and not self._closed:
            self._process.start_if_wanted()
            left = until - time.monotonic() if timeout_s else LOOK_S
            if not batch.ready.acquire(timeout=max(0.0, min(LOOK_S, left))) and timeout_s and left <= LOOK_S:
                raise TookTooLongError
        if self._closed:
            raise RuntimeError("the FastLoader of this iterator was closed")

    def _wake(self) -> None:
        for batch in tuple(self._batches):  # the consumer, if it waits, looks again
            batch.release()

    def totals(self) -> Totals:
        """What the threads have spent so far: reading files, decoding, on a core, putting batches together."""
        seconds, busy, read, read_busy = self.pool.work_times()
        spent = {"fetch": read, "decode": seconds - read, "collate": self._collate_s}
        if self._finish_is_epilogue:
            spent["epilogue"] = self._finish_s
        counts = dict.fromkeys(spent, float(self._decoded))
        if self._in_python_batches:
            spent["python"], counts["python"] = self._in_python_s, float(self._in_python_batches)
        return Totals(
            {
                **{f"stage:{name}:count": count for name, count in counts.items()},
                **{f"stage:{name}:s": took for name, took in spent.items()},
                "made:looked_s": seconds,
                "made:busy_s": busy,
                "made:queued_s": max(0.0, seconds - busy - (read - read_busy)),
                "made:decode_s": busy,
            }
        )

    def drain(self, timeout_s: float) -> None:
        """See all batches through, and drop them: persistent workers work off what they were sent. Blocks.

        After an exception the line is good for nothing but to be closed.

        Args:
            timeout_s: For each batch; 0 waits for ever.

        Raises:
            TookTooLongError: A batch is not made in time.
        """
        for batch in tuple(self._batches):
            batch.dropped = True
        self._draining = True
        self._news.put(None)
        try:
            for batch in tuple(self._batches):
                self._wait_for(batch, timeout_s)
                batch.taken = True
        finally:
            self._draining = False
        self._batches.clear()
        self._number = 0

    def close(self) -> None:
        """Stop the threads and the process. Idempotent; may be called from any thread, and waits for none for ever."""
        if os.getpid() != self._pid:  # a forked child, where neither the threads nor usable locks are
            return
        self._closed = True
        self._news.put(None)
        self._wake()
        self._process.kill()
        self.pool.close()
        if self._thread is None:
            self._process.close()
        elif self._thread is not threading.current_thread():
            self._thread.join(JOIN_S)  # it may be inside the user's dataset, which nobody can interrupt
        self._batches.clear()

    def _run(self) -> None:
        try:
            if (
                self._device is not None
            ):  # a new thread's is device 0, where a context of this process would cost memory
                torch.accelerator.set_device_index(self._device)
            while not self._closed:
                self._news.get()
                self._advance()
        except ClosedError:
            pass
        finally:
            self._process.close()

    def _advance(self) -> None:
        """Start batches and see them through, as far as there is room for them."""
        while not self._closed:
            batches = tuple(self._batches)
            unmade = [batch for batch in batches if not batch.made]
            if self._last and not unmade:
                self._process.close()
            for batch in unmade[:DECODING]:
                if batch.job is None:
                    self._start(batch)
            # Those that come before it: one that failed early, further on, takes nobody's room.
            if not unmade:
                return
            before = batches[: batches.index(unmade[0])]
            if not self._draining and sum(batch.owner is None for batch in before) >= self._ahead:
                return
            if not unmade[0].made:
                self._finish_batch(unmade[0])

    def _start(self, batch: Batch) -> None:
        """Hand a batch to the decode threads. What goes wrong is the batch's."""
        try:
            if batch.pixels is None:
                batch.locate(self._recipe, self._seed if self._by_index else None)
            size = (len(batch.sources), *self._recipe.pipeline.size, 3)
            batch.pixels = torch.empty(size, dtype=torch.uint8, pin_memory=self._pin)
            draws: dict[str, Any] = {}
            if self._recipe.pipeline.draws:
                draws = {"seeds": batch.seeds} if self._by_index else {"stream": self._streams[batch.worker]}
            options = self._recipe.options
            batch.job = self.pool.submit(
                [as_seen_from(self._directory, source) for source in batch.sources],
                batch.pixels,
                plan=self._recipe.plan,
                number=batch.number,
                **draws,
                **{**options, "max_pixels": self._process.max_pixels},
            )
        except BaseException as error:  # noqa: BLE001 - the consumer raises it
            self._end(batch, None, error)

    def _seed(self, index: Any) -> int:
        return _core.seed_for_index(self._base_seed, self.epoch, number_of(index))

    def _end(self, batch: Batch, data: Any, failure: BaseException | None = None) -> None:
        batch.made_at, batch.images = time.monotonic(), len(batch.sources)
        batch.sources, batch.targets, batch.seeds = [], [], []
        batch.pixels = batch.job = None  # whoever copies from them holds them
        batch.data, batch.failure = data, failure
        batch.made = True
        batch.release()

    def _finish_batch(self, batch: Batch) -> None:
        """Make the first batch that is not made, or the error that torch's worker would have sent. Blocks."""
        try:
            data = self._make(batch)
        except ClosedError:
            raise
        except BaseException as error:  # noqa: BLE001 - the consumer raises it
            self._end(batch, None, error)
        else:
            self._end(batch, data)

    def _make(self, batch: Batch) -> Any:
        try:
            self._complete(batch)
        except PythonError as error:
            self._rewind_rng(batch, error.state)
            return error.wrapper
        if batch.error is not None or batch.dropped:
            return batch.error
        begun = time.monotonic()
        try:
            with stage("collate", batch.number):
                targets = default_collate(batch.targets)
            batch.decoded_at = time.monotonic()
            self._decoded += 1
            self._collate_s += batch.decoded_at - begun
        except Exception:  # noqa: BLE001 - default_collate's, of targets of any type
            return wrapped(batch.worker, None)
        try:
            return self._finish(batch.pixels, batch.boxes, targets, batch.number)
        finally:
            self._finish_s += time.monotonic() - batch.decoded_at

    def _complete(self, batch: Batch) -> None:
        """Wait for the pixels, and have made in Python what the core does not make."""
        job = batch.job
        made: dict[int, _Made] = {}
        begun = time.monotonic()
        while job.wait() == "requested":
            kind, sample, value = job.request()
            if kind == "exp":
                job.provide_exp(value, torch.exp(torch.tensor([value], dtype=torch.float32)).item())
            elif kind == "sample":
                before = job.generator_before(sample)
                try:
                    made[sample], after = self._in_python(batch, sample, before)
                except PythonError:
                    self._raise_earlier(batch, sample, made)
                    raise
                job.skip(after)
        if self._closed:  # all that was not decoded is cancelled
            raise ClosedError
        for sample, status in enumerate(job.statuses()):
            if status and sample not in made:
                before = self._before(batch, sample)
                made[sample], after = self._in_python(batch, sample, before)
                if before is not None and not self._by_index and after != drawn(self._recipe.plan, job, sample, before):
                    self._go_on_in_python(batch, sample + 1, after, made)
                    break
        batch.awaited = begun, time.monotonic()
        self._in_python_batches += bool(made)
        if self._recipe.pipeline.erasing is not None and len(batch.pixels):  # none, where its first index is refused
            batch.boxes = torch.frombuffer(bytearray(job.erased()), dtype=torch.int32).view(-1, 4)
        for sample, (pixels, box) in made.items():
            batch.pixels[sample] = torch.from_numpy(pixels)
            if batch.boxes is not None:
                batch.boxes[sample] = torch.tensor(box, dtype=torch.int32)

    def _raise_earlier(self, batch: Batch, sample: int, made: dict[int, _Made]) -> None:
        """A sample has raised; had one before it done so, which the core could not decode, a worker would end there."""
        batch.job.cancel()
        for earlier, status in enumerate(batch.job.statuses()[:sample]):
            if status and earlier not in made:
                self._in_python(batch, earlier, self._before(batch, earlier))

    def _before(self, batch: Batch, sample: int) -> bytes | None:
        """The state to draw a sample from; ``None`` if nothing is drawn."""
        if not self._recipe.pipeline.draws:
            return None
        if self._by_index:
            return _core.Generator(batch.seeds[sample]).get_state()
        return batch.job.generator_before(sample)  # type: ignore[no-any-return]

    def _go_on_in_python(self, batch: Batch, begin: int, state: bytes, made: dict[int, _Made]) -> None:
        """Pillow saw other things in a file than the core did: what was drawn after it is void."""
        for sample in range(begin, len(batch.sources)):
            made[sample], state = self._in_python(batch, sample, state)
        self._rewind_rng(batch, state)

    def _in_python(self, batch: Batch, sample: int, before: bytes | None) -> tuple[_Made, bytes]:
        """A sample by the user's own transforms, and where the worker's generator stands then."""
        source = batch.sources[sample]
        where = f"sample {batch.indices[sample]!r}"
        where += f" ({os.fsdecode(source)})" if isinstance(source, str | os.PathLike) else ""
        begun = time.monotonic()
        try:
            size = tuple(batch.pixels.shape[1:3])
            self._process.wait_started(self._wake)
            made, after = self._process.sample(source, before, size=size, worker=batch.worker, where=where)
        except RuntimeError:
            if self._closed:
                raise ClosedError from None
            raise
        finally:
            self._in_python_s += time.monotonic() - begun
        if isinstance(made, ExceptionWrapper):
            raise PythonError(sample, made, None if before is None or self._by_index else after)
        return made, after

    def _rewind_rng(self, batch: Batch, state: bytes | None) -> None:
        """The worker's generator stands at ``state`` after ``batch``: what was drawn since is drawn anew."""
        if state is None:  # no later batch draws on from this one
            batch.job.cancel()
            return
        later = [b for b in tuple(self._batches) if b is not batch and b.worker == batch.worker and b.job is not None]
        for void in [*reversed(later), batch]:  # the last first: else the next in line would go on drawing
            void.job.cancel()
        self._streams[batch.worker] = _core.RandomStream(state)
        for void in later:
            self._start(void)
