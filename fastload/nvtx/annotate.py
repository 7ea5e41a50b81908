"""``annotate``: a range around any call, without changes to the measured code."""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import pickle
import threading
import warnings
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, overload

from fastload.nvtx import stages
from fastload.nvtx.patching import Site, site_of
from fastload.nvtx.ranges import NvtxRange, pop, push
from fastload.nvtx.wrapping import Label, around

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")


@overload
def annotate(target: F, /) -> F: ...
@overload
def annotate(target: str, /, *, message: str | Callable[..., object] | None = None) -> Annotation: ...
@overload
def annotate(
    target: ModuleType | type, name: str, /, *, message: str | Callable[..., object] | None = None
) -> Annotation: ...
@overload
def annotate(*, message: str | Callable[..., object] | None = None) -> Block: ...


def annotate(
    target: Any = None, name: str | None = None, /, *, message: str | Callable[..., object] | None = None
) -> Any:
    """Put NVTX ranges around calls of a named or decorated function, or a block.

    Four ways to name the target:

    * ``annotate("package.module:Class.method")`` and ``annotate(owner, "name")``, with a module or a class as owner,
      put a range around every call from now on, from any caller, until ``.remove()``; used with ``with``, until the end
      of the block. Functions, methods, class methods, static methods, properties, builtins.
    * ``@annotate`` and ``@annotate(message=...)`` decorate a function.
    * ``with annotate(message="epoch"):`` puts a range around a block.

    >>> import json
    >>> from fastload import annotate
    >>> with annotate("json:JSONDecoder.decode"):
    ...     json.loads("[1, 2]")
    [1, 2]
    >>> handle = annotate(json, "loads", message=lambda text: f"loads {len(text)} characters")
    >>> handle.remove()
    >>> @annotate(message="double")
    ... def double(number):
    ...     return 2 * number
    >>> double(4)
    8

    Ranges are in the domain ``fastload``, in every thread. They end with the call, also when it raises. Generators,
    coroutines and asynchronous generators have one range for each period that they run, none while they are suspended.
    Without a tool a call costs a fraction of a microsecond more; torch.profiler, while it runs, is a tool too. Code
    compiled by ``torch.compile`` has no ranges.

    Worker processes have the ranges as well: forked ones inherit them, others receive them when they start, even if the
    loader was made earlier. A class or function defined inside another function cannot be named there.

    Code that FastLoader runs natively makes no calls to annotate; with ``engine="torch"`` they are made.

    Args:
        target: See above.
        name: An attribute of ``target``.
        message: The range's name (default: the function's qualified name), or a function that takes the call's
            arguments and returns the name, such as ``lambda self, path: path``. Called only while a tool listens.

    Returns:
        An :class:`Annotation` that can be removed, or the decorated function.

    Raises:
        TypeError: The target cannot be annotated.
        ValueError: The name is not of the form ``module:qualname``.
        ImportError: The module cannot be imported.
        AttributeError: The module or owner has no such attribute.
    """
    if not (message is None or isinstance(message, str) or callable(message)):
        raise TypeError(f"message must be text or a function that returns it, got {message!r}")
    if target is None and name is None:
        return Block(message)
    if isinstance(target, str) and name is None:
        return Annotation(*_resolve(target), message)
    if name is not None:
        if not isinstance(target, ModuleType | type):
            raise TypeError(
                f"annotate takes a module or a class to look {name!r} up in, got an object of type "
                f"{type(target).__name__}; annotate(type(it), {name!r}) annotates it for every such object"
            )
        if not isinstance(name, str):
            raise TypeError(f"the name must be a string, got {name!r}")
        return Annotation(target, name, message)
    if isinstance(target, ModuleType | type) or not (
        callable(target) or isinstance(target, staticmethod | classmethod)
    ):
        raise TypeError(
            f"annotate takes 'module:qualname', an owner and a name, or a function to decorate, got {target!r}"
        )
    return Block(message)(target)


class Annotation:
    """A function's ranges, until removed. ``with`` removes them at the end of the block.

    Attributes:
        target: ``module:qualname`` of the annotated function.
    """

    def __init__(self, owner: ModuleType | type, name: str, message: str | Callable[..., object] | None = None) -> None:
        if not hasattr(owner, name):
            raise AttributeError(f"{owner.__name__} has no attribute {name!r} that could be annotated")
        self.target = _name_of(owner, name)
        self._message = message
        self._site: Site = site_of(owner, name)
        self._label = _label(self.target.partition(":")[2], message)
        self._site.add(self._label)
        _inherited.add(self)

    def remove(self) -> None:
        """Restore the function. Idempotent; its other annotations stay."""
        _inherited.discard(self)
        self._site.discard(self._label)

    def __enter__(self) -> Annotation:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __call__(self, *_: object) -> Any:
        """Refuse to decorate."""
        raise TypeError(
            f"annotate({self.target!r}) annotates what it names and decorates nothing; to name a decorated function's "
            "range write annotate(message=...)"
        )

    def __repr__(self) -> str:
        return f"<Annotation of {self.target}{'' if self._label in self._site.labels else ', removed'}>"

    def for_another_process(self) -> tuple[str, bytes] | None:
        """Arguments to recreate this in another process; ``None``, with a warning, if impossible."""
        qualname = self.target.partition(":")[2]
        if "<locals>" in qualname:
            self._complain(f"{qualname} exists inside a function, where another process cannot find it")
            return None
        try:
            message = pickle.dumps(self._message)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self._complain(f"its message function cannot be sent there ({error}), so its ranges bear the plain name")
            message = pickle.dumps(None)
        return self.target, message

    def _complain(self, reason: str) -> None:
        warnings.warn(
            f"annotate: {self.target} in processes that are not forked: {reason}", RuntimeWarning, stacklevel=2
        )


