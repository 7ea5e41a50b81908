"""Random supported pipelines are refused, or match torchvision's bits and random state."""

from __future__ import annotations

import pytest
import torch
import torchvision.transforms as v1
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from photos import MEAN, STD, make_folder
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from fastload.device.normalize import host_images
from fastload.engines.parity_check import check_recipe
from fastload.engines.sample_process import SampleProcess
from fastload.pipeline.reader import Refusal, read_recipe

SIDES = st.integers(1, 70)
MODES = st.sampled_from(list(v1.InterpolationMode))


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
        arguments = {"p": draw(st.floats(0, 1)), "value": draw(st.sampled_from([0, 0.3, (1.0, 200.0, 0.2)]))}
        arguments["scale"] = tuple(sorted(draw(st.tuples(st.floats(0, 1), st.floats(0, 1)))))
        eraser = draw(st.sampled_from([v1, v2])).RandomErasing(**arguments)
        place = draw(st.integers(place, len(steps)))
        steps = [*steps[:place], eraser, *steps[place:]]
    return v2.Compose(steps)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("photos"), 7)


@settings(max_examples=examples(120), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(pipelines(), pipelines_on_tensors()))
def test_any_pipeline(root, pipeline):
    recipe = read_recipe(ImageFolder(root, pipeline))
    if isinstance(recipe, Refusal):
        assert recipe.reasons
        return
    images_of = host_images(recipe, torch.contiguous_format)
    process = SampleProcess(recipe)
    try:
        process.start()
        assert check_recipe(recipe, process, images_of, any_share=True) is None
    finally:
        process.close()
