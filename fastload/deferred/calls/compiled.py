"""Keep a recorder away while torch.compile traces or runs a function.

It would be traced, too, which a ``fullgraph`` does not allow, and compiled code would depend on it. What this reads of
deferred tensors is painted when it touches their memory.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_HOME: Final = "torch._dynamo.eval_frame"
_NAMES: Final = ("set_eval_frame", "_maybe_set_eval_frame")
"""Begin and end what is compiled, by a callback or ``None``."""


def is_imported() -> bool:
    """Whether anything may be compiled."""
    return _HOME in sys.modules


def functions(leave: Callable[[int], None], come_back: Callable[[int], None]) -> Iterator[tuple[Any, str, Any]]:
    """Make what is to replace torch's functions: module, name, function.

    Args:
        leave: Takes the recorder off, for a frame's id.
        come_back: Puts it back, if it was taken off for this one.
    """
    module = sys.modules[_HOME]
    skip_code = getattr(module, "skip_code", None)
    originals = [(name, getattr(module, name, None)) for name in _NAMES]
    if callable(skip_code) and all(callable(original) for _, original in originals):
        for name, original in originals:
            new = _around(original, leave, come_back)
            skip_code(new.__code__)
            yield module, name, new


def _around(original: Any, leave: Callable[[int], None], come_back: Callable[[int], None]) -> Any:
    @functools.wraps(original)
    def set_eval_frame(callback: Any, /) -> Any:
        if callback is not None:
            leave(id(sys._getframe(1)))
            return original(callback)
        prior = original(None)  # before any other function is called, which would be compiled
        come_back(id(sys._getframe(1)))
        return prior

    return set_eval_frame
