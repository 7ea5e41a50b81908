"""Decode JPEG files on a GPU, with the bits of the decode threads.

The threads only read the files: they remove what is not data, and say where segments of it begin, which they know from
the index (``csrc/jpeg/stage_image.h``). The kernels in ``decode.cu`` do the rest, from entropy decoding to the resize.
What the kernels cannot decode, the threads have decoded: a batch may contain both.
"""

from __future__ import annotations

import functools
import threading
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from fastload import _core
from fastload.device import nvrtc
from fastload.nvtx.stages import stage

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE: Final = Path(__file__).with_name("decode.cu")
LAYOUT: Final = Path(__file__).with_name("decode_layout.h")
KERNELS: Final = ("huffman", "transform", "rows", "columns_first", "second_pass")

SCRATCH_MAX_BYTES: Final = 256 << 20
"""Most device memory for intermediate results, unless one image needs more. Batches are decoded in parts."""

FIRST_BYTES_PER_IMAGE: Final = 96 << 10
"""Room for a file at first; later batches have as much as those before them would have needed."""

_WORK_THREADS: Final = 64  # threads of a block; these are as in decode.cu
_BLOCKS_AT_ONCE: Final = 32
_ROW_THREADS: Final = 128
_ROWS_AT_ONCE: Final = 8  # that a block makes, one after the other
_ROWS_MAX: Final = 65535  # of a grid


def source() -> str:
    """The kernels' source, as one file."""
    layout = LAYOUT.read_text(encoding="utf-8").replace("#pragma once\n", "")
    return SOURCE.read_text(encoding="utf-8").replace('#include "decode_layout.h"\n', layout)


@functools.cache
def _kernels(index: int) -> Any:
    return nvrtc.build(index, "fastload_decode", source(), KERNELS)


