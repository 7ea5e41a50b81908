"""Rotations, affine transforms and choices by weights, against torchvision and torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from photos import make_folder, pixels
from PIL import Image
from torchvision.datasets import ImageFolder
from torchvision.transforms import functional, v2

from fastload import _core
from fastload.pipeline.installed import steps as step_calibration
from fastload.pipeline.installed import torch_stream as random_stream
from fastload.pipeline.recipe import Recipe, Refusal, read_recipe

ANGLES = [0.0, -0.0, 90.0, -90.0, 180.0, 270.0, 360.0, 450.0, -540.0, 45.5, 1e-3, -1e-20]


@pytest.fixture(autouse=True)
def _afresh():
    """What was found about a patched library must not be remembered."""
    random_stream._calibrate.cache_clear()
    step_calibration._same_as_reference.cache_clear()
    yield
    random_stream._calibrate.cache_clear()
    step_calibration._same_as_reference.cache_clear()


@pytest.mark.parametrize("size", [(20, 20), (20, 31)])
@pytest.mark.parametrize("center", [None, (0, 0), (10, 10), (3.5, 20)])
@pytest.mark.parametrize("angle", ANGLES)
def test_rotations_are_pillows(size, center, angle):
    source = pixels(1, *size)
    for sampling in ("nearest", "bilinear", "bicubic"):
        how = {"center": center, "sampling": sampling, "fill": (1, 2, 3)}
        out = np.empty_like(source)
        step = ("random_rotation", {"jitters": [(angle, angle), None, None, None], **how})
        assert _core.apply_steps([step], source.copy(), out)
        mode = functional.InterpolationMode(sampling)
        wanted = functional.rotate(Image.fromarray(source), np.float32(angle).item(), mode, False, center, (1, 2, 3))
        assert np.array_equal(out, np.asarray(wanted))


@pytest.mark.parametrize(
    "fields",
    [
        {"jitters": [None] * 4},
        {"jitters": [(2, 1), None, None, None]},
        {"jitters": [(0, float("nan")), None, None, None]},
        {"jitters": [(0, 1), (0, 1), None, None]},
        {"jitters": [(0, 1), None, (0, 1e10), None]},
        {"jitters": [(0, 1), None, None, None], "translate": (0, 1.5)},
        {"jitters": [(0, 1), None, None, None], "center": (0, float("inf"))},
    ],
)
def test_wrong_ranges_are_refused(fields):
    with pytest.raises(ValueError, match="must be"):
        _core.DrawPlan().add("random_affine_v1", **fields)


@pytest.mark.parametrize("weights", [[], [1.0], [0.0, 0.0], [0.5, -0.1], [0.5, float("nan")], [1e-60, 0.0]])
def test_wrong_weights_are_refused(weights):
    with pytest.raises(ValueError, match="needs a weight from 0 to 1"):
        _core.DrawPlan().add("choose_weighted", branches=[[], []], chances=weights)


def test_a_choice_too_close_to_call_is_left_to_python():
    """Two draws whose weighted results differ by less than what float32 rounds away."""
    draws = -torch.log1p(-torch.rand(2, dtype=torch.float64, generator=torch.Generator().manual_seed(5)))
    close = {}
    for off in (0, 1e-8, -1e-8, 1e-5, -1e-5):
        plan = _core.DrawPlan()
        plan.add("choose_weighted", branches=[[], []], chances=[1.0, float(draws[1] / draws[0]) * (1 + off)])
        generator = _core.Generator(5)
        close[off] = plan.draw(generator, 9, 9)[0] == "crop_too_large"
        assert (generator.get_state() == _core.Generator(5).get_state()) == close[off]
    assert close == {0: True, 1e-8: True, -1e-8: True, 1e-5: False, -1e-5: False}


def read(tmp_path, step):
    dataset = ImageFolder(make_folder(tmp_path, 3), v2.Compose([v2.RandomResizedCrop(8), step, v2.ToImage()]))
    return read_recipe(dataset)


def test_a_torch_that_chooses_otherwise_is_refused(tmp_path, monkeypatch):
    step = v2.RandomChoice([v2.RandomInvert(), v2.RandomEqualize()])
    assert isinstance(read(tmp_path, step), Recipe)
    random_stream._calibrate.cache_clear()
    monkeypatch.setattr(random_stream, "_same_choices", lambda: False)
    refused = read(tmp_path, step)
    assert isinstance(refused, Refusal)
    assert "torch.multinomial" in refused.reasons[0]
    assert isinstance(read(tmp_path, v2.RandomInvert()), Recipe)


def test_choices_are_compared(monkeypatch):
    assert random_stream._same_choices()
    multinomial = torch.multinomial
    monkeypatch.setattr(torch, "multinomial", lambda *how, **rest: multinomial(*how, **rest) * 0)
    assert not random_stream._same_choices()


@pytest.mark.parametrize(
    ("step", "kind"),
    [(v2.RandomRotation(20), "random_rotation"), (v2.RandomAffine(20, shear=4), "random_affine_v2")],
)
def test_a_library_that_turns_otherwise_is_refused(tmp_path, monkeypatch, step, kind):
    assert isinstance(read(tmp_path, step), Recipe)
    step_calibration._same_as_reference.cache_clear()
    real = step_calibration.REFERENCES[kind]
    monkeypatch.setitem(
        step_calibration.REFERENCES, kind, lambda image, **how: real(image, **{**how, "sampling": "bicubic"})
    )
    refused = read(tmp_path, step)
    assert isinstance(refused, Refusal)
    assert f"computes {kind} otherwise" in refused.reasons[0]
