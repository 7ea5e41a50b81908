"""Changes of colour and affine transforms of deferred tensors become steps with torchvision's bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from deferred_images import contrast_factors, deferred, expected, of_levels, pending, table
from photos import jpeg
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import InterpolationMode, functional
from torchvision.transforms.v2.functional import _color, _geometry, _utils

from fastload import _core
from fastload._compare import same_bits
from fastload.deferred.calls import grids
from fastload.deferred.content import Content, Fill
from fastload.deferred.functions import Deferral
from fastload.deferred.memory import content_to_send, is_deferred
from fastload.deferred.recorder import IDENTITY, shared_table
from fastload.lazy import images as lazy_images
from fastload.lazy.functions import Replacements
from fastload.memory import unfilled
from fastload.pipeline.installed.tensor_colors import TAIL, rounded_twice, rounds_sharpness_alike

DATA, SIZE = jpeg(0), (120, 90)
CHANGES = {
    "brightness": lambda x: functional.adjust_brightness(x, 1.12),
    "contrast": lambda x: functional.adjust_contrast(x, contrast_factor=0.55),
    "saturation": lambda x: functional.adjust_saturation(x, 1.4),
    "hue": lambda x: functional.adjust_hue(x, hue_factor=-0.04),
    "channels": lambda x: functional.permute_channels(x, [2, 0, 1]),
    "drawn channels": lambda x: functional.permute_channels(x, torch.tensor([1, 2, 0])),
    "inverse": functional.invert,
    "bits": lambda x: functional.posterize(x, bits=3),
    "levels above": lambda x: functional.solarize(x, threshold=178.5 if x.dtype == torch.uint8 else 0.7),
    "all contrast": functional.autocontrast,
    "equal levels": functional.equalize,
    "sharpness": lambda x: functional.adjust_sharpness(x, sharpness_factor=0.73),
    "more sharpness": lambda x: functional.adjust_sharpness(x, 1.27),
    "shear": lambda x: functional.affine(x, angle=0.0, translate=[0, 0], scale=1.0, shear=[5.7, 0.0], center=[0, 0]),
    "shift": lambda x: functional.affine(x, angle=0, translate=[-8, 3], scale=1.0, shear=[0.0, 0.0], fill=[2.5, 7, 0]),
    "scale": lambda x: functional.affine(x, 20.0, [1, 2], 0.7, [3.0, -8.0], InterpolationMode.NEAREST, 3.5, None),
    "rotation": lambda x: functional.rotate(x, -9.0, "nearest"),
    "rotation off its centre": lambda x: functional.rotate(x, 150.0, fill=[90.0], center=(3, 50.5)),
}
CHAINS = {
    **CHANGES,
    "hue, then contrast": lambda x: CHANGES["contrast"](CHANGES["hue"](x)),
    "a part, then contrast": lambda x: CHANGES["contrast"](x[:, 3:34, 5:42]),
    "contrast, then a part": lambda x: CHANGES["contrast"](x)[:, 3:34, 5:42].clone(),
    "contrast of a part of one": lambda x: CHANGES["contrast"](CHANGES["contrast"](x)[:, 3:34, 5:42]),
    "contrast, a flip, parts": lambda x: CHANGES["contrast"](x).flip(-1)[:, 3:34, 5:42].flip(1)[:, 2:, :30].clone(),
    "saturation, then a part": lambda x: CHANGES["saturation"](CHANGES["hue"](x))[:, 3:34, 5:42].flip(-1),
    "a part within constants": lambda x: functional.crop(
        functional.pad(CHANGES["contrast"](x), [9, 7, 11, 5], fill=[12.0, 3.5, 250.0]), 3, 4, 30, 50
    ).flip(-1),
    "floats": lambda x: functional.to_dtype(CHANGES["hue"](x), torch.float32, scale=True),
    "a part, then a rotation": lambda x: CHANGES["rotation"](CHANGES["shear"](CHANGES["contrast"](x)[:, 3:34, 5:42])),
    "a rotation, a part, sharpness": lambda x: CHANGES["sharpness"](CHANGES["rotation"](x)[:, 3:34, 5:42]).flip(-1),
}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def deferral():
    assert lazy_images.prepare()
    made = Deferral()
    made._prepare()
    yield made
    made._replaced.undo()
    unfilled.serve(None)


def content(side: int = 47, *, planar: bool = True, **more: object) -> Content:
    return Content((pending(DATA, SIZE, side=side),), shared_table(IDENTITY), planar, **more)


@pytest.mark.parametrize("factor", [0, 1, 2])
@pytest.mark.parametrize("name", ["adjust_brightness", "adjust_contrast", "adjust_saturation"])
def test_factors_may_be_whole_numbers(deferral, name, factor):
    """As which torchvision multiplies bytes by them, beyond 255 and in place."""
    call, of = getattr(functional, name), content()
    like = call(expected(of)[0], factor)
    with deferral:
        deferral._record()
        for _ in range(3):  # of which two are compared
            call(deferred(of, single=True), 1.5)
        made = [call(deferred(of, single=True), factor) for _ in range(3)]
    assert not deferral.recorder.is_off
    for each in made:
        assert each._version == like._version
        assert same_bits(each, like)


@pytest.mark.parametrize("kind", [torch.Tensor, tv_tensors.Image])
@pytest.mark.parametrize("planar", [False, True])
@pytest.mark.parametrize("name", CHAINS)
def test_results_are_deferred_and_torchvisions(deferral, name, planar, kind):
    of, call = content(planar=planar), CHAINS[name]
    like = call(expected(of)[0].as_subclass(kind))
    with deferral:
        deferral._record()
        made = [call(deferred(of, single=True).as_subclass(kind)) for _ in range(3)]  # the last one is not compared
    assert not deferral.recorder.painted_by
    assert not deferral.recorder.is_off
    for each in made:
        held = content_to_send(each.as_subclass(torch.Tensor))
        assert held is not None
        assert (type(each), each.stride(), each.dtype) == (type(like), like.stride(), like.dtype)
        assert same_bits(each.as_subclass(torch.Tensor), like.as_subclass(torch.Tensor))


def test_only_what_is_seen_of_single_pixels_is_made(deferral):
    """But of an image's mean."""
    with deferral:
        deferral._record()
        seen = [CHAINS[name](deferred(content(), single=True)) for name in CHAINS if name.endswith("then a part")]
        sizes = [content_to_send(each).images[0].inner_size for each in seen]
    assert sizes == [(47, 47), (37, 31)]


