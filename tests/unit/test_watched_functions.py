"""Each function patched below the transforms is noticed, however patched; nothing else is."""

from __future__ import annotations

import builtins
import functools
import math
import subprocess
import sys
import types
from unittest.mock import Mock

import numpy as np
import PIL
import PIL.JpegImagePlugin
import PIL.MpoImagePlugin  # Pillow imports it and the next when it needs them: the sweeps shall have them
import PIL.PngImagePlugin
import PIL.TiffImagePlugin
import PIL.WebPImagePlugin
import pytest
import torch
import torchvision
from costs import in_calls
from photos import photos_fixture, train_v1, train_v2
from PIL import Image, ImageFile
from torch.utils.data._utils import fetch, worker
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder, folder
from torchvision.transforms import functional as v1_functional
from torchvision.transforms import v2
from torchvision.transforms.v2.functional import _utils as kernels

from fastload import annotate
from fastload.pipeline.installed import watched as watched_functions
from fastload.pipeline.recipe import Recipe, Refusal, read_recipe

root = photos_fixture(3)


@pytest.fixture(scope="module")
def datasets(root):
    found = ImageFolder(root, train_v1()), ImageFolder(root, train_v2())
    assert all(isinstance(read_recipe(dataset), Recipe) for dataset in found)
    return found


def reasons(dataset) -> str:
    result = read_recipe(dataset)
    return "; ".join(result.reasons) if isinstance(result, Refusal) else ""


def wrapping(original):
    """A replacement that does the same, and that introduces itself as the original."""

    @functools.wraps(original)
    def replacement(*args, **kwargs):
        return original(*args, **kwargs)

    return replacement


PATCHED = [
    (Image, "open", "PIL.Image.open was patched; leave Pillow's function as it is"),
    (Image, "_getdecoder", "PIL.Image._getdecoder"),
    (Image.core, "jpeg_decoder", "PIL._imaging.jpeg_decoder"),
    (Image.Image, "convert", "PIL.Image.Image.convert was patched; leave Pillow's method as it is"),
    (Image.Image, "resize", "PIL.Image.Image.resize"),
    (Image.Image, "__array_interface__", "PIL.Image.Image.__array_interface__"),
    (ImageFile.ImageFile, "load", "PIL.ImageFile.ImageFile.load"),
    (PIL.JpegImagePlugin, "APP", "PIL.JpegImagePlugin.APP"),
    (PIL.JpegImagePlugin.JpegImageFile, "_open", "PIL.JpegImagePlugin.JpegImageFile._open"),
    (PIL.PngImagePlugin.PngStream, "chunk_tRNS", "PIL.PngImagePlugin.PngStream.chunk_tRNS"),
    (PIL.WebPImagePlugin.WebPImageFile, "load", "PIL.WebPImagePlugin.WebPImageFile.load"),
    (PIL.TiffImagePlugin.ImageFileDirectory_v2, "load", "PIL.TiffImagePlugin.ImageFileDirectory_v2.load"),
    (v1_functional, "resize", "torchvision.transforms.functional.resize was patched; leave torchvision's function as"),
    (v1_functional, "hflip", "torchvision.transforms.functional.hflip"),
    (v1_functional, "pil_to_tensor", "torchvision.transforms.functional.pil_to_tensor"),
    (v1_functional.F_pil, "crop", "torchvision.transforms._functional_pil.crop"),
    (v1_functional, "F_pil", "torchvision.transforms.functional.F_pil was patched; leave torchvision's module as it"),
    (folder, "pil_loader", "torchvision.datasets.folder.pil_loader"),
    (folder, "default_loader", "torchvision.datasets.folder.default_loader"),
    (torchvision, "get_image_backend", "torchvision.get_image_backend"),
    (torch, "rand", "torch.rand was patched; leave torch's function as it is"),
    (torch, "randint", "torch.randint"),
    (torch, "empty", "torch.empty"),
    (torch, "log", "torch.log"),
    (torch, "exp", "torch.exp"),
    (torch.linalg, "lstsq", "torch.linalg.lstsq"),
    (torch.Tensor, "uniform_", "torch.Tensor.uniform_ was patched; leave torch's method as it is"),
    (torch.Tensor, "item", "torch.Tensor.item"),
    (torch.Tensor, "__rsub__", "torch.Tensor.__rsub__"),
    (torch.random, "manual_seed", "torch.random.manual_seed"),
    (np, "asarray", "numpy.asarray was patched; leave NumPy's function as it is"),
    (np, "array", "numpy.array"),
    (math, "sqrt", "math.sqrt was patched; leave Python's function as it is"),
    (builtins, "open", "builtins.open was patched; leave Python's function as it is"),
    (fetch._MapDatasetFetcher, "fetch", "torch.utils.data._utils.fetch._MapDatasetFetcher.fetch"),
    (worker, "_worker_loop", "torch.utils.data._utils.worker._worker_loop"),
    (torch.utils.data._utils.collate, "collate", "torch.utils.data._utils.collate.collate"),
]
V2_ONLY = [
    (v2.functional, "resize", "torchvision.transforms.v2.functional.resize"),
    (v2.functional, "horizontal_flip", "torchvision.transforms.v2.functional.horizontal_flip"),
    (v2.functional._geometry, "_resized_crop_image_pil", "functional._geometry._resized_crop_image_pil"),
    (kernels, "_get_kernel", "torchvision.transforms.v2.functional._utils._get_kernel"),
    (tv_tensors, "wrap", "torchvision.tv_tensors.wrap"),
    (tv_tensors.Image, "__new__", "torchvision.tv_tensors._image.Image.__new__"),
]


