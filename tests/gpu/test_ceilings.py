"""The roofline's ceilings, measured on a real device."""

from __future__ import annotations

import pytest
import torch

from fastload.profiling.analysis import roofline

pytestmark = pytest.mark.gpu


def test_every_kind_has_the_ceiling_that_its_units_allow():
    before = torch.get_float32_matmul_precision()
    ceilings = roofline.measure()
    assert torch.get_float32_matmul_precision() == before
    assert ceilings.device == torch.cuda.get_device_name()
    assert ceilings.bytes_per_s > 1e11
    assert ceilings.tensor_flops > ceilings.fp32_flops
    if torch.cuda.get_device_capability() >= (8, 0):  # of older ones none has TF32
        assert 0.8 * ceilings.fp32_flops < ceilings.tf32_flops < 0.8 * ceilings.tensor_flops
