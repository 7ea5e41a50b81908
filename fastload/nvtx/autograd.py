"""Ranges of modules' backward passes, from hooks on the autograd graph.

Torch's full backward hooks are not used: they wrap the inputs in a function of their own, which changes the graph and
makes in-place modules such as ``ReLU(inplace=True)`` fail. A hook on a graph node changes nothing and is freed with the
graph.

A module's part of the graph lies between its outputs and its inputs. Its range begins before the first node of that
part runs and ends when all nodes without a further edge inside the part have run. If they do not all run
(``torch.autograd.grad`` for some inputs, an error), the range ends with the backward pass.

Autograd has a thread for each device. A part that spans several devices gets a process range, which belongs to no
thread; other ranges belong to the thread that runs them, so that tools attribute the kernels launched in them.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from fastload.nvtx.ranges import NvtxRange, ProcessRange, pop, push

if TYPE_CHECKING:
    from collections.abc import Iterator

_sequence_number: Final[Any] = getattr(torch._C._autograd, "_get_sequence_nr", lambda: 0)
_graph_task: Final[Any] = torch._C._current_graph_task_id
_variable: Final[Any] = torch.autograd.Variable  # older versions of torch do not declare its engine
_engine: Final[Any] = _variable._execution_engine
_hooked_on: Final[set[torch.device]] = set()


@atexit.register
def _settle() -> None:
    """Wait until autograd's threads have released the hooked graphs.

    A thread that frees a hook during interpreter shutdown aborts the process ("terminate called without an active
    exception"; seen on an H200 in a script that ended with its last backward pass). It starts another pass only after
    it has finished the last one.
    """
    for device in tuple(_hooked_on):
        with contextlib.suppress(Exception), torch.inference_mode(False), torch.enable_grad():
            # Suppress any error: the program may have died of a device failure.
            torch.zeros((), device=device, requires_grad=True).mul(1).backward()  # type: ignore[no-untyped-call]


class Boundary:
    """The start of a module's part of the graph, taken before its forward pass."""

    __slots__ = ("_inputs", "_start", "devices")

    def __init__(self, *inputs: Any) -> None:
        differentiated = [tensor for tensor in _tensors(inputs) if tensor.requires_grad]
        self._inputs = {tensor.grad_fn for tensor in differentiated}
        self._start = _sequence_number()
        self.devices = {tensor.device for tensor in differentiated}

    def part(self, output: Any) -> tuple[list[Any], list[Any]]:
        """Return the nodes where backward enters the part, and those where it leaves."""
        outputs = [tensor for tensor in _tensors(output) if self._inside(tensor.grad_fn)]
        self.devices.update(tensor.device for tensor in outputs)
        entries: list[Any] = list(dict.fromkeys(tensor.grad_fn for tensor in outputs))
        seen, ahead, exits = set(entries), list(entries), []
        while ahead:
            node = ahead.pop()
            onward = [after for after, _ in node.next_functions if self._inside(after)]
            if not onward:
                exits.append(node)
            for after in onward:
                if after not in seen:
                    seen.add(after)
                    ahead.append(after)
        return entries, exits

    def _inside(self, node: Any) -> bool:
        """Whether a node was made in this call; parameters' accumulators belong to none.

        Nodes are numbered in order of creation, per thread.
        """
        if node is None or node in self._inputs or type(node).__name__ == "AccumulateGrad":
            return False
        return bool(node._sequence_nr() >= self._start)


class BackwardRange:
    """The range of one call's backward pass; ``outer``, of the enclosing call, is opened first."""

    __slots__ = ("_devices", "_exits", "_left", "_lock", "_name", "_outer", "_over", "_range", "_task")

    def __init__(self, name: str, outer: BackwardRange | None) -> None:
        self._name = name
        self._outer = outer
        self._exits = 0
        self._left = 0
        self._task = -1
        self._over = False
        self._range: NvtxRange | ProcessRange | None = None
        self._devices: set[torch.device] = set()
        self._lock = threading.Lock()

    def attach(self, boundary: Boundary, output: Any) -> None:
        """Hook the graph from ``output`` to the boundary. The graph then owns this object."""
        entries, exits = boundary.part(output)
        self._exits = len(exits)
        self._devices |= boundary.devices
        if self._outer is not None:
            self._outer._devices |= self._devices
        _hooked_on.update(self._devices)
        for node in entries:
            node.register_prehook(self._begin)
        for node in exits:
            node.register_hook(self._end)

    def _begin(self, *_: Any) -> None:
        task = _graph_task()
        if self._outer is not None:
            self._outer._begin()
        with self._lock:
            self._renew(task)
            if self._exits and self._range is None and not self._over:
                opened = _thread.task(task).ranges  # first: closes ranges left open by a failed pass
                spans = len(self._devices) > 1
                self._range = ProcessRange(self._name) if spans else push(NvtxRange(self._name))
                opened.append(self._range)

    def _end(self, *_: Any) -> None:
        with self._lock:
            self._renew(_graph_task())
            self._left -= 1
            if self._left:
                return
            self._over = True
            opened, self._range = self._range, None
        if opened is not None:
            _close(opened)

    def _renew(self, task: int) -> None:
        """Reset for a new pass: a retained graph may run again, also in part."""
        if self._task != task:
            self._task = task
            self._left = self._exits
            self._over = False
            self._range = None


def _close(opened: NvtxRange | ProcessRange) -> None:
    if isinstance(opened, ProcessRange):
        opened.end()
    else:
        pop(opened)


class _Task:
    """The ranges opened by one backward pass on one thread, outermost first."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.ranges: list[NvtxRange | ProcessRange] = []
        self.is_over = False
        self._thread = threading.get_ident()

    def end(self) -> None:
        """End the pass and close its open ranges here; other threads close their own."""
        self.is_over = True
        here = threading.get_ident() == self._thread
        for opened in self.ranges:
            if here or isinstance(opened, ProcessRange):
                _close(opened)


class _Ending:
    """Ends the task of a backward pass: called on success, dropped by autograd on failure."""

    def __init__(self, task: _Task) -> None:
        self._task = task

    def __call__(self) -> None:
        self._task.end()

    def __del__(self) -> None:
        self._task.end()


class _AutogradThread(threading.local):
    """The backward passes running on a thread: several if a node starts another."""

    def __init__(self) -> None:
        self.tasks: list[_Task] = []

    def task(self, number: int) -> _Task:
        """The record of a pass; drops records of passes that failed on this thread."""
        self.tidy()
        for task in self.tasks:
            if task.number == number:
                return task
        task = _Task(number)
        self.tasks.append(task)
        _engine.queue_callback(_Ending(task))
        return task

    def tidy(self) -> None:
        for task in [task for task in self.tasks if task.is_over]:
            task.end()
            self.tasks.remove(task)


_thread: Final = _AutogradThread()


def tidy() -> None:
    """Close ranges of backward passes that failed on this thread while another thread waited."""
    if _thread.tasks:
        _thread.tidy()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _tensors(getattr(value, field.name, None))
