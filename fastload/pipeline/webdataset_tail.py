"""Let the device run the last transforms of a webdataset pipeline's images.

Workers then send the pixels of a batch as uint8, if its first part is images of one size; see
:mod:`fastload.lazy.webdataset`, which makes them.
"""

from __future__ import annotations

import inspect
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.data import default_collate

from fastload.pipeline.installed.patches import imported
from fastload.pipeline.tail import Tail, split_off

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

_ITERATED: Final = ("__iter__", "iterator", "iterator1", "invoke")
"""Methods that a pipeline must have from ``DataPipeline``."""
PASSING: Final = frozenset(("_shuffle", "_to_tuple", "_rename", "_extract_keys", "_rename_keys", "islice"))
"""Stages that do not look at the images of a sample."""


def stages_in(dataset: Any) -> list[tuple[Any, str | None]] | None:
    """List a pipeline's stages, and which function of webdataset's each calls; ``None`` for other datasets."""
    library: Any = imported("webdataset.pipeline")
    filters: Any = imported("webdataset.filters")
    base = getattr(library, "DataPipeline", None)
    if base is None or filters is None or not isinstance(dataset, base):
        return None
    if any(getattr(type(dataset), name) is not vars(base).get(name) or name in vars(dataset) for name in _ITERATED):
        return None
    return [(stage, _name_of(stage, filters)) for stage in dataset.pipeline]


def _name_of(stage: Any, filters: Any) -> str | None:
    if type(stage) is filters.detshuffle:
        return "_shuffle"
    if type(stage) is not filters.FilterFunction:
        return None
    if stage.f is itertools.islice:
        return "islice"
    return stage.f.__code__.co_name if is_webdatasets(stage.f) else None


def is_webdatasets(function: Any) -> bool:
    """Whether a function is one of webdataset's filters."""
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename == imported("webdataset.filters").__file__  # type: ignore[union-attr]


def collation_of(stage: Any) -> Callable[[Any], Any] | None:
    """The function that a stage makes batches with, if it is webdataset's or torch's own."""
    try:
        bound = inspect.signature(stage.f).bind(None, *stage.args, **stage.kw)
    except TypeError:
        return None
    bound.apply_defaults()
    function: Any = bound.arguments.get("collation_fn")
    is_librarys = is_webdatasets(function) and function.__code__.co_name == "default_collation_fn"
    return function if is_librarys or function is default_collate else None


@dataclass(frozen=True)
class PixelBatch:
    """Images of a batch, before their values are looked up.

    Attributes:
        pixels: ``(N, H, W, 3)`` uint8.
        table: ``(3, 256)``: each channel's value per level.
    """

    pixels: NDArray[np.uint8]
    table: torch.Tensor

    def finished(self) -> torch.Tensor:
        """Look the values up here: ``(N, 3, H, W)``."""
        from fastload import _core

        count, height, width, channels = self.pixels.shape
        out = torch.empty((count, channels, height, width), dtype=self.table.dtype)
        _core.look_up(self.pixels, self.table, out, True)
        return out


@dataclass(frozen=True)
class PipelineTail(Tail):
    """The tail of a pipeline's images, if its batches begin with them. ``dataset`` is ``None``."""

    def take_pixels(self, batch: Any) -> tuple[Any, bool]:  # type: ignore[override]
        """Replace images by their pixels, if the batch begins with them, and others by tensors."""
        if isinstance(batch, dict):
            return {key: _finished(part) for key, part in batch.items()}, False
        if type(batch) not in (tuple, list) or not any(type(part) is PixelBatch for part in batch):
            return batch, False
        first, *others = batch
        holds = type(first) is PixelBatch and torch.equal(first.table, self.table)
        first = torch.from_numpy(first.pixels) if holds else _finished(first)
        return [first, *map(_finished, others)], holds


def _finished(part: Any) -> Any:
    return part.finished() if type(part) is PixelBatch else part


def pipeline_tail(dataset: Any) -> PipelineTail | None:
    """Read the tail of the images in a pipeline's batches; ``None`` without."""
    stages = stages_in(dataset)
    if not stages or stages[-1][1] != "_batched" or collation_of(stages[-1][0]) is None:
        return None
    before = stages[:-1]
    for place in reversed(range(len(before))):
        stage, name = before[place]
        later = before[place + 1 :]
        if name not in ("_map_tuple", "_map_dict"):
            if name not in PASSING:
                return None
            continue
        for function in _first_functions(stage, name, later):
            split = split_off(function) if callable(function) else None
            if split is not None:
                return PipelineTail(None, split.table, tuple(type(step).__name__ for step in split.tail))
        return None
    return None


def _first_functions(stage: Any, name: str, later: list[tuple[Any, str | None]]) -> Iterator[Any]:
    """Yield what makes the first part of each tuple."""
    if name == "_map_tuple":
        yield from stage.args[:1]
        return
    for after, kind in later:
        if kind == "_to_tuple" and after.args and isinstance(after.args[0], str):
            yield from (stage.kw[key] for key in after.args[0].replace(";", " ").split() if key in stage.kw)
