"""Memory of deferred tensors has its values when it is touched."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import multiprocessing
import os
import pickle
import select
import signal
import sys
import threading
import warnings

import interpreters
import numpy as np
import pytest
import torch
from children import exit_code, forked
from photos import jpeg
from PIL import ImageFile

from fastload import _core
from fastload.deferred import memory
from fastload.deferred.content import Content
from fastload.lazy.pixels import ByPillow, File, Pending

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there are guard pages on Linux only")
libc = ctypes.CDLL(None, use_errno=True)
SIZE = 37, 29  # (width, height); not a multiple of anything
SHAPE = 3, 29, 37
STRIDE = 29 * 37, 37, 1
FLOATS = (torch.arange(256) / 255).repeat(3, 1).contiguous()


@pytest.fixture(scope="module", autouse=True)
def guarded():
    assert memory.guard_pages()


@pytest.fixture(autouse=True)
def decodes():
    yield
    memory.guard_pages()  # with the usual decoder


def content(seed=1, table=FLOATS, planar=True, data=None, size=SIZE, images=1):
    pillow = ByPillow("horizontal_first", 0, lambda: None, ImageFile.ImageFile.load)
    files = [File(data or jpeg(seed + i, 90, 120), (120, 90), pillow) for i in range(images)]
    return Content(tuple(Pending(file, (10, 5, 110, 85), size) for file in files), table, planar)


def damaged():
    """A file that Pillow decodes, and the core does not."""
    data = bytearray(jpeg(1, 90, 120))
    data[1000:1002] = b"\xff\xd0"
    return bytes(data)


def deferred(of, shape=SHAPE, stride=STRIDE):
    return memory.tensor_of(of, shape, stride)


def values_of(of, shape=SHAPE, stride=STRIDE):
    out = np.empty(of.nbytes, np.uint8)
    of.paint(out)
    return torch.from_numpy(out).view(of.table.dtype).as_strided(shape, stride)


def memory_of(tensor):
    return _core.deferred_memory_at(tensor.untyped_storage().data_ptr())


def painted(tensor):
    return memory_of(tensor).painted


def scripted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return torch.jit.script(times_one)


def times_one(x: torch.Tensor):
    return x * 1


def by_c(tensor):
    out = torch.empty_like(tensor)
    libc.memcpy(ctypes.c_void_p(out.data_ptr()), ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.nbytes))
    return out


def with_the_gil(tensor):
    return torch.frombuffer(bytearray(ctypes.string_at(tensor.data_ptr(), tensor.nbytes)), dtype=tensor.dtype).view(
        SHAPE
    )


TOUCHES = {
    "clone": torch.clone,
    "the last value first": lambda x: x.flip(0).flip(0),
    "values one by one": lambda x: torch.tensor(x.tolist()),
    "C without the GIL": by_c,
    "C with the GIL": with_the_gil,
    "numpy": lambda x: torch.from_numpy(x.numpy().copy()),
    "dlpack": lambda x: torch.from_dlpack(x).clone(),
    "a script": lambda x: scripted()(x),
    "vmap": torch.vmap(lambda x: x.clone()),
    "shared memory": lambda x: x.share_memory_(),
    "a pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "a view": lambda x: torch.cat([x[:, :9], x[:, 9:]], 1),
    "a gradient": lambda x: (x.requires_grad_() * 1).detach(),
    "a data pointer's storage": lambda x: (
        torch.tensor(x.untyped_storage().tolist(), dtype=torch.uint8).view(x.dtype)[: x.numel()].view(SHAPE)
    ),
    "out": lambda x: torch.mul(x, 1, out=torch.empty(SHAPE)),
}


@pytest.mark.parametrize("touch", TOUCHES.values(), ids=TOUCHES)
def test_whatever_reads_it_finds_the_values(touch):
    tensor = deferred(content())
    assert not painted(tensor)
    assert torch.equal(touch(tensor), values_of(content()))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("planar", [True, False])
def test_it_has_the_dtype_and_the_strides(dtype, planar):
    of = content(table=torch.arange(256).repeat(3, 1).to(dtype).contiguous(), planar=planar, images=2)
    shape, stride = (2, *SHAPE), (3 * 29 * 37, *(STRIDE if planar else (1, 3 * 37, 3)))
    tensor = deferred(of, shape, stride)
    assert type(tensor) is torch.Tensor
    assert (tensor.dtype, tensor.shape, tensor.stride(), tensor._version) == (dtype, shape, stride, 0)
    assert not painted(tensor)
    assert torch.equal(tensor, values_of(of, shape, stride))


WRITES = {
    "fill_": lambda x: x[1, 2, 3:5].fill_(7),
    "a view": lambda x: x.view(-1).narrow(0, 5, 1).mul_(3),
    "C": lambda x: ctypes.memset(x.data_ptr() + 80, 3, 8),
    "numpy": lambda x: x.numpy().__setitem__((2, 3), 4),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_comes_after_the_values(write):
    tensor, expected = deferred(content()), values_of(content())
    write(tensor)
    write(expected)
    assert torch.equal(tensor, expected)


def test_all_of_racing_threads_find_the_values():
    expected = [values_of(content(seed)) for seed in range(2)]
    tensors, wrong = [], []
    barrier = threading.Barrier(4)

    def read():
        for round_ in range(50):
            if barrier.wait() == 0:
                tensors.append(deferred(content(round_ % 2)))
            barrier.wait()
            if not torch.equal(tensors[round_], expected[round_ % 2]):
                wrong.append(round_)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_children_find_the_values_and_have_their_own():
    before, after = deferred(content(1)), deferred(content(2))
    assert torch.equal(after, values_of(content(2)))

    def child():
        assert torch.equal(before, values_of(content(1)))
        assert torch.equal(after, values_of(content(2)))
        own = deferred(content(3))
        assert torch.equal(own, values_of(content(3)))
        before.zero_(), after.zero_()
        assert exit_code(forked(lambda: _equal(deferred(content(4)), content(4)))) == 0

    assert exit_code(forked(child)) == 0
    assert not painted(before)
    assert torch.equal(before, values_of(content(1)))
    assert torch.equal(after, values_of(content(2)))


def _equal(tensor, of):
    assert torch.equal(tensor, values_of(of))


def test_processes_find_the_values():
    values = deferred(content()), values_of(content())
    process = multiprocessing.get_context("fork").Process(target=torch.testing.assert_close, args=values)
    process.start()
    process.join()
    assert process.exitcode == 0


SLOW = """
import fcntl, os, struct, sys
os.write(os.open(sys.argv[1], os.O_WRONLY), b"s")
fcntl.lockf(open(sys.argv[2], "rb"), fcntl.LOCK_SH)
os.write(1, struct.pack("=II", 90, 120) + bytes(90 * 120 * 3))
"""


@pytest.fixture
def slow(tmp_path):
    """A decoder that waits: ``started`` waits for one, ``go`` lets all end."""
    pipe, held = tmp_path / "pipe", tmp_path / "held"
    os.mkfifo(pipe)
    held.touch()
    reader = os.open(pipe, os.O_RDWR)
    with held.open("wb") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)  # of this process, not of its children
        assert _core.guard_pages([sys.executable, "-I", "-c", SLOW, str(pipe), str(held)])

        def started():
            assert select.select([reader], [], [], 20)[0], "no decoder was started"
            os.read(reader, 1)

        yield started, lambda: fcntl.lockf(file, fcntl.LOCK_UN)
    os.close(reader)


def test_a_child_of_a_fork_while_another_thread_paints_paints_itself(slow):
    started, go = slow
    tensor = deferred(content(data=damaged()))
    thread = threading.Thread(target=torch.clone, args=(tensor,))
    thread.start()
    started()
    child = forked(lambda: _is_zero(tensor))
    try:
        started()  # the child's
    finally:
        go()
        thread.join()
        code = exit_code(child, seconds=20)
    assert code == 0
    _is_zero(tensor)


def _is_zero(tensor):
    assert not tensor.any()


def test_no_thread_finds_half_of_the_values(slow):
    started, go = slow
    of = content(table=FLOATS + 1, images=2)  # so that no value is that of fresh memory
    of.images[1].file.data = damaged()
    tensor = deferred(of, (2, *SHAPE), (3 * 29 * 37, *STRIDE))
    first = threading.Thread(target=torch.clone, args=(tensor,))
    first.start()
    started()  # the first image is done, the second is not
    found, begun = [], threading.Event()

    def read():
        begun.set()
        found.append(by_c(tensor))

    second = threading.Thread(target=read)
    second.start()
    begun.wait()
    go()
    first.join()
    second.join()
    assert torch.equal(found[0][0], values_of(content(table=FLOATS + 1)))
    assert torch.equal(found[0][1], torch.ones(SHAPE))


def test_a_thread_that_needs_the_gil_does_not_keep_one_from_painting(slow):
    started, go = slow
    tensor = deferred(content(data=damaged()))
    first = threading.Thread(target=memory_of(tensor).paint)  # fails, and then all may try
    first.start()
    first.join()
    threads = [threading.Thread(target=by_c, args=(tensor,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    started()
    opener = forked(lambda: None)  # this thread still runs
    assert exit_code(opener) == 0
    go()
    with_the_gil(tensor)
    for thread in threads:
        thread.join()


@pytest.mark.slow
def test_no_fork_finds_a_lock_that_is_held():
    stop = threading.Event()

    def paint():
        while not stop.is_set():
            deferred(content()).sum()

    threads = [threading.Thread(target=paint) for _ in range(2)]
    for thread in threads:
        thread.start()
    tensor = deferred(content(2))
    try:
        for _ in range(150):
            assert exit_code(forked(lambda: _equal(tensor, content(2))), seconds=20) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("read", [by_c, with_the_gil])
def test_an_image_that_the_core_does_not_decode_is_pillows(read):
    of = content(data=damaged())
    expected = values_of(of)
    assert any(of.core().paint(np.empty(of.nbytes, np.uint8)))
    assert torch.equal(read(deferred(of)), expected)


def test_painting_early_lets_pillow_make_what_the_core_does_not():
    of = content(data=damaged())
    tensor = deferred(of)
    of_tensor = memory_of(tensor)
    assert any(of_tensor.paint())
    assert not of_tensor.painted  # nothing can read half of it
    memory.paint(of_tensor)
    assert of_tensor.painted
    assert torch.equal(tensor, values_of(of))
    assert not any(of_tensor.paint())
    with pytest.raises(ValueError, match="levels"):
        memory_of(deferred(of)).paint([(0, np.zeros((2, 2, 3), np.uint8))])
    with pytest.raises(ValueError, match="no such image"):
        memory_of(deferred(of)).paint([(1, np.zeros((29, 37, 3), np.uint8))])


def test_a_program_can_be_replaced_until_it_is_painted():
    tensor = deferred(content(1))
    of = memory_of(tensor)
    with pytest.raises(ValueError, match="as large"):
        of.program = content(2, size=(3, 3)).core()
    program = content(2).core()
    of.program = program
    assert of.program is program
    assert torch.equal(tensor, values_of(content(2)))
    with pytest.raises(ValueError, match="before"):
        of.program = content(1).core()
    assert torch.equal(tensor, values_of(content(2)))


def test_views_have_the_memory_and_others_have_none():
    tensor = deferred(content())
    of = memory_of(tensor)
    assert memory_of(tensor[1:, ::2].transpose(1, 2).unsqueeze(0)) is of
    assert _core.deferred_memory_at(of.address + tensor.nbytes - 1) is of
    assert of.address == tensor.data_ptr()
    assert memory_of(torch.zeros(3)) is None
    assert memory_of(torch.zeros(0)) is None
    address = of.address
    del of, tensor
    assert _core.deferred_memory_at(address) is None


@pytest.mark.parametrize("paint", [torch.sum, lambda x: memory.paint(memory_of(x)), lambda x: None])
def test_a_slot_is_armed_again(paint):
    tensor = deferred(content(1))
    paint(tensor)
    address = tensor.data_ptr()
    del tensor
    tensor = deferred(content(2))
    assert tensor.data_ptr() == address
    assert not painted(tensor)
    assert torch.equal(tensor, values_of(content(2)))


def test_any_thread_may_free_it():
    for touched in (True, False):
        tensors = [deferred(content(i)) for i in range(40)]
        if touched:
            torch.stack(tensors)
        threads = [threading.Thread(target=tensors[i::4].clear) for i in range(4)]
        tensors_of = [tensors[i::4] for i in range(4)]
        tensors.clear()
        threads = [threading.Thread(target=part.clear) for part in tensors_of]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        del threads, tensors_of
    graph = (deferred(content()).requires_grad_() * 2).sum()
    graph.backward()  # saved tensors are freed by torch's own thread, which has no GIL


def test_there_may_be_thousands_up_to_a_limit():
    of = content(size=(4, 4))
    shape, stride = (3, 4, 4), (16, 4, 1)
    tensors = []
    with contextlib.suppress(MemoryError):
        for _ in range(40_000):
            tensors.append(deferred(of, shape, stride))
    assert 1000 < len(tensors) < 40_000
    with pytest.raises(MemoryError):
        deferred(of, shape, stride)
    for tensor in tensors[::8]:
        assert torch.equal(tensor, values_of(of, shape, stride))
    tensors.pop()
    assert torch.equal(deferred(of, shape, stride), values_of(of, shape, stride))


@pytest.mark.slow
def test_all_up_to_the_limit_can_be_painted():
    of = content(size=(4, 4))
    tensors = []
    with contextlib.suppress(MemoryError):
        while True:
            tensors.append(deferred(of, (3, 4, 4), (16, 4, 1)))
    for tensor in tensors[::2] + tensors[1::2]:
        memory.paint(memory_of(tensor))
    assert torch.equal(torch.stack(tensors), values_of(of, (3, 4, 4), (16, 4, 1)).expand(len(tensors), 3, 4, 4))


@pytest.mark.parametrize("size", [(1, 1), (700, 500), (2600, 1900)])
def test_any_size_is_painted(size):
    of = content(size=size)
    shape, stride = (3, *size[::-1]), (size[0] * size[1], size[0], 1)
    assert torch.equal(deferred(of, shape, stride), values_of(of, shape, stride))
    again = deferred(of, shape, stride)
    assert torch.equal(again, values_of(of, shape, stride))


def test_a_memory_of_nothing_is_refused():
    empty = _core.TensorProgram([], (1, 1), "horizontal_first", np.zeros((3, 256), np.uint8), True)
    with pytest.raises(ValueError, match="images"):
        _core.DeferredMemory(empty)
    of = memory_of(deferred(content()))
    for shape, stride, name in (
        ((3, 29, 38), STRIDE, "float32"),
        (SHAPE, STRIDE[:2], "float32"),
        (SHAPE, STRIDE, "float64"),
        (SHAPE, (STRIDE[0], -37, 1), "float32"),
        (SHAPE, STRIDE, "complex64"),
    ):
        with pytest.raises(ValueError, match=r"shape and strides|no such dtype"):
            of.array(shape, stride, name)


def test_a_fault_keeps_errno():
    tensor = deferred(content(data=damaged()))  # takes longer than the timer, which interrupts the wait
    previous = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
        ctypes.set_errno(errno.EXDEV)
        libc.memcmp(ctypes.c_void_p(tensor.data_ptr()), ctypes.c_void_p(tensor.data_ptr() + 8), ctypes.c_size_t(8))
        assert ctypes.get_errno() == errno.EXDEV
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def test_a_thread_with_a_small_stack_can_touch_it():
    tensor = deferred(content(table=torch.full((3, 256), 7, dtype=torch.uint8)))
    attributes, thread, length = (ctypes.c_char * 256)(), ctypes.c_ulong(), ctypes.c_void_p()
    libc.pthread_attr_init(attributes)
    assert libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(16384)) == 0
    assert libc.pthread_create(ctypes.byref(thread), attributes, libc.strlen, ctypes.c_void_p(tensor.data_ptr())) == 0
    libc.pthread_join(thread, ctypes.byref(length))
    assert length.value >= tensor.nbytes
    assert painted(tensor)


def test_the_core_itself_can_touch_it():
    """Its thread-local memory is in use then."""
    of = content(table=torch.arange(256, dtype=torch.uint8).repeat(3, 1), planar=False, size=(90, 70))
    shape, stride = (70, 90, 3), (270, 3, 1)
    made = [np.empty((20, 25, 3), np.uint8) for _ in range(2)]
    _core.resize(values_of(of, shape, stride).numpy(), made[0], "bicubic", "horizontal_first")
    tensor = deferred(of, shape, stride)
    _core.resize(tensor.numpy(), made[1], "bicubic", "horizontal_first")
    assert np.array_equal(*made)


def test_the_kernel_is_refused():
    tensor = deferred(content())
    pages = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    with open(sys.executable, "rb", buffering=0) as file, pytest.raises(OSError, match="Bad address"):
        file.readinto(pages)
    assert torch.equal(tensor, values_of(content()))


def test_its_storage_cannot_be_resized():
    with pytest.raises(RuntimeError, match="not resizable"):
        deferred(content()).resize_(4000, 3)


# Runs each program in a child of its own, whose actions are those of a fresh interpreter.
PROGRAMS = """
import ctypes, faulthandler, json, os, resource, signal, sys, threading
import torch
from children import exit_code, forked
from test_deferred_memory import CONTINUES, ENDS, _core, content, damaged, deferred, libc, memory, values_of
from test_deferred_memory import with_the_gil

