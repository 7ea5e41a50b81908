"""The user's own collate function, ``worker_init_fn`` and ``target_transform`` around native samples, as in torch."""

from __future__ import annotations

import contextlib
import functools
import mmap
import multiprocessing
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from backends import simulated
from photos import NOISY, OF_PYTHON, PIPELINES, assert_same, both, eval_v1, make_folder, mix_in, train_v1, train_v2
from PIL import Image
from plans import text_of
from torch.utils.data import DataLoader, default_collate, get_worker_info
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from fastload import FastLoader, verify
from fastload._batch import map_tensors
from fastload.check.results import FallbackWarning
from fastload.loader_state import state_of
from fastload.native import sample_lists
from fastload.native.in_next import InProcessFetcher
from fastload.pipeline.recipe import Recipe, read_recipe
from fastload.python_samples.sample_process import SampleProcess
from fastload.python_samples.seeding_process import SeedingProcess
from fastload.stats.shared_counters import SharedCounters
from fastload.workers.start import route_of
from fastload.workers.worker import setup_of

NATIVE = {"device": "cpu", "engine": "native"}
SEED = 0


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return mix_in(make_folder(tmp_path_factory.mktemp("photos"), 17))


@pytest.fixture(scope="module")
def count():
    return multiprocessing.Value("i", 0)


@pytest.fixture
def native_batches(monkeypatch, count):
    """Number of batches made natively, in workers too."""
    count.value = 0
    natively = InProcessFetcher._natively

    def counted(fetcher, *arguments):
        data = natively(fetcher, *arguments)
        with count:
            count.value += 1
        return data

    monkeypatch.setattr(InProcessFetcher, "_natively", counted)
    return count


def states():
    """Draw from all generators: later draws show what these have left."""
    return torch.rand(2), torch.tensor(random.random()), torch.from_numpy(np.random.rand(2))


def mixed(samples):
    batch = v2.RandomChoice([v2.MixUp(num_classes=3), v2.CutMix(num_classes=3)])(*default_collate(samples))
    return batch, states()


def stacked(samples):
    images = torch.stack([image for image, _ in samples])
    return {"pixel_values": images, "labels": torch.tensor([target for _, target in samples]), "states": states()}


def whole(samples):
    info = get_worker_info()
    shown = None if info is None else (info.id, info.num_workers, type(info.dataset).__name__)
    return samples, [(type(image), image.untyped_storage().nbytes(), image.is_leaf) for image, _ in samples], shown


class Counting:
    """Holds a generator of its own, which each worker has a copy of."""

    def __init__(self):
        self.calls = 0
        self.generator = np.random.default_rng(5)

    def __call__(self, samples):
        self.calls += 1
        return default_collate(samples), self.calls, self.generator.random()


def fails(samples):
    if torch.rand(1) < 0.4:
        raise KeyError("no such label")
    return default_collate(samples), states()


ON_TENSORS = ("train_on_tensors", "eval_on_tensors", "erasing_v2", "erasing_bytes")
COLLATED = {"mixed": mixed, "stacked": stacked, "whole": whole, "fails": fails}


def seeds(worker_id):
    worker_seed = torch.initial_seed() % 2**32
    np.random.seed(worker_seed)
    random.seed(worker_seed + worker_id)


def stores(worker_id):
    get_worker_info().dataset.seen = worker_id
    torch.manual_seed(worker_id)


def shrinks(worker_id):
    get_worker_info().dataset.transform.transforms[0] = v1.RandomResizedCrop(24)


def collated_with_states(samples):
    return default_collate(samples), states()


def noisy(target):
    """A label that is wrong at times."""
    return target if random.random() < 0.7 else random.randrange(3)


def noisy_by_torch(target):
    return target + torch.rand(()).item() if target == 1 else target


