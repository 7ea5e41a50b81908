"""What a Python function's code names, changes and depends on."""

from __future__ import annotations

import builtins
import dis
import functools
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from types import CodeType, FunctionType

ABSENT: Final = object()

_ATTRIBUTES: Final = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")
_FIXED: Final = ("LOAD_ATTR", "LOAD_CONST", "LOAD_SMALL_INT")
_NOTHING: Final = ("CACHE", "EXTENDED_ARG", "NOP", "RESUME")
_SELECTS: Final = ("FOR_ITER", "BINARY_SLICE")
_NAMING: Final = frozenset(dis.opname[number] for number in dis.hasname)
_CHANGES: Final = ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE", "STORE_DEREF", "YIELD_VALUE", "LOAD_BUILD_CLASS")
_FLAGS: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@dataclass(frozen=True, slots=True)
class Uses:
    """What a function's code does, functions within it included.

    Attributes:
        names: Global names that it reads.
        attributes: Attributes that it reads, of any object.
        imports: Modules that it imports.
        changes: Whether it stores into anything but its local variables, or is a generator.
        conditions: Names of the attributes whose truth it asks; ``""`` is any other condition.
        selects: Whether what it takes of its own values may depend on data: it multiplies, which may repeat a sequence,
            by neither a constant nor an attribute; it has loops or slices; or it takes an item by neither a constant
            nor from an attribute.
        handles: Whether it handles exceptions.
    """

    names: frozenset[str]
    attributes: frozenset[str]
    imports: frozenset[str]
    changes: bool
    conditions: frozenset[str]
    selects: bool
    handles: bool


@functools.lru_cache(maxsize=64)
def uses_of(code: CodeType) -> Uses:
    """Read a function's code."""
    names, attributes, imports, conditions = set(), set(), set(), set()
    changes = bool(code.co_flags & _FLAGS)
    before, selects, handles, is_fixed = "", False, False, False
    steps = [step for step in dis.get_instructions(code) if step.opname not in _NOTHING]
    for at, step in enumerate(steps):
        name, value = step.opname, step.argval
        selects = selects or name in _SELECTS or (name == "BINARY_OP" and step.argrepr == "*" and not is_fixed)
        if name == "BINARY_SUBSCR" or (name == "BINARY_OP" and step.argrepr == "[]"):
            selects = selects or not (is_fixed or _container(steps[:at]) in _ATTRIBUTES)
        handles = handles or name == "PUSH_EXC_INFO"
        is_fixed = name in _FIXED
        if name == "LOAD_GLOBAL":
            names.add(value)
        elif name in _ATTRIBUTES:
            attributes.add(value)
        elif name == "IMPORT_NAME":
            imports.add(value)
        elif name == "IMPORT_FROM":
            attributes.add(value)
        elif name in _NAMING or name in _CHANGES or (name == "BINARY_OP" and step.argrepr.endswith("=")):
            changes = True
        elif "JUMP" in name and name.endswith(("IF_TRUE", "IF_FALSE", "OR_POP")):
            conditions.add(before)
        if name != "TO_BOOL":
            before = value if name in _ATTRIBUTES else ""
    for constant in code.co_consts:
        if isinstance(constant, type(code)):
            inner = uses_of(constant)
            names |= inner.names
            attributes |= inner.attributes
            imports |= inner.imports
            conditions |= inner.conditions
            changes, selects = changes or inner.changes, selects or inner.selects
            handles = handles or inner.handles
    found = frozenset(names), frozenset(attributes), frozenset(imports)
    return Uses(*found, changes, frozenset(conditions), selects, handles)


def _container(steps: list[dis.Instruction]) -> str:
    """The instruction that makes what an item is taken from, of those before."""
    made = 0
    for at in reversed(range(len(steps))):
        made += dis.stack_effect(steps[at].opcode, steps[at].arg, jump=False)
        if made == 1:  # the index begins here
            return steps[at - 1].opname if at else ""
    return ""


def global_of(function: FunctionType, name: str) -> Any:
    """The value of a function's global or builtin; ``ABSENT`` if there is none."""
    return function.__globals__.get(name, getattr(builtins, name, ABSENT))