def check():
    assert memory.guard_pages()
    assert torch.equal(deferred(content()), values_of(content()))
    assert _core.guard_is_ours()

def run(program):
    os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_TRUNC | os.O_CREAT), 2)
    exec(program, globals())

found = {}
for name, program in [*CONTINUES.items(), *((name, program) for name, (program, _) in ENDS.items())]:
    code = exit_code(forked(lambda: run(program)), seconds=20)
    found[name] = code, open(sys.argv[1]).read()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Exit code and standard error of each program, by name."""
    path = os.pathsep.join([*sys.path, os.path.dirname(__file__)])
    arguments = ["-c", PROGRAMS, tmp_path_factory.mktemp("programs") / "err"]
    done = interpreters.run(arguments, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


ENDS = {
    "nothing": ("check(); ctypes.string_at(0)", ""),
    "a free slot": ("check(); a = deferred(content()).data_ptr(); ctypes.string_at(a)", ""),
    "torch": ("torch._C._set_worker_signal_handlers(); check(); ctypes.string_at(0)", "segmentation fault encountered"),
    "faulthandler before": ("faulthandler.enable(); check(); ctypes.string_at(0)", "Fatal Python error"),
    "its stack": ("faulthandler.enable(); check(); faulthandler._stack_overflow()", "Fatal Python error"),
    "faulthandler over it": ("check(); faulthandler.enable(); ctypes.string_at(0)", "Fatal Python error"),
    "faulthandler between": (
        "torch._C._set_worker_signal_handlers(); check(); faulthandler.enable(); assert not _core.guard_is_ours();"
        "check(); ctypes.string_at(0)",
        "Fatal Python error",
    ),
    "the signal": ("check(); os.kill(os.getpid(), signal.SIGSEGV)", ""),
    "ignored": ("signal.signal(signal.SIGSEGV, signal.SIG_IGN); check(); ctypes.string_at(0)", ""),
    "no decoder": (
        "assert _core.guard_pages(['/nothing']); with_the_gil(deferred(content(data=damaged())))",
        "cannot be decoded",
    ),
    "a thread": (
        "check(); t = threading.Thread(target=lambda: libc.strlen(None)); t.start(); t.join()",
        "",
    ),
    "no access": (
        "check(); t = deferred(content()); t.sum(); libc.mprotect(ctypes.c_void_p(t.data_ptr()), 4096, 0); t.sum()",
        "",
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_other_faults_end_the_process_as_they_did(name, outcomes):
    code, error = outcomes[name]
    message = ENDS[name][1]
    assert code == -signal.SIGSEGV, error
    assert message in error
    assert error.count("Fatal Python error") == (message == "Fatal Python error")
    assert "AssertionError" not in error


CONTINUES = {
    "a handler for the signal": (
        "got = []; signal.signal(signal.SIGSEGV, lambda *_: got.append(1)); check();"
        "os.kill(os.getpid(), signal.SIGSEGV); assert got == [1]; check()"
    ),
    "the signal ignored": "signal.signal(signal.SIGSEGV, signal.SIG_IGN); check(); os.kill(os.getpid(), 11); check()",
    "another handler": (
        "check(); signal.signal(signal.SIGSEGV, signal.SIG_DFL); assert not _core.guard_is_ours()\n"
        "try: deferred(content())\n"
        "except MemoryError: check()\n"
        "else: raise AssertionError"
    ),
    "faulthandler on and off": ("for _ in range(3): faulthandler.enable(); check(); faulthandler.disable(); check()"),
    "the signal blocked": (
        "check(); signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGSEGV]); assert not _core.guard_is_ours();"
        "assert not memory.guard_pages()"
    ),
    "little address space": ("resource.setrlimit(resource.RLIMIT_AS, (64 << 30, 64 << 30)); check()"),
    "no address space": ("resource.setrlimit(resource.RLIMIT_AS, (5 << 30, 5 << 30)); assert not memory.guard_pages()"),
}


@pytest.mark.parametrize("name", CONTINUES)
def test_the_process_goes_on(name, outcomes):
    assert outcomes[name] == [0, ""]


def test_the_interpreter_ends_with_some_armed_and_some_painted():
    """They lie in a module, and are never freed."""
    program = "from test_deferred_memory import *; memory.guard_pages()"
    program += "\nkept = [deferred(content()) for _ in range(9)]; kept[3].sum()"
    path = os.pathsep.join([*sys.path, os.path.dirname(__file__)])
    done = interpreters.run(["-c", program], env={**os.environ, "PYTHONPATH": path})
    assert (done.returncode, done.stderr) == (0, "")
