"""Loaders that run natively: whether one can, and its iterators on the host and on a device."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import threading
import warnings
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory

from fastload.device.epilogue import NormalizeTable, finish
from fastload.device.images import Erased, TableImages, to_images
from fastload.device.transfer import DeviceBatch, Transfer
from fastload.host import as_inference_tensors
from fastload.insight.meter import Meter, measure
from fastload.options import can_pin, has_streams

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.engines.native import NativeIterator
    from fastload.engines.sample_process import SampleProcess
    from fastload.loader import FastLoader
    from fastload.vision.recipe import Recipe


_PACKAGE = str(Path(__file__).parent)


class FallbackWarning(UserWarning):
    """A pipeline that could have run natively does not, because a check on its own data found a difference."""


def _warn(why: str) -> None:
    """Warn, at the caller of ``iter(loader)``, and go on: also where warnings are turned into errors."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    with contextlib.suppress(FallbackWarning):
        warnings.warn(f"not run natively: {why}", FallbackWarning, stacklevel=level)


def read_loader(loader: FastLoader[Any], device: torch.device) -> Recipe | tuple[str, ...]:
    """A loader's recipe; or the reasons why it has none, in words that say what to change."""
    if loader.accelerate == "off":
        return ("accelerate='off'",)
    reasons = []
    if loader.num_workers == 0:
        reasons.append("num_workers=0 runs in the main process as torch does it; num_workers >= 1 can run natively")
    if not loader._auto_collation:
        reasons.append("batch_size=None: only batches are made natively")
    if not loader.in_order:
        reasons.append("in_order=False: only batches in order are made natively")
    if device.type not in ("cpu", "cuda"):
        reasons.append(f"batches go to {device.type}; natively they go to cuda and cpu")
    if getattr(type(loader), "_get_iterator", None) is not DataLoader._get_iterator:
        reasons.append(f"{type(loader).__name__} has a _get_iterator of its own; leave torch's")
    if "torchvision" not in sys.modules:  # neither its datasets nor its transforms can be there
        return (
            *reasons,
            f"dataset {type(loader.dataset).__name__} has no torchvision transforms, which alone are lowered",
        )
    if importlib.util.find_spec("fastload._core") is None:
        return (*reasons, "fastload._core is not built; reinstall fastload with a C++ compiler")
    from fastload.vision.recipe import Refusal, read_recipe

    recipe = read_recipe(loader.dataset, loader.collate_fn, loader.worker_init_fn)
    if isinstance(recipe, Refusal):
        return (*reasons, *recipe.reasons)
    return tuple(reasons) or recipe


class Checks:
    """What the checks of a loader's recipes on its own data came to; each is made once."""

    def __init__(self) -> None:
        self._results: dict[tuple[Any, ...], str | None] = {}
        self._held: list[Any] = []
        self.python_used = False
        """Samples had to be made in Python; a process for them is better forked where torch would fork its workers."""

    def note_python(self) -> None:
        """Samples have to be made in Python."""
        self.python_used = True

    def known(self, loader: FastLoader[Any], recipe: Recipe) -> str | None:
        """Why the recipe must not be used, as far as it has been checked."""
        return self._results.get(_key(loader, recipe))

    def has(self, loader: FastLoader[Any], recipe: Recipe) -> bool:
        """Whether the recipe has been checked."""
        return _key(loader, recipe) in self._results

    def passes(self, loader: FastLoader[Any], recipe: Recipe, process: SampleProcess) -> bool:
        """Whether the recipe may be used. Checks it when it is new; warns when it fails.

        Args:
            loader: Whose.
            recipe: The loader's, read just now.
            process: Has the recipe; started, if there is something to check.

        Raises:
            RuntimeError: It fails, and ``accelerate="require"``.
        """
        key = _key(loader, recipe)
        if key not in self._results:
            from fastload.engines.selfcheck import check_recipe

            images_of = _host_images(recipe, torch.contiguous_format)
            require = loader.accelerate == "require"
            why = check_recipe(recipe, process, images_of, any_share=require, timeout_s=loader.timeout or None)
            self._results[key] = why
            self._held.append(loader.dataset)  # its id stands in the key
            if why is not None and loader.accelerate != "require":
                _warn(why)
        why = self._results[key]
        if why is not None and loader.accelerate == "require":
            raise RuntimeError(f"accelerate='require', but {why}")
        return why is None


