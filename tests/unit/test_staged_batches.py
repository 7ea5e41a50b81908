"""A device makes of staged tensors what the worker would have painted."""

from __future__ import annotations

import io
import threading
import weakref
from dataclasses import replace
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler
from pickle import loads
from unittest import mock

import numpy as np
import pytest
import torch
from backends import simulated
from children import exit_code, forked
from decode_on_cpu import Finished, kernels_fixture
from deferred_images import deferred, expected, fill_of, of_levels, pending, table
from stageable import KINDS, OUT, OUT_HEIGHT, OUT_WIDTH, OWNER, noise, staged_number
from torch.utils.data import Dataset, default_collate, get_worker_info

from fastload import FastLoader, _core, loader_state
from fastload._batch import HostBatch
from fastload.deferred import staging as deferred_staging
from fastload.deferred.calls import stacks
from fastload.deferred.content import STAGED_BYTES, Content
from fastload.device.copy_scheduler import CopyScheduler
from fastload.device.decode import loader_allows, received
from fastload.device.decode.files import Decoder
from fastload.device.decode.received import StagedTensor
from fastload.device.normalize import finish
from fastload.lazy.pixels import Border
from fastload.memory import packing, unfilled
from fastload.memory.packing import DoesNotFitError, EscapedError, Packer, collate_into, unpack
from fastload.memory.slots import SlotPool, SlotWriter

kernels = kernels_fixture


def file_of(number, **kind):
    data = io.BytesIO()
    noise(90 + 3 * number, 120 - number, number).save(data, "JPEG", **kind)
    return data.getvalue()


SIZES = [(120 - number, 90 + 3 * number) for number in range(len(KINDS))]
FILES = [file_of(number, **kind) for number, kind in enumerate(KINDS)]


def batch_of(dtype=torch.float32, planar=True, seed=0, side=40, fills=True):
    images = [pending(data, size, seed + n, side) for n, (data, size) in enumerate(zip(FILES, SIZES, strict=True))]
    kinds = (fill_of(dtype, 2, (1, 2, 9, 5)), fill_of(dtype, 5)) if fills else ()
    return Content(tuple(images), table(dtype), planar, kinds)


class CpuDecoder:
    """Stands for what decodes on a device."""

    device = torch.device("cpu")
    gave_up, is_compiling = None, False
    nbytes = 0

    def __init__(self):
        self.turn = threading.Lock()

    def is_ready(self, *, steps=False):
        return self.gave_up is None

    def prepare(self):
        pass

    def pinned(self, nbytes):
        return torch.empty(nbytes, dtype=torch.uint8)


@pytest.fixture
def runs(kernels, monkeypatch):
    """Runs the kernels here; images that it names are not decoded."""

    class Run:
        fails = frozenset()
        count = 0

        def __init__(self, decoder, memory, bad):
            self.memory, self.bad = memory, bad
            self._is_unknown = False

        def start(self, layout, pixels, timing, *, learns, name):
            assert name == "paint"
            assert not learns
            pixels.fill_(0x33)
            images = range(len(self.bad))
            kernels.decode(Finished(layout, list(images)), self.memory, pixels, len(images))
            self.bad.copy_(kernels.bad)
            for image in images:  # one that fails spoils all parts of its file
                owner, height, width, begin = (
                    staged_number(self.memory, image, place) for place in (OWNER, OUT_HEIGHT, OUT_WIDTH, OUT)
                )
                if owner in self.fails and height:
                    self.bad[owner] = 1
                    pixels[begin : begin + 3 * height * width] = 0x77
            Run.count += 1
            self._is_unknown = True

        def wait(self):
            was, self._is_unknown = self._is_unknown, False
            return was

    monkeypatch.setattr(received, "DecodeRun", Run)
    return Run


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    monkeypatch.setattr(packing, "get_worker_info", lambda: object())
    monkeypatch.setattr(packing, "SMALL_BYTES", 1)  # tensors are small here
    stacks.install()
    yield
    unfilled.serve(None)
    resource_sharer.stop(timeout=5)


