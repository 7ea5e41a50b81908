"""Watch the functions of Pillow, torchvision and torch that a native sample bypasses.

A sample in a worker calls them, a native one does not. A patch of any of them, for instance an ``Image.open`` that
turns photos upright, would have no effect natively.
"""

from __future__ import annotations

import builtins
import math
import struct
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
import torchvision
from PIL import Image, JpegImagePlugin, PngImagePlugin, WebPImagePlugin
from torchvision.datasets import folder

from fastload import _core
from fastload.pipeline.errors import Refused
from fastload.pipeline.installed.patches import Functions, imported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MODULES: Final = (
    "PIL.Image",
    "PIL.ImageEnhance",
    "PIL.ImageFile",
    "PIL.ImageFilter",
    "PIL.ImageMode",
    "PIL.ImageOps",
    "PIL.ImageStat",
    "PIL.JpegImagePlugin",
    "PIL.MpoImagePlugin",
    "PIL.PngImagePlugin",
    "PIL.TiffImagePlugin",  # reads EXIF
    "PIL.WebPImagePlugin",
    "PIL._binary",
    "PIL._imaging",
    "PIL._util",
    "PIL._webp",
    "torch.utils.data._utils.collate",
    "torch.utils.data._utils.fetch",
    "torch.utils.data._utils.pin_memory",
    "torch.utils.data._utils.worker",
    "torchvision.transforms._functional_pil",
    "torchvision.transforms._functional_tensor",
    "torchvision.transforms.autoaugment",
    "torchvision.transforms.functional",
)
_V2_MODULES: Final = (
    "torchvision.transforms.v2._utils",
    "torchvision.transforms.v2.functional",
    *(
        f"torchvision.transforms.v2.functional.{name}"
        for name in ("_augment", "_color", "_geometry", "_meta", "_misc", "_type_conversion", "_utils")
    ),
    "torchvision.tv_tensors",
    "torchvision.tv_tensors._image",
    "torchvision.tv_tensors._torch_function_helpers",
    "torchvision.tv_tensors._tv_tensor",
)
# Not used for reading images.
_WRITING: Final = ("save", "show", "_show", "__repr__", "_repr_image", "_repr_jpeg_", "_repr_png_", "_repr_pretty_")
_DRAWING: Final = (
    *("as_tensor", "default_generator", "empty", "exp", "from_numpy", "get_default_dtype", "log", "manual_seed"),
    *("mean", "where"),
    *("arange", "linspace", "multinomial", "rand", "randint", "randperm", "stack", "tensor", "zeros"),
)
_METHODS: Final = (
    *("__bool__", "__getitem__", "__index__", "__int__", "__iter__", "__lt__", "__setitem__", "__torch_function__"),
    *("clone", "contiguous", "exp", "flip", "normal_"),
    *("__and__", "add_", "amax", "amin", "bitwise_not", "clamp_", "div_", "floor_", "scatter_add_", "unbind"),
    # what pipeline/code/pointwise.py knows:
    *("add", "sub", "mul", "div", "subtract", "multiply", "divide", "true_divide", "__neg__"),
    *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__"),
    *("int", "item", "log", "numpy", "permute", "round", "squeeze", "to", "tolist", "uniform_", "unsqueeze", "view"),
)
_NAMES: Final[tuple[tuple[Any, tuple[str, ...]], ...]] = (
    (folder, ("default_loader", "pil_loader")),
    (torchvision, ("get_image_backend",)),
    (Image, ("DECODERS", "ID", "OPEN")),
    (JpegImagePlugin, ("MARKER",)),
    (WebPImagePlugin, ("SUPPORTED",)),
    (np, ("array", "asarray", "ascontiguousarray", "frombuffer")),
    (builtins, ("abs", "isinstance", "len", "max", "min", "open", "range", "round")),
    (math, ("atan", "ceil", "cos", "degrees", "exp", "floor", "log", "radians", "sin", "sqrt", "tan")),
    (torch, _DRAWING),
    (torch.utils.data, ("default_collate",)),
    (torch.random, ("default_generator", "manual_seed")),
    (torch.Tensor, _METHODS),
    (torch.nn.functional, ("interpolate",)),
    (torch.linalg, ("lstsq",)),
)
# The first 16 bytes of files: of JPEG files, those that begin with a JFIF, EXIF, Adobe or table segment.
_PREFIXES: Final = {
    "JPEG": tuple(
        (b"\xff\xd8\xff" + begin).ljust(16, b"\0")
        for begin in (b"\xe0\0\x10JFIF\0\1\1", b"\xe1\0\x40Exif\0\0MM\0", b"\xee\0\x0eAdobe\0d", b"\xdb\0\x43\0\1\1\1")
    ),
    "PNG": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",),
    "WEBP": tuple(b"RIFF\x24\0\1\0WEBPVP8" + kind for kind in (b" ", b"L", b"X")),
}


