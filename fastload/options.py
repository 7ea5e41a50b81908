"""FastLoader's own arguments and their checks, shared by all entry points."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict, TypeVar

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Device: TypeAlias = str | int | torch.device
Engine: TypeAlias = Literal["auto", "torch", "native"]
Decode: TypeAlias = Literal["auto", "cpu", "gpu"]
Randomness: TypeAlias = Literal["worker", "sample"]
DeviceCacheBytes: TypeAlias = Literal["auto"] | int
OnError: TypeAlias = Literal["raise", "skip", "replace"]
T_co = TypeVar("T_co", covariant=True)


INDEX_BYTES: Final = 256 << 20
"""Most bytes of the points within JPEG files, which are about 1% of the files', unless said otherwise."""
ERRORS_MAX: Final = 0.01
"""Largest share of samples that may fail, unless said otherwise."""
LEVELS_OFF: Final = 1
"""By how many of 256 levels ``exact=False`` lets a pixel differ from torchvision's after an approximate op."""


@dataclass(frozen=True)
class Options:
    """FastLoader's own keyword arguments and their defaults; checks its values."""

    device: Device = "auto"
    memory_format: torch.memory_format | None = torch.channels_last
    dtype: torch.dtype | None = None
    device_prefetch: int = 1
    engine: Engine = "auto"
    max_pinned_bytes: int | None = None
    randomness: Randomness = "worker"
    exact: bool = True
    max_index_bytes: int = INDEX_BYTES
    jpeg_index: object = None
    decode: Decode = "auto"
    deferred: bool = True
    device_cache_bytes: DeviceCacheBytes = 0
    on_error: OnError = "raise"
    max_errors: float = ERRORS_MAX

    def __post_init__(self) -> None:
        check_device(self.device)
        check_memory_format(self.memory_format)
        check_dtype(self.dtype)
        check_device_prefetch(self.device_prefetch, "device_prefetch", minimum=0)
        if self.engine not in ("auto", "torch", "native"):
            raise ValueError(f"engine must be 'auto', 'torch' or 'native', got {self.engine!r}")
        if self.randomness not in ("worker", "sample"):
            raise ValueError(f"randomness must be 'worker' or 'sample', got {self.randomness!r}")
        if self.decode not in ("auto", "cpu", "gpu"):
            raise ValueError(f"decode must be 'auto', 'cpu' or 'gpu', got {self.decode!r}")
        if self.on_error not in ("raise", "skip", "replace"):
            raise ValueError(f"on_error must be 'raise', 'skip' or 'replace', got {self.on_error!r}")
        check_max_errors(self.max_errors)
        for name in ("exact", "deferred"):
            if not isinstance(value := getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, got {value!r}")
        index = self.max_index_bytes
        if isinstance(index, bool) or not isinstance(index, int):
            raise TypeError(f"max_index_bytes must be an int, got {type(index).__name__}")
        if index < 0:
            raise ValueError(f"max_index_bytes must be >= 0 (0 turns the index off), got {index}")
        cache = self.device_cache_bytes
        if isinstance(cache, bool) or not (isinstance(cache, int) or cache == "auto"):
            raise TypeError(f"device_cache_bytes must be an int or 'auto', got {cache!r}")
        if cache != "auto" and cache < 0:
            raise ValueError(f"device_cache_bytes must be >= 0 (0 keeps no files on the device), got {cache}")
        limit = self.max_pinned_bytes
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
            raise TypeError(f"max_pinned_bytes must be an int or None, got {type(limit).__name__}")
        if limit is not None and limit < 0:
            raise ValueError(f"max_pinned_bytes must be >= 0 (0 turns pinned memory off), got {limit}")


class OwnArguments(TypedDict, total=False):
    """The keyword arguments of ``FastLoader.wrap``: those of :class:`Options`."""

    device: Device
    memory_format: torch.memory_format | None
    dtype: torch.dtype | None
    device_prefetch: int
    engine: Engine
    max_pinned_bytes: int | None
    randomness: Randomness
    exact: bool
    max_index_bytes: int
    jpeg_index: object
    decode: Decode
    deferred: bool
    device_cache_bytes: DeviceCacheBytes
    on_error: OnError
    max_errors: float


class LoaderConfig(DataLoader[T_co]):
    """A DataLoader with FastLoader's own arguments: the type that engines and plan use.

    The class attributes serve subclasses whose ``__init__`` does not call FastLoader's, such as torchdata's
    StatefulDataLoader under ``fastload run``.
    """

    device: Device = Options.device
    memory_format: torch.memory_format | None = Options.memory_format
    dtype: torch.dtype | None = Options.dtype
    device_prefetch: int = Options.device_prefetch
    engine: Engine = Options.engine
    max_pinned_bytes: int | None = Options.max_pinned_bytes
    randomness: Randomness = Options.randomness
    exact: bool = Options.exact
    max_index_bytes: int = Options.max_index_bytes
    jpeg_index: object = Options.jpeg_index
    decode: Decode = Options.decode
    deferred: bool = Options.deferred
    device_cache_bytes: DeviceCacheBytes = Options.device_cache_bytes
    on_error: OnError = Options.on_error
    max_errors: float = Options.max_errors
    copies_own_batches: bool = False  # of a subclass with its own iterators: whether they go to the device

    # Torch's two methods. Subclasses with an `__iter__` of their own call either.
    def __iter__(self) -> Iterator[T_co]:  # type: ignore[override]
        return self._iterate()

    def _get_iterator(self) -> Any:
        return self._new_iterator()

    def _iterate(self) -> Iterator[T_co]:
        raise NotImplementedError

    def _new_iterator(self) -> Any:
        raise NotImplementedError

    def _begin_again(self, iterator: Any, begin: Callable[[], Any]) -> None:
        raise NotImplementedError


def begin_again(loader: LoaderConfig[Any], iterator: Any, begin: Callable[[], Any]) -> None:
    """Begin another epoch, by ``begin()``, of an iterator that a program has kept and resets."""
    loader._begin_again(iterator, begin)


def named_options(own: OwnArguments) -> Options:
    """Make options from the keyword arguments of ``FastLoader.wrap``."""
    names = [field.name for field in fields(Options)]
    if unknown := [name for name in own if name not in names]:
        raise TypeError(
            f"FastLoader.wrap() got an unexpected keyword argument {unknown[0]!r}; besides the loader it takes "
            f"{', '.join(names)}"
        )
    return Options(**own)


def check_device(device: Device) -> None:
    """Raise torch's error for an invalid device, and ``RuntimeError`` for an unavailable one."""
    if not isinstance(device, str | int | torch.device) or isinstance(device, bool):
        raise TypeError(f"device must be 'auto', a torch.device, a string or an index, got {type(device).__name__}")
    if device != "auto":  # "auto" must not query the driver before iteration, which can break a later fork
        resolve_device(device)


def check_memory_format(memory_format: torch.memory_format | None) -> None:
    """Raise unless ``memory_format`` is valid for 4-D tensors, or ``None``."""
    if memory_format is None:
        return
    if not isinstance(memory_format, torch.memory_format):
        raise TypeError(f"memory_format must be a torch.memory_format or None, got {type(memory_format).__name__}")
    if memory_format == torch.channels_last_3d:
        raise ValueError(
            "memory_format applies to 4-D images: use torch.channels_last, torch.contiguous_format, "
            "torch.preserve_format or None, got torch.channels_last_3d"
        )


def check_dtype(dtype: torch.dtype | None) -> None:
    """Raise unless ``dtype`` is a floating-point type or ``None``."""
    if dtype is None:
        return
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype must be a torch.dtype or None, got {type(dtype).__name__}")
    if not dtype.is_floating_point:
        raise ValueError(f"dtype must be a floating-point type (it is applied to floating-point tensors), got {dtype}")


def check_device_prefetch(value: int, name: str, *, minimum: int) -> None:
    """Raise unless ``value`` is an int of at least ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if value < minimum:
        raise ValueError(f"{name} must be >= {minimum}, got {value}")


def check_max_errors(value: float) -> None:
    """Raise unless ``value`` is a count, or a share from 0.0 to 1.0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"max_errors must be a count (int) or a share (float), got {type(value).__name__}")
    if isinstance(value, float) and not 0.0 <= value <= 1.0:
        raise ValueError(f"max_errors must be a share from 0.0 to 1.0, or a count as an int, got {value!r}")
    if value < 0:
        raise ValueError(f"max_errors must be >= 0, got {value!r}")


