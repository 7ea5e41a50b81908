"""Probes that touch a tensor's memory by its address, its storage, files and system calls."""

from __future__ import annotations

import ctypes
import io
import mmap
import os
import socket
import tempfile
import threading
from typing import Any

import numpy as np
import torch

from .probing import enter_all, probe

_libc = ctypes.CDLL(None, use_errno=True)
_libc.memcpy.argtypes = _libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def _nbytes(x: torch.Tensor) -> int:
    return x.numel() * x.element_size()


enter_all(
    {
        "string_at": lambda x: ctypes.string_at(x.data_ptr(), _nbytes(x)),
        "string_at_const_address": lambda x: ctypes.string_at(x.const_data_ptr(), _nbytes(x)),
        "string_at_storage": lambda x: ctypes.string_at(x.untyped_storage().data_ptr(), _nbytes(x)),
        "string_at_typed_storage": lambda x: ctypes.string_at(x.storage().data_ptr(), _nbytes(x)),
        "string_at_array": lambda x: ctypes.string_at(x.numpy().ctypes.data, _nbytes(x)),
        "string_at_detached": lambda x: ctypes.string_at(x.detach().data_ptr(), _nbytes(x)),
        "string_at_last_page": lambda x: ctypes.string_at(x.data_ptr() + _nbytes(x) - 5, 5),
        "string_at_view": lambda x: ctypes.string_at(x[1].data_ptr(), 48),
        "string_at_interface": lambda x: ctypes.string_at(x.numpy().__array_interface__["data"][0], _nbytes(x)),
        "string_at_private_address": lambda x: ctypes.string_at(torch._C._data_address(x), _nbytes(x)),
        "address_of_storage_is_the_tensors": lambda x: x.untyped_storage().data_ptr() == x.data_ptr(),
        "alignment": lambda x: x.data_ptr() % 16,
        "ctypes_array": lambda x: bytes((ctypes.c_ubyte * _nbytes(x)).from_address(x.data_ptr())),
        "ctypes_of_buffer": lambda x: bytes((ctypes.c_ubyte * _nbytes(x)).from_buffer(x.numpy())),
        "numpy_of_address": lambda x: np.ctypeslib.as_array(
            (ctypes.c_ubyte * _nbytes(x)).from_address(x.data_ptr())
        ).copy(),
        "frombuffer_of_address": lambda x: torch.frombuffer(
            (ctypes.c_ubyte * _nbytes(x)).from_address(x.data_ptr()), dtype=torch.uint8
        ).clone(),
        "memcmp_with_a_copy": lambda x: _compared(x, x.clone()),
        # storages
        "untyped_storage_list": lambda x: x.untyped_storage()[5000:5999].tolist(),
        "untyped_storage_bytes": lambda x: bytes(x.untyped_storage()),
        "untyped_storage_item": lambda x: x.untyped_storage()[17],
        "untyped_storage_slice": lambda x: bytes(x.untyped_storage()[17:99]),
        "untyped_storage_clone": lambda x: bytes(x.untyped_storage().clone()[5000:6000]),
        "untyped_storage_copy": lambda x: bytes(torch.UntypedStorage(_nbytes(x)).copy_(x.untyped_storage())[5000:6000]),
        "untyped_storage_facts": lambda x: _facts(x.untyped_storage()),
        "untyped_storage_equal": lambda x: x.untyped_storage() == x.untyped_storage(),
        "untyped_storage_repr": lambda x: repr(x.untyped_storage())[:500],
        "untyped_storage_shares_with_view": lambda x: (
            x[1:].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        ),
        "untyped_storage_hash": lambda x: isinstance(hash(x.untyped_storage()), int),
        "untyped_storage_cpu": lambda x: bytes(x.untyped_storage().cpu()[5000:6000]),
        "untyped_storage_refs": lambda x: x.untyped_storage()._weak_ref() != 0,
        "untyped_storage_view": lambda x: torch.tensor([], dtype=torch.uint8).set_(x.untyped_storage()),
        "untyped_storage_byteswap": lambda x: _swapped(x.clone()),
        "typed_storage_list": lambda x: x.storage().tolist()[500:999],
        "typed_storage_item": lambda x: x.storage()[17],
        "typed_storage_clone": lambda x: [x.storage().clone()[at] for at in range(500, 520)],
        "typed_storage_facts": lambda x: _facts(x.storage()),
        "typed_storage_repr": lambda x: repr(x.storage())[:500],
        "typed_storage_to_double": lambda x: x.storage().double()[517],
        "typed_storage_private": lambda x: x._typed_storage()._untyped_storage.nbytes(),
        "typed_storage_pickle": lambda x: x.storage().pickle_storage_type() if x.is_floating_point() else 0,
        "storage_of_empty_view": lambda x: x[:0].untyped_storage()[5000:6000].tolist(),
        "storage_written_to_file": lambda x: _storage_file(x),
        "storage_type": lambda x: str(x.storage_type()),
        "as_strided_over_all": lambda x: x.as_strided((9, 9), (700, 3)),
        "as_strided_from_a_view": lambda x: x[2].as_strided((99,), (1,), 0),
        "set_to_storage": lambda x: torch.empty(0, dtype=x.dtype).set_(x.untyped_storage(), 5, (7, 9)),
        "set_to_tensor": lambda x: torch.empty(0, dtype=x.dtype).set_(x),
        "set_from_another": lambda x: x.set_(torch.arange(6, dtype=x.dtype)),
        "data_assigned": lambda x: _assigned(x, torch.arange(4, dtype=x.dtype)),
        "data_assigned_to_another": lambda x: _assigned(torch.zeros(1, dtype=x.dtype), x),
        "resize_smaller": lambda x: x.resize_(2, 5),
        "resize_as": lambda x: x.resize_as_(torch.zeros(4, 4, dtype=x.dtype)),
        "resize_storage_larger": lambda x: _resized(x, 1 << 17),
        "share_memory": lambda x: (x.share_memory_().is_shared(), x),
        "share_storage": lambda x: (x.untyped_storage().share_memory_().is_shared(), x),
        "share_storage_by_descriptor": lambda x: x.untyped_storage()._share_fd_cpu_()[1],
        "is_set_to": lambda x: (x.is_set_to(x), x.is_set_to(x[0])),
        "swapped": lambda x: _swapped_with(x, torch.full((2, 3), 5.0)),
        "same_memory_as_array": lambda x: np.shares_memory(x.numpy(), x.numpy()),
    }
)


