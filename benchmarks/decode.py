"""Measure training crops of JPEG files by the core: ``python -m benchmarks decode``.

RandomResizedCrop(224) and a random flip to uint8 pixels. Four questions: one core, without and with an index, beside
torchvision on Pillow, DALI's CPU decoder, the core on libjpeg-turbo and libjpeg-turbo's region decode alone; more
threads; resize alone, beside the installed Pillow; and large photos. The core's pixels are compared with torchvision's,
bit for bit, before any clock starts.

Each contender handles all the files once per call. torchvision, DALI and the core read files, as training does; the
core and libjpeg-turbo alone also decode from memory, where nothing but decoding is compared.

On one core everything is measured in processor seconds of this process, which other processes can hardly disturb; with
several threads in seconds on the wall.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import itertools
import json
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision import transforms

from benchmarks._checkout import on_cores
from fastload import _core
from fastload._arguments import UsageError
from fastload._files import files_below
from fastload.bench._data import check_data
from fastload.bench.photos import PhotoSet, write_photos
from fastload.measurement.console import console
from fastload.measurement.record import Spread, environment, extent, interleave, ratio, save
from fastload.pipeline.installed.decodes import calibrate
from fastload.pipeline.installed.torch_stream import calibrate_stream
from fastload.pipeline.nodes import FILTERS

Contenders = dict[str, Callable[[], object]]

SIDE: Final = 224
SCALE: Final = (0.08, 1.0)
RATIO: Final = (3 / 4, 4 / 3)
SEED: Final = 0

AIMS: Final = {
    **{"torchvision": 5.0, "DALI": 4.5, "fastload on libjpeg-turbo": 1.5, "libjpeg-turbo alone": 0.65},
    **{"2 threads": 1.9, "16 threads": 14.0},
}
"""Speed-ups that are asked for; of libjpeg-turbo alone, the largest multiple of its time."""
INDEX_AIMS: Final = {"fastload on libjpeg-turbo": 1.8, "making": 1.08}
"""The same with an index, and the largest time of a decode that makes it."""

RESIZES: Final = (  # source (width, height), target, interpolation
    ((300, 370), (224, 224), "bilinear"),
    ((500, 400), (224, 224), "bilinear"),
    ((500, 400), (224, 224), "bicubic"),
    ((500, 400), (320, 256), "bilinear"),
    ((4000, 3000), (224, 224), "bilinear"),
)


class Crops:
    """RandomResizedCrop(224) and a flip of every file: the crops that torchvision draws from :data:`SEED`.

    Args:
        paths: JPEG files.

    Raises:
        RuntimeError: The core leaves one of them to Pillow.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = list(paths)
        self.files = [Path(path).read_bytes() for path in self.paths]
        self.out = np.zeros((len(self.paths), SIDE, SIDE, 3), np.uint8)
        self._outs: list[NDArray[np.uint8]] = []
        self._transform = transforms.Compose(
            [transforms.RandomResizedCrop(SIDE, SCALE, RATIO), transforms.RandomHorizontalFlip()]
        )
        self._to_tensor = transforms.PILToTensor()
        self._pass_rule = calibrate().pass_rule or "horizontal_first"
        with core_pool(1) as pool:
            job = self._submit(pool, self.paths)
            self.geometry = np.array([job.geometry(index) for index in range(len(self.paths))], np.int32)

    def _drawn(self) -> dict[str, Any]:
        """The core's plan of the draws, and a stream of numbers from the seed."""
        plan = _core.DrawPlan()
        low, high = torch.log(torch.tensor(RATIO)).tolist()
        plan.add("random_resized_crop", height=SIDE, width=SIDE, scale=SCALE, ratio=RATIO, log_ratio=(low, high))
        plan.add("horizontal_flip", p=0.5)
        rule = calibrate_stream()
        if rule is None:
            raise RuntimeError(f"the core must draw as torch does, but does not as torch {torch.__version__} does")
        plan.set_uniform_rule(rule.fused, rule.excludes_upper)
        state = torch.Generator().manual_seed(SEED).get_state()
        return {"plan": plan, "stream": _core.RandomStream(state.numpy().tobytes())}

    def _submit(self, pool: _core.Pool, inputs: Sequence[Any], **how: Any) -> _core.Job:
        how = how if "geometry" in how else {**how, **self._drawn()}
        job = pool.submit(inputs, self.out, pass_rule=self._pass_rule, **how)
        _finish(job, self.paths)
        return job

    def torchvision(self, keep: list[torch.Tensor] | None = None) -> None:
        """Pillow and torchvision, as a worker of a DataLoader runs them."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            for path in self.paths:
                with open(path, "rb") as file, Image.open(file) as image:
                    tensor = self._to_tensor(self._transform(image.convert("RGB")))
                if keep is not None:
                    keep.append(tensor)

    def core(self, pool: _core.Pool, *, index: _core.JpegIndex | None = None) -> None:
        """The core, from files, drawing as torch does."""
        self._submit(pool, self.paths, index=index)

    def core_on_libjpeg(self, pool: _core.Pool) -> None:
        """The core with libjpeg-turbo in the place of its own decoder, from files."""
        uses_own = _core.uses_own_decoder()
        _core.set_own_decoder(False)
        try:
            self.core(pool)
        finally:
            _core.set_own_decoder(uses_own)

    def core_making_index(self, pool: _core.Pool) -> None:
        """The core on a first visit, noting where later ones can begin."""
        self.core(pool, index=_core.JpegIndex(1 << 30))

    def index(self) -> _core.JpegIndex:
        """An index of all rows of all files."""
        index = _core.JpegIndex(1 << 30)
        out = np.empty((1, 1, 1, 3), np.uint8)
        for data in self.files:
            below = _core.jpeg_header(data)[4] - 1  # the last row's first pixel comes behind all others
            _core.decode(data, out, (below, 0, 1, 1, 0, 0, 0, 0, 0, 0, False, False), index=index)
        return index

    def core_in_flight(self, pool: _core.Pool, images: int, batch_size: int = 256, ahead: int = 3) -> None:
        """Run several batches in flight, as the native engine does, of at least ``images`` images."""
        paths = (self.paths * -(-batch_size // len(self.paths)))[:batch_size]
        while len(self._outs) <= ahead:
            self._outs.append(np.zeros((batch_size, SIDE, SIDE, 3), np.uint8))
        drawn = self._drawn()
        jobs: list[_core.Job] = []
        for number in range(-(-images // batch_size)):
            if len(jobs) > ahead:
                _finish(jobs.pop(0), paths)
            jobs.append(pool.submit(paths, self._outs[number % (ahead + 1)], pass_rule=self._pass_rule, **drawn))
        for job in jobs:
            _finish(job, paths)

    def core_from_memory(self, pool: _core.Pool, *, fast: bool = False, index: _core.JpegIndex | None = None) -> None:
        """The core, from bytes in memory to given crops."""
        self._submit(pool, self.files, geometry=self.geometry, fast=fast, index=index)

    def floor(self) -> None:
        """Libjpeg-turbo alone, which decodes the same regions from memory."""
        _core.decode_and_drop(self.files, self.geometry[:, :4].tolist())

    def check(self) -> None:
        """Compare the core with torchvision, bit for bit.

        Raises:
            RuntimeError: They differ.
        """
        expected: list[torch.Tensor] = []
        self.torchvision(expected)
        with core_pool(1) as pool:
            for run in (self.core, self.core_from_memory, partial(self.core, index=self.index())):
                self.out[:] = 0
                run(pool)
                for path, got, tensor in zip(self.paths, self.out, expected, strict=True):
                    if not np.array_equal(got, tensor.permute(1, 2, 0).numpy()):
                        raise RuntimeError(f"the core's pixels of {path} are not torchvision's")

    def differences_of_fast(self) -> dict[str, float]:
        """How far ``fast=True`` is from the exact pixels, in steps of 255."""
        with core_pool(1) as pool:
            self.core_from_memory(pool)
            exact = self.out.astype(np.int16)
            self.core_from_memory(pool, fast=True)
        difference = np.abs(self.out - exact)
        return {"mean": float(difference.mean()), "largest": int(difference.max())}


def _finish(job: _core.Job, paths: Sequence[str]) -> None:
    while job.wait() == "requested":
        kind, sample, question = job.request()
        if kind != "exp":
            raise RuntimeError(f"every file must be one that the core decodes, got {paths[sample]}")
        job.provide(kind, question, torch.exp(torch.tensor(question)).tolist())
    if any(job.statuses()):
        raise RuntimeError("every file must be one that the core decodes")


@contextlib.contextmanager
def core_pool(threads: int) -> Iterator[_core.Pool]:
    """Decode threads while entered."""
    pool = _core.Pool(threads)
    try:
        yield pool
    finally:
        pool.close()


def dali_is_installed() -> bool:
    """Whether ``nvidia.dali`` can be imported."""
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.util.find_spec("nvidia.dali") is not None
    return False


def dali(paths: Sequence[str], batch_size: int, threads: int) -> Callable[[], None]:
    """DALI's CPU decoder with its own random crop, then its resize and flip.

    Its crops are drawn from the same distribution, not the same ones; its pixels differ from Pillow's, as documented.
    """
    fn: Any = importlib.import_module("nvidia.dali.fn")
    types: Any = importlib.import_module("nvidia.dali.types")
    # Nothing is decoded ahead: it would be work that another contender's clock counts. On one core it gains nothing.
    pipeline: Any = importlib.import_module("nvidia.dali").Pipeline(
        batch_size=batch_size, num_threads=threads, device_id=None, seed=SEED, exec_async=False, exec_pipelined=False
    )
    with pipeline:
        files, _ = fn.readers.file(files=list(paths), labels=list(range(len(paths))), name="reader")
        images = fn.decoders.image_random_crop(
            files, output_type=types.RGB, random_area=list(SCALE), random_aspect_ratio=list(RATIO)
        )
        images = fn.resize(images, size=(SIDE, SIDE), interp_type=types.INTERP_LINEAR)
        pipeline.set_outputs(fn.flip(images, horizontal=fn.random.coin_flip()))
    pipeline.build()

    def run() -> None:
        for _ in range(len(paths) // batch_size):
            (images,) = pipeline.run()
            if images.at(0).shape != (SIDE, SIDE, 3):
                raise RuntimeError(f"DALI must give {SIDE}x{SIDE} crops, got {images.at(0).shape}")

    return run


def elapsed(clock: Callable[[], float], run: Callable[[], object]) -> float:
    """Seconds of a run, by ``time.process_time`` of all threads of this process, or by ``time.perf_counter``."""
    begin = clock()
    run()
    return clock() - begin


def compare(contenders: Contenders, repeats: int, clock: Callable[[], float]) -> dict[str, Spread]:
    """Warm every contender up, then let them take turns."""
    for run in contenders.values():
        run()
    return interleave({name: partial(elapsed, clock, run) for name, run in contenders.items()}, repeats)


def per_image(seconds: dict[str, Spread], images: int) -> dict[str, Any]:
    """Microseconds per image, for the JSON file."""
    return {
        name: Spread.of([value / images * 1e6 for value in spread.values]).record() for name, spread in seconds.items()
    }


def single_core_contenders(crops: Crops, pool: _core.Pool) -> Contenders:
    """The core, torchvision, and libjpeg-turbo by itself."""
    index = crops.index()
    return {
        "torchvision": crops.torchvision,
        "fastload": partial(crops.core, pool),
        "fastload, indexed": partial(crops.core, pool, index=index),
        "fastload, making an index": partial(crops.core_making_index, pool),
        "fastload, from memory": partial(crops.core_from_memory, pool),
        "fastload, indexed, from memory": partial(crops.core_from_memory, pool, index=index),
        "fastload on libjpeg-turbo": partial(crops.core_on_libjpeg, pool),
        "libjpeg-turbo alone": crops.floor,
    }


def ratios(seconds: dict[str, Spread]) -> dict[str, Any]:
    """Compare the core with each contender, without and with an index."""
    others = [name for name in ("torchvision", "DALI", "fastload on libjpeg-turbo") if name in seconds]

    def beside(core: str) -> dict[str, Any]:
        record: dict[str, Any] = {name: ratio(seconds[name], seconds[core]).record() for name in others}
        alone = ratio(seconds[f"{core}, from memory"], seconds["libjpeg-turbo alone"])
        return {**record, "libjpeg-turbo alone": alone.record()}

    return {
        **beside("fastload"),
        "indexed": beside("fastload, indexed"),
        "index": {"making": ratio(seconds["fastload, making an index"], seconds["fastload"]).record()},
    }


def measure_one_core(crops: Crops, repeats: int, *, fast: bool) -> dict[str, Any]:
    """Measure the core and others on one processor core: with ``fast=True``, or beside DALI."""
    count = len(crops.paths)
    batch_size = min(64, count)
    with on_cores(1), core_pool(1) as pool:
        contenders = single_core_contenders(crops, pool)
        if fast:
            contenders["fastload, fast, from memory"] = partial(crops.core_from_memory, pool, fast=True)
        elif dali_is_installed():
            contenders["DALI"] = dali(crops.paths, batch_size, threads=1)
        seconds = compare(contenders, repeats, time.process_time)
    record: dict[str, Any] = {"clock": "processor seconds"}
    if "DALI" in seconds:
        scale = count / (count // batch_size * batch_size)
        seconds["DALI"] = Spread.of([value * scale for value in seconds["DALI"].values])
    if fast:
        exact = seconds["fastload, from memory"]
        record["fast"] = ratio(exact, seconds["fastload, fast, from memory"]).record()
        record["fast_difference"] = crops.differences_of_fast()
    else:
        record["skipped"] = [] if "DALI" in seconds else ["DALI: nvidia.dali is not importable here"]
    return {**record, **ratios(seconds), "microseconds_per_image": per_image(seconds, count)}


def measure_threads(crops: Crops, threads: list[int], repeats: int, images: int) -> dict[str, Any]:
    """Measure the core alone on increasing thread counts, ``images`` images per thread, batches in flight."""
    with contextlib.ExitStack() as opened:
        pools = {number: opened.enter_context(core_pool(number)) for number in threads}
        seconds = compare(
            {str(number): partial(crops.core_in_flight, pool, number * images) for number, pool in pools.items()},
            repeats,
            time.perf_counter,
        )
    rates = {
        name: Spread.of([int(name) * images / value for value in spread.values]) for name, spread in seconds.items()
    }
    return {
        "clock": "seconds on the wall",
        "images_per_s": {name: spread.record() for name, spread in rates.items()},
        "speedup": {name: ratio(spread, rates["1"]).record() for name, spread in rates.items()},
    }


# Runs in another interpreter, so that it stands by itself: times Image.resize there.
_OTHER_PILLOW = """
import json, sys, time
from PIL import Image
size, target, filter, times, repeats = json.loads(sys.argv[1])
image = Image.effect_noise(size, 80).convert("RGB")
resample = Image.Resampling[filter.upper()]
seconds = []
for _ in range(repeats + 1):
    begin = time.process_time()
    for _ in range(times):
        image.resize(target, resample)
    seconds.append(time.process_time() - begin)
