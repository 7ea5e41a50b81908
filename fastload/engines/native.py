"""Engine ``native``: one process, ``num_workers`` decode threads, and the batches that torch's workers would make.

Index batches are drawn where torch draws them, as many ahead as torch would, so that the sampler and both generators
stand after each batch (and after a ``break``) where torch's would. Batch ``k`` belongs to the *virtual worker*
``k mod num_workers``, which has the random stream of that worker of torch's. A worker's samples are drawn in order, and
decoded in any; few batches are decoded at a time, because one batch occupies all threads.

A sample that the core does not take goes through the user's own transforms, in the consumer's thread, with torch's
default generator set to where the worker's would stand. A sample that raises there raises in its batch's turn, and what
the worker would not have drawn after it is not drawn.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import default_collate
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _BaseDataLoaderIter

from fastload import _core
from fastload._nvtx import stage
from fastload.engines.by_index import number_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.utils.data import DataLoader

    from fastload.vision.recipe import Recipe

_BATCHES_DECODING = 3  # submitted and not yet taken: one being finished, one under way, one that threads can turn to


@dataclass(eq=False)
class _Batch:
    """One batch of the epoch, from its indices on."""

    worker: int
    indices: Any
    sources: list[Any] = field(default_factory=list)
    targets: list[Any] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)  # of each sample, where randomness is by index
    error: ExceptionWrapper | None = None  # of the sample after the last of `sources`
    pixels: Any = None  # the tensor and the job that fills it, once it is started
    job: Any = None
    data: Any = None  # once made


class _PythonError(Exception):
    """A sample raised in Python; carries what torch's worker would have sent, and where its generator stood then."""

    def __init__(self, sample: int, wrapper: ExceptionWrapper, state: bytes | None) -> None:
        super().__init__(sample)
        self.sample = sample
        self.wrapper = wrapper
        self.state = state


