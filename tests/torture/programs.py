"""Start programs from a zygote, follow, time and end them, and find what they leave."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended.

    Attributes:
        code: Exit code, negative for a signal; ``None`` if it had to be killed.
        seconds: Time that the harness waited for its end.
        output: Everything that it and its processes printed.
        left: Processes and entries of ``/dev/shm`` that it left behind.
    """

    code: int | None
    seconds: float
    output: str
    left: tuple[str, ...]


class Lines:
    """Reads lines from a file descriptor."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._rest = b""

    def has_line(self) -> bool:
        return b"\n" in self._rest

    def read(self) -> bool:
        """Read available data; ``False`` at end of file."""
        data = os.read(self.descriptor, 1 << 16)
        self._rest += data
        return bool(data)

    def pop(self) -> str:
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()


def answer(lines: Lines) -> str:
    """Read the zygote's next line. Blocks."""
    while not lines.has_line():
        if not lines.read():
            raise RuntimeError("the zygote has ended")
    return lines.pop()


class Launcher:
    """Starts programs, one at a time. Must be closed."""

    def __init__(self, scratch: Path, name: str) -> None:
        self.scratch = scratch
        self.name = name
        command = [sys.executable, "-m", "torture.zygote"]
        path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
        self._zygote = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env={**os.environ, "PYTHONPATH": path}
        )
        self._answers = Lines(self._zygote.stdout.fileno())
        self._ready = False
        self._shared_memory = Path(f"/proc/{self._zygote.pid}/root/dev/shm")
        self.program: Program | None = None

    def start(self, function: str, *arguments: Any) -> Program:
        """Run ``function`` ("module:name") with JSON arguments in a new program.

        Blocks until the zygote is ready.
        """
        if not self._ready:
            answer(self._answers)
            self._ready = True
        self.program = Program(self, self._zygote.stdin, self._answers, self._shared_memory, function, arguments)
        return self.program

    def close(self) -> None:
        """Kill the zygote and any running program.

        Does not ask the zygote, because another thread may be waiting for its answer.
        """
        self._zygote.kill()
        self._zygote.wait()
        self._zygote.stdin.close()
        self._zygote.stdout.close()
        for pid in session(self.program.pid) if self.program is not None else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Program:
    """A running program."""

    def __init__(
        self,
        launcher: Launcher,
        requests: Any,
        answers: Lines,
        shared_memory: Path,
        function: str,
        arguments: tuple[Any, ...],
    ) -> None:
        self._shared_memory = shared_memory
        self._before = set(os.listdir(shared_memory))
        self._answers = answers
        self._output = launcher.scratch / f"{launcher.name}.txt"
        news = launcher.scratch / f"{launcher.name}.news"
        news.unlink(missing_ok=True)
        os.mkfifo(news)
        self._news = Lines(os.open(news, os.O_RDWR))  # also for writing, so that it never reaches end of file
        self._code: int | None = None
        request = {"function": function, "arguments": arguments, "output": str(self._output), "news": str(news)}
        requests.write((json.dumps(request) + "\n").encode())
        self.pid = int(answer(answers))

    def next(self, timeout_s: float) -> dict[str, Any] | None:
        """Next report; ``{"ended": code}`` if the program has ended, ``None`` after the timeout."""
        deadline = time.monotonic() + timeout_s
        while not self._news.has_line():
            if self._code is not None:
                return {"ended": self._code}
            remaining = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._news.descriptor, self._answers.descriptor], [], [], remaining)
            if self._news.descriptor in ready:
                self._news.read()
            elif ready:
                self._code = int(answer(self._answers))
            else:
                return None
        news: dict[str, Any] = json.loads(self._news.pop())
        return news

    def signal(self, number: int, *, group: bool = False) -> None:
        """Send a signal, unless the program has ended."""
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if group else os.kill)(self.pid, number)

    def finish(self, limit_s: float, grace_s: float = 5.0) -> Ended:
        """Wait up to ``limit_s`` for the program and ``grace_s`` for its processes; kill the rest."""
        begun = time.monotonic()
        while (news := self.next(begun + limit_s - time.monotonic())) is not None and "ended" not in news:
            pass
        seconds, code = time.monotonic() - begun, self._code
        if code is None:
            self.dump()
        left = self._left(grace_s) if code is not None else ()
        self.kill()
        return Ended(code, seconds, self._output.read_text(errors="replace"), left)

    def dump(self) -> None:
        """Make the program print its threads' stacks."""
        self.signal(signal.SIGUSR1)
        time.sleep(0.5)

    def kill(self) -> None:
        """Kill the program and its processes. Idempotent."""
        if self._news.descriptor < 0:
            return
        while processes := session(self.pid):  # again, because one may have just started another
            for pid in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)
        while self._code is None:
            self._code = int(answer(self._answers))
        os.close(self._news.descriptor)
        self._news.descriptor = -1

    def _left(self, grace_s: float) -> tuple[str, ...]:
        deadline = time.monotonic() + grace_s
        pause = 0.002
        while processes := session(self.pid):
            if time.monotonic() > deadline:
                break
            time.sleep(pause)
            pause = min(2 * pause, 0.2)
        lines = [f"process {pid} {command(pid)}" for pid in processes]
        names = left_in(self._shared_memory, self._before)
        return (*lines, *(f"/dev/shm/{name}" for name in names))


def session(leader: int) -> list[int]:
    """Live processes of a session."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == leader and fields[0] not in "ZX":
                found.append(int(name))
    return found


def command(pid: int) -> str:
    """Command line of a process; forked workers have their parent's."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""


def left_in(folder: Path, before: set[str]) -> set[str]:
    """New entries of a folder of shared memory that no process uses and that stay."""
    names = set(os.listdir(folder)) - before
    for _ in range(2):  # where it is shared with other programs: one may be just about to remove its own
        if names:
            time.sleep(0.3)
            names = orphaned(folder, names)
    return names


def orphaned(folder: Path, names: set[str]) -> set[str]:
    """Those of ``names`` that still exist and that no process has open or mapped."""
    left = names
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            maps = Path(f"/proc/{pid}/maps").read_text()
            files = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            continue
        left = {name for name in left if f"/dev/shm/{name}" not in maps and f"/dev/shm/{name}" not in files}
    return {name for name in left if (folder / name).exists()}
