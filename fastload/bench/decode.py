"""How fast the native core makes training crops out of JPEG files: ``fastload bench decode``.

RandomResizedCrop(224) and a random flip to uint8 pixels. Four questions: one core, without and with an index, beside
torchvision on Pillow, DALI's CPU decoder, the core on libjpeg-turbo and libjpeg-turbo's region decode alone; more
threads; resize alone, beside the installed Pillow; and large photos. The core's pixels are compared with torchvision's,
bit for bit, before any clock starts.

On one core everything is measured in processor seconds of this process, which other processes can hardly disturb; with
several threads in seconds on the wall.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from fastload import _core
from fastload._files import files_below
from fastload._machine import usable_cpus
from fastload.bench._data import check_data
from fastload.bench._decoders import Crops, dali, dali_is_installed, one_core
from fastload.bench.photos import PhotoSet, write_photos
from fastload.measurement.console import console, refuse
from fastload.measurement.record import Spread, environment, extent, interleave, ratio, write_json
from fastload.pipeline.calibration import FILTERS, calibrate

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

AIMS = {
    **{"torchvision": 5.0, "DALI": 4.5, "fastload on libjpeg-turbo": 1.5, "libjpeg-turbo alone": 0.65},
    **{"2 threads": 1.9, "16 threads": 14.0},
}
"""What is asked for: times as fast; of libjpeg-turbo alone, at most that many times its time."""
INDEX_AIMS = {"fastload on libjpeg-turbo": 1.8, "share_of_bytes": 0.013, "making": 1.08}
"""And with an index: its bytes, as a share of the files', and the time of a decode that makes it are at most that."""

RESIZES = (  # source (width, height), target, interpolation
    ((300, 370), (224, 224), "bilinear"),
    ((500, 400), (224, 224), "bilinear"),
    ((500, 400), (224, 224), "bicubic"),
    ((500, 400), (320, 256), "bilinear"),
    ((4000, 3000), (224, 224), "bilinear"),
)


def processor_s(run: Callable[[], object]) -> float:
    """Processor seconds of all threads of this process."""
    begin = time.process_time()
    run()
    return time.process_time() - begin


