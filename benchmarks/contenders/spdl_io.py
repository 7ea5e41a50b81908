"""Run SPDL: FFmpeg decodes, crops and resizes on the threads of a pipeline.

Copies have their own thread and stream.

The pipeline is the one of SPDL's ImageNet example (each task decodes a batch), with a random crop
and flip in the filter; SPDL leaves drawing them to its user.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.contenders._job import SIDE, Feed, Job
from fastload.bench._data import ENDLESS, MEAN, STD, EndlessDraws

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

_TRIES = 10  # as torchvision's RandomResizedCrop


def missing(variant: str, device: str) -> str | None:
    """Why this cannot take part."""
    del variant, device
    if importlib.util.find_spec("spdl") is None:
        return "spdl is not installed; pip install spdl, or --site spdl_io=DIR"
    try:
        versions: dict[str, Any] = importlib.import_module("spdl.io.utils").get_ffmpeg_versions()
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        return f"spdl.io finds no FFmpeg that it can use: {error}"
    return None if versions else "spdl.io finds no FFmpeg that it can use"


def open_feed(job: Job, variant: str) -> Feed:
    """Begin to load with ``job.threads`` decoding threads."""
    del variant
    io: Any = importlib.import_module("spdl.io")
    builder: Any = importlib.import_module("spdl.pipeline").PipelineBuilder()
    files, labels = job.files()
    draws = EndlessDraws(list(range(len(files))), ENDLESS, job.seed) if job.train else range(len(files))

    def source() -> Iterator[tuple[str, int]]:
        for index in draws:
            yield files[index], labels[index]

    def decode(samples: list[tuple[str, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        frames = []
        for path, _ in samples:
            packets = io.demux_image(path)
            frames.append(io.decode_packets(packets, filter_desc=_filter(packets, job)))
        images = io.to_torch(io.convert_frames(frames))
        return images, torch.tensor([label for _, label in samples])

    copier = ThreadPoolExecutor(1, thread_name_prefix="copy")
    builder.add_source(source()).aggregate(job.batch_size).pipe(decode, concurrency=job.threads, output_order="input")
    if job.on_gpu:
        builder.pipe(io.transfer_tensor_h2d, executor=copier)  # pins, copies, waits for the copy
    pipeline = builder.add_sink(2).build(num_threads=job.threads)
    pipeline.start()
    device = torch.device(job.device)
    mean = torch.tensor(MEAN, device=device).mul_(255).view(1, 3, 1, 1)
    std = torch.tensor(STD, device=device).mul_(255).view(1, 3, 1, 1)

    def delivered() -> Generator[tuple[torch.Tensor, torch.Tensor], None, None]:
        for images, targets in pipeline.get_iterator():
            yield images.permute(0, 3, 1, 2).float().sub_(mean).div_(std), targets

    def close() -> None:
        running.close()
        pipeline.stop()
        copier.shutdown()

    running = delivered()
    return Feed(running, close)


def _filter(packets: Any, job: Job) -> str:
    """FFmpeg's filter for one image."""
    steps = []
    if job.train:
        left, top, width, height = _crop_box(packets.width, packets.height)
        steps.append(f"crop={width}:{height}:{left}:{top}")
    steps.append(f"scale={SIDE}:{SIDE}:flags=bilinear+full_chroma_int")  # without it, pixels are off by 1.2 of 255
    if job.train and random.random() < 0.5:
        steps.append("hflip")
    return ",".join([*steps, "format=pix_fmts=rgb24"])


def _crop_box(width: int, height: int) -> tuple[int, int, int, int]:
    """Left, top, width and height as torchvision's RandomResizedCrop draws them."""
    for _ in range(_TRIES):
        area = width * height * random.uniform(0.08, 1.0)
        aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, high = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= width and 0 < high <= height:
            return random.randint(0, width - wide), random.randint(0, height - high), wide, high
    wide = min(width, round(height * 4 / 3))
    high = min(height, round(width * 4 / 3))
    return (width - wide) // 2, (height - high) // 2, wide, high