def test_large_images_have_torchs_mean(deferral):
    pixels = np.random.default_rng(0).integers(200, 256, (301, 403, 3), np.uint8)
    of = Content((of_levels(pixels, (0, 0, 403, 301)),), shared_table(IDENTITY), planar=False)
    like = expected(of)[0]
    for factor in (0.0, 0.4, 1.7):
        with deferral:
            deferral._record()
            made = functional.adjust_contrast(deferred(of, single=True), factor)
        assert is_deferred(made)
        assert torch.equal(made, functional.adjust_contrast(like, factor))


@pytest.mark.parametrize("planar", [False, True])
def test_the_last_values_are_rounded_as_torchs(deferral, planar):
    of = content(side=45, planar=planar)
    like = expected(of)[0]
    twice = rounded_twice(like.numel() % TAIL)
    places = [place for place in range(TAIL) if twice >> place & 1]
    values = (like if planar else like.permute(1, 2, 0)).flatten().flip(0)[places].numpy()
    factors = contrast_factors(functional.rgb_to_grayscale(like).numpy(), values)
    assert factors
    for factor in factors:
        with deferral:
            deferral._record()
            made = functional.adjust_contrast(deferred(of, single=True), factor)
        assert is_deferred(made)
        assert torch.equal(made, functional.adjust_contrast(like, factor))


@pytest.mark.parametrize("distort", [v2.RandomPhotometricDistort(), v2.RandAugment(), v2.TrivialAugmentWide()])
def test_random_distortions_are_torchvisions(deferral, distort):
    of = content(planar=False)
    like = tv_tensors.Image(expected(of)[0])
    for seed in range(40):
        torch.manual_seed(seed)
        wanted = distort(like)
        torch.manual_seed(seed)
        with deferral:
            deferral._record()
            made = distort(tv_tensors.Image(deferred(of, single=True)))
        assert made.stride() == wanted.stride()
        assert same_bits(made.as_subclass(torch.Tensor), wanted.as_subclass(torch.Tensor))
    assert not deferral.recorder.painted_by
    assert not deferral.recorder.is_off


@pytest.mark.parametrize("threshold", [0, 1, 77, 77.0000001, 77.25, 128.0, 254.999999999, 255])
def test_thresholds_are_torchs(deferral, threshold):
    pixels = np.arange(256 * 192, dtype=np.uint32).astype(np.uint8).reshape(128, 128, 3)
    of = Content((of_levels(pixels, (0, 0, 128, 128)),), shared_table(IDENTITY), planar=False)
    with deferral:
        deferral._record()
        for _ in range(3):
            made = functional.solarize(deferred(of, single=True), threshold)
    assert is_deferred(made)
    assert torch.equal(made, functional.solarize(expected(of)[0], threshold))


