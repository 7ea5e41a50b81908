"""Control the contenders' processes: all are stopped except the one being measured."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import fastload
from benchmarks._checkout import ROOT, importable
from benchmarks.contenders import _processes
from benchmarks.contenders._registry import CONTENDERS
from fastload._machine import usable_cpus
from fastload._version import DISTRIBUTION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.contenders._job import Job

_PATIENCE_S = 600.0  # for one answer


class ContenderError(RuntimeError):
    """A contender failed; the message ends with its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreters:
    """The interpreters and packages that contenders run with."""

    pythons: Mapping[str, str] = field(default_factory=dict)  # interpreters by contender or module
    # folders to search for packages first, and their `lib` for libraries, by contender or module
    sites: Mapping[str, str] = field(default_factory=dict)


class Remote:
    """One contender in its own process group, so that its workers stop with it.

    Attributes:
        missing: Reason why it cannot take part at all.
        failed: Reason why it takes no further part in this question.
        ended: Whether it has no process now.
    """

    def __init__(self, name: str, device: str, interpreters: Interpreters) -> None:
        self.name = name
        self.contender = CONTENDERS[name]
        self.missing: str | None = None
        self.failed: str | None = None
        self.versions: dict[str, str] = {}
        self.python = ""
        self._device = device
        self._interpreters = interpreters
        try:
            self._start()
        except ContenderError as error:
            self.missing = str(error)
        if self.missing is not None:
            self.end()

    def restart(self) -> None:
        """Begin again in a new process.

        Raises:
            ContenderError: It cannot take part any more.
        """
        self.end()
        self.failed = None
        self._start()
        if self.missing is not None:
            raise ContenderError(f"{self.name}: {self.missing}")

    def _start(self) -> None:
        self.ended = False
        self._stack = contextlib.ExitStack()
        self._said: IO[bytes] = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - closed by the stack
        ours, theirs = socket.socketpair()
        ours.settimeout(_PATIENCE_S)
        self._stream = ours.makefile("rw", encoding="utf-8")
        ours.close()
        python, environment = self._command(self._interpreters)
        with theirs:
            self._process = subprocess.Popen(
                [python, "-m", "benchmarks.contenders._serve", self.name, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._said,
                env=environment,
                process_group=0,  # of this session: if this process dies, the kernel wakes and ends stopped ones
            )
        # A worker that outlives its main process holds the socket open: end it, or an answer would be waited for.
        threading.Thread(target=_end_group, args=(self._process,), name=f"fastload-{self.name}", daemon=True).start()
        answer = self.ask("prepare", device=self._device)
        self.missing = answer["missing"]
        self.versions = answer["versions"]
        self.python = answer["python"]

    @property
    def group(self) -> int:
        """The process group."""
        return self._process.pid

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Make a request; blocks until it is answered.

        Raises:
            ContenderError: It failed, or the process ended.
        """
        try:
            self._stream.write(json.dumps({"do": do, **arguments}) + "\n")
            self._stream.flush()
            line = self._stream.readline()
        except (OSError, ValueError) as error:
            raise ContenderError(f"{self.name}: {do}: {type(error).__name__}: {error}{self._last_line()}") from error
        if not line:
            raise ContenderError(f"{self.name}: its process ended{self._last_line()}")
        answer = json.loads(line)
        if "error" in answer:
            raise ContenderError(f"{self.name}: {do}: {answer['error']}")
        result: dict[str, Any] = answer["answer"]
        return result

    @contextlib.contextmanager
    def turn(self) -> Iterator[Remote]:
        """Let it run while entered; afterwards it is stopped, with its workers and threads."""
        self._signal(signal.SIGCONT)
        try:
            yield self
        finally:
            self.suspend()

    def suspend(self) -> None:
        """Stop it, with its workers and threads."""
        self._signal(signal.SIGSTOP)

    def end(self) -> None:
        """End the process and all that it started. Idempotent."""
        if self.ended:
            return
        self._signal(signal.SIGCONT)
        if self._process.poll() is None:
            with contextlib.suppress(OSError, ValueError):
                self._stream.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
        self._signal(signal.SIGKILL)
        self._process.wait()
        with contextlib.suppress(OSError, ValueError):
            self._stream.close()
        self._stack.close()
        self.ended = True

    def fail(self, reason: str) -> None:
        """End it for this question; it may begin again with the next."""
        self.failed = reason
        self.end()

    def refuse(self, reason: str) -> None:
        """End it for all questions."""
        self.missing = reason
        self.end()

    def memory(self) -> _processes.Memory:
        """Host memory of all its processes."""
        return _processes.memory(self.group)

    def record(self) -> dict[str, Any]:
        """Its title and versions, and the reason where it has none; for the JSON file."""
        known: dict[str, Any] = {"title": self.contender.title}
        if self.missing is not None:
            return {**known, "missing": self.missing}
        known |= {"python": self.python, "versions": self.versions}
        return known if self.failed is None else {**known, "failed": self.failed}

    def _signal(self, number: signal.Signals) -> None:
        if self.ended:  # its number may be another's by now
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, number)

    def _last_line(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        self._said.seek(0)
        lines = [line for line in self._said.read().decode(errors="replace").splitlines() if line.strip()]
        return f": {lines[-1].strip()}" if lines else ""

    def _command(self, interpreters: Interpreters) -> tuple[str, dict[str, str]]:
        python, site = (
            options.get(self.name, options.get(self.contender.module))
            for options in (interpreters.pythons, interpreters.sites)
        )
        path = [] if site is None else [str(Path(site).resolve())]
        if python is not None:
            # Another interpreter finds this package there, and nothing else that lies beside it.
            folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="fastload-")))
            (folder / "fastload").symlink_to(Path(fastload.__file__).resolve().parent)
            (folder / "benchmarks").symlink_to(ROOT / "benchmarks")
            metadata = folder / f"fastload_torch-{fastload.__version__}.dist-info" / "METADATA"
            metadata.parent.mkdir()
            metadata.write_text(f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: {fastload.__version__}\n")
            path.append(str(folder))
        if inherited := os.environ.get("PYTHONPATH"):
            path.append(inherited)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
        if python is None:
            environment = importable(environment)
        if site is not None and (libraries := Path(site).resolve() / "lib").is_dir():
            inherited = environment.get("LD_LIBRARY_PATH")
            environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(libraries), inherited]))
        return python or sys.executable, environment


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End the group of a process when it has ended itself."""
    process.wait()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


class Team:
    """The contenders of one benchmark, each in its own process; a context manager."""

    def __init__(self, names: Sequence[str], device: str, interpreters: Interpreters) -> None:
        self.device = device
        self._threads = ThreadPoolExecutor(max(1, usable_cpus()), thread_name_prefix="fastload-team")
        self.all = list(self._threads.map(lambda name: Remote(name, device, interpreters), names))
        for remote in self.present:
            remote.suspend()

    @property
    def present(self) -> list[Remote]:
        """Those that can take part."""
        return [remote for remote in self.all if remote.missing is None and remote.failed is None]

    @property
    def loading(self) -> list[Remote]:
        """Those of them that load."""
        return [remote for remote in self.present if remote.contender.loads]

    def title(self, name: str) -> str:
        """What tables call a contender."""
        return CONTENDERS[name].title

    def record(self) -> dict[str, Any]:
        """Every contender, those that are missing with the reason."""
        return {remote.name: remote.record() for remote in self.all}

    def together(self, remotes: Sequence[Remote], do: Callable[[Remote], object]) -> None:
        """Let all do something at once, while nothing is timed. One that fails drops out."""

        def one(remote: Remote) -> None:
            try:
                with remote.turn():
                    do(remote)
            except ContenderError as error:
                remote.fail(str(error))

        list(self._threads.map(one, remotes))

    def open(self, remotes: Sequence[Remote], job: Job) -> None:
        """Open contenders' loaders: those that try settings out one by one, the others at once."""
        alone = [[remote] for remote in remotes if remote.contender.sweeps]
        for some in ([remote for remote in remotes if not remote.contender.sweeps], *alone):
            self.together(some, lambda one: one.ask("open", **job.record()))

    def close_feeds(self) -> None:
        """End every loader; the processes stay."""
        self.together(self.present, lambda remote: remote.ask("close"))

    def restart_failed(self) -> None:
        """Start those that failed, or were ended, again."""
        failed = [remote for remote in self.all if remote.missing is None and (remote.ended or remote.failed)]
        self.together(failed, Remote.restart)

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        list(self._threads.map(Remote.end, self.all))
        self._threads.shutdown()
