"""webdataset's pipelines give the same batches when pixels stay pending until a batch is made."""

from __future__ import annotations

import io
import random
import tarfile
import warnings

import numpy as np
import optional
import pytest
import torch
import torchvision.transforms as v1
from photos import jpeg, pixels
from PIL import Image
from torch.utils.data import default_collate
from torchvision.transforms import v2

from fastload.lazy import batches as pending_batches
from fastload.lazy import images as lazy_images
from fastload.lazy.batches import PendingImage
from fastload.lazy.pixels import Pending
from fastload.lazy.webdataset import with_pending_images
from fastload.pipeline import tail

webdataset = optional.module("webdataset")

COUNT = 14
CROPS = [v1.RandomResizedCrop(40), v1.RandomHorizontalFlip()]
TENSOR = [v1.ToTensor(), v1.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))]
TENSOR_V2 = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))]


class Opaque:
    def __call__(self, image):
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
        return image.resize((30, 20))


TRANSFORMS = {
    "crops": v1.Compose([*CROPS, *TENSOR]),
    "crops of v2, channels innermost": v2.Compose([v2.RandomResizedCrop(40), v2.RandomVerticalFlip(), *TENSOR_V2]),
    "halves": v2.Compose([v2.RandomResizedCrop(40), v2.ToImage(), v2.ToDtype(torch.float16, scale=True)]),
    "evaluation": v1.Compose([v1.Resize(50), v1.CenterCrop(32), *TENSOR]),
    "random crop": v1.Compose([v1.Resize((60, 70)), v1.RandomCrop((32, 40)), *TENSOR]),
    "colours": v1.Compose([*CROPS, v1.ColorJitter(0.4, 0.4, 0.4, 0.1), *TENSOR]),
    "own": v1.Compose([Opaque(), *TENSOR]),
    "whole": v1.Compose([v1.RandomHorizontalFlip(), *TENSOR]),
    "small crops": v1.Compose([v1.RandomCrop((1, 5)), *TENSOR]),
}


def encoded(number, form):
    out = io.BytesIO()
    Image.fromarray(pixels(number, 70, 90)).save(out, form)
    return out.getvalue()


def write(path, images):
    with tarfile.open(path, "w") as archive:
        for number, (kind, data) in enumerate(images):
            for name, part in ((f"{number:03}.{kind}", data), (f"{number:03}.cls", str(number).encode())):
                about = tarfile.TarInfo(name)
                about.size = len(part)
                archive.addfile(about, io.BytesIO(part))
    return str(path)


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    images = [("jpg", jpeg(number, 70 + number % 3, 90)) for number in range(COUNT)]
    return write(tmp_path_factory.mktemp("shards") / "plain.tar", images)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    images = [("jpg", jpeg(number, 70, 90)) for number in range(COUNT)]
    images[3] = "jpg", jpeg(3, 70, 90, mode="L")
    images[5] = "jpg", jpeg(5, 70, 90, mode="CMYK")
    images[6] = "png", encoded(6, "PNG")
    images[11] = "jpg", jpeg(11, 70, 90, progressive=True)
    return write(tmp_path_factory.mktemp("shards") / "mixed.tar", images)


@pytest.fixture(autouse=True)
def originals():
    yield
    reset()


def reset():
    """Put Pillow's methods back."""
    lazy_images.prepare()
    lazy_images.uninstall()
    for name in ("im", "array"):
        cls, attribute, _ = lazy_images._METHODS[name]
        setattr(cls, attribute, lazy_images._known.originals[name])


def seed():
    torch.manual_seed(4)
    random.seed(4)
    np.random.seed(4)


def read(dataset):
    """Iterate twice; return batches, warnings, what was raised, and the states of the generators."""
    batches, raised = [], None
    seed()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            for _ in range(2):
                batches += dataset
        except Exception as error:
            raised = type(error), str(error)
    states = torch.get_rng_state().tolist(), random.getstate()
    return batches, [str(each.message) for each in warned], raised, states


def same(ours, theirs):
    assert type(ours) is type(theirs)
    if isinstance(ours, (tuple, list)):
        assert len(ours) == len(theirs)
        for pair in zip(ours, theirs, strict=True):
            same(*pair)
    elif isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            same(ours[key], theirs[key])
    elif isinstance(ours, torch.Tensor):
        assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
        assert torch.equal(*(tensor.reshape(-1).view(torch.uint8) for tensor in (ours, theirs)))
    else:
        assert np.array_equal(ours, theirs)


