"""What ``print(loader.plan)`` says, and that it says what happens."""

from __future__ import annotations

import pytest
import torch
from backends import simulated
from backends.batches import Collator
from backends.datasets import Images, Numbers, Stream, collect
from photos import make_folder, train_v1
from plans import text_of
from torch.utils.data import IterableDataset, Subset
from torchvision.datasets import ImageFolder

from fastload import FastLoader, Plan, Step
from fastload.device import nvrtc
from fastload.device.decode import loader_allows
from fastload.loader_state import LoaderState
from fastload.plan import READ_AGAIN, slots_wanted
from fastload.stats.stats import Totals


@pytest.fixture
def cuda(monkeypatch):
    simulated.install(monkeypatch)


def steps(loader):
    return {step.name: step for step in loader.plan.steps}


def test_a_plan_is_laid_out_in_columns():
    plan = Plan(
        "workers",
        torch.device("cuda", 0),
        (Step("fetch", "4 worker processes", "dataset[index]"), Step("h2d", "copy stream", "ahead")),
        1_500_000,
        ("something to know",),
    )
    assert str(plan).splitlines() == [
        "engine workers, batches on cuda:0",
        "  fetch  4 worker processes  dataset[index]",
        "  h2d    copy stream         ahead",
        "  1.50 MB per batch to cuda:0",
        "  note: something to know",
    ]


def test_no_line_is_longer_than_a_page_of_the_documentation_shows():
    what = "JPEG files to 224x224 pixels, uint8: " + ", ".join(["RandomResizedCrop"] * 6)
    for place, starts in (
        ("2 decode threads", " " * 28 + "R"),
        ("8 worker processes, a decode thread each", " " * 10 + "J"),
    ):
        note = f"{'a note that goes on ' * 10}{'W' * 200}"
        plan = Plan("native", torch.device("cpu"), (Step("decode", place, what),), None, (note,))
        lines = str(plan).splitlines()
        assert 60 < max(len(line) for line in lines if "W" not in line) <= 74
        assert lines[2].startswith(starts)
        assert " ".join(str(plan).split()) == f"engine native, batches on cpu decode {place} {what} note: {note}"


def test_on_the_cpu_it_is_torchs_loader():
    plan = FastLoader(Numbers(4), device="cpu").plan
    assert (plan.engine, plan.device, plan.batch_bytes) == ("torch", torch.device("cpu"), None)
    assert [step.name for step in plan.steps] == ["fetch", "collate"]
    assert "dataset[index] of Numbers" in str(plan)
    assert "default_collate" in str(plan)


def test_the_main_process_that_loads_is_told_of_workers():
    note = "num_workers=0: the main process loads between steps; num_workers >= 1 loads beside them"
    assert note in FastLoader(Numbers(4), device="cpu").plan.notes
    assert note not in FastLoader(Numbers(4), device="cpu", num_workers=1).plan.notes


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_without_an_accelerator_auto_says_so():
    assert any("no accelerator here" in note for note in FastLoader(Numbers(4)).plan.notes)
    assert not any("no accelerator here" in note for note in FastLoader(Numbers(4), device="cpu").plan.notes)


@pytest.mark.parametrize(
    ("num_workers", "where"), [(0, "main process"), (1, "1 worker process"), (2, "2 worker processes")]
)
def test_who_loads(num_workers, where):
    plan = FastLoader(Stream([3]), num_workers=num_workers, collate_fn=Collator(1.0), device="cpu").plan
    assert [step.where for step in plan.steps] == [where, where]
    assert plan.steps[0].what.startswith("next(dataset) of Stream")
    assert plan.steps[1].what == "Collator, unchanged"


def test_how_collating_is_named():
    def collate(samples):
        return samples

    for batch_size, function, what in (
        (None, None, "no batching: tensors from arrays and numbers"),
        (2, None, "default_collate"),
        (2, collate, f"{collate.__qualname__}, unchanged"),
        (2, lambda samples: samples, "test_how_collating_is_named.<locals>.<lambda>, unchanged"),
    ):
        loader = FastLoader(Numbers(2), batch_size=batch_size, collate_fn=function, device="cpu")
        assert steps(loader)["collate"].what == what


def test_an_iterable_dataset_is_said_to_be_read_again():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(3))

    assert READ_AGAIN in FastLoader(Stream(), device="cpu").plan.notes
    assert READ_AGAIN not in FastLoader(range(3), device="cpu").plan.notes


def test_a_cast_on_the_cpu_is_an_epilogue():
    loader = FastLoader(Numbers(4), device="cpu", dtype=torch.float64)
    collect(loader)
    plan = loader.plan
    assert plan.engine == "workers"
    assert steps(loader)["epilogue"] == Step("epilogue", "main process", "floating-point tensors to float64")
    assert plan.batch_bytes == 8 + 8  # two float32, one int64


def test_pinning_is_shown_only_where_torch_pins(monkeypatch):
    loader = FastLoader(Numbers(4), num_workers=1, pin_memory=True, device="cpu")
    if not torch.accelerator.is_available():
        assert "pin" not in steps(loader)
    simulated.install(monkeypatch)
    assert steps(loader)["pin"].where == "pin-memory thread"
    assert steps(FastLoader(Numbers(4), pin_memory=True, device="cpu"))["pin"].where == "main process"


