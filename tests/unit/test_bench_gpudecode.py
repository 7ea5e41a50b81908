"""Test the benchmarks of decoding on a GPU on simulated launches and planted faults."""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import optional
import pytest
import torch
from PIL import Image
from torchvision import transforms

from benchmarks import _varied_crops, energy, gpudecode
from benchmarks.__main__ import main as run_benchmark
from benchmarks._setup import Setup
from benchmarks._varied_crops import Asked, Comparison
from benchmarks._varied_files import kind_of
from benchmarks.commands import BENCHMARKS
from benchmarks.contenders import nvjpeg_lists
from benchmarks.contenders._job import Job
from fastload.bench.photos import PhotoSet, write_photos
from fastload.device import nvrtc
from fastload.device.decode.policy import DecodePolicy

optional.needed("skimage", "rich")


def run(*given: object) -> int:
    return run_benchmark(["gpudecode", *map(str, given)])


class Event:
    """An event that passes when it is recorded."""

    now = 0.0

    def __init__(self) -> None:
        self.at = Event.now

    def elapsed_time(self, other: Event) -> float:
        return other.at - self.at


@pytest.fixture
def device(monkeypatch):
    """Kernels take the milliseconds that their last argument says."""

    def build(index, name, source, kernels, macros=()):
        return {kernel: SimpleNamespace(name=kernel) for kernel in kernels}

    def launcher(device):
        def launch(kernel, grid, threads, shared_bytes, *more):
            Event.now += more[-1]

        return launch

    monkeypatch.setattr(nvrtc, "build", build)
    monkeypatch.setattr(nvrtc, "launcher", launcher)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return build, launcher


def test_launches_are_timed_by_kernel(device) -> None:
    with gpudecode.recorded_launches(Event) as launches:
        kernels = nvrtc.build(0, "decode", "", ["huffman", "rows"])
        launch = nvrtc.launcher(torch.device("cuda", 0))
        for milliseconds in (2.0, 3.0):
            launch(kernels["huffman"], (1,), 64, 0, milliseconds)
            launch(kernels["rows"], (1,), 64, 0, 10 * milliseconds)
        assert launches.take_ms() == {"decode.huffman": 5.0, "decode.rows": 50.0}
        assert launches.take_ms() == {}
        launch(SimpleNamespace(), (1,), 64, 0, 1.0)
        assert launches.take_ms() == {"?": 1.0}
    assert (nvrtc.build, nvrtc.launcher) == device


def test_the_profilers_device_work_is_summed_by_name() -> None:
    events = [
        {"cat": "kernel", "name": "rows", "dur": 1500.0},
        {"cat": "kernel", "name": "rows", "dur": 500.0},
        {"cat": "gpu_memset", "name": "Memset", "dur": 20.0},
        {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 9.0},
        {"name": "process_name"},
    ]
    assert gpudecode.summed_ms(events) == {"rows": 2.0, "Memset": 0.02}


