"""Measure decoding on the GPU: ``python -m benchmarks gpudecode``.

* ``kernels``: milliseconds of each kernel for a batch of 256, with CUDA events around its launches (which count a
  kernel's start, too); beside them torch's profiler's, by the device's own records, with copies and fills. The loader
  alone, from the second epoch on, and without an index, as in the first.
* ``epochs``: images/s of the loader alone in the first epoch and in later ones, by who decodes and by the number of
  threads, in turns. A first epoch is a new loader's, which has visited none of the files; its first batches, which
  start threads and fill queues, are timed apart.
* ``step``: a ResNet-50 step beside GPU decoding, with and without an index, over the same step with its data on the GPU
  already, in turns.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import Tensor
from torchvision.datasets import ImageFolder

from benchmarks._peers import prepared
from benchmarks._varied_crops import Asked, compare
from benchmarks.commands import GPU_PARTS
from benchmarks.contenders import ceiling
from benchmarks.contenders._job import Job
from benchmarks.contenders._registry import RECIPES
from fastload import FastLoader
from fastload._arguments import check_names
from fastload._machine import usable_cpus
from fastload.bench._steps import TrainingStep, check_model, fixed_shapes, time_steps
from fastload.bench._trace import profiled
from fastload.device import nvrtc
from fastload.device.decode import files as decode
from fastload.device.decode.policy import DecodePolicy, Side
from fastload.loader_state import state_of
from fastload.measurement.clock import CudaClock
from fastload.measurement.console import console
from fastload.measurement.record import Spread, environment, extent, ratio, save
from fastload.measurement.throughput import NATIVE_AHEAD

DECODE: Final = "fastload_decode"  # the kernels' program
EPOCH_BATCHES: Final = 40  # whose kernels are timed together
WARM_STEPS: Final = NATIVE_AHEAD + 4  # of a turn: what was decoded during the other one's is used up
UNTIMED_BATCHES: Final = 8  # of an epoch, in which it starts and queues fill
LATER_EPOCHS: Final = 1
SLOW_IMAGES: Final = 6144  # for each thread, of an epoch on a side that takes long
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
    sizes = {"threads": args.threads, "batch_size": args.batch_size}
    return Job(data=str(args.data), device="cuda", recipe=args.recipe, **sizes)


def _loader(args: argparse.Namespace, dataset: Any, sampler: Any, **options: Any) -> FastLoader[Any]:
    sizes: dict[str, Any] = {"batch_size": args.batch_size, "num_workers": args.threads}
    return FastLoader(dataset, sampler=sampler, device="cuda", engine="native", decode="gpu", **sizes, **options)


def _late(args: argparse.Namespace) -> bool:
    return args.deadline is not None and time.monotonic() > args.deadline


def kernels(args: argparse.Namespace) -> dict[str, Any]:
    """Time the kernels of whole epochs of the loader alone, with and without an index."""
    return _kernels(args) | {"new": _kernels(args, max_index_bytes=0)}


def _kernels(args: argparse.Namespace, **options: Any) -> dict[str, Any]:
    job = _job(args)
    dataset = job.dataset()
    pool = job.indices(dataset)
    indices = list(pool)
    decode._kernels.cache_clear()  # what was compiled earlier has no names
    with recorded_launches(CudaClock().mark) as launches:
        loader = _loader(args, dataset, indices, **options)

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


class _Always(DecodePolicy):
    """Keeps to one side."""

    def __init__(self, side: Side) -> None:
        super().__init__()
        self._always = side

    def choose(self) -> tuple[Side, bool]:
        return self._always, False


def epochs(args: argparse.Namespace) -> dict[str, Any]:
    """Time first and later epochs of the loader alone."""
    with tempfile.TemporaryDirectory(prefix="fastload-") as folder:
        known = _job(args).dataset()
        write_copies([path for path, _ in known.samples], Path(folder), args.epoch_images)
        return _epochs(args, ImageFolder(folder, known.transform))


def write_copies(paths: Sequence[str], folder: Path, count: int) -> None:
    """Write JPEG files that differ from others, and from each other, in a comment."""
    (folder / "a").mkdir()

    def write(number: int) -> None:
        data = Path(paths[number % len(paths)]).read_bytes()
        comment = b"\xff\xfe\x00\x06" + number.to_bytes(4, "big")
        (folder / "a" / f"{number:07}.jpg").write_bytes(data[:2] + comment + data[2:])

    with ThreadPoolExecutor(usable_cpus()) as pool:
        list(pool.map(write, range(count)))


def _epochs(args: argparse.Namespace, dataset: Any) -> dict[str, Any]:
    device = torch.device("cuda", torch.cuda.current_device())
    sides: tuple[Side | Literal["auto"], ...] = ("auto", "threads", "find", "scan")
    found: dict[str, dict[str, dict[str, list[float]]]] = {}

    def run(threads: int, side: Side | Literal["auto"], into: dict[str, list[float]]) -> None:
        most = len(dataset) if side in ("auto", "find") else threads * SLOW_IMAGES
        indices = torch.randperm(len(dataset))[:most].tolist()
        loader = FastLoader(
            dataset, batch_size=args.batch_size, sampler=indices, num_workers=threads, device="cuda", engine="native"
        )
        if side != "auto":
            state_of(loader).decode_policies[device] = _Always(side)
        untimed = min(UNTIMED_BATCHES, len(loader) // 2)
        for epoch in range(2 + LATER_EPOCHS):
            begun = started = time.perf_counter()
            images = 0
            for number, (pixels, _) in enumerate(loader):
                if number >= untimed:
                    images += len(pixels)
                elif number == untimed - 1:
                    torch.cuda.synchronize()
                    started = time.perf_counter()
            torch.cuda.synchronize()
            rate = images / (time.perf_counter() - started)
            if not epoch:
                into["start_s"].append(started - begun)
                into["first_on_gpu"].append(loader.stats().gpu_images / loader.stats().images)
            if epoch != 1:  # in the second the policy may still look for the best side
                into["later" if epoch else "first"].append(rate)
        loader.close()

    for threads in args.epoch_threads:
        by_side = found[str(threads)] = {side: defaultdict(list) for side in sides}
        run(threads, "auto", defaultdict(list))  # warms up
        order = list(sides)
        for _ in range(args.repeats):
            if all(by_side[side] for side in sides) and _late(args):
                break
            for side in order:
                run(threads, side, by_side[side])
            order.reverse()
    measured = {
        threads: {side: {name: Spread.of(values).record() for name, values in of.items()} for side, of in by.items()}
        for threads, by in found.items()
    }
    return {"images_per_s": measured, "images": len(dataset), "batch_size": args.batch_size}


def step(args: argparse.Namespace) -> dict[str, Any]:
    """Train beside GPU decoding, with an index and without, and without any decoding, in turns."""
    job = _job(args)
    dataset = job.dataset()
    train = TrainingStep(args.model, torch.device("cuda", torch.cuda.current_device()), channels_last=True)
    clock = CudaClock()
    loaders = {
        "fed": _loader(args, dataset, job.sampler(dataset)),
        "new": _loader(args, dataset, job.sampler(dataset), max_index_bytes=0),
    }
    feeds: dict[str, Iterator[tuple[Tensor, Tensor]]] = {
        **{name: iter(loader) for name, loader in loaders.items()},
        "resident": ceiling.open_feed(job, "").batches,
    }
    waits: dict[str, list[float]] = {name: [] for name in loaders}

    def counted(name: str) -> tuple[int, int]:
        stats = loaders[name].stats()
        return stats.images, stats.gpu_images

    def turn(name: str) -> float:
        times = time_steps(feeds[name], train, clock, args.steps, warm=WARM_STEPS)
        if name in waits:
            waits[name].append(times.waited_s / times.seconds)
        return float(1e3 * times.seconds / args.steps)

    for _ in range(2 * -(-len(job.indices(dataset)) // args.batch_size)):  # from the second epoch on
        next(feeds["fed"])
    with fixed_shapes():
        for name in feeds:
            turn(name)
        for kept in waits.values():
            kept.clear()
        before = {name: counted(name) for name in loaders}
        taken: dict[str, list[float]] = {name: [] for name in feeds}
        order = list(feeds)
        while len(waits["fed"]) < args.repeats and not (waits["fed"] and _late(args)):
            for name in order:
                taken[name].append(turn(name))
            order.reverse()
    shares = {}
    for name, (images, on_gpu) in before.items():
        images_after, on_gpu_after = counted(name)
        shares[name] = (on_gpu_after - on_gpu) / max(1, images_after - images)
    for loader in loaders.values():
        loader.close()
    ms = {name: Spread.of(values) for name, values in taken.items()}
    return {
        "model": args.model,
        "batch_size": args.batch_size,
        "steps": args.steps,
        "ms_per_step": {name: value.record() for name, value in ms.items()},
        **{f"{name}_over_resident": ratio(ms[name], ms["resident"]).record() for name in loaders},
        **{f"{name}_wait_share": Spread.of(kept).record() for name, kept in waits.items()},
        **{f"{name}_decoded_on_gpu": share for name, share in shares.items()},
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
        told = f"kernels, per batch of {result['batch_size']}: {decoded} ({each}); profiler: {seen}"
        return told if "new" not in result else f"{told}\nnew files, {describe(part, result['new'])}"
    if part == "step":
        ms = result["ms_per_step"]
        return f"step of {result['model']}: {ms['resident']['median']:.2f} ms, " + "; ".join(
            f"beside GPU decoding {of} {ms[name]['median']:.2f} ms: {over['median']:.4f} ({extent(over, '.4f')}), "
            f"{result[f'{name}_decoded_on_gpu']:.1%} of the images decoded on the GPU"
            for name, of in (("fed", "with an index"), ("new", "of new files"))
            for over in (result[f"{name}_over_resident"],)
        )
    if part == "epochs":
        return "epochs: images/s " + "; ".join(
            f"{threads} threads: "
            + ", ".join(
                f"{side} {of['first']['median']:,.0f}, later {of['later']['median']:,.0f}" for side, of in by.items()
            )
            for threads, by in result["images_per_s"].items()
        )
    return (
        f"verify: {result['differ']} of {result['crops']:,} crops differ; {result['gpu_staged']:,} were decoded on the "
        f"GPU, {result['refused']:,} refused by its kernels; as new files {result['new_staged']:,} and "
        f"{result['new_refused']:,}; {result['pillow_crops']:,} compared with Pillow's; "
        f"{result['seconds']:.0f} s"
    )


def main(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks gpudecode``; 1 if a crop differs or the GPU decodes none."""
    begin, has_gpu, parts = time.monotonic(), torch.cuda.is_available(), args.parts.split(",")
    check_names("--parts", parts, GPU_PARTS)
    check_names("--recipe", [args.recipe], RECIPES)
    check_model(args.model)
    names = ("recipe", "batch_size", "threads", "epoch_threads", "epoch_images", "repeats", "steps", "verify", "files")
    sizes = {name: getattr(args, name) for name in names}
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
                failed |= bool(result["differ"]) or not result["crops"]
                failed |= has_gpu and not (result["gpu_staged"] and result["new_staged"])
            elif not has_gpu:
                result = {"skipped": SKIPPED}
            else:
                result = {"kernels": kernels, "epochs": epochs, "step": step}[part](args)
        except (ValueError, RuntimeError, ImportError) as error:
            console().print(f"failed: {part}: {type(error).__name__}: {error}", markup=False)
            result, failed = {"failed": f"{type(error).__name__}: {error}"}, True
        else:
            console().print(describe(part, result), markup=False)
        keep(part, result)
    record["complete"] = True
    save(args.json, record)
    return int(failed)
