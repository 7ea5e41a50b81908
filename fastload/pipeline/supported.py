"""Transform classes of torchvision's v1 and v2 that are supported natively.

v2 is looked up only once the user's process has imported it: the import takes 0.1 s, and none of its transforms can
occur before.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torchvision.transforms  # noqa: F401 - v1

from fastload.pipeline.monkeypatch_check import Originals, imported
from fastload.pipeline.ops import OPS, V2

ROLES: Final = {
    "Compose": "compose",
    "Identity": "identity",
    "RGB": "identity",  # of an image that is RGB already
    "ToTensor": "to_tensor",
    "PILToTensor": "to_tensor",
    "ToImage": "to_tensor",
    "ConvertImageDtype": "elementwise",
    "ToDtype": "elementwise",
    "Normalize": "elementwise",
    "ToPureTensor": "elementwise",
    "RandomErasing": "erasing",
    **dict.fromkeys(OPS, "op"),
}
"""What a transform does to a pipeline, by the name of torchvision's class."""

_roles: dict[type, str] = {torch.nn.Identity: "identity"}
_learnt: set[str] = set()
ORIGINALS: Final = Originals((torch.nn.Identity,))


def role_of(transform: Any) -> str | None:
    """A transform's role; ``None`` if its exact class is not supported natively."""
    for name in ("torchvision.transforms", V2):
        if name not in _learnt and (module := imported(name)) is not None:
            _learn(module)
            _learnt.add(name)
    return _roles.get(type(transform))


def _learn(module: Any) -> None:
    for name, role in ROLES.items():
        cls = getattr(module, name, None)
        if isinstance(cls, type) and cls.__module__.startswith(f"{module.__name__}."):  # else a user put it there
            ORIGINALS.add(cls)
            _roles[cls] = role
