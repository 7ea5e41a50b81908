"""Send batches from worker processes: large tensors in memory files, all files in one message.

Torch's workers send every tensor's shared memory by a connection of its own, and pay a page fault for every 4 KiB
they write there. Here the kernel copies a tensor into a file that is not mapped; the receiver maps it, as torch does.

A batch is pickled within its message, so that one that cannot be pickled, or unpickled, is an error in its turn. In
torch the message is lost, and the training process waits for it forever.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import math
import mmap
import os
import pickle
import reprlib
import socket
import sys
import threading
import traceback
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch._utils import ExceptionWrapper
from torch.multiprocessing import get_sharing_strategy
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils.data import default_collate, get_worker_info

from fastload.memory import unfilled
from fastload.memory.memory_files import memory_file
from fastload.memory.packing import SMALL_BYTES, bytes_of, collate_into, contiguous_stride, is_packable
from fastload.memory.unfilled import Filled

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fastload.memory.unfilled import Parts, Unfilled

FILES_MAX: Final = 253
"""File descriptors that Linux sends in one message (``SCM_MAX_FD``)."""

CONTENT_BYTES: Final = 1 << 20
"""A batch of more bytes, its moved tensors aside, goes in a memory file too: a pipe takes it in pieces of 64 KiB."""

ONE_BY_ONE_BYTES: Final = 32 * 1024
"""Samples of this size and above are written into the file one by one: a write takes as long as copying 20 KiB."""

AT_ONCE_MAX_BYTES: Final = 32 * 1024 * 1024
"""Largest stack of smaller samples: above this, malloc takes new pages each time, as shared memory does."""

FILE_BYTES: Final = 1 << 20
"""A filled tensor of this size is a memory file, for which torch opens a connection: as long as copying half of it."""

_FEW: Final = 16
_DEPTH_MAX: Final = 3

_storage_of_tensor = torch._C.TensorBase.untyped_storage  # torch.Tensor's may fill the tensor before
_is_shared = torch.UntypedStorage.is_shared  # not as it will be for a tensor that is to be filled

_arriving = threading.local()  # the memory files of the batch that this thread unpickles


def send_errors() -> None:
    """Make this worker process send errors that arrive."""
    ForkingPickler.register(ExceptionWrapper, reduce_error)


def sends_files() -> bool:
    """Whether this process can send memory files."""
    strategy = get_sharing_strategy()  # type: ignore[no-untyped-call]
    return bool(strategy == "file_descriptor") and hasattr(os, "memfd_create")


def collate_into_files(samples: list[Any], filled: Filled | None = None) -> Any:
    """Collate as ``default_collate`` does, large tensors into memory files.

    Args:
        samples: The samples.
        filled: Counts what was unfilled of them.
    """
    with contextlib.suppress(Exception):
        return collate_into(FileStacker(filled), samples)
    return default_collate(samples)  # raises torch's error, with torch's frames


class FileStacker:
    """Stacks samples to be sent in memory files, as ``default_collate`` stacks them into shared memory.

    Args:
        filled: Counts what was unfilled of them.
    """

    def __init__(self, filled: Filled | None = None) -> None:
        self._filled = Filled() if filled is None else filled

    def stack(self, samples: list[torch.Tensor], parts: Parts | None = None) -> torch.Tensor:
        """Stack plain tensors of one size and dtype.

        Large ones are written into a file, and what is unfilled; other small ones are stacked for :class:`Sent`, which
        writes the stack.

        Raises:
            TypeError: They are something else, or shared memory is faster.
            RuntimeError: There are no more files.
        """
        first = samples[0]
        size = (len(samples), *first.size())
        if parts is not None:
            self._filled.add(parts)
            return stack_one_by_one(parts, size, first.dtype)
        if first.nbytes < ONE_BY_ONE_BYTES:
            if first.nbytes * len(samples) > AT_ONCE_MAX_BYTES:
                raise TypeError
            return torch.stack(samples, 0, out=first.new_empty(size))
        kind = first.size(), first.dtype
        if not all(is_packable(sample) and (sample.size(), sample.dtype) == kind for sample in samples):
            raise TypeError
        return stack_one_by_one(samples, size, first.dtype)


def stack_one_by_one(
    samples: Iterable[torch.Tensor | Unfilled], size: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """Stack samples into a memory file; only one at a time need exist.

    Args:
        samples: What ``size`` says, and at least one. Tensors are plain.
        size: The result's size.
        dtype: The result's, and of tensors.

    Raises:
        RuntimeError: There are no more files.
    """
    try:
        nbytes = math.prod(size) * dtype.itemsize
        file, memory = memory_file(nbytes)
    except OSError as error:
        raise RuntimeError(*error.args) from error
    try:
        if memory is not None:
            unfilled.paint(samples, torch.from_numpy(memory))
        else:
            _write_all(samples, file)
        storage = _storage_of(file, nbytes)
    finally:
        os.close(file)
    return _tensor(storage, dtype, 0, size, contiguous_stride(size))


def _write_all(samples: Iterable[torch.Tensor | Unfilled], file: int) -> None:
    end = 0
    for sample in samples:
        if isinstance(sample, torch.Tensor):
            _write(file, bytes_of(sample.contiguous()), end)
        else:
            sample.write(file, end)
        end += sample.nbytes


def fill(data: Any) -> Filled:
    """Fill a batch's unfilled tensors, at any depth, in other memory than theirs.

    Those whose memory something else uses, too, are left to those who read them, and views of a part of it.
    """
    filled = Filled()
    if unfilled.are_known():
        with torch._C.DisableTorchFunction():
            _fill_in(data, filled, set())
    return filled


def _fill_in(value: Any, filled: Filled, seen: set[int]) -> None:
    if (held := _held(value)) is not None:
        if id(value) in seen or (len(held) > _FEW and not _may_hold_tensors(held[0])):
            return
        seen.add(id(value))
        for inner in held:
            _fill_in(inner, filled, seen)
    elif is_packable(value) and (content := unfilled.content_of(value)) is not None and _has_own_storage(value):
        if content.nbytes != _storage_of_tensor(value).nbytes():
            return
        filled.add([content])
        size, stride = value.size(), value.stride()
        if content.nbytes >= FILE_BYTES and sends_files():
            with contextlib.suppress(RuntimeError):  # there are no more files
                value.data = stack_one_by_one([content], size, value.dtype).as_strided(size, stride)
                return
        made = torch.empty_strided(size, stride, dtype=value.dtype, device="cpu")
        unfilled.paint([content], bytes_of(made))
        value.data = made


class Sent:
    """A batch that is unpickled as its ``data``, or as an error.

    Tensors to which nothing else refers are moved, small ones within the message. Torch shares the others with the
    worker, which may send them again.

    Args:
        data: The batch.
        indices: What it was made of.
        moves: Whether tensors are moved.
    """

    __slots__ = ("data", "indices", "moves")

    def __init__(self, data: Any, indices: Any = None, *, moves: bool = True) -> None:
        self.data = data
        self.indices = indices
        self.moves = moves

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            try:
                return self._reduced(in_files=sends_files())
            except OSError:  # there are no more files
                return self._reduced(in_files=False)
        except BaseException:  # noqa: BLE001 - whatever the user's objects raise: it would end the thread that sends
            return reduce_error(_wrapped(f"when the batch of indices {_shown(self.indices)} was pickled, to be sent"))

    def _reduced(self, *, in_files: bool) -> tuple[Any, ...]:
        content = io.BytesIO()
        pickler = _Pickler(content)
        if in_files and self.moves and pickler.dispatch_table.get(torch.Tensor) is reduce_tensor:  # not the user's own
            with contextlib.suppress(RecursionError):  # what is too deep may be pickled in another way
                pickler.moved.update(map(id, _alone([self.data])))
        try:
            pickler.dump(self.data)
            if not in_files or content.tell() <= CONTENT_BYTES or len(pickler.files) == FILES_MAX:
                return _receive, (content.getvalue(), *_posted(pickler.files))
            pickler.files.append(memory_file(0).descriptor)
            _write(pickler.files[-1], torch.frombuffer(content.getbuffer(), dtype=torch.uint8), 0)
            return _receive, (None, *_posted(pickler.files))
        finally:
            _close(pickler.files)


def _wrapped(note: str) -> ExceptionWrapper:
    """Wrap the error that is being handled, with a note.

    The error itself may take none.
    """
    info = get_worker_info()
    where = "in the main process" if info is None else f"in DataLoader worker process {info.id}"
    wrapper = ExceptionWrapper(where=where)  # type: ignore[no-untyped-call]
    wrapper.exc_msg += f"{note}\n"
    return wrapper


def _shown(indices: Any) -> str:
    shown = reprlib.Repr()  # unlike repr(), raises no error of an index
    shown.maxlist = shown.maxtuple = _FEW
    return shown.repr(indices)


def reduce_error(error: ExceptionWrapper) -> tuple[Any, ...]:
    """Reduce a worker's error, of the nearest type that can be sent.

    One that would end this process, as ``SystemExit``, is a ``RuntimeError``.
    """
    kinds: list[bytes] = []
    for kind in type.mro(error.exc_type):
        with contextlib.suppress(Exception):  # such as a class within a function
            if issubclass(kind, Exception):
                kinds.append(pickle.dumps(kind))
    return _received_error, (type(error), kinds, error.exc_msg, error.where)


def _received_error(wrapper: type, kinds: list[bytes], message: str, where: str) -> Any:
    error: Any = object.__new__(wrapper)
    error.exc_type, error.exc_msg, error.where = RuntimeError, message, where
    for kind in kinds:
        with contextlib.suppress(Exception):  # of a module that only the worker has
            error.exc_type = pickle.loads(kind)
            break
    return error


class _Pickler(ForkingPickler):
    """Moves some tensors, by their ids."""

    def __init__(self, content: io.BytesIO) -> None:
        super().__init__(content)
        self.moved: set[int] = set()
        self.files: list[int] = []

    def reducer_override(self, obj: Any) -> Any:
        if id(obj) not in self.moved or not _has_own_storage(obj):  # a user's method may have made a view since
            return NotImplemented
        storage = obj.untyped_storage()
        content = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
        where = obj.dtype, obj.storage_offset(), tuple(obj.size()), obj.stride()
        if storage.nbytes() <= SMALL_BYTES:
            return _small, (content.numpy().tobytes(), *where)
        if len(self.files) == FILES_MAX:
            return NotImplemented
        file, memory = memory_file(storage.nbytes())
        self.files.append(file)
        if memory is None:
            _write(file, content, 0)
        else:
            memory[:] = content.numpy()
        return _mapped, (len(self.files) - 1, storage.nbytes(), *where)


def _write(file: int, content: torch.Tensor, offset: int) -> None:
    """Write bytes at an offset; a call may write only a part of them."""
    rest = _bytes_of(content)
    while rest:
        written = os.pwrite(file, rest, offset)
        rest, offset = rest[written:], offset + written


def _posted(files: list[int]) -> tuple[Any, ...]:
    """Hand files to the thread that sends torch's; return the receiver's key and their number.

    They wait here, not in a socket: all files in a user's sockets together may be as many as one process may open.
    """
    if not files:
        return ()
    waiting = list(files)
    key = _sharer().register(functools.partial(_send, waiting), functools.partial(_close, waiting))
    files.clear()
    return key, len(waiting)


def _send(files: list[int], connection: Any, _receiver: int) -> None:
    with socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as near:
        socket.send_fds(near, [b"."], files)


def _close(files: list[int]) -> None:
    for file in files:
        os.close(file)


def _sharer() -> Any:
    return cast("Any", resource_sharer)._resource_sharer


def _receive(content: bytes | None, key: Any = None, count: int = 0) -> Any:
    """Receive a batch; without ``content`` it is in the last file."""
    files: list[int] = []
    if key is not None:
        with (
            _sharer().get_connection(key) as connection,
            socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as far,
        ):
            files = socket.recv_fds(far, 1, count, socket.MSG_CMSG_CLOEXEC)[1]
    try:
        if len(files) < count:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        _arriving.files = files
        if content is not None:
            return pickle.loads(content)
        with mmap.mmap(files[-1], 0, prot=mmap.PROT_READ) as whole:
            return pickle.loads(whole)
    except Exception as error:
        if len(files) < count or _is_of_connection(error):
            raise  # torch explains it: too many files, or a worker that has ended
        return _wrapped("when a batch of a worker's was unpickled")
    finally:
        _close(files)


def _is_of_connection(error: Exception) -> bool:
    """Whether files or connections failed, rather than the user's objects."""
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    kinds = EOFError | OSError | RuntimeError  # the last is multiprocessing's where a descriptor did not arrive
    return isinstance(error, kinds) and any(name.startswith("multiprocessing.") for name in modules)


