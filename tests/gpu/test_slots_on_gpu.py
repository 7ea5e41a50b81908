"""Slots on the device: equality, reuse, growth, cap, and nothing left behind."""

from __future__ import annotations

import gc
import os
import time

import pytest
import torch
from leaks import Holdings, survivors
from plans import text_of
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fastload import FastLoader
from fastload.memory.arena import Arena
from fastload.memory.slots import SlotPool

pytestmark = pytest.mark.gpu


def wait_for_slots(loader: FastLoader) -> None:
    """The arena is made in the background, after the first batch."""
    list(loader)
    deadline = time.monotonic() + 20
    while not loader.stats().slots and time.monotonic() < deadline:
        time.sleep(0.01)


def images(count: int = 256, side: int = 64) -> TensorDataset:
    torch.manual_seed(0)
    return TensorDataset(torch.randn(count, 3, side, side), torch.arange(count))


def channels_last_dict(samples):
    stacked = torch.stack([s[0] for s in samples]).to(memory_format=torch.channels_last)
    return {"images": stacked, "labels": torch.tensor([s[1] for s in samples]), "n": len(samples)}


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_whole_epochs_equal_torchs_through_slots(method):
    data = images()
    ours = FastLoader(data, 16, True, num_workers=2, multiprocessing_context=method, persistent_workers=True)
    theirs = DataLoader(data, 16, True, num_workers=2, persistent_workers=True)
    torch.manual_seed(0)
    list(theirs)
    torch.manual_seed(0)
    wait_for_slots(ours)
    for epoch in range(3):
        torch.manual_seed(epoch)
        expected = list(theirs)
        torch.manual_seed(epoch)
        for (x, y), (a, b) in zip(ours, expected, strict=True):
            assert torch.equal(x.cpu(), a)
            assert torch.equal(y.cpu(), b)
    stats = ours.stats()
    assert stats.batches == 64
    assert stats.slot_batches > 30, stats
    assert "slots" in text_of(ours)


def test_custom_collate_is_packed_and_keeps_its_layout():
    data = images()
    loader = FastLoader(data, 16, num_workers=2, collate_fn=channels_last_dict, memory_format=None)
    wait_for_slots(loader)
    for _ in range(2):
        for k, batch in enumerate(loader):
            assert torch.equal(batch["images"].cpu(), data.tensors[0][16 * k : 16 * k + 16])
            assert batch["images"].is_contiguous(memory_format=torch.channels_last)
            assert batch["labels"].tolist() == list(range(16 * k, 16 * k + 16))
            assert batch["n"] == 16
    assert loader.stats().slot_batches > 8


def test_a_slot_is_not_overwritten_before_its_copy_has_completed():
    """The copy stream is held up while fast workers fill every slot that is free."""
    data = TensorDataset(torch.arange(64.0)[:, None, None, None].expand(64, 3, 256, 256))
    loader = FastLoader(data, 2, num_workers=2, memory_format=None, persistent_workers=True, device_prefetch=4)
    wait_for_slots(loader)
    stream = loader._state.copy_stream(torch.device("cuda", 0))
    for _ in range(3):
        seen = []
        for (batch,) in loader:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(8_000_000)
            seen.append(torch.stack([batch.amin((1, 2, 3)), batch.amax((1, 2, 3))], 1))
        expected = torch.arange(64.0)[:, None].expand(64, 2)
        assert torch.equal(torch.cat(seen).cpu(), expected)
    assert loader.stats().slot_batches > 60
    loader.close()


@pytest.mark.parametrize("prefetch", [0, 1])
def test_slots_serve_the_consumers_own_stream_too(prefetch):
    data = images(512, 128)
    loader = FastLoader(data, 16, num_workers=2, device_prefetch=prefetch, persistent_workers=True)
    wait_for_slots(loader)
    for _ in range(2):
        for k, (x, _) in enumerate(loader):
            assert torch.equal(x.cpu(), data.tensors[0][16 * k : 16 * k + 16])
    assert loader.stats().slot_batches > 16


def test_small_tensors_share_a_copy_and_never_keep_a_large_one():
    class Mixed(Dataset):
        def __len__(self):
            return 200

        def __getitem__(self, index):
            return torch.full((3, 128, 128), float(index)), {f"f{i}": torch.full((4,), index) for i in range(10)}

    loader = FastLoader(Mixed(), 8, num_workers=2, memory_format=None, persistent_workers=True)
    wait_for_slots(loader)
    kept = []
    before = torch.cuda.memory_allocated()
    for k, (_, small) in enumerate(loader):
        assert len({t.untyped_storage().data_ptr() for t in small.values()}) <= 10
        kept.append(small["f3"])
        assert torch.equal(small["f9"].cpu(), torch.arange(8 * k, 8 * k + 8)[:, None].expand(8, 4))
    torch.cuda.synchronize()
    del small
    gc.collect()
    assert torch.cuda.memory_allocated() - before < 8 * 3 * 128 * 128 * 4 * 4
    assert torch.equal(torch.cat(kept).cpu()[:, 0], torch.arange(200))


