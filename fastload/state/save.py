"""Save a loader's place in its epoch, and go on from there in another process.

A state holds the generators of the main process at the epoch's start and now, the number of batches handed over, and
each worker's generators after the last of these that it made. Batches made in advance are made again.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import warnings
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

from fastload.autoscale.policy import AutoWorkers
from fastload.options import has_own_iterator
from fastload.randomness.packed import pack
from fastload.state.in_worker import KEPT_NOTE, NO_STATE, DatasetState, ReadAgain, WorkerState
from fastload.state.place import ConsumerPlace, LoaderPlace, Position, UnknownStateError, count_epochs, host_of
from fastload.state.sources import Sources, epochs_of_samplers
from fastload.torch_workers.processes import end_former

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.options import LoaderConfig


def begin(loader: LoaderConfig[Any], place: LoaderPlace, make: Callable[[], Any]) -> Any:
    """Return ``make()``, a new iterator, which goes on from the loaded state, if any."""
    epochs = place.epochs_of(loader)
    make = make if epochs is None else functools.partial(epochs.begin, make)
    if has_own_iterator(loader):
        return make()
    if place.loaded is None and place.position is not None and place.position.failed:
        place.loaded = _after_failure(loader, place)
    if (data := place.loaded) is not None:
        dataset = DatasetState.copied(loader.dataset)
        before = Sources.read(loader, samplers=True, dataset=dataset)
        counted = None if epochs is None else (epochs.seed, epochs.epoch)
        place.loaded = None
        try:
            resume = _resume_keeping_generators if place.keeps_generators else _resume
            return resume(loader, place, data, make)
        except BaseException as error:
            place.loaded = data
            error.add_note(KEPT_NOTE)
            with contextlib.suppress(Exception):  # as above, of the user's methods
                before.write(loader)
            with contextlib.suppress(Exception):
                dataset.set(loader.dataset)
            if epochs is not None and counted is not None:
                epochs.seed, epochs.epoch = counted
            raise
        finally:
            place.resumption = None
    persistent = getattr(loader, "_iterator", None)
    start, lost = None, None
    try:
        start = Sources.read(loader, samplers=True, dataset=_before_workers(loader))
    except Exception as error:  # noqa: BLE001 - any error of a sampler's state_dict(); none for those who need no state
        lost = f"reading the generators and samplers raised {type(error).__name__}: {error}"
    iterator = count_epochs(persistent, make)
    again = persistent is not None and iterator is persistent
    place.lost = lost or (place.lost if again else None)
    place.position = None
    if start is not None and place.lost is None:
        place.position = position = Position(start, again=again)
        position.follow(loader, iterator)
    return iterator


def _resume_keeping_generators(
    loader: LoaderConfig[Any], place: LoaderPlace, data: dict[str, Any], make: Callable[[], Any]
) -> Any:
    """Resume with the present global generators; the state's are a step older."""
    from fastload.randomness.generators import set_state, state_now

    kept = state_now(others=True)
    if not data["started"] or data["_iterator_finished"]:
        return _resume(loader, place, {**data, "now": {**data["now"], "main": pack(kept)}}, make)
    iterator = _resume(loader, place, data, make)
    if loader.num_workers:
        set_state(kept)
        return iterator
    host = host_of(iterator)  # its next batch was made, or draws, before the step that the state does not count
    usual, weak = vars(host).get("_next_data"), weakref.ref(host)

    def next_data() -> Any:
        host: Any = weak()
        del host._next_data
        if usual is not None:
            host._next_data = usual
        try:
            return host._next_data()
        finally:
            set_state(kept)

    host._next_data = next_data
    return iterator


