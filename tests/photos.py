"""A small image folder for ImageFolder, and transform pipelines for it."""

from __future__ import annotations

import importlib.util
import io
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision.transforms as v1
from PIL import Image
from references import kept
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
SIZE = 40


def pixels(seed: int, height: int, width: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 7, 3), dtype=np.uint8))
    return np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC))


def jpeg(seed: int, height: int = 90, width: int = 120, mode: str = "RGB", **options: object) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels(seed, height, width)).convert(mode).save(out, "JPEG", **options)
    return out.getvalue()


def make_folder(root: Path, count: int = 23) -> Path:
    """Write JPEG files of several sizes and subsamplings, in three classes."""
    for i in range(count):
        folder = root / f"class{i % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        options = {"subsampling": i % 3, "progressive": i % 4 == 0}
        (folder / f"{i:03}.jpg").write_bytes(jpeg(i, 60 + 7 * i, 150 - 4 * i, **options))
    return root


def mix_in(root: Path) -> Path:
    """Add BMP, PNG, grayscale and CMYK images, and files with the wrong extension."""
    folder = root / "class1"
    Image.fromarray(pixels(100, 70, 80)).save(folder / "000.bmp")
    Image.fromarray(pixels(101, 70, 80)).convert("L").save(folder / "012.jpg", quality=90)
    (folder / "013.jpg").write_bytes(jpeg(102, mode="CMYK"))
    Image.fromarray(pixels(103, 70, 80)).convert("RGBA").save(folder / "014.jpg", "PNG")
    (folder / "015.png").write_bytes(jpeg(104))
    return root


def photos_fixture(count: int = 23, *, mixed: bool = False) -> Any:
    """Return a fixture, one per module: the folder of :func:`make_folder`, or of :func:`mix_in`."""
    import pytest

    @pytest.fixture(scope="module")
    def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
        root = make_folder(tmp_path_factory.mktemp("photos"), count)
        return mix_in(root) if mixed else root

    return folder


def train_v1():
    return v1.Compose([v1.RandomResizedCrop(SIZE), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)])


def train_v2():
    steps = [v2.RandomResizedCrop(SIZE, interpolation=v2.InterpolationMode.BICUBIC), v2.RandomHorizontalFlip()]
    steps += [v2.RandomVerticalFlip(0.3), v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    return v2.Compose([v2.Compose(steps[:2]), v2.Identity(), *steps[2:]])


def eval_v1():
    return v1.Compose([v1.Resize(48), v1.CenterCrop(SIZE), v1.ToTensor(), v1.Normalize(MEAN, STD)])


def eval_v2():
    return v2.Compose(
        [v2.Resize((48, 50)), v2.CenterCrop(SIZE), v2.PILToTensor(), v2.ToDtype(torch.float16, scale=True)]
    )


def random_crop():
    return v1.Compose([v1.Resize(48), v1.RandomCrop(SIZE), v1.RandomVerticalFlip(), v1.PILToTensor()])


def train_on_tensors():
    """The order of torchvision's v2 examples: geometry on the uint8 tensor, by torch's kernel."""
    steps = [v2.ToImage(), v2.ToDtype(torch.uint8, scale=True), v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip()]
    return v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])


def eval_on_tensors():
    steps = [v2.PILToTensor(), v2.Resize(48, v2.InterpolationMode.BICUBIC), v2.CenterCrop(SIZE)]
    return v2.Compose([*steps, v2.ConvertImageDtype(torch.bfloat16)])


def erasing_v1():
    return v1.Compose([*train_v1().transforms, v1.RandomErasing(0.7, value=(0.1, -0.5, 2.0))])


def erasing_v2():
    """Flip and erase after the conversion to float, then normalize."""
    steps = [v2.Resize((48, 50)), v2.RandomCrop(SIZE), v2.ToImage(), v2.ToDtype(torch.float16, scale=True)]
    return v2.Compose([*steps, v2.RandomHorizontalFlip(), v2.RandomErasing(0.6, value=0.5), v2.Normalize(MEAN, STD)])


