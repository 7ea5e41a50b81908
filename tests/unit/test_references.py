from __future__ import annotations

import multiprocessing

import pytest
import references
import torch
from backends import assert_same
from backends.batches import ODD
from backends.datasets import Numbers
from references import kept

from fastload import FastLoader


@pytest.fixture
def begin(request, tmp_path, monkeypatch):
    """Begin another run of the test, which keeps results in an empty folder."""
    monkeypatch.setattr(references, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(references, "_made", {})

    def begin():
        references.begin(request.node)
        references._made.clear()
        monkeypatch.setattr(references, "_fresh", False)

    return begin


def test_a_result_is_made_once_in_each_place(begin, tmp_path):
    made, seen = [], []

    def make():
        made.append(1)
        return [torch.arange(6.0).view(2, 3).t(), torch.empty(0, 3), ValueError("bad"), {"path": f"{tmp_path}/a"}]

    for _ in range(2):
        begin()
        seen.append(kept(make))
    assert made == [1]
    first, second = seen
    assert torch.equal(first[0], second[0])
    assert first[0].stride() == second[0].stride()
    assert second[1].shape == (0, 3)
    assert str(second[2]) == "bad"
    assert second[3] == {"path": f"{tmp_path}/a"}
    kept(make)  # another line
    assert made == [1, 1]
    for _ in range(2):
        kept(make)  # the second of a run is another, too
    assert made == [1] * 4


def test_tensors_that_a_device_may_not_know_come_back_as_they_were(begin):
    # Either is pickled by torch, or not kept.
    for collate in ODD.values():
        seen = []
        for _ in range(2):
            begin()
            seen.append(kept(lambda collate=collate: collate([Numbers(1)[0]])))
        assert_same(*seen)


def test_paths_are_those_of_the_test_that_asks(begin, request, tmp_path, tmp_path_factory, monkeypatch):
    other, seen = tmp_path_factory.mktemp("other"), []
    paths = [f"in {tmp_path}/a", f"{tmp_path}: {tmp_path}"], [f"{tmp_path}0"], [str(other)], [bytes(other)]
    for folder in (tmp_path, other):
        monkeypatch.setitem(request.node.funcargs, "tmp_path", folder)
        begin()
        seen.append([kept(lambda path=path, folder=folder: [*path, folder == other]) for path in paths])
    first, second = seen
    assert first == [[*path, False] for path in paths]
    assert second[0] == [f"in {other}/a", f"{other}: {other}", False]
    assert second[1:] == [[*path, True] for path in paths[1:]]  # a folder that is no fixture's, or another's: not kept


def test_what_is_given_is_changed_by_no_user_of_it(begin):
    for value in range(3):
        begin()
        given = kept(lambda value=value: torch.tensor([value]))
        assert given.item() == 0
        given.add_(1)


@pytest.mark.parametrize("changed", [None, "key", "full", "failed", "drawn"])
def test_a_result_is_made_again_where_it_may_be_another(begin, monkeypatch, changed):
    seen = []
    for run in range(3):
        begin()
        if changed == "key":
            monkeypatch.setattr(references, "_key", lambda file, run=run: str(run))
        elif changed == "full":
            monkeypatch.setattr(references, "_fresh", True)
        elif changed == "drawn":
            references._test.keeps = False
        seen.append(kept(lambda run=run: run))
        if changed == "failed":
            assert references.forget() == (run == 1)  # what was made in this run is not suspected
    assert seen == {None: [0, 0, 0], "failed": [0, 0, 2]}.get(changed, [0, 1, 2])


def test_a_key_changes_with_the_test_its_helpers_and_no_other_file(tmp_path, monkeypatch):
    monkeypatch.setattr(references, "TESTS", tmp_path)
    texts = {"test_x": "import helper", "helper": "from further import name", "further": "", "other": ""}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)

    def key():
        references._imported.cache_clear()
        return references._key.__wrapped__(tmp_path / "test_x.py")

    keys = [key()]
    for name in ("other", "test_x", "helper", "further"):
        with (tmp_path / f"{name}.py").open("a") as file:
            file.write("\n# changed")
        keys.append(key())
    references._imported.cache_clear()
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4


def in_a_fork():
    worker = multiprocessing.get_context("fork").Process(target=lambda: list(FastLoader([1, 2])))
    worker.start()
    worker.join()


@pytest.mark.parametrize("runs_our_code", [lambda: list(FastLoader([1, 2])), in_a_fork])
def test_what_our_code_has_part_in_is_not_kept(begin, runs_our_code):
    made = []
    for _ in range(2):
        begin()
        kept(lambda: made.append(1) or runs_our_code())
    assert made == [1, 1]
