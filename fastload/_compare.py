"""Compare batches: tensors bit for bit, containers item by item, other values with ``==``."""

from __future__ import annotations

import array
import collections
import collections.abc
import dataclasses
import enum
import io
import math
import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(slots=True)
class ComparedValues:
    """Values compared in two batches.

    Attributes:
        values: Number of values compared.
        opaque: Objects not compared: their ``==`` compares identity, or does not return yes or no.
        bound: How far values of images (4-D tensors) may differ.
        largest: The largest difference of such values.
        layout: Whether the memory layout of tensors is compared, too: with theirs, or with a contiguous one.
    """

    values: int = 0
    opaque: list[str] = dataclasses.field(default_factory=list)
    bound: float = 0.0
    largest: float = 0.0
    layout: Literal["theirs", "contiguous"] | None = None


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have the same dtype, shape and bits.

    NaN equals itself, and 0.0 differs from -0.0.
    """
    return (a.dtype, a.shape) == (b.dtype, b.shape) and torch.equal(_bits(a), _bits(b))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    values = tensor.as_subclass(torch.Tensor).resolve_conj().resolve_neg()
    return values.contiguous().view(-1).view(torch.uint8)


def same_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether tensors of one shape have equal strides, dimensions of size 1 aside."""
    pairs = zip(a.shape, a.stride(), b.stride(), strict=True)
    return all(size == 1 or one == other for size, one, other in pairs)


def same(theirs: Any, ours: Any, *, any_layout: bool = False) -> bool:
    """Whether two batches or samples are equal in type, dtype, memory layout and every bit.

    What ``==`` does not tell, pickling does.

    Args:
        theirs: Torch's.
        ours: FastLoader's.
        any_layout: Compare the layout of ours with that of contiguous tensors.
    """
    return difference(theirs, ours, compared=ComparedValues(layout="contiguous" if any_layout else "theirs")) is None


def difference(theirs: Any, ours: Any, place: str = "batch", *, compared: ComparedValues | None = None) -> str | None:
    """Return the first difference of two batches in type, dtype, shape or bits, or ``None``.

    Args:
        theirs: Torch's batch. Containers are those of :func:`fastload._batch.map_tensors`.
        ours: FastLoader's batch.
        place: Prefix of places in the result.
        compared: Records what was compared and what could not be.
    """
    compared = ComparedValues() if compared is None else compared
    if type(theirs) is not type(ours):
        return f"{place}: {type(theirs).__name__} and {type(ours).__name__}"
    if isinstance(theirs, BaseException):
        return None
    pairs = _entries(theirs, ours, place)
    if isinstance(pairs, str):
        return pairs
    if pairs is not None:
        return next(
            (found for a, b, at in pairs if (found := difference(a, b, at, compared=compared)) is not None), None
        )
    if isinstance(theirs, torch.Tensor):
        ours = ours.to(theirs.device)
        if _is_plain(theirs) and _is_plain(ours):
            compared.values += 1
            return _tensor_difference(theirs, ours, place, compared)
        same = _same_pickled(theirs, ours)
    else:
        same = _same(theirs, ours)
    if same is None and compared.layout is not None:
        same = bool(_same_pickled(theirs, ours))
    if same is None:
        compared.opaque.append(f"{place}, {type(theirs).__name__}")
        return None
    compared.values += 1
    return None if same else f"{place}: {theirs!r} and {ours!r}"


def _entries(theirs: Any, ours: Any, place: str) -> Iterable[tuple[Any, Any, str]] | str | None:
    """Pair the items of two containers of the same type, with their places.

    Returns the difference if the containers' keys or sizes differ, and ``None`` if they are not containers.
    """
    if isinstance(theirs, collections.abc.Mapping):
        if list(theirs) != list(ours):
            return f"{place}: keys {list(theirs)} and {list(ours)}"
        return [(theirs[key], ours[key], f"{place}[{key!r}]") for key in theirs]
    if isinstance(theirs, np.ndarray):
        if (theirs.dtype, theirs.shape) != (ours.dtype, ours.shape):
            return f"{place}: {theirs.dtype} {theirs.shape} and {ours.dtype} {ours.shape}"
        if not theirs.dtype.hasobject and theirs.tobytes() == ours.tobytes():
            return [(True, True, place)]
        return ((theirs[at], ours[at], f"{place}{list(at)}") for at in np.ndindex(theirs.shape))
    if isinstance(theirs, collections.abc.Sequence) and not isinstance(theirs, _WHOLE):
        if len(theirs) != len(ours):
            return f"{place}: {len(theirs)} and {len(ours)} items"
        return [(a, b, f"{place}[{i}]") for i, (a, b) in enumerate(zip(theirs, ours, strict=True))]
    if dataclasses.is_dataclass(theirs) and not isinstance(theirs, type):
        names = [field.name for field in dataclasses.fields(theirs)]
        return [(getattr(theirs, name, None), getattr(ours, name, None), f"{place}.{name}") for name in names]
    return None


