"""FastLoader's own arguments, through every door that takes them, and the device that they name."""

from __future__ import annotations

import pickle
import re
import warnings

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from fastload import FastLoader, prefetch_to_device
from fastload.options import Options, can_pin, has_streams, resolve_device

WRONG = {
    "device of another type": (
        {"device": 1.5},
        TypeError,
        "device must be 'auto', a torch.device, a string or an index",
    ),
    "device a bool": ({"device": True}, TypeError, "got bool"),
    "device None": ({"device": None}, TypeError, "got NoneType"),
    "device unknown": ({"device": "gpu"}, RuntimeError, "gpu"),
    "memory_format by name": (
        {"memory_format": "channels_last"},
        TypeError,
        "must be a torch.memory_format or None, got str",
    ),
    "memory_format 3d": ({"memory_format": torch.channels_last_3d}, ValueError, "got torch.channels_last_3d"),
    "dtype by name": ({"dtype": "bfloat16"}, TypeError, "dtype must be a torch.dtype or None, got str"),
    "dtype of integers": ({"dtype": torch.int64}, ValueError, "dtype must be a floating-point type"),
    "dtype of complex numbers": ({"dtype": torch.complex64}, ValueError, "got torch.complex64"),
    "device_prefetch below 0": ({"device_prefetch": -1}, ValueError, "device_prefetch must be >= 0, got -1"),
    "device_prefetch a float": ({"device_prefetch": 1.0}, TypeError, "device_prefetch must be an int, got float"),
    "device_prefetch a bool": ({"device_prefetch": True}, TypeError, "device_prefetch must be an int, got bool"),
    "device_prefetch None": ({"device_prefetch": None}, TypeError, "device_prefetch must be an int, got NoneType"),
    "engine unknown": ({"engine": "yes"}, ValueError, "must be 'auto', 'torch' or 'native', got 'yes'"),
    "engine of another type": ({"engine": [1]}, ValueError, "must be 'auto', 'torch' or 'native', got [1]"),
    "engine a bool": ({"engine": True}, ValueError, "got True"),
    "randomness unknown": ({"randomness": "numpy"}, ValueError, "must be 'worker' or 'sample', got 'numpy'"),
    "max_pinned_bytes below 0": (
        {"max_pinned_bytes": -5},
        ValueError,
        "must be >= 0 (0 turns pinned memory off), got -5",
    ),
    "max_pinned_bytes a float": ({"max_pinned_bytes": 1e9}, TypeError, "must be an int or None, got float"),
    "max_pinned_bytes a bool": ({"max_pinned_bytes": False}, TypeError, "must be an int or None, got bool"),
}
RIGHT = [
    {"device": "cpu"},
    {"device": torch.device("cpu")},
    {"memory_format": None},
    {"memory_format": torch.preserve_format},
    {"memory_format": torch.contiguous_format},
    {"dtype": torch.bfloat16},
    {"dtype": torch.float64},
    {"device_prefetch": 0},
    {"device_prefetch": 7},
    {"engine": "torch"},
    {"max_pinned_bytes": 0},
    {"max_pinned_bytes": 2**40},
]
DOORS = {
    "Options": lambda own: Options(**own),
    "FastLoader": lambda own: FastLoader([0], **own),
    "wrap": lambda own: FastLoader.wrap(DataLoader([0]), **own),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("what", WRONG)
def test_wrong_arguments_are_refused_at_construction(door, what):
    own, kind, text = WRONG[what]
    with pytest.raises(kind, match=re.escape(text)) as caught:
        DOORS[door](own)
    assert type(caught.value) is kind


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("own", RIGHT, ids=str)
def test_right_arguments_are_taken(door, own):
    assert DOORS[door](own) is not None


@pytest.mark.parametrize("door", ["FastLoader", "wrap"])
def test_jpeg_index_does_nothing_and_warns_its_caller_once(door):
    with pytest.warns(DeprecationWarning, match="jpeg_index does nothing any more") as caught:
        loader = DOORS[door]({"jpeg_index": "some.index"})
    (warned,) = caught
    assert (warned.filename, warned.lineno) == (__file__, DOORS[door].__code__.co_firstlineno)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        again = FastLoader([0], **{name: vars(loader)[name] for name in vars(Options())})
        assert again.jpeg_index is pickle.loads(pickle.dumps(loader)).jpeg_index is None


PREFETCHER = {what: WRONG[what] for what in WRONG if what.split()[0] in ("device", "memory_format", "dtype")}


@pytest.mark.parametrize("what", PREFETCHER)
def test_prefetch_to_device_refuses_the_same(what):
    own, kind, text = PREFETCHER[what]
    with pytest.raises(kind, match=re.escape(text)):
        prefetch_to_device([], **own)


@pytest.mark.parametrize(
    ("depth", "kind", "text"),
    [
        (0, ValueError, "device_prefetch must be >= 1, got 0"),
        (1.5, TypeError, "device_prefetch must be an int, got float"),
        (True, TypeError, "device_prefetch must be an int, got bool"),
    ],
)
def test_prefetch_to_device_refuses_a_wrong_depth(depth, kind, text):
    with pytest.raises(kind, match=text):
        prefetch_to_device([], device_prefetch=depth)


def test_prefetch_to_device_refuses_what_cannot_be_iterated():
    with pytest.raises(TypeError, match="iterable must be an iterable of batches, got int"):
        prefetch_to_device(5)  # type: ignore[arg-type]


def test_options_have_the_constructors_defaults():
    loader = FastLoader([0])
    for name, default in vars(Options()).items():
        assert getattr(loader, name) is default


@pytest.fixture
def accelerator(monkeypatch):
    """Set the accelerator's type that torch reports, or none; count how often it is asked."""

    def install(kind, count=1, current=0):
        asked = []
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: asked.append(1) or kind is not None)
        monkeypatch.setattr(
            torch.accelerator, "current_accelerator", lambda check_available=False: kind and torch.device(kind)
        )
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
        monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: current)
        return asked

    return install


