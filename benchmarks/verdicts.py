"""Plant twelve bottlenecks and judge the verdicts: ``python -m benchmarks verdicts``.

Each plant is a training loop with one bottleneck, whose first steps take longer, as if they compiled. Its loader is
asked for a report after 30, 60 and 300 steps; some plants also have epochs of 8, 30 and 300 steps. A verdict is *right*
if it names what is planted, *too early* if it names nothing, and else *wrong*. To show that there is such a bottleneck,
most loops are also run *relieved*: the same in all else, with that one thing made light. A plant whose relieved loop is
no faster would prove nothing, so that is reported as well.

``--minutes M`` trains for M minutes with a bottleneck of decoding, of Python and, on a GPU, of the model each, and asks
for a report at the end of every epoch: none may be wrong, and the last one has to be right.

Without a CUDA device those that need one are left out. Without ``nvidia-ml-py`` the loop's own code is not told from
the model, so the verdict on a loop that leaves the GPU idle is the one on any step that takes long.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import itertools
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import Dataset

from benchmarks import _gpuload, _slowstore
from benchmarks._checkout import served
from fastload import FastLoader
from fastload._arguments import UsageError, check_names
from fastload._machine import usable_cpus
from fastload.measurement.console import console
from fastload.measurement.record import environment, save
from fastload.stats.diagnosis import Report
from fastload.stats.verdict import Bottleneck

SIDE: Final = 128
RELIEVED_MIN: Final = 1.1  # least speed-up of the relieved loop with which the plant counts as the bottleneck
STEPS: Final = (30, 60, 300)  # after which a report is asked for
QUICK_STEPS: Final = (30, 60)
EPOCHS: Final = (8, 30, 300)  # lengths of epochs
LONG: Final = ("GPU", "decode", "Python")  # plants that --minutes trains with
LONG_EPOCH: Final = 100  # steps of their epochs
WARM_STEPS: Final = 5
WARM_S: Final = 0.2  # by which each of the first steps is longer


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


def picture(side: int) -> bytes:
    """A picture with some detail as a JPEG file."""
    from PIL import Image

    generator = np.random.default_rng(0)
    coarse = generator.integers(0, 256, (side // 16, side // 16, 3), dtype=np.uint8)
    base = np.asarray(Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC), dtype=np.int16)
    noisy = np.clip(base + generator.integers(-16, 17, base.shape), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(noisy).save(file, "jpeg", quality=90)
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


class SlowAtFirst(Ready):
    """Samples that take long to read until their first epoch is over."""

    def __init__(self, sample: torch.Tensor, seconds: float) -> None:
        super().__init__(sample)
        self._seconds = seconds
        self.is_first: torch.Tensor = torch.ones(1).share_memory_()  # type: ignore[no-untyped-call]

    def __getitem__(self, index: int) -> Any:
        if self.is_first:
            time.sleep(self._seconds)
        return super().__getitem__(index)


def sleep(result: torch.Tensor) -> None:
    """Leave the GPU idle for most of the time."""
    time.sleep(0.02)


def ask_for_numbers(result: torch.Tensor) -> None:
    """Log many figures one by one, as some training loops do."""
    for _ in range(8):
        for row in result[:64]:
            row.sum().item()


def launch_much(result: torch.Tensor) -> None:
    """Launch many small kernels, each of them after much Python."""
    row = result[:1, :64]
    for _ in range(300):
        row = row.view(8, 8).t().reshape(1, 64) + 0.0
        sum(range(300))


@contextlib.contextmanager
def computing_thread() -> Iterator[None]:
    """A thread beside the loop that computes in Python."""
    stop = threading.Event()

    def compute() -> None:
        while not stop.is_set():
            sum(range(1000))

    thread = threading.Thread(target=compute, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def other_program() -> contextlib.AbstractContextManager[Any]:
    """Another program that keeps the GPU busy."""
    return served(_gpuload.__file__, "cuda")


@dataclass(frozen=True)
class Plant:
    """One bottleneck.

    Attributes:
        expected: Bottlenecks of which the verdict has to name one.
        dataset: Opens the dataset.
        relieved: Opens one without the bottleneck, or is the step without it; ``None`` if there is no such loop.
        model: Number of matrix products in a step, and their side.
        then: What the loop does after each step, once the GPU has finished it.
        between: What the program does between two epochs.
        beside: What else runs.
        arguments: The loader's.
        epoch: Steps of an epoch, if there are several.
        epochs: Lengths of epochs of which each is tried as well.
        needs_gpu: Whether there is no such bottleneck without a GPU.
        evidence: Words that a right report has to contain after all steps.
    """

    expected: tuple[Bottleneck, ...]
    dataset: Callable[[], contextlib.AbstractContextManager[Dataset[Any]]]
    relieved: Callable[[], contextlib.AbstractContextManager[Dataset[Any]]] | None = None
    model: tuple[int, int] = (0, 64)
    then: Callable[[torch.Tensor], None] | None = None
    between: Callable[[Dataset[Any]], None] = lambda dataset: None
    beside: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    arguments: Mapping[str, Any] = field(default_factory=dict)
    epoch: int | None = None
    epochs: tuple[int, ...] = ()
    needs_gpu: bool = False
    evidence: str = ""


def plants(device: torch.device, *, quick: bool) -> dict[str, Plant]:
    """All of them, for ``device``."""
    gpu = device.type == "cuda"
    heavy, some = ((60, 2048), (4, 2048)) if gpu else ((16, 512), (1, 512))
    model, loops_own = Bottleneck.STEP, Bottleneck.STEP
    if gpu:
        model, loops_own = Bottleneck.GPU, Bottleneck.LOOP if tells_utilization() else Bottleneck.STEP
    shared = Bottleneck.SHARED if tells_utilization() else Bottleneck.STEP

    def given(dataset: Dataset[Any]) -> Callable[[], contextlib.AbstractContextManager[Dataset[Any]]]:
        return lambda: contextlib.nullcontext(dataset)

    @contextlib.contextmanager
    def stored(bytes_per_s: float) -> Iterator[Dataset[Any]]:
        with slow_store(3 * SIDE * SIDE, bytes_per_s) as store:
            yield Stored(store)

    def in_memory(dtype: torch.dtype, *, pinned: bool) -> contextlib.AbstractContextManager[Dataset[Any]]:
        batch = torch.zeros(128, 3, 224, 224, dtype=dtype)  # so large, because a quick link hides a small one
        return contextlib.nullcontext(Batches(batch.pin_memory() if pinned else batch))

    def evaluate(dataset: Dataset[Any]) -> None:
        result = torch.ones(2048, 2048, device=device)
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            for _ in range(16 if gpu else 1):
                result = result @ result * 1e-3
            if gpu:
                torch.cuda.synchronize()

    def end_first(dataset: Any) -> None:
        dataset.is_first.zero_()

    light = Ready(torch.zeros(3, SIDE, SIDE, dtype=torch.uint8))
    slow_at_first = SlowAtFirst(torch.zeros(3, SIDE, SIDE, dtype=torch.uint8), 0.02)
    whole: dict[str, Any] = {"batch_size": None, "num_workers": 0}
    lengths = EPOCHS[:2] if quick else EPOCHS
    return {
        "GPU": Plant((model,), given(light), model=heavy, epochs=lengths),
        "decode": Plant((Bottleneck.DECODE,), lambda: given(Files(768))(), given(light), epochs=lengths),
        "Python": Plant((Bottleneck.PYTHON,), given(Texts(2000)), given(Texts(100)), epochs=lengths),
        "disk": Plant((Bottleneck.STORAGE,), lambda: stored(4e7), lambda: stored(1e10)),
        "pageable": Plant(
            (Bottleneck.PIN,),
            lambda: in_memory(torch.float32, pinned=False),
            lambda: in_memory(torch.float32, pinned=True),
            arguments={"max_pinned_bytes": 0, **whole},
            needs_gpu=True,
        ),
        "link": Plant(
            (Bottleneck.LINK,),
            lambda: in_memory(torch.float32, pinned=True),
            lambda: in_memory(torch.uint8, pinned=True),
            arguments=whole,
            needs_gpu=True,
        ),
        "synchronizing loop": Plant(
            (loops_own,), given(light), model=some, then=ask_for_numbers if gpu else sleep, epochs=lengths
        ),
        "GIL-bound main thread": Plant((Bottleneck.GIL, loops_own), given(light), model=some, beside=computing_thread),
        "tiny batches": Plant(
            (loops_own,), given(Ready(torch.zeros(4))), then=launch_much, arguments={"batch_size": 2, "num_workers": 2}
        ),
        "first epoch beside later ones": Plant(
            (model,), given(slow_at_first), model=heavy, between=end_first, epoch=20, evidence="first epoch: "
        ),
        "evaluation between epochs": Plant((loops_own,), given(light), then=sleep, between=evaluate, epoch=30),
        "another program on the GPU": Plant((shared,), given(light), model=heavy, beside=other_program, needs_gpu=True),
    }


def tells_utilization() -> bool:
    """Whether a report can tell how busy the GPU is."""
    return importlib.util.find_spec("pynvml") is not None


class Step:
    """One plant's step: its model, and what the loop does then."""

    def __init__(self, plant: Plant, device: torch.device) -> None:
        self._model = Model(device, *plant.model)
        self._then = plant.then
        self.warm = WARM_STEPS  # steps that are still to take longer

    def __call__(self, batch: Any) -> None:
        """One step."""
        if self.warm:
            self.warm -= 1
            time.sleep(WARM_S)
        result = self._model(batch)
        if self._then is not None:
            if result.is_cuda:
                torch.cuda.synchronize()
            self._then(result)


