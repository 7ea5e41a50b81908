"""Random pipelines and loaders: batches, errors and generator states equal torch's."""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision.transforms as v1
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from photos import PIPELINES
from property.test_any_pipeline import pipelines, pipelines_on_tensors, programs
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from fastload import FastLoader

from .loaders import write_folders
from .outcome import Outcome, Setting

TITLE = "random pipelines over real loaders"
COUNT, EACH, OUTSIDE, PROGRAM = 1_000, 1, False, 25
LIMIT_S = 90.0


class Grayish(v1.Grayscale):
    """A subclass, which is not supported natively."""


def _numpy_noise(image: Any) -> Any:
    """Draw from Python's and NumPy's generators."""
    return image if random.random() < np.random.rand() else image.rotate(90)


# Transforms that do not run natively, or only in part; each is put in front of a pipeline.
OTHERS: tuple[Callable[[], Any], ...] = (
    lambda: Grayish(3),
    lambda: v1.RandomRotation(20),
    lambda: v2.RandomPerspective(),
    lambda: v1.GaussianBlur(3),
    lambda: v2.AugMix(),
    lambda: v1.Lambda(_numpy_noise),
)
SAMPLERS: dict[str, Callable[[int], dict[str, Any]]] = {
    "none": lambda n: {},
    "shuffle": lambda n: {"shuffle": True},
    "replacement": lambda n: {"sampler": RandomSampler(range(n), replacement=True, num_samples=n + 3)},
    "own generator": lambda n: {"sampler": RandomSampler(range(n), generator=torch.Generator().manual_seed(8))},
    "subset": lambda n: {"sampler": SubsetRandomSampler(range(0, n, 2))},
    "weighted": lambda n: {"sampler": WeightedRandomSampler(torch.arange(1, n + 1).float(), n)},
    "distributed": lambda n: {"sampler": DistributedSampler(range(n), 2, 1, seed=3)},
    "out of range": lambda n: {"sampler": [0, 1, n + 4, 2, 3]},
}


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a pipeline, a folder and a loader's arguments."""
    pipeline = draw(
        st.one_of(pipelines(), pipelines_on_tensors(), programs(), st.sampled_from(list(PIPELINES.values())))
    )
    pipeline = pipeline() if pipeline in PIPELINES.values() else pipeline
    if draw(st.integers(0, 3)) == 0:
        pipeline = type(pipeline)([draw(st.sampled_from(OTHERS))(), *pipeline.transforms])
    workers = draw(st.integers(1, 4))
    return {
        "pipeline": pipeline,
        "folder": draw(st.sampled_from(["clean", "mixed", "damaged"])),
        "subset": draw(st.integers(0, 3)) == 0,
        "sampler": draw(st.sampled_from([*SAMPLERS, "shuffle", "shuffle"])),
        "batch sampler": draw(st.integers(0, 5)) == 0,
        "generator": draw(st.booleans()),
        "breaks at": draw(st.sampled_from([None, None, 1, 2, 3])),
        "index": draw(st.integers(0, 7)) == 0,
        "arguments": {
            "batch_size": draw(st.integers(1, 7)),
            "drop_last": draw(st.booleans()),
            "num_workers": workers,
            "persistent_workers": draw(st.booleans()),
            "prefetch_factor": draw(st.sampled_from([None, 1, 2, 5])),
        },
    }


def drawn(number: int) -> dict[str, Any]:
    """Generate case ``number``."""
    found: list[dict[str, Any]] = []

    @seed(number)
    @settings(max_examples=3, database=None, phases=[Phase.generate], deadline=None, suppress_health_check=HealthCheck)
    @given(cases())
    def collect(case: dict[str, Any]) -> None:
        found.append(case)

    collect()
    return found[-1]  # Hypothesis starts with a trivial one


@cache
def folders(scratch: Path) -> dict[str, Path]:
    """Write the images, once per program."""
    return write_folders(Path(tempfile.mkdtemp(dir=scratch)), 17)


def trial(number: int, setting: Setting) -> Outcome:
    """Compare up to three epochs of both loaders."""
    case = drawn(1_000_003 * setting.seed + number)
    outcome = Outcome()
    root = folders(setting.scratch)[case["folder"]]
    own: dict[str, Any] = {"device": "cpu"}
    if case["index"]:  # torch lacks this mode, so compare with our torch engine
        ours = _epochs(case, root, FastLoader, {**own, "randomness": "sample"})
        theirs = _epochs(case, root, FastLoader, {**own, "randomness": "sample", "engine": "torch"})
    else:
        ours = _epochs(case, root, _native_if_it_can_be, own)
        theirs = _epochs(case, root, DataLoader, {})
    outcome.counts[ours.pop()] += 1
    theirs.pop()
    for at, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if not _same(a, b):
            outcome.failures.append(f"event {at} of {case}: {_shown(a)} instead of {_shown(b)}")
            break
    outcome.counts["errors, the same"] += sum(isinstance(event, Exception) for event in ours)
    return outcome


def _epochs(case: dict[str, Any], root: Path, kind: Any, own: dict[str, Any]) -> list[Any]:
    """Collect batches, errors, and generator states after each epoch; last, the engine's name."""
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    dataset: Any = ImageFolder(root, case["pipeline"])
    dataset = Subset(dataset, list(range(len(dataset) - 1, 1, -1))) if case["subset"] else dataset
    arguments = {**case["arguments"], **SAMPLERS[case["sampler"]](len(dataset))}
    if case["batch sampler"] and "sampler" in arguments:
        taken = arguments.pop("sampler"), arguments.pop("batch_size"), arguments.pop("drop_last")
        arguments["batch_sampler"] = BatchSampler(*taken)
    generator = torch.Generator().manual_seed(5) if case["generator"] else None
    loader = kind(dataset, **arguments, generator=generator, **own)
    events: list[Any] = []
    for epoch in range(3):
        batches, number = iter(loader), 0
        while case["breaks at"] is None or epoch == 2 or number < case["breaks at"]:
            number += 1
            try:
                events.append(next(batches))
            except StopIteration:
                break
            except Exception as error:
                events.append(error.with_traceback(None))
        del batches
        events.append(torch.get_rng_state())
        events.append(None if generator is None else generator.get_state())
        events.append([random.getstate(), np.random.get_state()[1].tolist()])
    engine = loader.plan.engine if isinstance(loader, FastLoader) else "torch"
    if isinstance(loader, FastLoader):
        loader.close()
    return [*events, engine]


def _native_if_it_can_be(dataset: Any, **arguments: Any) -> FastLoader[Any]:
    """Use the native engine where possible, even if few samples are JPEG files."""
    try:
        return FastLoader(dataset, **arguments, engine="native")
    except ValueError:
        return FastLoader(dataset, **arguments)


def _same(a: Any, b: Any) -> bool:
    if isinstance(b, Exception):  # ours also names the sample
        return type(a) is type(b) and _last_line(b) in re.sub(r" at 0x\w+", "", str(a))
    if isinstance(b, torch.Tensor):
        if not isinstance(a, torch.Tensor) or (a.dtype, a.shape, a.stride()) != (b.dtype, b.shape, b.stride()):
            return False
        return torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))
    if isinstance(b, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)


def _last_line(error: Exception) -> str:
    """Message of the worker's error, without its location and object addresses."""
    return re.sub(r" at 0x\w+", "", (str(error).strip().splitlines() or [""])[-1])


def _shown(event: Any) -> str:
    if isinstance(event, list) and all(isinstance(part, torch.Tensor) for part in event):
        return f"a batch of {[(tuple(part.shape), part.dtype) for part in event]}"
    return repr(event)[:300]
