"""Write the lists of native transforms and datasets in docs/plan.md and docs/fit.md.

They come from the tables of the package. ``--check`` only compares.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Final

from fastload.pipeline.datasets.folders import OF_ARRAYS, OF_FILES
from fastload.pipeline.ops.table import OPS, TIMMS_OPS
from fastload.pipeline.ops.tensor import TENSOR_OPS
from fastload.pipeline.roles import ROLES

_IMPLIED: Final = "ToRGB"  # no class of torchvision: what `Lambda(lambda image: image.convert("RGB"))` is read as

PAGE = Path(__file__).parents[1] / "docs" / "plan.md"
FIT = PAGE.with_name("fit.md")
_OTHERS = {
    "to_tensor": "Makes a tensor",
    "elementwise": "Changes values",
    "erasing": "At the end, torchvision's and timm's",
    "compose": "Nested as you like",
    "identity": "Leaves the image as it is",
}


def listed() -> str:
    """The list, as Markdown."""
    lines = ["| transform | draws | also on tensors | its bits are right because |", "|---|---|---|---|"]
    rows = [(f"`{name}`", op) for name, op in OPS.items() if name != _IMPLIED] + [
        (f"timm's `{name}`", op) for name, op in TIMMS_OPS.items()
    ]
    for name, op in rows:
        draws = "yes" if op.draws else ""
        tensors = "yes" if op.moves else "v2's, of uint8" if name.strip("`") in TENSOR_OPS else ""
        lines.append(f"| {name} | {draws} | {tensors} | {op.why} |")
    lines.append("")
    for role, what in _OTHERS.items():
        names = ", ".join(f"`{name}`" for name, known in ROLES.items() if known == role)
        lines.append(f"- {what}: {names}.")
    return "\n".join(lines) + "\n"


def kinds() -> str:
    """The same transforms by what they do, in short."""
    groups = {
        "crop, flip, resize": [name for name, op in OPS.items() if op.moves and name != _IMPLIED],
        "other changes, drawn at random": [name for name, op in OPS.items() if op.draws and not op.moves],
        "other changes": [name for name, op in OPS.items() if not op.draws and not op.moves],
        "from timm": list(TIMMS_OPS),
        **{what.lower(): [name for name, role in ROLES.items() if role == kind] for kind, what in _OTHERS.items()},
    }
    inexact = [name for name, op in OPS.items() if op.why.startswith("none")]
    told = {
        name: f"`{name}`{' with `exact=False`' if name in inexact else ''}"
        for names in groups.values()
        for name in names
    }
    lines = [f"| {what} | {', '.join(told[name] for name in names)} |" for what, names in groups.items()]
    return "\n".join(["| what it does | transforms |", "|---|---|", *lines, ""])


def datasets() -> str:
    """The datasets of torchvision, in one sentence."""
    files, arrays = (", ".join(f"`{known.__name__}`" for known in kinds) for kinds in (OF_FILES, OF_ARRAYS))
    return f"Torchvision's {files}, with their default loader; {arrays}, which hold arrays.\n"


PARTS: Final = {PAGE: {"ops": listed}, FIT: {"transforms": kinds, "datasets": datasets}}
"""What is written on a page, by its markers."""


def page(path: Path, text: str) -> str:
    """Return the text of a page with its lists between their markers."""
    for name, made in PARTS[path].items():
        part = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text, count = part.subn(lambda found, made=made: found[1] + made() + found[2], text)
        if count != 1:
            raise ValueError(f"{path.name} must have the markers of {name!r} once, found {count}")
    return text


def main() -> int:
    """Write, or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when a list is out of date")
    check = parser.parse_args().check
    stale = {path: text for path in PARTS if (text := page(path, path.read_text())) != path.read_text()}
    for path, text in stale.items():
        if check:
            sys.stderr.write(f"{path.name} is out of date: run 'make figures'\n")
        else:
            path.write_text(text)
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
