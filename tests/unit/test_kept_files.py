"""Files that stay in a device's memory, decoded by its kernels on the CPU."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from backends import simulated
from decode_on_cpu import Finished, kernels_fixture, pool_fixture
from stageable import KINDS, noise
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop, ToTensor

from fastload import FastLoader, _core, loader_state
from fastload.device.decode import files as decode
from fastload.device.decode import kept
from fastload.device.decode.policy import DecodePolicy
from fastload.memory import buffers

kernels, pool = kernels_fixture, pool_fixture

SIDE = 32
PROGRESSIVE = next(number for number, kind in enumerate(KINDS) if kind.get("progressive"))
KEPT = len(KINDS)  # all kinds but the progressive one, and a gray one


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    for number, kind in enumerate([*KINDS, KINDS[0]]):
        image = noise(120 + 7 * number, 140 + number, number)
        (image.convert("L") if number == len(KINDS) else image).save(tmp_path / f"{number}.jpg", "JPEG", **kind)
    return [str(tmp_path / f"{number}.jpg") for number in range(len(KINDS) + 1)]


def crops(seed: int, count: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        top, left = rng.integers(0, 60, 2)
        height, width = rng.integers(9, 120 + 7 * number - top + 1), rng.integers(9, 140 + number - left + 1)
        rows.append([top, left, height, width, SIDE, SIDE, 0, 0, SIDE, SIDE, *rng.integers(2, size=2)])
    return np.array(rows, np.int32)


def bytes_read() -> int:
    """By this process, from files."""
    return int(Path("/proc/self/io").read_text().split()[1])


class Visits:
    """Batches of the same files, one after the other."""

    def __init__(self, kernels, pool, paths, settle_seconds=-1):
        self.kernels, self.pool, self.paths = kernels, pool, paths
        self.files, self.index = _core.KeptFiles(settle_seconds), _core.JpegIndex(1 << 20, whole=True)
        self.files.wants = True
        self.device = torch.full((1 << 20,), 0xA5, dtype=torch.uint8)
        self.memory, self.used = _core.KeptMemory(self.device.data_ptr()), 0
        self.staging: Any = None

    def place(self, staging):
        staging.keep_in(self.memory, self.memory.address + self.used)
        self.used += staging.keep_bytes
        assert self.used <= self.device.nbytes

    def visit(self, seed, views=1, spoilt=(), known=False, **options):
        inputs = [path for path in self.paths for _ in range(views)]
        boxes = np.concatenate([crops(seed + view, len(self.paths)) for view in range(views)])
        boxes = boxes.reshape(views, -1, 12).swapaxes(0, 1).reshape(-1, 12)
        want, pixels = (torch.full((len(inputs), SIDE, SIDE, 3), 7, dtype=torch.uint8) for _ in range(2))
        self.pool.submit(inputs, want, geometry=boxes, index=self.index if known else None, **options).wait()
        memory = torch.zeros(1 << 21, dtype=torch.uint8)
        self.staging = staging = _core.Staging(memory, len(inputs), 1, "find", None, None, self.files)
        before = bytes_read()
        job = self.pool.submit(inputs, pixels, geometry=boxes, index=self.index, staging=staging, **options)
        job.wait()
        self.read = bytes_read() - before
        assert set(job.statuses()) == {0}
        self.place(staging)
        bad = self.kernels.decode(staging, memory, pixels, len(inputs))
        for image in spoilt:
            self.kernels.bad[image] = 1
        staging.keep(self.kernels.bad)
        assert bad == []
        assert torch.equal(pixels, want)
        return staging


def test_the_second_visit_reads_no_file(kernels, pool, paths):
    visits = Visits(kernels, pool, paths)
    first = visits.visit(1)
    assert first.new_files == KEPT
    assert (first.kept_files, first.keeps[1], visits.files.totals[0]) == (0, KEPT, KEPT)
    assert set(visits.device[first.keep_bytes :].tolist()) == {0xA5}
    sizes = [os.path.getsize(path) for path in paths]
    assert visits.read >= sum(sizes)
    for seed in (2, 3):
        second = visits.visit(seed, filter="lanczos", pass_rule="tall_vertical_first")
        assert (second.kept_files, second.keep_bytes, second.new_files) == (KEPT, 0, 0)
        assert second.used < first.used / 2
        assert visits.read < sizes[PROGRESSIVE] + 1000
    assert visits.files.totals == (KEPT, 2 * KEPT, 2)  # the progressive one is never kept


@pytest.mark.parametrize("change", ["size", "time", "inode", "mode", "same bytes"])
def test_a_file_that_has_changed_is_read_again(kernels, pool, paths, change):
    visits = Visits(kernels, pool, paths)
    visits.visit(1)
    path, about = Path(paths[0]), os.stat(paths[0])
    other = io.BytesIO()
    noise(120, 140, 99).save(other, "JPEG", **KINDS[0])
    data = other.getvalue()[: about.st_size].ljust(about.st_size, b"\0") if change != "size" else other.getvalue()
    if change == "inode":
        Path(f"{path}-new").write_bytes(data)
        os.utime(f"{path}-new", ns=(about.st_atime_ns, about.st_mtime_ns))
        os.replace(f"{path}-new", path)
    elif change == "mode":
        os.chmod(path, 0o600)
    else:
        path.write_bytes(path.read_bytes() if change == "same bytes" else data)
        if change != "time":
            os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    staging = visits.visit(2)  # where the pixels are compared with those of the file as it is
    assert staging.kept_files == KEPT - 1
    assert visits.files.totals[0] == KEPT + (change == "inode")  # which stays until its memory is given back
    assert visits.visit(3).kept_files == KEPT


def test_a_file_that_has_just_changed_is_not_kept(kernels, pool, paths):
    """The next change may have the same time."""
    visits = Visits(kernels, pool, paths, settle_seconds=3)
    assert visits.visit(1).keep_bytes == 0
    assert visits.visit(2).kept_files == 0


def test_nothing_is_kept_unless_it_is_wanted(kernels, pool, paths):
    visits = Visits(kernels, pool, paths)
    visits.files.wants = False
    assert visits.visit(1, known=True).keep_bytes == 0
    used = visits.visit(2).used
    visits.files.wants = True
    staging = visits.visit(3)  # the index knows these files, and they are staged as a whole all the same
    assert staging.keep_bytes > 0
    assert staging.new_files == KEPT
    assert staging.used > used
    assert visits.visit(4).kept_files == KEPT


def test_what_the_kernels_could_not_find_is_not_kept(kernels, pool, paths):
    visits = Visits(kernels, pool, paths)
    visits.visit(1, spoilt=[0, 2])
    assert visits.files.totals[0] == KEPT - 2
    assert visits.visit(2).kept_files == KEPT - 2


def test_memory_is_in_use_until_no_batch_needs_it(kernels, pool, paths):
    visits = Visits(kernels, pool, paths)
    assert visits.memory.users == 0
    visits.visit(1)
    visits.visit(2)
    assert visits.memory.users == KEPT
    visits.files.forget(_core.KeptMemory(0))
    assert visits.files.totals[0] == KEPT
    visits.files.forget(visits.memory)
    assert visits.files.totals[0] == 0
    assert visits.memory.users == KEPT, "by the last batch"
    visits.staging = None
    assert visits.memory.users == 0
    assert visits.visit(3).kept_files == 0


def test_several_views_of_kept_files(kernels, pool, paths):
    visits = Visits(kernels, pool, paths)
    visits.visit(1)
    staging = visits.visit(2, views=2)
    assert staging.kept_files == 2 * KEPT
    assert [staging.owner(image) for image in range(4)] == [0, 1, 2, 3]


def test_steps_on_a_kept_file_that_the_kernels_do_not_run_are_left_to_threads(kernels, pool, paths):
    visits = Visits(kernels, pool, paths)
    visits.visit(1)
    assert visits.visit(2, fast=True).kept_files == 0
    os.utime(paths[0])
    assert visits.visit(3).kept_files == KEPT - 1


@pytest.mark.parametrize("most", [0, None])
def test_a_kept_file_that_is_exchanged_while_its_draws_are_waited_for(kernels, paths, tmp_path, most):
    """One that has to be opened after all is not taken."""
    pool = _core.Pool(1)
    visits = Visits(kernels, pool, paths)
    visits.visit(1)
    plan = _core.DrawPlan()
    plan.add("random_crop_v1", height=8, width=8)
    images, out = [str(tmp_path / "missing"), *paths], torch.zeros(len(paths) + 1, 8, 8, 3, dtype=torch.uint8)
    staging = _core.Staging(torch.zeros(1 << 20, dtype=torch.uint8), len(images), 1, "find", most, None, visits.files)
    job = pool.submit(images, out, plan=plan, stream=_core.RandomStream.from_seed(1), staging=staging)
    assert job.wait(30.0) == "requested"
    after = pool.submit([paths[1]], torch.zeros(1, 8, 8, 3, dtype=torch.uint8), geometry=np.zeros((1, 12), np.int32))
    assert after.wait(30.0) == "done"  # by the pool's one thread, so all that came before is known
    os.utime(paths[0], ns=(1, 1))
    job.skip(job.generator_before(0))
    assert job.wait(30.0) == "done"
    assert _core.status_names()[job.statuses()[1]] == ("corrupt" if most == 0 else "ok")
    assert set(job.statuses()[2:]) == {0}
    assert staging.has()[1:] == bytes([most is None] * len(paths))
    pool.close()


class HostMemory:
    """A device's memory, of which others may take some."""

    def __init__(self, total: int) -> None:
        self.total, self.others, self.taken = total, 0, {}
        self.freed: list[int] = []

    def info(self):
        return self.total - self.others - sum(tensor.nbytes for tensor in self.taken.values()), self.total

    def take(self, nbytes):
        if nbytes > self.info()[0]:
            return None
        memory = torch.full((nbytes + 16,), 0xA5, dtype=torch.uint8)[:nbytes]
        self.taken[memory.data_ptr()] = memory
        return memory.data_ptr()

    def free(self, address):
        self.freed.append(self.taken.pop(address).fill_(0x5A).nbytes)