print(json.dumps(seconds[1:]))
"""


def other_pillow(python: Path, arguments: list[Any]) -> Spread:
    """Processor seconds of resizes with the Pillow, or Pillow-SIMD, of another interpreter."""
    command = [str(python), "-c", _OTHER_PILLOW, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Spread.of(json.loads(done.stdout))


def measure_resize(repeats: int, *, quick: bool, simd_python: Path | None) -> dict[str, Any]:
    """Resize alone, without any decoding."""
    results = {}
    rule = calibrate().pass_rule or "horizontal_first"
    for source_size, size, name in RESIZES[: 2 if quick else None]:
        pixels = np.random.default_rng(0).integers(0, 256, (*source_size[::-1], 3), np.uint8)
        image = Image.fromarray(pixels)
        out = np.empty((*size[::-1], 3), np.uint8)
        _core.resize(pixels, out, name, rule)
        if not np.array_equal(out, np.asarray(image.resize(size, FILTERS[name]))):
            raise RuntimeError(f"the core's {name} resize from {source_size} to {size} is not Pillow's")
        times = 3 if quick else max(5, 20_000_000 // pixels.size)
        runs: Contenders = {
            "Pillow": partial(image.resize, size, FILTERS[name]),
            "fastload": partial(_core.resize, pixels, out, name, rule),
        }
        with on_cores(1):
            repeated: Contenders = {who: partial(_repeat, times, run) for who, run in runs.items()}
            seconds = compare(repeated, repeats, time.process_time)
            if simd_python is not None:
                seconds["Pillow-SIMD"] = other_pillow(simd_python, [source_size, size, name, times, repeats])
        label = f"{source_size[0]}x{source_size[1]} to {size[0]}x{size[1]}, {name}"
        others = [who for who in seconds if who != "fastload"]
        results[label] = {
            "microseconds_per_image": per_image(seconds, times),
            "speedup": {other: ratio(seconds[other], seconds["fastload"]).record() for other in others},
        }
    return results


def _repeat(times: int, run: Callable[[], object]) -> None:
    for _ in range(times):
        run()


def main(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks decode``."""
    check_data(args.data)
    torch.set_num_threads(1)
    usual = args.data
    if usual is None:
        usual = write_photos(Path(".fastload") / f"photos-{args.images}", PhotoSet(count=max(8, args.images))).path
    try:
        crops = Crops(_jpegs(usual, args.images))
        large = _large_photos(args.large, 1000 if args.quick else 4000)
    except RuntimeError as error:
        raise UsageError(str(error)) from error
    sets = {"": crops, "large_": large}
    for checked in filter(None, sets.values()):
        checked.check()
    most = args.threads
    threads = sorted({1, most, *(2**power for power in range(most.bit_length()) if 2**power < most)})
    results = {
        "one core": measure_one_core(crops, args.repeats, fast=False),
        "threads": measure_threads(crops, threads, args.repeats, 256 if args.quick else 512),
        "resize alone": measure_resize(args.repeats, quick=args.quick, simd_python=args.simd_python),
    }
    if large is not None:
        results["large photos"] = measure_one_core(large, args.repeats, fast=True)
    _show(results)
    data: dict[str, float] = {}
    for kind, one in sets.items():
        if one is not None:
            mean_kb = round(sum(map(len, one.files)) / len(one.files) / 1000, 1)
            data |= {f"{kind}images": len(one.paths), f"{kind}mean_kb": mean_kb}
    core = {"libjpeg": _core.libjpeg_version(), "simd": _core.simd_level(), "pass_rule": calibrate().pass_rule}
    record = {"bench": "decode", "environment": environment(), "core": core, "data": data}
    save(args.json, {**record, "aims": AIMS, "index_aims": INDEX_AIMS, **results})
    return 0


