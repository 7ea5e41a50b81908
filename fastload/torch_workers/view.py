"""Views of a DataLoader: plain DataLoaders that share its attributes, with some changed."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader


def view_of(loader: DataLoader[Any], **changes: Any) -> DataLoader[Any]:
    """Make a plain DataLoader with the attributes of ``loader``, except ``changes``.

    ``loader`` is not modified.
    """
    view: DataLoader[Any] = object.__new__(DataLoader)
    refresh(view, loader, **changes)
    return view


def refresh(view: DataLoader[Any], loader: DataLoader[Any], **changes: Any) -> None:
    """Update ``view`` with attributes of ``loader``, which frameworks may have set since."""
    state = {name: value for name, value in vars(loader).items() if name != "_iterator"}
    vars(view).update(state, **changes)
    vars(view).setdefault("_iterator", None)
