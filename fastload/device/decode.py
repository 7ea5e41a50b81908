"""Decode the JPEG files of a batch on a GPU, with the bits of the decode threads.

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
KERNELS: Final = ("huffman", "transform", "to_rgb", "first_pass", "second_pass")

SCRATCH_MAX_BYTES: Final = 160 << 20
"""Most device memory for intermediate results, unless one image needs more. Batches are decoded in parts."""

FIRST_BYTES_PER_IMAGE: Final = 96 << 10
"""Room for a file at first; later batches have as much as those before them would have needed."""

_WORK_THREADS: Final = 64  # threads of a block; these are as in decode.cu
_BLOCKS_AT_ONCE: Final = 32
_TILE: Final = (32, 8)
_ROW_THREADS: Final = 128
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
) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """Yield each kernel's name, grid, block and arguments.

    Args:
        chunk: Of :meth:`_core.Staging.finish`.
        files: Address of the batch's files, as for the following.
        coefficients: Zeros.
        scratch: Room for other intermediate results.
        pixels: The batch's pixels.
        bad: An int32 for each image of the batch.
    """
    first, images, work, work_items, coefficient_bytes, _, width, height, out_width, out_height = chunk
    yield "huffman", (work_items,), (_WORK_THREADS,), (files, files + work, coefficients, bad)
    blocks = -(-coefficient_bytes // (128 * images * _BLOCKS_AT_ONCE))  # enough for most images
    yield "transform", (blocks, images), (8 * _BLOCKS_AT_ONCE,), (files, first, coefficients, scratch, bad)
    tiles = -(-width // _TILE[0]), min(-(-height // _TILE[1]), _ROWS_MAX), images
    yield "to_rgb", tiles, _TILE, (files, first, scratch)
    rows = -(-max(width, out_width) // _ROW_THREADS), min(max(height, out_height), _ROWS_MAX), images
    yield "first_pass", rows, (_ROW_THREADS,), (files, first, scratch)
    rows = -(-out_width // _ROW_THREADS), min(out_height, _ROWS_MAX), images
    yield "second_pass", rows, (_ROW_THREADS,), (files, first, scratch, pixels)


class Decoder:
    """Decodes on one device. Thread-safe.

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

    def files(self, images: int) -> StagedFiles:
        """Make room for the files of a batch of ``images``."""
        return StagedFiles(self, images, images * self._bytes_per_image)

    def learn(self, images: int, wanted: int) -> None:
        """Note how many bytes a batch would have needed."""
        with self._lock:
            self._bytes_per_image = max(self._bytes_per_image, -(-wanted * 9 // (8 * images)))


class StagedFiles:
    """The files of one batch in pinned memory, as the decode threads prepare them for the kernels.

    Args:
        decoder: Decodes them.
        images: Number of images in the batch.
        nbytes: Size of the memory.
    """

    def __init__(self, decoder: Decoder, images: int, nbytes: int) -> None:
        self._decoder = decoder
        self._images = images
        self._memory = torch.empty(
            images * _core.Staging.bytes_per_image + nbytes, dtype=torch.uint8, pin_memory=decoder.device.type == "cuda"
        )
        self.staging = _core.Staging(self._memory, images)
        self._chunks: Any = None
        self._bad: torch.Tensor | None = None  # on the host: which images the kernels could not decode
        self._decoded: Any = None  # an event

    @property
    def staged(self) -> list[bool]:
        """For each image, whether the kernels decode it rather than the threads. Read once the threads are done."""
        return [flag != 0 for flag in self.staging.has()]

    def remove(self, image: int) -> None:
        """Leave out an image, whose pixels were made on the host after all."""
        self.staging.remove(image)

    def pixels(self, host: torch.Tensor, number: int | None = None) -> torch.Tensor:
        """Decode on the current stream. Does not block on the device.

        Args:
            host: The batch's pixels, images first, with those of the images that are not staged.
            number: The batch's, for the profile.

        Returns:
            All pixels, on the device.
        """
        device = self._decoder.device
        staged = self.staged
        if not any(staged):
            return host.to(device, non_blocking=True)
        if self._chunks is None:
            self._decoder.learn(self._images, self.staging.wanted)
            self._chunks = self.staging.finish(SCRATCH_MAX_BYTES)
        with torch.cuda.device(device), stage("decode", number):
            files = self._memory[: self.staging.used].to(device, non_blocking=True)
            pixels = torch.empty_like(host, device=device)
            at = 0
            for on_gpu, group in groupby(staged):
                end = at + len(list(group))
                if not on_gpu:
                    pixels[at:end].copy_(host[at:end], non_blocking=True)
                at = end
            bad = torch.zeros(self._images, dtype=torch.int32, device=device)
            for chunk in self._chunks:
                self._decode(chunk, files, pixels, bad)
            self._bad = torch.empty(self._images, dtype=torch.int32, pin_memory=True)
            self._bad.copy_(bad, non_blocking=True)
            self._decoded = torch.cuda.Event(blocking=True)
            self._decoded.record()
        return pixels

    def _decode(self, chunk: Any, files: torch.Tensor, pixels: torch.Tensor, bad: torch.Tensor) -> None:
        *_, coefficient_bytes, other_bytes, _, _, _, _ = chunk
        coefficients = torch.zeros(coefficient_bytes, dtype=torch.uint8, device=files.device)
        other = torch.empty(other_bytes, dtype=torch.uint8, device=files.device)
        launch, kernels = nvrtc.launcher(files.device), self._decoder.kernels
        memory = [tensor.data_ptr() for tensor in (files, coefficients, other, pixels, bad)]
        for name, grid, block, arguments in launches(chunk, *memory):
            launch(kernels[name], grid, block, *arguments)

    def failed(self) -> list[int]:
        """Return the images that the kernels could not decode: their pixels are wrong. Blocks until they are known."""
        if self._bad is None:
            return []
        self._decoded.synchronize()
        return [int(image) for image in self._bad.nonzero()]
