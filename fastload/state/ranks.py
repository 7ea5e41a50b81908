"""Deal the rest of an epoch to another number of processes, each sample once.

``DistributedSampler`` deals an order of the dataset in turn: rank ``r`` of ``n`` gets positions ``r``, ``r + n``, and
so on. What a rank has handed over is therefore known from its count of batches. The positions that no rank has handed
over are dealt in the same way to the new ranks. A second restart deals what the first one left, so a state lists the
stages of its epoch: how it was dealt, and how many batches each rank had when it stopped.
"""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.distributed as dist
from torch.utils.data import BatchSampler, DistributedSampler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_STAGE = {"replicas": int, "batch_size": int, "drop_last": bool, "yielded": list}
_PROCESS = {"rank": int, "replicas": int, "drop_last": bool, "shuffle": bool, "seed": int}
_ALIKE = ("fastload", "samples", "files", "randomness", "batch_size", "epoch", "dealt")


def process_of(loader: Any) -> dict[str, Any] | None:
    """Return how a loader's ``DistributedSampler`` deals; ``None`` if it has another sampler."""
    sampler = loader.sampler
    if not isinstance(sampler, DistributedSampler) or type(sampler).__iter__ is not DistributedSampler.__iter__:
        return None
    return {
        "rank": int(sampler.rank),
        "replicas": int(sampler.num_replicas),
        "drop_last": bool(sampler.drop_last),
        "shuffle": bool(sampler.shuffle),
        "seed": int(sampler.seed),
    }


def ranks_of(loader: Any) -> int:
    """How many processes share a dataset, by the loader's sampler or torch's process group."""
    replicas = getattr(loader.sampler, "num_replicas", 1)
    group = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    return max(group, replicas if isinstance(replicas, int) else 1)


def check_form(data: dict[str, Any]) -> None:
    """Check the types of what a state says about processes.

    Raises:
        TypeError, KeyError: One is wrong or missing.
    """
    process, dealt = data["process"], data["dealt"]
    for entry, kinds in [*((stage, _STAGE) for stage in dealt), *([] if process is None else [(process, _PROCESS)])]:
        if entry.keys() != kinds.keys() or any(type(entry[name]) is not kind for name, kind in kinds.items()):
            raise TypeError("a process must be described by its rank, number of replicas and sampler")
        if entry["replicas"] < 1:
            raise TypeError("the number of replicas must be positive")
    if process is None and dealt:
        raise TypeError("only a DistributedSampler deals the rest of an epoch")
    if process is not None and not 0 <= process["rank"] < process["replicas"]:
        raise TypeError("a rank must be below the number of replicas")
    for stage in dealt:
        counts = stage["yielded"]
        if len(counts) != stage["replicas"] or not all(type(count) is int and count >= 0 for count in counts):
            raise TypeError("each rank must have a number of batches")
        if stage["batch_size"] < 1:
            raise TypeError("the batch size must be positive")


def check_process(loader: Any, data: dict[str, Any]) -> None:
    """Check that a state from within an epoch is of the loader's rank.

    Between epochs any rank's state will do.

    Raises:
        ValueError: It is of another.
    """
    was, now = data["process"], process_of(loader)
    if not goes_on(data) or was == now:
        return
    if was is None or now is None:
        has = "no torch DistributedSampler" if now is None else "one"
        had = "none" if was is None else "one"
        raise ValueError(f"the sampler must be as when the state was saved, which had {had}, but this loader has {has}")
    if (was["rank"], was["replicas"]) != (now["rank"], now["replicas"]):
        raise ValueError(
            f"the state is of rank {was['rank']} of {was['replicas']}, but this loader's sampler is of rank "
            f"{now['rank']} of {now['replicas']}; give load_state_dict a list of the states of all ranks"
        )
    raise ValueError(_other_sampler(was, now))


def _other_sampler(was: dict[str, Any], now: dict[str, Any]) -> str:
    name = next(name for name in ("shuffle", "seed", "drop_last") if was[name] != now[name])
    return f"the DistributedSampler's {name} must be {was[name]}, as when the state was saved, got {now[name]}"


def goes_on(data: dict[str, Any]) -> bool:
    """Whether a state is from within an epoch."""
    return bool(data["started"] and not data["_iterator_finished"])


