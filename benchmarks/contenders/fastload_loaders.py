"""FastLoader, with either engine. Without a GPU the workers engine is torch's DataLoader itself."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.contenders._job import Feed, Job
from fastload import FastLoader
from fastload.bench._rungs import in_workers


def open_feed(job: Job, variant: str) -> Feed:
    """Begin to load.

    Raises:
        RuntimeError: The loader's plan names another engine than the one that is to be measured.
    """
    torch.manual_seed(job.seed)
    dataset = job.dataset()
    own: dict[str, Any] = {}
    if variant == "workers":
        dataset = in_workers(dataset)
    else:
        how = variant.partition("-")[2]
        own = {"engine": "native", "decode": how if how in ("cpu", "gpu") else "auto"}
        if how == "new":
            own["max_index_bytes"] = 0  # so that each visit of a file is a first one
        if how == "kept":
            own["device_cache_bytes"] = "auto"
    loader = FastLoader(dataset, **job.options(dataset), device=job.device, **own)
    wanted = "native" if own else "workers" if job.on_gpu else "torch"
    if (engine := loader.plan.engine) != wanted:
        raise RuntimeError(f"the {wanted} engine is to be measured, but the plan says {engine}:\n{loader.plan}")
    has_slots = variant == "workers" and job.on_gpu
    return Feed(
        iter(loader),
        loader.close,
        arena_bytes=lambda: loader.stats().pinned_bytes,
        is_settled=lambda: not has_slots or loader.stats().slots > 0,
    )
