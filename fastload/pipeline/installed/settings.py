"""Check the torch settings that a worker inherits and that change its draws or batches."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.data._utils import collate

from fastload.pipeline.errors import Refused, name_of


def check_modes() -> None:
    """Refuse if a mode or default device changes torch's functions in this thread.

    Raises:
        Refused: Says what to change.
    """
    modes = [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]  # type: ignore[no-untyped-call]
    for mode in modes:
        if getattr(type(mode), "keeps_results", False):  # one of ours
            continue
        device = getattr(mode, "device", None) if isinstance(mode, DeviceContext) else None
        if device is None:
            raise Refused(f"{type(mode).__name__} may change what torch's functions do; leave it before you iterate")
        _check_device(device)
    _check_device(torch.empty(0).device)  # torch.set_default_tensor_type


def _check_device(device: torch.device) -> None:
    if device.type != "cpu":
        raise Refused(f"torch's default device is {device}; set it to the CPU with torch.set_default_device('cpu')")


def check_dtype() -> None:
    """Refuse if torch's default dtype is not the core's, float32.

    Raises:
        Refused: Says what to change.
    """
    dtype = torch.get_default_dtype()
    if dtype != torch.float32:
        raise Refused(
            f"torch's default dtype is {dtype}, in which the transforms draw; set it to torch.float32 with "
            "torch.set_default_dtype"
        )


def check_collating(image: type[torch.Tensor]) -> None:
    """Refuse if ``default_collate`` does not stack images as torch does.

    Args:
        image: Type of a sample's image.

    Raises:
        Refused: Says what to change.
    """
    tensor = torch.empty(0).as_subclass(image)
    if (function := _collated_by(tensor)) is not collate.collate_tensor_fn:
        found = "nothing" if function is None else name_of(function)
        raise Refused(
            f"torch's default_collate_fn_map has {found} for images ({image.__name__}); leave "
            "torch's collate_tensor_fn there"
        )
    if (function := _collated_by((tensor, 0))) is not None:
        raise Refused(f"torch's default_collate_fn_map has {name_of(function)} for tuples, as samples are; take it out")
    helpers = sys.modules.get("torchvision.tv_tensors._torch_function_helpers")
    if image is not torch.Tensor and helpers is not None and helpers._must_return_subclass():
        raise Refused(
            f"torchvision.tv_tensors.set_return_type('TVTensor') makes batches {image.__name__}s; end the transform "
            "with ToPureTensor(), or set it back to 'Tensor'"
        )


def _collated_by(sample: Any) -> Any:
    """The entry that ``default_collate`` would choose: the exact type's, else the first base class's."""
    functions: dict[Any, Any] = collate.default_collate_fn_map
    if type(sample) in functions:
        return functions[type(sample)]
    return next((function for kind, function in functions.items() if isinstance(sample, kind)), None)
