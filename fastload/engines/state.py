"""Save a loader's place in its epoch, and go on from there in another process.

A state holds the generators of the main process at the epoch's start and now, the number of batches handed over, and
each worker's generators after the last of these that it made. Batches made in advance are made again.
"""

from __future__ import annotations

import copy
import functools
import os
import warnings
import zlib
from typing import TYPE_CHECKING, Any, Final

from torch.utils.data import IterableDataset, Subset

from fastload.autoscale.policy import AutoWorkers
from fastload.engines import redistribution
from fastload.engines.loader_state import epochs_of, state_of
from fastload.engines.resumption import (
    Resumption,
    Sources,
    digest_of,
    epochs_of_samplers,
    has_state,
    other_workers,
    pack,
    unpack,
)
from fastload.options import has_own_iterator

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.options import LoaderConfig
    from fastload.stats.meter import Meter

VERSION: Final = 1
_TYPES: Final[dict[str, type | tuple[type, ...]]] = {
    **{
        "_num_yielded": int,
        "_iterator_finished": bool,
        "started": bool,
        "again": bool,
        "num_workers": int,
        "persistent": bool,
    },
    **{"randomness": str, "batch_size": int, "samples": int, "files": int, "indices": int, "base_seed": int},
    **{"seed": (int, type(None)), "epoch": int, "start": dict, "now": dict, "workers": (list, type(None))},
    **{"process": (dict, type(None)), "dealt": list},
}
_NUMBERS: Final = ("_num_yielded", "num_workers", "base_seed", "epoch")
_NAMES: Final = 64  # file names of a dataset that are compared


class UnknownStateError(Exception):
    """A worker's generators are not known."""


class Position:
    """How far the consumer is in one iteration.

    It outlives the iterator, and does not refer to it.

    Args:
        start: What the epoch started from.
        again: Whether its workers had made another epoch before.
        first: Batches handed over by the process that saved the state.
        resumption: How the iterator was resumed, if it was.
    """

    def __init__(self, start: Sources, *, again: bool, first: int = 0, resumption: Resumption | None = None) -> None:
        self.start = start
        self.again = again
        self.base_seed = 0
        self.num_workers = 0
        self._first = first
        self._indices: Any = None  # drawn last, without workers
        self._drawn = 0
        self._digest = 0 if resumption is None else resumption.indices
        self.initial = None if resumption is None else resumption.workers
        self._meter: Meter | None = None
        self._pipeline: Any = None
        self._iterable = False
        self._by_index = False
        self._served: list[int] = []  # batches that each worker has made in former epochs
        self._at_close: Any = None
        self.sent: list[int] = []
        self.dealt: list[dict[str, Any]] = []  # see redistribution

    def follow(self, loader: LoaderConfig[Any], iterator: Any, former: Position | None) -> None:
        """Follow an iterator that was just begun."""
        host = getattr(iterator, "host", iterator)
        meter = self._meter = iterator.meter if host is not iterator else iterator._next_data.meter
        self.base_seed, self.num_workers = int(host._base_seed), int(host._num_workers)
        self._iterable = isinstance(loader.dataset, IterableDataset)
        self._by_index = loader.randomness == "sample"
        pipeline = getattr(host, "decode_pipeline", None)
        if not self.num_workers:
            if not self._iterable:
                host._sampler_iter = map(self._note, host._sampler_iter)
        elif pipeline is not None:
            self._pipeline = pipeline
        else:
            self._served = [0] * self.num_workers
            if former is not None:
                self._served, self.initial = former.sent, former.initial
            meter.before_close = self._keep_states

    def _note(self, indices: Any) -> Any:
        self._drawn += 1
        self._indices = indices
        return indices

    def leave(self, host: Any) -> None:
        """Count what the workers have made, before they begin another epoch."""
        if not self._served or host is None:  # closed: the next epoch has new workers
            return
        self.sent = [past + now for past, now in zip(self._served, self._by_worker(host._send_idx), strict=True)]

    def _by_worker(self, batches: int) -> list[int]:
        workers = self.num_workers
        return [len(range((worker - self._first) % workers, batches, workers)) for worker in range(workers)]

    @property
    def ended(self) -> bool:
        """Whether the epoch is over."""
        return self._meter is not None and self._meter.ended

    @property
    def handed_over(self) -> int:
        """Batches of the epoch that the consumer has."""
        if self._pipeline is not None:
            return int(self._pipeline.handed_over())
        if self._meter is None or self._iterable:
            return self._first + (0 if self._meter is None else self._meter.taken)
        return self._first + (self._meter.received if self.num_workers else self._drawn)

    def states(self) -> tuple[int, list[bytes | None] | None]:
        """Return the digest of the last batch handed over, and the workers' states.

        Raises:
            UnknownStateError: A worker's states are not known.
        """
        if self._at_close is not None:
            if isinstance(self._at_close, UnknownStateError):
                raise self._at_close
            return self._at_close  # type: ignore[no-any-return]
        if self._pipeline is not None:
            digest, states = self._pipeline.states.at(self._pipeline.handed_over())
            return digest or self._digest, states
        if not self.num_workers or self._iterable or self._by_index:
            known = self._digest if self.handed_over == self._first else 0
            return (digest_of(self._indices) if self._drawn else known), None
        return self._workers_states()

    def _workers_states(self) -> tuple[int, list[bytes | None] | None]:
        assert self._meter is not None  # noqa: S101 - follow() sets it
        shared, received = self._meter.shared, self._meter.received
        digest, states = self._digest, list(self.initial or [None] * self.num_workers)
        last = (self._first + received - 1) % self.num_workers
        for worker, made in enumerate(self._by_worker(received)):
            number = self._served[worker] + made
            if number:
                kept = None if shared is None else shared.kept(worker, number)
                if kept is None:
                    raise UnknownStateError(f"the generators of worker {worker} cannot be read")
                states[worker] = kept[1]
                digest = kept[0] if received and worker == last else digest
        return digest, states

    def _keep_states(self) -> None:
        try:
            self._at_close = self.states()
        except UnknownStateError as error:
            self._at_close = error


