"""``fastload profile``: record a training script with Nsight Systems and report its bottleneck.

The script runs as under ``fastload run``, with FastLoader for DataLoader; the loader that the loop iterates opens the
capture window after some warm-up steps (:mod:`fastload.profiling.recording.capture`). If Nsight Systems is missing, or
cannot import its own recording, torch.profiler records, and the loader's ranges of all processes are written to files.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fastload._arguments import at_least, output_file, picture_file
from fastload.commands.run import script
from fastload.memory.gpu import FILE as MEMORY_FILE
from fastload.memory.gpu import GpuMemory
from fastload.profiling.analysis import modules, ncu
from fastload.profiling.pages.report import ProfileReport, make_report, plain_console, show
from fastload.profiling.recording import nsys, nsys_export, torch_trace
from fastload.profiling.recording.nsys import NsightError, ProgramError, find_nsight
from fastload.profiling.recording.provenance import FILE, Provenance
from fastload.stats.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fastload.profiling.recording.nsys import Recorder
    from fastload.profiling.recording.trace import Recording

STEM: Final = "profile"  # name of the recording in its folder
_PAGE: Final = f"fastload-{STEM}.html"
_LOADER: Final = "loader.json"
_KIND: Final = r"(all|kernel|memory|sync|other)(:\d+)?"
_NO_BACKTRACES: Final = (
    "nsys recorded no backtrace: it takes them only where it may sample the CPU (perf_event_paranoid at most 2, in a "
    "container with CAP_SYS_ADMIN or a seccomp profile that has perf_event_open), and of calls of 1 µs or more"
)


def say(command: str, text: str) -> None:
    """Write a line to stderr, after what was printed."""
    sys.stdout.flush()
    sys.stderr.write(f"fastload {command}: {text}\n")
    sys.stderr.flush()


_say = functools.partial(say, "profile")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``fastload profile``."""
    parser.usage = "%(prog)s [options] -- python train.py ..."
    parser.add_argument("--with", dest="tool", choices=("auto", "nsys", "torch"), default="auto", help="what records")
    parser.add_argument(
        "--as-is",
        action="store_true",
        help="profile the script as it stands, with torch's DataLoader (default: with FastLoader in its place)",
    )
    parser.add_argument("--sampling", action="store_true", help="nsys also samples call stacks (large recordings)")
    parser.add_argument(
        "--cudabacktrace",
        type=backtraces,
        metavar="KINDS",
        help="nsys also records what called CUDA: all, or of kernel, memory, sync and other, each with the least "
        "nanoseconds of a call behind a colon if given, as sync:1000,memory (slows the loop down)",
    )
    parser.add_argument("--to-the-end", action="store_true", help="let the script go on after the steps")
    parser.add_argument(
        "--kernels",
        action="append",
        type=Path,
        metavar="DIR",
        help="say what there is to gain in each module, with what fastload kernels --keep DIR measured (default: the "
        "folder of --from, if it holds that); may be given several times",
    )
    parser.add_argument(
        "--rank",
        action="append",
        type=Path,
        default=[],
        metavar="PATH",
        help="compare the collectives with those of another rank's recording; may be given several times",
    )
    parser.add_argument("--html", type=output_file, metavar="FILE", help=f"the page to write (default: {_PAGE})")
    parser.add_argument("--no-html", action="store_true", help="write no page")
    add_common_arguments(parser, steps=10, drawn="the timeline")


def backtraces(text: str) -> str:
    """Check nsys' kinds of calls, as a type for ``argparse``."""
    if not re.fullmatch(rf"{_KIND}(,{_KIND})*", text):
        raise argparse.ArgumentTypeError(
            f"must be all, or some of kernel, memory, sync, other, such as sync:1000,memory; got {text!r}"
        )
    return text


def add_common_arguments(parser: argparse.ArgumentParser, *, steps: int, drawn: str) -> None:
    """Declare the program and the options that ``fastload kernels`` has, too."""
    add = parser.add_argument
    add("--steps", type=at_least(1), default=steps, help="training steps to record (default: %(default)s)")
    add("--warmup", type=at_least(0), default=10, help="steps before them (default: %(default)s)")
    add("--png", type=picture_file, metavar="FILE", help=f"draw {drawn} as a picture")
    add("--json", action="store_true", help="print the report as JSON instead of tables")
    add("--keep", type=Path, metavar="DIR", help="keep what was recorded there")
    add("--from", dest="source", type=Path, metavar="PATH", help="report on what was kept again")
    add("program", nargs=argparse.REMAINDER, metavar="-- python train.py ...", help="what to run")


