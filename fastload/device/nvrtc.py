"""Compile and launch CUDA kernels: NVRTC through ``cuda.core``, no compiler needed.

Their sources, ``normalize.cu``, ``decode.cu`` and ``steps.cu``, are in ``csrc/gpu/kernels``. The core contains them as
text, because it shares the layout of a batch with them, and they are not compiled when it is. Compiling takes about
0.2 s, and a second or two for the last two, once per device and set of macros; ``cuda.core`` caches the result on disk
for later processes.

If ``cuda.core`` is missing or compilation fails, :func:`look_up`, the epilogue, returns None; torch can do the same,
only slower.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import re
import threading
import warnings
from concurrent.futures import CancelledError, Future, InvalidStateError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import torch

from fastload import _core
from fastload._version import with_extra

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["Compiled", "build", "lacking", "lacking_package", "launcher", "look_up", "source", "unavailable"]

THREADS: Final = 256  # per block; the same number as in normalize.cu
STORE_BYTES: Final = 16
PLANE_MAX_PX: Final = 2**31 - 1  # pixels of an image, which the planar kernel counts in 32 bits
KERNELS: Final = {torch.channels_last: "look_up_nhwc", torch.contiguous_format: "look_up_nchw"}


Key = TypeVar("Key")
Made = TypeVar("Made")


@dataclass(frozen=True)
class _Kernel:
    """A kernel, and the number of its blocks that its device can run at once."""

    kernel: Any
    blocks_max: int


class Compiled(Generic[Key, Made]):
    """Compiles once for each key, in a thread or while its caller waits. Thread-safe.

    Args:
        compile_one: Returns it, or says why it fails.
    """

    def __init__(self, compile_one: Callable[[Key], Made | str]) -> None:
        self._compile_one = compile_one
        self._jobs: dict[Key, Future[Made | str]] = {}

    def get(self, key: Key) -> Made | str | None:
        """Return it, or why it failed; ``None`` if that is not known yet."""
        job = self._jobs.get(key)
        return job.result() if job is not None and job.done() else None

    def is_compiling(self, key: Key) -> bool:
        """Whether it was begun and is not there yet."""
        job = self._jobs.get(key)
        return job is not None and not job.done()

    def start(self, key: Key) -> None:
        """Compile it in a thread, unless that was begun.

        The interpreter waits for the thread at its exit.
        """
        job: Future[Made | str] = Future()
        with self._interruptible(key, job) as is_new:
            if is_new:
                try:
                    threading.Thread(target=self._in_thread, args=(key, job), name="fastload-nvrtc").start()
                except RuntimeError:  # no more threads
                    self._run(key, job)

    def wait(self, key: Key) -> Made | str:
        """Return it, or why it failed, once that is known."""
        while True:
            job: Future[Made | str] = Future()
            with self._interruptible(key, job) as is_new:
                if is_new:
                    return self._run(key, job)
            with contextlib.suppress(KeyError, CancelledError):  # who compiled it was interrupted
                return self._jobs[key].result()

    @contextlib.contextmanager
    def _interruptible(self, key: Key, job: Future[Made | str]) -> Iterator[bool]:
        """Yield whether ``job`` is the first for the key. What is interrupted may begin anew."""
        try:
            yield self._jobs.setdefault(key, job) is job
        except BaseException:
            if self._jobs.get(key) is job:
                del self._jobs[key]
            job.cancel()
            raise

    def _in_thread(self, key: Key, job: Future[Made | str]) -> None:
        with self._interruptible(key, job):
            self._run(key, job)

    def _run(self, key: Key, job: Future[Made | str]) -> Made | str:
        made = self._compile_one(key)
        with contextlib.suppress(InvalidStateError):  # it was cancelled
            job.set_result(made)
        return made


class _Loaded:
    """Kernels that look values up, compiled in this process. Thread-safe."""

    def __init__(self) -> None:
        self._compiled = Compiled(_load)
        self._asked: set[tuple[int, int, int]] = set()

    def kernel(
        self, index: int, value_bytes: int, channels: int, memory_format: torch.memory_format, *, wait: bool = True
    ) -> _Kernel | None:
        """Return the kernel, compiled if needed, or None if that fails.

        Without ``wait``, also None while the kernel is compiled in a background thread. The second call starts that
        thread, because the first is for a first batch, which must not be delayed.
        """
        key = (index, value_bytes, channels)
        made = self._compiled.get(key)
        if made is None and wait:
            made = self._compiled.wait(key)
        elif made is None and key in self._asked:
            self._compiled.start(key)
        self._asked.add(key)
        return made[memory_format] if isinstance(made, dict) else None

    def failure(self, index: int, value_bytes: int, channels: int) -> str | None:
        """Why the kernel is not available; None if it is, or was never requested."""
        made = self._compiled.get((index, value_bytes, channels))
        return made if isinstance(made, str) else None


def _load(key: tuple[int, int, int]) -> dict[torch.memory_format, _Kernel] | str:
    """Compile the kernels that look values up, or say why that fails, and warn."""
    try:
        with torch.cuda.device(key[0]):
            return _compile(*key)
    except ImportError as error:  # not installed, which is no error; the plan says so
        return f"cuda.core cannot be imported ({error}); {with_extra('cuda')}"
    except Exception as error:  # noqa: BLE001 (driver, NVRTC and loader each have their own errors)
        why = f"the kernel cannot be compiled: {type(error).__name__}: {error}"
        with contextlib.suppress(RuntimeWarning):  # the loader goes on even if warnings are errors
            told = f"images are normalized by torch on cuda:{key[0]}, same values but slower: {why}"
            warnings.warn(told, RuntimeWarning, stacklevel=2)
        return why


_loaded = _Loaded()


_importing = threading.Lock()


def _core_module() -> Any:
    """``cuda.core``.

    While it is imported it replaces its ``__spec__``, by which Python has other threads wait for that.
    """
    with _importing:
        return importlib.import_module("cuda.core")


@functools.cache
def _disk_cache() -> Any:
    """``cuda.core``'s cache of compiled programs; None if it has none or cannot write it."""
    try:
        return importlib.import_module("cuda.core.utils").FileStreamProgramCache()
    except (ImportError, AttributeError, OSError):
        return None


