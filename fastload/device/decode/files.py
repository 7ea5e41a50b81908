"""Decode JPEG files on a GPU, with the bits of the decode threads.

The threads only read the files: they remove what is not data, and say where segments of it begin if they know it from
the index (``csrc/gpu/stage_image.h``). Of other files the kernels in ``points.cu`` find that, and the index learns it.
The kernels in ``decode.cu`` do the rest, from entropy decoding to the resize, and those in ``steps.cu`` what follows on
images. Of progressive files the threads decode the coefficients. What the kernels cannot decode, the threads have
decoded: a batch may contain both.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections import deque
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import torch

from fastload import _core
from fastload._machine import usable_memory_bytes
from fastload.device import nvrtc
from fastload.device.decode.kept import give_back_on
from fastload.memory.buffers import BufferPool
from fastload.nvtx.stages import stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fastload.device.decode.kept import FilesOnDevice
    from fastload.device.decode.policy import NewFile
    from fastload.device.timing import Timing
    from fastload.nvtx.stages import StageName

KERNELS: Final = {
    "decode.cu": (
        *("tables", "find_tables", "subsequences", "synchronize", "chain", "points", "stuffed", "keep"),
        *("huffman", "coefficients", "transform", "rows", "columns_first", "second_pass"),
    ),
    "steps.cu": ("steps",),
}

SCRATCH_MAX_BYTES: Final = 256 << 20
"""Most device memory for intermediate results, unless one image needs more. Batches are decoded in parts."""

GROWTH: Final = 1.5
"""How much more memory is allocated than a batch needs, for later ones. What 64 random crops need varies by 5%: of 100
simulated runs of 1,000 batches, memory grew after the 32nd in 87 without it, in 45 with 1.125, in 7 with 1.25, here in
none."""

FIRST_BYTES_PER_IMAGE: Final = 96 << 10
"""Room for a file at first; later batches have as much as those before them would have needed."""

_WORK_THREADS: Final = 64  # threads of a block; these are as in huffman.cu and pixels.cu
_BLOCKS_AT_ONCE: Final = 32
_TABLE_THREADS: Final = 256
_TABLE_BLOCKS: Final = 8  # for each set of codes
_KEEP_BLOCKS: Final = 8  # for each file
_FIND_THREADS: Final = 256  # these two are as in points.cu
_CHAIN_THREADS: Final = 512
_COEFFICIENT_THREADS: Final = 128  # as in huffman.cu
_PIXEL_THREADS: Final = 128
_ROWS_AT_ONCE: Final = 4
_ROWS_PER_BLOCK: Final = 8
_SHARED_MAX_BYTES: Final = 48 << 10  # that a block may use without being asked
_HUFFMAN_SHARED_BYTES: Final = _core.Staging.table_bytes + _WORK_THREADS * (32 * 4 + 24 * 2)
_GRID_MAX: Final = 65535  # blocks, but for the first dimension
_STEP_THREADS: Final = 512  # as in steps.cu
_ALIGNMENT: Final = 16
_FILES_MAX_SHARE: Final = 1 / 32  # of the memory that this process may use: for a batch's files
_FOUND_MAX: Final = 4  # batches whose points the index has yet to learn


@functools.cache
def _kernels(index: int, file: str) -> Any:
    """Compile a file's kernels for a device, which must be the current one."""
    return nvrtc.build(index, f"fastload_{file.removesuffix('.cu')}", nvrtc.source(file), KERNELS[file], fuses=False)


def _compile(device: torch.device, file: str) -> dict[str, Any] | str:
    """Compile a file's kernels, or say why that fails, and warn."""
    what = "the kernels" if file == "decode.cu" else "the kernel for transforms"
    try:
        with torch.cuda.device(device):
            return dict(_kernels(device.index, file))
    except Exception as error:  # noqa: BLE001 - driver, NVRTC and loader each have their own
        why = f"{what} cannot be compiled: {type(error).__name__}: {error}"
        if not isinstance(error, ImportError):  # not installed, which is no error; the plan says so
            with contextlib.suppress(RuntimeWarning):  # the loader goes on even if warnings are errors
                warnings.warn(f"decode threads decode every image: {why}", RuntimeWarning, stacklevel=2)
        return why


