"""Hugging Face datasets give torch's batches, errors and states, natively where their transform is understood."""

from __future__ import annotations

import argparse
import functools
import io

import numpy as np
import optional
import pytest
import torch
import torchvision.transforms as v1
from photos import SIZE, assert_same, both, eval_v1, jpeg, make_folder, pixels, train_v1, train_v2
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from references import kept
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from fastload import FastLoader
from fastload.pipeline.datasets.orientation import is_upright, upright_by_header
from fastload.pipeline.recipe import Recipe, Refusal, read_recipe

datasets = optional.module("datasets")

NATIVE = {"device": "cpu", "engine": "native"}
TRAIN, EVAL = train_v1(), eval_v1()
ARGUMENTS = argparse.Namespace(image_column="image", label_column="label")


@pytest.fixture(autouse=True, scope="module")
def silent():
    import tqdm

    datasets.disable_progress_bars()
    tqdm.tqdm.monitor_interval = 0  # no thread that stays


def encoded(number, format="PNG", **options):
    out = io.BytesIO()
    Image.fromarray(pixels(number, 60 + number, 90)).save(out, format, **options)
    return out.getvalue()


def of_images(images):
    rows = [{"image": image, "label": number % 3} for number, image in enumerate(images)]
    for row in rows:
        row["image"] = None if row["image"] is None else {"bytes": row["image"], "path": None}
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(num_classes=3)}
    return datasets.Dataset.from_list(rows, features=datasets.Features(features))


