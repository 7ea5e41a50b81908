"""Blur as torchvision does in worker processes: torch's sums to the bit, or torch itself."""

from __future__ import annotations

import functools
import itertools
import platform

import numpy as np
import pytest
import torch
from PIL import Image
from torch.overrides import TorchFunctionMode
from torchvision.transforms import _functional_tensor, functional, v2

from fastload import _core
from fastload.lazy import blur as lazy_blur

SIZES = [(1, 1), (3, 5), (8, 8), (23, 24), (31, 200), (224, 224)]  # height and width
KERNELS = [(1, 1), (3, 3), (9, 9), (23, 23), (5, 31), (31, 1)]  # width and height


def noise(height, width):
    return np.random.default_rng(height + width).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture
def replaced():
    """The functions that replace torchvision's, by module."""
    return {module.__name__: function for module, _, function in lazy_blur.functions(lambda *_: None)}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.usefixtures("level")
def test_sums_are_torchs_to_the_bit(kernel):
    for (height, width), sigma in itertools.product(SIZES, (0.05, 0.31, 1.7, 10.0)):
        weights = _functional_tensor._get_gaussian_kernel2d(kernel, [sigma, sigma * 1.3], torch.float32, "cpu")
        got = np.empty((height, width, 3), np.float32)
        pixels = noise(height, width)
        if kernel[0] // 2 >= width or kernel[1] // 2 >= height:
            with pytest.raises(ValueError, match="half of the weights"):
                _core.convolve(pixels, weights.numpy(), got)
            continue
        image = functional.pil_to_tensor(Image.fromarray(pixels)).float()
        expected = functional.gaussian_blur(image, kernel, [sigma, sigma * 1.3])
        _core.convolve(pixels, weights.numpy(), got)
        assert np.array_equal(got.view(np.int32), expected.permute(1, 2, 0).contiguous().numpy().view(np.int32))


def test_each_column_and_row_of_weights_has_its_place():
    weights = np.zeros((3, 5), np.float32)
    weights[0, 4] = 1
    pixels = noise(6, 7)
    got = np.empty((6, 7, 3), np.float32)
    _core.convolve(pixels, weights, got)
    assert np.array_equal(got, np.pad(pixels, ((1, 1), (2, 2), (0, 0)), mode="reflect")[:6, 4:])


@pytest.mark.parametrize(
    ("weights", "out"),
    [((2, 3), (6, 7, 3)), ((3, 1001), (6, 7, 3)), ((0, 3), (6, 7, 3)), ((3, 3), (7, 6, 3)), ((3, 3), (6, 7, 1))],
)
def test_other_shapes_are_refused(weights, out):
    with pytest.raises(ValueError, match=r"odd|shape"):
        _core.convolve(noise(6, 7), np.ones(weights, np.float32), np.empty(out, np.float32))


def test_both_functions_of_torchvision_are_replaced(replaced):
    assert len(replaced) == 2
    image = Image.fromarray(noise(40, 50))
    for module, function in replaced.items():
        theirs = v2.functional.gaussian_blur if "v2" in module else functional.gaussian_blur
        assert function(image, [5, 7], sigma=[0.8, 1.1]) == theirs(image, [5, 7], [0.8, 1.1])
        with pytest.raises(TypeError, match="multiple values"):
            function(image, [5, 7], kernel_size=[5, 7])


@pytest.fixture
def counted(monkeypatch):
    """Sizes of images that the core blurs."""
    sizes = []

    def counting(function, image):
        def count(*arguments):
            sizes.append(arguments[image].shape[:2])
            return function(*arguments)

        return count

    monkeypatch.setattr(_core, "convolve", counting(_core.convolve, 0))
    monkeypatch.setattr(_core, "apply_steps", counting(_core.apply_steps, 1))
    return sizes


def test_a_size_is_tried_once(replaced, counted):
    for function in replaced.values():
        for size in ((20, 30), (20, 31), (20, 30)):
            assert function(Image.fromarray(noise(*size)), (3, 3), [1.0, 1.0]).size == size[::-1]
    assert counted == [(20, 30), (20, 30), (20, 31), (20, 31), (20, 30)] * 2


