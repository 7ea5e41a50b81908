"""Lazy images equal ordinary ones: classes, infos, pixels, errors, and the state of files."""

from __future__ import annotations

import copy
import functools
import io
import itertools
import pickle
import random
import re
import struct
from collections import Counter
from dataclasses import replace

import interpreters
import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from cases import check_each
from children import exit_code, forked
from deferred_images import calibrated
from hypothesis import given, settings
from hypothesis import strategies as st
from jpeg_writer import FACTORS, segment, write_jpeg
from photos import jpeg, pixels
from PIL import Image, ImageEnhance, ImageFile, ImageFilter, ImageOps
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile
from png_writer import chunk, write_png
from torchvision.transforms import functional, v2
from torture import codecs, mutations

from fastload import _core
from fastload.lazy import files as lazy_files
from fastload.lazy import functions as lazy_functions
from fastload.lazy import images as lazy_images
from fastload.lazy.masks import PendingMask
from fastload.lazy.pixels import COMPARED, File, Pending, Unread
from fastload.pipeline.installed import decodes as calibration
from fastload.pipeline.installed import steps as step_calibration

FILES = {
    "4:2:0": jpeg(1, 90, 121, subsampling=2),
    "4:4:4": jpeg(2, 61, 47, subsampling=0),
    "progressive": jpeg(3, 50, 60, progressive=True),
    "gray": jpeg(4, 50, 60, mode="L"),
    "restarts": write_jpeg(60, 50, FACTORS["4:2:0"], seed=3, restart=3),
}


def saved(seed, form, mode="RGB", **options):
    out = io.BytesIO()
    image = Image.fromarray(pixels(seed, 50, 60)).convert(mode)
    if mode == "RGBA":
        image.putalpha(image.getchannel(0))
    image.save(out, form, **options)
    return out.getvalue()


def png(seed, channels, bits=8, color=2, **options):
    levels = np.random.default_rng(seed).integers(0, 2**bits, (50, 60, channels))
    return write_png(levels, bits, color, **options)


TEXTS = {
    "before": chunk(b"gAMA", bytes(4)) + chunk(b"tEXt", b"Title\0before"),
    "after": chunk(b"tEXt", b"Comment\0after") + chunk(b"iTXt", b"More\0\0\0\0\0after"),
}
COLOR = chunk(b"tRNS", b"\0\1\0\2\0\3")
DECODED = {
    "png": png(1, 3, pieces=4, **TEXTS),
    "interlaced png": png(2, 3, interlace=True),
    "transparent png": png(3, 3, before=COLOR),
    "webp": saved(4, "WEBP", quality=80),
    "lossless webp": saved(5, "WEBP", lossless=True, exif=b"Exif\0\0II", icc_profile=b"profile", xmp=b"<x/>"),
}
"""Files that the core decodes, of RGB images."""
CONVERTED = {
    "alpha png": png(6, 4, color=6, pieces=3, **TEXTS),
    "gray png": png(7, 1, color=0, after=TEXTS["after"]),
    "gray png of two bits": png(8, 1, 2, color=0),
    "gray alpha png": png(9, 2, color=4, interlace=True),
    "bilevel png": png(10, 1, 1, color=0),
    "alpha webp": saved(11, "WEBP", "RGBA", quality=80),
    "lossless alpha webp": saved(12, "WEBP", "RGBA", lossless=True),
}
"""Those that it decodes as RGB."""
PALETTE = {count: chunk(b"PLTE", bytes(range(7, 7 + 3 * count))) for count in (2, 4, 16)}
MASKS = {
    "palette png": saved(19, "PNG", "P"),
    "small palette png": png(20, 1, 4, color=3, before=PALETTE[16], pieces=2, after=TEXTS["after"]),
    "interlaced palette png": png(21, 1, 2, color=3, before=PALETTE[4], interlace=True),
    "palette of two png": png(22, 1, 1, color=3, before=PALETTE[2]),
    "palette too short": png(23, 1, 8, color=3, before=PALETTE[16]),
    "gray mask": png(24, 1, color=0, **TEXTS),
    "gray mask of four bits": png(25, 1, 4, color=0, interlace=True),
}
"""Those whose levels or indices it decodes."""
OTHERS = {
    "transparent gray png": png(13, 1, color=0, before=chunk(b"tRNS", b"\0\7")),
    "16 bits png": png(14, 3, 16),
    "16 bits gray png": png(15, 1, 16, color=0),
    "transparent palette png": saved(16, "PNG", "P", transparency=3),
    "palette of odd size": png(26, 1, 2, color=3, before=chunk(b"PLTE", bytes(7))),
    "no palette": png(28, 1, 2, color=3),
    "animated png": saved(17, "PNG", save_all=True, append_images=[Image.new("RGB", (60, 50))]),
    "animated webp": saved(18, "WEBP", save_all=True, append_images=[Image.new("RGB", (60, 50))]),
}
"""Those that Pillow decodes."""
ALL = {**FILES, **DECODED, **CONVERTED, **MASKS, **OTHERS}


@pytest.fixture(scope="module", autouse=True)
def ended():
    lazy_images.prepare()
    yield
    end()


def end():
    lazy_images.uninstall()
    cls, attribute, _ = lazy_images._METHODS["im"]  # of pending images, which are no more
    setattr(cls, attribute, lazy_images._known.originals["im"])


def lazily(function, data, checks=0):
    assert lazy_images.install()
    lazy_images._pillow.comparisons = checks
    compared = itertools.product(lazy_files.KINDS, (1, 3))
    lazy_images._pillow.decodes.update(dict.fromkeys(compared, COMPARED - checks))
    try:
        return outcome(function, data)
    finally:
        lazy_images.uninstall()


