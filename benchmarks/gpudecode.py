"""Measure decoding on the GPU: ``python -m benchmarks gpudecode``.

* ``kernels``: milliseconds of each kernel for a batch of 256, with CUDA events around its launches (which count a
  kernel's start, too); beside them torch's profiler's, by the device's own records, with copies and fills. The loader
  alone, from the second epoch on.
* ``step``: a ResNet-50 step beside GPU decoding over the same step with its data on the GPU already, in turns.
* ``verify``: crops of varied files decoded on the GPU, compared bit for bit (:mod:`benchmarks._varied_crops`).

The loader alone, training and memory beside other libraries are ``python -m benchmarks peers``. Without a GPU all of it
is skipped; with ``--quick``, ``verify`` compares the decode threads with Pillow.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from benchmarks._peers import prepared
from benchmarks._varied_crops import Asked, compare
from benchmarks.commands import GPU_PARTS
from benchmarks.contenders import ceiling
from benchmarks.contenders._job import Job
from fastload import FastLoader
from fastload._arguments import check_names
from fastload._machine import usable_cpus
from fastload.bench._steps import TrainingStep, check_model, fixed_shapes, time_steps
from fastload.bench._trace import profiled
from fastload.device import nvrtc
from fastload.device.decode import files as decode
from fastload.measurement.clock import CudaClock
from fastload.measurement.console import console
from fastload.measurement.record import Spread, environment, extent, ratio, save
from fastload.measurement.throughput import NATIVE_AHEAD

DECODE: Final = "fastload_decode"  # the kernels' program
EPOCH_BATCHES: Final = 40  # whose kernels are timed together
WARM_STEPS: Final = NATIVE_AHEAD + 4  # of a turn: what was decoded during the other one's is used up
SKIPPED: Final = "torch finds no CUDA device here"


class Launches:
    """Kernels that were launched, by program and name, with an event before and after each."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}  # by id of a kernel
        self._kernels: list[Any] = []  # so that no id is used twice
        self._marks: list[tuple[str, Any, Any]] = []

    def know(self, program: str, kernels: dict[str, Any]) -> None:
        """Remember the names of a program's kernels."""
        self._kernels += kernels.values()
        self._names |= {id(kernel): f"{program}.{name}" for name, kernel in kernels.items()}

    def add(self, kernel: Any, before: Any, after: Any) -> None:
        """Note a launch."""
        self._marks.append((self._names.get(id(kernel), "?"), before, after))

    def take_ms(self) -> dict[str, float]:
        """Return milliseconds by kernel since the last call. Blocks until all have run."""
        torch.cuda.synchronize()
        marks, self._marks = self._marks, []
        times: dict[str, float] = defaultdict(float)
        for name, before, after in marks:
            times[name] += before.elapsed_time(after)
        return dict(times)


@contextlib.contextmanager
def recorded_launches(event: Callable[[], Any]) -> Iterator[Launches]:
    """Record launches of :mod:`fastload.device.nvrtc` while entered; programs compiled before have no names.

    Args:
        event: Function that marks a point of the current stream; its result has ``elapsed_time``.
    """
    launches = Launches()
    build, launcher = nvrtc.build, nvrtc.launcher

    def building(index: int, name: str, *arguments: Any, **more: Any) -> Any:
        kernels = build(index, name, *arguments, **more)
        launches.know(name, kernels)
        return kernels

    def recording(device: torch.device) -> Callable[..., None]:
        launch = launcher(device)

        def launched(kernel: Any, *arguments: Any) -> None:
            before = event()
            launch(kernel, *arguments)
            launches.add(kernel, before, event())

        return launched

    nvrtc.build, nvrtc.launcher = building, recording
    try:
        yield launches
    finally:
        nvrtc.build, nvrtc.launcher = build, launcher


