"""Read what a Hugging Face dataset's function, and a collate function, make of a batch.

A copy of the function runs on stand-ins (:mod:`fastload.pipeline.code.tracing`), for batches of two sizes. What it
returns shows which column's images go through which transform, and which columns it passes on; or of which keys of the
samples a collate function makes tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from fastload.pipeline.code.tracing import traced
from fastload.pipeline.errors import Refused, name_of

_COUNTS: Final = (1, 7)
"""Samples in the batches on which functions are traced."""


@dataclass(frozen=True, slots=True)
class _Column:
    """Stands for a column's values."""

    name: str


@dataclass(frozen=True, slots=True)
class _Picture:
    """Stands for an image of a batch, once it is RGB."""

    number: int


@dataclass(frozen=True, slots=True)
class _Decoded:
    """Stands for an image of a batch."""

    number: int
    is_rgb: bool

    def convert(self, mode: str) -> _Picture:
        if mode != "RGB":
            raise Refused(f"images are converted to {mode!r}; convert them to 'RGB'")
        return _Picture(self.number)


@dataclass(slots=True)
class _Applied:
    """Stands for a transform, and notes the images that it gets."""

    transform: Any
    calls: list[_Made]

    def __call__(self, image: Any) -> _Made:
        if type(image) is _Decoded and image.is_rgb:
            image = _Picture(image.number)
        if type(image) is not _Picture:
            raise Refused(f"{name_of(self.transform)} gets something else than image.convert('RGB')")
        self.calls.append(_Made(self.transform, image.number))
        return self.calls[-1]


@dataclass(frozen=True, eq=False, slots=True)
class _Made:
    """Stands for a transformed image."""

    transform: Any
    number: int


@dataclass(frozen=True, slots=True)
class BatchReading:
    """What a function makes of a batch.

    Attributes:
        transform: Applied to each image.
        image: The images' column.
        columns: Source of each key of a sample, in order: a column; ``None`` is the transformed image.
        decoded: Keys of a sample that hold the image as it was.
    """

    transform: Any
    image: str
    columns: dict[str, str | None]
    decoded: tuple[str, ...]


def read_function(function: Any, columns: list[str], image: str, *, is_rgb: bool) -> BatchReading:
    """Read what a function makes of a batch of columns.

    Raises:
        Refused: It is not known.
    """
    readings = []
    for count in _COUNTS:
        images = [_Decoded(number, is_rgb) for number in range(count)]
        batch = {name: list(images) if name == image else _Column(name) for name in columns}
        calls: list[_Made] = []

        def stand_in(value: Any, calls: list[_Made] = calls) -> _Applied:
            if not callable(value) or isinstance(value, type):
                raise Refused(f"it uses {name_of(value)}")
            return _Applied(value, calls)

        result = traced(function, batch, stand_in)
        if type(result) is not dict or not all(type(key) is str for key in result):
            raise Refused("it returns no dict of columns")
        readings.append(_understood(result, images, calls, image))
    first, second = readings
    if first.transform is not second.transform or (first.columns, first.decoded) != (second.columns, second.decoded):
        raise Refused("what it does depends on the number of samples")
    return first


def _understood(result: dict[str, Any], images: list[_Decoded], calls: list[_Made], image: str) -> BatchReading:
    columns: dict[str, str | None] = {}
    decoded = []
    for key, value in result.items():
        if type(value) is _Column:
            columns[key] = value.name
        elif type(value) is list and value == images:
            decoded.append(key)
        elif type(value) is list and value == calls:
            columns[key] = None
        else:
            raise Refused(f"what it makes of {key!r} is neither a column nor each image through a transform")
    if [call.number for call in calls] != [*range(len(images))] or len({id(call.transform) for call in calls}) != 1:
        raise Refused("it does not transform each image once, in order")
    if list(columns.values()).count(None) != 1:
        raise Refused("it does not return the transformed images once")
    return BatchReading(calls[0].transform, image, columns, tuple(decoded))


@dataclass(frozen=True, slots=True)
class _Value:
    """Stands for a value of a sample."""

    key: str
    number: int


@dataclass(frozen=True, slots=True)
class _Collated:
    """Stands for a batch's tensor of the values of one key."""

    key: str
    is_stacked: bool


class _Torch:
    """Stands for ``torch`` in a collate function."""

    long = int64 = torch.int64

    def __init__(self, count: int) -> None:
        self._count = count

    def _key(self, values: Any) -> str:
        if type(values) not in (list, tuple) or not all(type(value) is _Value for value in values):
            raise Refused("it makes tensors of something else than the samples' values")
        if [value.number for value in values] != [*range(self._count)] or len({value.key for value in values}) != 1:
            raise Refused("it does not take one value of each sample, in order")
        return str(values[0].key)

    def stack(self, tensors: Any) -> _Collated:
        return _Collated(self._key(tensors), is_stacked=True)

    def tensor(self, data: Any, dtype: Any = torch.int64) -> _Collated:
        if dtype is not torch.int64:
            raise Refused(f"it makes tensors of {dtype}")
        return _Collated(self._key(data), is_stacked=False)


def read_collate(function: Any, reading: BatchReading, integers: frozenset[str]) -> dict[str, str]:
    """Read a collate function.

    Returns:
        The samples' key for each key of a batch.

    Raises:
        Refused: It does something else than ``default_collate`` of these keys would.
    """
    results = []
    for count in _COUNTS:
        keys = (*reading.columns, *reading.decoded)
        samples = [{key: _Value(key, number) for key in keys} for number in range(count)]

        def stand_in(value: Any, count: int = count) -> _Torch:
            if value is torch:
                return _Torch(count)
            raise Refused(f"it uses {name_of(value)}")

        results.append(traced(function, samples, stand_in))
    first, second = results
    if type(first) is not dict or first != second or not all(type(key) is str for key in first):
        raise Refused("it returns no dict of tensors")
    made: dict[str, str] = {}
    images = 0
    for key, value in first.items():
        source = reading.columns.get(value.key, "") if type(value) is _Collated else ""
        if source == "" or value.is_stacked is not (source is None) or (source is not None and source not in integers):
            raise Refused(f"{key!r} is neither the stacked images nor a tensor of integers")
        made[key] = value.key
        images += source is None
    if images != 1:
        raise Refused("it does not return the images once")
    return made