def start_native(loader: FastLoader[Any], recipe: Recipe, device: torch.device) -> Any:
    """An iterator that runs a loader's recipe; ``None`` if that fails its check, or nothing can be started for it.

    Raises:
        RuntimeError: The check fails, and ``accelerate="require"``.
    """
    runtime, native = loader._runtime, cast("Any", None)
    recipe = recipe.snapshot()
    process = _sample_process(loader, recipe)
    if process is None:
        return None
    try:
        if not runtime.checks.passes(loader, recipe, process):
            return None
        if device.type == "cpu":
            native = native_on_host(loader, recipe, process)
            runtime.measure(native, measure(native, native_meter(native, loader)))
        else:
            stream = runtime.copy_stream(device) if loader.device_prefetch else None
            native = NativeDeviceIterator(loader, recipe, process, device, stream, runtime.retire)
            runtime.take_in(native.transfer)
            runtime.measure(native, native.meter)
        runtime.live.add(native)
        return native
    finally:
        if native is None:  # nobody waits for an answer any more
            process.kill()
            process.close()


def _sample_process(loader: FastLoader[Any], recipe: Recipe) -> SampleProcess | None:
    """A process for the recipe's samples, started if the check needs it; ``None`` where none can be started."""
    from fastload.engines.sample_process import SampleProcess

    try:
        checks = loader._runtime.checks
        process = SampleProcess(recipe, loader.multiprocessing_context, note_use=checks.note_python)
        if checks.python_used or not checks.has(loader, recipe):
            process.start()
        return process
    except Exception:  # torch's workers cannot be started either, and will say why
        if loader.accelerate == "require":
            raise
        return None


def _key(loader: FastLoader[Any], recipe: Recipe) -> tuple[Any, ...]:
    """All that the outcome of the check depends on, the files apart."""
    pipeline = recipe.pipeline
    values = pipeline.table
    table = None if values is None else (values.dtype, values.view(torch.uint8).numpy().tobytes())
    require = loader.accelerate == "require"
    color = None if pipeline.erasing is None else pipeline.erasing.color.tolist()
    made = repr((pipeline.ops, color, pipeline.image, torch.get_default_dtype()))
    return id(loader.dataset), made, table, repr(sorted(recipe.options.items())), require


def _host_images(
    recipe: Recipe, memory_format: torch.memory_format
) -> Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]:
    table = None if recipe.pipeline.table is None else NormalizeTable(recipe.pipeline.table)
    erasing = recipe.pipeline.erasing
    return lambda pixels, boxes: to_images(pixels, table, memory_format, Erased.of(erasing, boxes))


def native_on_host(loader: FastLoader[Any], recipe: Recipe, process: SampleProcess) -> NativeIterator:
    """Batches as torch's workers make them, in host memory."""
    from fastload.engines.native import NativeIterator

    images_of = _host_images(recipe, torch.contiguous_format)
    dtype = loader.dtype
    pins = loader.pin_memory and can_pin()

    def finish_batch(pixels: torch.Tensor, boxes: torch.Tensor | None, targets: Any, number: int) -> Any:
        data = [finish(images_of(pixels, boxes), None, dtype), targets]
        return pin_memory(data) if pins else data  # type: ignore[no-untyped-call]

    return NativeIterator(loader, recipe, process, finish_batch, finish_is_epilogue=True)


def native_meter(native: NativeIterator, loader: FastLoader[Any], *, on_device: bool = False) -> Meter:
    """What counts for a native iterator, whose batches go to a device as they are made, or do not."""
    line = native._line
    return Meter(None, loader.batch_size, line.totals, waiting=lambda: line.ready, on_device=on_device)


