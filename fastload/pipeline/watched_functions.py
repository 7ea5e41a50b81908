"""What a native sample stands for, beside the transforms themselves: Pillow's, torchvision's and torch's functions.

A sample in a worker runs through all of them, and a native one through none. So a patch of any of them, an
``Image.open`` that turns photos upright for instance, would be missed.
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
from PIL import Image, JpegImagePlugin
from torchvision.datasets import folder

from fastload.pipeline.monkeypatch_check import Functions, imported
from fastload.pipeline.unsupported import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MODULES: Final = (
    "PIL.Image",
    "PIL.ImageFile",
    "PIL.ImageMode",
    "PIL.JpegImagePlugin",
    "PIL.MpoImagePlugin",
    "PIL.TiffImagePlugin",  # reads EXIF
    "PIL._binary",
    "PIL._imaging",
    "PIL._util",
    "torch.utils.data._utils.collate",
    "torch.utils.data._utils.fetch",
    "torch.utils.data._utils.pin_memory",
    "torch.utils.data._utils.worker",
    "torchvision.transforms._functional_pil",
    "torchvision.transforms._functional_tensor",
    "torchvision.transforms.functional",
)
_V2_MODULES: Final = (
    "torchvision.transforms.v2._utils",
    "torchvision.transforms.v2.functional",
    *(
        f"torchvision.transforms.v2.functional.{name}"
        for name in ("_augment", "_geometry", "_meta", "_misc", "_type_conversion", "_utils")
    ),
    "torchvision.tv_tensors",
    "torchvision.tv_tensors._image",
    "torchvision.tv_tensors._torch_function_helpers",
    "torchvision.tv_tensors._tv_tensor",
)
# Nobody who reads an image asks for these.
_WRITING: Final = ("save", "show", "_show", "__repr__", "_repr_image", "_repr_jpeg_", "_repr_png_", "_repr_pretty_")
_DRAWING: Final = (
    *("as_tensor", "default_generator", "empty", "exp", "from_numpy", "get_default_dtype", "log", "manual_seed"),
    *("rand", "randint", "stack", "tensor", "zeros"),
)
_METHODS: Final = (
    *("__bool__", "__getitem__", "__lt__", "__setitem__", "__torch_function__", "clone", "contiguous", "exp", "flip"),
    *("item", "log", "numpy", "permute", "squeeze", "to", "tolist", "uniform_", "unsqueeze", "view"),
)
_NAMES: Final[tuple[tuple[Any, tuple[str, ...]], ...]] = (
    (folder, ("default_loader", "pil_loader")),
    (torchvision, ("get_image_backend",)),
    (Image, ("DECODERS", "ID", "OPEN")),
    (JpegImagePlugin, ("MARKER",)),
    (np, ("array", "asarray", "ascontiguousarray", "frombuffer")),
    (builtins, ("abs", "isinstance", "len", "max", "min", "open", "range", "round")),
    (math, ("ceil", "exp", "floor", "log", "sqrt")),
    (torch, _DRAWING),
    (torch.utils.data, ("default_collate",)),
    (torch.random, ("default_generator", "manual_seed")),
    (torch.Tensor, _METHODS),
    (torch.nn.functional, ("interpolate",)),
)
# A JPEG file's first 16 bytes, with the segment that comes first: JFIF, EXIF, Adobe's, or a table.
_PREFIXES: Final = tuple(
    (b"\xff\xd8\xff" + begin).ljust(16, b"\0")
    for begin in (b"\xe0\0\x10JFIF\0\1\1", b"\xe1\0\x40Exif\0\0MM\0", b"\xee\0\x0eAdobe\0d", b"\xdb\0\x43\0\1\1\1")
)


class _Group:
    """Modules whose functions take part. A library imports some of them when it needs them, or never.

    Args:
        modules: Their names.
        others: Adds what else takes part.
    """

    def __init__(self, modules: tuple[str, ...], others: Callable[[Functions], None]) -> None:
        self._modules = list(modules)
        self._others: Callable[[Functions], None] | None = others
        self._functions = Functions()

    def __iter__(self) -> Iterator[tuple[Any, Any, str]]:
        return iter(self._functions)

    def patched(self) -> str | None:
        """See :meth:`Functions.patched`. Adds first what has been imported since."""
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
    functions.add_entries(Image.OPEN, ["JPEG"], "PIL.Image.OPEN[{key}]", "Pillow")
    functions.add_entries(Image.DECODERS, ["jpeg"], "PIL.Image.DECODERS[{key}]", "Pillow")
    functions.add_entries(JpegImagePlugin.MARKER, JpegImagePlugin.MARKER, "PIL.JpegImagePlugin.MARKER[{key}]", "Pillow")


def _add_kernels(functions: Functions) -> None:
    """What v2 runs for an input of one of the types that a sample has."""
    module: Any = sys.modules["torchvision.transforms.v2.functional._utils"]
    types = Image.Image, sys.modules["torchvision.tv_tensors"].Image, torch.Tensor
    functions.add(module, ["_KERNEL_REGISTRY"])
    for functional, kernels in module._KERNEL_REGISTRY.items():
        what = f"the kernel of torchvision.transforms.v2.functional.{functional.__name__} for {{key}}"
        functions.add_entries(kernels, types, what, "torchvision")


_lock: Final = threading.Lock()
_COMMON: Final = _Group(_MODULES, _add_names)
_V2: Final = _Group(_V2_MODULES, _add_kernels)


def check_libraries(*, v2: bool) -> None:
    """Refuse if something was patched that would take part in a sample in Python. Thread-safe.

    Args:
        v2: Whether torchvision's v2 takes part.

    Raises:
        Refused: Names what was patched.
    """
    with _lock:
        reason = _COMMON.patched() or _taken_by_another() or (_V2.patched() if v2 else None)
    if reason is not None:
        raise Refused(reason)


def _taken_by_another() -> str | None:
    """Whether ``Image.open`` would ask a plugin before Pillow's own that takes JPEG files, too.

    Plugins of other formats may come first; of those that look at no file's beginning only Pillow's own are known.
    """
    for name in Image.ID:
        if name == "JPEG":
            return None
        if name in Image.OPEN and _takes_jpeg(*Image.OPEN[name]):
            return (
                f"the plugin {name} was registered with PIL.Image.register_open and may take JPEG files before "
                "Pillow's own does; register it after PIL.Image.preinit(), or give it an accept function"
            )
    return "Pillow's plugin JPEG is not in PIL.Image.ID; leave it there"


def _takes_jpeg(factory: Any, accept: Any) -> bool:
    if accept is None:
        return not str(getattr(factory, "__module__", "")).startswith("PIL.")
    try:
        answers = [accept(prefix) for prefix in _PREFIXES]
    except (SyntaxError, IndexError, TypeError, struct.error):  # as Image.open takes them: for a no
        return False
    except Exception:  # noqa: BLE001 - Image.open would raise it
        return True
    return any(answer and not isinstance(answer, str) for answer in answers)


_COMMON.patched()  # from now on it is known what they are
if imported("torchvision.transforms.v2") is not None:
    _V2.patched()