def _resume(loader: LoaderConfig[Any], place: LoaderPlace, data: dict[str, Any], make: Callable[[], Any]) -> Any:
    end_former(loader)
    now = Sources.unpacked(loader, data["now"])
    goes_on = data["started"] and not data["_iterator_finished"]
    start = Sources.unpacked(loader, data["start"]) if goes_on else now
    if not goes_on:  # load_state_dict() has set them; the loop may have called set_epoch() since
        start.epochs = epochs_of_samplers(loader)
    epochs = place.epochs_of(loader)
    if epochs is not None:
        epochs.seed, epochs.epoch = data["seed"], data["epoch"] - goes_on
    iterable = isinstance(loader.dataset, IterableDataset)
    skip = data["_num_yielded"] if goes_on else 0
    again = data["again"] if goes_on else data["started"] and data["persistent"]
    workers = None if data["workers"] is None else [one and WorkerState.unpacked(one) for one in data["workers"]]
    place.errors.load(data.get("errors"))  # again: an iterator in use may have noted some
    by_index = loader.randomness == "sample"
    resumption = None
    begins = iterable and loader.num_workers and start.dataset.dataset is not None  # see WorkerProgress
    if goes_on or again or begins:
        from fastload.state.resume import Resumption

        resumption = Resumption(
            loader,
            skip=0 if iterable else skip,
            base_seed=data["base_seed"] if goes_on or again else None,
            workers=workers,
            turn=data["turn"] * goes_on if iterable else skip % max(1, int(loader.num_workers)),
            num_workers=None if by_index and workers is None else data["num_workers"],
            again=start if again else None,
            indices=data["indices"] if goes_on and not iterable else 0,
            now=now if goes_on else None,
            drawn=data["drawn"] * goes_on,
            dealt=data["dealt"] if goes_on else [],
            switched=data.get("errors", {}).get("ahead", False) != (loader.on_error == "replace"),
        )
        if isinstance(loader.num_workers, AutoWorkers):
            loader.num_workers.sizing.processes = data["num_workers"]
    start.begin(loader)
    place.resumption = resumption
    here = goes_on and not loader.num_workers
    if here and iterable:
        now.dataset.set(loader.dataset)
    iterator = make()
    if here and iterable:
        fetcher = host_of(iterator)._dataset_fetcher
        if now.dataset.read_again:
            ReadAgain.of(loader)(fetcher, skip)
        else:
            now.dataset.resume(fetcher)
    place.position = position = Position(start, again=again, first=skip, resumption=resumption)
    position.follow(loader, iterator)
    if here and not iterable:  # not earlier: it may set the generators that the sampler draws from
        now.dataset.set(loader.dataset)
    if goes_on:
        position.dealt = data["dealt"]
        if iterable or not loader.num_workers:  # which have drawn since they entered
            now.write(loader)
    return iterator


def _after_failure(loader: Any, place: LoaderPlace) -> dict[str, Any]:
    """The state to go on from after one that a worker could not begin with."""
    data = state_dict(loader, place)
    if "unsupported" in data:
        raise RuntimeError(
            f"a loaded state is needed, as the last one failed in a worker, but {data['unsupported']}; "
            "call load_state_dict() again"
        )
    return data


def _before_workers(loader: Any) -> DatasetState:
    """Return what worker processes begin with: the state of this process's dataset, if any."""
    found = DatasetState.copied(loader.dataset) if loader.num_workers else NO_STATE
    return NO_STATE if found.error else found


def state_dict(loader: LoaderConfig[Any], place: LoaderPlace) -> dict[str, Any]:
    """Return where the consumer of a loader's newest iteration is; see ``FastLoader.state_dict``."""
    from fastload.state.checks import VERSION

    if place.loaded is not None:
        return copy.deepcopy(place.loaded)
    position = place.position
    reason = _unsupported(loader) or place.lost
    if reason is None:
        from fastload.state.frameworks import lightning_ends_epoch

        try:
            if position is None:
                return _read(loader, place, None)
            position.leave(lightning_ends_epoch(), loader)
            return position.between_batches(functools.partial(_read, loader, place, position))
        except UnknownStateError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - any error of the user's objects
            reason = f"reading the generators and samplers raised {type(error).__name__}: {error}"
    if not place.warned:
        place.warned = True
        warnings.warn(f"this FastLoader's state_dict() cannot be loaded: {reason}", stacklevel=3)
    return {"fastload": VERSION, "unsupported": reason}


