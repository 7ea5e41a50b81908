"""Comparing two loaders bit by bit."""

from __future__ import annotations

import array
import collections
import dataclasses
import io
import shutil
import tarfile
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from photos import eval_v1, photos_fixture, train_v1
from torch.utils.data import DataLoader, Subset
from torchvision.datasets import ImageFolder

from fastload import FastLoader
from fastload._compare import ComparedValues, difference, same
from fastload.autoscale import policy, probe
from fastload.autoscale.probe import Trial
from fastload.commands import cli
from fastload.commands import verify as commands_verify
from fastload.native import pipeline as decode_pipeline
from fastload.sources import TarSamples
from fastload.verification import VerificationInterrupted, verify

root = photos_fixture(11)


def test_a_native_loader_is_verified(root):
    make = lambda: DataLoader(ImageFolder(root, train_v1()), 3, shuffle=True, num_workers=2)  # noqa: E731
    before = torch.get_rng_state()
    result = verify(make)
    assert (bool(result), result.batches) == (True, 4), result
    assert torch.equal(before, torch.get_rng_state())


def test_a_loader_with_a_generator_is_verified_as_it_is(root):
    generator = torch.Generator().manual_seed(1)
    before = generator.get_state()
    dataset = ImageFolder(root, train_v1())
    loader = FastLoader(dataset, 3, True, num_workers=1, generator=generator, device="cpu")
    result = verify(loader, batches=2)
    loader.close()
    assert (bool(result), result.batches, result.engine) == (True, 2, "native"), result
    assert torch.equal(before, generator.get_state())


def test_a_difference_is_found_and_named(root, monkeypatch):
    real = decode_pipeline.DecodePipeline._make

    def spoiled(self, batch, *rest, **more):
        data = real(self, batch, *rest, **more)
        if 7 in batch.indices:
            data[0][1, 2, 3, 4] += 1
        return data

    monkeypatch.setattr(decode_pipeline.DecodePipeline, "_make", spoiled)
    dataset = ImageFolder(root, eval_v1())
    result = verify(lambda: FastLoader(dataset, 3, num_workers=1, device="cpu"))
    assert not result
    assert "batch 2, batch[0][1, 2, 3, 4]" in str(result)
    assert f"index 7, {dataset.samples[7][0]}" in str(result)


def test_a_sample_in_an_archive_is_named(root, monkeypatch, tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number, (path, _) in enumerate(ImageFolder(root).samples):
            archive.add(path, f"{number}.jpg")
            about = tarfile.TarInfo(f"{number}.cls")
            about.size = 1
            archive.addfile(about, io.BytesIO(b"0"))
    real = decode_pipeline.DecodePipeline._make

    def spoiled(self, batch, *rest, **more):
        data = real(self, batch, *rest, **more)
        data[0][0, 0, 0, 0] += 1
        return data

    monkeypatch.setattr(decode_pipeline.DecodePipeline, "_make", spoiled)
    dataset = TarSamples(tmp_path / "a.tar", eval_v1())
    result = verify(lambda: FastLoader(dataset, 3, num_workers=1, device="cpu"))
    assert f"(index 0, {tmp_path}/a.tar/0.jpg)" in str(result)


@pytest.mark.parametrize("randomness", ["worker", "sample"])
def test_the_sample_of_a_difference_is_known_when_shuffled(root, monkeypatch, randomness):
    real = decode_pipeline.DecodePipeline._make
    spoiled_index = []

    def spoiled(self, batch, *rest, **more):
        data = real(self, batch, *rest, **more)
        if batch.number == 2:
            data[0][1, 2, 3, 4] += 1
            spoiled_index.append(batch.indices[1])
        return data

    monkeypatch.setattr(decode_pipeline.DecodePipeline, "_make", spoiled)
    dataset = ImageFolder(root, eval_v1())
    part = Subset(dataset, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0])
    result = verify(lambda: FastLoader(part, 3, shuffle=True, num_workers=2, device="cpu", randomness=randomness))
    assert f"index {spoiled_index[0]}, {dataset.samples[9 - spoiled_index[0]][0]}" in str(result)