def _compared(x: torch.Tensor, y: torch.Tensor) -> Any:
    return _libc.memcmp(x.data_ptr(), y.data_ptr(), _nbytes(x)), y


def _facts(storage: Any) -> Any:
    untyped = getattr(storage, "_untyped_storage", storage)
    return (
        *(storage.nbytes(), len(storage), untyped.resizable(), storage.is_shared(), storage.device, storage.is_cuda),
        *(untyped.filename, type(storage).__name__, storage.element_size(), untyped.is_pinned(), untyped.is_sparse),
    )


def _swapped(x: torch.Tensor) -> bytes:
    x.untyped_storage().byteswap(x.dtype)
    return bytes(x.untyped_storage()[5000:6000])


def _storage_file(x: torch.Tensor) -> bytes:
    with tempfile.TemporaryFile() as file:
        x.untyped_storage()._write_file(file, True, False, 1)
        file.seek(0)
        return file.read()


def _assigned(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    x.data = other
    return x


def _resized(x: torch.Tensor, nbytes: int) -> Any:
    kept = min(nbytes, _nbytes(x))  # what lies beyond is not set
    x.untyped_storage().resize_(nbytes)
    return x.untyped_storage().nbytes(), bytes(x.untyped_storage()[max(0, kept - 500) : kept]) if kept else b""


def _swapped_with(x: torch.Tensor, other: torch.Tensor) -> Any:
    torch.utils.swap_tensors(x, other)
    return x, other


@probe
def memcpy_out(x):
    out = ctypes.create_string_buffer(_nbytes(x))
    _libc.memcpy(ctypes.addressof(out), x.data_ptr(), _nbytes(x))
    return out.raw


@probe
def memmove_in(x):
    data = bytes(range(256)) * 3
    ctypes.memmove(x.data_ptr() + 4096, data, len(data))
    return x


@probe
def memset_of_a_part(x):
    ctypes.memset(x.data_ptr() + 50, 0, 5000)
    return


@probe
def written_to_a_pipe(x):
    reads, writes = os.pipe()
    try:
        os.write(writes, memoryview(x.numpy()).cast("B")[:4000])
        return os.read(reads, 4000)
    finally:
        os.close(reads)
        os.close(writes)


@probe
def written_to_a_pipe_from_its_address(x):
    reads, writes = os.pipe()
    try:
        written = _libc.write(writes, ctypes.c_void_p(x.data_ptr() + 100), 4000)
        return written, os.read(reads, 4000) if written > 0 else ctypes.get_errno()
    finally:
        os.close(reads)
        os.close(writes)


@probe
def written_to_a_file(x):
    with tempfile.TemporaryFile() as file:
        os.write(file.fileno(), memoryview(x.numpy()).cast("B"))
        os.pwritev(file.fileno(), [memoryview(x.numpy()).cast("B"), memoryview(x.numpy()).cast("B")], _nbytes(x))
        file.seek(0)
        return file.read()


@probe
def written_to_a_python_file(x):
    with tempfile.TemporaryFile() as file:
        file.write(x.numpy())
        file.seek(0)
        return file.read()


@probe
def tofile(x):
    with tempfile.NamedTemporaryFile() as file:
        x.numpy().tofile(file.name)
        return np.fromfile(file.name, np.uint8)


@probe
def saved_to_a_path(x):
    with tempfile.NamedTemporaryFile() as file:
        torch.save({"x": x, "y": x[0]}, file.name)
        return torch.load(file.name, weights_only=True, mmap=True)["x"].clone()


@probe
def sent_by_a_socket(x):
    one, other = socket.socketpair()
    with one, other:
        one.sendmsg([memoryview(x.numpy()).cast("B")[:9000]])
        return other.recv(9000, socket.MSG_WAITALL)


@probe
def received_from_a_socket(x):
    one, other = socket.socketpair()
    with one, other:
        one.send(bytes(range(200)))
        other.recv_into(memoryview(x.numpy()).cast("B")[300:500])
    return


@probe
def read_into_from_a_file(x):
    with tempfile.TemporaryFile() as file:
        file.write(bytes(range(256)) * 20)
        file.seek(0)
        os.readv(file.fileno(), [memoryview(x.numpy()).cast("B")[5000:6000]])
        file.seek(7)
        file.readinto(memoryview(x.numpy()).cast("B")[:1000])
    return


@probe
def read_into_from_an_unbuffered_file(x):
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(bytes(range(256)) * 20)
        file.seek(0)
        return file.readinto(x.numpy().reshape(-1).view(np.uint8)[:5000])


@probe
def read_into_its_address(x):
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(bytes(range(256)) * 20)
        return _libc.pread(file.fileno(), ctypes.c_void_p(x.data_ptr() + 200), 5000, ctypes.c_long(0))


@probe
def memory_file_of_the_process(x):
    """The kernel reads protected pages here, too."""
    with open("/proc/self/mem", "rb", 0) as file:
        file.seek(x.data_ptr())
        return file.read(_nbytes(x))


@probe
def vector_read_by_the_kernel(x):
    out = ctypes.create_string_buffer(5000)
    parts = (ctypes.c_size_t * 2)(ctypes.addressof(out), 5000), (ctypes.c_size_t * 2)(x.data_ptr(), 5000)
    arguments = os.getpid(), parts[0], ctypes.c_ulong(1), parts[1], ctypes.c_ulong(1), ctypes.c_ulong(0)
    return _libc.process_vm_readv(*arguments), out.raw


@probe
def compared_with_a_map(x):
    with mmap.mmap(-1, _nbytes(x)) as memory:
        memory.write(x.clone().numpy().tobytes())
        found = memory.find(x.numpy().tobytes()[:100])
        return found, memory[:] == x.numpy().tobytes(), memory[:500]


@probe
def written_to_a_map(x):
    with mmap.mmap(-1, _nbytes(x)) as memory:
        memory[:] = x.numpy()
        return memory[:]


@probe
def tensor_of_a_map(x):
    memory = mmap.mmap(-1, _nbytes(x))
    y = torch.frombuffer(memory, dtype=x.dtype).view(x.shape)
    y.copy_(x)
    return y.clone()


@probe
def advice_on_its_pages(x):
    start = -(-x.data_ptr() // 4096) * 4096
    _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(4096), 14)  # huge pages, if there is room for one
    return


@probe
def locked_pages(x):
    x.numpy()
    done = _libc.mlock(ctypes.c_void_p(x.data_ptr()), ctypes.c_size_t(4096))
    _libc.munlock(ctypes.c_void_p(x.data_ptr()), ctypes.c_size_t(4096))
    return done


@probe
def buffered_reader(x):
    return io.BufferedReader(io.BytesIO(x.numpy())).read()


@probe
def views_that_race(x):
    """Four threads begin to read together."""
    barrier, seen = threading.Barrier(4), [b""] * 4
    array = x.detach()

    def read(at: int) -> None:
        barrier.wait()
        seen[at] = array.numpy().tobytes()

    threads = [threading.Thread(target=read, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen


@probe
def addresses_that_race(x):
    """Four threads read the tensor's pages from its address, in two orders."""
    barrier, seen, size = threading.Barrier(4), [{} for _ in range(4)], _nbytes(x)
    address = x.data_ptr()

    def read(at: int) -> None:
        barrier.wait()
        for start in range(0, size, 1024)[:: 1 if at % 2 else -1]:
            seen[at][start] = ctypes.string_at(address + start, min(1024, size - start))

    threads = [threading.Thread(target=read, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [sorted(each.items()) for each in seen]


@probe
def numpy_kept_beyond_the_tensor(x, make):
    array = x.numpy()
    make.made.clear()
    del x
    junk = [torch.rand(3, 48, 48) for _ in range(5)]
    return array, len(junk)


@probe
def resize_larger(x, make):
    make.made.clear()  # the rest of it is not set
    x.resize_(3, 100, 100)
    return x.flatten()[:6912].clone(), x.untyped_storage().nbytes()


@probe
def resize_storage(x, make):
    make.made.clear()  # it reaches beyond its memory
    return _resized(x, 99)


@probe
def freed_storage(x, make):
    make.made.clear()
    return _resized(x, 0)


@probe
def memory_of_others_nearby(x, make):
    """Tensors that were made before and after keep their values."""
    before, after = make(), make()
    x.fill_(1)
    return before, x, after
