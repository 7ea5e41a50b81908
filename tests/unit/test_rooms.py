"""Test memory that is lent to batches."""

from __future__ import annotations

import threading

import torch

from fastload.memory.rooms import Rooms


def lending() -> tuple[Rooms, list[int]]:
    allocated: list[int] = []

    def allocate(nbytes: int) -> torch.Tensor:
        allocated.append(nbytes)
        return torch.empty(nbytes, dtype=torch.uint8)

    return Rooms(allocate), allocated


def test_memory_comes_back_with_the_last_view():
    rooms, allocated = lending()
    first = rooms.take(100)
    address, view = first.data_ptr(), first.view(10, 10)[3:5, 2]
    del first
    second = rooms.take(100)
    assert second.data_ptr() != address
    del view
    assert rooms.take(90).data_ptr() == address
    assert allocated == [100, 100]
    assert second.numel() == 100


def test_an_array_keeps_the_memory_too():
    rooms, _ = lending()
    array = rooms.take(8).numpy()
    array[:] = 7
    rooms.take(8).fill_(1)
    assert array.tolist() == [7] * 8


def test_it_comes_back_from_another_thread():
    rooms, allocated = lending()
    taken = [rooms.take(8)]
    thread = threading.Thread(target=taken.clear)
    thread.start()
    thread.join()
    rooms.take(8)
    assert allocated == [8]


def test_the_smallest_that_fits_is_taken_and_outgrown_memory_is_freed():
    rooms, allocated = lending()
    small, large = rooms.take(10), rooms.take(100)
    address = large.data_ptr()
    assert rooms.nbytes == 110
    del small, large
    kept = rooms.take(5)
    assert kept.data_ptr() != address
    assert rooms.take(50).data_ptr() == address
    larger = rooms.take(200)
    assert allocated == [10, 100, 200]
    assert rooms.nbytes == 210  # 100 was free and too small
    assert (kept.numel(), larger.numel()) == (5, 200)


def test_an_empty_batch_takes_no_bytes():
    rooms, _ = lending()
    assert rooms.take(0).view(0, 4, 4, 3).numel() == 0


def test_memory_outlives_the_rooms():
    rooms, _ = lending()
    taken = rooms.take(8).fill_(3)
    del rooms
    assert taken.tolist() == [3] * 8
