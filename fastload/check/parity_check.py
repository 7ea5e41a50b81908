"""Before the first native epoch, compare a recipe with the user's transforms on samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

from fastload import _core
from fastload._compare import same, same_layout
from fastload.options import LEVELS_OFF
from fastload.pipeline.datasets.samples import collated, no_pair_because, one_of
from fastload.python_samples.dialogue import TookTooLongError, converse
from fastload.randomness.generators import state_of_seed

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.pipeline.ops.erasing import Patch
    from fastload.pipeline.recipe import Recipe

SAMPLES = 8
MISSES_MAX = 1
"""Unsupported samples allowed. With more, torch's workers are faster, because a single process makes such samples."""


class FewSupported(str):
    """Why torch's workers are faster for these files; nothing differs."""

    __slots__ = ()


class SampleMaker(Protocol):
    """Makes samples with the user's dataset.

    Such as a :class:`~fastload.python_samples.sample_process.SampleProcess`.
    """

    @property
    def max_pixels(self) -> int:
        """Pillow's limit on image size where samples are made, in pixels; 0 is none."""
        ...

    def located(self, index: Any, timeout_s: float | None) -> Any:
        """Return a sample's encoded image and target, or the error raised, in words."""
        ...

    def batch(self, index: Any, state: bytes, timeout_s: float | None) -> tuple[Any, bytes]:
        """Make a batch of one sample from a generator state; return both."""
        ...


def check_recipe(
    recipe: Recipe,
    process: SampleMaker,
    images_of: Callable[[torch.Tensor, list[list[Patch]]], Any],
    *,
    any_share: bool,
    timeout_s: float | None = None,
) -> str | None:
    """Make a few samples both natively and in Python, and compare them. Blocks.

    With workers the user's dataset runs in the sample process, so that this process does not see what it opens or
    draws. Files that the core does not support are not read there: one may be a named pipe, which has no end.

    Args:
        recipe: The recipe to check.
        process: Has the same recipe; started.
        images_of: Makes images from pixels and what erases them, on the CPU, as the native engine will.
        any_share: Whether to accept a dataset with few samples that the core supports.
        timeout_s: Per sample; ``None`` waits indefinitely.

    Returns:
        The difference, or why torch's workers are better; ``None`` if the recipe passes.
    """
    try:
        count = len(recipe.dataset)
    except Exception as error:  # noqa: BLE001 - no __len__ (torch needs none with a sampler), or the user's error
        return f"the dataset cannot be checked: len() of it raises {type(error).__name__}: {error}; give it a __len__"
    indices = sorted({round(i * (count - 1) / (SAMPLES - 1)) for i in range(SAMPLES)}) if count else []
    misses = 0
    pool = _core.Pool(1)
    try:
        for index in indices:
            supported, difference = _compare(recipe, process, images_of, pool, index, timeout_s)
            if difference is not None:
                return difference
            misses += not supported
    except TookTooLongError:
        return f"the dataset cannot be checked: sample {index} took longer than timeout={timeout_s} s"
    except RuntimeError as error:
        return f"the dataset cannot be checked: sample {index}: {error}"
    finally:
        pool.close(5.0 if timeout_s is None else 0.0)
    if misses > MISSES_MAX and not any_share:
        return FewSupported(
            f"{misses} of the {len(indices)} samples looked at are no JPEG, PNG or WebP images that the native core "
            "takes; convert them to JPEG, or ask for it with engine='native'"
        )
    return None


def _compare(
    recipe: Recipe,
    process: SampleMaker,
    images_of: Callable[[torch.Tensor, list[list[Patch]]], Any],
    pool: _core.Pool,
    index: int,
    timeout_s: float | None,
) -> tuple[bool, str | None]:
    """Return whether the core supports a sample, and how the two results differ."""
    state = state_of_seed(index + 1, others=recipe.pipeline.draws_others)
    located = process.located(index, timeout_s)
    if isinstance(located, str):  # no difference if the dataset itself raises too
        expected, _ = process.batch(index, state, timeout_s)
        return False, None if expected is None else f"encoded({index}) raises {located}"
    source, target = located
    views = recipe.pipeline.views
    room = recipe.pipeline.room(2)
    options = {**recipe.options, "max_pixels": process.max_pixels}
    # Submitted twice, to read the generator's state between the two.
    stream = _core.RandomStream(state)
    try:
        inputs = [one_of(source, view) for view in range(views)] * 2
        job = pool.submit(inputs, room, plan=recipe.plan, stream=stream, **options)
    except (TypeError, ValueError, OSError, BufferError):  # such as a path with a NUL; raised in the batch's turn
        return False, None
    asked: list[int] = []
    try:
        if not converse(job, asked.append, timeout_s) and asked[0] < views:
            return False, None
        drawn = job.generator_before(views)
    finally:
        job.cancel(-1.0 if timeout_s is None else 0.0)
    statuses = [job.outcome(view)[0] for view in range(views)]
    if any(status not in ("ok", "cancelled") for status in statuses):
        return False, None
    if "cancelled" in statuses:
        return True, None  # only the second crop did not fit, and the first was cancelled with it
    expected, after = process.batch(index, state, timeout_s)
    if expected is None:
        return True, f"sample {index} raises in Python and not natively"
    patches = recipe.pipeline.patches(job)[:1]
    pixels = recipe.pipeline.room(1)
    for view, both in zip(recipe.pipeline.by_view(pixels), recipe.pipeline.by_view(room), strict=True):
        view.copy_(both[:1])
    native = collated([target]).around(images_of(pixels, patches))
    if (why := no_pair_because(f"sample {index}", expected, target)) is not None:
        return True, why
    if drawn != after:
        return True, f"sample {index} draws other random numbers natively"
    if same(expected, native):
        return True, None
    if recipe.pipeline.approximate is None:
        return True, f"sample {index} is not the same to the bit natively"
    rest = collated([target])
    found = [_at(place, expected) for place in ([(0,)] if rest.places is None else rest.places)]
    at = found[0] if len(found) == 1 else found
    if same(expected, rest.around(at)) and _are_close(pixels, patches, images_of, at, views):
        return True, None
    return True, f"sample {index} is more than {LEVELS_OFF} of 256 levels off natively"


def _at(place: tuple[Any, ...], batch: Any) -> Any:
    for key in place:
        batch = batch[key]
    return batch


def _are_close(
    pixels: torch.Tensor, patches: list[list[Patch]], images_of: Callable[..., Any], wanted: Any, views: int
) -> bool:
    """Whether each value is that of a level at most ``LEVELS_OFF`` away."""
    offsets = range(-LEVELS_OFF, LEVELS_OFF + 1)
    made = [images_of((pixels.to(torch.int16) + off).clamp_(0, 255).to(torch.uint8), patches) for off in offsets]
    if views == 1:
        return _is_close(made, wanted)
    if type(wanted) is not list or len(wanted) != views:
        return False
    return all(_is_close([images[view] for images in made], wanted[view]) for view in range(views))


def _is_close(candidates: list[Any], wanted: Any) -> bool:
    """Whether each value is in one of several batches."""
    close = torch.zeros(wanted.shape, dtype=torch.bool)
    for made in candidates:
        if (type(made), made.dtype, made.shape) != (type(wanted), wanted.dtype, wanted.shape):
            return False
        if not same_layout(made, wanted):
            return False
        bits = (
            image.as_subclass(torch.Tensor).contiguous().unsqueeze(-1).view(torch.uint8) for image in (made, wanted)
        )
        close |= torch.eq(*bits).all(-1)
    return bool(close.all())