def erasing_bytes():
    return v2.Compose([v2.PILToTensor(), v2.RandomResizedCrop(SIZE), v2.RandomErasing(0.8, ratio=(0.5, 1.5), value=77)])


def randaugment_v1():
    steps = [v1.RandomResizedCrop(SIZE), v1.RandomHorizontalFlip(), v1.RandAugment(), v1.ToTensor()]
    return v1.Compose([*steps, v1.Normalize(MEAN, STD), v1.RandomErasing(0.3)])


def jitter_v2():
    steps = [v2.RandomResizedCrop(SIZE), v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8)]
    steps += [v2.RandomGrayscale(0.2), v2.RandomSolarize(128, 0.2), v2.RandomHorizontalFlip(), v2.ToImage()]
    return v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True)])


def turns_v2():
    some = [
        v2.RandomRotation(30, v2.InterpolationMode.BILINEAR),
        v2.RandomAffine(9, (0.1, 0.2), (0.8, 1.2), 5),
        v2.RandomPerspective(0.6, 0.7),
    ]
    steps = [v2.RandomResizedCrop(SIZE), v2.RandomOrder(some), v2.RandomChoice([v2.RandomRotation((90, 90)), *some])]
    return v2.Compose([*steps, v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])


class OwnCrop(v1.RandomResizedCrop):
    @staticmethod
    def get_params(img, scale, ratio):
        return 0, 0, 20, 20


class Seeding:
    def __call__(self, image):
        torch.manual_seed(0)
        return image


def patched_instance():
    crop = v1.RandomResizedCrop(40)
    crop.get_params = lambda *_: (1, 2, 20, 20)
    return crop


class Encoded:
    """A dataset by the protocol, over bytes in memory."""

    def __init__(self, transform, count=9, height=70):
        self.transform = transform
        self.files = [jpeg(i, height, height + 20 + i) for i in range(count)]

    def __len__(self):
        return len(self.files)

    def encoded(self, index):
        return self.files[index], {"label": index, "name": f"n{index}"}

    def __getitem__(self, index):
        data, target = self.encoded(index)
        return self.transform(Image.open(io.BytesIO(data)).convert("RGB")), target


def orders_v1():
    """Draws from Python's random, too."""
    some = [v1.RandomRotation(30), v1.ColorJitter(0.3, 0.3), v1.Compose([v1.RandomInvert(), v1.RandomHorizontalFlip()])]
    steps = [
        v1.RandomResizedCrop(SIZE),
        v1.RandomOrder(some),
        v1.RandomChoice(some, [1, 0.5, 2]),
        v1.RandomChoice(some),
    ]
    return v1.Compose([*steps, v1.ToTensor()])


def noise_v1():
    return v1.Compose([*train_v1().transforms, v1.RandomErasing(0.7, value="random", inplace=True)])


