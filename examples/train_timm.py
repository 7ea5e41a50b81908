"""Train a timm model with timm's own augmentation on a folder of images.

Each class has a subfolder.

python examples/train_timm.py DIR --model resnet50d --auto-augment rand-m9-mstd0.5

timm's transforms run unchanged in worker processes; FastLoader takes the place of timm's prefetcher. (timm's own
``train.py`` runs on FastLoader as it is: ``fastload run train.py ...``.) ``fastload bench photos DIR`` writes such a
folder.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import timm
import tiny
import torch
from timm.data import create_dataset, create_loader, resolve_model_data_config
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler

from fastload import FastLoader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", metavar="DIR")
    parser.add_argument("--model", default="resnet50d", help="any of timm's models")
    parser.add_argument("--auto-augment", metavar="POLICY", help="such as rand-m9-mstd0.5")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = tiny.parse(parser)

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not args.data.is_dir():
        sys.exit(f"no such folder: {args.data}")
    try:
        dataset = create_dataset("", args.data)
    except RuntimeError as error:  # no images in it
        sys.exit(str(error))
    classes = len(dataset.reader.class_to_idx)
    model = timm.create_model(args.model, num_classes=classes).to(device, memory_format=torch.channels_last)
    config = resolve_model_data_config(model)
    loader = create_loader(
        dataset,
        (3, args.image_size, args.image_size),
        args.batch_size,
        is_training=True,
        auto_augment=args.auto_augment,
        mean=config["mean"],
        std=config["std"],
        interpolation=config["interpolation"],
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
        use_prefetcher=False,  # FastLoader does its work: copies ahead, channels_last
    )
    loader = FastLoader.wrap(loader)
    if not len(loader):
        sys.exit(f"{args.data}: {len(dataset)} images are less than one batch of {args.batch_size}")
    print(loader.plan)

    optimizer = create_optimizer_v2(model, "adamw", lr=args.lr, weight_decay=0.05)
    scheduler = CosineLRScheduler(optimizer, args.epochs)
    for epoch in range(args.epochs):
        total = torch.zeros((), device=device)
        for images, labels in loader:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        scheduler.step(epoch + 1)
        print(f"epoch {epoch + 1}: loss {total.item() / len(loader):.3f}", flush=True)


if __name__ == "__main__":
    main()
