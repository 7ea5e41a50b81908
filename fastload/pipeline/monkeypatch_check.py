"""Detect monkeypatches of library functions and of library objects."""

from __future__ import annotations

import builtins
import functools
import sys
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping

    _Space = Mapping[Any, object]
    _Held = tuple[_Space, Any, object, object, str]  # namespace, name, value, equally valid value, reason

_CALLS = ("__call__", "_call_impl", "_wrapped_call_impl", "forward")  # of nn.Module; users patch these to trace
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")

_ABSENT: Final = object()
_BUILTINS: Final = frozenset(vars(builtins))
_OWNERS: Final = {
    **{"PIL": "Pillow", "numpy": "NumPy", "torch": "torch", "torchvision": "torchvision", "timm": "timm"},
    "datasets": "Hugging Face",
}
_LIBRARIES: Final = frozenset(_OWNERS)
# Where a library's code may come from: decorators and dataclasses are the standard library's. unittest holds mocks.
_AT_HOME: Final = (_LIBRARIES | sys.stdlib_module_names | {"typing_extensions"}) - {"unittest"}


class Functions:
    """A record of library functions: of modules, classes and registries, as they were when added.

    A function is patched if it was replaced, changed in place (its code or defaults), or shadowed by something new: a
    global named like a builtin, a method that was inherited. A patch made before the function was added shows by where
    its code was written. fastload's own annotations are not patches: they call the original.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[int, Hashable], _Held] = {}
        self._bodies: dict[FunctionType, tuple[CodeType, Any, Any, str]] = {}
        self._classes: list[tuple[type, tuple[type, ...], int, frozenset[str]]] = []
        self._foreign: list[tuple[_Space, Any, str, str | None, bool]] = []
        self._mentioned: set[str] = set(_BUILTINS)

    def add(
        self,
        holder: ModuleType | type,
        names: Iterable[str] | None = None,
        *,
        besides: Iterable[str] = (),
        own: bool = False,
    ) -> None:
        """Record the contents of a module or class.

        Args:
            holder: The module or class.
            names: Names to record, whether they exist or not. By default all callables and the modules that it refers
                to, and the methods of the classes that it defines.
            besides: Names to skip, in its classes too.
            own: Whether a method must have been written in exactly that class.
        """
        space = vars(holder)
        chosen = [name for name, value in space.items() if _takes_part(value)] if names is None else names
        for name in chosen:
            if name in besides:
                continue
            value = space.get(name, _ABSENT)
            inherited = [vars(base)[name] for base in _bases(holder) if name in vars(base)]
            reason = _reason(f"{_name_of(holder)}.{name}", holder, value)
            owner = holder.__name__ if own else None
            self._watch(space, name, reason, [*inherited, _ABSENT][0], owner=owner, asked=own or names is not None)
            if names is None and isinstance(value, type) and value.__module__ == _name_of(holder):
                self.add(value, besides=besides)
        if isinstance(holder, type) and names is None:
            self._classes.append((holder, holder.__mro__, len(space), frozenset(space)))

    def add_entries(self, registry: _Space, keys: Iterable[Hashable], what: str, owner: str) -> None:
        """Record a registry's entries, or their absence.

        Args:
            registry: Mapping to look ``keys`` up in.
            keys: Keys to record.
            what: Name of an entry, with ``{key}`` for the key.
            owner: The library's name.
        """
        for key in keys:
            shown = _name_of(key) if isinstance(key, type) else repr(key)
            self._watch(registry, key, f"{what.format(key=shown)} was replaced; leave {owner}'s as it is", asked=True)

    def _watch(
        self,
        space: _Space,
        name: Any,
        reason: str,
        inherited: object = _ABSENT,
        *,
        owner: str | None = None,
        asked: bool = False,
    ) -> None:
        value = space.get(name, _ABSENT)
        if (id(space), name) in self._held:
            return
        if _is_foreign(value, owner):
            self._foreign.append((space, name, reason, owner, asked))
            return
        self._held[id(space), name] = space, name, value, inherited if value is _ABSENT else value, reason
        for function in _functions_in(value):
            plain = _plain(function)
            if function in self._bodies or not isinstance(plain, FunctionType):
                continue
            keywords = None if plain.__kwdefaults__ is None else dict(plain.__kwdefaults__)
            self._bodies[function] = plain.__code__, plain.__defaults__, keywords, reason
            self._watch_globals(plain)

    def _watch_globals(self, function: FunctionType) -> None:
        """Record the globals that a function calls, including builtins that a global could shadow.

        Skips torch, whose globals hold functions that come and go.
        """
        names = set(_names_in(function.__code__))
        self._mentioned |= names
        space = function.__globals__
        module = space.get("__name__")
        if _top(module) in ("PIL", "torchvision"):
            for name in names & (_BUILTINS | space.keys()):
                if name not in space or _takes_part(space[name]):
                    self._watch(space, name, _reason(f"{module}.{name}", None, space.get(name, _ABSENT)))

    def patched(self) -> str | None:
        """Say what was patched, and to leave it as it is; ``None`` if nothing."""
        for entry in list(self._foreign):
            space, name, reason, owner, asked = entry
            if not _is_foreign(space.get(name, _ABSENT), owner):  # the patch was undone
                self._foreign.remove(entry)
                self._watch(space, name, reason, owner=owner, asked=asked)
            # A name that no library function uses is harmless: a user's method added to the library's class.
            elif asked or name.startswith("__") or name in self._mentioned:
                return reason
        for space, name, value, also, reason in self._held.values():
            now = space.get(name, _ABSENT)
            if now is not value and _original(now) != _original(also):
                return reason
        for function, (code, *rest, reason) in self._bodies.items():
            if function.__code__ is not code or [function.__defaults__, function.__kwdefaults__] != rest:
                plain = _plain(function)
                if [plain.__code__, plain.__defaults__, plain.__kwdefaults__] != [code, *rest]:
                    return reason
        for cls, bases, count, known in self._classes:
            if (cls.__mro__ is not bases or len(vars(cls)) != count) and (name := _hiding(cls, bases, known)):
                return _reason(f"{_name_of(cls)}.{name}", cls, None)
        return None

    def __iter__(self) -> Iterator[tuple[_Space, Any, str]]:
        """Yield each recorded function's namespace, its name there, and the reason to give if patched."""
        return ((space, name, reason) for space, name, *_, reason in self._held.values())