def compared(dataset, monkeypatch, *, sends=False):
    """Read a pipeline both ways, and compare; return how many images were batched natively."""
    expected = read(dataset)
    stacked = []
    monkeypatch.setattr(
        "fastload.lazy.webdataset.stack",
        lambda images, **rest: stacked.append(len(images)) or pending_batches.stack(images, **rest),
    )
    assert lazy_images.install()
    changed = with_pending_images(dataset, {}, sends=sends)
    found = read(dataset if changed is None else changed)
    reset()
    same(found[0], expected[0])
    assert found[1:] == expected[1:]
    return sum(stacked)


def pipeline(shard, transform, *functions, **options):
    found = webdataset.WebDataset(shard, shardshuffle=False, empty_check=False).shuffle(5, seed=3)
    return found.decode("pil", **options).to_tuple("jpg;png", "cls").map_tuple(transform, *functions)


@pytest.mark.parametrize("sends", [False, True])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_batches_are_the_same(shard, name, sends, monkeypatch):
    natively = compared(pipeline(shard, TRANSFORMS[name]).batched(4), monkeypatch, sends=sends)
    counts = {"whole": range(2 * COUNT), "own": range(1, 2 * COUNT), "small crops": [0]}  # else all
    assert natively in counts.get(name, [2 * COUNT])