def table_launch(codes: tuple[int, int], files: int, tables: int) -> tuple[str, tuple[int, int], tuple[int, int], Any]:
    """As :func:`launches`, for the kernel that makes a batch's tables of codes.

    Args:
        codes: Of :attr:`_core.Staging.codes`.
        files: Address of the batch's files.
        tables: Room for ``_core.Staging.table_bytes`` for each set of codes.
    """
    at, sets = codes
    return "tables", (_TABLE_BLOCKS, sets), (_TABLE_THREADS, 0), (files, at, tables)


def find_launches(
    search: tuple[int, ...], images: int, sets: int, files: int, tables: int, find_tables: int, runs: int, bad: int
) -> Iterator[tuple[str, tuple[int, ...], tuple[int, int], tuple[int, ...]]]:
    """As :func:`launches`, for the kernels that find points of new files.

    Args:
        search: Of :attr:`_core.Staging.search`.
        images: How many there are in the batch.
        sets: How many sets of codes.
        files: Address of the batch's files, with room for the points behind them.
        tables: What :func:`table_launch` made.
        find_tables: Room for ``_core.Staging.find_table_bytes`` for each set of codes.
        runs: Room for intermediate results.
        bad: An int32 for each image of the batch.
    """
    _, work, items = search[:3]
    yield "find_tables", (_TABLE_BLOCKS, sets), (_TABLE_THREADS, 0), (tables, find_tables)
    arguments = files, files + work, find_tables, runs
    yield "subsequences", (items,), (_FIND_THREADS, 0), arguments
    yield "synchronize", (items,), (_FIND_THREADS, 0), arguments
    yield "chain", (images,), (_CHAIN_THREADS, 0), (files, 0, runs, bad)
    yield "points", (items,), (_FIND_THREADS, 0), (*arguments, bad)
    yield "stuffed", (1, images), (_FIND_THREADS, 0), (files, 0, bad)


def keep_launch(keeps: tuple[int, int], files: int) -> tuple[str, tuple[int, int], tuple[int, int], tuple[int, int]]:
    """As :func:`launches`, for the kernel that copies what is to be kept.

    Args:
        keeps: Of :attr:`_core.Staging.keeps`.
        files: Address of the batch's files.
    """
    at, count = keeps
    return "keep", (_KEEP_BLOCKS, count), (_FIND_THREADS, 0), (files, files + at)


