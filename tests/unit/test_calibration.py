"""Calibration detects what the installed Pillow does, and refuses anything that differs."""

from __future__ import annotations

import io
from collections.abc import Iterator
from importlib import import_module

import PIL
import pytest
from jpeg_writer import FACTORS, write_jpeg
from PIL import Image, ImageFile, features
from PIL.JpegImagePlugin import JpegImageFile
from PIL.WebPImagePlugin import WebPImageFile

from fastload import _core
from fastload.pipeline.installed import steps as step_calibration
from fastload.pipeline.installed.decodes import PROBES, SUBSAMPLINGS, _calibrate, calibrate, probe
from fastload.pipeline.nodes import FILTERS
from fastload.vision import DecodeError, decode


@pytest.fixture(autouse=True)
def calibrated_anew() -> Iterator[None]:
    _calibrate.cache_clear()
    yield
    _calibrate.cache_clear()
    calibrate()


@pytest.mark.matrix
def test_installed_pillow_is_matched_in_full() -> None:
    found = calibrate()
    assert found.pillow == PIL.__version__
    assert found.libjpeg == _core.libjpeg_version()
    assert found.subsamplings == set(SUBSAMPLINGS)
    assert {name.split()[0] for name in found.formats} == {
        word for word in ("PNG", "WebP") if word in _core.codec_versions()
    }
    assert found.formats <= set(PROBES)
    assert found.filters == set(FILTERS)
    version = tuple(map(int, PIL.__version__.split(".")[:2]))
    rules = {(13, 0): "tall_vertical_first", (12, 2): "sliver_vertical_first", (0, 0): "horizontal_first"}
    assert found.pass_rule == next(rule for since, rule in rules.items() if version >= since)


def test_settings_of_pillows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = calibrate()
    _calibrate.cache_clear()
    monkeypatch.setattr(ImageFile, "MAXBLOCK", 1)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 0)
    assert calibrate() == expected
    import_module("torchvision.transforms.v2.functional")
    assert step_calibration._same_as_reference.__wrapped__("torch_contrast", (("value", 1.3),))


def test_probes_are_what_they_say_and_small() -> None:
    for subsampling in SUBSAMPLINGS:
        assert _core.jpeg_header(probe(subsampling))[3:] == (
            43,
            35,
            1 if subsampling == "gray" else 3,
            subsampling,
            False,
            "JPEG",
        )
        assert len(probe(subsampling)) < 1000
    assert set(SUBSAMPLINGS) == set(FACTORS) == set(_core.subsampling_names()) - {"other"}


def test_subsampling_that_pillow_decodes_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def other_libjpeg(file: io.BytesIO) -> JpegImageFile:
        image = JpegImageFile(file)
        if file.getvalue() == probe("4:4:0"):
            image.putpixel((20, 20), tuple(value ^ 1 for value in image.getpixel((20, 20))))
        return image

    with monkeypatch.context() as patch:
        patch.setattr(import_module("fastload.pipeline.installed.decodes"), "JpegImageFile", other_libjpeg)
        assert calibrate().subsamplings == set(SUBSAMPLINGS) - {"4:4:0"}
    decode(write_jpeg(20, 20, FACTORS["4:2:0"]))
    with pytest.raises(DecodeError) as caught:
        decode(write_jpeg(20, 20, FACTORS["4:4:0"]))
    assert caught.value.status == "unsupported"


def test_format_that_pillow_decodes_otherwise_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class OtherLibwebp(WebPImageFile):
        def load(self) -> object:
            pixel = super().load()
            if self.im.size == (83, 67):  # the lossy probes
                self.im.putpixel((82, 66), tuple(value ^ 1 for value in self.im.getpixel((82, 66))))
            return pixel

    files = {options: io.BytesIO() for options in (True, False)}
    for lossless, file in files.items():
        Image.new("RGB", (9, 8), (9, 90, 200)).save(file, "WEBP", lossless=lossless)
    with monkeypatch.context() as patch:
        patch.setattr(import_module("fastload.pipeline.installed.decodes"), "WebPImageFile", OtherLibwebp)
        assert calibrate().formats == {"PNG", "WebP (lossless)"}
    decode(files[True].getvalue())
    with pytest.raises(DecodeError) as caught:
        decode(files[False].getvalue(), size=(4, 4))
    assert caught.value.status == "not_jpeg"


@pytest.mark.parametrize("feature", ["zlib", "webp"])
def test_format_that_pillow_lacks_is_not_decoded(monkeypatch: pytest.MonkeyPatch, feature: str) -> None:
    """Image.open raises for it."""
    real = features.check
    monkeypatch.setattr(features, "check", lambda name: name != feature and real(name))
    assert {name.split()[0] for name in calibrate().formats} == {"WebP" if feature == "zlib" else "PNG"}


def test_filter_that_pillow_computes_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Image.Image.resize

    def other_pillow(self: Image.Image, size: tuple[int, int], resample: int) -> Image.Image:
        return real(self, size, Image.Resampling.HAMMING if resample == Image.Resampling.LANCZOS else resample)

    with monkeypatch.context() as patch:
        patch.setattr(Image.Image, "resize", other_pillow)
        assert calibrate().filters == set(FILTERS) - {"lanczos"}
    file = write_jpeg(20, 20)
    decode(file, size=(5, 5))
    with pytest.raises(ValueError, match="interpolation must be one that gives the pixels of the installed Pillow"):
        decode(file, size=(5, 5), interpolation="lanczos")


@pytest.mark.parametrize("vertical_first", [False, True])
def test_order_of_passes_is_the_installed_pillows(monkeypatch: pytest.MonkeyPatch, vertical_first: bool) -> None:
    """Pillow 12 never runs the vertical pass first; this turns either version into the other."""
    real = Image.Image.resize

    def in_order(self: Image.Image, size: tuple[int, int], resample: int) -> Image.Image:
        if resample == Image.Resampling.NEAREST:
            return real(self, size, resample)
        less_height, less_width = self.height - size[1], self.width - size[0]
        if vertical_first and less_height > 0 and less_height > 2 * less_width:
            return real(real(self, (self.width, size[1]), resample), size, resample)
        return real(real(self, (size[0], self.height), resample), size, resample)

    monkeypatch.setattr(Image.Image, "resize", in_order)
    found = calibrate()
    assert found.pass_rule == ("tall_vertical_first" if vertical_first else "horizontal_first")
    assert found.filters == set(FILTERS)


def test_no_rule_fits_an_unknown_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Image.Image.resize
    monkeypatch.setattr(
        Image.Image, "resize", lambda self, size, resample: real(self, size, resample).point(lambda value: value ^ 1)
    )
    found = calibrate()
    assert found.pass_rule is None
    assert not found.filters
    assert decode(write_jpeg(20, 20)).any()  # decoding alone is not in doubt
    with pytest.raises(ValueError, match="interpolation must be one"):
        decode(write_jpeg(20, 20), size=(3, 3))


def test_pillow_reads_every_probe() -> None:
    for subsampling in SUBSAMPLINGS:
        with Image.open(io.BytesIO(probe(subsampling))) as image:
            assert image.convert("RGB").getextrema() != ((0, 0),) * 3
