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
    from fastload.commands.check.samples import Looks


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
    """Escape line ends and what is no text, such as bytes of a file's name."""
    return text if text.isprintable() else repr(text)[1:-1]


def check(looks: Looks, on_finding: Callable[[Finding], object], advance: Callable[[int], object]) -> CheckReport:
    """Look at everything, and find duplicates by content.

    Blocks; Ctrl-C ends it with a report that is not complete.

    Args:
        looks: What there is to see.
        on_finding: Called with each finding at once.
        advance: Called with a number of items that have been looked at.
    """
    from fastload.commands.check.images import Finding

    begin = time.perf_counter()
    first_with: dict[bytes, str] = {}
    findings: list[Finding] = []
    images = left_out = 0
    complete = False
    try:
        for group in looks.groups:
            for look in group:
                images += look.is_image
                left_out += not look.is_image and not look.findings
                found = look.findings
                first = look.name if look.checksum is None else first_with.setdefault(look.checksum, look.name)
                if first != look.name:
                    found += (Finding("duplicate", look.name, f"the same bytes as {shown(first)}", look.index),)
                findings += found
                for finding in found:
                    on_finding(finding)
            advance(len(group))
        complete = True
    except KeyboardInterrupt:
        pass
    finally:
        looks.groups.close()
    return CheckReport(images, left_out, tuple(findings), time.perf_counter() - begin, complete)


def main(args: argparse.Namespace) -> int:
    """Run the command; return its exit code.

    0 if nothing was found, 1 if something was, 2 if there is nothing to check, 130 after Ctrl-C.
    """
    from fastload.stats.progress import terminal_bar

    looks = _looks_at(args.factory, args.arg)
    with terminal_bar(looks.total, "checking", "file") as (advance, write):

        def show(finding: Finding) -> None:
            if not args.json:
                write(line_of(finding))
                sys.stdout.flush()  # so that a file has it, too, whatever happens in the next hours

        report = check(looks, show, advance)
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


def _looks_at(what: str, arguments: list[str]) -> Looks:
    if os.path.lexists(what):
        from fastload.commands.check.samples import look_at_place

        return look_at_place(what)
    if ":" not in what:
        raise UsageError(f"there must be a folder, archive or file, or a module:factory, got {what!r}")
    loader, _ = call_factory(what, arguments)
    from fastload.commands.check.samples import look_at_samples

    return look_at_samples(loader)