def launches(
    chunk: tuple[int, ...], files: int, tables: int, coefficients: int, scratch: int, pixels: int, bad: int
) -> Iterator[tuple[str, tuple[int, ...], tuple[int, int], tuple[int, ...]]]:
    """Yield each kernel's name, grid, numbers of threads and of dynamic shared bytes, and arguments.

    First those of :func:`table_launch`, once for the batch, if it has codes.

    Args:
        chunk: Of :meth:`_core.Staging.finish`.
        files: Address of the batch's files, as for the following.
        tables: What :func:`table_launch` made.
        coefficients: Zeros.
        scratch: Room for other intermediate results.
        pixels: The batch's pixels.
        bad: An int32 for each image of the batch.
    """
    first, images, work, work_items, coefficient_bytes, _, block_rows, width, height, out_width, out_height = chunk[:11]
    vertical_first, has_steps = chunk[11:]
    if work_items:
        arguments: tuple[int, ...] = (files, files + work, tables, coefficients, bad)
        yield "huffman", (work_items,), (_WORK_THREADS, _HUFFMAN_SHARED_BYTES), arguments
    if block_rows:
        yield "coefficients", (block_rows, images), (_COEFFICIENT_THREADS, 0), (files, first, coefficients)
    blocks = -(-coefficient_bytes // (128 * images * _BLOCKS_AT_ONCE))  # enough for most images
    yield "transform", (blocks, images), (8 * _BLOCKS_AT_ONCE, 0), (files, first, coefficients, scratch, bad)
    rows = _ROWS_AT_ONCE if 4 * width * _ROWS_AT_ONCE <= _SHARED_MAX_BYTES else 1
    grid: tuple[int, ...] = -(-height // _ROWS_PER_BLOCK), images
    yield "rows", grid, (_PIXEL_THREADS, 4 * width * rows), (files, first, scratch, rows)
    if vertical_first:
        grid = -(-width // _PIXEL_THREADS), min(out_height, _GRID_MAX), images
        yield "columns_first", grid, (_PIXEL_THREADS, 0), (files, first, scratch)
    grid = -(-out_width * out_height // (4 * _PIXEL_THREADS)), images
    yield "second_pass", grid, (_PIXEL_THREADS, 0), (files, first, scratch, pixels)
    if has_steps:
        yield "steps", (images,), (_STEP_THREADS, 0), (files, first, scratch, pixels)


class Decoder:
    """Decodes on one device and one of its streams, for a loader's iterators. Thread-safe.

    Its kernels are compiled in threads, as that takes a second or two.

    Args:
        device: A CUDA device, with an index.
        waits: Whether it waits for its kernels.

    Attributes:
        waits: See there.
        kernels: Those that are compiled, by name.
        kept: The files that stay in the device's memory, if any do.
        turn: Of a batch, whose copy and kernels no other's may come between.
        gave_up: Why the threads decode everything after all, if they do.
    """

    def __init__(self, device: torch.device, *, waits: bool = False) -> None:
        self.device = device
        self.waits = waits
        self.kernels: dict[str, Any] = {}
        self.kept: FilesOnDevice | None = None
        self.turn = threading.RLock()
        self.gave_up: str | None = None
        self._compiled = nvrtc.Compiled(functools.partial(_compile, device))
        self._lock = threading.Lock()
        self._bytes_per_image = FIRST_BYTES_PER_IMAGE
        self._files_max = int(_FILES_MAX_SHARE * usable_memory_bytes())
        self._found: deque[_core.FoundPoints] = deque(maxlen=_FOUND_MAX)
        self._buffers = BufferPool()
        self._kept: dict[str, torch.Tensor] = {}
        self._pixel_bytes = 0  # most of a batch

    def is_ready(self, *, steps: bool = False) -> bool:
        """Whether the kernels can be launched.

        Gives up if they never can be. Without ``waits`` that is known once those for steps are compiled, too: only the
        threads that prepare a batch see whether it has steps.

        Args:
            steps: Whether it has.
        """
        if self.gave_up is not None:
            return False
        for file, names in KERNELS.items():
            is_needed = steps or file == "decode.cu"
            if names[0] in self.kernels or (self.waits and not is_needed):
                continue
            made = self._compiled.wait(file) if self.waits else self._compiled.get(file)
            if made is None:
                return False
            if not isinstance(made, str):
                self.kernels.update(made)
            elif is_needed:
                with self.turn:
                    self.give_up(made)
                return False
        return True

    def prepare(self) -> None:
        """Compile the kernels in threads."""
        for file, names in KERNELS.items():
            if names[0] not in self.kernels:
                self._compiled.start(file)

    @property
    def is_compiling(self) -> bool:
        """Whether its kernels are being compiled, so that threads decode meanwhile."""
        return any(map(self._compiled.is_compiling, KERNELS))

    def files(
        self,
        pixels: torch.Tensor,
        by_view: Callable[[torch.Tensor], list[torch.Tensor]],
        new_file: NewFile = "find",
        most_samples: int | None = None,
    ) -> StagedFiles | None:
        """Make room for the files of a batch; None if it has too many images.

        Args:
            pixels: The batch's on the host.
            by_view: Returns each view's part of such pixels, ``(samples, H, W, 3)``.
            new_file: What is done with files that the index does not know: the kernels ``"find"`` their way, or threads
                ``"scan"`` them first.
            most_samples: Samples behind the first so many are left to the threads.
        """
        views = by_view(pixels)
        if len(views) * len(views[0]) > _GRID_MAX:
            return None
        # The pipeline's thread has not kept up with what is found.
        to_learn = self.to_learn() if len(self._found) > 1 else None
        how = new_file, most_samples, to_learn
        return StagedFiles(self, pixels, by_view, self._bytes_per_image, self._buffers.take, *how)

    def found(self, points: _core.FoundPoints) -> None:
        """Keep these points for the index.

        The pipeline's thread notes them while it would wait. Where it does not keep up, decode threads do, before they
        prepare files.
        """
        with self._lock:
            self._found.append(points)

    def to_learn(self) -> _core.FoundPoints | None:
        """Return what is to be noted in the index next."""
        if not self._found:
            return None
        with self._lock:
            while self._found and self._found[0].done:
                self._found.popleft()
            return self._found[0] if self._found else None

    def learn(self, samples: int, wanted: int) -> None:
        """Note how many bytes a batch would have needed."""
        with self._lock:
            if wanted > samples * self._bytes_per_image:
                most = max(FIRST_BYTES_PER_IMAGE, self._files_max // samples)
                self._bytes_per_image = min(most, -(-wanted * 5 // (4 * samples)))

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that decoding takes, with pixels and kept files."""
        kept = 0 if self.kept is None else self.kept.nbytes
        return sum(memory.nbytes for memory in tuple(self._kept.values())) + self._pixel_bytes + kept

    def memory(self, name: str, nbytes: int) -> torch.Tensor:
        """Return device memory for the current stream, used by one batch after the other.

        Args:
            name: The same memory has the same name. It is asked for in a batch's :attr:`turn`.
            nbytes: Of it, at least.
        """
        if name not in self._kept or self._kept[name].numel() < nbytes:
            self._kept.pop(name, None)  # freed first
            try:
                memory = self._empty(max(nbytes, min(int(nbytes * GROWTH), SCRATCH_MAX_BYTES)))
            except torch.OutOfMemoryError:
                memory = self._empty(nbytes)
            self._kept[name] = memory
        return self._kept[name]

    def free(self, name: str) -> None:
        """Free device memory, in a batch's :attr:`turn`."""
        self._kept.pop(name, None)

    def _empty(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def give_up(self, why: str) -> None:
        """Leave everything to the threads; called in a batch's turn."""
        self.gave_up = why
        self._kept.clear()

    def pixels(self, like: torch.Tensor) -> torch.Tensor:
        """Allocate device memory for pixels, of which the batch itself may consist."""
        self._pixel_bytes = max(self._pixel_bytes, like.nbytes)
        try:
            return torch.empty_like(like, device=self.device)
        except torch.OutOfMemoryError:
            if not give_back_on(self.device):
                raise
            return torch.empty_like(like, device=self.device)

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Return pinned memory, ``(nbytes,)`` uint8; see :class:`BufferPool`."""
        return self._buffers.take(nbytes)


@dataclass(frozen=True, slots=True)
class StagedLayout:
    """Where kernels find what in staged memory, as a finished :class:`_core.Staging` says.

    Attributes:
        has: Of each image, whether it is staged.
        used: Bytes of the memory.
        search: What is to be found.
        codes: Where sets of codes are.
        chunks: The parts in which it is decoded.
        keeps: What is to be kept.
    """

    has: bytes
    used: int
    search: tuple[int, ...]
    codes: tuple[int, int]
    chunks: Sequence[tuple[int, ...]]
    keeps: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, staging: _core.Staging) -> StagedLayout:
        """Finish a staging."""
        chunks = staging.finish(SCRATCH_MAX_BYTES)
        return cls(staging.has(), staging.used, staging.search, staging.codes, chunks, staging.keeps)


class DecodeRun:
    """Runs the kernels for the files of one batch.

    Args:
        decoder: Has them.
        memory: The staged files, pinned.
        bad: Memory for an int32 of each image, pinned.
    """

    def __init__(self, decoder: Decoder, memory: torch.Tensor, bad: torch.Tensor) -> None:
        self._decoder = decoder
        self._memory = memory
        self.bad = bad  # which images the kernels could not decode
        self.points: torch.Tensor | None = None  # that the kernels have found
        self._is_unknown = False  # whether some may have failed
        self._decoded: Any = None  # an event
        self._began: Any = None  # one before the kernels, if they are timed

    @property
    def is_decoded(self) -> bool:
        """Whether the kernels have ended."""
        return not self._is_unknown or bool(self._decoded.query())

    @property
    def decode_s(self) -> float:
        """Seconds that the kernels took; 0 if they were not timed, or have not ended."""
        if self._began is None or not self._decoded.query():
            return 0.0
        return float(self._began.elapsed_time(self._decoded)) * 1e-3

    def start(
        self,
        layout: StagedLayout,
        pixels: torch.Tensor,
        timing: Timing | None,
        *,
        learns: bool,
        name: StageName = "decode",
    ) -> None:
        """Launch them on the current stream, in turn; if impossible, all images are bad.

        Args:
            layout: Of the memory.
            pixels: Device memory for the batch's pixels.
            timing: Of the batch's copy; the kernels are timed if that is.
            learns: Whether points that are found are copied back, to the memory behind the files.
            name: Of the profiler's range.
        """
        timed = timing is not None and timing.is_timed
        self._began = gave_up = None
        failed = False
        if not self._decoder.is_ready(steps=any(chunk[-1] for chunk in layout.chunks)):
            failed = True
        else:
            try:
                used, point_bytes = layout.used, layout.search[-1]
                files = self._decoder.memory("files", used + point_bytes)
                files[:used].copy_(self._memory[:used], non_blocking=True)
                if timed:
                    self._began = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                    self._began.record()
                with stage(name):
                    self.bad.copy_(self._decode(layout, files, pixels), non_blocking=True)
                    if point_bytes and learns:
                        self.points = self._memory[used : used + point_bytes]
                        self.points.copy_(files[used : used + point_bytes], non_blocking=True)
            except torch.OutOfMemoryError:
                failed = True
                if not give_back_on(self._decoder.device):
                    gave_up = "the GPU had no memory left to decode in"
        if gave_up is not None:
            failed = True
            self._decoder.give_up(gave_up)
        if failed:
            self.bad.fill_(1)
        self._is_unknown = True
        self._decoded = torch.cuda.Event(blocking=True, enable_timing=timed)  # type: ignore[no-untyped-call]
        self._decoded.record()
        if timing is not None:
            timing.on_gpu = True
            timing.decode = None if self._began is None else (self._began, self._decoded)

    def _decode(self, layout: StagedLayout, files: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
        """Launch the kernels; return which images they cannot decode, once they have run."""
        launch, kernels = nvrtc.launcher(files.device), self._decoder.kernels
        codes, chunks = layout.codes, layout.chunks
        table_bytes = codes[1] * _core.Staging.table_bytes
        zeros = table_bytes + _aligned(self.bad.nbytes)  # where the coefficients begin
        scratch = self._decoder.memory("scratch", zeros + max(sum(chunk[4:6]) for chunk in chunks))
        bad = scratch[table_bytes : table_bytes + self.bad.nbytes].view(torch.int32)
        if codes[1]:  # else all files are progressive
            name, tables_grid, block, arguments = table_launch(codes, files.data_ptr(), scratch.data_ptr())
            launch(kernels[name], tables_grid, *block, *arguments)
        scratch[table_bytes : zeros + chunks[0][4]].zero_()
        for name, grid, block, arguments in self._searches(layout, files, scratch, bad):
            launch(kernels[name], grid, *block, *arguments)
        if layout.keeps[1]:
            name, keep_grid, block, addresses = keep_launch(layout.keeps, files.data_ptr())
            launch(kernels[name], keep_grid, *block, *addresses)
        for number, chunk in enumerate(chunks):
            if number:
                scratch[zeros : zeros + chunk[4]].zero_()
            coefficients = scratch.data_ptr() + zeros
            memory = files.data_ptr(), scratch.data_ptr(), coefficients, coefficients + chunk[4]
            for name, grid, block, arguments in launches(chunk, *memory, pixels.data_ptr(), bad.data_ptr()):
                launch(kernels[name], grid, *block, *arguments)
        return bad

    def _searches(
        self, layout: StagedLayout, files: torch.Tensor, tables: torch.Tensor, bad: torch.Tensor
    ) -> Iterator[Any]:
        """Yield what finds the points of files that the index does not know."""
        search, sets = layout.search, layout.codes[1]
        if not search[0]:
            self._decoder.free("search")  # it is large, and later epochs do not need it
        else:
            table_bytes = sets * _core.Staging.find_table_bytes
            memory = self._decoder.memory("search", table_bytes + search[3])
            find_tables = memory.data_ptr()
            addresses = files.data_ptr(), tables.data_ptr(), find_tables, find_tables + table_bytes, bad.data_ptr()
            yield from find_launches(search, len(self.bad), sets, *addresses)

    def wait(self) -> bool:
        """Wait until it is known which images are bad; return whether it was not."""
        if not self._is_unknown:
            return False
        self._is_unknown = False
        self._decoded.synchronize()
        return True


class StagedFiles:
    """The files of one batch in pinned memory, prepared for the kernels.

    Decode threads write them. Takes the place of the batch's pixels on the host, with those of a tensor's methods that
    their copy needs.

    Args:
        decoder: Decodes them.
        pixels: The batch's pixels on the host, with those of the images that are not staged.
        by_view: Returns each view's part of them.
        bytes_per_sample: Room for a sample's file.
        allocate: Returns so many bytes of pinned memory.
        new_file: See :meth:`Decoder.files`, as for the following.
        most_samples: How many samples the kernels decode at most.
        to_learn: What threads note in the index beside.
    """

    def __init__(
        self,
        decoder: Decoder,
        pixels: torch.Tensor,
        by_view: Callable[[torch.Tensor], list[torch.Tensor]],
        bytes_per_sample: int,
        allocate: Callable[[int], torch.Tensor],
        new_file: NewFile = "find",
        most_samples: int | None = None,
        to_learn: _core.FoundPoints | None = None,
    ) -> None:
        self._decoder = decoder
        self._new_file = new_file
        self.most_samples = most_samples
        self._pixels = pixels
        self.by_view = by_view
        self._parts = by_view(pixels)
        self._samples = len(self._parts[0])
        images = self._samples * len(self._parts)
        room = _aligned(images * _core.Staging.bytes_per_image + self._samples * bytes_per_sample)
        memory = allocate(room + 4 * images)
        self._run = DecodeRun(decoder, memory[:room], memory[room:].view(torch.int32))
        kept = None if decoder.kept is None else decoder.kept.files
        self.staging = _core.Staging(memory[:room], images, len(self._parts), new_file, most_samples, to_learn, kept)
        self._layout: StagedLayout | None = None

    def is_staged(self) -> list[bool]:
        """Say of each image whether the kernels decode it.

        An image is one view of a sample. Final once the threads are done.
        """
        return [*map(bool, self.staging.has())]

    @property
    def decoded(self) -> tuple[NewFile, int, int]:
        """What was done with new files, and numbers of samples.

        The numbers are of those that the kernels decode, and of those of them that are of new files. Of several views,
        each counts for its share.
        """
        views = len(self._parts)
        staged = (self._samples * views - self.staging.has().count(0)) // views
        return self._new_file, staged, self.staging.new_files

    @property
    def kept(self) -> int:
        """Number of samples that the kernels decode whose files were in the device's memory."""
        has = self.staging.has()
        return min(self.staging.kept_files, len(has) - has.count(0)) // len(self._parts)

    def views(self) -> list[StagedView]:
        """Return what takes the place of each view's pixels, to be copied once."""
        decoded: list[torch.Tensor] = []
        return [StagedView(self, number, decoded) for number in range(len(self._parts))]

    def remove(self, image: int) -> None:
        """Leave out an image, whose pixels were made on the host after all."""
        self.staging.remove(image)

    @property
    def nbytes(self) -> int:
        """Bytes that are copied to the device."""
        staged, views = self.staging.has(), len(self._parts)
        host = sum(part[0].nbytes * staged[view::views].count(0) for view, part in enumerate(self._parts))
        return host + (self.staging.used if any(staged) else 0)

    def is_pinned(self) -> bool:
        """True."""
        return True

    @property
    def decode_s(self) -> float:
        """See :class:`DecodeRun`."""
        return self._run.decode_s

    def to(self, device: torch.device, *, non_blocking: bool = True, timing: Timing | None = None) -> torch.Tensor:
        """Decode on the current stream, without blocking; return all pixels.

        Args:
            device: The decoder's.
            non_blocking: For images that are not staged.
            timing: Of the batch's copy; the kernels are timed if that is.
        """
        staged = self.staging.has()
        if self._layout is None:
            self._decoder.learn(self._samples, self.staging.wanted)
            if self._decoder.kept is not None:
                self._decoder.kept.place(self.staging)
        if not any(staged):
            return self._pixels.to(device, non_blocking=non_blocking)
        if self._layout is None:
            self._layout = StagedLayout.of(self.staging)
        with self._decoder.turn:
            return self._launch(self._layout, timing)

    def _launch(self, layout: StagedLayout, timing: Timing | None) -> torch.Tensor:
        pixels = self._decoder.pixels(self._pixels)
        staged = self.staging.has()
        if 0 in staged:
            for view, parts in enumerate(zip(self.by_view(pixels), self._parts, strict=True)):
                _copy_unstaged(staged[view :: len(self._parts)], *parts)
        self._run.start(layout, pixels, timing, learns=True)
        return pixels

    @property
    def is_decoded(self) -> bool:
        """Whether the kernels have ended."""
        return self._run.is_decoded

    def failed(self) -> list[int]:
        """Return the images that the kernels could not decode.

        Their pixels are wrong. Blocks until they are known.
        """
        run = self._run
        if not run.wait():
            return []
        if run.points is not None:
            with contextlib.suppress(MemoryError):  # the batch does not need it
                if not (found := self.staging.found(run.points, run.bad)).done:
                    self._decoder.found(found)
            run.points = None
        with contextlib.suppress(MemoryError):  # nor this
            self.staging.keep(run.bad)
        if not run.bad.any():
            return []
        flags, staged = run.bad.tolist(), self.staging.has()
        return [image for image, is_staged in enumerate(staged) if is_staged and flags[self.staging.owner(image)]]


class StagedView:
    """A view's part of the pixels of :class:`StagedFiles`, in whose place it is copied.

    The first of them that is copied decodes them all.

    Args:
        files: The batch's.
        number: The view's.
        decoded: The views on the device, once they are there; shared by all of them.
    """

    def __init__(self, files: StagedFiles, number: int, decoded: list[torch.Tensor]) -> None:
        self._files = files
        self._number = number
        self._decoded = decoded

    @property
    def nbytes(self) -> int:
        """Bytes that are copied to the device, all with the first view."""
        return 0 if self._number else self._files.nbytes

    def is_pinned(self) -> bool:
        """True."""
        return True

    def to(self, device: torch.device, *, non_blocking: bool = True, timing: Timing | None = None) -> torch.Tensor:
        """See :meth:`StagedFiles.to`."""
        if not self._decoded:
            self._decoded += self._files.by_view(self._files.to(device, non_blocking=non_blocking, timing=timing))
        return self._decoded[self._number]


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _copy_unstaged(staged: bytes, to: torch.Tensor, pixels: torch.Tensor) -> None:
    """Copy the images that are not staged, without blocking."""
    at = 0
    for on_gpu, group in groupby(staged):
        end = at + len(list(group))
        if not on_gpu:
            to[at:end].copy_(pixels[at:end], non_blocking=True)
        at = end
