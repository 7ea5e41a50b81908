"""Read an export of ``nsys export --type=sqlite``.

Empty tables are not written, and columns differ between versions, so the reader checks for both. Thread and process ids
are packed into one number: from the low end 24 bits of thread id and 24 of process id.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from fastload.nvtx.stages import DOMAIN
from fastload.profiling.recording.intervals import length, part, union
from fastload.profiling.recording.nsys import NsightError
from fastload.profiling.recording.trace import (
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
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_PUSH_POP: Final = 59
_START_END: Final = 60
_DOMAIN_CREATE: Final = 75

_DIRECTIONS: Final[dict[int, Direction]] = {1: "host to device", 2: "device to host", 8: "device to device"}
_MEMORIES: Final[dict[int, Memory]] = {0: "pageable", 1: "pinned", 2: "device", 3: "device", 4: "managed"}

_ON_DEVICE: Final = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
_VERSION: Final = re.compile(r"_v\d+$")  # in names of CUDA's functions
_CUDA_CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_CUDA_LIBRARY: Final = re.compile(r"lib(cuda|cupti|nvidia|ToolsInjection)", re.IGNORECASE)
FRAMES_MAX: Final = 8  # frames kept of a call stack
_ID_BITS: Final = 24
_ID_MASK: Final = (1 << _ID_BITS) - 1


def thread_of(global_id: int) -> ThreadKey:
    """The ids in a ``globalTid``."""
    return ThreadKey(global_id >> _ID_BITS & _ID_MASK, global_id & _ID_MASK)


def read(path: Path) -> Recording:
    """Read an exported recording. Blocks; raises ``NsightError`` if the file is none."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            return _NsysReader(connection).recording()
    except sqlite3.DatabaseError as error:
        raise NsightError(f"{path} is not an export of nsys ({error}); use nsys export --type=sqlite") from error


