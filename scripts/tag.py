"""Tag the version of pyproject.toml, or print its section of CHANGELOG.md.

The section is the tag's message. Tags nothing unless all changes are committed, the changelog's newest section is of
that version and dated, and there is no such tag yet. A tag is pushed by hand.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from pathlib import Path


def version(root: Path) -> str:
    """Return the version that the next tag is of."""
    return str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])


def newest(changelog: str) -> tuple[str, str | None, str]:
    """Return the version, date and text of the newest section of a changelog."""
    section = r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?\n(.*?)(?=^## |\Z)"
    found = re.search(section, changelog, flags=re.DOTALL | re.MULTILINE)
    if not found:
        raise ValueError("CHANGELOG.md must have a section '## [version] - date', and has none")
    return found[1], found[2], found[3].strip() + "\n"


def notes(root: Path) -> str:
    """Return what a release's page says.

    Raises:
        ValueError: The changelog's newest section is of another version, or has no date.
    """
    wanted = version(root)
    name, date, text = newest((root / "CHANGELOG.md").read_text())
    if name != wanted or date is None:
        raise ValueError(f"CHANGELOG.md must begin with '## [{wanted}] - date', got [{name}] of {date or 'no date'}")
    return f"fastload {wanted}\n\n{text}"


def tag(root: Path) -> str:
    """Make the annotated tag, and return its name.

    Raises:
        ValueError: As of `notes`; something is not committed; or there is such a tag.
    """
    message, name = notes(root), f"v{version(root)}"
    if changed := _git(root, "status", "--porcelain"):
        raise ValueError(f"all changes must be committed, got\n{changed.rstrip()}")
    if _git(root, "tag", "--list", name):
        raise ValueError(f"{name} is tagged already; a release needs another version in pyproject.toml")
    _git(root, "tag", "--annotate", "--cleanup=whitespace", "--file=-", name, text=message)  # keeps headings
    return name


def _git(root: Path, *arguments: str, text: str | None = None) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def main() -> int:
    """Return 1, and say why, where there is nothing to tag."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--notes", action="store_true", help="print the section, and tag nothing")
    arguments = parser.parse_args()
    root = Path(__file__).parents[1]
    try:
        sys.stdout.write(notes(root) if arguments.notes else f"{tag(root)} is tagged\n")
    except ValueError as error:
        sys.stderr.write(f"tag: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
