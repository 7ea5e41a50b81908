"""Whole epochs of the native engine are those of torch's DataLoader, bit for bit."""

from __future__ import annotations

import pytest
import torch
from photos import PIPELINES, assert_same, both, jpeg, make_folder, mix_in, train_v1
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, Subset
from torchvision.datasets import ImageFolder

from fastload import FastLoader

NATIVE = {"device": "cpu", "accelerate": "require"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    return mix_in(make_folder(tmp_path_factory.mktemp("mixed"), 12))


def check(folder, transform=train_v1, **arguments):
    arguments = {"batch_size": 5, "num_workers": 2, "shuffle": True, **arguments}
    dataset_of = arguments.pop("dataset_of", lambda: ImageFolder(folder, transform()))
    ours, theirs = both(dataset_of, FastLoader, NATIVE, **arguments)
    assert_same(ours, theirs)
    return ours, theirs


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines(folder, name):
    check(folder, PIPELINES[name])


@pytest.mark.parametrize("workers", [1, 3, 5])
def test_numbers_of_workers(folder, workers):
    check(folder, num_workers=workers)


@pytest.mark.parametrize("drop_last", [True, False])
def test_generator_and_last_batch(folder, drop_last):
    check(folder, drop_last=drop_last, build=lambda: {"generator": torch.Generator().manual_seed(9)}, prefetch_factor=1)


def test_no_shuffle(folder):
    check(folder, shuffle=False, batch_size=1, num_workers=3)


def test_persistent_workers(folder):
    check(folder, persistent_workers=True, run={"count": 3})


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("generator", [True, False])
def test_break_and_next_epoch(folder, persistent, generator):
    build = (lambda: {"generator": torch.Generator().manual_seed(4)}) if generator else dict
    check(folder, persistent_workers=persistent, build=build, batch_size=2, run={"breaks_at": 2, "count": 3})


def test_subset(folder):
    check(folder, dataset_of=lambda: Subset(Subset(ImageFolder(folder, train_v1()), range(3, 20)), [5, 1, 9, 9, 0, 3]))


def test_distributed_sampler(folder):
    build = lambda: {"sampler": DistributedSampler(ImageFolder(folder), 2, 1, seed=5)}  # noqa: E731
    check(folder, shuffle=None, build=build)


def test_batch_sampler(folder):
    build = lambda: {"batch_sampler": BatchSampler(RandomSampler(range(23)), 4, True)}  # noqa: E731
    check(folder, shuffle=None, batch_size=1, build=build)


@pytest.mark.parametrize("name", ["train_v1", "eval_v1", "random_crop", "train_on_tensors", "erasing_v1", "erasing_v2"])
def test_other_formats_among_the_jpegs(mixed, name):
    check(mixed, PIPELINES[name], num_workers=3, batch_size=4)


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("damage", ["truncated", "no image", "misnamed text", "missing", "noise"])
def test_damaged_files(tmp_path, damage, persistent):
    root = make_folder(tmp_path, 12)
    victim = root / "class1" / "004.jpg"
    data = victim.read_bytes()
    contents = {
        "truncated": data[: len(data) * 2 // 3],
        "no image": b"",
        "misnamed text": b"text" * 100,
        "missing": data,
        "noise": data[: len(data) // 2] + b"\x12\x34\x56" + data[len(data) // 2 + 3 :],
    }
    victim.write_bytes(contents[damage])

    def dataset_of():
        dataset = ImageFolder(root, train_v1())
        if damage == "missing":
            dataset.samples = [(path.replace("004.jpg", "none.jpg"), target) for path, target in dataset.samples]
        return dataset

    ours, _ = check(root, dataset_of=dataset_of, batch_size=3, persistent_workers=persistent, run={"count": 3})
    errors = [item for item in ours if isinstance(item, Exception)]
    assert errors or damage == "noise"  # Pillow makes something of that
    assert all(("none.jpg" if damage == "missing" else "004.jpg") in str(error) for error in errors)


def test_two_damaged_files_and_a_crop_that_does_not_fit(tmp_path):
    root = make_folder(tmp_path, 14)
    for name in ("003.jpg", "009.jpg"):
        victim = root / "class0" / name
        victim.write_bytes(victim.read_bytes()[:900])
    (root / "class1" / "020.jpg").write_bytes(jpeg(1, 20, 300))
    from torchvision import transforms as v1

    transform = lambda: v1.Compose([v1.RandomHorizontalFlip(), v1.RandomCrop(40), v1.ToTensor()])  # noqa: E731
    check(root, transform, batch_size=3, persistent_workers=True, run={"count": 3})


def test_an_index_out_of_range_raises_what_torch_raises(folder):
    ours, _ = check(folder, shuffle=None, build=lambda: {"sampler": [0, 1, 2, 99, 4, 5]}, batch_size=3)
    assert any(isinstance(item, IndexError) for item in ours)


def test_timeout_argument_is_kept(folder):
    check(folder, timeout=50)


class Encoded:
    """A dataset by the protocol, over bytes in memory."""

    def __init__(self, transform):
        self.transform = transform
        self.files = [jpeg(i, 70, 90 + i) for i in range(9)]

    def __len__(self):
        return len(self.files)

    def encoded(self, index):
        return self.files[index], {"label": index, "name": f"n{index}"}

    def __getitem__(self, index):
        import io

        from PIL import Image

        data, target = self.encoded(index)
        return self.transform(Image.open(io.BytesIO(data)).convert("RGB")), target


def test_datasets_of_encoded_images():
    ours, theirs = both(lambda: Encoded(train_v1()), FastLoader, NATIVE, batch_size=4, num_workers=2, shuffle=True)
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(b, list):
            assert torch.equal(a[0], b[0])
            assert torch.equal(a[1]["label"], b[1]["label"])
            assert a[1]["name"] == b[1]["name"]
        else:
            assert torch.equal(a, b)
