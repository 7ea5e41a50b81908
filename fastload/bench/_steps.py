"""A training step, and a clock that uses GPU time where there is one."""

from __future__ import annotations

import contextlib
import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fastload.bench.arguments import TINY, VIT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from fastload.measurement.clock import Clock

Batch = tuple[torch.Tensor, torch.Tensor]


def whole_bursts(steps: int, workers: int) -> int:
    """Round ``steps`` up to a multiple of the workers, which finish batches together."""
    return -(-steps // workers) * workers


@contextlib.contextmanager
def fixed_shapes() -> Iterator[None]:
    """Let cuDNN pick its fastest kernels during the warm-up, here and nowhere else."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


class TrainingStep:
    """Run an image classifier's forward, backward and SGD in bf16 autocast, without waiting.

    Args:
        model: A name that ``torchvision.models.get_model`` knows, or :data:`VIT_S`.
        device: Where to train.
        channels_last: Memory format of the weights.
        classes: Labels are smaller than this.
        wrap: Makes the module that is trained of the model, on the device: for training on several.
    """

    def __init__(
        self,
        model: str,
        device: torch.device,
        *,
        channels_last: bool,
        classes: int = 1000,
        wrap: Callable[[torch.nn.Module], torch.nn.Module] | None = None,
    ) -> None:
        torch.manual_seed(0)
        memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self.model = model
        self._device = device
        made = make_model(model, classes).to(device=device, memory_format=memory_format).train()
        self._model = made if wrap is None else wrap(made)
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

    def forget(self) -> None:
        """Drop the gradients: between two stretches of training nothing but weights and momentum is held."""
        self._optimizer.zero_grad(set_to_none=True)


def make_model(model: str, classes: int) -> Any:
    """An image classifier with random weights."""
    from torchvision import models

    if model == TINY:
        layers = [torch.nn.AdaptiveAvgPool2d(32), torch.nn.Conv2d(3, 16, 3, 2), torch.nn.ReLU()]
        return torch.nn.Sequential(
            *layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(16, classes)
        )
    if model == VIT_S:  # torchvision has no name for it, but has all its parts
        return models.VisionTransformer(
            image_size=224, patch_size=16, num_layers=12, num_heads=6, hidden_dim=384, mlp_dim=1536, num_classes=classes
        )
    return models.get_model(model, weights=None, num_classes=classes)


def check_model(model: str) -> None:
    """Raise ``ValueError`` unless ``model`` names one of torchvision's image classifiers."""
    from torchvision import models

    names = [*models.list_models(module=models), VIT_S, TINY]
    if model not in names:
        close = difflib.get_close_matches(model, names, 3) or ["resnet50"]
        raise ValueError(f"--model must be one of torchvision's classifiers, got {model!r}; try {', '.join(close)}")


@dataclass(frozen=True, slots=True)
class StepMarks:
    """Marks of one step: batch received, copied, and step ended."""

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
