"""Plant twelve bottlenecks and compare the verdicts: ``python -m benchmarks verdicts``.

Each plant is a training loop with one bottleneck: samples that come from a slow store, large JPEG files, on threads and
on the GPU, CMYK files among others, a tokenizer in plain Python, large samples to stack, copies from pageable memory,
float32 across the link, a large model, a loop that sleeps, prints or asks the GPU for numbers in every step. To show
that it is, each loop is also run *relieved*: the same in all else, with that one thing made light. A plant whose
relieved loop is no faster would prove nothing, so that is reported as well.

Without a CUDA device those that need one are left out. Without ``nvidia-ml-py`` the loop's own code is not told from
the model, so the verdict on a loop that leaves the GPU idle is the one on any step that takes long.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch.utils.data import Dataset

from benchmarks import _slowstore
from benchmarks._checkout import served
from fastload import FastLoader
from fastload._arguments import UsageError, check_names
from fastload._machine import usable_cpus
from fastload.bench._data import ENDLESS, EndlessDraws
from fastload.measurement.console import console
from fastload.measurement.record import environment, save
from fastload.stats.diagnosis import Report
from fastload.stats.verdict import Bottleneck

SIDE: Final = 128
LARGE_SIDE: Final = 2048
RELIEVED_MIN: Final = 1.1  # least speed-up of the relieved loop with which the plant counts as the bottleneck
PAIRS: Final = 3  # runs of each loop with its plant and without; the verdict is that of the first one


class Endless(Dataset[Any]):
    """A dataset whose epochs do not end while a loop is measured."""

    def __len__(self) -> int:
        return 1_000_000


@contextlib.contextmanager
def slow_store(object_bytes: int, bytes_per_s: float) -> Iterator[_slowstore.Client]:
    """A store in a process of its own, for as long as the context lasts."""
    with tempfile.TemporaryDirectory(prefix="fastload-store-") as folder:
        path = str(Path(folder) / "socket")
        with served(_slowstore.__file__, path, str(object_bytes), str(bytes_per_s)):
            yield _slowstore.Client(path, object_bytes)


class Stored(Endless):
    """Images as raw bytes in a store."""

    def __init__(self, store: _slowstore.Client) -> None:
        self._store = store

    def __getitem__(self, index: int) -> Any:
        pixels = torch.frombuffer(bytearray(self._store.read(index)), dtype=torch.uint8)
        return pixels.view(3, SIDE, SIDE), index % 10


def picture(side: int, mode: str = "RGB", *, smooth: bool = False) -> bytes:
    """A picture with some detail, or smooth, as a JPEG file."""
    from PIL import Image

    generator = np.random.default_rng(0)
    cells, noise = (2, 0) if smooth else (side // 16, 16)
    coarse = generator.integers(0, 256, (cells, cells, 3), dtype=np.uint8)
    base = np.asarray(Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC), dtype=np.int16)
    noisy = np.clip(base + generator.integers(-noise, noise + 1, base.shape), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(noisy).convert(mode).save(file, "jpeg", quality=90)
    return file.getvalue()


class Files(Endless):
    """JPEG files in memory, decoded and resized as most people do it."""

    def __init__(self, side: int) -> None:
        self._file = picture(side)

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        with Image.open(io.BytesIO(self._file)) as image:
            small = image.convert("RGB").resize((SIDE, SIDE))
        return torch.from_numpy(np.array(small)).permute(2, 0, 1), index % 10


class Texts(Endless):
    """Sentences, split greedily into the longest known pieces, in plain Python."""

    def __init__(self, words: int) -> None:
        generator = np.random.default_rng(0)
        letters = np.array(list("etaoinshrdlu"))
        sizes = generator.integers(2, 11, words)
        self._text = " ".join("".join(generator.choice(letters, size)) for size in sizes)
        pairs = {a + b for a in letters for b in letters}
        self._known = {piece: number for number, piece in enumerate(sorted(pairs | set(letters) | {" "}))}

    def __getitem__(self, index: int) -> Any:
        text, known, tokens, at = self._text, self._known, [], 0
        while at < len(text):
            for size in (3, 2, 1):
                if (token := known.get(text[at : at + size])) is not None:
                    tokens.append(token)
                    at += size
                    break
        return torch.tensor(tokens[:512]), index % 10


@contextlib.contextmanager
def folder_of(files: Iterable[bytes], *steps: Any) -> Iterator[Dataset[Any]]:
    """JPEG files in a folder."""
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    with tempfile.TemporaryDirectory(prefix="fastload-verdicts-") as folder:
        (there := Path(folder, "of-one-class")).mkdir()
        for number, content in enumerate(files):
            (there / f"{number}.jpeg").write_bytes(content)
        yield ImageFolder(folder, transforms.Compose(steps))


class Ready(Endless):
    """Tensors that only have to be stacked."""

    def __init__(self, sample: torch.Tensor) -> None:
        self._sample = sample

    def __getitem__(self, index: int) -> Any:
        return self._sample, index % 10


class Batches(Endless):
    """Whole batches that lie in memory, pinned or not."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __getitem__(self, index: int) -> Any:
        return self._batch


