"""The processes that request objects belong to the process that started them."""

from __future__ import annotations

import gc
import os

import pytest

from fastload.sources import ObjectStoreImageFolder, object_store

pytest.importorskip("obstore")


def stored_in(tmp_path):
    (tmp_path / "class").mkdir()
    for number in range(9):
        (tmp_path / "class" / f"{number}.jpg").write_bytes(b"%d" % number)
    return ObjectStoreImageFolder(f"file://{tmp_path}")


def test_a_forked_child_does_not_end_them(tmp_path):
    stored = stored_in(tmp_path)
    requests = stored._asked()
    child = os.fork()
    if child == 0:
        requests.close()  # as when the child's copy is garbage
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert stored.encoded(4)[0] == b"4"


def test_a_forked_child_starts_its_own(tmp_path):
    stored = stored_in(tmp_path)
    before = stored._asked()._process.pid
    child = os.fork()
    if child == 0:
        made = stored._asked()._process.pid != before and stored.encoded(4)[0] == b"4"
        stored._requests[1][0].close()
        os._exit(0 if made else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_several_take_turns_and_end_with_their_dataset(tmp_path, monkeypatch):
    monkeypatch.setattr(object_store, "processes_wanted", lambda: 3)
    dataset = stored_in(tmp_path)
    dataset._requests = None  # with which the folder was listed
    answers = [dataset.encoded_many([number, 8]) for number in range(6)]
    assert [[bytes(data) for data, _ in answer.result()] for answer in answers] == [
        [b"%d" % number, b"8"] for number in range(6)
    ]
    processes = [one._process for one in dataset._requests[1]]
    assert len({process.pid for process in processes}) == 3
    del dataset, answers
    gc.collect()
    assert all(process.poll() is not None for process in processes)


def test_a_worker_of_torch_has_one(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert object_store.processes_wanted() == 4
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert object_store.processes_wanted() == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(object_store, "get_worker_info", object)
    assert object_store.processes_wanted() == 1
