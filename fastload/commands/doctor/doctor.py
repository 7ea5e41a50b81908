"""``fastload doctor``: what this machine has and lacks for feeding a GPU."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fastload._version import __version__
from fastload.commands.doctor import checks, checks_gpu, checks_pil
from fastload.commands.doctor.checks import Check

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

__all__ = ["Check", "MachineReport", "add_arguments", "doctor", "main"]

_COLOURS: Final = {"ok": "green", "note": "cyan", "warning": "yellow", "missing": "bold red"}  # by rising urgency


@dataclass(frozen=True, slots=True)
class MachineReport:
    """The doctor's report.

    Attributes:
        version: fastload's version.
        checks: All checks, in the order shown.
    """

    version: str
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether everything that fastload needs is there."""
        return all(check.status != "missing" for check in self.checks)

    @property
    def problems(self) -> tuple[Check, ...]:
        """The checks that need attention, each with its remedy."""
        return tuple(check for check in self.checks if check.status in ("warning", "missing"))

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
        return {
            "fastload": self.version,
            "ok": self.ok,
            "checks": {
                check.name: {
                    "status": check.status,
                    "finding": check.finding,
                    "remedy": check.remedy,
                    "data": check.data,
                }
                for check in self.checks
            },
        }

    def __str__(self) -> str:
        width = max(60, min(shutil.get_terminal_size((120, 40)).columns, 160))
        names = max((len(check.name) for check in self.checks), default=0)
        lines = [f"fastload {self.version}: {self.verdict()}"]
        lines += [f"  {check.status:<7}  {check.name:<{names}}  {check.finding}" for check in self.checks]
        if self.remedies:
            lines += ["", "What to do"]
        for check in self.remedies:
            head = f"  {check.status:<7}  {check.name:<{names}}  "
            lines += textwrap.wrap(
                str(check.remedy), width, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False
            )
        return "\n".join(lines)

    def verdict(self) -> str:
        """Sum up the report in one clause."""
        missing = [check.name for check in self.checks if check.status == "missing"]
        if missing:
            return f"does not work here; missing: {', '.join(missing)}"
        warnings = [check.name for check in self.checks if check.status == "warning"]
        return f"works here; needs attention: {', '.join(warnings)}" if warnings else "works here"


def doctor(*, measure: bool = True) -> MachineReport:
    """Check this machine for loading images onto a GPU. Blocks for a second or two.

    Args:
        measure: Also measure: how fast Pillow decodes and resizes (one core), and how fast a CUDA device is fed from
            pinned and pageable memory (256 MB on the host for half of a second).
    """
    return MachineReport(__version__, tuple(_run(name, check) for name, check in _checks_to_run(measure)))


def _checks_to_run(measure: bool) -> Iterator[tuple[str, Callable[[], Check]]]:
    yield "python", checks.check_python
    yield "torch", checks.check_torch
    yield "torchvision", checks.check_torchvision
    yield "cuda", checks_gpu.check_cuda
    if checks_gpu.cuda_available():
        yield "gpu", checks_gpu.check_gpu
        if measure:
            yield "copy", checks_gpu.check_copy
    yield "cpu", checks.check_cpu
    yield "memory", checks.check_memory
    yield "/dev/shm", checks.check_shared_memory
    yield "descriptors", checks.check_descriptors
    yield "native core", checks.check_native_core
    yield "libraries", checks.check_libraries
    yield "PIL", lambda: checks_pil.check_pil(measure=measure)
    yield "nvtx", checks.check_nvtx
    yield "nsys", lambda: checks_gpu.check_nsight("nsys")
    yield "ncu", lambda: checks_gpu.check_nsight("ncu")


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
    parser.add_argument("--no-measure", dest="measure", action="store_false", help="look only, time nothing")


def main(args: argparse.Namespace) -> int:
    """Print the report. Returns 1 if something that fastload needs is missing, else 0."""
    report = doctor(measure=args.measure)
    if args.json:
        sys.stdout.write(json.dumps(report.to_dict(), indent=2) + "\n")
    else:
        _show(report)
    return 0 if report.ok else 1


def _show(report: MachineReport) -> None:
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        sys.stdout.write(f"{report}\n")
        return
    console = Console()
    screen = Table.grid(padding=(0, 2, 0, 0))
    for no_wrap in (True, True, False):
        screen.add_column(no_wrap=no_wrap, overflow="fold")

    def add(check: Check, text: str) -> None:
        screen.add_row(Text(check.status, _COLOURS[check.status]), Text(check.name, "bold"), Text(text))

    for check in report.checks:
        add(check, check.finding)
    if report.remedies:
        screen.add_row("", "", "")
        screen.add_row("", Text("what to do", "dim"), "")
    for check in report.remedies:
        add(check, str(check.remedy))
    console.print(Text(f"fastload {report.version}: {report.verdict()}", "bold" if report.ok else "bold red"))
    console.print(screen)
