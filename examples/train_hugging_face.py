"""Train with Hugging Face's Trainer on a folder of images, by ``datasets``.

Each class has a subfolder.

fastload run examples/train_hugging_face.py DIR
python examples/train_hugging_face.py DIR

This program does not know FastLoader: the Trainer makes its loaders itself, and under ``fastload run`` they are
FastLoaders. ``--explain`` (``fastload run --explain examples/train_hugging_face.py DIR``) says so at the end.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import tiny
import torch
from datasets import load_dataset
from torchvision import transforms
from transformers import ResNetConfig, ResNetForImageClassification, Trainer, TrainingArguments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", metavar="DIR")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--workers", type=int, default=8)
    args = tiny.parse(parser)
    if not any(args.data.glob("*/*")):
        sys.exit(f"{args.data}: no folders with images")

    with tempfile.TemporaryDirectory() as cache:
        files = {"train": [str(path) for path in sorted(args.data.glob("*/*"))]}
        dataset = load_dataset("imagefolder", data_files=files, split="train", drop_labels=False, cache_dir=cache)
        transform = transforms.Compose(
            [
                transforms.RandomResizedCrop(args.image_size),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        )

        def preprocess(batch):
            batch["pixel_values"] = [transform(image.convert("RGB")) for image in batch["image"]]
            return batch

        def collate(examples):
            pixel_values = torch.stack([example["pixel_values"] for example in examples])
            return {"pixel_values": pixel_values, "labels": torch.tensor([example["label"] for example in examples])}

        labels = dataset.features["label"].names
        small = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"}
        model = ResNetForImageClassification(ResNetConfig(num_labels=len(labels), **small))
        settings = TrainingArguments(
            output_dir=cache,
            num_train_epochs=args.epochs,
            per_device_train_batch_size=args.batch_size,
            dataloader_num_workers=args.workers,
            remove_unused_columns=False,  # the transform reads the column "image"
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_strategy="epoch",
        )
        Trainer(
            model=model, args=settings, data_collator=collate, train_dataset=dataset.with_transform(preprocess)
        ).train()


if __name__ == "__main__":
    main()
