"""``exact=False``: torchvision's GaussianBlur natively, at most one level off."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from hypothesis import given, settings
from hypothesis import strategies as st
from photos import MEAN, STD, photos_fixture
from PIL import Image
from plans import text_of
from torchvision.datasets import ImageFolder
from torchvision.transforms import functional, v2
from torchvision.transforms.v2 import functional as functional_v2

from fastload import DataLoader, FastLoader, _core, verify
from fastload.check.results import FallbackWarning
from fastload.pipeline.installed import steps as step_calibration
from fastload.pipeline.recipe import Recipe, Refusal, read_recipe
from fastload.python_samples.sample_process import SampleProcess

ODD = st.integers(0, 12).map(lambda half: 2 * half + 1)
root = photos_fixture(9)


def simclr(module, *behind):
    some = [module.ColorJitter(0.8, 0.8, 0.8, 0.2)]
    steps = [module.RandomResizedCrop(40), module.RandomApply(some, 0.8), module.RandomGrayscale(0.2)]
    steps += [module.RandomApply([module.GaussianBlur(9, (0.1, 2.0))], 0.5), *behind]
    return module.Compose([*steps, v1.ToTensor(), v1.Normalize(MEAN, STD)])


def blurred(source, height, width, sigma):
    out = np.empty_like(source)
    fields = {"jitters": [(sigma, sigma), None, None, None], "height": height, "width": width}
    return out if _core.apply_steps([("random_gaussian", fields)], source.copy(), out) else None


@settings(max_examples=150, deadline=None)
@given(st.tuples(st.integers(1, 40), st.integers(1, 40)), ODD, ODD, st.floats(0.01, 20), st.integers(0, 3))
def test_a_blur_is_at_most_one_level_off(size, height, width, sigma, seed):
    source = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    if seed == 3:
        source = source // 128 * 255
    sigma = np.float32(sigma).item()
    if height // 2 >= size[0] or width // 2 >= size[1]:
        assert blurred(source, height, width, sigma) is None
        return
    ours = blurred(source, height, width, sigma).astype(int)
    for module in (functional, functional_v2):
        wanted = np.asarray(module.gaussian_blur(Image.fromarray(source), [width, height], [sigma, sigma]))
        assert np.abs(ours - wanted).max() <= 1


@pytest.mark.parametrize("level", ["portable", "avx2", "avx512"])
@pytest.mark.parametrize(("height", "width", "sigma"), [(7, 9, 1.7), (1, 23, 0.1), (23, 3, 40.0), (5, 5, 0.5)])
def test_all_instruction_sets_blur_alike(level, height, width, sigma):
    rng = np.random.default_rng(0)
    sources = [rng.integers(0, 256, (50, columns, 3), dtype=np.uint8) for columns in (13, 21, 33, 64)]
    sources.append(np.full((30, 30, 3), 255, np.uint8))  # stays as it is: the weights' sum is exact
    before = _core.simd_level()
    try:
        assert _core.set_simd_level("portable")
        expected = [blurred(source, height, width, sigma) for source in sources]
        if not _core.set_simd_level(level):
            pytest.skip(f"this CPU has no {level}")
        for source, wanted in zip(sources, expected, strict=True):
            assert np.array_equal(blurred(source, height, width, sigma), wanted)
        assert np.array_equal(expected[-1], sources[-1])
    finally:
        _core.set_simd_level(before)


@pytest.mark.parametrize(
    "fields",
    [
        {"height": 4, "width": 3, "jitters": [(1, 2), None, None, None]},
        {"height": 1001, "width": 3, "jitters": [(1, 2), None, None, None]},
        {"height": 3, "width": 3, "jitters": [(0, 2), None, None, None]},
        {"height": 3, "width": 3, "jitters": [None] * 4},
    ],
)
def test_wrong_kernels_are_refused(fields):
    with pytest.raises(ValueError, match="must be"):
        _core.DrawPlan().add("random_gaussian", **fields)


@pytest.mark.parametrize("module", [v1, v2])
def test_exact_false_blurs_natively_within_the_bound(root, module):
    def make(**own):
        return FastLoader(ImageFolder(root, simclr(module)), 3, num_workers=2, device="cpu", **own)

    exact = make()
    assert exact.plan.engine != "native"
    assert "exact=False runs it natively, at most 1 of 256 levels off" in text_of(exact)
    with make(exact=False) as loader:
        assert loader.plan.engine == "native"
        assert "GaussianBlur is approximate, at most 1 of 256 levels off" in text_of(loader)
        result = verify(loader)
    assert result, result
    assert result.engine == "native"
    level = 1 / 255 / min(STD)
    assert result.bound == pytest.approx(level, rel=1e-4)
    assert result.largest <= result.bound
    assert str(result).startswith(f"at most {result.largest:g} apart, within {result.bound:g}: 3 batches")


def test_what_is_exact_is_compared_to_the_bit_even_so(root):
    transform = v1.Compose([v1.RandomResizedCrop(40), v1.ToTensor()])
    result = verify(DataLoader(ImageFolder(root, transform), 3, num_workers=1, device="cpu", exact=False))
    assert (result.bound, str(result).partition(":")[0]) == (0, "equal to the bit")


def off_by(monkeypatch, levels):
    real = SampleProcess.batch

    def differs(process, index, state, timeout_s):
        (images, targets), after = real(process, index, state, timeout_s)
        images[0, 0, 0, 0] += levels * (1 if images[0, 0, 0, 0] < 100 else -1)
        return [images, targets], after

    monkeypatch.setattr(SampleProcess, "batch", differs)


def small(root, **own):
    steps = [v1.RandomResizedCrop(40), v1.GaussianBlur(1), v1.PILToTensor()]  # one tap: torchvision's bits
    return FastLoader(ImageFolder(root, v1.Compose(steps)), 3, num_workers=1, device="cpu", exact=False, **own)


def test_one_level_passes_the_check_and_two_fall_back(root, monkeypatch):
    off_by(monkeypatch, 1)
    loader = small(root, engine="native")
    assert len(list(loader)) == 3
    monkeypatch.undo()
    off_by(monkeypatch, 2)
    loader = small(root)
    with pytest.warns(FallbackWarning, match="more than 1 of 256 levels off natively"):
        assert len(list(loader)) == 3
    assert loader.plan.engine == "torch"


def test_verify_finds_more_than_the_bound(root, monkeypatch):
    real = _core.Pool.submit
    result = verify(small(root))
    assert (bool(result), result.bound, result.largest) == (True, 1.0, 0.0)
    assert real is _core.Pool.submit
    from fastload._compare import ComparedValues, difference

    a = torch.zeros(1, 3, 2, 2, dtype=torch.uint8)
    for off, found in ((1, None), (2, "batch[0, 0, 0, 0]: 0 and 2")):
        compared = ComparedValues(bound=1.0)
        b = a.clone()
        b[0, 0, 0, 0] = off
        assert difference(a, b, compared=compared) == found
        assert compared.largest == off
    labels = torch.zeros(3), torch.ones(3)
    assert difference(*labels, compared=ComparedValues(bound=1.0)) is not None


@pytest.mark.parametrize(
    ("behind", "reason"),
    [
        ([v2.ColorJitter(0.1)], "ColorJitter comes after GaussianBlur, which is approximate"),
        ([v2.RandomSolarize(100)], "RandomSolarize comes after"),
        ([v2.RandomApply([v2.RandomInvert(), v2.RandAugment()])], "RandAugment comes after"),
        ([v2.GaussianBlur(3)], "GaussianBlur comes after"),
        ([v2.Resize((8, 8), v2.InterpolationMode.BICUBIC)], "Resize comes after"),
        ([v2.RandomAffine(3, interpolation=v2.InterpolationMode.BICUBIC)], "RandomAffine comes after"),
        ([v2.RandomChoice([v2.RandomInvert(), v2.RandomEqualize()])], "RandomEqualize comes after"),
        (
            [v2.RandomSolarize(128), v2.RandomInvert(), v2.RandomRotation(4), v2.Resize((9, 9)), v2.RandomGrayscale()],
            None,
        ),
    ],
)
def test_what_could_enlarge_the_difference_is_refused(root, behind, reason):
    transform = v2.Compose([v2.RandomResizedCrop(16), v2.GaussianBlur(3), *behind, v2.ToImage()])
    read = read_recipe(ImageFolder(root, transform), exact=False)
    if reason is None:
        assert isinstance(read, Recipe), read
    else:
        assert isinstance(read, Refusal)
        assert reason in read.reasons[0]


def test_a_blur_within_an_order_is_refused_and_within_a_choice_known(root):
    blur = v2.GaussianBlur(3)
    for step, native in ((v2.RandomOrder([blur]), False), (v2.RandomChoice([v2.RandomEqualize(), blur]), True)):
        for last in ([], [v2.RandomEqualize()]):
            steps = [v2.RandomResizedCrop(16), step, *last, v2.ToImage()]
            read = read_recipe(ImageFolder(root, v2.Compose(steps)), exact=False)
            assert isinstance(read, Recipe) == (native and not last)
            assert isinstance(read, Refusal) or read.pipeline.approximate == "GaussianBlur"


def test_a_torchvision_that_blurs_otherwise_is_refused(root, monkeypatch):
    dataset = ImageFolder(root, v1.Compose([v1.RandomResizedCrop(16), v1.GaussianBlur(5, (0.3, 0.7)), v1.ToTensor()]))
    assert isinstance(read_recipe(dataset, exact=False), Recipe)
    monkeypatch.setattr(step_calibration, "_is_near_reference", lambda *_: False)
    refused = read_recipe(dataset, exact=False)
    assert isinstance(refused, Refusal)
    assert "computes random_gaussian otherwise" in refused.reasons[0]


PROGRAM = """
import sys
import torchvision.transforms as v1
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
transform = v1.Compose([v1.RandomResizedCrop(8), v1.GaussianBlur(3), v1.ToTensor()])
print(DataLoader(ImageFolder(sys.argv[1], transform), num_workers=1, device="cpu").plan.engine)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("options", "native"), [([], False), (["--inexact"], True)])
def test_a_program_runs_inexactly_if_asked(root, options, native):
    command = [sys.executable, "-m", "fastload", "run", *options, "-c", PROGRAM, str(root)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert (ran.stdout.strip() == "native") == native


def test_exact_is_a_bool(root):
    with pytest.raises(TypeError, match="exact must be True or False"):
        FastLoader(ImageFolder(root), exact=1)
