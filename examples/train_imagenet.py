"""Train an image classifier on ImageNet: one GPU, several, or a small CPU run.

python examples/train_imagenet.py DIR --model resnet50 --epochs 90
torchrun --nproc-per-node 4 examples/train_imagenet.py DIR --model resnet50 --epochs 90

DIR holds ``train/`` and ``val/``, each with one folder of images per class; or directly one folder of images per class,
which is then trained and validated on. ``fastload bench photos DIR`` writes such a folder.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from pathlib import Path

import tiny
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler, Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.models import get_model

from fastload import DataLoader  # was: from torch.utils.data import DataLoader

NORMALIZE = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def make_loaders(args: argparse.Namespace, rank: int, ranks: int) -> tuple[DataLoader, DataLoader]:
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
    train_set = ImageFolder(args.data / "train" if split else args.data, training)
    val_set = ImageFolder(args.data / "val" if split else args.data, validation)
    sampler = DistributedSampler(train_set, seed=args.seed, drop_last=True) if ranks > 1 else None
    common = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    train = DataLoader(train_set, args.batch_size, shuffle=sampler is None, sampler=sampler, drop_last=True, **common)
    # Each process validates on every n-th image; a DistributedSampler would count some of them twice.
    val = DataLoader(Subset(val_set, range(rank, len(val_set), ranks)), args.batch_size, **common)
    return train, val


def learning_rate(step: int, steps: int, warmup: int, peak: float) -> float:
    """Rises linearly for ``warmup`` steps, then falls along a cosine to zero."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def summed(value: torch.Tensor, ranks: int) -> float:
    """``value`` over all processes. Waits for the GPU."""
    if ranks > 1:
        dist.all_reduce(value)
    return value.item()


def train_model(args: argparse.Namespace, device: torch.device, rank: int, ranks: int) -> None:
    torch.manual_seed(args.seed)
    torch.backends.cudnn.benchmark = True
    try:
        train, val = make_loaders(args, rank, ranks)
    except FileNotFoundError as error:  # no such folder, or no images in it
        sys.exit(str(error))
    if not len(train):
        sys.exit(f"{args.data}: {len(train.sampler)} images to train on are less than one batch of {args.batch_size}")
    if rank == 0:
        print(train.plan)

    classes = len(train.dataset.classes)
    model = get_model(args.model, weights=None, num_classes=classes)
    model = model.to(device, memory_format=torch.channels_last)
    replica = DistributedDataParallel(model, [device.index] if device.type == "cuda" else None) if ranks > 1 else model
    loss_of = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-5, nesterov=True)
    steps, warmup = args.epochs * len(train), min(5, args.epochs) * len(train) // 2
    peak = args.lr * args.batch_size * ranks / 256
    amp = {"device_type": device.type, "dtype": torch.bfloat16, "enabled": args.amp}

    step = 0
    for epoch in range(args.epochs):
        if isinstance(train.sampler, DistributedSampler):
            train.sampler.set_epoch(epoch)
        model.train()
        start = time.perf_counter()
        total = torch.zeros((), device=device)
        for images, labels in train:  # on the GPU already, channels_last
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, steps, warmup, peak)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(**amp):
                loss = loss_of(replica(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.detach()
            step += 1
        mean_loss = summed(total, ranks) / (len(train) * ranks)  # the epoch's only wait for the GPU
        speed = len(train) * args.batch_size * ranks / (time.perf_counter() - start)

        model.eval()
        hits, seen = torch.zeros((), device=device), torch.zeros((), device=device)
        with torch.inference_mode(), torch.autocast(**amp):
            for images, labels in val:
                hits += (model(images).argmax(1) == labels).sum()
                seen += len(labels)
        accuracy = summed(hits, ranks) / summed(seen, ranks)
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {mean_loss:.3f}, top-1 {accuracy:.1%}, {speed:,.0f} images/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", metavar="DIR")
    parser.add_argument("--model", default="resnet50", help="any of torchvision's classifiers")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=256, help="per process")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--workers", type=int, default=8, help="per process")
    parser.add_argument("--lr", type=float, default=0.1, help="peak, for 256 images per step; scaled to others")
    parser.add_argument("--amp", action=argparse.BooleanOptionalAction, default=True, help="bfloat16 autocast")
    parser.add_argument("--seed", type=int, default=0)
    args = tiny.parse(parser)

    ranks, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))  # torchrun sets them
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)  # this is where FastLoader's device="auto" takes batches
    if ranks > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        train_model(args, device, rank, ranks)
    finally:
        if ranks > 1:
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
