"""Public names that are imported when they are first used (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def attributes(
    package: str, places: Mapping[str, str], elsewhere: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the ``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: The package's name.
        places: ``module:name`` of each public name.
        elsewhere: The same of names that come from another module on other systems than Linux.
    """
    if sys.platform != "linux":
        places = {**places, **(elsewhere or {})}

    def get(name: str) -> Any:
        module, _, attribute = places.get(name, "").partition(":")
        if not module:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(module), attribute)
        setattr(sys.modules[package], name, value)  # from now on an ordinary attribute
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places})

    return get, names
