"""Replace ``torch.utils.data.DataLoader`` by FastLoader in this process."""

from __future__ import annotations

import functools
import inspect
import json
import sys
from abc import ABCMeta
from collections.abc import Generator
from dataclasses import fields
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from fastload.commands.run.stateful import OwnDeviceIterator, device_of, keeps_own_state
from fastload.iterators import Reset
from fastload.loader import FastLoader, listen
from fastload.loader_state import state_of
from fastload.nvtx.patching import holders
from fastload.options import LoaderConfig, Options, has_own_iterator
from fastload.profiling.recording.capture import capture_from_environment
from fastload.stats.explain import LoaderLog
from fastload.stats.meter import Meter, NextData, counters_for, measure
from fastload.workers.start import route_of
from fastload.workers.worker import setup_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    _Iterate = Callable[..., Any]

TorchDataLoader: Final[type[Any]] = LoaderConfig.__bases__[0]

_MEMORY_FORMATS: Final = {
    "channels_last": torch.channels_last,
    "contiguous": torch.contiguous_format,
    "preserve": torch.preserve_format,
}

_AS_TORCH: Final = {"engine": "torch", "device": "cpu"}

_stand_in: type[FastLoader[Any]] | None = None
_listeners: list[Callable[[_Iterate], _Iterate]] = []  # wrappers of what begins the loaders' iterations


def install(
    defaults: Mapping[str, Any] | None = None, *, explain: bool = False, as_is: bool = False
) -> type[FastLoader[Any]]:
    """Make every lookup of ``DataLoader`` in this process return FastLoader from now on.

    Modules that already hold torch's class under any name get the stand-in as well, except fastload's own. Idempotent.

    Args:
        defaults: New defaults of FastLoader's own arguments, by name.
        as_is: The stand-in's loaders are torch's and leave batches where torch does; they are only measured. The
            program's own FastLoaders are as they are.
        explain: Write to stderr at exit which modules use the stand-in and the plan of every loader that was iterated.

    Returns:
        The stand-in: a subclass of FastLoader that also counts every other DataLoader as its instance.

    Raises:
        TypeError: ``defaults`` has a name that is not one of FastLoader's own arguments.
    """
    global _stand_in
    if _stand_in is None:
        _set_defaults(dict(defaults or {}))
        _stand_in = _make_stand_in()
        if as_is:
            _keep_torchs(_stand_in)
        if (window := capture_from_environment()) is not None:
            _listeners.append(window.listening)
        if explain:
            log = LoaderLog(users_of=functools.partial(_modules_with, _stand_in))
            FastLoader.__new__ = _noting(log)  # type: ignore[method-assign]
            _listeners.append(log.listening)
        listen(_with_listeners)
        for module, name in holders(TorchDataLoader, besides="fastload"):
            setattr(module, name, _stand_in)
    return _stand_in


def install_from_settings(text: str) -> None:
    """Install with the settings that ``fastload run`` wrote into the environment."""
    options = json.loads(text)
    install(decode_defaults(options["defaults"]), explain=options["explain"], as_is=options.get("as_is", False))


def decode_defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert FastLoader's own arguments from their spelling on the command line."""
    decoded = dict(options)
    if "memory_format" in decoded:
        decoded["memory_format"] = _MEMORY_FORMATS[decoded["memory_format"]]
    if "dtype" in decoded:
        decoded["dtype"] = getattr(torch, decoded["dtype"])
    return decoded


def _set_defaults(defaults: dict[str, Any]) -> None:
    own = [field.name for field in fields(Options)]
    if unknown := set(defaults) - set(own):
        raise TypeError(f"FastLoader has no argument of its own named {', '.join(sorted(unknown))}")
    for name, value in defaults.items():
        setattr(FastLoader, name, value)
    init: Any = FastLoader.__init__
    init.__kwdefaults__ = {**init.__kwdefaults__, **defaults}
    check: Any = Options.__init__  # FastLoader.wrap uses its defaults
    check.__defaults__ = tuple(init.__kwdefaults__[name] for name in own)


def _keep_torchs(stand_in: Any) -> None:
    """Make a stand-in's loaders run as torch's do; they are only measured."""
    for name, value in _AS_TORCH.items():
        stand_in.__init__.__kwdefaults__[name] = value  # of the copy, not of FastLoader's
        setattr(stand_in, name, value)  # for subclasses that do not call it


