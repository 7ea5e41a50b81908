"""Datasets that a program's author writes: tables, dicts, triplets, MONAI, LeRobot."""

from __future__ import annotations

import random
from importlib import import_module
from typing import Any, Final

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms

from benchmarks._programs._program import Arguments, png_of, program
from benchmarks._recipes import Source
from fastload.bench._data import training_transform

FAMILY: Final = "own datasets"


class TableDataset(Dataset[Any]):
    """Images of a pandas table's paths."""

    def __init__(self, table: Any) -> None:
        self.table, self.transform = table, training_transform()

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Any:
        row = self.table.iloc[index]
        return self.transform(Image.open(row["path"]).convert("RGB")), torch.tensor(row["label"], dtype=torch.long)


@program(FAMILY, "PIL", "pandas")
def own_df_pil_torchvision(source: Source) -> Arguments:
    """Own dataset of a pandas table: crop, flip."""
    table = import_module("pandas").DataFrame(source.samples, columns=["path", "label"])
    return {"dataset": TableDataset(table), "shuffle": True}


class DictDataset(Dataset[Any]):
    """A dict of image, label and path for each file."""

    def __init__(self, samples: list[tuple[str, int]]) -> None:
        self.samples, self.transform = samples, training_transform()

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        path, label = self.samples[index]
        with Image.open(path) as image:
            return {"image": self.transform(image.convert("RGB")), "label": label, "path": path}


@program(FAMILY, "PIL")
def own_dict_pil(source: Source) -> Arguments:
    """Own dataset of dicts: crop, flip."""
    return {"dataset": DictDataset(source.samples), "shuffle": True}


class Triplets(Dataset[Any]):
    """An image, one of its class and one of another."""

    def __init__(self, samples: list[tuple[str, int]]) -> None:
        self.samples, self.transform = samples, training_transform()
        self.by_class: dict[int, list[str]] = {}
        for path, label in samples:
            self.by_class.setdefault(label, []).append(path)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        anchor, label = self.samples[index]
        others = [other for other in self.by_class if other != label] or [label]
        paths = (anchor, random.choice(self.by_class[label]), random.choice(self.by_class[random.choice(others)]))
        return tuple(self.transform(Image.open(path).convert("RGB")) for path in paths)


@program(FAMILY, "PIL")
def own_multi_image_triplet(source: Source) -> Arguments:
    """Own dataset of three images: crop, flip."""
    return {"dataset": Triplets(source.samples), "shuffle": True}


def _monai() -> type[Any]:
    kind: type[Any] = import_module("monai.data").DataLoader
    return kind


@program(FAMILY, "PIL via MONAI", "monai", loader=_monai)
def monai_dict(source: Source) -> Arguments:
    """MONAI's dict transforms of its PILReader: resize, flip, quarter turn; its own DataLoader."""
    monai = import_module("monai.transforms")
    parts = [
        monai.LoadImaged(keys="image", reader="PILReader", ensure_channel_first=True),
        monai.ScaleIntensityd("image"),
    ]
    parts += [monai.Resized("image", spatial_size=(224, 224)), monai.RandFlipd("image", prob=0.5, spatial_axis=0)]
    transform = monai.Compose([*parts, monai.RandRotate90d("image", prob=0.5), monai.ToTensord("image")])
    data = [{"image": path, "label": label} for path, label in source.samples]
    return {"dataset": import_module("monai.data").Dataset(data, transform), "shuffle": True}


class RobotDataset(Dataset[Any]):
    """Frames of a robot's camera beside its state, and the states that follow."""

    def __init__(self, table: Any) -> None:
        self.table = table
        self.table.set_transform(to_tensors)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> dict[str, Any]:
        item: dict[str, Any] = self.table[index]
        ahead = [min(index + step, len(self.table) - 1) for step in range(4)]
        item["action"] = torch.stack(self.table.select_columns("action")[ahead]["action"])
        item["task"] = "put the thing on the table"
        return item


def to_tensors(columns: dict[str, list[Any]]) -> dict[str, Any]:
    """Make tensors of a table's columns, images included."""
    to_tensor, made = transforms.ToTensor(), {}
    for name, values in columns.items():
        if isinstance(values[0], Image.Image):
            made[name] = [to_tensor(value) for value in values]
        else:
            made[name] = [value if isinstance(value, str) else torch.tensor(value) for value in values]
    return made


@program(FAMILY, "PIL PNG via datasets", "datasets")
def lerobot_like(source: Source) -> Arguments:
    """LeRobot's way: PNG images in a Parquet file, tensors of all columns."""
    datasets = import_module("datasets")
    datasets.disable_progress_bars()
    file = source.scratch / f"frames-{source.images}.parquet"
    if not file.exists():
        source.scratch.mkdir(parents=True, exist_ok=True)
        draws = np.random.default_rng(0).random((source.images, 2, 6), dtype=np.float32)
        rows = [
            {"bytes": png_of(Image.open(path).convert("RGB").resize((320, 240))), "path": None}
            for path, _ in source.samples
        ]
        columns = {"observation.image": rows, "observation.state": draws[:, 0].tolist(), "action": draws[:, 1].tolist()}
        made = datasets.Dataset.from_dict({**columns, "frame_index": list(range(source.images))})
        made.cast_column("observation.image", datasets.Image()).to_parquet(str(file))
    table = datasets.Dataset.from_parquet(str(file), cache_dir=str(source.scratch / "cache"))
    return {"dataset": RobotDataset(table), "shuffle": True}
