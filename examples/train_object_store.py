"""Train on images in an object store, read as they are needed.

python examples/train_object_store.py s3://bucket/imagenet/train --cache /local/cache

Keys are ``class/name.jpg`` below the URL, which may be of S3, of Google's or Azure's store, or of a local folder. With
``--cache`` an object is requested once, and read from the disk in later epochs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import tiny
import torch
from torchvision import transforms
from torchvision.models import get_model

from fastload import DataLoader
from fastload.sources import ObjectStoreImageFolder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", metavar="URL", help="or a local folder")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="on a local disk, of at most 64 GiB")
    parser.add_argument("--model", default="resnet50", help="any of torchvision's classifiers")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--workers", type=int, default=8)
    args = tiny.parse(parser)

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    crop = [transforms.RandomResizedCrop(args.image_size), transforms.RandomHorizontalFlip()]
    normalize = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    transform = transforms.Compose([*crop, transforms.ToTensor(), normalize])
    url = str(args.data) if "://" in str(args.data) else Path(args.data).absolute().as_uri()
    try:
        dataset = ObjectStoreImageFolder(url, transform, cache_dir=args.cache)
    except (FileNotFoundError, ValueError) as error:  # nothing is there, or no store
        sys.exit(str(error))
    # Objects are requested for num_workers * prefetch_factor batches ahead.
    loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=args.workers, prefetch_factor=4)
    print(loader.plan)

    model = get_model(args.model, num_classes=len(dataset.classes)).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(args.epochs):
        total = torch.zeros((), device=device)
        for images, labels in loader:  # on the GPU already, channels_last
            optimizer.zero_grad(set_to_none=True)
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        print(f"epoch {epoch + 1}: loss {total.item() / len(loader):.3f}", flush=True)


if __name__ == "__main__":
    main()