class Growing(Dataset):
    def __len__(self):
        return 300

    def __getitem__(self, index):
        return torch.full((1 + (index * 37) % 4096, 16), index)


def test_larger_batches_make_the_arena_grow_without_thrashing():
    data = Growing()
    loader = FastLoader(data, batch_size=None, num_workers=2, persistent_workers=True)
    for _ in range(4):
        for k, x in enumerate(loader):
            assert torch.equal(x.cpu(), data[k])
    stats = loader.stats()
    assert loader._state.slots._number <= 16
    assert stats.slot_batches > 600, stats
    loader.close()


def test_the_cap_bounds_pinned_bytes_and_the_plan_says_so():
    data = images(256, 64)
    batch_bytes = 16 * (3 * 64 * 64 * 4 + 8)
    loader = FastLoader(data, 16, num_workers=4, max_pinned_bytes=3 * 2**20)
    for _ in range(2):
        list(loader)
    assert 0 < loader.stats().pinned_bytes <= 3 * 2**20
    tight = FastLoader(data, 16, num_workers=2, max_pinned_bytes=batch_bytes)
    for (x, _), expected in zip(tight, data.tensors[0].split(16), strict=True):
        assert torch.equal(x.cpu(), expected)
    assert tight.stats().slots == 0
    assert "exceed max_pinned_bytes" in text_of(tight)


def test_nothing_is_left_after_close_and_after_garbage_collection():
    data = images()
    torch.zeros(1, device="cuda")
    before = Holdings.now()
    for how in ("close", "garbage", "break", "error"):
        loader = FastLoader(data, 16, num_workers=2)
        for _ in range(2):
            for x, _ in loader:
                if how == "break":
                    break
        if how == "error":
            iterator = iter(loader)
            next(iterator)
            os.kill(iterator._workers[0].pid, 9)
            with pytest.raises(RuntimeError, match="DataLoader worker"):
                list(iterator)
            del iterator
        if how == "close":
            loader.close()
        del loader, x
        assert not survivors(before, grace_s=10), how


def test_an_address_can_be_registered_again_after_an_arena_is_gone():
    for _ in range(20):
        arena = Arena(1, 4, 2**20)
        arena.mapping.slot(3).fill_(7)
        assert int(arena.mapping.slot(3).cuda().sum()) == 7 * 2**20
        arena.close()


def test_a_killed_worker_does_not_cost_its_slot_forever():
    data = images(2000, 64)
    loader = FastLoader(data, 16, num_workers=2)
    wait_for_slots(loader)
    slots = loader.stats().slots
    for _ in range(3):
        iterator = iter(loader)
        next(iterator)
        os.kill(iterator._workers[1].pid, 9)
        with pytest.raises(RuntimeError, match="DataLoader worker"):
            list(iterator)
        del iterator
    before = loader.stats()
    for (x, _), expected in zip(loader, data.tensors[0].split(16), strict=True):
        assert torch.equal(x.cpu(), expected)
    after = loader.stats()
    assert after.slots == slots
    assert after.slot_batches - before.slot_batches > 100


def test_poisoned_slots_are_never_seen(monkeypatch):
    monkeypatch.setenv("FASTLOAD_DEBUG", "1")
    data = images(512, 64)
    loader = FastLoader(data, 8, num_workers=3, persistent_workers=True)
    for _ in range(3):
        for (x, y), expected in zip(loader, data.tensors[0].split(8), strict=True):
            torch.cuda._sleep(200_000)
            assert torch.equal(x.cpu(), expected)
            assert not torch.any(y.cpu() > 512)
    pool = loader._state.slots
    assert isinstance(pool, SlotPool)
    assert bool((pool._current.mapping.slot(0) == 0xA5).all())


def test_slots_are_pinned_memory_to_torch_too():
    with FastLoader(images(), 16, num_workers=2) as loader:
        wait_for_slots(loader)
        before = loader.stats()  # batches that came before the slots were there are not pinned one by one
        list(loader)
        stats = loader.stats().since(before)
    assert stats.slot_batches > 8
    assert stats.device.copied_bytes > stats.device.pageable_bytes == 0


def test_a_batch_that_is_pinned_already_takes_no_slot():
    batches = [torch.randn(64, 1000).pin_memory() for _ in range(20)]
    with FastLoader(batches, batch_size=None) as loader:
        for _ in range(2):
            for ours, theirs in zip(loader, batches, strict=True):
                assert torch.equal(ours.cpu(), theirs)
        stats = loader.stats()
    assert (stats.slot_batches, dict(stats.missed), stats.device.pageable_bytes) == (0, {}, 0)


def test_a_pinned_batch_that_is_made_anew_in_the_same_memory_is_copied_before():
    buffer = torch.empty(64, 3, 512, 512, pin_memory=True)

    def refill(samples):
        buffer.fill_(samples[0])
        return buffer

    with FastLoader(range(20), collate_fn=refill) as loader:
        assert all((batch == number).all() for number, batch in enumerate(list(loader)))