def noise_v2():
    """Boxes of a few pixels, too, whose noise torch draws otherwise."""
    steps = [v2.RandomResizedCrop(SIZE), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    return v2.Compose([*steps, v2.RandomErasing(0.8, (0.001, 0.01), value="random"), v2.ToPureTensor()])


def noise_of_timm():
    """Draws from all generators."""
    timm_data = importlib.import_module("timm.data")
    how = {"auto_augment": "rand-m9-mmax9-mstd0.5-inc1", "interpolation": "bicubic"}
    return timm_data.create_transform(SIZE, is_training=True, re_prob=0.7, re_mode="pixel", re_count=3, **how)


def colors_of_timm():
    """Leaves a cached normal sample in torch's generator."""
    timm_data = importlib.import_module("timm.data")
    return timm_data.create_transform(SIZE, is_training=True, re_prob=0.7, re_mode="rand")


def rand_augment_of_timm():
    """Draws from Python's random and from NumPy, too."""
    timm_data = importlib.import_module("timm.data")
    how = {"auto_augment": "rand-m9-mmax9-mstd0.5-inc1"}
    return timm_data.create_transform(SIZE, is_training=True, interpolation="random", **how)


_OF_PYTHON = (orders_v1, *([rand_augment_of_timm] if importlib.util.find_spec("timm") is not None else []))
OF_PYTHON = [f.__name__ for f in _OF_PYTHON]
_OF_IMAGES = (randaugment_v1, jitter_v2, turns_v2, train_v1, train_v2, eval_v1, eval_v2, random_crop, *_OF_PYTHON)
_NOISY = (noise_v1, noise_v2, *([noise_of_timm, colors_of_timm] if len(OF_PYTHON) > 1 else []))
NOISY = [f.__name__ for f in _NOISY]
_OF_TENSORS = (train_on_tensors, eval_on_tensors, erasing_v1, erasing_v2, erasing_bytes, *_NOISY)
PIPELINES = {f.__name__: f for f in (*_OF_IMAGES, *_OF_TENSORS)}


def drained(iterator: Iterator[Any]) -> Iterator[Any]:
    """Yield batches, and errors where they are raised; their tracebacks would keep workers alive."""
    while True:
        try:
            item = next(iterator)
        except StopIteration:
            return
        except Exception as error:
            item = error.with_traceback(None)
        yield item


def damaged(root: Path, damage: str) -> Callable[[], ImageFolder]:
    """Write twelve photos, damage one or its name, and return a maker of datasets."""
    victim = make_folder(root, 12) / "class1" / "004.jpg"
    data = victim.read_bytes()
    noise = data[: len(data) // 2] + b"\x12\x34\x56" + data[len(data) // 2 + 3 :]
    contents = {"truncated": data[: len(data) * 2 // 3], "no image": b"", "misnamed text": b"text" * 100}
    victim.write_bytes({**contents, "noise": noise}.get(damage, data))
    name = {"missing": "none.jpg", "zero byte": "0\0.jpg"}.get(damage, "004.jpg")

    def dataset_of() -> ImageFolder:
        dataset = ImageFolder(root, train_v1())
        dataset.samples = [(path.replace("004.jpg", name), target) for path, target in dataset.samples]
        return dataset

    return dataset_of


def damaged_twice(root: Path) -> Path:
    """Write photos: two are cut short, and one is too low for a crop."""
    make_folder(root, 14)
    for name in ("003.jpg", "009.jpg"):
        victim = root / "class0" / name
        victim.write_bytes(victim.read_bytes()[:900])
    (root / "class1" / "020.jpg").write_bytes(jpeg(1, 20, 300))
    return root


def epochs_of(make, count: int = 2, breaks_at: int | None = None, seed: int = 3) -> list:
    """Batches and errors of a few epochs, and the generators' states after each."""
    torch.manual_seed(seed)
    loader = make()
    seen = []
    for epoch in range(count):
        set_epoch = getattr(loader.sampler, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
        seen += itertools.islice(drained(iter(loader)), None if epoch == count - 1 else breaks_at)
        seen.append(torch.get_rng_state())
        if loader.generator is not None:
            seen.append(loader.generator.get_state())
    close = getattr(loader, "close", None)
    if close is not None:
        close()
    del loader
    return seen


def assert_same(ours: list | tuple, theirs: list | tuple) -> None:
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert type(a) is type(b), (a, b)
        if isinstance(b, torch.Tensor):
            assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
            assert torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))
        elif isinstance(b, list | tuple):
            assert_same(a, b)
        elif isinstance(b, dict):
            assert_same([*a, *a.values()], [*b, *b.values()])
        else:
            assert isinstance(b, Exception) or a == b


def both(dataset_of, fast, own=None, name=None, **arguments) -> tuple[list, list]:
    """Epochs of ``fast`` and of torch's DataLoader over equal datasets, in this order.

    ``name`` is that of torch's, if several tests have the same.
    """
    run = arguments.pop("run", {})
    build = arguments.pop("build", dict)
    theirs = kept(lambda: epochs_of(lambda: DataLoader(dataset_of(), **arguments, **build()), **run), name=name)
    ours = epochs_of(lambda: fast(dataset_of(), **arguments, **build(), **(own or {})), **run)
    return ours, theirs
