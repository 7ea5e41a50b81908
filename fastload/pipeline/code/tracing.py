"""Run a copy of a user's function on stand-ins, to learn what it does.

The copy runs only if its code can do nothing but arrange what it gets: it has no conditions, slices, imports or
exceptions, changes nothing outside of its variables and arguments, and names only what can be replaced by stand-ins.
"""

from __future__ import annotations

import copy
import dis
import functools
import inspect
from types import CellType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from fastload.pipeline.code.bytecode import ABSENT, global_of
from fastload.pipeline.errors import Refused, name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from dis import Instruction

_PURE: Final = (list, tuple, dict, zip, enumerate, range, len)
_PLAIN: Final = (str, bytes, int, float, bool, type(None))
_CHANGES: Final = frozenset(
    (
        *("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "IMPORT_NAME", "IMPORT_STAR"),
        *("LOAD_BUILD_CLASS", "BEFORE_WITH", "PUSH_EXC_INFO", "LOAD_LOCALS", "LOAD_NAME", "STORE_NAME"),
    )
)
_READS: Final = ("LOAD_ATTR", "LOAD_METHOD")
_OUTER: Final = ("STORE_DEREF", "DELETE_DEREF")


def traced(function: Any, argument: Any, stand_in: Callable[[Any], Any]) -> Any:
    """Call a copy of a function, with all that it names replaced.

    Args:
        function: A function, a bound method, a ``functools.partial`` of one, or an object with ``__call__``.
        argument: Stands for the function's argument.
        stand_in: Returns what stands for a named object that is no plain value; it may raise ``Refused``.

    Raises:
        Refused: The code may do more than arrange its argument, or does not take the stand-ins.
    """
    plain, before, keywords, bound = _called(function)
    _check(plain.__code__, plain.__code__)
    attributes = frozenset(step.argval for step in _steps(plain.__code__) if step.opname in _READS)

    def replaced(value: Any, *, is_self: bool = False) -> Any:
        if _is_plain(value):
            return copy.copy(value)
        if any(value is pure for pure in _PURE):
            return value
        holds = is_self or not (callable(value) or isinstance(value, ModuleType))
        return _attributes(value, attributes, stand_in) if holds else stand_in(value)

    try:
        space: dict[str, Any] = {"__builtins__": {}}
        for step in _steps(plain.__code__):
            if step.opname == "LOAD_GLOBAL" and (value := global_of(plain, step.argval)) is not ABSENT:
                space[step.argval] = replaced(value)
        closure = tuple(CellType(replaced(cell.cell_contents)) for cell in plain.__closure__ or ())
        defaults = None if plain.__defaults__ is None else tuple(map(replaced, plain.__defaults__))
        copied = FunctionType(plain.__code__, space, plain.__name__, defaults, closure)
        copied.__kwdefaults__ = {name: replaced(value) for name, value in (plain.__kwdefaults__ or {}).items()}
        first = (replaced(value, is_self=bound and not at) for at, value in enumerate(before))
        return copied(*first, argument, **{name: replaced(value) for name, value in keywords.items()})
    except Refused:
        raise
    except Exception as error:  # the stand-ins can do no more than what is known
        raise Refused(
            f"{name_of(function)} does more than arrange samples ({type(error).__name__}: {error})"
        ) from error


def _called(function: Any) -> tuple[FunctionType, tuple[Any, ...], dict[str, Any], bool]:
    """The function that runs, what else it gets, and whether that begins with ``self``."""
    before: tuple[Any, ...] = ()
    bound = False
    keywords: dict[str, Any] = {}
    if type(function) is functools.partial:
        before, keywords, function = function.args, function.keywords, function.func
    if type(function) is MethodType:
        before, function, bound = (function.__self__, *before), function.__func__, True
    elif type(function) is not FunctionType and type(getattr(type(function), "__call__", None)) is FunctionType:  # noqa: B004
        before, function, bound = (function, *before), type(function).__call__, True
    if type(function) is not FunctionType or hasattr(function, "__wrapped__"):
        raise Refused(f"{name_of(function)} is decorated or no function of Python's")
    return function, before, keywords, bound


def _steps(code: CodeType) -> Iterator[Instruction]:
    """Yield the instructions of a code and of the functions within it."""
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _steps(constant)


def _check(code: CodeType, outermost: CodeType) -> None:
    name = outermost.co_qualname
    for step in _steps(code):
        if step.opname in _CHANGES or (step.opname in _OUTER and step.argval in outermost.co_freevars):
            raise Refused(f"{name} imports or changes something, or handles exceptions")
        if "JUMP" in step.opname and "_IF_" in step.opname:
            raise Refused(f"{name} depends on a condition")
        if "SLICE" in step.opname or (step.opname == "LOAD_CONST" and isinstance(step.argval, slice)):
            raise Refused(f"{name} takes a slice")


def _is_plain(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(_is_plain(key) and _is_plain(part) for key, part in value.items())
    return type(value) in _PLAIN


def _attributes(value: Any, names: frozenset[str], stand_in: Callable[[Any], Any]) -> SimpleNamespace:
    """What stands for an object of which attributes are read, such as parsed arguments."""
    kind = type(value)
    bases = [base for base in kind.__mro__[:-1] if base.__module__ != "torch.nn.modules.module"]
    if any("__getattribute__" in vars(base) or "__getattr__" in vars(base) for base in bases):
        raise Refused(f"{name_of(value)} has attributes of its own making")
    found = {}
    for name, held in getattr(value, "__dict__", {}).items():
        if name in names and not hasattr(type(inspect.getattr_static(kind, name, None)), "__set__"):
            found[name] = copy.copy(held) if _is_plain(held) else stand_in(held)
    return SimpleNamespace(**found)
