"""Changes of colour on uint8 tensors: the core's bits and torchvision's."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from deferred_images import contrast_factors
from PIL import Image
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from fastload import FastLoader, _core
from fastload.pipeline.errors import Refused
from fastload.pipeline.installed import steps as step_calibration
from fastload.pipeline.installed import tensor_colors
from fastload.pipeline.installed.steps import REFERENCES, differing_step
from fastload.pipeline.ops.tensor import TENSOR_OPS
from fastload.pipeline.recipe import Recipe
from fastload.pipeline.transforms import read_transform
from fastload.route import read_loader

FACTORS = [0.0, 1.0, 0.5, 0.3, 1.9, 10.0, 1e-9, 1 + 1e-10, 1e9]
SIZES = [(1, 1), (1, 40), (17, 31), (32, 61), (256, 256)]
FIELDS = {"torch_permute": [{"order": order} for order in itertools.product(range(3), repeat=3)]}
VALUES = {
    "torch_brightness": FACTORS,
    "torch_contrast": FACTORS,
    "torch_saturation": FACTORS,
    "torch_sharpness": [value for value in (*FACTORS, 0.73, 1.27) if tensor_colors.rounds_sharpness_alike(value)],
    "torch_hue": [0.0, -0.5, 0.5, 0.05, -1e-9, 1 / 3],
    "torch_posterize": [1.0, 3.0, 8.0],
    "torch_solarize": [0.0, 1.0, 128.0, 255.0],
}
KINDS = [kind for kind in REFERENCES if kind.startswith("torch_") and kind != "torch_gather"]  # the core's own


def images(height, width):
    """Noise, few levels, a constant, one bright pixel, white."""
    rng = np.random.default_rng(height * 1000 + width)
    shape = (height, width, 3)
    yield rng.integers(0, 256, shape, np.uint8)
    yield rng.integers(90, 96, shape, np.uint8)
    yield np.full(shape, (0, 77, 255), np.uint8)
    spot = np.zeros(shape, np.uint8)
    spot[height // 2, width // 2] = (255, 1, 254)
    yield spot
    yield np.full(shape, 255, np.uint8)


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_every_level_gives_torchvisions_bits(level, one_thread, kind, size):
    if kind == "torch_contrast" and size[0] * size[1] % 32:
        pytest.skip("torch rounds twice in what 32 leaves")
    given = FIELDS.get(kind) or [{"value": value} for value in VALUES.get(kind, [])] or [{}]
    for image in images(*size):
        for fields in given[:5] if size[0] > 200 else given:
            out = np.empty_like(image)
            assert _core.apply_steps([(kind, fields)], image.copy(), out)
            np.testing.assert_array_equal(out, REFERENCES[kind](Image.fromarray(image), **fields), err_msg=str(fields))


@pytest.mark.parametrize(
    "reds", [range(0, 256, 51), pytest.param(range(256), marks=pytest.mark.slow)], ids=["some", "all"]
)
@pytest.mark.parametrize("factor", [-0.5, -0.03, 0.31])
def test_hue_of_colours(level, one_thread, factor, reds):
    green, blue = np.mgrid[:256, :256].astype(np.uint8)
    for red in reds:
        image = np.stack([np.full_like(green, red), green, blue], axis=-1)
        out = np.empty_like(image)
        assert _core.apply_steps([("torch_hue", {"value": factor})], image.copy(), out)
        np.testing.assert_array_equal(out, REFERENCES["torch_hue"](Image.fromarray(image), value=factor))


@pytest.mark.parametrize("width", [*range(41, 51), 7])
@pytest.mark.parametrize("planar", [False, True])
def test_contrast_rounds_the_last_values_as_torch_does(level, one_thread, width, planar):
    image = np.random.default_rng(width).integers(0, 256, (11, width, 3), np.uint8)
    twice = tensor_colors.rounded_twice(image.size % tensor_colors.TAIL)
    places = [place for place in range(tensor_colors.TAIL) if twice >> place & 1]
    values = (image.transpose(2, 0, 1) if planar else image).ravel()[::-1][places]
    factors = contrast_factors(REFERENCES["torch_grayscale"](Image.fromarray(image))[..., 0], values)
    assert bool(factors) == bool(twice)
    for factor in factors or [0.7]:
        fields = {"value": factor, "planar": planar, "twice": twice}
        out = np.empty_like(image)
        assert _core.apply_steps([("torch_contrast", fields)], image.copy(), out)
        np.testing.assert_array_equal(out, REFERENCES["torch_contrast"](Image.fromarray(image), **fields))


def test_contrast_of_large_images_adds_up_as_torch_does(level, one_thread):
    assert tensor_colors.sums_alike.__wrapped__("")


def test_another_order_of_additions_is_noticed(one_thread, monkeypatch):
    contrast = REFERENCES["torch_contrast"]
    monkeypatch.setitem(REFERENCES, "torch_contrast", lambda x, **fields: contrast(x.flip(1), **fields)[::-1])
    assert not tensor_colors.sums_alike.__wrapped__("")


def test_values_that_are_rounded_twice_are_found(one_thread, monkeypatch):
    """No mask says which if there are more than vectors leave."""
    monkeypatch.setattr(torch.Tensor, "add_", lambda x, one, alpha: x.copy_(one * alpha + x))
    assert tensor_colors.rounded_twice.__wrapped__(5) is None
    monkeypatch.undo()
    assert tensor_colors.rounded_twice.__wrapped__(0) == 0


def test_grays_of_all_levels(level):
    """Each blue with many reds and greens, so that fused and rounded sums differ somewhere."""
    red, green = np.mgrid[:256, :256].astype(np.uint8)
    for blue in range(0, 256, 15):
        image = np.stack([red, green, np.full_like(red, blue)], axis=-1)
        out = np.empty_like(image)
        assert _core.apply_steps([("torch_grayscale", {})], image.copy(), out)
        np.testing.assert_array_equal(out, REFERENCES["torch_grayscale"](Image.fromarray(image)))


def read(*steps, size=None):
    return read_transform(v2.Compose([v2.ToImage(), *steps, v2.ToDtype(torch.float32, scale=True)]), size=size)


CROP = v2.RandomResizedCrop(224)


def test_the_form_that_torchvision_recommends_is_native():
    pipeline = read(CROP, v2.RandomHorizontalFlip(), v2.ColorJitter(0.4, 0.4, 0.4), v2.RandomGrayscale(0.2))
    assert "torch_color_jitter" in [kind for kind, _ in pipeline.nodes]
    assert pipeline.has_tensor_contrast
    assert differing_step(pipeline.nodes) is None
    assert not read(CROP, v2.ColorJitter(0.4, 0, 0.4)).has_tensor_contrast


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([CROP, v2.ColorJitter(0.4, hue=0.1)], "hue"),
        ([v2.ColorJitter(contrast=0.4), CROP], "images differ in size"),
        ([v2.RandomResizedCrop(384), v2.ColorJitter(contrast=0.4)], "384 x 384"),
        ([v2.RandomResizedCrop(31), v2.ColorJitter(contrast=0.4)], "31 x 31"),
        ([CROP, v2.ColorJitter(brightness=(0, 1e39))], "factors"),
        ([CROP, v2.RandomSolarize(256)], "threshold"),
        ([CROP, v2.RandomSolarize(-1)], "threshold"),
        ([CROP, v2.RandomPosterize(0)], "bits"),
        ([CROP, v2.Grayscale(1)], "1 channel"),
        ([CROP, v2.RandomAdjustSharpness(2)], "otherwise"),
        ([CROP, v2.RandomApply([v2.RandomAdjustSharpness(2)])], "otherwise"),
        ([CROP, v2.ToDtype(torch.float32, scale=True), v2.RandomInvert()], "otherwise"),
    ],
)
def test_what_may_give_other_bits_is_refused(steps, reason):
    with pytest.raises(Refused, match=reason):
        read(*steps)


def test_thresholds_are_compared_in_float32():
    step = v2.RandomSolarize(128.0000001, p=1)
    (_, fields), *_ = TENSOR_OPS["RandomSolarize"](step, None)
    ramp = torch.arange(256, dtype=torch.uint8).expand(3, 1, 256)
    first = int((functional.solarize(ramp, step.threshold) != ramp)[0, 0].int().argmax())
    assert fields["branches"][0][0][1]["value"] == first == 128


@pytest.mark.parametrize("kind", KINDS)
def test_a_torchvision_that_computes_otherwise_is_noticed(monkeypatch, kind):
    original = REFERENCES[kind]
    monkeypatch.setitem(step_calibration.REFERENCES, kind, lambda *image, **fields: original(*image, **fields) ^ 1)
    step_calibration._same_as_reference.cache_clear()
    fields = {"value": VALUES[kind][2]} if kind in VALUES else FIELDS.get(kind, [{}])[-1]
    try:
        assert differing_step([(kind, fields)]) == kind
    finally:
        step_calibration._same_as_reference.cache_clear()


def test_contrast_in_the_main_process_needs_one_thread(tmp_path, one_thread):
    (tmp_path / "class").mkdir()
    Image.new("RGB", (40, 50)).save(tmp_path / "class" / "a.jpg")
    transform = v2.Compose([v2.ToImage(), CROP, v2.ColorJitter(contrast=0.4)])
    for workers, threads, native in [(0, 1, True), (0, 2, False), (1, 2, True)]:
        torch.set_num_threads(threads)
        loader = FastLoader(ImageFolder(tmp_path, transform), 4, num_workers=workers)
        recipe = read_loader(loader, torch.device("cpu"))
        assert isinstance(recipe, Recipe) is native, (workers, threads, recipe)


def test_contrast_beside_code_that_may_set_threads_stays_torchs(tmp_path):
    (tmp_path / "class").mkdir()
    Image.new("RGB", (40, 50)).save(tmp_path / "class" / "a.jpg")
    for jitter, native in [(v2.ColorJitter(0.4), True), (v2.ColorJitter(contrast=0.4), False)]:
        dataset = ImageFolder(tmp_path, v2.Compose([v2.ToImage(), CROP, jitter]))
        loader = FastLoader(dataset, 4, num_workers=2, worker_init_fn=lambda worker: torch.set_num_threads(4))
        recipe = read_loader(loader, torch.device("cpu"))
        assert isinstance(recipe, Recipe) is native, recipe