def check_on_error(loader: DataLoader[Any], on_error: OnError) -> None:
    """Raise ``ValueError`` if a loader cannot leave out or replace samples.

    It needs torch's own iterators, and another index to replace a sample.
    """
    if on_error == "raise":
        return
    if has_own_iterator(loader):
        raise ValueError(
            f"on_error={on_error!r} needs torch's iterators, but {type(loader).__name__} has a _get_iterator"
        )
    if on_error == "skip":
        return
    if isinstance(loader.dataset, IterableDataset):
        raise ValueError(
            f"on_error='replace' needs a dataset with indices, got the iterable {type(loader.dataset).__name__}; "
            "use on_error='skip'"
        )
    if not loader._auto_collation:
        raise ValueError("on_error='replace' needs batches, got batch_size=None; use on_error='skip'")


def resolve_device(device: str | int | torch.device) -> torch.device:
    """Resolve the device that batches go to, and fill in its index.

    ``"auto"`` is the current accelerator, or the CPU if there is none. It is also the CPU in processes that must leave
    the accelerator to their parent: a loader's worker (a dataset may contain a loader), and a child forked after the
    driver was started, which cannot use it.

    Raises:
        RuntimeError: The device is not available, or ``device`` does not name one.
    """
    if isinstance(device, str) and device == "auto":
        if not torch.accelerator.is_available():
            return torch.device("cpu")
        current = torch.accelerator.current_accelerator()
        if current is None or current.type == "mps":  # MPS gains nothing from pinned memory or side streams
            return torch.device("cpu")
        if get_worker_info() is not None or _is_in_bad_fork(current):
            return torch.device("cpu")
        return torch.device(current.type, torch.accelerator.current_device_index())
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        here = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        remedy = f"{here.type!r} or 'cpu'" if here is not None else "'cpu' (there is no accelerator here)"
        raise RuntimeError(f"device must be 'auto' or name a device of torch, got {device!r}; use {remedy}") from error
    if resolved.type in ("cpu", "meta"):
        return resolved
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None or accelerator.type != resolved.type:
        found = "no accelerator" if accelerator is None else f"only {accelerator.type}"
        raise RuntimeError(
            f"device={str(device)!r} needs a working {resolved.type.upper()} device, but torch finds {found} here; use "
            "device='auto' (the accelerator if there is one, else the CPU), or check the driver and the torch build"
        )
    count = torch.accelerator.device_count()
    if resolved.index is not None and resolved.index >= count:
        raise RuntimeError(f"device={str(device)!r} is out of range: torch sees {count} {resolved.type} device(s)")
    return (
        resolved
        if resolved.index is not None
        else torch.device(resolved.type, torch.accelerator.current_device_index())
    )