def test_without_a_gpu_it_is_skipped(monkeypatch, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(gpudecode, "compare", lambda *_: pytest.fail("nothing is compared"))
    assert run() == 0
    assert "bench gpudecode: skipped, torch finds no CUDA device here" in " ".join(capsys.readouterr().out.split())


class Decoding:
    """A loader whose GPU decodes three of four images; two, and smaller, of new files."""

    plan = "the plan"

    def __init__(self, dataset, *, batch_size, sampler, decode, engine, **more) -> None:
        assert (decode, engine) == ("gpu", "native")
        self.new = more.get("max_index_bytes") == 0
        self.sampler, self.batch_size = sampler, batch_size
        self.images = self.gpu_images = 0
        self.kernels = nvrtc.build(0, "fastload_decode", "", ["huffman", "rows", "points"])
        self.other = nvrtc.build(0, "fastload_epilogue", "", ["look_up"])

    def __iter__(self):
        launch = nvrtc.launcher(torch.device("cuda", 0))
        every = iter(self.sampler)
        while indices := list(itertools.islice(every, self.batch_size)):
            yield self._made(launch, len(indices))

    def _made(self, launch, count):
        decoded = count // 2 if self.new else count * 3 // 4
        launch(self.kernels["huffman"], 1, 1, 0, 0.4 * decoded)
        launch(self.kernels["rows"], 1, 1, 0, 0.1 * decoded)
        launch(self.other["look_up"], 1, 1, 0, 0.01 * decoded)
        if self.new:
            launch(self.kernels["points"], 1, 1, 0, 0.2 * decoded)
        self.images += count
        self.gpu_images += decoded
        edge = 7 if self.new else 8
        return torch.zeros(count, 3, edge, edge), torch.zeros(count, dtype=torch.long)

    def stats(self):
        return SimpleNamespace(images=self.images, gpu_images=self.gpu_images)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("given", [["--parts", "kernels,all"], ["--model", "none"]])
def test_what_cannot_be_is_refused(given, capsys) -> None:
    assert run("--quick", *given) == 2
    assert given[0] in capsys.readouterr().err


FOUND = {
    **{"crops": 100, "differ": 0, "gpu_staged": 60, "refused": 3, "new_staged": 50, "new_refused": 7},
    **{"pillow_crops": 50, "seconds": 1.0},
}


@pytest.mark.parametrize(("differ", "code"), [(0, 0), (1, 1)])
def test_a_difference_is_a_failure(monkeypatch, tmp_path, capsys, differ, code) -> None:
    def compare(folder, asked, keep):
        assert (asked.crops, asked.pillow_crops, asked.device) == (100, 50, "cpu")
        found = FOUND | {"differ": differ}
        keep(found)
        assert json.loads((tmp_path / "out.json").read_text())["complete"] is False
        return found

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(gpudecode, "compare", compare)
    assert run("--quick", "--verify", 100, "--json", tmp_path / "out.json") == code
    record = json.loads((tmp_path / "out.json").read_text())
    assert record["complete"] is True
    assert record["kernels"] == record["epochs"] == record["step"] == {"skipped": gpudecode.SKIPPED}
    said = f"{differ} of 100 crops differ; 60 were decoded on the GPU, 3 refused by its kernels; as new files 50 and 7;"
    assert said in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("staged", "code"), [(0, 1), (60, 0)])
def test_a_gpu_that_decodes_nothing_is_a_failure(monkeypatch, staged, code) -> None:
    found = FOUND | {"gpu_staged": staged}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpudecode, "environment", dict)
    monkeypatch.setattr(gpudecode, "compare", lambda folder, asked, keep: found)
    assert run("--quick", "--verify", 100, "--parts", "verify") == code


def comparison() -> Comparison:
    """A comparison whose batches are given."""
    made = Comparison.__new__(Comparison)
    made.name, made.seen, made.differences = "crop", Counter(), []
    made._asked = Asked(crops=8, files=4, pillow_crops=4, batch_size=4, workers=1, device="cpu")
    made._indices = [2, 0, 1, 3, 3, 1, 0, 2]
    made._dataset = SimpleNamespace(samples=[(f"/files/{number:06}.jpg", 0) for number in range(4)])
    return made


def batch(**changes: float) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.arange(4 * 3 * 2 * 2, dtype=torch.float32).view(4, 3, 2, 2)
    images[1, 0, 0, 0] = 0.0
    if "pixel" in changes:
        images[1, 0, 0, 0] = changes["pixel"]
    labels = torch.tensor([0, 1, 2, int(changes.get("label", 3))])
    return images.contiguous(memory_format=torch.channels_last), labels


