"""Whether a state is whole, and of the same loader and dataset."""

from __future__ import annotations

import binascii
import json
import operator
import os
import zlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch.utils.data import IterableDataset, Subset

from fastload.autoscale.policy import AutoWorkers
from fastload.bad_samples import unpacked
from fastload.options import has_state
from fastload.state import ranks
from fastload.state.in_worker import WorkerState
from fastload.state.resume import other_workers
from fastload.state.sources import Sources

if TYPE_CHECKING:
    from fastload.options import LoaderConfig

VERSION: Final = 5
_TYPES: Final[dict[str, type | tuple[type, ...]]] = {
    **{
        "_num_yielded": int,
        "_iterator_finished": bool,
        "started": bool,
        "again": bool,
        "num_workers": int,
        "drawn": int,
        "persistent": bool,
    },
    **{
        "randomness": str,
        "batch_size": int,
        "samples": int,
        "files": int,
        "indices": int,
        "base_seed": int,
        "turn": int,
    },
    **{"seed": (int, type(None)), "epoch": int, "start": dict, "now": dict, "workers": (list, type(None))},
    **{"process": (dict, type(None)), "dealt": list, "checksum": int},
}
_NUMBERS: Final = ("_num_yielded", "drawn", "num_workers", "turn", "base_seed", "epoch")
_NAMES: Final = 64  # file names of a dataset that are compared
_FIRST: Final = operator.itemgetter(0)
_NUMERIC: Final = frozenset({int, float, bool, type(None)})
_SHORT: Final = 256  # characters of a string that is cheaper to write out than to make a checksum of


def check(loader: LoaderConfig[Any], data: Any) -> None:
    """Raise a ValueError unless a loader can go on from ``data``. Changes nothing."""
    workers = check_form(loader, data)
    _check_same(loader, data)
    if any(worker.data.dataset is not None for worker in workers):
        if not has_state(loader.dataset):
            raise ValueError(
                f"the state has one of a {type(loader.dataset).__name__}, which has no load_state_dict here"
            )
        if loader.num_workers != data["num_workers"]:
            raise ValueError(
                f"num_workers must be {data['num_workers']}, as when the state was saved, got {loader.num_workers}: "
                "each worker's dataset has a state of its own"
            )
    check_sum(data)


def check_sum(data: dict[str, Any]) -> None:
    """Raise a ValueError if a state is another than when it was saved."""
    if checksum_of(data) != data["checksum"]:
        raise ValueError("the state is damaged: its checksum differs; use an earlier one")


def checksum_of(data: dict[str, Any]) -> int:
    """Return a checksum of all that a state holds, besides its checksum.

    It is the same for what JSON makes of a state, and for tensors on another device.
    """
    held = {name: value for name, value in data.items() if name != "checksum"}
    return zlib.crc32(ascii(_content(held)).encode())


def _content(value: Any, within: frozenset[int] = frozenset()) -> Any:
    """Return plain data whose ``ascii()`` tells a value from any other.

    It is the same in every process.

    Args:
        value: Any object.
        within: Ids of the objects that it is in.
    """
    kind = type(value)
    if kind in _NUMERIC:
        return value
    if isinstance(value, str):
        return value if len(value) < _SHORT else ("str", *_bytes(value.encode("utf-8", "surrogatepass")))
    if id(value) in within:
        return "within", len(within)
    within |= {id(value)}
    if isinstance(value, dict):
        keys = [key if type(key) is str else _key(key, within) for key in value]
        values = [entry if type(entry) in _NUMERIC else _content(entry, within) for entry in value.values()]
        return "dict", sorted(zip(keys, values, strict=True), key=_FIRST)
    if isinstance(value, list | tuple):
        return list(value) if set(map(type, value)) <= _NUMERIC else [_content(entry, within) for entry in value]
    if isinstance(value, bytes | bytearray):
        return "bytes", *_bytes(value)
    if isinstance(value, set | frozenset):
        return "set", sorted(ascii(_content(entry, within)) for entry in value)
    try:
        return _content_of_object(value, within)
    except Exception:  # noqa: BLE001 - any error of the user's type, or of torch; a function or a class
        return "type", getattr(value, "__qualname__", kind.__qualname__)


def _content_of_object(value: Any, within: frozenset[int]) -> Any:
    if isinstance(value, torch.Tensor):
        of_bytes = value.detach().cpu().contiguous().view(-1).view(torch.uint8)
        return "tensor", str(value.dtype), list(value.shape), *_bytes(of_bytes.numpy())
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.hasobject:
            return "array", str(value.dtype), _content(value.tolist(), within)
        return "array", value.dtype.str, list(value.shape), *_bytes(value.tobytes())
    if isinstance(value, int):  # of a subclass, as an enumeration
        return int(value)
    if isinstance(value, float):
        return float(value)
    reduced = value.__reduce_ex__(4)
    if isinstance(reduced, str):
        return "global", reduced
    function, arguments, *more = reduced
    state, *items = more or [None]
    parts = [arguments, state, *(None if one is None else list(one) for one in items)]
    return "object", function.__qualname__, [_content(part, within) for part in parts]


