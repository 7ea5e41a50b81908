"""A training step, and a loop over it that is marked on the GPU's own time where there is one."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fastload.insight.clock import Clock, CudaClock, HostClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor, nn

__all__ = [
    "Batch",
    "Clock",
    "CudaClock",
    "HostClock",
    "SmallStep",
    "StepMarks",
    "TrainingStep",
    "check_model",
    "run_steps",
]

Batch = tuple[torch.Tensor, torch.Tensor]


class TrainingStep:
    """Forward, backward and SGD of an image classifier, bf16 autocast: everything is queued, nothing is waited for.

    Args:
        model: A name that ``torchvision.models.get_model`` knows.
        device: Where to train.
        channels_last: Memory format of the weights.
        classes: Labels are smaller than this.
    """

    def __init__(self, model: str, device: torch.device, *, channels_last: bool, classes: int = 1000) -> None:
        from torchvision.models import get_model

        torch.manual_seed(0)
        memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self._device = device
        self._model: nn.Module = get_model(model, weights=None, num_classes=classes)
        self._model = self._model.to(device=device, memory_format=memory_format).train()
        self._loss = torch.nn.CrossEntropyLoss()
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Train on one batch that is on the device; returns the loss, there."""
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self._device.type, dtype=torch.bfloat16):
            loss: Tensor = self._loss(self._model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss


class SmallStep:
    """Training of a net of two convolutions in fp32: a step that a CPU does in milliseconds.

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


def check_model(model: str) -> None:
    """Raise ``ValueError`` unless ``model`` names one of torchvision's image classifiers."""
    from torchvision import models

    names = models.list_models(module=models)
    if model not in names:
        close = difflib.get_close_matches(model, names, 3) or ["resnet50"]
        raise ValueError(f"--model must be one of torchvision's classifiers, got {model!r}; try {', '.join(close)}")


@dataclass(frozen=True, slots=True)
class StepMarks:
    """The marks of one step: the batch came from the loader, it was copied, the step on it ended."""

    arrived: Any
    copied: Any
    ended: Any


def run_steps(
    batches: Iterator[Batch],
    move: Callable[[Tensor, Tensor], Batch],
    step: Callable[[Tensor, Tensor], object],
    clock: Clock,
    count: int,
) -> list[StepMarks]:
    """Run ``count`` steps and mark them; waits for nothing but the batches.

    Args:
        batches: Where ``next()`` is called, once per step.
        move: Brings a batch to the device, on the current stream.
        step: Trains on it.
        clock: Sets the marks.
        count: Steps to run.
    """
    marks = []
    for _ in range(count):
        images, labels = next(batches)
        arrived = clock.mark()
        images, labels = move(images, labels)
        copied = clock.mark()
        step(images, labels)
        marks.append(StepMarks(arrived, copied, clock.mark()))
    return marks