def is_native(iterator: Any) -> bool:
    """Whether ``iterator`` makes batches natively, on the host."""
    native = sys.modules.get("fastload.engines.native")
    return isinstance(iterator, getattr(native, "NativeIterator", ()))  # another thread may be importing it


class NativeDeviceIterator:
    """Native batches on their way to a device: copied there the moment that they are made.

    Args:
        loader: See :class:`~fastload.engines.native.NativeIterator`.
        recipe: Likewise.
        process: Likewise.
        device: Where to; with an index.
        stream: The side stream to copy on, or ``None``.
        retire: Called with the transfer when the iterator is gone.
    """

    def __init__(
        self,
        loader: FastLoader[Any],
        recipe: Recipe,
        process: SampleProcess,
        device: torch.device,
        stream: Any,
        retire: Callable[[Transfer], None],
    ) -> None:
        from fastload.engines.native import NativeIterator

        self.device = device
        self.transfer = transfer = Transfer(device, stream, None, loader.dtype)
        pins = has_streams(device) and loader.max_pinned_bytes != 0
        wanted = loader.memory_format
        layout = torch.channels_last if wanted == torch.channels_last else torch.contiguous_format
        table = None if recipe.pipeline.table is None else NormalizeTable(recipe.pipeline.table)

        erasing = recipe.pipeline.erasing

        def finish_batch(pixels: torch.Tensor, boxes: torch.Tensor | None, targets: Any, number: int) -> Any:
            images = TableImages(pixels, table, layout, Erased.of(erasing, boxes))
            data = [images, pin_memory(targets) if pins else targets]  # type: ignore[no-untyped-call]
            return data if stream is None else transfer.start(data, number)

        self._host: Any = NativeIterator(
            loader,
            recipe,
            process,
            finish_batch,
            pin=pins,
            ahead=max(1, loader.device_prefetch),
            device=device,
            device_totals=None if transfer.clock is None else transfer.totals,
        )
        self.meter = native_meter(self._host, loader, on_device=stream is not None)
        self._finalizer = weakref.finalize(self, _end, self._host._line.close, transfer, retire)

    def _reset(self, loader: FastLoader[Any]) -> None:
        try:
            self._host._reset(loader)
        except BaseException:
            if self._host.is_closed:
                self.close()
            raise
        self.transfer.begin_epoch()
        self.meter.begin_epoch()

    def __iter__(self) -> NativeDeviceIterator:
        return self

    def __len__(self) -> int:
        return len(self._host)

    def __next__(self) -> Any:
        host = self._host
        if host is None:
            raise RuntimeError("the FastLoader of this iterator was closed")
        data = self._fetch(host)
        batch = host.claimed[threading.get_ident()]
        batch.taken = True  # see NativeIterator.__next__
        batch.data = None
        return data

    def _fetch(self, host: NativeIterator) -> Any:
        with host.turn:
            self.transfer.mark_step()
            asked = self.meter.ask()
            number = host._num_yielded
            try:
                batch = host.fetch()
                copied = batch if isinstance(batch, DeviceBatch) else self.transfer.start(batch, number)
                data = self.transfer.take(copied)
            except BaseException:
                self.meter.stop()
                raise
            line = host._line
            road = (("decode", line.decoded_at), ("gpu", copied.roomed), ("h2d", copied.issued))
            self.meter.got(asked, None, road, line.images)
            return as_inference_tensors(data) if torch.is_inference_mode_enabled() else data

    @property
    def is_closed(self) -> bool:
        """Whether its totals have been retired."""
        return not self._finalizer.alive

    def close(self) -> None:
        """Stop the decode threads and wait for the copies. Idempotent."""
        self._host = None
        self._finalizer()


def _end(close_line: Callable[[], None], transfer: Transfer, retire: Callable[[Transfer], None]) -> None:
    close_line()
    transfer.close()
    retire(transfer)
