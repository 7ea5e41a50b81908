"""``loader.replay(n)`` repeats a few batches from memory, as a perfect loader would deliver them."""

from __future__ import annotations

import contextlib
import itertools
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import torch

from fastload._batch import as_inference_tensors, map_tensors
from fastload.options import check_device_prefetch, has_streams
from fastload.torch_workers.signals import deferred_signals
from fastload.torch_workers.twin import twin_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.utils.data import DataLoader

T = TypeVar("T")


class Replay(Generic[T]):
    """Repeats batches that are already on the device, so ``next()`` costs almost nothing.

    The first iteration takes the first ``n`` batches of an epoch, which stay on the device while this object lives. An
    epoch is as long as the loader's, so **values repeat**: batch ``k`` is batch ``k mod n``. It is for measuring, not
    for training. The same tensors are handed out each time, so in-place changes persist.

    Taking the batches runs separate workers for the beginning of an epoch. It restores torch's default generator, the
    loader's and its sampler's, and leaves the loader's iterators and persistent workers alone, so the loader's next
    epoch is unaffected. It does not restore a sampler's own counters or, if the main process loads (``num_workers=0``),
    the random states of other libraries.

    Args:
        loader: Supplies the batches, as configured now; later changes have no effect.
        n: Number of batches to hold, at least 1. Fewer if the epoch has fewer.
        steps: Length of an epoch; ``None`` is the loader's length.

    Raises:
        TypeError: ``n`` or ``steps`` is not an int, or the loader has no length and ``steps`` is not given.
        ValueError: ``n`` or ``steps`` is less than 1.
    """

    def __init__(self, loader: DataLoader[T], n: int, steps: int | None = None) -> None:
        check_device_prefetch(n, "n", minimum=1)
        if steps is not None:
            check_device_prefetch(steps, "steps", minimum=1)
        self._steps = _length_of(loader) if steps is None else steps
        self._n = min(n, self._steps)
        self._loader: DataLoader[T] | None = twin_of(loader, persistent_workers=False)
        self._batches: list[T] = []
        self._stream: Any = None  # the stream that the held memory is recorded for
        self._taking = threading.Lock()

    def __len__(self) -> int:
        return self._steps

    def __repr__(self) -> str:
        held = f"{len(self._batches)} batches held" if self._batches else f"first {self._n} batches, not taken yet"
        return f"Replay({held}, {self._steps} per epoch)"

    def load(self) -> Replay[T]:
        """Take the batches before the first iteration. Blocks until they are on the device."""
        with self._taking:
            if self._loader is not None:
                self._batches, self._stream = _take(twin_of(self._loader), self._n)
                self._loader = None
        return self

    def __iter__(self) -> Iterator[T]:
        self.load()
        return self._epoch(self._batches)

    def _epoch(self, batches: list[T]) -> Iterator[T]:
        for step in range(self._steps if batches else 0):
            batch = batches[step % len(batches)]
            if self._stream is not None and (current := _current_stream(self._stream.device)) != self._stream:
                map_tensors(_recorder(current), batch)
            yield as_inference_tensors(batch) if torch.is_inference_mode_enabled() else batch


def _length_of(loader: DataLoader[Any]) -> int:
    try:
        return len(loader)
    except TypeError as error:
        raise TypeError(
            f"replay() repeats batches for as long as the loader's epoch, but the loader has no length ({error}); say "
            "how long: replay(n, steps=1000)"
        ) from error


def _take(loader: DataLoader[T], n: int) -> tuple[list[T], Any]:
    """Take the first ``n`` batches of an epoch.

    Returns them, and the stream that they were handed to if their device has streams.
    """
    generators = [g for g in (loader.generator, getattr(loader.sampler, "generator", None)) if g is not None]
    kept = [(generator, generator.get_state()) for generator in generators]
    default = torch.get_rng_state()
    batches: list[T] = []
    try:
        # Not in inference mode: the batches may be used outside it later.
        with torch.inference_mode(False), contextlib.closing(cast("Any", loader)):
            batches.extend(itertools.islice(loader, n))
    finally:
        with deferred_signals():
            torch.set_rng_state(default)
            for generator, state in kept:
                generator.set_state(state)
    device = _device_of(batches)
    if device is None:
        return batches, None
    stream = _current_stream(device)
    torch.accelerator.synchronize(device)  # afterwards any stream may read them
    return batches, stream


def _device_of(batches: Any) -> torch.device | None:
    """The device of a batch's tensors; ``None`` if it has no streams."""
    devices: list[torch.device] = []

    def look(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and has_streams(leaf.device):
            devices.append(leaf.device)
        return leaf

    map_tensors(look, batches)
    return devices[0] if devices else None


def _current_stream(device: torch.device) -> Any:
    return torch.get_device_module(device).current_stream(device)


def _recorder(stream: Any) -> Callable[[Any], Any]:
    def record(leaf: Any) -> Any:
        if callable(note := getattr(leaf, "record_stream", None)) and not _is_on_host(leaf):
            note(stream)
        return leaf

    return record


def _is_on_host(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and not has_streams(leaf.device)