def test_sharpness_that_fusing_changes_is_left_to_torchvision(deferral):
    factor, of = 1.0 + float(torch.linspace(0.0, 0.9, 31)[29]), content()
    assert not rounds_sharpness_alike(factor)
    assert rounds_sharpness_alike(1.27)
    with deferral:
        deferral._record()
        made = functional.adjust_sharpness(deferred(of, single=True), factor)
    assert not is_deferred(made)
    assert torch.equal(made, functional.adjust_sharpness(expected(of)[0], factor))


@pytest.mark.skipif(not hasattr(torch.backends.mkldnn, "conv"), reason="this torch has one precision")
def test_sharpness_of_short_sums_is_left_to_torchvision(deferral):
    torch.backends.mkldnn.conv.fp32_precision = "bf16"
    try:
        with deferral:
            deferral._record()
            made = CHANGES["sharpness"](deferred(content(), single=True))
    finally:
        torch.backends.mkldnn.conv.fp32_precision = "none"
    assert not is_deferred(made)


def test_what_dynamo_traces_is_left_to_torchvision(deferral, monkeypatch):
    of = content()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with deferral:
        made = CHANGES["rotation"](deferred(of, single=True))
    assert not is_deferred(made)
    assert torch.equal(made, CHANGES["rotation"](expected(of)[0]))


