"""Measure training on one GPU and on several, one process each: ``python -m benchmarks multigpu``.

Started by torchrun (``torch.distributed.run``), with DistributedDataParallel and a DistributedSampler, bf16 autocast.
Every process is bound to its share of the cores, or to ``--cores`` of its own, and has as many threads, or workers, 16
at most. The loaders, and the step with its data on the GPU already, have their turns in the same processes,
once the index knows the images; torch's workers stand still while another has its turn.
The figure of a turn is that of the slowest process. Runs with more and more processes are started together, so that
imports are waited for once, and measure one after another.

Without GPUs it is skipped; with ``--quick``, which shows that it works: gloo, a tiny model, one process and two.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal

import torch

from benchmarks._checkout import importable
from benchmarks._peers import prepared
from benchmarks.contenders._job import Job
from benchmarks.contenders._registry import CONTENDERS
from fastload._arguments import UsageError, check_names
from fastload._machine import usable_cpus
from fastload.bench._steps import check_model
from fastload.measurement.console import console
from fastload.measurement.record import Spread, environment, extent, ratio, save

PROCESSES = (1, 2, 4)
THREADS_MAX = 16
CEILING = "ceiling"
TORCH = "torch-pinned"
DECODE: Mapping[str, Literal["auto", "cpu", "gpu"]] = {"fastload": "auto", "fastload-cpu": "cpu", "fastload-gpu": "gpu"}
"""Where FastLoader decodes, by contender."""

_PATIENCE_S = 300.0


class RunFailedError(RuntimeError):
    """A run of torchrun failed; the message ends with what it said."""


class RankRun:
    """One torchrun; its processes load their libraries and wait for the file ``go`` in ``folder``.

    Their ``plan`` has ``job``, ``model``, ``contenders``, and ``repeats`` and ``seconds`` of turns.
    """

    def __init__(self, processes: int, plan: Mapping[str, Any], folder: Path) -> None:
        self.processes = processes
        self._folder = folder
        folder.mkdir()
        (folder / "plan.json").write_text(json.dumps(plan))
        self._stack = contextlib.ExitStack()
        self._said: IO[bytes] = self._stack.enter_context((folder / "said").open("w+b"))
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
                *("--nproc-per-node", str(processes)),
                *("-m", "benchmarks._ranks", str(folder)),
            ],
            stdout=self._said,
            stderr=subprocess.STDOUT,
            env=importable({**os.environ, "OMP_NUM_THREADS": "1"}),  # as torchrun sets it by itself, with a warning
        )

    def wait_until_ready(self) -> None:
        """Block until every process waits."""
        self._await(lambda: len(list(self._folder.glob("ready-*"))) == self.processes)

    def measure(self) -> dict[str, Any]:
        """Let it go on; returns the record that its first process writes.

        Raises:
            RunFailedError: It ended without one.
        """
        (self._folder / "go").touch()
        result = self._folder / "result.json"
        self._await(result.exists)
        self._process.wait(_PATIENCE_S)
        measured: dict[str, Any] = json.loads(result.read_text())
        return measured

    def close(self) -> None:
        """End it. Idempotent."""
        if self._process.poll() is None:
            self._process.terminate()  # torchrun ends its processes
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._stack.close()

    def _await(self, come: Any) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not come():
            if self._process.poll() is not None or time.monotonic() > deadline:
                if come():
                    return
                self._said.seek(0)
                lines = self._said.read().decode(errors="replace").splitlines()
                errors = [line for line in lines if "Error" in line] or lines
                raise RunFailedError(f"{self.processes} processes: {errors[-1].strip() if errors else 'no answer'}")
            time.sleep(0.02)


def measure(plan_of: Mapping[int, Mapping[str, Any]], keep: Callable[[list[dict[str, Any]]], object]) -> None:
    """Measure with every number of processes; the runs begin together and measure one after another.

    ``keep`` gets the figures so far after each of them.
    """
    points: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="fastload-") as folder, contextlib.ExitStack() as stack:
        runs = []
        for processes, plan in plan_of.items():
            runs.append(RankRun(processes, plan, Path(folder) / str(processes)))
            stack.callback(runs[-1].close)
        for run in runs:
            run.wait_until_ready()
        for run in runs:
            answer = run.measure()
            points.append({"processes": run.processes, "threads": plan_of[run.processes]["job"]["threads"], **answer})
            _show(points)
            keep([_with_shares(point, points[0]) for point in points])


def _with_shares(point: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    """Add the share of the ceiling, and the efficiency against the fewest processes."""
    contenders = {}
    rates = {name: Spread.of(values) for name, values in point["images_per_s"].items()}
    for name, rate in rates.items():
        alone = Spread.of(first["images_per_s"][name]).median / first["processes"]
        contenders[name] = {
            "images_per_s": rate.record(),
            "share_of_ceiling": ratio(rate, rates[CEILING]).record(),
            "scaling_efficiency": rate.median / point["processes"] / alone,
        }
    return {**{key: value for key, value in point.items() if key != "images_per_s"}, "contenders": contenders}


def _show(points: Sequence[Mapping[str, Any]]) -> None:
    point = _with_shares(points[-1], points[0])
    for name, result in point["contenders"].items():
        rate = result["images_per_s"]
        console().print(
            f"{point['processes']} processes of {point['threads']} threads, {CONTENDERS[name].title}: "
            f"{rate['median']:,.0f} images/s ({extent(rate, ',.0f')}), "
            f"{result['share_of_ceiling']['median']:.1%} of the ceiling, scaling {result['scaling_efficiency']:.1%}"
        )


def main(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks multigpu``."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    contenders = tuple(args.contenders.split(","))
    check_names("--contenders", contenders, (TORCH, *DECODE))
    check_model(args.model)
    counts = args.processes or tuple(n for n in PROCESSES if n <= (gpus or 2))
    if gpus and max(counts) > gpus:
        raise UsageError(f"--processes must be <= {gpus}, the GPUs that there are, got {max(counts)}")
    if not gpus and not args.quick:
        console().print("bench multigpu: skipped, torch finds no CUDA device here; --quick shows that it works")
        return 0
    folder, described = prepared(args.data, quick=args.quick)
    turns = (len(contenders) + 1) * (args.repeats + 2)  # with those in which the libraries choose their kernels
    seconds = min(args.seconds, math.inf if args.row_seconds is None else args.row_seconds / turns)
    turn = {"model": args.model, "repeats": args.repeats, "seconds": seconds}
    loaded = {"batch_size": args.batch_size, "device": "cuda" if gpus else "cpu"}
    plans = {}
    for processes in sorted(counts):
        cores = args.cores or max(1, usable_cpus() // processes)
        if not 1 <= cores * processes <= max(processes, usable_cpus()):
            raise UsageError(
                f"--cores must be from 1 to {usable_cpus() // processes} with {processes} processes, got {cores}"
            )
        job = Job(data=folder, threads=min(THREADS_MAX, cores), **loaded)
        plans[processes] = {"job": job.record(), "cores": cores, "contenders": contenders, **turn}
    record = {
        "benchmark": "multigpu",
        "environment": environment(),
        "dataset": described,
        "parameters": {"quick": args.quick, "cores": args.cores or usable_cpus(), **turn, **loaded},
        "contenders": {name: {"title": CONTENDERS[name].title} for name in (*contenders, CEILING)},
    }

    def keep(points: list[dict[str, Any]]) -> None:
        save(args.json, {**record, "complete": len(points) == len(plans), "points": points})

    try:
        measure(plans, keep)
    except RunFailedError as error:
        console().print(f"failed: {error}")
        return 1
    return 0