def _is_in_bad_fork(accelerator: torch.device) -> bool:
    ask = getattr(torch.get_device_module(accelerator), "_is_in_bad_fork", None)
    return ask is not None and bool(ask())


def has_streams(device: torch.device) -> bool:
    """Whether ``device`` has useful side streams and pinned memory."""
    return device.type not in ("cpu", "mps", "meta")


def can_pin() -> bool:
    """Whether torch pins memory on request: with an accelerator other than MPS."""
    current = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return current is not None and current.type != "mps"


def has_state(source: Any) -> bool:
    """Whether a sampler, dataset or iterator can save and restore its own state."""
    # Accelerate's unpickled loaders first have a class for a dataset.
    return not isinstance(source, type) and hasattr(source, "state_dict") and hasattr(source, "load_state_dict")


def has_own_iterator(loader: DataLoader[Any]) -> bool:
    """Whether a loader makes its own iterators, as torch_geometric's do to change batches."""
    own = getattr(loader._get_iterator, "__func__", None)  # an attribute of the loader itself has none
    return own not in (DataLoader._get_iterator, LoaderConfig._get_iterator)


def has_own_iter(loader: DataLoader[Any]) -> bool:
    """Whether a subclass has an ``__iter__`` of its own.

    It may ask FastLoader for iterators or make them itself.
    """
    return type(loader).__iter__ not in (DataLoader.__iter__, LoaderConfig.__iter__)


def makes_itself(loader: DataLoader[Any]) -> str:
    """Say by which method a loader may make its iterators itself."""
    method = "a _get_iterator" if has_own_iterator(loader) else "an __iter__"
    return f"{type(loader).__name__} has {method} of its own"


def name_of_dataset(dataset: Any) -> str:
    """Name a dataset's class and say how many samples it has, if it says."""
    name = type(dataset).__name__
    if isinstance(dataset, IterableDataset):
        return name
    with contextlib.suppress(Exception):  # whatever the user's __len__ raises
        name += f" of {len(dataset):,} samples"
    return name


def length_of(loader: Any) -> int | None:
    """Number of batches of a loop over ``loader``, if known."""
    if isinstance(getattr(loader, "dataset", None), IterableDataset):
        return None  # calling len() makes torch warn if the loader then yields more
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None
