"""``fastload check``: read every image once and name the broken and odd ones."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastload._arguments import UsageError, add_factory_argument, call_factory

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from fastload.commands.check.images import Finding
    from fastload.commands.check.samples import CheckedItems


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``fastload check``."""
    add_factory_argument(
        parser,
        metavar="DIR|module:factory",
        help="a folder, tar or zip archive, or image file; or a function that makes a loader, whose dataset is checked",
    )
    parser.add_argument(
        "--fail-on",
        choices=("any", "broken"),
        default="any",
        help="what gives exit code 1: any finding, or only what a loader would raise on (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What was found.

    Attributes:
        images: Images or samples that were read.
        left_out: Other files, which were not.
        findings: What is broken or odd, in the order of the files.
        seconds: How long it took.
        complete: Whether nothing interrupted it.
    """

    images: int
    left_out: int
    findings: tuple[Finding, ...]
    seconds: float
    complete: bool

    @property
    def broken(self) -> tuple[Finding, ...]:
        """The findings on which a loader would raise."""
        return tuple(finding for finding in self.findings if finding.broken)

    def to_dict(self) -> dict[str, Any]:
        """The object of ``fastload check --json``."""
        return {
            "images": self.images,
            "left_out": self.left_out,
            "seconds": self.seconds,
            "complete": self.complete,
            "counts": dict(Counter(finding.kind for finding in self.findings)),
            "findings": [finding.to_dict() for finding in self.findings],
        }

    def __str__(self) -> str:
        odd = Counter(finding.kind for finding in self.findings if not finding.broken)
        broken = Counter(finding.kind for finding in self.broken)
        parts = [_counted(counts, name) for counts, name in ((broken, "broken"), (odd, "odd")) if counts]
        rate = self.images / max(self.seconds, 1e-9)
        text = f"{self.images:,} images in {self.seconds:.1f} s ({rate:,.0f}/s): {', '.join(parts) or 'nothing found'}"
        return f"{text}; left out, as no images: {self.left_out:,}" if self.left_out else text


def _counted(counts: Counter[str], name: str) -> str:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in counts.most_common())
    return f"{counts.total():,} {name} ({kinds})"


def line_of(finding: Finding) -> str:
    """Format a finding as one line."""
    file, number = shown(finding.file), f"sample {finding.index}"
    name = file if finding.index is None or file == number else f"{number}, {file}"
    return f"{'broken' if finding.broken else 'odd':<6}  {finding.kind:<12}  {name}: {shown(finding.detail)}"


def shown(text: str) -> str:
    """Escape line ends, and bytes of a file's name that are no text."""
    return text if text.isprintable() else repr(text)[1:-1]


def check(
    items: CheckedItems, on_finding: Callable[[Finding], object], advance: Callable[[int], object]
) -> CheckReport:
    """Check everything, and find duplicates by content.

    Blocks; Ctrl-C ends it with a report that is not complete.

    Args:
        items: What there is to check.
        on_finding: Called with each finding at once.
        advance: Called with a number of items that have been checked.
    """
    from fastload.commands.check.images import Finding

    begin = time.perf_counter()
    first_with: dict[bytes, str] = {}
    findings: list[Finding] = []
    images = left_out = 0
    complete = False
    try:
        for group in items.groups:
            for item in group:
                images += item.is_image
                left_out += not item.is_image and not item.findings
                found = item.findings
                first = item.name if item.checksum is None else first_with.setdefault(item.checksum, item.name)
                if first != item.name:
                    found += (Finding("duplicate", item.name, f"the same bytes as {shown(first)}", item.index),)
                findings += found
                for finding in found:
                    on_finding(finding)
            advance(len(group))
        complete = True
    except KeyboardInterrupt:
        pass
    finally:
        items.groups.close()
    return CheckReport(images, left_out, tuple(findings), time.perf_counter() - begin, complete)


def main(args: argparse.Namespace) -> int:
    """Run the command; return its exit code.

    0 if nothing was found, 1 if something was, 2 if there is nothing to check, 130 after Ctrl-C.
    """
    from fastload.stats.progress import terminal_bar

    items = _items_of(args.factory, args.arg)
    with terminal_bar(items.total, "checking", "file") as (advance, write):

        def show(finding: Finding) -> None:
            if not args.json:
                write(line_of(finding))
                sys.stdout.flush()  # so that a file has it, too, whatever happens in the next hours

        report = check(items, show, advance)
    if args.json:
        sys.stdout.write(json.dumps(report.to_dict(), indent=2) + "\n")
    else:
        sys.stdout.write(f"{report}\n")
    if not report.complete:
        sys.stderr.write("fastload check: interrupted; not everything was read\n")
        return 130
    if not report.images and not report.findings:
        raise UsageError(f"there must be an image to check, but {args.factory} has none")
    return 1 if report.broken or (report.findings and args.fail_on == "any") else 0


def _items_of(what: str, arguments: list[str]) -> CheckedItems:
    if os.path.lexists(what):
        from fastload.commands.check.samples import check_place

        return check_place(what)
    if ":" not in what:
        raise UsageError(f"there must be a folder, archive or file, or a module:factory, got {what!r}")
    loader, _ = call_factory(what, arguments)
    from fastload.commands.check.samples import check_samples

    return check_samples(loader)
