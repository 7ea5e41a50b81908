"""Batches of images from webdataset's pipelines, in worker processes.

webdataset's own stages read shards, shuffle, decode and call the user's transforms, on lazy images, so that order,
random draws and errors are as ever. A stage that calls a transform with a known tail gets one that leaves the pixels
pending, and the stage that makes batches makes them.
"""

from __future__ import annotations

import copy
import functools
import inspect
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.utils.data._utils.fetch as torch_fetch
from torch.utils.data import default_collate, default_convert, get_worker_info
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from fastload.lazy import images as lazy_images
from fastload.lazy.batches import PendingImage, PendingTransform, are_alike, stack
from fastload.memory.packing import stacks_into
from fastload.pipeline.crops import read_crops
from fastload.pipeline.tail import split_off
from fastload.pipeline.webdataset_tail import PASSING, PipelineTail, PixelBatch, collation_of, stages_in

if TYPE_CHECKING:
    from collections.abc import Callable

    Known = dict[int, tuple[Any, PendingTransform | None]]


def install() -> None:
    """Make the fetcher of this worker's loader iterate such a pipeline, if it is torch's."""
    kind: Any = getattr(torch_fetch, "_IterableDatasetFetcher", None)
    if getattr(kind, "__module__", None) != torch_fetch.__name__:
        return
    known: Known = {}
    init = kind.__init__

    @functools.wraps(init)
    def init_fetcher(self: Any, dataset: Any, *arguments: Any, __fastload__: Any = None, **rest: Any) -> None:
        init(self, dataset, *arguments, **rest)
        info = get_worker_info()
        if info is not None and dataset is info.dataset:
            sends = not self.auto_collation and self.collate_fn is default_convert
            leaves = isinstance(getattr(getattr(self.collate_fn, "take_pixels", None), "__self__", None), PipelineTail)
            changed = with_pending_images(dataset, known, sends=sends, leaves_pixels=leaves)
            if changed is not None:
                self.dataset_iter = iter(changed)

    kind.__init__ = init_fetcher


def with_pending_images(dataset: Any, known: Known, *, sends: bool, leaves_pixels: bool = False) -> Any | None:
    """Copy a pipeline with other stages for its images; ``None`` without known ones.

    Args:
        dataset: A loader's dataset.
        known: Transforms read so far, by their ids. Once images are lazy, others cannot be read.
        sends: Whether the pipeline's batches are sent as they are.
        leaves_pixels: Whether images become a :class:`PixelBatch`; only if the last stage makes batches.
    """
    found = stages_in(dataset)
    if found is None:
        return None
    stages, names = [stage for stage, _ in found], [name for _, name in found]
    batching = names.index("_batched") if "_batched" in names else -1
    collation = collation_of(stages[batching]) if batching >= 0 else None
    if collation is default_collate and not stacks_into(collation):
        collation = None
    changed = False
    for place, name in enumerate(names):
        if name not in ("_map_tuple", "_map_dict"):
            continue
        stage = stages[place]
        waits = collation is not None and place < batching and PASSING.issuperset(names[place + 1 : batching])
        args = [_changed(function, known, waits=waits) for function in stage.args]
        named = {
            key: function if key == "handler" else _changed(function, known, waits=waits)
            for key, function in stage.kw.items()
        }
        if [*map(id, args), *map(id, named.values())] != [*map(id, stage.args), *map(id, stage.kw.values())]:
            stages[place] = type(stage)(stage.f, *args, **named)
            changed = True
    if not changed:
        return None
    if collation is not None:
        made = _Collation(collation, sends=sends and batching == len(stages) - 1, leaves_pixels=leaves_pixels)
        stages[batching] = _with_collation(stages[batching], made)
    twin = copy.copy(dataset)
    twin.pipeline = stages
    return twin


def _changed(function: Any, known: Known, *, waits: bool) -> Any:
    """Replace a transform with a known tail by one that leaves pixels pending."""
    if not callable(function):
        return function
    if id(function) not in known:
        with lazy_images.put_off():
            split = split_off(function)
            if split is None or split.layout is None:
                known[id(function)] = function, None
            else:
                known[id(function)] = function, PendingTransform(split, read_crops(function))
    _, transform = known[id(function)]
    return function if transform is None else transform if waits else _Finished(transform)


class _Finished:
    """Makes the tensor of each image at once."""

    def __init__(self, transform: PendingTransform) -> None:
        self._transform = transform

    def __call__(self, image: Any) -> Any:
        made = self._transform(image)
        return made.finished() if type(made) is PendingImage else made


def _with_collation(stage: Any, collation: Callable[[Any], Any]) -> Any:
    bound = inspect.signature(stage.f).bind(None, *stage.args, **stage.kw)
    bound.arguments["collation_fn"] = collation
    _, *args = bound.args
    return type(stage)(stage.f, *args, **bound.kwargs)


class _Collation:
    """Collates samples that have pending images.

    Args:
        function: Collates all else.
        sends: Whether the batch is sent as it is.
        leaves_pixels: Whether images become a :class:`PixelBatch`.
    """

    def __init__(self, function: Callable[[Any], Any], *, sends: bool, leaves_pixels: bool) -> None:
        self._leaves_pixels = leaves_pixels
        self._function = function
        self._is_torchs = stacks_into(function)
        self._sends = sends

    def __call__(self, samples: list[Any]) -> Any:
        rows = [_Row(sample) for sample in samples]
        columns = [key for key in rows[0].parts if any(type(row.parts.get(key)) is PendingImage for row in rows)]
        for key in [*columns]:
            if not are_alike([row.parts.get(key) for row in rows]):
                columns.remove(key)
        samples = [row.without(columns) for row in rows]
        if self._is_torchs:
            kinds = {**default_collate_fn_map, PendingImage: self._stacked}
            return collate(samples, collate_fn_map=kinds)
        batch = self._function(samples)
        if not columns:
            return batch
        parts = dict(batch) if isinstance(batch, dict) else dict(enumerate(batch))
        for key in columns:
            parts[key] = self._stacked(parts[key])
        return parts if isinstance(batch, dict) else tuple(parts.values())

    def _stacked(self, images: list[PendingImage], **_: Any) -> Any:
        if self._leaves_pixels:
            pixels = np.stack([image.pending.pixels() for image in images])
            return PixelBatch(pixels, images[0].transform.split.table)
        return stack(images, sends=self._sends)


class _Row:
    """A sample and its parts, by their keys or positions."""

    def __init__(self, sample: Any) -> None:
        self.sample = sample
        self.parts: dict[Any, Any] = sample if isinstance(sample, dict) else dict(enumerate(sample))

    def without(self, columns: list[Any]) -> Any:
        """Return the sample with its pending images made, but for those of some columns."""
        made = {
            key: part.finished()
            for key, part in self.parts.items()
            if type(part) is PendingImage and key not in columns
        }
        if not made:
            return self.sample
        if not isinstance(self.sample, dict):
            return tuple({**self.parts, **made}.values())
        sample = copy.copy(self.sample)
        sample.update(made)
        return sample
