"""``fastload kernels``: measure a range's kernels with Nsight Compute, sum and classify them.

Nsight Compute runs every kernel several times to measure it, so one step is enough and the loop is slow meanwhile.
"""

from __future__ import annotations

import functools
import json
import shlex
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastload._arguments import at_least, output_file
from fastload.commands import profile
from fastload.commands.doctor.checks_gpu import cuda_available
from fastload.profiling.analysis import ncu, roofline
from fastload.profiling.analysis.ncu import CEILINGS, REPORT, TABLE
from fastload.profiling.pages.report import plain_console
from fastload.profiling.recording import nsys
from fastload.profiling.recording.nsys import NsightError, find_nsight
from fastload.profiling.recording.trace import STEP

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from fastload.profiling.analysis.ncu import KernelRun, Sum
    from fastload.profiling.analysis.roofline import Ceilings

_TABLE_OPTIONS: Final = ("--csv", "--page", "raw", "--print-units", "base")
_IMPORT_S: Final = 300
SHOWN: Final = 40
WIDE: Final = 130  # least width at which the table has all its figures; a narrower one has the shares of the ceilings

_SETS: Final = {"memory": ["--section", "MemoryWorkloadAnalysis"], "none": []}
"""Options that ``--set`` adds to the required metrics; other names are ncu's own sets."""

BACKWARD_NOTE: Final = (
    "note: the backward pass is not among these: autograd launches it from a thread of its own, outside of the range "
    'step; annotate_modules gives it ranges, as --range "ResNet backward" for a model of that class'
)

_STYLES: Final = {"compute-bound": "red", "memory-bound": "green", "latency-bound": "dim"}


_say = functools.partial(profile.say, "kernels")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``fastload kernels``."""
    parser.usage = "%(prog)s [--range NAME] [options] -- python train.py ..."
    parser.add_argument(
        "--range",
        default=STEP,
        metavar="NAME",
        help="the NVTX range to measure, of the script's or fastload's own (default: step, the training step; it does "
        "not hold the backward pass, whose kernels autograd launches from a thread of its own)",
    )
    parser.add_argument("--by", choices=("range", "kernel"), default="range", help="what to add up: per range within")
    parser.add_argument("--set", default="none", metavar="SET", help="measure more: memory, full, or another of ncu's")
    parser.add_argument("--most", type=at_least(1), metavar="N", help="measure at most so many kernels")
    parser.add_argument(
        "--report",
        type=output_file,
        metavar="FILE",
        help="keep ncu's own report (.ncu-rep) for Nsight Compute's window there, too (--keep has it in its folder)",
    )
    parser.add_argument("--csv", type=output_file, metavar="FILE", help="write the sums")
    profile.add_common_arguments(parser, steps=1, drawn="bytes moved against latency")


def main(args: argparse.Namespace) -> int:
    """Measure and report. Returns the script's exit code, or 1 without anything to report."""
    try:
        program = profile.program_of(args)
    except ValueError as error:
        _say(str(error))
        return 2
    try:
        if not program:
            code, (runs, ceilings) = 0, ncu.read_kept(args.source)
        else:
            with profile.folder_for(args.keep, TABLE, REPORT) as folder:
                code, runs, ceilings = measure(args, program, folder)
    except NsightError as error:
        _say(str(error))
        return error.code
    _deliver(runs, ceilings, args)
    return code


def measure(args: argparse.Namespace, program: Sequence[str], folder: Path) -> tuple[int, list[KernelRun], Ceilings]:
    """Run the program under ncu, then measure the device's ceilings.

    Raises:
        ProgramError: The program failed, and ncu wrote nothing.
        NsightError: There is no ncu or no GPU, or ncu measured nothing.
    """
    executable = find_nsight("ncu")
    if executable is None:
        raise NsightError(
            "ncu (Nsight Compute) was not found: install the package nsight-compute from NVIDIA's CUDA repository or "
            "put ncu on the PATH"
        )
    if not cuda_available():
        raise NsightError("Nsight Compute measures kernels, and torch sees no GPU here: fastload doctor says why")
    table, report = folder / TABLE, folder / REPORT
    command = command_line(executable, args, profile.python(program), table, available_metrics(executable))
    _say(f"runs {shlex.join(command)}")
    code = profile.run(command, args, {}, exits=True)
    if report.exists():
        if not ncu.has_table(table):  # ncu prints none beside a report, but does from it
            imported = [str(executable), "--import", str(report), *_TABLE_OPTIONS, "--log-file", str(table)]
            nsys.run_tool(imported, timeout_s=_IMPORT_S)
        if args.report:
            shutil.copyfile(report, args.report)
            _say(f"ncu's report is {args.report}; ncu-ui opens it")
    if not table.exists():
        raise nsys.nothing_recorded("ncu", code)
    try:
        runs = ncu.read(table)
    except NsightError as error:
        error.code = code or error.code  # ncu creates the file before the program can fail
        raise
    ceilings = roofline.measure()
    (folder / CEILINGS).write_text(json.dumps(asdict(ceilings), indent=2), encoding="utf-8")
    return code, runs, ceilings


