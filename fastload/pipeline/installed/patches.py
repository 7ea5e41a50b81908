"""Detect monkeypatches of library functions and of library objects."""

from __future__ import annotations

import builtins
import functools
import sys
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import torch

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping

    from fastload import _core

    _Space = Mapping[Any, object]
    _Held = tuple[_Space, Any, object, object, str]  # namespace, name, value, equally valid value, reason

MODULE_CALL: Final = ("_call_impl", "_slow_forward", "_compiled_call_impl", "_wrapped_call_impl")
"""What a call of an ``nn.Module`` goes through before it comes to ``forward``; users patch these to trace."""
HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""What an ``nn.Module`` calls around ``forward``. Those for gradients ask its results, too."""
_CALLS: Final = ("__call__", "forward", *MODULE_CALL)
_UNCALLED: Final = frozenset(("__init__", "__repr__", "__str__"))
"""What is not called while samples are made."""

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
        self._classes: list[tuple[type, tuple[type, ...], int, frozenset[str], frozenset[str] | None]] = []
        self._foreign: list[tuple[_Space, Any, str, str | None, bool]] = []
        self._mentioned: set[str] = set(_BUILTINS)
        self._types: set[type] = set()
        self._stamp: _core.Stamp | None = None  # of a time when nothing was patched

    def add(
        self,
        holder: ModuleType | type,
        names: Iterable[str] | None = None,
        *,
        besides: Iterable[str] = (),
    ) -> None:
        """Record the contents of a module or class.

        Args:
            holder: The module or class.
            names: Names to record, whether they exist or not. By default all callables and the modules that it refers
                to, and the methods of the classes that it defines.
            besides: Names to skip, in its classes too.
        """
        space = vars(holder)
        chosen = [name for name, value in space.items() if _takes_part(value)] if names is None else names
        for name in chosen:
            if name in besides:
                continue
            value = space.get(name, _ABSENT)
            self._watch_in(holder, name, None, asked=names is not None)
            if names is None and isinstance(value, type) and value.__module__ == _name_of(holder):
                self.add(value, besides=besides)
        if isinstance(holder, type) and names is None:
            self._add_class(holder, None)

    def add_own(self, cls: type, names: Iterable[str]) -> None:
        """Record attributes of a class, which must have been written in exactly that class.

        Args:
            cls: The class.
            names: Names to record, and the only ones of which something new may hide an inherited one.
        """
        names = frozenset(names)
        for name in names & vars(cls).keys():
            self._watch_in(cls, name, cls.__name__, asked=True)
        self._add_class(cls, names)

    def _add_class(self, cls: type, names: frozenset[str] | None) -> None:
        self._classes.append((cls, cls.__mro__, len(vars(cls)), frozenset(vars(cls)), names))
        self._types.add(cls)

    def _watch_in(self, holder: ModuleType | type, name: str, owner: str | None, *, asked: bool) -> None:
        if isinstance(holder, type):
            self._types.add(holder)
        value = vars(holder).get(name, _ABSENT)
        inherited = [vars(base)[name] for base in _bases(holder) if name in vars(base)]
        reason = _reason(f"{_name_of(holder)}.{name}", holder, value)
        self._watch(vars(holder), name, reason, [*inherited, _ABSENT][0], owner=owner, asked=asked)

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
        self._stamp = None
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
        names = set(names_in(function.__code__))
        self._mentioned |= names
        space = function.__globals__
        module = space.get("__name__")
        if _top(module) in ("PIL", "torchvision"):
            for name in names & (_BUILTINS | space.keys()):
                if name not in space or _takes_part(space[name]):
                    self._watch(space, name, _reason(f"{module}.{name}", None, space.get(name, _ABSENT)))

    def patched(self) -> str | None:
        """Say what was patched, and to leave it as it is; ``None`` if nothing.

        Takes 10 µs for a thousand functions of which none has changed since the last call.
        """
        if self._stamp is not None and self._stamp.holds():
            return None
        reason = self._compared()
        self._stamp = None if reason is not None else self._stamp_now()
        return reason

    def _stamp_now(self) -> _core.Stamp:
        from fastload import _core

        looked_up = [(space, name) for space, name, *_ in (*self._held.values(), *self._foreign)]
        entries = [(space, name) for space, name in looked_up if isinstance(space, dict)]
        keywords = [function.__kwdefaults__ for function in self._bodies if function.__kwdefaults__ is not None]
        return _core.Stamp(entries, keywords, [], [*self._types], [*self._bodies])

    def _compared(self) -> str | None:
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
        for cls, bases, count, known, names in self._classes:
            if (cls.__mro__ is not bases or len(vars(cls)) != count) and (name := _hiding(cls, bases, known, names)):
                return _reason(f"{_name_of(cls)}.{name}", cls, None)
        return None

    def __iter__(self) -> Iterator[tuple[_Space, Any, str]]:
        """Yield each recorded function's namespace, its name there, and the reason to give if patched."""
        return ((space, name, reason) for space, name, *_, reason in self._held.values())


def imported(name: str) -> ModuleType | None:
    """The module if its import has finished, else ``None``."""
    module = sys.modules.get(name)
    return None if module is None or getattr(module.__spec__, "_initializing", False) else module


def is_at_home(module: object) -> bool:
    """Whether a module of this name is one of the libraries or the standard library."""
    return _top(module) in _AT_HOME