@pytest.fixture(scope="module")
def photos():
    return of_images([jpeg(number, 60 + 3 * number, 150 - 2 * number) for number in range(23)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("photos"), 13)


def keeps(batch):
    """As in run_image_classification.py of transformers' examples."""
    batch["pixel_values"] = [TRAIN(picture.convert("RGB")) for picture in batch[ARGUMENTS.image_column]]
    return batch


def removes(examples):
    examples["pixel_values"] = [TRAIN(image.convert("RGB")) for image in examples["image"]]
    del examples["image"]
    return examples


def renames(examples):
    images = [image.convert("RGB") for image in examples["image"]]
    return {"labels": examples["label"], "images": [EVAL(image) for image in images]}


def appends(examples):
    made = []
    for image in examples.pop("image"):
        made.append(TRAIN(image.convert("RGB")))
    examples["pixel_values"] = made
    return examples


class Preprocess:
    def __init__(self, transform):
        self.transform, self.column = transform, "image"

    def __call__(self, examples):
        return {"pixel_values": [self.transform(i.convert("RGB")) for i in examples[self.column]]}

    def method(self, examples):
        examples["x"] = list(self.transform(image.convert("RGB")) for image in examples[self.column])  # noqa: C400
        examples.pop(self.column)
        return examples


def closure(transform, column="image"):
    def apply(examples, key="pixel_values"):
        examples[key] = [transform(image.convert("RGB")) for image in examples[column]]
        return {key: examples[key], "label": examples["label"]}

    return apply


def with_argument(examples, transform):
    return {"pixel_values": [transform(image.convert("RGB")) for image in examples["image"]]}


UNDERSTOOD = {
    "removes": removes,
    "renames": renames,
    "appends": appends,
    "callable": Preprocess(v1.Compose([v1.RandomCrop(SIZE), v1.ToTensor()])),
    "method": Preprocess(train_v2()).method,
    "closure": closure(train_v2()),
    "partial": functools.partial(with_argument, transform=TRAIN),
}


def stacked(examples):
    pixel_values = torch.stack([example["pixel_values"] for example in examples])
    labels = torch.tensor([example[ARGUMENTS.label_column] for example in examples])
    return {"pixel_values": pixel_values, "labels": labels}


def numbered(examples):
    return {"n": len(examples), **stacked(examples)}


@pytest.mark.parametrize("name", UNDERSTOOD)
def test_usual_transforms_run_natively(photos, name):
    made = photos.with_transform(UNDERSTOOD[name])
    assert isinstance(read_recipe(made), Recipe)
    ours, theirs = both(lambda: made, FastLoader, NATIVE, batch_size=5, shuffle=True, num_workers=1)
    assert_same(ours, theirs)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_transform_that_keeps_its_images_needs_a_collate_function(photos, workers):
    made = photos.with_transform(keeps)
    assert "remove that column" in str(read_recipe(made))
    arguments = {"batch_size": 5, "shuffle": True, "num_workers": workers, "collate_fn": stacked}
    ours, theirs = both(lambda: made, FastLoader, NATIVE, **arguments)
    assert_same(ours, theirs)
    assert not read_recipe(made, stacked).in_python


@pytest.mark.parametrize("workers", [0, 2])
def test_other_collate_functions_get_samples_made_natively(photos, workers):
    made = photos.with_transform(removes)
    assert read_recipe(made, numbered).in_python == ("collate_fn numbered",)
    arguments = {"batch_size": 5, "shuffle": True, "num_workers": workers, "collate_fn": numbered}
    ours, theirs = both(lambda: made, FastLoader, NATIVE, **arguments)
    assert_same(ours, theirs)


def test_set_transform_and_rows_chosen_by_indices(photos):
    made = photos.shuffle(seed=3).select([*range(4, 21), 2, 2])
    made.set_transform(removes, columns=["image"])
    ours, theirs = both(lambda: made, FastLoader, NATIVE, batch_size=4, shuffle=True, num_workers=2)
    assert_same(ours, theirs)
    assert list(ours[0]) == ["pixel_values"]


def test_concatenated_tables_and_values_of_all_types(photos):
    more = of_images([encoded(number) for number in range(7)])
    both_parts = datasets.concatenate_datasets([photos, more, photos.select([3])])
    texts = [{"text": f"photo {number}", "box": [1.5, number]} for number in range(len(both_parts))]
    beside = datasets.Dataset.from_list(texts)
    made = datasets.concatenate_datasets([both_parts, beside], axis=1).with_transform(removes)
    ours, theirs = both(lambda: made, FastLoader, NATIVE, batch_size=4, shuffle=True, num_workers=2)
    assert_same(ours, theirs)
    assert ours[0]["text"][0].startswith("photo ")


@pytest.mark.parametrize("kind", ["imagefolder", "parquet"])
def test_load_dataset(folder, tmp_path, kind, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    files = {"data_dir": str(folder)}
    if kind == "parquet":
        datasets.load_dataset("imagefolder", split="train", **files).to_parquet(tmp_path / "photos.parquet")
        files = {"data_files": str(tmp_path / "photos.parquet")}
    made = datasets.load_dataset(kind, split="train", **files).with_transform(removes)
    ours, theirs = both(lambda: made, FastLoader, NATIVE, batch_size=4, shuffle=True, num_workers=2)
    assert_same(ours, theirs)


@pytest.mark.each_value
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("transform", ["train", "eval"])
def test_errors_and_states_are_those_of_whole_batches(workers, transform):
    """A batch is decoded before it is transformed: nothing is drawn for a damaged one."""
    images = [jpeg(number, 60 + 3 * number, 150 - 2 * number) for number in range(23)]
    images[2] = encoded(2, "BMP")
    images[5], images[7], images[13], images[20] = images[5][:300], images[7][:900], b"nonsense", None
    images[4] = jpeg(4, 30, 300)  # too low for the crop
    made = of_images(images).with_transform(closure(train_v1() if transform == "train" else v1_eval()))
    ours, theirs = both(lambda: made, FastLoader, NATIVE, batch_size=3, num_workers=workers)
    assert_same(ours, theirs)
    assert sum(isinstance(item, Exception) for item in ours) == 8


def v1_eval():
    return v1.Compose([v1.Resize((50, 48)), v1.CenterCrop(SIZE), v1.ToTensor()])


def turned(number, format="JPEG", orientation=6):
    about = Image.Exif()
    about[0x112] = orientation
    if format != "PNG text":
        return encoded(number, format, exif=about)
    texts = PngInfo()
    texts.add_text("exif", about.tobytes())
    return encoded(number, pnginfo=texts)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "PNG text", "WEBP"])
def test_turned_images_are_turned(format):
    images = [encoded(number, format.removesuffix(" text")) for number in range(24)]
    images[11], images[12] = turned(11, format), turned(12, format, orientation=1)
    made = of_images(images).with_transform(closure(v1_eval()))
    ours, theirs = both(lambda: made, FastLoader, NATIVE, batch_size=4, num_workers=2)
    assert_same(ours, theirs)


def test_datasets_of_turned_images_stay_in_workers():
    made = of_images([turned(number) for number in range(8)]).with_transform(closure(v1_eval()))
    assert "8 of 8 images looked at are turned" in str(read_recipe(made))
    ours, theirs = both(lambda: made, FastLoader, {"device": "cpu"}, batch_size=4, num_workers=2)
    assert_same(ours, theirs)


CALLS = []


def counts(examples):
    CALLS.append(len(examples["image"]))
    return removes(examples)


def depends(examples):
    return removes(examples) if "image" in examples else examples


def first_ones(examples):
    return {"pixel_values": [TRAIN(image.convert("RGB")) for image in examples["image"][:7]]}


def backwards(examples):
    images = [*reversed_list(examples["image"])]
    return {"pixel_values": [TRAIN(image.convert("RGB")) for image in images]}