@pytest.mark.parametrize(
    ("changes", "place", "file"),
    [
        ({}, None, None),
        ({"pixel": 1e-9}, 1, 1),
        ({"pixel": -0.0}, 1, 1),
        ({"pixel": float("nan")}, 1, 1),
        ({"label": 7}, 3, 2),
    ],
)
@pytest.mark.parametrize("which", ["gpu", "new"])
@pytest.mark.parametrize("others", [(), ("pillow",)])
def test_each_crop_that_differs_is_named(changes, place, file, which, others) -> None:
    compared = comparison()
    batches = {name: batch() for name in ("cpu", "gpu", "new", *others)} | {which: batch(**changes)}
    compared._compare(batches, 1, seed=0)
    assert compared.seen["crops"] == 4
    assert compared.seen["pillow_crops"] == (4 if "pillow" in others else 0)
    assert compared.seen["differ"] == (0 if place is None else 1)
    assert [(one["place"], one["file"], one["which"]) for one in compared.differences] == (
        [] if place is None else [(place, file, which)]
    )


def test_the_threads_are_compared_with_pillow() -> None:
    compared = comparison()
    compared._compare({"cpu": batch(pixel=5.0), "gpu": batch(), "pillow": batch()}, 0, seed=0)
    assert [(one["which"], one["beside"]) for one in compared.differences] == [("cpu", "pillow")]


@pytest.mark.parametrize(("device", "refused"), [("cuda", (1, 5)), ("cpu", (0, 0))])
def test_crops_of_new_files_are_counted_beside_the_others(monkeypatch, tmp_path, device, refused) -> None:
    seen = Counter({"crops": 8, "gpu_staged": 6, "new_staged": 3, "cpu_python": 4, "gpu_python": 5, "new_python": 9})
    made = SimpleNamespace(seen=seen, differences=[], run=lambda *_, seed: None, close=lambda: None)
    monkeypatch.setattr(_varied_crops, "Comparison", lambda *_: made)
    monkeypatch.setattr(_varied_crops, "make_files", lambda *_: {"grey": 4})
    asked = Asked(crops=8, files=4, pillow_crops=4, batch_size=4, workers=1, device=device)
    record = _varied_crops.compare(tmp_path, asked, lambda so_far: None)
    assert (record["gpu_staged"], record["new_staged"]) == (6, 3)
    assert (record["refused"], record["new_refused"]) == refused  # beyond what the threads leave to Python, too


def test_files_are_told_apart() -> None:
    def written(mode: str, **options: object) -> bytes:
        out = io.BytesIO()
        Image.new(mode, (40, 30)).save(out, "JPEG", **options)
        return out.getvalue()

    assert kind_of(written("RGB")) == "colour"
    assert kind_of(written("L")) == "grey"
    assert kind_of(written("RGB", progressive=True)) == "progressive"
    assert kind_of(written("CMYK", progressive=True)) == "CMYK"


@pytest.mark.slow
def test_crops_of_varied_files_are_pillows(tmp_path, monkeypatch) -> None:
    names = ("96, bicubic", "centre")
    monkeypatch.setattr(_varied_crops, "TRANSFORMS", {name: _varied_crops.TRANSFORMS[name] for name in names})
    asked = Asked(crops=128, files=24, pillow_crops=64, batch_size=16, workers=2, device="cpu")
    kept: list[int] = []
    record = _varied_crops.compare(tmp_path, asked, lambda so_far: kept.append(so_far["crops"]))
    assert (record["crops"], record["pillow_crops"], record["differ"]) == (128, 64, 0)
    assert kept == [64, 128]
    assert sum(record["files"].values()) == 24
    late = replace(asked, deadline=time.monotonic())
    (tmp_path / "late").mkdir()
    assert _varied_crops.compare(tmp_path / "late", late, lambda so_far: kept.append(0))["crops"] == 0
    assert kept == [64, 128]


def test_energy_is_what_idling_does_not_take() -> None:
    answer = {"joules": 500.0, "asked_s": 2.0, "images": 1000}
    assert energy.per_million(answer, idle=100.0) == pytest.approx(300_000)
    assert energy.per_million(answer, idle=300.0) == 0


