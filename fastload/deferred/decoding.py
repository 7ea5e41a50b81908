"""Leave the decoding of JPEG files that torchvision.io decodes until their pixels are used.

``decode_image``, ``read_image`` and ``decode_jpeg`` call two operators of torchvision's, however a program has imported
them. A file whose decoding could fail, or may be no plain RGB image, is left to torchvision at once.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import torch
import torchvision  # noqa: F401  # which has the operators

from fastload import _core
from fastload.deferred.geometry import SIDE_MIN
from fastload.lazy.images import COMPARED, ROOM, TARGET_MAX, pass_rule
from fastload.lazy.pixels import File, Library, Pending
from fastload.pipeline.installed.decodes import decodes_as

if TYPE_CHECKING:
    from numpy.typing import NDArray

_UNCHANGED, _RGB = 0, 3
"""Values of ``ImageReadMode``."""

_OPERATORS: Final = ("decode_image", "decode_jpeg")


def operators() -> list[Any]:
    """Return torchvision's operators that decode JPEG files, as function modes see them called."""
    found = [getattr(torch.ops.image, name, None) for name in _OPERATORS]
    return [each for each in found if each is not None]


@dataclass
class ByTorchvision(Library):
    """torchvision."""

    name: ClassVar = "torchvision"

    def make(self, pending: Pending) -> NDArray[np.uint8]:  # noqa: D102
        return pending.stepped(pending.of(_decoded(pending.file.data)))


def _decoded(data: bytes) -> NDArray[np.uint8]:
    """Decode a whole file, ``(H, W, 3)``."""
    with torch._C.DisableTorchFunction():
        pixels = torch.ops.image.decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), _RGB)
        whole: NDArray[np.uint8] = pixels.permute(1, 2, 0).contiguous().numpy()
    return whole


@functools.cache
def _library() -> ByTorchvision:
    """Compare what torchvision decodes with the core, once per process."""
    library = ByTorchvision(pass_rule(), COMPARED, _warn)
    library.differs = not decodes_as(_decoded)
    return library


def _warn() -> None:
    with contextlib.suppress(RuntimeWarning):
        text = "torchvision.io decodes at once from now on: its bits differ from the native core's"
        warnings.warn(text, RuntimeWarning, 2)


def pending_of(data: Any, mode: Any, apply_exif_orientation: Any = False) -> Pending | None:
    """Note a file in place of decoding it.

    Args:
        data: The operator's arguments, as are all others.
        mode: See there.
        apply_exif_orientation: See there.

    Returns:
        Its pixels; ``None`` if torchvision is to decode it, or to raise an error.
    """
    if type(data) is not torch.Tensor or type(mode) is not int or mode not in (_UNCHANGED, _RGB):
        return None
    if data.dtype != torch.uint8 or data.dim() != 1 or data.device.type != "cpu" or not data.is_contiguous():
        return None
    library = _library()
    if library.differs:
        return None
    held = torch._C.TensorBase.numpy(data)
    status, _, _, width, height, channels, *_ = _core.jpeg_header(held)
    if status != "ok" or channels != 3 or min(width, height) < SIDE_MIN or width * height > TARGET_MAX:
        return None
    if held.size > 3 * width * height + ROOM:
        return None
    copied = held.tobytes()  # which the program may change later
    if not _core.scan_end(copied) or (apply_exif_orientation is not False and b"Exif" in copied):
        return None
    pending = Pending(File(copied, (width, height), library), (0, 0, width, height))
    if not pending.file.is_trusted:
        pending.pixels()  # compares them
        return None
    return pending
