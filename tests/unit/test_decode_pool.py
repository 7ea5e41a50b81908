"""Test the native pool: draws, requests, batches in flight, cancelling and forks."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from children import exit_code
from jpeg_writer import FACTORS, write_jpeg, write_scans
from numpy.typing import NDArray
from PIL import Image
from torchvision import transforms

from fastload import _core
from fastload.pipeline.installed.decodes import calibrate
from fastload.vision import decode_batch
from fastload.vision._pools import close_pools

SIDE = 24
RATIO = (3 / 4, 4 / 3)


@pytest.fixture
def pool() -> Iterator[_core.Pool]:
    pool = _core.Pool(3)
    yield pool
    pool.close()


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = []
    for index in range(7):
        file = write_jpeg(40 + 9 * index, 90 - 7 * index, list(FACTORS.values())[index], seed=index)
        paths.append(tmp_path / f"{index}.jpg")
        paths[-1].write_bytes(file)
    return paths


def train_plan() -> _core.DrawPlan:
    plan = _core.DrawPlan()
    low, high = torch.log(torch.tensor(RATIO)).tolist()
    plan.add("random_resized_crop", height=SIDE, width=SIDE, scale=(0.08, 1.0), ratio=RATIO, log_ratio=(low, high))
    plan.add("horizontal_flip", p=0.5)
    return plan


def train_transform() -> transforms.Compose:
    return transforms.Compose([transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip()])


def state_of(seed: int) -> bytes:
    return torch.Generator().manual_seed(seed).get_state().numpy().tobytes()


def to_array(image: Image.Image) -> NDArray[np.uint8]:
    return np.asarray(image)


def room(count: int) -> NDArray[np.uint8]:
    return np.full((count, SIDE, SIDE, 3), 77, np.uint8)


def pass_rule() -> str:
    return calibrate().pass_rule or "horizontal_first"


def finish(job: _core.Job, *, timeout: float = 30.0) -> list[str]:
    """Wait, answering what torch alone can tell."""
    while (answer := job.wait(timeout)) == "requested":
        kind, _, value = job.request()
        assert kind == "exp"
        job.provide(kind, value, torch.exp(torch.tensor(value)).tolist())
    assert answer == "done"
    return [_core.status_names()[code] for code in job.statuses()]


def test_batches_of_several_streams_draw_like_torch_workers(pool: _core.Pool, files: list[Path]) -> None:
    workers, batches = 3, 8
    streams = [_core.RandomStream(state_of(100 + worker)) for worker in range(workers)]
    outs = [room(len(files)) for _ in range(batches)]
    jobs = [
        pool.submit(files, out, plan=train_plan(), stream=streams[k % workers], pass_rule=pass_rule())
        for k, out in enumerate(outs)
    ]
    for job in reversed(jobs):
        assert finish(job) == ["ok"] * len(files)
    transform = train_transform()
    with torch.random.fork_rng():
        for worker in range(workers):
            torch.manual_seed(100 + worker)
            for out in outs[worker::workers]:
                for path, got in zip(files, out, strict=True):
                    expected = transform(Image.open(path).convert("RGB"))
                    np.testing.assert_array_equal(got, to_array(expected))


def test_sample_for_pillow_is_asked_for_in_turn(pool: _core.Pool, files: list[Path], tmp_path: Path) -> None:
    """A BMP draws too, so the caller takes the stream over and hands it back."""
    bmp = tmp_path / "x.bmp"
    Image.open(files[2]).save(bmp)
    images = [*files[:3], bmp, *files[3:], tmp_path / "missing"]
    out, later = room(len(images)), room(2)
    stream = _core.RandomStream(state_of(5))
    job = pool.submit(images, out, plan=train_plan(), stream=stream, pass_rule=pass_rule())
    after = pool.submit(files[:2], later, plan=train_plan(), stream=stream, pass_rule=pass_rule())
    transform = train_transform()
    with torch.random.fork_rng():
        torch.manual_seed(5)
        expected = [to_array(transform(Image.open(path).convert("RGB"))) for path in images[:3]]

        assert job.wait(30.0) == "requested"
        assert job.request()[:2] == ("sample", 3)
        assert job.outcome(3)[0] == "not_jpeg"
        assert after.wait(0.0) == "timeout"
        state = job.generator_before(3)
        assert state == torch.get_rng_state().numpy().tobytes()
        expected.append(to_array(transform(Image.open(bmp).convert("RGB"))))
        out[3] = expected[3]
        job.skip(torch.get_rng_state().numpy().tobytes())

        expected += [to_array(transform(Image.open(path).convert("RGB"))) for path in images[4:-1]]
        while job.wait(30.0) == "requested" and job.request()[0] == "exp":
            finish(job)
        assert job.request()[:2] == ("sample", len(images) - 1)
        assert job.outcome(len(images) - 1)[0] == "unreadable"
        # Any earlier sample's state can still be had.
        torch.set_rng_state(torch.frombuffer(bytearray(job.generator_before(5) or b""), dtype=torch.uint8).clone())
        np.testing.assert_array_equal(to_array(transform(Image.open(images[5]).convert("RGB"))), expected[5])
        resumed = torch.Generator().manual_seed(9)
        job.skip(resumed.get_state().numpy().tobytes())
        assert finish(after) == ["ok"] * 2
        torch.set_rng_state(resumed.get_state())
        expected_later = [to_array(transform(Image.open(path).convert("RGB"))) for path in files[:2]]
    statuses = finish(job)
    assert [statuses[3], statuses[-1]] == ["not_jpeg", "unreadable"]
    np.testing.assert_array_equal(out[:-1], expected)
    assert not out[-1].any()
    np.testing.assert_array_equal(later, expected_later)


def test_decode_failure_does_not_disturb_the_draws(pool: _core.Pool, files: list[Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(files[1].read_bytes()[:-40])
    images = [files[0], broken, files[2]]
    out = room(3)
    job = pool.submit(images, out, plan=train_plan(), stream=_core.RandomStream(state_of(1)), pass_rule=pass_rule())
    assert finish(job) == ["ok", "truncated", "ok"]
    transform = train_transform()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        first = transform(Image.open(files[0]).convert("RGB"))
        assert job.generator_before(1) == torch.get_rng_state().numpy().tobytes()
        transform(Image.open(files[1]).convert("RGB"))  # of the same size
        last = transform(Image.open(files[2]).convert("RGB"))
    np.testing.assert_array_equal(out[0], to_array(first))
    assert not out[1].any()
    np.testing.assert_array_equal(out[2], to_array(last))


def ambiguous_seed() -> int:
    """Return a seed whose first RandomResizedCrop of 3000x2000 depends on how exp rounds."""
    plan = train_plan()
    for seed in range(1_000_000):
        if plan.draw(_core.Generator(seed), 3000, 2000)[0] == "exp":
            return seed
    raise AssertionError("no draw in a million is ambiguous")


@pytest.mark.parametrize("ordered", [True, False])
def test_ambiguous_exp_is_asked_for_and_then_drawn(pool: _core.Pool, ordered: bool) -> None:
    seed = ambiguous_seed()
    file = write_jpeg(3000, 16, FACTORS["gray"])
    at = file.index(b"\xff\xc0") + 5
    tall = file[:at] + (2000).to_bytes(2, "big") + file[at + 2 :]  # claims 2000 rows, and is truncated after 16
    out = room(2)
    random = {"stream": _core.RandomStream(state_of(seed))} if ordered else {"seeds": [seed, 1]}
    job = pool.submit([tall, tall], out, plan=train_plan(), **random)
    assert job.wait(30.0) == "requested"
    kind, sample, value = job.request()
    assert (kind, sample) == ("exp", 0)
    exp = torch.exp(torch.tensor(value)).tolist()
    job.provide(kind, value, exp)
    assert finish(job) == ["corrupt"] * 2
    drawn = train_plan().draw(_core.Generator(seed), 3000, 2000, [(kind, value, exp)])
    assert drawn[0] == "ok"
    assert job.geometry(0) == drawn[1]


def test_plan_without_draws_needs_no_stream(pool: _core.Pool, files: list[Path]) -> None:
    plan = _core.DrawPlan()
    plan.add("resize_shorter", height=32)
    plan.add("center_crop", height=SIDE, width=SIDE)
    out = room(len(files))
    assert finish(pool.submit(files, out, plan=plan, pass_rule=pass_rule())) == ["ok"] * len(files)
    transform = transforms.Compose([transforms.Resize(32), transforms.CenterCrop(SIDE)])
    for path, got in zip(files, out, strict=True):
        np.testing.assert_array_equal(got, to_array(transform(Image.open(path).convert("RGB"))))


def test_seeds_make_each_sample_independent(pool: _core.Pool, files: list[Path]) -> None:
    transform = train_transform()
    out = room(3)
    job = pool.submit(files[:3], out, plan=train_plan(), seeds=[7, 8, 9], pass_rule=pass_rule())
    assert finish(job) == ["ok"] * 3
    with torch.random.fork_rng():
        for index in (2, 0, 1):
            torch.manual_seed(7 + index)
            expected = transform(Image.open(files[index]).convert("RGB"))
            np.testing.assert_array_equal(out[index], to_array(expected))


def test_earlier_batches_come_first(files: list[Path]) -> None:
    pool = _core.Pool(1)
    big = [write_jpeg(600, 600, seed=1)] * 40
    geometry = np.zeros((40, 12), np.int32)
    geometry[:, 4:6] = SIDE
    jobs = [pool.submit(big, room(40), geometry=geometry) for _ in range(4)]
    assert jobs[1].wait(30.0) == "done"
    assert jobs[0].wait(0.0) == "done"
    assert jobs[3].wait(0.0) == "timeout"
    pool.close()


@lru_cache(maxsize=1)
def slow_file() -> bytes:
    return write_jpeg(900, 900, FACTORS["4:4:4"], seed=1)


def slow_jobs(pool: _core.Pool, count: int) -> list[_core.Job]:
    geometry = np.zeros((50, 12), np.int32)
    geometry[:, 4:6] = SIDE
    return [pool.submit([slow_file()] * 50, room(50), geometry=geometry) for _ in range(count)]


def test_cancel_stops_soon_and_leaves_the_memory_alone(pool: _core.Pool) -> None:
    first, second = slow_jobs(pool, 2)
    out = room(50)
    assert first.cancel(5.0) is True
    assert set(finish(first)) <= {"ok", "cancelled"}
    assert "cancelled" in finish(first)
    first.cancel()
    before = out.copy()
    assert finish(second) == ["ok"] * 50
    np.testing.assert_array_equal(out, before)


def test_dropped_job_is_cancelled(pool: _core.Pool) -> None:
    jobs = slow_jobs(pool, 3)
    begun = time.perf_counter()
    del jobs[0]
    del jobs[1]
    assert finish(jobs[0]) == ["ok"] * 50
    assert time.perf_counter() - begun < 100


def test_close_wakes_waiters_and_refuses_new_work() -> None:
    pool = _core.Pool(2)
    jobs = slow_jobs(pool, 6)
    answers: list[str] = []
    waiter = threading.Thread(target=lambda: answers.append(jobs[-1].wait()))
    waiter.start()
    time.sleep(0.05)
    assert pool.close() is True
    waiter.join(60)
    assert answers == ["done"]
    assert finish(jobs[-1]) == ["cancelled"] * 50
    with pytest.raises(RuntimeError, match="must be open"):
        slow_jobs(pool, 1)
    pool.close()


def test_close_with_a_request_open_does_not_hang(tmp_path: Path) -> None:
    pool = _core.Pool(2)
    job = pool.submit([tmp_path / "missing"], room(1), plan=train_plan(), stream=_core.RandomStream(state_of(1)))
    assert job.wait(60.0) == "requested"
    pool.close()
    assert job.wait(60.0) == "done"


def names_of_threads() -> set[str]:
    names = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # another test's thread has just ended
            names.add((task / "comm").read_text().strip())
    return names


def test_threads_have_names_and_go_with_the_pool() -> None:
    close_pools()
    pool = _core.Pool(3)
    assert pool.threads == 3
    deadline = time.monotonic() + 60
    while {f"fl-decode-{i}" for i in range(3)} - names_of_threads() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert {f"fl-decode-{i}" for i in range(3)} <= names_of_threads()
    del pool
    assert not [name for name in names_of_threads() if name.startswith("fl-decode")]


def test_interrupt_ends_a_wait() -> None:
    pool = _core.Pool(1)
    jobs = slow_jobs(pool, 20)
    threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        jobs[-1].wait()
    pool.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forked_child_does_not_hang_and_makes_its_own_threads(pool: _core.Pool, files: list[Path]) -> None:
    expected = decode_batch(files, size=(SIDE, SIDE))
    for _ in range(10):
        jobs = slow_jobs(pool, 2)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                try:
                    jobs[0].wait()
                    os._exit(2)
                except RuntimeError:
                    pass
                try:
                    slow_jobs(pool, 1)
                    os._exit(3)
                except RuntimeError:
                    pass
                jobs[0].cancel()
                pool.close()
                del jobs, pool
                code = 0 if np.array_equal(decode_batch(files, size=(SIDE, SIDE)), expected) else 4
                close_pools()
            finally:
                os._exit(code)
        assert exit_code(child) == 0
        for job in jobs:
            job.cancel()
    close_pools()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "one geometry for each image, or a plan"),
        ({"geometry": np.zeros((2, 12), np.int32)}, "one geometry for each image"),
        ({"geometry": np.zeros((1, 12), np.int32), "plan": train_plan()}, "or a plan and none"),
        ({"geometry": np.zeros((1, 12), np.int32), "seeds": [1]}, "only a plan draws"),
        ({"plan": train_plan(), "seeds": [1, 2]}, "one seed for each image"),
        ({"plan": train_plan(), "filter": "cubic"}, "no such interpolation: cubic"),
        ({"plan": train_plan(), "pass_rule": "any"}, "pass_rule must be"),
    ],
)
def test_contradicting_arguments_are_value_errors(pool: _core.Pool, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pool.submit([b""], room(1), **arguments)  # type: ignore[arg-type]


def test_outputs_of_the_wrong_shape_or_type_are_refused(pool: _core.Pool) -> None:
    geometry = np.zeros((1, 12), np.int32)
    for out in (room(2), np.zeros((1, 3, 4, 4), np.uint8), np.zeros((1, 4, 8, 3), np.uint8)[:, :, ::2]):
        with pytest.raises(ValueError, match="out must"):
            pool.submit([b""], out, geometry=geometry)
    with pytest.raises(TypeError):
        pool.submit([b""], np.zeros((1, 4, 4, 3), np.float32), geometry=geometry)


def test_read_only_output_is_refused(pool: _core.Pool) -> None:
    out = room(1)
    out.flags.writeable = False
    with pytest.raises(TypeError):
        pool.submit([b""], out, geometry=np.zeros((1, 12), np.int32))


def test_cancelled_batch_does_not_hold_up_its_stream(pool: _core.Pool, files: list[Path], tmp_path: Path) -> None:
    stream = _core.RandomStream(state_of(1))
    stuck = pool.submit([tmp_path / "missing"], room(1), plan=train_plan(), stream=stream)
    after = pool.submit(files, room(len(files)), plan=train_plan(), stream=stream, pass_rule=pass_rule())
    assert stuck.wait(30.0) == "requested"
    assert after.wait(0.3) == "timeout"  # its headers are read, its draws wait their turn
    stuck.cancel()
    assert finish(after) == ["ok"] * len(files)


def noise() -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (3000, 4000, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def whole(side: int) -> NDArray[np.int32]:
    geometry = np.zeros((1, 12), np.int32)
    geometry[:, 4:6] = side
    return geometry


@pytest.mark.parametrize(("make", "status"), [(noise, "ok"), (lambda: write_scans(5000, 5000, 41), "unsupported")])
def test_cancel_stops_in_the_middle_of_a_large_image(make: Callable[[], bytes], status: str) -> None:
    file = make()
    pool = _core.Pool(1)
    begun = time.perf_counter()
    assert finish(pool.submit([file], room(1), geometry=whole(SIDE))) == [status]
    lasts = time.perf_counter() - begun
    seen: list[tuple[float, list[str]]] = []
    # Enough to see it once: on a busy machine either thread may have to wait for a core.
    while len(seen) < 5 and not any(took < lasts / 3 and ended == ["cancelled"] for took, ended in seen):
        job = pool.submit([file], room(1), geometry=whole(SIDE))
        assert job.wait(lasts / 20) == "timeout"
        begun = time.perf_counter()
        assert job.cancel() is True
        took = time.perf_counter() - begun
        seen.append((took, finish(job)))
    assert any(took < lasts / 3 and ended == ["cancelled"] for took, ended in seen), (lasts, seen)
    pool.close()


def test_cancel_stops_in_the_middle_of_an_endless_file(tmp_path: Path) -> None:
    """libjpeg looks for the next scan in it, gigabyte after gigabyte."""
    path = tmp_path / "endless.jpg"
    path.write_bytes(write_jpeg(40, 40, progressive=True)[:-2])
    os.truncate(path, 2**36)
    pool = _core.Pool(1)
    job = pool.submit([path], room(1), geometry=whole(SIDE))
    assert job.wait(0.1) == "timeout"
    assert job.cancel(3.0) is True
    assert finish(job) == ["cancelled"]
    pool.close()


def test_image_smaller_than_the_crop_is_asked_for(pool: _core.Pool) -> None:
    plan = _core.DrawPlan()
    plan.add("random_crop_v1", height=SIDE, width=SIDE)
    images = [write_jpeg(40, 40), write_jpeg(SIDE - 1, 40), write_jpeg(40, 40)]
    out = room(3)
    job = pool.submit(images, out, plan=plan, stream=_core.RandomStream(state_of(1)))
    assert job.wait(30.0) == "requested"
    assert job.request()[:2] == ("sample", 1)
    assert job.outcome(1)[0] == "bad_geometry"
    assert not out[1].any()
    job.skip(job.generator_before(1) or b"")
    assert finish(job) == ["ok", "bad_geometry", "ok"]
    alone = room(3)
    assert finish(pool.submit(images, alone, plan=plan, seeds=[1, 2, 3])) == ["ok", "bad_geometry", "ok"]
    assert not alone[1].any()
