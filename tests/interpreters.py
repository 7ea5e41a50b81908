"""Run programs in forks of a process that has already imported torch.

Each starts in milliseconds.

    done = interpreters.run(["-c", "import fastload; print(fastload.__version__)"])

A program starts as in a fresh interpreter: nothing of fastload is imported, no tool is attached to NVTX. It ends by the
interpreter's own finalization. What depends on the interpreter's options, on variables that torch reads while it is
imported, on frozen garbage, or on what is imported at all, needs :mod:`subprocess`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def run(
    arguments: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    timeout_s: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run Python with ``arguments`` and return its exit code and output, as :func:`subprocess.run` would.

    Args:
        arguments: ``["-c", code, ...]``, ``["-m", module, ...]`` or ``[script, ...]``; no other options.
        env: All variables; by default, this process's own.
        cwd: Where the program starts; by default, here.
        timeout_s: After so many seconds the program and its processes are killed, and TimeoutExpired is raised.
    """
    global _server
    if _server is None or _server.owner != os.getpid():
        _server = _Server()
    request = {
        "arguments": [str(argument) for argument in arguments],
        "environment": dict(os.environ if env is None else env),
        "folder": str(cwd or Path.cwd()),
    }
    try:
        return _server.run(request, timeout_s)
    except BaseException:  # a program may still be running there
        _server.close()
        _server = None
        raise


def result_of(package: str, folder: Path, program: str, *arguments: Any) -> Any:
    """Return the JSON that a program writes to its last argument.

    Skips the test if it lacks a package.
    """
    import pytest

    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    out, script = folder / "out.json", folder / "program.py"
    script.write_text(program)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    done = run([script, json.dumps([*arguments, str(out)])], env=env, cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


class _Server:
    """The process that forks programs, seen from the tests' side."""

    def __init__(self) -> None:
        import leaks

        self.owner = os.getpid()
        command = [sys.executable, str(Path(__file__).resolve())]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.requests, self.answers = self.process.stdin, self.process.stdout
        leaks.LASTING_PROCESSES.add(self.process.pid)
        leaks.LASTING_DESCRIPTORS.update((self.requests.fileno(), self.answers.fileno()))
        assert self.answer(timeout_s=120) == "ready"

    def run(self, request: dict[str, Any], timeout_s: float) -> subprocess.CompletedProcess[str]:
        import leaks

        leaks.a_process_is_started()  # not by this process, but its own all the same
        with tempfile.TemporaryDirectory(prefix="fastload-program-") as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            self.requests.write(json.dumps({**request, "out": str(out), "err": str(err)}).encode() + b"\n")
            program = int(self.answer(timeout_s=60))
            try:
                code = int(self.answer(timeout_s=timeout_s))
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(program, signal.SIGKILL)
                raise
            return subprocess.CompletedProcess(request["arguments"], code, out.read_text(), err.read_text())

    def answer(self, timeout_s: float) -> str:
        if not select.select([self.answers], [], [], timeout_s)[0]:
            raise subprocess.TimeoutExpired("a program of the fork server", timeout_s)
        line = self.answers.readline()
        assert line, "the fork server has ended"
        return line.decode().strip()

    def close(self) -> None:
        import leaks

        leaks.LASTING_PROCESSES.discard(self.process.pid)
        leaks.LASTING_DESCRIPTORS.difference_update((self.requests.fileno(), self.answers.fileno()))
        self.requests.close()
        self.answers.close()
        self.process.kill()
        self.process.wait()


_server: _Server | None = None


def _become(request: dict[str, Any]) -> list[str]:
    """Set up a program's group, environment, folder, output, and default signal handlers."""
    os.setpgid(0, 0)
    kinds = {0: (os.devnull, os.O_RDONLY), 1: (request["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)}
    kinds[2] = (request["err"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for target, (path, flags) in kinds.items():
        descriptor = os.open(path, flags)
        os.dup2(descriptor, target)
        os.close(descriptor)
    had = os.environ.get("PYTHONPATH", "")
    os.environ.clear()
    os.environ.update(request["environment"])
    if os.environ.get("PYTHONPATH", "") != had:
        sys.path[1:1] = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.chdir(request["folder"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return list(request["arguments"])


def _main_module(arguments: list[str]) -> tuple[Any, dict[str, Any]]:
    """Make the program's main module, and return its code beside its names."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    module.__dict__["__builtins__"] = __builtins__
    if arguments[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *arguments[2:]], ""
        return compile(arguments[1], "<string>", "exec"), module.__dict__
    if arguments[0] == "-m":
        sys.argv, sys.path[0] = ["-m", *arguments[2:]], os.getcwd()
        code = f"import runpy; runpy.run_module({arguments[1]!r}, run_name='__main__', alter_sys=True)"
        return compile(code, "<string>", "exec"), module.__dict__
    path = arguments[0]
    sys.argv, sys.path[0] = arguments, os.path.dirname(os.path.abspath(path))
    module.__file__ = path
    return compile(Path(path).read_text(), path, "exec"), module.__dict__


if __name__ == "__main__":
    import torchvision.datasets
    import torchvision.transforms.v2  # noqa: F401
    from fork_server import serve

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the tests end us, when they are interrupted, by closing the pipe
    exec(*_main_module(_become(serve())))
