"""Test the kernels that decode JPEG files, on the CPU."""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from backends import simulated
from decode_on_cpu import KernelsOnCpu, kernels_fixture, pool_fixture
from native_shim import CSRC
from photos import jpeg
from PIL import Image
from stageable import KINDS, QUANTIZATION, noise
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, ToTensor

from fastload import FastLoader, _core, loader_state
from fastload.device.decode import files as decode
from fastload.device.decode.choice import DecodeChoice
from fastload.device.decode.policy import DecodePolicy
from fastload.memory.buffers import BufferPool
from fastload.native import pipeline as decode_pipeline
from fastload.native.pipeline import DECODING
from fastload.options import Options
from fastload.python_samples.odd_samples import OddSamples

kernels, pool = kernels_fixture, pool_fixture

SIDE = 32
RULES = [
    ("bilinear", "horizontal_first"),
    ("lanczos", "tall_vertical_first"),
    ("bicubic", "sliver_vertical_first"),
    ("nearest", "horizontal_first"),
]


def files() -> list[bytes]:
    found = []
    for number, kind in enumerate([*KINDS, KINDS[0]]):
        image = noise(120 + 7 * number, 140 + number, number)
        data = io.BytesIO()
        (image.convert("L") if number == len(KINDS) else image).save(data, "JPEG", **kind)
        found.append(data.getvalue())
    return found


FILES = files()
SMALL = jpeg(1, 20, 20)
PROGRESSIVE = next(number for number, kind in enumerate(KINDS) if kind.get("progressive"))