LEFT = {
    "bilinear": lambda x: functional.rotate(x, 9.0, InterpolationMode.BILINEAR),
    "expanded": lambda x: functional.rotate(x, 9.0, expand=True),
    "a quarter": lambda x: functional.rotate(x, 90.0),
    "a fill that is no level": lambda x: functional.rotate(x, 9.0, fill=-3.0),
    "an angle of NumPy's": lambda x: functional.rotate(x, np.float32(9.0)),
    "all bits": lambda x: functional.posterize(x, bits=0),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_changes_are_left_to_torchvision(deferral, name):
    of, change = content(planar=False), LEFT[name]
    with deferral:
        deferral._record()
        made = [change(deferred(of, single=True)) for _ in range(3)]
    assert not deferral.recorder.is_off
    for each in made:
        assert not is_deferred(each)
        assert each.stride() == change(expected(of)[0]).stride()
        assert torch.equal(each, change(expected(of)[0]))


def test_places_are_kept_by_settings(deferral):
    grids._kept_places.cache_clear()
    with deferral:
        deferral._record()
        for precision in ("highest", "medium", "highest"):
            torch.set_float32_matmul_precision(precision)
            CHANGES["shear"](deferred(content(), single=True))
            CHANGES["shear"](deferred(content(), single=True))
        torch.set_num_threads(2)
        CHANGES["shear"](deferred(content(), single=True))
    assert grids._kept_places.cache_info().misses == 3


def test_autocast_is_left_to_torchvision(deferral):
    with deferral:
        deferral._record()
        with torch.autocast("cpu"):
            made = [CHANGES[name](deferred(content(), single=True)) for name in ("rotation", "sharpness")]
    assert not any(map(is_deferred, made))
    assert not deferral.recorder.is_off


def test_an_image_without_an_inside_is_returned(deferral):
    pixels = np.zeros((2, 128, 3), np.uint8)
    with deferral:
        deferral._record()
        x = deferred(Content((of_levels(pixels, (0, 0, 128, 2)),), shared_table(IDENTITY), planar=True), single=True)
        assert functional.adjust_sharpness(x, 0.73) is x


@pytest.mark.parametrize(
    "call",
    [
        lambda x: _geometry.rotate_image(x, 9.0, angle=9.0),
        lambda x: _geometry.rotate_image(x, 9.0, turn=9.0),
        lambda x: _geometry.rotate_image(x),
        lambda x: _color.invert_image(x, 3),
    ],
)
def test_arguments_that_do_not_fit_are_torchvisions_errors(deferral, call):
    with deferral:
        deferral._record()
        x = deferred(content(), single=True)
        with pytest.raises(TypeError, match="argument"):
            call(x)


def test_places_of_large_images_are_not_kept(deferral, monkeypatch):
    grids._kept_places.cache_clear()
    made = []
    with deferral:
        deferral._record()
        monkeypatch.setattr(grids, "_KEPT_MAX", 47 * 47 - 1)
        made.append(CHANGES["shear"](deferred(content(), single=True)))
        monkeypatch.setattr(grids, "_NUMBERED_MAX", 47 * 47)
        made.append(CHANGES["shear"](deferred(content(), single=True)))
    assert [is_deferred(each) for each in made] == [True, False]
    assert not grids._kept_places.cache_info().currsize


@pytest.mark.parametrize("name", ["_affine_grid", "grid_sample"])
def test_a_patched_part_of_a_transform_is_called(deferral, monkeypatch, name):
    called, part = [], getattr(_geometry, name)
    monkeypatch.setattr(_geometry, name, lambda *of, **more: called.append(of) or part(*of, **more))
    with deferral:
        deferral._record()
        made = CHANGES["rotation"](deferred(content(), single=True))
    assert called
    assert not is_deferred(made)


def test_places_are_those_of_pixels():
    for number in (-2, 6):
        numbers = np.zeros((2, 3), np.int32)
        numbers[1, 2] = number
        with pytest.raises(ValueError, match="numbers must be those of pixels, or -1"):
            _core.PixelPlaces(numbers)
    places = _core.PixelPlaces(np.array([[5, -1, 0], [3, 4, 1]], np.int32))
    image, out = np.arange(18, dtype=np.uint8).reshape(2, 3, 3), np.zeros((2, 3, 3), np.uint8)
    assert _core.apply_steps([("torch_gather", {"places": places, "fill": (7, 8, 9)})], image.copy(), out)
    assert out.tolist() == [
        [image[1, 2].tolist(), [7, 8, 9], image[0, 0].tolist()],
        [*image[1, :2].tolist(), image[0, 1].tolist()],
    ]
    turned = np.zeros((3, 2, 3), np.uint8)
    assert not _core.apply_steps([("torch_gather", {"places": places})], turned, turned)
    with pytest.raises(ValueError, match="places are missing"):
        _core.apply_steps([("torch_gather", {})], image, out)


OTHERS = {
    "constants over it": content(fills=(Fill(0, (3, 5, 17, 9), torch.tensor([1, 2, 3], dtype=torch.uint8)),)),
    "other levels": Content((pending(DATA, SIZE),), shared_table(255 - IDENTITY), planar=True),
    "floats": Content((pending(DATA, SIZE),), table(), planar=True),
    "two images": Content((pending(DATA, SIZE), pending(DATA, SIZE, 1)), shared_table(IDENTITY), planar=True),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", OTHERS)
def test_other_tensors_are_left_to_torchvision(deferral, name, change):
    of, single = OTHERS[name], len(OTHERS[name].images) == 1
    like = expected(of)[0] if single else expected(of)
    with deferral:
        deferral._record()
        made = CHANGES[change](deferred(of, single=single))
    assert same_bits(made, CHANGES[change](like))
    assert not deferral.recorder.is_off


@pytest.mark.parametrize(
    ("function", "argument"),
    [
        (functional.adjust_brightness, -1.0),
        (functional.adjust_contrast, -0.1),
        (functional.adjust_saturation, float("-inf")),
        (functional.adjust_hue, 0.7),
        (functional.permute_channels, [0, 1]),
        (functional.permute_channels, [0, 1, 5]),
    ],
)
def test_errors_are_torchvisions(deferral, function, argument):
    of = content()
    with pytest.raises((ValueError, IndexError)) as theirs:
        function(expected(of)[0], argument)
    with deferral:
        deferral._record()
        for _ in range(3):  # two are compared
            function(deferred(of, single=True), [0, 1, 2] if isinstance(argument, list) else 0.25)
        x = deferred(of, single=True)
        with pytest.raises(theirs.type) as ours:
            function(x, argument)
    assert str(ours.value) == str(theirs.value)


def test_several_threads_have_another_mean(deferral):
    torch.set_num_threads(2)
    with deferral:
        deferral._record()
        made = [CHANGES[name](deferred(content(), single=True)) for name in ("contrast", "hue")]
    assert [is_deferred(each) for each in made] == [False, True]


def test_a_patched_method_is_called(deferral, monkeypatch):
    called, add = [], torch.Tensor.add_
    monkeypatch.setattr(torch.Tensor, "add_", lambda *of, **more: called.append(of) or add(*of, **more))
    of = content()
    with deferral:
        deferral._record()
        made = CHANGES["saturation"](deferred(of, single=True))
    assert called
    assert not is_deferred(made)
    assert torch.equal(made, CHANGES["saturation"](expected(of)[0]))


def test_double_by_default_is_left_to_torchvision(deferral):
    of = content()
    torch.set_default_dtype(torch.float64)
    try:
        like = CHANGES["saturation"](expected(of)[0])
        with deferral:
            deferral._record()
            made = CHANGES["saturation"](deferred(of, single=True))
    finally:
        torch.set_default_dtype(torch.float32)
    assert not deferral.recorder.is_off
    assert torch.equal(made, like)


def test_kernels_are_torchvisions_again_afterwards():
    def kernels():
        return {function: dict(by_kind) for function, by_kind in _utils._KERNEL_REGISTRY.items()}

    before, replaced = kernels(), Replacements()
    for _ in range(2):
        replaced.replace(_color, "adjust_hue_image", lambda image, _: image)
        assert sum(kernels()[function] != before[function] for function in before) == 1
    replaced.undo()
    assert kernels() == before
