"""Train a torchvision classifier on the nodes of a Ray cluster.

The folder of images must be one that all of them can read.

python examples/train_ray.py DIR --nodes 2

Each training worker reads its part with a FastLoader. With ``--remote-transforms N``, N tasks of Ray Data, on any
nodes, make the samples instead: for transforms in Python that need more cores than the trainers have. Random draws then
depend on seed, epoch and index, as with ``randomness="sample"``. ``--gpu`` gives each worker one.
``fastload bench photos DIR`` writes such a folder.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DistributedSampler
from torchvision.datasets import ImageFolder
from torchvision.models import get_model
from torchvision.transforms import v2

from fastload import FastLoader, prefetch_to_device
from fastload.sources import SeededSamples
from fastload.vision import decode

SEED = 0


def read(path: str) -> Image.Image:
    return Image.fromarray(decode(path))


def images(args: argparse.Namespace, **loader: Any) -> ImageFolder:
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(args.image_size),
            v2.RandomHorizontalFlip(),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    return ImageFolder(args.data, transform, **loader)


def count_classes(dataset: ImageFolder) -> int:
    # Not within train(), which uses torch: Ray's pickle would take the name for the module torch.classes.
    return len(dataset.classes)


def remote_batches(args: argparse.Namespace, sampler: DistributedSampler, epoch: int) -> Any:
    """One worker's batches, made by tasks of Ray Data; they arrive in the sampler's order."""
    import pyarrow
    import ray

    ray.data.DataContext.get_current().execution_options.preserve_order = True
    order = np.fromiter(sampler, np.int64)
    parts = np.split(order, range(args.batch_size, len(order), args.batch_size))
    batches = ray.data.from_arrow([pyarrow.table({"index": part}) for part in parts])  # a block for each
    make = SeededSamples(images(args, loader=read), SEED, epoch)
    made = batches.map_batches(
        make, batch_size=None, num_cpus=1, compute=ray.data.TaskPoolStrategy(args.remote_transforms)
    )
    return ((batch["image"], batch["target"]) for batch in made.iter_torch_batches(batch_size=args.batch_size))


def train(options: dict[str, Any]) -> None:
    import ray.train.torch

    args = argparse.Namespace(**options)
    context = ray.train.get_context()
    device = ray.train.torch.get_device()
    torch.manual_seed(SEED)
    dataset = images(args)
    model = ray.train.torch.prepare_model(get_model(args.model, weights=None, num_classes=count_classes(dataset)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    sampler = DistributedSampler(dataset, context.get_world_size(), context.get_world_rank())
    loader: Any = FastLoader(dataset, args.batch_size, sampler=sampler, num_workers=args.workers)
    # With a DistributedSampler of its own, it comes back as it is; it moves batches to the device itself.
    loader = ray.train.torch.prepare_data_loader(loader, move_to_device=False)
    if context.get_world_rank() == 0:
        print(loader.plan)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        batches = loader
        if args.remote_transforms:
            batches = prefetch_to_device(remote_batches(args, sampler, epoch), device)
        total, steps = torch.zeros((), device=device), 0
        for pixels, labels in batches:
            optimizer.zero_grad(set_to_none=True)
            loss = torch.nn.functional.cross_entropy(model(pixels), labels)
            loss.backward()
            optimizer.step()
            total, steps = total + loss.detach(), steps + 1
        metrics = {"epoch": epoch + 1, "loss": total.item() / steps}
        with tempfile.TemporaryDirectory() as folder:
            if context.get_world_rank() == 0:
                torch.save(model.state_dict(), Path(folder) / "model.pt")
            ray.train.report(metrics, ray.train.Checkpoint.from_directory(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="DIR")
    parser.add_argument("--nodes", type=int, default=2, help="training workers, each on a node of its own if it can be")
    parser.add_argument("--gpu", action="store_true", help="one for each of them")
    parser.add_argument("--remote-transforms", type=int, default=0, metavar="N", help="tasks at a time; 0: none")
    parser.add_argument("--model", default="resnet18", help="any of torchvision's classifiers")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64, help="per node")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--workers", type=int, default=8, help="per node")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--out", type=Path, default=Path("ray_results"), help="where all nodes can write")
    parser.add_argument("--address", help="of the cluster; by default one on this machine is started")
    args = parser.parse_args()
    args.data = args.data.absolute()
    try:
        images(args)
    except FileNotFoundError as error:  # no such folder, or no images in it
        sys.exit(str(error))

    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init(args.address)
    run = RunConfig(storage_path=str(args.out.absolute()))
    scaling = ScalingConfig(num_workers=args.nodes, use_gpu=args.gpu, placement_strategy="SPREAD")
    result = TorchTrainer(train, train_loop_config=vars(args), scaling_config=scaling, run_config=run).fit()
    print(f"epoch {result.metrics['epoch']}: loss {result.metrics['loss']:.3f}")
    ray.shutdown()


if __name__ == "__main__":
    main()