def geometry(seed: int | None) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Random crops and flips; without a seed, whole images."""
    if seed is None:
        return np.array([[0, 0, 0, 0, SIDE, SIDE, 0, 0, SIDE, SIDE, 0, 0]] * len(FILES), np.int32)
    rng = np.random.default_rng(seed)
    rows = []
    for number, data in enumerate(FILES):
        width, height = Image.open(io.BytesIO(data)).size
        top, left = rng.integers(0, height // 2), rng.integers(0, width // 2)
        size = rng.integers(9, height - top + 1), 9 if number == 1 else rng.integers(9, width - left + 1)
        rows.append([top, left, *size, SIDE, SIDE, 0, 0, SIDE, SIDE, rng.integers(2), rng.integers(2)])
    return np.array(rows, np.int32)


def room() -> torch.Tensor:
    return torch.full((len(FILES), SIDE, SIDE, 3), 7, dtype=torch.uint8)


class Staged:
    """The files of a batch, staged from the second visit on."""

    def __init__(
        self,
        pool: _core.Pool,
        crops: int | np.ndarray[Any, np.dtype[np.int32]] | None,
        *,
        nbytes: int = 1 << 20,
        first: bytes = FILES[0],
        left: int = 0,
        **options: Any,
    ) -> None:
        index, files = _core.JpegIndex(1 << 20, whole=True), [first, *FILES[1:]]
        crops = crops if isinstance(crops, np.ndarray) else geometry(crops)
        if left:
            crops[0, 1:4] = left, 8, 64
        self.want, self.pixels = room(), room()
        pool.submit(files, self.want, geometry=crops, index=index, **options).wait()
        self.memory = torch.zeros(nbytes, dtype=torch.uint8)
        self.staging = _core.Staging(self.memory, len(FILES))
        job = pool.submit(files, self.pixels, geometry=crops, index=index, staging=self.staging, **options)
        job.wait()
        assert set(job.statuses()) == {0}
        self.is_staged = [flag != 0 for flag in self.staging.has()]

    def same(self) -> list[bool]:
        return [torch.equal(a, b) for a, b in zip(self.pixels, self.want, strict=True)]


def test_the_core_has_the_kernels_of_this_checkout():
    texts = {path.name: path.read_text() for path in (CSRC / "gpu" / "kernels").iterdir()}
    assert {name: _core.kernel_source(name) for name in texts} == texts, "make setup builds the core"
    with pytest.raises(ValueError, match="but there is no none"):
        _core.kernel_source("none.cu")


@pytest.mark.parametrize(("filter", "pass_rule"), RULES)
def test_same_bits_as_on_threads(kernels, pool, filter, pass_rule):
    staged = Staged(pool, len(filter), filter=filter, pass_rule=pass_rule)
    assert all(staged.is_staged)
    assert not any(staged.same())
    assert kernels.decode(staged.staging, staged.memory, staged.pixels, len(FILES)) == []
    assert all(staged.same())


def test_parts_of_a_batch(kernels, pool, monkeypatch):
    """An image each, one of which has its columns resized first."""
    monkeypatch.setattr(decode, "SCRATCH_MAX_BYTES", 1)
    staged = Staged(pool, 7, filter="lanczos", pass_rule="tall_vertical_first")
    assert kernels.decode(staged.staging, staged.memory, staged.pixels, len(FILES)) == []
    assert all(staged.same())
    staged.memory[_core.Staging.bytes_per_image + QUANTIZATION :][:128].view(torch.int16)[:] = 1 << 14
    assert kernels.decode(staged.staging, staged.memory, staged.pixels, len(FILES)) == [1]


@pytest.mark.parametrize("corner", ["first", "last"])
def test_pixels_at_edges(kernels, pool, corner):
    """Where chroma has no neighbour; not resized, so that no weight is small."""
    crops = geometry(None)
    for row, data in zip(crops, FILES, strict=True):
        width, height = Image.open(io.BytesIO(data)).size
        row[:4] = (0, 0, SIDE, SIDE) if corner == "first" else (height - SIDE, width - SIDE, SIDE, SIDE)
    staged = Staged(pool, crops)
    assert kernels.decode(staged.staging, staged.memory, staged.pixels, len(FILES)) == []
    assert all(staged.same())


class Views:
    """Pairs of images, staged as views of a file."""

    def __init__(self, pool: _core.Pool, files: list[bytes]) -> None:
        index, count = _core.JpegIndex(1 << 20, whole=True), len(files)
        crops = np.concatenate([geometry(7)[: count // 2], geometry(8)[: count // 2]])
        crops = crops.reshape(2, count // 2, 12).transpose(1, 0, 2).reshape(count, 12).copy()
        shape = (count, SIDE, SIDE, 3)
        self.want, self.pixels = torch.zeros(shape, dtype=torch.uint8), torch.zeros(shape, dtype=torch.uint8)
        pool.submit(files, self.want, geometry=crops, index=index).wait()
        self.memory = torch.zeros(1 << 21, dtype=torch.uint8)
        self.staging = _core.Staging(self.memory, count, 2)
        pool.submit(files, self.pixels, geometry=crops, index=index, staging=self.staging).wait()


def test_views_of_a_file_share_its_data(kernels, pool):
    views = Views(pool, [file for file in FILES for _ in range(2)])
    has = views.staging.has()
    assert has == b"\1" * (2 * len(FILES))
    for first in range(0, len(has), 2):
        assert views.staging.owner(first) == views.staging.owner(first + 1) in (first, first + 1)
    scan_of(views.memory, views.staging.owner(4)).fill_(255)
    kept = views.staging.owner(0)
    views.staging.remove(kept)  # its pixels only: the other view needs its data
    assert kernels.decode(views.staging, views.memory, views.pixels, len(has)) == [4, 5]
    same = [torch.equal(a, b) for a, b in zip(views.pixels, views.want, strict=True)]
    assert same == [number not in (4, 5, kept) for number in range(len(has))]


def test_images_that_are_not_staged_are_nothing_for_the_kernels(pool):
    """Whatever was in the memory before."""
    memory, pixels = torch.full((1 << 18,), 255, dtype=torch.uint8), torch.zeros(3, SIDE, SIDE, 3, dtype=torch.uint8)
    staging = _core.Staging(memory, 3, 1, "find")
    pool.submit([FILES[0], b"no image", FILES[1]], pixels, geometry=geometry(7)[:3], staging=staging).wait()
    assert staging.has() == b"\1\0\1"
    staging.remove(0)
    staging.finish(1 << 28)
    assert staging.has() == b"\0\0\1"
    assert not memory[: 2 * staging.bytes_per_image].any()


def test_images_in_a_row_of_other_files_have_their_own_data(kernels, pool):
    views = Views(pool, [FILES[number % 5] for number in range(8)])
    assert [views.staging.owner(number) for number in range(8)] == [*range(8)]
    assert kernels.decode(views.staging, views.memory, views.pixels, 8) == []
    assert torch.equal(views.pixels, views.want)


def test_files_without_room_are_decoded_by_the_threads(kernels, pool):
    staged = Staged(pool, 2, nbytes=len(FILES) * _core.Staging.bytes_per_image + 30_000)
    assert 0 < sum(staged.is_staged) < len(FILES) - 1
    assert staged.staging.wanted > len(staged.memory)
    assert kernels.decode(staged.staging, staged.memory, staged.pixels, len(FILES)) == []
    assert all(staged.same())


def test_large_files_that_are_never_staged_ask_for_little_memory(kernels, pool):
    file = io.BytesIO()
    noise(1300, 1300, 1).save(file, "JPEG", quality=95, keep_rgb=True)
    assert len(file.getvalue()) > 1 << 20
    views = Views(pool, [file.getvalue()] * 2)
    assert views.staging.has() == bytes(2)
    assert torch.equal(views.pixels, views.want)
    assert 0 < views.staging.wanted <= 2 * (256 << 10)


def test_large_files_are_staged_though_they_were_closed_for_the_draws(kernels, pool, tmp_path):
    file = tmp_path / "large.jpg"
    noise(1300, 1300, 1).save(file, quality=95)
    assert file.stat().st_size > 1 << 20
    index, shape = _core.JpegIndex(1 << 20, whole=True), (4, SIDE, SIDE, 3)
    want, pixels = torch.zeros(shape, dtype=torch.uint8), torch.zeros(shape, dtype=torch.uint8)
    plan = _core.DrawPlan()
    plan.add(
        "random_resized_crop", height=SIDE, width=SIDE, scale=(0.08, 1.0), ratio=(0.75, 1.5), log_ratio=(-0.3, 0.4)
    )
    state = torch.Generator().manual_seed(1).get_state().numpy().tobytes()
    pool.submit([file] * 4, want, index=index, plan=plan, stream=_core.RandomStream(state)).wait()
    memory = torch.zeros(1 << 24, dtype=torch.uint8)
    staging = _core.Staging(memory, 4)
    options: dict[str, Any] = {"plan": plan, "stream": _core.RandomStream(state)}
    pool.submit([file] * 4, pixels, index=index, staging=staging, **options).wait()
    assert staging.has() == b"\1" * 4
    assert kernels.decode(staging, memory, pixels, 4) == []
    assert torch.equal(pixels, want)


def test_large_files_that_changed_before_they_were_opened_again_are_not_staged(kernels, pool, tmp_path):
    file = tmp_path / "large.jpg"
    noise(1300, 1300, 1).save(file, quality=95)
    index, out = _core.JpegIndex(1 << 20, whole=True), torch.zeros((1, SIDE, SIDE, 3), dtype=torch.uint8)
    crop = np.array([[0, 0, 0, 0, SIDE, SIDE, 0, 0, SIDE, SIDE, 0, 0]], np.int32)
    pool.submit([file], out, geometry=crop, index=index).wait()
    plan = _core.DrawPlan()
    plan.add(
        "random_resized_crop", height=SIDE, width=SIDE, scale=(0.08, 1.0), ratio=(0.75, 1.5), log_ratio=(-0.3, 0.4)
    )
    stream = _core.RandomStream(torch.Generator().manual_seed(1).get_state().numpy().tobytes())
    first = pool.submit([tmp_path / "missing"], out.clone(), plan=plan, stream=stream)  # holds up the stream's draws
    assert first.wait(30.0) == "requested"
    staging = _core.Staging(torch.zeros(1 << 24, dtype=torch.uint8), 1)
    job = pool.submit([file], out, plan=plan, stream=stream, index=index, staging=staging)
    assert job.wait(0.3) == "timeout"
    os.utime(file, ns=(1, 1))
    first.cancel()
    job.wait(10.0)
    assert staging.has() == b"\0"
    job.cancel()


def test_what_is_taken_out_is_left_alone(kernels, pool):
    staged = Staged(pool, 3)
    staged.staging.remove(0)
    assert kernels.decode(staged.staging, staged.memory, staged.pixels, len(FILES)) == []
    assert staged.same() == [False, *[True] * (len(FILES) - 1)]
    assert set(staged.pixels[0].flatten().tolist()) == {7}
    with pytest.raises(IndexError, match="out of range"):
        staged.staging.remove(len(FILES))


def scan_of(memory: torch.Tensor, image: int) -> torch.Tensor:
    """The bytes of an image's scan, as staged."""
    at = image * _core.Staging.bytes_per_image
    begin, size = memory[at : at + 8].view(torch.int32).tolist()
    return memory[begin : begin + size]


