"""With ``num_workers=0``, ``next()`` makes batches natively; every state after them is torch's."""

from __future__ import annotations

import functools
import gc
import itertools
import random
import threading
import weakref
import zlib

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from backends import simulated
from children import exit_code, forked
from photos import (
    NOISY,
    PIPELINES,
    Encoded,
    assert_same,
    damaged,
    damaged_twice,
    eval_v1,
    jpeg,
    make_folder,
    orders_v1,
    photos_fixture,
    random_crop,
    train_v1,
)
from PIL import Image, ImageFile
from plans import text_of
from references import kept
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, Subset
from torch.utils.data._utils.collate import default_collate_fn_map
from torchvision.datasets import ImageFolder

from fastload import FastLoader
from fastload.check.results import FallbackWarning
from fastload.native import in_next as in_process
from fastload.native.in_next import InProcessFetcher
from fastload.pipeline.transforms import Pipeline
from fastload.stats.diagnosis import report

NATIVE = {"device": "cpu", "engine": "native"}
folder = photos_fixture()
mixed = photos_fixture(12, mixed=True)


@pytest.fixture(autouse=True)
def native_batches(monkeypatch):
    """Count the batches that the core has made, and those left to torch."""
    counts = {"native": 0, "torch": 0}
    natively = InProcessFetcher._natively

    def counted(fetcher, *arguments):
        counts["torch"] += 1
        data = natively(fetcher, *arguments)
        counts["torch"] -= 1
        counts["native"] += 1
        return data

    monkeypatch.setattr(InProcessFetcher, "_natively", counted)
    return counts


def states(loader):
    numpy = np.random.get_state()
    others = torch.tensor([zlib.crc32(repr(random.getstate()).encode()), zlib.crc32(numpy[1].tobytes()), numpy[2]])
    return [torch.get_rng_state(), others, *([loader.generator.get_state()] if loader.generator is not None else [])]


def trace(make, epochs=2, breaks_at=None, between=lambda loader, number: None):
    """Batches, errors, and the generators' states after each."""
    torch.manual_seed(3)
    np.random.seed(4)
    random.seed(5)
    seen = []
    loader = make()
    for _ in range(epochs):
        iterator = iter(loader)
        seen += states(loader)
        for number in itertools.count():
            if number == breaks_at:
                break
            try:
                seen.append(next(iterator))
            except StopIteration:
                break
            except Exception as error:
                seen += [error.with_traceback(None), torch.tensor(error.__context__ is None)]
            seen += states(loader)
            between(loader, number)
    return seen


def check(dataset_of, native_batches, own=NATIVE, build=dict, **arguments):
    run = {key: arguments.pop(key) for key in ("epochs", "breaks_at", "between") if key in arguments}
    arguments = {"batch_size": 5, "shuffle": True, **arguments}
    theirs = kept(lambda: trace(lambda: DataLoader(dataset_of(), **arguments, **build()), **run))
    assert native_batches == {"native": 0, "torch": 0}
    ours = trace(lambda: FastLoader(dataset_of(), **own, **arguments, **build()), **run)
    assert_same(ours, theirs)
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(b, Exception):
            assert str(a).partition(" at 0x")[0] == str(b).partition(" at 0x")[0]
    assert native_batches["native"]
    return theirs


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_and_other_formats_among_the_jpegs(mixed, native_batches, name):
    check(lambda: ImageFolder(mixed, PIPELINES[name]()), native_batches)
    assert not native_batches["torch"]


@pytest.mark.parametrize("drop_last", [True, False])
def test_a_generator_of_ones_own(folder, native_batches, drop_last):
    build = lambda: {"generator": torch.Generator().manual_seed(9)}  # noqa: E731
    check(lambda: ImageFolder(folder, train_v1()), native_batches, build=build, drop_last=drop_last)
    assert not native_batches["torch"]


@pytest.mark.parametrize("breaks_at", [0, 1, 3])
def test_breaks(folder, native_batches, breaks_at):
    check(lambda: ImageFolder(folder, train_v1()), native_batches, breaks_at=breaks_at or None, epochs=3)


