"""The core's draws are calibrated against the installed torch, and refused where they differ."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from fastload.pipeline.installed import torch_stream as random_stream
from fastload.pipeline.installed.torch_stream import calibrate_stream, exp_errs_less_than_an_ulp


@pytest.fixture(autouse=True)
def _afresh() -> None:
    random_stream._calibrate.cache_clear()


@pytest.mark.matrix
def test_the_installed_torch_is_reproduced() -> None:
    before = torch.get_rng_state()
    calibration = calibrate_stream()
    assert calibration is not None
    assert calibration.torch == torch.__version__
    assert torch.equal(torch.get_rng_state(), before)


def test_torchs_defaults_change_nothing() -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            assert calibrate_stream() is not None
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("capability", ["default", "avx2"])
@pytest.mark.slow
def test_any_cpu_capability_is_reproduced(capability: str) -> None:
    code = "from fastload.pipeline.installed.torch_stream import calibrate_stream as c; assert c() is not None"
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": capability}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_an_exp_off_by_an_ulp_and_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = torch.exp
    assert exp_errs_less_than_an_ulp()

    def coarse(x: torch.Tensor) -> torch.Tensor:
        return torch.nextafter(torch.nextafter(exact(x), torch.tensor(9e9)), torch.tensor(9e9))

    monkeypatch.setattr(torch, "exp", coarse)
    assert not exp_errs_less_than_an_ulp()
    assert calibrate_stream() is None


def test_a_generator_that_draws_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    randint = torch.randint
    monkeypatch.setattr(
        torch, "randint", lambda low, high, size, generator: randint(low, high + 1, size, generator=generator)
    )
    assert calibrate_stream() is None


def test_a_permutation_that_differs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    randperm = torch.randperm
    monkeypatch.setattr(torch, "randperm", lambda count, generator: randperm(count, generator=generator).flip(0))
    assert calibrate_stream() is None


def test_a_uniform_under_no_known_rule_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    uniform = torch.Tensor.uniform_

    def other(self: torch.Tensor, low: float, high: float, generator: torch.Generator) -> torch.Tensor:
        return uniform(self, low, high, generator=generator).mul_(1 + 2.0**-20)

    monkeypatch.setattr(torch.Tensor, "uniform_", other)
    assert calibrate_stream() is None


@pytest.mark.parametrize("change", ["more", "fewer", "another cached"])
def test_normal_samples_that_are_drawn_otherwise_are_noticed(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    normal = torch.Tensor.normal_

    def other(self: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        if change == "more" and self.numel() > 400:
            torch.rand(1, generator=generator)
        if change == "another cached" and self.numel() == 3:  # uses it up, leaves the next one
            normal(torch.empty(4), generator=generator)
        return self if change == "fewer" and self.numel() == 3 else normal(self, generator=generator)

    assert calibrate_stream().normals
    random_stream._calibrate.cache_clear()
    monkeypatch.setattr(torch.Tensor, "normal_", other)
    calibration = calibrate_stream()
    assert calibration is not None
    assert not calibration.normals


@pytest.fixture(autouse=True)
def forget_what_was_found():
    """What a patched comparison found must not be remembered for the tests that follow."""
    yield
    random_stream._calibrate.cache_clear()
