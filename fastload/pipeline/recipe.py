"""Read a dataset and its torchvision transforms into a recipe for the native core.

The recipe gives the same bits. Anything that is not exactly supported is refused, with the reason and what to change.
"""

from __future__ import annotations

import copy
import io
import math
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Subset, default_collate

from fastload.pipeline.code.worker_seeds import only_seeds
from fastload.pipeline.datasets.arrow import ArrowImages, arrow_images, is_arrow
from fastload.pipeline.datasets.encoded import ask, asks_many, images_in, taken
from fastload.pipeline.datasets.folders import (
    PIL_LOADER,
    OddPath,
    copied,
    is_gray,
    is_true,
    leaves_in,
    leaves_of,
    locate,
    looked_up_in,
    paths_of,
    pixels_of,
    sample_name,
    size_of,
    transforms_of,
)
from fastload.pipeline.datasets.samples import KeptFile, one_of
from fastload.pipeline.errors import Refused, name_of
from fastload.pipeline.installed.decodes import calibrate
from fastload.pipeline.installed.resizes import TENSOR_FILTERS, tensor_filters
from fastload.pipeline.installed.settings import check_collating
from fastload.pipeline.installed.steps import differing_step, leaves
from fastload.pipeline.installed.torch_stream import calibrate_stream
from fastload.pipeline.transforms import read_transform, repeated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from fastload import _core
    from fastload.pipeline.datasets.arrays import Pixels
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
        transform: The user's transform of images.
        target_transform: The user's transform of targets, if any.
        first_call: The user's ``worker_init_fn`` if it only seeds generators.
        images: Encoded images of each sample.
        in_python: What else of the user's runs beside the samples, by name. Workers then make the batches, or the main
            process without workers, and samples are natively made one by one.
    """

    dataset: Any
    pipeline: Pipeline
    plan: _core.DrawPlan
    options: dict[str, Any]
    transform: Any = None
    target_transform: Any = None
    first_call: Callable[[int], None] | None = None
    in_python: tuple[str, ...] = ()
    images: int = 1

    @property
    def key(self) -> tuple[Any, ...]:
        """Everything that its images depend on, except the files."""
        layout, options = self.pipeline.layout, sorted(self.options.items())
        return *self.pipeline.key, repr((layout, torch.get_default_dtype(), options))

    @property
    def in_memory(self) -> bool:
        """Whether all samples are pixels in memory."""
        return all(size_of(leaf) is not None for leaf in leaves_of(self.dataset))

    def snapshot(self, spares: list[Any] | None = None) -> Recipe:
        """Copy the recipe, so that later changes to samples, indices or transforms don't affect it.

        torch's workers have such copies too. A dataset with ``encoded()`` is not copied.

        Args:
            spares: Arrays of an earlier snapshot, whose memory is used again if that is gone; then those of this one.
        """
        former = [] if spares is None else spares
        made = replace(self, dataset=copied(self.dataset, former), pipeline=copy.deepcopy(self.pipeline))
        former[:] = [leaf.data for leaf in leaves_of(made.dataset) if size_of(leaf) is not None]
        return made

    def not_copied_because(self) -> str | None:
        """Why decode threads cannot have their own transforms; ``None`` if these can be copied."""
        try:
            copy.deepcopy(self.pipeline)
        except Exception as error:  # noqa: BLE001 - any of the user's objects, such as a lock
            return f"the transforms cannot be copied ({type(error).__name__}: {error}); leave out what cannot"
        return None

    def without_dataset(self) -> Recipe:
        """Return the recipe without its dataset, whose memory is then free."""
        return replace(self, dataset=None)

    @property
    def looks_up(self) -> bool:
        """Whether all samples are looked up in attributes, and none comes from ``encoded()``."""
        return all(looked_up_in(leaf) is not None for leaf in leaves_in(self.dataset))

    @property
    def fetches_batches(self) -> bool:
        """Whether torch's workers fetch a batch at once, and so fail at once."""
        return type(self.dataset) is ArrowImages

    @property
    def asks_many(self) -> bool:
        """Whether the dataset is asked for the samples of a batch at once."""
        return asks_many(self.dataset)

    def ask(self, indices: Sequence[Any]) -> Future[Sequence[Any]]:
        """Ask the dataset for the samples of a batch, which :meth:`taken` yields."""
        return ask(self.dataset, indices)

    def taken(self, answer: Future[Sequence[Any]], count: int) -> Iterator[tuple[Any, Any]]:
        """Yield the samples of an :meth:`ask`. Blocks; raises what the answer says of a sample."""
        return taken(answer, count, self.images)

    def locate(self, index: Any) -> tuple[Any, Any]:
        """Get a sample's encoded image (bytes or path) and target. Raises what the dataset would."""
        return self.locate_resolved(self.resolve([index])[0])

    def pixels_of(self, indices: Sequence[Any]) -> tuple[Pixels, list[Any]] | None:
        """Locate a batch's images and targets in arrays; ``None`` if only one by one."""
        return pixels_of(self.dataset, indices)

    def paths_of(self, indices: Sequence[Any]) -> tuple[list[str], list[Any]] | None:
        """Locate a batch's files and targets at once; ``None`` if only one by one."""
        return paths_of(self.dataset, indices)

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

    def described(self, index: Any, source: Any = None) -> str:
        """Describe a sample in a message: its index, and its file if that is known."""
        is_path = isinstance(source, str | os.PathLike)
        name = os.fsdecode(source) if is_path else sample_name(self.dataset, index)
        return f"sample {index!r}" if name is None else f"sample {index!r} ({name})"

    def pixels(self, source: Any, view: int, images: OpenedImage) -> NDArray[np.uint8]:
        """Compute a view's pixels with the user's transforms. Draws from the default generators."""
        return self.pipeline.pixels(images.opened(source, view), view)

    def image(self, source: Any) -> Any:
        """Make a sample's image with the user's transform. Draws from the default generators."""
        return self.transform(opened(source))