def check(dataset_of, **arguments):
    arguments = {"batch_size": 4, "shuffle": True, **arguments}

    def seeded():
        random.seed(5)
        np.random.seed(6)
        return dataset_of()

    ours, theirs = both(seeded, FastLoader, NATIVE, **arguments)
    assert_same(ours, theirs)
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(b, Exception):
            assert str(a).splitlines()[0] == str(b).splitlines()[0]
            assert str(a).splitlines()[-1] == str(b).splitlines()[-1]
    return ours


@pytest.mark.each_value
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", COLLATED)
def test_a_collate_function_of_ones_own(root, native_batches, name, workers):
    seen = check(lambda: ImageFolder(root, train_v1()), collate_fn=COLLATED[name], num_workers=workers)
    assert native_batches.value == 12
    assert any(isinstance(item, Exception) for item in seen) == (name == "fails")


@pytest.mark.each_value
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", NOISY)
def test_a_mix_of_samples_with_noise(root, native_batches, name, workers):
    check(lambda: ImageFolder(root, PIPELINES[name]()), collate_fn=mixed, num_workers=workers)
    assert native_batches.value == 12


@pytest.mark.parametrize("workers", [0, 2])
def test_a_collate_function_with_a_state(root, workers):
    arguments = {"num_workers": workers, "persistent_workers": bool(workers)}
    check(lambda: ImageFolder(root, train_v1()), build=lambda: {"collate_fn": Counting()}, **arguments)


@pytest.mark.parametrize("name", PIPELINES)
def test_samples_have_the_layout_and_type_of_torchs(root, native_batches, name):
    dataset = ImageFolder(root, PIPELINES[name]())
    if isinstance(read_recipe(dataset, whole), Recipe):
        check(lambda: ImageFolder(root, PIPELINES[name]()), collate_fn=whole, num_workers=1, run={"count": 1})
        assert native_batches.value == 6
    else:
        assert name in ON_TENSORS


@pytest.mark.each_value
@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("breaks_at", [None, 1, 3])
def test_epochs_and_breaks(root, breaks_at, persistent):
    run = {"count": 3, "breaks_at": breaks_at}
    arguments = {"num_workers": 2, "persistent_workers": persistent, "worker_init_fn": stores, "run": run}
    check(lambda: ImageFolder(root, train_v1()), collate_fn=mixed, **arguments)


FIRST_CALLS = {
    "seeds": seeds,
    "lambda": lambda worker: torch.manual_seed(7 + worker),
    "fails": lambda worker: np.random.seed(-1 - worker),
    "stores": stores,
    "shrinks": shrinks,
    "partial": functools.partial(print, end=""),
}


@pytest.mark.each_value
@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("collate_fn", [None, collated_with_states])
@pytest.mark.parametrize("name", FIRST_CALLS)
def test_first_calls_of_workers(root, name, collate_fn, persistent):
    run = {"count": 1 if name == "fails" else 2, "breaks_at": None if name == "fails" else 2}
    arguments = {"num_workers": 2, "persistent_workers": persistent, "run": run, "collate_fn": collate_fn}
    check(lambda: ImageFolder(root, train_v1()), worker_init_fn=FIRST_CALLS[name], **arguments)


@pytest.mark.slow
@pytest.mark.parametrize("module", ["lightning.fabric.utilities.seed", "timm.data.loader"])
def test_first_calls_of_libraries(root, module):
    library = pytest.importorskip(module)
    function = getattr(library, "pl_worker_init_function", None) or library._worker_init
    loader = FastLoader(ImageFolder(root, train_v1()), 4, num_workers=2, worker_init_fn=function, **NATIVE)
    assert "decode threads" in text_of(loader)
    check(lambda: ImageFolder(root, train_v1()), worker_init_fn=function, num_workers=2)


def by_seed(worker_id):
    random.seed(SEED + worker_id)
    torch.manual_seed(torch.initial_seed() % 1000 + SEED)