def outcome(function, data):
    """What a function makes of an opened file, or its error."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return value_of(function(image))
    except Exception as error:
        return type(error), re.sub("0x[0-9a-f]+", "", str(error))  # no addresses


def value_of(made):
    if isinstance(made, Image.Image):
        info = {key: value for key, value in made.info.items() if key != "icc_profile"}
        return type(made), made.mode, made.size, info, made.tobytes(), made.format, made.readonly
    if isinstance(made, list | tuple):
        return [value_of(part) for part in made]
    return made.tolist() if isinstance(made, np.ndarray) else made


def rgb_crop(image):
    return image.convert("RGB").crop((5, 6, 40, 45))


def many_crops(image):
    image = image.convert("RGB")
    return [image.crop((i, 2 * i, 30 + i, 40 + i)).resize((20, 17), 2) for i in range(6)]


def state_of(image):
    """Attributes of an image, but for its pixels and what reads them."""
    hidden = ("_im", "fp", "_fp", "_decoder", "palette", "_webp_bytes", "_PngImageFile__idat")
    names = sorted(vars(image).keys() - hidden)
    return [(name, re.sub("0x[0-9a-f]+", "", repr(getattr(image, name)))) for name in names]


def states(image):
    states = [state_of(image), (image.load(), state_of(image))[1]]
    return [*states, image.fp, image.tile, image.readonly, list(image.info)]


USES = {
    "load": lambda image: (image.load(), image)[1],
    "pixel access": lambda image: image.load()[3, 4],
    "access of a copy": lambda image: image.convert("RGB").load()[3, 4],
    "convert": lambda image: image.convert("RGB"),
    "convert twice": lambda image: [image.convert("RGB").convert("RGB"), image],
    "convert to L": lambda image: image.convert("RGB").convert("L"),
    "convert with a matrix": lambda image: image.convert("RGB").convert("L", (0.3, 0.3, 0.3, 0)),
    "crop": rgb_crop,
    "crop of the file": lambda image: image.crop((5, 6, 40, 45)),
    "crop beyond": lambda image: image.convert("RGB").crop((-5, 6, 40, 450)),
    "crop of nothing": lambda image: image.convert("RGB").crop((5, 6, 5, 6)),
    "crop inside out": lambda image: image.convert("RGB").crop((9, 6, 5, 8)),
    "crop by halves": lambda image: image.convert("RGB").crop((0.5, 1.5, 20.5, 30.49)),
    "crop of a crop": lambda image: rgb_crop(image).crop((3, 4, 20, 22)),
    "resize": lambda image: image.convert("RGB").resize((31, 22)),
    "resize to itself": lambda image: image.convert("RGB").resize(image.size, 2),
    "nearest": lambda image: image.convert("RGB").resize((31, 22), 0),
    "reducing gap": lambda image: image.convert("RGB").resize((11, 12), 2, reducing_gap=2.0),
    "resize of a box": lambda image: image.convert("RGB").resize((11, 12), 2, (1.5, 2.5, 30.0, 40.0)),
    "crop by three": lambda image: image.convert("RGB").crop((1, 2, 3)),
    "crop by nan": lambda image: image.convert("RGB").crop((1, 2, float("nan"), 9)),
    "crop by an array": lambda image: image.convert("RGB").crop(np.array([1, 2, 30, 40])),
    "three sizes": lambda image: image.convert("RGB").resize((1, 2, 3)),
    "a list for a filter": lambda image: image.convert("RGB").resize((9, 9), [2]),
    "unknown filter": lambda image: image.convert("RGB").resize((11, 12), 77),
    "negative size": lambda image: image.convert("RGB").resize((-1, 12)),
    "size of floats": lambda image: image.convert("RGB").resize((10.0, 12)),
    "array of sizes": lambda image: image.convert("RGB").resize(np.array([10, 12])),
    "crop, resize, crop, flip": lambda image: ImageOps.mirror(rgb_crop(image).resize((30, 30), 3).crop((1, 2, 28, 25))),
    "flip, crop": lambda image: ImageOps.flip(ImageOps.mirror(image.convert("RGB"))).crop((2, 7, 22, 33)),
    "flip, resize": lambda image: ImageOps.mirror(rgb_crop(image)).resize((12, 9), 2),
    "two resizes": lambda image: image.convert("RGB").resize((40, 44), 2).resize((20, 21), 3),
    "rotate": lambda image: image.convert("RGB").rotate(20),
    "transpose": lambda image: image.convert("RGB").transpose(Image.Transpose.ROTATE_90),
    "many crops": many_crops,
    "array": lambda image: np.array(image.convert("RGB")),
    "array of the file": np.asarray,
    "two arrays": lambda image: [np.asarray(image), np.asarray(image), image.crop((1, 2, 9, 9)), np.array(image)],
    "bytes": lambda image: [image.tobytes(), rgb_crop(image).tobytes(encoder_name="raw")],
    "bytes in another order": lambda image: image.convert("RGB").tobytes("raw", "BGR"),
    "bytes of another file": lambda image: image.convert("RGB").tobytes("nothing"),
    "bytes by no name": lambda image: image.convert("RGB").tobytes(np.array(["raw"])),
    "change an array's image": lambda image: (a := np.asarray(image), image.putpixel((1, 1), (9, 9, 9)), [a, image])[2],
    "pickle": lambda image: pickle.loads(pickle.dumps(image.convert("RGB"))),
    "copy": lambda image: [image.copy(), copy.copy(image.convert("RGB")), copy.deepcopy(rgb_crop(image))],
    "equal": lambda image: image.convert("RGB") == image.convert("RGB"),
    "exif": lambda image: (dict(image.getexif()), rgb_crop(image)),
    "draft": lambda image: (image.draft("RGB", (20, 20)), image.convert("RGB"))[1],
    "draft to L": lambda image: (image.draft("L", None), image.convert("RGB"))[1],
    "thumbnail": lambda image: (image.thumbnail((20, 20)), image)[1],
    "paste into": lambda image: (image.paste((1, 2, 3), (0, 0, 5, 5)), image)[1],
    "paste from": lambda image: (Image.new("RGB", (99, 99)).paste(rgb_crop(image), (3, 3)), 0)[1],
    "put a pixel": lambda image: (c := rgb_crop(image), c.putpixel((1, 1), (9, 9, 9)), c)[2],
    "change a copy": lambda image: (c := rgb_crop(image), d := c.copy(), d.putpixel((1, 1), (9, 9, 9)), [c, d])[3],
    "blend": lambda image: Image.blend(rgb_crop(image), rgb_crop(image).resize((35, 39)), 0.3),
    "split": lambda image: image.convert("RGB").split(),
    "histogram": lambda image: rgb_crop(image).histogram(),
    "closed": lambda image: (c := image.convert("RGB"), c.close(), c.tobytes())[2],
    "bands": lambda image: (image.convert("RGB").getbands(), image.convert("RGB").getbbox()),
    "repr": lambda image: repr(image.convert("RGB"))[:40],
    "file": lambda image: (image.load(), image.fp, image.tile)[1:],
    "save": lambda image: (out := io.BytesIO(), rgb_crop(image).save(out, "PNG"), out.getvalue())[2],
    "exif transpose": lambda image: ImageOps.exif_transpose(image),
    "verify": lambda image: image.verify(),
    "state": states,
    "state after a conversion": lambda image: (c := image.convert("RGB"), state_of(image), list(c.info))[1:],
    "texts": lambda image: (getattr(image, "text", 0), image.convert("RGB"), image.info)[::2],
    "frames": lambda image: (image.seek(0), image.load(), image.tell(), getattr(image, "n_frames", 1), image)[2:],
    "next frame": lambda image: (image.load(), image.seek(1), image.convert("RGB"), image.info)[1:],
    "first frame again": lambda image: (image.load(), image.seek(0), image.convert("RGB"), image.info)[1:],
    "load twice": lambda image: (image.load(), image.load(), image)[2],
    "verify a loaded one": lambda image: (image.load(), image.verify())[1:],
    "use the file then": lambda image: [image.convert("RGB"), image.getchannel(0), image.convert("RGB"), image],
    "put a palette then": lambda image: (image.convert("RGB"), image.putpalette([*range(256)] * 3), image)[2:],
    "put alpha then": lambda image: (image.convert("RGB"), image.putalpha(7), image)[2:],
    "draw on the file then": lambda image: (c := image.convert("RGB"), image.putpixel((3, 4), 0), c, image)[2:],
    "other modes": lambda image: [image.convert(mode) for mode in ("L", "RGBA", "CMYK", "HSV", "P", "1", "F")],
    "other modes then": lambda image: [image.convert("RGB"), image.convert("RGBA"), image.convert("P")],
    "modes of a crop": lambda image: [rgb_crop(image).convert(mode) for mode in ("L", "RGBA", "1")],
    "palette": lambda image: image.convert("P", palette=Image.Palette.ADAPTIVE, colors=9).convert("RGB"),
    "small crops": lambda image: [image.convert("RGB").crop((3, 4, 13, 12)), image.crop((3, 4, 13, 12)).resize((5, 6))],
    "resize after steps": lambda image: ImageOps.invert(ImageOps.flip(image.convert("RGB"))).resize((33, 22), 3),
    "pickled file": lambda image: pickle.loads(pickle.dumps(image)),
    "copied file": lambda image: [copy.copy(image), copy.deepcopy(image)],
    "closed file": lambda image: (image.load(), image.close(), image.convert("RGB")),
    "left file": lambda image: (image.__exit__(), image.convert("RGB"))[1],
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", FILES)
def test_any_use_gives_what_an_ordinary_image_gives(use, name):
    assert lazily(USES[use], FILES[name]) == outcome(USES[use], FILES[name])


@pytest.mark.parametrize("name", [*DECODED, *CONVERTED, *MASKS, *OTHERS])
@pytest.mark.filterwarnings("ignore:Palette images:UserWarning")
def test_any_use_of_what_the_core_decodes_gives_the_same(name):
    def check(use):
        assert lazily(USES[use], ALL[name]) == outcome(USES[use], ALL[name])

    check_each(check, USES)


def kinds(image):
    converted = image.convert("RGB")
    return [type(vars(each)["_im"]) for each in (image, converted, converted.crop((0, 0, 59, 49)))]


def test_which_files_the_core_decodes():
    core = type(Image.new("1", (1, 1)).im)
    for files, expected in ((DECODED, [Pending] * 3), (CONVERTED, [Unread, Pending, Pending]), (OTHERS, [core] * 3)):
        assert {name: lazily(kinds, data) for name, data in files.items()} == dict.fromkeys(files, expected)


def described(image):
    """What an image of one channel and its palette have, and NumPy's array."""
    palette = image.palette and [image.palette.mode, image.palette.rawmode, image.palette.dirty, image.palette.palette]
    return value_of([image, palette, image.getpalette(), np.array(image), np.array(image).dtype.str])


