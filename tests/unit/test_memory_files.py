"""Memory files are used again once no one else has them, and not before."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
from typing import TYPE_CHECKING, Any

import pytest
import torch
from children import exit_code, forked
from torch.utils.data import DataLoader, Dataset, default_collate

from fastload import FastLoader
from fastload.memory import memory_files
from fastload.memory.memory_files import KEPT_MAX, REUSED_MIN_BYTES, MemoryFiles, memory_file, of_processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIZE = REUSED_MIN_BYTES


@pytest.fixture
def files() -> Iterator[MemoryFiles]:
    files = MemoryFiles(max_bytes=10 * SIZE)
    yield files
    files.close()


def taken(files: MemoryFiles, nbytes: int = SIZE) -> int:
    """Take a file and close it; return its inode."""
    file = files.take(nbytes)
    inode = os.fstat(file.descriptor).st_ino
    os.close(file.descriptor)
    return inode


def test_a_file_is_used_again(files: MemoryFiles) -> None:
    first = taken(files)
    for nbytes in (SIZE, 2 * SIZE, SIZE, SIZE + 1):
        file = files.take(nbytes)
        assert file.memory is not None
        assert file.memory.shape == (nbytes,)
        file.memory[:] = nbytes % 251
        assert os.pread(file.descriptor, nbytes, 0) == bytes([nbytes % 251]) * nbytes
        assert os.fstat(file.descriptor).st_ino == first
        os.close(file.descriptor)


def by_descriptor(file: int) -> Callable[[], object]:
    other = os.dup(file)
    return lambda: os.close(other)


def by_tensor(file: int) -> Callable[[], object]:
    storage: Any = torch.UntypedStorage._new_shared_fd_cpu(file, SIZE)  # type: ignore[attr-defined]
    held = [torch.empty(0, dtype=torch.uint8).set_(storage)[5:9].numpy()]
    return held.clear


def by_message(file: int) -> Callable[[], object]:
    ends = socket.socketpair()
    socket.send_fds(ends[0], [b"."], [file])
    return lambda: [end.close() for end in ends]


def by_mapping_of_a_child(file: int) -> Callable[[], object]:
    reader, writer = os.pipe()
    ready, mapped = os.pipe()

    def hold() -> None:
        mapping = mmap.mmap(file, SIZE)
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor > 2 and descriptor not in (reader, mapped):
                try:
                    os.close(descriptor)
                except OSError:
                    continue
        os.write(mapped, b".")
        os.read(reader, 1)
        assert mapping[0] == 0

    child = forked(hold)
    os.close(reader)
    os.close(mapped)
    os.read(ready, 1)
    os.close(ready)

    def release() -> None:
        os.close(writer)
        assert exit_code(child) == 0

    return release


@pytest.mark.parametrize("held", [by_descriptor, by_tensor, by_message, by_mapping_of_a_child])
def test_a_file_that_someone_has_is_not(files: MemoryFiles, held: Callable[[int], Callable[[], object]]) -> None:
    file = files.take(SIZE)
    first = os.fstat(file.descriptor).st_ino
    release = held(file.descriptor)
    os.close(file.descriptor)
    assert first not in {taken(files) for _ in range(3)}
    release()
    of_two = files.take(SIZE), files.take(SIZE)
    assert first in {os.fstat(file.descriptor).st_ino for file in of_two}
    for file in of_two:
        os.close(file.descriptor)


def inodes(files: MemoryFiles, *sizes: int) -> list[int]:
    """Take files of these sizes together."""
    several = [files.take(nbytes) for nbytes in sizes]
    found = [os.fstat(file.descriptor).st_ino for file in several]
    for file in several:
        os.close(file.descriptor)
    return found


def test_files_of_several_batches_are_used_again_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    files = MemoryFiles(2 * KEPT_MAX * SIZE)
    several = [SIZE] * (KEPT_MAX + 1)
    first = inodes(files, *several)
    again = inodes(files, *several)
    assert set(again[:KEPT_MAX]) == set(first[:KEPT_MAX])
    assert again[KEPT_MAX] not in first
    monkeypatch.setattr(memory_files, "LOOKED_AFTER", 4)
    for _ in range(8):
        inodes(files, SIZE, SIZE)
    fewer = inodes(files, *several)
    assert len(set(first) & set(fewer)) == 2
    files.close()


def test_files_that_fit_best_are_used(files: MemoryFiles) -> None:
    three, one, two = inodes(files, 3 * SIZE, SIZE, 2 * SIZE)
    assert inodes(files, 2 * SIZE) == [two]
    assert inodes(files, SIZE + 1, SIZE) == [two, one]
    assert inodes(files, SIZE, SIZE) == [one, two]
    assert inodes(files, 4 * SIZE) == [three]
    assert inodes(files, 4 * SIZE, 2 * SIZE, 3 * SIZE) == [three, two, one]


def test_no_more_bytes_are_kept_than_allowed(files: MemoryFiles) -> None:
    first, second, third, fourth = (files.take(nbytes * SIZE) for nbytes in (6, 4, 1, 11))
    assert first.memory is not None
    assert second.memory is not None
    assert third.memory is None
    assert fourth.memory is None
    for file in (first, second, third, fourth):
        os.close(file.descriptor)
    larger = files.take(7 * SIZE)  # in place of the first, beside the second
    assert larger.memory is None
    os.close(larger.descriptor)


def always(*_: Any) -> int:
    return 0


def never(*_: Any) -> int:
    raise OSError("no leases here")


@pytest.mark.parametrize("leases", [always, never])
def test_a_kernel_that_does_not_tell_is_not_asked(
    files: MemoryFiles, leases: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "fcntl", leases)
    file = files.take(SIZE)
    assert file.memory is None
    os.close(file.descriptor)


def test_a_forked_child_leaves_its_parents_files_alone() -> None:
    os.close(memory_file(SIZE).descriptor)
    kept = of_processes[os.getpid()]

    def child() -> None:
        first = taken(kept)  # what the parent's would be
        file = memory_file(SIZE)
        assert os.fstat(file.descriptor).st_ino != first
        assert set(of_processes) == {os.getpid()}

    assert exit_code(forked(child)) == 0
    of_processes.pop(os.getpid()).close()


class Numbers(Dataset[torch.Tensor]):
    """Large tensors of one value each."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((SIZE // 8,), float(index))


@pytest.mark.parametrize("collate_fn", [None, default_collate, list])
def test_batches_that_a_program_keeps_hold_what_they_held(collate_fn: Any) -> None:
    given = {"batch_size": 2, "collate_fn": collate_fn}
    with FastLoader(Numbers(), num_workers=1, device="cpu", **given) as loader:
        kept = [batch[1] for number, batch in enumerate(loader) if number % 3 != 1]
    expected = [batch[1] for number, batch in enumerate(DataLoader(Numbers(), **given)) if number % 3 != 1]
    assert all(map(torch.equal, kept, expected))


def test_a_worker_uses_its_files_again() -> None:
    seen = set()
    with FastLoader(Numbers(), batch_size=2, num_workers=1, device="cpu") as loader:
        for batch in loader:
            assert batch.is_shared()
            with open("/proc/self/maps") as maps:
                seen |= {line.split()[4] for line in maps if memory_files.NAME in line}
    assert 1 <= len(seen) <= KEPT_MAX
