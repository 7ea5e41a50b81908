"""Read a dataset and its torchvision transforms into a recipe for the native core.

The recipe gives the same bits. Anything that is not exactly supported is refused, with the reason and what to change.
"""

from __future__ import annotations

import copy
import io
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch.utils.data import Subset, default_collate

from fastload.pipeline.calibration import calibrate
from fastload.pipeline.datasets import PIL_LOADER, copied, leaves_of, locate
from fastload.pipeline.errors import Refused, name_of
from fastload.pipeline.library_settings import check_collating
from fastload.pipeline.random_stream import calibrate_stream
from fastload.pipeline.step_calibration import differing_step, leaves
from fastload.pipeline.tensor_resize import TENSOR_FILTERS, tensor_filters
from fastload.pipeline.transforms import read_transform

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from fastload import _core
    from fastload.pipeline.transforms import Pipeline


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a pipeline cannot run natively.

    Attributes:
        reasons: Sentences that say what to change.
    """

    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to make the samples of a dataset natively.

    Attributes:
        dataset: The user's dataset, including any ``Subset`` around it.
        pipeline: Its transform, in parts.
        plan: The core's draws for one sample.
        options: Arguments for ``_core.Pool.submit``.
    """

    dataset: Any
    pipeline: Pipeline
    plan: _core.DrawPlan
    options: dict[str, Any]

    def snapshot(self) -> Recipe:
        """Copy the recipe, so that later changes to samples, indices or transforms don't affect it.

        torch's workers have such copies too. A dataset with ``encoded()`` is not copied.
        """
        return replace(self, dataset=copied(self.dataset), pipeline=copy.deepcopy(self.pipeline))

    def locate(self, index: Any) -> tuple[Any, Any]:
        """Get a sample's encoded image (bytes or path) and target. Raises what the dataset would."""
        return self.locate_resolved(self.resolve([index])[0])

    def resolve(self, indices: list[Any]) -> list[Any]:
        """Map a batch's indices through all subsets but the innermost, as torch does.

        Raises what the subsets would.
        """
        dataset = self.dataset
        while type(dataset) is Subset and type(dataset.dataset) is Subset:
            indices = [dataset.indices[index] for index in indices]
            dataset = dataset.dataset
        return indices

    def locate_resolved(self, index: Any) -> tuple[Any, Any]:
        """Same as :meth:`locate`, for an index from :meth:`resolve`."""
        dataset = self.dataset
        while type(dataset) is Subset and type(dataset.dataset) is Subset:
            dataset = dataset.dataset
        return locate(dataset, index)

    def pixels(self, source: Any, view: int = 0) -> NDArray[np.uint8]:
        """Compute a view's pixels with the user's transforms. Draws from torch's default generator."""
        image: Any
        if isinstance(source, str | os.PathLike):
            image = PIL_LOADER(os.fspath(source))
        else:
            with Image.open(io.BytesIO(source)) as opened:
                image = opened.convert("RGB")
        return self.pipeline.pixels(image, view)


def read_recipe(
    dataset: Any,
    collate_fn: Callable[[Any], Any] | None = None,
    worker_init_fn: Callable[[int], None] | None = None,
    *,
    exact: bool = True,
) -> Recipe | Refusal:
    """Read what a loader's workers would do.

    A custom dataset needs a method ``encoded(index)`` that returns the encoded image (bytes, or a path) and the target,
    and an attribute ``transform``. Its ``__getitem__`` must return ``(transform(image), target)``, where ``image`` is
    the encoded image opened by Pillow and converted to RGB. ``encoded`` is called in the main process.

    Args:
        dataset: The loader's.
        collate_fn: The loader's; only ``default_collate`` is supported natively.
        worker_init_fn: The loader's; with one, nothing runs natively.
        exact: Whether all of it must give the same bits.
    """
    reasons = []
    if collate_fn is not None and collate_fn is not default_collate:
        reasons.append(f"collate_fn is {name_of(collate_fn)}; only default_collate is supported natively: leave it out")
    if worker_init_fn is not None:
        reasons.append("worker_init_fn may change anything in the workers; leave it out")
    try:
        first, *others = leaves_of(dataset)
        pipeline = read_transform(first.transform, exact=exact)
        for other in others:
            if other.transform is first.transform:
                continue
            if _made(read_transform(other.transform, exact=exact)) != _made(pipeline):
                raise Refused("parts of the ConcatDataset have different transforms; give all the same transform")
        check_collating(pipeline.image)
        plan = _plan(pipeline)
        options = _options(pipeline)
    except Refused as refused:
        return Refusal((*reasons, str(refused)))
    return Refusal(tuple(reasons)) if reasons else Recipe(dataset, pipeline, plan, options)


def _made(pipeline: Pipeline) -> Any:
    """A key that is equal for pipelines that make equal samples."""
    table = pipeline.table
    values = None if table is None else (table.dtype, table.contiguous().view(torch.uint8).numpy().tobytes())
    return repr(pipeline.nodes), pipeline.image, values, pipeline.erasing and id(pipeline.erasing)


def _plan(pipeline: Pipeline) -> _core.DrawPlan:
    from fastload import _core

    plan = _core.DrawPlan()
    for kind, fields in pipeline.nodes:
        if kind == "view":
            plan.begin_view()
            continue
        try:
            plan.add(kind, **fields)
        except (TypeError, ValueError, OverflowError) as error:
            raise Refused(f"the transforms have arguments that are not supported natively: {error}") from error
    if pipeline.draws:
        stream = calibrate_stream()
        if stream is None:
            raise Refused(f"torch {torch.__version__} draws random numbers otherwise than the native core")
        plan.set_uniform_rule(stream.fused, stream.excludes_upper)
    return plan


def _options(pipeline: Pipeline) -> dict[str, Any]:
    calibration = calibrate()
    filters = {fields["filter"] for _, fields in leaves(pipeline.nodes) if "filter" in fields}
    filters |= {name for _, fields in leaves(pipeline.nodes) for name in fields.get("filters", ())}
    if not calibration.subsamplings:
        raise Refused(f"Pillow {calibration.pillow} decodes JPEG otherwise than libjpeg {calibration.libjpeg}")
    for name in filters:
        if name in TENSOR_FILTERS.values():
            if name not in tensor_filters():
                how = name.removeprefix("torch_")
                raise Refused(
                    f"torch {torch.__version__} resizes uint8 tensors ({how}) otherwise here than the native core; "
                    "put the resize before the image becomes a tensor"
                )
        elif calibration.pass_rule is None or name not in calibration.filters:
            raise Refused(f"Pillow {calibration.pillow} resizes ({name}) otherwise than the native core")
    if (step := differing_step(pipeline.nodes)) is not None:
        raise Refused(f"Pillow {calibration.pillow} or torchvision computes {step} otherwise than the native core")
    return {
        "pass_rule": calibration.pass_rule or "horizontal_first",
        "max_pixels": pixel_limit(Image.MAX_IMAGE_PIXELS),  # for larger images Pillow warns or raises: let it
    }


def pixel_limit(limit: Any) -> int:
    """Convert ``PIL.Image.MAX_IMAGE_PIXELS``, which may be any number, for the core; 0 is no limit.

    A limit below one pixel becomes 1, which leaves all but the smallest image to Pillow, and Pillow rejects them.
    """
    if limit is None or limit > _LARGEST:
        return 0
    return max(1, int(limit)) if limit >= 1 else 1  # also for NaN


_LARGEST = 2**62
