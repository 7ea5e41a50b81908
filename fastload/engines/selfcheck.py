"""Compares a recipe with the real thing on a few samples of the user's own data, before the first native epoch."""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Subset, default_collate

from fastload import _core
from fastload.engines.by_index import random_states_kept

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.vision.recipe import Recipe

SAMPLES = 8
MISSES_MAX = 1
"""More of the samples than this that the core does not take, and torch's workers are the faster engine: what it does
not take is made by one thread."""


def check_recipe(
    recipe: Recipe, images_of: Callable[[torch.Tensor, torch.Tensor], Any], *, any_share: bool
) -> str | None:
    """Make a few samples both ways. Leaves the global random states as they were.

    The samples are those of a shallow copy of the dataset. A file that it opens when it is first read stays with the
    copy: forked workers that inherited it would share its offset.

    Args:
        recipe: To check.
        images_of: Makes images of pixels and of boxes to erase, on the CPU, as the native engine will.
        any_share: Whether to accept a dataset of which the core takes little.

    Returns:
        What differs, or why the workers are better; ``None`` when all is well.
    """
    try:
        recipe = replace(recipe, dataset=_copied(recipe.dataset))
    except Exception as error:  # noqa: BLE001 - the user's own __getstate__ or __copy__
        return f"the dataset cannot be checked: copy.copy() of it raises {type(error).__name__}: {error}"
    try:
        count = len(recipe.dataset)
    except Exception as error:  # noqa: BLE001 - none (torch needs none with a sampler), or the user's own
        return f"the dataset cannot be checked: len() of it raises {type(error).__name__}: {error}; give it a __len__"
    indices = sorted({round(i * (count - 1) / (SAMPLES - 1)) for i in range(SAMPLES)}) if count else []
    missed = 0
    pool = _core.Pool(1)
    try:
        for index in indices:
            taken, difference = _compare(recipe, images_of, pool, index)
            if difference is not None:
                return difference
            missed += not taken
    finally:
        pool.close()
    if missed > MISSES_MAX and not any_share:
        return (
            f"{missed} of the {len(indices)} samples looked at are no JPEG images that the native core takes; convert "
            "them to JPEG, or ask for it with accelerate='require'"
        )
    return None


def _copied(dataset: Any) -> Any:
    copied = copy.copy(dataset)
    if type(dataset) is Subset:
        copied.dataset = _copied(dataset.dataset)
    return copied


def _compare(
    recipe: Recipe, images_of: Callable[[torch.Tensor, torch.Tensor], Any], pool: _core.Pool, index: int
) -> tuple[bool, str | None]:
    state = _core.Generator(index + 1).get_state()
    expected, after = _real(recipe, index, state)
    try:
        source, target = recipe.locate(index)
        source = source if isinstance(source, str | os.PathLike) else memoryview(source)
    except Exception as error:  # noqa: BLE001 - if the dataset raises too, that is its business
        return False, None if expected is None else f"sample {index} raises {type(error).__name__} in encoded()"
    pixels = torch.empty((2, *recipe.pipeline.size, 3), dtype=torch.uint8)
    # Twice, so that the state between the two can be seen.
    stream = _core.RandomStream(state)
    try:
        job = pool.submit([source, source], pixels, plan=recipe.plan, stream=stream, **recipe.options)
    except (
        TypeError,
        ValueError,
        OSError,
        BufferError,
    ):  # a path with a NUL, say; the sample's batch says so in its turn
        return False, None
    try:
        while job.wait() == "requested":
            kind, sample, value = job.request()
            if kind == "sample" and sample == 0:
                return False, None
            if kind == "sample":
                break
            job.provide_exp(value, torch.exp(torch.tensor([value])).item())
        drawn = job.generator_before(1)
    finally:
        job.cancel()
    status = job.outcome(0)[0]
    if status == "cancelled":
        return True, None  # only the second crop did not fit; the first was not waited for
    if status != "ok":
        return False, None
    if expected is None:
        return True, f"sample {index} raises in Python and not natively"
    boxes = torch.frombuffer(bytearray(job.erased()), dtype=torch.int32).view(2, 4)
    native = [images_of(pixels[:1].contiguous(), boxes[:1]), default_collate([target])]
    if drawn != after:
        return True, f"sample {index} draws other random numbers natively"
    if not same(native, expected):
        return True, f"sample {index} is not the same to the bit natively"
    return True, None


def _real(recipe: Recipe, index: int, state: bytes) -> tuple[Any, bytes]:
    with random_states_kept():
        torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
        try:
            batch = default_collate([recipe.dataset[index]])
        except Exception:  # noqa: BLE001 - a sample that raises is met again in its turn
            batch = None
        return batch, torch.get_rng_state().numpy().tobytes()


def same(a: Any, b: Any) -> bool:
    """Whether two batches are equal in type, dtype, layout and every bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        if a.dtype != b.dtype or a.shape != b.shape or _steps(a) != _steps(b):
            return False
        return torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return bool(a == b)


def _steps(tensor: torch.Tensor) -> list[int]:
    """Strides that say something: one of a dimension with a single entry may be anything."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]