def _mapped(index: int, nbytes: int, *where: Any) -> torch.Tensor:
    return _tensor(_storage_of(_arriving.files[index], nbytes), *where)


def _small(content: bytes, *where: Any) -> torch.Tensor:
    storage: Any = torch.UntypedStorage._new_shared(len(content))  # type: ignore[no-untyped-call]
    _bytes_of(torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage))[:] = content
    return _tensor(storage, *where)


def _storage_of(file: int, nbytes: int) -> Any:
    return cast("Any", torch.UntypedStorage)._new_shared_fd_cpu(file, nbytes)


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return memoryview(cast("Any", tensor.numpy()))


def _tensor(storage: Any, dtype: torch.dtype, offset: int, size: Any, stride: Any) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, offset, size, stride)


def _alone(values: list[Any]) -> Iterator[torch.Tensor]:
    """The tensors to which only ``values`` refer, at any depth.

    They may lie in lists, tuples, dicts and attributes.
    """
    if len(values) > _FEW and not _may_hold_tensors(values[0]):  # tokens, their dicts: the search would take longer
        return
    for at in range(len(values)):
        if _holders(values, at) > 1:
            continue
        value = values[at]
        if (held := _held(value)) is not None or (held := _attributes(value)) is not None:
            yield from _alone(held)
        elif is_packable(value) and _has_own_storage(value):
            yield value