def imported(name: str) -> ModuleType | None:
    """The module if its import has finished, else ``None``."""
    module = sys.modules.get(name)
    return None if module is None or getattr(module.__spec__, "_initializing", False) else module


def is_own(cls: type) -> bool:
    """Whether a class was defined by one of the libraries."""
    return _top(cls.__module__) in _LIBRARIES and getattr(imported(cls.__module__), cls.__qualname__, None) is cls


def _hiding(cls: type, bases: tuple[type, ...], known: frozenset[str]) -> str | None:
    """Name of a new attribute of the class that overrides another, if any."""
    if cls.__mro__ != bases:
        return "__bases__"
    for name in vars(cls).keys() - known:
        value = vars(cls)[name]
        inherited = [_original(vars(base)[name]) for base in bases[1:] if name in vars(base)]
        if _takes_part(value) and (_original(value) != inherited[0] if inherited else name.startswith("__")):
            return name
    return None


def _bases(holder: ModuleType | type) -> tuple[type, ...]:
    return holder.__mro__[1:] if isinstance(holder, type) else ()


def _takes_part(value: object) -> bool:
    return callable(value) or isinstance(value, ModuleType | staticmethod | classmethod | property)


def _parts(value: object) -> tuple[object, ...]:
    """The functions behind a callable or class attribute that wraps them."""
    if isinstance(value, tuple):
        return value
    if isinstance(value, property):
        return value.fget, value.fset
    if isinstance(value, staticmethod | classmethod | MethodType):
        return (value.__func__,)
    return (value.func,) if isinstance(value, functools.partial) else ()


def _functions_in(value: object) -> list[FunctionType]:
    """The Python functions behind a value, including those that they wrap."""
    found = [function for part in _parts(value) for function in _functions_in(part)]
    if isinstance(value, FunctionType):
        found.append(value)
    if not isinstance(value, type | ModuleType) and hasattr(value, "__wrapped__"):
        found += _functions_in(value.__wrapped__)
    return found


