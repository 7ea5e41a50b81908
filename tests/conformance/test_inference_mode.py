"""``torch.inference_mode()`` around a loop: batches are inference tensors where torch's are, and only there.

Torch's are what the consumer's mode is when it asks for them, not when the workers start: tensors are made of the
workers' memory in the consumer's thread. Where torch's pin-memory thread makes them they are ordinary ones; on a device
they are what ``batch.to(device)`` would make of them.
"""

from __future__ import annotations

import pytest
import torch
from backends import simulated
from photos import assert_same, eval_v1, photos_fixture, train_v1
from references import kept
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder

from fastload import FastLoader, iterators
from fastload._batch import as_inference_tensors
from fastload.device.transfer import Transfer

MODES = (False, True, True, False)
folder = photos_fixture(11, mixed=True)


class Nested(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"image": torch.full((3, 4, 5), float(index)), "more": (torch.tensor(index), index)}


def batches(loader, modes=MODES, at_iter=False):
    with torch.inference_mode(at_iter):
        iterator = iter(loader)
    seen = []
    for mode in modes:
        with torch.inference_mode(mode):
            seen.append(next(iterator))
    return seen


def flags(seen):
    """Say of each batch whether its tensors are inference tensors; all must be alike."""
    found = []
    for batch in seen:
        image, others = (batch["image"], batch["more"]) if isinstance(batch, dict) else (batch[0], batch[1:])
        kinds = {tensor.is_inference() for tensor in (image, *others)}
        assert len(kinds) == 1
        found.append(kinds.pop())
    return found


@pytest.mark.parametrize("at_iter", [False, True])
@pytest.mark.parametrize(
    "arguments", [{"num_workers": 0}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}]
)
def test_batches_are_what_the_consumers_mode_is(backend, arguments, at_iter):
    def case(loader):
        made = loader(Nested(), batch_size=2, **arguments)
        seen = batches(made, at_iter=at_iter)
        return seen, flags(seen)

    assert backend.same(case).value[1] == list(MODES)


@pytest.mark.parametrize(
    "own", [{}, {"dtype": torch.float32}, {"randomness": "sample"}], ids=["plain", "dtype", "sample"]
)
def test_what_a_thread_has_pinned_is_ordinary_as_with_torch(monkeypatch, own):
    simulated.install(monkeypatch)
    monkeypatch.setattr(iterators, "Transfer", Transfer)  # which leaves batches for the CPU alone
    arguments = {"batch_size": 2, "num_workers": 1, "pin_memory": True}
    theirs = kept(lambda: flags(batches(DataLoader(Nested(), **arguments))))
    with FastLoader(Nested(), **arguments, device="cpu", **own) as loader:
        assert flags(batches(loader)) == theirs == [False] * len(MODES)


@pytest.mark.parametrize("pin_memory", [False, True])
def test_native_batches_in_host_memory(folder, monkeypatch, pin_memory):
    if pin_memory:
        simulated.install(monkeypatch)
    arguments = {"batch_size": 3, "num_workers": 1, "pin_memory": pin_memory}
    wanted = kept(lambda: flags(batches(DataLoader(ImageFolder(folder, eval_v1()), **arguments))))
    torch.manual_seed(0)
    theirs = kept(lambda: list(DataLoader(ImageFolder(folder, train_v1()), **arguments)))
    torch.manual_seed(0)
    with FastLoader(ImageFolder(folder, train_v1()), **arguments, device="cpu", engine="native") as loader:
        ours = batches(loader)
    assert flags(ours) == wanted == ([False] * len(MODES) if pin_memory else list(MODES))
    assert_same(ours, [list(batch) for batch in theirs[: len(MODES)]])