class Model:
    """A model of ``products`` square matrix products per batch, on the batch's device."""

    def __init__(self, device: torch.device, products: int, side: int) -> None:
        self._weights = torch.randn(side, side, device=device) / side**0.5
        self._products = products

    def __call__(self, batch: Any) -> torch.Tensor:
        """Run one step and return its result, on the device."""
        images = batch if isinstance(batch, torch.Tensor) else batch[0]
        flat = images.reshape(-1)[: self._weights.numel()]
        activation: torch.Tensor = self._weights + flat.to(self._weights.dtype).sum() * 0
        for _ in range(self._products):
            activation = activation @ self._weights
        return activation


def sleep(result: torch.Tensor, took_s: float) -> None:
    """Leave the GPU idle for at least a third of the time, whatever its speed."""
    time.sleep(max(0.1, took_s / 2))


def ask_for_numbers(result: torch.Tensor, took_s: float) -> None:
    """Log many figures one by one, as some training loops do."""
    for _ in range(32):
        for row in result[:64]:
            row.sum().item()


def print_much(result: torch.Tensor, took_s: float) -> None:
    """Print large tensors, as a loop with forgotten debug output does."""
    with open(os.devnull, "w") as nowhere:
        for _ in range(200):
            nowhere.write(repr(result))


class AndThen:
    """A step after which the loop waits for the result and works on the host."""

    def __init__(self, model: Model, then: Callable[[torch.Tensor, float], None]) -> None:
        self._model = model
        self._then = then

    def __call__(self, batch: Any) -> None:
        """One step."""
        began = time.monotonic()
        result = self._model(batch)
        if result.is_cuda:
            torch.cuda.synchronize()
        self._then(result, time.monotonic() - began)


Opened: TypeAlias = "contextlib.AbstractContextManager[tuple[FastLoader[Any], Callable[[Any], Any]]]"


@dataclass(frozen=True)
class Plant:
    """One bottleneck."""

    expected: Bottleneck  # bottleneck that the verdict has to name
    planted: Callable[[], Opened]  # function that opens the loop with the bottleneck: a loader and a step
    relieved: Callable[[], Opened]  # function that opens the loop without it
    needs_gpu: bool = False  # whether there is no such bottleneck without a GPU
    evidence: str = ""  # words that the report has to contain, where another limit has the same name


