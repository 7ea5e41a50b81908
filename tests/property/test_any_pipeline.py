"""Random supported pipelines are refused, or match torchvision's bits and random state."""

from __future__ import annotations

import importlib.util

import pytest
import torch
import torchvision.transforms as v1
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from photos import MEAN, STD, photos_fixture
from PIL import Image
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from fastload.check.parity_check import check_recipe
from fastload.device.normalize import host_images
from fastload.pipeline.recipe import Refusal, read_recipe
from fastload.python_samples.sample_process import SampleProcess

SIDES = st.integers(1, 70)
MODES = st.sampled_from(list(v1.InterpolationMode))
MODES_OF_TRANSFORMS = [v1.InterpolationMode.NEAREST, v1.InterpolationMode.BILINEAR]


@st.composite
def pipelines(draw):
    module = draw(st.sampled_from([v1, v2]))
    size = draw(st.tuples(SIDES, SIDES))
    low, high = sorted(draw(st.tuples(st.floats(0.02, 1.5), st.floats(0.02, 1.5))))
    resized = module.RandomResizedCrop(size, scale=(low, high), ratio=(0.6, 1.7), interpolation=draw(MODES))
    resize = module.Resize(draw(st.one_of(SIDES, st.tuples(SIDES, SIDES))), interpolation=draw(MODES))
    crop = draw(st.sampled_from([module.CenterCrop, module.RandomCrop]))
    flips = [module.RandomHorizontalFlip(draw(st.floats(0, 1))), module.RandomVerticalFlip(draw(st.floats(0, 1)))]
    steps = draw(
        st.sampled_from([[resized], [resize, crop(size)], [crop(size)], [crop((75, 80)), resize, crop(size)], [resize]])
    )
    steps = draw(st.permutations([*steps, *flips[: draw(st.integers(0, 2))]]))
    if module is v1:
        tensor = draw(st.sampled_from([[v1.ToTensor()], [v1.PILToTensor()], [v1.ToTensor(), v1.Normalize(MEAN, STD)]]))
    else:
        dtype = draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
        tensor = [draw(st.sampled_from([v2.ToImage(), v2.PILToTensor()])), v2.ToDtype(dtype, scale=draw(st.booleans()))]
        tensor += draw(st.sampled_from([[], [v2.Normalize(MEAN, STD)]]))
    return module.Compose([*steps, *tensor])


@st.composite
def pipelines_on_tensors(draw):
    """The tensor is made somewhere among the geometry, and something is erased, or not."""
    size = draw(st.tuples(SIDES, SIDES))
    mode = draw(st.sampled_from([v2.InterpolationMode.BILINEAR, *v2.InterpolationMode]))
    crop = draw(st.sampled_from([v2.CenterCrop, v2.RandomCrop, v1.RandomCrop]))(size)
    flips = [v1.RandomHorizontalFlip(draw(st.floats(0, 1))), v2.RandomVerticalFlip(draw(st.floats(0, 1)))]
    resize = draw(st.sampled_from([v2.Resize(draw(SIDES), mode), v2.Resize(size, mode), v2.RandomResizedCrop(size)]))
    geometry = [*draw(st.permutations([resize, crop])), *flips[: draw(st.integers(0, 2))]]
    values = [v2.ToDtype(torch.uint8, scale=True), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    values = values[draw(st.integers(0, 1)) : draw(st.sampled_from([0, 1, 2, 2, 3, 3]))]
    steps = geometry
    place = draw(st.integers(0, len(steps)))
    for step in [v2.ToImage(), *values]:  # in their order, somewhere among the geometry
        steps = [*steps[:place], step, *steps[place:]]
        place = draw(st.integers(place + 1, len(steps)))
    if draw(st.booleans()):
        values = st.sampled_from([0, 0.3, (1.0, 200.0, 0.2), "random", "random"])
        arguments = {"p": draw(st.floats(0, 1)), "value": draw(values)}
        arguments["scale"] = tuple(sorted(draw(st.tuples(st.floats(0, 1), st.floats(0, 1)))))
        eraser = draw(st.sampled_from([v1, v2])).RandomErasing(**arguments)
        place = draw(st.integers(place, len(steps)))
        steps = [*steps[:place], eraser, *steps[place:]]
    return v2.Compose(steps)


@st.composite
def turns(draw, module):
    """A rotation, an affine or a perspective transform."""
    mode = draw(st.sampled_from([*MODES_OF_TRANSFORMS, v1.InterpolationMode.BICUBIC]))
    center = draw(st.sampled_from([None, (0, 0), (7.5, 30)]))
    shear = draw(st.sampled_from([None, 20, (-10, 5), (0, 30, -40, 2.5)]))
    degrees = draw(st.sampled_from([0, 7.3, 400, (90, 90), (-90, -90), (180, 180), (-360, -360), (10, 250.25)]))
    translate = draw(st.sampled_from([None, (0, 0.3), (0.5, 1)]))
    scale = draw(st.sampled_from([None, (0.5, 0.5), (0.7, 3)]))
    fill = draw(st.sampled_from([0, 130, (1, 20, 255)]))
    kind = draw(st.sampled_from(["rotation", "affine", "perspective"]))
    if kind == "rotation":
        return module.RandomRotation(degrees, mode, center=center, fill=fill)
    if kind == "perspective":
        p, distortion = draw(st.floats(0, 1)), draw(st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.01, 1.0])))
        return module.RandomPerspective(distortion, p, mode, fill)
    return module.RandomAffine(degrees, translate, scale, shear, mode, fill, center)