def begin(loader: LoaderConfig[Any], make: Callable[[], Any]) -> Any:
    """Return ``make()``, a new iterator, which goes on from the loaded state, if any."""
    state = state_of(loader)
    epochs = epochs_of(loader)
    make = make if epochs is None else functools.partial(epochs.begin, make)
    if has_own_iterator(loader):
        return make()
    if (data := state.loaded) is not None:
        before = Sources.read(loader, samplers=True)
        counted = None if epochs is None else (epochs.seed, epochs.epoch)
        state.loaded = None
        try:
            return _resume(loader, data, make)
        except BaseException:
            before.write(loader)
            state.loaded = data
            if epochs is not None and counted is not None:
                epochs.seed, epochs.epoch = counted
            raise
        finally:
            state.resumption = None
    former, persistent = state.position, getattr(loader, "_iterator", None)
    if former is not None and persistent is not None:
        former.leave(getattr(persistent, "host", persistent))
    start, lost = None, None
    try:
        start = Sources.read(loader, samplers=True)
    except Exception as error:  # noqa: BLE001 - any error of a sampler's state_dict(); none for those who need no state
        lost = f"reading the generators and samplers raised {type(error).__name__}: {error}"
    iterator = make()
    again = persistent is not None and iterator is persistent
    state.lost = lost or (state.lost if again else None)
    state.position = None
    if start is not None and state.lost is None:
        state.position = position = Position(start, again=again)
        position.follow(loader, iterator, former if again else None)
    return iterator


def _resume(loader: LoaderConfig[Any], data: dict[str, Any], make: Callable[[], Any]) -> Any:
    state = state_of(loader)
    state.drop_former(loader)
    now = Sources.unpacked(loader, data["now"])
    goes_on = data["started"] and not data["_iterator_finished"]
    start = Sources.unpacked(loader, data["start"]) if goes_on else now
    if not goes_on:  # load_state_dict() has set them; the loop may have called set_epoch() since
        start.epochs = epochs_of_samplers(loader)
    epochs = epochs_of(loader)
    if epochs is not None:
        epochs.seed, epochs.epoch = data["seed"], data["epoch"] - goes_on
    iterable = isinstance(loader.dataset, IterableDataset)
    skip = data["_num_yielded"] if goes_on else 0
    again = data["again"] if goes_on else data["started"] and data["persistent"]
    workers = None if data["workers"] is None else [None if one is None else unpack(one) for one in data["workers"]]
    by_index = loader.randomness == "sample"
    resumption = None
    if goes_on or again:
        resumption = Resumption(
            loader,
            skip=0 if iterable else skip,
            base_seed=data["base_seed"],
            workers=None if by_index or iterable else workers,
            num_workers=None if by_index else data["num_workers"],
            again=start if again else None,
            indices=data["indices"] if goes_on and not iterable else 0,
            dealt=data["dealt"] if goes_on else [],
        )
        if isinstance(loader.num_workers, AutoWorkers):
            loader.num_workers.sizing.processes = data["num_workers"]
    start.begin(loader)
    state.resumption = resumption
    iterator = make()
    for _ in range(skip if iterable else 0):
        next(iterator)
    first = 0 if iterable else skip
    state.position = position = Position(start, again=again, first=first, resumption=resumption)
    position.follow(loader, iterator, None)
    if goes_on:
        position.dealt = data["dealt"]
        now.write(loader, dataset=not iterable)
    return iterator


