"""Read torch.profiler's trace of one process and the range files of all processes.

Both use the system's wall clock: a trace's times are microseconds after its ``baseTimeNanoseconds``.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter, defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from fastload.nvtx.stages import DOMAIN
from fastload.profiling.recording.nsys import nothing_recorded
from fastload.profiling.recording.trace import (
    OPERATOR,
    STEP,
    Call,
    Copy,
    Direction,
    Kernel,
    Memory,
    Range,
    Recording,
    Span,
    ThreadKey,
    assign_roles,
    extent,
    kernel_name,
    most_common,
    training_thread,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

TRACES: Final = ("profile*.json", "profile*.json.gz", "trace*.json", "trace*.json.gz")

_DIRECTIONS: Final[dict[str, Direction]] = {
    "HtoD": "host to device",
    "DtoH": "device to host",
    "DtoD": "device to device",
}
_MEMORIES: Final[dict[str, Memory]] = {"Pageable": "pageable", "Pinned": "pinned", "Managed": "managed"}
_HOST: Final = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver")  # categories of events on the host
_COPY: Final = re.compile(r"Memcpy (\w+) \((\w+) -> (\w+)\)")
_STEP: Final = re.compile(r"ProfilerStep#(\d+)")
_OPERATOR: Final = re.compile(r"::|Backward\d*$|^detach$")  # other names are ranges that code opened
_SYSTEM_NAME: Final = re.compile(r"thread \d+ \((.*)\)")


def read(folder: Path, code: int = 0) -> Recording:
    """Read a folder of torch.profiler's traces, of the lowest process id, and of ranges. Blocks.

    Raises:
        ProgramError: There is no trace, because the program failed with ``code``.
        NsightError: There is no trace.
    """
    traces = sorted((path for pattern in TRACES for path in folder.glob(pattern)), key=lambda path: path.name)
    found = [trace for path in traces if (trace := _load(path)) is not None]
    if not found:
        raise nothing_recorded("torch.profiler", code)
    trace = min(found, key=_process_of)
    reader = _TorchReader(trace)
    for path in sorted(folder.glob("ranges-*.jsonl")):
        reader.add_ranges(path)
    return reader.recording(others=len(found) - 1)


def _load(path: Path) -> dict[str, Any] | None:
    content = path.read_bytes()
    try:
        trace = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    except (ValueError, gzip.BadGzipFile):
        return None
    return trace if isinstance(trace, dict) and "traceEvents" in trace else None


def _process_of(trace: dict[str, Any]) -> int:
    counts = Counter(event["pid"] for event in trace["traceEvents"] if event.get("cat") in _HOST)
    return int(counts.most_common(1)[0][0]) if counts else 0


class _TorchReader:
    def __init__(self, trace: dict[str, Any]) -> None:
        self._base_ns = int(trace.get("baseTimeNanoseconds", 0))
        self._process = _process_of(trace)
        self._names: dict[ThreadKey, str] = {}
        self._ranges: list[Range] = []
        self._operators: dict[ThreadKey, list[Range]] = defaultdict(list)
        self._calls: list[Call] = []
        self._kernels: list[Kernel] = []
        self._copies: list[Copy] = []
        self._window: tuple[int, int] | None = None
        self._devices = {
            int(device.get("id", number)): str(device.get("name", "GPU"))
            for number, device in enumerate(trace.get("deviceProperties") or [])
        }
        for event in trace["traceEvents"]:
            if event.get("ph") == "X":
                self._add(event)
            elif event.get("name") == "thread_name" and isinstance(event.get("tid"), int):
                self._name(event)

    def _name(self, event: dict[str, Any]) -> None:
        if event.get("pid") == self._process:
            found = _SYSTEM_NAME.fullmatch(str(event["args"].get("name", "")))
            self._names[ThreadKey(self._process, event["tid"])] = found[1] if found else ""

    def _add(self, event: dict[str, Any]) -> None:
        category, name, details = str(event.get("cat")), str(event["name"]), event.get("args") or {}
        start = self._base_ns + round(event["ts"] * 1e3)
        end = start + round(event.get("dur", 0) * 1e3)
        device, stream = int(details.get("device", 0)), int(details.get("stream", 0))
        place = device, stream, self._process, details.get("correlation")
        if category == "Trace":
            self._window = start, end
        elif category == "kernel":
            self._kernels.append(Kernel(start, end, kernel_name(name), *place))
        elif category == "gpu_memcpy":
            direction, memory = _way(name)
            self._copies.append(Copy(start, end, direction, memory, int(details.get("bytes", 0)), *place))
        elif category in _HOST:
            thread = ThreadKey(int(event["pid"]), int(event["tid"]))
            if category == "cpu_op" and _OPERATOR.search(name):
                self._operators[thread].append(Range(start, end, name, thread, OPERATOR))
            elif category.startswith("cuda"):
                self._calls.append(Call(start, end, name, thread, details.get("correlation")))
            elif step := _STEP.fullmatch(name):
                self._ranges.append(Range(start, end, STEP, thread, DOMAIN, int(step[1])))
            else:
                self._ranges.append(Range(start, end, name, thread, "torch"))

    def add_ranges(self, path: Path) -> None:
        """Add the range file of one process (see ``fastload.nvtx.file_sink``)."""
        process = int(path.stem.rpartition("-")[2])
        for line in path.read_text(errors="replace").splitlines():
            try:
                record = json.loads(line)
            except ValueError:  # the process was killed while writing it
                continue
            if len(record) == 2:
                self._names[ThreadKey(process, record[0])] = record[1]
            elif len(record) >= 7:  # older recordings lack the wait for a core
                start, end, thread, domain, name, *rest = record
                self._ranges.append(Range(start, end, name, ThreadKey(process, thread), domain, *rest))

    def recording(self, others: int) -> Recording:
        main = training_thread(self._ranges, self._process) or most_common(
            thread for thread, operators in self._operators.items() for _ in operators
        )
        steps: list[Span] = [span for span in self._ranges if span.thread == main and span.name == STEP]
        window = extent(steps) if steps else self._window or extent([*self._kernels, *self._calls, *self._ranges])
        # The loader's own ranges reach both the files and the trace.
        twice = {span.name for span in self._ranges if span.domain == DOMAIN}
        ranges = [span for span in self._ranges if span.domain == DOMAIN or span.name not in twice]
        ranges += self._outermost_operators()
        kept = [span for span in ranges if span.end_ns > window[0] and span.start_ns < window[1]]
        active = {span.thread for span in kept}
        # Other processes' threads count if they have a range in the window.
        names = dict.fromkeys((call.thread for call in self._calls), "")
        names |= {thread: name for thread, name in self._names.items() if thread.process == self._process}
        names |= {thread: self._names.get(thread, "") for thread in active}
        used = {kernel.device for kernel in self._kernels} | {copy.device for copy in self._copies}
        notes = []
        if others:
            notes.append(f"{others} more processes were traced; this is the one with the lowest id")
        if self._devices and not self._kernels:
            notes.append(
                "no kernel was recorded, although there is a GPU: the steps launched none, or torch.profiler could not "
                "record them (KINETO_LOG_LEVEL=0 in the environment has it say why)"
            )
        start = attrgetter("start_ns")
        return Recording(
            source="torch.profiler",
            start_ns=window[0],
            end_ns=window[1],
            threads=assign_roles(names, main, kept),
            ranges=tuple(sorted(kept, key=lambda span: (span.start_ns, -span.end_ns))),
            calls=tuple(sorted(self._calls, key=start)),
            kernels=tuple(sorted(self._kernels, key=start)),
            copies=tuple(sorted(self._copies, key=start)),
            devices={device: self._devices.get(device, "GPU") for device in sorted(used)},
            notes=tuple(notes),
        )

    def _outermost_operators(self) -> Iterable[Range]:
        """Torch's outermost operators, which users recognize from their code."""
        for operators in self._operators.values():
            reached = 0
            for operator in sorted(operators, key=lambda operator: (operator.start_ns, -operator.end_ns)):
                if operator.start_ns >= reached:
                    reached = operator.end_ns
                    yield operator


def _way(name: str) -> tuple[Direction, Memory]:
    """Return a copy's direction and kind of host memory, by its name."""
    if (found := _COPY.match(name)) is None:
        return "other", "unknown"
    direction = _DIRECTIONS.get(found[1], "other")
    host = found[2] if direction == "host to device" else found[3]
    return direction, "device" if direction == "device to device" else _MEMORIES.get(host, "unknown")
