"""A training step small enough for a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


class SmallStep:
    """Train a net of two convolutions in fp32; a CPU step takes milliseconds.

    Args:
        device: Where to train.
        side_px: Height and width that images are brought to first, so that the step costs the same for any.
        passes: How often each batch is trained on: makes the step dearer.
    """

    def __init__(self, device: torch.device, *, side_px: int = 32, passes: int = 1) -> None:
        from torch import nn

        torch.manual_seed(0)
        layers = [nn.AdaptiveAvgPool2d(side_px), nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU()]
        self._model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 1000)).to(device)
        self._passes = passes
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Train on one batch that is on the device; returns the loss, there."""
        for _ in range(self._passes):
            self._optimizer.zero_grad(set_to_none=True)
            loss = torch.nn.functional.cross_entropy(self._model(images), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
        return loss
