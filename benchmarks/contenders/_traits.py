"""Describe a batch of random crops that differ from torchvision's."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

MEAN, DEVIATION, ENERGY, LEAN, SLANT = slice(0, 3), slice(3, 6), 6, 7, 8
"""Columns of :func:`traits`."""


def traits(images: torch.Tensor) -> NDArray[np.float64]:
    """``(N, 9)`` figures of ``(N, 3, H, W)`` images.

    Mean and deviation of the channels; the mean absolute difference of neighbouring pixels, which is small in images
    that were enlarged; top less bottom half; left less right half.
    """
    images = images.detach().float().cpu()
    height, width = images.shape[2] // 2, images.shape[3] // 2
    across = (images[..., 1:] - images[..., :-1]).abs().mean((1, 2, 3))
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().mean((1, 2, 3))
    columns = [
        *images.mean((2, 3)).unbind(1),
        *images.std((2, 3)).unbind(1),
        (across + down) / 2,
        (images[..., :height, :] - images[..., height:, :]).mean((1, 2, 3)),
        (images[..., :width] - images[..., width:]).mean((1, 2, 3)),
    ]
    seen: NDArray[np.float64] = torch.stack(columns, 1).double().numpy()
    return seen
