"""Run ``decode_jpeg`` of torchvision or torchcodec on a GPU, a batch as a list.

Both call NVIDIA's nvJPEG. Threads read the files. A thread that has the files of a batch decodes them all in one call,
as both libraries advise, crops and resizes each image on the device, and flips and normalizes the batch there; crops
are drawn for a batch at once. Several such threads take turns with batches, each on its own stream: the fastest number
of them is taken.

nvJPEG's pixels are not libjpeg-turbo's, and the resize is torch's, in float32.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import io
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.nn import functional

from benchmarks.contenders._job import SIDE, Feed, Job, in_model_layout
from fastload.bench._data import ENDLESS, MEAN, STD, EndlessDraws

Decode = Callable[[list[torch.Tensor]], list[torch.Tensor]]

DECODING_THREADS: Final = (1, 2, 4)  # the fastest number is taken
TRIAL_S: Final = 0.5  # of each number
_AHEAD: Final = 2  # batches of each thread
_TRIES: Final = 10  # as torchvision's RandomResizedCrop


def missing(variant: str, device: str) -> str | None:
    """Why this cannot take part."""
    if importlib.util.find_spec(variant) is None:
        return f"{variant} is not installed; pip install {variant}, or --site {variant}-gpu=DIR"
    try:
        decode = decoder(variant, device)
        if device.startswith("cuda"):
            decode([torch.from_numpy(np.frombuffer(_smallest(), np.uint8).copy())])
    except (ImportError, OSError, RuntimeError, AttributeError, ValueError) as error:
        first = str(error).strip().splitlines() or [""]
        return f"{variant} cannot decode JPEG on {device}: {type(error).__name__}: {first[0]}"
    return None


def decoder(variant: str, device: str) -> Decode:
    """Return a function that decodes 1-D uint8 tensors to ``(3, H, W)`` on ``device``."""
    if variant == "torchvision":
        vision: Any = importlib.import_module("torchvision.io")
        return functools.partial(vision.decode_jpeg, mode=vision.ImageReadMode.RGB, device=device)
    decoders: Any = importlib.import_module("torchcodec.decoders")
    return functools.partial(decoders.decode_jpeg, mode="RGB", device=device)


def open_feed(job: Job, variant: str) -> Feed:
    """Begin to load with ``job.threads`` threads that read."""
    decoding = _fastest(job, variant) if job.train else 1
    pipeline = Pipeline(job, decoder(variant, job.device), decoding)
    return Feed(pipeline.batches(), pipeline.close)


@functools.cache
def _fastest(job: Job, variant: str) -> int:
    """Try each number of decoding threads for a moment."""

    def rate(decoding: int) -> float:
        pipeline = Pipeline(job, decoder(variant, job.device), decoding)
        delivered = pipeline.batches()
        try:
            for _ in range(2 * decoding):
                next(delivered)
            begin, taken = time.perf_counter(), 0
            while time.perf_counter() < begin + TRIAL_S:
                next(delivered)
                taken += 1
            return taken / (time.perf_counter() - begin)
        finally:
            pipeline.close()

    return max((number for number in DECODING_THREADS if number <= job.threads), key=rate)


class Pipeline:
    """Threads that read, and ``decoding`` threads that decode, crop, resize and normalize."""

    def __init__(self, job: Job, decode: Decode, decoding: int) -> None:
        self._job = job
        self._decode = decode
        self._device = torch.device(job.device)
        self._files, self._labels = job.files()
        self._ahead = decoding * _AHEAD
        self._reading = ThreadPoolExecutor(job.threads, thread_name_prefix="read")
        self._decoding = ThreadPoolExecutor(decoding, thread_name_prefix="decode")
        # Made on the host: a copy from there has ended before any stream reads it.
        self._normal = [(255 * torch.tensor(values)).view(1, 3, 1, 1).to(self._device) for values in (MEAN, STD)]
        self._random = np.random.default_rng(job.seed)
        self._lock = threading.Lock()  # guards the draws
        self._own = threading.local()  # a stream of each thread that decodes

    def batches(self) -> Generator[tuple[torch.Tensor, torch.Tensor], None, None]:
        """Yield images and labels on the device, in order; raise errors of threads."""
        chosen = self._choose()
        asked: deque[Future[Any]] = deque()
        while True:
            for indices in itertools.islice(chosen, self._ahead - len(asked)):
                files = [self._reading.submit(_read, self._files[index]) for index in indices]
                asked.append(self._decoding.submit(self._batch, indices, files))
            if not asked:
                return
            images, labels, ready = asked.popleft().result()
            if ready is not None:
                stream = torch.cuda.current_stream(self._device)
                stream.wait_event(ready)
                images.record_stream(stream)
                labels.record_stream(stream)
            yield images, labels

    def close(self) -> None:
        """End all threads; blocks until they have gone."""
        self._decoding.shutdown(cancel_futures=True)
        self._reading.shutdown(cancel_futures=True)

    def _choose(self) -> Iterator[list[int]]:
        count, size = len(self._files), self._job.batch_size
        if not self._job.train:
            yield from (list(range(first, min(first + size, count))) for first in range(0, count, size))
            return
        draws = iter(EndlessDraws(range(count), ENDLESS, self._job.seed))
        while True:
            yield list(itertools.islice(draws, size))

    def _batch(self, indices: list[int], files: list[Future[torch.Tensor]]) -> tuple[Any, Any, Any]:
        """Make a batch on this thread's stream; returns images, labels and the event after them."""
        on_gpu = self._device.type == "cuda"
        if on_gpu and not hasattr(self._own, "stream"):
            self._own.stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._own.stream) if on_gpu else nullcontext():
            images = self._make(self._decode([file.result() for file in files]))
            labels = torch.tensor([self._labels[index] for index in indices]).to(self._device)
            ready = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
            if ready is not None:
                ready.record()
            return images, labels, ready

    def _make(self, decoded: Sequence[torch.Tensor]) -> torch.Tensor:
        """Crop, resize, flip and normalize."""
        sizes = np.array([image.shape[1:] for image in decoded])
        boxes = np.concatenate([np.zeros_like(sizes), sizes], 1)
        if self._job.train:
            with self._lock:
                boxes = crop_boxes(sizes, self._random)
                flips = torch.from_numpy(self._random.random(len(decoded)) < 0.5).to(self._device)
        out = torch.empty(len(decoded), 3, SIDE, SIDE, device=self._device)
        for one, image, (top, left, height, width) in zip(out, decoded, boxes.tolist(), strict=True):
            crop = image[None, :, top : top + height, left : left + width].float()
            one.copy_(functional.interpolate(crop, (SIDE, SIDE), mode="bilinear", antialias=True)[0])
        if self._job.train:
            out = torch.where(flips.view(-1, 1, 1, 1), out.flip(-1), out)
        mean, deviation = self._normal
        return in_model_layout((out - mean) / deviation)