def wall_s(run: Callable[[], object]) -> float:
    """Seconds on the wall."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def compare(
    contenders: dict[str, Callable[[], object]], repeats: int, clock: Callable[[Callable[[], object]], float]
) -> dict[str, Spread]:
    """Warm every contender up, then let them take turns."""
    for run in contenders.values():
        run()
    return interleave({name: partial(clock, run) for name, run in contenders.items()}, repeats)


def per_image(seconds: dict[str, Spread], images: int) -> dict[str, Any]:
    """As it stands in the JSON file."""
    return {
        name: Spread.of([value / images * 1e6 for value in spread.values]).record() for name, spread in seconds.items()
    }


def single_core_contenders(crops: Crops, pool: _core.Pool) -> dict[str, Callable[[], object]]:
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


def ratios(seconds: dict[str, Spread], crops: Crops) -> dict[str, Any]:
    """Compare the core with each contender, without and with an index."""
    others = [name for name in ("torchvision", "DALI", "fastload on libjpeg-turbo") if name in seconds]

    def beside(core: str) -> dict[str, Any]:
        record: dict[str, Any] = {name: ratio(seconds[name], seconds[core]).record() for name in others}
        alone = ratio(seconds[f"{core}, from memory"], seconds["libjpeg-turbo alone"])
        return {**record, "libjpeg-turbo alone": alone.record()}

    return {
        **beside("fastload"),
        "indexed": beside("fastload, indexed"),
        "index": {
            "share_of_bytes": crops.share_of_index(),
            "making": ratio(seconds["fastload, making an index"], seconds["fastload"]).record(),
        },
    }


def measure_one_core(crops: Crops, repeats: int) -> dict[str, Any]:
    """The core beside the others, all on one core."""
    count = len(crops.paths)
    with one_core():
        pool = _core.Pool(1)
        contenders = single_core_contenders(crops, pool)
        if dali_is_installed():
            batch_size = min(64, count)
            scale = count / (count // batch_size * batch_size)
            contenders["DALI"] = dali(crops.paths, batch_size, threads=1)
        seconds = compare(contenders, repeats, processor_s)
        pool.close()
    record: dict[str, Any] = {"clock": "processor seconds", "skipped": []}
    if "DALI" in seconds:
        seconds["DALI"] = Spread.of([value * scale for value in seconds["DALI"].values])
    else:
        record["skipped"] = ["DALI: nvidia.dali is not importable here"]
    return {**record, **ratios(seconds, crops), "microseconds_per_image": per_image(seconds, count)}


def measure_threads(crops: Crops, threads: list[int], repeats: int, images: int) -> dict[str, Any]:
    """Measure the core alone on increasing thread counts, ``images`` images per thread, batches in flight."""
    pools = {number: _core.Pool(number) for number in threads}
    seconds = compare(
        {str(number): partial(crops.core_in_flight, pool, number * images) for number, pool in pools.items()},
        repeats,
        wall_s,
    )
    for pool in pools.values():
        pool.close()
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
        with one_core():
            seconds = compare(
                {
                    "Pillow": partial(_repeat, times, partial(image.resize, size, FILTERS[name])),
                    "fastload": partial(_repeat, times, partial(_core.resize, pixels, out, name, rule)),
                },
                repeats,
                processor_s,
            )
            if simd_python is not None:
                seconds["Pillow-SIMD"] = other_pillow(simd_python, [source_size, size, name, times, repeats])
        label = f"{source_size[0]}x{source_size[1]} to {size[0]}x{size[1]}, {name}"
        results[label] = {
            "microseconds_per_image": per_image(seconds, times),
            "speedup": {
                other: ratio(seconds[other], seconds["fastload"]).record() for other in seconds if other != "fastload"
            },
        }
    return results


def _repeat(times: int, run: Callable[[], object]) -> None:
    for _ in range(times):
        run()


def measure_large_photos(crops: Crops, repeats: int) -> dict[str, Any]:
    """Photos of some 4000x3000 pixels, exact and with ``fast=True``."""
    with one_core():
        pool = _core.Pool(1)
        contenders = single_core_contenders(crops, pool)
        contenders["fastload, fast, from memory"] = partial(crops.core_from_memory, pool, fast=True)
        seconds = compare(contenders, repeats, processor_s)
        pool.close()
    exact = seconds["fastload, from memory"]
    return {
        "clock": "processor seconds",
        **ratios(seconds, crops),
        "fast": ratio(exact, seconds["fastload, fast, from memory"]).record(),
        "fast_difference": crops.differences_of_fast(),
        "microseconds_per_image": per_image(seconds, len(crops.paths)),
    }


def main(arguments: argparse.Namespace) -> int:
    """Run ``fastload bench decode``."""
    if arguments.quick:
        arguments.images, arguments.large, arguments.repeats = 16, 1, 1
    try:
        check_data(arguments.data)
    except FileNotFoundError as error:
        return refuse(error)
    torch.set_num_threads(1)
    usual = (
        arguments.data
        or write_photos(Path(".fastload") / f"photos-{arguments.images}", PhotoSet(count=max(8, arguments.images))).path
    )
    try:
        crops = Crops(_jpegs(usual, arguments.images))
        large_crops = _large_photos(arguments.large, 1000 if arguments.quick else 4000)
    except (FileNotFoundError, RuntimeError) as error:
        return refuse(error)
    crops.check()
    if large_crops is not None:
        large_crops.check()
    most = arguments.threads or usable_cpus()
    threads = sorted({1, most, *(2**power for power in range(most.bit_length()) if 2**power < most)})
    results = {
        "one core": measure_one_core(crops, arguments.repeats),
        "threads": measure_threads(crops, threads, arguments.repeats, 256 if arguments.quick else 512),
        "resize alone": measure_resize(arguments.repeats, quick=arguments.quick, simd_python=arguments.simd_python),
    }
    if large_crops is not None:
        results["large photos"] = measure_large_photos(large_crops, arguments.repeats)
    _show(results, len(crops.paths))
    if arguments.json:
        data = {
            "images": len(crops.paths),
            "mean_kb": round(sum(map(len, crops.files)) / len(crops.files) / 1000, 1),
        }
        if large_crops is not None:
            data["large_images"] = len(large_crops.paths)
            data["large_mean_kb"] = round(sum(map(len, large_crops.files)) / len(large_crops.files) / 1000, 1)
        aims = {"aims": AIMS, "index_aims": INDEX_AIMS}
        core = {"libjpeg": _core.libjpeg_version(), "simd": _core.simd_level(), "pass_rule": calibrate().pass_rule}
        write_json(
            arguments.json,
            {"bench": "decode", "environment": environment(), "core": core, "data": data, **aims, **results},
        )
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
        raise FileNotFoundError(f"{folder} must hold folders with JPEG files, but holds none")
    return chosen


def _show(results: dict[str, Any], images: int) -> None:
    from rich.table import Table

    for title in ("one core", "large photos"):
        if title not in results:
            continue
        record = results[title]
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
        console().print(table)
        console().print("  fastload: times as fast, and what is asked; of libjpeg-turbo alone, its share of that time")
        index = record["index"]
        console().print(
            f"  the index: {index['share_of_bytes']:.2%} of the files' bytes (asked: at most "
            f"{INDEX_AIMS['share_of_bytes']:.1%}); making it: {index['making']['median'] - 1:+.1%} of a decode's time "
            f"(asked: at most {INDEX_AIMS['making'] - 1:+.0%})"
        )
        for line in record.get("skipped", []):
            console().print(f"  skipped {line}")
        if "fast" in record:
            difference = record["fast_difference"]
            console().print(
                f"  fast=True on large photos: {record['fast']['median']:.2f} times as fast, off by "
                f"{difference['mean']:.2f} of 255 on average and {difference['largest']} at most"
            )
    for number, speedup in results["threads"]["speedup"].items():
        rate = results["threads"]["images_per_s"][number]["median"]
        asked = AIMS.get(f"{number} threads")
        note = f" (asked: {asked}×)" if asked else ""
        console().print(f"  {number} threads: {rate:,.0f} images/s, {speedup['median']:.2f}× one{note}")
    for label, record in results["resize alone"].items():
        others = ", ".join(
            f"{name} {record['microseconds_per_image'][name]['median']:,.0f} µs ({speedup['median']:.1f}×)"
            for name, speedup in record["speedup"].items()
        )
        console().print(f"  resize {label}: {record['microseconds_per_image']['fastload']['median']:,.0f} µs; {others}")
