"""Patch functions in place with ranges, and restore them.

A function written in Python keeps its identity; only its code is replaced. So existing references (a module that
imported it by name, a loader that has it as its collate function) call the annotated version, and pickle, which sends
functions by name and compares them by identity, still works. Other callables are replaced under their name, in every
module that holds them.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from fastload.nvtx.wrapping import Kind, Label, around, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType

_MISSING: Final = object()
_lock: Final = threading.RLock()


class Site:
    """A callable with labels. Without any it is unpatched."""

    def __init__(self, key: object) -> None:
        self.key = key
        self.labels: tuple[Label, ...] = ()

    def __iter__(self) -> Iterator[Label]:
        return iter(self.labels)

    def add(self, label: Label) -> None:
        """Add a range around each call, inside the others."""
        with _lock:
            if not self.labels:
                self._install()
            self.labels = (*self.labels, label)

    def discard(self, label: Label) -> None:
        """Remove that range."""
        with _lock:
            remaining = tuple(other for other in self.labels if other is not label)
            had_any, self.labels = bool(self.labels), remaining
            if had_any and not remaining:
                self._restore()
                _sites.pop(self.key, None)

    def _install(self) -> None:
        raise NotImplementedError

    def _restore(self) -> None:
        raise NotImplementedError


class CodeSite(Site):
    """A Python function, whose code is replaced by a call of its annotated copy."""

    def __init__(self, function: FunctionType) -> None:
        super().__init__(function)
        self._function = function

    def _install(self) -> None:
        function = self._function
        self._code = function.__code__
        self._keyword_defaults = function.__kwdefaults__
        self._wrapped = vars(function).get("__wrapped__", _MISSING)
        copy = FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        copy.__kwdefaults__ = function.__kwdefaults__
        functools.update_wrapper(copy, function, updated=("__dict__",))
        if self._wrapped is _MISSING:
            del copy.__wrapped__  # type: ignore[attr-defined]
        else:
            copy.__wrapped__ = self._wrapped  # type: ignore[attr-defined]
        # The order matters to other threads: the old code ignores the extra default, the new code needs it.
        function.__kwdefaults__ = {**(self._keyword_defaults or {}), "__fastload__": around(copy, self)}
        function.__wrapped__ = copy  # type: ignore[attr-defined]  # inspect takes the signature from the copy
        self._ours = function.__code__ = _calling(copy)

    def _restore(self) -> None:
        function = self._function
        if function.__code__ is not self._ours:
            return  # patched by other code since; ours opens no range if it is called again
        function.__code__ = self._code
        function.__kwdefaults__ = self._keyword_defaults
        if self._wrapped is _MISSING:
            del function.__wrapped__  # type: ignore[attr-defined]
        else:
            function.__wrapped__ = self._wrapped  # type: ignore[attr-defined]


class NameSite(Site):
    """Any other callable, or an inherited method, replaced under its name."""

    def __init__(self, owner: ModuleType | type, name: str) -> None:
        super().__init__((owner, name))
        self._owner = owner
        self._name = name
        self._holders: list[tuple[ModuleType, str]] = []

    def _install(self) -> None:
        self._found = inspect.getattr_static(self._owner, self._name)
        self._own = self._name in vars(self._owner)
        self._ours = self._replacement()
        try:
            setattr(self._owner, self._name, self._ours)
        except TypeError as error:
            raise TypeError(
                f"annotate takes attributes that can be set, got {self._name} of {self._owner}: {error}; annotate a "
                "function that calls it"
            ) from None
        if isinstance(self._owner, ModuleType):
            self._holders = holders(self._found)
            for module, name in self._holders:
                setattr(module, name, self._ours)

    def _replacement(self) -> Any:
        found = self._found
        if isinstance(found, staticmethod):
            return staticmethod(around(found.__func__, self))
        if isinstance(found, classmethod):
            return classmethod(around(found.__func__, self))
        if isinstance(found, property):
            getter = around(found.fget, self) if found.fget is not None else None
            return property(getter, found.fset, found.fdel, found.__doc__)
        if isinstance(found, functools.cached_property):
            cached = functools.cached_property(around(found.func, self))
            cached.__set_name__(self._owner, self._name)  # type: ignore[arg-type]
            return cached
        replacement = around(found, self)
        for name in dir(found):  # such as cache_clear of what functools.cache returns
            if not hasattr(replacement, name):
                setattr(replacement, name, getattr(found, name))
        binds = isinstance(self._owner, ModuleType) or hasattr(found, "__get__")
        return replacement if binds else staticmethod(replacement)

    def _restore(self) -> None:
        for module, name in {*self._holders, *holders(self._ours)}:
            if vars(module).get(name) is self._ours:
                setattr(module, name, self._found)
        if vars(self._owner).get(self._name) is not self._ours:
            return  # see CodeSite
        if self._own:
            setattr(self._owner, self._name, self._found)
        else:
            delattr(self._owner, self._name)


_sites: Final[dict[object, Site]] = {}


def site_of(owner: ModuleType | type, name: str) -> Site:
    """Return the site of an attribute; raises ``TypeError`` if that is not callable."""
    found = inspect.getattr_static(owner, name)
    if isinstance(found, type) or not _is_callable(found):
        example = f"a method of it, such as {name}.__init__" if isinstance(found, type) else "a function or a method"
        raise TypeError(
            f"annotate takes a function or a method, got {name} of {owner.__name__}, a {type(found).__name__}; name "
            f"{example}"
        )
    with _lock:
        function = _function_in(found)
        if (owner, name) in _sites:
            return _sites[owner, name]
        if function is not None and name in vars(owner):
            return _sites.setdefault(function, CodeSite(function))
        return _sites.setdefault((owner, name), NameSite(owner, name))


def _is_callable(found: Any) -> bool:
    return callable(found) or isinstance(found, staticmethod | classmethod | property | functools.cached_property)


def _function_in(found: Any) -> FunctionType | None:
    """The Python function behind an attribute, if its code can be replaced."""
    if isinstance(found, staticmethod | classmethod):
        found = found.__func__
    elif isinstance(found, property):
        found = found.fget
    elif isinstance(found, functools.cached_property):
        found = found.func
    if type(found) is not FunctionType:
        return None
    free = found.__code__.co_freevars
    return found if tuple(sorted(free)) == free else None  # compilers sort them: new code could not have another order


def holders(value: object, besides: str = "") -> list[tuple[ModuleType, str]]:
    """List modules outside ``besides`` that hold ``value`` as a global. About 10 ms."""
    return [
        (module, name)
        for key, module in list(sys.modules.items())
        if isinstance(module, ModuleType) and key.partition(".")[0] != besides
        for name, held in list(vars(module).items())
        if held is value
    ]


_BODIES: Final[dict[Kind, str]] = {
    "function": "return __fastload__(*args, **kwargs)",
    "generator": "return (yield from __fastload__(*args, **kwargs))",
    "coroutine": "return await __fastload__(*args, **kwargs)",
    "async generator": """
        source = __fastload__(*args, **kwargs)
        step = source.asend(None)
        while True:
            try:
                item = await step
            except StopAsyncIteration:
                return
            try:
                sent = yield item
            except GeneratorExit:
                await source.aclose()
                raise
            except BaseException as error:
                step = source.athrow(error)
            else:
                step = source.asend(sent)
    """,
}


def _calling(function: FunctionType) -> CodeType:
    """Replacement code for ``function`` that calls the default of the argument ``__fastload__``."""
    code = function.__code__
    return _template(kind_of(function), code.co_freevars).replace(co_name=code.co_name, co_qualname=code.co_qualname)


@functools.cache
def _template(kind: Kind, free: tuple[str, ...]) -> CodeType:
    """The replacement code without its name. A closure is fixed, so the cells must match."""
    keyword = "async def" if kind in ("coroutine", "async generator") else "def"
    mention = f"if 0: {', '.join(free)}" if free else "pass"
    source = f"""
def outer({", ".join(free)}):
    {keyword} inner(*args, __fastload__, **kwargs):
        {mention}
        {_BODIES[kind].strip()}
    return inner
"""
    namespace: dict[str, Callable[..., FunctionType]] = {}
    exec(compile(source, "<annotated by fastload>", "exec"), namespace)
    return namespace["outer"](*free).__code__