def _key(key: Any, within: frozenset[int]) -> str:
    """Return a dict's key as JSON writes it."""
    if isinstance(key, str):
        return str(key)
    return json.dumps(key) if type(key) in _NUMERIC else ascii(_content(key, within))


def _bytes(content: Any) -> tuple[int, int]:
    return len(content), zlib.crc32(content)


def check_form(loader: LoaderConfig[Any], data: Any) -> list[WorkerState]:
    """Return the workers of any rank's state, or raise a ValueError."""
    if not isinstance(data, dict) or "fastload" not in data:
        raise ValueError(
            f"load_state_dict needs what FastLoader.state_dict() returned, got {_shown(data)}; a state "
            "of another loader must be loaded by that loader"
        )
    if type(data["fastload"]) is not int or data["fastload"] != VERSION:
        raise ValueError(f"this fastload reads states of version {VERSION}, got {data['fastload']!r}; save it again")
    if "unsupported" in data:
        raise ValueError(f"load_state_dict needs a loader that has a state, but {data['unsupported']}")
    wrong = [name for name, kind in _TYPES.items() if name not in data or not isinstance(data[name], kind)]
    if wrong:
        raise ValueError(f"the state is damaged: {', '.join(wrong)} is missing or of another type; use an earlier one")
    try:
        for sources in (data["start"], data["now"]):
            Sources.unpacked(loader, sources)
        if data["workers"] is not None and len(data["workers"]) != data["num_workers"]:
            raise TypeError("it must have a state for each worker")
        if min(data["_num_yielded"], data["drawn"], data["num_workers"], data["turn"]) < 0 or any(
            abs(data[name]) >= 2**63 for name in _NUMBERS
        ):
            raise TypeError("a number is out of range")
        workers = [WorkerState.unpacked(packed) for packed in data["workers"] or () if packed is not None]
        ranks.check_form(data)
        if "errors" in data:  # not in states of before
            unpacked(data["errors"])
    except (KeyError, TypeError, AttributeError, RuntimeError, binascii.Error) as error:
        raise ValueError(f"the state is damaged ({type(error).__name__}: {error}); use an earlier one") from error
    return workers


def _check_same(loader: LoaderConfig[Any], data: dict[str, Any]) -> None:
    samples, files = fingerprint(loader.dataset)
    if samples != data["samples"]:
        raise ValueError(
            f"the dataset must be as long as when the state was saved, {data['samples']}, got {samples}; "
            "use that dataset, or begin a new epoch without the state"
        )
    if files != data["files"]:
        raise ValueError(
            "the dataset must have the same files in the same order as when the state was saved, but their names "
            "differ; use that dataset, or begin a new epoch without the state"
        )
    if (batch_size := loader.batch_size or 0) != data["batch_size"]:
        raise ValueError(f"batch_size must be {data['batch_size']}, as when the state was saved, got {batch_size}")
    if loader.randomness != data["randomness"]:
        raise ValueError(f"randomness must be {data['randomness']!r}, as when the state was saved")
    ranks.check_process(loader, data)
    if loader.randomness == "sample" or isinstance(loader.num_workers, AutoWorkers):
        return
    if loader.num_workers != data["num_workers"]:
        raise ValueError(other_workers(data["num_workers"], loader.num_workers))
    if bool(loader.persistent_workers and loader.num_workers) != data["persistent"]:
        raise ValueError(f"persistent_workers must be {data['persistent']}, as when the state was saved")


def _shown(data: Any) -> str:
    if not isinstance(data, dict):
        return type(data).__name__
    return f"a dict with {', '.join(map(repr, list(data)[:5]))}" if data else "an empty dict"


def fingerprint(dataset: Any, known: dict[str, Any] | None = None) -> tuple[int, int]:
    """Return a dataset's length (-1: unknown), and a checksum of some of its files' names.

    Args:
        dataset: The loader's.
        known: What the last call has found; changed.
    """
    try:
        samples = -1 if isinstance(dataset, IterableDataset) else len(dataset)
    except (TypeError, NotImplementedError):
        samples = -1
    checksum = 0
    while type(dataset) is Subset:
        checksum = zlib.crc32(repr(_some(dataset.indices)).encode(), checksum)
        dataset = dataset.dataset
    lists = [_list_of(dataset, name) for name in ("samples", "imgs", "images", "files")]
    files = next(filter(None, lists), [])
    paths = [path for path in map(_first, _some(files)) if _is_path(path)]
    known = {} if known is None else known
    if known.get("before") != checksum or known.get("paths") != paths:
        names = [os.path.basename(os.fsdecode(path)) for path in paths]
        known |= {"before": checksum, "paths": paths, "files": zlib.crc32(repr(names).encode(), checksum)}
    return samples, known["files"]


def _list_of(dataset: Any, name: str) -> list[Any]:
    found = getattr(dataset, "__dict__", {}).get(name)
    return found if isinstance(found, list) else []


def _some(entries: Any) -> list[Any]:
    count = len(entries)
    return [entries[i * (count - 1) // (_NAMES - 1)] for i in range(_NAMES)] if count > _NAMES else list(entries)


def _first(entry: Any) -> Any:
    return entry[0] if isinstance(entry, tuple | list) and entry else entry


def _is_path(entry: Any) -> bool:
    return isinstance(entry, str | bytes | os.PathLike)