def _plain(function: Any) -> Any:
    """Remove fastload's annotations from a function; see ``fastload.nvtx.patching``."""
    while isinstance(function, FunctionType) and (
        "__fastload__" in (function.__kwdefaults__ or ())
        or function.__globals__.get("__name__") == "fastload.nvtx.wrapping"
    ):
        function = function.__wrapped__  # type: ignore[attr-defined]
    return function


def _original(value: Any) -> Any:
    """A key that is equal for values that do the same, annotated or not."""
    parts = _parts(value)
    return (type(value), *map(_original, parts)) if parts else _plain(value)


def _is_foreign(value: object, owner: str | None = None) -> bool:
    """Whether code appears to come from outside the libraries and the standard library.

    Args:
        value: A function, class, module or wrapper of one.
        owner: Name of the class in which a method must have been written.
    """
    if parts := _parts(value):
        return any(_is_foreign(part, owner) for part in parts)
    functions = [_plain(function) for function in _functions_in(value)]
    if functions:
        cls, dot, _ = getattr(functions[0], "__qualname__", "").partition(".")
        if owner is not None and dot and cls != owner:
            return True
        return any(isinstance(function, FunctionType) and _is_written_elsewhere(function) for function in functions)
    if value is _ABSENT or value is None:
        return False
    if isinstance(value, ModuleType):
        return _top(value.__name__) not in _AT_HOME
    return _top((value if isinstance(value, type) else type(value)).__module__) not in _AT_HOME


def _is_written_elsewhere(function: FunctionType) -> bool:
    module = str(function.__globals__.get("__name__"))  # functools.wraps copies __module__
    if _top(module) not in _LIBRARIES:
        return _top(module) not in _AT_HOME and not module.startswith("namedtuple_")
    file = f"/{function.__code__.co_filename}".replace("\\", "/")
    path = module.replace(".", "/")
    return not file.endswith((f"/{path}.py", f"/{path}/__init__.py", ">"))  # <string>: generated, e.g. by a dataclass


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _reason(what: str, holder: ModuleType | type | None, value: object) -> str:
    noun = "method" if isinstance(holder, type) else "function"
    if isinstance(value, ModuleType | type):
        noun = "module" if isinstance(value, ModuleType) else "class"
    return f"{what} was patched; leave {_OWNERS.get(_top(what), 'Python')}'s {noun} as it is"


def _top(module: object) -> str:
    return str(module).partition(".")[0]


def _name_of(holder: ModuleType | type) -> str:
    return holder.__name__ if isinstance(holder, ModuleType) else f"{holder.__module__}.{holder.__qualname__}"


class Originals:
    """A record of torchvision classes as they were when added.

    Args:
        classes: Classes to record.
        besides: Names of methods to skip.
    """

    def __init__(self, classes: tuple[type, ...], besides: tuple[str, ...] = ()) -> None:
        self._functions: dict[type, Functions] = {}
        self._besides = besides
        for cls in classes:
            self.add(cls)

    def add(self, cls: type) -> None:
        """Record a class, unless it is already recorded."""
        if cls in self._functions:
            return
        functions = Functions()
        for base in cls.__mro__:
            if base is torch.nn.Module:
                functions.add(base, _CALLS, own=True)
            elif _top(base.__module__) in ("torch", "torchvision", "timm"):
                functions.add(base, besides=self._besides, own=True)
        self._functions[cls] = functions

    def __contains__(self, cls: type) -> bool:
        return cls in self._functions

    def patched(self, thing: Any, cls: type | None = None) -> str | None:
        """Say what was changed on an object, its class or that base; ``None`` if nothing."""
        cls = type(thing) if cls is None else cls
        if (reason := self._functions[cls].patched()) is not None:
            return reason
        for name in vars(thing):
            if _takes_part(getattr(cls, name, None)):
                return _reason(f"{_name_of(cls)}.{name}", cls, None)
        if any(vars(thing).get(name) for name in _HOOKS):
            return f"{cls.__name__} has forward hooks, which run in every sample; remove them"
        module = sys.modules["torch.nn.modules.module"]
        if isinstance(thing, torch.nn.Module) and any(getattr(module, name, None) for name in _GLOBAL_HOOKS):
            return "torch.nn's global forward hooks are set, which run in every transform; remove them"
        return None
