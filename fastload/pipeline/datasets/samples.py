"""Samples as the dataset returns them, around the image that is made natively."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import collate_int_fn, default_collate_fn_map

from fastload import _core, _tagged_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray


class IMAGE:
    """Stands for the image in a sample.

    A class, so that it stays itself when pickled.
    """


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """Stands for a transformed image in a sample that a dataset's ``encoded(index)`` returns.

    Attributes:
        source: The encoded image, bytes or a path; or its pixels, a uint8 array ``(H, W, 3)``.
    """

    source: bytes | bytearray | memoryview | str | os.PathLike[Any] | NDArray[np.uint8]


class KeptFile(str):
    """The path of a file that others may remove or change.

    The core takes no bytes of it that were not tagged with the key; they can be had again. It pickles as its bytes.

    Args:
        path: Of the file.
        tagged_with: The key; see :mod:`fastload._tagged_files`.
        again: Returns the bytes when the file has others.
    """

    tagged_with: bytes
    _again: Callable[[], Any]

    def __new__(cls, path: str, tagged_with: bytes, again: Callable[[], Any]) -> KeptFile:
        """Note the path and the way back."""
        made = super().__new__(cls, path)
        made.tagged_with, made._again = tagged_with, again
        return made

    def read(self) -> bytes:
        """Return the file's bytes. Blocks."""
        data = _tagged_files.read(self, self.tagged_with)
        return bytes(self._again()) if data is None else data

    def __reduce__(self) -> Any:
        """Pickle the bytes."""
        return bytes, (self.read(),)


@contextlib.contextmanager
def named(name: str) -> Iterator[None]:
    """Add a sample's name to errors: Pillow's don't say whose bytes they were."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in {name}")
        raise


@dataclass(frozen=True, slots=True)
class Around:
    """A sample that is no pair of image and target.

    Attributes:
        sample: Nested tuples, lists and dicts, with :class:`IMAGE` in the place of each image.
    """

    sample: Any

    def places(self) -> list[tuple[Any, ...]]:
        """List the image's places: keys and positions from the outermost container on."""
        return list(_places(self.sample, ()))


def taken_apart(entry: Any, images: int) -> tuple[Any, Any]:
    """Take what a dataset's ``encoded(index)`` returns apart.

    Args:
        entry: A pair of an encoded image and a target; or a sample with :class:`EncodedImage` in the place of images.
        images: How many of these a sample has.

    Returns:
        The encoded image, or a tuple of several, and the target or an :class:`Around`.

    Raises:
        ValueError: There are not as many images.
    """
    is_pair = images == 1 and type(entry) is tuple and len(entry) == 2
    if is_pair and type(entry[0]) not in _PARTS and type(entry[1]) is not EncodedImage:
        return entry[0], entry[1]
    sources: list[Any] = []
    sample = _taken_apart(entry, sources)
    if len(sources) != images:
        raise ValueError(
            f"encoded() must return a pair, or a sample with images_per_sample={images} EncodedImage in tuples, lists "
            f"and dicts, got {len(sources)} in {type(entry).__name__}"
        )
    return sources[0] if images == 1 else tuple(sources), Around(sample)


_PARTS: Final = (EncodedImage, tuple, list, dict)


def _taken_apart(part: Any, sources: list[Any]) -> Any:
    if type(part) is EncodedImage:
        sources.append(part.source)
        return IMAGE
    if type(part) in (tuple, list):
        return type(part)(_taken_apart(each, sources) for each in part)
    if type(part) is dict:
        return {key: _taken_apart(each, sources) for key, each in part.items()}
    return part


def no_pair_because(name: str, sample: Any, target: Any) -> str | None:
    """Say that a sample is no pair, though ``encoded()`` gives one."""
    if type(target) is Around or (isinstance(sample, list | tuple) and len(sample) == 2):
        return None
    return (
        f"{name} is a {type(sample).__name__}, but encoded() describes a pair (transform(image), target); return that, "
        "or let encoded() return the same sample with an EncodedImage in the image's place"
    )


def one_of(source: Any, view: int) -> Any:
    """Return the encoded image of a view; of several, each is one view."""
    return source[view] if type(source) is tuple else source


def filled(rest: Any, image: Any) -> Any:
    """Return a sample as the dataset would.

    Args:
        rest: An :class:`Around`, or the target of a pair.
        image: Its image.
    """
    return _filled(rest.sample, image) if type(rest) is Around else (image, rest)


@dataclass(frozen=True, slots=True)
class Collated:
    """A batch without its images.

    Attributes:
        data: The collated targets; or the whole batch, with something else in the images' place.
        places: Keys and positions of that place, from the outermost container on, or of several; ``None`` if ``data``
            is targets.
    """

    data: Any
    places: list[tuple[Any, ...]] | None

    def around(self, images: Any, change: Callable[[Any], Any] = lambda data: data) -> Any:
        """Return the batch with its images.

        Args:
            images: The images; a list of those for each place if there are several.
            change: Applied to everything else.
        """
        data = change(self.data)
        if self.places is None:
            return [images, data]
        for place, made in zip(self.places, images if len(self.places) > 1 else [images], strict=True):
            if not place:
                return made
            *outer, last = place
            holder = data
            for key in outer:
                holder = holder[key]
            holder[last] = made
        return data


_STAND_IN: Final = torch.empty(0)


def collated(rests: list[Any]) -> Collated:
    """Collate what is around the images of a batch, as ``default_collate`` does.

    Raises:
        Exception: Any of ``default_collate``.
    """
    if rests and type(rests[0]) is int and default_collate_fn_map.get(int) is collate_int_fn:
        numbers = torch.empty(len(rests), dtype=torch.int64)
        if _core.put_ints(rests, numbers.numpy()):  # torch.tensor takes several times as long
            return Collated(numbers, None)
    if not rests:
        return Collated(default_collate([]), None)  # raises; of a tuple, it would say so
    if Around not in {*map(type, rests)}:
        # default_collate takes pairs apart to tuples, and returns one of strings as it is.
        return Collated(default_collate(tuple(rests)), None)  # type: ignore[arg-type]
    places = rests[0].places() if type(rests[0]) is Around else [(0,)]
    return Collated(default_collate([filled(rest, _STAND_IN) for rest in rests]), places)


def _places(sample: Any, at: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    if sample is IMAGE:
        yield at
    elif type(sample) in (tuple, list):
        for position, part in enumerate(sample):
            yield from _places(part, (*at, position))
    elif type(sample) is dict:
        for key, part in sample.items():
            yield from _places(part, (*at, key))


def _filled(sample: Any, image: Any) -> Any:
    if sample is IMAGE:
        return image
    if type(sample) in (tuple, list):
        return type(sample)(_filled(part, image) for part in sample)
    if type(sample) is dict:
        return {key: _filled(part, image) for key, part in sample.items()}
    return sample