def crop_boxes(sizes: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.int64]:
    """Draw boxes as torchvision's RandomResizedCrop does.

    Args:
        sizes: ``(N, 2)`` heights and widths.
        random: Draws.

    Returns:
        ``(N, 4)``: top, left, height and width.
    """
    count = len(sizes)
    high, wide = sizes[:, 0, None], sizes[:, 1, None]
    area = high * wide * random.uniform(0.08, 1.0, (count, _TRIES))
    aspect = np.exp(random.uniform(math.log(3 / 4), math.log(4 / 3), (count, _TRIES)))
    widths, heights = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
    fits = (widths > 0) & (widths <= wide) & (heights > 0) & (heights <= high)
    first = fits.argmax(1)
    rows = np.arange(count)
    size = np.stack([heights[rows, first], widths[rows, first]], 1).astype(np.int64)
    central = np.minimum(sizes, np.rint(sizes[:, ::-1] * 4 / 3).astype(np.int64))
    found = fits.any(1, keepdims=True)
    size = np.where(found, size, central)
    room = sizes - size
    corner = np.where(found, random.integers(0, room + 1), room // 2)
    return np.concatenate([corner, size], 1)


def _read(path: str) -> torch.Tensor:
    return torch.from_numpy(np.fromfile(path, np.uint8))


def _smallest() -> bytes:
    """Return a JPEG file of a few pixels."""
    out = io.BytesIO()
    Image.new("RGB", (16, 16)).save(out, "JPEG")
    return out.getvalue()