@st.composite
def orders(draw):
    """Transforms in a random order, or one of them."""
    p = draw(st.floats(0, 1))
    some = [v2.RandomEqualize(p), v2.RandomHorizontalFlip(0.4), v2.Compose([draw(turns(v2)), v2.RandomInvert(p)])]
    weights = draw(st.sampled_from([None, [1, 0, 2], [0.2, 5, 1e-3]]))
    return draw(st.sampled_from([v2.RandomOrder(some), v2.RandomChoice(some, weights)]))


@st.composite
def orders_of_python(draw):
    """Transforms in an order that Python's random draws, or one of them."""
    p = draw(st.floats(0, 1))
    some = [v1.RandomEqualize(p), v1.RandomHorizontalFlip(0.4), v1.Compose([draw(turns(v1)), draw(orders())])]
    weights = draw(st.sampled_from([None, [1, 0, 2], [0.2, 5, 1e-3]]))
    return draw(st.sampled_from([v1.RandomOrder(some), v1.RandomChoice(some, weights)]))


@st.composite
def augmentations_of_timm(draw):
    """RandAugment or AutoAugment, with operations, magnitudes and interpolations of all kinds."""
    augment = importlib.import_module("timm.data.auto_augment")
    hparams = {"translate_const": draw(st.integers(0, 99)), "img_mean": draw(st.sampled_from([(0, 9, 255), (7, 7, 7)]))}
    hparams["magnitude_std"] = draw(st.sampled_from([0, 0.5, 4, float("inf")]))
    hparams["magnitude_max"] = draw(st.sampled_from([None, 9, 15]))
    if draw(st.booleans()):
        hparams["interpolation"] = draw(st.sampled_from([Image.Resampling.NEAREST, Image.Resampling.BICUBIC]))
    names = draw(st.lists(st.sampled_from(sorted(augment.NAME_TO_OP)), min_size=1, max_size=6))
    magnitude = draw(st.floats(0, 12))
    ops = [augment.AugmentOp(name, draw(st.floats(0, 1)), magnitude, hparams) for name in names]
    return draw(
        st.sampled_from([augment.RandAugment(ops, draw(st.integers(0, 4))), augment.AutoAugment([ops, ops[:1]])])
    )


@st.composite
def crops_of_timm(draw):
    timms = importlib.import_module("timm.data.transforms")
    size = draw(st.tuples(SIDES, SIDES))
    mode = draw(st.sampled_from(["random", "nearest", "bilinear", "bicubic", "lanczos"]))
    low, high = sorted(draw(st.tuples(st.floats(0.02, 1.5), st.floats(0.02, 1.5))))
    fill = draw(st.sampled_from([0, 130, (1, 20, 255)]))
    if draw(st.booleans()):
        return [timms.RandomResizedCropAndInterpolation(size, (low, high), (0.4, 1.7), mode)]
    shares = draw(st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)))
    how = (shares[0], mode, shares[1], (low, high), draw(st.booleans()), shares[2], (0.7, 1.4))
    crop = draw(st.sampled_from([timms.RandomCropOrPad, timms.CenterCropOrPad]))
    padding = draw(st.sampled_from(["constant", "edge", "reflect", "symmetric"]))
    return [*draw(st.sampled_from([[], [timms.ResizeKeepRatio(size, *how)]])), crop(size, fill, padding)]