class OpenedImage:
    """The image opened last: a sample's views are of one, about which Pillow warns once."""

    def __init__(self) -> None:
        self._view = 0
        self._source: Any = None
        self._image: Any = None

    def opened(self, source: Any, view: int) -> Any:
        """Open a view's image, unless an earlier view of the sample just did."""
        own = type(source) is tuple or isinstance(source, np.ndarray)  # each view has its own image, or it is at hand
        if own or view <= self._view or source != self._source:
            self._image = opened(one_of(source, view))
        self._view, self._source = view, source
        return self._image


def opened(source: Any) -> Any:
    """Open an encoded image (bytes or path) with Pillow, or take pixels as they are."""
    if isinstance(source, np.ndarray):
        return Image.fromarray(source)
    if isinstance(source, OddPath):
        return source.opened()
    if isinstance(source, KeptFile):
        source = source.read()
    if isinstance(source, str | os.PathLike):
        return PIL_LOADER(os.fspath(source))
    with Image.open(io.BytesIO(source)) as image:
        return image.convert("RGB")


def read_recipe(
    dataset: Any,
    collate_fn: Callable[[Any], Any] | None = None,
    worker_init_fn: Callable[[int], None] | None = None,
    *,
    exact: bool = True,
) -> Recipe | Refusal:
    """Read what a loader's workers would do.

    A custom dataset needs a method ``encoded(index)`` that returns the encoded image (bytes, or a path) or its pixels
    (a uint8 array ``(H, W, 3)``), and the target; and an attribute ``transform``. Its ``__getitem__`` must return
    ``(transform(image), target)``, where ``image`` is the encoded image opened by Pillow and converted to RGB, or
    Pillow's image of the pixels. ``encoded`` is called in the main process. If there is a method
    ``encoded_many(indices)``, it is asked for the samples of a batch at once: for a list with what ``encoded`` returns
    for each, or an exception to raise in the sample's turn; or a ``concurrent.futures.Future`` of it, and then for
    several batches ahead.

    Args:
        dataset: The loader's.
        collate_fn: The loader's. One of the user's own runs on samples.
        worker_init_fn: The loader's. One that does more than seed generators runs in workers.
        exact: Whether all of it must give the same bits.
    """
    try:
        if is_arrow(dataset):
            collates = worker_init_fn is None or only_seeds(worker_init_fn)  # or else the user's function runs
            dataset, is_known = arrow_images(dataset, (collate_fn or default_collate) if collates else None)
            collate_fn = None if is_known else collate_fn
        first, *others = parts = leaves_of(dataset)
        transform, target_transform = transforms_of(first)
        gray = is_gray(first)
        pipeline = read_transform(transform, exact=exact, size=size_of(first), gray=gray)
        alone, images = pipeline, images_in(first)
        if images > 1:
            pipeline = repeated(alone, images, transform)
        for other in others:
            theirs, of_target = transforms_of(other)
            if of_target is not target_transform:
                raise Refused("parts of the ConcatDataset have different target_transforms; give all the same one")
            if images_in(other) != images:
                raise Refused("parts of the ConcatDataset have different images_per_sample; give all the same")
            if theirs is transform and (size_of(other), is_gray(other)) == (size_of(first), gray):
                continue
            if read_transform(theirs, exact=exact, size=size_of(other), gray=is_gray(other)).key != alone.key:
                raise Refused(
                    "parts of the ConcatDataset have different transforms, or images of sizes that make them differ; "
                    "give all the same transform, behind a crop or resize to one size"
                )
        if target_transform is not None and not is_true(target_transform):
            raise Refused(
                f"{name_of(target_transform)} has a __len__ or __bool__, and may not be applied; leave it out"
            )
        in_python = []
        if collate_fn is not None and collate_fn is not default_collate:
            in_python.append(f"collate_fn {name_of(collate_fn)}")
        else:
            check_collating(pipeline.image)
        own_code = any(hasattr(type(leaf), "encoded") and type(leaf) is not ArrowImages for leaf in (first, *others))
        seeds = worker_init_fn is not None and not own_code and only_seeds(worker_init_fn)
        if worker_init_fn is not None and not seeds:
            in_python.append(f"worker_init_fn {name_of(worker_init_fn)}")
        if target_transform is not None:
            in_python.append(f"target_transform {name_of(target_transform)}")
        if in_python and pipeline.layout is None:
            raise Refused(
                f"{in_python[0]} runs beside it, but {pipeline.names[-1]} comes after the image has become a tensor, "
                "whose layout in memory is then not known; put it before"
            )
        if in_python and pipeline.views > 1:
            raise Refused(f"{in_python[0]} runs beside several views of an image; only one is then made natively")
        plan = plan_of(pipeline)
        options = options_of(pipeline)
        least = max([0, *(math.prod(size) for leaf in parts if (size := size_of(leaf)) is not None)])
        if 0 < options["max_pixels"] < least:
            raise Refused(
                f"PIL.Image.MAX_IMAGE_PIXELS is {Image.MAX_IMAGE_PIXELS}, less than the images have; raise it"
            )
    except Refused as refused:
        return Refusal((str(refused),))
    first_call = worker_init_fn if seeds else None
    return Recipe(dataset, pipeline, plan, options, transform, target_transform, first_call, tuple(in_python), images)


def plan_of(pipeline: Pipeline) -> _core.DrawPlan:
    """Make the core's draws for one sample.

    Raises:
        Refused: The core has other arguments or draws.
    """
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


def options_of(pipeline: Pipeline) -> dict[str, Any]:
    """Return a pipeline's arguments for ``_core.Pool.submit``.

    Raises:
        Refused: The installed libraries compute something otherwise than the core.
    """
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
        "arrays": True,
        "sizes": pipeline.sizes if len(set(pipeline.sizes)) > 1 else (),
        "max_pixels": pixel_limit(
            Image.MAX_IMAGE_PIXELS, pipeline.largest_crop
        ),  # for larger images Pillow warns or raises: let it
    }


def pixel_limit(limit: Any, crop: int = 0) -> int:
    """Convert ``PIL.Image.MAX_IMAGE_PIXELS``, which may be any number, for the core; 0 is no limit.

    A limit below one pixel, or below those of a crop, becomes 1, which leaves all but the smallest image to Pillow, and
    Pillow rejects them.
    """
    if limit is None or limit > _LARGEST:
        return 0
    return max(1, int(limit)) if limit >= max(1, crop) else 1  # also for NaN


_LARGEST = 2**62
