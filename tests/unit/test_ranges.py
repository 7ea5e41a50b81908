"""Test ranges written to files, which ``fastload profile`` uses without an NVTX tool."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

import interpreters
import pytest

from fastload.nvtx import file_sink


def records(folder):
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


@pytest.fixture
def domain(tmp_path):
    domain = file_sink.Domain("fastload", tmp_path)
    yield domain
    if domain._process:
        os.close(domain._descriptor)


def test_nested_ranges_are_written_when_they_end(domain, tmp_path):
    domain.push_range(domain.get_event_attributes(message="outer", payload=7))
    domain.push_range(domain.get_event_attributes(message="inner"))
    domain.pop_range()
    domain.pop_range()
    domain.pop_range()  # one too many
    inner, outer = records(tmp_path)
    assert outer[2:] == [threading.get_native_id(), "fastload", "outer", 7, None, None]
    assert inner[4] == "inner"
    assert outer[0] <= inner[0] <= inner[1] <= outer[1]


def test_a_range_of_the_process_may_end_on_another_thread(domain, tmp_path):
    started = domain.start_range(domain.get_event_attributes(message="backward", payload=3))
    thread = threading.Thread(target=domain.end_range, args=(started,))
    thread.start()
    thread.join()
    (found,) = records(tmp_path)
    assert found[0] <= found[1]
    assert found[2:] == [threading.get_native_id(), "fastload", "backward", 3, None, None]


def compute_in_a_fetch(domain, seconds, sleep_s=0.0):
    """Return how long it took beyond its ``seconds`` of processor time, in ns."""
    begun = time.monotonic_ns()
    domain.push_range(domain.get_event_attributes(message="fetch"))
    if sleep_s:
        time.sleep(sleep_s)
    until = time.thread_time_ns() + int(seconds * 1e9)
    while time.thread_time_ns() < until:
        pass
    domain.pop_range()
    return time.monotonic_ns() - begun - int(seconds * 1e9)


def test_a_fetch_tells_sleeping_from_computing(domain, tmp_path):
    domain.push_range(domain.get_event_attributes(message="fetch"))
    time.sleep(0.05)
    domain.pop_range()
    beyond = compute_in_a_fetch(domain, 0.05)
    slept, computed = (record[6:] for record in records(tmp_path))
    assert slept[0] >= 0.045e9
    assert computed[0] <= beyond + 1e6  # two clocks


def test_a_core_that_a_host_takes_away_is_waited_for(domain, tmp_path, monkeypatch):
    """No queue shows such time; a blocked thread has given its core up itself."""
    idle = iter([(100_000, 0, 7), (900_000, 50_000, 7), (100_000, 0, 7), (900_000, 50_000, 8)])
    monkeypatch.setattr(file_sink, "_idle", lambda: next(idle))
    for _ in range(2):
        compute_in_a_fetch(domain, 0.001)
    assert [record[6:] for record in records(tmp_path)] == [[0, 850_000], [800_000, 50_000]]


@pytest.mark.skipif(sys.platform != "linux", reason="cores and their queues as Linux has them")
def test_a_fetch_that_waits_for_a_core_does_not_sleep(domain, tmp_path):
    """One fetch is enough: no queue here shows what another machine takes of the processor."""
    cores = os.sched_getaffinity(0)
    one = min(cores)
    code = f"import os; os.sched_setaffinity(0, [{one}]); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        os.sched_setaffinity(0, [one])
        try:
            beyond = [compute_in_a_fetch(domain, 0.05, sleep_s=1e-4) for _ in range(5)]
        finally:
            os.sched_setaffinity(0, cores)
            other.kill()
    told = [record[6:] for record in records(tmp_path)]
    assert any(
        waited > 0.02e9 and slept < waited / 2 < queued for waited, (slept, queued) in zip(beyond, told, strict=True)
    ), (beyond, told)


PROGRAM = """
import os
from fastload.nvtx import stages
assert stages.active()
stages.name_thread("trainer")
with stages.stage("wait", 3):
    if os.fork() == 0:
        with stages.stage("fetch", 4):
            pass
        os._exit(0)
    os.wait()
"""


def test_stages_of_a_process_and_of_its_forks_go_to_files_of_their_own(tmp_path):
    environment = {**os.environ, "FASTLOAD_RANGES": str(tmp_path)}
    environment.pop("NVTX_INJECTION64_PATH", None)
    done = interpreters.run(["-c", PROGRAM], env=environment)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("*.jsonl"))) == 2
    found = records(tmp_path)
    assert {tuple(record[3:6]) for record in found if len(record) == 8} == {
        ("fastload", "wait", 3),
        ("fastload", "fetch", 4),
    }
    assert [record[1] for record in found if len(record) == 2] == ["trainer"]


DEFERRED = """
import io
import numpy as np
from PIL import Image
from torch.utils.data import Dataset
from torchvision.transforms import functional
from fastload import FastLoader

file = io.BytesIO()
Image.fromarray(np.zeros((256, 256, 3), np.uint8)).save(file, "jpeg")


class Photos(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return functional.to_tensor(Image.open(io.BytesIO(file.getvalue())).resize((128, 128)))


with FastLoader(Photos(), batch_size=2, num_workers=1, device="cpu") as loader:
    list(loader)
assert loader.stats().deferred_images  # the first ones are compared with what torch makes
"""


@pytest.mark.slow
def test_deferred_samples_are_recorded_and_painted_in_ranges_within_their_fetch(tmp_path):
    environment = {**os.environ, "FASTLOAD_RANGES": str(tmp_path)}
    environment.pop("NVTX_INJECTION64_PATH", None)
    done = interpreters.run(["-c", DEFERRED], env=environment)
    assert done.returncode == 0, done.stderr
    spans: dict[str, list[tuple[int, int]]] = {}
    for record in sorted(record[:6] for record in records(tmp_path) if len(record) == 8):
        spans.setdefault(record[4], []).append((record[0], record[1]))
    fetches, recordings, paintings = (spans[name] for name in ("fetch", "record", "paint"))
    assert len(fetches) == len(recordings) == 2
    for outer, inner in zip(fetches, recordings, strict=True):
        assert outer[0] <= inner[0] < inner[1] <= outer[1]
    assert any(recordings[-1][0] < began < ended < recordings[-1][1] for began, ended in paintings)


def test_without_the_variable_stages_cost_nothing(monkeypatch):
    code = "from fastload.nvtx import stages; assert not stages.active()"
    environment = {key: value for key, value in os.environ.items() if key != "FASTLOAD_RANGES"}
    done = interpreters.run(["-c", code], env=environment)
    assert done.returncode == 0, done.stderr
