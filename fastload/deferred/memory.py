"""Make tensors whose memory is painted when it is touched first."""

from __future__ import annotations

import ctypes
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
import torch.utils.dlpack
from PIL import ImageFile

from fastload import _core
from fastload._batch import is_plain
from fastload.deferred.content import Content
from fastload.deferred.geometry import part_of, placed
from fastload.nvtx.stages import stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastload.deferred.content import Rearranged

_data_ptr = torch._C.TensorBase.data_ptr  # not as the user sees it, who gets a pointer to painted memory
_storage_of = torch._C.TensorBase.untyped_storage
VIEWS_MAX = 64
"""Noted views of a memory, from which on those that are gone are dropped."""

READ, WRITE = 0x100, 0x200
"""Python's ``PyBUF_READ`` and ``PyBUF_WRITE``."""
_view_of: Final[Any] = ctypes.pythonapi.PyMemoryView_FromMemory
_view_of.argtypes = ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int
_view_of.restype = ctypes.py_object

_LEVELS: Final = {
    dtype: torch.arange(256).to(dtype).view(torch.uint8).numpy().tobytes()
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}

_DECODER = str(Path(__file__).with_name("decode_elsewhere.py"))


def guard_pages() -> bool:
    """Prepare this process; return whether it can have deferred tensors.

    Call it again if :func:`fastload._core.guard_is_ours` is false: the action that was installed meanwhile is asked for
    all other faults then.
    """
    truncated = str(int(ImageFile.LOAD_TRUNCATED_IMAGES))
    # Without site and its hooks; but with the variables that say where Python is.
    return _core.guard_pages([sys.executable, "-S", "-W", "ignore", _DECODER, truncated, *sys.path])


def tensor_of(
    content: Content | Rearranged, shape: Sequence[int], stride: Sequence[int], *, resizable: bool = True
) -> torch.Tensor:
    """Make a tensor that is painted when it is touched first.

    Any instruction that reads or writes it, in any thread and in forked children, finds the values of ``content``. The
    kernel does not: system calls on the memory fail with EFAULT until it is painted.

    Args:
        content: What it holds. Its table's dtype is the tensor's.
        shape: All elements, in memory of the content's size.
        stride: Values.
        resizable: Whether torch's own tensor could be resized.

    Raises:
        MemoryError: There are too many, or :func:`guard_pages` was not called or is false.
    """
    memory = _core.DeferredMemory(content.core())
    memory.content = content
    dtype = str(content.table.dtype).removeprefix("torch.")
    made: torch.Tensor = torch.utils.dlpack.from_dlpack(memory.array(shape, stride, dtype))
    memory.tensors = [weakref.ref(made)]
    memory.whole = 0, made.shape, made.stride()
    memory.resizable, memory.is_shared = resizable, False
    memory.is_held = False  # whether something else may know its address
    memory.batch = 0  # that it was sent in
    return made


def memory_of(tensor: torch.Tensor) -> _core.DeferredMemory | None:
    """The deferred memory that a tensor is in, unless it is painted."""
    memory = any_memory_of(tensor)
    return None if memory is None or memory.painted else memory


def any_memory_of(tensor: torch.Tensor) -> _core.DeferredMemory | None:
    """As :func:`memory_of`, painted or not."""
    try:
        with torch._C.DisableTorchFunctionSubclass():
            if type(tensor) is not torch.Tensor and not is_plain(tensor):
                return None
            return _core.deferred_memory_at(_storage_of(tensor).data_ptr())
    except RuntimeError:  # a tensor without memory of its own
        return None


def is_deferred(tensor: torch.Tensor) -> bool:
    """Whether a tensor's first element is in memory that is not painted. Quicker than :func:`memory_of`."""
    try:
        memory = _core.deferred_memory_at(_data_ptr(tensor))
    except RuntimeError:
        return False
    return memory is not None and not memory.painted


def part_of_memory(tensor: torch.Tensor) -> tuple[_core.DeferredMemory, Content, bool] | None:
    """Find a tensor's unpainted memory, what the tensor holds, and whether that is all.

    Returns:
        ``None`` if it is in other memory, or a view that is no part of images.
    """
    memory = memory_of(tensor)
    if memory is None:
        return None
    content = memory.content
    if not isinstance(content, Content):
        return None
    is_whole = memory.whole == (tensor.storage_offset(), tensor.shape, tensor.stride())
    if is_whole and tensor.dtype == content.table.dtype:  # as usual
        return memory, content, True
    where = placed(tensor, content)
    part = None if where is None else part_of(content, *where)
    return None if part is None else (memory, part, part is content)


def rearranged_of(tensor: torch.Tensor) -> Rearranged | None:
    """Return what a tensor is to hold, if that is no stack of images.

    Returns:
        ``None`` in other or painted memory, too.
    """
    memory = memory_of(tensor)
    if memory is None or isinstance(memory.content, Content):
        return None
    content: Rearranged = memory.content
    if tensor.dtype != content.table.dtype or not tensor.is_contiguous():
        return None
    size = tensor.element_size()
    return content.within(int(tensor.storage_offset()) * size, tensor.numel() * size)


_batch = 0  # number of this process's batch


