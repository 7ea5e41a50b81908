"""One process of ``python -m benchmarks multigpu``; torchrun starts it as ``python -m benchmarks._ranks FOLDER``."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset
from torch.utils.data.distributed import DistributedSampler

from benchmarks.contenders import ceiling
from benchmarks.contenders._job import Job, in_model_layout
from benchmarks.multigpu import CEILING, DECODE, TORCH, RankPlan
from fastload import FastLoader
from fastload.bench._steps import TrainingStep, run_steps
from fastload.measurement.clock import CudaClock, HostClock
from fastload.measurement.record import interleave, write_json
from fastload.measurement.throughput import NATIVE_AHEAD, in_flight

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

_WARM_STEPS = 4  # after another one's turn
EPOCH_IMAGES = 1 << 19  # of each process: no epoch ends while a clock runs


class Rank:
    """This process: the model, and a loader of each kind.

    Args:
        plan: What to do.
        device: Of this process.
    """

    def __init__(self, plan: RankPlan, device: torch.device) -> None:
        self._plan = plan
        self._device = device
        self._clock: Any = CudaClock() if device.type == "cuda" else HostClock()
        ids = [device] if device.type == "cuda" else None
        self._step = TrainingStep(
            plan.model,
            device,
            channels_last=device.type == "cuda",
            wrap=lambda model: DistributedDataParallel(model, device_ids=ids),
        )
        # So many batches may be ready when a turn begins: FastLoader's threads do not stand still before they have
        # filled its buffers, torch's workers had filled theirs. The same in every process.
        self._ready: dict[str, int] = {}
        self._epoch_batches = 0
        self._loaders: list[Any] = []
        self._workers: dict[str, list[int]] = {}
        self._feeds: dict[str, Iterator[tuple[Tensor, Tensor]]] = {}

    def open(self) -> None:
        """Begin to load, with every loader."""
        plan = self._plan
        job = Job(data=plan.data, threads=plan.threads, batch_size=plan.batch_size, device=str(self._device))
        dataset = job.dataset()
        pool = job.indices(dataset)
        count = EPOCH_IMAGES * dist.get_world_size()
        images = Subset(dataset, (pool * -(-count // len(pool)))[:count])
        common: dict[str, Any] = {"batch_size": plan.batch_size, "num_workers": plan.threads}
        theirs = DataLoader(images, sampler=DistributedSampler(images), pin_memory=self._on_gpu(), **common)
        before = {child.pid for child in multiprocessing.active_children()}
        torch.manual_seed(dist.get_rank())
        self._feeds[TORCH] = self._delivered(iter(theirs))
        self._workers[TORCH] = [
            child.pid for child in multiprocessing.active_children() if child.pid and child.pid not in before
        ]
        self._ready[TORCH] = in_flight(theirs)
        for name in plan.contenders:
            if name not in DECODE:
                continue
            ours = FastLoader(
                images,
                sampler=DistributedSampler(images),
                device=self._device,
                engine="native",
                decode=DECODE[name],
                **common,
            )
            torch.manual_seed(dist.get_rank())
            self._feeds[name] = iter(ours)
            self._loaders.append(ours)
            self._ready[name] = NATIVE_AHEAD
        self._feeds[CEILING] = ceiling.open_feed(job, "").batches
        self._epoch_batches = -(-len(pool) // plan.batch_size)

    def check(self, batches: int) -> bool:
        """Return whether all loaders give bit-identical batches in this process.

        All continue from the last batch that was compared; FastLoader's go on until the index has seen most images.
        """
        same = True
        for _ in range(batches):
            theirs = next(self._feeds[TORCH])
            for name in self._feeds.keys() & DECODE:
                same &= all(torch.equal(a, b) for a, b in zip(theirs, next(self._feeds[name]), strict=True))
        if TORCH not in self._plan.contenders:
            del self._feeds[TORCH], self._workers[TORCH]  # which ends the workers
        for name in sorted(self._feeds.keys() & DECODE):
            for _ in range(4 * self._epoch_batches):  # a rank draws any of all images: most come at least once
                next(self._feeds[name])
        return same

    def train(self, name: str, steps: int) -> float:
        """Train ``steps`` steps after the prefetched ones; return the slowest process's seconds."""
        self._wake(name)
        before = self._run(name, max(_WARM_STEPS, self._ready.get(name, 0)))[-1]
        marks = self._run(name, steps)
        self._clock.finish()
        self._stop(name)
        seconds = torch.tensor(self._clock.between_s(before.ended, marks[-1].ended), device=self._device)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        return float(seconds)

    def measure(self) -> dict[str, list[float]]:
        """Images per second of all processes, turn by turn."""
        plan, steps = self._plan, {}
        for name in self._feeds:
            per_step = self.train(name, 4) / 4  # after the warm steps, in which the libraries choose their kernels
            steps[name] = max(2, math.ceil(plan.seconds / per_step))  # the same in every process
        images = plan.batch_size * dist.get_world_size()

        def turn(name: str) -> Any:
            return lambda: images * steps[name] / self.train(name, steps[name])

        spreads = interleave({name: turn(name) for name in self._feeds}, plan.repeats)
        return {name: list(spread.values) for name, spread in spreads.items()}

    def close(self) -> None:
        """End workers and threads."""
        for name in self._workers:
            self._wake(name)
        for loader in self._loaders:
            loader.close()
        self._feeds.clear()

    def _run(self, name: str, count: int) -> Any:
        return run_steps(self._feeds[name], lambda *batch: batch, self._step, self._clock, count)

    def _delivered(self, iterator: Any) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in iterator:
            if self._on_gpu():
                yield (
                    in_model_layout(images.to(self._device, non_blocking=True)),
                    labels.to(self._device, non_blocking=True),
                )
            else:
                yield images, labels

    def _on_gpu(self) -> bool:
        return self._device.type == "cuda"

    def _stop(self, name: str) -> None:
        for worker in self._workers.get(name, ()):
            os.kill(worker, signal.SIGSTOP)

    def _wake(self, name: str) -> None:
        for worker in self._workers.get(name, ()):
            os.kill(worker, signal.SIGCONT)


def main() -> None:
    """Run as a program."""
    folder = Path(sys.argv[1])
    planned = json.loads((folder / "plan.json").read_text())
    plan = RankPlan(**{**planned, "contenders": tuple(planned["contenders"])})
    rank, on_gpu = int(os.environ["RANK"]), plan.device == "cuda"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
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