class _NsysReader:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        connection.row_factory = sqlite3.Row
        self._tables: dict[str, set[str]] = {}
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            self._tables[table] = {row["name"] for row in connection.execute(f'PRAGMA table_info("{table}")')}
        self._strings: dict[int, str] = {row["id"]: row["value"] for row in self._rows("StringIds", ("id", "value"))}

    def _rows(self, table: str, wanted: Sequence[str], where: str = "") -> Iterator[Any]:
        """Yield a table's rows, with None for missing columns; nothing if it does not exist."""
        present = self._tables.get(table)
        if present is None:
            return
        columns = ", ".join(name if name in present else f"NULL AS {name}" for name in wanted)
        yield from self._connection.execute(f'SELECT {columns} FROM "{table}" {where}')

    def _string(self, number: int | None, default: str = "") -> str:
        return default if number is None else self._strings.get(number, default)

    def recording(self) -> Recording:
        calls, ranges, os_calls = self._calls(_CUDA_CALLS), self._ranges(), self._calls("OSRT_API")
        kernels, copies = self._kernels(), self._copies()
        main = training_thread(ranges) or _launching_thread(calls)
        steps: list[Span] = [span for span in ranges if span.thread == main and span.name == STEP]
        events: list[Range | Call] = [*ranges, *calls]
        of_main = [event for event in events if main in (None, event.thread)]
        start, end = extent(steps or [*of_main, *kernels, *copies])
        active = {event.thread for event in [*events, *os_calls]}
        processes = {thread.process for thread in active}
        # Nsight lists every thread of the system.
        rows = self._rows("ThreadNames", ("nameId", "priority", "globalTid"), "ORDER BY 2")
        named = {thread_of(row["globalTid"]): self._string(row["nameId"]) for row in rows}
        names = {thread: name for thread, name in named.items() if thread.process in processes}
        note = "calls of the operating system were not recorded: reads and sleeps are not told from computing"
        return Recording(
            source="nsys",
            start_ns=start,
            end_ns=end,
            threads=assign_roles(dict.fromkeys(active, "") | names, main, ranges),
            ranges=tuple(_blocked(ranges, os_calls)),
            calls=calls,
            os_calls=os_calls,
            kernels=kernels,
            copies=copies,
            devices={row["id"]: row["name"] or "GPU" for row in self._rows("TARGET_INFO_GPU", ("id", "name"))},
            notes=() if os_calls else (note,),
        )

    def _ranges(self) -> tuple[Range, ...]:
        wanted = ("start", "end", "eventType", "text", "textId", "globalTid", "domainId")
        payloads = ("int64Value", "uint64Value", "int32Value", "uint32Value")
        events = list(self._rows("NVTX_EVENTS", (*wanted, *payloads), "ORDER BY start, end DESC"))
        # A domain belongs to a process; a forked process uses its parent's, which was created earlier.
        domains: dict[tuple[int, int], str] = {}
        inherited: dict[int, str] = {}
        for row in events:
            if row["eventType"] == _DOMAIN_CREATE:
                name = row["text"] or self._string(row["textId"])
                domains[row["globalTid"] >> _ID_BITS, row["domainId"]] = name
                inherited.setdefault(row["domainId"], name)
        found = []
        for row in events:
            if row["eventType"] not in (_PUSH_POP, _START_END) or row["end"] is None:
                continue
            number = row["domainId"]
            payload = next((row[name] for name in payloads if row[name] is not None), None)
            found.append(
                Range(
                    row["start"],
                    row["end"],
                    row["text"] or self._string(row["textId"], "?"),
                    thread_of(row["globalTid"]),
                    domains.get((row["globalTid"] >> _ID_BITS, number), inherited.get(number, "")),
                    payload,
                )
            )
        return tuple(found)

    def _backtraces(self) -> dict[int, tuple[str, ...]]:
        """Call stacks of CUDA's calls by id, without frames of CUDA's own and unresolved ones."""
        found: dict[int, list[str]] = {}
        for row in self._rows("CUDA_CALLCHAINS", ("id", "symbol", "module", "unresolved"), "ORDER BY id, stackDepth"):
            frames = found.setdefault(row["id"], [])
            module = self._string(row["module"]).rpartition("/")[2]
            if not row["unresolved"] and not _CUDA_LIBRARY.match(module) and len(frames) < FRAMES_MAX:
                frames.append(self._string(row["symbol"], "?"))
        return {number: tuple(frames) for number, frames in found.items()}

    def _calls(self, table: str) -> tuple[Call, ...]:
        wanted = ("start", "end", "globalTid", "correlationId", "nameId", "callchainId")
        backtraces = self._backtraces() if table == _CUDA_CALLS else {}
        return tuple(
            Call(
                row["start"],
                row["end"],
                _VERSION.sub("", self._string(row["nameId"])),
                thread_of(row["globalTid"]),
                row["correlationId"],
                backtraces.get(row["callchainId"], ()),
            )
            for row in self._rows(table, wanted, "ORDER BY start")
            if row["end"] is not None
        )

    def _kernels(self) -> tuple[Kernel, ...]:
        wanted = (*_ON_DEVICE, "shortName", "demangledName")
        found = []
        for row in self._rows("CUPTI_ACTIVITY_KIND_KERNEL", wanted, "ORDER BY start"):
            name = kernel_name(self._string(row["demangledName"]), self._string(row["shortName"]))
            found.append(Kernel(row["start"], row["end"], name, *_place(row)))
        return tuple(found)

    def _copies(self) -> tuple[Copy, ...]:
        wanted = (*_ON_DEVICE, "bytes", "copyKind", "srcKind", "dstKind")
        found = []
        for row in self._rows("CUPTI_ACTIVITY_KIND_MEMCPY", wanted, "ORDER BY start"):
            direction = _DIRECTIONS.get(row["copyKind"], "other")
            host = row["srcKind"] if direction == "host to device" else row["dstKind"]
            memory: Memory = "device" if direction == "device to device" else _MEMORIES.get(host, "unknown")
            found.append(Copy(row["start"], row["end"], direction, memory, row["bytes"], *_place(row)))
        return tuple(found)


def _place(row: Any) -> tuple[int, int, int, int | None]:
    """Return device, stream, process and correlation of a kernel or a copy."""
    return row["deviceId"], row["streamId"], thread_of(row["globalPid"] or 0).process, row["correlationId"]


def _launching_thread(calls: Sequence[Call]) -> ThreadKey | None:
    """Return the thread that launches most kernels.

    Backward runs on an autograd thread, but the loop on the thread whose id is the process's.
    """
    launching = [call.thread for call in calls if "Launch" in call.name]
    return most_common(key for key in launching if key.process == key.thread) or most_common(launching)


def _blocked(ranges: Sequence[Range], os_calls: Sequence[Call]) -> Iterator[Range]:
    """Add to each ``fetch`` and ``read`` its time inside calls of the operating system."""
    if not os_calls:
        yield from ranges
        return
    by_thread: dict[ThreadKey, list[tuple[int, int]]] = {}
    for call in os_calls:
        by_thread.setdefault(call.thread, []).append(call.interval)
    unions = {thread: union(intervals) for thread, intervals in by_thread.items()}
    for span in ranges:
        if span.domain == DOMAIN and span.name in ("fetch", "read"):
            blocked = part(unions.get(span.thread, []), span.interval)
            yield replace(span, blocked_ns=length(blocked))
        else:
            yield span
