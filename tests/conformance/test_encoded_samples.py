"""A dataset's ``encoded(index)`` may describe samples of any shape, with several images."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torchvision.transforms as v1
from photos import Encoded, assert_same, both, erasing_v1, eval_v1, jpeg, randaugment_v1, train_v1
from PIL import Image
from torch.utils.data import ConcatDataset, Subset
from torchvision.transforms import v2

from fastload import FastLoader
from fastload.pipeline.recipe import Refusal, read_recipe
from fastload.sources import EncodedImage

NATIVE = {"device": "cpu", "engine": "native"}


class Described(Encoded):
    """Samples made of what ``encoded`` says."""

    def __getitem__(self, index):
        return self.made(self.encoded(index))

    def made(self, part):
        if type(part) is EncodedImage:
            if isinstance(part.source, np.ndarray):
                return self.transform(Image.fromarray(part.source))
            return self.transform(Image.open(io.BytesIO(part.source)).convert("RGB"))
        if type(part) is dict:
            return {key: self.made(value) for key, value in part.items()}
        return type(part)(map(self.made, part)) if type(part) in (tuple, list) else part

    def image(self, index):
        return EncodedImage(self.files[index % len(self)])


class Dicts(Described):
    def encoded(self, index):
        return {"label": index, "pixel_values": self.image(index), "meta": {"name": f"n{index}", "box": [1.5, index]}}


class Alone(Described):
    def encoded(self, index):
        return self.image(index)


class Swapped(Described):
    def encoded(self, index):
        return index, self.image(index)


class Pairs(Described):
    images_per_sample = 2

    def encoded(self, index):
        return self.image(index), self.image(index + 1), index


class Triplets(Described):
    images_per_sample = 3

    def encoded(self, index):
        views = {"anchor": self.image(index), "positive": self.image(index + 1)}
        return {**views, "label": float(index), "others": [{"negative": self.image(index + 5)}]}


class Pixels(Described):
    images_per_sample = 2

    def encoded(self, index):
        array = np.asarray(Image.open(io.BytesIO(self.files[index])))
        return {"label": index, "images": (self.image(index), EncodedImage(array[:, ::-1]))}


class Many(Triplets):
    def encoded_many(self, indices):
        return [self.encoded(index) for index in indices]


SHAPES = (Dicts, Alone, Swapped, Pairs, Triplets, Pixels, Many)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("workers", [0, 2])
def test_same_batches_as_torch(kind, workers):
    arguments = {"batch_size": 4, "shuffle": True, "num_workers": workers}
    ours, theirs = both(lambda: kind(train_v1(), 11), FastLoader, NATIVE, **arguments, run={"count": 1})
    assert_same(ours, theirs)


@pytest.mark.parametrize("transform", [eval_v1, randaugment_v1])
def test_transforms_of_several_images(transform):
    steps = transform()
    steps = v1.Compose([step for step in steps.transforms if not isinstance(step, v1.RandomErasing)])
    ours, theirs = both(lambda: Triplets(steps, 9), FastLoader, NATIVE, batch_size=4, num_workers=1)
    assert_same(ours, theirs)


def test_within_subsets_and_joined():
    def dataset_of():
        parts = [Pairs(TRANSFORM, 5), Pairs(TRANSFORM, 6)]
        return Subset(ConcatDataset(parts), [9, 0, 3, 4, 4, 10, 7])

    ours, theirs = both(dataset_of, FastLoader, NATIVE, batch_size=3, num_workers=2)
    assert_same(ours, theirs)
    mixed = ConcatDataset([Pairs(TRANSFORM, 5), Dicts(TRANSFORM, 5)])
    assert "different images_per_sample" in str(read_recipe(mixed))


TRANSFORM = train_v1()


@pytest.mark.each_value
@pytest.mark.parametrize("damage", ["cut", "no image", "small", "gray", "bmp"])
@pytest.mark.parametrize("workers", [0, 1])
def test_errors_and_odd_images_among_several(damage, workers):
    out = io.BytesIO()
    Image.fromarray(np.zeros((60, 70, 3), np.uint8)).save(out, "BMP")
    good = jpeg(3)
    odd = {
        "cut": good[:900],
        "no image": b"",
        "small": jpeg(1, 3, 200),
        "gray": jpeg(2, mode="L"),
        "bmp": out.getvalue(),
    }

    def dataset_of():
        dataset = Triplets(train_v1(), 12)
        dataset.files[7] = odd[damage]
        return dataset

    ours, theirs = both(dataset_of, FastLoader, NATIVE, batch_size=2, num_workers=workers)
    assert_same(ours, theirs)


class Lacking(Pairs):
    def encoded(self, index):
        return (self.image(index), index) if index == 5 else super().encoded(index)


class Plain(Pairs):
    def encoded(self, index):
        return self.files[index], index


@pytest.mark.parametrize("kind", [Lacking, Plain])
def test_another_number_of_images_is_an_error(kind):
    loader = FastLoader(kind(train_v1(), 9), batch_size=3, num_workers=1, device="cpu", engine="native")
    with pytest.raises((ValueError, RuntimeError), match=r"images_per_sample=2 EncodedImage|raises ValueError"):
        list(loader)


@pytest.mark.parametrize("number", [0, -1, 2.0, True, 1000])
def test_the_number_of_images_is_a_small_int(number):
    dataset = Pairs(train_v1())
    dataset.images_per_sample = number
    with pytest.raises(ValueError, match="images_per_sample must be an int from 1 to 64"):
        read_recipe(dataset)


class Otherwise(Pairs):
    """Transforms its second image first."""

    def __getitem__(self, index):
        first, second, label = self.encoded(index)
        second = self.made(second)
        return self.made(first), second, label


class Copied(Pairs):
    def __getitem__(self, index):
        first, _, label = super().__getitem__(index)
        return first, first, label


@pytest.mark.parametrize("kind", [Otherwise, Copied])
def test_samples_that_are_not_as_described_are_torchs(kind):
    loader = FastLoader(kind(train_v1(), 9), batch_size=3, num_workers=1, device="cpu", engine="native")
    with pytest.raises(RuntimeError, match="natively"):
        list(loader)


def test_several_images_are_neither_erased_nor_multiplied():
    assert "leave out the erasing" in str(read_recipe(Pairs(erasing_v1())))

    class Two:
        def __init__(self):
            self.first = self.second = v2.Compose([v2.CenterCrop(20), v2.ToImage()])

        def __call__(self, image):
            return [self.first(image), self.second(image)]

    assert isinstance(read_recipe(Pairs(Two())), Refusal)
    assert "views of views" in str(read_recipe(Pairs(Two())))


def test_the_plan_counts_the_images():
    text = str(FastLoader(Pairs(train_v1()), batch_size=2, num_workers=1, device="cpu").plan)
    assert "2 images of each sample" in " ".join(text.split())
    assert "views" not in text


def test_attributes_of_other_datasets_mean_nothing(tmp_path):
    from photos import make_folder
    from torchvision.datasets import ImageFolder

    dataset = ImageFolder(make_folder(tmp_path, 5), train_v1())
    dataset.images_per_sample = 7
    with FastLoader(dataset, batch_size=2, num_workers=1, **NATIVE) as loader:
        assert [images.shape[0] for images, _ in loader] == [2, 2, 1]