@pytest.mark.parametrize("device_prefetch", [0, 1])
def test_native_batches_on_a_device(folder, monkeypatch, device_prefetch):
    own = {**simulated.install_native(monkeypatch), "engine": "native", "device_prefetch": device_prefetch}
    torch.manual_seed(0)
    theirs = kept(lambda: list(DataLoader(ImageFolder(folder, train_v1()), 3, num_workers=1)))
    torch.manual_seed(0)
    with FastLoader(ImageFolder(folder, train_v1()), 3, num_workers=1, **own) as loader:
        ours = batches(loader)
    assert flags(ours) == list(MODES)
    for (images, labels), (expected, targets) in zip(ours, theirs, strict=False):
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(images, expected)
        assert torch.equal(labels, targets)


@pytest.mark.parametrize("engine", ["native", "torch"])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_that_has_run_in_inference_mode_serves_a_training(folder, engine, persistent):
    own = {"num_workers": 1, "persistent_workers": persistent, "device": "cpu", "engine": engine}
    model = torch.nn.Conv2d(3, 1, 3)
    with FastLoader(ImageFolder(folder, train_v1()), 3, **own) as loader:
        with torch.inference_mode():
            assert all(model(images).is_inference() for images, _ in loader)
        for images, _ in loader:
            model(images).sum().backward()
    assert model.weight.grad is not None


def test_what_is_held_to_be_replayed_is_what_the_consumers_mode_is():
    with FastLoader(Nested(), 2, device="cpu") as loader:
        replay = loader.replay(2)
        with torch.inference_mode():
            assert flags(replay) == [True] * 4
        assert flags(replay) == [False] * 4


class Tagged(torch.Tensor):
    """Its functions are its own."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*args, **(kwargs or {}))
        return result + 1 if function is torch.Tensor.storage_offset else result


class Wrapper(torch.Tensor):
    """Has no memory of its own."""

    @staticmethod
    def __new__(cls, inner):
        self = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        self.inner = inner
        return self

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        assert function is torch.ops.aten.clone.default
        return cls(args[0].inner.clone())


def in_inference_mode(data):
    with torch.inference_mode():
        return as_inference_tensors(data)


def test_memory_layout_and_type_stay():
    image = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    part = image[1:, :, 1:]
    boxes = tv_tensors.BoundingBoxes(torch.rand(2, 4), format="XYXY", canvas_size=(4, 5))
    tagged = torch.rand(3)[1:].as_subclass(Tagged)
    tagged.tag = "here"
    for before in (image, part, boxes, tagged, torch.tensor(3), torch.empty(0, 3, dtype=torch.bfloat16)):
        after = in_inference_mode(before)
        assert after.is_inference()
        assert not before.is_inference()
        assert type(after) is type(before)
        assert vars(after) == vars(before)
        assert (after.dtype, after.shape, after.stride()) == (before.dtype, before.shape, before.stride())
        assert after.data_ptr() == before.data_ptr()
        assert after.untyped_storage().data_ptr() == before.untyped_storage().data_ptr()


def test_tensors_that_are_no_plain_memory_keep_their_values():
    sparse = torch.eye(3).to_sparse()
    conjugate = torch.tensor([1 + 2j]).conj()
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    for before in (sparse, conjugate, jagged):
        after = in_inference_mode(before)
        assert after.is_inference()
        assert after.layout == before.layout
    assert torch.equal(in_inference_mode(sparse).to_dense(), torch.eye(3))
    assert in_inference_mode(conjugate).tolist() == [1 - 2j]
    wrapper = Wrapper(torch.ones(2))
    cloned = in_inference_mode(wrapper)  # its own way, for its memory is not where a tensor's is
    assert (type(cloned), cloned.inner is wrapper.inner, cloned.inner.tolist()) == (Wrapper, False, [1.0, 1.0])
    assert [part.tolist() for part in in_inference_mode(jagged).unbind()] == [[1.0] * 2, [1.0] * 3]


def test_the_rest_of_a_batch_stays_as_it_is():
    weight = torch.nn.Parameter(torch.ones(2))
    with torch.inference_mode():
        made_there = torch.ones(2)
    batch = {"a": weight, "b": [made_there, "text", 3, None]}
    assert in_inference_mode(batch) is batch
