"""Run SPDL: FFmpeg decodes, crops and resizes on the threads of a pipeline.

The pipeline is the one of SPDL's ImageNet example (each task decodes a batch; copies have their own thread and stream),
with a random crop and flip in the filter; SPDL leaves drawing them to its user.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from benchmarks.contenders._job import SIDE, Feed, Job
from benchmarks.contenders.nvjpeg_lists import crop_boxes
from fastload.bench._data import ENDLESS, MEAN, STD, EndlessDraws


def missing(variant: str, device: str) -> str | None:
    """Why this cannot take part."""
    versions: dict[str, Any] = importlib.import_module("spdl.io.utils").get_ffmpeg_versions()
    return None if versions else "spdl.io finds no FFmpeg that it can use"


def open_feed(job: Job, variant: str) -> Feed:
    """Begin to load with ``job.threads`` decoding threads."""
    io: Any = importlib.import_module("spdl.io")
    builder: Any = importlib.import_module("spdl.pipeline").PipelineBuilder()
    files, labels = job.files()
    draws = EndlessDraws(list(range(len(files))), ENDLESS, job.seed) if job.train else range(len(files))

    def source() -> Iterator[tuple[str, int]]:
        for index in draws:
            yield files[index], labels[index]

    drawn, lock = np.random.default_rng(job.seed), threading.Lock()

    def decode(samples: list[tuple[str, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        packets = [io.demux_image(path) for path, _ in samples]
        filters = [_filter("", "")] * len(packets)
        if job.train:
            with lock:
                boxes = crop_boxes(np.array([(one.height, one.width) for one in packets]), drawn).tolist()
                flips = (drawn.random(len(packets)) < 0.5).tolist()
            filters = [
                _filter(f"crop={width}:{height}:{left}:{top},", "hflip," if flip else "")
                for (top, left, height, width), flip in zip(boxes, flips, strict=True)
            ]
        frames = [io.decode_packets(one, filter_desc=how) for one, how in zip(packets, filters, strict=True)]
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


def _filter(crop: str, flip: str) -> str:
    """FFmpeg's filter for one image; without ``full_chroma_int``, pixels are off by 1.2 of 255."""
    return f"{crop}scale={SIDE}:{SIDE}:flags=bilinear+full_chroma_int,{flip}format=pix_fmts=rgb24"
