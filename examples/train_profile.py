"""Find out what a training loop waits for.

python examples/train_profile.py DIR

A transform of this program takes far too long, on purpose. The loader's report says that the loop waits, for what, and
what to change. ``fastload profile -- python examples/train_profile.py DIR`` looks closer.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import tiny
import torch
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fastload import DataLoader, annotate


@annotate  # so that a recording names it
def slow_transform(image):
    until = time.perf_counter() + 0.05
    while time.perf_counter() < until:
        pass
    return image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", metavar="DIR")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--workers", type=int, default=8)
    args = tiny.parse(parser)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    steps = [transforms.RandomResizedCrop(args.image_size), slow_transform, transforms.ToTensor()]
    try:
        dataset = ImageFolder(args.data, transforms.Compose(steps))
    except FileNotFoundError as error:  # no such folder, or no images in it
        sys.exit(str(error))
    loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=args.workers)
    print(loader.plan)

    pooled = [torch.nn.AdaptiveAvgPool2d(8), torch.nn.Flatten()]
    model = torch.nn.Sequential(*pooled, torch.nn.Linear(3 * 8 * 8, len(dataset.classes))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    for _ in range(args.epochs):
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(loader.report())


if __name__ == "__main__":
    main()