def own_state(loader: Any, states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the state that a loader goes on from, given those of all ranks.

    They are checked, and in any order.

    With as many ranks and the same batch size as then, it is the rank's own. Otherwise what no rank has handed over is
    dealt anew.

    Raises:
        ValueError: A rank is missing or twice, the states are not of the same step of one run, or the rest of the epoch
            cannot be dealt anew.
    """
    now = process_of(loader)
    if now is None:
        raise ValueError(
            "a list of states needs a loader whose sampler is torch's DistributedSampler, got "
            f"{type(loader.sampler).__name__}; with one process use DistributedSampler(dataset, 1, 0)"
        )
    states = _by_rank(states)
    was = states[0]["process"]
    nearest: dict[str, Any] = states[now["rank"] % len(states)]
    if len(states) == now["replicas"] and nearest["batch_size"] == loader.batch_size:
        return nearest
    for reason in (_not_of_one_step(states), _not_dealt_anew(loader, nearest)):
        if reason is not None:
            raise ValueError(reason)
    for name in ("shuffle", "seed"):
        if was[name] != now[name]:
            raise ValueError(_other_sampler(was, now))
    state = {**copy.deepcopy(nearest), "process": now, "batch_size": loader.batch_size, "workers": None}
    if any(map(goes_on, states)):
        stage = {"replicas": len(states), "batch_size": nearest["batch_size"], "drop_last": was["drop_last"]}
        stage["yielded"] = [data["_num_yielded"] if data["started"] else 0 for data in states]
        state |= {"started": True, "_iterator_finished": False, "_num_yielded": 0, "drawn": 0, "indices": 0}
        state["dealt"] = [*nearest["dealt"], stage]
    return state


def _by_rank(states: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    processes = [data["process"] for data in states]
    if not processes or None in processes:
        raise ValueError("each state of a list must be of a loader whose sampler is torch's DistributedSampler")
    ranks = sorted(process["rank"] for process in processes)
    replicas = processes[0]["replicas"]
    if ranks != list(range(replicas)):
        raise ValueError(f"a list must have the states of all {replicas} ranks, each once, got those of ranks {ranks}")
    return sorted(states, key=lambda data: int(data["process"]["rank"]))


def _not_of_one_step(states: list[dict[str, Any]]) -> str | None:
    """What differs between ranks' states of one step; ``None`` if nothing."""
    first = states[0]
    for data in states[1:]:
        pairs = [(name, first[name], data[name]) for name in _ALIKE]
        pairs += [(name, first["process"][name], data["process"][name]) for name in _PROCESS if name != "rank"]
        pairs += [("epoch of a sampler", first["start"]["epochs"], data["start"]["epochs"])]
        for name, one, other in pairs:
            if one != other:
                return (
                    "the states of all ranks must be of the same step of one run, but "
                    f"{name} is {one} on rank 0 and {other} on rank {data['process']['rank']}"
                )
    seeds = {data["seed"] for data in states}
    if len(seeds) > 1:
        return (
            "the rest of an epoch can be dealt to other ranks only if all ranks draw with the same seed, but they have "
            f"{len(seeds)}; give each rank's loader generator=torch.Generator().manual_seed(seed) with the same seed"
        )
    return None


def _not_dealt_anew(loader: Any, data: dict[str, Any]) -> str | None:
    if data["randomness"] != "sample" or loader.randomness != "sample":
        return (
            f"the rest of an epoch of {data['process']['replicas']} ranks with batch_size {data['batch_size']} can be "
            "dealt anew only with randomness='sample' from the start, because each worker has random numbers of its own"
        )
    if data["workers"] is not None:
        return "the rest of an epoch cannot be dealt anew if the dataset has a state of its own in each worker process"
    if type(loader.batch_sampler) is not BatchSampler or not data["batch_size"]:
        return "the rest of an epoch can be dealt anew only to a loader with a batch_size, and without a batch_sampler"
    return None


def batches_left(loader: Any, dealt: list[dict[str, Any]]) -> BatchSampler:
    """Return a rank's batches of the indices that all stages before left.

    Args:
        loader: Its ``DistributedSampler`` has the epoch's number.
        dealt: The stages.
    """
    now = process_of(loader)
    assert now is not None  # noqa: S101 - check_process() has seen it
    order = _order_of(loader.sampler)
    left = order
    for stage in dealt:
        left = _left_by(left, stage)
    mine = _share(left, order, now["rank"], now["replicas"], drop_last=now["drop_last"])
    return BatchSampler(mine.tolist(), loader.batch_size, loader.drop_last)


def _order_of(sampler: DistributedSampler[Any]) -> NDArray[np.int64]:
    """The epoch's order of the whole dataset."""
    alone = copy.copy(sampler)
    alone.rank, alone.num_replicas, alone.drop_last = 0, 1, False
    alone.num_samples = alone.total_size = len(alone.dataset)  # type: ignore[arg-type]
    return np.array(list(alone), np.int64)


def _share(
    left: NDArray[np.int64], order: NDArray[np.int64], rank: int, replicas: int, *, drop_last: bool
) -> NDArray[np.int64]:
    """What ``DistributedSampler`` deals to a rank, after cutting or padding."""
    count = _count(len(left), replicas, drop_last=drop_last)
    padding = max(0, count * replicas - len(left))
    return np.concatenate([left[: count * replicas], np.resize(order, padding)])[rank::replicas]


def _count(samples: int, replicas: int, *, drop_last: bool) -> int:
    return samples // replicas if drop_last else math.ceil(samples / replicas)


def _left_by(left: NDArray[np.int64], stage: dict[str, Any]) -> NDArray[np.int64]:
    """What no rank had handed over when a stage stopped, without padding."""
    replicas = stage["replicas"]
    count = _count(len(left), replicas, drop_last=stage["drop_last"])
    kept = np.ones(len(left), bool)
    for rank, batches in enumerate(stage["yielded"]):
        kept[rank : replicas * min(count, batches * stage["batch_size"]) : replicas] = False
    return left[kept]
