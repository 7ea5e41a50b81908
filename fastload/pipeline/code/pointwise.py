"""Recognize functions of one tensor that only calculate with its values and numbers."""

from __future__ import annotations

import dis
import functools
from types import CodeType, FunctionType
from typing import Any, Final

_METHODS: Final = frozenset({"add", "sub", "mul", "div", "subtract", "multiply", "divide", "true_divide"})
_OPERATORS: Final = frozenset("+-*/")
_SKIPPED: Final = frozenset({"RESUME", "NOP", "CACHE", "PRECALL"})
_TENSOR, _NUMBER, _METHOD = "tensor", "number", "method"


def is_pointwise(function: Any) -> bool:
    """Whether a function calculates, and each result depends on one value of its tensor only.

    Read from its code: ``lambda x: x.mul(255)`` and ``lambda x: x * 2 - 1`` do. What reads variables does not, because
    these may change.
    """
    return type(function) is FunctionType and _is_pointwise(function.__code__)


@functools.lru_cache(maxsize=64)
def _is_pointwise(code: CodeType) -> bool:
    if (code.co_argcount, code.co_kwonlyargcount, code.co_flags & 0x0C) != (1, 0, 0):  # *args, **kwargs
        return False
    stack: list[str] = []
    calculates = False
    try:
        for step in dis.get_instructions(code):
            if step.opname == "RETURN_VALUE":
                return calculates and stack == [_TENSOR]
            calculates = calculates or step.opname in ("UNARY_NEGATIVE", "CALL", "BINARY_OP")
            if step.opname not in _SKIPPED and not _runs(step, stack):
                return False
    except IndexError:  # an instruction that takes something else from the stack
        pass
    return False


def _runs(step: dis.Instruction, stack: list[str]) -> bool:
    """Change the kinds of values on the stack as an instruction does.

    Returns:
        Whether it is known.
    """
    name = step.opname
    if name in ("LOAD_FAST", "LOAD_FAST_BORROW"):
        stack.append(_TENSOR)
        return True
    if name in ("LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW"):
        stack += [_TENSOR, _TENSOR]
        return True
    if name in ("LOAD_CONST", "LOAD_SMALL_INT"):
        stack.append(_NUMBER)
        return type(step.argval) in (int, float)
    if name == "UNARY_NEGATIVE":
        return stack[-1] == _TENSOR
    if name in ("LOAD_METHOD", "LOAD_ATTR"):
        taken = stack.pop()
        stack.append(_METHOD)
        return taken == _TENSOR and step.argval in _METHODS
    if name == "CALL" and step.arg == 1:
        taken, method = stack.pop(), stack.pop()
        stack.append(_TENSOR)
        return (taken, method) == (_NUMBER, _METHOD)
    if name == "BINARY_OP":
        operands = {stack.pop(), stack.pop()}
        stack.append(_TENSOR)
        return step.argrepr in _OPERATORS and _TENSOR in operands and _METHOD not in operands
    return False