@pytest.mark.parametrize("seed", range(4))
def test_hostile_bits_are_refused_and_nothing_else_is_written(kernels, pool, seed):
    staged = Staged(pool, 4)
    generator = torch.Generator().manual_seed(seed)
    hostile = [number for number in range(0, len(FILES), 1 + seed % 2) if number != PROGRESSIVE]
    for number in hostile:
        scan = scan_of(staged.memory, number)
        scan.copy_(
            torch.randint(256, scan.shape, dtype=torch.uint8, generator=generator) if seed else torch.tensor(255)
        )
    assert kernels.decode(staged.staging, staged.memory, staged.pixels, len(FILES)) == hostile
    assert all(same for number, same in enumerate(staged.same()) if number not in hostile)


def test_a_segment_that_begins_elsewhere_is_refused(kernels, pool):
    """As if a point of the index were a bit, or a level, off."""
    staged = Staged(pool, None)
    for number, at in ((0, 12), (1, 24 + 4), (2, 36)):  # the second segment's bit; the third's predictor; its row's end
        where = number * _core.Staging.bytes_per_image + 8
        points = int(staged.memory[where : where + 4].view(torch.int32))
        staged.memory[points + at] ^= 1
    assert kernels.decode(staged.staging, staged.memory, staged.pixels, len(FILES)) == [0, 1, 2]


def gray(levels: np.ndarray[Any, Any]) -> bytes:
    """A file whose coefficients are those of the levels, as its quantization is 1."""
    data = io.BytesIO()
    Image.fromarray(levels.astype(np.uint8)).save(data, "JPEG", quality=100)
    return data.getvalue()


FLAT = gray(np.full((96, 96), 132))  # each block has one coefficient, of 32
DARK = gray(np.full((96, 96), 124))  # of -32
DOTS = gray(np.where(np.indices((96, 96)).sum(0) % 8 + np.indices((96, 96))[0] % 8 == 3, 255, 128))


# What fits again once it has overflowed; the first pass's results alone; the second pass's alone.
@pytest.mark.parametrize(("file", "factor"), [(FLAT, 1 << 14), (DARK, 1 << 14), (FLAT, 64), (DARK, 64), (DOTS, 8)])
def test_coefficients_out_of_range_are_refused(kernels, pool, file, factor):
    """As the decode threads refuse them, which leave such files to libjpeg-turbo."""
    staged = Staged(pool, None, first=file)
    assert kernels.decode(staged.staging, staged.memory, staged.pixels, len(FILES)) == []
    staged.memory[QUANTIZATION : QUANTIZATION + 128].view(torch.int16)[:] = factor
    assert kernels.decode(staged.staging, staged.memory, staged.pixels, len(FILES)) == [0]


def test_levels_of_more_than_16_bits_are_refused(kernels, pool):
    """In a segment alone, which is not compared with others."""
    stripe = np.full((8, 4096), 128)
    stripe[:, -8:] = 255  # whose level is 1016 above the others
    staged = Staged(pool, None, first=gray(stripe), left=4096 - 64)
    points = int(staged.memory[8:12].view(torch.int32))
    level = staged.memory[points + 4 : points + 6].view(torch.int16)
    assert staged.is_staged[0]
    assert level == 0
    staged.memory[QUANTIZATION : QUANTIZATION + 2] = 0  # so that no result is out of range
    level[0] = 32000
    assert kernels.decode(staged.staging, staged.memory, staged.pixels, len(FILES)) == [0]


