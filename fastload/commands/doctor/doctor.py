"""``fastload doctor``: what this machine has and lacks for feeding a GPU."""

from __future__ import annotations

import functools
import json
import shutil
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastload._version import __version__
from fastload.commands.doctor import checks, checks_disk, checks_gpu, checks_pil
from fastload.commands.doctor.checks import Check

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

__all__ = ["Check", "MachineReport", "add_arguments", "doctor", "main"]

_COLOURS: Final = {"ok": "green", "note": "cyan", "warning": "yellow", "missing": "bold red"}  # by rising urgency


@dataclass(frozen=True, slots=True)
class MachineReport:
    """The doctor's report."""

    version: str  # fastload's version
    checks: tuple[Check, ...]  # all checks, in the order shown

    @property
    def ok(self) -> bool:
        """Whether everything that fastload needs is there."""
        return all(check.status != "missing" for check in self.checks)

    @property
    def remedies(self) -> tuple[Check, ...]:
        """Every check with a remedy, the most urgent first."""
        urgency = list(_COLOURS)
        found = [check for check in self.checks if check.remedy]
        return tuple(sorted(found, key=lambda check: -urgency.index(check.status)))

    def __getitem__(self, name: str) -> Check:
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(f"no check named {name!r}; there are {', '.join(check.name for check in self.checks)}")

    def to_dict(self) -> dict[str, Any]:
        """The object of ``fastload doctor --json``."""
        shown = ("status", "finding", "remedy", "data")
        return {
            "fastload": self.version,
            "ok": self.ok,
            "checks": {check.name: {key: getattr(check, key) for key in shown} for check in self.checks},
        }

    def __str__(self) -> str:
        width = max(60, min(shutil.get_terminal_size((120, 40)).columns, 160))
        names = max((len(check.name) for check in self.checks), default=0)
        lines = [f"fastload {self.version}: {self.verdict()}"]

        def add(check: Check, text: str) -> None:
            head = f"  {check.status:<7}  {check.name:<{names}}  "
            wrapper = textwrap.TextWrapper(width, head, " " * len(head), break_on_hyphens=False, break_long_words=False)
            lines.extend(wrapper.wrap(text))

        for check in self.checks:
            add(check, check.finding)
        if self.remedies:
            lines += ["", "What to do"]
        for check in self.remedies:
            add(check, str(check.remedy))
        return "\n".join(lines)

    def verdict(self) -> str:
        """Sum up the report in one clause."""
        missing = [check.name for check in self.checks if check.status == "missing"]
        if missing:
            return f"does not work here; missing: {', '.join(missing)}"
        warnings = [check.name for check in self.checks if check.status == "warning"]
        return f"works here; needs attention: {', '.join(warnings)}" if warnings else "works here"


def doctor(*, measure: bool = True, folder: Path | None = None) -> MachineReport:
    """Check this machine for loading images onto a GPU. Blocks for a second or two.

    Args:
        measure: Also measure: how fast Pillow decodes and resizes (one core), and how fast a CUDA device is fed from
            pinned and pageable memory (256 MB on the host for half of a second).
        folder: Also measure how fast files below this folder are read, for a second or two. They leave the page cache.
    """
    found: dict[str, Callable[[], Check]] = {
        "python": checks.check_python,
        "torch": checks.check_torch,
        "torchvision": checks.check_torchvision,
        "cuda": checks_gpu.check_cuda,
        "gpu": checks_gpu.check_gpu,
        "copy": checks_gpu.check_copy,
        "cpu": checks.check_cpu,
        "memory": checks.check_memory,
        "/dev/shm": checks.check_shared_memory,
        "descriptors": checks.check_descriptors,
        "native core": checks.check_native_core,
        "libraries": checks.check_libraries,
        "PIL": functools.partial(checks_pil.check_pil, measure=measure),
        "disk": functools.partial(checks_disk.check_disk, folder or Path()),
        "nvtx": checks.check_nvtx,
        "nsys": functools.partial(checks_gpu.check_nsight, "nsys"),
        "ncu": functools.partial(checks_gpu.check_nsight, "ncu"),
    }
    has_gpu = checks_gpu.cuda_available()
    left_out = {"gpu": not has_gpu, "copy": not (has_gpu and measure), "disk": folder is None or not measure}
    return MachineReport(
        __version__, tuple(_run(name, check) for name, check in found.items() if not left_out.get(name))
    )


def _run(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - one broken part must not hide what is known about the others
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        remedy = "please report this line, with the output of fastload doctor --json"
        return Check(name, f"could not be checked: {reason}", "warning", remedy)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``fastload doctor``."""
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="also measure how fast files in DIR and below are read from its disk, for a second or two",
    )
    parser.add_argument("--no-measure", dest="measure", action="store_false", help="look only, time nothing")


def main(args: argparse.Namespace) -> int:
    """Print the report. Returns 1 if something that fastload needs is missing, else 0."""
    report = doctor(measure=args.measure, folder=args.folder)
    if args.json:
        sys.stdout.write(json.dumps(report.to_dict(), indent=2) + "\n")
    else:
        _show(report)
    return 0 if report.ok else 1


def _show(report: MachineReport) -> None:
    """Print the report, in colours where rich is installed."""
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        sys.stdout.write(f"{report}\n")
        return
    text = Text(str(report))
    for status, style in _COLOURS.items():
        text.highlight_regex(rf"(?m)^  {status}\b", style)
    text.stylize("bold" if report.ok else "bold red", 0, str(report).index("\n"))
    Console().print(text, soft_wrap=True)
