"""Samples as the dataset returns them, around the image that is made natively."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import collate_int_fn, default_collate_fn_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class IMAGE:
    """Stands for the image in a sample.

    A class, so that it stays itself when pickled.
    """


@dataclass(frozen=True, slots=True)
class Around:
    """A sample that is no pair of image and target.

    Attributes:
        sample: Nested tuples, lists and dicts, with :class:`IMAGE` in the image's place.
    """

    sample: Any

    def places(self) -> list[tuple[Any, ...]]:
        """List the image's places: keys and positions from the outermost container on."""
        return list(_places(self.sample, ()))


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
        place: Keys and positions of that place, from the outermost container on; ``None`` if ``data`` is targets.
    """

    data: Any
    place: tuple[Any, ...] | None

    def around(self, images: Any, change: Callable[[Any], Any] = lambda data: data) -> Any:
        """Return the batch with its images.

        Args:
            images: The images.
            change: Applied to everything else.
        """
        data = change(self.data)
        if self.place is None:
            return [images, data]
        if not self.place:
            return images
        *outer, last = self.place
        holder = data
        for key in outer:
            holder = holder[key]
        holder[last] = images
        return data


_STAND_IN: Final = torch.empty(0)


def collated(rests: list[Any]) -> Collated:
    """Collate what is around the images of a batch, as ``default_collate`` does.

    Raises:
        Exception: Any of ``default_collate``.
    """
    kinds = {*map(type, rests)}
    if kinds == {int} and default_collate_fn_map.get(int) is collate_int_fn:
        with contextlib.suppress(OverflowError):  # which default_collate raises in torch's words
            return Collated(_of_numbers(rests), None)
    if Around not in kinds:
        return Collated(default_collate(rests), None)
    places = rests[0].places()[0] if type(rests[0]) is Around else (0,)
    return Collated(default_collate([filled(rest, _STAND_IN) for rest in rests]), places)


def _of_numbers(numbers: list[int]) -> torch.Tensor:
    """Make what ``torch.tensor`` makes of integers, which takes several times as long."""
    made = torch.empty(len(numbers), dtype=torch.int64)
    made.numpy()[:] = numbers
    return made


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