def source(*files: str) -> str:
    """Join source files of kernels, and what they include, to one."""
    included: set[str] = set()

    def text_of(name: str) -> str:
        if name in included:
            return ""
        included.add(name)
        text = _core.kernel_source(name).replace("#pragma once\n", "")
        return re.sub(r'#include "(.*)"\n', lambda found: text_of(found[1]), text)

    return "".join(map(text_of, files))


def build(
    index: int,
    name: str,
    source: str,
    kernels: Iterable[str],
    macros: Iterable[tuple[str, str]] = (),
    *,
    fuses: bool = True,
) -> Any:
    """Compile a program's kernels for a device, which must be the current one.

    Args:
        index: The device's.
        name: The program's, for tools.
        source: C++.
        kernels: Names of the kernels to return.
        macros: Names and values to define.
        fuses: Whether a multiplication and an addition may become one operation, which rounds once.

    Returns:
        The kernels by name.
    """
    core = _core_module()
    device = core.Device(index)
    device.set_current()
    options = core.ProgramOptions(
        name=name, arch=f"sm_{device.arch}", std="c++17", define_macro=list(macros) or None, fma=fuses
    )
    program = core.Program(source, "c++", options)
    try:
        cache = _disk_cache()
        try:
            code = program.compile("cubin") if cache is None else program.compile("cubin", cache=cache)
        except OSError:  # a full disk or lost permissions must not prevent using the kernel
            code = program.compile("cubin")
    finally:
        program.close()
    _stream(0)  # fails now, rather than at a launch, if cuda.core is too old
    return {kernel: code.get_kernel(kernel) for kernel in kernels}


def _compile(index: int, value_bytes: int, channels: int) -> dict[torch.memory_format, _Kernel]:
    macros = [("VALUE_BYTES", str(value_bytes)), ("CHANNELS", str(channels))]
    built = build(index, "fastload_epilogue", source("normalize.cu"), KERNELS.values(), macros)
    processors = torch.cuda.get_device_properties(index).multi_processor_count
    kernels = {}
    for memory_format, name in KERNELS.items():
        per_processor = built[name].occupancy.max_active_blocks_per_multiprocessor(THREADS, 0)
        kernels[memory_format] = _Kernel(built[name], processors * max(1, per_processor))
    return kernels


@functools.lru_cache(maxsize=64)  # cuda.core makes a class for each; torch has 32 side streams per priority
def _stream(handle: int) -> Any:
    """``cuda.core``'s object for one of torch's streams; 0 is the legacy default stream."""
    core = _core_module()
    return core.Stream.from_handle(handle) if handle else core.LEGACY_DEFAULT_STREAM


@functools.lru_cache(maxsize=512)
def _launch_config(grid: Any, threads: int, shared_bytes: int) -> Any:
    """A launch's shape, most of which come again in every batch."""
    return _core_module().LaunchConfig(grid=grid, block=threads, shmem_size=shared_bytes)


