"""Write ImageNet-like photographs as an ImageFolder of JPEG files: ``fastload bench photos``.

The photographs are those that ship inside scikit-image's wheel, so nothing is downloaded. Every image of the data set
is a crop of one of them, enlarged by a factor of 1.7 at most, so that the files have the entropy of real photographs:
about 2 bits per pixel at quality 90, as the originals have. A crop that is larger than its photograph continues into
the photograph's mirror image, which is how images of 4000 px are made without inflating 500 px to mush.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from fastload._arguments import UsageError
from fastload._files import files_below, open_file
from fastload._machine import usable_cpus
from fastload._version import with_extra
from fastload.measurement.console import console

if TYPE_CHECKING:
    import argparse

    from numpy.typing import NDArray

PHOTOS = (
    "astronaut.png",
    "chelsea.png",
    "coffee.png",
    "rocket.jpg",
    "motorcycle_left.png",
    "motorcycle_right.png",
    "hubble_deep_field.jpg",
    "ihc.png",
)
"""The color photographs inside the scikit-image wheel. Class ``c`` is made of photograph ``c modulo 8``."""

MANIFEST = "manifest.json"
_MAKER = 1  # raise it when the same parameters would give other images, so that an old data set is not taken for a new

# Share of images, width, height; in units of the long edge. ImageNet's images are mostly 500x375, then 375x500 and
# 500x333; the remaining share has any aspect and any size (mean 473x405 over the training set).
_SHAPES = ((0.50, 1.0, 0.75), (0.15, 0.75, 1.0), (0.13, 1.0, 0.666), (0.05, 0.666, 1.0), (0.05, 1.0, 1.0))
_MAX_UPSCALE = 1.7


@dataclass(frozen=True, slots=True, kw_only=True)
class PhotoSet:
    """Contents of a data set; equal values give equal uncompressed pixels on every machine."""

    count: int = 1000  # number of images
    classes: int = 8  # number of classes (folders); image `i` is in class `i modulo classes`
    seed: int = 0  # seeds crop, scale, shape and mirroring of every image, each image by itself
    quality: int = 90  # JPEG quality as Pillow counts it, 1 to 95
    # the usual long edge in pixels, 32 to 8192; one image in eight is up to twice as large or half as small
    edge_px: int = 500

    def __post_init__(self) -> None:
        for name, low, high in (
            ("count", 1, None),
            ("classes", 1, self.count),
            ("seed", 0, None),
            ("quality", 1, 95),
            ("edge_px", 32, 8192),
        ):
            value = getattr(self, name)
            if value < low or (high is not None and value > high):
                limit = f">= {low}" if high is None else f"from {low} to {high}"
                raise ValueError(f"{name} must be {limit}, got {value}")

    def path_of(self, index: int) -> Path:
        """Where image ``index`` is, relative to the data set's folder."""
        return Path(f"class_{index % self.classes:03d}") / f"{index:07d}.jpg"


@dataclass(frozen=True, slots=True)
class PhotoFolder:
    """A complete data set on disk."""

    path: Path  # the folder; torchvision.datasets.ImageFolder(path) reads it
    count: int  # number of images
    total_bytes: int  # size of all JPEG files together
    written: bool  # whether this call wrote it; False when it was there already