class NativeIterator(_BaseDataLoaderIter):
    """One epoch; with persistent workers, one after the other.

    Args:
        loader: Its sampler, batch sizes, generator and workers are those of the batches.
        recipe: How to make its samples.
        images_of: Makes the batch's images of the pixels, ``(N, H, W, 3)`` uint8 on the host.
        pin: Whether the pixels lie in pinned memory.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        recipe: Recipe,
        images_of: Callable[[torch.Tensor], Any],
        *,
        pin: bool = False,
    ) -> None:
        super().__init__(loader)  # draws the base seed
        self._recipe = recipe
        self._images_of = images_of
        self._pin = pin
        self._window = (loader.prefetch_factor or 2) * self._num_workers
        self._by_index = getattr(loader, "rng", "torch") == "index"
        self._epoch = -1
        self._streams = [_core.RandomStream.from_seed(int(self._base_seed) + w) for w in range(self._num_workers)]
        self._batches: deque[_Batch] = deque()
        self._sent = 0
        self._closed = False
        self._pool = _core.Pool(self._num_workers)
        self._finalizer = weakref.finalize(self, self._pool.close)
        self._reset(loader, first_iter=True)

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        while self._batches:  # torch's persistent workers work off what they were sent, and their generators go on
            self._finish(self._batches.popleft())
        self._sent = 0
        self._epoch += 1
        for _ in range(self._window):
            self._send()
        self._submit()

    def _send(self) -> None:
        """Draw one more index batch, if there is one."""
        try:
            indices = self._next_index()  # type: ignore[no-untyped-call]
        except StopIteration:
            return
        self._batches.append(_Batch(self._sent % self._num_workers, indices))
        self._sent += 1

    def _next_data(self) -> Any:
        if self._closed:
            raise RuntimeError("the FastLoader of this iterator was closed")
        if not self._batches:
            if not self._persistent_workers:
                self._finalizer()
            raise StopIteration
        with stage("wait", self._num_yielded):
            data = self._finish(self._batches[0])
        self._batches.popleft()
        self._send()
        self._submit()
        if isinstance(data, ExceptionWrapper):
            data.reraise()  # type: ignore[no-untyped-call]
        return data

    def peek(self) -> Any:
        """The next batch, if it has been decoded; ``None`` if not, or if it is an error. Draws from no sampler."""
        if not self._batches or self._closed:
            return None
        batch = self._batches[0]
        if batch.job is None or batch.job.wait(0.0) != "done":
            return None
        data = self._finish(batch)
        return None if isinstance(data, ExceptionWrapper) else data

    def close(self) -> None:
        """Stop the decode threads; what is asked for later raises. Idempotent."""
        self._closed = True
        self._batches.clear()
        self._finalizer()

    def _shutdown_workers(self) -> None:
        self.close()

    def _submit(self) -> None:
        """Have the next few batches decoded."""
        for batch in list(self._batches)[:_BATCHES_DECODING]:
            if batch.job is None:
                self._start(batch)

    def _start(self, batch: _Batch) -> None:
        if batch.pixels is None:
            self._locate(batch)
        size = (len(batch.sources), *self._recipe.pipeline.size, 3)
        batch.pixels = torch.empty(size, dtype=torch.uint8, pin_memory=self._pin)
        draws: dict[str, Any] = {}
        if self._recipe.pipeline.draws:
            draws = {"seeds": batch.seeds} if self._by_index else {"stream": self._streams[batch.worker]}
        batch.job = self._pool.submit(
            batch.sources, batch.pixels, plan=self._recipe.plan, **draws, **self._recipe.options
        )

    def _locate(self, batch: _Batch) -> None:
        index = None
        try:
            for index in batch.indices:
                seed = self._seed(index) if self._by_index else 0
                source, target = self._recipe.locate(index)
                if not isinstance(source, str | os.PathLike):
                    source = memoryview(source)
                batch.sources.append(source)
                batch.targets.append(target)
                batch.seeds.append(seed)
        except Exception:  # noqa: BLE001 - the user's dataset or sampler, whatever it raises: in the batch's turn
            batch.error = _wrapped(batch.worker, f"sample {index!r}")

    def _seed(self, index: Any) -> int:
        return _core.seed_for_index(int(self._base_seed), self._epoch, number_of(index))

    def _finish(self, batch: _Batch) -> Any:
        """The batch, or the error that torch's worker would have sent. Blocks."""
        if batch.data is None:
            batch.data = self._make(batch)
        return batch.data

    def _make(self, batch: _Batch) -> Any:
        if batch.job is None:
            self._start(batch)
        try:
            self._complete(batch)
        except _PythonError as error:
            self._break_off(batch, error.state)
            return error.wrapper
        if batch.error is not None:
            return batch.error
        try:
            with stage("collate", self._num_yielded):
                if not batch.targets:
                    return default_collate([])
                data = [self._images_of(batch.pixels), default_collate(batch.targets)]
                pins = self._pin_memory and isinstance(data[0], torch.Tensor)
                return pin_memory(data) if pins else data  # type: ignore[no-untyped-call]
        except Exception:  # noqa: BLE001 - default_collate's, of targets of any type
            return _wrapped(batch.worker, None)

    def _complete(self, batch: _Batch) -> None:
        """Wait for the pixels, and make in Python what the core does not."""
        job = batch.job
        made: dict[int, torch.Tensor] = {}
        timeout = self._timeout if self._timeout > 0 else -1.0
        while (answer := job.wait(timeout)) == "requested":
            kind, sample, value = job.request()
            if kind == "exp":
                job.provide_exp(value, torch.exp(torch.tensor([value])).item())
            elif kind == "sample":
                before = job.generator_before(sample)
                made[sample], after = self._in_python(batch, sample, before)
                job.skip(after)
        if answer == "timeout":
            raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds")
        statuses = job.statuses()
        if any(statuses):
            for sample, status in enumerate(statuses):
                if status and sample not in made:
                    before = self._before(batch, sample)
                    made[sample], after = self._in_python(batch, sample, before)
                    if before is not None and not self._by_index and after != self._drawn(job, sample, before):
                        self._go_on_in_python(batch, sample + 1, after, made)
                        break
        for sample, pixels in made.items():
            batch.pixels[sample] = pixels

    def _before(self, batch: _Batch, sample: int) -> bytes | None:
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

    def _go_on_in_python(self, batch: _Batch, begin: int, state: bytes, made: dict[int, torch.Tensor]) -> None:
        """Pillow saw other things in a file than the core did: what was drawn after it is void."""
        for sample in range(begin, len(batch.sources)):
            made[sample], state = self._in_python(batch, sample, state)
        self._break_off(batch, state)

    def _in_python(self, batch: _Batch, sample: int, before: bytes | None) -> tuple[torch.Tensor, bytes]:
        """A sample's pixels by the user's own transforms, and where the worker's generator stands then."""
        kept = torch.get_rng_state()
        if before is not None:
            torch.set_rng_state(torch.frombuffer(bytearray(before), dtype=torch.uint8))
        source = batch.sources[sample]
        failure = None
        try:
            pixels = np.array(self._recipe.pixels(source))
            _check_size(pixels, tuple(batch.pixels.shape[1:3]))
        except Exception:  # noqa: BLE001 - whatever Pillow or the transforms raise, the worker would send
            where = f"sample {batch.indices[sample]!r}"
            where += f" ({os.fspath(source)})" if isinstance(source, str | os.PathLike) else ""
            failure = _wrapped(batch.worker, where)
        after = torch.get_rng_state().numpy().tobytes()
        torch.set_rng_state(kept)
        if failure is not None:
            raise _PythonError(sample, failure, None if before is None or self._by_index else after)
        return torch.from_numpy(pixels), after

    def _break_off(self, batch: _Batch, state: bytes | None) -> None:
        """The worker's generator stands at ``state`` after ``batch``: what was drawn since is drawn anew."""
        later = [b for b in self._batches if b is not batch and b.worker == batch.worker and b.job is not None]
        if state is None:  # no later batch draws on from this one
            later = []
        for void in [*reversed(later), batch]:  # the last first: else the next in line would go on drawing
            void.job.cancel()
        if state is not None:
            self._streams[batch.worker] = _core.RandomStream(state)
        for void in later:
            self._start(void)


def _wrapped(worker: int, where: str | None) -> ExceptionWrapper:
    """The exception being handled, as torch's worker sends it; its message says which sample it was."""
    wrapper: ExceptionWrapper = ExceptionWrapper(where=f"in DataLoader worker process {worker}")  # type: ignore[no-untyped-call]
    if where is not None:
        wrapper.exc_msg = f"{wrapper.exc_msg}\n{where}"
    return wrapper


def _check_size(pixels: Any, size: tuple[int, ...]) -> None:
    """Raise what default_collate raises of images that differ in size."""
    if pixels.shape[:2] != size:
        torch.stack([torch.empty(3, *size), torch.empty(3, *pixels.shape[:2])])