@pytest.mark.parametrize(("owner", "name", "reason"), [*PATCHED, *V2_ONLY], ids=lambda part: part if str(part) else "")
def test_a_patched_function_is_named_until_it_is_taken_back(datasets, monkeypatch, owner, name, reason):
    known_to_v1 = (owner, name, reason) in PATCHED
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, wrapping(getattr(owner, name)))
        for dataset, takes_part in zip(datasets, (known_to_v1, True), strict=True):
            assert (reason in reasons(dataset)) == takes_part
    assert [reasons(dataset) for dataset in datasets] == ["", ""]


def replaced(holder, name, value):
    """Replace an attribute or a table's entry; return a function that undoes it."""
    if isinstance(holder, dict):
        was = holder.get(name, replaced)
        holder[name] = value
        return lambda: holder.pop(name) if was is replaced else holder.__setitem__(name, was)
    was = vars(holder).get(name, replaced)
    setattr(holder, name, value)
    return lambda: delattr(holder, name) if was is replaced else setattr(holder, name, was)


def looked_at():
    groups = watched_functions._COMMON, watched_functions._V2
    classes = [torch.Tensor, *(cls for group in groups for cls, *_ in group._functions._classes)]
    for space, name, reason in [entry for group in groups for entry in group]:
        yield space if isinstance(space, dict) else next(c for c in classes if vars(c) == space), name, reason


def test_each_function_that_is_looked_at_is_missed_when_it_is_replaced(datasets):
    count = 0
    for holder, name, reason in looked_at():
        before = holder.get(name) if isinstance(holder, dict) else vars(holder).get(name)
        inner = before.__func__ if isinstance(before, staticmethod | classmethod) else before
        is_function = isinstance(inner, types.FunctionType | types.BuiltinFunctionType)
        undo = replaced(holder, name, wrapping(inner) if is_function else Replacement(inner))
        try:
            result = read_recipe(datasets[1])
        finally:
            undo()
        assert isinstance(result, Refusal), (name, reason)
        assert result.reasons == (reason,), name
        count += 1
    assert count > 1000
    assert reasons(datasets[1]) == ""


class Replacement:
    """Of anything that is no function: does what it did."""

    def __init__(self, inner):
        self._inner = inner

    def __call__(self, *args, **kwargs):
        return self._inner(*args, **kwargs)

    def __getattr__(self, name):
        return getattr(self.__dict__["_inner"], name)

    def __iter__(self):
        return iter(self._inner)

    def __get__(self, thing, cls=None):
        return self._inner.__get__(thing, cls) if hasattr(self._inner, "__get__") else self

    def __instancecheck__(self, thing):
        return isinstance(thing, self._inner)