def test_energy_is_skipped_where_it_is_not_counted(monkeypatch, capsys) -> None:
    gathering = SimpleNamespace(present=lambda setup: pytest.fail("no contender is asked"))
    assert energy.measure(gathering, Setup(device="cpu"), 2) == {}
    assert "energy: skipped, there is no GPU" in capsys.readouterr().out

    def lacks(device):
        raise RuntimeError("Not Supported")

    monkeypatch.setattr(energy, "nvml_and_handle", lacks)
    with pytest.raises(energy.NoCounterError, match="does not count energy: Not Supported"):
        energy.counter("cuda:0")


def test_energy_of_each_turn_is_counted(monkeypatch) -> None:
    clock = SimpleNamespace(s=0.0, joules=0.0)

    def wait(seconds: float, watts: float = 50.0) -> None:
        clock.s += seconds
        clock.joules += seconds * watts

    def ask(what: str, **options: float) -> dict[str, float]:
        if what == "settle":
            return {"settled": True}
        wait(2.0, watts=150.0)
        return {"images": 4000, "batches": 10, "seconds": 2.0, "processor_s": 1.0, "main_thread_s": 0.1}

    monkeypatch.setattr(energy, "time", SimpleNamespace(perf_counter=lambda: clock.s, sleep=wait))
    monkeypatch.setattr(energy, "counter", lambda device: lambda: clock.joules)
    remote = SimpleNamespace(name="fastload", failed=None, turn=contextlib.nullcontext, ask=ask)
    team = SimpleNamespace(open=lambda remotes, job: None, close_feeds=lambda: None)
    gathering = SimpleNamespace(team=team, folder="", present=lambda setup: [remote])
    result = energy.measure(gathering, Setup(device="cuda", repeats=2, batch_size=4), 1)["fastload"]
    assert result["idle_watts"] == pytest.approx(50)
    assert result["watts"]["median"] == pytest.approx(150)
    assert result["joules_per_million"]["values"] == pytest.approx([50_000] * 2)


@pytest.fixture
def job(tmp_path) -> Job:
    data = write_photos(tmp_path / "photos", PhotoSet(count=12, classes=12, edge_px=64)).path
    return Job(data=str(data), threads=2, batch_size=4, train=False, images=12)


def test_batches_come_in_order_whoever_decodes_them_first(job) -> None:
    decode, begun = nvjpeg_lists.decoder("torchvision", "cpu"), itertools.count()

    def late_first(files):
        time.sleep(0.2 * (next(begun) == 0))
        return decode(files)

    pipeline = nvjpeg_lists.Pipeline(job, late_first, 2)
    labels = [label for _, came in pipeline.batches() for label in came.tolist()]
    pipeline.close()
    assert labels == job.files()[1]


def test_what_goes_wrong_in_a_thread_is_raised(job) -> None:
    def fail(files):
        raise ValueError("no JPEG")

    pipeline = nvjpeg_lists.Pipeline(job, fail, 2)
    with pytest.raises(ValueError, match="no JPEG"):
        next(pipeline.batches())
    pipeline.close()


@pytest.fixture
def args(job, monkeypatch) -> argparse.Namespace:
    monkeypatch.setattr(gpudecode, "FastLoader", Decoding)
    given = {"--data": job.data, "--batch-size": 4, "--threads": 2, "--repeats": 3, "--steps": 5}
    words = [str(word) for pair in given.items() for word in pair]
    made = BENCHMARKS["gpudecode"].parse("gpudecode", ["--quick", *words])
    made.deadline = None
    return made