class Block:
    """Decorates functions, or puts a range around a ``with`` block."""

    def __init__(self, message: str | Callable[..., object] | None) -> None:
        self._message = message
        self._open = threading.local()

    def __call__(self, function: Any) -> Any:
        """Decorate ``function``."""
        if isinstance(function, staticmethod | classmethod):
            return type(function)(self(function.__func__))
        if isinstance(function, type) or not callable(function):
            raise TypeError(f"annotate decorates functions and methods, got {function!r}; decorate a method of it")
        name = getattr(function, "__qualname__", None) or type(function).__qualname__
        return around(function, (_label(name, self._message),))

    def __enter__(self) -> None:
        if not isinstance(self._message, str):
            raise TypeError(
                f"a block's range needs a name, got message={self._message!r}; write with annotate(message='name')"
            )
        if not hasattr(self._open, "ranges"):
            self._open.ranges = []
        self._open.ranges.append(push(NvtxRange(self._message)))

    def __exit__(self, *_: object) -> None:
        pop(self._open.ranges.pop())


def _label(name: str, message: str | Callable[..., object] | None) -> Label:
    return Label(message) if isinstance(message, str) else Label(name, message)


def _resolve(target: str) -> tuple[Any, str]:
    """Resolve ``module:qualname`` to an owner and an attribute name."""
    module_name, colon, qualname = target.partition(":")
    if not colon or not all(part.isidentifier() for part in [*module_name.split("."), *qualname.split(".")]):
        raise ValueError(
            f"annotate takes 'module:qualname', such as 'torch.utils.data:default_collate', got {target!r}; to name "
            "the range of a block or a decorated function write annotate(message=...)"
        )
    owner: Any = importlib.import_module(module_name)
    *path, name = qualname.split(".")
    owner = functools.reduce(getattr, path, owner)
    if not isinstance(owner, ModuleType | type):
        raise TypeError(
            f"annotate takes an attribute of a module or of a class, got {target!r}, where {path[-1]} is an object of "
            f"type {type(owner).__name__}"
        )
    return owner, name


def _name_of(owner: ModuleType | type, name: str) -> str:
    module = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
    module = module.replace("__mp_main__", "__main__")  # multiprocessing's name for it in a child
    return f"{module}:{name}" if isinstance(owner, ModuleType) else f"{module}:{owner.__qualname__}.{name}"


class _Inherited:
    """This process's annotations, which child processes inherit.

    Multiprocessing copies a process's configuration to its children: by fork with everything else, or by pickle, before
    the child's own function and arguments are unpickled. So unpickling this object annotates.
    """

    _key: Final[Literal["fastload"]] = "fastload"

    def __init__(self) -> None:
        self._annotations: dict[Annotation, None] = {}
        self._lock = threading.Lock()

    def add(self, annotation: Annotation) -> None:
        with self._lock:
            self._annotations[annotation] = None
            if stages.active():  # without a tool here, children have none either
                self._configuration()[self._key] = self

    def discard(self, annotation: Annotation) -> None:
        with self._lock:
            self._annotations.pop(annotation, None)
            if not self._annotations:
                self._configuration().pop(self._key, None)

    def targets(self) -> list[str]:
        """Targets of all annotations."""
        with self._lock:
            return [annotation.target for annotation in self._annotations]

    @staticmethod
    def _configuration() -> dict[str, Any]:
        configuration: dict[str, Any] = getattr(multiprocessing.current_process(), "_config", {})
        return configuration

    def __reduce__(self) -> tuple[Any, ...]:
        with self._lock:
            annotations = list(self._annotations)
        return _annotate_here, (tuple(filter(None, (one.for_another_process() for one in annotations))),)


_inherited: Final = _Inherited()


def _annotate_here(annotations: tuple[tuple[str, bytes], ...]) -> _Inherited:
    """Recreate the parent's annotations; a failure only warns, so that the process starts."""
    made = _inherited.targets()  # by the main module, which this process may have imported again
    for target, message in annotations:
        if target in made:
            made.remove(target)
            continue
        try:
            annotate(target, message=pickle.loads(message))
        except Exception as error:  # noqa: BLE001 - importing a module may raise anything
            reason = f"{type(error).__name__}: {error}"
            warnings.warn(f"annotate: {target} is not annotated in a child process: {reason}", RuntimeWarning, 2)
    return _inherited