def _make_stand_in() -> type[FastLoader[Any]]:
    """Build the class that replaces ``torch.utils.data.DataLoader``.

    FastLoader itself will not do: ``isinstance(x, DataLoader)`` must hold for any DataLoader, which takes a metaclass,
    and that is ABCMeta, or else ``class MyLoader(DataLoader, ABC)`` would be a metaclass conflict. It overrides nothing
    and has torch's name, so that error texts and pickles are torch's: a pickled loader becomes a plain DataLoader in a
    process without us. Subclasses with an ``__iter__`` of their own are measured too (:func:`_followed`).
    """

    class DataLoader(FastLoader[FastLoader.__parameters__], metaclass=ABCMeta):  # type: ignore[name-defined]
        __doc__ = FastLoader.__doc__

        # Lightning records how a loader is constructed through the `__init__` in the class's own namespace.
        __init__ = _copy_of(FastLoader.__init__)

        def __init_subclass__(cls, **more: Any) -> None:
            super().__init_subclass__(**more)
            if "__iter__" in vars(cls):
                generates = inspect.isgeneratorfunction(cls.__iter__)
                cls.__iter__ = (_noted if generates else _followed)(cls.__iter__)  # type: ignore[method-assign]
                if not generates and keeps_own_state(cls):
                    cls.copies_own_batches = True

        @classmethod
        def __subclasshook__(cls, other: type, /) -> Any:
            return True if cls is DataLoader and issubclass(other, TorchDataLoader) else NotImplemented

    stand_in: type[FastLoader[Any]] = DataLoader
    stand_in.__module__ = TorchDataLoader.__module__
    stand_in.__qualname__ = TorchDataLoader.__qualname__
    return stand_in


def _with_listeners(iterate: _Iterate) -> _Iterate:
    """Wrap what begins iterations with all listeners."""
    return functools.reduce(lambda wrapped, listening: listening(wrapped), _listeners, iterate)


def _noting(log: LoaderLog) -> Callable[..., Any]:
    """Return a ``__new__`` of FastLoader that records where each loader is made."""

    def new(cls: type[Any], *given: Any, **named: Any) -> Any:
        make: Any = super(FastLoader, cls).__new__
        made = make(cls) if make is object.__new__ else make(cls, *given, **named)
        log.note_made(made, sys._getframe(1))
        return made

    return new


def _followed(own: _Iterate) -> _Iterate:
    """Wrap a subclass's own ``__iter__`` that makes torch iterators without calling ours.

    An example is torchdata's StatefulDataLoader. Its iterators are measured, passed to the listeners, and closed with
    the loader. If it keeps its own state, its batches are copied to the device (:mod:`fastload.commands.run.stateful`).
    """

    @functools.wraps(own)
    def iterate(loader: Any) -> Any:
        state, given = state_of(loader), loader.worker_init_fn
        state.check_open()
        begun = state.begun
        counters = counters_for(loader, state.totals) if has_own_iterator(loader) else None
        if counters is not None and loader.num_workers:
            loader.worker_init_fn = setup_of(loader, route_of(loader), counters)
        first_call = loader.worker_init_fn
        state.is_followed = True
        try:
            iterator = own(loader)
        finally:
            state.is_followed = False
            loader.worker_init_fn = given
        is_torchs = isinstance(iterator, _BaseDataLoaderIter) and not isinstance(vars(iterator).get("_reset"), Reset)
        if state.begun != begun or not is_torchs:
            return iterator
        state.is_passed_by = not has_own_iterator(loader)
        first_called = not loader.num_workers or vars(iterator).get("_worker_init_fn") is first_call
        state.live.add(iterator)
        if (device := device_of(loader)) is not None:
            on_device = OwnDeviceIterator(loader, iterator, device, counters if first_called else None)
            return _with_listeners(lambda _: on_device)(loader)
        if isinstance(next_data := vars(iterator).get("_next_data"), NextData):  # its workers persist
            next_data.meter.begin_epoch()
        else:
            shared = counters if first_called else None
            state.measure(iterator, measure(iterator, Meter(shared, loader.batch_size)))
        return _with_listeners(lambda _: iterator)(loader)

    return iterate


def _noted(own: _Iterate) -> _Iterate:
    """Wrap a subclass's own ``__iter__`` that is a generator."""

    @functools.wraps(own)
    def iterate(loader: Any) -> Generator[Any, Any, Any]:
        return (yield from _Noted(loader, own(loader)))

    return iterate


class _Noted(Generator[Any, Any, Any]):
    """Batches of a subclass's own generator.

    If it has not asked for an iterator by its first batch, it is passed to the listeners.
    """

    def __init__(self, loader: Any, batches: Generator[Any, Any, Any]) -> None:
        self._loader = loader
        self._batches = batches
        self._rest: Iterator[Any] | None = None  # from the second batch on

    def send(self, value: Any) -> Any:
        if self._rest is not None and value is None:
            return next(self._rest)
        batch = self._batches.send(value)
        if self._rest is None:
            self._rest = self._batches
            loader, state = self._loader, state_of(self._loader)
            if has_own_iterator(loader) or not state.begun:
                state.is_passed_by = not has_own_iterator(loader)
                self._rest = _with_listeners(lambda _: self._batches)(loader)
        return batch

    def throw(self, *error: Any) -> Any:
        return self._batches.throw(*error)

    def close(self) -> None:
        self._batches.close()


def _copy_of(function: Any) -> Any:
    copied = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copied.__kwdefaults__ = dict(function.__kwdefaults__)
    for name in functools.WRAPPER_ASSIGNMENTS:
        setattr(copied, name, getattr(function, name))
    return copied


def _modules_with(value: object) -> list[str]:
    return sorted({module.__name__ for module, _ in holders(value, besides="fastload")})
