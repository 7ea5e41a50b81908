"""Write small images as seeds for the fuzz targets.

Needs nothing but Python.

python scripts/fuzz_seeds.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from jpeg_writer import FACTORS, segment, write_block, write_jpeg

# An index of two pictures.
MULTI_PICTURE = b"II*\0\x08\0\0\0\2\0\1\xb0\4\0\1\0\0\0\2\0\0\0\2\xb0\7\0\x20\0\0\0\x26\0\0\0" + bytes(36)
CONTROL_BYTES = 8  # at the end: they choose the crop, the size and the filter


def main(folder: Path) -> int:
    """Write the seeds."""
    folder.mkdir(parents=True, exist_ok=True)
    seeds = {}
    for number, (name, factors) in enumerate(FACTORS.items()):
        for progressive in (False, True):
            file = write_jpeg(19, 18, factors, seed=number, progressive=progressive, restart=2 * (number % 2))
            seeds[f"{name.replace(':', '')}-{'progressive' if progressive else 'baseline'}"] = file
    # Large enough for an index.
    seeds["gray-large"] = write_jpeg(76, 84, FACTORS["gray"])
    seeds["4:4:4-large"] = write_jpeg(72, 72, FACTORS["4:4:4"], restart=5)
    seeds["4:2:2-large"] = write_jpeg(136, 70, FACTORS["4:2:2"])
    seeds["4:2:0-large"] = write_jpeg(140, 130, FACTORS["4:2:0"], restart=7)
    whole = write_jpeg(9, 9, FACTORS["4:4:4"])
    seeds["4:4:4-without-data"] = whole[: whole.index(b"\xff\xda") + 14] + b"\xff\xd9"
    metadata = (
        segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0")
        + segment(0xE1, b"Exif\0\0II*\0\x08\0\0\0\1\0\x1a\1\5\0\1\0\0\0\x1a\0\0\0\0\0\0\0")
        + segment(0xE2, b"ICC_PROFILE\0\1\1profile")
        + segment(0xE2, b"MPF\0" + MULTI_PICTURE)
        + segment(0xED, b"Photoshop 3.0\0008BIM\4\4\0\0\0\0\0\2ab")
        + segment(0xEE, b"Adobe\0\x64\0\0\0\0\1")
    )
    seeds["metadata"] = write_jpeg(9, 9, FACTORS["4:4:4"], extra=metadata)
    seeds["motion-jpeg"] = write_jpeg(9, 9, tables=False)
    ends = (0, 0, 0, 0)
    seeds["refined"] = write_block(
        (1, 9, 2, [(2, 2, 2, 3), ends]),
        (10, 63, 1, [(5, 1, 1, 0), ends]),
        (1, 9, 0x21, [(1, 1, 1, 1), (0, 1, 2, 2), ends]),
        (1, 63, 0x10, [(0, 1, 1, 0), (15, 0, 4, 5), ends]),
    )
    seeds["rgb"] = write_jpeg(9, 9, FACTORS["4:4:4"], ids=(82, 71, 66))
    seeds["cmyk"] = write_jpeg(9, 9, ((1, 1),) * 4)
    for number, (name, file) in enumerate(seeds.items()):
        control = bytes((37 * number + 91 * place) % 256 for place in range(CONTROL_BYTES))
        (folder / f"{name}.jpg").write_bytes(file + control)
    for path in (Path(__file__).resolve().parent.parent / "fastload" / "pipeline" / "installed" / "probes").glob(
        "*.[pw]*"
    ):
        (folder / path.name).write_bytes(path.read_bytes() + bytes(37 * place % 256 for place in range(CONTROL_BYTES)))
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1])))