def test_each_function_that_is_looked_at_is_missed_when_its_code_is_replaced(datasets):
    for group in (watched_functions._COMMON, watched_functions._V2):
        for function, (*_, reason) in list(group._functions._bodies.items()):
            code = function.__code__
            function.__code__ = code.replace(co_firstlineno=code.co_firstlineno + 1)
            try:
                assert group.patched() == reason
                assert reasons(datasets[1])
            finally:
                function.__code__ = code
    assert reasons(datasets[1]) == ""


def test_changed_defaults_are_seen(datasets, monkeypatch):
    resize = Image.Image.resize
    with monkeypatch.context() as patched:
        patched.setattr(resize, "__defaults__", (Image.Resampling.NEAREST, *resize.__defaults__[1:]))
        assert "PIL.Image.Image.resize was patched" in reasons(datasets[0])
    collate = torch.utils.data._utils.collate.collate_tensor_fn
    with monkeypatch.context() as patched:
        patched.setitem(collate.__kwdefaults__, "collate_fn_map", {})
        assert "collate.collate_tensor_fn was patched" in reasons(datasets[0])
    assert reasons(datasets[0]) == ""


def test_what_hides_a_builtin_or_an_inherited_method_is_seen(datasets, monkeypatch):
    hidden = [
        (folder, "open", wrapping(open), "torchvision.datasets.folder.open"),
        (v1_functional.F_pil, "isinstance", wrapping(isinstance), "_functional_pil.isinstance"),
        (PIL.JpegImagePlugin.JpegImageFile, "convert", wrapping(Image.Image.convert), "JpegImageFile.convert"),
        (Image.Image, "__array__", lambda *_, **__: np.zeros(3), "PIL.Image.Image.__array__"),
    ]
    for owner, name, value, what in hidden:
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, value, raising=False)
            assert f"{what} was patched" in reasons(datasets[0])
        assert reasons(datasets[0]) == ""


def test_another_base_is_seen(datasets):
    class Other:
        pass

    cls = PIL.JpegImagePlugin.JpegImageFile
    bases = cls.__bases__
    cls.__bases__ = (*bases, Other)
    try:
        assert "PIL.JpegImagePlugin.JpegImageFile.__bases__ was patched" in reasons(datasets[0])
    finally:
        cls.__bases__ = bases
    assert reasons(datasets[0]) == ""


def test_what_is_merely_kept_in_a_library_is_no_patch(datasets, monkeypatch):
    """fastai adds methods to Pillow's images; functions that no reading asks for may change."""
    monkeypatch.setattr(Image.Image, "to_bytes_format", lambda self: b"", raising=False)
    monkeypatch.setattr(v1_functional, "my_crop", lambda image: image, raising=False)
    monkeypatch.setattr(Image.Image, "save", wrapping(Image.Image.save))
    monkeypatch.setattr(Image.Image, "show", wrapping(Image.Image.show))
    monkeypatch.setattr(builtins, "print", wrapping(print))  # as torchvision's references do in all ranks but the first
    monkeypatch.setattr(v2.functional, "resize", wrapping(v2.functional.resize))
    monkeypatch.setattr(torch.Tensor, "uniform_", torch.Tensor.uniform_, raising=False)  # taken back by hand
    assert reasons(datasets[0]) == ""


def test_an_annotation_of_ours_is_no_patch(datasets):
    with annotate("PIL.Image:open"), annotate("torch:rand"), annotate(Image.Image, "convert"):
        assert reasons(datasets[0]) == ""
        with annotate(Image.Image, "size"), annotate(torch.Tensor, "item"):
            assert reasons(datasets[0]) == ""
        with annotate(PIL.JpegImagePlugin.JpegImageFile, "resize"):
            assert reasons(datasets[0]) == ""
    assert reasons(datasets[0]) == ""


# Registries


def other_plugin(accept):
    """An image plugin of the user's own."""

    class OtherFile(PIL.JpegImagePlugin.JpegImageFile):
        format = "OTHER"

    return OtherFile, accept


@pytest.fixture
def registry(monkeypatch):
    """What is registered is forgotten."""
    monkeypatch.setattr(Image, "OPEN", Image.OPEN)
    with monkeypatch.context() as patched:
        kept = Image.ID[:], Image.OPEN.copy(), Image.DECODERS.copy()
        yield patched
        Image.ID[:] = kept[0]
        for known, before in ((Image.OPEN, kept[1]), (Image.DECODERS, kept[2])):
            known.clear()
            known.update(before)


