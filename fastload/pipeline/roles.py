"""Roles of the transforms of torchvision v1, v2 and timm that are supported natively.

v2 and timm are looked up only once the user's process has imported them: v2's import takes 0.1 s, and none of their
transforms can occur before.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torchvision.transforms  # noqa: F401 - v1

from fastload.pipeline.code.own_transforms import is_read, own_transform
from fastload.pipeline.code.pointwise import is_pointwise
from fastload.pipeline.code.wrappers import ToRGB
from fastload.pipeline.installed.patches import Originals, imported
from fastload.pipeline.installed.timm import MODULES as TIMMS_MODULES
from fastload.pipeline.nodes import V2
from fastload.pipeline.ops.table import OPS, TIMMS_OPS, Op

ROLES: Final = {
    "Compose": "compose",
    "Identity": "identity",
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
_TIMMS_ROLES: Final = {
    "MaybeToTensor": "to_tensor",
    "MaybePILToTensor": "to_tensor",
    "RandomErasing": "erasing",
    **dict.fromkeys(TIMMS_OPS, "op"),
}

_OWN: Final = Op(own_transform, True, False, "the code of its class is known")

_roles: dict[type, str] = {torch.nn.Identity: "identity", ToRGB: "op"}
_learnt: set[str] = set()
ORIGINALS: Final = Originals((torch.nn.Identity, ToRGB))


def role_of(transform: Any) -> str | None:
    """A transform's role; ``None`` if neither its exact class nor its code is supported natively."""
    for name in ("torchvision.transforms", V2, *TIMMS_MODULES):
        if name not in _learnt and (module := imported(name)) is not None:
            _learn(module)
            _learnt.add(name)
    role = _roles.get(type(transform))
    if role is None and is_pointwise(transform.lambd if _is_lambda(type(transform)) else transform):
        return "elementwise"
    return "op" if role is None and is_read(transform) else role


def _is_lambda(cls: type) -> bool:
    return cls.__name__ == "Lambda" and cls.__module__.startswith("torchvision.transforms.")


def op_of(transform: Any) -> Op:
    """The row of the table of a transform whose role is ``"op"``."""
    if type(transform) not in _roles:
        return _OWN
    name = type(transform).__name__
    return TIMMS_OPS[name] if type(transform).__module__ in TIMMS_MODULES else OPS[name]


def patched(transform: Any) -> str | None:
    """Say what was changed on a library's transform or class; ``None`` if nothing."""
    return ORIGINALS.patched(transform) if type(transform) in _roles else None


def _learn(module: Any) -> None:
    for name, role in (_TIMMS_ROLES if module.__name__ in TIMMS_MODULES else ROLES).items():
        cls = getattr(module, name, None)
        if isinstance(cls, type) and f"{cls.__module__}.".startswith(f"{module.__name__}."):  # else a user put it there
            ORIGINALS.add(cls)
            _roles[cls] = role
