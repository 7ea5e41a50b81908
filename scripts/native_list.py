"""Write the list of native transforms in docs/plan.md from the table of ops.

``--check`` only compares.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from fastload.pipeline.ops import OPS, TIMMS_OPS
from fastload.pipeline.transform_roles import ROLES

PAGE = Path(__file__).parents[1] / "docs" / "plan.md"
_PART = re.compile(r"(<!-- ops -->\n).*?(<!-- end -->)", re.DOTALL)
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
    rows = [(f"`{name}`", op) for name, op in OPS.items()] + [
        (f"timm's `{name}`", op) for name, op in TIMMS_OPS.items()
    ]
    for name, op in rows:
        draws, moves = ("yes" if flag else "" for flag in (op.draws, op.moves))
        lines.append(f"| {name} | {draws} | {moves} | {op.why} |")
    lines.append("")
    for role, what in _OTHERS.items():
        names = ", ".join(f"`{name}`" for name, known in ROLES.items() if known == role)
        lines.append(f"- {what}: {names}.")
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """Return the page with the list between its markers."""
    changed, count = _PART.subn(lambda found: found[1] + listed() + found[2], text)
    if count != 1:
        raise ValueError(f"{PAGE.name} must have the markers of the list once, found {count}")
    return changed


def main() -> int:
    """Write, or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when the list is out of date")
    check = parser.parse_args().check
    text = PAGE.read_text()
    if page(text) == text:
        return 0
    if check:
        sys.stderr.write(f"{PAGE.name} is out of date: run 'make figures'\n")
        return 1
    PAGE.write_text(page(text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