def plants(device: torch.device, *, quick: bool) -> dict[str, Plant]:
    """All of them, for ``device``."""
    from torchvision import transforms

    workers = 2 if quick else max(2, min(8, usable_cpus() - 1))
    gpu = device.type == "cuda"
    batch_size = 16 if quick else 64
    light_step, heavy_step = (0, 64), (300 if quick else 600, 2048) if gpu else (12, 1024)
    some_step = (60, 2048) if gpu else light_step
    if not gpu:
        model, loops_own = Bottleneck.STEP, Bottleneck.STEP
    else:
        model, loops_own = Bottleneck.GPU, Bottleneck.LOOP if tells_utilization() else Bottleneck.STEP

    @contextlib.contextmanager
    def loop(
        dataset: Dataset[Any],
        step: tuple[int, int] = light_step,
        then: Callable[[torch.Tensor, float], None] | None = None,
        **arguments: Any,
    ) -> Iterator[tuple[FastLoader[Any], Callable[[Any], Any]]]:
        given: dict[str, Any] = {"batch_size": batch_size, "num_workers": workers, "device": device, **arguments}
        with FastLoader(dataset, **given) as loader:
            made = Model(device, *step)
            yield loader, made if then is None else AndThen(made, then)

    @contextlib.contextmanager
    def stored(bytes_per_s: float) -> Iterator[tuple[FastLoader[Any], Callable[[Any], Any]]]:
        with slow_store(3 * SIDE * SIDE, bytes_per_s) as store, loop(Stored(store)) as opened:
            yield opened

    @contextlib.contextmanager
    def natively(
        *steps: Any, tenth: bytes | None = None, others: bytes = picture(32), **arguments: Any
    ) -> Iterator[tuple[FastLoader[Any], Callable[[Any], Any]]]:
        given: dict[str, Any] = {"batch_size": 48, "num_workers": 2, "device": "cpu", "engine": "native", **arguments}
        with (
            folder_of([tenth or others, *[others] * 9] * 6, *steps) as dataset,
            FastLoader(dataset, sampler=EndlessDraws(range(60), ENDLESS), **given) as loader,
        ):
            yield loader, Model(torch.device(given["device"]), *light_step)

    def in_memory(dtype: torch.dtype, *, pinned: bool) -> Dataset[Any]:
        batch = torch.zeros(128, 3, 224, 224, dtype=dtype)  # so large, because a quick link hides a small one
        return Batches(batch.pin_memory() if pinned else batch)

    def on_gpu(side: int) -> Opened:
        # Smooth pictures: the threads have few bytes to read, the GPU has many pixels to decode.
        given: dict[str, Any] = {"num_workers": max(2, usable_cpus() - 1), "device": device, "decode": "gpu"}
        return natively(small, transforms.PILToTensor(), others=picture(side, smooth=True), **given)

    small, resize = transforms.Resize((32, 32)), transforms.Resize((320, 320))
    light = Ready(torch.zeros(3, SIDE, SIDE, dtype=torch.uint8))
    whole: dict[str, Any] = {"batch_size": None, "num_workers": 0}
    return {
        "slow storage": Plant(Bottleneck.STORAGE, lambda: stored(8e6), lambda: stored(1e10)),
        "heavy decode": Plant(Bottleneck.DECODE, lambda: loop(Files(768 if quick else 1536)), lambda: loop(light)),
        "heavy decode on the GPU": Plant(
            Bottleneck.DECODE,
            lambda: on_gpu(LARGE_SIDE),
            lambda: on_gpu(32),
            needs_gpu=True,
            evidence="while the GPU decoded",
        ),
        "Python-heavy transform": Plant(Bottleneck.PYTHON, lambda: loop(Texts(2000)), lambda: loop(Texts(100))),
        "a tenth CMYK files": Plant(
            Bottleneck.PYTHON,
            lambda: natively(resize, transforms.PILToTensor(), tenth=picture(768, "CMYK")),
            lambda: natively(resize, transforms.PILToTensor(), tenth=picture(768)),
        ),
        "large collate": Plant(
            Bottleneck.COLLATE,
            lambda: loop(Ready(torch.zeros(3, 512, 512)), num_workers=2),
            lambda: loop(Ready(torch.zeros(3, 256, 256, dtype=torch.uint8)), num_workers=2),
        ),
        "pageable copy": Plant(
            Bottleneck.PIN,
            lambda: loop(in_memory(torch.float32, pinned=False), max_pinned_bytes=0, **whole),
            lambda: loop(in_memory(torch.float32, pinned=True), **whole),
            needs_gpu=True,
        ),
        "float32 across a thin link": Plant(
            Bottleneck.LINK,
            lambda: loop(in_memory(torch.float32, pinned=True), **whole),
            lambda: loop(in_memory(torch.uint8, pinned=True), **whole),
            needs_gpu=True,
        ),
        "heavy model": Plant(model, lambda: loop(light, heavy_step), lambda: loop(light)),
        "sleep in every step": Plant(loops_own, lambda: loop(light, some_step, sleep), lambda: loop(light, some_step)),
        "prints in every step": Plant(loops_own, lambda: loop(light, then=print_much), lambda: loop(light)),
        ".item() in every step": Plant(
            loops_own, lambda: loop(light, then=ask_for_numbers), lambda: loop(light), needs_gpu=True
        ),
    }