def test_a_segment_that_begins_behind_the_data_is_refused(kernels, pool):
    staged = Staged(pool, None)
    points = int(staged.memory[8:12].view(torch.int32))
    staged.memory[points + 12 : points + 16].view(torch.int32)[0] = 0x7FFFFFF0
    assert kernels.decode(staged.staging, staged.memory, staged.pixels, len(FILES)) == [0]


def test_values_behind_a_block_are_not_stored(kernels, pool):
    """The last block's, behind which another's memory begins."""
    file, index = gray(np.tile(np.arange(72) * 3, (64, 1))), _core.JpegIndex(1 << 20, whole=True)
    memory, pixels = torch.zeros(1 << 16, dtype=torch.uint8), torch.zeros(1, 8, 8, 3, dtype=torch.uint8)
    crop, staging = np.array([[0] * 12], np.int32), _core.Staging(memory, 1)
    crop[0, [4, 5, 8, 9]] = 8
    pool.submit([file], pixels, geometry=crop, index=index).wait()
    pool.submit([file], pixels, geometry=crop, index=index, staging=staging).wait()
    scan, points = scan_of(memory, 0), int(memory[8:12].view(torch.int32))
    last = int(memory[points + 12 * (4 * 7 + 2) :][:4].view(torch.int32))  # a segment of one block
    # The shortest code, then 15 zeros and a value of one bit again and again: a code of Pillow's usual table.
    bits = "00" + "11111111111101011" * 5
    whole = "".join(f"{byte:08b}" for byte in scan.tolist())[:last] + bits
    changed = torch.tensor([int(whole[i : i + 8].ljust(8, "0"), 2) for i in range(0, len(whole), 8)], dtype=torch.uint8)
    begin = int(memory[0:4].view(torch.int32))
    memory[begin : begin + len(changed)] = changed
    memory[4:8].view(torch.int32)[0] = len(changed)
    assert kernels.decode(staging, memory, pixels, 1) == [0]


def test_memory_has_to_fit():
    with pytest.raises(ValueError, match="room for its images' numbers"):
        _core.Staging(torch.zeros(64, dtype=torch.uint8), 1)
    with pytest.raises(ValueError, match="aligned to 16 bytes"):
        _core.Staging(torch.zeros(1 << 14, dtype=torch.uint8)[1:], 1)


