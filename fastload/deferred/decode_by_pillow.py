"""Decode an image by Pillow, for a process that cannot call Python at the moment.

Reads the file from standard input, and writes height, width and the pixels to standard output. Arguments:
``ImageFile.LOAD_TRUNCATED_IMAGES``, and the folders of ``sys.path``.
"""

from __future__ import annotations

import io
import struct
import sys

if __name__ == "__main__":
    sys.path[:] = sys.argv[2:]
    from PIL import Image, ImageFile

    ImageFile.LOAD_TRUNCATED_IMAGES = bool(int(sys.argv[1]))
    Image.MAX_IMAGE_PIXELS = None  # it was opened before
    with Image.open(io.BytesIO(sys.stdin.buffer.read())) as image:
        pixels = image.convert("RGB")
    sys.stdout.buffer.write(struct.pack("=II", pixels.height, pixels.width) + pixels.tobytes())
    sys.stdout.buffer.flush()
