"""Contenders of ``fastload bench decode``: from a JPEG file to a uint8 training crop.

Each contender handles all the files once per call. torchvision, DALI and the core read files, as training does; the
core and libjpeg-turbo alone also decode from memory, where nothing but decoding is compared.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torchvision import transforms

from fastload import _core
from fastload.engines.dialogue import converse
from fastload.pipeline.calibration import calibrate
from fastload.pipeline.random_stream import calibrate_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

SIDE = 224
SCALE = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
SEED = 0


class Crops:
    """RandomResizedCrop(224) and a flip of every file: the crops that torchvision draws from :data:`SEED`.

    Args:
        paths: JPEG files.
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
        self.geometry = self._draw()

    def _plan(self) -> _core.DrawPlan:
        plan = _core.DrawPlan()
        low, high = torch.log(torch.tensor(RATIO)).tolist()
        plan.add("random_resized_crop", height=SIDE, width=SIDE, scale=SCALE, ratio=RATIO, log_ratio=(low, high))
        plan.add("horizontal_flip", p=0.5)
        rule = calibrate_stream()
        if rule is None:
            raise RuntimeError(f"the core must draw as torch does, but does not as torch {torch.__version__} does")
        plan.set_uniform_rule(rule.fused, rule.excludes_upper)
        return plan

    def _draw(self) -> NDArray[np.int32]:
        with _core_pool(1) as pool:
            job = self._submit(pool, self.paths)
            geometry = [job.geometry(index) for index in range(len(self.paths))]
        return np.array(geometry, np.int32)

    def _submit(self, pool: _core.Pool, inputs: Sequence[Any], **how: Any) -> _core.Job:
        if "geometry" not in how:
            stream = _core.RandomStream(torch.Generator().manual_seed(SEED).get_state().numpy().tobytes())
            how |= {"plan": self._plan(), "stream": stream}
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

    def share_of_index(self) -> float:
        """Share of the files' bytes that ``fastload index`` writes."""
        points = [len(_core.index_points(os.fsencode(path), bytes(48))[2]) + 16 for path in self.paths]
        return sum(points) / sum(map(len, self.files))

    def core_in_flight(self, pool: _core.Pool, images: int, batch_size: int = 256, ahead: int = 3) -> None:
        """Run the core on at least ``images`` images, with several batches in flight.

        The native engine runs it the same way.
        """
        paths = (self.paths * -(-batch_size // len(self.paths)))[:batch_size]
        while len(self._outs) <= ahead:
            self._outs.append(np.zeros((batch_size, SIDE, SIDE, 3), np.uint8))
        plan = self._plan()
        stream = _core.RandomStream(torch.Generator().manual_seed(SEED).get_state().numpy().tobytes())
        jobs: list[_core.Job] = []
        for number in range(-(-images // batch_size)):
            if len(jobs) > ahead:
                _finish(jobs.pop(0), paths)
            out = self._outs[number % (ahead + 1)]
            jobs.append(pool.submit(paths, out, pass_rule=self._pass_rule, plan=plan, stream=stream))
        for job in jobs:
            _finish(job, paths)

    def core_from_memory(self, pool: _core.Pool, *, fast: bool = False, index: _core.JpegIndex | None = None) -> None:
        """The core, from bytes in memory to given crops."""
        self._submit(pool, self.files, geometry=self.geometry, fast=fast, index=index)

    def floor(self) -> None:
        """What libjpeg-turbo alone takes to decode the same regions from memory."""
        _core.decode_and_drop(self.files, self.geometry[:, :4].tolist())

    def check(self) -> None:
        """Compare the core with torchvision, bit for bit.

        Raises:
            RuntimeError: They differ.
        """
        expected: list[torch.Tensor] = []
        self.torchvision(expected)
        with _core_pool(1) as pool:
            for run in (self.core, self.core_from_memory, partial(self.core, index=self.index())):
                self.out[:] = 0
                run(pool)
                for index, tensor in enumerate(expected):
                    if not np.array_equal(self.out[index], tensor.permute(1, 2, 0).numpy()):
                        raise RuntimeError(f"the core's pixels of {self.paths[index]} are not torchvision's")

    def differences_of_fast(self) -> dict[str, float]:
        """How far ``fast=True`` is from the exact pixels, in steps of 255."""
        with _core_pool(1) as pool:
            self.core_from_memory(pool)
            exact = self.out.astype(np.int16)
            self.core_from_memory(pool, fast=True)
        difference = np.abs(self.out - exact)
        return {"mean": float(difference.mean()), "largest": int(difference.max())}


def _finish(job: _core.Job, paths: Sequence[str]) -> None:
    def refuse(sample: int) -> bytes:
        raise RuntimeError(f"every file must be one that the core decodes, got {paths[sample]}")

    converse(job, refuse)
    if any(job.statuses()):
        raise RuntimeError("every file must be one that the core decodes")


@contextlib.contextmanager
def _core_pool(threads: int) -> Iterator[_core.Pool]:
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
        batch_size=batch_size,
        num_threads=threads,
        device_id=None,
        seed=SEED,
        exec_async=False,
        exec_pipelined=False,
    )
    with pipeline:
        files, _ = fn.readers.file(files=list(paths), labels=list(range(len(paths))), name="reader")
        images = fn.decoders.image_random_crop(
            files, output_type=types.RGB, random_area=list(SCALE), random_aspect_ratio=list(RATIO)
        )
        images = fn.resize(images, size=(SIDE, SIDE), interp_type=types.INTERP_LINEAR)
        pipeline.set_outputs(fn.flip(images, horizontal=fn.random.coin_flip()))
    pipeline.build()
    rounds = len(paths) // batch_size

    def run() -> None:
        for _ in range(rounds):
            (images,) = pipeline.run()
            if images.at(0).shape != (SIDE, SIDE, 3):
                raise RuntimeError(f"DALI must give {SIDE}x{SIDE} crops, got {images.at(0).shape}")

    return run


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Keep this thread, and those that it starts, on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