class Wanting:
    """Stands for a batch that has so many bytes to keep."""

    def __init__(self, nbytes):
        self.keep_bytes, self.place = nbytes, None

    def keep_in(self, memory, address):
        self.place = memory, address - memory.address


@pytest.fixture
def parts(monkeypatch):
    monkeypatch.setattr(kept, "PART_BYTES", 1000)


def placed(files, nbytes):
    batch = Wanting(nbytes)
    files.place(batch)
    return batch.place


def on(memory, most, **options):
    now = [0.0]
    files = kept.FilesOnDevice(memory, clock=lambda: now[0], **options)
    files.now = now
    files.allow(most)
    return files


def test_memory_is_taken_in_parts_up_to_the_limit(parts):
    memory = HostMemory(16000)
    files = on(memory, 2500)
    assert files.files.wants
    assert memory.taken == {}, "nothing before there is something to keep"
    assert placed(files, 0) is None
    assert [placed(files, 400)[1], placed(files, 600)[1]] == [0, 400]
    assert files.nbytes == 1000
    assert placed(files, 1)[1] == 0
    assert placed(files, 1000) is None, "what is left of the limit is 500"
    assert not files.files.wants
    files.allow(4000)
    assert files.files.wants
    assert placed(files, 1500)[1] == 0, "a batch that takes more than a part has one of its own"
    assert files.nbytes == 3500
    files.allow(10)
    assert placed(files, 500) is not None, "another loader allows more"


