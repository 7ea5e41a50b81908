"""Whether a library's class still is as the library defined it, and an object of it nothing but that."""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any

import torch

_CALLS = ("__call__", "_call_impl", "_wrapped_call_impl", "forward")  # of nn.Module, which users patch to trace
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")


def _behaviour(cls: type) -> dict[tuple[type, str], object]:
    """The methods that make up a class, its bases' included."""
    found: dict[tuple[type, str], object] = {}
    for base in cls.__mro__:
        library = base.__module__.partition(".")[0]
        if base is torch.nn.Module:
            names = [name for name in _CALLS if name in vars(base)]
        elif library in ("torch", "torchvision"):
            names = [name for name, value in vars(base).items() if _is_method(value)]
        else:
            names = []
        found.update({(base, name): vars(base)[name] for name in names})
    return found


def _is_method(value: object) -> bool:
    return callable(value) or isinstance(value, staticmethod | classmethod | property)


class Originals:
    """Classes of torchvision as they were when they were added.

    A method that had been patched before that gives itself away by where it was defined.

    Args:
        classes: To remember.
    """

    def __init__(self, classes: tuple[type, ...]) -> None:
        self._behaviour: dict[type, dict[tuple[type, str], object]] = {}
        self._foreign: dict[type, str | None] = {}
        for cls in classes:
            self.add(cls)

    def add(self, cls: type) -> None:
        """Remember one more class, if it is new."""
        if cls not in self._behaviour:
            behaviour = _behaviour(cls)
            self._foreign[cls] = _foreign(behaviour)
            self._behaviour[cls] = behaviour

    def __contains__(self, cls: type) -> bool:
        return cls in self._behaviour

    def patched(self, thing: Any) -> str | None:
        """The name of what was changed on an object of one of the classes, or on its class; ``None`` if nothing was."""
        cls = type(thing)
        known = self._behaviour[cls]
        if self._foreign[cls] is not None:
            return self._foreign[cls]
        now = _behaviour(cls)
        for base, name in [*known, *now]:  # replaced, taken away, or put before an inherited one
            if now.get((base, name)) is not known.get((base, name)):
                return f"{base.__name__}.{name}"
        own = vars(thing)
        names = {name for _, name in known}
        for name in own:
            if name in names:
                return f"{cls.__name__}.{name}"
        if any(own.get(name) for name in _HOOKS):
            return f"{cls.__name__}'s forward hooks"
        module = sys.modules["torch.nn.modules.module"]
        if isinstance(thing, torch.nn.Module) and any(getattr(module, name, None) for name in _GLOBAL_HOOKS):
            return "torch.nn's global forward hooks"
        return None


def _foreign(behaviour: dict[tuple[type, str], object]) -> str | None:
    for (base, name), value in behaviour.items():
        function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        module = getattr(function, "__module__", None)
        if module is not None and module.partition(".")[0] not in ("torch", "torchvision", "typing", "builtins"):
            return f"{base.__name__}.{name}"
        owner, dot, _ = function.__qualname__.partition(".") if isinstance(function, FunctionType) else ("", "", "")
        if dot and owner != base.__name__:  # another class's
            return f"{base.__name__}.{name}"
    return None
