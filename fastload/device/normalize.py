"""The epilogue after the copy: cast and memory format, or normalization, in one pass.

Normalization looks pixels up in a table of 256 values per channel that torch computed on the CPU, so the bits are the
CPU's in every dtype. (Division on a GPU gives other bits: torch multiplies by the reciprocal there.)
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch

from fastload.options import has_streams

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.device.erasing import Erased, Noise
    from fastload.device.timing import Timing
    from fastload.pipeline.ops.erasing import Patch
    from fastload.pipeline.recipe import Recipe

TABLE_DTYPES: Final = (torch.float32, torch.float16, torch.bfloat16)
LAYOUTS: Final = (torch.channels_last, torch.contiguous_format)
LEVELS: Final = 256  # values of a uint8
CHANNELS_MAX: Final = 4


@dataclass(frozen=True, eq=False)
class NormalizeTable:
    """A table of output values for each level of each channel.

    It is uploaded once to each device that uses it, and stays there while the table lives. Thread-safe.

    Attributes:
        values: ``(C, 256)``, C from 1 to 4, on the CPU, float32, float16 or bfloat16; must not change afterwards.

    Raises:
        ValueError: ``values`` has another shape, dtype or device.
    """

    values: torch.Tensor
    _on_device: dict[torch.device, torch.Tensor] = field(default_factory=dict, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        values = self.values
        if values.dim() != 2 or values.size(1) != LEVELS or not 1 <= values.size(0) <= CHANNELS_MAX:
            raise ValueError(f"values must be (channels, 256) with 1 to 4 channels, got {tuple(values.shape)}")
        if values.dtype not in TABLE_DTYPES or values.device.type != "cpu":
            raise ValueError(
                f"values must be float32, float16 or bfloat16 on the CPU, got {values.dtype} on {values.device}"
            )
        object.__setattr__(self, "values", values.detach().contiguous())

    def __reduce__(self) -> tuple[type[NormalizeTable], tuple[torch.Tensor]]:
        return NormalizeTable, (self.values,)

    @property
    def channels(self) -> int:
        """Number of channels of an image."""
        return self.values.size(0)

    @property
    def dtype(self) -> torch.dtype:
        """The result's dtype."""
        return self.values.dtype

    def on(self, device: torch.device) -> torch.Tensor:
        """Return ``values`` on ``device``, for work on its current stream.

        The first call uploads them and blocks until the upload is complete.
        """
        if device.type == "cpu":
            return self.values
        held = self._on_device.get(device)
        if held is None:
            with self._lock:
                held = self._on_device.get(device)
                if held is None:
                    held = self._on_device[device] = self.values.to(device)
        if has_streams(device):  # else memory of a deleted table could be reused while queued work reads it
            held.record_stream(torch.get_device_module(device).current_stream(device))
        return held


def apply_table(
    images: torch.Tensor, table: NormalizeTable, memory_format: torch.memory_format, *, wait: bool = True
) -> torch.Tensor:
    """Look up every pixel of a batch in ``table``, on its device's current stream.

    Does not block on the device, except to upload the table when the device first uses it.

    Args:
        images: ``(N, H, W, C)`` uint8, contiguous, on any device.
        table: A table with the same number of channels.
        memory_format: ``torch.channels_last`` or ``torch.contiguous_format``: the strides of the result.
        wait: Whether to wait for the CUDA kernel, which takes 0.4 s to load once per process; until it is ready, torch
            looks values up with the same bits.

    Returns:
        ``(N, C, H, W)`` of the table's dtype on the device of ``images``, newly allocated.

    Raises:
        ValueError: An argument does not fit the above.
    """
    if images.dim() != 4 or images.dtype != torch.uint8 or not images.is_contiguous():
        raise ValueError(
            "images must be (N, H, W, C) uint8 and contiguous, got "
            f"{tuple(images.shape)} {images.dtype} with strides {images.stride()}; pass images.contiguous()"
        )
    if images.size(3) != table.channels:
        raise ValueError(f"images must have the {table.channels} channels of the table, got {images.size(3)}")
    if memory_format not in LAYOUTS:
        raise ValueError(f"memory_format must be torch.channels_last or torch.contiguous_format, got {memory_format}")
    if images.is_cuda:
        from fastload.device import nvrtc

        looked_up = nvrtc.look_up(images, table.on(images.device), memory_format, wait=wait)
        if looked_up is not None:
            return looked_up
    return look_up(images, table, memory_format)


def look_up(images: torch.Tensor, table: NormalizeTable, memory_format: torch.memory_format) -> torch.Tensor:
    """:func:`apply_table` for the CPU, and in torch alone for devices without a kernel.

    Does not check its arguments.
    """
    count, height, width, channels = images.shape
    values = table.on(images.device)
    shape = (count, channels, height, width)
    out = torch.empty(shape, dtype=values.dtype, device=images.device, memory_format=memory_format)
    if images.device.type == "cpu" and type(out) is type(images) is torch.Tensor:  # others may have no memory
        from fastload import _core

        _core.look_up(images, values, out, memory_format == torch.contiguous_format)
        return out
    for channel in range(channels):
        levels = images[..., channel].to(torch.int32)
        out[:, channel] = values[channel].index_select(0, levels.view(-1)).view(count, height, width)
    return out