def command_line(
    executable: Path, args: argparse.Namespace, program: Sequence[str], table: Path, metrics: Sequence[str]
) -> list[str]:
    """The command that measures a range's kernels into ``table``."""
    # The script's own ranges are in the default domain; annotate's ranges and the step are in fastload's.
    include = [part for name in (f"{args.range}/", f"fastload@{args.range}/") for part in ("--nvtx-include", name)]
    more = _SETS.get(args.set, ["--set", args.set])
    kept = args.keep is not None or args.report is not None
    export = ["--force-overwrite", "--export", str(table.with_name(REPORT))] if kept else []
    most = [] if args.most is None else ["--launch-count", str(args.most)]
    return [
        *(str(executable), "--nvtx", *include, "--profile-from-start", "off", "--clock-control", "none"),
        *(*_TABLE_OPTIONS, "--log-file", str(table), *export),
        *("--metrics", ",".join(metrics), *more, *most, *program),
    ]


def available_metrics(executable: Path) -> list[str]:
    """The :data:`ncu.METRICS` that the device has; ncu does not start with an unknown one."""
    code, said = nsys.run_tool([str(executable), "--query-metrics"], timeout_s=120)
    known = {line.split(maxsplit=1)[0] for line in said.splitlines() if line.strip()}
    if code != 0 or not known:
        return list(ncu.METRICS)
    return [name for name in ncu.METRICS if name.partition(".")[0] in known]


def _deliver(runs: list[KernelRun], ceilings: Ceilings, args: argparse.Namespace) -> None:
    sums = ncu.sum_up(runs, args.range, ceilings, args.by)
    everything = ncu.total(runs, ceilings)
    if args.csv:
        ncu.write_csv(sums, args.csv)
        _say(f"the sums are in {args.csv}")
    if args.png:
        ncu.draw(sums, ceilings, args.png, f"{args.range} on {ceilings.device}")
        _say(f"the picture is {args.png}")
    if args.json:
        report = {
            "range": args.range,
            "ceilings": asdict(ceilings),
            "total": everything.to_dict(),
            "sums": [each.to_dict() for each in sums],
        }
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
    else:
        show(sums, everything, ceilings, args.range)


def show(sums: Sequence[Sum], everything: Sum, ceilings: Ceilings, inside: str, console: Any = None) -> None:
    """Print the table."""
    from rich.table import Table
    from rich.text import Text

    console = console or plain_console()
    columns: list[tuple[str, str, Callable[[Sum], str]]] = [  # with the name in a narrow terminal, if shown
        ("kernels", "kernels", lambda each: f"{each.kernels:,}"),
        ("time", "time", lambda each: f"{each.seconds * 1e6:,.1f} µs"),
        ("of all", "of all", lambda each: f"{each.seconds / everything.seconds:.1%}" if everything.seconds else ""),
        ("MB moved", "", lambda each: f"{each.size_bytes / 1e6:,.2f}"),
        ("GB/s", "", lambda each: f"{each.bytes_per_s / 1e9:,.0f}"),
        ("of ceiling", "GB/s", lambda each: f"{each.memory_share:.0%}"),
        ("TFLOP/s", "", lambda each: f"{each.flops / 1e12:,.2f}"),
        ("of ceiling", "TFLOP/s", lambda each: f"{each.compute_share:.0%}"),
        ("FLOP/byte", "", lambda each: "" if each.intensity is None else f"{each.intensity:,.1f}"),
    ]
    if everything.occupancy is not None:
        columns.append(("occupancy", "", lambda each: "" if each.occupancy is None else f"{each.occupancy:.0%}"))
    wide = console.width >= WIDE
    shown = [(name if wide else narrow, cell) for name, narrow, cell in columns if wide or narrow]
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("range or kernel", header_style="dim", overflow="ellipsis" if wide else "fold")
    for title, _ in shown:
        table.add_column(title, justify="right", no_wrap=True, header_style="dim")
    table.add_column("class", header_style="dim")
    stalls = wide and bool(everything.stalls)
    if stalls:
        table.add_column("warps wait for", header_style="dim")
    for each in (*sums[:SHOWN], everything):
        bound = Text(each.bound, _STYLES[each.bound])
        cells = [cell(each) for _, cell in shown]
        waits = [ncu.waits(each)] if stalls else []
        table.add_row(each.name, *cells, bound, *waits, style="bold" if each is everything else None)
    tf32 = "" if ceilings.tf32_flops is None else f"{ceilings.tf32_flops / 1e12:,.0f} TF32, "
    console.print(
        Text(
            f"{inside} on {ceilings.device}; measured ceilings: {ceilings.bytes_per_s / 1e12:.2f} TB/s, "
            f"{ceilings.tensor_flops / 1e12:,.0f} TFLOP/s bfloat16, {tf32}{ceilings.fp32_flops / 1e12:,.0f} float32; "
            f"ridge at {ceilings.ridge:,.0f} FLOP/byte"
        )
    )
    console.print(table)
    if (more := len(sums) - SHOWN) > 0:
        console.print(Text(f"and {more} more; --csv writes them all", "dim"))
    if inside == STEP:
        console.print(Text(BACKWARD_NOTE, "dim"))
