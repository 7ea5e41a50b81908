"""A training step, and the times of some in a row."""

from __future__ import annotations

import contextlib
import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fastload._arguments import UsageError
from fastload.bench import TINY, VIT_S

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
        model: Name that ``torchvision.models.get_model`` knows, or :data:`VIT_S` or :data:`TINY`.
        device: Device to train on.
        channels_last: Whether the weights are in channels_last memory format.
        classes: Number of classes; labels are smaller.
        wrap: Function that wraps the model on its device, for training on several.
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
        """Drop the gradients; only weights and momentum stay in memory."""
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
    """Raise :class:`UsageError` unless ``model`` names one of torchvision's image classifiers."""
    from torchvision import models

    names = [*models.list_models(module=models), VIT_S, TINY]
    if model not in names:
        close = difflib.get_close_matches(model, names, 3) or ["resnet50"]
        raise UsageError(f"--model must be one of torchvision's classifiers, got {model!r}; try {', '.join(close)}")


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Times of some steps in a row."""

    seconds: float  # time from the end of the step before them to the end of the last one
    waited_s: float  # part of it in which the device had finished a step and the next batch had not arrived
    copied_s: float  # part of it in which the device's compute stream copied a batch


def run_steps(
    batches: Iterator[Batch],
    step: Callable[[Tensor, Tensor], object],
    clock: Clock,
    count: int,
    *,
    move: Callable[[Tensor, Tensor], Batch] | None = None,
) -> list[tuple[Any, Any, Any]]:
    """Run ``count`` steps; waits for nothing but the batches.

    ``move`` brings a batch to the device, on the current stream; ``None`` if it is there.

    Returns:
        The clock's marks of each step: the batch has arrived, it is on the device, the step has ended.
    """
    marks = []
    for _ in range(count):
        batch = next(batches)
        arrived = clock.mark()
        batch = batch if move is None else move(*batch)
        copied = clock.mark()
        step(*batch)
        marks.append((arrived, copied, clock.mark()))
    return marks


def time_steps(
    batches: Iterator[Batch],
    step: Callable[[Tensor, Tensor], object],
    clock: Clock,
    count: int,
    *,
    warm: int,
    move: Callable[[Tensor, Tensor], Batch] | None = None,
) -> StepTimes:
    """Time ``count`` steps after ``warm`` others, at least one. Blocks; see :func:`run_steps`."""
    before = run_steps(batches, step, clock, max(1, warm), move=move)[-1][-1]
    marks = run_steps(batches, step, clock, count, move=move)
    clock.finish()
    ends = [before, *(end for _, _, end in marks)]
    return StepTimes(
        seconds=clock.between_s(ends[0], ends[-1]),
        waited_s=sum(clock.between_s(end, arrived) for end, (arrived, _, _) in zip(ends, marks, strict=False)),
        copied_s=sum(clock.between_s(arrived, copied) for arrived, copied, _ in marks),
    )
