"""Test that a GPU runs transforms of images as the threads do."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageFilter
from stageable import KINDS, noise
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2.functional import _misc

from fastload import FastLoader, _core
from fastload.device.decode import files as decode
from fastload.device.decode.files import Decoder

pytestmark = pytest.mark.gpu

SIDE, FILES, EPOCHS = 96, 48, 3
BASELINE = [kind for kind in KINDS if not kind.get("progressive")]


class Blur:
    """As in MoCo's code."""

    def __init__(self, sigma: tuple[float, float]) -> None:
        self.sigma = sigma

    def __call__(self, x: Image.Image) -> Image.Image:
        sigma = random.uniform(self.sigma[0], self.sigma[1])
        return x.filter(ImageFilter.GaussianBlur(radius=sigma))


CROP = transforms.RandomResizedCrop(SIDE)
RECIPES: dict[str, list[Any]] = {
    "randaugment": [CROP, transforms.RandomHorizontalFlip(), transforms.RandAugment(fill=(3, 4, 5))],
    "trivialaugment": [CROP, transforms.TrivialAugmentWide(interpolation=InterpolationMode.BILINEAR)],
    "autoaugment": [CROP, v2.AutoAugment(interpolation=InterpolationMode.BICUBIC)],
    "moco": [
        CROP,
        transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
        transforms.RandomGrayscale(p=0.2),
        transforms.RandomSolarize(128, p=0.2),
        transforms.RandomApply([Blur((0.1, 2.0))], p=0.5),
        transforms.RandomHorizontalFlip(),
    ],
    "turns": [
        transforms.Resize((131, 90)),
        transforms.RandomRotation(30, InterpolationMode.BILINEAR),
        transforms.RandomPerspective(0.4, p=0.7),
        transforms.Pad(12, padding_mode="reflect"),
        transforms.RandomAffine(10, (0.1, 0.2), (0.8, 1.3), 5, InterpolationMode.BICUBIC),
        transforms.RandomCrop((SIDE, 77)),
        transforms.RandomVerticalFlip(),
    ],
    "colours": [
        CROP,
        *(v2.RandomApply([v2.ColorJitter(*changes)]) for changes in ((0.9,), (0, 0.9), (0, 0, 0.9), (0, 0, 0, 0.5))),
        v2.RandomAdjustSharpness(3, p=0.5),
        v2.RandomPosterize(3, p=0.3),
        v2.RandomInvert(p=0.3),
        v2.RandomAutocontrast(p=0.5),
        v2.RandomEqualize(p=0.5),
    ],
    "before the crop": [transforms.Resize(150), transforms.ColorJitter(0.5, 0.5), transforms.RandomResizedCrop(SIDE)],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("files")
    (root / "a").mkdir()
    sizes = [(120, 200), (333, 222), (500, 400), (200, 1201), (150, 150)]
    for number in range(FILES):
        image = noise(*sizes[number % len(sizes)], number)
        if number % 11 == 3:
            image = image.convert("L")
        image.save(root / "a" / f"{number:03}.jpg", **BASELINE[number % len(BASELINE)])
    return root


def epochs(root: Path, recipe: str, **options: Any) -> tuple[list[list[torch.Tensor]], FastLoader[Any]]:
    tail = [transforms.ToTensor(), transforms.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.2))]
    dataset = ImageFolder(str(root), transforms.Compose([*RECIPES[recipe], *tail]))
    loader = FastLoader(dataset, batch_size=16, num_workers=3, shuffle=True, engine="native", **options)
    torch.manual_seed(5)
    random.seed(5)
    return [[images.cpu() for images, _ in loader] for _ in range(EPOCHS)], loader


@pytest.mark.parametrize("recipe", RECIPES)
def test_same_bits_as_on_threads(folder: Path, recipe: str) -> None:
    want, _ = epochs(folder, recipe, decode="cpu")
    got, loader = epochs(folder, recipe, decode="gpu")
    for batches, others in zip(got, want, strict=True):
        for batch, other in zip(batches, others, strict=True):
            assert torch.equal(batch, other)
    stats = loader.stats()
    assert stats.images == EPOCHS * FILES
    # All but those of the first epoch, which has no index, what needs Python, and files without room in first batches.
    assert stats.gpu_images >= (EPOCHS - 1) * FILES - stats.python_images - 12