def arrived(data, memory_format=None, dtype=None, slot_bytes=4 << 20, stacks_samples=False):
    """What a device makes of a batch that went through a slot."""
    slot = torch.full((slot_bytes,), 0xA5, dtype=torch.uint8)
    packer = Packer(slot, unfilled.stager())
    packed = packer.pack(collate_into(packer, data) if stacks_samples else data)
    packed = loads(bytes(ForkingPickler.dumps(packed)))
    assert packed.staged is not None
    staged, begin = packed.staged
    files = received.ReceivedFiles(CpuDecoder(), staged, slot[begin:], deferred_staging.paint_images)

    def made(leaf):
        if isinstance(leaf, StagedTensor):
            leaf = files.leaf(leaf, memory_format)
        return leaf

    batch = unpack(packed, slot, made)

    def on_device(leaf):
        if isinstance(leaf, received.ReceivedImages):
            leaf = leaf.copy_pixels(torch.device("cpu")).images()
        return finish(leaf, memory_format, dtype)

    result = packing.map_tensors(on_device, batch)
    while not files.is_right():
        result = packing.map_tensors(on_device, batch)
    return result, files


def same(ours, theirs):
    kinds = [(type(each), each.dtype, each.size(), each.stride()) for each in (ours, theirs)]
    return (
        kinds[0] == kinds[1]
        and ours._base is None
        and torch.equal(ours.contiguous().view(torch.uint8), theirs.contiguous().view(torch.uint8))
    )


@pytest.mark.parametrize(
    ("dtype", "planar", "memory_format", "cast"),
    [
        (torch.float32, True, None, None),
        (torch.float32, False, torch.contiguous_format, torch.float16),
        (torch.float16, True, torch.channels_last, None),
        (torch.bfloat16, False, None, None),
        (torch.uint8, True, torch.channels_last, torch.float16),
        (torch.uint8, False, None, None),
    ],
)
@pytest.mark.usefixtures("runs")
def test_pixels_and_layouts_are_the_workers(dtype, planar, memory_format, cast):
    batch = batch_of(dtype, planar)
    data = {"images": deferred(batch), "targets": torch.arange(8), "more": "text"}
    ours, files = arrived(data, memory_format, cast)
    assert files.staged == len(FILES)
    assert same(ours["images"], finish(expected(batch), memory_format, cast))
    assert ours["targets"].tolist() == list(range(8))
    assert ours["more"] == "text"


@pytest.mark.usefixtures("runs")
def test_samples_are_staged_as_they_are_stacked():
    batch = batch_of()
    samples = []
    for number, image in enumerate(batch.images):
        fills = tuple(replace(each, image=0) for each in batch.fills if each.image == number)
        samples.append((deferred(Content((image,), batch.table, True, fills), single=True), number))
    ours, _ = arrived(samples, torch.channels_last, stacks_samples=True)
    assert same(ours[0], finish(expected(batch), torch.channels_last, None))
    assert ours[1].tolist() == list(range(8))


@pytest.mark.parametrize("most_bytes", [1, deferred_staging.SCRATCH_MAX_BYTES])
@pytest.mark.usefixtures("runs")
def test_views_of_files_are_staged_once_and_single_images_are_no_views(most_bytes, monkeypatch):
    """Also if each file is decoded by itself."""
    monkeypatch.setattr(deferred_staging, "SCRATCH_MAX_BYTES", most_bytes)
    large = batch_of(seed=0, fills=False)
    others = [batch_of(seed=seed, side=24) for seed in (1, 2)]
    one = Content(large.images[:1], large.table, planar=True, fills=(fill_of(image=0),))
    data = [deferred(large), [deferred(each) for each in others], deferred(one, single=True)]
    ours, files = arrived(data, torch.channels_last)
    assert files.staged == 3 * len(FILES) + 1
    last = finish(expected(one)[0], torch.channels_last, None)
    for a, b in zip([ours[0], *ours[1]], [large, *others], strict=True):
        assert same(a, finish(expected(b), torch.channels_last, None))
    assert same(ours[2], last)
    _, alone = arrived([deferred(large)])
    weights = alone._batch.layout.used / 2
    assert len(files._batch.layout.chunks) == (len(FILES) if most_bytes == 1 else 1)
    assert files._batch.layout.used < 2 * alone._batch.layout.used + 2 * weights
    assert files._batch.begin < 1.3 * alone._batch.begin