def _read(loader: LoaderConfig[Any], place: LoaderPlace, position: Position | None) -> dict[str, Any]:
    from fastload.state.checks import VERSION, checksum_of, fingerprint
    from fastload.state.ranks import process_of

    if position is not None:
        consumer = position.read(loader.dataset)
        if consumer.ended and loader.num_workers:
            consumer = replace(consumer, dataset=_before_workers(loader))
    else:
        dataset = _before_workers(loader) if loader.num_workers else DatasetState.of(loader.dataset)
        if dataset.error and not hasattr(loader.dataset, "__next__"):  # that may have a state only once it iterates
            raise UnknownStateError(dataset.error)
        consumer = ConsumerPlace(0, False, 0, 0, 0, None, dataset)
    now = Sources.read(loader, samplers=position is None or consumer.ended, dataset=consumer.dataset)
    start = now if position is None else position.start
    epochs = place.epochs_of(loader)
    samples, files = fingerprint(loader.dataset, place.names)
    workers = consumer.workers
    if loader.randomness == "sample" and not any(one and one.data.dataset is not None for one in workers or ()):
        workers = None  # of any number
    texts = place.texts
    data = {
        "fastload": VERSION,
        "_num_yielded": consumer.handed_over,
        "_iterator_finished": consumer.ended,
        "started": position is not None,
        "again": position is not None and position.again,
        "num_workers": int(loader.num_workers) if position is None else position.num_workers,
        "drawn": consumer.drawn,
        "persistent": bool(loader.persistent_workers and loader.num_workers),
        "randomness": loader.randomness,
        "batch_size": loader.batch_size or 0,
        "samples": samples,
        "files": files,
        "indices": consumer.digest,
        "base_seed": 0 if position is None else position.base_seed,
        "seed": None if epochs is None else epochs.seed,
        "epoch": -1 if epochs is None else epochs.epoch,
        "turn": consumer.turn,
        "workers": None if workers is None else [one and one.packed(texts, i) for i, one in enumerate(workers)],
        "process": process_of(loader),
        "dealt": [] if position is None else copy.deepcopy(position.dealt),
        "start": start.packed(texts, "start"),
        "now": now.packed(texts, "now"),
    }
    if loader.on_error != "raise" or place.errors.tried:
        data["errors"] = {**place.errors.packed(), "ahead": loader.on_error == "replace"}
    return {**data, "checksum": checksum_of(data)}


def load_state_dict(loader: LoaderConfig[Any], place: LoaderPlace, data: Any) -> None:
    """Make the loader's next iteration go on from a state; see ``FastLoader.load_state_dict``."""
    from fastload.state.checks import check, check_form, check_sum, checksum_of
    from fastload.state.ranks import own_state

    if has_own_iterator(loader):
        raise TypeError(f"load_state_dict needs torch's iterators, but {type(loader).__name__} has a _get_iterator")
    if isinstance(data, list | tuple):
        for one in data:
            check_form(loader, one)
        own = own_state(loader, data)
        for one in data:
            check_sum(one)
        data = {**own, "checksum": checksum_of(own)}
    check(loader, data)
    loaded = copy.deepcopy(data)
    if not data["started"] or data["_iterator_finished"]:
        before = Sources.unpacked(loader, data["now"])
        before.epochs = epochs_of_samplers(loader)
        try:
            Sources.unpacked(loader, data["now"]).write_epochs(loader)
        except BaseException:
            with contextlib.suppress(Exception):  # of one that cannot be set
                before.write_epochs(loader)
            raise
    from fastload.state.frameworks import accelerate_sets_generators

    place.loaded, place.keeps_generators = loaded, accelerate_sets_generators()
    place.errors.load(loaded.get("errors"))


def _unsupported(loader: LoaderConfig[Any]) -> str | None:
    """Why a loader has no state; ``None`` if it has one."""
    if has_own_iterator(loader):
        return f"{type(loader).__name__} makes its own iterators"
    if not loader.num_workers:
        return None
    if not loader.in_order:
        return "in_order=False hands batches over in an order that cannot be repeated; use in_order=True"
    return None
