"""Decode in place of torchvision.io: when the pixels are used, or natively at once.

``decode_image``, ``read_image`` and ``decode_jpeg`` call two operators of torchvision's, however a program has imported
them. A file whose decoding could fail, or may be no plain RGB image, is left to torchvision.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import torch
import torchvision  # noqa: F401  # which has the operators

from fastload import _core
from fastload.deferred.geometry import SIDE_MIN
from fastload.deferred.memory import READ, WRITE, view_of
from fastload.lazy.files import ROOM
from fastload.lazy.images import TARGET_MAX, pass_rule
from fastload.lazy.pixels import COMPARED, File, Library, Pending
from fastload.pipeline.installed.decodes import subsamplings_as

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_UNCHANGED, _RGB = 0, 3
"""Values of ``ImageReadMode``."""

_APP1: Final = b"\xff\xe1"
"""The marker of what may have an orientation."""

_OPERATORS: Final = ("decode_image", "decode_jpeg")


class Operator(torch._ops.OpOverloadPacket):
    """An operator of torch's whose result something else may make.

    Args:
        packet: The operator.
        make: Gets the positional arguments; returns the result, or ``None`` if the operator is to be called.
    """

    def __init__(self, packet: Any, make: Callable[..., Any]) -> None:
        vars(self).update(vars(packet), make=make)

    def __call__(self, /, *arguments: Any, **rest: Any) -> Any:  # noqa: D102
        made = None if rest else self.make(*arguments)
        return super().__call__(*arguments, **rest) if made is None else made


def replace_operators(replace: Callable[[Any, str, Any], None], make: Callable[..., Any]) -> None:
    """Let something else make the images of JPEG files.

    Args:
        replace: Replaces an attribute: holder, name, new value.
        make: As of :class:`Operator`.
    """
    for name in _OPERATORS:
        packet = getattr(torch.ops.image, name, None)
        if packet is not None:
            replace(torch.ops.image, name, Operator(packet, make))


@dataclass
class ByTorchvision(Library):
    """torchvision, whose libjpeg may be older than Pillow's.

    Attributes:
        subsamplings: Chroma subsamplings that it decodes to the core's pixels.
    """

    name: ClassVar = "torchvision"
    subsamplings: frozenset[str] = field(default=frozenset(), init=False)

    def make(self, pending: Pending) -> NDArray[np.uint8]:  # noqa: D102
        return pending.stepped(pending.of(_decoded(pending.file.data)))


def _decoded(data: bytes) -> NDArray[np.uint8]:
    """Decode a whole file, ``(H, W, 3)``."""
    with torch._C.DisableTorchFunction():
        pixels = torch.ops.image.decode_jpeg.default(torch.frombuffer(bytearray(data), dtype=torch.uint8), _RGB)
        whole: NDArray[np.uint8] = pixels.permute(1, 2, 0).contiguous().numpy()
    return whole


@functools.cache
def _library() -> ByTorchvision:
    """Compare what torchvision decodes with the core, once per process."""
    library = ByTorchvision(pass_rule(), COMPARED, _warn)
    library.subsamplings = subsamplings_as(_decoded)
    return library


def _warn() -> None:
    with contextlib.suppress(RuntimeWarning):
        text = "torchvision.io decodes at once from now on: its bits differ from the native core's"
        warnings.warn(text, RuntimeWarning, 2)


def made_at_once(pending: Pending) -> torch.Tensor | None:
    """Decode a file to a tensor like torchvision's; ``None`` if the core does not."""
    width, height = pending.size
    made = torch.empty((height, width, 3), dtype=torch.uint8)
    out = np.frombuffer(view_of(made, WRITE), np.uint8).reshape(1, height, width, 3)
    status, *_ = _core.decode(pending.file.data, out, pending.geometry())
    return made.permute(2, 0, 1) if status == "ok" else None


def _is_file(data: Any) -> bool:
    if type(data) is not torch.Tensor or data.dtype != torch.uint8 or data.dim() != 1:
        return False
    return data.device.type == "cpu" and data.is_contiguous()


def pending_of(data: Any, mode: Any, apply_exif_orientation: Any = False) -> Pending | None:
    """Note a file in place of decoding it.

    Args:
        data: The operator's arguments, as are all others.
        mode: See there.
        apply_exif_orientation: See there.

    Returns:
        Its pixels; ``None`` if torchvision is to decode it, or to raise an error.
    """
    if type(mode) is not int or mode not in (_UNCHANGED, _RGB) or type(apply_exif_orientation) is not bool:
        return None
    if not _is_file(data) or (library := _library()).differs:
        return None
    held = view_of(data, READ)
    status, _, _, width, height, channels, subsampling, *_ = _core.jpeg_header(held)
    if status != "ok" or channels != 3 or subsampling not in library.subsamplings:
        return None
    if min(width, height) < SIDE_MIN or width * height > TARGET_MAX:
        return None
    if len(held) > 3 * width * height + ROOM:
        return None
    copied = held.tobytes()  # which the program may change later
    if not _core.scan_end(copied) or (apply_exif_orientation and _APP1 in copied):
        return None
    pending = Pending(File(copied, (width, height), library), (0, 0, width, height))
    if not pending.file.is_trusted:
        pending.pixels()  # compares them
        return None
    return pending
