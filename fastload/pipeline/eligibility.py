"""Decide whether a loader can run natively."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, default_collate, default_convert

from fastload.options import has_state

if TYPE_CHECKING:
    from fastload.options import LoaderConfig
    from fastload.pipeline.reader import Recipe
    from fastload.pipeline.tail import Tail


def read_loader(loader: LoaderConfig[Any], device: torch.device) -> Recipe | tuple[str, ...]:
    """Read a loader's recipe, or the reasons why it has none and what to change."""
    if loader.engine == "torch":
        return ("engine='torch'",)
    reasons = []
    if not loader.num_workers and loader.batch_size == 1:  # looking for patches takes longer than the image
        reasons.append("num_workers=0 and batch_size=1: threads share no batch; larger ones can run natively")
    if not loader._auto_collation:
        reasons.append("batch_size=None: only batches are made natively")
    if not loader.in_order and loader.num_workers:
        reasons.append("in_order=False: only batches in order are made natively")
    if device.type not in ("cpu", "cuda"):
        reasons.append(f"batches go to {device.type}; natively they go to cuda and cpu")
    if getattr(type(loader), "_get_iterator", None) is not DataLoader._get_iterator:
        reasons.append(f"{type(loader).__name__} has a _get_iterator of its own; leave torch's")
    if has_state(loader.dataset):
        reasons.append(f"dataset {type(loader.dataset).__name__} has a state_dict(), which its samples may change")
    if "torchvision" not in sys.modules:  # then the loader uses none of its datasets or transforms
        return (
            *reasons,
            f"dataset {type(loader.dataset).__name__} has no torchvision transforms; only those are supported natively",
        )
    if importlib.util.find_spec("fastload._core") is None:
        return (*reasons, "fastload._core is not built; reinstall fastload with a C++ compiler")
    from fastload.pipeline.reader import Refusal, read_recipe

    first_call = loader.worker_init_fn if loader.num_workers else None
    recipe = read_recipe(loader.dataset, loader.collate_fn, first_call, exact=loader.exact)
    if isinstance(recipe, Refusal):
        return (*reasons, *recipe.reasons)
    if recipe.pipeline.has_tensor_contrast:  # torch's bits depend on its number of threads
        if not loader.num_workers and torch.get_num_threads() > 1:
            reasons.append("num_workers=0: torch's threads round a tensor's contrast otherwise; use workers")
        if recipe.in_python or recipe.first_call is not None:
            code = recipe.in_python[0] if recipe.in_python else "worker_init_fn"
            reasons.append(f"{code} may set torch's threads, which round a tensor's contrast otherwise")
    if recipe.pipeline.views > 1 and loader.randomness == "sample":
        reasons.append("randomness='sample': only one view of an image is made natively; use randomness='worker'")
    if recipe.in_python and loader.randomness == "sample":
        reasons.append(f"randomness='sample' draws before each sample, and {recipe.in_python[0]} may draw too")
    return tuple(reasons) or recipe


def read_tail(loader: LoaderConfig[Any], device: torch.device) -> Tail | None:
    """Read the transforms that the device can run instead of workers."""
    if loader.engine == "torch" or device.type != "cuda" or loader.randomness != "worker" or not loader.num_workers:
        return None
    if loader.worker_init_fn is not None:
        return None
    if not loader._auto_collation and loader.collate_fn is default_convert and "webdataset.pipeline" in sys.modules:
        from fastload.pipeline.webdataset_tail import pipeline_tail

        return pipeline_tail(loader.dataset)
    if not loader._auto_collation or loader.collate_fn is not default_collate:
        return None
    recipe = read_loader(loader, device)
    if "torchvision.datasets" not in sys.modules or (not isinstance(recipe, tuple) and recipe.in_python):
        return None
    from fastload.pipeline.tail import without_tail

    return without_tail(loader.dataset)
