"""Views of a DataLoader: plain DataLoaders that share its attributes, with some changed."""

from __future__ import annotations

import functools
from typing import Any, Final, cast

from torch.utils.data import DataLoader

_TORCHDATAS: Final = ("snapshot_every_n_steps", "next_iter_state", "_initial_iter_for_state_dict")


class _View(DataLoader[Any]):
    # Torch's properties, which a subclass of the user's may have replaced: here they are attributes.
    _auto_collation = _index_sampler = cast("Any", None)


def view_of(loader: DataLoader[Any], **changes: Any) -> DataLoader[Any]:
    """Make a plain DataLoader with torch's attributes of ``loader``, except ``changes``.

    ``loader`` is not modified.
    """
    view: DataLoader[Any] = object.__new__(_View)
    refresh(view, loader, **changes)
    return view


def refresh(view: DataLoader[Any], loader: DataLoader[Any], **changes: Any) -> None:
    """Update ``view`` with torch's attributes of ``loader``, which frameworks may have set since.

    A subclass's own stay: with an iterator that it keeps, its workers would live as long as the view.
    """
    own = vars(loader)
    properties = {name: getattr(loader, name) for name in ("_auto_collation", "_index_sampler")}
    vars(view).update({name: own[name] for name in _torchs_attributes() if name in own}, **{**properties, **changes})
    vars(view).setdefault("_iterator", None)


@functools.cache
def _torchs_attributes() -> frozenset[str]:
    """What the installed torch's DataLoader keeps, but for its iterator."""
    return frozenset(vars(DataLoader(()))) - {"_iterator"}  # type: ignore[arg-type]


def torchs_iterator(view: Any) -> Any:
    """Make torch's own iterator of a view, whose class may be a FastLoader's."""
    return vars(view).get("_get_iterator", functools.partial(DataLoader._get_iterator, view))()


def take_over(taker: DataLoader[Any], loader: DataLoader[Any]) -> None:
    """Give ``taker`` the attributes of a loader that it replaces.

    Raises:
        ValueError: ``loader`` is torchdata's StatefulDataLoader, and is about to go on from a state.
    """
    if is_torchdatas(loader) and _is_loaded(vars(loader)):
        raise ValueError(
            "FastLoader.wrap needs a StatefulDataLoader that has loaded no state: only torchdata can go on from one; "
            "use fastload.prefetch_to_device(loader), which keeps it"
        )
    vars(taker).update(vars(loader), _iterator=None)
    if is_torchdatas(loader):
        for name in _TORCHDATAS:
            vars(taker).pop(name, None)


def _is_loaded(torchdatas: dict[str, Any]) -> bool:
    """Whether a loader with these attributes will go on from a loaded state."""
    begun = torchdatas.get("_initial_iter_for_state_dict") and torchdatas.get("_iterator")  # by its state_dict()
    return torchdatas.get("next_iter_state") is not None or bool(begun and begun._num_yielded)


def is_torchdatas(loader: DataLoader[Any]) -> bool:
    """Whether a loader iterates and saves its state by torchdata's StatefulDataLoader alone."""
    names = ("__iter__", "_get_iterator", "state_dict", "load_state_dict")
    makers = {next((kind for kind in type(loader).__mro__ if name in vars(kind)), None) for name in names}
    return {maker and maker.__module__ for maker in makers} == {"torchdata.stateful_dataloader.stateful_dataloader"}


@functools.cache
def without_del(kind: type) -> type:
    """Derive a loader class without the user's ``__del__``, for views and twins."""
    if not hasattr(kind, "__del__"):
        return kind
    return type(kind)(kind.__name__, (kind,), {"__del__": lambda self: None, "__module__": kind.__module__})
