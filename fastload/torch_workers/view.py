"""Views of a DataLoader: plain ones that share everything with it but what is changed."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader


def view_of(loader: DataLoader[Any], **changes: Any) -> DataLoader[Any]:
    """A plain DataLoader that shares everything with ``loader`` but ``changes``; ``loader`` is left as it is."""
    view: DataLoader[Any] = object.__new__(DataLoader)
    refresh(view, loader, **changes)
    return view


def refresh(view: DataLoader[Any], loader: DataLoader[Any], **changes: Any) -> None:
    """Bring ``view`` up to date with attributes of ``loader`` that were set since, as frameworks do."""
    state = {name: value for name, value in vars(loader).items() if name != "_iterator"}
    vars(view).update(state, **changes)
    vars(view).setdefault("_iterator", None)