def program_of(args: argparse.Namespace) -> list[str]:
    """Return the command line to record; empty if what was kept is reported on."""
    program: list[str] = args.program[1:] if args.program[:1] == ["--"] else args.program
    if bool(program) == (args.source is not None):
        raise ValueError("nothing to run: write -- python train.py ... at the end; or --from PATH, but not both")
    return program


def python(program: Sequence[str]) -> list[str]:
    """Turn ``train.py ...`` into ``python train.py ...``, as ``fastload run`` does."""
    is_script = program[0].endswith(".py") and shutil.which(program[0]) is None
    return [sys.executable, *program] if is_script else list(program)


def main(args: argparse.Namespace) -> int:
    """Record and report. Returns the script's exit code, or 1 without anything to report."""
    try:
        program = program_of(args)
        page = None if args.no_html else args.html or output_file(_PAGE)
    except ValueError as error:
        _say(str(error))
        return 2
    except argparse.ArgumentTypeError as error:
        _say(f"the page {error}; or give --html FILE, or --no-html")
        return 2
    try:
        measured = modules.read_measured(kernel_folders(args))
        others = [(str(path), read(path)) for path in args.rank]
        if not program:
            code, recording = 0, read(args.source)
            folder = args.source if args.source.is_dir() else args.source.parent
            reported = loaders_verdict(folder) if args.source.is_dir() else None
            about, memory = Provenance.read(folder), read_memory(folder) if args.source.is_dir() else None
        else:
            replaced = (f"{STEM}.*", "ranges-*.jsonl", _LOADER.replace(".", "*"), MEMORY_FILE.replace(".", "*"), FILE)
            with folder_for(args.keep, *replaced) as folder:
                about = Provenance.now(shlex.join(program), _loader(args))
                code, recording, reported = record(args, python(program), folder)
                about.write(folder)
                memory = read_memory(folder)
    except NsightError as error:
        _say(str(error))
        return error.code
    report = replace(make_report(recording, reported, about, measured, others), memory=memory)
    _deliver(report, recording, args, page)
    return code


def kernel_folders(args: argparse.Namespace) -> list[Path]:
    """The folders of Nsight Compute's figures: those given, or the recording's own."""
    own = args.source if args.source is not None and args.source.is_dir() else args.keep
    return args.kernels or ([own] if own is not None and (own / ncu.TABLE).exists() else [])


def read(path: Path) -> Recording:
    """Read a recording: an exported ``.sqlite``, a ``.nsys-rep``, or a folder of ``--keep``."""
    if path.is_dir():
        for suffix in (".sqlite", ".nsys-rep", ".qdstrm"):
            if (found := path / f"{STEM}{suffix}").exists():
                return read(found)
        try:
            return torch_trace.read(path)
        except NsightError:
            raise NsightError(f"{path} holds no recording; fastload profile --keep DIR keeps one in DIR") from None
    if path.suffix in (".nsys-rep", ".qdstrm"):
        executable = find_nsight("nsys")
        if executable is None:
            raise NsightError(f"{path.name} is exported by nsys, which was not found: install Nsight Systems")
        return nsys_export.read(nsys.Recorder(executable, nsys.find_importer(executable)).finish(path.with_suffix("")))
    if not path.exists():
        raise NsightError(f"{path} does not exist")
    return nsys_export.read(path)


def record(args: argparse.Namespace, program: Sequence[str], folder: Path) -> tuple[int, Recording, Verdict | None]:
    """Run and record the program; returns exit code, recording and the loader's verdict.

    Raises:
        ProgramError: The program failed before anything was recorded; it is not run again.
        NsightError: Nothing was recorded.
    """
    recorder = None if args.tool == "torch" else _find_recorder(args.tool, folder)
    if recorder is not None:
        try:
            options = {"sampling": args.sampling, "backtraces": args.cudabacktrace}
            code = _execute(recorder.command(folder / STEM, program, **options), args, folder)
            recording = nsys_export.read(recorder.finish(folder / STEM, code))
            if args.cudabacktrace and not any(call.backtrace for call in recording.calls):
                recording = replace(recording, notes=(*recording.notes, _NO_BACKTRACES))
            return code, recording, loaders_verdict(folder)
        except ProgramError:
            raise
        except NsightError as error:
            if args.tool == "nsys":
                raise
            _say(f"{error}; runs again under torch.profiler")
    if args.cudabacktrace:
        _say("only nsys records what called CUDA: --cudabacktrace is without effect")
    # By default torch.profiler's library prints "USDT" at each start, and "ERROR" without a GPU.
    level = os.environ.get("KINETO_LOG_LEVEL", "99")
    trace = {"FASTLOAD_CAPTURE_TRACE": str(folder / f"{STEM}.json"), "FASTLOAD_RANGES": str(folder)}
    code = _execute(program, args, folder, **trace, KINETO_LOG_LEVEL=level)
    return code, torch_trace.read(folder, code), loaders_verdict(folder)