def test_auto_takes_half_of_what_is_free(parts):
    memory = HostMemory(16000)
    memory.others = 8000
    files = on(memory, "auto")
    files.allow(100)
    assert [placed(files, 1000) is not None for _ in range(5)] == [True] * 4 + [False]
    assert files.nbytes == 4000
    memory.others = 16000 - 4000 - 2000  # two sixteenths are left
    files.now[0] += 1
    assert placed(files, 10) is None
    assert files.nbytes == 4000


def test_memory_is_given_back_when_others_need_it(parts):
    memory = HostMemory(16000)
    files = on(memory, 4000)
    first, second = placed(files, 1000)[0], placed(files, 900)[0]
    memory.others = 16000 - 2000 - 600
    placed(files, 0)
    assert files.nbytes == 2000, "the driver is not asked for each batch"
    files.now[0] += kept._LOOK_S
    placed(files, 0)
    assert memory.freed == [1000]
    assert files.nbytes == 1000
    assert second.address in memory.taken
    assert first.address not in memory.taken
    assert files.files.wants, "the second part is not full"
    assert placed(files, 200) is None
    assert not files.files.wants
    files.now[0] += kept._LOOK_S
    placed(files, 0)
    assert not files.files.wants, "there is still no room for as much"
    memory.others = 0
    files.now[0] += kept._LOOK_S
    placed(files, 0)
    assert files.files.wants, "there is room again"