def reversed_list(values):
    return values[::-1]


def swaps(examples):
    first, *rest = examples["image"]
    return {"pixel_values": [TRAIN(image.convert("RGB")) for image in [*rest, first]]}


def twice(examples):
    images = [image.convert("RGB") for image in examples["image"]]
    return {"pixel_values": [TRAIN(i) for i in images], "other": [EVAL(i) for i in images]}


def drops(examples):
    images = [image.convert("RGB") for image in examples["image"]]
    [TRAIN(image) for image in images]
    return {"pixel_values": [EVAL(image) for image in images]}


def labels(examples):
    return {**removes(examples), "label": [label + 1 for label in examples["label"]]}


def gray(examples):
    return {"pixel_values": [TRAIN(image.convert("L")) for image in examples["image"]]}


def as_it_is(examples):
    return {"pixel_values": [TRAIN(image) for image in examples["image"]]}


def sets(examples):
    ARGUMENTS.seen = True
    return {"pixel_values": [TRAIN(image.convert("RGB")) for image in examples["image"]]}


def mixed(examples):
    pairs = zip(examples["image"], (TRAIN, EVAL) * len(examples["image"]))  # noqa: B905
    return {"pixel_values": [transform(image.convert("RGB")) for image, transform in pairs]}


def catches(examples):
    try:
        return {"pixel_values": [TRAIN(image.convert("RGB")) for image in examples["image"]]}
    except OSError:
        return {"pixel_values": [torch.zeros(3, SIZE, SIZE) for _ in examples["image"]]}


def some(examples):
    return {"pixel_values": [TRAIN(image.convert("RGB")) for image in examples["image"] if image is not None]}


REFUSED = (
    some,
    counts,
    depends,
    first_ones,
    backwards,
    swaps,
    twice,
    drops,
    labels,
    gray,
    as_it_is,
    sets,
    mixed,
    catches,
)


@pytest.mark.parametrize("function", REFUSED)
def test_what_is_not_understood_is_refused(photos, function):
    refusal = read_recipe(photos.with_transform(function))
    assert isinstance(refusal, Refusal), refusal
    assert not CALLS
    assert not hasattr(ARGUMENTS, "seen")


@pytest.mark.parametrize("function", [backwards, twice, labels])
def test_what_is_not_understood_runs_on_lazy_images(photos, function):
    made = photos.with_transform(function)
    ours, theirs = both(lambda: made, FastLoader, {"device": "cpu"}, batch_size=5, shuffle=True, num_workers=2)
    assert_same(ours, theirs)


def no_stack(examples):
    return {"pixel_values": [example["pixel_values"] for example in examples]}


def swapped(examples):
    first, *rest = examples
    images = torch.stack([example["pixel_values"] for example in [*rest, first]])
    return {"pixel_values": images, "labels": torch.tensor([example["label"] for example in examples])}


def first_labels(examples):
    images = torch.stack([example["pixel_values"] for example in examples])
    return {"pixel_values": images, "labels": torch.tensor([examples[0]["label"] for _ in examples])}


def floats(examples):
    images = torch.stack([example["pixel_values"] for example in examples])
    return {"pixel_values": images, "labels": torch.tensor([e["label"] for e in examples], dtype=torch.float32)}


@pytest.mark.parametrize("function", [no_stack, swapped, first_labels, floats, numbered])
def test_collate_functions_that_do_more_are_called(photos, function):
    made = photos.with_transform(removes)
    assert read_recipe(made, function).in_python == (f"collate_fn {function.__name__}",)
    ours, theirs = both(lambda: made, FastLoader, NATIVE, batch_size=5, num_workers=1, collate_fn=function)
    assert_same(ours, theirs)


@pytest.mark.parametrize("values", [[0.5] * 23, [None, *range(22)], [True] * 23])
def test_labels_that_are_no_integers_are_collated_by_the_function(photos, values):
    """``default_collate`` would make tensors of another dtype, or another error."""
    beside = datasets.Dataset.from_dict({"label": values})
    made = datasets.concatenate_datasets([photos.select_columns("image"), beside], axis=1).with_transform(removes)
    assert read_recipe(made, stacked).in_python == ("collate_fn stacked",)


@pytest.mark.parametrize("index", [23, -24])
def test_indices_out_of_range_are_the_datasets_errors(photos, index):
    for dataset in (photos, photos.select(range(23))):
        made = dataset.with_transform(removes)
        with pytest.raises(IndexError):
            read_recipe(made).dataset.encoded_many([0, index])
        arguments = {"batch_sampler": [[0, 1], [2, index], [3, -1]], "num_workers": 1}
        ours, theirs = both(lambda made=made: made, FastLoader, NATIVE, **arguments)
        assert_same(ours, theirs)


