"""Measure decoding on the GPU: ``python -m benchmarks gpudecode``.

* ``kernels``: milliseconds of each kernel for a batch of 256, with CUDA events around its launches; beside them what
  torch's profiler saw, with copies and fills. The loader alone, from the second epoch on.
* ``step``: a ResNet-50 step beside GPU decoding over the same step with its data on the GPU already, in turns.
* ``verify``: crops of varied files decoded on the GPU, compared bit for bit (:mod:`benchmarks._varied_crops`).

The loader alone, training and memory beside other libraries are ``python -m benchmarks peers``. Without a GPU all of it
is skipped; with ``--quick``, ``verify`` compares the decode threads with Pillow.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from benchmarks._device_times import profiled_ms, recorded_launches
from benchmarks._peers import prepared
from benchmarks._varied_crops import Asked, Chosen, compare
from benchmarks.arguments import GPU_PARTS
from benchmarks.contenders import ceiling
from benchmarks.contenders._job import Job
from fastload import FastLoader
from fastload._machine import usable_cpus
from fastload.bench._steps import TrainingStep, check_model, fixed_shapes, run_steps
from fastload.bench.arguments import TINY
from fastload.device import decode
from fastload.measurement.clock import CudaClock
from fastload.measurement.console import console, refuse
from fastload.measurement.record import Spread, environment, extent, ratio, write_json
from fastload.measurement.throughput import NATIVE_AHEAD

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

DECODE: Final = "fastload_decode"  # the kernels' program
EPOCH_BATCHES: Final = 40  # whose kernels are timed together
WARM_STEPS: Final = NATIVE_AHEAD + 4  # of a turn: what was decoded during the other one's is used up
SKIPPED: Final = "torch finds no CUDA device here"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSetup:
    """What is measured.

    Attributes:
        data: An ImageFolder.
        batch_size: Images per batch.
        threads: Of the loader.
        repeats: Epochs of ``kernels``, and turns of ``step``.
        steps: Of a turn.
        model: That is trained.
        verify: Crops to compare.
        files: That these are taken of.
        quick: Tiny; the figures mean nothing.
        deadline: By ``time.monotonic``; no repeat but the first begins later. None: never.
    """

    data: str
    batch_size: int
    threads: int
    repeats: int
    steps: int
    model: str
    verify: int
    files: int
    quick: bool
    deadline: float | None

    def job(self) -> Job:
        """What is loaded."""
        return Job(data=self.data, threads=self.threads, batch_size=self.batch_size, device="cuda")

    def late(self) -> bool:
        """Whether time is up."""
        return self.deadline is not None and time.monotonic() > self.deadline


def kernels(setup: GpuSetup) -> dict[str, Any]:
    """Time the kernels of whole epochs of the loader alone."""
    job = setup.job()
    dataset = job.dataset()
    pool = job.indices(dataset)
    sampler = Chosen(pool)
    decode._kernels.cache_clear()  # what was compiled earlier has no names
    with recorded_launches(CudaClock().mark) as launches:
        loader = FastLoader(
            dataset,
            batch_size=setup.batch_size,
            sampler=sampler,
            num_workers=setup.threads,
            device="cuda",
            engine="native",
            decode="gpu",
        )

        def epoch() -> int:
            """Run an epoch; return how many images the GPU decoded."""
            before = loader.stats().gpu_images
            for _ in loader:
                pass
            torch.cuda.synchronize()
            return loader.stats().gpu_images - before

        epoch()  # makes the index
        count = (4 if setup.quick else EPOCH_BATCHES) * setup.batch_size
        sampler.indices = list(itertools.islice(itertools.cycle(pool), count))
        epoch()
        launches.take_ms()
        runs: list[dict[str, float]] = []
        images = 0
        while len(runs) < setup.repeats and not (runs and setup.late()):
            images = epoch()
            if not images:
                raise ValueError(
                    f"the GPU must decode some of {setup.data}, but print(loader.plan) says\n{loader.plan}"
                )
            scale = setup.batch_size / images
            runs.append({name: value * scale for name, value in launches.take_ms().items()})
    # Outside, so that no events are between the kernels.
    decoded = [0]
    profiled = profiled_ms(lambda: decoded.__setitem__(0, epoch()))
    loader.close()
    names = dict.fromkeys(name for run in runs for name in run)
    times = {name: Spread.of([run.get(name, 0.0) for run in runs]) for name in names}
    total = Spread.of([sum(value for name, value in run.items() if name.startswith(DECODE)) for run in runs])
    return {
        "ms": {name: value.record() for name, value in times.items()},
        "decode_ms": total.record() if total.median else None,
        "profiled_ms": {name: value * setup.batch_size / max(1, decoded[0]) for name, value in profiled.items()},
        "images": images,
        "of_images": count,
        "batch_size": setup.batch_size,
    }


def step(setup: GpuSetup) -> dict[str, Any]:
    """Train beside GPU decoding and without any, in turns."""
    device = torch.device("cuda", torch.cuda.current_device())
    job = setup.job()
    dataset = job.dataset()
    train = TrainingStep(setup.model, device, channels_last=True)
    clock = CudaClock()
    loader = FastLoader(
        dataset,
        batch_size=setup.batch_size,
        sampler=job.sampler(dataset),
        num_workers=setup.threads,
        device=device,
        engine="native",
        decode="gpu",
    )
    feeds: dict[str, Iterator[tuple[Tensor, Tensor]]] = {
        "fed": iter(loader),
        "resident": ceiling.open_feed(job, "").batches,
    }
    waits: list[float] = []

    def turn(name: str) -> Callable[[], float]:
        def measure() -> float:
            before = run_steps(feeds[name], lambda *batch: batch, train, clock, WARM_STEPS)[-1]
            marks = run_steps(feeds[name], lambda *batch: batch, train, clock, setup.steps)
            clock.finish()
            seconds = clock.between_s(before.ended, marks[-1].ended)
            if name == "fed":
                ends = [before.ended, *(mark.ended for mark in marks)]
                waited = (clock.between_s(end, mark.arrived) for end, mark in zip(ends, marks, strict=False))
                waits.append(sum(waited) / seconds)
            return 1e3 * seconds / setup.steps

        return measure

    for _ in range(2 * -(-len(job.indices(dataset)) // setup.batch_size)):  # from the second epoch on
        next(feeds["fed"])
    with fixed_shapes():
        for name in feeds:
            turn(name)()
        waits.clear()
        before = loader.stats()
        taken: dict[str, list[float]] = {name: [] for name in feeds}
        order = list(feeds)
        while len(waits) < setup.repeats and not (waits and setup.late()):
            for name in order:
                taken[name].append(turn(name)())
            order.reverse()
    period = loader.stats()
    loader.close()
    ms = {name: Spread.of(values) for name, values in taken.items()}
    return {
        "model": setup.model,
        "batch_size": setup.batch_size,
        "steps": setup.steps,
        "ms_per_step": {name: value.record() for name, value in ms.items()},
        "fed_over_resident": ratio(ms["fed"], ms["resident"]).record(),
        "wait_share": Spread.of(waits).record(),
        "decoded_on_gpu": (period.gpu_images - before.gpu_images) / max(1, period.images - before.images),
    }


def verify(setup: GpuSetup, keep: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Compare crops of varied files."""
    asked = Asked(
        crops=setup.verify,
        files=setup.files,
        pillow_crops=setup.verify // (2 if setup.quick else 50),
        batch_size=16 if setup.quick else 256,
        workers=max(1, min(8, usable_cpus() // 2)),
        device="cuda" if torch.cuda.is_available() else "cpu",
        deadline=setup.deadline,
    )
    with tempfile.TemporaryDirectory(prefix="fastload-") as folder:
        return compare(Path(folder), asked, keep)


def describe(part: str, result: Mapping[str, Any]) -> str:
    """A part's figures in words."""
    if "skipped" in result:
        return f"{part}: skipped, {result['skipped']}"
    if part == "kernels":
        decode = result["decode_ms"]
        each = ", ".join(f"{name.rpartition('.')[2]} {one['median']:.3f}" for name, one in result["ms"].items())
        total = "no launches seen" if decode is None else f"{decode['median']:.3f} ms to decode"
        return f"kernels, per batch of {result['batch_size']}: {total} ({each}); {profiled_words(result)}"
    if part == "step":
        over, ms = result["fed_over_resident"], result["ms_per_step"]
        return (
            f"step of {result['model']}: {ms['resident']['median']:.2f} ms, beside GPU decoding "
            f"{ms['fed']['median']:.2f} ms: {over['median']:.4f} ({extent(over, '.4f')}); "
            f"{result['decoded_on_gpu']:.1%} of the images decoded on the GPU"
        )
    return (
        f"verify: {result['differ']} of {result['crops']:,} crops differ; {result['gpu_staged']:,} were decoded on the "
        f"GPU, {result['refused']:,} refused by its kernels, {result['pillow_crops']:,} compared with Pillow's; "
        f"{result['seconds']:.0f} s"
    )


def profiled_words(result: Mapping[str, Any]) -> str:
    """The longest of what the profiler saw."""
    longest = sorted(result["profiled_ms"].items(), key=lambda item: -item[1])[:8]
    return "profiler: " + ", ".join(f"{name.partition('(')[0]} {ms:.3f}" for name, ms in longest)


def main(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks gpudecode``; 1 if a crop differs or the GPU decodes none."""
    begin = time.monotonic()
    has_gpu = torch.cuda.is_available()
    try:
        setup, parts = _setup(args, begin, has_gpu)
        if not has_gpu and not args.quick:
            console().print(f"bench gpudecode: skipped, {SKIPPED}; --quick shows that verify works")
            return 0
        described: dict[str, Any] = {}
        if has_gpu and parts != ["verify"]:
            folder, described = prepared(args.data, quick=args.quick)
            setup = GpuSetup(**{name: getattr(setup, name) for name in setup.__slots__ if name != "data"}, data=folder)
    except (ValueError, FileNotFoundError) as error:
        return refuse(error)
    record: dict[str, Any] = {
        "benchmark": "gpudecode",
        "environment": environment(),
        "dataset": described,
        "parameters": {
            "quick": args.quick,
            "parts": parts,
            "seconds": args.seconds,
            **{name: getattr(setup, name) for name in ("batch_size", "threads", "repeats", "steps", "verify", "files")},
        },
        "complete": False,
    }

    def keep(part: str, result: dict[str, Any]) -> None:
        record[part] = result
        if args.json:
            write_json(args.json, record)

    failed = False
    for part in parts:
        try:
            if part == "verify":
                result = verify(setup, lambda so_far: keep("verify", so_far))
                failed |= bool(result["differ"]) or not result["crops"] or (has_gpu and not result["gpu_staged"])
            elif not has_gpu:
                result = {"skipped": SKIPPED}
            else:
                result = (kernels if part == "kernels" else step)(setup)
        except (ValueError, RuntimeError, ImportError) as error:
            console().print(f"failed: {part}: {type(error).__name__}: {error}", markup=False)
            result, failed = {"failed": f"{type(error).__name__}: {error}"}, True
        else:
            console().print(describe(part, result), markup=False)
        keep(part, result)
    record["complete"] = True
    if args.json:
        console().print(f"figures: {write_json(args.json, record)}")
    return int(failed)


def _setup(args: argparse.Namespace, begin: float, has_gpu: bool) -> tuple[GpuSetup, list[str]]:
    parts = args.parts.split(",") if args.parts else list(GPU_PARTS)
    if unknown := [part for part in parts if part not in GPU_PARTS]:
        raise ValueError(f"--parts must be among {', '.join(GPU_PARTS)}, got {', '.join(unknown)}")
    quick = args.quick
    sizes = {
        "batch_size": 8 if quick else 256,
        "threads": min(2 if quick else 16, usable_cpus()),
        "repeats": 2 if quick else 5,
        "steps": 2 if quick else 20,
        "verify": 320 if quick else 100_000,
        "files": 32 if quick else 2000,
    }
    for name, default in sizes.items():
        given = getattr(args, name)
        sizes[name] = default if given is None else given
        if sizes[name] < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be >= 1, got {given}")
    if args.seconds is not None and not args.seconds > 0:
        raise ValueError(f"--seconds must be > 0, got {args.seconds}")
    model = args.model or ("resnet50" if has_gpu and not quick else TINY)
    check_model(model)
    deadline = None if args.seconds is None else begin + args.seconds
    return GpuSetup(data="", model=model, quick=quick, deadline=deadline, **sizes), parts