def summed_ms(events: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Add up a Chrome trace's kernels, copies and fills by name (there in microseconds)."""
    times: dict[str, float] = defaultdict(float)
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            times[event["name"]] += event["dur"] / 1e3
    return dict(times)


def _job(args: argparse.Namespace) -> Job:
    return Job(data=str(args.data), threads=args.threads, batch_size=args.batch_size, device="cuda")


def _loader(args: argparse.Namespace, dataset: Any, sampler: Any) -> FastLoader[Any]:
    sizes: dict[str, Any] = {"batch_size": args.batch_size, "num_workers": args.threads}
    return FastLoader(dataset, sampler=sampler, device="cuda", engine="native", decode="gpu", **sizes)


def _late(args: argparse.Namespace) -> bool:
    return args.deadline is not None and time.monotonic() > args.deadline


def kernels(args: argparse.Namespace) -> dict[str, Any]:
    """Time the kernels of whole epochs of the loader alone."""
    job = _job(args)
    dataset = job.dataset()
    pool = job.indices(dataset)
    indices = list(pool)
    decode._kernels.cache_clear()  # what was compiled earlier has no names
    with recorded_launches(CudaClock().mark) as launches:
        loader = _loader(args, dataset, indices)

        def epoch() -> int:
            """Run an epoch; return how many images the GPU decoded."""
            before = loader.stats().gpu_images
            for _ in loader:
                pass
            torch.cuda.synchronize()
            return loader.stats().gpu_images - before

        epoch()  # makes the index
        count = (4 if args.quick else EPOCH_BATCHES) * args.batch_size
        indices[:] = itertools.islice(itertools.cycle(pool), count)
        epoch()
        launches.take_ms()
        runs: list[dict[str, float]] = []
        images = 0
        while len(runs) < args.repeats and not (runs and _late(args)):
            images = epoch()
            if not images:
                raise ValueError(f"the GPU must decode some of {args.data}, but print(loader.plan) says\n{loader.plan}")
            scale = args.batch_size / images
            runs.append({name: value * scale for name, value in launches.take_ms().items()})
    # Outside, so that no events are between the kernels.
    before = loader.stats().gpu_images
    seen = summed_ms(profiled(epoch)[0])
    decoded = loader.stats().gpu_images - before
    loader.close()
    names = dict.fromkeys(name for run in runs for name in run)
    times = {name: Spread.of([run.get(name, 0.0) for run in runs]) for name in names}
    total = Spread.of([sum(value for name, value in run.items() if name.startswith(DECODE)) for run in runs])
    return {
        "ms": {name: value.record() for name, value in times.items()},
        "decode_ms": total.record() if total.median else None,
        "profiled_ms": {name: value * args.batch_size / max(1, decoded) for name, value in seen.items()},
        "images": images,
        "of_images": count,
        "batch_size": args.batch_size,
    }


def step(args: argparse.Namespace) -> dict[str, Any]:
    """Train beside GPU decoding and without any, in turns."""
    job = _job(args)
    dataset = job.dataset()
    train = TrainingStep(args.model, torch.device("cuda", torch.cuda.current_device()), channels_last=True)
    clock = CudaClock()
    loader = _loader(args, dataset, job.sampler(dataset))
    feeds: dict[str, Iterator[tuple[Tensor, Tensor]]] = {
        "fed": iter(loader),
        "resident": ceiling.open_feed(job, "").batches,
    }
    waits: list[float] = []

    def turn(name: str) -> float:
        times = time_steps(feeds[name], train, clock, args.steps, warm=WARM_STEPS)
        if name == "fed":
            waits.append(times.waited_s / times.seconds)
        return float(1e3 * times.seconds / args.steps)

    for _ in range(2 * -(-len(job.indices(dataset)) // args.batch_size)):  # from the second epoch on
        next(feeds["fed"])
    with fixed_shapes():
        for name in feeds:
            turn(name)
        waits.clear()
        before = loader.stats()
        taken: dict[str, list[float]] = {name: [] for name in feeds}
        order = list(feeds)
        while len(waits) < args.repeats and not (waits and _late(args)):
            for name in order:
                taken[name].append(turn(name))
            order.reverse()
    period = loader.stats()
    loader.close()
    ms = {name: Spread.of(values) for name, values in taken.items()}
    return {
        "model": args.model,
        "batch_size": args.batch_size,
        "steps": args.steps,
        "ms_per_step": {name: value.record() for name, value in ms.items()},
        "fed_over_resident": ratio(ms["fed"], ms["resident"]).record(),
        "wait_share": Spread.of(waits).record(),
        "decoded_on_gpu": (period.gpu_images - before.gpu_images) / max(1, period.images - before.images),
    }


def verify(args: argparse.Namespace, keep: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Compare crops of varied files."""
    asked = Asked(
        crops=args.verify,
        files=args.files,
        pillow_crops=args.verify // (2 if args.quick else 50),
        batch_size=16 if args.quick else 256,
        workers=max(1, min(8, usable_cpus() // 2)),
        device="cuda" if torch.cuda.is_available() else "cpu",
        deadline=args.deadline,
    )
    with tempfile.TemporaryDirectory(prefix="fastload-") as folder:
        return compare(Path(folder), asked, keep)


def describe(part: str, result: Mapping[str, Any]) -> str:
    """A part's figures in words."""
    if "skipped" in result:
        return f"{part}: skipped, {result['skipped']}"
    if part == "kernels":
        total = result["decode_ms"]
        each = ", ".join(f"{name.rpartition('.')[2]} {one['median']:.3f}" for name, one in result["ms"].items())
        longest = sorted(result["profiled_ms"].items(), key=lambda item: -item[1])[:8]
        seen = ", ".join(f"{name.partition('(')[0]} {ms:.3f}" for name, ms in longest)
        decoded = "no launches seen" if total is None else f"{total['median']:.3f} ms to decode"
        return f"kernels, per batch of {result['batch_size']}: {decoded} ({each}); profiler: {seen}"
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


def main(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks gpudecode``; 1 if a crop differs or the GPU decodes none."""
    begin, has_gpu, parts = time.monotonic(), torch.cuda.is_available(), args.parts.split(",")
    check_names("--parts", parts, GPU_PARTS)
    check_model(args.model)
    sizes = {name: getattr(args, name) for name in ("batch_size", "threads", "repeats", "steps", "verify", "files")}
    args.deadline = None if args.seconds is None else begin + args.seconds
    if not has_gpu and not args.quick:
        console().print(f"bench gpudecode: skipped, {SKIPPED}; --quick shows that verify works")
        return 0
    described: dict[str, Any] = {}
    if has_gpu and parts != ["verify"]:
        args.data, described = prepared(args.data, quick=args.quick)
    record: dict[str, Any] = {
        "benchmark": "gpudecode",
        "environment": environment(),
        "dataset": described,
        "parameters": {"quick": args.quick, "parts": parts, "seconds": args.seconds, **sizes},
        "complete": False,
    }

    def keep(part: str, result: dict[str, Any]) -> None:
        record[part] = result
        save(args.json, record)

    failed = False
    for part in parts:
        try:
            if part == "verify":
                result = verify(args, lambda so_far: keep("verify", so_far))
                failed |= bool(result["differ"]) or not result["crops"] or (has_gpu and not result["gpu_staged"])
            elif not has_gpu:
                result = {"skipped": SKIPPED}
            else:
                result = (kernels if part == "kernels" else step)(args)
        except (ValueError, RuntimeError, ImportError) as error:
            console().print(f"failed: {part}: {type(error).__name__}: {error}", markup=False)
            result, failed = {"failed": f"{type(error).__name__}: {error}"}, True
        else:
            console().print(describe(part, result), markup=False)
        keep(part, result)
    record["complete"] = True
    save(args.json, record)
    return int(failed)