def test_one_process_seeds_the_workers_of_all_epochs(tmp_path, monkeypatch):
    started, real = [], SampleProcess._start
    monkeypatch.setattr(SampleProcess, "_start", lambda process: (started.append(process), real(process)))
    dataset = ImageFolder(make_folder(tmp_path, 9), train_v1())  # no sample is made in Python
    arguments = {"batch_size": 4, "shuffle": True, "num_workers": 2, "worker_init_fn": by_seed}
    with FastLoader(dataset, **arguments, **NATIVE) as loader:

        def forks(base_seed, seed):
            monkeypatch.setitem(globals(), "SEED", seed)
            made = []
            for each in (loader, DataLoader(dataset, **arguments)):
                torch.manual_seed(base_seed)
                made.append(list(each))
            assert_same(*made)
            return len(started)

        assert forks(0, seed=5) == forks(1, seed=5) == 1
        assert forks(2, seed=7) == 2  # which a new worker would see
        started[-1]._process.kill()
        started[-1]._process.join()
        assert forks(3, seed=7) == 3
    assert not any(process.answers for process in started)


def test_free_memory_is_not_in_a_process_forked_while_batches_are_made(root):
    """Writing there again would copy each page."""
    with contextlib.closing(SampleProcess(read_recipe(ImageFolder(root, train_v1())))) as process:
        blocks = [torch.ones(25_000) for _ in range(400)]
        above = torch.ones(25_000)  # else free() returns them
        del blocks
        before = resident_bytes()
        process.start()
        assert before - resident_bytes() > 20e6
        assert above.all()


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_a_call_while_the_seeding_process_answers_another(root):
    recipe = read_recipe(ImageFolder(root, train_v1()), None, by_seed)
    process, seeding = SampleProcess(recipe), SeedingProcess()
    with contextlib.closing(seeding), contextlib.closing(SampleProcess(recipe)) as other:
        assert seeding.keep(recipe, process)
        assert not seeding.keep(recipe, other)
        asked = seeding.states(recipe, other, 5, 2)
        assert not other.started
        ask = process._ask

        def interrupted(*request):
            assert seeding.states(recipe, other, 6, 2) != asked  # as a signal's handler may
            assert ask(*request)
            raise KeyboardInterrupt

        process._ask = interrupted
        with pytest.raises(KeyboardInterrupt):
            seeding.states(recipe, other, 7, 2)
        assert not process.answers  # its answer could be taken for that of the next question
        assert seeding.states(recipe, other, 5, 2) == asked


def test_seeds_of_the_system_are_each_epochs_own(root):
    recipe = read_recipe(ImageFolder(root, train_v1()), None, lambda worker: torch.seed())
    with contextlib.closing(SampleProcess(recipe)) as process:
        seeding = SeedingProcess()
        first, second = [[seeding.states(recipe, process, 5, 1) for _ in range(2)] for _ in range(2)]
    assert first[0] == first[1] != second[0] == second[1]  # asked before an epoch's start, and at it


@pytest.mark.each_value
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("transform", [train_v1, eval_v1, train_v2])
@pytest.mark.parametrize("target_transform", [float, noisy, noisy_by_torch, {0: "a", 1: "b", 2: "c"}.get])
def test_target_transforms(root, native_batches, target_transform, transform, workers):
    arguments = {"collate_fn": None if target_transform is float else collated_with_states, "num_workers": workers}
    check(lambda: ImageFolder(root, transform(), target_transform=target_transform), **arguments)
    gave_up = target_transform is noisy_by_torch and transform is not eval_v1
    assert (0 < native_batches.value < 12) if gave_up else native_batches.value == 12


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_that_differs_falls_back_to_torch(root, monkeypatch, native_batches, workers):
    real = sample_lists.images_alone
    monkeypatch.setattr(sample_lists, "images_alone", lambda recipe: lambda *given: real(recipe)(*given) + 1e-6)
    arguments = {"batch_size": 4, "num_workers": workers, "collate_fn": stacked}
    if workers:
        check(lambda: ImageFolder(root, train_v1()), **arguments)
    else:
        with pytest.warns(FallbackWarning, match="a sample is not the same to the bit natively"):
            check(lambda: ImageFolder(root, train_v1()), **arguments)
    assert not native_batches.value