def reports(
    plant: Plant, dataset: Dataset[Any], step: Step, steps: Iterable[int], epoch: int, **arguments: Any
) -> Iterator[tuple[int, Report]]:
    """Train in epochs; yield the loader's report after each number in ``steps``."""
    arguments.update(plant.arguments)
    arguments["persistent_workers"] = arguments["num_workers"] > 0
    left = iter(steps)
    step.warm, done, wanted = WARM_STEPS, 0, next(left, None)
    with FastLoader(dataset, sampler=range(epoch * (arguments["batch_size"] or 1)), **arguments) as loader:
        while wanted is not None:
            for batch in loader:
                step(batch)
                done += 1
                if done == wanted:
                    yield wanted, loader.report()
                    wanted = next(left, None)
                    if wanted is None:
                        break
            plant.between(dataset)


def judge(plant: Plant, steps: int, epoch: int, report: Report, *, is_last: bool) -> dict[str, Any]:
    """A row of the record."""
    named, text = report.verdict.bottleneck, str(report)
    right = named in plant.expected and (not is_last or plant.evidence in text)
    return {
        "steps": steps,
        "epoch": epoch,
        "expected": [each.value for each in plant.expected],
        "said": None if named is None else named.value,
        "sentence": str(report.verdict),
        "judged": "too early" if named is None else "right" if right else "wrong",
        "report": text.splitlines()[1:],
        "images_per_s": report.stats.images_per_s,
        "stall": report.stats.stall,
        "device_stall": report.stats.device_stall,
        "gpu_utilization": report.stats.gpu_utilization,
    }