def test_gpu_needs_one_and_the_native_engine(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.jpg").write_bytes(FILES[0])
    dataset = ImageFolder(tmp_path, Compose([RandomResizedCrop(8), ToTensor()]))
    with pytest.raises(ValueError, match="decode='gpu', but batches go to cpu, and the kernels are CUDA's"):
        FastLoader(dataset, num_workers=1, device="cpu", decode="gpu")
    with pytest.raises(ValueError, match=r"decode='gpu', but .* is not known"):
        FastLoader([1, 2], num_workers=1, device="cpu", decode="gpu")


def test_decode_is_one_of_three():
    with pytest.raises(ValueError, match="decode must be 'auto', 'cpu' or 'gpu', got 'cuda'"):
        Options(decode="cuda")  # type: ignore[arg-type]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What compiling a file returns, or raises; or an event first, which it waits for."""
    made: dict[str, Any] = {file: {name: name for name in names} for file, names in decode.KERNELS.items()}

    def compile_one(index: int, file: str) -> Any:
        if isinstance(made[file], threading.Event):
            made[file].wait()
            return {name: name for name in decode.KERNELS[file]}
        if isinstance(made[file], Exception):
            raise made[file]
        return made[file]

    monkeypatch.setattr(decode, "_kernels", compile_one)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(decode, "BufferPool", lambda: BufferPool(lambda nbytes: torch.empty(nbytes, dtype=torch.uint8)))
    return made


DEVICE = torch.device("cuda", 0)


def choice_of(state: loader_state.LoaderState, how: str) -> DecodeChoice | None:
    loader = FastLoader([0], device="cpu")
    loader.decode = how
    return state.decode_choice(loader, mock.Mock(device=DEVICE, not_on_gpu=None), None)


def test_kernels_that_cannot_be_compiled_leave_decoding_to_the_threads(compiled, recwarn):
    compiled["decode.cu"] = ImportError("no cuda.core")
    why = "the kernels cannot be compiled: ImportError: no cuda.core"
    with pytest.raises(RuntimeError, match=f"decode='gpu' cannot be used: {why}"):
        choice_of(loader_state.LoaderState(), "gpu")
    state = loader_state.LoaderState()
    choice = choice_of(state, "auto")
    choice.note(mock.Mock(staged=None), 0.0, 1)
    finish_compiling()
    assert choice.files(torch.zeros(1), lambda pixels: [pixels]) is None
    assert state.not_decoding_because(DEVICE) == state.decode_policies[DEVICE].why == why
    assert choice_of(state, "auto") is None
    assert choice_of(state, "cpu") is None
    assert not [warning for warning in recwarn if "compiled" in str(warning.message)]  # the plan says it


def finish_compiling() -> None:
    for thread in threading.enumerate():
        if thread.name == "fastload-nvrtc":
            thread.join(20)


def test_threads_decode_while_kernels_are_compiled(compiled):
    """It begins with the first batch that was made; the policy learns nothing meanwhile."""
    compiled["decode.cu"] = may_end = threading.Event()
    state, noted = loader_state.LoaderState(), mock.Mock()
    choice = choice_of(state, "auto")
    state.decode_policies[DEVICE].note = noted
    pixels = torch.zeros(2, 3, 3, 3, dtype=torch.uint8)
    for batch in range(3):
        assert choice.files(pixels, lambda pixels: [pixels]) is None
        assert state.compiles(DEVICE) is (batch > 0)
        assert choice.note(mock.Mock(staged=None), 0.0, 1) == 0
    assert noted.call_count == 0
    may_end.set()
    finish_compiling()
    assert not state.compiles(DEVICE)
    assert isinstance(choice.files(pixels, lambda pixels: [pixels]), decode.StagedFiles)
    assert choice_of(loader_state.LoaderState(), "gpu") is not None  # waits


def test_batches_go_to_the_gpu_once_the_kernel_for_steps_is_there_too(compiled):
    """A batch with steps that was staged before would be made anew, in Python."""
    compiled["steps.cu"] = may_end = threading.Event()
    choice = choice_of(loader_state.LoaderState(), "auto")
    pixels = torch.zeros(2, 3, 3, 3, dtype=torch.uint8)
    for _ in range(3):
        assert choice.files(pixels, lambda pixels: [pixels]) is None
        choice.note(mock.Mock(staged=None), 0.0, 1)
        time.sleep(0.05)
    may_end.set()
    finish_compiling()
    assert choice.files(pixels, lambda pixels: [pixels]) is not None


def start(decoder: decode.Decoder, *, steps: bool) -> list[int]:
    """Launch a batch, and return which images are bad."""
    run = decode.DecodeRun(decoder, torch.zeros(16, dtype=torch.uint8), torch.zeros(2, dtype=torch.int32))
    run._decode = lambda layout, files, pixels: torch.zeros(2, dtype=torch.int32)  # type: ignore[method-assign]
    layout = decode.StagedLayout(b"\1", 16, (0,) * 5, (0, 0), [(0,) * 12 + (steps,)])
    run.start(layout, torch.zeros(2, 3, 3, 3, dtype=torch.uint8), None, learns=False)
    return run.bad.tolist()


@pytest.mark.parametrize("how", ["auto", "gpu"])
def test_only_batches_with_steps_need_the_kernel_for_steps(compiled, monkeypatch, how, recwarn):
    """If it cannot be compiled, the first one leaves all to the threads."""
    compiled["steps.cu"] = ValueError("odd")
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: mock.Mock())
    monkeypatch.setattr(decode.Decoder, "memory", lambda self, name, nbytes: torch.zeros(nbytes, dtype=torch.uint8))
    state, why = loader_state.LoaderState(), "the kernel for transforms cannot be compiled: ValueError: odd"
    choice = choice_of(state, how)
    if how == "auto":
        choice.note(mock.Mock(staged=None), 0.0, 1)
    finish_compiling()
    decoder = state.decoder(how, DEVICE)
    assert decoder._compiled.get("steps.cu") == (why if how == "auto" else None)  # not before it is needed
    assert start(decoder, steps=False) == [0, 0]
    assert decoder.gave_up is None
    assert start(decoder, steps=True) == [1, 1]
    assert [str(warning.message) for warning in recwarn] == [f"decode threads decode every image: {why}"]
    assert state.not_decoding_because(DEVICE) == why
    for each in (choice, choice_of(state, how)):
        assert each.files(torch.zeros(2, 3, 3, 3), lambda pixels: [pixels]) is None


def test_a_decoder_is_gone_with_its_loader(compiled):
    state = loader_state.LoaderState()
    assert choice_of(state, "gpu") is not None
    gone = weakref.ref(state.decoder("gpu", DEVICE))
    gc.disable()
    try:
        state.close()
        assert gone() is None
    finally:
        gc.enable()


class HostDecoder:
    """Decodes on the CPU what a GPU would."""

    gave_up, is_compiling = None, False

    def __init__(self, kernels: KernelsOnCpu) -> None:
        self.kernels = kernels

    def is_ready(self) -> bool:
        return True

    def to_learn(self) -> None:
        return None

    def files(self, pixels: torch.Tensor, by_view: Any, new_file: str, most_samples: int | None = None) -> HostStaged:
        return HostStaged(self.kernels, pixels, by_view, new_file)


class HostStaged:
    decode_s = 0.0
    most_samples = None
    kept = 0
    is_decoded = False  # so that the next batch may be issued

    def __init__(
        self,
        kernels: KernelsOnCpu,
        pixels: torch.Tensor,
        by_view: Any = lambda pixels: [pixels],
        new_file: Any = "refuse",
    ) -> None:
        self.new_file = new_file
        self.kernels, self.pixels, self.memory = kernels, pixels, torch.zeros(1 << 21, dtype=torch.uint8)
        self.by_view, self._parts, self.nbytes = by_view, by_view(pixels), pixels.nbytes
        self.images = len(self._parts[0]) * len(self._parts)
        self.staging = _core.Staging(self.memory, self.images, len(self._parts), new_file)

    views = decode.StagedFiles.views
    remove = decode.StagedFiles.remove

    @property
    def decoded(self) -> tuple[str, int, int]:
        return self.new_file, self.staging.has().count(1) // len(self._parts), self.staging.new_files

    def is_pinned(self) -> bool:
        return False

    def to(self, device: torch.device, *, non_blocking: bool = False, timing: object = None) -> torch.Tensor:
        if any(self.staging.has()):
            assert self.kernels.decode(self.staging, self.memory, self.pixels, self.images) == []
        return self.pixels.clone()

    def failed(self) -> list[int]:
        return []