def test_memory_that_cannot_be_had_after_all_is_not_asked_for_again(parts):
    memory = HostMemory(16000)
    files = on(memory, "auto")
    memory.take = lambda nbytes: None
    assert placed(files, 10) is None
    del memory.take
    files.now[0] += kept._LOOK_S
    assert placed(files, 10) is None
    assert not files.files.wants
    assert not files.give_back()
    files.now[0] += 19
    assert placed(files, 10) is None, "the pause after a second failure is twice as long"
    files.now[0] += 2
    assert placed(files, 10) is not None


def test_memory_goes_with_the_last_who_has_it(parts):
    memory = HostMemory(16000)
    files = on(memory, 4000)
    placed(files, 1000)
    del files
    gc.collect()
    assert memory.freed == [1000]


def test_loaders_of_a_process_share_what_is_on_a_device(monkeypatch):
    monkeypatch.setattr(kept, "CudaMemory", lambda device: HostMemory(1 << 30))
    device = torch.device("cuda", 0)
    first, second = kept.files_on(device, 10), kept.files_on(device, "auto")
    assert first is second
    assert kept.files_on(torch.device("cuda", 1), 10) is not first
    del first, second
    gc.collect()
    assert len(kept._all) == 0


def test_memory_stays_while_a_batch_needs_it(kernels, pool, paths):
    memory = HostMemory(1 << 24)
    files = on(memory, 1 << 20, settle_s=-1)
    visits = Visits(kernels, pool, paths)
    visits.files, visits.place = files.files, files.place
    visits.visit(1)
    assert visits.visit(2).kept_files == KEPT
    assert files.give_back()
    assert files.files.totals[0] == 0
    assert memory.freed == []
    assert files.give_back(), "there will be less"
    visits.staging = None
    files.now[0] += 1
    files.look()
    assert memory.freed == [1 << 20]
    assert not files.give_back(), "there was none left to give back"


def test_files_of_memory_that_was_forgotten_meanwhile_are_not_known(kernels, pool, paths):
    visits = Visits(kernels, pool, paths)
    forget, place = visits.files.forget, visits.place

    def place_and_forget(staging):
        place(staging)
        forget(visits.memory)

    visits.place = place_and_forget
    assert visits.visit(1).keeps[1] == KEPT
    assert visits.files.totals[0] == 0
    visits.staging = None
    assert visits.memory.users == 0


def test_a_file_that_is_several_times_in_a_batch_is_kept_once(kernels, pool, paths):
    visits = Visits(kernels, pool, paths)
    assert visits.visit(1, views=3).keeps[1] == KEPT
    needed = visits.used
    visits.files.forget(visits.memory)
    visits.memory = _core.KeptMemory(visits.device.data_ptr())
    visits.visit(1)
    assert visits.used == 2 * needed