def write_photos(path: str | Path, photo_set: PhotoSet | None = None) -> PhotoFolder:
    """Write a data set of photographs to ``path``, or reuse the one that is there.

    The data set is written beside ``path`` and moved there in one step when it is complete, so that ``path`` never
    holds half a data set. One thread per usable core.

    Args:
        path: The folder to make. It must not exist, be empty, or hold a data set that this function made with the
            same parameters.
        photo_set: What to write; by default 1000 images of about 500x400 px.

    Raises:
        FileExistsError: ``path`` holds something else.
        ModuleNotFoundError: scikit-image, whose photographs are used, is not installed.
    """
    wanted = photo_set or PhotoSet()
    path = Path(path)
    found = _complete(path, wanted)
    if found is not None:
        return found
    if path.exists() and any(path.iterdir()):
        raise FileExistsError(
            f"{path} must be empty or hold the same data set, but it holds something else "
            f"({_describe(path)}); choose another folder or delete it"
        )
    _photo(0)  # says what is missing before anything is written
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        staging.chmod(0o755)
        for index in range(wanted.classes):
            (staging / wanted.path_of(index)).parent.mkdir()
        with ThreadPoolExecutor(usable_cpus(), thread_name_prefix="fastload-photos") as pool:
            total_bytes = sum(pool.map(lambda index: _write_image(staging, wanted, index), range(wanted.count)))
        manifest = {"maker": _MAKER, **asdict(wanted), "total_bytes": total_bytes}
        (staging / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
        try:
            staging.rename(path)
        except OSError:
            # Another process may have finished the same data set in the meantime.
            found = _complete(path, wanted)
            if found is None:
                raise
            return found
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return PhotoFolder(path, wanted.count, total_bytes, written=True)


def make_photo(photo_set: PhotoSet, index: int) -> Image.Image:
    """Image ``index`` of a data set, before compression. Thread-safe."""
    rng = np.random.default_rng([photo_set.seed, index])
    width, height = _draw_size(rng, photo_set.edge_px)
    photo = _photo(index % photo_set.classes)
    scale = float(np.exp(rng.uniform(np.log(0.6), np.log(1.2))))
    fitting = max(width / photo.shape[1], height / photo.shape[0])  # from here on the crop is inside the photograph
    if fitting <= _MAX_UPSCALE:
        scale = max(scale, fitting)
    crop = _crop(photo, rng, round(width / scale), round(height / scale))
    if rng.random() < 0.5:
        crop = crop[:, ::-1]
    image = Image.fromarray(np.ascontiguousarray(crop))
    return image.resize((width, height), Image.Resampling.BICUBIC)


def _draw_size(rng: np.random.Generator, edge_px: int) -> tuple[int, int]:
    draw = rng.random()
    for share, width, height in _SHAPES:
        if draw < share:
            return round(width * edge_px), round(height * edge_px)
        draw -= share
    edge = edge_px * float(2 ** rng.uniform(-1, 1))
    aspect = float(np.exp(rng.uniform(np.log(0.5), np.log(2.0))))  # width / height
    return max(16, round(edge * min(1.0, aspect))), max(16, round(edge * min(1.0, 1 / aspect)))


def _crop(photo: NDArray[np.uint8], rng: np.random.Generator, width: int, height: int) -> NDArray[np.uint8]:
    rows = _window(rng, height, photo.shape[0])
    columns = _window(rng, width, photo.shape[1])
    cropped: NDArray[np.uint8] = photo.take(rows, axis=0).take(columns, axis=1)
    return cropped


def _window(rng: np.random.Generator, length: int, available: int) -> NDArray[np.intp]:
    """``length`` consecutive indices into ``available`` ones, mirrored at both ends if they do not suffice."""
    if length <= available:
        start = int(rng.integers(available - length + 1))
        return np.arange(start, start + length)
    period = 2 * available
    positions = (np.arange(length) + int(rng.integers(period))) % period
    return np.where(positions < available, positions, period - 1 - positions)


@lru_cache(maxsize=len(PHOTOS))
def _photo(index: int) -> NDArray[np.uint8]:
    name = PHOTOS[index % len(PHOTOS)]
    # Found without being imported: skimage.data would check hashes, and download what fails the check.
    spec = importlib.util.find_spec("skimage")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            f"the photographs come from scikit-image, which is not installed; {with_extra('bench')}", name="skimage"
        )
    path = Path(spec.submodule_search_locations[0]) / "data" / name
    if not path.exists():
        raise FileNotFoundError(f"scikit-image should hold the photograph {path}, but does not; reinstall scikit-image")
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def _write_image(folder: Path, photo_set: PhotoSet, index: int) -> int:
    path = folder / photo_set.path_of(index)
    make_photo(photo_set, index).save(path, "JPEG", quality=photo_set.quality)
    return path.stat().st_size


def _complete(path: Path, wanted: PhotoSet) -> PhotoFolder | None:
    try:
        with open_file(path / MANIFEST) as file:
            manifest = json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    total_bytes = manifest.pop("total_bytes", 0)
    if manifest != {"maker": _MAKER, **asdict(wanted)}:
        return None
    on_disk = sum(os.stat(file).st_size for folder in path.glob("class_*") for file in files_below(folder))
    if on_disk != total_bytes:
        raise FileExistsError(
            f"{path} must hold {total_bytes} bytes of images according to its {MANIFEST}, but holds {on_disk}; "
            "images were changed or deleted: delete the folder"
        )
    return PhotoFolder(path, wanted.count, total_bytes, written=False)


def _describe(path: Path) -> str:
    try:
        with open_file(path / MANIFEST) as file:
            manifest = json.load(file)
    except FileNotFoundError:
        return f"no {MANIFEST}"
    return ", ".join(f"{name} {value}" for name, value in manifest.items())


def main(args: argparse.Namespace) -> int:
    """Run ``fastload bench photos``."""
    classes = min(PhotoSet().classes, args.count) if args.classes is None else args.classes
    sizes = {name: getattr(args, name) for name in ("count", "seed", "quality", "edge_px")}
    try:
        folder = write_photos(args.dir, PhotoSet(classes=classes, **sizes))
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from error
    verb = "wrote" if folder.written else "kept"
    mean_kb = folder.total_bytes / folder.count / 1000
    console().print(f"{verb} {folder.count} photographs, {mean_kb:.0f} kB each, in {folder.path}")
    return 0
