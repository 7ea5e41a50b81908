"""One process of ``python -m benchmarks multigpu``; torchrun starts it as ``python -m benchmarks._ranks FOLDER``."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset
from torch.utils.data.distributed import DistributedSampler

from benchmarks.contenders import ceiling, torch_loaders
from benchmarks.contenders._job import Job
from benchmarks.multigpu import CEILING, DECODE, TORCH
from fastload import FastLoader
from fastload._compare import difference
from fastload.bench._steps import TrainingStep, time_steps
from fastload.measurement.clock import clock_for
from fastload.measurement.record import interleave, write_json
from fastload.measurement.throughput import NATIVE_AHEAD, in_flight

_WARM_STEPS = 4  # after another one's turn
EPOCH_IMAGES = 1 << 19  # of each process: no epoch ends while a clock runs


class Rank:
    """This process: the model, and a loader of each kind; ``plan`` is :class:`RankRun`'s."""

    def __init__(self, plan: SimpleNamespace, device: torch.device) -> None:
        self._plan = plan
        self._device = device
        self._clock = clock_for(device)
        ids = [device] if device.type == "cuda" else None
        self._step = TrainingStep(
            plan.model,
            device,
            channels_last=device.type == "cuda",
            wrap=lambda model: DistributedDataParallel(model, device_ids=ids),
        )
        # Batches that may be ready when a turn begins, the same number in every process: FastLoader's threads run on
        # until its buffers are full, and torch's workers had filled theirs.
        self._ready: dict[str, int] = {}
        self._epoch_batches = 0
        self._loaders: list[Any] = []
        self._workers: dict[str, list[int]] = {}
        self._feeds: dict[str, Iterator[tuple[Tensor, Tensor]]] = {}

    def open(self) -> None:
        """Begin to load, with every loader."""
        plan = self._plan
        job = Job(**{**plan.job, "device": str(self._device)})
        dataset = job.dataset()
        pool = job.indices(dataset)
        count = EPOCH_IMAGES * dist.get_world_size()
        images = Subset(dataset, (pool * -(-count // len(pool)))[:count])
        common: dict[str, Any] = {"batch_size": job.batch_size, "num_workers": job.threads}
        pins = self._device.type == "cuda"
        theirs = DataLoader(images, sampler=DistributedSampler(images), pin_memory=pins, **common)
        torch.manual_seed(dist.get_rank())
        iterator: Any = iter(theirs)
        self._feeds[TORCH] = torch_loaders.delivered(iterator, self._device, pins)
        self._workers[TORCH] = [worker.pid for worker in iterator._workers]
        self._ready[TORCH] = in_flight(theirs)
        for name in plan.contenders:
            if name not in DECODE:
                continue
            own: dict[str, Any] = {"device": self._device, "engine": "native", "decode": DECODE[name]}
            ours = FastLoader(images, sampler=DistributedSampler(images), **own, **common)
            torch.manual_seed(dist.get_rank())
            self._feeds[name] = iter(ours)
            self._loaders.append(ours)
            self._ready[name] = NATIVE_AHEAD
        self._feeds[CEILING] = ceiling.open_feed(job, "").batches
        self._epoch_batches = -(-len(pool) // job.batch_size)

    def check(self, batches: int) -> bool:
        """Return whether all loaders give bit-identical batches in this process.

        All continue from the last batch that was compared; FastLoader's go on until the index has seen most images.
        """
        same = True
        for _ in range(batches):
            theirs = next(self._feeds[TORCH])
            for name in self._feeds.keys() & DECODE:
                same &= difference(list(theirs), list(next(self._feeds[name]))) is None
        if TORCH not in self._plan.contenders:
            del self._feeds[TORCH], self._workers[TORCH]  # which ends the workers
        for name in sorted(self._feeds.keys() & DECODE):
            for _ in range(4 * self._epoch_batches):  # a rank draws any of all images: most come at least once
                next(self._feeds[name])
        return same

    def train(self, name: str, steps: int) -> float:
        """Train ``steps`` steps after the prefetched ones; return the slowest process's seconds."""
        self._signal(name, signal.SIGCONT)
        warm = max(_WARM_STEPS, self._ready.get(name, 0))
        times = time_steps(self._feeds[name], self._step, self._clock, steps, warm=warm)
        self._signal(name, signal.SIGSTOP)
        seconds = torch.tensor(times.seconds, device=self._device)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        return float(seconds)

    def measure(self) -> dict[str, list[float]]:
        """Images per second of all processes, turn by turn."""
        plan, steps = self._plan, {}
        for name in self._feeds:
            per_step = self.train(name, 4) / 4  # after the warm steps, in which the libraries choose their kernels
            steps[name] = max(2, math.ceil(plan.seconds / per_step))  # the same in every process
        images = plan.job["batch_size"] * dist.get_world_size()

        def turn(name: str) -> Any:
            return lambda: images * steps[name] / self.train(name, steps[name])

        spreads = interleave({name: turn(name) for name in self._feeds}, plan.repeats)
        return {name: list(spread.values) for name, spread in spreads.items()}

    def close(self) -> None:
        """End workers and threads."""
        for name in self._workers:
            self._signal(name, signal.SIGCONT)
        for loader in self._loaders:
            loader.close()
        self._feeds.clear()

    def _signal(self, name: str, number: signal.Signals) -> None:
        """Stop or wake a loader's worker processes."""
        for worker in self._workers.get(name, ()):
            os.kill(worker, number)


def bind(rank: int, cores: int) -> None:
    """Let this process use ``cores`` of its own, of those that it may use; of fewer, some are others', too."""
    usable = sorted(os.sched_getaffinity(0))
    own = {usable[place % len(usable)] for place in range(rank * cores, (rank + 1) * cores)}
    os.sched_setaffinity(0, own)


def main() -> None:
    """Run as a program."""
    folder = Path(sys.argv[1])
    plan = SimpleNamespace(**json.loads((folder / "plan.json").read_text()))
    rank, on_gpu = int(os.environ["RANK"]), plan.job["device"] == "cuda"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    bind(rank, plan.cores)  # before CUDA begins threads
    if on_gpu:
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True
        torch.zeros(1, device=device)
    (folder / f"ready-{rank}").touch()
    while not (folder / "go").exists():
        time.sleep(0.02)
    dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
    one = Rank(plan, device)
    try:
        one.open()
        same = torch.tensor(int(one.check(2)), device=device)
        dist.all_reduce(same, op=dist.ReduceOp.MIN)
        if not same:
            raise RuntimeError("FastLoader's batches must equal DataLoader's bit for bit, but they differ")
        rates = one.measure()
    finally:
        one.close()
    if rank == 0:
        write_json(folder / "result.json", {"images_per_s": rates, "equal": True})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