def tells_utilization() -> bool:
    """Whether a report can tell how busy the GPU is."""
    return importlib.util.find_spec("pynvml") is not None


def run(loader: FastLoader[Any], step: Callable[[Any], None], seconds: float) -> Report:
    """Train for a while; the report is of the time after the warm-up."""
    from fastload.stats.diagnosis import report

    begin, before = time.monotonic(), None
    for batch in loader:
        step(batch)
        now = time.monotonic()
        if before is None and now - begin > seconds / 4:
            before = loader.stats()
        if now - begin > seconds and before is not None and loader.stats().since(before).batches >= 8:
            break
    if before is None:
        raise RuntimeError(f"the loader ended after {time.monotonic() - begin:.1f} s")
    if loader.plan.device.type == "cuda":
        torch.cuda.synchronize()
    return report(loader.stats().since(before))


def try_plant(plant: Plant, seconds: float) -> dict[str, Any]:
    """Run a plant and its relief in pairs, and report the first run.

    What relief is worth is the median of the pairs: a machine may be busy.
    """
    pairs: list[tuple[Report, Report]] = []
    while len(pairs) < PAIRS:
        with plant.planted() as (loader, step):
            planted = run(loader, step, seconds / 2 if pairs else seconds)
        with plant.relieved() as (loader, step):
            pairs.append((planted, run(loader, step, seconds / 2)))
    speedup = statistics.median(after.stats.images_per_s / before.stats.images_per_s for before, after in pairs)
    planted, relieved = pairs[0]
    text = str(planted)
    named = planted.verdict.bottleneck
    return {
        "expected": plant.expected.value,
        "verdict": None if named is None else named.value,
        "named": named is plant.expected and plant.evidence in text,
        "is_bottleneck": speedup >= RELIEVED_MIN,
        "report": text.splitlines(),
        "shares": {which.value: share for which, share in planted.shares.items()},
        "stall": planted.stats.stall,
        "device_stall": planted.stats.device_stall,
        "images_per_s": planted.stats.images_per_s,
        "relieved_images_per_s": relieved.stats.images_per_s,
        "speedup_when_relieved": speedup,
    }


def main(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks verdicts``; 1 if a verdict names another bottleneck than was planted."""
    from fastload.options import resolve_device

    try:
        device = resolve_device(args.device)
    except RuntimeError as error:
        raise UsageError(str(error)) from error
    quick_s = 2.0 if device.type == "cpu" else 3.0  # a GPU's driver is asked once a second
    seconds = args.seconds or (quick_s if args.quick else 8.0)
    chosen = plants(device, quick=args.quick)
    check_names("--plant", args.plant or (), chosen)
    results = {}
    for name in args.plant or chosen:
        plant = chosen[name]
        if plant.needs_gpu and device.type != "cuda":
            console().print(f"{name}: left out, it needs a CUDA device")
            continue
        results[name] = result = try_plant(plant, seconds)
        verdict = f"{result['verdict']}-bound, {'as planted' if result['named'] else result['expected'] + ' expected'}"
        relieved = f"without it {result['speedup_when_relieved']:.1f} times as fast"
        console().print(f"{name}: {verdict}; {relieved}; {result['report'][0]}")
    right = sum(result["named"] for result in results.values())
    console().print(f"{right} of {len(results)} named")
    record = {"environment": environment(), "device": device.type, "named": right, "of": len(results)}
    save(args.json, {**record, "plants": results})
    return 0 if right == len(results) and all(result["is_bottleneck"] for result in results.values()) else 1