def test_what_a_driver_raises_breaks_no_batch(parts):
    memory = HostMemory(16000)
    files = on(memory, 4000)
    assert placed(files, 1000) is not None

    def fails(*_):
        raise OSError("no driver")

    memory.free = fails
    assert files.give_back()
    assert files.nbytes == 1000, "it is still there"
    del memory.free
    files.now[0] += 11
    files.look()
    assert memory.freed == [1000]
    memory.take = fails
    other = on(memory, 4000)
    with pytest.warns(RuntimeWarning, match="no files are kept on the GPU: OSError"):
        placed(other, 1000)
    other.now[0] += 11
    assert placed(other, 1000) is None, "without another warning"
    memory.info = fails
    other.now[0] += 100
    other.look()
    assert not other.files.wants


@pytest.fixture
def loader_of(kernels, monkeypatch, paths, tmp_path):
    """Loaders whose batches a simulated device decodes."""

    class Run:
        is_decoded = True
        decode_s = 0.0
        points = None

        def __init__(self, decoder, memory, bad):
            self.memory, self.bad = memory, bad
            self._is_unknown = False

        def start(self, layout, pixels, timing, *, learns):
            kernels.decode(Finished(layout, list(range(len(self.bad)))), self.memory, pixels, len(self.bad))
            self.bad.copy_(kernels.bad)
            self._is_unknown = True

        def wait(self):
            was, self._is_unknown = self._is_unknown, False
            return was

    kept._all.clear()
    folder = tmp_path / "images" / "class"
    folder.mkdir(parents=True)
    for path in paths:
        Path(path).rename(folder / Path(path).name)
    device = simulated.install_native(monkeypatch)
    memory = HostMemory(1 << 30)
    monkeypatch.setattr(decode, "DecodeRun", Run)
    monkeypatch.setattr(buffers.pinned, "__code__", (lambda nbytes: torch.empty(nbytes, dtype=torch.uint8)).__code__)
    monkeypatch.setattr(decode.Decoder, "is_ready", lambda self, *, steps=False: self.gave_up is None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(decode.Decoder, "pixels", lambda self, like: torch.empty_like(like))
    monkeypatch.setattr(kept, "CudaMemory", lambda device: memory)
    monkeypatch.setattr(kept.FilesOnDevice, "__init__", settled(kept.FilesOnDevice.__init__))
    monkeypatch.setattr(DecodePolicy, "choose", lambda self: ("find", False))
    decoders: Any = weakref.WeakKeyDictionary()

    def decoder(state, *_):
        return decoders.setdefault(state, decode.Decoder(torch.device("cuda", 0)))

    monkeypatch.setattr(loader_state.LoaderState, "decoder", decoder)

    def make(most, transform=None, **options):
        steps = [RandomResizedCrop(SIDE), RandomHorizontalFlip(), ToTensor()]
        dataset = ImageFolder(tmp_path / "images", transform or Compose(steps))
        options = {"batch_size": 3, "num_workers": 2, "shuffle": True, **device, **options}
        return FastLoader(dataset, device_cache_bytes=most, **options)

    make.memory = memory
    make.folder = folder
    return make


def settled(make):
    return lambda self, memory: make(self, memory, settle_s=-1)


def epochs(loader, count):
    torch.manual_seed(3)
    return [images.clone() for _ in range(count) for images, _ in loader]


def test_a_loader_gives_the_same_batches_from_kept_files(loader_of):
    want = epochs(loader_of(0), 4)
    assert loader_of.memory.taken == {}
    loader = loader_of(1 << 20)
    first = epochs(loader, 1)
    before = bytes_read()
    made = epochs(loader, 4)
    read = bytes_read() - before
    assert all(map(torch.equal, made, want))
    assert all(map(torch.equal, first, want))
    sizes = [path.stat().st_size for path in loader_of.folder.iterdir()]
    progressive = (loader_of.folder / f"{PROGRESSIVE}.jpg").stat().st_size
    assert read < 4 * progressive + sum(sizes) / 2
    decoder = loader_state.state_of(loader).decoder()
    files, found, missed = decoder.kept.files.totals
    assert (files, found) == (KEPT, 4 * KEPT)
    assert 4 <= missed <= KEPT + 5
    assert decoder.nbytes >= 1 << 20
    stats = loader.stats()
    assert (stats.gpu_images, stats.kept_images) == (5 * (KEPT + 1), 4 * KEPT)
    assert f"{4 * KEPT} files were there and not read" in str(loader.report())


def test_a_loader_whose_files_do_not_fit_goes_on_with_those_that_do(loader_of):
    want = epochs(loader_of(0), 3)
    loader = loader_of(60_000)
    assert all(map(torch.equal, epochs(loader, 3), want))
    decoder = loader_state.state_of(loader).decoder()
    files, found, _ = decoder.kept.files.totals
    assert 0 < files < KEPT
    assert 0 < found <= 2 * files


def test_a_loader_whose_memory_others_need_goes_on(loader_of, monkeypatch):
    monkeypatch.setattr(kept, "_LOOK_S", 0.0)
    want = epochs(loader_of(0), 4)
    loader = loader_of(1 << 20)
    made = epochs(loader, 2)
    loader_of.memory.others = loader_of.memory.total
    made += [images.clone() for _ in range(2) for images, _ in loader]
    assert all(map(torch.equal, made, want))
    decoder = loader_state.state_of(loader).decoder()
    assert decoder.kept.files.totals[0] == 0
    gc.collect()
    decoder.kept.place(Wanting(0))
    assert loader_of.memory.taken == {}


def test_memory_is_given_back_while_threads_decode(loader_of, monkeypatch):
    monkeypatch.setattr(kept, "_LOOK_S", 0.0)
    loader = loader_of(1 << 20)
    epochs(loader, 2)
    assert loader_of.memory.taken
    monkeypatch.setattr(DecodePolicy, "choose", lambda self: ("threads", False))
    loader_of.memory.others = loader_of.memory.total
    epochs(loader, 1)
    gc.collect()
    epochs(loader, 1)
    assert loader_of.memory.taken == {}


@pytest.mark.parametrize("wrong", [True, 1.5, "all", None])
def test_the_limit_is_a_number_of_bytes_or_auto(wrong):
    with pytest.raises(TypeError, match="device_cache_bytes must be an int or 'auto'"):
        FastLoader([1], device_cache_bytes=wrong)
    with pytest.raises(ValueError, match="must be >= 0"):
        FastLoader([1], device_cache_bytes=-1)


def test_a_batch_that_is_cancelled_needs_the_memory_no_more(kernels, paths, tmp_path):
    pool = _core.Pool(1)
    visits = Visits(kernels, pool, paths)
    visits.visit(1)
    visits.staging = None
    plan = _core.DrawPlan()
    plan.add("random_crop_v1", height=8, width=8)
    images, out = [str(tmp_path / "missing"), *paths], torch.zeros(len(paths) + 1, 8, 8, 3, dtype=torch.uint8)
    staging = _core.Staging(torch.zeros(1 << 20, dtype=torch.uint8), len(images), 1, "find", None, None, visits.files)
    job = pool.submit(images, out, plan=plan, stream=_core.RandomStream.from_seed(1), staging=staging)
    assert job.wait(30.0) == "requested"
    after = pool.submit([paths[1]], torch.zeros(1, 8, 8, 3, dtype=torch.uint8), geometry=np.zeros((1, 12), np.int32))
    assert after.wait(30.0) == "done"
    visits.files.forget(visits.memory)
    assert visits.memory.users == KEPT
    assert job.cancel(30.0)
    assert visits.memory.users == 0
    pool.close()


def test_a_kept_file_without_room_is_wanted_once(kernels, pool, paths):
    """Batches get as much pinned memory as others would have needed."""
    visits = Visits(kernels, pool, paths)
    visits.visit(1)
    wanted = []
    for files in (None, visits.files):
        memory = torch.zeros(len(paths) * _core.Staging.bytes_per_image + 16, dtype=torch.uint8)
        staging = _core.Staging(memory, len(paths), 1, "find", None, None, files)
        out = torch.zeros(len(paths), SIDE, SIDE, 3, dtype=torch.uint8)
        job = pool.submit(paths, out, geometry=crops(2, len(paths)), staging=staging)
        job.wait()
        assert set(job.statuses()) == {0}
        assert not any(staging.has())
        wanted.append(staging.wanted)
        visits.files.wants = False
    assert wanted[0] == wanted[1]


def test_a_forked_child_leaves_its_parents_memory():
    memory = HostMemory(16000)
    part = kept._Part(_core.KeptMemory(memory.take(1000)), 1000)
    kept._free_all(memory, os.getpid() + 1, [part])
    assert memory.freed == []
    kept._free_all(memory, os.getpid(), [part])
    assert memory.freed == [1000]


def test_what_the_driver_cannot_free_is_an_error(monkeypatch):
    freed = []

    class Driver:
        CUresult = SimpleNamespace(CUDA_SUCCESS=SimpleNamespace(name="CUDA_SUCCESS"))
        result = CUresult.CUDA_SUCCESS

        @classmethod
        def cuMemFree(cls, address):
            freed.append(address)
            return (cls.result,)

    monkeypatch.setattr(kept, "_driver", lambda: Driver)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: freed.append("synchronized"))
    memory = kept.CudaMemory(torch.device("cuda", 0))
    memory.free(16)
    assert freed == ["synchronized", 16]
    Driver.result = SimpleNamespace(name="CUDA_ERROR_ILLEGAL_ADDRESS")
    with pytest.raises(OSError, match="cuMemFree: CUDA_ERROR_ILLEGAL_ADDRESS"):
        memory.free(32)


