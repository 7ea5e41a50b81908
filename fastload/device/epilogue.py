"""What happens to a tensor on the device after its copy: cast and memory format, in one pass."""

from __future__ import annotations

import torch


def finish(tensor: torch.Tensor, memory_format: torch.memory_format | None, dtype: torch.dtype | None) -> torch.Tensor:
    """Cast floating-point tensors to ``dtype`` and lay 4-D images out in ``memory_format``; values never change else.

    Args:
        tensor: On any device. Returned as it is when there is nothing to do.
        memory_format: For 4-D floating-point or uint8 tensors only; ``None`` and ``preserve_format`` leave the layout.
        dtype: For floating-point tensors only; ``None`` leaves it.
    """
    target = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    is_image = tensor.dim() == 4 and (tensor.is_floating_point() or tensor.dtype == torch.uint8)
    if is_image and memory_format is not None and memory_format != torch.preserve_format:
        return tensor.to(dtype=target, memory_format=memory_format)
    return tensor if target == tensor.dtype else tensor.to(dtype=target)