def _large_photos(count: int, edge_px: int) -> Crops | None:
    """Make the large photos; ``None`` without scikit-image, which ``--data`` does not need."""
    photo_set = PhotoSet(count=count, classes=min(8, count), edge_px=edge_px)
    try:
        folder = write_photos(Path(".fastload") / f"large-photos-{count}", photo_set).path
    except ModuleNotFoundError as error:
        console().print(f"large photos are left out: {error}", markup=False)
        return None
    return Crops(_jpegs(folder, count))


def _jpegs(folder: Path, count: int) -> list[str]:
    """Up to ``count`` files that the core decodes."""
    paths = (path for path in files_below(folder) if path.lower().endswith((".jpg", ".jpeg")))
    chosen = list(itertools.islice((path for path in paths if _core.jpeg_header(path)[0] == "ok"), count))
    if not chosen:
        raise UsageError(f"{folder} must hold folders with JPEG files, but holds none")
    return chosen


def _show(results: dict[str, Any]) -> None:
    for title in ("one core", "large photos"):
        if title in results:
            _show_decoders(title, results[title])
    screen = console()
    for number, speedup in results["threads"]["speedup"].items():
        rate = results["threads"]["images_per_s"][number]["median"]
        asked = AIMS.get(f"{number} threads")
        note = f" (asked: {asked}×)" if asked else ""
        screen.print(f"  {number} threads: {rate:,.0f} images/s, {speedup['median']:.2f}× one{note}")
    for label, record in results["resize alone"].items():
        times = {name: f"{us['median']:,.0f} µs" for name, us in record["microseconds_per_image"].items()}
        others = [f"{name} {times[name]} ({speedup['median']:.1f}×)" for name, speedup in record["speedup"].items()]
        screen.print(f"  resize {label}: {times['fastload']}; {', '.join(others)}")