def test_a_loader_decodes_batches_here_and_there_with_the_same_bits(kernels, monkeypatch, tmp_path):
    (tmp_path / "a").mkdir()
    for number, file in enumerate(FILES):
        (tmp_path / "a" / f"{number}.jpg").write_bytes(file)
    dataset = ImageFolder(tmp_path, Compose([RandomResizedCrop(SIDE), ToTensor()]))
    device, noted, begun = simulated.install_native(monkeypatch), [], []
    turns = itertools.cycle(["find", "threads", "find", "find"])
    state = loader_state.LoaderState
    monkeypatch.setattr(state, "decoder", lambda *_: HostDecoder(kernels) if on_gpu else None)
    monkeypatch.setattr(DecodePolicy, "choose", lambda self: (next(turns), False))
    monkeypatch.setattr(DecodePolicy, "note", lambda self, batch, clock=None: noted.append(batch))
    monkeypatch.setattr(DecodePolicy, "begin", lambda self, clock=None: begun.append(len(noted)))
    made, loaders = {}, {}
    for on_gpu in (False, True):
        torch.manual_seed(3)
        loaders[on_gpu] = loader = FastLoader(dataset, batch_size=3, num_workers=2, shuffle=True, **device)
        made[on_gpu] = [images for _ in range(4) for images, _ in loader]
    assert all(map(torch.equal, made[False], made[True]))
    assert begun == [0, 3, 6, 9]
    assert len(noted) == 12
    assert all((batch.staged > 0) == (batch.side == "find") for batch in noted)
    assert {batch.side for batch in noted} == {"find", "threads"}
    assert next(batch.new for batch in noted if batch.staged) > 0
    assert [batch.interval_s > 0 for batch in noted] == [False, True, True] * 4
    assert all(0 < batch.work_s < 10 and batch.threads == 2 and batch.images == 3 for batch in noted)
    stats = loaders[True].stats()
    assert stats.gpu_images == sum(batch.staged for batch in noted)
    assert stats.gpu_images + stats.thread_images == stats.images == 36
    assert loaders[False].stats().gpu_images == 0


def test_the_index_learns_before_a_batch_is_waited_for(kernels, monkeypatch, tmp_path):
    (tmp_path / "a").mkdir()
    for number, file in enumerate(FILES):
        (tmp_path / "a" / f"{number}.jpg").write_bytes(file)
    device, asked = simulated.install_native(monkeypatch), []
    monkeypatch.setattr(loader_state.LoaderState, "decoder", lambda *_: HostDecoder(kernels))
    monkeypatch.setattr(DecodeChoice, "learn", lambda self, index, has_time: asked.append((index, has_time())))
    dataset = ImageFolder(tmp_path, Compose([RandomResizedCrop(SIDE), ToTensor()]))
    assert len([*FastLoader(dataset, batch_size=3, num_workers=2, **device)]) == 3
    assert len(asked) == 3
    assert len({id(index) for index, _ in asked}) == 1
    assert isinstance(asked[0][0], _core.JpegIndex)
    assert all(isinstance(has_time, bool) for _, has_time in asked)
    asked.clear()
    assert len([*FastLoader(dataset, batch_size=3, num_workers=2, max_index_bytes=0, **device)]) == 3
    assert asked == []


class TwoCrops:
    def __init__(self, *views: Any) -> None:
        self.first, self.second = views

    def __call__(self, x: Image.Image) -> list[torch.Tensor]:
        return [self.first(x), self.second(x)]


@pytest.mark.parametrize("second", [SIDE, 20])
def test_a_loader_decodes_views_with_the_same_bits(kernels, monkeypatch, tmp_path, second):
    (tmp_path / "a").mkdir()
    for number, file in enumerate(FILES):
        (tmp_path / "a" / f"{number}.jpg").write_bytes(file)
    views = [Compose([RandomResizedCrop(side), ToTensor()]) for side in (SIDE, second)]
    device, dataset = simulated.install_native(monkeypatch), ImageFolder(tmp_path, TwoCrops(*views))
    decoder = HostDecoder(kernels)
    monkeypatch.setattr(loader_state.LoaderState, "decoder", lambda *_: decoder if on_gpu else None)
    monkeypatch.setattr(DecodePolicy, "choose", lambda self: ("find", False))
    made = {}
    for on_gpu in (False, True):
        torch.manual_seed(3)
        loader = FastLoader(dataset, batch_size=3, num_workers=2, shuffle=True, **device)
        made[on_gpu] = [view for _ in range(3) for images, _ in loader for view in images]
    assert all(map(torch.equal, made[False], made[True]))
    assert loader.stats().gpu_images == 3 * len(FILES)


