"""Test that iterators of one loader take turns with the memory of its decoder."""

from __future__ import annotations

import collections
import threading
import weakref
from typing import Any

import pytest
import torch

from fastload.device import nvrtc
from fastload.device.decode import files as decode
from fastload.memory.buffers import BufferPool

IMAGES, USED, BATCHES = 32, 300_000, 60


class Event:
    def __init__(self, **_: Any) -> None:
        pass

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


class Staging:
    """That of a batch whose files are all one number."""

    table_bytes, codes, wanted = 20_000, (0, 1), 1

    search, keeps = (0, 0, 0, 0, 0), (0, 0)

    def __init__(self, used: int) -> None:
        self.used, self.kept = used, 0

    def keep(self, bad: Any) -> None:
        self.kept += not bad.any()

    def has(self) -> bytes:
        return b"\1" * IMAGES

    def finish(self, _: int) -> list[tuple[Any, ...]]:
        return [(0, IMAGES, 0, 4, 1 << 16, 1 << 16, 0, 8, 8, 8, 8, False, False)] * 4


def decoder_on_host() -> Any:
    decoder: Any = object.__new__(decode.Decoder)
    decoder.device, decoder.waits = torch.device("cpu"), False
    decoder.kernels = {name: name for names in decode.KERNELS.values() for name in names}
    decoder._lock, decoder.turn, decoder.kept = threading.Lock(), threading.RLock(), None
    decoder._bytes_per_image, decoder._kept, decoder._pixel_bytes, decoder.gave_up = 1 << 15, {}, 0, None
    decoder._buffers = BufferPool(lambda nbytes: torch.empty(nbytes, dtype=torch.uint8))
    decoder._files_max, decoder._found = 1 << 20, collections.deque(maxlen=2)
    return decoder