def _may_hold_tensors(value: Any, depth: int = 0) -> bool:
    """Whether a value is a tensor, or may have one where :func:`_alone` would search."""
    if (held := _held(value)) is None and (held := _attributes(value)) is None:
        return isinstance(value, torch.Tensor)
    return depth == _DEPTH_MAX or any(_may_hold_tensors(inner, depth + 1) for inner in held)


def _held(value: Any) -> list[Any] | None:
    """What a list, tuple or dict holds, by these classes' own methods; else ``None``."""
    kind = type(value)  # unlike isinstance(), which believes an object's __class__
    if issubclass(kind, list):
        return list.copy(value)
    if issubclass(kind, tuple):  # or a namedtuple
        return [*tuple.__iter__(value)]
    return [*dict.values(value)] if issubclass(kind, dict) else None


def _attributes(value: Any) -> list[Any] | None:
    """What an object has in its attributes.

    Returns:
        ``None`` of a tensor, of an object without a ``__dict__``, and of one whose attributes others have, too.
    """
    if not type(value).__dictoffset__ or issubclass(type(value), torch.Tensor):
        return None
    try:
        found = [object.__getattribute__(value, "__dict__")]  # not as the user's class gives it
    except Exception:  # noqa: BLE001 - the user's class may have a property of this name
        return None
    return [*found[0].values()] if type(found[0]) is dict and _holders(found, 0) == 1 else None


def _has_own_storage(tensor: torch.Tensor) -> bool:
    """Whether only this tensor uses its memory.

    The one that it is a view of may use it, too, if nothing else refers to that.
    """
    storage = _storage_of_tensor(tensor)
    uses = _uses(storage)
    if uses == _USES + 1:
        uses -= _references_of_base(tensor) == _BASE_REFERENCES
    return uses <= _USES and not _is_shared(storage) and storage.nbytes() > 0


def _references_of_base(tensor: torch.Tensor) -> int:
    base = tensor._base
    return 0 if base is None else sys.getrefcount(base)


def _uses(storage: torch.UntypedStorage) -> int:
    return torch._C._storage_Use_Count(storage._cdata)


def _holders(values: list[Any], at: int) -> int:
    """How many others than ``values`` refer to an item of it; the call does, too.

    A variable would count or not: from Python 3.14 on, that depends on the code around it.
    """
    return sys.getrefcount(values[at]) - 2


_EXAMPLE: Final = torch.empty(1, device="cpu")
_USES: Final = _uses(_EXAMPLE.untyped_storage())
_BASE_REFERENCES: Final = _references_of_base(torch.empty(1, device="cpu")[:])
