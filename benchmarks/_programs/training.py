"""Train models on batches of some of the programs.

A batch may be on any device.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import torch
from torchvision.models import detection

from benchmarks._programs.classification import ultralytics_settings
from fastload._batch import map_tensors

Loss = Callable[[Any], torch.Tensor]
"""The loss of a batch that is on the model's device."""

Made = tuple[torch.nn.Module, Callable[[torch.nn.Module], Loss]]


def _yolo(task: str, kind: str, config: str) -> Made:
    tasks = import_module("ultralytics.nn.tasks")
    model = getattr(tasks, kind)(config, verbose=False)
    model.args = ultralytics_settings(task=task)

    def loss_of(model: torch.nn.Module) -> Loss:
        def loss(batch: dict[str, Any]) -> torch.Tensor:
            if task == "detect":
                batch = {**batch, "img": batch["img"].float() / 255}
            total: torch.Tensor = model(batch)[0].sum()
            return total

        return loss

    return model, loss_of


def _vision_transformer() -> Made:
    transformers = import_module("transformers")
    model = transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000))

    def loss_of(model: torch.nn.Module) -> Loss:
        return lambda batch: model(pixel_values=batch["pixel_values"], labels=batch["labels"]).loss

    return model, loss_of


def _faster_rcnn() -> Made:
    model = detection.fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=91)

    def loss_of(model: torch.nn.Module) -> Loss:
        def loss(batch: Any) -> torch.Tensor:
            images, targets = batch
            losses = model(list(images), [{**target} for target in targets])
            return torch.stack(list(losses.values())).sum()

        return loss

    return model, loss_of


def _smallest() -> Made:
    """One weight of the mean of all tensors, for runs that are quick."""

    def loss_of(model: torch.nn.Module) -> Loss:
        def loss(batch: Any) -> torch.Tensor:
            means: list[torch.Tensor] = []
            map_tensors(lambda tensor: means.append(tensor.float().mean()), batch)
            total: torch.Tensor = model(torch.stack(means).mean()[None]).sum()
            return total

        return loss

    return torch.nn.Linear(1, 1), loss_of


TRAINED: Final[dict[str, Callable[[], Made]]] = {
    "ultra_classify": lambda: _yolo("classify", "ClassificationModel", "yolo11n-cls.yaml"),
    "ultra_detect": lambda: _yolo("detect", "DetectionModel", "yolo11n.yaml"),
    "hf_vit_processor_fast": _vision_transformer,
    "tvref_detection_hflip_pil": _faster_rcnn,
}
"""Makes a program's model, with random weights, and its loss."""


class ProgramStep:
    """Moves a batch to a device and trains on it, without waiting.

    A step is forward and backward in bf16, and SGD.
    """

    def __init__(self, name: str, device: torch.device, *, small: bool = False) -> None:
        torch.manual_seed(0)
        self._device = device
        model, loss_of = _smallest() if small else TRAINED[name]()
        model = model.to(device).train()
        self._loss = loss_of(model)
        trained = [each for each in model.parameters() if each.requires_grad]
        self._optimizer = torch.optim.SGD(trained, lr=1e-4)

    def moved(self, batch: Any) -> Any:
        """The batch with its tensors on the device."""
        return map_tensors(lambda tensor: tensor.to(self._device, non_blocking=True), batch)

    def __call__(self, batch: Any) -> None:
        """Train on a batch."""
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self._device.type, dtype=torch.bfloat16):
            loss = self._loss(self.moved(batch))
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
