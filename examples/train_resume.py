"""Train an image classifier that goes on with the same losses after a kill.

python examples/train_resume.py DIR --checkpoint run.pt --epochs 3

DIR holds one folder of images per class; ``fastload bench photos DIR`` writes such a folder. Call it again, with the
same arguments, after a crash.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import tiny
import torch
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.models import get_model

from fastload import DataLoader  # was: from torch.utils.data import DataLoader


def make_loader(args: argparse.Namespace) -> DataLoader:
    steps = [transforms.RandomResizedCrop(args.image_size), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    dataset = ImageFolder(args.data, transforms.Compose(steps))
    return DataLoader(dataset, args.batch_size, shuffle=True, num_workers=args.workers)


def save(path: Path, **parts: object) -> None:
    """Write a checkpoint; a crash leaves the former one or the new one."""
    torch.save(parts, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", metavar="DIR")
    parser.add_argument("--checkpoint", type=Path, default=Path("train_resume.pt"))
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--workers", type=int, default=4)
    args = tiny.parse(parser)

    torch.manual_seed(0)
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    try:
        loader = make_loader(args)
    except FileNotFoundError as error:
        sys.exit(str(error).partition("\n")[0])
    model = get_model(args.model, num_classes=len(loader.dataset.classes)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first, step = 0, 0
    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint, weights_only=True, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        first, step = saved["epoch"], saved["step"]
    print(f"engine {loader.plan.engine}, batches on {loader.plan.device}", flush=True)

    for epoch in range(first, args.epochs):
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            print(f"epoch {epoch + 1}, step {step}: loss {loss.item()!r}", flush=True)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
            save(args.checkpoint, epoch=epoch, step=step, **state)


if __name__ == "__main__":
    main()
