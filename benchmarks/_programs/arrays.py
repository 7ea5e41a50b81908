"""Arrays, tensors and text: CIFAR-10, MNIST, MedMNIST, tokens."""

from __future__ import annotations

import random
from importlib import import_module
from typing import Any, Final

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset
from torchvision import transforms
from torchvision.datasets import FashionMNIST, VisionDataset

from benchmarks._programs._program import Arguments, captions, hugging_face, program, tokenizer
from benchmarks._recipes import RECIPES, Source

FAMILY: Final = "arrays and text"
_COPIES: Final = 4  # of each photograph, so that an epoch is not over at once


def digits(source: Source, transform: Any) -> FashionMNIST:
    """Make torchvision's FashionMNIST of photographs scaled to 28 px instead of the downloaded ones."""
    made = FashionMNIST.__new__(FashionMNIST)
    VisionDataset.__init__(made, "", transform=transform)
    images = [np.asarray(Image.open(path).convert("L").resize((28, 28))) for path, _ in source.samples]
    made.train, made.data = True, torch.from_numpy(np.stack(images)).repeat(_COPIES, 1, 1)
    made.targets = torch.tensor([target % 10 for _, target in source.samples]).repeat(_COPIES)
    return made


@program(FAMILY, "array")
def cifar_kuangliu(source: Source) -> Arguments:
    """Torchvision's CIFAR10: padded crop of 32, flip; batches of 128."""
    recipe = next(recipe for recipe in RECIPES if recipe.name == "CIFAR-10")
    return {**recipe.arguments(source), "batch_size": 8 * source.batch_size}


@program(FAMILY, "array")
def tut_fashionmnist(source: Source) -> Arguments:
    """Torchvision's FashionMNIST: to tensor, no workers."""
    dataset = digits(source, transforms.ToTensor())
    return {"dataset": dataset, "shuffle": True, "batch_size": 64, "num_workers": 0}


class Matcher(Dataset[Any]):
    """Pairs of images of one class, or of two."""

    def __init__(self, images: FashionMNIST) -> None:
        self.data = images.data.unsqueeze(1).clone()
        self.dataset = images
        kinds = set(images.targets.tolist())
        self.groups = {kind: np.where(images.targets.numpy() == kind)[0] for kind in kinds}

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        kinds = sorted(self.groups)
        kind = random.choice(kinds)
        first, other = (random.choice(self.groups[kind]) for _ in range(2))
        same = index % 2 == 0
        if not same:
            other = random.choice(self.groups[random.choice([one for one in kinds if one != kind] or kinds)])
        return self.data[first].float(), self.data[other].float(), torch.tensor(float(same), dtype=torch.float)


@program(FAMILY, "array")
def ex_siamese(source: Source) -> Arguments:
    """PyTorch's example of a siamese network: pairs of MNIST's arrays."""
    return {"dataset": Matcher(digits(source, None)), "shuffle": True, "batch_size": 64}


@program(FAMILY, "array", "medmnist")
def medmnist(source: Source) -> Arguments:
    """Medmnist's PathMNIST: to tensor, normalize."""
    file = source.scratch / "pathmnist.npz"
    if not file.exists():
        source.scratch.mkdir(parents=True, exist_ok=True)
        images = [np.asarray(Image.open(path).convert("RGB").resize((28, 28))) for path, _ in source.samples]
        labels = np.array([[target % 9] for _, target in source.samples], np.uint8)
        np.savez(file, train_images=np.stack(images * _COPIES), train_labels=np.concatenate([labels] * _COPIES))
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize([0.5], [0.5])])
    module = import_module("medmnist.dataset")
    dataset = module.PathMNIST(split="train", transform=transform, root=str(source.scratch))
    dataset.info = {**dataset.info, "n_samples": {"train": len(dataset.imgs)}}  # not those of the downloaded file
    return {"dataset": dataset, "shuffle": True, "batch_size": 128}


@program(FAMILY, "tensor")
def tensordataset_nw0(source: Source) -> Arguments:
    """TensorDataset of vectors, no workers."""
    count = 64 * source.images
    dataset = TensorDataset(torch.rand(count, 32), torch.randint(0, 10, (count,)))
    return {"dataset": dataset, "shuffle": True, "batch_size": 64, "num_workers": 0}


@program(FAMILY, "text", "datasets", "transformers")
def text_collator_padding(source: Source) -> Arguments:
    """Transformers' text: tokens of a datasets.Dataset, DataCollatorWithPadding."""
    tokens = tokenizer()

    def tokenize(batch: dict[str, Any]) -> Any:
        return tokens(batch["text"], truncation=True)

    dataset = hugging_face(source, text=captions(source)).remove_columns("image").rename_column("label", "labels")
    dataset = dataset.map(tokenize, batched=True, remove_columns=["text"])
    collate = import_module("transformers").DataCollatorWithPadding(tokens)
    return {"dataset": dataset, "shuffle": True, "collate_fn": collate}