@pytest.mark.parametrize("transform", [train_v1, eval_v1])
def test_draws_that_differ_leave_batches_to_torch(root, monkeypatch, native_batches, transform):
    real = sample_lists.Made.compare

    def draws_more(made, *arguments):
        state = sample_lists.state_now
        monkeypatch.setattr(sample_lists, "state_now", lambda **which: (torch.rand(1), state(**which))[1])
        try:
            return real(made, *arguments)
        finally:
            monkeypatch.setattr(sample_lists, "state_now", state)

    monkeypatch.setattr(sample_lists.Made, "compare", draws_more)
    with pytest.warns(FallbackWarning, match="a sample draws other random numbers natively"):
        check(lambda: ImageFolder(root, transform()), collate_fn=stacked, num_workers=0)
    assert not native_batches.value


class Dicts:
    """Says where its images are, but has other samples."""

    def __init__(self, root, transform):
        self.folder, self.transform = ImageFolder(root), transform

    def __len__(self):
        return len(self.folder)

    def __getitem__(self, index):
        image, target = self.folder[index]
        return {"x": self.transform(image), "y": target}

    def encoded(self, index):
        return self.folder.samples[index]


@pytest.mark.parametrize("randomness", ["worker", "sample"])
def test_workers_make_no_samples_natively_that_have_seeds_of_their_own(root, randomness):
    given = {"num_workers": 1, "worker_init_fn": seeds, "randomness": randomness}
    with FastLoader(ImageFolder(root, train_v1()), **given) as loader:
        with pytest.warns(FallbackWarning):
            state_of(loader).checks.start_failed(loader, route_of(loader).recipe, "no process")
        setup = setup_of(loader, route_of(loader), SharedCounters(1, 2))
    assert (setup.native is None) == (randomness == "sample")


def test_a_first_call_may_change_what_encoded_returns(root):
    assert read_recipe(Dicts(root, train_v1()), None, seeds).in_python == ("worker_init_fn seeds",)
    assert read_recipe(ImageFolder(root, train_v1()), None, seeds).first_call is seeds


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_of_encoded_that_are_no_pairs(root, native_batches, workers):
    arguments = {"batch_size": 4, "num_workers": workers, "device": "cpu"}
    with pytest.warns(FallbackWarning, match=r"a dict, but encoded\(\) describes a pair .*EncodedImage"):
        list(FastLoader(Dicts(root, train_v1()), **arguments))
    arguments = {"batch_size": 4, "num_workers": workers, "collate_fn": lambda rows: rows}
    ours, theirs = both(lambda: Dicts(root, train_v1()), FastLoader, {"device": "cpu"}, **arguments)
    assert_same(ours, theirs)
    assert not native_batches.value


def test_the_plan_says_what_workers_gave_up(root, native_batches):
    arguments = {"num_workers": 2, "collate_fn": lambda rows: default_collate(rows)}
    with FastLoader(Dicts(root, eval_v1()), 4, **arguments, device="cpu") as loader:
        assert "as torch does" not in text_of(loader)
        for _ in range(2):
            assert_same(list(loader), list(DataLoader(Dicts(root, eval_v1()), 4)))
            gave_up = "of late workers have made samples as torch does, for a sample is a dict, but encoded() describes"
            assert gave_up in text_of(loader)
        assert any(note.startswith(gave_up) for note in verify(loader).notes)
    assert not native_batches.value


def test_the_plan_says_what_runs_beside_samples(root):
    arguments = {"collate_fn": mixed, "worker_init_fn": stores, "num_workers": 2}
    plan = text_of(FastLoader(ImageFolder(root, train_v1(), target_transform=noisy), 4, **arguments, **NATIVE))
    assert "2 worker processes, a decode thread each" in plan
    assert "collate_fn mixed, worker_init_fn stores, target_transform noisy" in plan