SAMPLERS = {
    "batches": lambda: {"batch_sampler": BatchSampler(RandomSampler(range(23)), 4, True), "batch_size": 1},
    "tuples": lambda: {"batch_sampler": [(0, 1), (2,)], "batch_size": 1},
    "generators": lambda: {"batch_sampler": Once([(0, 1), (2,)]), "batch_size": 1},
    "replicas": lambda: {"sampler": DistributedSampler(range(23), 2, 1, seed=5), "batch_size": 5},
    "numbers": lambda: {"sampler": [7, 7, 0, -1, 22, 3, 12, 5], "batch_size": 3},
    "out of range": lambda: {"sampler": [0, 1, 99, 2, 3, 4, 99, 5], "batch_size": 2},
    "empty batch": lambda: {"batch_sampler": [[0, 1], [], [2]], "batch_size": 1},
}


class Once(list):
    """Batches whose indices can be read only once."""

    def __iter__(self):
        return (iter(batch) for batch in super().__iter__())


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers(mixed, folder, native_batches, name):
    if name == "generators":
        pairs = [trace(lambda make=make: make(ImageFolder(mixed, train_v1()), **SAMPLERS[name]())) for make in ENGINES]
        assert_same(*pairs)
        assert not native_batches["native"]
        return
    build = lambda: {"shuffle": None, **SAMPLERS[name]()}  # noqa: E731
    theirs = kept(lambda: trace(lambda: DataLoader(ImageFolder(folder, train_v1()), **build())))
    ours = trace(lambda: FastLoader(ImageFolder(folder, train_v1()), **build(), **NATIVE))
    assert_same(ours, theirs)
    assert native_batches["native"]
    assert bool(native_batches["torch"]) == any(isinstance(item, Exception) for item in theirs)


def ours(dataset, **arguments):
    return FastLoader(dataset, **NATIVE, **arguments)


ENGINES = (DataLoader, ours)


def test_subsets(folder, native_batches):
    dataset_of = lambda: Subset(Subset(ImageFolder(folder, train_v1()), range(3, 20)), [5, 1, 9, 9, 0, 3])  # noqa: E731
    check(dataset_of, native_batches)


@pytest.mark.parametrize("damage", ["truncated", "no image", "misnamed text", "missing", "noise", "zero byte"])
def test_damaged_files(tmp_path, native_batches, damage):
    theirs = check(damaged(tmp_path, damage), native_batches, batch_size=3, epochs=3)
    assert any(isinstance(item, Exception) for item in theirs) or damage == "noise"  # Pillow makes something of that


def test_two_damaged_files_and_a_crop_that_does_not_fit(tmp_path, native_batches):
    root = damaged_twice(tmp_path)
    transform = lambda: v1.Compose([v1.RandomHorizontalFlip(), v1.RandomCrop(40), v1.ToTensor()])  # noqa: E731
    theirs = check(lambda: ImageFolder(root, transform()), native_batches, batch_size=3, epochs=3)
    assert any(isinstance(item, ValueError) for item in theirs)


def test_the_consumers_own_draws_between_batches(mixed, native_batches):
    def between(loader, number):
        torch.randn(1 + number)  # of which the generator keeps one
        torch.rand(number)
        random.random()
        np.random.rand()

    check(lambda: ImageFolder(mixed, train_v1()), native_batches, between=between)


def test_a_transform_that_changes_between_batches(mixed, native_batches):
    def between(loader, number):
        if number == 0:
            loader.dataset.transform = random_crop()
        elif number == 1:
            loader.dataset.transform.transforms[0].size = 60
        elif number == 2:
            loader.dataset.samples[::2] = loader.dataset.samples[1::2] + loader.dataset.samples[:1]
        elif number == 3:
            loader.dataset.transform.transforms[0] = v1.Lambda(lambda image: image.resize((50, 50)).rotate(9))

    check(lambda: ImageFolder(mixed, train_v1()), native_batches, {"device": "cpu"}, between=between, batch_size=3)
    assert native_batches["torch"]  # the Lambda


def test_a_transform_that_begins_to_draw_from_python_between_batches(mixed, native_batches):
    def between(loader, number):
        loader.dataset.transform = (train_v1, orders_v1)[number % 3 != 2]()

    check(lambda: ImageFolder(mixed, train_v1()), native_batches, {"device": "cpu"}, between=between, batch_size=2)
    assert native_batches["native"] > native_batches["torch"]


