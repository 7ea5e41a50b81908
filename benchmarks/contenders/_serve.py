"""A contender's process, which answers one request at a time: ``python -m ..._serve NAME FD``.

A request is a line of JSON on a socket, so is the answer.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.contenders import _processes
from benchmarks.contenders._job import Feed, Job
from benchmarks.contenders._registry import CONTENDERS
from benchmarks.contenders._traits import traits
from fastload._compare import same_bits
from fastload.bench._data import STD
from fastload.bench._rungs import take_until
from fastload.bench._steps import TrainingStep, time_steps
from fastload.measurement.clock import clock_for
from fastload.memory.arena import Arena


class Server:
    """One contender, by its name in the registry."""

    def __init__(self, name: str) -> None:
        self._contender = CONTENDERS[name]
        self._feed: Feed | None = None
        self._job: Job  # that of the last loader
        self._train: TrainingStep | None = None
        self._held: Any = None
        self._cores = sorted(os.sched_getaffinity(0))

    def prepare(self, device: str) -> dict[str, Any]:
        """Check whether this contender can take part on ``device``, and get the device ready."""
        reason = self._contender.missing(device)
        if reason is None and device.startswith("cuda"):
            torch.zeros(1, device=device).cpu()
            torch.backends.cudnn.benchmark = True  # fixed shapes
        return {"missing": reason, "versions": self._contender.versions(), "python": sys.version.split()[0]}

    def limit(self, cores: int | None) -> dict[str, Any]:
        """Restrict every thread and future child to ``cores`` cores; ``None``: all."""
        chosen = self._cores[:cores]
        kept: set[str] = set()
        while begun := set(os.listdir("/proc/self/task")) - kept:  # again: a thread may begin others meanwhile
            for thread in begun:
                with contextlib.suppress(ProcessLookupError):  # it has ended
                    os.sched_setaffinity(int(thread), chosen)
            kept |= begun
        return {"cores": len(os.sched_getaffinity(0))}

    def open(self, **job: Any) -> dict[str, Any]:
        """Make a loader and wait for its first batch. Answers with the seconds that took."""
        self.close()
        self._job = Job(**job)
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        self._feed = self._contender.open_feed(self._job)
        constructed = time.perf_counter()
        batch = next(self._feed.batches)
        self._synchronize()
        return {
            "constructed_s": constructed - begin,
            "first_batch_s": time.perf_counter() - begin,
            "shape": list(batch[0].shape),
            "dtype": str(batch[0].dtype),
            "device": str(batch[0].device),
        }

    def settle(self) -> dict[str, Any]:
        """See :func:`fastload.bench._rungs.take_until`."""
        feed = self._running()
        return {"settled": take_until(feed.is_settled, feed.batches)}

    def run(self, batches: int = 1, seconds: float = 0.0) -> dict[str, Any]:
        """Take ``batches`` batches, and more until ``seconds`` have passed; nothing is done with them.

        The main thread's processor time is that of ``next()``, which a training loop's thread would spend, too.
        """
        feed = self._running()
        taken = 0
        group = os.getpgid(0)
        processor = _processes.processor_s(_processes.members(group))
        main_thread = time.thread_time()
        begin = time.perf_counter()
        while taken < batches or time.perf_counter() - begin < seconds:
            next(feed.batches)
            taken += 1
        main_thread_s = time.thread_time() - main_thread
        self._synchronize()
        elapsed_s = time.perf_counter() - begin
        return {
            "batches": taken,
            "images": taken * self._job.batch_size,
            "seconds": elapsed_s,
            "main_thread_s": main_thread_s,
            "processor_s": _processes.processor_s(_processes.members(group)) - processor,
        }

    def train(self, model: str, steps: int, warm_steps: int) -> dict[str, Any]:
        """Train ``steps`` steps after ``warm_steps``; the memory of activations is free again afterwards."""
        feed = self._running()
        device = torch.device(self._job.device)
        if self._train is None or self._train.model != model:
            self._train = None
            self._train = TrainingStep(model, device, channels_last=device.type == "cuda")
        step = self._train
        main_thread_s = 0.0
        warm = max(1, warm_steps)

        def batches() -> Iterator[Any]:
            nonlocal main_thread_s
            for number in itertools.count():
                begin = time.thread_time()
                batch = next(feed.batches)
                main_thread_s += time.thread_time() - begin if number >= warm else 0.0
                yield batch

        times = time_steps(batches(), step, clock_for(device), steps, warm=warm)
        step.forget()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        return {
            "batches": steps,
            "images": steps * self._job.batch_size,
            "seconds": times.seconds,
            "wait_share": times.waited_s / times.seconds,
            "main_thread_s": main_thread_s,
        }

    def check(self, expected: str, **job: Any) -> dict[str, Any]:
        """Compare batches with ``expected``: equal bits, or the difference in steps of 1/255."""
        self.close()
        feed = self._contender.open_feed(Job(**job))
        differences: list[float] = []
        largest = 0.0
        equal = labels_equal = True
        scale = 255 * torch.tensor(STD).view(1, 3, 1, 1)
        with np.load(expected) as arrays:
            count = len(arrays.files) // 2
            for number in range(count):
                images, labels = next(feed.batches)
                wanted = torch.from_numpy(arrays[f"images{number}"])
                labels_equal &= labels.cpu().tolist() == arrays[f"labels{number}"].tolist()
                got = images.cpu().contiguous()
                if got.shape != wanted.shape or got.dtype != wanted.dtype:
                    raise ValueError(
                        f"batch {number} must be {wanted.dtype} {tuple(wanted.shape)}, "
                        f"got {got.dtype} {tuple(got.shape)}"
                    )
                equal &= same_bits(got, wanted)
                difference = (got - wanted).abs() * scale
                differences.append(float(difference.mean()))
                largest = max(largest, float(difference.max()))
        feed.close()
        return {
            "batches": count,
            "equal": equal,
            "labels_equal": labels_equal,
            "mean_difference": sum(differences) / len(differences),
            "largest_difference": largest,
        }

    def draw(self, epochs: int, **job: Any) -> dict[str, Any]:
        """Return labels and traits of several epochs of random crops, in order."""
        self.close()
        wanted = Job(**job)
        feed = self._contender.open_feed(wanted)
        labels: list[list[int]] = []
        seen: list[Any] = []
        for _ in range(epochs):
            batches = [next(feed.batches) for _ in range(wanted.images // wanted.batch_size)]
            labels.append([label for _, came in batches for label in came.tolist()])
            seen.append(np.concatenate([traits(images) for images, _ in batches]).tolist())
        feed.close()
        return {"labels": labels, "traits": seen}

    def device_memory(self) -> dict[str, Any]:
        """Return the GPU bytes of all processes, and the peak allocated by torch here."""
        if not torch.cuda.is_available():
            return {"used_bytes": None, "torch_peak_bytes": None}
        free, total = torch.cuda.mem_get_info()
        return {"used_bytes": total - free, "torch_peak_bytes": torch.cuda.max_memory_allocated()}

    def pinned_memory(self) -> dict[str, Any]:
        """Return the pinned bytes of torch's allocator and of the loader's own arenas."""
        torch_bytes = 0
        if torch.cuda.is_available():
            torch_bytes = int(torch.cuda.host_memory_stats().get("allocated_bytes.current", 0))
        return {"torch_bytes": torch_bytes, "arena_bytes": self._running().arena_bytes()}

    def pin(self, kind: str, nbytes: int) -> dict[str, Any]:
        """Hold ``nbytes`` of pinned memory, every page of it touched: ``"torch"``'s, or an ``"arena"``."""
        if kind == "torch":
            self._held = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=True)
        else:
            self._held = Arena(0, 1, nbytes)
        return {}

    def close(self) -> dict[str, Any]:
        """End the loader."""
        if self._feed is not None:
            self._feed.close()
            self._feed = None
        gc.collect()
        return {}

    def _running(self) -> Feed:
        if self._feed is None:
            raise RuntimeError("open comes first")
        return self._feed

    def _synchronize(self) -> None:
        if self._job.on_gpu:
            torch.cuda.synchronize()


def serve(name: str, connection: socket.socket) -> None:
    """Answer requests until the other end closes."""
    server = Server(name)
    with connection.makefile("rw", encoding="utf-8") as stream:
        for line in stream:
            request = json.loads(line)
            try:
                answer = {"answer": getattr(server, request.pop("do"))(**request)}
            except Exception as error:  # noqa: BLE001 - whatever a contender raises is told to the benchmark
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"}
            stream.write(json.dumps(answer) + "\n")
            stream.flush()
    server.close()


def main() -> None:
    """Run as a program."""
    # Nothing that a library prints may get between the benchmark's own output.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    Path(f"/proc/{os.getpid()}/oom_score_adj").write_text("500")  # rather this process than the benchmark
    serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))


if __name__ == "__main__":
    main()