def begin_batch() -> None:
    """Note that a worker begins a batch."""
    global _batch
    _batch += 1


def content_to_send(tensor: torch.Tensor) -> Content | Rearranged | None:
    """As :func:`content_of`, but paint what an earlier batch had, too: it is kept."""
    with torch._C.DisableTorchFunction():  # a recorder would paint it
        if (memory := memory_of(tensor)) is None:
            return None
        if memory.batch not in (0, _batch):
            paint(memory)
            return None
        memory.batch = _batch
    content = content_of(tensor)
    if content is not None:
        content.note_gain()
    return content


def content_of(tensor: torch.Tensor) -> Content | Rearranged | None:
    """Return what a tensor is to hold; ``None`` in other or painted memory."""
    with torch._C.DisableTorchFunction():  # a recorder would paint it
        if (rearranged := rearranged_of(tensor)) is not None:
            return rearranged
        found = part_of_memory(tensor)
        if found is None and tensor.dim() >= 3 and tensor.size(-1) in (1, 3):  # channels may come last
            found = part_of_memory(tensor.movedim(-1, -3))
    return None if found is None else found[1]


def change(memory: _core.DeferredMemory, content: Content) -> bool:
    """Let a memory hold something else of the same size.

    Returns:
        Whether it was not painted yet.
    """
    try:
        memory.program = content.core()
    except ValueError:
        return False
    memory.content = content
    return True


def note_view(tensor: torch.Tensor) -> None:
    """Remember that a tensor shares unpainted memory, if it does."""
    if (memory := memory_of(tensor)) is not None:
        if len(memory.tensors) >= VIEWS_MAX:  # of one that is kept, and viewed again and again
            memory.tensors = [each for each in memory.tensors if each() is not None]
        memory.tensors.append(weakref.ref(tensor))


def leave(memory: _core.DeferredMemory) -> torch.UntypedStorage | None:
    """Move a memory's tensors to torch's own, which can be resized.

    Returns:
        That memory; ``None`` if torch's own tensors could not be resized either.
    """
    paint(memory)
    if not memory.resizable:
        return None
    storage = torch.UntypedStorage(memory.program.nbytes)  # type: ignore[no-untyped-call]
    with torch._C.DisableTorchFunction():
        tensors = [each for reference in memory.tensors if (each := reference()) is not None]
        for number, each in enumerate(each for each in tensors if _storage_of(each).data_ptr() == memory.address):
            with torch.inference_mode(each.is_inference()):  # what is assigned must be alike
                if not number:
                    _bytes_of(storage).copy_(_bytes_of(_storage_of(each)))
                where = each.storage_offset(), each.size(), each.stride()
                each.data = torch.empty(0, dtype=each.dtype).set_(storage, *where)
    memory.tensors.clear()
    return storage


def leave_by(tensor: torch.Tensor, values: int | None = None) -> None:
    """Move a tensor, and those that share its memory, if it may have to grow.

    See :func:`leave`.

    Args:
        tensor: May be resized.
        values: How many it is to have; ``None`` if unknown, and then what is held stays.
    """
    if (memory := any_memory_of(tensor)) is None:
        return
    if values is None:
        may_grow = not memory.is_held
    else:
        with torch._C.DisableTorchFunction():
            may_grow = bool((tensor.storage_offset() + values) * tensor.element_size() > memory.program.nbytes)
    if may_grow:
        memory.tensors.append(weakref.ref(tensor))
        leave(memory)


def hold(tensor: torch.Tensor) -> None:
    """Paint a tensor's memory, and let it stay where it is.

    Something else gets its address. A call with ``out`` that needs more memory fails.
    """
    if (memory := any_memory_of(tensor)) is not None:
        if not memory.painted:
            paint(memory)
        memory.is_held = True


def fix(tensor: torch.Tensor) -> None:
    """Paint a tensor's memory, and keep it: torch resizes none that NumPy has."""
    if (memory := any_memory_of(tensor)) is not None:
        paint(memory)
        memory.resizable = False


def forget(tensor: torch.Tensor) -> None:
    """Drop weak references to a tensor."""
    if (memory := any_memory_of(tensor)) is not None:
        paint(memory)
        memory.tensors.clear()


def view_of(tensor: torch.Tensor, access: int) -> memoryview:
    """View a contiguous tensor's bytes; after its ``numpy()`` torch would not resize it any more."""
    view: memoryview = _view_of(_data_ptr(tensor), tensor.nbytes, access)
    return view


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def _is_computed(table: torch.Tensor) -> bool:
    """Whether values are floats other than the levels, which torch makes in one pass.

    Calls nothing of torch's, which the user's modes would see.
    """
    levels = _LEVELS.get(table.dtype)
    with torch._C.DisableTorchFunction():
        return levels is not None and view_of(table, READ) != levels * table.shape[0]


def paint(memory: _core.DeferredMemory) -> None:
    """Paint a memory now, what the core does not take by Pillow."""
    if _is_computed(memory.content.table):  # made faster than torch would have
        memory.content.note_gain()
    with stage("paint"):
        statuses = memory.paint()
        if any(statuses):
            images = memory.content.images
            memory.paint([(i, np.ascontiguousarray(images[i].pixels())) for i, status in enumerate(statuses) if status])
