"""Batches of deferred tensors leave a worker with torch's values, unread."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler
from unittest import mock

import pytest
import torch
from deferred_images import deferred, expected, fill_of, pending, table
from photos import jpeg
from torch.multiprocessing import reductions
from torch.utils.data import Dataset, default_collate, get_worker_info
from torchvision import tv_tensors

from fastload import FastLoader
from fastload.deferred.calls import stacks
from fastload.deferred.content import Content
from fastload.deferred.functions import _before
from fastload.deferred.memory import VIEWS_MAX, any_memory_of, begin_batch, content_of, memory_of, note_view
from fastload.memory import packing, sending, unfilled
from fastload.memory.packing import Packer, collate_into, unpack
from fastload.memory.sending import FileStacker, Sent, fill

SIZE = 120, 90
FILES = [jpeg(seed) for seed in range(3)]


@pytest.fixture(autouse=True)
def _installed():
    stacks.install()
    yield
    unfilled.serve(None)
    resource_sharer.stop(timeout=5)


@pytest.fixture(autouse=True)
def _in_a_worker(monkeypatch):
    for module in (packing, torch.utils.data._utils.collate.torch.utils.data):
        monkeypatch.setattr(module, "get_worker_info", lambda: object())


def contents(dtype=torch.float32, planar=True, fills=True):
    """Contents of samples."""
    values = table(dtype)
    return [
        Content((pending(data, SIZE, seed),), values, planar, (fill_of(dtype),) if fills and seed == 1 else ())
        for seed, data in enumerate([*FILES, FILES[0]])
    ]


def same(ours, theirs):
    return (
        type(ours) is type(theirs)
        and (ours.dtype, ours.size(), ours.stride()) == (theirs.dtype, theirs.size(), theirs.stride())
        and torch.equal(ours.contiguous().view(torch.uint8), theirs.contiguous().view(torch.uint8))
    )


def in_slot(samples):
    slot = torch.zeros(8 << 20, dtype=torch.uint8)
    packer = Packer(slot)
    return unpack(packer.pack(collate_into(packer, samples)), slot, lambda leaf: leaf)


def in_file(samples):
    return collate_into(FileStacker(), samples)


WAYS = [in_slot, in_file]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("planar", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8, torch.float64])
def test_samples_are_stacked_as_torch_stacks_them(way, planar, dtype):
    made = contents(dtype, planar)
    theirs = torch.stack([expected(content)[0] for content in made])
    with mock.patch.object(torch, "stack", side_effect=AssertionError):
        ours = way([(deferred(content, single=True), number) for number, content in enumerate(made)])
    assert same(ours[0], theirs)
    assert ours[1].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("planar", [True, False])
def test_crops_are_stacked_unread(way, planar):
    made = contents(planar=planar)
    samples = [deferred(content, single=True) for content in made]
    crops = [sample[:, 3:20, 5:-9] for sample in samples]
    rows = [sample.permute(1, 2, 0) for sample in crops]
    theirs = torch.stack([expected(content)[0][:, 3:20, 5:-9] for content in made])
    with mock.patch.object(torch, "stack", side_effect=AssertionError):
        ours, ours_by_rows = way(crops), way(rows)
    assert all(memory_of(sample) is not None for sample in samples)
    assert same(ours, theirs)
    assert same(ours_by_rows, theirs.permute(0, 2, 3, 1).contiguous())


@pytest.mark.parametrize("way", WAYS)
def test_small_stacks_are_filled_too(way, monkeypatch):
    monkeypatch.setattr(packing, "SMALL_BYTES", 1 << 20)
    made = contents()
    theirs = torch.stack([expected(content)[0] for content in made])
    assert same(way([deferred(content, single=True) for content in made]), theirs)


@pytest.mark.parametrize("way", WAYS)
def test_samples_that_are_not_all_deferred_or_have_other_tables_are_stacked_in_order(way):
    made = contents()
    made[2] = replace(made[2], table=table(scale=0.5))
    theirs = torch.stack([expected(content)[0] for content in made])
    samples = [deferred(content, single=True) for content in made]
    samples[1] = expected(made[1])[0]
    with mock.patch.object(torch, "stack", side_effect=AssertionError):
        assert same(way(samples), theirs)


@pytest.mark.parametrize("way", WAYS)
def test_samples_of_several_views_and_those_with_channels_last_are_stacked(way):
    made = contents(planar=False)
    pair = [replace(made[0], images=made[0].images + made[1].images, planar=planar) for planar in (True, False)]
    theirs = torch.stack([expected(pair[0]), expected(pair[0])])
    assert same(way([deferred(pair[0]), deferred(pair[0])]), theirs)
    assert same(way([deferred(pair[1]), deferred(pair[1])]), theirs)
    rows = [deferred(content, single=True).permute(1, 2, 0) for content in made]
    assert same(way(rows), torch.stack([expected(content)[0].permute(1, 2, 0) for content in made]))


@pytest.mark.parametrize("way", WAYS)
def test_images_of_torchvision_become_plain_tensors(way):
    made = contents()
    theirs = torch.stack([expected(content)[0] for content in made])
    samples = [tv_tensors.Image(deferred(content, single=True)) for content in made]
    with mock.patch.object(torch, "stack", side_effect=AssertionError):
        assert same(way(samples), theirs)


@pytest.mark.parametrize(
    "odd",
    [
        lambda sample: sample.double(),
        lambda sample: sample[:, 1:],
        lambda sample: sample.clone().requires_grad_(),
        lambda sample: 3,
    ],
)
@pytest.mark.parametrize("position", [0, 2])
@pytest.mark.parametrize("way", WAYS)
def test_samples_that_are_not_alike_go_torchs_way(way, odd, position):
    """These deferred tensors are not painted by a look, so torch stacks their memory."""

    def samples():
        torch.manual_seed(0)
        found = [deferred(content, single=True) for content in contents()]
        found[position] = odd(expected(contents()[position])[0])
        return found

    def result(collate_fn):
        try:
            return collate_fn(samples())
        except Exception as error:
            return type(error), str(error)

    ours, theirs = result(way), result(default_collate)
    assert ours == theirs if isinstance(theirs, tuple) else torch.equal(ours, theirs)


def test_an_image_that_the_core_does_not_take_is_made_by_pillow():
    made = contents()
    odd = pending(jpeg(7, mode="CMYK"), SIZE, 3)
    theirs = expected(made[0])
    with mock.patch.object(type(odd), "pixels", return_value=made[0].images[0].file._native(made[0].images[0])):
        both = Content((made[1].images[0], odd), made[0].table, planar=True)
        out = torch.zeros(both.nbytes, dtype=torch.uint8)
        both.paint(out.numpy())
        assert same(out.view(torch.float32).view(2, *theirs.size()[1:])[1:], theirs)
        file = os.memfd_create("test")
        try:
            both.write(file, 64)
            assert os.pread(file, 1 << 20, 64) == out.numpy().tobytes()
        finally:
            os.close(file)


@pytest.mark.parametrize("planar", [True, False])
def test_a_tensor_of_the_users_own_collate_function_is_packed_by_its_content(planar):
    batch = replace(contents()[1], images=tuple(c.images[0] for c in contents()), planar=planar)
    tensors = [deferred(batch), deferred(contents(planar=planar)[1], single=True)]
    slot = torch.zeros(8 << 20, dtype=torch.uint8)
    ours = unpack(Packer(slot).pack({"batch": tensors[0], "rest": [tensors[1], 3]}), slot, lambda leaf: leaf)
    assert same(ours["batch"], expected(batch))
    assert same(ours["rest"][0], expected(contents(planar=planar)[1])[0])


@pytest.mark.parametrize("limit", [1, 1 << 30])
@pytest.mark.parametrize("planar", [True, False])
def test_tensors_are_filled_before_they_are_sent_and_stay_the_same_objects(planar, limit, monkeypatch):
    monkeypatch.setattr(sending, "FILE_BYTES", limit)
    batch = replace(contents()[1], images=tuple(c.images[0] for c in contents()), planar=planar)
    one = contents(planar=planar)[1]
    data = {"batch": deferred(batch), "rest": (deferred(one, single=True), 3)}
    data["itself"] = data
    held = data["batch"]
    version = held._version
    with mock.patch.object(torch.Tensor, "untyped_storage", side_effect=AssertionError):  # a pointer would paint first
        fill(data)
    assert data["batch"] is held
    assert held._version == version
    assert content_of(held) is None
    assert same(held, expected(batch))
    assert same(data["rest"][0], expected(one)[0])
    del data["itself"], held
    message = bytes(ForkingPickler.dumps(Sent(data)))
    reductions.shared_cache.clear()
    arrived = pickle.loads(message)
    assert same(arrived["batch"], expected(batch))
    assert same(arrived["rest"][0], expected(one)[0])


def test_memory_that_another_tensor_uses_is_left_as_it_is():
    tensor = deferred(contents()[0])
    view = tensor[0]
    before = tensor.data_ptr()
    fill([tensor])
    assert tensor.data_ptr() == before == view.data_ptr()


def test_a_part_of_memory_that_nothing_else_uses_keeps_its_values():
    content = contents()[1]
    part = deferred(content)[:, :, 3:9, 4:20].data
    fill([part])
    assert torch.equal(part, expected(content)[:, :, 3:9, 4:20])


@pytest.mark.parametrize(
    "of", [lambda tensor: tensor, lambda tensor: tv_tensors.Image(tensor).as_subclass(torch.Tensor)]
)
def test_what_is_filled_is_not_painted_before(of, monkeypatch):
    painting = _before(torch.Tensor.untyped_storage, lambda tensor: tensor.add(0))
    monkeypatch.setattr(torch.Tensor, "untyped_storage", painting)
    tensor = of(deferred(contents()[0]))
    memory = memory_of(tensor)
    fill([tensor])
    assert not memory.painted
    assert memory_of(tensor) is None
    assert same(tensor, expected(contents()[0]))


class Deferring(Dataset):
    """Samples whose images are deferred in worker processes."""

    def __init__(self):
        self.contents = contents()

    def __len__(self):
        return len(self.contents)

    def __getitem__(self, index):
        content = self.contents[index]
        image = expected(content)[0] if get_worker_info() is None else deferred(content, single=True)
        return {"image": image, "target": index}


def stacked_by_hand(samples):
    whole = [sample["image"] for sample in samples]
    batch = Content(tuple(content_of(image).images[0] for image in whole), table(), planar=True)
    return deferred(batch), [whole[0]], torch.tensor([sample["target"] for sample in samples])


@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_batches_of_workers_are_filled(dtype):
    """Torch's own loop sends them; or, to be cast, they are host batches."""
    dataset = Deferring()
    theirs = torch.stack([dataset[i]["image"] for i in range(4)]).to(dtype or torch.float32)
    whole = expected(Content(tuple(c.images[0] for c in dataset.contents), table(), planar=True)).to(theirs.dtype)
    own = {"dtype": dtype, "memory_format": None, "device": "cpu"}
    own |= {"batch_size": 4, "num_workers": 1, "worker_init_fn": lambda worker: stacks.install()}
    with FastLoader(dataset, **own) as loader:
        (batch,) = loader
        assert same(batch["image"], theirs)
    with FastLoader(dataset, collate_fn=stacked_by_hand, **own) as loader:
        (batch,) = loader
        assert same(batch[0], whole)
        assert same(batch[1][0], whole[0])


def test_a_tensor_that_is_kept_is_made_once():
    """When a dataset sends it a second time it is painted for good."""
    made = contents()
    kept = [deferred(content, single=True) for content in made]
    theirs = torch.stack([expected(content)[0] for content in made])
    for is_painted in (False, True):
        begin_batch()
        assert same(in_file(kept), theirs)
        assert [memory_of(sample) is None for sample in kept] == [is_painted] * len(kept)


def test_views_that_are_gone_are_forgotten():
    sample = deferred(contents()[0], single=True)
    for _ in range(3 * VIEWS_MAX):
        note_view(sample[1:])
    assert len(any_memory_of(sample).tensors) <= VIEWS_MAX
