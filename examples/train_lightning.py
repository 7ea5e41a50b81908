"""Fine-tune a torchvision classifier with Lightning on a folder of images, one subfolder per class.

python examples/train_lightning.py DIR --epochs 5

Lightning finds each batch on its device already; under DDP it gives the loader a DistributedSampler, as it would give
torch's. ``fastload bench photos DIR`` writes such a folder.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import lightning
import tiny
import torch
from torch.utils.data import Subset
from torchvision.datasets import ImageFolder
from torchvision.models import get_model
from torchvision.transforms import v2

from fastload import DataLoader  # was: from torch.utils.data import DataLoader


class Classifier(lightning.LightningModule):
    def __init__(self, model: str, classes: int, lr: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = get_model(model, weights=None, num_classes=classes)

    def training_step(self, batch, _):
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(self.model(images), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, _):
        images, labels = batch
        top1 = (self.model(images).argmax(1) == labels).float().mean()
        self.log("top1", top1, prog_bar=True, batch_size=len(labels), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


class Images(lightning.LightningDataModule):
    """Every tenth image is validated on, the others are trained on."""

    def __init__(self, data: Path, size: int, batch_size: int, workers: int) -> None:
        super().__init__()
        to_tensor = [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)]
        normalize = v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        train = v2.Compose([v2.RandomResizedCrop(size), v2.RandomHorizontalFlip(), *to_tensor, normalize])
        val = v2.Compose([v2.Resize(size), v2.CenterCrop(size), *to_tensor, normalize])
        self.train, self.val = ImageFolder(data, train), ImageFolder(data, val)
        self.classes = len(self.train.classes)
        self.common = {"batch_size": batch_size, "num_workers": workers, "persistent_workers": workers > 0}

    def train_dataloader(self):
        indices = [i for i in range(len(self.train)) if i % 10]
        return DataLoader(Subset(self.train, indices), shuffle=True, drop_last=True, **self.common)

    def val_dataloader(self):
        return DataLoader(Subset(self.val, range(0, len(self.val), 10)), **self.common)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", metavar="DIR")
    parser.add_argument("--model", default="resnet18", help="any of torchvision's classifiers")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--out", type=Path, default=Path(), help="folder for logs and checkpoints (default: this one)")
    args = tiny.parse(parser)

    lightning.seed_everything(0)
    try:
        images = Images(args.data, args.image_size, args.batch_size, args.workers)
    except FileNotFoundError as error:  # no such folder, or no images in it
        sys.exit(str(error))
    precision = "bf16-mixed" if torch.cuda.is_available() else "32-true"
    seen = {"enable_progress_bar": sys.stdout.isatty(), "enable_model_summary": sys.stdout.isatty()}
    trainer = lightning.Trainer(max_epochs=args.epochs, precision=precision, default_root_dir=args.out, **seen)
    trainer.fit(Classifier(args.model, images.classes, args.lr), images)
    print(trainer.train_dataloader.plan)
    print(f"top-1 {trainer.callback_metrics['top1']:.1%}")


if __name__ == "__main__":
    main()
