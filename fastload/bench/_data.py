"""Data of the benchmarks: an ImageFolder, ImageNet training transforms, and endless random indices."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch.utils.data import Sampler
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import IMG_EXTENSIONS

from fastload._arguments import UsageError
from fastload._files import files_below
from fastload._machine import shared_memory_bytes, usable_cpus
from fastload.bench.photos import PhotoSet, write_photos

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""ImageNet's channel means and deviations, as torchvision's reference training script normalizes."""

ENDLESS = 1 << 40  # draws: no epoch ends while a clock runs
POOL_IMAGES = 10_000  # drawn from a larger data set: about 1 GB, which stays in the page cache


def training_transform() -> transforms.Compose:
    """The transforms of torchvision's ResNet-50 recipe: random crop to 224 px, flip, tensor, normalize."""
    steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    return transforms.Compose([*steps, transforms.Normalize(MEAN, STD)])


def check_data(folder: Path | None) -> None:
    """Check that a folder, if one is given, has folders of images.

    Raises:
        UsageError: It has none, or holds pipes or devices, or a link in it leads back: ``ImageFolder`` would follow
            that for ever.
    """
    if folder is None:
        return
    wanted = "--data must be a folder with one folder of images per class"
    classes = [entry for entry in folder.iterdir() if entry.is_dir()] if folder.is_dir() else []
    if not classes:
        raise UsageError(f"{wanted}, got {folder}")
    try:
        images = [path for path in files_below(folder, _refuse) if path.lower().endswith(IMG_EXTENSIONS)]
    except ValueError as error:
        raise UsageError(str(error)) from error
    with_images = {Path(path).relative_to(folder).parts[0] for path in images}
    for entry in classes:
        if entry.name not in with_images:
            raise UsageError(f"{wanted}, but {entry} holds none of {', '.join(IMG_EXTENSIONS)}")


def _refuse(path: str, why: Exception) -> None:
    if not isinstance(why, OSError):  # a folder that cannot be read is empty for ImageFolder, too
        raise why


@contextlib.contextmanager
def readable(dataset: ImageFolder, indices: Iterable[int]) -> Iterator[None]:
    """Name the file where loading fails within because Pillow cannot read one of these images.

    Raises:
        UsageError: One of them cannot be read.
    """
    try:
        yield
    except Exception as failure:
        for path in (dataset.samples[index][0] for index in indices):
            try:
                with Image.open(path) as image:
                    image.convert("RGB")
            except Exception as error:  # noqa: BLE001 - a broken file may raise anything
                raise UsageError(f"--data must hold images that Pillow reads, but {path} is none: {error}") from failure
        raise


def open_images(folder: Path | None, quick: bool) -> tuple[ImageFolder, dict[str, Any]]:
    """Open the data set at ``folder``, by default the photographs below ``.fastload/``.

    The photographs are written if they are missing.

    Returns:
        The data set with :func:`training_transform`, and its description for the JSON record.
    """
    check_data(folder)
    name = "fastload bench photos" if folder is None else folder.resolve().name
    if folder is None:
        photo_set = PhotoSet(count=64 if quick else 1000)
        folder = write_photos(Path(".fastload") / f"photos-{photo_set.count}", photo_set).path
    dataset = ImageFolder(str(folder), training_transform())
    sizes = [Path(path).stat().st_size for path, _ in dataset.samples[:1000]]
    record = {"name": name, "images": len(dataset), "mean_kb": round(sum(sizes) / len(sizes) / 1000, 1)}
    return dataset, record


def check_shared_memory(workers: int, batch_size: int) -> None:
    """Check that workers' batches fit into shared memory; without, they are killed.

    Each worker has torch's default of two batches ahead, of 3x224x224 float32.

    Raises:
        UsageError: They do not.
    """
    space = shared_memory_bytes()
    needed_bytes = (2 * workers + 1) * batch_size * 3 * 224 * 224 * 4
    if space is not None and space[1] < needed_bytes:
        raise UsageError(
            f"{workers} workers with batches of {batch_size} need {needed_bytes / 1e9:.1f} GB in /dev/shm, "
            f"{space[1] / 1e9:.1f} GB are free; give the container more (docker run --shm-size) or use a smaller batch"
        )


def loader_size(quick: bool) -> tuple[int, int]:
    """Workers and batch size to compare loaders with on this machine.

    Raises:
        UsageError: There is not even shared memory for these.
    """
    workers, batch_size = min(usable_cpus(), 16), 8 if quick else 64
    check_shared_memory(workers, batch_size)
    return workers, batch_size


def pool_indices(dataset: ImageFolder) -> list[int]:
    """Indices of up to :data:`POOL_IMAGES` images, the same ones each time."""
    pool: list[int] = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0)).tolist()
    return pool[:POOL_IMAGES]


def image_pool(dataset: ImageFolder) -> list[int]:
    """As :func:`pool_indices`, and their files are read into the page cache.

    Raises:
        UsageError: A file cannot be read.
    """
    pool = pool_indices(dataset)
    try:
        for index in pool:
            Path(dataset.samples[index][0]).read_bytes()
    except OSError as error:
        raise UsageError(f"--data must hold files that can be read: {error}") from error
    return pool


class EndlessDraws(Sampler[int]):
    """Draw ``count`` indices from ``pool``, reshuffled each time it is used up.

    No epoch ends while the clock runs. The pool has at least one index; the same seed gives the same draws.
    """

    def __init__(self, pool: Sequence[int], count: int, seed: int = 0) -> None:
        if not pool:
            raise ValueError("the data set must hold at least 1 image, got 0")
        self._pool = torch.tensor(pool)
        self._count = count
        self._seed = seed

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self._seed)

        def rounds() -> Iterator[list[int]]:
            while True:
                yield self._pool[torch.randperm(len(self._pool), generator=generator)].tolist()

        return itertools.islice(itertools.chain.from_iterable(rounds()), self._count)
