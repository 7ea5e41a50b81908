"""Test batches issued while a GPU decodes the one before.

Threads stand for the GPU.
"""

from __future__ import annotations

import gc
import itertools
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from backends import simulated
from PIL import Image
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop, ToTensor

from fastload import FastLoader, _core, loader_state
from fastload.device.decode.policy import DecodePolicy
from fastload.native import pipeline as decode_pipeline
from fastload.native.batch import Batch
from fastload.native.pipeline import DecodePipeline
from fastload.python_samples.odd_samples import OddSamples

SIDE = 16
IMAGES = 24
WAIT_S = 20.0


class Decoder:
    """Notes what it is asked in which order, and makes some images wrong."""

    gave_up, is_compiling = None, False

    def __init__(self, refused: Callable[[int], list[int]] = lambda batch: []) -> None:
        self.refused = refused
        self.asked: list[tuple[str, int]] = []
        self.batches = 0

    def is_ready(self) -> bool:
        return True

    def to_learn(self) -> None:
        return None

    def files(self, pixels: torch.Tensor, by_view: Any, new_file: str, most_samples: int | None = None) -> Staged:
        self.batches += 1
        return Staged(self, self.batches - 1, pixels)


class Staged:
    decode_s = 0.0
    most_samples = None
    kept = 0
    staging = None
    is_decoded = False

    def __init__(self, decoder: Decoder, number: int, pixels: torch.Tensor) -> None:
        self.decoder, self.number, self.host, self.nbytes = decoder, number, pixels, pixels.nbytes
        self.wrong = {*decoder.refused(number)}
        self.decoded = "find", len(pixels), 0

    def is_pinned(self) -> bool:
        return False

    def to(self, device: torch.device, *, non_blocking: bool = False, timing: object = None) -> torch.Tensor:
        self.decoder.asked.append(("to", self.number))
        made = self.host.clone()
        made[[*self.wrong]] = 77
        return made

    def failed(self) -> list[int]:
        self.decoder.asked.append(("failed", self.number))
        return [*self.wrong]

    def remove(self, image: int) -> None:
        self.wrong.discard(image)
        self.decoded = "find", self.decoded[1] - 1, 0


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(DecodePolicy, "choose", lambda self: ("find", False))
    return simulated.install_native(monkeypatch)


@pytest.fixture
def dataset(tmp_path: Path) -> ImageFolder:
    (tmp_path / "a").mkdir()
    rng = np.random.default_rng(0)
    for number in range(IMAGES):
        Image.fromarray(rng.integers(0, 255, (30 + number, 40, 3), np.uint8)).save(tmp_path / "a" / f"{number:02}.jpg")
    return ImageFolder(tmp_path, Compose([RandomResizedCrop(SIDE), RandomHorizontalFlip(), ToTensor()]))


def use(monkeypatch: pytest.MonkeyPatch, decoder: Decoder | None) -> Decoder | None:
    monkeypatch.setattr(loader_state.LoaderState, "decoder", lambda *_: decoder)
    return decoder


def wait_for(condition: Callable[[], Any]) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)