@pytest.fixture
def full_device(monkeypatch):
    """A decoder of a device on which files are kept, and that is full."""
    memory = HostMemory(16000)
    monkeypatch.setattr(kept, "PART_BYTES", 1000)
    monkeypatch.setattr(kept, "CudaMemory", lambda device: memory)
    monkeypatch.setattr(decode.Decoder, "is_ready", lambda self, *, steps=False: self.gave_up is None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: mock.Mock())
    kept._all.clear()
    device = torch.device("cuda", 0)
    decoder = decode.Decoder(device)
    decoder.files_of_another_loader = kept.files_on(device, 4000)
    placed(decoder.files_of_another_loader, 1000)
    assert memory.taken
    decoder.host = memory
    return decoder


def test_pixels_take_the_memory_of_kept_files_if_there_is_no_other(full_device, monkeypatch):
    def empty_like(like, device):
        if full_device.host.taken:
            raise torch.OutOfMemoryError("full")
        return like.clone()

    monkeypatch.setattr(torch, "empty_like", empty_like)
    assert full_device.pixels(torch.ones(3)).tolist() == [1.0] * 3
    full_device.host.taken[0] = torch.zeros(1)  # another program's
    with pytest.raises(torch.OutOfMemoryError):
        full_device.pixels(torch.ones(3))


def test_a_decoder_gives_up_only_once_no_files_are_kept(full_device, monkeypatch):
    monkeypatch.setattr(full_device, "memory", mock.Mock(side_effect=torch.OutOfMemoryError("full")))
    layout = decode.StagedLayout(b"\1", 16, (0, 0, 0, 0, 0), (0, 0), [(0,) * 13])
    for gave_up in (None, "the GPU had no memory left to decode in"):
        run = decode.DecodeRun(full_device, torch.zeros(16, dtype=torch.uint8), torch.zeros(1, dtype=torch.int32))
        run.start(layout, torch.zeros(3), None, learns=False)
        assert run.bad.tolist() == [1]
        assert full_device.gave_up == gave_up
        assert full_device.host.taken == {}


def test_images_whose_kept_files_the_kernels_refused_do_not_count():
    files: Any = object.__new__(decode.StagedFiles)
    files._parts = [None, None]  # two views
    for has, kept_files, images in ((b"\1\1\1\1", 4, 2), (b"\1\1\0\0", 4, 1), (b"\0\0\0\0", 4, 0), (b"\1\1\1\1", 2, 1)):
        files.staging = mock.Mock(kept_files=kept_files, has=lambda has=has: has)
        assert files.kept == images
