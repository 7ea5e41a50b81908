"""Read recordings from an nsys export and from torch.profiler's trace."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pytest
from handmade import MAIN, WORKERS, Call, export, h2d, kernel, launch, recording, span, stage, starved

from fastload.profiling.analysis.findings import find
from fastload.profiling.pages import timeline
from fastload.profiling.pages.report import make_report
from fastload.profiling.recording import nsys_export, torch_trace
from fastload.profiling.recording.nsys import NsightError
from fastload.profiling.recording.trace import DOMAIN, OPERATOR, ThreadKey


def test_an_export_of_nsys_reads_back_as_it_was(tmp_path):
    made = starved()
    found = nsys_export.read(export(made, tmp_path / "profile.sqlite"))
    assert found.window == made.window
    assert found.threads == made.threads
    # What was blocked comes from the calls of the operating system, of which there are none here.
    assert set(found.ranges) == {replace(span, blocked_ns=None) for span in made.ranges}
    assert (found.calls, found.kernels, found.copies) == (made.calls, made.kernels, made.copies)
    assert found.devices == {0: "NVIDIA H200"}
    assert "were not recorded" in found.notes[0]


def test_reads_and_sleeps_within_a_fetch_are_told(tmp_path):
    worker = WORKERS[0]
    ranges = [stage("step", 0, 1000), stage("fetch", 100, 500, worker), stage("collate", 500, 600, worker)]
    waits = [(0, 150, "poll"), (200, 300, "read"), (250, 260, "open"), (490, 700, "futex")]
    os_calls = [Call(start * 1000, end * 1000, name, worker) for start, end, name in waits]
    found = nsys_export.read(export(recording(0, 1000, ranges, os_calls=os_calls), tmp_path / "profile.sqlite"))
    blocked = {span.name: span.blocked_ns for span in found.ranges}
    assert blocked == {"step": None, "fetch": (50 + 100 + 10) * 1000, "collate": None}
    assert found.notes == ()


def test_without_steps_the_window_is_what_the_main_thread_and_the_device_did(tmp_path):
    ranges = [stage("wait", 100, 200), stage("fetch", 0, 900, WORKERS[0])]
    made = recording(0, 0, ranges, [launch(1, 300, 310)], [kernel(1, 320, 500)])
    assert nsys_export.read(export(made, tmp_path / "profile.sqlite")).window == (100_000, 500_000)


def test_without_ranges_the_thread_that_launches_most_trains(tmp_path):
    calls = [launch(n, n, n + 1) for n in range(3)] + [launch(9, 5, 6, WORKERS[0])]
    made = recording(0, 10, (), calls, [kernel(1, 2, 3)])
    assert nsys_export.read(export(made, tmp_path / "profile.sqlite")).main == MAIN


def test_an_empty_export_is_an_empty_recording(tmp_path):
    found = nsys_export.read(export(recording(0, 0), tmp_path / "profile.sqlite"))
    assert (found.window, found.main, found.kernels) == ((0, 0), None, ())


def test_what_called_cuda_is_read_and_summed_by_place(tmp_path):
    def sync(start, end, *frames):
        return Call(1000 * start, 1000 * end, "cudaStreamSynchronize", MAIN, start, frames)

    item, to = ("at::native::item", "THPVariable_item"), ("at::native::copy_", "THPVariable_to")
    calls = [sync(0, 10, *item), sync(20, 40, *to), sync(50, 65, *item), sync(70, 900)]
    found = nsys_export.read(export(recording(0, 1000, (), calls), tmp_path / "profile.sqlite"))
    assert [call.backtrace for call in found.calls] == [item, to, item, ()]
    places = [(use.call, use.frames, use.count, round(use.seconds * 1e6)) for use in find(found).callers]
    assert places == [("cudaStreamSynchronize", item, 2, 25), ("cudaStreamSynchronize", to, 1, 20)]
    shown = list(make_report(found).tables())[-1]
    assert shown.rows[0][0] == ("cudaStreamSynchronize", "2", "0.03 ms", "at::native::item ← THPVariable_item")


def test_a_file_that_is_no_export_is_refused(tmp_path):
    path = tmp_path / "profile.sqlite"
    path.write_text("something else that is long enough not to be taken for an empty database")
    with pytest.raises(NsightError, match=r"is not an export of nsys .* use nsys export --type=sqlite"):
        nsys_export.read(path)


# ---- torch.profiler

BASE_NS = 1_700_000_000_000_000_000


def trace_of(events, process=MAIN.process):
    head = {"ph": "M", "name": "thread_name", "pid": process, "tid": process, "args": {"name": "thread 100 (python3)"}}
    return {
        "baseTimeNanoseconds": BASE_NS,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
        "traceEvents": [head, *events],
    }


def event(category, name, start, length, thread=MAIN, **args):
    place = {"pid": thread.process, "tid": thread.thread, "ts": start, "dur": length}
    return {"ph": "X", "cat": category, "name": name, **place, "args": args}


def on_device(category, name, start, length, **args):
    return event(category, name, start, length, ThreadKey(0, args["stream"]), device=0, **args)


EVENTS = [
    event("cpu_op", "step", 0, 1000),  # what ranges of annotate and capture become
    event("cpu_op", "aten::conv2d", 100, 50),
    event("cpu_op", "aten::convolution", 110, 30),
    event("cpu_op", "autograd::engine::evaluate_function: AddBackward0", 200, 30),
    event("cpu_op", "layer1", 90, 100),
    event("user_annotation", "Optimizer.step#SGD.step", 700, 50),
    event("cuda_runtime", "cudaLaunchKernel", 120, 5, correlation=1),
    on_device("kernel", "void cudnn::ops::nchwToNhwcKernel<float>(int)", 130, 60, stream=7, correlation=1),
    on_device("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 20, 40, stream=13, correlation=2, bytes=10**6),
    on_device("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 70, 9, stream=7, bytes=10),
    event("Trace", "PyTorch Profiler (0)", -5, 1100, ThreadKey("Spans", "PyTorch Profiler")),
]


def write_ranges(folder, process, *records):
    lines = [json.dumps(record) for record in records]
    (folder / f"ranges-{process}.jsonl").write_text("\n".join(lines) + '\n{"cut off')


def at(microseconds):
    return BASE_NS + microseconds * 1000


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "profile.json").write_text(json.dumps(trace_of(EVENTS)))
    write_ranges(
        tmp_path,
        MAIN.process,
        [MAIN.thread, "trainer"],
        [at(0), at(1000), MAIN.thread, DOMAIN, "step", 3, None, None],
        [at(0), at(90), MAIN.thread, DOMAIN, "wait", 3, None, None],
        [at(-900), at(-500), MAIN.thread, DOMAIN, "wait", 2, None, None],
    )
    worker = WORKERS[0]
    write_ranges(tmp_path, worker.process, [at(10), at(400), worker.thread, DOMAIN, "fetch", 4, 150_000, 40_000])
    write_ranges(tmp_path, 999, [at(-99), at(-50), 999, DOMAIN, "fetch", 0, 0, 0])  # a worker of an earlier epoch
    return tmp_path


def test_a_trace_and_the_ranges_of_all_processes_become_one_recording(folder):
    found = torch_trace.read(folder)
    assert found.source == "torch.profiler"
    assert found.window == (at(0), at(1000))
    assert {key: thread.role for key, thread in found.threads.items()} == {MAIN: "main", WORKERS[0]: "worker"}
    assert found.threads[MAIN].name == "trainer"
    names = [(span.name, span.domain, span.payload) for span in found.ranges]
    assert names == [
        ("step", DOMAIN, 3),  # once, though both have it
        ("wait", DOMAIN, 3),
        ("fetch", DOMAIN, 4),
        ("layer1", "torch", None),
        ("aten::conv2d", OPERATOR, None),  # without the operators that it calls
        ("autograd::engine::evaluate_function: AddBackward0", OPERATOR, None),
        ("Optimizer.step#SGD.step", "torch", None),
    ]
    (fetch,) = [span for span in found.ranges if span.name == "fetch"]
    assert (fetch.blocked_ns, fetch.queued_ns) == (150_000, 40_000)
    (kernel,) = found.kernels
    assert (kernel.name, kernel.stream, kernel.correlation, kernel.converts_layout) == ("nchwToNhwcKernel", 7, 1, True)
    assert [(copy.memory, copy.direction, copy.size_bytes) for copy in found.copies] == [
        ("pinned", "host to device", 10**6),
        ("pageable", "host to device", 10),
    ]
    assert [(call.name, call.start_ns, call.correlation) for call in found.calls] == [("cudaLaunchKernel", at(120), 1)]
    assert found.devices == {0: "NVIDIA H200"}


def test_a_trace_alone_is_enough_also_compressed(tmp_path):
    content = json.dumps(trace_of(EVENTS)).encode()
    (tmp_path / "trace.json.gz").write_bytes(gzip.compress(content))
    found = torch_trace.read(tmp_path)
    assert found.main == MAIN
    assert found.window == (at(0), at(1000)), "the step's range is in the trace as well"


def test_of_several_ranks_the_first_is_read(tmp_path):
    other = [{**each, "pid": 500, "tid": 500} for each in EVENTS if each["cat"] == "cpu_op"]
    (tmp_path / "profile.rank1.json").write_text(json.dumps(trace_of(other, 500)))
    (tmp_path / "profile.rank0.json").write_text(json.dumps(trace_of(EVENTS)))
    found = torch_trace.read(tmp_path)
    assert found.main == MAIN
    assert found.notes == ("1 more processes were traced; this is the one with the lowest id",)


@pytest.mark.parametrize(("code", "message"), [(0, "ask for fewer --warmup steps"), (3, "ended with exit code 3")])
def test_a_folder_without_a_trace_says_why(tmp_path, code, message):
    (tmp_path / "profile.json").write_text("[]")
    with pytest.raises(NsightError, match=message):
        torch_trace.read(tmp_path, code)


def test_a_gpu_without_a_kernel_is_mentioned(tmp_path):
    """Only a hidden log says what keeps torch.profiler from recording kernels."""
    path = tmp_path / "trace.json"
    made = trace_of([each for each in EVENTS if each["cat"] != "kernel"])
    path.write_text(json.dumps(made))
    (note,) = torch_trace.read(tmp_path).notes
    assert "no kernel was recorded, although there is a GPU" in note
    path.write_text(json.dumps(made | {"deviceProperties": []}))
    assert torch_trace.read(tmp_path).notes == ()


def test_profiler_steps_count_as_steps(tmp_path):
    marks = [event("user_annotation", f"ProfilerStep#{n}", 100 * n, 90) for n in range(1, 4)]
    (tmp_path / "trace.json").write_text(json.dumps(trace_of([*marks, span_event()])))
    found = torch_trace.read(tmp_path)
    assert found.window == (at(100), at(390))
    assert [(s.name, s.payload) for s in found.ranges if s.domain == DOMAIN] == [("step", 1), ("step", 2), ("step", 3)]


def span_event():
    return event("cpu_op", "aten::add", 150, 10)


def test_ranges_of_users_keep_their_domain(tmp_path):
    made = recording(
        0, 100, [stage("step", 0, 100), span("mine", 10, 20)], [launch(1, 1, 2)], [kernel(1, 3, 4)], [h2d(2, 0, 1)]
    )
    found = nsys_export.read(export(made, tmp_path / "profile.sqlite"))
    assert [(s.name, s.domain) for s in found.ranges] == [("step", DOMAIN), ("mine", "")]


@pytest.mark.parametrize(
    ("name", "share", "shown"),
    [("forward", 0.1, "forward"), ("Sequential backward", 0.1, "Sequential…"), ("forward", 0.01, None)],
)
def test_a_bar_of_the_picture_bears_as_much_of_its_name_as_fits(name, share, shown):
    assert timeline._fitting(name, share) == shown
