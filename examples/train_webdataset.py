"""Train a torchvision classifier on webdataset's tar files.

Samples have a ``jpg`` and a ``cls``.

python examples/train_webdataset.py shards/train-*.tar --classes 1000

The pipeline is webdataset's, and so is the order of its samples; the loader's workers make the images of a batch
natively, and each batch is on the GPU when the training loop asks for it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import tiny
import torch
import webdataset
from torchvision.models import get_model
from torchvision.transforms import v2

from fastload import DataLoader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", nargs="*", metavar="SHARD", help="tar file, or URL of one")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--model", default="resnet18", help="any of torchvision's classifiers")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = tiny.parse(parser, "shards", tiny.shards)

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    augment = v2.Compose(
        [
            v2.RandomResizedCrop(args.image_size),
            v2.RandomHorizontalFlip(),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    for shard in args.shards:
        if ":" not in shard and not Path(shard).is_file():  # webdataset would say so from within a worker
            sys.exit(f"no such file: {shard}")
    dataset = (
        webdataset.WebDataset(args.shards, shardshuffle=100)
        .shuffle(1000)
        .decode("pilrgb")
        .to_tuple("jpg", "cls")
        .map_tuple(augment, int)
        .batched(args.batch_size)
    )
    # Each worker reads shards of its own: one that is left with none is an error of webdataset's.
    workers = min(args.workers, sum(len(webdataset.shardlists.expand_urls(shard)) for shard in args.shards))
    batches = DataLoader(dataset, batch_size=None, num_workers=workers)  # was: webdataset.WebLoader, and .to(device)

    model = get_model(args.model, weights=None, num_classes=args.classes)
    model = model.to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        total, count = torch.zeros((), device=device), 0
        for images, labels in batches:  # on the GPU already, channels_last
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.detach()
            count += 1
        print(f"epoch {epoch + 1}: loss {total.item() / max(1, count):.3f}, {count} batches", flush=True)


if __name__ == "__main__":
    main()