def arguments_for(device: torch.device, *, quick: bool) -> dict[str, Any]:
    """Arguments of the loaders."""
    return {"batch_size": 16, "num_workers": 2 if quick else max(2, min(8, usable_cpus() - 1)), "device": device}


def train_for(seconds: float, plant: Plant, device: torch.device, *, quick: bool) -> dict[str, Any]:
    """Train for so long, but one epoch at least; ask for a report after each."""
    epoch, began = QUICK_STEPS[0] if quick else LONG_EPOCH, time.monotonic()
    rows: list[dict[str, Any]] = []
    asked = itertools.takewhile(lambda _: not rows or time.monotonic() - began < seconds, itertools.count(epoch, epoch))
    with plant.beside(), plant.dataset() as dataset:
        step = Step(plant, device)
        for number, report in reports(plant, dataset, step, asked, epoch, **arguments_for(device, quick=quick)):
            row = judge(plant, number, epoch, report, is_last=False)
            rows.append({**row, "after_s": time.monotonic() - began, "load": os.getloadavg()[0]})
    return {"rows": rows, "speedup_when_relieved": None}


def try_plant(plant: Plant, device: torch.device, *, quick: bool) -> dict[str, Any]:
    """Run a plant at all its lengths, and then without the bottleneck."""
    arguments = arguments_for(device, quick=quick)
    steps = QUICK_STEPS if quick else STEPS
    one = plant.epoch or 2 * steps[-1]  # that does not end
    rows, relieved = [], None
    with plant.beside(), plant.dataset() as dataset:
        step = Step(plant, device)
        for epoch in (one, *plant.epochs):
            # An epoch as long as the run is followed by another.
            asked = [number + epoch * (epoch == number and epoch == steps[-1]) // 5 for number in steps]
            for number, report in reports(plant, dataset, step, asked, epoch, **arguments):
                rows.append(judge(plant, number, epoch, report, is_last=number == asked[-1]))
    if plant.relieved is not None:
        with plant.relieved() as dataset:
            for _, report in reports(plant, dataset, step, [STEPS[-1]], 2 * STEPS[-1], **arguments):  # which are quick
                relieved = report.stats.images_per_s
    planted = rows[len(steps) - 1]["images_per_s"]
    speedup = None if relieved is None else relieved / planted
    return {"rows": rows, "speedup_when_relieved": speedup}


def main(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks verdicts``; 1 if a verdict names another bottleneck than was planted."""
    from fastload.options import resolve_device

    try:
        device = resolve_device(args.device)
    except RuntimeError as error:
        raise UsageError(str(error)) from error
    chosen = plants(device, quick=args.quick)
    check_names("--only", args.only or (), chosen)
    wanted = args.only or chosen
    if args.minutes and not args.only:
        wanted = LONG if device.type == "cuda" else LONG[1:]
    results: dict[str, Any] = {}
    record = {"environment": environment(), "device": device.type, "minutes": args.minutes, "plants": results}
    record["complete"] = False
    for name in wanted:
        if chosen[name].needs_gpu and device.type != "cuda":
            console().print(f"{name}: left out, it needs a CUDA device")
            continue
        began = time.monotonic()
        results[name] = result = (
            train_for(60 * args.minutes, chosen[name], device, quick=args.quick)
            if args.minutes
            else try_plant(chosen[name], device, quick=args.quick)
        )
        result["seconds"] = time.monotonic() - began
        for row in result["rows"]:
            console().print(
                f"{name}, {row['steps']} steps, epochs of {row['epoch']}: {row['judged']}; {row['sentence']}"
            )
        if (speedup := result["speedup_when_relieved"]) is not None:
            console().print(f"{name}: without it {speedup:.1f} times as fast")
        save(args.json, record)  # a run that is cut off loses nothing
    rows = [row["judged"] for result in results.values() for row in result["rows"]]
    counts = {judged: rows.count(judged) for judged in ("right", "too early", "wrong")}
    console().print(", ".join(f"{number} {judged}" for judged, number in counts.items()))
    save(args.json, {**record, "judged": counts, "complete": True})
    speedups = [result["speedup_when_relieved"] for result in results.values()]
    proven = all(speedup is None or speedup >= RELIEVED_MIN for speedup in speedups)
    if args.minutes:
        proven = all(result["rows"][-1]["judged"] == "right" for result in results.values())
    return 0 if not counts["wrong"] and proven else 1
