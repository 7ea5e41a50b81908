"""Handmade recordings of a training loop, in microseconds, whose every number is known."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

from fastload.profiling.recording.trace import (
    DOMAIN,
    Call,
    Copy,
    Kernel,
    Range,
    Recording,
    ThreadKey,
    assign_roles,
)

MAIN = ThreadKey(100, 100)
FEEDER = ThreadKey(100, 107)
BACKWARD = ThreadKey(100, 108)
WORKERS = (ThreadKey(201, 201), ThreadKey(202, 202))
NAMES = {MAIN: "python3", FEEDER: "fastload-feeder", BACKWARD: "pt_autograd_0"} | dict.fromkeys(
    WORKERS, "pt_data_worker"
)
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def stage(name, start, end, thread=MAIN, batch=None, blocked=None):
    """Make a range of the loader."""
    return Range(start * 1000, end * 1000, name, thread, DOMAIN, batch, None if blocked is None else blocked * 1000)


def span(name, start, end, thread=MAIN, domain=""):
    """Make a range of the user."""
    return Range(start * 1000, end * 1000, name, thread, domain)


def launch(number, start, end, thread=MAIN, name="cudaLaunchKernel"):
    return Call(start * 1000, end * 1000, name, thread, number)


def kernel(number, start, end, name="gemm", stream=7, device=0):
    return Kernel(start * 1000, end * 1000, name, device, stream, MAIN.process, number)


def h2d(number, start, end, size_bytes=1_000_000, memory="pinned", stream=13):
    return Copy(start * 1000, end * 1000, "host to device", memory, size_bytes, 0, stream, MAIN.process, number)


def recording(start, end, ranges=(), calls=(), kernels=(), copies=(), os_calls=(), source="nsys", notes=()):
    def ordered(events):
        return tuple(sorted(events, key=lambda event: event.start_ns))

    return Recording(
        source,
        start * 1000,
        end * 1000,
        assign_roles(NAMES, MAIN, ranges),
        ordered(ranges),
        ordered(calls),
        ordered(os_calls),
        ordered(kernels),
        ordered(copies),
        {0: "NVIDIA H200"} if kernels else {},
        notes,
    )


def starved(steps=5, period=1000, compute=300):
    """Record steps that wait for a batch, then compute, while workers read all the time.

    The copy runs before the kernels.
    """
    ranges, calls, kernels, copies = [], [], [], []
    for step in range(steps):
        t = step * period
        work = t + period - compute  # time at which the batch is available
        ranges += [stage("step", t, t + period, batch=step), stage("wait", t, work - 10, batch=step)]
        ranges += [span("forward", work - 10, t + period - 20)]
        ranges += [stage("h2d", work - 100, work - 60, FEEDER, step)]
        for worker in WORKERS:
            ranges += [stage("fetch", t, t + 900, worker, step, blocked=0), stage("collate", t + 800, t + 900, worker)]
        calls += [
            launch(10 * step, work - 90, work - 85, FEEDER, "cudaMemcpyAsync"),
            launch(10 * step + 1, work, work + 5),
        ]
        copies += [h2d(10 * step, work - 80, work - 40)]
        kernels += [kernel(10 * step + 1, work + 10, t + period)]
    return recording(0, steps * period, ranges, calls, kernels, copies)


def ranks(*lengths, compute=(0, 500), steps=2, process=MAIN.process):
    """Record ranks that compute, then reduce for so many microseconds until each step's end."""
    kernels = []
    for device, spent in enumerate(lengths):
        for step in range(steps):
            at = 1000 * step
            own = [kernel(None, at + compute[0], at + compute[1], device=device)]
            own.append(kernel(None, at + 1000 - spent, at + 1000, ALL_REDUCE, stream=20, device=device))
            kernels += [replace(each, process=process + device) for each in own]
    return recording(0, 1000 * steps, [stage("step", 1000 * n, 1000 * n + 1000) for n in range(steps)], kernels=kernels)


# ---- the same as an nsys export

_SCHEMA = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE ThreadNames (nameId INTEGER, priority INTEGER, globalTid INTEGER);
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER,
    domainId INTEGER, int64Value INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER,
    nameId INTEGER, callchainId INTEGER);
CREATE TABLE CUDA_CALLCHAINS (id INTEGER NOT NULL, symbol INTEGER NOT NULL, module INTEGER NOT NULL, unresolved INTEGER,
    originalIP INTEGER, stackDepth INTEGER NOT NULL, PRIMARY KEY (id, stackDepth));
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
    correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
    correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER);
CREATE TABLE OSRT_API (start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER);
"""


def export(recording, path):
    """Write ``recording`` as ``nsys export --type=sqlite`` would."""
    connection = sqlite3.connect(path)
    connection.executescript(_SCHEMA)
    strings: dict[str, int] = {}

    def text(value):
        return strings.setdefault(value, len(strings) + 1)

    def whole(key):
        return 1 << 48 | key[0] << 24 | key[1]

    def insert(table, rows):
        rows = list(rows)
        if rows:
            connection.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(rows[0]))})", rows)

    # The domain is created only in the main process; forked workers use the same one.
    created = [(-5, None, 75, "fastload", whole(MAIN), None, 1, None)]
    insert("NVTX_EVENTS", created)
    for r in recording.ranges:  # only the loader's texts are registered
        plain, registered = (None, text(r.name)) if r.domain else (r.name, None)
        place = whole(r.thread), registered, int(r.domain == DOMAIN)
        insert("NVTX_EVENTS", [(r.start_ns, r.end_ns, 59, plain, *place, r.payload)])
    insert("ThreadNames", ((text(t.name), 0, whole(t.key)) for t in recording.threads.values()))
    insert("ThreadNames", [(text("kworker/0"), 0, whole((7, 7)))])
    for number, c in enumerate(recording.calls, start=1):
        place = whole(c.thread), c.correlation, text(f"{c.name}_v7000"), number if c.backtrace else None
        insert("CUPTI_ACTIVITY_KIND_RUNTIME", [(c.start_ns, c.end_ns, *place)])
        if c.backtrace:  # CUDA's own frame first, and one without a name
            frames = [("cuStreamSync", "libcuda.so.1", None), *((name, "libtorch.so", None) for name in c.backtrace)]
            frames.insert(2, ("0x7f00", "[Unknown]", 1))
            rows = [(text(name), text(f"/usr/lib/{module}"), unknown) for name, module, unknown in frames]
            insert("CUDA_CALLCHAINS", ((number, *row, 0, depth) for depth, row in reversed([*enumerate(rows)])))
    insert("OSRT_API", ((c.start_ns, c.end_ns, whole(c.thread), text(c.name)) for c in recording.os_calls))
    for k in recording.kernels:
        place = k.device, k.stream, k.correlation, whole((k.process, 0))
        names = text(f"void {k.name}<int>()"), text(k.name)
        insert("CUPTI_ACTIVITY_KIND_KERNEL", [(k.start_ns, k.end_ns, *place, *names)])
    for c in recording.copies:
        place = c.device, c.stream, c.correlation, whole((c.process, 0))
        kinds = 1, {"pageable": 0, "pinned": 1}[c.memory], 2
        insert("CUPTI_ACTIVITY_KIND_MEMCPY", [(c.start_ns, c.end_ns, *place, c.size_bytes, *kinds)])
    insert("TARGET_INFO_GPU", recording.devices.items())
    insert("StringIds", ((number, value) for value, number in strings.items()))
    connection.commit()
    connection.close()
    return path