def test_another_batch_is_started_while_the_gpu_decodes(kernels, monkeypatch, tmp_path):
    """Unless the user's code, which may take long, has to say where its files are."""

    class Own(ImageFolder):
        def encoded(self, index):
            return self.samples[index]

    (tmp_path / "a").mkdir()
    for number, file in enumerate(FILES):
        (tmp_path / "a" / f"{number}.jpg").write_bytes(file)
    device = simulated.install_native(monkeypatch)
    decoder = HostDecoder(kernels)
    begun: list[int] = []
    seen: list[int] = []
    monkeypatch.setattr(decoder, "files", lambda pixels, *_: begun.append(1) or HostStaged(kernels, pixels))
    monkeypatch.setattr(HostStaged, "failed", lambda self: seen.append(len(begun)) or [])
    monkeypatch.setattr(loader_state.LoaderState, "decoder", lambda *_: decoder)
    monkeypatch.setattr(DecodePolicy, "choose", lambda self: ("find", False))
    for kind, most in ((ImageFolder, DECODING + 1), (Own, DECODING)):
        dataset = kind(tmp_path, Compose([RandomResizedCrop(SIDE), ToTensor()]))
        begun.clear()
        seen.clear()
        assert len([*FastLoader(dataset, batch_size=1, num_workers=4, **device)]) == len(FILES)
        assert seen[0] == most


class LateDecoder(HostDecoder):
    """Its kernels refuse some images, and tell what they were asked in which order."""

    def __init__(self, kernels: KernelsOnCpu, refused: Callable[[int], list[int]] = lambda batch: []) -> None:
        super().__init__(kernels)
        self.refused = refused
        self.asked: list[tuple[str, int]] = []
        self.batches = self.failures = 0

    def files(self, pixels: torch.Tensor, by_view: Any, new_file: str, most_samples: int | None = None) -> LateStaged:
        self.batches += 1
        return LateStaged(self, self.batches - 1, pixels, by_view)


class LateStaged(HostStaged):
    def __init__(self, decoder: LateDecoder, number: int, pixels: torch.Tensor, by_view: Any) -> None:
        super().__init__(decoder.kernels, pixels, by_view)
        self.decoder, self.number, self.images_to_fail = decoder, number, [*decoder.refused(number)]

    def to(self, device: torch.device, *, non_blocking: bool = False, timing: object = None) -> torch.Tensor:
        self.decoder.asked.append(("to", self.number))
        made = super().to(device)
        made[self.bad()] = 77
        return made

    def bad(self) -> list[int]:
        return [image for image in self.images_to_fail if self.staging.has()[image]]

    def failed(self) -> list[int]:
        self.decoder.asked.append(("failed", self.number))
        failed, self.images_to_fail = self.bad(), []
        self.decoder.failures += len(failed)
        return failed


def folder_of(root: Path, copies: int) -> ImageFolder:
    (root / "a").mkdir()
    for number in range(copies):
        for position, file in enumerate(FILES):
            (root / "a" / f"{number:02}-{position}.jpg").write_bytes(file)
    steps = [RandomResizedCrop(SIDE), RandomHorizontalFlip(), ToTensor()]
    return ImageFolder(root, Compose(steps))


def loaded_late(monkeypatch, device, dataset, decoder, num_workers=2, **options):
    monkeypatch.setattr(loader_state.LoaderState, "decoder", lambda *_: decoder)
    monkeypatch.setattr(DecodePolicy, "choose", lambda self: ("find", False))
    torch.manual_seed(3)
    return [images for images, _ in FastLoader(dataset, num_workers=num_workers, shuffle=True, **options, **device)]


def issue_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the threads time to complete the next batch."""
    issue = decode_pipeline.DecodePipeline._issue
    monkeypatch.setattr(decode_pipeline.DecodePipeline, "_issue", lambda *of: time.sleep(0.02) or issue(*of))


def test_the_next_batch_is_issued_before_the_one_that_is_waited_for_is_confirmed(kernels, monkeypatch, tmp_path):
    dataset, device = folder_of(tmp_path, 6), simulated.install_native(monkeypatch)
    want = loaded_late(monkeypatch, device, dataset, None, batch_size=3)
    decoder = LateDecoder(kernels)
    issue_slowly(monkeypatch)
    assert all(map(torch.equal, loaded_late(monkeypatch, device, dataset, decoder, batch_size=3), want))
    place = {asked: at for at, asked in enumerate(decoder.asked)}
    last = decoder.batches - 1
    assert all(place["to", number] < place["failed", number] for number in range(last + 1))
    assert all(place["failed", number] < place["to", number + 2] for number in range(last - 1))  # one at most
    assert sum(place["to", number + 1] < place["failed", number] for number in range(last)) > last // 2


def test_a_batch_that_nobody_waits_for_leaves_the_next_one_alone(kernels, monkeypatch, tmp_path):
    """On the device there is no more memory in use than without."""

    def poll(pipeline: Any, batch: Any, timeout_s: float) -> None:
        while not batch.made:
            time.sleep(0.001)

    dataset, device = folder_of(tmp_path, 6), simulated.install_native(monkeypatch)
    decoder = LateDecoder(kernels)
    issue_slowly(monkeypatch)
    monkeypatch.setattr(decode_pipeline.DecodePipeline, "_wait_for", poll)
    loaded_late(monkeypatch, device, dataset, decoder, batch_size=3)
    place = {asked: at for at, asked in enumerate(decoder.asked)}
    assert all(place["failed", number] < place["to", number + 1] for number in range(decoder.batches - 1))


@pytest.mark.parametrize("differs", [False, True])
@pytest.mark.parametrize("randomness", ["worker", "sample"])
def test_what_kernels_refuse_is_made_anew_though_the_next_batch_is_on_its_way(
    kernels, monkeypatch, tmp_path, randomness, differs
):
    """If Pillow reads a file otherwise, the next batch's draws are other ones."""
    dataset, device = folder_of(tmp_path, 6), simulated.install_native(monkeypatch)
    options = {"batch_size": 3, "randomness": randomness, "num_workers": 1}
    want = loaded_late(monkeypatch, device, dataset, None, **options)
    decoder = LateDecoder(kernels, lambda batch: [batch % 3, 2] if batch % 2 else [])
    issue_slowly(monkeypatch)
    if differs:
        monkeypatch.setattr(OddSamples, "drawn", lambda *_: None)
    assert all(map(torch.equal, loaded_late(monkeypatch, device, dataset, decoder, **options), want))
    assert decoder.failures > 5
    issued = [{number for kind, number in decoder.asked[:at] if kind == "to"} for at in range(len(decoder.asked))]
    assert all(number in before for (_, number), before in zip(decoder.asked, issued, strict=True) if _ == "failed")


