"""Fine-tune a classifier on a dataset of your own: a table of files and labels.

python examples/train_own_dataset.py DIR --weights DEFAULT

DIR holds ``labels.csv``, whose lines are ``file,label`` with labels from 0 on; files are below DIR. The dataset's class
is as for torch's DataLoader, and runs in its workers. The method ``encoded`` is all that is added: it says where a
sample's image is, so that threads make the samples natively.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

import tiny
import torch
from PIL import Image
from torchvision.models import get_model
from torchvision.transforms import v2

from fastload import DataLoader  # was: from torch.utils.data import DataLoader


class Labelled(torch.utils.data.Dataset):
    def __init__(self, folder, transform):
        with open(folder / "labels.csv", newline="") as file:
            self.samples = [(str(folder / name), int(label)) for name, label in csv.reader(file)]
        self.transform = transform

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, label = self.samples[index]
        return self.transform(Image.open(path).convert("RGB")), label

    def encoded(self, index):
        return self.samples[index]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", metavar="DIR")
    parser.add_argument("--model", default="resnet50", help="one of torchvision's whose last layer is fc")
    parser.add_argument("--weights", help="DEFAULT: those that torchvision recommends, downloaded")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--on-error", choices=("raise", "skip", "replace"), default="raise", help="of a damaged file")
    args = tiny.parse(parser)

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(args.image_size),
            v2.RandomHorizontalFlip(),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    try:
        dataset = Labelled(args.data, transform)
    except FileNotFoundError as error:
        sys.exit(str(error))
    options = {"num_workers": args.workers, "persistent_workers": True, "on_error": args.on_error}
    loader = DataLoader(dataset, args.batch_size, shuffle=True, **options)
    print(loader.plan)

    model = get_model(args.model, weights=args.weights)
    model.requires_grad_(args.weights is None)  # with weights, only the new layer learns
    model.fc = torch.nn.Linear(model.fc.in_features, 1 + max(label for _, label in dataset.samples))
    model = model.to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW((each for each in model.parameters() if each.requires_grad), lr=1e-3)
    for epoch in range(args.epochs):
        total = torch.zeros((), device=device)
        for images, labels in loader:  # on the GPU already, channels_last
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        print(f"epoch {epoch + 1}: loss {total.item() / len(loader):.3f}", flush=True)
    for error in loader.errors():
        print(error)


if __name__ == "__main__":
    main()