def test_kernels_are_timed_for_images_that_the_gpu_decodes(device, args, monkeypatch) -> None:
    def profiled(advance):
        advance()
        return [{"cat": "kernel", "name": "huffman", "dur": 1e3 * 12 * 0.3}], 1.0

    monkeypatch.setattr(gpudecode, "CudaClock", lambda: SimpleNamespace(mark=Event))
    monkeypatch.setattr(gpudecode, "profiled", profiled)
    result = gpudecode.kernels(args)
    assert (result["images"], result["of_images"]) == (12, 16)
    assert result["ms"]["fastload_decode.huffman"]["values"] == pytest.approx([4 * 0.4] * 3)
    assert result["decode_ms"]["values"] == pytest.approx([4 * 0.5] * 3)  # without the epilogue
    assert result["ms"]["fastload_epilogue.look_up"]["median"] == pytest.approx(4 * 0.01)
    assert result["profiled_ms"] == pytest.approx({"huffman": 4 * 0.3})
    new = result["new"]
    assert (new["images"], new["of_images"]) == (8, 16)
    assert new["ms"]["fastload_decode.points"]["values"] == pytest.approx([4 * 0.2] * 3)
    assert new["decode_ms"]["values"] == pytest.approx([4 * 0.7] * 3)
    assert "fastload_decode.points" not in result["ms"]
    said = gpudecode.describe("kernels", result)
    assert "kernels, per batch of 4: 2.000 ms to decode" in said
    assert "\nnew files, kernels, per batch of 4: 2.800 ms to decode" in said
    monkeypatch.setattr(Decoding, "stats", lambda self: SimpleNamespace(images=1, gpu_images=0))
    with pytest.raises(ValueError, match=r"the GPU must decode some of .*\nthe plan"):
        gpudecode.kernels(args)


def test_a_step_beside_decoding_is_compared_in_turns(device, args, monkeypatch) -> None:
    clock = SimpleNamespace(s=0.0, finish=lambda: None, between_s=lambda begin, end: end - begin)
    clock.mark = lambda: clock.s
    trained: list[str] = []

    class Waited(Decoding):
        def _made(self, launch, count):
            clock.s += 0.03 if self.new else 0.0
            return super()._made(launch, count)

    def step(images, labels) -> None:
        trained.append({8: "fed", 7: "new", 6: "resident"}[images.shape[-1]])
        clock.s += {"fed": 0.11, "new": 0.12, "resident": 0.10}[trained[-1]]

    resident = itertools.repeat((torch.zeros(4, 3, 6, 6), torch.zeros(4)))
    monkeypatch.setattr(gpudecode, "FastLoader", Waited)
    monkeypatch.setattr(gpudecode, "CudaClock", lambda: clock)
    monkeypatch.setattr(gpudecode, "TrainingStep", lambda model, device, channels_last: step)
    monkeypatch.setattr(gpudecode.ceiling, "open_feed", lambda job, variant: SimpleNamespace(batches=resident))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    result = gpudecode.step(args)
    assert result["fed_over_resident"]["values"] == pytest.approx([1.1] * 3)
    assert result["ms_per_step"]["resident"]["median"] == pytest.approx(100)
    assert result["new_over_resident"]["values"] == pytest.approx([1.5] * 3)
    assert result["fed_wait_share"]["values"] == pytest.approx([0] * 3)
    assert result["new_wait_share"]["values"] == pytest.approx([0.2] * 3)
    assert (result["fed_decoded_on_gpu"], result["new_decoded_on_gpu"]) == (0.75, 0.5)
    turns = [name for name, _ in itertools.groupby(trained)]
    order = ["fed", "new", "resident"]  # and back, from where it ended
    assert turns == [*order, *order, "new", "fed", "new", "resident"]
    assert len(trained) == 3 * 4 * (gpudecode.WARM_STEPS + 5)
    said = gpudecode.describe("step", result)
    assert "100.00 ms, beside GPU decoding with an index 110.00 ms: 1.1000" in said
    assert "beside GPU decoding of new files 150.00 ms: 1.5000 (1.5000 to 1.5000), 50.0% of the images" in said


def test_copies_differ_in_their_bytes_alone(job, tmp_path) -> None:
    paths = job.files()[0][:2]
    gpudecode.write_copies(paths, tmp_path, 5)
    copies = sorted((tmp_path / "a").iterdir())
    assert len({path.read_bytes() for path in [*copies, *map(Path, paths)]}) == 7
    for copied, path in zip(copies, itertools.cycle(paths), strict=False):
        assert Image.open(copied).tobytes() == Image.open(path).tobytes()


