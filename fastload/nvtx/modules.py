"""``annotate_modules``: ranges around every module's forward and backward pass, by hooks."""

from __future__ import annotations

import multiprocessing.context
import sys
import threading
import warnings
import weakref
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling

from fastload.nvtx import autograd
from fastload.nvtx.autograd import BackwardRange, Boundary
from fastload.nvtx.ranges import NvtxRange, listening, pop, push

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def annotate_modules(model: nn.Module, depth: int | None = None) -> ModuleAnnotation:
    """Put NVTX ranges around every module's forward and backward pass.

    A forward range has the module's path in the model as its name (``layer1.0.conv1``), or the class's name for the
    model itself; a backward range has the suffix `` backward``. Both nest as the calls did, and end when a pass raises.
    A module used in several places has the path where it was found first.

    >>> from torch import nn
    >>> from fastload import annotate_modules
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
    >>> with annotate_modules(model) as annotation:
    ...     print(annotation.names)
    ('Sequential', '0', '1')

    The model's results do not change, in-place modules included. Without a tool there are no hooks: they are installed
    if an NVTX tool is attached to the process, if torch.profiler is running, and during a window of
    :func:`~fastload.capture` that writes a trace. Hooks are kept when the model is copied or sent to another process,
    but not when it is saved to a file.

    Compiled or scripted code makes no calls that a hook could see. Such a part of the model gets one range around it,
    or none if ``compile()`` compiled it in place; :attr:`ModuleAnnotation.skipped` and a warning say so. In modules
    compiled later the hooks do nothing.

    Args:
        model: Any module.
        depth: Number of levels below ``model`` to annotate; 0 is the model alone, ``None`` all.

    Returns:
        A handle; its ``remove()``, or the end of its ``with`` block, restores the model.

    Raises:
        TypeError: ``model`` is not a module, or ``depth`` not an integer.
        ValueError: ``depth`` is negative.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"annotate_modules takes a torch.nn.Module, got {type(model).__name__}")
    if depth is not None and (isinstance(depth, bool) or not isinstance(depth, int)):
        raise TypeError(f"depth must be an integer or None, got {depth!r}")
    if depth is not None and depth < 0:
        raise ValueError(f"depth must be >= 0, got {depth}; 0 annotates the model alone, None every module in it")
    annotation = ModuleAnnotation(model, depth)
    if annotation.skipped:
        parts = "; ".join(f"{name}: {reason}" for name, reason in annotation.skipped.items())
        warnings.warn(f"annotate_modules: no ranges inside of {parts}", UserWarning, stacklevel=2)
    return annotation


class ModuleAnnotation:
    """Ranges of a model's modules, until removed. Does not keep the model alive.

    Attributes:
        names: Names of the forward ranges.
        skipped: Parts of the model without ranges inside, each with the reason.
    """

    def __init__(self, model: nn.Module, depth: int | None) -> None:
        skipped: dict[str, str] = {}
        found = list(_modules_in(model, depth, skipped))
        self.names: tuple[str, ...] = tuple(name for name, _ in found)
        self.skipped: Mapping[str, str] = MappingProxyType(skipped)
        self._modules = [(_Hooks(name, module is model), weakref.ref(module)) for name, module in found]
        self._model = weakref.ref(model)
        self._handles: list[Any] = []
        with _waiting_lock:
            _waiting[:] = [other for other in _waiting if other._model() is not None]
            _waiting.append(self)
            if listening():
                self._install()

    def remove(self) -> None:
        """Restore the model. Idempotent; hooks of its copies stay but do nothing."""
        with _waiting_lock:
            if self in _waiting:
                _waiting.remove(self)
            self._uninstall()
        for hooks, _ in self._modules:
            hooks.end()

    def __enter__(self) -> ModuleAnnotation:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        skipped = f", {len(self.skipped)} skipped" if self.skipped else ""
        return f"<annotation of {len(self.names)} modules of {self.names[0] if self.names else 'a model'}{skipped}>"

    def _install(self) -> None:
        if self._handles:
            return
        for hooks, reference in self._modules:
            if (module := reference()) is not None:
                # Before and after all other hooks, also when one of them raises.
                self._handles += [
                    module.register_forward_pre_hook(hooks.before, prepend=True, with_kwargs=True),
                    module.register_forward_hook(hooks.after, with_kwargs=True, always_call=True),
                ]

    def _uninstall(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


_waiting: Final[list[ModuleAnnotation]] = []
_waiting_lock: Final = threading.RLock()


def hook_while_profiling(running: bool) -> None:
    """Install hooks when torch.profiler starts; remove them when it has stopped."""
    with _waiting_lock:
        for annotation in _waiting:
            if running:
                annotation._install()
            elif not listening():
                annotation._uninstall()


class _Call:
    """A running forward pass."""

    __slots__ = ("backward", "boundary", "module", "range")

    def __init__(
        self, module: nn.Module, opened: NvtxRange, autograd: BackwardRange, boundary: Boundary | None
    ) -> None:
        self.module = module
        self.range = opened
        self.backward = autograd
        self.boundary = boundary


class _Calls(threading.local):
    """The forward passes running on a thread, outermost first."""

    def __init__(self) -> None:
        self.stack: list[_Call] = []


_calls: Final = _Calls()


class _Hooks:
    """A module's two hooks, shared by copies of the model, recreated in other processes."""

    def __init__(self, name: str, is_root: bool) -> None:
        self._name = name
        self._is_root = is_root  # the whole model, which other modules rarely call
        self._ended = False

    def end(self) -> None:
        """Disable the hooks, also in copies of the model."""
        self._ended = True

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if is_dynamo_compiling() or self._ended or not listening():
            return
        autograd.tidy()
        stack = _calls.stack
        if stack and (self._is_root or any(call.module is module for call in stack)):
            _drop_unwound(stack)
        outer = stack[-1].backward if stack else None
        opened = push(NvtxRange(self._name))
        boundary = Boundary(args, kwargs) if torch.is_grad_enabled() else None
        stack.append(_Call(module, opened, BackwardRange(f"{self._name} backward", outer), boundary))

    def after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if is_dynamo_compiling():
            return
        stack = _calls.stack
        if not any(call.module is module for call in stack):
            return  # no tool was listening when it began
        while True:
            call = stack.pop()
            if call.module is module:
                break
        pop(call.range)
        if call.boundary is not None and output is not None:
            call.backward.attach(call.boundary, output)

    def __deepcopy__(self, memo: object) -> _Hooks:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        to_child = multiprocessing.context.get_spawning_popen() is not None
        return _Hooks if to_child and not self._ended else _NoHooks, (self._name, self._is_root)


