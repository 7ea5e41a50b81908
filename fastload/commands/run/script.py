"""``fastload run``: run an unchanged script with FastLoader in place of DataLoader.

A new Python replaces this process and runs the script: arguments, module search path, traceback, exit code and Ctrl-C
are plain Python's. The settings are passed in the environment, which the script's child processes inherit (see
``bootstrap/sitecustomize.py``). So is ``FASTLOAD_CAPTURE``, which opens a profiler's window around some of the script's
steps (see ``profiling/recording/capture.py``).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastload._arguments import at_least

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE: Final = "FASTLOAD_RUN"
BOOTSTRAP: Final = Path(__file__).resolve().parent / "bootstrap"

_DEFAULTS: Final = (
    *("device", "memory_format", "dtype", "device_prefetch", "engine", "max_pinned_bytes", "randomness", "exact"),
    *("max_index_bytes", "decode", "device_cache_bytes", "on_error", "max_errors"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options, then the script and its arguments."""
    parser.usage = "%(prog)s [options] (script.py | -m module | -c code) [its arguments]"
    parser.description = (
        "Run a Python program with FastLoader in the place of torch.utils.data.DataLoader, in its child processes too. "
        "Options set the defaults of FastLoader's own arguments."
    )
    add = parser.add_argument
    add("--device", type=_device, metavar="DEVICE", help="where batches go: auto, cpu, cuda, cuda:1")
    add("--memory-format", choices=("channels_last", "contiguous", "preserve"), help="of 4-D images")
    add(
        "--dtype",
        choices=("bfloat16", "float16", "float32", "float64"),
        help="cast floating-point tensors to this, on the device",
    )
    add("--device-prefetch", type=at_least(0), metavar="N", help="batches copied ahead of the one in use")
    add("--engine", choices=("auto", "torch", "native"), help="run the pipeline natively where it can be")
    add("--max-pinned-bytes", type=at_least(0), metavar="N", help="most bytes of pinned memory; 0 for none")
    add("--randomness", choices=("worker", "sample"), help="what random draws depend on: worker, or sample")
    add(
        "--inexact",
        dest="exact",
        action="store_const",
        const=False,
        help="run torchvision's GaussianBlur natively, at most 1 of 256 levels off",
    )
    add("--max-index-bytes", type=at_least(0), metavar="N", help="most bytes of the JPEG files' index; 0 for none")
    add("--decode", choices=("auto", "cpu", "gpu"), help="where JPEG files are decoded; auto: on the GPU when it waits")
    add(
        "--device-cache-bytes",
        type=_cache_bytes,
        metavar="N",
        help="most bytes of JPEG files that stay in the GPU's memory; auto: half of what is free",
    )
    add("--on-error", choices=("raise", "skip", "replace"), help="what becomes of samples that cannot be read")
    add("--max-errors", type=_max_errors, metavar="N", help="how many such samples: a count, or a share such as 0.01")
    add("--explain", action="store_true", help="say at exit, on stderr, who uses FastLoader and every loader's plan")
    program = parser.add_argument_group("the program, as Python itself takes it")
    program.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="module", help="run a library module")
    program.add_argument("-c", dest="code", nargs=argparse.REMAINDER, metavar="code", help="run this code")
    program.add_argument("script", nargs=argparse.REMAINDER, metavar="script.py", help="run this file")


def main(args: argparse.Namespace) -> int:
    """Replace this process by a Python that runs the program; returns only on failure."""
    program = _program(args)
    if not program:
        return _fail("nothing to run: name a script, -m module or -c code; see fastload run --help")
    if sys.flags.ignore_environment or sys.flags.no_site:
        return _fail("works through PYTHONPATH and sitecustomize, which the options -E, -I and -S of Python turn off")
    if not sys.executable:
        return _fail("cannot tell which Python is running (sys.executable is empty); start fastload with a full path")
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(sys.executable, [sys.executable, *_interpreter_options(), *program], environment(args))
    except OSError as error:
        return _fail(f"cannot start {sys.executable}: {error.strerror}")


def environment(args: argparse.Namespace) -> dict[str, str]:
    """This process's environment plus the settings that make child Pythons use FastLoader."""
    defaults = {name: getattr(args, name) for name in _DEFAULTS if getattr(args, name) is not None}
    return environment_with(defaults, explain=args.explain)


def environment_with(
    defaults: Mapping[str, Any] | None = None, *, explain: bool = False, as_is: bool = False
) -> dict[str, str]:
    """Like :func:`environment`, from defaults of FastLoader's arguments, spelled as options.

    With ``as_is`` DataLoaders stay what they are, and are measured.
    """
    search_path = [str(BOOTSTRAP)]
    if inherited := os.environ.get("PYTHONPATH"):
        search_path += [entry for entry in inherited.split(os.pathsep) if entry != str(BOOTSTRAP)]
    return {
        **os.environ,
        VARIABLE: json.dumps({"defaults": dict(defaults or {}), "explain": explain, "as_is": as_is}),
        "PYTHONPATH": os.pathsep.join(search_path),
    }


def _program(args: argparse.Namespace) -> list[str]:
    for flag, given in (("-m", args.module), ("-c", args.code)):
        if given is not None:
            rest = [*given, *args.script]  # `-mmodule` leaves the arguments after it to `script`
            return [flag, *rest] if rest else []
    return args.script[1:] if args.script[:1] == ["--"] else list(args.script)


def _interpreter_options() -> list[str]:
    """This Python's own options, to pass on; from subprocess, as multiprocessing gets them."""
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    if getattr(sys.stdout, "write_through", False):  # the only sign of -u
        options.append("-u")
    return options


def _device(text: str) -> str:
    if not re.fullmatch(r"[a-z]+(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"must be auto, cpu or the name of a torch device, got {text!r}")
    return text


def _cache_bytes(text: str) -> int | str:
    return text if text == "auto" else at_least(0)(text)


def _max_errors(text: str) -> int | float:
    with contextlib.suppress(ValueError):
        value = int(text) if text.isdigit() else float(text)
        if isinstance(value, int) or 0 <= value <= 1:
            return value
    raise argparse.ArgumentTypeError(f"must be a count, or a share from 0.0 to 1.0, got {text!r}")


def _fail(reason: str) -> int:
    sys.stderr.write(f"fastload run: {reason}\n")
    return 2
