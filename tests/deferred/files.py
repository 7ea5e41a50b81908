"""Image files of several formats, sound and damaged."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from photos import jpeg, pixels
from PIL import Image

SOUND = (
    *("444.jpg", "422.jpg", "420.jpg", "progressive.jpg", "restarts.jpg", "turned.jpg", "large.jpg"),
    *("rgb.png", "lossy.webp", "lossless.webp"),
)
OTHERS = ("grey.jpg", "cmyk.jpg", "palette.png", "rgba.png", "grey.png", "small.jpg", "animated.webp")
DAMAGED = ("noise.jpg", "truncated.jpg", "truncated.png", "truncated.webp", "text.jpg", "empty.jpg", "missing.jpg")


def write_files(root: Path) -> Path:
    """Write the files of all names but the missing one."""
    turned = Image.Exif()
    turned[0x0112] = 6  # orientation
    made: dict[str, bytes] = {
        "444.jpg": jpeg(1, 90, 120, subsampling=0),
        "422.jpg": jpeg(2, 77, 101, subsampling=1),
        "420.jpg": jpeg(3, 96, 64, subsampling=2),
        "progressive.jpg": jpeg(4, 80, 80, progressive=True),
        "restarts.jpg": jpeg(5, 70, 90, restart_marker_blocks=3),
        "turned.jpg": jpeg(6, 75, 110, exif=turned),
        "large.jpg": jpeg(7, 300, 260, quality=90),
        "grey.jpg": jpeg(8, 70, 80, "L"),
        "cmyk.jpg": jpeg(9, 70, 80, "CMYK"),
        "small.jpg": jpeg(10, 3, 5),
        "rgb.png": _encoded(11, "PNG"),
        "palette.png": _encoded(12, "PNG", "P"),
        "rgba.png": _encoded(13, "PNG", "RGBA"),
        "grey.png": _encoded(14, "PNG", "L"),
        "lossy.webp": _encoded(15, "WEBP", quality=80),
        "lossless.webp": _encoded(16, "WEBP", lossless=True),
        "animated.webp": _encoded(17, "WEBP", save_all=True, append_images=[_image(18), _image(19)]),
        "text.jpg": b"text" * 200,
        "empty.jpg": b"",
    }
    data = made["422.jpg"]
    made["noise.jpg"] = data[: len(data) * 2 // 3] + b"\x12\x34\x56" * 20 + data[len(data) * 2 // 3 + 60 :]
    for suffix, name in ((".jpg", "420.jpg"), (".png", "rgb.png"), (".webp", "lossy.webp")):
        made["truncated" + suffix] = made[name][: len(made[name]) * 2 // 3]
    for name, content in made.items():
        (root / name).write_bytes(content)
    return root


def _image(seed: int) -> Image.Image:
    return Image.fromarray(pixels(seed, 72, 84))


def _encoded(seed: int, form: str, mode: str = "RGB", **options: Any) -> bytes:
    out = io.BytesIO()
    _image(seed).convert(mode).save(out, form, **options)
    return out.getvalue()
