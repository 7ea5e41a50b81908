"""Test memory that is lent to batches."""

from __future__ import annotations

import threading

import torch

from fastload.memory.buffers import BufferPool


def lending() -> tuple[BufferPool, list[int]]:
    allocated: list[int] = []

    def allocate(nbytes: int) -> torch.Tensor:
        allocated.append(nbytes)
        return torch.empty(nbytes, dtype=torch.uint8)

    return BufferPool(allocate), allocated


def test_memory_comes_back_with_the_last_view():
    buffers, allocated = lending()
    first = buffers.take(100)
    address, view = first.data_ptr(), first.view(10, 10)[3:5, 2]
    del first
    second = buffers.take(100)
    assert second.data_ptr() != address
    del view
    assert buffers.take(90).data_ptr() == address
    assert allocated == [100, 100]
    assert second.numel() == 100


def test_an_array_keeps_the_memory_too():
    buffers, _ = lending()
    array = buffers.take(8).numpy()
    array[:] = 7
    buffers.take(8).fill_(1)
    assert array.tolist() == [7] * 8


def test_it_comes_back_from_another_thread():
    buffers, allocated = lending()
    taken = [buffers.take(8)]
    thread = threading.Thread(target=taken.clear)
    thread.start()
    thread.join()
    buffers.take(8)
    assert allocated == [8]


def test_the_smallest_that_fits_is_taken_and_outgrown_memory_is_freed():
    buffers, allocated = lending()
    small, large = buffers.take(10), buffers.take(100)
    address = large.data_ptr()
    assert buffers.nbytes == 110
    del small, large
    kept = buffers.take(5)
    assert kept.data_ptr() != address
    assert buffers.take(50).data_ptr() == address
    larger = buffers.take(200)
    assert allocated == [10, 100, 200]
    assert buffers.nbytes == 210  # 100 was free and too small
    assert (kept.numel(), larger.numel()) == (5, 200)


def test_an_empty_batch_takes_no_bytes():
    buffers, _ = lending()
    assert buffers.take(0).view(0, 4, 4, 3).numel() == 0


def test_memory_outlives_the_pool():
    buffers, _ = lending()
    taken = buffers.take(8).fill_(3)
    del buffers
    assert taken.tolist() == [3] * 8
