"""Tensors of small images, and normalized tensors, which are made at once."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import _functional_tensor, functional
from torchvision.transforms import transforms as v1
from torchvision.transforms.v2.functional import _misc

from fastload import _core
from fastload.deferred import memory
from fastload.deferred.calls import at_once
from fastload.deferred.functions import LEVELS_MIN_BYTES, Deferral
from fastload.lazy import images as lazy_images
from fastload.lazy.pixels import Levels, Pending
from fastload.memory import unfilled

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
TENSOR = torch.randn(3, 20, 30, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def deferral():
    made = Deferral()
    assert lazy_images.install(undo=made.uninstall)
    made.install()
    yield made
    made._replaced.undo()
    lazy_images.uninstall()
    unfilled.serve(None)


@pytest.fixture
def made(monkeypatch):
    """What was made at once."""
    kept = []

    def keeping(original):
        def function(*arguments, **rest):
            kept.append(original(*arguments, **rest))
            return kept[-1]

        return function

    monkeypatch.setattr(at_once.Values, "of", keeping(at_once.Values.of))
    monkeypatch.setattr(at_once, "_normalized", keeping(at_once._normalized))
    return kept


def image_of(mode, size=(30, 20)):
    levels = np.random.default_rng(0).integers(0, 256, (*size[::-1], Image.getmodebands(mode)), dtype=np.uint8)
    return Image.frombytes(mode, size, levels.tobytes())


def seen(tensor):
    storage = tensor.untyped_storage()
    place = tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), storage.nbytes(), storage.resizable()
    kind = type(tensor), tensor._version, tensor.requires_grad, tensor.is_inference(), type(tensor.grad_fn)
    values = None if tensor.is_meta else tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()
    return *place, *kind, values


def outcome(function, *arguments, **rest):
    try:
        return seen(function(*arguments, **rest))
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_small_images_become_torchs_tensors(deferral, made, mode, dtype):
    image = image_of(mode)
    torch.set_default_dtype(dtype)
    try:
        expected = [seen(functional.to_tensor.__wrapped__(image)), seen(v1.PILToTensor()(image))]
        with deferral:
            got = [seen(v1.ToTensor()(image)), seen(v1.PILToTensor()(image))]
    finally:
        torch.set_default_dtype(torch.float32)
    assert got == expected
    assert len(made) == 1  # the other's memory is NumPy's


@pytest.mark.parametrize(
    "image",
    [
        image_of("RGB", (LEVELS_MIN_BYTES, 1)),
        image_of("RGB", (1, 20)),
        image_of("L", (20, 1)),
        image_of("RGBA"),
        image_of("CMYK"),
        Image.new("1", (9, 9)),
        Image.new("I", (9, 9), 70000),
        Image.new("P", (9, 9), 3),
        type("Own", (Image.Image,), {})(),
        torch.zeros(3, 9, 9),
        np.zeros((9, 9, 3), np.uint8),
        None,
    ],
    ids=lambda image: getattr(image, "mode", type(image).__name__),
)
def test_other_images_are_left_to_torchvision(deferral, made, image):
    expected = outcome(functional.to_tensor.__wrapped__, image)
    with deferral:
        assert outcome(functional.to_tensor, image) == expected
    assert not made


@pytest.mark.parametrize("version", [_functional_tensor.normalize, _misc.normalize_image], ids=["v1", "v2"])
@pytest.mark.parametrize(("mean", "std"), [(MEAN, STD), ((0.5,), (0.5,)), ([1, 2, 3], (1, 2, 4)), ([0.1], STD)])
def test_floats_are_normalized_with_torchs_bits(deferral, made, version, mean, std):
    small = image_of("RGB")
    with deferral:
        functional.to_tensor(small)
        function = getattr(_functional_tensor if version.__name__ == "normalize" else _misc, version.__name__)
        assert function is not version
        made.clear()
        for tensor in (TENSOR, TENSOR * 1e-39, TENSOR / 0):
            for _ in range(2):  # the second time with constants that are kept
                assert seen(function(tensor, mean=mean, std=std)) == seen(version(tensor, mean, std))
    assert len(made) == 6
    assert all(each is not None for each in made)


def no_other():
    yield "zero", (TENSOR, [0.0, -0.0, 1.0], STD), {}
    yield "negative zero", (torch.zeros(3, 4, 5) * -1, [-0.0] * 3, STD), {}
    yield "no std", (TENSOR, MEAN, [0.2, 0.0, 0.2]), {}
    yield "std that is rounded to zero", (TENSOR, MEAN, [0.2, 1e-60, 0.2]), {}
    yield "two means", (TENSOR, [0.1, 0.2], STD), {}
    yield "more channels", (TENSOR[:1].clone(), MEAN, STD), {}
    yield "in place", (TENSOR.clone(), MEAN, STD, True), {}
    yield "in place by name", (TENSOR.clone(), MEAN, STD), {"inplace": True}
    yield "tensors", (TENSOR, torch.tensor(MEAN), torch.tensor(STD)), {}
    yield "numbers", (TENSOR, 0.5, 0.5), {}
    yield "one deviation", (TENSOR, MEAN, 0.5), {}
    yield "tensors in a list", (TENSOR, [torch.tensor(0.5)] * 3, STD), {}
    yield "texts", (TENSOR, "abc", STD), {}
    yield "nested", (TENSOR, [[0.5]] * 3, STD), {}
    yield "whole numbers", ((TENSOR * 9).long(), MEAN, STD), {}
    yield "float64", (TENSOR.double(), MEAN, STD), {}
    yield "gradients", (TENSOR.clone().requires_grad_(), MEAN, STD), {}
    yield "two dimensions", (TENSOR[0].clone(), MEAN, STD), {}
    yield "a batch", (TENSOR[None].clone(), MEAN, STD), {}
    yield "channels last", (TENSOR.permute(1, 2, 0).contiguous().permute(2, 0, 1), MEAN, STD), {}
    yield "a part", (TENSOR[:, ::2], MEAN, STD), {}
    yield "one row", (TENSOR[:, :1].clone(), MEAN, STD), {}
    yield "one column", (TENSOR[:, :, :1].clone(), MEAN, STD), {}
    yield "own constants", (TENSOR, type("Own", (list,), {})(MEAN), STD), {}
    yield "own tensor", (TENSOR.as_subclass(type("Own", (torch.Tensor,), {})), MEAN, STD), {}
    yield "on meta", (TENSOR.to("meta"), MEAN, STD), {}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("function", ["normalize", "normalize_image"])
@pytest.mark.parametrize("kind", ["sparse", "nested", "negative"])
def test_tensors_that_are_not_plain_are_left_to_torchvision(deferral, made, kind, function):
    home = _functional_tensor if function == "normalize" else _misc
    tensor = {
        "sparse": TENSOR.to_sparse,
        "nested": lambda: torch.nested.nested_tensor([TENSOR[0], TENSOR[1, 2:]]),
        "negative": lambda: torch._neg_view(TENSOR),
    }[kind]()

    def result():
        try:
            return getattr(home, function)(tensor, mean=MEAN, std=STD)
        except Exception as error:
            return type(error), str(error)

    expected = result()
    with deferral:
        functional.to_tensor(image_of("RGB"))
        made.clear()
        got = result()
    assert made == [None]
    assert torch.equal(got, expected) if kind == "negative" else got == expected


OTHERS = {name: rest for name, *rest in no_other()}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("function", ["normalize", "normalize_image"])
def test_other_arguments_are_left_to_torchvision(deferral, made, function, name):
    arguments, rest = OTHERS[name]
    home = _functional_tensor if function == "normalize" else _misc
    tensor, *others = arguments
    expected = outcome(getattr(home, function), copied(tensor), *others, **rest)
    with deferral:
        functional.to_tensor(image_of("RGB"))
        made.clear()
        assert outcome(getattr(home, function), copied(tensor), *others, **rest) == expected
    assert not [each for each in made if each is not None]


def copied(tensor):
    """The same with the same strides, whose storage can be resized."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor.detach()).as_subclass(type(tensor)).requires_grad_(tensor.requires_grad)