def test_an_error_in_the_first_batch_that_draws_from_python(mixed, native_batches):
    def between(loader, number):
        loader.dataset.transform = orders_v1()
        loader.dataset.samples[5] = ("no such file.jpg", 0)

    run = {"between": between, "batch_size": 3, "shuffle": False, "epochs": 1}
    check(lambda: ImageFolder(mixed, train_v1()), native_batches, **run)
    assert native_batches["torch"] == 1


def test_iterators_at_the_same_time_and_one_inside_another(mixed, native_batches):
    def seen(make):
        torch.manual_seed(3)
        loader, other = (make(ImageFolder(mixed, f()), batch_size=4, shuffle=True) for f in (train_v1, random_crop))
        for first, second in zip(loader, loader, strict=True):
            yield from (first, torch.get_rng_state(), second, torch.get_rng_state())
            for inner in itertools.islice(other, 2):
                yield from (inner, torch.get_rng_state())

    assert_same(list(seen(ours)), list(seen(DataLoader)))
    assert native_batches["native"]
    assert not native_batches["torch"]


class Overwritten(Encoded):
    """Bytes in one buffer that each sample overwrites."""

    def __init__(self, transform):
        super().__init__(transform)
        self.buffer = bytearray(max(map(len, self.files)))
        self.interrupts = -1

    def encoded(self, index):
        if self.interrupts == index:
            raise KeyboardInterrupt
        data = self.files[index]
        self.buffer[: len(data)] = data
        return memoryview(self.buffer)[: len(data)], {"label": index}


def test_a_dataset_that_reuses_its_memory(native_batches):
    pairs = [trace(lambda make=make: make(Overwritten(train_v1()), batch_size=4, shuffle=True)) for make in ENGINES]
    for a, b in zip(*pairs, strict=True):
        if isinstance(a, list):
            a[1], b[1] = a[1]["label"], b[1]["label"]
    assert_same(*pairs)
    assert native_batches == {"native": 6, "torch": 0}


def test_after_a_keyboard_interrupt_iteration_goes_on(native_batches):
    dataset = Overwritten(train_v1())
    iterator = iter(ours(dataset, batch_size=3))
    next(iterator)
    before = torch.get_rng_state()
    dataset.interrupts = 4
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert torch.equal(torch.get_rng_state(), before)
    images, targets = next(iterator)
    assert targets["label"].tolist() == [6, 7, 8]
    torch.set_rng_state(before)
    assert torch.equal(images, torch.stack([dataset[index][0] for index in (6, 7, 8)]))


def test_an_interrupt_during_the_check_leaves_the_states(folder, monkeypatch):
    loader = ours(ImageFolder(folder, train_v1()), batch_size=3)

    def interrupt(*_):
        torch.rand(3)
        raise KeyboardInterrupt

    monkeypatch.setattr(in_process, "batch_of_one", interrupt)
    before = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        iter(loader)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_draws_nothing_leaves_the_generators_to_other_threads(folder, monkeypatch, native_batches):
    loader = ours(ImageFolder(folder, eval_v1()), batch_size=5, generator=torch.Generator())
    for module, name in ((torch, "set_rng_state"), (random, "setstate"), (np.random, "set_state")):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("a state was set"))
    assert len(list(loader)) == 5
    assert native_batches == {"native": 5, "torch": 0}


def test_nothing_is_drawn_ahead(folder):
    drawn = []
    sampler = (drawn.append(index) or index for index in range(20))
    iterator = iter(ours(ImageFolder(folder, train_v1()), sampler=sampler, batch_size=4))
    for number in range(4):
        assert len(drawn) == 4 * number
        next(iterator)


@pytest.mark.each_value
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("name", ["train_v1", "erasing_v1", *NOISY])
def test_randomness_by_sample(mixed, native_batches, name, shuffle):
    arguments = {"batch_size": 4, "shuffle": shuffle, "randomness": "sample", "device": "cpu"}
    dataset = ImageFolder(mixed, PIPELINES[name]())
    theirs = trace(lambda: FastLoader(dataset, engine="torch", **arguments))
    assert_same(trace(lambda: FastLoader(dataset, engine="native", **arguments)), theirs)
    assert native_batches == {"native": 10, "torch": 0}