def issue_early(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Confirm batches once they are waited for; return which are issued early.

    Those behind them are complete by then.
    """
    early: list[int] = []
    issue_next = DecodePipeline._issue_next

    def late(self: Any, batch: Any) -> None:
        following = [other for other in tuple(self._batches) if other.number == batch.number + 1]
        if following:
            wait_for(lambda: following[0].job.wait(0.0) == "done")
        issue_next(self, batch)
        early.extend(other.number for other in following if other.issued is not None)

    def confirmed(self: Any, batch: Any, *issued: Any) -> Any:
        wait_for(lambda: batch.wanted or self._closed or batch.dropped)
        return confirm(self, batch, *issued)

    confirm = DecodePipeline._confirmed
    monkeypatch.setattr(DecodePipeline, "_issue_next", late)
    monkeypatch.setattr(DecodePipeline, "_confirmed", confirmed)
    return early


def taken(iterator: Iterator[Any]) -> list[Any]:
    """All batches, or their errors."""
    found: list[Any] = []
    while True:
        try:
            found.append(next(iterator)[0])
        except StopIteration:
            return found
        except BaseException as error:  # whatever it is, the next batch may be good
            found.append(type(error))


class Step:
    """The end of a step that has yet to come.

    Notes whether ``batch`` is made when it is waited for.
    """

    def __init__(self, batch: Any) -> None:
        self.ended, self.batch = False, batch
        self.waits: list[bool] = []

    def query(self) -> bool:
        return self.ended

    def synchronize(self) -> None:
        self.waits.append(self.batch.made)
        wait_for(lambda: self.ended or not self.batch.made)


def test_a_batch_does_not_wait_until_there_is_room_for_the_next(device, dataset, monkeypatch):
    """Else the loop would seem to wait for its hand-over, though the GPU is busy."""
    decoder = use(monkeypatch, Decoder())
    early = issue_early(monkeypatch)
    iterator = iter(FastLoader(dataset, batch_size=2, num_workers=2, **device))
    next(iterator)
    next(iterator)
    wait_for(lambda: ("to", 2) in decoder.asked)
    third = next(batch for batch in iterator.host.decode_pipeline._batches if batch.number == 2)
    steps = [Step(third), Step(third)]  # of the two batches taken
    iterator.transfer._unfinished.extend(steps)
    next(iterator)
    assert early == [1, 2]
    wait_for(lambda: steps[0].waits)
    assert steps[0].waits == [True]
    assert ("to", 3) not in decoder.asked
    for step in steps:
        step.ended = True
    next(iterator)
    assert [number for kind, number in decoder.asked if kind == "to"][:5] == [0, 1, 2, 3, 4]
    iterator._shutdown_workers()


def test_a_batch_that_cannot_be_collated_fails_in_its_turn(device, dataset, monkeypatch):
    collated = decode_pipeline.collated
    asked: list[int] = []

    def fails(targets: list[int]) -> Any:
        asked.append(targets[0])
        if targets[0] in errors:
            raise errors[targets[0]]
        return collated(targets)

    errors = {4: ValueError("4"), 8: SystemExit("8")}
    dataset.samples = [(path, number) for number, (path, _) in enumerate(dataset.samples)]
    monkeypatch.setattr(decode_pipeline, "collated", fails)
    decoder = use(monkeypatch, Decoder())
    early = issue_early(monkeypatch)
    loader = FastLoader(dataset, batch_size=2, num_workers=2, **device)
    batches = taken(iter(loader))
    assert [type(batch) if isinstance(batch, torch.Tensor) else batch for batch in batches] == [
        *[torch.Tensor] * 2,
        ValueError,
        torch.Tensor,
        SystemExit,
        *[torch.Tensor] * 7,
    ]
    assert early == [1, 6, 7, 8, 9, 10, 11]
    assert asked.count(4) == 1
    assert loader.stats().gpu_images == IMAGES - 4
    assert [number for kind, number in decoder.asked if kind == "to"] == [0, 1, 3, *range(5, 12)]


def test_what_is_issued_early_is_neither_issued_nor_confirmed_twice(device, dataset, monkeypatch):
    decoder = use(monkeypatch, Decoder())
    early = issue_early(monkeypatch)
    loader = FastLoader(dataset, batch_size=2, num_workers=2, **device)
    assert len(taken(iter(loader))) == IMAGES // 2
    assert early == [*range(1, IMAGES // 2)]
    assert sorted(decoder.asked) == sorted(itertools.product(("to", "failed"), range(IMAGES // 2)))
    stats = loader.stats()
    assert (stats.images, stats.gpu_images, stats.thread_images) == (IMAGES, IMAGES, 0)


@pytest.mark.parametrize("late", ["staged", "wanted", "decoded", "never"])
def test_a_batch_is_issued_once_it_is_staged_and_waited_for_while_the_gpu_decodes(device, dataset, monkeypatch, late):
    decoder = use(monkeypatch, Decoder())
    issue, within, looks = DecodePipeline._issue_next, Batch.staged_within, []

    def staged_within(self: Batch, timeout_s: float) -> bool | None:
        looks.append(timeout_s)
        is_staged = within(self, 1.0)
        return is_staged and (late == "wanted" or (late != "never" and len(looks) > 3))

    def issue_next(self: Any, batch: Any) -> None:
        batch.wanted = late != "wanted"
        looks.clear()
        monkeypatch.setattr(decode_pipeline.time, "sleep", lambda seconds: setattr(batch, "wanted", True))
        monkeypatch.setattr(Staged, "is_decoded", late == "decoded")
        issue(self, batch)

    monkeypatch.setattr(Batch, "staged_within", staged_within)
    monkeypatch.setattr(DecodePipeline, "_issue_next", issue_next)
    iterator = iter(FastLoader(dataset, batch_size=2, num_workers=2, **device))
    assert len(taken(iterator)) == IMAGES // 2
    is_early = decoder.asked.index(("to", 1)) < decoder.asked.index(("failed", 0))
    assert is_early == (late in ("staged", "wanted"))


def test_a_batch_that_is_waited_for_takes_no_room_of_those_made_ahead(device, dataset, monkeypatch):
    """The pipeline goes on though the consumer has yet to wake up."""
    decoder = use(monkeypatch, Decoder())
    wait, confirm, missing = DecodePipeline._wait_for, DecodePipeline._confirmed, []

    def confirmed(self: Any, batch: Any, *issued: Any) -> Any:
        wait_for(lambda: batch.wanted or batch.number)
        return confirm(self, batch, *issued)

    def slow(self: Any, batch: Any, timeout_s: float) -> None:
        wait(self, batch, timeout_s)
        until = time.monotonic() + 5.0
        while batch.number == 0 and not missing and ("failed", 1) not in decoder.asked:
            missing.extend(["1"] * (time.monotonic() > until))

    monkeypatch.setattr(DecodePipeline, "_confirmed", confirmed)
    monkeypatch.setattr(DecodePipeline, "_wait_for", slow)
    assert len(taken(iter(FastLoader(dataset, batch_size=2, num_workers=2, **device)))) == IMAGES // 2
    assert not missing


def test_a_batch_that_threads_decode_is_issued_in_its_turn(device, dataset, monkeypatch):
    turns = itertools.cycle(["find", "find", "threads"])
    monkeypatch.setattr(DecodePolicy, "choose", lambda self: (next(turns), False))
    use(monkeypatch, Decoder())
    early = issue_early(monkeypatch)
    loader = FastLoader(dataset, batch_size=2, num_workers=2, **device)
    assert len(taken(iter(loader))) == IMAGES // 2
    assert early == [1, 4, 7, 10]
    stats = loader.stats()
    assert (stats.gpu_images, stats.thread_images) == (16, 8)


def test_a_batch_issued_early_and_then_dropped_is_not_confirmed(device, dataset, monkeypatch):
    """What the next epoch draws does not depend on it."""
    decoder, early, made = Decoder(), issue_early(monkeypatch), []
    make: Callable[..., Any] = DecodePipeline._make

    def make_once_dropped(self: Any, batch: Any) -> Any:
        wait_for(lambda: batch.dropped or batch.number < 3 or ("to", 3) not in decoder.asked or again)
        return make(self, batch)

    again: list[Any] = []  # the second epoch's iterator
    monkeypatch.setattr(DecodePipeline, "_make", make_once_dropped)
    for used in (None, decoder):
        use(monkeypatch, used)
        torch.manual_seed(3)
        loader = FastLoader(dataset, batch_size=2, num_workers=2, shuffle=True, persistent_workers=True, **device)
        iterator = iter(loader)
        made.append([next(iterator)[0] for _ in range(3)])
        if used is not None:
            wait_for(lambda: ("to", 3) in decoder.asked)
        iterator = iter(loader)
        again.append(iterator)
        made[-1] += taken(iterator)
        again.clear()
        assert loader.stats().images == 6 + IMAGES
    assert all(map(torch.equal, *made))
    assert list(map(len, made)) == [3 + IMAGES // 2] * 2
    assert early[:2] == [1, 2]
    second = range(decoder.batches - IMAGES // 2, decoder.batches)
    assert {number for kind, number in decoder.asked if kind == "failed"} == {0, 1, 2, *second}
    assert {number for kind, number in decoder.asked if kind == "to"} == {0, 1, 2, 3, *second}


@pytest.mark.parametrize("workers", [1, 2])
def test_draws_of_a_batch_issued_early_are_made_again_if_those_before_it_change(device, dataset, monkeypatch, workers):
    sample = DecodePipeline._in_python

    def draws_otherwise(self: Any, batch: Any, number: int, before: bytes) -> Any:
        return sample(self, batch, number, before)[0], _core.Generator(batch.number).get_state()

    monkeypatch.setattr(DecodePipeline, "_in_python", draws_otherwise)
    made = []
    for is_early in (False, True):
        with monkeypatch.context() as changed:
            decoder = use(changed, Decoder(lambda staged: [1] if staged == 1 else []))
            early: list[int] = []
            if is_early:
                early = issue_early(changed)
            else:
                changed.setattr(DecodePipeline, "_issue_next", lambda *_: None)
            torch.manual_seed(3)
            options = {"num_workers": workers, "prefetch_factor": 4, "shuffle": True} | device
            loader = FastLoader(dataset, batch_size=2, **options)
            made.append(taken(iter(loader)))
            assert loader.stats().images == IMAGES
            assert early[:3] == [1, 2, 3][: 3 * is_early]
            assert decoder.batches > IMAGES // 2  # those of its worker were started again
    assert all(map(torch.equal, *made))


def test_a_batchs_memory_is_free_once_the_loop_has_dropped_it(device, dataset, monkeypatch):
    """Only the one that is issued early is left then."""

    def start(self: Any, *args: Any, **options: Any) -> Any:
        copied = start_copy(self, *args, **options)
        on_device.extend(map(weakref.ref, copied._tensors[:1]))
        return copied

    on_device: list[weakref.ref[torch.Tensor]] = []
    start_copy = simulated.SimulatedTransfer.start
    monkeypatch.setattr(simulated.SimulatedTransfer, "start", start)
    monkeypatch.setattr(OddSamples, "drawn", lambda *_: None)  # so that batches issued early are started again
    use(monkeypatch, Decoder(lambda staged: [1] if staged % 3 == 1 else []))
    early = issue_early(monkeypatch)
    iterator = iter(FastLoader(dataset, batch_size=2, num_workers=1, **device))
    for _ in range(8):
        next(iterator)
        wait_for(lambda: sum(tensor() is not None for tensor in on_device) <= 1)
    assert len(early) > 4
    iterator._shutdown_workers()
    del iterator
    gc.collect()
    assert [tensor for tensor in on_device if tensor() is not None] == []
