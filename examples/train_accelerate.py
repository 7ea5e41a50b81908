"""Train a torchvision classifier with Hugging Face Accelerate on a folder of images.

Each class has a subfolder.

accelerate launch examples/train_accelerate.py DIR --epochs 5

Accelerate rebuilds every loader that it prepares as torch's own; ``FastLoader.wrap`` makes a FastLoader of what comes
back and keeps what Accelerate does around it. ``fastload bench photos DIR`` writes such a folder.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import tiny
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.models import get_model
from torchvision.transforms import v2

from fastload import FastLoader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", metavar="DIR")
    parser.add_argument("--model", default="resnet18", help="any of torchvision's classifiers")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64, help="per process")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--workers", type=int, default=8, help="per process")
    parser.add_argument("--lr", type=float, default=1e-3)
    args = tiny.parse(parser)

    set_seed(0)
    accelerator = Accelerator(mixed_precision="bf16" if torch.cuda.is_available() else "no")
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
        dataset = ImageFolder(args.data, transform)
    except FileNotFoundError as error:  # no such folder, or no images in it
        sys.exit(str(error))
    model = get_model(args.model, weights=None, num_classes=len(dataset.classes)).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=args.workers)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    loader = FastLoader.wrap(loader)  # the one line that is new
    accelerator.print(loader.plan)

    for epoch in range(args.epochs):
        total = torch.zeros((), device=accelerator.device)
        for images, labels in loader:  # on the device already, channels_last
            optimizer.zero_grad(set_to_none=True)
            with accelerator.autocast():
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            total += loss.detach()
        loss = accelerator.reduce(total, "mean") / len(loader)
        accelerator.print(f"epoch {epoch + 1}: loss {loss:.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