def state_dict(loader: LoaderConfig[Any]) -> dict[str, Any]:
    """Return where the consumer of a loader's newest iteration is; see ``FastLoader.state_dict``."""
    state = state_of(loader)
    if state.loaded is not None:
        return copy.deepcopy(state.loaded)
    reason = _unsupported(loader) or state.lost
    position = state.position
    digest, workers = 0, None
    if reason is None and position is not None:
        try:
            digest, workers = position.states()
        except UnknownStateError as error:
            reason = str(error)
    if reason is not None:
        if not state.warned:
            state.warned = True
            warnings.warn(f"this FastLoader's state_dict() cannot be loaded: {reason}", stacklevel=3)
        return {"fastload": VERSION, "unsupported": reason}
    ended = position is None or position.ended
    now = Sources.read(loader, samplers=ended)
    start = now if position is None else position.start
    epochs = epochs_of(loader)
    samples, files = _fingerprint(loader.dataset)
    return {
        "fastload": VERSION,
        "_num_yielded": 0 if position is None else position.handed_over,
        "_iterator_finished": position is not None and position.ended,
        "started": position is not None,
        "again": position is not None and position.again,
        "num_workers": int(loader.num_workers) if position is None else position.num_workers,
        "persistent": bool(loader.persistent_workers and loader.num_workers),
        "randomness": loader.randomness,
        "batch_size": loader.batch_size or 0,
        "samples": samples,
        "files": files,
        "indices": digest,
        "base_seed": 0 if position is None else position.base_seed,
        "seed": None if epochs is None else epochs.seed,
        "epoch": -1 if epochs is None else epochs.epoch,
        "workers": None if workers is None else [None if one is None else pack(one) for one in workers],
        "process": redistribution.process_of(loader),
        "dealt": [] if ended or position is None else copy.deepcopy(position.dealt),
        "start": start.packed(),
        "now": now.packed(),
    }


def load_state_dict(loader: LoaderConfig[Any], data: Any) -> None:
    """Make the loader's next iteration go on from a state; see ``FastLoader.load_state_dict``."""
    if has_own_iterator(loader):
        raise TypeError(f"load_state_dict needs torch's iterators, but {type(loader).__name__} has a _get_iterator")
    if isinstance(data, list | tuple):
        for one in data:
            _check_form(loader, one)
        data = redistribution.own_state(loader, data)
    _check_form(loader, data)
    _check_same(loader, data)
    state_of(loader).loaded = copy.deepcopy(data)
    if not data["started"] or data["_iterator_finished"]:
        Sources.unpacked(loader, data["now"]).write_epochs(loader)


def _unsupported(loader: LoaderConfig[Any]) -> str | None:
    """Why a loader has no state; ``None`` if it has one."""
    if has_own_iterator(loader):
        return f"{type(loader).__name__} makes its own iterators"
    if not loader.num_workers:
        return None
    if not loader.in_order:
        return "in_order=False hands batches over in an order that cannot be repeated; use in_order=True"
    if isinstance(loader.dataset, IterableDataset):
        alike = "an IterableDataset is read again from the epoch's start; use persistent_workers=False"
        return alike if loader.persistent_workers else None
    if has_state(loader.dataset):
        return "its dataset has a state of its own in each worker process; use num_workers=0"
    return None


def _check_form(loader: LoaderConfig[Any], data: Any) -> None:
    if not isinstance(data, dict) or "fastload" not in data:
        raise ValueError(
            f"load_state_dict needs what FastLoader.state_dict() returned, got {_shown(data)}; a state "
            "of another loader must be loaded by that loader"
        )
    if type(data["fastload"]) is not int or data["fastload"] != VERSION:
        raise ValueError(f"this fastload reads states of version {VERSION}, got {data['fastload']!r}; save it again")
    if "unsupported" in data:
        raise ValueError(f"load_state_dict needs a loader that has a state, but {data['unsupported']}")
    wrong = [name for name, kind in _TYPES.items() if not isinstance(data.get(name), kind)]
    if wrong:
        raise ValueError(f"the state is damaged: {', '.join(wrong)} is missing or of another type; use an earlier one")
    try:
        for sources in (data["start"], data["now"]):
            Sources.unpacked(loader, sources)
        if data["workers"] is not None and len(data["workers"]) != data["num_workers"]:
            raise TypeError("it must have a state for each worker")
        if min(data["_num_yielded"], data["num_workers"]) < 0 or any(abs(data[name]) >= 2**63 for name in _NUMBERS):
            raise TypeError("a number is out of range")
        for packed in data["workers"] or ():
            if packed is not None:
                unpack(packed)
        redistribution.check_form(data)
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"the state is damaged ({type(error).__name__}: {error}); use an earlier one") from error


def _check_same(loader: LoaderConfig[Any], data: dict[str, Any]) -> None:
    samples, files = _fingerprint(loader.dataset)
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
    redistribution.check_process(loader, data)
    if loader.randomness == "sample" or isinstance(loader.num_workers, AutoWorkers):
        return
    if loader.num_workers != data["num_workers"]:
        raise ValueError(other_workers(data["num_workers"], loader.num_workers))
    if bool(loader.persistent_workers and loader.num_workers) != data["persistent"]:
        raise ValueError(f"persistent_workers must be {data['persistent']}, as when the state was saved")


def _shown(data: Any) -> str:
    return f"a dict with {', '.join(map(repr, list(data)[:5]))}" if isinstance(data, dict) else type(data).__name__


def _fingerprint(dataset: Any) -> tuple[int, int]:
    """Return a dataset's length (-1: unknown), and a checksum of some of its files' names."""
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
    names = [os.path.basename(os.fsdecode(entry)) for entry in map(_first, _some(files)) if _is_path(entry)]
    return samples, zlib.crc32(repr(names).encode(), checksum)


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
