"""Train ResNet-18 on CIFAR-10.

python examples/train_cifar10.py DIR --download

DIR holds torchvision's copy of CIFAR-10. But for FastLoader, this is the loop of most tutorials: the images are read,
cropped and flipped by native threads, with the bits of torch's DataLoader.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import tiny
import torch
from torchvision import datasets, models, transforms

from fastload import FastLoader

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


def resnet18() -> torch.nn.Module:
    """Make a ResNet-18 for images of 32 pixels."""
    model = models.resnet18(num_classes=10)
    model.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)
    model.maxpool = torch.nn.Identity()
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", metavar="DIR")
    parser.add_argument("--download", action="store_true", help="the data set, unless it is there")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.1)
    args = tiny.parse(parser, make=lambda: None)

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    normalize = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    augment = transforms.Compose([transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(), *normalize])
    kind = datasets.CIFAR10 if args.data else tiny.CIFAR10
    try:
        train = kind(args.data, train=True, transform=augment, download=args.download)
        test = kind(args.data, train=False, transform=transforms.Compose(normalize))
    except RuntimeError as error:  # it is not there
        sys.exit(f"{args.data}: {error}")
    common = {"batch_size": args.batch_size, "num_workers": args.workers, "persistent_workers": args.workers > 0}
    loader = FastLoader(train, shuffle=True, **common)
    test_loader = FastLoader(test, **common)
    print(loader.plan)

    model = resnet18().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, args.epochs * len(loader))
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
    for epoch in range(args.epochs):
        model.train()
        total = torch.zeros((), device=device)
        for images, labels in loader:
            optimizer.zero_grad(set_to_none=True)
            with autocast:
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.detach()
        model.eval()
        correct = torch.zeros((), device=device)
        with torch.inference_mode(), autocast:
            for images, labels in test_loader:
                correct += (model(images).argmax(1) == labels).sum()
        print(f"epoch {epoch + 1}: loss {total.item() / len(loader):.3f}, top-1 {correct.item() / len(test):.1%}")


if __name__ == "__main__":
    main()
