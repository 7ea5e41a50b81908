"""Run the examples that the pages show, and write what they print into the pages.

A page has a block of ``sh`` with one command that names a file in ``examples/``, and after it a block of ``text`` with
what the command prints. ``python scripts/gallery.py`` writes these anew; ``--check`` compares them and changes nothing.
Figures differ from run to run and are not compared, nor is what a report says of them.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
DOCS: Final = ROOT / "docs"
UNDECIDED: Final = "Undecided:"
SHOWN: Final = re.compile(r"^```sh\n([^\n]*examples/[^\n]*)\n```\n\n```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PROGRAMS: Final = {
    "python": [sys.executable],
    "fastload": [sys.executable, "-m", "fastload"],
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
}


def shown() -> Iterator[tuple[Path, str, str]]:
    """Yield each page, command, and what the page says it prints."""
    for page in sorted(DOCS.rglob("*.md")):
        for found in SHOWN.finditer(page.read_text()):
            yield page, found[1], found[2]


def printed(command: str) -> str:
    """Return what a command prints in an empty folder, without GPU and network.

    Raises:
        RuntimeError: It fails.
    """
    program, *arguments = shlex.split(command)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "examples").symlink_to(ROOT / "examples")
        done = subprocess.run(
            [*PROGRAMS[program], *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
            timeout=150,
        )
        if done.returncode:
            raise RuntimeError(f"{command!r} must succeed, but ended with {done.returncode}:\n{done.stderr}")
        explained = re.search(r"^fastload run \(process.*", done.stderr, flags=re.DOTALL | re.MULTILINE)
        text = done.stdout + (explained[0] if explained else "")
        return re.sub(r"[^\s(]*/examples/", "examples/", text)


def fixed(text: str) -> list[str]:
    """Return the lines of an output that are the same in each run, without figures."""
    text = re.sub(r"^(\S+-bound:|Undecided:).*(\n  .*)*", r"\1", text, flags=re.MULTILINE)  # rests on what was measured
    text = re.sub(r"^(fastload run) \(process.*", r"\1", text, flags=re.MULTILINE)  # names what is installed
    return re.sub(r"\d[\d.,]*(e-\d+)?", "#", text).splitlines()


def agree(text: str, said: str) -> bool:
    """Whether an output is what a page says.

    On a busy machine too little may have been measured for a verdict.
    """
    lines, others = fixed(text), fixed(said)
    if UNDECIDED in lines:
        others = [re.sub(r"^\S+-bound:$", UNDECIDED, line) for line in others]
    return lines == others


def main() -> int:
    """Write, or check; return how many are out of date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is out of date")
    parser.add_argument("--only", default="", metavar="WORD", help="examples with this in their command")
    args = parser.parse_args()
    stale = 0
    for page, command, said in shown():
        if args.only not in command:
            continue
        text = printed(command)
        if agree(text, said):
            continue
        stale += 1
        sys.stderr.write(f"{page.relative_to(ROOT)}: {command}\n")
        if not args.check:
            page.write_text(
                page.read_text().replace(f"{command}\n```\n\n```text\n{said}", f"{command}\n```\n\n```text\n{text}")
            )
    return stale if args.check else 0


if __name__ == "__main__":
    sys.exit(main())
