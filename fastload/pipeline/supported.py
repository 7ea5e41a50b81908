"""Transform classes of torchvision's v1 and v2 that are supported natively.

v2 is looked up only once the user's process has imported it: the import takes 0.1 s, and none of its transforms can
occur before.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torchvision.transforms  # noqa: F401 - v1

from fastload.pipeline.monkeypatch_check import Originals, imported

_ROLES: Final = {
    "Compose": "compose",
    "Identity": "identity",
    "RandomResizedCrop": "random_resized_crop",
    "Resize": "resize",
    "CenterCrop": "center_crop",
    "RandomCrop": "random_crop",
    "RandomHorizontalFlip": "horizontal_flip",
    "RandomVerticalFlip": "vertical_flip",
    "ToTensor": "to_tensor",
    "PILToTensor": "to_tensor",
    "ToImage": "to_tensor",
    "ConvertImageDtype": "elementwise",
    "ToDtype": "elementwise",
    "Normalize": "elementwise",
    "ToPureTensor": "elementwise",
    "RandomErasing": "erasing",
}
FLIPS: Final = ("horizontal_flip", "vertical_flip")
RESIZES: Final = ("resize", "random_resized_crop")
RANDOM: Final = ("random_resized_crop", "random_crop", *FLIPS)
GEOMETRY: Final = (*RESIZES, "center_crop", "random_crop", *FLIPS)

_V2: Final = "torchvision.transforms.v2"
_roles: dict[type, str] = {torch.nn.Identity: "identity"}
_learnt: set[str] = set()
ORIGINALS: Final = Originals((torch.nn.Identity,))


def role_of(transform: Any) -> str | None:
    """A transform's role; ``None`` if its exact class is not supported natively."""
    for name in ("torchvision.transforms", _V2):
        if name not in _learnt and (module := imported(name)) is not None:
            _learn(module)
            _learnt.add(name)
    return _roles.get(type(transform))


def is_v2(transform: Any) -> bool:
    """Whether a natively supported transform is from torchvision's v2."""
    return type(transform).__module__.startswith(f"{_V2}.")


def _learn(module: Any) -> None:
    for name, role in _ROLES.items():
        cls = getattr(module, name, None)
        if isinstance(cls, type) and cls.__module__.startswith(f"{module.__name__}."):  # else a user put it there
            ORIGINALS.add(cls)
            _roles[cls] = role