def _find_recorder(tool: str, folder: Path) -> Recorder | None:
    with tempfile.TemporaryDirectory(prefix="fastload-probe-", dir=folder) as scratch:
        try:
            return nsys.find_recorder(Path(scratch))
        except NsightError as error:
            if tool == "nsys":
                raise
            _say(f"{error}; torch.profiler records instead")
            return None


def _loader(args: argparse.Namespace) -> str:
    """Say which loader the script gets."""
    if args.as_is:
        return "as it stands, with torch's DataLoader"
    return "with FastLoader in the place of torch's DataLoader (--as-is profiles the script as it stands)"


def _execute(command: Sequence[str], args: argparse.Namespace, folder: Path, **more: str) -> int:
    _say(f"runs {shlex.join(command)}, {_loader(args)}")
    more["FASTLOAD_CAPTURE_REPORT"] = str(folder / _LOADER)
    return run(command, args, more, exits=not args.to_the_end, as_is=args.as_is)


@contextmanager
def folder_for(kept: Path | None, *replaced: str) -> Iterator[Path]:
    """Make the folder of ``--keep``, without files that match ``replaced``; or a temporary one."""
    if kept is None:
        with tempfile.TemporaryDirectory(prefix="fastload-recorded-") as folder:
            yield Path(folder)
        return
    try:
        kept.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NsightError(f"{kept} cannot be made a folder to keep files in: {error.strerror}") from error
    for old in (path for pattern in replaced for path in kept.glob(pattern)):
        old.unlink()
    yield kept.absolute()


def run(
    command: Sequence[str], args: argparse.Namespace, more: Mapping[str, str], *, exits: bool, as_is: bool = False
) -> int:
    """Run a program with a capture window; returns the exit code of a shell. Blocks."""
    inherited = script.environment_with(as_is=as_is)
    # As if this virtual environment were activated: "python" is the one that has fastload.
    search_path = [os.path.dirname(sys.executable), inherited.get("PATH", os.defpath)]
    window = f"{args.warmup}:{args.steps}" + (":exit" if exits else "")
    environment = {**inherited, "PATH": os.pathsep.join(search_path), "FASTLOAD_CAPTURE": window, **more}
    try:
        # With --json the report has stdout to itself.
        done = subprocess.run(command, env=environment, check=False, stdout=sys.stderr if args.json else None)
    except OSError as error:
        raise NsightError(f"{command[0]} does not start: {error.strerror}") from error
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


def loaders_verdict(folder: Path) -> Verdict | None:
    """The captured loader's verdict on the window; None if there is none."""
    for path in sorted(folder.glob(_LOADER.replace(".", "*"))):
        try:
            return Verdict.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except ValueError:  # the program was killed while writing it
            continue
    return None


def read_memory(folder: Path) -> GpuMemory | None:
    """The GPU's memory at the window's end; None if it was not written."""
    for path in sorted(folder.glob(MEMORY_FILE.replace(".", "*"))):
        try:
            return GpuMemory.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, KeyError):  # the program was killed while writing it
            continue
    return None


def _deliver(report: ProfileReport, recording: Recording, args: argparse.Namespace, page: Path | None) -> None:
    from fastload.profiling.pages import timeline
    from fastload.profiling.pages.html import write

    # The files first: the reader of a pipe may leave early.
    rows = timeline.lay_out(recording, report.findings)
    if page is not None:
        write(report, rows, page)
        _say(f"the timeline is in {page}")
    if args.png:
        timeline.draw(rows, args.png, f"{report.verdict.name}: {'; '.join(report.verdict.evidence[:2])}")
        _say(f"the picture is {args.png}")
    if args.json:
        sys.stdout.write(json.dumps(report.to_dict(), indent=2) + "\n")
    else:
        show(report, plain_console())
