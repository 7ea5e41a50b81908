"""An attached profiler receives fastload's stages; a real NVTX tool logs them."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest
import torch.utils.data._utils.fetch as torch_fetch
from costs import in_calls

from fastload.nvtx import stages

STAGES = ("fetch", "read", "decode", "collate", "h2d", "epilogue", "wait")

DATASETS = """
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from fastload import FastLoader
from fastload.nvtx.stages import instrument_fetch, stage

class Squares(Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        if index == self.bad:
            raise ValueError("bad sample")
        return index * index
    bad = None

class Stream(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        return iter(range(info.id, 8, info.num_workers) if info else range(8))
"""


def test_each_stage_arrives_under_its_own_name_in_the_domain(traced):
    trace = traced(f"""
from fastload.nvtx.stages import stage
for batch, name in enumerate({STAGES!r}):
    with stage(name, batch=batch):
        pass
""")
    ranges = trace.ranges()
    assert [(r.domain, r.name, r.payload, r.payload_type) for r in ranges] == [
        ("fastload", name, batch, "int64") for batch, name in enumerate(STAGES)
    ]
    assert {event.domain for event in trace.events if event.kind == "domain_create"} == {"fastload"}


def test_batch_number_is_payload_so_the_name_stays_constant(traced):
    trace = traced("""
from fastload.nvtx.stages import stage
for batch in (0, 1, 2**40, -1, None):
    with stage("h2d", batch):
        pass
""")
    assert [r.payload for r in trace.ranges("h2d")] == [0, 1, 2**40, -1, None]
    assert [r.payload_type for r in trace.ranges("h2d")] == ["int64"] * 4 + [None]
    assert {event.message for event in trace.events if event.kind == "register_string"} <= set(STAGES)


def test_stages_nest(traced):
    trace = traced("""
from fastload.nvtx.stages import stage
with stage("wait", 4):
    with stage("h2d", 5):
        pass
    with stage("epilogue", 6), stage("h2d", 7):
        pass
""")
    assert [(r.name, r.payload, r.parents) for r in trace.ranges()] == [
        ("wait", 4, ()),
        ("h2d", 5, ("wait",)),
        ("epilogue", 6, ("wait",)),
        ("h2d", 7, ("wait", "epilogue")),
    ]


def test_an_exception_closes_every_range_and_passes_through(traced):
    trace = traced("""
from fastload.nvtx.stages import stage
try:
    with stage("fetch", 1):
        with stage("decode", 1):
            raise KeyError("from the body")
except KeyError as error:
    print(error)
with stage("wait", 2):
    pass
""")
    assert "from the body" in trace.stdout
    assert [(r.name, r.parents) for r in trace.ranges()] == [("fetch", ()), ("decode", ("fetch",)), ("wait", ())]


def test_threads_keep_their_own_ranges_and_payloads(traced):
    trace = traced("""
import sys, threading
from fastload.nvtx.stages import stage
sys.setswitchinterval(1e-6)
start = threading.Barrier(4)

def work(thread):
    start.wait()
    for batch in range(300):
        with stage("collate", thread * 1000 + batch):
            with stage("h2d", thread * 1000 + batch):
                pass

threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
""")
    payloads = defaultdict(list)
    for found in trace.ranges("h2d"):
        payloads[found.tid].append(found.payload)
        assert found.parents == ("collate",)
    expected = [[thread * 1000 + batch for batch in range(300)] for thread in range(4)]
    assert sorted(payloads.values()) == expected


def test_a_range_of_the_process_ends_once_on_whichever_thread(traced):
    trace = traced("""
import threading
from fastload.nvtx.ranges import NvtxRange, ProcessRange
opened = ProcessRange("backward")
with NvtxRange("beside"):
    thread = threading.Thread(target=opened.end)
    thread.start()
    thread.join()
opened.end()
""")
    ((name, started, ended),) = trace.process_ranges()
    assert name == "backward"
    assert started != ended
    assert [r.name for r in trace.ranges()] == ["beside"]


def test_a_thread_is_shown_by_its_name(traced):
    trace = traced("""
import threading
from pathlib import Path
from fastload.nvtx.stages import name_thread, stage

def work():
    name_thread("fastload-feeder-0")
    print(Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text().strip())

process_name = Path("/proc/self/comm").read_text()
name_thread("main")
assert Path("/proc/self/comm").read_text() == process_name
thread = threading.Thread(target=work)
thread.start()
thread.join()
""")
    assert trace.stdout.split() == ["fastload-feeder"]  # the operating system keeps 15 bytes
    if stages._name_os_thread() is None:
        pytest.skip("libnvtx3interop is not installed: only the operating system's thread names were checked")
    assert sorted(trace.thread_names().values()) == ["fastload-feeder-0", "main"]


@pytest.mark.each_value
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.parametrize("dataset", ["Squares()", "Stream()"])
def test_workers_send_a_fetch_per_batch_with_the_batch_number(traced, method, dataset):
    trace = traced(
        DATASETS
        + f"""
if __name__ == "__main__":
    instrument_fetch()  # as for an epoch without workers, which forked ones inherit
    loader = FastLoader({dataset}, batch_size=2, num_workers=2, multiprocessing_context={method!r}, device="cpu")
    print(len(list(loader)))
"""
    )
    batches = int(trace.stdout)
    fetches = trace.ranges("fetch")
    waits = trace.ranges("wait")
    by_process = {pid: [r.payload for r in fetches if r.pid == pid] for pid in {r.pid for r in fetches}}
    assert len(by_process) == 2, "one process per worker"
    assert not by_process.keys() & {r.pid for r in waits}, "and the main process is neither"
    # An iterable dataset is asked once more, which is how a worker learns that its share has ended.
    asked = sorted(payload for payloads in by_process.values() for payload in payloads)
    assert asked[:batches] == list(range(batches))
    assert len(asked) == batches if dataset == "Squares()" else len(asked) <= batches + 4
    for payloads in by_process.values():
        assert payloads == sorted(payloads)
        assert len({payload % 2 for payload in payloads}) == 1, "batches are dealt to the workers in turn"
    assert [r.payload for r in waits] == list(range(batches + 1))


def test_a_forked_process_registers_the_names_of_its_ranges_itself(traced):
    """Nsight Systems drops ranges whose registered name belongs to another process."""
    trace = traced("""
import os
from fastload.nvtx.stages import stage
from fastload.nvtx.ranges import NvtxRange

def work():
    with stage("fetch", 1), NvtxRange("mine"):
        pass

work()
if os.fork() == 0:
    work()
    os._exit(0)
os.wait()
""")
    registered = {(event.pid, event.message) for event in trace.events if event.kind == "register_string"}
    assert len(trace.pids) == 2
    assert registered >= {(pid, name) for pid in trace.pids for name in ("fetch", "mine")}


@pytest.mark.slow
def test_a_failing_sample_leaves_no_range_open_in_its_worker(traced):
    trace = traced(
        DATASETS
        + """
if __name__ == "__main__":
    data = Squares()
    data.bad = 5
    try:
        list(FastLoader(data, batch_size=2, num_workers=2, device="cpu"))
    except ValueError as error:
        print("ValueError" in str(error))
"""
    )
    assert trace.stdout.split() == ["True"]
    assert 2 in {r.payload for r in trace.ranges("fetch")}  # ranges() itself fails on a push without a pop


def test_fetching_in_the_main_process_carries_the_batch_number_too(traced):
    trace = traced(
        DATASETS
        + """
instrument_fetch()
instrument_fetch()
for epoch in range(2):
    assert len(list(DataLoader(Squares(), batch_size=5))) == 3
"""
    )
    assert [r.payload for r in trace.ranges("fetch")] == [0, 1, 2, 0, 1, 2]
    assert len(trace.pids) == 1


def test_a_torch_without_these_fetchers_is_left_alone(traced):
    trace = traced(
        DATASETS
        + """
import torch.utils.data._utils.fetch as fetch
kept = fetch._IterableDatasetFetcher.fetch
del fetch._MapDatasetFetcher
instrument_fetch()
assert fetch._IterableDatasetFetcher.fetch is not kept
import sys
sys.modules["torch.utils.data._utils.fetch"] = None
del torch.utils.data._utils.fetch
instrument_fetch()
"""
    )
    assert trace.ranges() == []


def test_nvtx_disable_is_respected(traced):
    trace = traced(
        """
from fastload.nvtx.stages import active, stage
with stage("h2d", 1):
    pass
print(active())
""",
        env={"NVTX_DISABLE": "1"},
    )
    assert trace.stdout.split() == ["False"]
    assert trace.events == ()


def test_a_tool_that_does_not_load_leaves_the_program_running(tmp_path, traced):
    trace = traced(
        """
import json
from fastload.nvtx.stages import active, instrument_fetch, name_thread, stage
with stage("h2d", 1):
    name_thread("x")
instrument_fetch()
print(json.dumps(active()))
""",
        env={"NVTX_INJECTION64_PATH": str(tmp_path / "missing.so")},
    )
    assert json.loads(trace.stdout) is False
    assert trace.events == ()


@pytest.fixture
def no_tool():
    if stages.active():
        pytest.skip("a profiler is attached to the tests themselves")


@pytest.mark.usefixtures("no_tool")
def test_without_a_tool_every_stage_is_the_same_context():
    assert stages.stage("fetch", 1) is stages.stage("h2d") is stages.stage("wait", 2)
    with pytest.raises(ZeroDivisionError), stages.stage("wait"), stages.stage("wait"):
        raise ZeroDivisionError


@pytest.mark.usefixtures("no_tool")
def test_without_a_tool_fetchers_are_not_wrapped():
    before = torch_fetch._MapDatasetFetcher.fetch
    stages.instrument_fetch()
    stages.name_thread("unseen")
    assert torch_fetch._MapDatasetFetcher.fetch is before


@pytest.mark.usefixtures("no_tool")
def test_without_a_tool_a_stage_costs_next_to_nothing():
    def once():
        with stages.stage("h2d", 3):
            pass

    assert in_calls(once) < 40  # 5 to 18 were measured