_BUFFERS = (bytes, bytearray, memoryview, array.array)
_WHOLE = (str, range, collections.UserString, *_BUFFERS)


def _same(theirs: Any, ours: Any) -> bool | None:
    """Whether two values of a type are equal (numbers: to the bit); ``None`` if unknown."""
    if isinstance(theirs, np.generic) and not theirs.dtype.hasobject:
        return bool(theirs.dtype == ours.dtype and theirs.tobytes() == ours.tobytes())
    if isinstance(theirs, float):
        return (theirs == ours and math.copysign(1, theirs) == math.copysign(1, ours)) or (
            math.isnan(theirs) and math.isnan(ours)
        )
    if isinstance(theirs, complex):
        return bool(_same(theirs.real, ours.real) and _same(theirs.imag, ours.imag))
    if isinstance(theirs, _BUFFERS):
        a, b = memoryview(theirs), memoryview(ours)
        return (a.format, a.shape) == (b.format, b.shape) and a.tobytes() == b.tobytes()
    if theirs is ours or isinstance(theirs, type | enum.Enum | torch.dtype):  # singletons in a process
        return theirs is ours
    if type(theirs).__eq__ is object.__eq__:  # type: ignore[comparison-overlap]
        return None
    try:
        return bool(theirs == ours)
    except Exception:  # noqa: BLE001 - any error of the user's type, or of torch or NumPy if it contains tensors
        return None


def _same_pickled(theirs: Any, ours: Any) -> bool | None:
    """Whether two values have the same pickles; ``None`` if they have none."""
    try:
        return _pickled(theirs) == _pickled(ours)
    except Exception:  # noqa: BLE001 - any error of the user's type
        return None


def _pickled(value: Any) -> bytes:
    file = io.BytesIO()
    _BitsPickler(file).dump(value)
    return file.getvalue()


class _BitsPickler(pickle.Pickler):
    """Pickles the bits of tensors: torch's own pickles have their addresses, too."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, torch.TypedStorage | torch.UntypedStorage):
            return NotImplemented
        storage = getattr(value, "_untyped_storage", value)  # value.untyped() warns
        content = torch.empty(0, dtype=torch.uint8).set_(storage.cpu())
        return bytes, (str(getattr(value, "dtype", None)), content.numpy().tobytes())


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether strides and bits tell all of a tensor (quantized: its views crash)."""
    return tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_quantized or tensor.is_meta)


def _tensor_difference(theirs: torch.Tensor, ours: torch.Tensor, place: str, compared: ComparedValues) -> str | None:
    if (theirs.dtype, theirs.shape) != (ours.dtype, ours.shape):
        return f"{place}: {theirs.dtype} {tuple(theirs.shape)} and {ours.dtype} {tuple(ours.shape)}"
    if compared.layout and not same_layout(theirs.contiguous() if compared.layout == "contiguous" else theirs, ours):
        return f"{place}: strides {theirs.stride()} and {ours.stride()}"
    if same_bits(theirs, ours):
        return None
    if compared.bound and theirs.dim() == 4:
        apart = float((theirs.double() - ours.double()).abs().max())
        compared.largest = max(compared.largest, apart)
        if apart <= compared.bound:
            return None
    wrong = (_bits(theirs) != _bits(ours)).nonzero()
    at = torch.unravel_index(wrong[0, 0] // theirs.element_size(), theirs.shape) if theirs.dim() else ()
    where = tuple(int(i) for i in at)
    return f"{place}{list(where)}: {theirs[where].item()!r} and {ours[where].item()!r}"
