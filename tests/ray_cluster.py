"""A Ray cluster of two nodes on this machine: ``python ray_cluster.py FOLDER OUT``.

Trains nothing: each worker of a ``TorchTrainer`` writes the batches of its loaders to ``OUT/RANK.pt``, and
``OUT/data.pt`` gets those that tasks of Ray Data have made.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fastload import FastLoader, prefetch_to_device
from fastload.sources import SeededSamples, seed_of

BATCH, EPOCHS, NODES = 4, 2, 2
NODE = {"num_cpus": 3, "object_store_memory": 100 << 20}


def classic(folder: str) -> ImageFolder:
    return ImageFolder(
        folder,
        transforms.Compose(
            [transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
        ),
    )


def drawing(folder: str) -> ImageFolder:
    """Draws from all three generators, in Python."""
    steps: list[Any] = [transforms.RandomResizedCrop(32), transforms.ColorJitter(0.4, 0.4, 0.4)]
    steps.append(lambda image: image.rotate(random.uniform(-9, 9) + np.random.uniform(-9, 9)))
    return ImageFolder(folder, transforms.Compose([*steps, transforms.ToTensor()]))


def epochs_of(loader: Any, sampler: DistributedSampler[Any]) -> list[list[Any]]:
    found = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        torch.manual_seed(epoch)
        found.append([(images.clone(), labels.clone()) for images, labels in loader])
    return found


def train(options: dict[str, str]) -> None:
    import ray.train.torch

    context = ray.train.get_context()
    rank = context.get_world_rank()
    prepare = ray.train.torch.prepare_data_loader
    data = classic(options["folder"])
    own = {"batch_size": BATCH, "num_workers": 2}

    sampler = DistributedSampler(data, context.get_world_size(), rank)
    given = FastLoader(data, **own, sampler=sampler)
    moved = prepare(given)
    wrapped = FastLoader.wrap(prepare(DataLoader(data, **own, shuffle=True)), device_prefetch=2)
    result = {
        "node": ray.get_runtime_context().get_node_id(),
        "given is itself": prepare(given, move_to_device=False) is given,
        "wrapped again is itself": FastLoader.wrap(moved) is given,
        "engines": [given.plan.engine, wrapped.plan.engine],
        "wrapped": (
            type(wrapped).__name__,
            type(wrapped.sampler).__name__,
            f"{wrapped.device}",
            wrapped.device_prefetch,
        ),
        "batches": [
            epochs_of(given, sampler),
            epochs_of(moved, sampler),
            epochs_of(wrapped, wrapped.sampler),
        ],
    }
    torch.save(result, Path(options["out"]) / f"{rank}.pt")


def order(count: int, epoch: int) -> list[int]:
    return torch.randperm(count, generator=torch.Generator().manual_seed(epoch)).tolist()


def made_by_tasks(folder: str, epoch: int) -> list[Any]:
    import pyarrow
    import ray

    ray.data.DataContext.get_current().execution_options.preserve_order = True
    ray.data.DataContext.get_current().enable_progress_bars = False
    data = drawing(folder)
    indices = np.array(order(len(data), epoch))
    parts = np.split(indices, range(BATCH, len(indices), BATCH))
    make = SeededSamples(data, seed_of(torch.Generator().manual_seed(7)), epoch)
    tasks = ray.data.from_arrow([pyarrow.table({"index": part}) for part in parts])
    tasks = tasks.map_batches(make, batch_size=None, num_cpus=1, compute=ray.data.TaskPoolStrategy(2))
    batches = ((made["image"], made["target"]) for made in tasks.iter_torch_batches(batch_size=BATCH))
    return [(images.clone(), labels.clone()) for images, labels in prefetch_to_device(batches, "cpu")]


def main(folder: str, out: str) -> None:
    import ray
    from ray.cluster_utils import Cluster
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        for _ in range(NODES - 1):
            cluster.add_node(**NODE)
        ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
        torch.save([made_by_tasks(folder, epoch) for epoch in range(EPOCHS)], Path(out) / "data.pt")
        TorchTrainer(
            train,
            train_loop_config={"folder": folder, "out": out},
            scaling_config=ScalingConfig(num_workers=NODES, placement_strategy="STRICT_SPREAD"),
            run_config=RunConfig(storage_path=out),
        ).fit()
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