def is_own(cls: type) -> bool:
    """Whether a class was defined by one of the libraries."""
    return _top(cls.__module__) in _LIBRARIES and getattr(imported(cls.__module__), cls.__qualname__, None) is cls


def _hiding(
    cls: type, bases: tuple[type, ...], known: frozenset[str], names: frozenset[str] | None = None
) -> str | None:
    """Name of a new attribute of the class that overrides another, if any.

    With ``names``, only these count, and new special methods.
    """
    if cls.__mro__ != bases:
        return "__bases__"
    for name in vars(cls).keys() - known:
        value = vars(cls)[name]
        inherited = [_original(vars(base)[name]) for base in bases[1:] if name in vars(base)]
        is_special = name.startswith("__")
        if names is None or not inherited or is_special:
            counts = _takes_part(value) and not (names is not None and name in _UNCALLED)
        else:
            counts = name in names
        if counts and (_original(value) != inherited[0] if inherited else is_special):
            return name
    return None


def hidden(thing: Any, cls: type, names: Collection[str]) -> str | None:
    """Name an object's attribute that hides one of its class, if any.

    Args:
        thing: The object.
        cls: Its class, or a base of that.
        names: Names that count. A property that the object cannot hide always does.
    """
    held: dict[str, Any] = vars(thing)
    for base in cls.__mro__:
        for name in held.keys() & vars(base).keys():
            if name in names or hasattr(type(vars(base)[name]), "__set__"):
                return name
    return "__deepcopy__" if "__deepcopy__" in held else None  # copy asks the object for it


def _reached(cls: type, methods: Iterable[str]) -> frozenset[str]:
    """Names that some methods of a class use, directly or through its other methods."""
    found: set[str] = set()
    left = [*methods]
    while left:
        if (name := left.pop()) in found:
            continue
        found.add(name)
        for base in cls.__mro__:
            for function in _functions_in(vars(base).get(name)):
                left += names_in(_plain(function).__code__)
    return frozenset(found)


def _bases(holder: ModuleType | type) -> tuple[type, ...]:
    return holder.__mro__[1:] if isinstance(holder, type) else ()


def _takes_part(value: object) -> bool:
    if isinstance(value, GetSetDescriptorType | MemberDescriptorType):  # of attributes in C and of slots
        return False
    return callable(value) or isinstance(value, ModuleType) or hasattr(type(value), "__get__")


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
    while isinstance(function, FunctionType) and hasattr(function, "__wrapped__"):
        from fastload.nvtx.wrapping import is_wrapper

        if "__fastload__" not in (function.__kwdefaults__ or ()) and not is_wrapper(function):
            break
        function = function.__wrapped__
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


def is_written_in(function: object, module: str) -> TypeGuard[FunctionType]:
    """Whether a module's code makes a function; a patch may bear its names."""
    return isinstance(function, FunctionType) and function.__globals__.get("__name__") == module


def names_in(code: CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in code, functions within it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)


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
    """A record of library classes as they were when added.

    Args:
        classes: Classes to record.
        called: Methods that are called while samples are made: what these don't use may change. By default everything
            in the classes counts, data included.
    """

    def __init__(self, classes: tuple[type, ...], called: tuple[str, ...] = ()) -> None:
        self._functions: dict[type, Functions] = {}
        self._names: dict[type, frozenset[str]] = {}
        self._called = called
        for cls in classes:
            self.add(cls)

    def add(self, cls: type) -> None:
        """Record a class, unless it is already recorded."""
        if cls in self._functions:
            return
        bases = [base for base in cls.__mro__ if _top(base.__module__) in ("torch", "torchvision", "timm")]
        names = {
            name
            for base in bases
            for name, value in vars(base).items()
            if base is not torch.nn.Module and (_takes_part(value) or not name.startswith("__"))
        }
        if self._called:
            called = _reached(cls, self._called)
            names = {name for name in names if name in called or (name.startswith("__") and name not in _UNCALLED)}
        functions = Functions()
        for base in bases:
            functions.add_own(base, _CALLS if base is torch.nn.Module else names)
        self._functions[cls] = functions
        self._names[cls] = frozenset(names).union(_CALLS if torch.nn.Module in bases else ())

    def __contains__(self, cls: type) -> bool:
        return cls in self._functions

    def counts(self, cls: type, name: str) -> bool:
        """Whether a class has an attribute that takes part in making samples."""
        return name in self._names[cls]

    def patched(self, thing: Any, cls: type | None = None) -> str | None:
        """Say what was changed on an object, its class or that base; ``None`` if nothing."""
        cls = type(thing) if cls is None else cls
        if (reason := self._functions[cls].patched()) is not None:
            return reason
        if vars(thing).get("_compiled_call_impl") is not None:
            return f"{cls.__name__} was compiled, which may change its results; leave out compile()"
        name = hidden(thing, cls, self._names[cls])
        if self._called and hasattr(thing, "__getitems__") and "__getitems__" not in self._names[cls]:
            name = "__getitems__"  # which torch's fetcher and Subset ask the object for
        if name is not None:
            return _reason(f"{_name_of(cls)}.{name}", cls, None)
        if any(vars(thing).get(name) for name in HOOKS):
            return f"{cls.__name__} has forward hooks, which run in every sample; remove them"
        module = sys.modules["torch.nn.modules.module"]
        if isinstance(thing, torch.nn.Module) and any(getattr(module, f"_global{name}", None) for name in HOOKS):
            return "torch.nn's global forward hooks are set, which run in every transform; remove them"
        return None
