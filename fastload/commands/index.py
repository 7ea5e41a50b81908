"""``fastload index DIR``: note where decoding can begin within a folder's JPEG files."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fastload._arguments import at_least, output_file
from fastload._files import files_below

if TYPE_CHECKING:
    import argparse

_AT_ONCE = 1024
_NAMED = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of JPEG files, such as an ImageFolder's root")
    parser.add_argument(
        "--output",
        type=output_file,
        metavar="FILE",
        help="write here instead of DIR/fastload.index, and give it to the loader as jpeg_index=FILE",
    )
    parser.add_argument("--threads", type=at_least(1), metavar="N", help="default: one for each usable core")


def main(args: argparse.Namespace) -> int:
    """Make or update the index; return the exit status.

    0 if all files were read, 1 if some could not be, 2 if nothing was written, 130 after Ctrl-C.
    """
    from fastload.jpeg_index.file import NAME, is_index
    from fastload.jpeg_index.tagged_files import UserKeyError, make_key

    folder: Path = args.folder
    if not folder.is_dir():
        return _fail(f"DIR must be a folder, but {folder} {'is a file' if folder.exists() else 'does not exist'}")
    paths = (path for path in files_below(folder) if path.lower().endswith((".jpg", ".jpeg")))
    names = [os.path.relpath(path, folder) for path in paths]
    if not names:
        return _fail(f"{folder} must hold JPEG files (.jpg, .jpeg), at any depth, but holds none")
    output: Path = args.output or folder / NAME
    try:
        if output.exists() and not (output.is_file() and not output.stat().st_size) and not is_index(output):
            return _fail(f"{output} is not an index of fastload's, so it is not overwritten; --output names another")
        return _update(folder, names, output, make_key(), args.threads)
    except UserKeyError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"cannot write: {error}; --output writes to another place")
    except KeyboardInterrupt:
        sys.stderr.write("fastload index: interrupted; what was there before has not changed\n")
        return 130


def _update(folder: Path, names: list[str], output: Path, key: bytes, threads: int | None) -> int:
    from concurrent.futures import ThreadPoolExecutor

    from fastload import _core
    from fastload._machine import usable_cpus
    from fastload.jpeg_index.file import IndexWriter, OldIndex
    from fastload.stats.progress import terminal_bar

    old = OldIndex(output, key)
    unreadable: list[str] = []
    made = kept = with_points = image_bytes = 0

    def examine(name: str) -> tuple[str, int, int, int, int, bytes | None]:
        path = folder / name
        try:
            about = path.stat()
        except OSError:
            return name, 0, 0, 0, 0, None
        size, time_ns, image_id = old.images.get(name, (0, 0, None))
        if (size, time_ns) == (about.st_size, about.st_mtime_ns):
            points = b"" if image_id is None else old.points(image_id)
            if points is not None:
                return name, size, time_ns, image_id or 0, 0, points
        status, found, points = _core.index_points(os.fsencode(path), key)
        return name, about.st_size, about.st_mtime_ns, found, 1, None if status == "unreadable" else points

    with (
        IndexWriter(output, key) as writer,
        ThreadPoolExecutor(threads or usable_cpus()) as pool,
        terminal_bar(len(names), "index", unit="file") as advance,
    ):
        for begin in range(0, len(names), _AT_ONCE):
            for name, size, time_ns, image_id, new, points in pool.map(examine, names[begin : begin + _AT_ONCE]):
                advance()
                if points is None:
                    unreadable.append(name)
                    continue
                writer.add(name, size, time_ns, image_id, points)
                made, kept, image_bytes = made + new, kept + 1 - new, image_bytes + size
                with_points += bool(points)
        changed = with_points and (made or kept != len(old.images))
        index_bytes = writer.finish() if changed else 0
    for name in unreadable[:_NAMED]:
        sys.stderr.write(f"fastload index: cannot read {folder / name}\n")
    if more := len(unreadable) - _NAMED:
        sys.stderr.write(f"fastload index: and {more} more\n" if more > 0 else "")
    if not with_points:
        return _fail(f"no image of {folder} gets points (small, progressive or damaged ones don't): nothing is written")
    index_bytes = index_bytes or output.stat().st_size
    sys.stdout.write(
        f"{output}: {with_points:,} of {made + kept:,} images have points, {made:,} of them read now; "
        f"{index_bytes:,} bytes, {index_bytes / max(1, image_bytes):.2%} of the images'"
        f"{'' if changed else '; nothing has changed'}\n"
    )
    return 1 if unreadable else 0


def _fail(reason: str) -> int:
    sys.stderr.write(f"fastload index: {reason}\n")
    return 2