def raises(prefix):
    raise ValueError(prefix)


def sees_nothing(prefix):
    raise SyntaxError("not this one")


@pytest.mark.parametrize(
    ("accept", "takes"),
    [
        (None, True),
        (lambda prefix: prefix.startswith(b"\xff\xd8"), True),
        (lambda prefix: prefix[3] == 0xE1, True),  # EXIF comes first
        (raises, True),
        (sees_nothing, False),
        (lambda prefix: "install a codec", False),
        (lambda prefix: prefix[4:8] == b"ftyp", False),  # HEIF and AVIF
    ],
)
def test_a_plugin_before_pillows_own_is_refused_if_it_may_take_jpeg_files(datasets, registry, accept, takes):
    Image.register_open("OTHER", *other_plugin(accept))
    assert reasons(datasets[0]) == ""  # it comes last
    Image.ID.insert(0, Image.ID.pop())
    assert ("the plugin OTHER was registered" in reasons(datasets[0])) == takes


@pytest.mark.parametrize(("format", "prefix"), [("PNG", b"\x89PNG"), ("WEBP", b"RIFF")])
def test_a_plugin_before_pillows_own_is_refused_for_other_formats_too(datasets, registry, format, prefix):
    Image.register_open("OTHER", *other_plugin(lambda start: start.startswith(prefix)))
    assert reasons(datasets[0]) == ""  # it comes last
    Image.ID.insert(0, Image.ID.pop())
    assert f"the plugin OTHER was registered with PIL.Image.register_open and may take {format}" in reasons(datasets[0])
    Image.ID.remove("OTHER")
    Image.ID.remove(format)
    assert f"{format} is not in PIL.Image.ID" in reasons(datasets[0])


@pytest.mark.parametrize("name", ["MAX_TEXT_CHUNK", "MAX_TEXT_MEMORY"])
def test_limits_of_texts_may_be_raised_but_not_lowered(datasets, monkeypatch, name):
    limit = getattr(PIL.PngImagePlugin, name)
    monkeypatch.setattr(PIL.PngImagePlugin, name, 100 * limit)  # as many do
    assert reasons(datasets[0]) == ""
    monkeypatch.setattr(PIL.PngImagePlugin, name, limit - 1)
    assert f"{name} is {limit - 1}" in reasons(datasets[0]) or f"{name} {limit - 1}" in reasons(datasets[0])


def test_other_entries_for_jpeg_are_refused(datasets, registry):
    Image.register_open("JPEG", *other_plugin(Image.OPEN["JPEG"][1]))
    assert reasons(datasets[0]) == "PIL.Image.OPEN['JPEG'] was replaced; leave Pillow's as it is"
    Image.register_open("JPEG", PIL.JpegImagePlugin.jpeg_factory, PIL.JpegImagePlugin._accept)
    assert reasons(datasets[0]) == ""
    Image.register_decoder("jpeg", ImageFile.PyDecoder)
    assert "PIL.Image.DECODERS['jpeg'] was replaced" in reasons(datasets[0])
    del Image.DECODERS["jpeg"]
    registry.setitem(PIL.JpegImagePlugin.MARKER, 0xFFE1, ("APP1", "", lambda *_: None))
    assert "PIL.JpegImagePlugin.MARKER[65505] was replaced" in reasons(datasets[0])
    registry.undo()
    Image.ID.remove("JPEG")
    assert "JPEG is not in PIL.Image.ID" in reasons(datasets[0])


def test_kernels_of_images_are_looked_at_and_those_of_the_users_own_types_are_not(datasets, monkeypatch):
    class Depth(tv_tensors.TVTensor):
        pass

    of_resize = kernels._KERNEL_REGISTRY[v2.functional.resized_crop]
    monkeypatch.setitem(of_resize, Depth, lambda *_, **__: None)
    assert reasons(datasets[1]) == ""
    monkeypatch.setitem(of_resize, Image.Image, wrapping(of_resize[Image.Image]))
    assert "the kernel of torchvision.transforms.v2.functional.resized_crop for PIL.Image.Image was" in reasons(
        datasets[1]
    )
    assert reasons(datasets[0]) == ""


# Patched before fastload came


def elsewhere(*args, **kwargs):
    """Of another file, and with a qualified name of its own."""
    return args, kwargs


