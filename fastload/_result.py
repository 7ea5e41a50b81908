"""What results have in common: their figures as plain dictionaries."""

from __future__ import annotations

import enum
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields, is_dataclass
from typing import Any


class Result:
    """Base of dataclasses that hold a result."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Convert to dicts, lists, strings, numbers, booleans and None, which JSON takes.

        It has all fields, those of dataclasses within too, and all properties, which follow from them.
        """
        return _plain_fields(self)


def _plain_fields(value: Any) -> dict[str, Any]:
    kind = type(value)
    names = {each.name: _name_in_dict(each) for each in fields(kind) if each.repr}
    names |= {name: name for name, member in vars(kind).items() if isinstance(member, property) and name[0] != "_"}
    return {shown: _plain(getattr(value, name)) for name, shown in names.items()}


def _name_in_dict(field: Field[Any]) -> str:
    unit = field.metadata.get("unit")  # of a mapping's numbers, whose keys are names of other things
    return field.name if unit is None else f"{field.name}_{unit}"


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, numbers.Real):  # NumPy's too
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    if is_dataclass(value):
        return _plain_fields(value)
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(each) for key, each in value.items()}
    if isinstance(value, Sequence):
        return [_plain(each) for each in value]
    return str(value)  # torch.device


def flat_numbers(plain: Mapping[str, Any], prefix: str, separator: str) -> dict[str, float]:
    """Return the numbers of nested dictionaries by path; names have no dashes."""
    found: dict[str, float] = {}
    for key, value in plain.items():
        name = f"{prefix}{separator}{key.replace('-', '_')}"
        if isinstance(value, Mapping):
            found |= flat_numbers(value, name, separator)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[name] = float(value)
    return found