def test_the_path_to_a_gpu(cuda):
    loader = FastLoader(Images(8), batch_size=2, num_workers=2, device="cuda", device_prefetch=2, dtype=torch.bfloat16)
    plan = loader.plan
    assert (plan.engine, plan.device) == ("workers", torch.device("cuda", 0))
    assert [step.name for step in plan.steps] == ["fetch", "collate", "slots", "h2d", "epilogue"]
    assert steps(loader)["h2d"] == Step("h2d", "copy stream", "up to 2 batches ahead")
    assert steps(loader)["epilogue"].what == "floating-point tensors to bfloat16, 4-D images to channels_last"
    assert f"up to {slots_wanted(loader)}" in steps(loader)["slots"].what
    collect(loader)
    assert loader.plan.batch_bytes == 2 * (60 * 4 + 8)
    assert "MB per batch to cuda:0" in text_of(loader)
    loader.close()


@pytest.mark.parametrize(
    ("own", "note", "h2d", "pins"),
    [
        ({"num_workers": 0}, "num_workers=0", ("copy stream", "when the batch has been loaded"), None),
        ({"device_prefetch": 0}, "device_prefetch=0", ("consumer's stream", "when the consumer asks"), None),
        ({"max_pinned_bytes": 0}, "max_pinned_bytes=0", ("copy stream", "when the consumer asks"), False),
        ({"engine": "torch"}, "engine='torch'", ("copy stream", "up to 1 batch ahead"), True),
    ],
    ids=str,
)
def test_what_is_left_out_is_said_with_the_reason(cuda, own, note, h2d, pins):
    loader = FastLoader(Numbers(8), **{"num_workers": 2, "device": "cuda", **own})
    assert any(note in text for text in loader.plan.notes), loader.plan.notes
    assert (steps(loader)["h2d"].where, steps(loader)["h2d"].what) == h2d
    if pins is not None:
        assert ("pin" in steps(loader)) == pins
        assert "slots" not in steps(loader)


@pytest.mark.parametrize("memory_format", [None, torch.preserve_format])
def test_no_epilogue_when_there_is_nothing_to_do(cuda, memory_format):
    assert "epilogue" not in steps(FastLoader(Numbers(8), device="cuda", memory_format=memory_format))


def test_lowering_is_never_promised():
    for engine in ("auto", "torch"):
        notes = FastLoader(Numbers(2), device="cpu", engine=engine).plan.notes
        assert any("the dataset and its transforms run as they are" in note for note in notes)
    with pytest.raises(ValueError, match=r"engine='native', but .*dataset Numbers"):
        FastLoader(Numbers(2), device="cpu", engine="native")


class Rooted(Numbers):
    """Has a root that must not be asked for."""

    @property
    def root(self):
        raise AssertionError


def test_an_index_file_of_earlier_versions_is_named(tmp_path):
    folder = ImageFolder(make_folder(tmp_path, 3), train_v1())
    loaders = [
        FastLoader(folder, device="cpu", engine="native"),
        FastLoader(Subset(folder, [0, 1]), device="cpu", engine="torch"),
    ]
    note = f"{tmp_path / 'fastload.index'} is not used any more, and may be deleted"
    assert all(note not in loader.plan.notes for loader in loaders)
    (tmp_path / "fastload.index").touch()
    assert all(note in loader.plan.notes for loader in loaders)
    assert FastLoader(Rooted(4), device="cpu").plan.engine == "torch"


def test_a_missing_kernel_is_said_with_the_remedy(cuda, monkeypatch, tmp_path):
    loader = FastLoader(ImageFolder(make_folder(tmp_path, 3), train_v1()), num_workers=1, device="cuda")
    monkeypatch.setattr(nvrtc, "lacking", lambda device, dtype, channels: f"{device} {dtype} {channels}")
    assert "torch looks values up instead of one CUDA kernel, same bits but slower: cuda:0 torch.float32 3" in text_of(
        loader
    )
    monkeypatch.setattr(nvrtc, "lacking", lambda *_: None)
    assert loader.plan.engine == "native"
    assert "kernel" not in text_of(loader)


def test_a_gpu_makes_the_pixels_beside_functions_that_read_none(cuda, monkeypatch, tmp_path):
    dataset = ImageFolder(make_folder(tmp_path, 3), train_v1())

    def made_by(**options):
        return FastLoader(dataset, num_workers=1, device="cuda", collate_fn=lambda samples: samples, **options)

    loader = made_by()
    assert loader.plan.engine == "native"  # no GPU decodes
    monkeypatch.setattr(loader_allows, "not_on_gpu_because", lambda *arguments: None)
    assert loader.plan.engine == "workers"
    assert "the GPU makes pixels faster than workers do" in text_of(loader)
    for options in ({"engine": "native"}, {"deferred": False}, {"max_pinned_bytes": 0}):
        assert made_by(**options).plan.engine == "native"
    totals = Totals({"batches": 4, "made:looked_at": 3})
    monkeypatch.setattr(LoaderState, "totals", totals)
    assert loader.plan.engine == "workers"
    totals["made:looked_at"] += 1
    assert loader.plan.engine == "native"
    totals["batches"] += 8  # which workers have made since
    assert loader.plan.engine == "native"


def test_a_plan_cannot_be_changed():
    plan = FastLoader(Numbers(2), device="cpu").plan
    with pytest.raises(AttributeError):
        plan.engine = "native"
    with pytest.raises(AttributeError):
        plan.steps[0].name = "other"
    with pytest.raises(AttributeError):
        FastLoader(Numbers(2)).plan = plan