def test_differences():
    assert difference([torch.zeros(2)], [torch.zeros(2)]) is None
    assert difference(torch.tensor([torch.nan]), torch.tensor([torch.nan])) is None
    assert "[1]: 0.0 and -0.0" in difference(torch.zeros(2), torch.tensor([0.0, -0.0]))
    assert "float32" in difference(torch.zeros(2), torch.zeros(2, dtype=torch.float64))
    assert "keys" in difference({"a": 1}, {"b": 1})
    assert "items" in difference([1], [1, 2])
    assert "ValueError" in difference(ValueError(), KeyError())


def test_the_name_is_the_function_and_the_module_stays_in_reach():
    import importlib

    import fastload

    module = importlib.import_module("fastload.verification")
    assert fastload.verify is verify is module.verify


def test_the_command(root, tmp_path, monkeypatch, capsys):
    (tmp_path / "my_loader_module.py").write_text(
        "import torch\nfrom torch.utils.data import DataLoader\n"
        "from fastload import FastLoader\n"
        "def make():\n    return FastLoader(torch.arange(10.0), 4, shuffle=True, dtype=torch.float32, device='cpu')\n"
        "def plain():\n    return DataLoader(torch.arange(10), 4, shuffle=True)\n"
        "def fails(text):\n    raise OSError(text)\n"
        "def none():\n    return FastLoader([], dtype=torch.float32, device='cpu')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    assert cli.main(["verify", "my_loader_module:make"]) == 0
    assert "equal to the bit: 3 batches" in capsys.readouterr().out
    assert cli.main(["verify", "my_loader_module:nothing"]) == 2
    assert cli.main(["verify", "my_loader_module"]) == 2
    assert cli.main(["verify", "my_loader_module:torch.get_num_threads"]) == 2  # 1 would mean that bits differ
    capsys.readouterr()
    assert cli.main(["verify", "my_loader_module:fails", "--arg", "it broke"]) == 2
    said = capsys.readouterr().err
    assert "my_loader_module.py" in said
    assert said.endswith("fastload verify: my_loader_module:fails raised OSError: it broke\n")
    assert cli.main(["verify", "my_loader_module:none"]) == 2
    assert "nothing was compared" in capsys.readouterr().out
    assert cli.main(["verify", "my_loader_module:make", "--batches", "2"]) == 0
    assert capsys.readouterr().out.startswith("equal to the bit: 2 of 3 batches, engine workers")
    assert cli.main(["verify", "my_loader_module:make", "--batches", "all"]) == 0
    assert "equal to the bit: 3 batches" in capsys.readouterr().out
    if not torch.accelerator.is_available():
        assert cli.main(["verify", "my_loader_module:plain"]) == 0
        assert capsys.readouterr().out.startswith("nothing to compare: this is torch's own loader\n  note: ")
    with pytest.raises(SystemExit) as ended:
        cli.main(["verify", "my_loader_module:make", "--batches", "0"])
    assert ended.value.code == 2


@pytest.mark.parametrize("seed", ["-1", str(2**64), "1.5"])
def test_a_seed_that_torch_cannot_have_is_refused(seed, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["verify", "some:factory", "--seed", seed])
    assert f"must be an integer from 0 to {2**64 - 1}, got '{seed}'" in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_batches_that_fail_in_both_loaders_are_not_passed_over(root, tmp_path, engine):
    shutil.copytree(root, tmp_path / "data")
    dataset = ImageFolder(tmp_path / "data", eval_v1())
    gone = Path(dataset.samples[4][0])
    gone.unlink()
    dtype = torch.float32 if engine == "torch" else None  # with a cast it is more than torch's loader
    result = verify(FastLoader(dataset, 3, num_workers=1, device="cpu", engine=engine, dtype=dtype))
    assert result  # both fail
    assert result.engine == ("native" if engine == "auto" else "workers")
    assert len(result.errors) == 1
    assert result.errors[0].startswith("batch 1, FileNotFoundError: ")
    assert str(gone) in str(result)
    assert f"equal to the bit: 3 batches, engine {result.engine}; of 4 batches, 1 failed in both" in str(result)


def test_what_fails_throughout_or_is_empty_is_not_called_equal(root):
    dataset = ImageFolder(root, eval_v1())
    dataset.samples = [(f"{path}.gone", target) for path, target in dataset.samples]
    result = verify(FastLoader(dataset, 3, num_workers=1, device="cpu", engine="torch", dtype=torch.float32))
    assert (bool(result), result.batches, result.compared, len(result.errors)) == (False, 4, 0, 4)
    assert str(result).startswith("nothing was compared: of 4 batches, 4 failed in both loaders, the first: batch 0, ")
    result = verify(FastLoader([], 3, device="cpu", dtype=torch.float32))
    assert (bool(result), result.batches) == (False, 0)
    assert str(result).startswith("nothing was compared: both loaders are empty")


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_where_fastloader_is_torchs_loader_there_is_nothing_to_compare(engine):
    asked = []

    class Asked(torch.utils.data.Dataset):
        def __getitem__(self, index):
            asked.append(index)

        def __len__(self):
            return 4

    result = verify(FastLoader(Asked(), 2, device="cpu", engine=engine))
    assert (bool(result), result.is_torchs, result.compared, asked) == (True, True, 0, [])
    assert str(result).startswith(
        "nothing to compare: this is torch's own loader\n  note: the dataset and its transforms"
    )
    assert not verify(FastLoader(range(4), device="cpu", dtype=torch.float32)).is_torchs


def test_lazy_images_are_something_to_compare(root):
    dataset = ImageFolder(root, v1.Compose([v1.GaussianBlur(3), eval_v1()]))
    result = verify(FastLoader(dataset, 4, num_workers=1, device="cpu"))
    assert (bool(result), result.engine, result.is_torchs, result.compared) == (True, "torch", False, 3)


def test_twenty_batches_are_compared_unless_all_are_asked_for():
    def make():
        return FastLoader(torch.arange(50.0), 2, device="cpu", dtype=torch.float32)

    assert str(verify(make)).startswith("equal to the bit: 20 of 25 batches, engine workers")
    assert str(verify(make, None)).startswith("equal to the bit: 25 batches, engine workers")
    assert (verify(make).batches, verify(make, 25).epoch) == (20, 25)


class InterruptedAt(torch.utils.data.Dataset):
    """Samples of which one is interrupted when FastLoader reads it, after torch has."""

    seen: ClassVar = []  # by both copies

    def __init__(self, index):
        self.index = index
        self.seen.clear()

    def __getitem__(self, index):
        self.seen.append(index)
        if self.seen.count(self.index) == 2 and index == self.index:
            raise KeyboardInterrupt
        return torch.tensor(float(index))

    def __len__(self):
        return 12


def test_ctrl_c_says_what_was_compared_so_far(monkeypatch, capsys):
    make = lambda: FastLoader(dataset, 2, device="cpu", dtype=torch.float32)  # noqa: E731
    dataset = InterruptedAt(7)
    with pytest.raises(KeyboardInterrupt, match="so far equal to the bit: 3 of 6 batches, engine workers") as caught:
        verify(make)
    assert isinstance(caught.value, VerificationInterrupted)
    assert caught.value.result.batches == 3
    dataset = InterruptedAt(0)
    monkeypatch.setattr(commands_verify, "call_factory", lambda name, arguments: (make(), None))
    assert cli.main(["verify", "some:factory"]) == 130
    assert capsys.readouterr() == ("", "fastload verify: interrupted; so far nothing was compared\n")


def test_a_terminal_gets_a_bar_and_a_pipe_does_not(monkeypatch):
    tqdm = pytest.importorskip("tqdm").tqdm

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    make = lambda: FastLoader(torch.arange(50.0), 2, device="cpu", dtype=torch.float32)  # noqa: E731
    monkeypatch.setattr(tqdm, "monitor_interval", 0)  # a thread of tqdm's own, which stays for good
    for kind, shown in ((Terminal, True), (io.StringIO, False)):
        monkeypatch.setattr("sys.stderr", stream := kind())
        verify(make)
        assert ("comparing" in stream.getvalue() and "/20" in stream.getvalue()) is shown


def test_why_nothing_was_native_is_said(root):
    dataset = ImageFolder(root, v1.Compose([v1.GaussianBlur(3), eval_v1()]))
    assert "note: the dataset and its transforms run as they are: GaussianBlur" in str(
        verify(DataLoader(dataset, 3, num_workers=1), batches=1)
    )
    assert not verify(DataLoader(ImageFolder(root, eval_v1()), 3, num_workers=1), batches=1).notes


def test_what_is_no_loader_is_refused():
    with pytest.raises(TypeError, match="DataLoader"):
        verify([1, 2])
    with pytest.raises(ValueError, match="batches"):
        verify(DataLoader([1]), batches=0)


@dataclasses.dataclass
class Pair:
    x: object
    y: object = 1


class Opaque:
    def __init__(self, x):
        self.x = x


class Grumpy(Opaque):
    def __eq__(self, other):
        return self.x == other.x  # of tensors: neither true nor false

    __hash__ = None


Point = collections.namedtuple("Point", "x y")


def nested(value, **layout):
    return torch.nested.nested_tensor([torch.full((2,), float(value)), torch.zeros(3)], **layout)


def quantized(scale):
    return torch.quantize_per_tensor(torch.zeros(1), scale, 0, torch.quint8)


@pytest.mark.parametrize(
    ("make", "other", "place"),
    [
        (lambda: Pair(torch.zeros(2)), lambda: Pair(torch.tensor([0.0, 1.0])), "batch.x[1]: 0.0 and 1.0"),
        (lambda: collections.UserDict(a=torch.zeros(2)), lambda: collections.UserDict(a=torch.ones(2)), "['a'][0]"),
        (lambda: collections.UserList([torch.zeros(2)]), lambda: collections.UserList([torch.ones(2)]), "[0][0]"),
        (lambda: collections.deque([1, 2]), lambda: collections.deque([1, 3]), "batch[1]: 2 and 3"),
        (lambda: Point(torch.zeros(1), 1), lambda: Point(torch.ones(1), 1), "batch[0][0]"),
        (lambda: {"a": np.arange(3)}, lambda: {"a": np.array([0, 1, 3])}, "batch['a'][2]"),
        (lambda: np.array([0.0, np.nan]), lambda: np.array([-0.0, np.nan]), "batch[0]"),
        (lambda: np.array([None, float("nan")]), lambda: np.array([None, 1.0]), "batch[1]: nan and 1.0"),
        (lambda: np.zeros(2), lambda: np.zeros(3), "(2,) and float64 (3,)"),
        (lambda: np.array(1.5), lambda: np.array(2.5), "1.5"),
        (lambda: np.float32("nan"), lambda: np.float32(1), "nan"),
        (lambda: [float("nan")], lambda: [0.0], "batch[0]: nan and 0.0"),
        (lambda: 0.0, lambda: -0.0, "0.0 and -0.0"),
        (lambda: complex(0, float("nan")), lambda: complex(1, float("nan")), "nanj"),
        (lambda: array.array("d", [float("nan")]), lambda: array.array("d", [1.0]), "array"),
        (lambda: range(3), lambda: range(4), "range"),
        (lambda: torch.float32, lambda: torch.float16, "torch.float16"),
        (lambda: torch.eye(2).to_sparse(), lambda: torch.zeros(2, 2).to_sparse(), "batch: tensor(indices"),
        (lambda: torch.eye(2).to_sparse_csr(), lambda: torch.ones(2, 2).to_sparse_csr(), "batch: tensor(crow"),
        (lambda: torch.tensor([1j]).conj(), lambda: torch.tensor([2j]).conj(), "batch[0]: -1j and -2j"),
        (lambda: torch._neg_view(torch.ones(1)), lambda: torch._neg_view(torch.zeros(1)), "batch[0]: -1.0 and -0.0"),
        (lambda: nested(1), lambda: nested(2), "batch: nested_tensor"),
        (lambda: nested(1, layout=torch.jagged), lambda: nested(2, layout=torch.jagged), "batch: NestedTensor"),
        (lambda: quantized(0.5), lambda: quantized(0.25), "scale=0.25"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*prototype:UserWarning", "ignore:.*(beta|invariant|quantized):UserWarning")
def test_every_kind_of_batch_is_walked_through(make, other, place):
    seen = ComparedValues()
    assert difference(make(), make(), compared=seen) is None
    assert (seen.values > 0, seen.opaque) == (True, [])
    assert place in difference(make(), other())


def test_samples_are_the_same_whose_objects_hold_the_same_tensors():
    assert same(Opaque(torch.ones(9)[2:5]), Opaque(torch.ones(9)[2:5]))
    assert not same(Opaque(torch.tensor([0.0])), Opaque(torch.tensor([-0.0])))
    assert not same(Opaque(torch.ones(1, dtype=torch.int32)), Opaque(torch.ones(1, dtype=torch.uint32)))
    assert not same(Opaque(lambda: None), Opaque(lambda: None))  # of which nothing is known


@pytest.mark.parametrize("kind", [Opaque, Grumpy])
def test_what_cannot_be_compared_is_named_and_not_called_different_or_equal(kind):
    seen = ComparedValues()
    assert difference([kind(torch.zeros(2)), 1], [kind(torch.ones(2)), 1], compared=seen) is None
    assert (seen.values, seen.opaque) == (1, [f"batch[0], {kind.__name__}"])
    assert difference([kind(torch.zeros(2)), 1], [kind(torch.zeros(2)), 2]) == "batch[1]: 1 and 2"
    cast = {"device": "cpu", "dtype": torch.float32}  # otherwise it is torch's own loader
    both = lambda samples: [kind(torch.tensor(samples)), torch.tensor(samples)]  # noqa: E731
    result = verify(FastLoader(range(4), 2, collate_fn=both, **cast))
    assert (bool(result), result.compared) == (True, 2)
    assert str(result).splitlines()[1] == f"  note: not compared: batch[0], {kind.__name__}"
    result = verify(FastLoader(range(4), 2, collate_fn=lambda samples: kind(torch.tensor(samples)), **cast))
    assert (bool(result), result.compared, result.difference) == (False, 0, None)
    assert "nothing was compared: of 2 batches, 2 hold nothing but objects" in str(result)


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_a_number_of_workers_that_is_auto_is_the_same_for_torch(root, monkeypatch, engine):
    monkeypatch.setattr(policy, "cores_for_loading", lambda: 3)
    cheap = Trial(4, 1e-4, 2e-4, 100)  # cheap samples: fewer workers than there are cores
    monkeypatch.setattr(probe, "run_trial", lambda loader: cheap)
    dataset = ImageFolder(root, train_v1())
    used = []

    class Noted(FastLoader):
        def _iterate(self):
            iterator = super()._iterate()
            used.append(int(self.num_workers))
            return iterator

    with Noted(dataset, 2, num_workers="auto", device="cpu", engine=engine, dtype=torch.float32) as loader:
        result = verify(loader)
    assert result, result
    assert used == [policy.NATIVE_STREAMS if engine == "native" else 2]


@pytest.mark.slow
@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_samples_that_are_left_out_or_replaced_are_no_difference(root, tmp_path, monkeypatch, on_error):
    folder = tmp_path / "photos"
    shutil.copytree(root, folder)
    file = sorted(folder.glob("*/*.jpg"))[2]
    file.write_bytes(file.read_bytes()[:-600])
    options = {"batch_size": 4, "num_workers": 2, "device": "cpu", "engine": "native"}
    loader = FastLoader(ImageFolder(folder, train_v1()), on_error=on_error, max_errors=9, **options)
    result = verify(loader, None)
    assert result
    assert result.errors == ()
    assert result.compared == len(loader)
    assert loader.errors() == []
    plain = verify(FastLoader(ImageFolder(folder, train_v1()), **options), None)
    assert "OSError" in plain.errors[0]
    monkeypatch.setattr("fastload.native.remaining.candidates", lambda indices, place: iter(indices[:1]))
    monkeypatch.setattr(
        "fastload.native.remaining.Remaining._remove", lambda self, bad: self._put(min(bad), 0, *self._recipe.locate(0))
    )
    assert verify(loader, None).difference is not None
