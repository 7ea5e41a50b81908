"""Transforms as people use them on CIFAR-like and MNIST-like arrays give torch's bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from photos import assert_same, both
from PIL import Image
from plans import refusal
from stored import COUNT, GRAY, stored
from torch.utils.data import ConcatDataset, Subset, default_collate
from torchvision.transforms import v2

from fastload import FastLoader
from fastload.pipeline.recipe import Recipe, read_recipe

BILINEAR = v1.InterpolationMode.BILINEAR
CIFAR, MNIST = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)), ((0.1307,), (0.3081,))


class Cutout:
    """Erases a square by code of its own, which stays Python."""

    def __call__(self, image):
        top, left = torch.randint(24, (2,)).tolist()
        image = image.clone()
        image[:, top : top + 8, left : left + 8] = 0
        return image


def steps(module):
    """What comes between RandomCrop with a flip, and the tensor; and what comes behind."""
    policy = module.AutoAugmentPolicy.CIFAR10
    return {
        "flips": ([module.RandomVerticalFlip(0.3)], []),
        "jitter": ([module.ColorJitter(0.4, 0.4, 0.4, 0.1)], []),
        "RandAugment": ([module.RandAugment(2, 14)], []),
        "AutoAugment": ([module.AutoAugment(policy)], []),
        "TrivialAugment": ([module.TrivialAugmentWide(interpolation=BILINEAR)], []),
        "rotation": ([module.RandomRotation(15)], []),
        "resize": ([module.Resize(48)], []),
        "erasing": ([], [module.RandomErasing(0.7)]),
        "noise": ([], [module.RandomErasing(0.7, value="random")]),
    }


def classic(module, name, size=32):
    between, behind = steps(module)[name]
    before = [module.RandomCrop(size, padding=4), module.RandomHorizontalFlip(), *between]
    tensor = [v1.ToTensor()] if module is v1 else [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    return module.Compose([*before, *tensor, module.Normalize(*CIFAR), *behind])


def check(dataset_of, **arguments):
    """Compare an epoch; test_arrays.py has several."""
    arguments = {"batch_size": 6, "num_workers": 2, "shuffle": True, "run": {"count": 1}, **arguments}
    assert_same(*both(dataset_of, FastLoader, {"device": "cpu", "engine": "native"}, **arguments))


@pytest.mark.each_value
@pytest.mark.parametrize("module", [v1, v2], ids=["v1", "v2"])
@pytest.mark.parametrize("name", steps(v1))
def test_programs_of_cifar(name, module):
    check(lambda: stored("CIFAR10", classic(module, name)))


@pytest.mark.each_value
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize("module", [v1, v2], ids=["v1", "v2"])
@pytest.mark.parametrize("name", ["CIFAR10", "MNIST"])
def test_crops_that_pad(name, module, mode):
    crop = module.RandomCrop(28, padding=(1, 4), padding_mode=mode, fill=77)
    check(lambda: stored(name, module.Compose([crop, v1.PILToTensor()])))


@pytest.mark.each_value
@pytest.mark.parametrize(("mode", "padding"), [("constant", 40), ("edge", 40), ("reflect", 31), ("symmetric", 32)])
@pytest.mark.parametrize("flips", [False, True])
def test_crops_of_little_but_padding(mode, padding, flips):
    """Most crops of 3 pixels lie beside the image, or touch it."""
    crop = v1.RandomCrop(3, padding=padding, padding_mode=mode, fill=(7, 8, 9))
    flip = [v1.RandomHorizontalFlip()] if flips else []
    check(lambda: stored("CIFAR10", v1.Compose([crop, *flip, v1.PILToTensor()]), count=200))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["jitter", "flips", "rotation", "RandAugment"])
def test_transforms_leave_the_datasets_array_as_it_is(name, workers):
    """A constant array is not copied, and the steps begin with its own memory."""
    between, _ = steps(v1)[name]
    dataset = stored("CIFAR10", v1.Compose([*between, v1.PILToTensor()]))
    memory = bytearray(dataset.data.tobytes())
    dataset.data = np.frombuffer(bytes(memory), np.uint8).reshape(dataset.data.shape)
    loader = FastLoader(dataset, batch_size=6, num_workers=workers, device="cpu", engine="native")
    list(loader)
    assert dataset.data.tobytes() == memory
    assert workers == 0 or loader.stats().python_images == 0


def test_a_transform_of_ones_own_stays_python():
    dataset = stored("CIFAR10", v1.Compose([v1.RandomCrop(32, padding=4), v1.ToTensor(), Cutout()]))
    assert "Cutout is your own" in refusal(dataset)
    loaders = {"batch_size": 6, "num_workers": 2, "shuffle": True}
    assert_same(*both(lambda: dataset, FastLoader, {"device": "cpu"}, **loaders))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", GRAY)
def test_gray_datasets(name, workers):
    transform = v1.Compose([v1.ToTensor(), v1.Normalize(*MNIST)])
    check(lambda: stored(name, transform), num_workers=workers)
    own = {"batch_size": 6, "num_workers": workers, "device": "cpu", "engine": "native"}
    with FastLoader(stored(name, transform), **own) as loader:
        assert next(iter(loader))[0].shape[1] == 1
        list(loader)
        assert loader.stats().python_images == 0


GRAY_STEPS = {
    "bare": lambda module: [],
    "crop and flips": lambda module: [
        module.RandomCrop(28, padding=2, padding_mode="reflect"),
        module.RandomHorizontalFlip(),
        module.RandomVerticalFlip(),
    ],
    "resize": lambda module: [module.Resize(32)],
    "resize bicubic": lambda module: [module.Resize((20, 37), module.InterpolationMode.BICUBIC)],
    "resize nearest": lambda module: [module.Resize(45, module.InterpolationMode.NEAREST)],
    "resized crop": lambda module: [module.RandomResizedCrop(24)],
    "pad": lambda module: [module.Pad(2, fill=9), module.CenterCrop(30)],
    "rotation": lambda module: [module.RandomRotation(20, fill=255)],
    "rotation bilinear": lambda module: [module.RandomRotation(20, BILINEAR)],
    "affine": lambda module: [module.RandomAffine(15, (0.1, 0.1), (0.8, 1.2), 10)],
    "affine bicubic": lambda module: [module.RandomAffine(15, shear=5, interpolation=module.InterpolationMode.BICUBIC)],
    "perspective": lambda module: [module.RandomPerspective(0.5, 0.8)],
    "some": lambda module: [module.RandomApply([module.RandomRotation(30), module.RandomAffine(9)], 0.6)],
    "RGB": lambda module: [module.Pad(2), module.Grayscale(3), module.ColorJitter(0.3, 0.3, 0.3, 0.1)],
}


@pytest.mark.each_value
@pytest.mark.parametrize("name", GRAY_STEPS)
@pytest.mark.parametrize("module", [v1, v2], ids=["v1", "v2"])
def test_programs_of_mnist(module, name):
    tensor = [v1.ToTensor()] if module is v1 else [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    check(lambda: stored("MNIST", module.Compose([*GRAY_STEPS[name](module), *tensor, module.Normalize(*MNIST)])))


def test_gray_images_made_rgb():
    last = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(*CIFAR)]
    check(lambda: stored("MNIST", v2.Compose([v2.RGB(), v2.RandomGrayscale(0.4), v2.ToImage(), *last])))
    assert "stands within another transform" in refusal(
        stored("MNIST", v2.Compose([v2.RandomApply([v2.RGB()]), v2.ToImage(), *last]))
    )
    assert "gray images are tensors" in refusal(stored("MNIST", v2.Compose([v2.ToImage(), v2.RGB(), *last])))


def as_rgb(image):
    return image.convert("RGB")


@pytest.mark.parametrize("step", [as_rgb, v1.Lambda(as_rgb), v1.Lambda(lambda x: x.convert("RGB"))], ids=type)
def test_gray_images_made_rgb_by_a_function(step):
    last = [v1.ToTensor(), v1.Normalize(*CIFAR)]
    check(lambda: stored("MNIST", v1.Compose([v1.RandomRotation(9), step, v1.ColorJitter(0.3), step, *last])))
    check(lambda: stored("CIFAR10", v1.Compose([step, *last])))
    assert "stands within another transform" in refusal(stored("MNIST", v1.Compose([v1.RandomApply([step]), *last])))
    assert "comes where images are tensors" in refusal(stored("MNIST", v1.Compose([last[0], step])))


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("limit", [900, 300, 0])
def test_where_pillow_has_a_limit_below_the_images_they_stay_torchs(monkeypatch, limit):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    transform = v1.Compose([v1.RandomCrop(28), v1.ToTensor()])
    assert "less than the images have" in refusal(stored("CIFAR10", transform))
    assert isinstance(read_recipe(stored("MNIST", transform)), Recipe) == (limit == 900)


def test_crops_of_gray_tensors():
    check(lambda: stored("MNIST", v2.Compose([v2.ToImage(), v2.RandomCrop(20), v2.ToDtype(torch.float32, scale=True)])))
    check(lambda: stored("KMNIST", v2.Compose([v2.PILToTensor(), v2.RandomHorizontalFlip()])))


@pytest.mark.parametrize(
    "step",
    [
        v1.ColorJitter(0.3),
        v1.RandomRotation(9, fill=(1, 1, 1)),
        v1.RandomRotation(9, fill=1.0),
        v1.GaussianBlur(3),
        v1.RandAugment(),
        v1.RandomApply([v1.Grayscale(3)]),
        v1.Grayscale(1),
    ],
    ids=lambda step: type(step).__name__,
)
def test_other_steps_of_gray_images_stay_torchs(step):
    assert refusal(stored("MNIST", v1.Compose([step, v1.ToTensor()])))


def test_gray_tensors_are_not_resized_or_erased():
    for steps_of_tensor in ([v2.Resize(20)], [v2.ToDtype(torch.float32, scale=True), v2.RandomErasing()]):
        assert "gray images" in refusal(stored("MNIST", v2.Compose([v2.PILToTensor(), *steps_of_tensor])))


def test_means_for_three_channels_do_not_fit_gray_images():
    assert refusal(stored("MNIST", v1.Compose([v1.ToTensor(), v1.Normalize(*CIFAR)])))


@pytest.mark.parametrize("workers", [0, 2])
def test_gray_samples_around_the_users_functions(workers):
    def together(samples):
        return default_collate(samples), len(samples)

    transform = v1.Compose([v1.RandomRotation(9), v1.ToTensor()])
    check(lambda: stored("MNIST", transform), num_workers=workers, collate_fn=together)
    check(lambda: stored("MNIST", transform, target_transform=lambda target: -target), num_workers=workers)


def test_two_views_of_gray_images():
    class Twice:
        def __init__(self):
            self.transform = v1.Compose([v1.RandomAffine(9), v1.ToTensor()])

        def __call__(self, image):
            return [self.transform(image), self.transform(image)]

    check(lambda: stored("MNIST", Twice()))


def test_parts_of_gray_datasets():
    transform = v1.Compose([v1.RandomCrop(28, padding=2), v1.ToTensor()])
    check(lambda: ConcatDataset([Subset(stored("MNIST", transform), [5, -1, 3]), stored("EMNIST", transform)]))
    transform = v1.Compose([v1.RandomCrop(28, padding=2), v1.PILToTensor()])
    assert "different transforms" in refusal(ConcatDataset([stored("MNIST", transform), stored("CIFAR10", transform)]))


def test_parts_may_have_equal_transforms_of_their_own():
    def transform(value):
        return v1.Compose([v1.RandomCrop(32, padding=2), v1.ToTensor(), v1.RandomErasing(value=value)])

    check(lambda: ConcatDataset([stored("CIFAR10", transform(0.3)), stored("CIFAR10", transform(0.3))]))
    for other in (0.2999, "random"):
        assert "different transforms" in refusal(
            ConcatDataset([stored("CIFAR10", transform(0.3)), stored("CIFAR10", transform(other))])
        )


def test_other_gray_data_is_refused():
    for data in (
        torch.zeros(COUNT, 28, 28),
        np.zeros((COUNT, 28, 28), np.uint8),
        torch.zeros((COUNT, 784), dtype=torch.uint8),
    ):
        assert "is no uint8 tensor of shape (N, H, W)" in refusal(stored("MNIST", v1.ToTensor(), data=data))


def test_all_targets_of_qmnist():
    transform = v1.ToTensor()
    check(lambda: stored("QMNIST", transform, compat=False))


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32, torch.bool])
def test_targets_of_any_dtype(dtype):
    check(lambda: stored("MNIST", v1.ToTensor(), targets=torch.arange(COUNT).to(dtype)))