def test_a_batchs_kernels_read_its_own_files(monkeypatch):
    """In the order in which they are launched, as a stream runs them."""
    decoder = decoder_on_host()
    mine, launched, others, raised = threading.local(), [], [], []

    def launch(kernel: str, *_: Any) -> None:
        launched.append(kernel)
        files = decoder._kept["files"]
        if {int(files[0]), int(files[mine.used - 1])} != {mine.number}:
            others.append(kernel)

    def decode_batches(number: int) -> None:
        mine.number = number
        try:
            for batch in range(BATCHES):
                staged = decoder.files(torch.zeros(IMAGES, 8, 8, 3, dtype=torch.uint8), lambda pixels: [pixels])
                mine.used = USED + 5_000 * batch + number  # so that it grows
                staged.staging = Staging(mine.used)
                staged._run._memory.fill_(number)
                staged.to(torch.device("cpu"))
        except Exception as error:  # the test fails
            raised.append(error)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(nvrtc, "launcher", lambda _: launch)
    threads = [threading.Thread(target=decode_batches, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert raised == []
    assert len(launched) == 3 * BATCHES * (1 + 4 * 4)
    assert others == []


def test_memory_has_room_for_somewhat_larger_batches(monkeypatch):
    decoder = decoder_on_host()
    first = decoder.memory("scratch", 1000)
    assert decoder.memory("scratch", 1490) is first
    assert decoder.memory("scratch", 1510).numel() == 2265
    monkeypatch.setattr(decode, "SCRATCH_MAX_BYTES", 2500)
    assert decoder.memory("scratch", 2400).numel() == 2500
    assert decoder.memory("scratch", 2600).numel() == 2600


def test_memory_has_no_room_to_spare_where_it_is_scarce(monkeypatch):
    def empty(nbytes, **options):
        if nbytes > 1000:
            raise torch.OutOfMemoryError
        return usual(nbytes, **options)

    usual, decoder = torch.empty, decoder_on_host()
    monkeypatch.setattr(torch, "empty", empty)
    assert decoder.memory("files", 1000).numel() == 1000


def test_room_for_files_grows_when_they_did_not_fit():
    decoder = decoder_on_host()
    for wanted, bytes_per_image in ((1 << 15, 1 << 15), (1 << 16, 81_920), (80_000, 81_920), (90_000, 112_500)):
        decoder.learn(2, 2 * wanted)
        assert decoder._bytes_per_image == bytes_per_image
    decoder.learn(2, 1 << 24)
    assert decoder._bytes_per_image == 1 << 19  # half of what a batch may take


@pytest.mark.parametrize("views", [1, 2])
def test_a_batch_of_more_images_than_a_launch_has_is_left_to_the_threads(views):
    pixels = torch.zeros(65_536, 1, 1, 3, dtype=torch.uint8)
    assert decoder_on_host().files(pixels, lambda pixels: [*pixels.chunk(views)]) is None


class Points:
    done = False


def test_found_points_are_noted_in_the_index_in_their_turn():
    decoder, points = decoder_on_host(), [Points() for _ in range(4)]
    assert decoder.to_learn() is None
    for one in points[:2]:
        decoder.found(one)
    assert decoder.to_learn() is decoder.to_learn() is points[0]
    points[0].done = True
    assert decoder.to_learn() is points[1]
    for one in points[2:]:  # one more than are kept
        decoder.found(one)
    assert decoder.to_learn() is points[2]


def test_memory_of_searches_is_freed_with_the_first_batch_without_new_files(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(nvrtc, "launcher", lambda _: lambda *_: None)
    decoder = decoder_on_host()
    kept = []
    for search in ((IMAGES, 0, 4, 1 << 12, 1 << 10), (0, 0, 0, 0, 0)):
        staged = decoder.files(torch.zeros(IMAGES, 8, 8, 3, dtype=torch.uint8), lambda pixels: [pixels])
        staged.staging = Staging(USED)
        staged.staging.search = search
        staged.to(torch.device("cpu"))
        kept.append("search" in decoder._kept)
    assert kept == [True, False]


def searched(found: Any) -> tuple[Any, Any]:
    """A decoder, and a batch of it whose kernels have found points."""
    decoder = decoder_on_host()
    staged = decoder.files(torch.zeros(IMAGES, 8, 8, 3, dtype=torch.uint8), lambda pixels: [pixels])
    staged.staging, staged._run.points = Staging(USED), staged._run._memory[:1]
    staged._run._is_unknown, staged._run._decoded = True, Event()
    staged.staging.found = found
    staged._run.bad.zero_()
    return decoder, staged


def test_points_that_were_found_are_kept_until_the_index_knows_them():
    given = []
    decoder, staged = searched(lambda *points: given.append(points) or Points())
    assert staged.failed() == []
    assert isinstance(decoder.to_learn(), Points)
    assert [(len(points), bad.tolist()) for points, bad in given] == [(1, [0] * IMAGES)]
    assert staged.failed() == []
    assert len(given) == staged.staging.kept == 1


def test_a_batch_is_good_though_there_is_no_memory_for_its_points():
    def found(*_: object) -> None:
        raise MemoryError

    decoder, staged = searched(found)
    assert staged.failed() == []
    assert decoder.to_learn() is None


def test_a_decoder_that_gives_up_frees_its_memory(monkeypatch):
    def fill_up(_: Any, files: torch.Tensor, __: torch.Tensor) -> None:
        kept.append(weakref.ref(files))
        raise torch.OutOfMemoryError

    monkeypatch.setattr(torch.cuda, "Event", Event)
    decoder, kept = decoder_on_host(), []
    staged = decoder.files(torch.zeros(IMAGES, 8, 8, 3, dtype=torch.uint8), lambda pixels: [pixels])
    staged.staging = Staging(USED)
    monkeypatch.setattr(staged._run, "_decode", fill_up)
    pixels = staged.to(torch.device("cpu"))
    assert decoder.gave_up == "the GPU had no memory left to decode in"
    assert [reference() for reference in kept] == [None]
    assert decoder.nbytes == pixels.nbytes
    assert staged._run.bad.tolist() == [1] * IMAGES  # the threads decode them all