def test_images_that_the_kernels_cannot_decode_are_painted_on_the_host(runs, monkeypatch):
    batch = batch_of()
    monkeypatch.setattr(runs, "fails", {1, 5})
    before = runs.count
    ours, files = arrived([deferred(batch)])
    assert same(ours[0], expected(batch))
    assert runs.count == before + 2
    assert sorted(files._levels) == [1, 5]


def test_all_images_of_a_file_fail_with_its_data(runs, monkeypatch):
    pair = [batch_of(seed=seed, fills=False) for seed in (0, 1)]
    monkeypatch.setattr(runs, "fails", {4})  # the third file's first, whose data is the second one's, too
    ours, files = arrived([deferred(each) for each in pair])
    assert all(same(a, expected(b)) for a, b in zip(ours, pair, strict=True))
    assert sorted(files._levels) == [2, 2 + len(FILES)]


def test_images_that_are_not_staged_are_painted_by_the_worker(runs):
    batch = batch_of()
    second = FILES[-1].index(b"\xff\xda", FILES[-1].index(b"\xff\xda") + 2)
    data = FILES[-1][:second] + b"\xff\xfe\0\4hi" + FILES[-1][second:]  # a comment between scans: not for a GPU
    odd = [pending(data, SIZES[-1], seed, 40) for seed in (3, 4)]
    whole = replace(batch, images=(*batch.images[:3], odd[0], *batch.images[4:], odd[1]))
    ours, files = arrived([deferred(whole)])
    assert sorted(files._levels) == [3, 8]
    assert files.staged == 7
    assert same(ours[0], expected(whole))
    only = replace(whole, images=whole.images[3:4], fills=())
    before = runs.count
    assert same(arrived([deferred(only)])[0][0], expected(only))
    assert runs.count == before  # there is nothing to decode


def test_steps_that_no_kernel_does_are_the_workers(runs):
    places = np.random.default_rng(0).integers(-1, 40 * 40, (40, 40), dtype=np.int32)
    kernelless = {
        "torch_hue": {"value": 0.1},
        "torch_sharpness": {"value": 0.73},
        "torch_permute": {"order": (2, 0, 1)},
        "torch_gather": {"places": _core.PixelPlaces(places), "fill": (3, 2, 1)},
    }
    batch = batch_of()
    odd = [image.changed(*node) for image, node in zip(batch.images, kernelless.items(), strict=False)]
    whole = replace(batch, images=(*odd, *batch.images[4:]))
    ours, files = arrived([deferred(whole)])
    assert files.staged == 4
    assert same(ours[0], expected(whole))


@pytest.mark.parametrize("planar", [True, False])
def test_borders_are_made_on_the_device(runs, planar):
    borders = [((0, 0, 0, 0), (1, 2, 3)), ((7, 2, 3, 8), (9, 8, 7)), ((0, 0, 10, 10), (255, 0, 3))]
    images = [
        pending(FILES[n % 7], SIZES[n % 7], n, 50).bordered(Border(*border)).turned(n % 2).cropped((8, 9, 48, 49))
        for n, border in enumerate(borders * 4)
    ]
    images[3] = images[3].changed("invert", {})
    images.append(
        of_levels(np.full((30, 40, 3), 77, np.uint8), (0, 0, 40, 30)).bordered(Border((4, 0, 6, 0), (5, 6, 7)))
    )
    batch = Content(tuple(images), table(), planar)
    painted = np.empty(batch.nbytes, np.uint8)
    assert not any(batch.core().paint(painted))
    theirs = expected(batch)
    assert painted.tobytes() == (theirs if planar else theirs.permute(0, 2, 3, 1)).numpy().tobytes()
    ours, files = arrived([deferred(batch)])
    assert same(ours[0], theirs)
    assert files.staged == len(borders) * 4