def _show_decoders(title: str, record: dict[str, Any]) -> None:
    from rich.table import Table

    screen = console()
    table = Table(title=f"RandomResizedCrop(224) and flip, {title}")
    for column in ("", "µs an image", "spread", "fastload", "with index"):
        table.add_column(column, justify="right" if column else "left")
    for name, spread in record["microseconds_per_image"].items():
        cells = [name, f"{spread['median']:,.0f}", extent(spread, ",.0f")]
        bound = "≤" if name == "libjpeg-turbo alone" else "≥"
        for of, aims in ((record, AIMS), (record["indexed"], AIMS | INDEX_AIMS)):
            quotient, asked = of.get(name, {}).get("median"), aims.get(name) if title == "one core" else None
            note = "" if asked is None else f" ({bound} {asked})"
            cells.append("" if quotient is None else f"{quotient:.2f}×{note}")
        table.add_row(*cells)
    screen.print(table)
    screen.print("  fastload: times as fast, and what is asked; of libjpeg-turbo alone, its share of that time")
    index = record["index"]
    screen.print(
        f"  making the index: {index['making']['median'] - 1:+.1%} of a decode's time (asked: at most "
        f"{INDEX_AIMS['making'] - 1:+.0%})"
    )
    for line in record.get("skipped", []):
        screen.print(f"  skipped {line}")
    if "fast" in record:
        difference = record["fast_difference"]
        screen.print(
            f"  fast=True on large photos: {record['fast']['median']:.2f} times as fast, off by "
            f"{difference['mean']:.2f} of 255 on average and {difference['largest']} at most"
        )
