"""What is supported natively, and above all what is not."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings
from dataclasses import replace

import pytest
import torch
import torchvision.transforms as v1
from photos import PIPELINES, OwnCrop, Seeding, patched_instance, photos_fixture, train_v1
from PIL import Image
from plans import text_of
from torch import nn
from torch.utils.data import Subset, default_collate
from torchvision.datasets import DatasetFolder, FakeData, ImageFolder, folder
from torchvision.transforms import v2

from fastload import FastLoader
from fastload.check import parity_check
from fastload.check.results import FallbackWarning
from fastload.pipeline import recipe as reader
from fastload.pipeline.errors import Refused
from fastload.pipeline.installed.torch_stream import calibrate_stream
from fastload.pipeline.ops import erasing
from fastload.pipeline.ops import table as ops
from fastload.pipeline.recipe import Recipe, Refusal, read_recipe
from fastload.python_samples.sample_process import SampleProcess

root = photos_fixture(9)


def refusal(dataset, *args) -> str:
    result = read_recipe(dataset, *args)
    assert isinstance(result, Refusal)
    return "; ".join(result.reasons)


@pytest.mark.parametrize("name", PIPELINES)
def test_common_pipelines_have_a_recipe(root, name):
    assert isinstance(read_recipe(ImageFolder(root, PIPELINES[name]()), default_collate), Recipe)


def test_a_folder_with_the_default_loader_has_a_recipe(root):
    dataset = DatasetFolder(root, folder.default_loader, (".jpg",), transform=train_v1())
    assert isinstance(read_recipe(Subset(dataset, [1, 2])), Recipe)


def with_hook():
    crop = v1.RandomResizedCrop(8)
    crop.register_forward_hook(lambda *_: None)
    return crop


def with_hue(most):
    jitter = v1.ColorJitter(hue=0.1)
    jitter.hue = (0.0, most)
    return jitter


def with_backward_hook():
    crop = v1.RandomResizedCrop(8)
    crop.register_full_backward_hook(lambda *_: None)
    return crop


def changed(transform, **attributes):
    for name, value in attributes.items():
        setattr(transform, name, value)
    return transform


TO_TENSOR = v1.ToTensor()
REFUSED = {
    "lambda": ([v1.Lambda(lambda x: x), v1.RandomResizedCrop(8), TO_TENSOR], "transform <lambda> is your own"),
    "lambda on tensors": (
        [v1.RandomResizedCrop(8), TO_TENSOR, v1.Lambda(lambda x: x - x.mean())],
        "Lambda runs your own code on tensors, which is not run natively; run it on whole batches",
    ),
    "function": ([lambda x: x, v1.RandomResizedCrop(8), TO_TENSOR], "<lambda>"),
    "manual_seed": (
        [Seeding(), v1.RandomResizedCrop(8), TO_TENSOR],
        "transform Seeding is your own, and does what the native core does not know; leave it out or replace it by one",
    ),
    "seeding lambda": (
        [v1.RandomResizedCrop(8), v1.Lambda(lambda x: torch.manual_seed(0) and x), TO_TENSOR],
        "transform <lambda> is your own",
    ),
    "subclass": (
        [OwnCrop(8), TO_TENSOR],
        "transform OwnCrop is a subclass of RandomResizedCrop, whose methods may be its own; use RandomResizedCrop",
    ),
    "gradients": (
        [v1.RandomResizedCrop(8), TO_TENSOR, v1.Normalize(torch.zeros(3, requires_grad=True), torch.ones(3))],
        "would require gradients",
    ),
    "instance": ([patched_instance(), TO_TENSOR], "get_params was patched"),
    "hook": ([with_hook(), TO_TENSOR], "RandomResizedCrop has forward hooks, which run in every sample; remove them"),
    "backward hook": ([with_backward_hook(), TO_TENSOR], "RandomResizedCrop has forward hooks"),
    "data of the class": (
        [changed(v2.RandomResizedCrop(8), _transformed_types=(torch.Tensor,)), TO_TENSOR],
        "RandomResizedCrop._transformed_types was patched",
    ),
    "a copy of its own": (
        [changed(v1.RandomResizedCrop(8), __deepcopy__=lambda memo: v1.CenterCrop(8)), TO_TENSOR],
        "RandomResizedCrop.__deepcopy__ was patched",
    ),
    "padding of tensors": ([TO_TENSOR, v1.RandomCrop(8, padding=2)], "pads a tensor"),
    "v2 padding": ([v2.RandomCrop(8, pad_if_needed=True), TO_TENSOR], "pads if needed"),
    "resize of floats": ([v2.ToImage(), v2.ToDtype(torch.float32), v2.RandomResizedCrop(8)], "would resize floats"),
    "resize of scaled floats": ([TO_TENSOR, v2.Resize((8, 8))], "would resize floats"),
    "resize after normalize": ([TO_TENSOR, v1.Normalize([0.5], [0.5]), v2.Resize((8, 8))], "would resize floats"),
    "v1's resize of tensors": ([v1.PILToTensor(), v1.RandomResizedCrop(8)], "v1 resizes tensors by way of floats"),
    "nearest of tensors": ([v2.ToImage(), v2.Resize((8, 8), v2.InterpolationMode.NEAREST)], "use BILINEAR"),
    "antialias": ([v2.Resize((8, 8), antialias=False), TO_TENSOR], "antialias=False"),
    "antialias of tensors": ([v2.ToImage(), v2.Resize((8, 8), antialias=None)], "antialias=None"),
    "noise that changes": (
        [v1.RandomResizedCrop(8), TO_TENSOR, v1.RandomErasing(value="random"), v1.Normalize(0.5, 0.1)],
        "Normalize would change what RandomErasing fills boxes with; put it before",
    ),
    "noise in bytes": (
        [v2.RandomResizedCrop(8), v2.PILToTensor(), v2.RandomErasing(value="random")],
        "RandomErasing fills boxes of torch.uint8 images with values; convert them to float32 before",
    ),
    "noise in halves": (
        [v2.RandomResizedCrop(8), v2.ToImage(), v2.ToDtype(torch.float16, True), v2.RandomErasing(value="random")],
        "torch.float16 images",
    ),
    "two erasings": ([v1.RandomResizedCrop(8), TO_TENSOR, v1.RandomErasing(), v1.RandomErasing()], "comes after"),
    "flip after erasing": ([v1.RandomResizedCrop(8), TO_TENSOR, v1.RandomErasing(), v1.RandomVerticalFlip()], "before"),
    "erasing of an image": ([v2.RandomResizedCrop(8), v2.RandomErasing(), v2.ToImage()], "after ToTensor()"),
    "erasing's values": ([v1.RandomResizedCrop(8), TO_TENSOR, v1.RandomErasing(value=(1, 2))], "2 values"),
    "sizes differ": ([v1.Resize(8), TO_TENSOR], "one size"),
    "no size": ([TO_TENSOR], "one size"),
    "no tensor": ([v1.RandomResizedCrop(8)], "ends with a PIL image"),
    "normalize on uint8": ([v1.RandomResizedCrop(8), v1.PILToTensor(), v1.Normalize([0.5], [0.5])], "raise TypeError"),
    "float64": ([v1.RandomResizedCrop(8), TO_TENSOR, v1.ConvertImageDtype(torch.float64)], "torch.float64"),
    "dtypes": ([v1.RandomResizedCrop(8), v2.ToImage(), v2.ToDtype({torch.Tensor: torch.float32})], "dtype for each"),
    "jitter of tensors": ([v1.RandomResizedCrop(8), TO_TENSOR, v1.ColorJitter(0.1)], "changes such tensors otherwise"),
    "some sizes": ([v1.RandomApply([v1.RandomResizedCrop(8)]), TO_TENSOR], "changes the size of some images"),
    "tensor within": ([v1.RandomResizedCrop(8), v1.RandomApply([TO_TENSOR]), TO_TENSOR], "within another transform"),
    "policy before the crop": ([v1.RandAugment(), v1.RandomResizedCrop(8), TO_TENSOR], "where images differ in size"),
    "no such magnitude": ([v1.RandomResizedCrop(8), v1.RandAugment(magnitude=31), TO_TENSOR], "not supported natively"),
    "infinite threshold": (
        [v1.RandomResizedCrop(8), v1.RandomSolarize(math.inf), TO_TENSOR],
        "arguments that are not supported",
    ),
    "hue": ([v1.RandomResizedCrop(8), with_hue(0.7), TO_TENSOR], "hue must be within"),
    "gray": ([v1.RandomResizedCrop(8), v1.Grayscale(), TO_TENSOR], "num_output_channels=3"),
    "fill": ([v1.RandomResizedCrop(8), v1.Pad(1, 0.5), TO_TENSOR], "whole numbers"),
    "rotation that expands": ([v1.RandomResizedCrop(8), v1.RandomRotation(5, expand=True), TO_TENSOR], "use False"),
    "sampling": (
        [v2.RandomResizedCrop(8), v2.RandomAffine(5, interpolation=v2.InterpolationMode.BOX), TO_TENSOR],
        "which Pillow refuses",
    ),
    "v1 weights": (
        [v1.RandomResizedCrop(8), v1.RandomChoice([v1.RandomInvert()] * 2, [2, -1]), TO_TENSOR],
        "the sum of the weights so far",
    ),
    "v1 order": ([v1.RandomOrder([v1.CenterCrop(8), v1.RandomInvert()]), TO_TENSOR], "the size of some images"),
    "order of crops": ([v2.RandomOrder([v2.CenterCrop(8), v2.RandomInvert()]), TO_TENSOR], "the size of some images"),
    "choice of sizes": ([v2.RandomChoice([v2.CenterCrop(8), v2.CenterCrop(9)]), TO_TENSOR], "images of several sizes"),
    "fills": ([v2.RandomResizedCrop(8), v2.RandomRotation(5, fill={torch.Tensor: 3}), TO_TENSOR], "fill="),
    "blur": ([v1.RandomResizedCrop(8), v1.GaussianBlur(3), TO_TENSOR], "exact=False runs it natively"),
    "elastic": ([v2.ElasticTransform(), v2.RandomResizedCrop(8), TO_TENSOR], "with bits that torch alone has"),
    "augmix": ([v1.RandomResizedCrop(8), v1.AugMix(), TO_TENSOR], "AugMix computes Pillow's images as tensors too"),
    "jpeg": ([v2.RandomResizedCrop(8), v2.JPEG(9), TO_TENSOR], "is not supported natively yet"),
    "box": (
        [v1.RandomPerspective(interpolation=v1.InterpolationMode.BOX), v1.RandomResizedCrop(8), TO_TENSOR],
        "which Pillow refuses",
    ),
    "distortion": ([v1.RandomPerspective(1.5), v1.RandomResizedCrop(8), TO_TENSOR], "must be from 0 to 1"),
}


@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward", "full_backward_pre"])
def test_global_hooks_are_refused_until_they_are_removed(root, kind):
    dataset = ImageFolder(root, train_v1())
    handle = getattr(torch.nn.modules.module, f"register_module_{kind}_hook")(lambda *_: None)
    try:
        assert refusal(dataset) == "torch.nn's global forward hooks are set, which run in every transform; remove them"
    finally:
        handle.remove()
    assert isinstance(read_recipe(dataset), Recipe)


def test_a_torch_that_resizes_otherwise_is_refused(root, monkeypatch):
    dataset = ImageFolder(root, v2.Compose([v2.ToImage(), v2.RandomResizedCrop(8)]))
    assert isinstance(read_recipe(dataset), Recipe)
    monkeypatch.setattr(reader, "tensor_filters", lambda: frozenset({"torch_lanczos"}))
    assert "otherwise here than the native core" in refusal(dataset)


@pytest.mark.parametrize("name", REFUSED)
def test_other_transforms_are_refused_with_the_reason(root, name):
    steps, reason = REFUSED[name]
    assert reason in refusal(ImageFolder(root, v1.Compose(steps)))
    assert reason in refusal(ImageFolder(root, v1.Compose([v1.Compose(steps)])))


def test_compiled_transforms_are_refused(root):
    crops, normalize, invert = nn.Sequential(v1.RandomResizedCrop(8)), v1.Normalize([0.5], [0.5]), v2.RandomInvert()
    for module in (crops, normalize, invert):
        module.compile(backend=lambda graph, _inputs: graph.forward)  # one of torch's would take seconds to import
    for steps, reason in (
        ([crops, TO_TENSOR], "Sequential was compiled"),
        (
            [v1.RandomResizedCrop(8), TO_TENSOR, normalize],
            "Normalize was compiled, which may change its results; leave out compile()",
        ),
        ([v2.RandomResizedCrop(8), v2.RandomApply([invert]), TO_TENSOR], "RandomInvert was compiled"),
    ):
        assert reason in refusal(ImageFolder(root, v1.Compose(steps)))
        assert reason in refusal(ImageFolder(root, v1.Compose([v1.Compose(steps)])))


def test_unsupported_interpolations_are_refused(root):
    crop = v1.RandomResizedCrop(8)
    crop.interpolation = "cubic spline"
    assert "interpolation" in refusal(ImageFolder(root, v1.Compose([crop, TO_TENSOR])))


class OwnFolder(ImageFolder):
    def __getitem__(self, index):
        print(index)
        return super().__getitem__(index)


def test_other_datasets_are_refused(root):
    assert "dataset FakeData" in refusal(FakeData(transform=train_v1()))
    assert "subclass of ImageFolder" in refusal(OwnFolder(root, train_v1()))
    assert "subclass of ImageFolder" in refusal(Subset(OwnFolder(root, train_v1()), [0]))
    assert "loader" in refusal(ImageFolder(root, train_v1(), loader=lambda path: folder.pil_loader(path)))
    assert "no transform" in refusal(ImageFolder(root))


def test_functions_of_the_loader_run_in_python(root):
    dataset = ImageFolder(root, train_v1(), target_transform=float)
    assert read_recipe(dataset, lambda samples: samples).in_python[0].startswith("collate_fn test_functions")
    assert read_recipe(dataset, default_collate, print).in_python == ("worker_init_fn print", "target_transform float")
    assert "has a __len__" in refusal(ImageFolder(root, train_v1(), target_transform=nn.Sequential()))


def test_a_layout_that_is_not_known_is_refused_where_code_may_see_it(root):
    dataset = ImageFolder(root, PIPELINES["train_on_tensors"]())
    assert "comes after the image has become a tensor" in refusal(dataset, lambda samples: samples)
    assert isinstance(read_recipe(dataset, default_collate), Recipe)
    dataset.target_transform = float
    assert "comes after the image has become a tensor" in refusal(dataset)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (ImageFolder, "__getitem__"),
        (folder.DatasetFolder, "__getitem__"),
        (v1.RandomResizedCrop, "get_params"),
        (v1.Compose, "__call__"),
        (v1.Normalize, "forward"),
        (torch.nn.Module, "__call__"),
        (torch.nn.Module, "_compiled_call_impl"),
        (folder, "pil_loader"),
    ],
)
def test_patched_classes_are_refused(root, monkeypatch, owner, name):
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **kwargs: original(*args, **kwargs))
    assert "patched" in refusal(ImageFolder(root, train_v1()))


IN_A_PROCESS_OF_ITS_OWN = """
import sys
import torch
import torchvision.transforms as v1
from torchvision.datasets import ImageFolder
{before}
from fastload.pipeline.recipe import Refusal, read_recipe
dataset = ImageFolder({root!r}, v1.Compose([v1.RandomResizedCrop(8), v1.CenterCrop(8), v1.ToTensor()]))
read = read_recipe(dataset)
print(read.reasons if isinstance(read, Refusal) else "torchvision.transforms.v2" in sys.modules)
from torchvision.transforms import v2
dataset.transform = v2.Compose([v2.RandomResizedCrop(8), v2.ToImage()])
read = read_recipe(dataset)
print(read.reasons if isinstance(read, Refusal) else read.pipeline.nodes[0][0])
"""


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("", ["False", "random_resized_crop"]),
        ("v1.CenterCrop.forward = v1.RandomCrop.forward", ["CenterCrop.forward was patched", "random_resized_crop"]),
        ("v1.ToTensor = type('Mine', (v1.ToTensor,), dict())", ["transform Mine is your own", "random_resized_crop"]),
    ],
    ids=["nothing", "by another of torchvision's", "the name"],
)
@pytest.mark.slow
def test_v2_is_not_imported_for_v1_and_what_was_patched_before_is_seen(root, before, said):
    code = IN_A_PROCESS_OF_ITS_OWN.format(root=str(root), before=before)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    for line, wanted in zip(ran.stdout.splitlines(), said, strict=True):
        assert wanted in line


def test_a_patched_method_of_the_object_is_refused(root):
    dataset = ImageFolder(root, train_v1())
    dataset.__getitem__ = lambda index: None
    assert "patched" in refusal(dataset)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"num_workers": 1, "batch_size": None}, "batch_size=None"),
        ({"num_workers": 1, "in_order": False}, "in_order=False"),
        ({"num_workers": 1, "worker_init_fn": print, "randomness": "sample"}, "worker_init_fn print may draw"),
    ],
)
def test_require_raises_with_the_reasons(root, arguments, reason):
    with pytest.raises(ValueError, match=reason):
        FastLoader(ImageFolder(root, train_v1()), device="cpu", engine="native", **arguments)


def test_the_plan_tells_of_the_engine(root):
    loader = FastLoader(ImageFolder(root, train_v1()), device="cpu", num_workers=2)
    assert loader.plan.engine == "native"
    assert "RandomResizedCrop" in text_of(loader)
    loader.engine = "torch"
    assert loader.plan.engine == "torch"


def test_the_plan_tells_of_tensors_and_of_erasing(root):
    plan = text_of(FastLoader(ImageFolder(root, PIPELINES["train_on_tensors"]()), device="cpu", num_workers=1))
    assert "RandomHorizontalFlip (with torch's arithmetic for tensors)" in plan
    plan = text_of(FastLoader(ImageFolder(root, PIPELINES["erasing_v1"]()), device="cpu", num_workers=1))
    assert "by a table of float32, then RandomErasing" in plan
    assert "arithmetic" not in plan
    assert "made by torch" not in plan
    plan = text_of(FastLoader(ImageFolder(root, PIPELINES["noise_v2"]()), device="cpu", num_workers=1))
    assert "by a table of float32, then RandomErasing with values made by torch" in plan


@pytest.mark.parametrize("version", [v1, v2])
def test_noise_is_refused_where_it_would_be_drawn_otherwise(root, monkeypatch, version):
    steps = [v1.RandomResizedCrop(8), TO_TENSOR, version.RandomErasing(value="random")]
    dataset = ImageFolder(root, v1.Compose(steps))
    assert isinstance(read_recipe(dataset), Recipe)
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "normal_", torch.Tensor.uniform_)
        assert "Tensor.normal_ was patched" in refusal(dataset)
    stream = calibrate_stream()
    monkeypatch.setattr(erasing, "calibrate_stream", lambda: replace(stream, normals=False))
    assert "draws normal numbers otherwise" in refusal(dataset)
    assert isinstance(read_recipe(ImageFolder(root, PIPELINES["erasing_v1"]())), Recipe)


def plant(monkeypatch):
    real = SampleProcess.batch

    def differs(process, index, state, timeout_s):
        (images, targets), after = real(process, index, state, timeout_s)
        images[0, 0, 0, 0] += 1e-6
        return [images, targets], after

    monkeypatch.setattr(SampleProcess, "batch", differs)


def test_a_bit_that_differs_falls_back_loudly(root, monkeypatch):
    plant(monkeypatch)
    loader = FastLoader(ImageFolder(root, train_v1()), device="cpu", num_workers=1, batch_size=4)
    with pytest.warns(FallbackWarning, match="not the same to the bit") as warned:
        assert len(list(loader)) == 3
    assert [warning.filename for warning in warned if warning.category is FallbackWarning] == [__file__]
    assert loader.plan.engine == "torch"
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        assert len(list(loader)) == 3


def test_draws_that_differ_fall_back_loudly(root, monkeypatch):
    real = SampleProcess.batch

    def draws_more(process, index, state, timeout_s):
        batch, after = real(process, index, state, timeout_s)
        return batch, after[:-1] + bytes([after[-1] ^ 1])

    monkeypatch.setattr(SampleProcess, "batch", draws_more)
    loader = FastLoader(ImageFolder(root, train_v1()), device="cpu", num_workers=1, batch_size=4)
    with pytest.warns(FallbackWarning, match="draws other random numbers natively"):
        assert len(list(loader)) == 3
    assert loader.plan.engine == "torch"


def test_require_raises_when_a_bit_differs(root, monkeypatch):
    plant(monkeypatch)
    loader = FastLoader(ImageFolder(root, train_v1()), device="cpu", num_workers=1, engine="native")
    with pytest.raises(RuntimeError, match="not the same to the bit"):
        iter(loader)


def test_a_folder_of_bmp_stays_with_the_workers(tmp_path, root):
    for path in sorted(root.rglob("*.jpg")):
        target = tmp_path / path.parent.name
        target.mkdir(exist_ok=True)
        Image.open(path).save(target / f"{path.stem}.bmp")
    loader = FastLoader(ImageFolder(tmp_path, train_v1()), device="cpu", num_workers=1, batch_size=4)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert len(list(loader)) == 3
    assert not [each for each in warned if "use of fork() may lead" not in str(each.message)]
    assert "no JPEG, PNG or WebP images" in text_of(loader)


LOUD = """
import sys, warnings
from torchvision.datasets import ImageFolder
import torchvision.transforms as v1
from fastload import FastLoader
warnings.simplefilter("error")
transform = v1.Compose([v1.RandomResizedCrop(8), v1.ToTensor()])
loader = FastLoader(ImageFolder(sys.argv[1], transform), 4, device="cpu", num_workers=1)
print(sum(len(images) for images, _ in loader))
print("no JPEG, PNG or WebP images" in str(loader.plan))
"""


@pytest.mark.slow
def test_where_warnings_are_errors_a_folder_of_bmp_stays_with_the_workers(tmp_path, root):
    (tmp_path / "class").mkdir()
    for number, path in enumerate(sorted(root.rglob("*.jpg"))[:4]):
        Image.open(path).save(tmp_path / "class" / f"{number}.bmp")
    command = [sys.executable, "-W", "error::UserWarning", "-c", LOUD, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (ran.stdout.splitlines(), ran.returncode) == (["4", "True"], 0), ran.stderr


def test_the_check_leaves_the_random_states_alone(root):
    import random

    import numpy as np

    dataset = ImageFolder(root, train_v1())
    read = read_recipe(dataset)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    from fastload.device.normalize import host_images

    images_of = host_images(read, torch.contiguous_format)
    process = SampleProcess(read)
    process.start()
    assert parity_check.check_recipe(read, process, images_of, any_share=False) is None
    process.close()
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), np.random.get_state()[1].tolist())


def test_a_patch_of_v2_is_seen_within_a_transform_of_v1(root, monkeypatch):
    dataset = ImageFolder(root, v1.Compose([*steps_with_v2(), TO_TENSOR]))
    assert isinstance(read_recipe(dataset), Recipe)
    monkeypatch.setattr(v2.functional, "adjust_brightness", lambda image, factor: image)
    assert "patched" in refusal(dataset)


def steps_with_v2():
    return [v1.RandomResizedCrop(8), v1.RandomApply([v2.ColorJitter(0.3)])]


@pytest.mark.parametrize("module", [v1, v2])
def test_a_policy_that_does_something_else_by_a_name_is_refused(root, monkeypatch, module):
    monkeypatch.setattr(ops, "_named_nodes", {})
    monkeypatch.setitem(ops._FACTORS, "Brightness", "contrast")
    dataset = ImageFolder(root, v1.Compose([v1.RandomResizedCrop(8), module.RandAugment(), TO_TENSOR]))
    assert "Brightness is something else in torchvision" in refusal(dataset)


def test_what_a_policy_asks_of_pillow_must_be_known():
    recorder = ops._Recorder(8, 9)
    matrix = (1, 0, 0, 0, 1, 0)
    recorder.image.transform((9, 8), Image.Transform.AFFINE, matrix, 0, fillcolor=(1, 2, 3))
    assert [kind for kind, _ in recorder.nodes(v1.RandAugment())] == ["affine"]
    recorder.image.transform((9, 8), Image.Transform.AFFINE, matrix, 0, fill=0)
    with pytest.raises(Refused, match="in a way that is not supported"):
        recorder.nodes(v1.RandAugment())