def test_first_epochs_are_timed_by_who_decodes(device, args, monkeypatch) -> None:
    clock = SimpleNamespace(s=0.0)
    seconds = {"auto": 1.0, "find": 2.0, "scan": 4.0, "threads": 5.0}  # of a batch, in a later epoch
    runs: list[tuple[int, str, int]] = []

    class Visiting:
        """A loader whose first batches are slow, and new files take twice as long."""

        def __init__(self, dataset, *, batch_size, sampler, num_workers, **more) -> None:
            assert (len(dataset), len(set(sampler))) == (args.epoch_images, len(sampler))
            self.threads, self.images, self.batch_size = num_workers, len(sampler), batch_size
            self.decode_policies: dict[torch.device, DecodePolicy] = {}
            self.factors = iter((2.0, 100.0, 1.0))

        def __len__(self) -> int:
            return self.images // self.batch_size

        def __iter__(self):
            side = next((policy.choose()[0] for policy in self.decode_policies.values()), "auto")
            factor = next(self.factors)
            runs.extend([(self.threads, side, self.images)] * (factor == 2.0))
            for number in range(len(self)):
                clock.s += 1000.0 if number < min(8, len(self) // 2) else factor * seconds[side]
                yield torch.zeros(self.batch_size, 1), None

        def stats(self):
            return SimpleNamespace(images=4, gpu_images=3)

        def close(self) -> None:
            assert not list(self.factors)

    monkeypatch.setattr(gpudecode, "FastLoader", Visiting)
    monkeypatch.setattr(gpudecode, "state_of", lambda loader: loader)
    monkeypatch.setattr(gpudecode, "SLOW_IMAGES", 20)
    monkeypatch.setattr(gpudecode, "time", SimpleNamespace(perf_counter=lambda: clock.s))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    result = gpudecode.epochs(args)
    assert result["images"] == 64
    assert result["images_per_s"].keys() == {"1", "2"}
    for threads, by_side in result["images_per_s"].items():
        for side, found in by_side.items():
            batches = 16 if side in ("auto", "find") else 5 * int(threads)
            assert found["first"]["values"] == pytest.approx([4 / (2 * seconds[side])] * 3)
            assert found["later"]["values"] == pytest.approx([4 / seconds[side]] * 3)
            assert found["start_s"]["values"] == pytest.approx([1000 * min(8, batches // 2)] * 3)
    sides = ["auto", "threads", "find", "scan"]
    ran = [side for threads, side, _ in runs if threads == 2]
    assert ran == ["auto", *sides, *sides[::-1], *sides]  # the first warms up
    assert {images for threads, side, images in runs if (threads, side) == (2, "scan")} == {40}
    said = gpudecode.describe("epochs", result)
    assert "epochs: images/s 1 threads: auto 2, later 4, threads 0, later 1, find 1, later 2" in said


def test_boxes_are_drawn_as_torchvision_does() -> None:
    sizes = np.array([[300, 400], [10, 2000], [2000, 10], [1, 1]] * 500)
    top, left, height, width = nvjpeg_lists.crop_boxes(sizes, np.random.default_rng(0)).T
    assert (np.stack([top, left, height, width]) >= [[0], [0], [1], [1]]).all()
    assert (top + height <= sizes[:, 0]).all()
    assert (left + width <= sizes[:, 1]).all()
    for number, (high, wide) in enumerate(sizes[1:3], 1):  # too narrow for any of the aspect ratios: the centre
        image = Image.new("L", (wide, high))
        box = transforms.RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3])
        assert (top[number], left[number], height[number], width[number]) == box
    shares = (height * width / sizes.prod(1))[::4]
    torch.manual_seed(0)
    image = Image.new("L", (400, 300))
    boxes = [transforms.RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(500)]
    expected = np.array([high * wide / (300 * 400) for _, _, high, wide in boxes])
    assert np.quantile(shares, [0, 0.25, 0.5, 0.75, 1]) == pytest.approx(
        np.quantile(expected, [0, 0.25, 0.5, 0.75, 1]), abs=0.05
    )
    assert np.unique(top[::4]).size > 50
