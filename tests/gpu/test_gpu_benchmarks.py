"""The benchmarks of decoding on the GPU measure what they say, on a real GPU."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import optional
import pytest
import torch

from benchmarks import energy, gpudecode
from benchmarks._outputs import _wrong, write_expected
from benchmarks.commands import BENCHMARKS
from benchmarks.contenders._job import Job
from benchmarks.contenders._registry import CONTENDERS
from benchmarks.contenders._serve import Server
from fastload.bench.photos import PhotoSet, write_photos

optional.needed("skimage", "rich")

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("data") / "photos", PhotoSet(count=64, edge_px=300)).path


def arguments(*given: object) -> argparse.Namespace:
    return BENCHMARKS["gpudecode"].parse("gpudecode", [str(word) for word in given])


def test_every_part_is_measured(photos: Path, tmp_path: Path) -> None:
    given = ("--quick", "--data", photos, "--batch-size", 16, "--verify", 2000, "--files", 100)
    assert gpudecode.main(arguments(*given, "--json", tmp_path / "out.json")) == 0
    record = json.loads((tmp_path / "out.json").read_text())
    kernels, epochs, step, verify = (record[part] for part in gpudecode.GPU_PARTS)
    assert epochs["images_per_s"]["1"]["find"]["first"]["median"] > 0
    assert kernels["images"] > 0.9 * kernels["of_images"]
    decoding = {name: spread for name, spread in kernels["ms"].items() if name.startswith(gpudecode.DECODE)}
    assert len(decoding) >= 3
    assert kernels["decode_ms"]["median"] == pytest.approx(sum(one["median"] for one in decoding.values()), rel=0.5)
    assert any("Memcpy HtoD" in name for name in kernels["profiled_ms"])
    assert step["fed_decoded_on_gpu"] > 0.9
    assert step["new_decoded_on_gpu"] > 0.9
    assert step["ms_per_step"]["fed"]["median"] > 0
    assert verify["differ"] == 0
    assert verify["crops"] >= 2000
    assert verify["gpu_staged"] > 0.2 * verify["crops"]
    assert verify["new_staged"] >= verify["gpu_staged"]
    assert verify["pillow_crops"] > 0


@pytest.mark.parametrize("name", ["torchvision-gpu", "torchcodec-gpu"])
def test_lists_that_nvjpeg_decodes_are_near_pillows(photos: Path, tmp_path: Path, name: str) -> None:
    if (missing := CONTENDERS[name].missing("cuda")) is not None:
        pytest.skip(missing)
    job = Job(data=str(photos), threads=2, batch_size=16, train=False, images=32, device="cuda")
    write_expected(job, tmp_path / "expected.npz")
    server = Server(name)
    seen = server.check(str(tmp_path / "expected.npz"), **job.record())
    assert _wrong(seen, CONTENDERS[name].tolerance) is None, seen
    server.open(**Job(data=str(photos), threads=2, batch_size=16, device="cuda").record())
    assert server.train("tiny", steps=3, warm_steps=1)["batches"] == 3
    server.close()


def test_energy_is_counted() -> None:
    try:
        joules = energy.counter("cuda")
    except energy.NoCounterError as error:
        pytest.skip(str(error))
    factor = torch.ones(4096, 4096, device="cuda")
    before, begin = joules(), time.monotonic()
    while time.monotonic() < begin + 1.0:
        for _ in range(20):
            torch.mm(factor, factor)
        torch.cuda.synchronize()
    assert 50 < joules() - before < 1500