def test_pending_and_large_images_are_not_small():
    large = image_of("RGB", (LEVELS_MIN_BYTES // 6, 2))
    assert at_once.is_small(large, LEVELS_MIN_BYTES)
    assert not at_once.is_small(image_of("RGB", (LEVELS_MIN_BYTES // 6 + 1, 2)), LEVELS_MIN_BYTES)
    assert not at_once.is_small(large, 3 * math.prod(large.size))
    large._im = Pending(Levels(np.zeros((2, 2, 3), np.uint8), None), (0, 0, 2, 2))
    assert not at_once.is_small(large, LEVELS_MIN_BYTES)


def test_the_default_dtype_may_change(deferral, made):
    image = image_of("RGB")
    with deferral:
        assert functional.to_tensor(image).dtype == torch.float32
        torch.set_default_dtype(torch.float64)
        try:
            assert functional.to_tensor(image).dtype == torch.float64
        finally:
            torch.set_default_dtype(torch.float32)
    assert len(made) == 2


def test_nothing_is_made_once_results_have_differed(deferral, made):
    deferral.recorder.is_off = True
    with deferral:
        functional.to_tensor(image_of("RGB"))
    assert not made


def test_nothing_is_made_once_images_are_lazy_no_more(deferral):
    own = functional.to_tensor
    deferral.install()
    assert functional.to_tensor is own  # not replaced twice
    with pytest.warns(RuntimeWarning, match="lazy no more"):
        lazy_images._give_up()
    assert functional.to_tensor is own.__wrapped__


@pytest.mark.parametrize("home", [_functional_tensor, _misc])
def test_deferred_tensors_stay_deferred(deferral, home):
    image = image_of("RGB", (200, 150))
    name = "normalize" if home is _functional_tensor else "normalize_image"
    expected = seen(getattr(home, name)(functional.to_tensor.__wrapped__(image), MEAN, STD))
    with deferral:
        tensor = functional.to_tensor(image)
        got = getattr(home, name)(tensor, mean=MEAN, std=STD)
    assert memory.is_deferred(tensor)
    assert memory.is_deferred(got)
    with deferral:
        assert seen(got) == expected


def test_in_inference_mode_results_are_of_it(deferral, made):
    with torch.inference_mode(), deferral:
        image = functional.to_tensor(image_of("RGB"))
        got = _functional_tensor.normalize(image, MEAN, STD)
        assert image.is_inference()
        assert got.is_inference()
    assert len(made) == 2
    with deferral:  # the constants, kept then, are ordinary tensors
        assert _functional_tensor.normalize(TENSOR.clone().requires_grad_() + 0, MEAN, STD).grad_fn is not None
        assert not _functional_tensor.normalize(TENSOR, MEAN, STD).is_inference()


def test_nothing_is_made_outside_of_batches_or_under_a_mode(deferral, made):
    image = image_of("RGB")
    functional.to_tensor(image)
    with deferral, torch.device("cpu"):
        functional.to_tensor(image)
    with deferral:
        functional.to_tensor(image)
    assert len(made) == 1


def test_a_method_replaced_by_the_user_is_called(deferral, made, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "div", lambda self, by: torch.true_divide(self, by) + 1)
    image = image_of("RGB")
    expected = seen(functional.to_tensor.__wrapped__(image))
    with deferral:
        assert seen(functional.to_tensor(image)) == expected


def test_levels_table_and_memory_must_fit():
    table = torch.arange(768, dtype=torch.int32).reshape(3, 256).numpy()
    out = bytearray(8 * 12)
    _core.look_up_bytes(bytes(6), table, memoryview(out)[:24], True)
    for levels, memory_of_values in (
        (bytes(5), memoryview(out)[:20]),
        (bytes(6), memoryview(out)[:28]),
        (bytes(6), memoryview(out)[1:25]),
    ):
        with pytest.raises(ValueError, match="must fit"):
            _core.look_up_bytes(levels, table, memory_of_values, True)
    with pytest.raises(BufferError):
        _core.look_up_bytes(bytes(6), table, bytes(24), True)


def test_few_constants_are_kept(monkeypatch):
    monkeypatch.setattr(at_once, "_constants", {})
    for at in range(3 * at_once._CONSTANTS_MAX):
        assert at_once._normalized(1, TENSOR, [1.0 + at], [2.0]) is not None
    assert len(at_once._constants) <= at_once._CONSTANTS_MAX