@pytest.mark.parametrize("randomness", ["worker", "sample"])
def test_samples_are_made_in_python_in_their_batchs_turn(kernels, monkeypatch, tmp_path, randomness):
    dataset, device = folder_of(tmp_path, 6), simulated.install_native(monkeypatch)
    for path, _ in dataset.samples[::7]:
        Image.open(path).save(path, format="BMP")
    want = loaded_late(monkeypatch, device, dataset, None, batch_size=3, randomness=randomness)
    decoder, sample = LateDecoder(kernels), decode_pipeline.DecodePipeline._in_python
    issue_slowly(monkeypatch)

    def noted(self: Any, batch: Any, *others: Any) -> Any:
        decoder.asked.append(("python", batch.number))
        return sample(self, batch, *others)

    monkeypatch.setattr(decode_pipeline.DecodePipeline, "_in_python", noted)
    assert all(
        map(torch.equal, loaded_late(monkeypatch, device, dataset, decoder, batch_size=3, randomness=randomness), want)
    )
    place = {asked: at for at, asked in enumerate(decoder.asked)}
    turns = [(at, place["failed", number - 1]) for (kind, number), at in place.items() if kind == "python" and number]
    assert len(turns) > 4
    assert all(before < at for at, before in turns)


@pytest.mark.parametrize("mode", ["skip", "replace"])
@pytest.mark.parametrize("randomness", ["worker", "sample"])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_samples_that_raise_leave_the_rest_of_their_batch_to_the_gpu(
    kernels, monkeypatch, tmp_path, mode, randomness, num_workers
):
    dataset, device = folder_of(tmp_path, 6), simulated.install_native(monkeypatch)
    dataset.transform = Compose([RandomHorizontalFlip(), RandomCrop(SIDE), ToTensor()])
    for number, (path, _) in enumerate(dataset.samples):
        data = Path(path).read_bytes()
        if number % 5 == 2:  # cut, none, or so small that it is refused once it has drawn
            Path(path).write_bytes([data[: len(data) // 2], b"none", SMALL][number % 3])
    options = {"batch_size": 3, "randomness": randomness, "num_workers": num_workers}
    options |= {"on_error": mode, "max_errors": 1.0}
    want = loaded_late(monkeypatch, device, dataset, None, **options)
    decoder = LateDecoder(kernels, lambda batch: [0] if batch % 2 else [])
    issue_slowly(monkeypatch)
    made = loaded_late(monkeypatch, device, dataset, decoder, **options)
    assert len(made) == len(want)
    assert all(map(torch.equal, made, want))
    assert decoder.failures > 3


def test_a_batch_with_a_sample_that_cannot_be_located_is_not_issued(kernels, monkeypatch, tmp_path):
    class Own(ImageFolder):
        def encoded(self, index):
            return self.samples[index] if index != 31 else 1 / 0

    known, device = folder_of(tmp_path, 6), simulated.install_native(monkeypatch)
    monkeypatch.setattr(loader_state.LoaderState, "decoder", lambda *_: LateDecoder(kernels))
    monkeypatch.setattr(DecodePolicy, "choose", lambda self: ("find", False))
    issue_slowly(monkeypatch)
    iterator = iter(FastLoader(Own(tmp_path, known.transform), batch_size=3, num_workers=2, **device))
    assert len([*itertools.islice(iterator, 10)]) == 10
    with pytest.raises(ZeroDivisionError):
        next(iterator)


def test_a_batch_that_cannot_be_issued_early_is_issued_in_its_turn(kernels, monkeypatch, tmp_path):
    dataset, device = folder_of(tmp_path, 6), simulated.install_native(monkeypatch)
    want = loaded_late(monkeypatch, device, dataset, None, batch_size=3)
    decoder, issue, failed = LateDecoder(kernels), decode_pipeline.DecodePipeline._issue, []

    def fails_once(self: Any, batch: Any) -> None:
        if batch.number and batch.number not in failed:
            failed.append(batch.number)
            if not all(other.made for other in tuple(self._batches) if other.number < batch.number):
                raise torch.OutOfMemoryError("early")
        issue(self, batch)

    monkeypatch.setattr(decode_pipeline.DecodePipeline, "_issue", fails_once)
    assert all(map(torch.equal, loaded_late(monkeypatch, device, dataset, decoder, batch_size=3), want))
    assert len(failed) > 5