def test_orientations_in_a_second_segment_are_seen():
    """Pillow joins a file's EXIF segments."""
    whole = turned(3)
    at = whole.index(b"Exif\0\0") - 4
    size = 2 + int.from_bytes(whole[at + 2 : at + 4], "big")
    exif = whole[at + 10 : at + size]
    cut = exif.index(b"\x01\x12") + 1  # in the middle of the tag
    parts = [b"Exif\0\0" + exif[:cut], b"Exif\0\0" + exif[cut:]]
    segments = b"".join(b"\xff\xe1" + (len(part) + 2).to_bytes(2, "big") + part for part in parts)
    divided = whole[:at] + segments + whole[at + size :]
    assert Image.open(io.BytesIO(divided)).getexif()[0x112] == 6
    assert not is_upright(divided)
    assert is_upright(turned(3, orientation=1))


def test_patched_library_functions_are_run(photos, monkeypatch):
    monkeypatch.setattr(datasets.Image, "decode_example", lambda *_, **__: Image.new("RGB", (64, 64)))
    assert "decode_example was patched" in str(read_recipe(photos.with_transform(removes)))


def test_other_columns_to_decode_are_refused(photos):
    two = datasets.concatenate_datasets([photos, photos.select_columns("image").rename_column("image", "mask")], axis=1)
    assert "2 columns to decode (image, mask)" in str(read_recipe(two.with_transform(removes)))
    plain = photos.cast_column("image", datasets.Image(decode=False))
    assert "0 columns to decode" in str(read_recipe(plain.with_transform(removes)))
    gray_ones = photos.cast_column("image", datasets.Image(mode="L"))
    assert "only Image() and" in str(read_recipe(gray_ones.with_transform(removes)))
    assert "has no transform" in str(read_recipe(photos))


@pytest.mark.parametrize("workers", [0, 2])
def test_streams_are_torchs(photos, workers):
    def dataset_of():
        stream = photos.to_iterable_dataset(num_shards=4).shuffle(seed=3, buffer_size=9)
        return stream.map(removes, batched=True, batch_size=4, remove_columns=["image"])

    ours, theirs = both(dataset_of, FastLoader, {"device": "cpu"}, batch_size=5, num_workers=workers)
    assert_same(ours, theirs)


def test_the_file_of_a_path_may_be_anywhere(folder, tmp_path, monkeypatch):
    """Relative paths are those of the directory in which the loader starts."""
    monkeypatch.chdir(folder)
    paths = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*.jpg"))] * 4
    rows = [{"image": {"bytes": None, "path": path}} for path in paths]
    made = datasets.Dataset.from_list(rows, features=datasets.Features({"image": datasets.Image()}))
    made = made.with_transform(removes)
    torch.manual_seed(3)
    expected = kept(lambda: [*DataLoader(made, batch_size=4, num_workers=2)])
    torch.manual_seed(3)
    iterator = iter(FastLoader(made, batch_size=4, num_workers=2, **NATIVE))
    monkeypatch.chdir(tmp_path)
    assert_same([*iterator], expected)


def test_states_of_every_epoch(photos):
    made = photos.with_transform(removes)
    run = {"count": 3, "breaks_at": 2}
    arguments = {"batch_size": 4, "shuffle": True, "num_workers": 2, "persistent_workers": True, "run": run}
    ours, theirs = both(lambda: made, FastLoader, NATIVE, **arguments)
    assert_same(ours, theirs)


def test_encoded_images_stay_in_arrows_memory(photos):
    recipe = read_recipe(photos.with_transform(removes))
    source, _ = recipe.dataset.encoded(3)
    assert isinstance(source, memoryview)
    assert upright_by_header(source)
    assert np.array_equal(np.frombuffer(source, np.uint8), np.frombuffer(jpeg(3, 69, 144), np.uint8))


def test_v2_transforms_of_images():
    made = of_images([jpeg(number) for number in range(9)])
    steps = v2.Compose([v2.RandomResizedCrop(SIZE), v2.ColorJitter(0.4, 0.4), v2.ToImage(), v2.ToDtype(torch.float32)])
    made = made.with_transform(closure(steps))
    ours, theirs = both(lambda: made, FastLoader, NATIVE, batch_size=4, shuffle=True, num_workers=2)
    assert_same(ours, theirs)


@pytest.mark.parametrize("name", ["__getitems__", "_getitem", "with_format"])
def test_a_method_of_the_object_is_refused(photos, name):
    made = photos.with_transform(removes)
    setattr(made, name, lambda indices: [made[index] for index in reversed(indices)])
    assert f"has {name} of its own" in str(read_recipe(made))