LOUD = """
import sys
import torch
from torch.utils.data import default_collate
from torchvision.datasets import ImageFolder
import torchvision.transforms as v1
from fastload import FastLoader, verify
from fastload._batch import map_tensors

def own(samples):
    return default_collate(samples)

def first(worker):
    print("", end="")

transform = v1.Compose([v1.RandomResizedCrop(8), v1.ToTensor()])
for root in sys.argv[1:]:
    for workers in (0, 2):
        for given in ({}, {"collate_fn": own}, {"worker_init_fn": first}, {"worker_init_fn": torch.manual_seed}):
            loader = FastLoader(ImageFolder(root, transform), 4, device="cpu", num_workers=workers, **given)
            print(sum(len(images) for images, _ in loader))
"""


@pytest.mark.slow
def test_no_program_ends_where_warnings_are_errors(tmp_path, root):
    folder = tmp_path / "bmp" / "class"
    folder.mkdir(parents=True)
    for number, path in enumerate(sorted(root.rglob("*.jpg"))[:5]):
        Image.open(path).convert("RGB").save(folder / f"{number}.bmp")
    command = [sys.executable, "-W", "error", "-c", LOUD, str(folder.parent), str(root)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    counts = [str(len(ImageFolder(path))) for path in (folder.parent, root) for _ in range(8)]
    assert (ran.stdout.split(), ran.returncode) == (counts, 0), ran.stderr


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["collate_fn", "dicts"])
def test_on_a_simulated_device(root, monkeypatch, native_batches, kind, workers):
    class Named(ImageFolder):
        def __getitem__(self, index):
            image, target = super().__getitem__(index)
            return {"x": image, "y": [target, str(index)]}

    own = {**simulated.install_native(monkeypatch), "engine": "native"}
    arguments = {"batch_size": 4, "shuffle": True, "num_workers": workers}
    arguments |= {"collate_fn": stacked} if kind == "collate_fn" else {}
    of = ImageFolder if kind == "collate_fn" else Named

    def batches(make, **more):
        torch.manual_seed(4)
        random.seed(5)
        np.random.seed(6)
        loader = make(of(root, train_v1()), **arguments, **more)
        found = [map_tensors(lambda leaf: leaf.cpu().contiguous(), batch) for _ in range(2) for batch in loader]
        return [*found, torch.get_rng_state()]

    assert_same(batches(FastLoader, **own), batches(DataLoader))
    assert native_batches.value == (12 if kind == "collate_fn" or not workers else 0)


@pytest.mark.each_value
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("given", ["collate_fn", "noisy", "noisy_by_torch", "seeds", "stores"])
@pytest.mark.parametrize("name", [*OF_PYTHON, *NOISY[-1:]])
def test_images_that_draw_from_python_and_numpy(root, native_batches, name, given, workers):
    arguments = {"num_workers": workers, "collate_fn": None if given == "seeds" else collated_with_states}
    if given in ("seeds", "stores") and workers:
        arguments["worker_init_fn"] = FIRST_CALLS[given]
    target = {"noisy": noisy, "noisy_by_torch": noisy_by_torch}.get(given)
    check(lambda: ImageFolder(root, PIPELINES[name](), target_transform=target), **arguments)
    if given == "collate_fn":
        assert native_batches.value == 12


class TwoViews:
    def __init__(self, transform):
        self.transform = transform

    def __call__(self, x):
        return [self.transform(x), self.transform(x)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train_v1", *OF_PYTHON])
def test_views_beside_a_collate_function(root, name):
    def dataset():
        return ImageFolder(root, TwoViews(PIPELINES[name]()))

    assert isinstance(read_recipe(dataset()), Recipe)
    assert "several views" in str(read_recipe(dataset(), stacked).reasons)
    check(dataset, num_workers=2)
    ours, theirs = both(dataset, FastLoader, {"device": "cpu"}, batch_size=4, collate_fn=views_stacked, num_workers=2)
    assert_same(ours, theirs)


def views_stacked(samples):
    return default_collate([views for views, _ in samples]), states()
