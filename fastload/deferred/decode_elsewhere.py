"""Decode an image by another library, for a process that cannot call Python at the moment.

Reads the file from standard input, and writes height, width and the pixels to standard output. Arguments:
``ImageFile.LOAD_TRUNCATED_IMAGES``, the folders of ``sys.path``, and the library's name.
"""

from __future__ import annotations

import io
import struct
import sys


def _by_pillow(data: bytes) -> tuple[int, int, bytes]:
    from PIL import Image, ImageFile

    ImageFile.LOAD_TRUNCATED_IMAGES = bool(int(sys.argv[1]))
    Image.MAX_IMAGE_PIXELS = None  # it was opened before
    with Image.open(io.BytesIO(data)) as image:
        pixels = image.convert("RGB")
    return pixels.height, pixels.width, pixels.tobytes()


def _by_torchvision(data: bytes) -> tuple[int, int, bytes]:
    import torch
    import torchvision  # noqa: F401  # which has the operator

    pixels = torch.ops.image.decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), 3)
    return pixels.shape[1], pixels.shape[2], pixels.permute(1, 2, 0).contiguous().numpy().tobytes()


if __name__ == "__main__":
    *sys.path, library = sys.argv[2:]
    decode = {"Pillow": _by_pillow, "torchvision": _by_torchvision}[library]
    height, width, pixels = decode(sys.stdin.buffer.read())
    sys.stdout.buffer.write(struct.pack("=II", height, width) + pixels)
    sys.stdout.buffer.flush()
