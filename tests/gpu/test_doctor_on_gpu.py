"""The doctor measures a real device."""

from __future__ import annotations

import pytest
import torch

from fastload.commands.doctor.checks_gpu import find_link, measure_copy
from fastload.commands.doctor.doctor import doctor

pytestmark = pytest.mark.gpu


def test_the_report_describes_the_device_and_how_fast_it_is_fed():
    report = doctor()
    assert report["cuda"].status == "ok"
    assert torch.cuda.get_device_name() in report["gpu"].finding
    copy = report["copy"].data
    assert copy["pinned_bytes_per_s"] > 1e9
    assert copy["pageable_bytes_per_s"] > 0.3e9


def test_pinned_memory_is_not_slower_than_pageable():
    pinned, pageable = measure_copy(torch.device("cuda", torch.cuda.current_device()), size_bytes=64 << 20)
    assert pinned > 0.9 * pageable


def test_a_measured_copy_does_not_exceed_what_the_link_can_carry():
    device = torch.device("cuda", torch.cuda.current_device())
    link = find_link(device)
    if link is None or link.bytes_per_s is None:
        pytest.skip(f"the rate of this link is not known: {link}")
    assert measure_copy(device)[0] <= link.bytes_per_s