@pytest.mark.parametrize("taps", [(1, 1), (9, 9), (23, 23), (5, 51)])
def test_convolutions_have_the_bits_of_torchvision(taps: tuple[int, int]) -> None:
    """By the kernels that torchvision computes, between other steps."""
    files = [io.BytesIO() for _ in range(FILES)]
    for number, file in enumerate(files):
        noise(150, 200, number).save(file, "JPEG", **BASELINE[number % len(BASELINE)])
    contents = [file.getvalue() for file in files]
    device, (height, width) = torch.device("cuda", 0), (101, 130)
    decoder, pool = Decoder(device, waits=True), _core.Pool(2)
    for sigma in (0.1, 0.5, 2.0):
        how = [taps[1], taps[0]], [sigma, 1.3 * sigma]
        kernel = _misc._get_gaussian_kernel2d(*how, dtype=torch.float32, device=torch.device("cpu"))
        weights = kernel.contiguous().numpy().tobytes()
        plan = _core.DrawPlan()
        plan.add("center_crop", height=height, width=width)
        plan.add("invert")
        plan.add("convolve", height=taps[0], width=taps[1], weights=weights)
        plan.add("flip_horizontal")
        plan.add("convolve", height=taps[0], width=taps[1], weights=weights)
        staged = decoder.files(
            torch.zeros(FILES, height, width, 3, dtype=torch.uint8).pin_memory(), lambda all_: [all_]
        )
        assert staged is not None
        how_drawn: dict[str, Any] = {"plan": plan, "seeds": list(range(FILES)), "staging": staged.staging}
        pool.submit(contents, staged._pixels, **how_drawn).wait()
        pixels = staged.to(device).cpu()
        assert all(staged.is_staged())
        assert staged.failed() == []
        for content, got in zip(contents, pixels, strict=True):
            image = v2.functional.center_crop(Image.open(io.BytesIO(content)), [height, width])
            blurred = v2.functional.gaussian_blur(v2.functional.invert(image), *how)
            again = v2.functional.gaussian_blur(v2.functional.horizontal_flip(blurred), *how)
            assert torch.equal(v2.functional.pil_to_tensor(again).permute(1, 2, 0), got)
    pool.close()


class TwoCrops:
    """As in MoCo's code."""

    def __init__(self, first: Any, second: Any) -> None:
        self.first = first
        self.second = second

    def __call__(self, x: Image.Image) -> list[torch.Tensor]:
        return [self.first(x), self.second(x)]


@pytest.mark.parametrize("second", [SIDE, 40])
def test_views_have_the_bits_of_the_threads(folder: Path, second: int) -> None:
    def view(side: int) -> transforms.Compose:
        crop = [transforms.RandomResizedCrop(side), transforms.RandomHorizontalFlip(), transforms.ColorJitter(0.4)]
        return transforms.Compose([*crop, transforms.ToTensor()])

    dataset, batches = ImageFolder(str(folder), TwoCrops(view(SIDE), view(second))), []
    for where in ("cpu", "gpu"):
        loader: FastLoader[Any] = FastLoader(
            dataset, batch_size=16, num_workers=3, shuffle=True, engine="native", decode=where
        )
        torch.manual_seed(5)
        batches.append([view.cpu() for _ in range(EPOCHS) for views, _ in loader for view in views])
    assert all(torch.equal(a, b) for a, b in zip(*batches, strict=True))
    assert loader.stats().gpu_images >= (EPOCHS - 1) * FILES - 12


def test_views_behind_pixels_that_are_no_whole_words(folder: Path) -> None:
    """Four pixels are written as words, which a GPU does only where those begin."""
    sides, batch_size = (45, 40), 5
    assert batch_size * 3 * sides[0] ** 2 % 4
    views = [transforms.Compose([transforms.RandomResizedCrop(side), transforms.ToTensor()]) for side in sides]
    dataset, made = ImageFolder(str(folder), TwoCrops(*views)), []
    for where in ("cpu", "gpu"):
        loader: FastLoader[Any] = FastLoader(
            dataset, batch_size=batch_size, num_workers=3, shuffle=True, engine="native", decode=where
        )
        torch.manual_seed(5)
        made.append([view.cpu() for _ in range(EPOCHS) for views, _ in loader for view in views])
    assert all(torch.equal(a, b) for a, b in zip(*made, strict=True))
    assert loader.stats().gpu_images >= (EPOCHS - 1) * FILES - 12


def test_threads_decode_when_the_kernel_cannot_be_compiled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_all_but_steps(index: int, file: str) -> Any:
        if file == "steps.cu":
            raise RuntimeError("as if")
        return compiled(index, file)

    compiled = decode._kernels
    want, _ = epochs(folder, "moco", decode="cpu")
    monkeypatch.setattr(decode, "_kernels", compile_all_but_steps)
    with pytest.warns(RuntimeWarning, match="the kernel for transforms cannot be compiled: RuntimeError: as if"):
        got, loader = epochs(folder, "moco", decode="gpu")
    assert all(torch.equal(a, b) for x, y in zip(got, want, strict=True) for a, b in zip(x, y, strict=True))
    assert loader.stats().gpu_images == 0