def launches(
    chunk: tuple[int, ...], files: int, coefficients: int, scratch: int, pixels: int, bad: int
) -> Iterator[tuple[str, tuple[int, ...], tuple[int, int], tuple[int, ...]]]:
    """Yield each kernel's name, grid, numbers of threads and of dynamic shared bytes, and arguments.

    Args:
        chunk: Of :meth:`_core.Staging.finish`.
        files: Address of the batch's files, as for the following.
        coefficients: Zeros.
        scratch: Room for other intermediate results.
        pixels: The batch's pixels.
        bad: An int32 for each image of the batch.
    """
    first, images, work, work_items, coefficient_bytes, _, width, height, out_width, out_height, vertical_first = chunk
    yield "huffman", (work_items,), (_WORK_THREADS, 0), (files, files + work, coefficients, bad)
    blocks = -(-coefficient_bytes // (128 * images * _BLOCKS_AT_ONCE))  # enough for most images
    yield "transform", (blocks, images), (8 * _BLOCKS_AT_ONCE, 0), (files, first, coefficients, scratch, bad)
    yield "rows", (-(-height // _ROWS_AT_ONCE), images), (_ROW_THREADS, 4 * width), (files, first, scratch)
    if vertical_first:
        grid = -(-width // _ROW_THREADS), min(out_height, _ROWS_MAX), images
        yield "columns_first", grid, (_ROW_THREADS, 0), (files, first, scratch)
    grid = -(-out_width // _ROW_THREADS), min(out_height, _ROWS_MAX), images
    yield "second_pass", grid, (_ROW_THREADS, 0), (files, first, scratch, pixels)


class Decoder:
    """Decodes on one device and one of its streams. Thread-safe except for :meth:`StagedFiles.to`.

    Args:
        device: A CUDA device, with an index.

    Raises:
        Exception: The kernels cannot be compiled or loaded (ImportError: there is no ``cuda.core``).
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        with torch.cuda.device(device):
            self.kernels = _kernels(device.index)
        self._lock = threading.Lock()
        self._bytes_per_image = FIRST_BYTES_PER_IMAGE
        self._scratch: torch.Tensor | None = None
        self.out_of_memory = False  # once: then the threads decode everything

    def files(self, pixels: torch.Tensor) -> StagedFiles:
        """Make room for the files of a batch with these pixels on the host."""
        return StagedFiles(self, pixels, len(pixels) * self._bytes_per_image)

    def learn(self, images: int, wanted: int) -> None:
        """Note how many bytes a batch would have needed."""
        with self._lock:
            self._bytes_per_image = max(self._bytes_per_image, -(-wanted * 9 // (8 * images)))

    def scratch(self, nbytes: int) -> torch.Tensor:
        """Device memory for the current stream, on which all batches are decoded."""
        if self._scratch is None or self._scratch.numel() < nbytes:
            self._scratch = None  # freed first
            self._scratch = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        return self._scratch


class StagedFiles:
    """The files of one batch in pinned memory, prepared for the kernels.

    Decode threads write them. Takes the place of the batch's pixels on the host, with those of a tensor's methods that
    their copy needs.

    Args:
        decoder: Decodes them.
        pixels: The batch's pixels on the host, with those of the images that are not staged.
        nbytes: Room for the files.
    """

    def __init__(self, decoder: Decoder, pixels: torch.Tensor, nbytes: int) -> None:
        self._decoder = decoder
        self._pixels = pixels
        room = len(pixels) * _core.Staging.bytes_per_image + nbytes
        self._memory = torch.empty(room, dtype=torch.uint8, pin_memory=True)
        self.staging = _core.Staging(self._memory, len(pixels))
        self._chunks: Any = None
        self._bad: torch.Tensor | None = None  # on the host: which images the kernels could not decode
        self._decoded: Any = None  # an event

    def is_staged(self) -> list[bool]:
        """Say of each image whether the kernels decode it.

        Final once the threads are done.
        """
        return [flag != 0 for flag in self.staging.has()]

    def remove(self, image: int) -> None:
        """Leave out an image, whose pixels were made on the host after all."""
        self.staging.remove(image)

    @property
    def nbytes(self) -> int:
        """Bytes that are copied to the device."""
        staged = self.is_staged()
        host = self._pixels.nbytes // len(self._pixels) * staged.count(False)
        return host + (self.staging.used if any(staged) else 0)

    def is_pinned(self) -> bool:
        """True."""
        return True

    def to(self, device: torch.device, *, non_blocking: bool = True) -> torch.Tensor:
        """Decode on the current stream, without blocking; return all pixels."""
        staged = self.is_staged()
        if not any(staged):
            return self._pixels.to(device, non_blocking=non_blocking)
        if self._chunks is None:
            self._decoder.learn(len(staged), self.staging.wanted)
            self._chunks = self.staging.finish(SCRATCH_MAX_BYTES)
        files = self._memory[: self.staging.used].to(device, non_blocking=True)
        pixels = torch.empty_like(self._pixels, device=device)
        at = 0
        for on_gpu, group in groupby(staged):
            end = at + len(list(group))
            if not on_gpu:
                pixels[at:end].copy_(self._pixels[at:end], non_blocking=True)
            at = end
        bad = torch.zeros(len(staged), dtype=torch.int32, device=device)
        with stage("decode"):
            try:
                for chunk in self._chunks:
                    self._decode(chunk, files, pixels, bad)
            except torch.OutOfMemoryError:
                self._decoder.out_of_memory = True
                bad.fill_(1)
        self._bad = torch.empty(len(staged), dtype=torch.int32, pin_memory=True)
        self._bad.copy_(bad, non_blocking=True)
        self._decoded = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self._decoded.record()
        return pixels

    def _decode(self, chunk: Any, files: torch.Tensor, pixels: torch.Tensor, bad: torch.Tensor) -> None:
        coefficient_bytes, other_bytes = chunk[4:6]
        scratch = self._decoder.scratch(coefficient_bytes + other_bytes)
        scratch[:coefficient_bytes].zero_()
        launch, kernels = nvrtc.launcher(files.device), self._decoder.kernels
        coefficients = scratch.data_ptr()
        memory = files.data_ptr(), coefficients, coefficients + coefficient_bytes, pixels.data_ptr(), bad.data_ptr()
        for name, grid, block, arguments in launches(chunk, *memory):
            launch(kernels[name], grid, *block, *arguments)

    def failed(self) -> list[int]:
        """Return the images that the kernels could not decode.

        Their pixels are wrong. Blocks until they are known.
        """
        bad, self._bad = self._bad, None
        if bad is None:
            return []
        self._decoded.synchronize()
        return [int(image) for image in bad.nonzero() if self.staging.has()[image]]