def test_only_so_many_sizes_are_tried(replaced, counted, monkeypatch):
    monkeypatch.setattr(lazy_blur, "TRIED_MAX", 2)
    function = next(iter(replaced.values()))
    for side in (20, 21, 22, 22, 21):
        image = Image.fromarray(noise(side, side))
        assert function(image, (3, 3), [1.0, 1.0]) == functional.gaussian_blur(image, (3, 3), [1.0, 1.0])
    assert counted == [(20, 20), (20, 20), (21, 21), (21, 21), (21, 21)]


def test_where_one_sum_differs_in_its_last_bit_torch_blurs(replaced, monkeypatch):
    convolve = _core.convolve
    calls = []

    def differ(source, weights, out):
        calls.append(source.shape)
        convolve(source, weights, out)
        out[-1, -1, -1] = np.nextafter(out[-1, -1, -1], np.float32(np.inf))

    monkeypatch.setattr(_core, "convolve", differ)
    image = Image.fromarray(noise(20, 30))
    for function in replaced.values():
        for _ in range(2):
            assert function(image, (3, 3), [1.0, 1.0]).size == (30, 20)
    assert calls == [(20, 30, 3)] * 2


def test_other_settings_are_tried_anew(replaced, monkeypatch):
    tried = []
    monkeypatch.setattr(lazy_blur, "_is_torchs", lambda *arguments: tried.append(arguments))
    function = next(iter(replaced.values()))
    image = Image.fromarray(noise(20, 30))
    function(image, (3, 3), [1.0, 1.0])
    with torch.backends.mkldnn.flags(enabled=not torch.backends.mkldnn.enabled):
        function(image, (3, 3), [1.0, 1.0])
    function(image, (3, 3), [1.0, 1.0])
    assert len(tried) == 2


def test_torchs_newer_settings_of_precision_are_no_error(replaced, counted, monkeypatch):
    image = Image.fromarray(noise(20, 30))
    monkeypatch.setattr(torch.backends, "fp32_precision", "tf32")
    for module, function in replaced.items():
        theirs = v2.functional.gaussian_blur if "v2" in module else functional.gaussian_blur
        assert function(image, (3, 3), [1.0, 1.0]) == theirs(image, (3, 3), [1.0, 1.0])
    assert len(counted) >= 2


def test_a_mode_leaves_it_to_torch(replaced, counted):
    class Mode(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    with Mode():
        for function in replaced.values():
            function(Image.fromarray(noise(20, 30)), (3, 3), [1.0, 1.0])
    assert counted == []


def test_another_default_device_leaves_it_to_torch(replaced, counted):
    image = Image.fromarray(noise(20, 30))
    for function in replaced.values():
        function(image, (3, 3), [1.0, 1.0])
        del counted[:]
        with torch.device("meta"), pytest.raises(NotImplementedError):
            function(image, (3, 3), [1.0, 1.0])
    assert counted == []


def test_autocast_leaves_it_to_torch(replaced, counted):
    image = Image.fromarray(noise(20, 30))
    with torch.autocast("cpu", torch.bfloat16):
        for function in replaced.values():
            function(image, (3, 3), [1.0, 1.0])
    assert counted == []


@pytest.mark.parametrize(
    "arguments",
    [((3, 3),), ((3, 3), None), (3, [1.0, 1.0]), ((3,), [1.0, 1.0]), ((3, 3), [1, 1]), ((3, 3), 1.0), ((3, 3), [1.0])],
)
def test_unusual_arguments_go_to_torchvision(replaced, counted, arguments):
    image = Image.fromarray(noise(20, 30))
    for module, function in replaced.items():
        theirs = v2.functional.gaussian_blur if "v2" in module else functional.gaussian_blur
        try:
            expected = theirs(image, *arguments)
        except Exception as error:
            with pytest.raises(type(error)):
                function(image, *arguments)
        else:
            assert function(image, *arguments) == expected
    assert counted == []


def test_a_kernel_that_is_no_number_leaves_it_to_torch(replaced, counted):
    image = Image.fromarray(noise(20, 30))
    for function in replaced.values():
        function(image, (3, 3), [1.0, 1.0])
        del counted[:]
        assert function(image, (3, 3), [1e-60, 1.0]) == functional.gaussian_blur(image, (3, 3), [1e-60, 1.0])
    assert counted == []


def test_pending_pixels_get_the_kernel_that_torch_computes():
    """v1's and v2's kernels differ in last bits."""
    got, image = [], Image.fromarray(noise(20, 30))
    for _, _, function in lazy_blur.functions(lambda *step: got.append(step) or "changed"):
        assert function(image, (5, 3), [0.4, 1.1]) == "changed"
    kernels = [
        module._get_gaussian_kernel2d([5, 3], [0.4, 1.1], dtype=torch.float32, device=torch.device("cpu"))
        for module in (_functional_tensor, v2.functional._misc)
    ]
    fields = [{"height": 3, "width": 5, "weights": kernel.contiguous().numpy().tobytes()} for kernel in kernels]
    assert got == [(image, "convolve", each) for each in fields]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="whose doubles flush as floats do")