def class_numbers(image):
    image = functional.resize(image, [40, 51], v1.InterpolationMode.NEAREST)
    return functional.pad(functional.hflip(image), [0, 2, 9, 20], 255)


OF_MASKS = {
    "nearest": lambda mask: mask.resize((71, 33), 0),
    "usual filter": lambda mask: mask.resize((71, 33)),
    "other filters": lambda mask: [mask.resize((33, 71), name) for name in (1, 2, 3, 4, 5)],
    "box": lambda mask: [mask.resize((33, 71), 0, (1, 2, 30, 40)), mask.resize((33, 71), 0, reducing_gap=2.0)],
    "segmentation": lambda mask: functional.crop(class_numbers(mask), 9, 20, 40, 33),
    "crop of a border": lambda mask: functional.crop(class_numbers(mask), 60, 2, 2, 3),
    "resize of a border": lambda mask: class_numbers(mask).resize((99, 98), 0).crop((1, 2, 80, 90)),
    "two borders": lambda mask: ImageOps.expand(class_numbers(mask), 3, 7),
    "colors of borders": lambda mask: [ImageOps.expand(mask, (1, 2), fill) for fill in ("red", 7, (1, 2, 3))],
    "no class": lambda mask: ImageOps.expand(mask, 1, 300),
    "negative border": lambda mask: ImageOps.expand(mask, (-1, 2, 3, 4)),
    "rotate": lambda mask: [mask.rotate(angle, fillcolor=3) for angle in (0, 20, 90, 180)],
    "mirroring pad": lambda mask: functional.pad(mask, [1, 2, 3, 4], padding_mode="reflect"),
    "crop beyond": lambda mask: mask.crop((-3, 2, 40, 99)),
    "small crop": lambda mask: mask.crop((3, 4, 9, 9)).transpose(0).transpose(1),
    "colors": lambda mask: [mask.convert(mode) for mode in ("RGB", "L", "1", "RGBA")],
    "colors of a crop": lambda mask: mask.resize((20, 21), 0).convert("RGB"),
    "palette first": lambda mask: [mask.getpalette(), mask.getpalette("RGBA"), mask.getpalette(None)],
    "palette in no mode": lambda mask: mask.getpalette("nothing"),
    "put a palette": lambda mask: (mask.putpalette([9, 8, 7] * 16), mask)[1],
    "put a palette then": lambda mask: (c := mask.resize((9, 8), 0), c.putpalette(bytes(768)), c.convert("RGB"), c)[2:],
    "put alpha": lambda mask: (c := mask.crop((0, 0, 50, 40)), c.putpalette(bytes(range(40)), "RGBA"), c)[2],
    "a palette too large": lambda mask: mask.copy().putpalette(bytes(3 * 257)),
    "palette of nothing": lambda mask: mask.copy().putpalette(None),
    "change a copy": lambda mask: (c := mask.copy(), c.putpixel((3, 4), 1), [c, mask])[2],
    "change it": lambda mask: (c := mask.resize((30, 30), 0), c.paste(2, (0, 0, 9, 9)), c.load()[20, 20], [c, mask])[3],
    "histogram": lambda mask: [mask.histogram(), mask.getcolors(), mask.getextrema()],
    "load": lambda mask: (mask.load(), mask)[1],
    "pickle": lambda mask: pickle.loads(pickle.dumps(mask.resize((30, 31), 0))),
    "equal": lambda mask: [mask == mask.copy(), mask.resize((9, 9), 0) == mask.resize((9, 9), 0)],
    "remap": lambda mask: mask.remap_palette([3, 2, 1, 0]),
    "merge": lambda mask: Image.merge("L", [mask.copy()]),
    "thumbnail": lambda mask: (mask.thumbnail((20, 20)), mask)[1],
    "tensor": lambda mask: functional.pil_to_tensor(class_numbers(mask)).numpy(),
    "floats": lambda mask: functional.to_tensor(mask).numpy(),
    "saved": lambda mask: (out := io.BytesIO(), mask.resize((30, 31), 0).save(out, "PNG"), out.getvalue())[2],
    "point": lambda mask: mask.resize((30, 31), 0).point(lambda level: level // 2),
    "bytes in another order": lambda mask: mask.tobytes("raw", mask.mode, 0, -1),
    "state": states,
}


ODD_MASKS = {
    **{name: data for name, data in OTHERS.items() if "palette" in name or "gray" in name},
    "palette too large": png(27, 1, 8, color=3, before=chunk(b"PLTE", bytes(3 * 257))),
}


@pytest.mark.parametrize("name", [*MASKS, *ODD_MASKS])
@pytest.mark.parametrize("checks", [0, 1])
@pytest.mark.filterwarnings("ignore:Palette images:UserWarning")
def test_any_use_of_a_mask_gives_the_same(name, checks):
    data = {**MASKS, **ODD_MASKS}[name]

    def check(use):
        def seen(mask):
            mask.info["own"] = 1
            made = OF_MASKS[use](mask)
            images = [each for each in (made if isinstance(made, list) else [made]) if isinstance(each, Image.Image)]
            return [value_of(made), *map(described, images), described(mask)]

        assert lazily(seen, data, checks) == outcome(seen, data)

    check_each(check, OF_MASKS)


def test_steps_of_geometry_do_not_paint_a_mask():
    def pending(mask):
        made = functional.crop(class_numbers(mask), 9, 20, 40, 33)
        made.load()
        kept = [type(vars(each)["_im"]) is PendingMask for each in (mask, made.copy(), made)]
        mixed = mask.resize((9, 8), Image.Resampling.BILINEAR)
        return [*kept, type(vars(mixed)["_im"]) is PendingMask]

    assert {name: lazily(pending, data) for name, data in MASKS.items()} == {
        name: [True, True, True, "palette" in name] for name in MASKS
    }


def test_other_indices_of_a_file_than_pillows_end_it(monkeypatch):
    def decode(data, out):
        out[:] = 3
        return True

    monkeypatch.setattr(_core, "decode_levels", decode)
    with pytest.warns(RuntimeWarning, match="images are lazy no more"):
        assert lazily(class_numbers, MASKS["palette png"], 1) == outcome(class_numbers, MASKS["palette png"])


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("checks", [0, 1])
def test_arrays_are_pillows_in_all_respects(checks):
    def seen(image):
        first, second, copied = np.asarray(image), np.asarray(image), np.array(image)
        with pytest.raises(ValueError, match="cannot set WRITEABLE"):
            first.flags.writeable = True
        torch.from_numpy(second)[:] = 0  # which only warns
        copied[:] = 0
        flags = [str(array.flags) for array in (first, second, copied)]
        bases = [type(array.base) for array in (first, second, copied)]
        apart = not np.shares_memory(first, second)
        return first.strides, first.dtype.str, flags, bases, apart, first, np.asarray(image), image

    found = lazily(seen, FILES["4:2:0"], checks)
    assert found == outcome(seen, FILES["4:2:0"])
    assert found[:2] == [[363, 3, 1], "|u1"]


def test_an_array_is_decoded_into_its_own_memory(monkeypatch):
    assert lazy_images.prepare()
    made, decode = [], _core.decode
    monkeypatch.setattr(
        _core,
        "decode",
        lambda data, out, *a, **rest: (made.append(out.ctypes.data), decode(data, out, *a, **rest))[1],
    )

    def addresses(image):
        return [np.asarray(image).ctypes.data for _ in range(3)]

    first, *_ = lazily(addresses, FILES["4:2:0"])
    assert made[0] == first
    assert len(made) == 2  # for the second array, the pixels are kept


class OwnEnhancer(ImageEnhance.Color):
    def enhance(self, factor):
        return Image.blend(self.degenerate, super().enhance(factor), 0.5)


def enhanced(change, kind=ImageEnhance.Contrast):
    """A function that changes an image or its enhancer before it uses this."""

    def function(image):
        enhancer = kind(image)
        other = change(image, enhancer)
        return [value_of((other or enhancer).enhance(factor)) for factor in (0.4, 1.0)]

    return function


FUNCTIONS = {
    "brightness": lambda image: functional.adjust_brightness(image, 1.7),
    "contrast": lambda image: functional.adjust_contrast(image, 0.3),
    "saturation": lambda image: functional.adjust_saturation(image, 2),
    "sharpness": lambda image: functional.adjust_sharpness(image, 0.0),
    "hue": lambda image: functional.adjust_hue(image, -0.21),
    "hue out of range": lambda image: functional.adjust_hue(image, 0.7),
    "factor of another type": lambda image: functional.adjust_brightness(image, np.float32(0.3)),
    "factor missing": lambda image: functional.F_pil.adjust_brightness(image),
    "grayscale": lambda image: functional.to_grayscale(image, 3),
    "one channel": lambda image: functional.to_grayscale(image, 1),
    "invert": functional.invert,
    "posterize": lambda image: functional.posterize(image, 3),
    "posterize to nothing": lambda image: functional.posterize(image, 0),
    "solarize": lambda image: functional.solarize(image, 99.5),
    "autocontrast": functional.autocontrast,
    "equalize": functional.equalize,
    "affine": lambda image: functional.affine(image, 20, [3, 4], 0.9, [5, 2], fill=[1, 2, 3]),
    "bilinear affine": lambda image: functional.affine(image, 20, [3, 4], 0.9, [5, 2], v1.InterpolationMode.BILINEAR),
    "rotate": lambda image: functional.rotate(image, 33),
    "expand": lambda image: functional.rotate(image, 33, expand=True),
    "perspective": lambda image: functional.perspective(
        image, [[0, 0], [9, 0], [9, 9], [0, 9]], [[1, 1], [8, 0], [9, 9], [0, 8]]
    ),
    "Pillow's blur": lambda image: image.filter(ImageFilter.GaussianBlur(1.7)),
    "blur by pairs": lambda image: image.filter(ImageFilter.GaussianBlur((0.3, 2))),
    "blur by a list": lambda image: image.filter(ImageFilter.GaussianBlur([3, 0])),
    "default blur": lambda image: image.filter(ImageFilter.GaussianBlur),
    "blur by nothing": lambda image: image.filter(ImageFilter.GaussianBlur(0)),
    "smooth": lambda image: image.filter(ImageFilter.SMOOTH),
    "unsharp mask": lambda image: image.filter(ImageFilter.UnsharpMask(2)),
    "enhance twice": lambda image: (e := ImageEnhance.Color(image), [e.enhance(0.2), e.enhance(1.4)])[1],
    "degenerate": lambda image: [ImageEnhance.Color(image).degenerate, ImageEnhance.Sharpness(image).degenerate],
    "mode of an enhancer": lambda image: ImageEnhance.Color(image).intermediate_mode,
    "nothing of an enhancer": lambda image: ImageEnhance.Contrast(image).nothing,
    "image of an enhancer": lambda image: ImageEnhance.Brightness(image).image,
    "factor of nan": lambda image: ImageEnhance.Brightness(image).enhance(float("nan")),
    "factor of text": lambda image: ImageEnhance.Brightness(image).enhance("1"),
    "negative factor": lambda image: ImageEnhance.Contrast(image).enhance(-0.7),
    "changed before it is enhanced": enhanced(lambda image, _: image.paste((9, 8, 7), (0, 0, 30, 20))),
    "changed before it is sharpened": enhanced(
        lambda image, _: image.putpixel((5, 5), (9, 8, 7)), ImageEnhance.Sharpness
    ),
    "drawn before it is brightened": enhanced(lambda image, _: image.paste(9, (1, 1, 9, 9)), ImageEnhance.Brightness),
    "used before it is enhanced": enhanced(lambda image, _: image.getpixel((3, 4)) and None, ImageEnhance.Color),
    "another image": enhanced(lambda image, e: setattr(e, "image", ImageOps.invert(image))),
    "an image of another size": enhanced(lambda image, e: setattr(e, "image", image.crop((1, 2, 9, 9)))),
    "no image": enhanced(lambda image, e: setattr(e, "image", None)),
    "another degenerate": enhanced(lambda image, e: setattr(e, "degenerate", ImageOps.invert(image))),
    "another info": enhanced(lambda image, _: image.info.update(own=2), ImageEnhance.Color),
    "enhancer used again": enhanced(lambda image, e: (e.degenerate, e.__init__(ImageOps.invert(image)))[1]),
    "pickled enhancer": enhanced(lambda image, e: pickle.loads(pickle.dumps(e))),
    "copied enhancer": enhanced(lambda image, e: (copy.copy(e), image.paste(9, (0, 0, 30, 20)))[0]),
    "by keyword": lambda image: [
        ImageOps.invert(image=image),
        functional.F_pil.adjust_hue(img=image, hue_factor=0.1),
    ],
    "own enhancer": lambda image: OwnEnhancer(image).enhance(0.4),
    "Pillow's solarize": lambda image: [ImageOps.solarize(image), ImageOps.solarize(image, threshold=40)],
    "Pillow's equalize": lambda image: ImageOps.equalize(image, mask=None),
    "Pillow's cutoff": lambda image: [ImageOps.autocontrast(image, 4), ImageOps.autocontrast(image)],
    "Pillow's invert": lambda image: ImageOps.invert(image.convert("L")),
    "timm": lambda image: image.transform(
        image.size, Image.AFFINE, (1, 0.3, 0, 0, 1, 0), resample=3, fillcolor=(9, 8, 7)
    ),
    "blur": lambda image: functional.gaussian_blur(image, [3, 3]),
    "blur by sigma": lambda image: functional.gaussian_blur(image, (9, 5), [1.2, 0.4]),
    "blur of the edges alone": lambda image: functional.gaussian_blur(image, [61, 5], [1.2, 0.4]),
    "blurs": lambda image: (torch.manual_seed(5), [v1.GaussianBlur(23, (0.1, 2))(image) for _ in range(3)])[1],
    "v2 blurs": lambda image: (torch.manual_seed(6), [v2.GaussianBlur((3, 7))(image) for _ in range(3)])[1],
    "blur between steps": lambda image: functional.equalize(
        functional.hflip(functional.gaussian_blur(functional.adjust_hue(image, 0.2), [9, 3], [0.3, 2.0]))
    ),
    "v2 blur between steps": lambda image: v2.functional.adjust_contrast(
        v2.functional.gaussian_blur(v2.functional.invert(image), [23, 23], [0.1, 0.5]), 1.7
    ),
    "blur of a blur": lambda image: v2.functional.gaussian_blur(functional.gaussian_blur(image, 5), [7, 7]),
    "crop of a blur": lambda image: functional.gaussian_blur(image, 5).crop((3, 4, 22, 30)).resize((9, 9)),
    "blur by keyword": lambda image: functional.gaussian_blur(image, (3, 3), sigma=(0.5, 0.5)),
    "blur of gray": lambda image: functional.gaussian_blur(image.convert("L"), [3, 3], [1.0, 1.0]),
    "even blur": lambda image: functional.gaussian_blur(image, [4, 3], [1.0, 1.0]),
    "blur by zero": lambda image: functional.gaussian_blur(image, [3, 3], [0.0, 1.0]),
    "ten crop": lambda image: functional.ten_crop(image, [20, 22]),
    "tensor": lambda image: functional.to_tensor(image).numpy(),
    "to PIL tensor": lambda image: functional.pil_to_tensor(image).numpy(),
    "pad": lambda image: functional.pad(image, 3, 7, "constant"),
    "pad by nothing": lambda image: functional.pad(image, [0, 0, 0, 0]),
    "pad, crop, flip": lambda image: [
        functional.hflip(functional.crop(functional.pad(image, [4, 0, 3, 9], [1, 2, 3]), top, left, 22, 31))
        for top, left in ((0, 0), (3, 2), (20, 12), (40, 40))
    ],
    "crop of a border": lambda image: functional.crop(functional.pad(image, [0, 30, 0, 0], 9), 2, 3, 20, 20),
    "pads": lambda image: functional.vflip(functional.pad(functional.pad(functional.vflip(image), [1, 2]), [3, 4])),
    "pads of two colors": lambda image: functional.pad(functional.pad(image, [1, 2], 5), [3, 4], 6),
    "pad, step, pad": lambda image: functional.pad(functional.invert(functional.pad(image, 2, 9)), [1, 2, 3, 4], 9),
    "pad, resize": lambda image: functional.pad(image, [1, 2, 3, 4]).resize((33, 22), 2),
    "Pillow's pads": lambda image: [
        *(ImageOps.expand(image, border) for border in ((1, 2), (4, 3, 2, 1), 5, (1, -2, 3, 4))),
        *(ImageOps.expand(image, 2, fill) for fill in (255, "red", (1, 2, 300), (9, 8, 7))),
    ],
    "a border of three": lambda image: ImageOps.expand(image, (1, 2, 3)),
    "a border of floats": lambda image: ImageOps.expand(image, 2.0),
    "mirroring pad": lambda image: functional.pad(image, [1, 2, 3, 4], padding_mode="reflect"),
    "v2 pads": lambda image: [v2.functional.pad(image, [1, 2, 3, 4], [9.0, 8.0, 7.0]), v2.Pad(3, 200)(image)],
    "v2 saturation": lambda image: v2.functional.adjust_saturation(image, 0.2),
    "v2 hue": lambda image: v2.functional.adjust_hue(image, 0.2),
    "v2 image": lambda image: v2.functional.to_image(image).numpy(),
    "two steps": lambda image: functional.hflip(functional.invert(functional.adjust_hue(image, 0.4))),
    "crop of a step": lambda image: functional.equalize(image).crop((3, 4, 22, 30)).resize((9, 9)),
    "policies": lambda image: (torch.manual_seed(2), [v1.RandAugment(3)(image) for _ in range(9)])[1],
    "v2 policies": lambda image: (torch.manual_seed(3), [v2.TrivialAugmentWide()(image) for _ in range(9)])[1],
    "jitter": lambda image: (torch.manual_seed(4), [v1.ColorJitter(0.4, 0.4, 0.4, 0.2)(image) for _ in range(5)])[1],
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("checks", [0, 1])
def test_any_function_of_torchvision_gives_the_same(name, checks):
    def use(image):
        image.info["own"] = 1
        image = image.convert("RGB")
        return [FUNCTIONS[name](image), FUNCTIONS[name](image.crop((3, 4, 60, 50)).resize((40, 33), 2))]

    assert lazily(use, FILES["4:2:0"], checks) == outcome(use, FILES["4:2:0"])


@pytest.mark.parametrize("name", ["transparent png", "lossless webp"])
def test_any_function_of_pixels_that_are_made_gives_the_same(name):
    def check(function, crops):
        def use(image):
            image = image.convert("RGB")
            return FUNCTIONS[function](image.crop((3, 4, 60, 50)).resize((40, 33), 2) if crops else image)

        assert lazily(use, DECODED[name]) == outcome(use, DECODED[name])

    check_each(check, FUNCTIONS, (False, True))


def test_functions_are_put_back():
    names = [(ImageOps, "solarize"), (ImageEnhance.Color, "__init__"), (ImageEnhance._Enhance, "enhance")]
    before = [getattr(holder, name) for holder, name in names]
    assert lazy_images.install()
    Image.open(io.BytesIO(FILES["4:2:0"]))
    assert all(getattr(holder, name) is not old for (holder, name), old in zip(names, before, strict=True))
    lazy_images.uninstall()
    assert [getattr(holder, name) for holder, name in names] == before
    assert not hasattr(ImageEnhance._Enhance, "__getattr__")


def test_enhancers_outlive_laziness():
    def enhance(image):
        enhancer = ImageEnhance.Contrast(image := image.convert("RGB"))
        lazy_images.uninstall()
        image.paste((9, 8, 7), (0, 0, 30, 20))
        return enhancer.enhance(0.4)

    assert lazily(enhance, FILES["4:2:0"]) == outcome(enhance, FILES["4:2:0"])


def test_steps_of_the_kernels_do_not_decode_the_image():
    def pending(image):
        image = functional.adjust_hue(image.convert("RGB"), 0.1)
        image = ImageEnhance.Contrast(ImageOps.solarize(image)).enhance(0.4).filter(ImageFilter.GaussianBlur(1))
        image = v2.functional.gaussian_blur(functional.gaussian_blur(image, [23, 23], [0.5, 0.5]), [3, 3], [0.1, 2.0])
        return type(vars(functional.affine(image, 20, [3, 4], 0.9, [5, 2]))["_im"]) is Pending

    assert lazily(pending, FILES["4:2:0"])


def test_crops_of_a_file_do_not_decode_it():
    def pending(image):
        made = rgb_crop(image).resize((20, 21), 2)
        padded = functional.crop(functional.pad(made, [0, 0, 9, 3], 7), 2, 3, 20, 24)
        return [type(vars(each)["_im"]) is Pending for each in (image, made, padded)]

    assert lazily(pending, FILES["4:2:0"]) == [True, True, True]
    assert lazily(lambda image: type(vars(image.convert("RGB"))["_im"]) is Pending, FILES["progressive"]) is False


def test_the_file_is_left_where_pillow_leaves_it(tmp_path):
    big = jpeg(5, 700, 900, quality=95) + b"behind the end" * 20_000
    assert len(big) > 3 * 65536
    for number, data in enumerate([*ALL.values(), big]):
        path = tmp_path / f"{number}.image"
        path.write_bytes(data)

        def places(path=path):
            with open(path, "rb") as file:
                image = Image.open(file)
                before = file.tell()
                image.convert("RGB")
                after = file.tell(), file.closed
            with Image.open(path) as image:
                own = image.fp
                image.convert("RGB")
                opened = before, after, own.closed, image.fp
            with Image.open(path) as image:
                pass
            try:
                left = image.convert("RGB").tobytes()
            except Exception as error:
                left = type(error), str(error)
            return opened, left

        expected = places()
        assert lazy_images.install()
        try:
            assert places() == expected
        finally:
            lazy_images.uninstall()


WRONG_ARGUMENTS = {
    "crop": [((9, 9, 3, 3),), ((1, 2, 3),), (1, 2, 3), ((1, 2, float("nan"), 9),), ("text",)],
    "resize": [(), ((0, 5),), ((5, 6, 7),), ((5.0, 6),), ((5, 6), 77), ((5, 6), 2, (9, 9, 3, 3)), ((10**9, 10**9),)],
    "transform": [
        ((121, 90), 0),
        ((121, 90), 0, (1, 2)),
        ((121, 90), 0, (1, 0, 0, 0, 1, 0), 77),
        ((121.0, 90), 0, (1,) * 6),
    ],
    "transpose": [(), (9,), ("text",), (np.arange(2),)],
    "convert": [("no mode",), (np.array(["RGB", "L"]),), ("RGB", 1, 2, 3, 4, 5)],
    "filter": [(), (7,), (ImageFilter.GaussianBlur("text"),)],
    "copy": [(1,)],
    "load": [(1,)],
}


def test_wrong_arguments_are_pillows_errors_and_leave_the_file_as_pillow_does():
    def state(name, arguments):
        file = io.BytesIO(FILES["4:2:0"])
        image = Image.open(file)
        with pytest.raises(Exception) as caught:  # noqa: PT011 - compared with Pillow's
            getattr(image, name)(*arguments)
        before = image.fp is file, len(image.tile), file.tell()
        image.close()
        return caught.type, str(caught.value), before, file.closed

    def states():
        return {f"{name}{each}": state(name, each) for name, all_of in WRONG_ARGUMENTS.items() for each in all_of}

    expected = states()
    assert lazy_images.install()
    try:
        assert states() == expected
    finally:
        lazy_images.uninstall()


def test_brightness_alone_reads_no_file():
    unread = lambda image: (ImageEnhance.Brightness(image), len(image.tile))[1]  # noqa: E731
    assert lazily(unread, FILES["4:2:0"]) == outcome(unread, FILES["4:2:0"]) == 1


def test_a_closed_file_is_an_error_in_pillows_words():
    def read(kind):
        file = kind(io.BytesIO(FILES["4:2:0"])) if kind is io.BufferedReader else io.BytesIO(FILES["4:2:0"])
        image = Image.open(file)
        file.close()
        return image.convert("RGB")

    for kind in (io.BytesIO, io.BufferedReader):
        assert lazily(lambda _, kind=kind: read(kind), FILES["gray"]) == outcome(
            lambda _, kind=kind: read(kind), FILES["gray"]
        )


class CountingBytes(io.BytesIO):
    pass


def test_what_is_no_plain_file_or_holds_a_film_too_is_read_by_pillow(monkeypatch):
    def noted(data, kind=io.BytesIO):
        file = kind(data)
        image = Image.open(file)
        converted = image.convert("RGB")
        return type(vars(converted)["_im"]) is Pending, file.tell()

    monkeypatch.setattr(lazy_files, "ROOM", 1000)
    file = FILES["4:2:0"]
    film = file + bytes(3 * 121 * 90 + 1000)
    expected = noted(film)[1]
    assert lazy_images.install()
    try:
        assert noted(file)[0]
        assert noted(film) == (False, expected)
        assert not noted(file, CountingBytes)[0]
    finally:
        lazy_images.uninstall()


@pytest.mark.parametrize("length", range(0, len(FILES["restarts"]), 7))
def test_a_truncated_file_raises_at_once(length):
    data = FILES["restarts"][:length]
    assert lazily(lambda image: image.convert("RGB") and None, data) == outcome(
        lambda image: image.convert("RGB") and None, data
    )


def test_damaged_files_give_the_same_pixels_or_errors():
    rng = random.Random(1)
    for _ in range(400):
        data = bytearray(FILES[rng.choice(["4:2:0", "restarts", "4:4:4"])])
        for _ in range(rng.choice([1, 2, 4])):
            at = rng.randrange(2, len(data))
            data[at : at + rng.choice([0, 1])] = bytes([rng.choice([0xFF, rng.randrange(256)])])
        for use in ("convert", "crop, resize, crop, flip"):
            assert lazily(USES[use], bytes(data)) == outcome(USES[use], bytes(data)), data.hex()


@pytest.mark.filterwarnings("ignore")
def test_damaged_files_that_the_core_would_decode_give_the_same_pixels_or_errors():
    rng = random.Random(5)
    made = {**DECODED, **CONVERTED, **MASKS}
    seen = Counter()
    for _ in range(800):
        data = codecs.damaged(made[rng.choice(list(made))], rng)
        use = rng.choice(["load", "convert", "texts", "state", "use the file then", "copied file"])
        found = lazily(USES[use], data)
        assert found == outcome(USES[use], data), (use, data.hex())
        is_error = isinstance(found, tuple) and isinstance(found[0], type) and issubclass(found[0], Exception)
        seen["raises" if is_error else "decodes"] += 1
    assert min(seen.values()) > 30, seen


def with_segment(marker, payload):
    return lambda data: data[:2] + segment(marker, payload) + data[2:]


def of_width(width):
    def change(data):
        at = data.index(b"\xff\xc0") + 5
        return data[:at] + struct.pack(">HH", 2, width) + data[at + 4 :]

    return change


@pytest.mark.parametrize(
    ("change", "raises"),
    [
        (with_segment(0xCC, b""), False),
        (with_segment(0xCC, b"\0\x10\x0f\x55\x10\xff\x1f\0"), False),
        (with_segment(0xCC, b"\0"), True),  # half a value
        (with_segment(0xCC, b"\0\x10\x01"), True),
        (with_segment(0xCC, b"\x20\x10"), True),  # no such table
        (with_segment(0xCC, b"\x0f\x01"), True),  # a lower bound above the upper one
        (of_width(65500), False),
        (of_width(65501), True),
        (of_width(65535), True),
    ],
)
def test_what_libjpeg_refuses_of_a_header_raises_at_once(change, raises):
    for name in ("4:2:0", "restarts"):
        data = change(FILES[name])
        found = lazily(lambda image: image.convert("RGB").size, data)
        assert found == outcome(lambda image: image.convert("RGB").size, data)
        assert (found[0] is OSError) is raises


@pytest.mark.filterwarnings("ignore")
def test_any_damage_of_a_header_raises_at_once(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 200_000)
    rng = random.Random(3)
    seen, states = Counter(), []
    for _ in range(400):
        data = mutations.mutated(rng, mutations.HEADERS)
        found = lazily(lambda image: states.append(type(image.convert("RGB")._im) is Pending), data)
        raised = outcome(lambda image: image.convert("RGB") and None, data)
        assert found == raised, data.hex()
        seen["raised" if raised else "pending" if states.pop() else "decoded"] += 1
    assert min(seen.values()) > 30, seen


def test_truncated_images_may_be_allowed(monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    data = FILES["4:2:0"][:-200]
    assert lazily(rgb_crop, data) == outcome(rgb_crop, data)


@pytest.mark.parametrize("name", ["4:4:4", *DECODED, *CONVERTED])
def test_huge_images_warn_as_often(monkeypatch, name):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)
    crop = lambda image: image.convert("RGB").crop((0, 0, 47, 50))  # noqa: E731
    with pytest.warns(Image.DecompressionBombWarning) as expected:
        outcome(crop, ALL[name])
    with pytest.warns(Image.DecompressionBombWarning) as seen:
        lazily(crop, ALL[name])
    assert len(expected) > 1
    assert [str(each.message) for each in seen] == [str(each.message) for each in expected]


@pytest.mark.filterwarnings("error")
def test_slivers_are_compared_with_pillows_method():
    """Pillow 12.2 and 12.3 choose the order of their passes in Python."""
    shrink = lambda image: image.convert("RGB").resize((20, 150), 2)  # noqa: E731
    data = jpeg(6, 905, 9)
    assert lazily(shrink, data, 1) == outcome(shrink, data)
    resize = lambda image, size, *_: Image.new("RGB", size, (image.height % 256, 7, 7))  # noqa: E731
    pillow = replace(calibrated(), resize=resize)
    pending = Pending(File(data, (9, 905), pillow), (0, 0, 9, 905), target=(20, 150))
    assert (pillow.make(pending) == (905 % 256, 7, 7)).all()


def test_other_bits_than_pillows_end_it(monkeypatch):
    decode = _core.decode

    def wrong(data, out, *arguments, **rest):
        result = decode(data, out, *arguments, **rest)
        out[0, 0, 0, 0] ^= 1
        return result

    monkeypatch.setattr(_core, "decode", wrong)
    assert lazy_images.install()
    lazy_images._pillow.comparisons = 1
    try:
        lazy = Image.open(io.BytesIO(FILES["4:2:0"])).convert("RGB")
        with pytest.warns(RuntimeWarning, match="lazy no more"):
            made = outcome(rgb_crop, FILES["4:2:0"])
        assert Image.Image.crop is lazy_images._known.originals["crop"]
    finally:
        lazy_images.uninstall()
    assert made == outcome(rgb_crop, FILES["4:2:0"])
    assert np.array_equal(lazy, Image.open(io.BytesIO(FILES["4:2:0"])).convert("RGB"))


@pytest.mark.parametrize("name", ["png", "webp", "alpha png"])
def test_other_pixels_of_a_file_than_pillows_end_it(monkeypatch, name):
    decode = _core.decode

    def wrong(data, out, *arguments, **rest):
        result = decode(data, out, *arguments, **rest)
        out[0, 3, 4, 0] ^= 1
        return result

    monkeypatch.setattr(_core, "decode", wrong)
    with pytest.warns(RuntimeWarning, match="lazy no more"):
        made = lazily(USES["convert"], ALL[name], 1)
    assert made == outcome(USES["convert"], ALL[name])


@pytest.mark.parametrize("opened", [True, False])
def test_a_resize_of_pixels_that_are_made_is_compared_with_pillows(monkeypatch, opened):
    monkeypatch.setattr(_core, "resize", lambda source, out, *_: out.fill(7))
    array = Image.fromarray(pixels(7, 50, 60))
    shrink = lambda image: (image.convert("RGB") if opened else array).resize((20, 30))  # noqa: E731
    with pytest.warns(RuntimeWarning, match="lazy no more"):
        made = lazily(shrink, DECODED["png"], 1)
    assert made == outcome(shrink, DECODED["png"])


def test_pixels_that_pillow_has_made_are_resized_by_the_core():
    image = Image.fromarray(pixels(8, 50, 60))
    image.info["own"] = 1

    def use(_):
        small = image.resize((30, 20), 3)
        return [type(vars(small)["_im"]) is Pending, small, small.resize((31, 40))]

    assert lazily(use, DECODED["png"]) == [True, *outcome(use, DECODED["png"])[1:]]
    shown = lambda _: type(vars(image.convert("L").resize((3, 4)))["_im"]) is Pending  # noqa: E731
    assert not lazily(shown, DECODED["png"])


def test_an_image_that_is_kept_holds_little_more_than_its_own_pixels():
    """Else a dataset that caches small crops would keep whole files' pixels."""

    def held(image):
        image = image.convert("RGB")
        made = [image.crop((3, 4, 9, 8)), image.crop((3, 4, 58, 48)).resize((9, 8), 2), image.crop((0, 0, 59, 49))]
        made.append(ImageOps.invert(image).resize((7, 6)))
        return [(len(vars(each)["_im"].file.data), 3 * each.width * each.height) for each in made]

    for size, pixels_size in lazily(held, DECODED["webp"]):
        assert size <= 2 * pixels_size


def test_a_webp_file_is_read_when_it_is_opened_as_pillow_reads_it():
    def changed(_):
        file = io.BytesIO(b"junk" + DECODED["webp"])
        file.seek(4)
        image = WebPImageFile(file)
        places = [file.tell()]
        file.seek(0)
        file.write(DECODED["lossless webp"])
        file.seek(9)
        made = image.convert("RGB")
        return [type(vars(made)["_im"]) is Pending, file.tell(), file.closed, places, made]

    assert lazily(changed, FILES["gray"]) == [True, *outcome(changed, FILES["gray"])[1:]]


def test_a_webp_file_that_cannot_be_opened_is_left_where_pillow_leaves_it():
    def place(data):
        file = io.BytesIO(b"junk" + data)
        file.seek(4)
        with pytest.raises((SyntaxError, ValueError, OSError)) as caught:
            WebPImageFile(file)
        return caught.type, str(caught.value), file.tell()

    def places(_):
        file = DECODED["webp"]
        return [place(data) for data in (b"", FILES["gray"], file[:20], file[:40], file[:12] + b"VP8?" + file[16:])]

    assert lazily(places, FILES["gray"]) == outcome(places, FILES["gray"])


def test_a_png_file_within_another_is_pillows():
    """As of icons; the core would take the first of two."""

    def use(_):
        for first in (png(20, 3), DECODED["png"], b"icon" * 9):
            file = io.BytesIO(first + DECODED["png"])
            file.seek(len(first))
            yield PngImageFile(file).convert("RGB")

    assert lazily(lambda _: list(use(_)), FILES["gray"]) == outcome(lambda _: list(use(_)), FILES["gray"])


def test_steps_of_made_pixels_are_trusted_once_results_were_compared():
    def trusted(image):
        image = image.convert("RGB")
        changed = ImageOps.invert(image)
        before = [vars(each)["_im"].is_trusted for each in (image, ImageOps.flip(image), changed)]
        image.resize((9, 8))
        return before, vars(changed)["_im"].is_trusted

    assert lazily(trusted, DECODED["png"], 1) == [[True, True, False], True]


def test_a_transparent_colour_is_changed_as_pillow_does():
    def use(image):
        image = image.convert("RGB")
        image.info["transparency"] = 1, 2, 3
        return [functional.adjust_saturation(image, 0.3), ImageOps.invert(image)]

    assert lazily(use, FILES["4:2:0"]) == outcome(use, FILES["4:2:0"])


def test_for_many_crops_the_image_is_decoded_once(monkeypatch):
    decoded = []
    decode = _core.decode
    monkeypatch.setattr(_core, "decode", lambda *a, **rest: (decoded.append(a), decode(*a, **rest))[1])
    lazily(many_crops, FILES["4:2:0"])
    assert len(decoded) == 3


def test_a_filter_that_differs_is_left_to_pillow(monkeypatch):
    assert lazy_images.prepare()
    known = lazy_images._known
    monkeypatch.setattr(lazy_images, "_known", replace(known, filters=known.filters - {"bicubic"}))

    def pending(image):
        image = image.convert("RGB")
        return [type(vars(image.resize((9, 9), how))["_im"]) is Pending for how in (2, 3)]

    assert lazily(pending, FILES["4:2:0"]) == [True, False]


def test_a_step_that_differs_is_left_to_pillow(monkeypatch):
    monkeypatch.setattr(step_calibration, "differing_step", lambda nodes: "hue" if nodes[0][0] == "hue" else None)
    steps = lazy_images._exact_steps()
    assert "invert" in steps
    assert "hue" not in steps


def methods():
    return [vars(cls)[name] for cls, name, _ in lazy_images._METHODS.values()]


@pytest.fixture
def as_ever():
    assert lazy_images.prepare()
    end()
    yield
    end()


WITHOUT_TORCHVISION = """
import io, sys
for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
    del sys.modules[name]
import numpy as np
from PIL import Image, ImageEnhance, ImageFilter
from fastload import FastLoader

def read(data):
    image = Image.open(io.BytesIO(data)).convert("RGB")
    kind = type(image._im).__name__
    changed = ImageEnhance.Color(image.filter(ImageFilter.GaussianBlur(2)).rotate(20)).enhance(0.3)
    return kind, np.array(image.resize((30, 20))), np.array(image), np.array(changed)

class Photos:
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return *read(DATA), "torchvision" in sys.modules

loader = FastLoader(Photos(), batch_size=None, num_workers=1, multiprocessing_context="fork")
plan = " ".join(str(loader.plan).split())
assert "lazy images" in plan and "deferred" not in plan, plan
kind, *arrays, has_torchvision = next(iter(loader))
assert kind == "Pending" and not has_torchvision, kind
assert all(np.array_equal(*pair) for pair in zip(arrays, read(DATA)[1:], strict=True))
"""


@pytest.mark.slow
def test_without_torchvision_images_are_lazy_and_steps_are_pillows():
    program = f"DATA = {FILES['4:2:0']!r}{WITHOUT_TORCHVISION}"
    done = interpreters.run(["-c", program])
    assert done.returncode == 0, done.stderr


def test_torchvision_may_be_imported_later(as_ever, monkeypatch):
    monkeypatch.delattr(lazy_images, "_known")
    monkeypatch.setattr(lazy_images, "imported", lambda name: None)
    assert lazy_images.prepare()
    assert (lazy_images._known.keeps_info, lazy_images._known.functions) == ({}, None)
    monkeypatch.undo()
    assert lazy_images.prepare()
    assert lazy_images._known.keeps_info
    assert lazy_images._known.functions is lazy_functions


@pytest.mark.parametrize("name", ["4:2:0", "png", "webp"])
def test_without_a_file_that_the_core_decodes_pillows_methods_stay(as_ever, name):
    assert lazy_images.prepare()
    before = methods()
    assert lazy_images.install()
    bitmap = io.BytesIO()
    Image.new("RGB", (9, 8)).save(bitmap, "BMP")
    Image.open(bitmap).convert("RGB").resize((4, 4)).tobytes()
    changed = [name for name, now, then in zip(lazy_images._METHODS, methods(), before, strict=True) if now is not then]
    assert changed == ["open_jpeg", "open_png", "open_webp", "resize"]
    Image.open(io.BytesIO(ALL[name]))
    kept = [name for name, now, then in zip(lazy_images._METHODS, methods(), before, strict=True) if now is then]
    assert kept == ["open_jpeg", "open_png"]


def test_a_resize_of_another_librarys_pixels_makes_images_lazy(as_ever):
    assert lazy_images.install()
    with pytest.raises(TypeError, match=re.escape("Image.resize() missing 1 required positional argument: 'size'")):
        Image.new("RGB", (9, 9)).resize()
    pixels = np.random.default_rng(0).integers(0, 256, (160, 200, 3), np.uint8)
    first = [Image.fromarray(of).resize((50, 40)) for of in (pixels[..., 0], pixels[:99, :99], pixels)]
    assert [type(vars(image)["_im"]) is Pending for image in first] == [False, False, True]
    changed = np.array(ImageOps.invert(first[-1].crop((3, 4, 43, 34))))
    end()
    theirs = Image.fromarray(pixels).resize((50, 40)).crop((3, 4, 43, 34))
    assert np.array_equal(changed, np.array(ImageOps.invert(theirs)))


def test_functions_are_replaced_once():
    assert lazy_images.prepare()
    original, asked = ImageOps.invert, []
    changes = [lambda image, *step: asked.append(step)] * 2
    try:
        for change in changes:
            lazy_functions.install(change, lambda *_: None, lambda *_: False)
        ImageOps.invert(Image.new("RGB", (3, 2)))
        assert asked == [("invert", {})]
    finally:
        lazy_functions.uninstall()
    assert ImageOps.invert is original


@pytest.mark.parametrize(("holder", "name"), [(ImageOps, "invert"), (ImageEnhance.Contrast, "__init__")])
def test_a_patch_with_the_names_of_a_function_stays(monkeypatch, holder, name):
    patch = functools.wraps(getattr(holder, name))(lambda *_: None)
    monkeypatch.setattr(holder, name, patch)
    try:
        lazy_functions.install(lambda *_: None, lambda *_: None, lambda *_: False)
        assert getattr(holder, name) is patch
    finally:
        lazy_functions.uninstall()


@pytest.mark.parametrize("name", ["crop", "_open"])
def test_what_is_patched_before_the_first_file_stays(as_ever, monkeypatch, name):
    """Such as by the user's ``worker_init_fn``."""
    assert lazy_images.install()
    cls = JpegImageFile if name == "_open" else Image.Image
    former, called = getattr(cls, name), []
    monkeypatch.setattr(cls, name, lambda self, *rest: (called.append(1), former(self, *rest))[1])
    for _ in range(2):
        with Image.open(io.BytesIO(FILES["4:2:0"])) as image:
            assert type(vars(image.crop((0, 0, 4, 4)))["_im"]) is not Pending
    assert len(called) == 2


def statement(image):
    image.load()


def kept(image):
    image.access = image.load()


def inside(image):
    statement(image)
    [None][-1 if image.load() is None else 0]


def mapped(image):
    image.access = list(map(Image.Image.load, [image]))


def unbound(image):
    Image.Image.load(image)


@pytest.mark.parametrize(
    ("use", "decodes"), [(statement, False), (kept, True), (inside, True), (mapped, True), (unbound, True)]
)
def test_a_load_whose_result_is_dropped_decodes_nothing(monkeypatch, use, decodes):
    decoded = []
    decode = _core.decode
    monkeypatch.setattr(_core, "decode", lambda *a, **rest: (decoded.append(a), decode(*a, **rest))[1])

    def function(image):
        image = image.convert("RGB")
        use(image)
        assert bool(decoded) is (decodes and type(vars(image)["_im"]) is not Pending)
        return image

    assert lazily(function, FILES["4:2:0"]) == lazily(lambda image: image.convert("RGB"), FILES["4:2:0"])


def test_load_closes_the_file_without_decoding(tmp_path, monkeypatch):
    path = tmp_path / "image.jpg"
    path.write_bytes(FILES["4:2:0"])
    monkeypatch.setattr(_core, "decode", None)
    assert lazy_images.install()
    try:
        image = Image.open(path)
        file = image.fp
        image.load()
        assert (image.fp, file.closed, type(vars(image)["_im"])) == (None, True, Pending)
    finally:
        lazy_images.uninstall()


def test_a_patched_pillow_stays_as_it_is(monkeypatch):
    end()
    monkeypatch.delattr(lazy_images, "_known")
    patch = functools.wraps(Image.Image.crop)(lambda self, box=None: self)
    monkeypatch.setattr(Image.Image, "crop", patch)
    assert not lazy_images.install()


def test_lazy_images_take_no_lock_that_a_fork_may_have_left_held():
    """Another thread may calibrate at the moment of the fork."""
    assert lazy_images.prepare()

    def child():
        assert lazy_images.install()
        with Image.open(io.BytesIO(FILES["4:2:0"])) as image:
            functional.adjust_hue(image.convert("RGB").resize((20, 20)), 0.2).tobytes()

    with calibration._LOCK, step_calibration._lock:
        assert exit_code(forked(child)) == 0


BOXES = st.tuples(*[st.integers(-5, 70)] * 4)
STEPS = st.one_of(
    st.tuples(st.just("crop"), BOXES),
    st.tuples(
        st.just("resize"), st.tuples(st.integers(1, 60), st.integers(1, 60)), st.sampled_from([None, 0, 1, 2, 3, 4, 5])
    ),
    st.tuples(st.just("transpose"), st.integers(0, 6)),
    st.tuples(st.just("copy")),
    st.tuples(st.just("convert"), st.sampled_from(["RGB", "L", "P"])),
    st.tuples(st.just("expand"), st.tuples(*[st.integers(0, 9)] * 4), st.sampled_from([0, 7])),
)


@settings(max_examples=250)
@given(st.sampled_from([*ALL, *MASKS]), st.lists(STEPS, max_size=5), st.integers(0, 2), st.booleans())
def test_any_steps(name, steps, checks, converts):
    def run(image):
        made = []
        image = image.convert("RGB") if converts else image
        for step, *arguments in steps:
            image = ImageOps.expand(image, *arguments) if step == "expand" else getattr(image, step)(*arguments)
            made.append(image)
        return made[-1:] + made[:1]

    assert lazily(run, ALL[name], checks) == outcome(run, ALL[name])
