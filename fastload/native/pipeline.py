"""The pipeline of a native epoch: batches, decode threads, and the thread that drives them.

The consumer's thread draws indices, adds batches and takes them. The pipeline's thread locates their files, submits
them to the decode threads, makes targets and images of the results, and passes them on (to a device, say), so that a
finished batch never depends on the consumer's next call.

A sample that the core does not support goes through the user's own transforms in a separate process
(:mod:`fastload.python_samples.sample_process`), which starts from the state that the worker's generator would have. If
the sample raises there, the error is raised in its batch's turn, and random numbers that the worker would not have
drawn after it are not drawn.

The consumer may be interrupted between any two bytecodes. It therefore uses no condition or other lock written in
Python: it waits for a batch's lock, and notifies through a ``SimpleQueue``, whose operations are atomic C code.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from fastload import _core
from fastload.bad_samples import LeftOut
from fastload.loader_state import ITERATOR_CLOSED
from fastload.native.batch import Batch, StreamStates
from fastload.native.remaining import Remaining
from fastload.nvtx.stages import stage
from fastload.pipeline.datasets.samples import collated, one_of
from fastload.python_samples.dialogue import TookTooLongError, failed_of, submitted, working_directory, wrapped
from fastload.python_samples.odd_samples import BadSamplesError, OddSamples, PythonError
from fastload.randomness.by_sample import number_of
from fastload.randomness.generators import streams_of_workers
from fastload.stats.stage_counts import StageCounts
from fastload.torch_workers.processes import JOIN_S
from fastload.torch_workers.signals import deferred_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastload.device.decode.choice import DecodeChoice
    from fastload.device.host_images import HostImages
    from fastload.options import OnError
    from fastload.pipeline.datasets.samples import Collated
    from fastload.pipeline.ops.erasing import Patch
    from fastload.pipeline.recipe import Recipe
    from fastload.python_samples.sample_process import SampleProcess
    from fastload.stats.stats import Totals

DECODING = 3  # batches submitted and not yet made: one being finished, one being decoded, one queued
LOOK_S = 5.0  # a signal just before a wait does not end it: its handler runs after at most this time
STAGED_LOOKS_S = tuple(1e-4 * 1.25**n for n in range(11))  # up to 1 ms each, 4.3 in all
"""Waits between looks at whether a batch can be issued while the GPU decodes another."""


class ClosedError(Exception):
    """The loader was closed while the batch was made."""


class DecodePipeline:
    """Batches in flight: the consumer's thread adds and takes them. Never refers to its iterator.

    Args:
        recipe: How to make samples.
        process: Makes the samples that the core does not support. The pipeline's thread ends it.
        threads: Number of decode threads.
        base_seed: Base seed of the epoch's workers.
        workers: Number of random streams, as many as torch would have workers.
        first_states: States of the workers' generators at first; ``None``, for one or all, seeds as torch does.
        by_index: Whether a sample's random numbers depend on its index.
        finish: Makes the batch from pixels (``(N, H, W, 3)`` uint8), or host images, what erases each sample, the rest
            of the batch and its number; called in the pipeline's thread.
        host_images: Makes room for so many samples' images on the host; ``None`` if ``finish`` issues a copy of pixels.
        ahead: Batches to make before they are requested, at least 1.
        allocate: Returns so many bytes for a batch's pixels; ``None`` takes torch's usual memory.
        device: The device that ``finish`` works on, unless it is the host.
        choice: Decides which batches a GPU decodes, whose files take the place of their pixels; ``None`` if none.
        on_error: What becomes of samples that raise.
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
        finish: Callable[[Any, list[list[Patch]], Collated, int], Any],
        ahead: int,
        allocate: Callable[[int], torch.Tensor] | None = None,
        host_images: Callable[[int], HostImages] | None = None,
        device: torch.device | None = None,
        choice: DecodeChoice | None = None,
        first_states: Sequence[bytes | None] | None = None,
        on_error: OnError = "raise",
    ) -> None:
        self.epoch = 0  # this and the next line: set by the iterator
        self.owner: object = None  # a weak reference that is put into ``wakeups`` when the iterator is gone
        self.recipe = recipe
        self._views = recipe.pipeline.views
        self._on_error = on_error
        self._process = process
        self._directory = working_directory()
        self._base_seed = base_seed
        self._by_index = by_index
        self._finish = finish
        self._host_images = host_images
        self._allocate, self._device, self._ahead, self._choice = allocate, device, ahead, choice
        self.states = StreamStates(first_states := first_states or [None] * workers)
        self._streams = streams_of_workers(base_seed, first_states, others=recipe.pipeline.draws_others)
        self._batches: deque[Batch] = deque()
        self._number = 0  # of the next batch, if the pipeline is empty
        self.wakeups: queue.SimpleQueue[object] = queue.SimpleQueue()  # wakes the pipeline's thread
        self._draining = self._last = self._closed = False
        self._pid, self._asks_many = os.getpid(), recipe.asks_many
        self.images, self.awaited = 0, (0.0, 0.0)  # this and the next line: of the batch claimed last
        self.decoded_at = self.made_at = 0.0
        self._counts = StageCounts(has_epilogue=host_images is not None)
        self._blocked_s = 0.0  # since a batch was passed on
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
        """Number of unclaimed batches."""
        return [batch.owner for batch in tuple(self._batches)].count(None)

    @property
    def ready(self) -> int:
        """Number of finished, unclaimed batches."""
        return [batch.owner for batch in tuple(self._batches) if batch.made].count(None)

    def add(self, draw: tuple[Any]) -> None:
        """Append a batch for the next worker. Adding the last one again changes nothing.

        Args:
            draw: The batch's indices, in a tuple made for this batch only.
        """
        last = self._batches[-1] if self._batches else None
        if last is None or last.draw is not draw:
            number = self._number if last is None else last.number + 1
            self._batches.append(Batch(number % len(self._streams), number, draw))
        self.wakeups.put(None)

    def handed_over(self) -> int:
        """Number of the first batch of the epoch that is not taken."""
        return _first_untaken(tuple(self._batches), self._number)

    def end(self) -> None:
        """Announce that no more batches follow; the sample process ends after the last."""
        self._last = True
        self.wakeups.put(None)

    def first(self) -> Batch | None:
        """Return the first batch that no other thread has claimed, or ``None``.

        The caller's own claim does not count: an interrupt prevented it from taking the batch.
        """
        with contextlib.suppress(IndexError):  # closed in another thread
            while self._batches[0].taken:
                self._number = self._batches[0].number + 1
                self._batches.popleft()
        me = threading.get_ident()
        for batch in tuple(self._batches):  # no generator: an interrupt while one is deallocated would be lost
            if not batch.taken and batch.owner in (None, me):
                return batch
        return None

    def claim(self, batch: Batch, timeout_s: float) -> Any:
        """Return a batch's data, an ExceptionWrapper, or an error of the pipeline. Blocks.

        The batch stays the caller's :meth:`first` until the caller sets ``taken``, as its last action. A signal handler
        may have taken it during the wait. Raises :class:`TookTooLongError` after ``timeout_s`` (0: never).
        """
        self._wait_for(batch, timeout_s)
        batch.owner = threading.get_ident()
        self.wakeups.put(None)  # there is room for another batch
        self.images, self.awaited = batch.images, batch.awaited
        self.decoded_at, self.made_at = batch.decoded_at, batch.made_at
        return batch.data if batch.failure is None else batch.failure

    def _wait_for(self, batch: Batch, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        batch.wanted = True
        while not batch.made and not self._closed:
            self._process.start_if_wanted()
            left = until - time.monotonic() if timeout_s else LOOK_S
            if not batch.ready.acquire(timeout=max(0.0, min(LOOK_S, left))) and timeout_s and left <= LOOK_S:
                raise TookTooLongError
        if self._closed:
            raise RuntimeError(ITERATOR_CLOSED)

    def _wake(self) -> None:
        for batch in tuple(self._batches):  # a waiting consumer checks again
            batch.release()

    def totals(self) -> Totals:
        """Time spent so far: reading files, decoding, on a core, and collating batches."""
        return replace(self._counts, work=self.pool.work_times()).totals()

    def drain(self, timeout_s: float, begin: int) -> None:
        """Finish and drop all batches, as persistent workers do between epochs. Blocks.

        ``begin`` is the number of the next batch. Raises :class:`TookTooLongError` after ``timeout_s`` (0: never) for
        one batch. After an exception the pipeline can only be closed.
        """
        for batch in tuple(self._batches):
            batch.dropped = True
        self._draining = True
        self.wakeups.put(None)
        try:
            for batch in tuple(self._batches):
                self._wait_for(batch, timeout_s)
                batch.taken = True
        finally:
            self._draining = False
        if self._choice is not None:
            self._choice.begin()
        self.states.begin_epoch(self.handed_over())
        self._batches.clear()
        self._number = begin

    def close(self) -> None:
        """Stop the threads and the process. Idempotent; callable from any thread; waits are bounded."""
        if os.getpid() != self._pid:  # a forked child has neither the threads nor usable locks
            return
        self._closed = True
        self.wakeups.put(None)
        self._wake()
        self._process.kill()
        self.pool.close()
        if self._thread is None:
            self._process.close()
        elif self._thread is not threading.current_thread():
            self._thread.join(JOIN_S)  # bounded: the user's dataset, where it may be, cannot be interrupted
        self._number = self.handed_over()
        for batch in tuple(self._batches):
            batch.cancel()
        self._batches.clear()

    def _run(self) -> None:
        try:
            # A new thread starts on device 0, where a context of this process would cost memory.
            if self._device is not None:
                torch.accelerator.set_device_index(self._device)
            while not self._closed:
                asleep = time.monotonic()
                if woken_by(self.wakeups) is not None:
                    self.close()
                self._blocked_s += time.monotonic() - asleep
                self._advance()
        except ClosedError:
            pass
        finally:
            self._process.close()
            self.recipe = self.recipe.without_dataset()

    def _advance(self) -> None:
        """Start and finish batches while there is room for them."""
        while not self._closed:
            batches = tuple(self._batches)
            if not (unmade := self._start_batches(batches, DECODING)):
                if self._last:
                    self._process.close()
                return
            # Only batches before the first unmade one: a later one that failed early takes no room. Nor does one that
            # the consumer waits for.
            ready = [b for b in batches[: batches.index(unmade[0])] if b.owner is None and not b.wanted]
            if not self._draining and len(ready) >= self._ahead:
                return
            if unmade[0].job is not None:
                self._finish_batch(unmade[0])
            elif not unmade[0].made:
                return

    def _start_batches(self, batches: Sequence[Batch], most: int) -> list[Batch]:
        """Start the first ``most`` unmade batches whose samples are known; return all unmade ones."""
        unmade = [batch for batch in batches if not batch.made]
        for batch in unmade if self._asks_many else ():
            batch.ask(self.recipe, self.wakeups.put)
        for batch in unmade[:most]:
            if batch.job is None:
                if not batch.is_answered:  # the answer wakes this thread
                    break
                self._start(batch)
        return unmade

    def _start(self, batch: Batch) -> None:
        """Submit a batch to the decode threads. The batch keeps any error."""
        try:
            if batch.pixels is None:
                self._locate(batch)
            if batch.remaining is not None and not batch.sources and batch.error is None:
                self._end(batch, LeftOut)
                return
            batch.issued = batch.after = None  # of an earlier start
            batch.pixels = self.recipe.pipeline.room(len(batch.sources), self._allocate)
            batch.host = self._host_images and self._host_images(len(batch.sources))
            on_host = batch.remaining is not None and batch.remaining.on_host
            decides = self._choice if not on_host else None
            batch.staged = decides and decides.files(batch.pixels, self.recipe.pipeline.by_view)
            options = submitted(batch.submitted, self._views, self._directory) | self.recipe.options
            options |= batch.outputs() | {"max_pixels": self._process.max_pixels}
            if self.recipe.pipeline.draws:
                options |= {"seeds": batch.seeds} if self._by_index else {"stream": self._streams[batch.worker]}
            batch.job = self.pool.submit(plan=self.recipe.plan, number=batch.number, **options)
        except BaseException as error:  # noqa: BLE001 - the consumer raises it
            self._end(batch, None, error)

    def _locate(self, batch: Batch) -> None:
        seed_of = self._seed if self._by_index else None
        if self._on_error != "raise":
            batch.remaining = Remaining(batch, self.recipe, self._on_error, seed_of)
        batch.locate(self.recipe, seed_of)

    def _seed(self, index: Any) -> int:
        return _core.seed_for_index(self._base_seed, self.epoch, number_of(index))

    def _end(self, batch: Batch, data: Any, failure: BaseException | None = None) -> None:
        self.states.add(batch, self.recipe.pipeline.draws and not self._by_index, self.handed_over())
        batch.made_at, batch.images = time.monotonic(), len(batch.sources)
        if batch.remaining is not None:
            batch.failed, batch.tried, batch.remaining = batch.remaining.failed, len(batch.indices), None
        batch.sources, batch.targets, batch.seeds = [], [], []
        batch.pixels = batch.host = batch.staged = batch.job = batch.issued = None  # a copy holds its own reference
        batch.data, batch.failure, batch.made = data, failure, True
        batch.release()

    def _finish_batch(self, batch: Batch) -> None:
        """Make a batch, or the error that torch's worker would have sent. Blocks."""
        try:
            data, failure = self._make(batch), None
        except ClosedError:
            raise
        except BaseException as error:  # noqa: BLE001 - the consumer raises it
            data, failure = None, error
        self._end(batch, data, failure)

    def _make(self, batch: Batch) -> Any:
        try:
            while batch.job is not None:
                try:
                    return self._made(batch)
                except BadSamplesError as error:
                    self._leave_out(batch, error.bad)
        except PythonError as error:
            wrapper, state = self._failed(batch, error)
            self._rewind_rng(batch, state)
            return wrapper
        if batch.failure is not None:
            raise batch.failure
        return LeftOut

    def _made(self, batch: Batch) -> Any:
        if batch.issued is None:
            self._complete(batch)
            if batch.error is None and not batch.dropped:
                self._issue(batch)
        return batch.error if batch.issued is None or batch.dropped else self._confirmed(batch, *batch.issued)

    def _leave_out(self, batch: Batch, bad: dict[int, PythonError]) -> None:
        """Leave samples out of a batch, or replace them, and submit what remains.

        Raises:
            PythonError: Nothing can replace one.
        """
        follows = self.recipe.pipeline.draws and not self._by_index
        before = batch.job.generator_before(0) if follows else None
        remaining: Any = batch.remaining
        if (error := remaining.leave_out(bad)) is not None:
            raise error
        if before is None:
            batch.job.cancel()
            batch.job = None
            again = [batch]
        else:
            later = self._cancel_from(batch)
            batch.job, again = None, [batch, *later]
            if not batch.sources:
                before = batch.after = remaining.after or before
                again = later
            self._streams[batch.worker] = _core.RandomStream(before)
        for stale in again:
            if stale.sources:
                self._start(stale)

    def _issue(self, batch: Batch) -> None:
        """Collate a complete batch and pass it on. Does not wait for a GPU."""
        begun = time.monotonic()
        try:
            with stage("collate", batch.number):
                rest = collated(batch.targets)
        except Exception:  # noqa: BLE001 - any error of default_collate on the user's targets
            batch.error = wrapped(batch.worker, None)
            return
        batch.decoded_at = time.monotonic()
        self._counts.collate_s += batch.decoded_at - begun
        try:
            batch.issued = self._finish(batch.made_of, batch.patches, rest, batch.number), rest
        finally:
            self._counts.finish_s += time.monotonic() - batch.decoded_at

    def _confirmed(self, batch: Batch, data: Any, rest: Collated) -> Any:
        """Return an issued batch once its pixels are right. Blocks while the GPU decodes."""
        if batch.staged is not None:
            if batch.at_once:  # located without the user's code, while the GPU decodes
                self._start_batches(tuple(self._batches), DECODING + 1)
            self._issue_next(batch)
            while failed := batch.staged.failed():
                self._make_odd(batch, self._odd_samples(batch), failed)
                data = self._finish(batch.made_of, batch.patches, rest, batch.number)
            self._counts.kept_images += batch.staged.kept
        self._counts.batches += 1
        self._counts.images += len(batch.sources)
        if self._choice is not None:
            room_s = max(0.0, getattr(data, "room_at", 0.0) - batch.decoded_at)  # it waited for room on the device
            self._counts.gpu_images += self._choice.note(batch, self._blocked_s + room_s, self.pool.threads)
            self._blocked_s = 0.0
        return data

    def _issue_next(self, batch: Batch) -> None:
        """Issue the next batch while the GPU decodes one that is waited for.

        For some milliseconds, which decoding takes by itself, this looks whether the consumer waits by now, and the
        threads are done with the next batch. A batch of a GPU that is busy with other work is not held back longer.
        """
        following = next((b for b in tuple(self._batches) if b.number == batch.number + 1), None)
        if following is None or self._choice is None:
            return
        staged, looks = following.staged_within(0.0), iter(STAGED_LOOKS_S)
        while staged is not None and not (staged and batch.wanted):
            look_s = next(looks, None)
            if look_s is None or batch.staged.is_decoded or self._closed:
                return
            if staged:
                time.sleep(look_s)
            else:
                staged = following.staged_within(look_s)
        if not staged or not self._choice.has_room():
            return
        try:
            self._complete(following)
            self._issue(following)
        except ClosedError:
            raise
        except BaseException:  # noqa: BLE001 - raised in its turn, which tries it again
            following.issued = None

    def _complete(self, batch: Batch) -> None:
        """Wait for the pixels, and make odd samples in Python."""
        begun = time.monotonic()
        odd = self._odd_samples(batch)
        if self._choice is not None and (index := self.recipe.options.get("index")) is not None:
            self._choice.learn(index, lambda: batch.job.wait(0.0) == "timeout")
        odd.answer()
        if self._closed:  # samples not decoded by then are cancelled
            raise ClosedError
        batch.patches = self.recipe.pipeline.patches(batch.job)
        self._make_odd(batch, odd, failed_of(batch.job))
        if batch.remaining is not None and batch.remaining.after not in (None, batch.after):
            self._rewind_rng(batch, batch.remaining.after)
        batch.awaited = begun, time.monotonic()

    def _odd_samples(self, batch: Batch) -> OddSamples:
        def make(sample: int, before: bytes | None) -> tuple[Any, bytes]:
            return self._in_python(batch, sample, before)

        seeds = batch.seeds if self._by_index else None
        starts = None if batch.remaining is None else batch.remaining.starts
        return OddSamples(self.recipe, batch.job, make, self._counts, seeds=seeds, starts=starts)

    def _make_odd(self, batch: Batch, odd: OddSamples, samples: list[int]) -> None:
        """Make ``samples`` in Python, and put all that are made there into their batch."""
        odd.make(samples)
        if odd.bad:
            raise BadSamplesError(odd.bad)
        if odd.rewound is not None:
            self._rewind_rng(batch, odd.rewound)
        odd.put(batch.pixels, batch.patches, batch.host, batch.staged)

    def _in_python(self, batch: Batch, sample: int, before: bytes | None) -> tuple[Any, bytes]:
        """Make a sample, or the error that torch's worker would send.

        Also returns the generators' state after it.
        """
        index, view = divmod(sample, self._views)
        source = one_of(batch.sources[index], view)
        indices = batch.indices if batch.remaining is None else batch.remaining.indices
        where = self.recipe.described(indices[index], source)
        try:
            self._process.wait_started(self._wake)
            return self._process.sample(source, before, worker=batch.worker, where=where, view=view)
        except RuntimeError as error:
            raise (ClosedError if self._closed else error) from None

    def _failed(self, batch: Batch, error: PythonError) -> tuple[Any, bytes | None]:
        """Return what a worker would send of a batch, and its generators' state then.

        A dataset that fetches batches fetches this one, for its own error.
        """
        if self._by_index or not self.recipe.fetches_batches:
            return error.error, error.state
        before = batch.job.generator_before(0) if self.recipe.pipeline.draws else None
        self._process.wait_started(self._wake)
        wrapper, after = self._process.fetched(list(batch.draw[0]), before, worker=batch.worker)
        return wrapper or error.error, None if before is None else after

    def _rewind_rng(self, batch: Batch, state: bytes | None) -> None:
        """Set the worker's generator after ``batch`` to ``state``, and redraw its later batches."""
        if state is None:  # no later batch continues this one's random stream
            batch.job.cancel()
            return
        later = self._cancel_from(batch)
        batch.after = state
        self._streams[batch.worker] = _core.RandomStream(state)
        for stale in later:
            self._start(stale)

    def _cancel_from(self, batch: Batch) -> list[Batch]:
        """Cancel a batch, and its worker's later ones, which are returned."""
        later = [b for b in tuple(self._batches) if b is not batch and b.worker == batch.worker and b.job is not None]
        for stale in [*reversed(later), batch]:  # last to first: else the next queued batch would go on drawing
            stale.job.cancel()
        return later


def _first_untaken(batches: tuple[Batch, ...], empty: int) -> int:
    """Return the number of the first batch not taken; ``empty`` without batches."""
    number = empty
    for batch in batches:
        if not batch.taken:
            return batch.number
        number = batch.number + 1
    return number


def woken_by(wakeups: queue.SimpleQueue[object]) -> object:
    """Wait until something is in a queue.

    Empties it up to the first entry that is not ``None``, which it returns.
    """
    reason = wakeups.get()
    while reason is None and not wakeups.empty():  # one look at the batches will do for all
        reason = wakeups.get_nowait()
    return reason
