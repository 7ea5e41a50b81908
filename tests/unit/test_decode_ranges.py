"""Decode threads tell an NVTX tool which batch they are at."""

from __future__ import annotations

from collections import defaultdict

import pytest
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_thread_opens_no_range_per_image(tmp_path):
    trace = traced(tmp_path, 20)
    per_thread = defaultdict(int)
    for found in trace.ranges("decode"):
        per_thread[found.tid] += 1
    assert sum(per_thread.values()) < 20


@pytest.mark.slow
def test_ranges_are_closed_when_a_loop_breaks(tmp_path):
    trace = traced(tmp_path, 20, epochs=2, last=1)
    assert {found.payload for found in trace.ranges("decode")} >= {0, 1}


STAGING = r"""
import io
import numpy, torch
from PIL import Image
from fastload import _core

levels = numpy.random.default_rng(0).integers(0, 256, (160, 160, 3), dtype=numpy.uint8)
files = []
for progressive in (False, True, False):
    encoded = io.BytesIO()
    Image.fromarray(levels).save(encoded, "jpeg", progressive=progressive)
    files.append(encoded.getvalue())
second = files[1].index(b"\xff\xda", files[1].index(b"\xff\xda") + 2)
files[1] = files[1][:second] + b"\xff\xfe\0\4hi" + files[1][second:]  # a comment between scans: not for a GPU
pixels = torch.zeros(3, 32, 32, 3, dtype=torch.uint8)
crops = numpy.tile(numpy.array([[0, 0, 160, 160, 32, 32, 0, 0, 32, 32, 0, 0]], numpy.int32), (3, 1))
index, pool = _core.JpegIndex(1 << 20, whole=True), _core.Pool(1)
for number in range(3):
    staging = _core.Staging(torch.zeros(1 << 18, dtype=torch.uint8), 3) if number else None
    job = pool.submit(files, pixels, geometry=crops, index=index, staging=staging, number=number)
    job.wait()
    assert not any(job.statuses()) and 0 < job.work_seconds() < 10
    print([flag != 0 for flag in staging.has()] if number else "")
pool.close()
"""


def test_threads_that_only_read_for_a_gpu_say_so(tmp_path):
    trace = run_traced(STAGING, tmp_path)
    assert trace.stdout.split("\n")[1:3] == ["[True, False, True]"] * 2
    names = [(found.payload, found.name) for found in trace.ranges() if found.name in ("read", "decode")]
    assert names[0] == (0, "decode")
    for number in (1, 2):  # the progressive file is read, and then decoded by the thread itself
        assert [name for batch, name in names if batch == number] == ["read", "decode", "read"]
