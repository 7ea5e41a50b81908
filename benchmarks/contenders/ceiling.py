"""No loader: one batch that is on the device already. What no loader can pass."""

from __future__ import annotations

import torch

from benchmarks.contenders._job import SIDE, Batches, Feed, Job, in_model_layout


def open_feed(job: Job, variant: str) -> Feed:
    """The same random batch, again and again."""
    generator = torch.Generator().manual_seed(job.seed)
    images = in_model_layout(torch.randn(job.batch_size, 3, SIDE, SIDE, generator=generator).to(job.device))
    labels = torch.randint(1000, (job.batch_size,), generator=generator).to(job.device)

    def batches() -> Batches:
        while True:
            yield images, labels

    return Feed(batches(), lambda: None)