@pytest.mark.parametrize("name", ["crops", "crops of v2, channels innermost"])
def test_torchs_collation_and_dicts(shard, name, monkeypatch):
    transform = TRANSFORMS[name]
    tuples = pipeline(shard, transform).batched(4, collation_fn=default_collate, partial=False)
    assert compared(tuples, monkeypatch) == 2 * (COUNT // 4 * 4)
    base = webdataset.WebDataset(shard, shardshuffle=False, empty_check=False).decode("pilrgb")
    dicts = base.rename(image="jpg", label="cls").map_dict(image=transform).rename(views="image", label="label")
    assert compared(dicts.batched(5), monkeypatch) == 2 * COUNT
    late = dicts.to_tuple("views", "label").shuffle(6, seed=1).slice(9)
    assert compared(late.batched(3), monkeypatch) == 2 * 9


def test_functions_that_draw_find_the_same_generators(shard, monkeypatch):
    def draws(label):
        return label + torch.rand(1).item() + random.random()

    assert compared(pipeline(shard, TRANSFORMS["crops"], draws).batched(4), monkeypatch) == 2 * COUNT


def test_images_that_are_changed_before(shard, monkeypatch):
    changes = {
        "crop": lambda image: image.crop((5, 6, 80, 60)),
        "resize": lambda image: image.resize((61, 52)),
        "flip": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    }
    for name, change in changes.items():
        before = webdataset.WebDataset(shard, shardshuffle=False, empty_check=False).decode("pil")
        found = before.to_tuple("jpg", "cls").map_tuple(change).map_tuple(TRANSFORMS["crops"]).batched(4)
        assert (compared(found, monkeypatch) > 0) == (name == "crop")


@pytest.mark.parametrize("name", ["crops", "own", "evaluation"])
def test_other_images_are_the_users(mixed, name, monkeypatch):
    natively = compared(pipeline(mixed, TRANSFORMS[name]).batched(3), monkeypatch)
    assert 0 < natively < 2 * COUNT


def test_what_looks_at_images_gets_tensors(shard, monkeypatch):
    def look(sample):
        return sample[0].mean(), sample[1]

    looked_at = pipeline(shard, TRANSFORMS["crops"]).map(look).batched(4)
    assert compared(looked_at, monkeypatch) == 0
    own = pipeline(shard, TRANSFORMS["crops"]).batched(4, collation_fn=lambda samples: [x.sum() for x, _ in samples])
    assert compared(own, monkeypatch) == 0
    assert compared(pipeline(shard, TRANSFORMS["crops of v2, channels innermost"]), monkeypatch) == 0
    behind = pipeline(shard, TRANSFORMS["crops"]).batched(4).map(lambda batch: (batch[0] * 2, batch[1]))
    assert compared(behind, monkeypatch, sends=True) == 2 * COUNT


@pytest.mark.parametrize("handler", ["reraise_exception", "warn_and_continue", "ignore_and_continue", "warn_and_stop"])
def test_handlers_see_the_same_samples_fail(tmp_path, handler, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    images = [("jpg", jpeg(number, 70, 90)) for number in range(COUNT)]
    images[4] = "jpg", images[4][1][:-400]
    images[7] = "jpg", b"nonsense"
    images[9] = "jpg", jpeg(9, 20, 90)
    shard = write(tmp_path / "damaged.tar", images)
    own = getattr(webdataset, handler)
    transform = v1.Compose([v1.RandomCrop(32), *TENSOR])
    found = webdataset.WebDataset(shard, shardshuffle=False, empty_check=False).decode("pil", handler=own)
    found = found.to_tuple("jpg", "cls").map_tuple(transform, handler=own).batched(3)
    compared(found, monkeypatch)


def wrong_table(changed, monkeypatch):
    changed.pipeline[-2].args[0].split.table[1, 17:90] += 1e-6


def wrong_layout(changed, monkeypatch):
    object.__setattr__(changed.pipeline[-2].args[0].split, "layout", torch.channels_last)


def wrong_part(changed, monkeypatch):
    drawn = Pending.as_drawn
    monkeypatch.setattr(Pending, "as_drawn", lambda *arguments: drawn(*arguments).turned(1))


def wrong_draws(changed, monkeypatch):
    kind = pending_batches.PendingTransform
    drawn = kind._drawn
    monkeypatch.setattr(kind, "_drawn", lambda *arguments: [drawn(*arguments), torch.rand(1)][0])


@pytest.mark.parametrize("name", ["crops", "colours"])
@pytest.mark.parametrize("spoil", [wrong_table, wrong_layout, wrong_part, wrong_draws])
def test_differences_are_found(shard, name, spoil, monkeypatch):
    dataset = pipeline(shard, TRANSFORMS[name]).batched(4)
    expected = read(dataset)
    assert lazy_images.install()
    changed = with_pending_images(dataset, {}, sends=False)
    spoil(changed, monkeypatch)
    batches, warned, *rest = read(changed)
    same(batches, expected[0])
    assert rest == [*expected[2:]]
    only_crops = spoil in (wrong_part, wrong_draws)
    assert any("not the same to the bit" in line for line in warned) == (not only_crops or name == "crops")


def test_tensors_of_unknown_layout_are_left_alone(shard, monkeypatch):
    monkeypatch.setattr(tail, "LAYOUT_BY_STRIDE", {})
    assert with_pending_images(pipeline(shard, TRANSFORMS["crops"]).batched(4), {}, sends=False) is None


def test_patched_pipelines_are_left_alone(shard, monkeypatch):
    class Own(webdataset.DataPipeline):
        def iterator1(self):
            return super().iterator1()

    dataset = pipeline(shard, TRANSFORMS["crops"]).batched(4)
    own = Own(*dataset.pipeline)
    assert with_pending_images(dataset, {}, sends=False) is not None
    assert with_pending_images(own, {}, sends=False) is None
    assert with_pending_images([1, 2], {}, sends=False) is None
    monkeypatch.setattr(v1.Normalize, "forward", lambda self, tensor: tensor)
    assert with_pending_images(dataset, {}, sends=False) is None


def test_the_pipeline_itself_is_not_changed(shard):
    dataset = pipeline(shard, TRANSFORMS["crops"]).batched(4)
    before = list(dataset.pipeline), [stage.args for stage in dataset.pipeline[-2:]]
    assert with_pending_images(dataset, {}, sends=False).pipeline[-1] is not dataset.pipeline[-1]
    assert (dataset.pipeline, [stage.args for stage in dataset.pipeline[-2:]]) == before


def test_transforms_are_known_once_images_are_lazy(shard, monkeypatch):
    dataset, known = pipeline(shard, TRANSFORMS["crops"]).batched(4), {}
    expected = read(dataset)
    assert lazy_images.install()
    with_pending_images(dataset, known, sends=False)
    Image.open(io.BytesIO(jpeg(1))).close()
    same(read(with_pending_images(dataset, known, sends=False))[0], expected[0])
    assert with_pending_images(dataset, {}, sends=False) is None


def test_pending_images_never_leave_the_pipeline(shard):
    known = {}
    assert lazy_images.install()
    for dataset in (pipeline(shard, TRANSFORMS["crops"]), pipeline(shard, TRANSFORMS["crops"]).batched(4)):
        for sample in with_pending_images(dataset, known, sends=False):
            assert not any(isinstance(part, PendingImage) for part in sample)