class _NoHooks:
    """Replaces the hooks in a model that is saved to a file."""

    def __init__(self, *_: object) -> None: ...

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None: ...

    def after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None: ...


def _drop_unwound(stack: list[_Call]) -> None:
    """Close calls that ended without their hook, such as by a KeyboardInterrupt.

    Torch calls no hook when something other than an Exception is raised. Without this, the next call would be taken for
    a part of the interrupted module.
    """
    active: list[object] = []  # the modules that this thread is calling, innermost first
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "_call_impl":
            active.append(frame.f_locals.get("self"))
        frame = frame.f_back
    outermost_first = reversed(active[1:])
    for position, call in enumerate(stack):
        if all(module is not call.module for module in outermost_first):  # the iterator continues after the last match
            pop(call.range)
            del stack[position:]
            return


def _modules_in(model: nn.Module, depth: int | None, skipped: dict[str, str]) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules to hook with their names; fills ``skipped``."""
    seen: set[nn.Module] = set()

    def visit(module: nn.Module, path: str, level: int) -> Iterator[tuple[str, nn.Module]]:
        if module in seen:
            return
        seen.add(module)
        name = path or type(vars(module).get("_modules", {}).get("_orig_mod", module)).__name__
        if getattr(module, "_compiled_call_impl", None) is not None:
            skipped[name] = "compiled in place by compile(); annotate the model before, and run it uncompiled"
            return
        yield name, module
        if (reason := _opaque(module)) is not None:
            skipped[name] = reason
            return
        if depth is None or level < depth:
            for child_name, child in module.named_children():
                yield from visit(child, f"{path}.{child_name}" if path else child_name, level + 1)

    return visit(model, "", 0)


def _opaque(module: nn.Module) -> str | None:
    """The reason why hooks cannot see calls inside a module, or ``None``."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")  # without it nothing has been compiled
    compiled = dynamo is not None and isinstance(module, dynamo.OptimizedModule)
    if compiled or hasattr(module.forward, "_torchdynamo_orig_callable"):
        return "compiled by torch.compile; annotate the model before, and run it uncompiled"
    if isinstance(module, torch.jit.ScriptModule):
        return "compiled by torch.jit; annotate the module that was scripted or traced"
    return None
