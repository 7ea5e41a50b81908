"""Run Nsight's tools: find ``nsys`` and ``ncu``, record, import and export.

Nsight Systems comes as its own package, or in a folder of Nsight Compute. The latter's ``nsys`` records but does not
import its own recording: it leaves a ``.qdstrm``, which the ``QdstrmImporter`` in the same folder converts into a
``.nsys-rep`` that can be exported. All steps are tried on an empty program first (:func:`find_recorder`), so that
failures show before a training run.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TRACES: Final = (
    ("cuda", "nvtx", "osrt", "cudnn", "cublas"),
    ("cuda", "nvtx", "osrt"),
    ("cuda", "nvtx"),
)
"""Events to record, the fullest set first: an installation may lack libraries for some."""

_FOLDERS: Final = {
    "nsys": (
        "opt/nvidia/nsight-systems/*/bin/nsys",
        "opt/nvidia/nsight-systems-cli/*/bin/nsys",
        "opt/nvidia/nsight-compute/*/host/target-linux-x64/nsys",
        "usr/local/cuda*/bin/nsys",
    ),
    "ncu": ("opt/nvidia/nsight-compute/*/ncu", "usr/local/cuda*/bin/ncu"),
}
_ROOT: Final = Path("/")
_RECORDINGS: Final = (".nsys-rep", ".qdstrm")
_PROBE_S: Final = 120
_EXPORT_S: Final = 900

_PACKAGES: Final = {"libdw.so.1": "libdw1", "libelf.so.1": "libelf1"}
_MISSING_LIBRARY: Final = re.compile(r"(lib[\w.+-]+\.so[\w.]*)(?:: cannot open shared object file| => not found)")


class NsightError(RuntimeError):
    """Nsight is missing, or one of its steps failed; the message ends with a remedy."""

    code: int = 1
    """Exit code of a command that ends with this error."""


class ProgramError(NsightError):
    """The program failed before anything was recorded; ``code`` is its exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Recorder:
    """An ``nsys`` that records, imports and exports on this machine."""

    nsys: Path
    importer: Path | None  # program that converts a .qdstrm into a .nsys-rep, for an nsys that cannot
    traces: tuple[str, ...] = ()  # kinds of events that it can record here

    def command(
        self,
        output: Path,
        program: Sequence[str],
        *,
        sampling: bool = False,
        window: bool = True,
        backtraces: str | None = None,
    ) -> list[str]:
        """Return the command line that runs ``program`` and records it.

        Args:
            output: Path of the recording without a suffix.
            program: A command line.
            sampling: Also sample call stacks and context switches; recordings grow to gigabytes.
            backtraces: Calls of CUDA to record with the call stack, as nsys has them (``--cudabacktrace``).
            window: Record only between ``cudaProfilerStart`` and ``cudaProfilerStop``; the program continues after.
        """
        switches = "process-tree" if sampling else "none"
        # nsys takes no backtraces without sampling.
        samples = "process-tree" if sampling or backtraces else "none"
        options = [
            "--force-overwrite=true",
            f"--output={output}",
            f"--trace={','.join(self.traces)}",
            # Worker processes are forked and never call exec; without this option they are not recorded.
            "--trace-fork-before-exec=true",
            *(f"--sample={samples}", f"--cpuctxsw={switches}"),
            *([f"--cudabacktrace={backtraces}"] if backtraces else ()),
            *(("--capture-range=cudaProfilerApi", "--capture-range-end=stop") if window else ()),
        ]
        return [str(self.nsys), "profile", *options, *program]

    def finish(self, output: Path, code: int = 0) -> Path:
        """Import and export the recording at ``output``; returns the SQLite file. Blocks.

        Raises:
            ProgramError: There is no recording, because the program failed with ``code``.
            NsightError: There is no recording, or it cannot be imported or exported.
        """
        report = output.with_name(f"{output.name}.nsys-rep")
        if not report.exists():
            self._import(output, report, code)
        database = report.with_suffix(".sqlite")
        _run([str(self.nsys), "export", "--type=sqlite", "--force-overwrite=true", f"--output={database}", str(report)])
        if not database.exists():
            raise NsightError(f"nsys export wrote no {database.name}; update Nsight Systems")
        return database

    def _import(self, output: Path, report: Path, code: int) -> None:
        stream = output.with_name(f"{output.name}.qdstrm")
        if not stream.exists():
            raise nothing_recorded("nsys", code)
        if self.importer is None:
            raise NsightError(
                f"nsys left {stream.name}, which only QdstrmImporter can read, and its installation has none: "
                "install the full Nsight Systems"
            )
        libraries = [str(self.importer.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(libraries)}
        _run([str(self.importer), "--input-file", str(stream)], environment)
        if not report.exists():
            raise NsightError(
                f"QdstrmImporter wrote no {report.name}; open {stream} in the Nsight Systems window instead"
            )


def find_nsight(tool: str, root: Path = _ROOT) -> Path | None:
    """Find ``nsys`` or ``ncu``: on the search path, else the newest in its install folders.

    Nsight Compute contains an ``nsys``, the only one in images with just the CUDA toolkit.
    """
    if (found := shutil.which(tool)) is not None:
        return Path(found)
    for pattern in _FOLDERS[tool]:
        installed = [path for path in root.glob(pattern) if os.access(path, os.X_OK)]
        if installed:
            return max(installed, key=lambda path: [int(number) for number in re.findall(r"\d+", str(path))])
    return None


def find_recorder(folder: Path, root: Path = _ROOT) -> Recorder:
    """Find an ``nsys`` that records, imports and exports here, with as many traces as possible.

    Takes a few seconds: each attempt runs an empty Python program, and leaves its files in ``folder``.

    Raises:
        NsightError: There is none, or it yields no exported recording.
    """
    nsys = find_nsight("nsys", root)
    if nsys is None:
        raise NsightError(
            "nsys (Nsight Systems) was not found: install the package nsight-systems-cli from NVIDIA's CUDA repository "
            "or put nsys on the PATH"
        )
    importer = find_importer(nsys)
    failures: list[NsightError] = []
    for number, traces in enumerate(TRACES):
        recorder = Recorder(nsys, importer, traces)
        output = folder / f"probe{number}"
        try:
            # The exit code is not enough: nsys may record and then fail at the import, which we can do ourselves.
            command = recorder.command(output, [sys.executable, "-S", "-c", "pass"], window=False)
            code, said = run_tool(command, _PROBE_S)
            if code and not any(output.with_name(output.name + suffix).exists() for suffix in _RECORDINGS):
                raise NsightError(_why(command, code, said))
            recorder.finish(output)
        except NsightError as error:
            failures.append(error)
        else:
            return recorder
    raise failures[-1]  # of the smallest set of traces


def find_importer(nsys: Path) -> Path | None:
    """The ``QdstrmImporter`` of the installation that ``nsys`` belongs to, or None."""
    place = nsys.resolve().parent
    for folder in (place, place.parent):
        for pattern in ("host-linux-*/QdstrmImporter", "linux-desktop-*/QdstrmImporter"):
            found = sorted(path for path in folder.glob(pattern) if os.access(path, os.X_OK))
            if found:
                return found[-1]
    return None


def nothing_recorded(tool: str, code: int) -> NsightError:
    """The error for a program that ended with ``code`` and left no recording."""
    if code:
        why = f"{tool} recorded nothing: the program ended with exit code {code} before the capture window"
        return ProgramError(why, code)
    return NsightError(
        f"{tool} recorded nothing: no loop of the program came past its warm-up, or none iterates a DataLoader; "
        "ask for fewer --warmup steps"
    )


def run_tool(command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run one of Nsight's programs; returns its exit code and output. Blocks.

    Raises:
        NsightError: It did not start, or did not end in time.
    """
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            env=environment,
        )
    except OSError as error:
        raise NsightError(f"{name} does not start: {error.strerror}; reinstall it ({command[0]})") from error
    except subprocess.TimeoutExpired as error:
        by_hand = shlex.join(command)
        raise NsightError(f"{name} did not end within {timeout_s:g} s; try it by hand: {by_hand}") from error
    return done.returncode, done.stdout


def _run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    code, said = run_tool(command, _EXPORT_S, environment)
    if code != 0:
        raise NsightError(_why(command, code, said))


def _why(command: Sequence[str], code: int, said: str) -> str:
    name = Path(command[0]).name
    if libraries := sorted(set(_MISSING_LIBRARY.findall(said))):
        packages = [_PACKAGES.get(library, library) for library in libraries]
        return (
            f"{name} needs {', '.join(libraries)}, which this system lacks: apt-get install {' '.join(packages)} "
            "(or put them in a folder on LD_LIBRARY_PATH)"
        )
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = lines[-1] if lines else "it said nothing"
    return f"{name} failed with exit code {code} ({last}); try it by hand: {shlex.join(command)}"