EARLY = [
    (Image, "open", wrapping(Image.open), "PIL.Image.open was patched"),
    (Image.Image, "convert", elsewhere, "PIL.Image.Image.convert was patched"),
    (Image.Image, "size", property(elsewhere), "PIL.Image.Image.size was patched"),
    (Image.Image, "__array__", elsewhere, "PIL.Image.Image.__array__ was patched"),
    (Image.Image.resize, "__code__", elsewhere.__code__, "PIL.Image.Image.resize was patched"),
    (torch, "rand", elsewhere, "torch.rand was patched"),
    (torch.Tensor, "uniform_", elsewhere, "torch.Tensor.uniform_ was patched"),
    (builtins, "round", elsewhere, "builtins.round was patched"),
    (v1_functional, "crop", functools.partial(elsewhere), "torchvision.transforms.functional.crop was patched"),
    (v1_functional, "hflip", Mock(), "torchvision.transforms.functional.hflip was patched"),
    (v1_functional, "F_pil", types.ModuleType("mine"), "torchvision.transforms.functional.F_pil was patched"),
    (folder, "open", elsewhere, "torchvision.datasets.folder.open was patched"),
    (ImageFile, "ImageFile", type("Mine", (), {}), "PIL.ImageFile.ImageFile was patched"),
]


@pytest.mark.parametrize(("owner", "name", "value", "reason"), EARLY, ids=[reason for *_, reason in EARLY])
def test_what_was_patched_before_is_told_by_where_it_was_written(monkeypatch, owner, name, value, reason):
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, value, raising=False)
        group = watched_functions._Group(watched_functions._MODULES, watched_functions._add_names)
        assert reason in group.patched()
    assert group.patched() is None
    monkeypatch.setattr(owner, name, value, raising=False)
    assert reason in group.patched()


def test_entries_that_were_replaced_before_are_seen(registry):
    registry.setitem(Image.OPEN, "JPEG", other_plugin(None))
    group = watched_functions._Group(watched_functions._MODULES, watched_functions._add_names)
    assert "PIL.Image.OPEN['JPEG'] was replaced" in group.patched()
    registry.undo()
    assert group.patched() is None


def test_what_was_merely_kept_there_before_is_no_patch(monkeypatch):
    monkeypatch.setattr(Image.Image, "to_bytes_format", elsewhere, raising=False)
    with annotate("PIL.Image:open"), annotate("torch:rand"):
        group = watched_functions._Group(watched_functions._MODULES, watched_functions._add_names)
        assert group.patched() is None
    assert group.patched() is None


SCRIPT = """
import functools
import torch
import torchvision.transforms as v1
from PIL import Image, ImageOps
from torchvision.datasets import ImageFolder

Image.register_open("HEIF", lambda fp, name: None, lambda prefix: prefix[4:8] == b"ftyp")
original = Image.open

@functools.wraps(original)
def upright(*args, **kwargs):
    return ImageOps.exif_transpose(original(*args, **kwargs))

Image.open = upright
from fastload.pipeline.recipe import Refusal, read_recipe

dataset = ImageFolder({root!r}, v1.Compose([v1.RandomResizedCrop(8), v1.ToTensor()]))

def tell():
    read = read_recipe(dataset)
    print(read.reasons[0] if isinstance(read, Refusal) else "native")

tell()
Image.open = original
tell()
assert "PIL.TiffImagePlugin" not in __import__("sys").modules and Image.ID[0] == "HEIF"
Image.init()
import PIL.TiffImagePlugin, PIL.MpoImagePlugin
tell()
"""


@pytest.mark.slow
def test_in_a_process_that_patches_first_and_then_imports_what_is_lazy(root):
    """Neither plugins registered before Pillow's own, as by pillow-heif, nor Pillow's later ones count."""
    code = SCRIPT.format(root=str(root))
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stderr
    reason = "PIL.Image.open was patched; leave Pillow's function as it is"
    assert ran.stdout.splitlines() == [reason, "native", "native"]


def test_that_takes_no_time(datasets):
    """Once an epoch: 10,000 to 50,000 empty calls.

    It reads so much memory that others' use of the caches counts.
    """
    assert in_calls(lambda: watched_functions.check_libraries(v2=True), number=5) < 100_000