@st.composite
def color_steps(draw, module):
    """A transform that changes colours, or moves pixels other than a crop does."""
    p = draw(st.floats(0, 1))
    low, high = sorted(draw(st.tuples(st.floats(0, 3), st.floats(0, 3))))
    jitter = {name: (low, high) for name in ("brightness", "contrast", "saturation") if draw(st.booleans())}
    hue = draw(st.sampled_from([0, 0.1, 0.5]))
    sampling = draw(st.sampled_from(MODES_OF_TRANSFORMS))
    fill = draw(st.sampled_from([None, 0, 130, (1, 20, 255)]))
    how = {"interpolation": sampling, "fill": fill}
    policy = draw(st.sampled_from(list(v1.AutoAugmentPolicy)))
    steps = [
        module.ColorJitter(**jitter, hue=hue),
        module.Grayscale(3),
        module.RandomGrayscale(p),
        module.RandomInvert(p),
        module.RandomPosterize(draw(st.integers(1, 8)), p),
        module.RandomSolarize(draw(st.one_of(st.integers(0, 256), st.floats(0, 256))), p),
        module.RandomAutocontrast(p),
        module.RandomEqualize(p),
        module.RandomAdjustSharpness(draw(st.floats(0, 4)), p),
        module.RandAugment(draw(st.integers(0, 4)), draw(st.integers(0, 30)), **how),
        module.TrivialAugmentWide(draw(st.integers(2, 40)), **how),
        module.AutoAugment(policy, **how),
        module.RandomApply([module.ColorJitter(0.4, 0.4, 0.4, hue), module.RandomHorizontalFlip(0.3)], p),
        module.Pad(draw(st.integers(0, 9)), (3, 5, 200), draw(st.sampled_from(["constant", "edge", "symmetric"]))),
    ]
    return draw(st.one_of(st.sampled_from(steps), turns(module), orders(), orders_of_python()))


@st.composite
def erasings(draw):
    """Noise and the like, in small images too."""
    low, high = sorted(draw(st.tuples(st.floats(0, 1.2), st.floats(0, 1.2))))
    aspects = draw(st.tuples(st.floats(0.02, 3), st.floats(0.02, 3)))
    p = draw(st.sampled_from([0.0, 0.5, 0.9, 1.0]))
    steps = [v1.RandomErasing(p, (min(low, 1), min(high, 1)), (min(aspects), max(aspects)), "random")]
    if importlib.util.find_spec("timm") is not None:
        module = importlib.import_module("timm.data.random_erasing")
        counts = sorted(draw(st.tuples(st.integers(0, 6), st.integers(1, 6))))
        mode = draw(st.sampled_from(["const", "rand", "pixel"]))
        steps.append(module.RandomErasing(p, low, high, *aspects, mode, *counts, device="cpu"))
    return draw(st.sampled_from(steps))


@st.composite
def programs(draw):
    """Crops, resizes and flips in any order, with changes of colours among them and behind."""
    module = draw(st.sampled_from([v1, v2]))
    size = draw(st.tuples(SIDES, SIDES))
    mode = draw(MODES)
    moves = [
        module.Resize(draw(st.one_of(SIDES, st.tuples(SIDES, SIDES))), interpolation=mode),
        module.RandomResizedCrop(size, interpolation=mode),
        module.CenterCrop(size),
        module.RandomCrop(size, padding=draw(st.sampled_from([None, 4, (1, 2), (3, 0, 1, 2)])), fill=(9, 80, 7)),
        module.RandomHorizontalFlip(),
        module.RandomVerticalFlip(0.3),
    ]
    before = draw(st.lists(st.one_of(st.sampled_from(moves), color_steps(module)), max_size=3))
    behind = draw(st.lists(st.one_of(st.sampled_from(moves[-3:]), color_steps(module)), max_size=3))
    tensor = draw(st.sampled_from([[v1.ToTensor()], [v1.PILToTensor()], [v1.ToTensor(), v1.Normalize(MEAN, STD)]]))
    return module.Compose([*before, moves[1], *behind, *tensor])


