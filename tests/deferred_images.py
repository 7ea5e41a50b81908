"""Deferred tensors, made by hand, and what they hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from photos import MEAN, STD
from PIL import ImageFile

from fastload.deferred.content import Content, Fill
from fastload.deferred.geometry import strides_of
from fastload.deferred.memory import guard_pages, tensor_of
from fastload.lazy.pixels import ByPillow, File, Levels, Pending
from fastload.pipeline.installed.decodes import calibrate

SIDE = 48


def pending(data: bytes, size: tuple[int, int], seed: int = 0, side: int = SIDE, **more: Any) -> Pending:
    """A random crop of a JPEG file of a size ``(width, height)``, resized to ``side``."""
    draw = np.random.default_rng(seed)
    width, height = size
    left, top = int(draw.integers(width // 3)), int(draw.integers(height // 3))
    right, bottom = (
        left + int(draw.integers(width // 3, width - left)),
        top + int(draw.integers(height // 3, height - top)),
    )
    file = more.pop("file", None) or File(data, size, calibrated())
    return Pending(file, (left, top, right, bottom), (side, side), mirrored=bool(draw.integers(2)), **more)


def of_levels(pixels: np.ndarray[Any, Any], box: tuple[int, int, int, int], **more: Any) -> Pending:
    """A box of pixels ``(H, W, 3)`` that are made."""
    return Pending(Levels(pixels, calibrated()), box, **more)


def calibrated() -> ByPillow:
    """Pillow, which has been compared with."""
    return ByPillow(calibrate().pass_rule, 0, lambda: None, ImageFile.ImageFile.load)


def table(dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
    """A table of values."""
    if dtype == torch.uint8:
        return torch.arange(256, dtype=dtype).expand(3, 256).contiguous()
    levels = torch.arange(256, dtype=torch.float32) / 255 * scale
    return torch.stack([(levels - mean) / std for mean, std in zip(MEAN, STD, strict=True)]).to(dtype)


def fill_of(dtype: torch.dtype = torch.float32, image: int = 0, box: tuple[int, int, int, int] = (3, 5, 17, 9)) -> Fill:
    """A box of constants."""
    return Fill(image, box, torch.tensor([1, 0.5, 4]).to(dtype))


def expected(content: Content) -> torch.Tensor:
    """What a tensor holds, by torch: ``(N, 3, H, W)``, planar or channels_last."""
    made = []
    for number, image in enumerate(content.images):
        made_of = image.file.part if image.file.is_decoded else image.file._native
        levels = torch.from_numpy(made_of(image).copy()).long()
        one = torch.stack([content.table[channel][levels[..., channel]] for channel in range(3)])
        for each in content.fills:
            if each.image == number:
                top, left, height, width = each.box
                one[:, top : top + height, left : left + width] = each.values[:, None, None]
        made.append(one)
    whole = torch.stack(made)
    return whole if content.planar else whole.contiguous(memory_format=torch.channels_last)


def deferred(content: Content, *, single: bool = False) -> torch.Tensor:
    """A deferred tensor."""
    height, width = content.image_size
    size = (len(content.images), 3, height, width)[single:]
    assert guard_pages()
    return tensor_of(content, size, strides_of(size, planar=content.planar))


def contrast_factors(gray: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> list[float]:
    """Contrasts at which rounding once or twice gives another of some levels.

    Args:
        gray: The gray image, as torchvision's.
        values: Some of its levels.
    """
    mean = np.float32(gray.sum(dtype=np.int64)) / np.float32(gray.size)
    draw = np.random.default_rng(0)
    for _ in range(40 * bool(values.size)):
        factors = draw.uniform(0, 2, 100_000)
        scaled = values.astype(np.float32)[:, None] * factors.astype(np.float32)
        share = (1.0 - factors).astype(np.float32)
        once = (np.float64(mean) * share.astype(np.float64) + scaled).astype(np.float32)
        differs = np.clip(once, 0, 255).astype(np.uint8) != np.clip(mean * share + scaled, 0, 255).astype(np.uint8)
        if differs.any():
            return [float(factor) for factor in factors[differs.any(axis=0)]]
    return []