def finish(tensor: torch.Tensor, memory_format: torch.memory_format | None, dtype: torch.dtype | None) -> torch.Tensor:
    """Cast floating-point tensors to ``dtype`` and lay out 4-D images in ``memory_format``.

    Values are otherwise unchanged.

    Args:
        tensor: On any device. Returned itself if there is nothing to do.
        memory_format: For 4-D floating-point or uint8 tensors only; ``None`` and ``preserve_format`` leave the layout.
        dtype: For floating-point tensors only; ``None`` leaves it.
    """
    target = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    is_image = tensor.dim() == 4 and (tensor.is_floating_point() or tensor.dtype == torch.uint8)
    is_image = is_image and tensor.layout == torch.strided and not tensor.is_nested
    if is_image and memory_format is not None and memory_format != torch.preserve_format:
        return tensor.to(dtype=target, memory_format=memory_format)
    return tensor if target == tensor.dtype else tensor.to(dtype=target)


def to_images(
    pixels: torch.Tensor,
    table: NormalizeTable | None,
    memory_format: torch.memory_format,
    erased: Erased | Noise | None = None,
    channels: int = 3,
) -> torch.Tensor:
    """Make ``(N, C, H, W)`` images from ``(N, H, W, 3)`` uint8 pixels.

    Takes the first ``channels``, looks values up in ``table`` (without one, they stay uint8), then erases boxes.
    """
    if channels < pixels.size(3):
        pixels, memory_format = pixels[..., :channels].contiguous(), torch.contiguous_format  # one is both
    if table is not None:
        images = apply_table(pixels, table, memory_format, wait=False)
    else:
        images = pixels.permute(0, 3, 1, 2).contiguous(memory_format=memory_format)
        if channels == 1:
            images = images.view(images.shape)  # the strides that torch gives a new tensor
    if erased is not None:
        erased.fill(images)
    return images


class TableImages:
    """A leaf of a host batch: copied as uint8 pixels, then made into images.

    Args:
        pixels: ``(N, H, W, 3)`` uint8, on the host, pinned or not.
        table: See :func:`to_images`.
        memory_format: The images' memory format.
        erased: See :func:`to_images`.
        channels: See :func:`to_images`.
    """

    def __init__(
        self,
        pixels: torch.Tensor,
        table: NormalizeTable | None,
        memory_format: torch.memory_format,
        erased: Erased | Noise | None = None,
        channels: int = 3,
    ) -> None:
        self.channels = channels
        self.pixels = pixels
        self.table = table
        self.memory_format = memory_format
        self.erased = erased

    @property
    def nbytes(self) -> int:
        """Bytes that are copied to the device."""
        return int(self.pixels.nbytes) + (0 if self.erased is None else self.erased.nbytes)

    def pin_memory(self) -> TableImages:
        """Return the same leaf with its pixels in pinned memory."""
        return TableImages(self.pixels.pin_memory(), self.table, self.memory_format, self.erased, self.channels)

    def to(self, device: torch.device, *, non_blocking: bool = False) -> torch.Tensor:
        """Return the images on ``device``, made on its current stream."""
        return self.copy_pixels(device, non_blocking=non_blocking).images()

    def copy_pixels(
        self, device: torch.device, *, non_blocking: bool = False, timing: Timing | None = None
    ) -> CopiedImages:
        """Copy only the pixels, and noise, to ``device``; the epilogue makes the images.

        Files in the place of pixels are decoded there, and note that in ``timing``.
        """
        pin = non_blocking and self.pixels.is_pinned()
        erased = None if self.erased is None else self.erased.copied(device, pin=pin)
        more: dict[str, Any] = {} if isinstance(self.pixels, torch.Tensor) else {"timing": timing}
        return CopiedImages(self, self.pixels.to(device, non_blocking=non_blocking, **more), erased)

    def record_stream(self, stream: torch.Stream) -> None:
        """Do nothing: a copy keeps its host memory alive until it is done."""


class CopiedImages:
    """Images whose pixels have been copied, before the epilogue."""

    def __init__(self, host: TableImages, pixels: torch.Tensor, erased: Erased | Noise | None) -> None:
        self._host = host
        self._pixels = pixels
        self._erased = erased

    def images(self) -> torch.Tensor:
        """Make the images on the current stream of their device."""
        host = self._host
        return to_images(self._pixels, host.table, host.memory_format, self._erased, host.channels)


def layout_of(memory_format: torch.memory_format | None) -> torch.memory_format:
    """The layout of images that are made on a device for a loader with ``memory_format``."""
    return torch.channels_last if memory_format == torch.channels_last else torch.contiguous_format


def host_images(recipe: Recipe, memory_format: torch.memory_format) -> Callable[[torch.Tensor, list[list[Patch]]], Any]:
    """Return a function that makes a recipe's images, or their views, on the CPU."""
    leaf_of = table_images(recipe, memory_format)

    def images(pixels: torch.Tensor, patches: list[list[Patch]]) -> Any:
        made = leaf_of(pixels, patches)
        leaves = made if isinstance(made, list) else [made]
        views = [CopiedImages(leaf, leaf.pixels, leaf.erased).images() for leaf in leaves]
        return views if isinstance(made, list) else views[0]

    return images


def table_images(
    recipe: Recipe, memory_format: torch.memory_format
) -> Callable[[torch.Tensor, list[list[Patch]]], Any]:
    """Return a function that makes the leaf, or each view's, from pixels and patches."""
    from fastload.device.erasing import to_fill

    table = None if recipe.pipeline.table is None else NormalizeTable(recipe.pipeline.table)
    erasing, channels = recipe.pipeline.erasing, recipe.pipeline.channels
    if recipe.pipeline.views > 1:

        def views(pixels: Any, _: object) -> list[TableImages]:
            # Files in the place of pixels know their views.
            found = recipe.pipeline.by_view(pixels) if isinstance(pixels, torch.Tensor) else pixels.views()
            return [TableImages(view, table, memory_format, None, channels) for view in found]

        return views
    return lambda pixels, patches: TableImages(pixels, table, memory_format, to_fill(erasing, patches), channels)