def test_inference_mode(folder, native_batches):
    with torch.inference_mode():
        images, targets = next(iter(ours(ImageFolder(folder, train_v1()), batch_size=4)))
    assert images.is_inference()
    assert targets.is_inference()
    assert native_batches["native"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_cast_on_the_host(folder, native_batches, dtype):
    dataset = ImageFolder(folder, train_v1())
    torch.manual_seed(3)
    wanted = kept(lambda: [images.to(dtype) for images, _ in DataLoader(dataset, batch_size=4)])
    torch.manual_seed(3)
    assert_same([images for images, _ in ours(dataset, batch_size=4, dtype=dtype)], wanted)
    assert native_batches == {"native": 6, "torch": 0}


def test_where_pillow_draws_otherwise_than_the_core_torch_makes_the_batch(tmp_path, monkeypatch, native_batches):
    root = make_folder(tmp_path, 6)
    victim = root / "class1" / "004.jpg"
    victim.write_bytes(victim.read_bytes()[:-300])
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    made = Pipeline.pixels
    monkeypatch.setattr(Pipeline, "pixels", lambda *arguments: (torch.rand(1), made(*arguments))[1])
    check(lambda: ImageFolder(root, train_v1()), native_batches, batch_size=3)
    assert native_batches["torch"]


def test_an_error_behind_a_sample_that_python_makes_leaves_the_state_of_its_own(tmp_path, monkeypatch, native_batches):
    root = make_folder(tmp_path, 6)
    victim = root / "class0" / "000.jpg"
    victim.write_bytes(victim.read_bytes()[: victim.stat().st_size // 3])
    (root / "class1" / "001.jpg").write_bytes(b"no image")
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    dataset_of = lambda: ImageFolder(root, train_v1())  # noqa: E731
    check(dataset_of, native_batches, batch_size=3, shuffle=False, build=lambda: {"sampler": [0, 3, 2, 4, 5, 1]})


def test_a_batch_that_only_torch_can_make_is_told_of(folder, monkeypatch):
    loader = FastLoader(ImageFolder(folder, train_v1()), 3, num_workers=0, device="cpu")
    torch.manual_seed(0)
    expected = kept(lambda: next(iter(DataLoader(ImageFolder(folder, train_v1()), 3))))
    torch.manual_seed(0)
    iterator = iter(loader)
    monkeypatch.setattr(in_process, "collated", lambda targets: 1 // 0)
    with pytest.warns(FallbackWarning, match="a batch that torch could make raised ZeroDivisionError"):
        images, _ = next(iterator)
    assert torch.equal(images, expected[0])
    loader.close()


@pytest.mark.each_value
@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("name", ["train_v1", "erasing_v1", "erasing_bytes", "eval_v2", *NOISY])
def test_on_a_simulated_device(mixed, monkeypatch, native_batches, name, prefetch):
    dataset_of = lambda: ImageFolder(mixed, PIPELINES[name]())  # noqa: E731
    theirs = kept(lambda: trace(lambda: DataLoader(dataset_of(), batch_size=4, shuffle=True)))
    own = {**simulated.install_native(monkeypatch), "device_prefetch": prefetch, "engine": "native"}
    seen = trace(lambda: FastLoader(dataset_of(), batch_size=4, shuffle=True, **own))
    assert all(item[0].is_contiguous(memory_format=torch.channels_last) for item in seen if isinstance(item, list))
    host = [[leaf.cpu().contiguous() for leaf in item] if isinstance(item, list) else item for item in seen]
    assert_same(host, theirs)
    assert native_batches == {"native": 10, "torch": 0}


def test_a_dropped_iterator_is_gone(folder, monkeypatch):
    simulated_own = simulated.install_native(monkeypatch)
    gc.disable()
    try:
        for own in (NATIVE, {**simulated_own, "engine": "native"}):
            loader = FastLoader(ImageFolder(folder, train_v1()), batch_size=4, **own)
            iterator = iter(loader)
            next(iterator)
            gone = weakref.ref(iterator)
            del iterator
            assert gone() is None
            assert loader.stats().images == 4
            loader_gone = weakref.ref(loader)
            del loader
            assert loader_gone() is None  # and so are its decode threads
    finally:
        gc.enable()


def test_a_closed_loader_has_no_threads_and_its_iterator_goes_on_as_torchs(folder, native_batches):
    loader = ours(ImageFolder(folder, eval_v1()), batch_size=4)
    iterator = iter(loader)
    next(iterator)
    pool = loader._state.decode_pool()
    loader.close()
    with pytest.raises(RuntimeError):
        pool.submit([jpeg(1)], np.empty((1, 4, 4, 3), np.uint8), geometry=np.zeros((1, 12), np.int32))
    assert len(list(iterator)) == 5
    assert native_batches == {"native": 1, "torch": 5}


def test_a_forked_child_iterates_too(folder):
    loader = ours(ImageFolder(folder, train_v1()), batch_size=4)
    iterator = iter(loader)
    next(iterator)
    state = torch.get_rng_state()
    wanted = next(iterator)[0]

    def child():
        torch.set_rng_state(state)
        assert torch.equal(next(again)[0], wanted)

    again = iter(ours(loader.dataset, batch_size=4))
    torch.set_rng_state(state)
    next(again)
    assert exit_code(forked(child)) == 0


def test_threads_share_a_loader(folder, native_batches):
    loader = ours(ImageFolder(folder, eval_v1()), batch_size=4)
    wanted = kept(lambda: list(DataLoader(loader.dataset, batch_size=4)))
    seen = [[] for _ in range(4)]
    threads = [threading.Thread(target=lambda own=own: own.extend(loader)) for own in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for own in seen:
        assert_same(own, wanted)
    assert native_batches == {"native": 24, "torch": 0}


def test_arguments_that_only_workers_heed_do_not_matter(folder):
    loader = ours(ImageFolder(folder, train_v1()), worker_init_fn=pytest.fail, in_order=False, batch_size=4)
    assert len(list(loader)) == 6


def test_a_bit_that_differs_leaves_batches_to_torch(folder, monkeypatch, native_batches):
    real = in_process.batch_of_one

    def differs(*arguments):
        (images, targets), after = real(*arguments)
        images[0, 0, 0, 0] += 1e-6
        return [images, targets], after

    monkeypatch.setattr(in_process, "batch_of_one", differs)
    loader = FastLoader(ImageFolder(folder, train_v1()), batch_size=4, device="cpu")
    with pytest.warns(FallbackWarning, match="not the same to the bit"):
        assert len(list(loader)) == 6
    assert loader.plan.engine == "torch"
    with pytest.raises(RuntimeError, match="not the same to the bit"):
        iter(ours(loader.dataset, batch_size=4))
    assert native_batches == {"native": 0, "torch": 0}


def test_the_plan_and_the_report_say_where_batches_are_made(mixed):
    loader = ours(ImageFolder(mixed, train_v1()), batch_size=4)
    list(loader)
    assert loader.plan.engine == "native"
    assert "in next()" in loader.plan.steps[0].where
    assert "go through the transforms, in the main process" in text_of(loader)
    assert {"decode", "python", "collate", "epilogue"} <= loader.stats().stages.keys()
    assert loader.stats().images == len(loader.dataset)
    made = sum(not path.endswith((".jpg", ".jpeg")) for path, _ in loader.dataset.samples)
    assert 0 < made <= loader.stats().python_images < len(loader.dataset)
    assert f"{loader.stats().python_images} of {len(loader.dataset)} samples" in str(loader.report())
    assert "num_workers >= 1" in str(report(loader.stats()))


class Wrapped:
    """Calls a transform."""

    def __init__(self, inner):
        self.inner = inner

    def __call__(self, image):
        return self.inner(image)


def of_tensors():
    transform = train_v1()
    transform.transforms[-1] = v1.Normalize(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.2, 0.3, 0.4]))
    transform.transforms.insert(0, v1.Lambda(lambda image: image.convert("RGB")))
    return v1.Compose([Wrapped(transform)])


class Turned(ImageFolder):
    """An ImageFolder whose targets are others."""

    def __getitem__(self, index):
        image, target = super().__getitem__(index)
        return image, target + 70


def turned(function):
    return lambda *arguments, **named: function(*arguments, **named).transpose(Image.Transpose.ROTATE_180)


CHANGES = {
    "size": lambda dataset, parts, patch: setattr(parts[1], "size", (40, 44)),
    "mean": lambda dataset, parts, patch: parts[-1].mean.add_(0.2),
    "another mean": lambda dataset, parts, patch: setattr(parts[-1], "mean", [0.5, 0.5, 0.5]),
    "step": lambda dataset, parts, patch: parts.insert(2, v1.RandomVerticalFlip()),
    "steps swapped": lambda dataset, parts, patch: parts.__setitem__(slice(1, 3), parts[2:0:-1]),
    "inner": lambda dataset, parts, patch: setattr(dataset.transform.transforms[0], "inner", train_v1()),
    "transform": lambda dataset, parts, patch: setattr(dataset, "transform", eval_v1()),
    "target_transform": lambda dataset, parts, patch: setattr(dataset, "target_transform", lambda target: target + 3),
    "class of the dataset": lambda dataset, parts, patch: setattr(dataset, "__class__", Turned),
    "class of a step": lambda dataset, parts, patch: setattr(parts[2], "__class__", v1.RandomVerticalFlip),
    "loader": lambda dataset, parts, patch: setattr(dataset, "loader", turned(dataset.loader)),
    "samples": lambda dataset, parts, patch: dataset.samples.reverse(),
    "hook": lambda dataset, parts, patch: parts[1].register_forward_hook(lambda part, given, made: made.rotate(180)),
    "method": lambda dataset, parts, patch: patch.setattr(v1.RandomResizedCrop, "forward", turned(parts[1].forward)),
    "function": lambda dataset, parts, patch: patch.setattr(Image, "open", lambda file: turned(OPEN)(file)),
    "code of a method": lambda dataset, parts, patch: patch.setattr(
        v1.RandomHorizontalFlip.forward, "__code__", (lambda self, img: img.rotate(180)).__code__
    ),
    "code of a function": lambda dataset, parts, patch: setattr(
        parts[0].lambd, "__code__", (lambda image: image.convert("L").convert("RGB")).__code__
    ),
    "wrapper's method": lambda dataset, parts, patch: patch.setattr(
        Wrapped, "__call__", lambda self, image: self.inner(image) + 1
    ),
    "limit": lambda dataset, parts, patch: patch.setattr(Image, "MAX_IMAGE_PIXELS", 100),
    "collating": lambda dataset, parts, patch: patch.setitem(
        default_collate_fn_map, torch.Tensor, lambda batch, *, collate_fn_map=None: torch.stack(batch) + 2
    ),
}
OPEN = Image.open


@functools.cache
def unchanged(folder):
    return trace(lambda: DataLoader(ImageFolder(folder, of_tensors()), batch_size=3), 1)


@pytest.mark.filterwarnings("ignore::fastload.FallbackWarning", "ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen_when_nothing_had_changed_before(folder, monkeypatch, native_batches, name):
    patches = []

    def between(loader, number):
        if number == 3:
            patches.append(monkeypatch.context())
            patch = patches[-1].__enter__()
            CHANGES[name](loader.dataset, loader.dataset.transform.transforms[0].inner.transforms, patch)

    def seen(make):
        try:
            return trace(lambda: make(ImageFolder(folder, of_tensors()), batch_size=3), 1, between=between)
        finally:
            patches.pop().__exit__(None, None, None)

    read, reads = InProcessFetcher.read_anew, []
    monkeypatch.setattr(
        InProcessFetcher, "read_anew", lambda self: reads.append(native_batches["native"]) or read(self)
    )
    fast = lambda dataset, **arguments: FastLoader(dataset, device="cpu", **arguments)  # noqa: E731
    ours, theirs = seen(fast), seen(DataLoader)
    assert_same(ours, theirs)
    assert native_batches["native"] >= 4
    assert [at for at in reads if at < 4] == [0, 0]
