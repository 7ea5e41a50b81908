"""Decode threads tell an NVTX tool which batch they are at."""

from __future__ import annotations

from collections import defaultdict

from nvtx_injection import run_traced
from photos import make_folder

SCRIPT = """
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, PILToTensor, RandomResizedCrop
from fastload import FastLoader

dataset = ImageFolder({root!r}, Compose([RandomResizedCrop(24), PILToTensor()]))
loader = FastLoader(dataset, batch_size=5, num_workers=2, device="cpu", engine="native")
for epoch in range({epochs}):
    for step, batch in enumerate(loader):
        if step == {last}:
            break
"""


def traced(tmp_path, count, epochs=1, last=None):
    root = make_folder(tmp_path / "photos", count)
    return run_traced(SCRIPT.format(root=str(root), epochs=epochs, last=last), tmp_path)


def test_each_batch_is_seen_in_the_decode_threads_under_its_number(tmp_path):
    trace = traced(tmp_path, 20)
    decode = trace.ranges("decode")  # fails where a push has no pop
    assert {found.payload for found in decode} == set(range(4))
    assert {found.payload_type for found in decode} == {"uint64"}
    assert all(found.depth == 0 for found in decode)
    collate = trace.ranges("collate")
    assert [found.payload for found in collate] == list(range(4))
    assert {found.tid for found in decode}.isdisjoint({found.tid for found in [*collate, *trace.ranges("wait")]})
    begins = defaultdict(list)
    ends = defaultdict(list)
    for found in decode:
        begins[found.payload].append(found.start_ns)
        ends[found.payload].append(found.end_ns)
    for batch in collate:  # a batch is put together when its last thread is about to leave it, not before
        assert min(begins[batch.payload]) < batch.start_ns


def test_a_thread_opens_no_range_per_image(tmp_path):
    trace = traced(tmp_path, 20)
    per_thread = defaultdict(int)
    for found in trace.ranges("decode"):
        per_thread[found.tid] += 1
    assert sum(per_thread.values()) < 20


def test_ranges_are_closed_when_a_loop_breaks(tmp_path):
    trace = traced(tmp_path, 20, epochs=2, last=1)
    assert {found.payload for found in trace.ranges("decode")} >= {0, 1}