@st.composite
def colors_on_tensors(draw):
    """Changes of a uint8 tensor's colours, before and behind a crop."""
    size = draw(st.tuples(st.integers(1, 70), st.integers(1, 70)) | st.sampled_from([(64, 64), (32, 61), (8, 24)]))
    low, high = sorted(draw(st.tuples(st.floats(0, 3), st.floats(0, 3))))
    factors = {name: (low, high) for name in ("brightness", "saturation") if draw(st.booleans())}
    contrast = {"contrast": (low, high)} if size[0] * size[1] % 32 == 0 else {}
    p = draw(st.floats(0, 1))
    steps = [
        v2.ColorJitter(**factors),
        v2.Grayscale(3),
        v2.RandomGrayscale(p),
        v2.RandomInvert(p),
        v2.RandomPosterize(draw(st.integers(1, 8)), p),
        v2.RandomSolarize(draw(st.one_of(st.integers(0, 255), st.floats(0, 255))), p),
        v2.RandomAutocontrast(p),
        v2.RandomEqualize(p),
        v2.RandomHorizontalFlip(p),
    ]
    behind = [*steps, v2.ColorJitter(**factors, **contrast), v2.RandomApply([v2.ColorJitter(**contrast), steps[0]], p)]
    crop = draw(st.sampled_from([v2.RandomResizedCrop(size), v2.Compose([v2.Resize((75, 80)), v2.RandomCrop(size)])]))
    chosen = [*draw(st.lists(st.sampled_from(steps), max_size=2)), crop]
    chosen += draw(st.lists(st.sampled_from(behind), min_size=1, max_size=4))
    dtype = draw(st.sampled_from([torch.uint8, torch.float32]))
    return v2.Compose([draw(st.sampled_from([v2.ToImage(), v2.PILToTensor()])), *chosen, v2.ToDtype(dtype, scale=True)])


root = photos_fixture(7)


@pytest.mark.slow
@settings(max_examples=examples(80), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(pipelines(), pipelines_on_tensors()))
def test_any_pipeline(root, pipeline):
    _compare(root, pipeline)


@pytest.mark.slow
@settings(max_examples=examples(80), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(programs())
def test_any_program(root, pipeline):
    _compare(root, pipeline)


@pytest.mark.slow
@settings(max_examples=examples(80), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(colors_on_tensors())
def test_any_change_of_a_tensors_colours_is_native(root, pipeline):
    _compare(root, pipeline, refusable=False)


class Views:
    """As many views of an image as there are transforms."""

    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image):
        return [transform(image) for transform in self.transforms]


@pytest.mark.slow
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(programs(), st.integers(2, 4), st.booleans())
def test_any_views(root, program, count, mirrored):
    views = [program] * count
    if mirrored:
        views[1] = v1.Compose([v1.RandomHorizontalFlip(0.7), *program.transforms])
    _compare(root, Views(views))


@pytest.mark.slow
@settings(max_examples=examples(80), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(turns(v1), turns(v2), orders()), st.tuples(SIDES, SIDES), st.booleans())
def test_any_turn_and_order_is_native(root, step, size, first):
    crop = v2.RandomResizedCrop(size if first else (24, 24))
    _compare(root, v2.Compose([step, crop, v1.ToTensor()] if first else [crop, step, v1.ToTensor()]), refusable=False)


@pytest.mark.slow
@settings(max_examples=examples(80), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_program_that_draws_from_python_is_native(root, data):
    crops, steps = [v1.RandomResizedCrop((30, 41))], orders_of_python()
    if importlib.util.find_spec("timm") is not None:
        crops = data.draw(crops_of_timm())
        steps = st.one_of(steps, augmentations_of_timm(), st.just(v1.RandomHorizontalFlip()))
    tensor = data.draw(st.sampled_from([v1.ToTensor(), v1.PILToTensor()]))
    pipeline = v1.Compose([*crops, *data.draw(st.lists(steps, max_size=3)), tensor])
    _compare(root, pipeline, refusable=False)


@pytest.mark.slow
@settings(max_examples=examples(80), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(erasings(), st.tuples(SIDES, SIDES), st.booleans())
def test_any_erasing_by_values_is_native(root, erasing, size, normalized):
    steps = [v1.RandomResizedCrop(size), v1.ToTensor(), *([v1.Normalize(MEAN, STD)] if normalized else []), erasing]
    _compare(root, v1.Compose(steps), refusable=False, any_share=False)


def _compare(root, pipeline, *, refusable=True, any_share=True):
    recipe = read_recipe(ImageFolder(root, pipeline))
    if isinstance(recipe, Refusal):
        assert refusable, recipe
        assert recipe.reasons
        return
    images_of = host_images(recipe, torch.contiguous_format)
    process = SampleProcess(recipe)
    try:
        process.start()
        assert check_recipe(recipe, process, images_of, any_share=any_share) is None
    finally:
        process.close()
