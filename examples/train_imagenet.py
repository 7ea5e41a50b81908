"""Train an image classifier on one GPU, in the manner of ImageNet; runs on a CPU too, at a small size.

python examples/train_imagenet.py DIR --model resnet50 --epochs 90

DIR holds ``train/`` and ``val/``, each with one folder of images per class; or directly one folder of images per class,
which is then trained and validated on. ``fastload bench photos DIR`` writes such a folder.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.models import get_model

from fastload import DataLoader  # was: from torch.utils.data import DataLoader

NORMALIZE = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def make_loaders(args: argparse.Namespace, device: torch.device) -> tuple[DataLoader, DataLoader]:
    training = transforms.Compose(
        [
            transforms.RandomResizedCrop(args.image_size),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            NORMALIZE,
        ]
    )
    validation = transforms.Compose(
        [
            transforms.Resize(round(args.image_size * 256 / 224)),
            transforms.CenterCrop(args.image_size),
            transforms.ToTensor(),
            NORMALIZE,
        ]
    )
    split = (args.data / "train").is_dir()
    train_set = ImageFolder(str(args.data / "train" if split else args.data), training)
    val_set = ImageFolder(str(args.data / "val" if split else args.data), validation)
    common = {"num_workers": args.workers, "persistent_workers": args.workers > 0, "device": device}
    train = DataLoader(train_set, args.batch_size, shuffle=True, drop_last=True, **common)
    val = DataLoader(val_set, args.batch_size, **common)
    return train, val


def learning_rate(step: int, steps: int, warmup: int, peak: float) -> float:
    """Rises linearly for ``warmup`` steps, then falls along a cosine to zero."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="DIR")
    parser.add_argument("--model", default="resnet50", help="any of torchvision's classifiers")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.1, help="peak, for 256 images per batch; scaled to others")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train, val = make_loaders(args, device)
    print(train.plan)

    model = get_model(args.model, weights=None, num_classes=len(train.dataset.classes))
    model = model.to(device, memory_format=torch.channels_last)
    loss_of = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-5, nesterov=True)
    steps, warmup = args.epochs * len(train), min(5, args.epochs) * len(train) // 2
    peak = args.lr * args.batch_size / 256

    step = 0
    for epoch in range(args.epochs):
        model.train()
        start = time.perf_counter()
        total = torch.zeros((), device=device)
        for images, labels in train:  # on the GPU already, channels_last
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, steps, warmup, peak)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
                loss = loss_of(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.detach()
            step += 1
        mean_loss = total.item() / len(train)  # waits for the GPU, once per epoch
        speed = len(train) * args.batch_size / (time.perf_counter() - start)

        model.eval()
        correct = torch.zeros((), device=device)
        with torch.no_grad(), torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            for images, labels in val:
                correct += (model(images).argmax(1) == labels).sum()
        accuracy = correct.item() / len(val.dataset)
        print(f"epoch {epoch + 1}: loss {mean_loss:.3f}, top-1 {accuracy:.1%}, {speed:,.0f} images/s", flush=True)


if __name__ == "__main__":
    main()
