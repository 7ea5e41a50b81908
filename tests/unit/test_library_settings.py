"""Settings of torch's that change what workers draw, or how they put batches together."""

from __future__ import annotations

import contextlib
import functools

import pytest
import torch
import torchvision.transforms as v1
from photos import PIPELINES, SIZE, photos_fixture, train_v1, train_v2
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from fastload import FastLoader
from fastload.check import parity_check
from fastload.pipeline.recipe import Refusal, read_recipe

root = photos_fixture(4)


def reasons(root, transform) -> str:
    result = read_recipe(ImageFolder(root, transform))
    return "; ".join(result.reasons) if isinstance(result, Refusal) else ""


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def bytes_only():
    """Neither draws nor makes floats."""
    return v1.Compose([v1.CenterCrop(SIZE), v1.PILToTensor()])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_draws_in_another_default_dtype_are_refused(root, dtype):
    with default_dtype(dtype):
        for name in ("train_v1", "train_v2", "random_crop", "train_on_tensors", "erasing_bytes"):
            reason = f"torch's default dtype is {dtype}, in which the transforms draw; set it to torch.float32"
            assert reason in reasons(root, PIPELINES[name]()), name
        for name in ("eval_v2", "eval_on_tensors"):
            assert reasons(root, PIPELINES[name]()) == ""
        assert reasons(root, bytes_only()) == ""
    assert reasons(root, train_v1()) == ""


def test_floats_of_another_default_dtype_are_those_of_the_table(root):
    with default_dtype(torch.float64):
        assert "the images become torch.float64" in reasons(root, PIPELINES["eval_v1"]())
    with default_dtype(torch.bfloat16):
        recipe = read_recipe(ImageFolder(root, PIPELINES["eval_v1"]()))
    assert recipe.pipeline.table.dtype == torch.bfloat16


def test_what_has_been_checked_is_checked_anew_in_another_default_dtype(root, monkeypatch):
    checked = []
    real = parity_check.check_recipe

    def check(*args, **kwargs):
        checked.append(torch.get_default_dtype())
        return real(*args, **kwargs)

    monkeypatch.setattr(parity_check, "check_recipe", check)
    with FastLoader(ImageFolder(root, bytes_only()), 4, num_workers=1, device="cpu") as loader:
        for dtype in (torch.float32, torch.float64, torch.float32, torch.float64):
            with default_dtype(dtype):
                assert loader.plan.engine == "native"
                list(loader)
    assert checked == [torch.float32, torch.float64]


class Halving(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out / 2 if func is torch.rand else out


class Counting(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Halving, Counting])
@pytest.mark.parametrize("transform", [train_v1, bytes_only])
def test_modes_are_refused(root, mode, transform):
    with mode():
        assert reasons(root, transform()) == (
            f"{mode.__name__} may change what torch's functions do; leave it before you iterate"
        )
    assert reasons(root, transform()) == ""


def test_another_default_device_is_refused(root):
    try:
        torch.set_default_device("meta")
        assert reasons(root, train_v1()) == (
            "torch's default device is meta; set it to the CPU with torch.set_default_device('cpu')"
        )
        torch.set_default_device("cpu")
        assert reasons(root, train_v1()) == ""
    finally:
        torch.set_default_device(None)
    with torch.device("meta"):
        assert "default device is meta" in reasons(root, train_v1())
    with torch.device("cpu"):
        assert reasons(root, train_v1()) == ""


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type:UserWarning")
def test_default_tensors_on_a_gpu_are_refused(root):
    torch.set_default_tensor_type(torch.cuda.FloatTensor)
    try:
        assert "torch's default device is cuda:0" in reasons(root, train_v1())
    finally:
        torch.set_default_tensor_type(torch.FloatTensor)
    assert reasons(root, train_v1()) == ""


@pytest.mark.parametrize("owner", [torch, torch.random])
def test_another_default_generator_is_refused(root, monkeypatch, owner):
    monkeypatch.setattr(owner, "default_generator", torch.Generator())
    assert f"{owner.__name__}.default_generator was patched" in reasons(root, train_v1())


def test_what_draws_do_not_depend_on_is_not_refused(root):
    with torch.no_grad(), torch.inference_mode(), torch.autocast("cpu"):
        assert reasons(root, train_v1()) == ""
        assert reasons(root, train_v2()) == ""
    torch.use_deterministic_algorithms(True)
    try:
        assert reasons(root, train_v1()) == ""
    finally:
        torch.use_deterministic_algorithms(False)


# Collating


def doubled(batch, *, collate_fn_map=None):
    return collate_tensor_fn(batch, collate_fn_map=collate_fn_map) * 2


@functools.wraps(collate_tensor_fn)
def introduced_as_torchs(batch, *, collate_fn_map=None):
    return doubled(batch)


def of_images():
    """Leaves tv_tensors.Image."""
    return train_v2()


def of_tensors():
    return v2.Compose([train_v2(), v2.ToPureTensor()])


@pytest.mark.parametrize(
    ("kind", "function", "transform", "reason"),
    [
        (torch.Tensor, doubled, train_v1, "has doubled for images (Tensor)"),
        (torch.Tensor, introduced_as_torchs, train_v1, "has collate_tensor_fn for images (Tensor)"),
        (torch.Tensor, doubled, of_images, "has doubled for images (Image)"),
        (torch.Tensor, doubled, of_tensors, "has doubled for images (Tensor)"),
        (tv_tensors.Image, doubled, of_images, "has doubled for images (Image)"),
        (tv_tensors.Image, doubled, of_tensors, ""),
        (tv_tensors.Image, doubled, train_v1, ""),
        (tv_tensors.TVTensor, doubled, of_images, ""),  # comes after torch.Tensor, which fits already
        ((bool, tuple), doubled, train_v1, "has doubled for tuples, as samples are"),
        (object, doubled, train_v1, "has doubled for tuples, as samples are"),
        (int, doubled, train_v1, ""),
        (str, doubled, train_v1, ""),
    ],
)
def test_entries_for_images_and_samples_must_be_torchs(root, monkeypatch, kind, function, transform, reason):
    with monkeypatch.context() as patched:
        patched.setitem(default_collate_fn_map, kind, function)
        found = reasons(root, transform())
        assert reason in found
        assert bool(reason) == bool(found)
    assert reasons(root, transform()) == ""


def test_an_entry_that_is_missing_is_not_torchs(root, monkeypatch):
    monkeypatch.delitem(default_collate_fn_map, torch.Tensor)
    assert "has nothing for images" in reasons(root, train_v1())


def test_an_entry_that_comes_first_is_taken_first(root, monkeypatch):
    entries = default_collate_fn_map.copy()
    try:
        default_collate_fn_map.clear()
        default_collate_fn_map.update({tv_tensors.TVTensor: doubled, **entries})
        assert "has doubled for images (Image)" in reasons(root, of_images())
        assert reasons(root, of_tensors()) == ""
    finally:
        default_collate_fn_map.clear()
        default_collate_fn_map.update(entries)


def test_batches_that_would_be_tv_tensors_are_refused(root):
    with tv_tensors.set_return_type("TVTensor"):
        assert "set_return_type('TVTensor') makes batches Images" in reasons(root, of_images())
        assert reasons(root, of_tensors()) == ""
        assert reasons(root, train_v1()) == ""
    assert reasons(root, of_images()) == ""