@pytest.mark.parametrize("planar", [True, False])
def test_levels_that_are_made_are_copied_as_they_are(runs, planar):
    draw = np.random.default_rng(3)
    pixels = [draw.integers(0, 256, (height, 50, 3), dtype=np.uint8) for height in (40, 70)]
    batch = batch_of(planar=planar)
    whole = of_levels(pixels[0][:, :40].copy(), (0, 0, 40, 40))
    parts = [of_levels(pixels[1], (3, 20, 43, 60)), of_levels(pixels[1], (9, 1, 49, 41), mirrored=True, flipped=True)]
    parts.append(of_levels(pixels[1], (5, 8, 45, 48), steps=(("invert", {}),)))
    mixed = replace(batch, images=(whole, *batch.images[:6], *parts))
    theirs = expected(mixed)
    assert torch.equal(theirs[0][:, 7, 9], mixed.table[[0, 1, 2], torch.from_numpy(pixels[0])[7, 9].long()])
    painted = np.empty(mixed.nbytes, np.uint8)
    assert not any(mixed.core().paint(painted))
    assert painted.tobytes() == (theirs if planar else theirs.permute(0, 2, 3, 1)).numpy().tobytes()
    ours, files = arrived([deferred(mixed)])
    assert same(ours[0], theirs)
    assert sorted(files._levels) == [0, 7, 8, 9]
    assert files.staged == 6
    only = replace(mixed, images=(whole, *parts), fills=())
    before = runs.count
    assert same(arrived([deferred(only)])[0][0], expected(only))
    assert runs.count == before
    levels = 3 * sum(width * height for width, height in (image.size for image in only.images))
    assert only.staged_bytes == levels + 4 * STAGED_BYTES


def test_nothing_is_decoded_there_once_the_decoder_gave_up(runs, monkeypatch):
    monkeypatch.setattr(CpuDecoder, "gave_up", "no memory")
    before = runs.count
    batch = batch_of()
    assert same(arrived([deferred(batch)])[0][0], expected(batch))
    assert runs.count == before


def test_pillow_paints_what_the_core_cannot(runs, monkeypatch):
    """As a last resort, and in the training process, which has the file."""
    batch = batch_of(fills=False)
    theirs = expected(batch)
    monkeypatch.setattr(runs, "fails", set(range(8)))
    monkeypatch.setattr(deferred_staging.File, "_native", lambda *_: None)
    assert same(arrived([deferred(batch)])[0][0], theirs)


@pytest.mark.parametrize("odd", ["dtype", "table", "layout", "pixel"])
@pytest.mark.usefixtures("runs")
def test_what_a_device_does_not_make_is_painted_by_the_worker(odd):
    kept = batch_of()
    batch = {
        "dtype": lambda: batch_of(torch.float64),
        "table": lambda: replace(batch_of(torch.uint8), table=255 - table(torch.uint8), fills=()),
        "layout": batch_of,
        "pixel": lambda: batch_of(side=1, fills=False),
    }[odd]()
    tensor = deferred(batch)
    theirs = expected(batch)
    if odd == "layout":
        tensor, theirs = tensor.permute(0, 2, 3, 1), theirs.permute(0, 2, 3, 1)
    ours, files = arrived([tensor, deferred(kept)])
    assert torch.equal(ours[0], theirs)
    assert ours[0].stride() == theirs.stride()
    assert files.staged == len(FILES)