def test_where_the_smallest_numbers_are_0_images_are_blurred_at_once():
    """They are not where others paint."""
    steps, image = [], Image.fromarray(noise(20, 30))
    _, _, function = next(lazy_blur.functions(lambda *step: steps.append(step)))
    function(image, (3, 3), [0.1, 0.1])
    assert len(steps) == 1
    assert torch.set_flush_denormal(True)
    try:
        assert function(image, (3, 3), [0.1, 0.1]) == functional.gaussian_blur(image, (3, 3), [0.1, 0.1])
    finally:
        torch.set_flush_denormal(False)
    assert len(steps) == 1


def convolved(pixels, weights):
    fields = {"height": weights.shape[0], "width": weights.shape[1], "weights": weights.tobytes()}
    got = np.empty_like(pixels)
    assert _core.apply_steps([("convolve", fields)], pixels.copy(), got)
    return got


@pytest.mark.usefixtures("level")
def test_steps_round_the_sums_half_to_even_within_the_levels():
    pixels = np.arange(768, dtype=np.uint32).astype(np.uint8).reshape(16, 16, 3)
    for factor in (0.5, 1.5, -1.0, 3.0, 1 / 3, 1e36, 1e-45):
        wanted = np.rint(np.float32(factor) * pixels.astype(np.float32)).clip(0, 255)
        assert np.array_equal(convolved(pixels, np.full((1, 1), factor, np.float32)), wanted.astype(np.uint8))
    weights = np.array([[3e38, -3e38, 0]], np.float32)
    assert {*np.unique(convolved(pixels, weights))} <= {0, 255}  # sums are infinite, or no numbers, which is 0
    weights = _functional_tensor._get_gaussian_kernel2d([9, 5], [1.1, 0.7], torch.float32, "cpu").numpy()
    sums = np.empty((31, 40, 3), np.float32)
    _core.convolve(noise(31, 40), np.ascontiguousarray(weights), sums)
    assert np.array_equal(convolved(noise(31, 40), weights), np.rint(sums).astype(np.uint8))


@pytest.mark.parametrize(
    ("height", "width", "count", "value"),
    [(2, 3, 6, 1), (3, 2, 6, 1), (0, 3, 0, 1), (3, 1001, 3003, 1), (3, 3, 8, 1), (3, 3, 10, 1), (1, 1, 1, np.nan)],
)
def test_other_weights_of_steps_are_refused(height, width, count, value):
    weights = np.full(count, value, np.float32).tobytes()
    with pytest.raises(ValueError, match="weights"):
        _core.DrawPlan().add("convolve", height=height, width=width, weights=weights)
    with pytest.raises(ValueError, match="weights"):
        _core.DrawPlan().add("convolve", height=1, width=1)


def test_steps_whose_weights_reach_beyond_the_mirror_do_not_fit():
    fields = {"height": 1, "width": 7, "weights": np.ones(7, np.float32).tobytes()}
    image = np.zeros((9, 3, 3), np.uint8)
    assert not _core.apply_steps([("convolve", fields)], image, image)


def test_a_patched_function_stays(monkeypatch):
    patch = functools.wraps(functional.gaussian_blur)(lambda image, kernel_size, sigma: image)
    monkeypatch.setattr(functional, "gaussian_blur", patch)
    assert len(list(lazy_blur.functions(lambda *_: None))) == 1
