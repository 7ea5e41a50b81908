"""The range of a module's backward pass, from hooks on the autograd graph that its forward pass built.

Not from torch's full backward hooks: those put a function of their own around the inputs, which changes the graph and
makes in-place modules such as ``ReLU(inplace=True)`` fail. A hook on a node of the graph changes nothing, and goes when
the graph goes.

A module's part of the graph is what lies between its outputs and its inputs. Its range begins before the first node of
that part runs and ends when the last nodes, from which no edge leads on inside the part, have run. Should they not
all run (``torch.autograd.grad`` for some inputs, an error), the range ends with the backward pass.

Autograd has a thread for each device. A part that spans several devices gets a range of the process, which belongs to
no thread; the others belong to the thread that runs them, with which tools show the kernels that were launched in them.
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
    """Wait until autograd's threads have let go of the hooked graphs.

    A thread that frees a hook once the interpreter is being torn down aborts the process ("terminate called without an
    active exception"; seen on an H200 in a script that ended with its last backward pass). It takes up another pass
    only when it is through with the last one.
    """
    for device in tuple(_hooked_on):
        with contextlib.suppress(Exception), torch.inference_mode(False), torch.enable_grad():
            # Any error: the device may be what the program died of.
            torch.zeros((), device=device, requires_grad=True).mul(1).backward()  # type: ignore[no-untyped-call]


class Boundary:
    """Where a module's part of the graph begins: what the graph was before its forward pass.

    Args:
        inputs: The call's arguments.
    """

    __slots__ = ("_inputs", "_start", "devices")

    def __init__(self, *inputs: Any) -> None:
        differentiated = [tensor for tensor in _tensors(inputs) if tensor.requires_grad]
        self._inputs = {tensor.grad_fn for tensor in differentiated}
        self._start = _sequence_number()
        self.devices = {tensor.device for tensor in differentiated}

    def part(self, output: Any) -> tuple[list[Any], list[Any]]:
        """The nodes where backward enters the part, and those where it leaves it."""
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
        """Nodes are numbered as they are made, by thread; the accumulators of parameters belong to no call."""
        if node is None or node in self._inputs or type(node).__name__ == "AccumulateGrad":
            return False
        return bool(node._sequence_nr() >= self._start)


class BackwardRange:
    """The range of one call's backward pass. Made before the call, so that those inside it know it.

    Args:
        name: Of the range.
        outer: That of the call around this one, which is opened first.
    """

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
        """Hook the part of the graph that leads from ``output`` to the boundary. The graph then owns this object."""
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
                opened = _thread.task(task).ranges  # first: it closes what a pass that failed has left open here
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
        """A graph that is kept may be run again, and not all of it."""
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
    """The ranges that one backward pass has opened on one thread, outermost first."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.ranges: list[NvtxRange | ProcessRange] = []
        self.is_over = False
        self._thread = threading.get_ident()

    def end(self) -> None:
        """The pass is over; close what it left open here. What belongs to another thread waits for that thread."""
        self.is_over = True
        here = threading.get_ident() == self._thread
        for opened in self.ranges:
            if here or isinstance(opened, ProcessRange):
                _close(opened)


class _Ending:
    """Told of the end of a backward pass: called when it succeeds, forgotten by autograd when it fails."""

    def __init__(self, task: _Task) -> None:
        self._task = task

    def __call__(self) -> None:
        self._task.end()

    def __del__(self) -> None:
        self._task.end()


class _AutogradThread(threading.local):
    """The backward passes that are under way on a thread: more than one where a node runs another."""

    def __init__(self) -> None:
        self.tasks: list[_Task] = []

    def task(self, number: int) -> _Task:
        """The record of the pass, with those dropped that failed on this thread unnoticed."""
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
    """Close the ranges of backward passes that failed on this thread while another one was waiting for them."""
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