def test_without_an_accelerator_auto_is_the_cpu_and_cuda_an_error(accelerator):
    accelerator(None)
    assert resolve_device("auto") == torch.device("cpu")
    for device in ("cuda", "cuda:0", torch.device("cuda"), "xpu", "mps"):
        for door in (*DOORS.values(), lambda own: prefetch_to_device([], **own)):
            with pytest.raises(RuntimeError) as caught:
                door({"device": device})
            text = str(caught.value)
            assert f"device={str(device)!r} needs a working {torch.device(device).type.upper()} device" in text
            assert "torch finds no accelerator here" in text
            assert "use device='auto'" in text  # the remedy
            assert "driver" in text


@pytest.mark.parametrize(("kind", "remedy"), [("cuda", "use 'cuda' or 'cpu'"), (None, "no accelerator here")])
def test_what_names_no_device_is_said_with_the_argument_and_the_remedy(accelerator, kind, remedy):
    accelerator(kind)
    for device in ("gpu", "", "cuda:x", -1):
        with pytest.raises(RuntimeError, match=f"device must be 'auto' or name a device .*, got {device!r}") as caught:
            FastLoader([0], device=device)
        assert remedy in str(caught.value)


def test_cuda_here(accelerator):
    accelerator("cuda", count=4, current=2)
    assert resolve_device("auto") == torch.device("cuda", 2)
    assert resolve_device("cuda") == torch.device("cuda", 2)
    assert resolve_device("cuda:1") == torch.device("cuda", 1)
    assert resolve_device(torch.device("cuda", 3)) == torch.device("cuda", 3)
    assert resolve_device("cpu") == torch.device("cpu")
    with pytest.raises(RuntimeError, match=r"device='cuda:4' is out of range: torch sees 4 cuda device\(s\)"):
        resolve_device("cuda:4")
    with pytest.raises(RuntimeError, match="needs a working XPU device, but torch finds only cuda here"):
        resolve_device("xpu")


def test_other_accelerators(accelerator):
    accelerator("xpu")
    assert resolve_device("auto") == torch.device("xpu", 0)
    assert has_streams(resolve_device("auto"))
    assert can_pin()
    accelerator("mps")
    assert resolve_device("auto") == torch.device("cpu")  # as torch's loader leaves them there
    assert resolve_device("mps") == torch.device("mps", 0)
    assert not has_streams(torch.device("mps", 0))
    assert not can_pin()
    accelerator(None)
    assert not can_pin()


def test_auto_does_not_ask_for_a_device_before_iteration(accelerator):
    """Asking can start the driver, after which a fork cannot use it."""
    asked = accelerator("cuda")
    FastLoader([0])
    FastLoader.wrap(DataLoader([0]))
    prefetch_to_device([])
    assert not asked


def test_auto_is_decided_anew_for_each_epoch(accelerator):
    accelerator(None)
    loader = FastLoader([torch.zeros(1)])
    assert next(iter(loader)).device.type == "cpu"
    accelerator("cuda")
    assert loader.plan.device == torch.device("cuda", 0)


def test_auto_is_the_cpu_where_the_accelerator_is_the_parents(accelerator, monkeypatch):
    accelerator("cuda")
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    assert resolve_device("auto") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: False)
    assert resolve_device("auto") == torch.device("cuda", 0)
    # In a worker, whose dataset has a loader of its own:
    assert list(DataLoader(LoaderWithin(), batch_size=None, num_workers=1)) == ["cpu", "cpu"]


class LoaderWithin(IterableDataset):
    def __iter__(self):
        return (str(batch.device) for batch in FastLoader([torch.zeros(1)] * 2))


def test_without_cuda_here():
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(RuntimeError, match="device='cuda' needs a working CUDA device"):
        FastLoader([0], device="cuda")
    assert resolve_device("auto").type != "cuda"