_thread = threading.local()  # the device that it has launched kernels on


def launcher(device: torch.device) -> Callable[..., None]:
    """Return a function that launches kernels on the device's current stream.

    Its arguments are the kernel, the grid, the number of threads of a block, that of its bytes of dynamic shared
    memory, and the kernel's own: addresses and 64-bit integers.
    """
    core = _core_module()
    # torch's guard gives a thread no context if the device is already the thread's default one.
    if getattr(_thread, "device", None) != device.index or torch._C._cuda_getDevice() != device.index:
        core.Device(device.index).set_current()
        _thread.device = device.index
    stream = _stream(torch._C._cuda_getCurrentRawStream(device.index))

    def launch(kernel: Any, grid: Any, threads: int, shared_bytes: int, *arguments: int) -> None:
        core.launch(stream, _launch_config(grid, threads, shared_bytes), kernel, *arguments)

    return launch


def unavailable(device: torch.device, dtype: torch.dtype, channels: int) -> str | None:
    """Say why batches on ``device`` are looked up by torch, not by the kernel.

    Compiles the kernel if needed.

    Args:
        device: With an index if it is a CUDA device.
        dtype: The table's dtype.
        channels: The images' number of channels.

    Returns:
        A human-readable reason; None if the kernel is used.
    """
    if device.type != "cuda" or torch.version.hip is not None:
        return "the kernel is for CUDA devices"
    with torch.cuda.device(device):
        index = torch.cuda.current_device()
        if _loaded.kernel(index, dtype.itemsize, channels, torch.channels_last) is not None:
            return None
    return _loaded.failure(index, dtype.itemsize, channels)


def lacking_package() -> str | None:
    """Say that ``cuda.core`` is not installed, and how to install it; None if it is."""
    try:
        found = importlib.util.find_spec("cuda.core") is not None
    except (ImportError, ValueError):  # no package cuda at all
        found = False
    return None if found else f"cuda.core is not installed; {with_extra('cuda')}"


def lacking(device: torch.device, dtype: torch.dtype, channels: int) -> str | None:
    """:func:`unavailable` as far as known without compiling; ``None`` if not on CUDA."""
    if device.type != "cuda" or torch.version.hip is not None:
        return None
    return lacking_package() or _loaded.failure(device.index or 0, dtype.itemsize, channels)


def is_wide(levels: int, out: int, plane_px: int, value_bytes: int, memory_format: torch.memory_format) -> bool:
    """Whether the kernel may load and store several values at a time.

    Args:
        levels: Address of the images.
        out: Address of the result.
        plane_px: Pixels of an image.
        value_bytes: Size of a value.
        memory_format: The result's. In a contiguous result each channel of each image is a separate plane, so the next
            plane is aligned only if a plane is a whole number of stores.
    """
    width = STORE_BYTES // value_bytes
    aligned = levels % width == 0 and out % STORE_BYTES == 0
    return aligned and (memory_format == torch.channels_last or plane_px % width == 0)


def look_up(
    images: torch.Tensor, values: torch.Tensor, memory_format: torch.memory_format, *, wait: bool = True
) -> torch.Tensor | None:
    """Run :func:`fastload.device.normalize.apply_table` with the kernel, on the current stream.

    Does not block on the device.

    Args:
        images: ``(N, H, W, C)`` uint8, contiguous, on a CUDA device.
        values: ``(C, 256)``, contiguous, on the same device.
        memory_format: ``torch.channels_last`` or ``torch.contiguous_format``.
        wait: Whether to wait for the kernel's compilation.

    Returns:
        The result, or None if there is no kernel for this batch and torch has to do it.
    """
    count, height, width, channels = images.shape
    plane_px = height * width
    if torch.version.hip is not None or plane_px > PLANE_MAX_PX:
        return None
    device = images.device
    value_bytes = values.element_size()
    with torch.cuda.device(device):
        loaded = _loaded.kernel(device.index, value_bytes, channels, memory_format, wait=wait)
        if loaded is None:
            return None
        shape = (count, channels, height, width)
        out = torch.empty(shape, dtype=values.dtype, device=device, memory_format=memory_format)
        if out.numel() == 0:
            return out
        wide = is_wide(images.data_ptr(), out.data_ptr(), plane_px, value_bytes, memory_format)
        blocks = min(loaded.blocks_max, -(-out.nbytes // (THREADS * STORE_BYTES)))
        addresses = images.data_ptr(), values.data_ptr(), out.data_ptr()
        launcher(device)(loaded.kernel, blocks, THREADS, 0, *addresses, count, plane_px, int(wide))
    return out
