"""Second loaders of the same data, for measuring and comparing."""

from __future__ import annotations

import copy
import threading
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import numpy as np
import torch

from fastload.torch_workers.view import without_del

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.utils.data import DataLoader

AnyLoader = TypeVar("AnyLoader", bound="DataLoader[Any]")

DATA_BYTES: Final = 1 << 30
"""Tensors and arrays of more bytes together are not copied: they are the data, and copies might not fit."""

_CHANGED: Final = ("dataset", "sampler", "batch_sampler", "generator", "collate_fn")  # by an epoch
_SHARED: Final = (ModuleType, type(threading.Lock()), type(threading.RLock()))
_PLAIN: Final = frozenset({int, float, bool, str, bytes, type(None), FunctionType, BuiltinFunctionType})


def twin_of(loader: AnyLoader, **changes: Any) -> AnyLoader:
    """Copy ``loader`` with ``changes``: the same dataset and sampler, but separate workers, statistics and place."""
    twin: AnyLoader = object.__new__(without_del(cast("Any", type(loader))))
    vars(twin).update(vars(loader))
    vars(twin).pop("_state", None)  # of a FastLoader
    vars(twin).update(changes, _iterator=None)
    return twin


def independent_twin(loader: AnyLoader, **changes: Any) -> AnyLoader:
    """Copy ``loader`` with ``changes``; an epoch of the twin changes nothing of it.

    Samplers and generators are copied, and so are the dataset and the collate function if they run in this process.

    Raises:
        TypeError: One of them cannot be copied.
    """
    memo = {id(one): one for one in (loader.multiprocessing_context, loader.worker_init_fn)}
    if loader.num_workers:
        memo |= {id(one): one for one in (loader.dataset, loader.collate_fn)}  # workers have copies
    memo |= {id(one): one for one in _not_copied([getattr(loader, name) for name in _CHANGED], frozenset(memo))}
    own: dict[str, Any] = {}
    for name in (*_CHANGED, *(name for name in vars(loader) if name not in (*_CHANGED, "_state", "_iterator"))):
        value = vars(loader).get(name)
        try:
            own[name] = copy.deepcopy(value, memo)
        except Exception as error:
            if name in _CHANGED:
                kind = type(value).__name__
                raise TypeError(f"its {name}, a {kind}, cannot be copied ({type(error).__name__}: {error})") from error
            own[name] = value  # a subclass's own
    return twin_of(loader, **{**own, **changes})


def _not_copied(roots: list[Any], known: frozenset[int]) -> list[Any]:
    """What copies share: modules, locks, and tensors and arrays if they are large together."""
    found = [one for one in _reached_from(roots, known) if isinstance(one, (*_SHARED, torch.Tensor, np.ndarray))]
    sizes = dict(_memory_of(one) for one in found if not isinstance(one, _SHARED))
    return found if sum(sizes.values()) > DATA_BYTES else [one for one in found if isinstance(one, _SHARED)]


def _memory_of(data: Any) -> tuple[int, int]:
    """Return an id of the memory that a copy takes, and its bytes."""
    if isinstance(data, np.ndarray):
        return id(data), data.nbytes
    if data.layout != torch.strided or data.device.type == "meta":
        return id(data), data.element_size() * data.numel()
    storage = data.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _reached_from(roots: list[Any], known: frozenset[int]) -> Iterator[Any]:
    """Each object that attributes and containers lead to."""
    seen, left = set(known), list(roots)
    while left:
        one = left.pop()
        kind = type(one)
        if kind in _PLAIN or isinstance(one, type) or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, dict):
            left.extend(one.values())
        elif isinstance(one, list | tuple | set | frozenset):
            left.extend(one)
        elif kind is MethodType:
            left.append(one.__self__)
        if not isinstance(one, (*_SHARED, torch.Tensor, np.ndarray)):
            left.append(getattr(one, "__dict__", None))
