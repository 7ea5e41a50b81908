"""The batches of a native epoch on their way through the decode threads, and the thread that sees them through.

Batches are added in the consumer's thread, which draws their indices, and taken there. The thread between, the *line*,
finds their files, hands them to the decode threads, makes targets and images of what comes back, and passes it on (to
a device, say), so that a batch that is ready waits for nothing that the consumer has yet to do.

A sample that the core does not take goes through the user's own transforms, in the consumer's thread, with torch's
default generator set to where the worker's would stand: that generator is the consumer's too, so no other thread may
touch it. The batch is *stuck* until the consumer gets to it. A sample that raises there raises in its batch's turn, and
what the worker would not have drawn after it is not drawn.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.utils.data import default_collate

from fastload import _core
from fastload._nvtx import stage
from fastload.engines.by_index import number_of
from fastload.engines.underway import Batch, NeedsConsumerError, PythonError, TookTooLongError, check_size, wrapped
from fastload.insight.stats import Totals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastload.vision.recipe import Recipe

_Made: TypeAlias = "tuple[torch.Tensor, tuple[int, int, int, int]]"  # a sample's pixels, and its box to erase

DECODING = 3  # submitted and not yet made: one being finished, one under way, one that threads can turn to


class Line:
    """Batches under way. One thread adds and takes; the other is the line's own. Never refers to its user.

    Args:
        recipe: How to make samples.
        threads: To decode with.
        base_seed: Of the epoch's workers.
        workers: As many random streams as torch would have workers.
        by_index: Whether samples draw by their index.
        finish: Makes the batch of pixels (``(N, H, W, 3)`` uint8), boxes to erase (``(N, 4)`` int32, or ``None``),
            collated targets and its number; called in the line's thread, or in the consumer's for a stuck batch.
        finish_is_epilogue: Whether that is the batches' epilogue, and not the way to one.
        pin: Whether the pixels lie in pinned memory.
        ahead: Batches to make before they are asked for, at least 1.
        device: Where ``finish`` works, if that is not the host.
    """

    def __init__(
        self,
        recipe: Recipe,
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
        self.epoch = -1  # counted up by the user
        self._recipe = recipe
        self._base_seed = base_seed
        self._by_index = by_index
        self._finish = finish
        self._finish_is_epilogue = finish_is_epilogue
        self._pin = pin
        self._device = device
        self._ahead = ahead
        self._streams = [_core.RandomStream.from_seed(base_seed + w) for w in range(workers)]
        self._batches: deque[Batch] = deque()
        lock = threading.RLock()  # reentrant: the collector may close a line anywhere
        self._changed = threading.Condition(lock)  # for the consumer: a batch is made
        self._wanted = threading.Condition(lock)  # for the line's thread: there is something to do, or room for it
        self._paused = False
        self._working = False
        self._closed = False
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None
        self.pool = _core.Pool(threads)
        self.images = 0  # of the batch that was taken last
        self.awaited = (0.0, 0.0)  # likewise
        self.decoded_at = self.made_at = 0.0  # likewise
        self.ready = 0  # batches that are made and have not been taken
        self._decoded = 0
        self._collate_s = self._finish_s = 0.0

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, worker: int, number: int, indices: Any) -> None:
        """Append a batch."""
        with self._changed:
            self._batches.append(Batch(worker, number, indices))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fastload-feeder", daemon=True)
                self._thread.start()
            self._wanted.notify()

    def take(self, timeout_s: float) -> Any:
        """The next batch's data, or an ExceptionWrapper, or an error of ours. Blocks. There must be one.

        Args:
            timeout_s: 0 waits for ever.

        Raises:
            TookTooLongError: The batch stays the next.
        """
        batch = self._batches[0]
        with self._changed:
            if not batch.made:  # an interrupt may have come between the last batch and the word that it left room
                self._wanted.notify()
            ready = self._changed.wait_for(lambda: batch.made or batch.stuck or self._closed, timeout_s or None)
        if self._closed:
            raise RuntimeError("the FastLoader of this iterator was closed")
        if not ready:
            raise TookTooLongError
        if batch.stuck:
            self._see_through(batch, timeout_s or -1.0, in_python=True)
        with self._changed:
            self._batches.popleft()
            self.ready -= 1
            self._wanted.notify()
        if batch.failure is not None:
            return batch.failure
        self.images, self.decoded_at, self.made_at = batch.images, batch.decoded_at, batch.made_at
        self.awaited = batch.awaited
        data, batch.data = batch.data, None  # the line's thread may know the batch for a while yet
        return data

    def totals(self) -> Totals:
        """What the threads have spent so far: reading files, decoding, on a core, putting batches together."""
        seconds, busy, read, read_busy = self.pool.work_times()
        spent = {"fetch": read, "decode": seconds - read, "collate": self._collate_s}
        if self._finish_is_epilogue:
            spent["epilogue"] = self._finish_s
        return Totals(
            {
                **{f"stage:{name}:count": float(self._decoded) for name in spent},
                **{f"stage:{name}:s": took for name, took in spent.items()},
                "made:looked_s": seconds,
                "made:busy_s": busy,
                "made:queued_s": max(0.0, seconds - busy - (read - read_busy)),
                "made:decode_s": busy,
            }
        )

    def drain(self) -> None:
        """See all batches through, and drop them: persistent workers work off what they were sent."""
        with self._alone():
            try:
                for batch in self._batches:
                    if not batch.made:
                        self._see_through(batch, -1.0, in_python=True, drop=True)
            finally:
                self._batches.clear()
                self.ready = 0

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """The line's own thread stands still. For the consumer's."""
        with self._changed:
            paused, self._paused = self._paused, True
            self._changed.wait_for(lambda: not self._working)
        try:
            yield
        finally:
            with self._changed:
                self._paused = paused
                self._wanted.notify()

    def close(self) -> None:
        """Stop the threads. Idempotent; may be called from any thread."""
        if os.getpid() != self._pid:  # a forked child, where neither the threads nor a usable lock are
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._wanted.notify()
        self.pool.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._batches.clear()

    def _run(self) -> None:
        if self._device is not None:  # a new thread's is device 0, where a context of this process would cost memory
            torch.accelerator.set_device_index(self._device)
        while (found := self._next()) is not None:
            for batch in found[0]:
                self._start(batch)
            if found[1] is not None:
                self._see_through(found[1], -1.0, in_python=False)
            del found  # nothing of a batch may live on here while there is nothing to do
            with self._changed:
                self._working = False
                if self._paused:
                    self._changed.notify_all()

    def _next(self) -> tuple[list[Batch], Batch | None] | None:
        """Batches to start, and the one to see through if there is room for it; ``None`` at the end. Blocks."""
        with self._changed:
            while not self._closed:
                unmade = [batch for batch in self._batches if not batch.made]
                # Those that come before it: one that failed early, further on, takes nobody's room.
                has_room = not unmade or self._batches.index(unmade[0]) < self._ahead
                to_start = [batch for batch in unmade[:DECODING] if batch.job is None]
                head = unmade[0] if unmade and has_room and not unmade[0].stuck else None
                if not self._paused and (to_start or head is not None):
                    self._working = True
                    return to_start, head
                self._wanted.wait()
        return None

    def _start(self, batch: Batch) -> None:
        """Hand a batch to the decode threads. What goes wrong is the batch's."""
        try:
            if batch.pixels is None:
                self._locate(batch)
            size = (len(batch.sources), *self._recipe.pipeline.size, 3)
            batch.pixels = torch.empty(size, dtype=torch.uint8, pin_memory=self._pin)
            draws: dict[str, Any] = {}
            if self._recipe.pipeline.draws:
                draws = {"seeds": batch.seeds} if self._by_index else {"stream": self._streams[batch.worker]}
            batch.job = self.pool.submit(
                batch.sources,
                batch.pixels,
                plan=self._recipe.plan,
                number=batch.number,
                **draws,
                **self._recipe.options,
            )
        except BaseException as error:
            if not isinstance(error, Exception) and threading.current_thread() is not self._thread:
                raise
            self._end(batch, None, error)

    def _locate(self, batch: Batch) -> None:
        index = None
        batch.sources, batch.targets, batch.seeds = [], [], []  # an interrupt may have left some
        try:
            batch.indices = list(batch.indices)
            for index in batch.indices:
                seed = self._seed(index) if self._by_index else 0
                source, target = self._recipe.locate(index)
                if isinstance(source, str | os.PathLike):
                    if "\0" in str(os.fspath(source)):
                        open(source, "rb").close()  # raises what it raises in a worker
                else:
                    source = memoryview(source)
                    if not (source.readonly and source.c_contiguous):
                        source = bytes(source)  # it may be written again before the threads have read it
                batch.sources.append(source)
                batch.targets.append(target)
                batch.seeds.append(seed)
        except Exception:  # noqa: BLE001 - the user's dataset or sampler, whatever it raises: in the batch's turn
            batch.error = wrapped(batch.worker, f"sample {index!r}")

    def _seed(self, index: Any) -> int:
        return _core.seed_for_index(self._base_seed, self.epoch, number_of(index))

    def _end(self, batch: Batch, data: Any, failure: BaseException | None = None) -> None:
        batch.made_at, batch.images = time.monotonic(), len(batch.sources)
        batch.sources, batch.targets, batch.seeds = [], [], []
        memory = batch.pixels, batch.job  # whoever copies from it holds it
        with self._changed:  # at one go: what has no job and is not made would be started once more, and draw
            batch.pixels = batch.job = None
            batch.data, batch.failure, batch.made, batch.stuck = data, failure, True, False
            self.ready += 1
            self._changed.notify_all()
        del memory

    def _see_through(self, batch: Batch, timeout_s: float, *, in_python: bool, drop: bool = False) -> None:
        """Make the batch, or the error that torch's worker would have sent. Blocks.

        Args:
            batch: The first that is not made.
            timeout_s: -1 waits for ever.
            in_python: Whether samples may be made in Python; the batch is stuck if they may not and have to.
            drop: Whether nobody wants the batch: only its draws are made.
        """
        try:
            if batch.job is None:
                self._start(batch)
            if batch.made:
                return
            data = self._make(batch, timeout_s, in_python=in_python, drop=drop)
        except NeedsConsumerError:
            with self._changed:
                batch.stuck = True
                self._changed.notify_all()
        except TookTooLongError:
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is not self._thread:
                raise
            self._end(batch, None, error)
        else:
            self._end(batch, data)

    def _make(self, batch: Batch, timeout_s: float, *, in_python: bool, drop: bool) -> Any:
        try:
            self._complete(batch, timeout_s, in_python=in_python)
        except PythonError as error:
            self._break_off(batch, error.state)
            return error.wrapper
        if batch.error is not None or drop:
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

    def _complete(self, batch: Batch, timeout_s: float, *, in_python: bool) -> None:
        """Wait for the pixels, and make in Python what the core does not."""
        job = batch.job
        made: dict[int, _Made] = {}
        begun = time.monotonic()
        while (answer := job.wait(timeout_s)) == "requested":
            kind, sample, value = job.request()
            if kind == "exp":
                job.provide_exp(value, torch.exp(torch.tensor([value])).item())
            elif kind == "sample":
                if not in_python:
                    raise NeedsConsumerError
                before = job.generator_before(sample)
                try:
                    made[sample], after = self._in_python(batch, sample, before)
                except PythonError:
                    self._raise_earlier(batch, sample, made)
                    raise
                job.skip(after)
        if answer == "timeout":
            raise TookTooLongError
        batch.awaited = begun, time.monotonic()
        statuses = job.statuses()
        if any(statuses):
            if not in_python:
                raise NeedsConsumerError
            for sample, status in enumerate(statuses):
                if status and sample not in made:
                    before = self._before(batch, sample)
                    made[sample], after = self._in_python(batch, sample, before)
                    if before is not None and not self._by_index and after != self._drawn(job, sample, before):
                        self._go_on_in_python(batch, sample + 1, after, made)
                        break
        if self._recipe.pipeline.erasing is not None:
            batch.boxes = torch.frombuffer(bytearray(job.erased()), dtype=torch.int32).view(-1, 4)
        for sample, (pixels, box) in made.items():
            batch.pixels[sample] = pixels
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

    def _drawn(self, job: _core.Job, sample: int, before: bytes) -> bytes | None:
        """Where the core's generator stood after a sample that it drew for and then could not decode."""
        generator = _core.Generator(0)
        generator.set_state(before)
        _, _, width, height, *_ = job.outcome(sample)
        status, *_ = self._recipe.plan.draw(generator, width, height)
        return generator.get_state() if status == "ok" else None

    def _go_on_in_python(self, batch: Batch, begin: int, state: bytes, made: dict[int, _Made]) -> None:
        """Pillow saw other things in a file than the core did: what was drawn after it is void."""
        for sample in range(begin, len(batch.sources)):
            made[sample], state = self._in_python(batch, sample, state)
        self._break_off(batch, state)

    def _in_python(self, batch: Batch, sample: int, before: bytes | None) -> tuple[_Made, bytes]:
        """A sample by the user's own transforms, and where the worker's generator stands then."""
        kept = torch.get_rng_state()
        if before is not None:
            torch.set_rng_state(torch.frombuffer(bytearray(before), dtype=torch.uint8))
        source = batch.sources[sample]
        failure = None
        try:
            pixels = self._recipe.pixels(source)
            check_size(pixels, tuple(batch.pixels.shape[1:3]))
            box = self._recipe.pipeline.erased()
        except Exception:  # noqa: BLE001 - whatever Pillow or the transforms raise, the worker would send
            where = f"sample {batch.indices[sample]!r}"
            where += f" ({os.fspath(source)})" if isinstance(source, str | os.PathLike) else ""
            failure = wrapped(batch.worker, where)
        finally:
            after = torch.get_rng_state().numpy().tobytes()
            torch.set_rng_state(kept)
        if failure is not None:
            raise PythonError(sample, failure, None if before is None or self._by_index else after)
        return (torch.from_numpy(pixels), box), after

    def _break_off(self, batch: Batch, state: bytes | None) -> None:
        """The worker's generator stands at ``state`` after ``batch``: what was drawn since is drawn anew."""
        if state is None:  # no later batch draws on from this one
            batch.job.cancel()
            return
        with self._alone():  # else it might be handing over a batch that draws from the former stream
            later = [b for b in self._batches if b is not batch and b.worker == batch.worker and b.job is not None]
            for void in [*reversed(later), batch]:  # the last first: else the next in line would go on drawing
                void.job.cancel()
            self._streams[batch.worker] = _core.RandomStream(state)
            for void in later:
                self._start(void)