class _Group:
    """Modules to watch. A library may import some of them late, or never.

    Args:
        modules: Names of the modules.
        others: Called once, to add everything else.
    """

    def __init__(self, modules: tuple[str, ...], others: Callable[[Functions], None]) -> None:
        self._modules = list(modules)
        self._others: Callable[[Functions], None] | None = others
        self._functions = Functions()

    def __iter__(self) -> Iterator[tuple[Any, Any, str]]:
        return iter(self._functions)

    def patched(self) -> str | None:
        """Like :meth:`Functions.patched`, after adding newly imported modules."""
        for name in list(self._modules):
            if (module := imported(name)) is not None:
                self._functions.add(module, besides=_WRITING)
                self._modules.remove(name)
        if self._others is not None:
            self._others(self._functions)
            self._others = None
        return self._functions.patched()


def _add_names(functions: Functions) -> None:
    for holder, names in _NAMES:
        functions.add(holder, names)
    functions.add_entries(Image.OPEN, _PREFIXES, "PIL.Image.OPEN[{key}]", "Pillow")
    functions.add_entries(Image.DECODERS, ["jpeg", "raw", "zip"], "PIL.Image.DECODERS[{key}]", "Pillow")
    functions.add_entries(JpegImagePlugin.MARKER, JpegImagePlugin.MARKER, "PIL.JpegImagePlugin.MARKER[{key}]", "Pillow")


def _add_kernels(functions: Functions) -> None:
    """Add v2's kernels for the types that a sample can have."""
    module: Any = sys.modules["torchvision.transforms.v2.functional._utils"]
    types = Image.Image, sys.modules["torchvision.tv_tensors"].Image, torch.Tensor
    functions.add(module, ["_KERNEL_REGISTRY"])
    for functional, kernels in module._KERNEL_REGISTRY.items():
        what = f"the kernel of torchvision.transforms.v2.functional.{functional.__name__} for {{key}}"
        functions.add_entries(kernels, types, what, "torchvision")


_TEXT_CHUNK: Final = 1 << 20
"""Pillow's limit for one compressed text or profile of a PNG file, bytes."""
_lock: Final = threading.Lock()
_COMMON: Final = _Group(_MODULES, _add_names)
_V2: Final = _Group(_V2_MODULES, _add_kernels)


def check_libraries(*, v2: bool) -> None:
    """Refuse if a function that a Python sample would call was patched. Thread-safe.

    Args:
        v2: Whether the pipeline uses torchvision's v2.

    Raises:
        Refused: Names what was patched.
    """
    with _lock:
        reason = _COMMON.patched() or (_V2.patched() if v2 else None) or _lowered_limit()
        reason = reason or _PLUGINS.patched()
    if reason is not None:
        raise Refused(reason)


def _lowered_limit() -> str | None:
    """Say if Pillow would raise for texts in PNG files that the core takes."""
    if PngImagePlugin.MAX_TEXT_CHUNK >= _TEXT_CHUNK and PngImagePlugin.MAX_TEXT_MEMORY >= 64 * _TEXT_CHUNK:
        return None
    return (
        f"PIL.PngImagePlugin.MAX_TEXT_CHUNK is {PngImagePlugin.MAX_TEXT_CHUNK} and MAX_TEXT_MEMORY "
        f"{PngImagePlugin.MAX_TEXT_MEMORY}, less than Pillow's own; leave them as they are, or raise them"
    )


def _taken_by_another(format: str) -> str | None:
    """Say if ``Image.open`` would give files of a format to another plugin than Pillow's.

    Plugins for other formats may come first. Of those without an accept function, only Pillow's are trusted.
    """
    for name in Image.ID:
        if name == format:
            return None
        if name in Image.OPEN and _takes(_PREFIXES[format], *Image.OPEN[name]):
            return (
                f"the plugin {name} was registered with PIL.Image.register_open and may take {format} files before "
                "Pillow's own does; register it after PIL.Image.preinit(), or give it an accept function"
            )
    return f"Pillow's plugin {format} is not in PIL.Image.ID; leave it there"


class _Plugins:
    """The order of Pillow's plugins, which ``Image.open`` goes through."""

    def __init__(self) -> None:
        self._stamp: _core.Stamp | None = None  # of a time when nothing came before Pillow's own

    def patched(self) -> str | None:
        """Say if a plugin comes before Pillow's own, or one of these is missing."""
        if self._stamp is not None and self._stamp.holds():
            return None
        reason = next(filter(None, map(_taken_by_another, _PREFIXES)), None)
        tables = [Image.ID, Image.OPEN]
        names = [(vars(Image), "ID"), (vars(Image), "OPEN")]
        self._stamp = None if reason is not None else _core.Stamp(names, tables, [], [], [])
        return reason


_PLUGINS: Final = _Plugins()


def _takes(prefixes: tuple[bytes, ...], factory: Any, accept: Any) -> bool:
    if accept is None:
        return not str(getattr(factory, "__module__", "")).startswith("PIL.")
    try:
        answers = [accept(prefix) for prefix in prefixes]
    except (SyntaxError, IndexError, TypeError, struct.error):  # Image.open takes these for a no
        return False
    except Exception:  # noqa: BLE001 - Image.open would raise it
        return True
    return any(answer and not isinstance(answer, str) for answer in answers)


_COMMON.patched()  # record the functions now
if imported("torchvision.transforms.v2") is not None:
    _V2.patched()