@pytest.mark.usefixtures("runs")
def test_a_slot_that_is_too_small_says_what_is_needed():
    for slot_bytes in (1 << 12, 30 << 10, 110 << 10):
        with pytest.raises(DoesNotFitError) as raised:
            arrived([deferred(batch_of())], slot_bytes=slot_bytes)
        assert raised.value.needed > slot_bytes
        needed = raised.value.needed
    assert same(arrived([deferred(batch_of())], slot_bytes=-(-needed // 64) * 64)[0][0], expected(batch_of()))
    with pytest.raises(DoesNotFitError):  # though there is room for pixels, which the device should make
        arrived([deferred(batch_of())], slot_bytes=needed // 64 * 64 - 1024)


def test_a_staged_stack_that_is_not_found_in_the_batch_has_escaped():
    packer = Packer(torch.zeros(1 << 20, dtype=torch.uint8), unfilled.stager())
    batch = batch_of(fills=False)
    samples = [deferred(Content((image,), batch.table, planar=True), single=True) for image in batch.images]
    collate_into(packer, samples)
    with pytest.raises(EscapedError):
        packer.pack([torch.zeros(3)])


class Deferring(Dataset):
    """Images that are deferred in worker processes."""

    def __init__(self, count=24):
        batch = batch_of(fills=False)
        self.contents = [Content((batch.images[i % 8],), batch.table, planar=True) for i in range(count)]

    def __len__(self):
        return len(self.contents)

    def __getitem__(self, index):
        content = self.contents[index]
        image = expected(content)[0] if get_worker_info() is None else deferred(content, single=True)
        return {"image": image, "target": index}


@pytest.fixture
def device(monkeypatch, runs):
    """A simulated one, whose kernels run here."""
    simulated.install(monkeypatch)
    monkeypatch.setattr(packing, "get_worker_info", get_worker_info)
    monkeypatch.setattr(loader_allows, "not_on_gpu_because", lambda *arguments: None)
    decoder = CpuDecoder()
    monkeypatch.setattr(loader_state.LoaderState, "decoder", lambda *arguments: decoder)
    return {"device": "cuda", "worker_init_fn": lambda worker: stacks.install()}


def lists(samples):
    return [sample["image"] for sample in samples], torch.tensor([sample["target"] for sample in samples])


@pytest.mark.parametrize("collate_fn", [default_collate, lists])
def test_batches_are_staged_once_slots_and_kernels_are_there(device, collate_fn, runs, monkeypatch):
    """In persistent workers, after an early end, with images that fail."""
    monkeypatch.setattr(runs, "fails", {1})
    dataset = Deferring()
    own = {"num_workers": 2, "persistent_workers": True, "collate_fn": collate_fn}
    with FastLoader(dataset, 4, shuffle=True, **own, **device) as loader:
        for epoch in range(3):
            for number, batch in enumerate(loader):
                images, targets = batch.values() if isinstance(batch, dict) else batch
                theirs = [dataset[int(target)]["image"] for target in targets]
                assert all(torch.equal(a, b) for a, b in zip(images, theirs, strict=True)), (epoch, number)
                if epoch == 1 and number == 2:
                    break
        stats = loader.stats()
        assert stats.gpu_images > 16
        assert loader_state.state_of(loader).slots.paints


def test_workers_paint_once_the_decoder_gave_up(device, runs, monkeypatch):
    dataset = Deferring()
    with FastLoader(dataset, 4, num_workers=1, persistent_workers=True, **device) as loader:
        painted = []
        for epoch in range(3):
            if epoch == 2:
                loader_state.state_of(loader).decoder(None).gave_up = "no memory"
            painted.append(loader.stats().gpu_images)
            for batch in loader:
                theirs = [dataset[int(target)]["image"] for target in batch["target"]]
                assert torch.equal(batch["image"], torch.stack(theirs))
        assert painted[2] > 0
        slots = loader_state.state_of(loader).slots
        assert not slots.paints


def test_slots_say_whether_batches_are_staged():
    pool = SlotPool(2, 1 << 20, register=False)
    pool.paints = True
    pool.want(4096, wait=True)
    writer = SlotWriter(pool.handle)
    stamp, _ = writer.acquire(0)
    assert writer.paints(stamp)
    pool.paints = False
    assert not writer.paints(stamp)
    writer.give_back(stamp)
    pool.close()


def test_the_painter_keeps_no_loader_and_slots_know_whether_there_is_one():
    state = loader_state.LoaderState()
    gone = weakref.ref(state)
    loader, slots = mock.Mock(decode="auto"), mock.Mock(paints=True)
    route = mock.Mock(is_deferred=True, not_on_gpu=None)
    painter = state.painter(loader, route, slots)
    assert not slots.paints
    painter.decoder = CpuDecoder()
    assert state.painter(loader, route, slots) is painter
    assert slots.paints
    for other in (mock.Mock(is_deferred=True, not_on_gpu="why"), mock.Mock(is_deferred=False, not_on_gpu=None)):
        slots.paints = True
        assert state.painter(loader, other, slots) is None
        assert not slots.paints
    assert state.painter(mock.Mock(decode="cpu"), route, slots) is None
    del state
    assert gone() is None
    assert painter.make_decoder() is None


def test_workers_stage_batches_once_the_kernels_are_there():
    decoder, slots = mock.Mock(gave_up=None, is_compiling=True), mock.Mock(paints=None)
    painter = received.Painter(lambda: decoder, slots, mock.Mock(), None)
    for ready in (False, True):
        decoder.is_ready.return_value = ready
        assert painter.begin()
        assert slots.paints is ready
    assert decoder.is_ready.call_args.kwargs == {"steps": True}  # any batch may have some
    assert decoder.prepare.call_count == 2
    decoder.gave_up = "no memory"
    assert not painter.begin()
    assert not received.Painter(lambda: None, slots, mock.Mock(), None).begin()


@pytest.mark.parametrize("paints", [True, False])
def test_slots_are_as_large_as_what_will_be_in_them(paints):
    painter, slots, transfer = mock.Mock(), mock.Mock(), mock.Mock()
    painter.begin.return_value, slots.refusal = paints, None
    scheduler = CopyScheduler(transfer, 1, 0, False, None, slots, painter=painter)
    for needs in (0, 12345):
        scheduler.arrive(HostBatch([torch.zeros(1000)], 0, scheduler.key, missed="no slot is free", needs=needs))
    assert [call.args for call in slots.want.call_args_list] == [(4032,), (12345 if paints else 4032,)]
    assert painter.begin.call_count == 1  # kernels are compiled only where there is something to paint


def test_the_decoder_lends_pinned_memory(monkeypatch):
    decoder = object.__new__(Decoder)
    decoder._buffers = received.np  # anything with a method of that name
    monkeypatch.setattr(np, "take", lambda nbytes: nbytes)
    assert decoder.pinned(5) == 5


@pytest.mark.slow
def test_children_forked_while_other_threads_stage_can_stage():
    data = file_of(0)
    sides = range(5, 105)  # tables of many sizes, kept for all threads
    programs = [Content((pending(data, SIZES[0], side, side),), table(), planar=True).core() for side in sides]

    def stage(times=1):
        slot = np.zeros(8 << 20, np.uint8)
        for _ in range(times):
            _core.stage_programs(programs, list(range(len(programs))), slot, 1 << 26)

    def work():
        while not stop.is_set():
            stage(50)

    stop = threading.Event()
    threads = [threading.Thread(target=work) for _ in range(3)]
    stage()
    for thread in threads:
        thread.start()
    try:
        assert [exit_code(forked(stage), seconds=20) for _ in range(20)] == [0] * 20
    finally:
        stop.set()
        for thread in threads:
            thread.join()
