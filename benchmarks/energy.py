"""Measure the GPU's energy per million images, the loader alone: ``python -m benchmarks energy``.

The driver counts millijoules (NVML's total energy, by ``nvidia-ml-py``). What the GPU takes while every contender
stands still, for the same time, is subtracted; the processor's energy is not measured. A turn takes several seconds,
because the counter moves ten times a second or so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from benchmarks._peers import Gathering, attempt, rate_figures, spread_of, take_turns, warm_up
from benchmarks._setup import Setup
from benchmarks.contenders._remote import Remote
from fastload.measurement.console import console
from fastload.measurement.record import extent
from fastload.stats.gpu_utilization import nvml_and_handle

IDLE_S: Final = 3.0


class NoCounterError(RuntimeError):
    """The GPU's energy cannot be read; the message says why."""


def counter(device: str) -> Callable[[], float]:
    """Return a function that returns joules since some moment.

    Raises:
        NoCounterError: There is none.
    """
    if not device.startswith("cuda"):
        raise NoCounterError("there is no GPU")
    try:
        nvml, handle = nvml_and_handle(torch.device(device))
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except ImportError:
        raise NoCounterError("nvidia-ml-py is not installed") from None
    except Exception as error:  # the driver's errors are pynvml's own
        raise NoCounterError(f"the driver does not count energy: {error}") from error
    return lambda: float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3


def idle_watts(joules: Callable[[], float], seconds: float) -> float:
    """The GPU's power while nothing runs."""
    before, begin = joules(), time.perf_counter()
    time.sleep(seconds)
    return (joules() - before) / (time.perf_counter() - begin)


def measure(gathering: Gathering, setup: Setup, threads: int) -> dict[str, Any]:
    """Measure every contender at one number of threads; nothing where energy is not counted."""
    try:
        joules = counter(setup.device)
    except NoCounterError as error:
        console().print(f"energy: skipped, {error}")
        return {}
    deadline, seconds = setup.deadline(), setup.turn_seconds(len(gathering.present(setup)))
    team, remotes = gathering.team, gathering.present(setup)
    team.open(remotes, setup.job(gathering.folder, threads))
    for remote in remotes:
        with attempt(remote), remote.turn():
            warm_up(remote, threads, min(2.0, seconds))
    still = [idle_watts(joules, min(IDLE_S, max(0.2, seconds)))]

    def turn(remote: Remote) -> dict[str, Any]:
        before, begin = joules(), time.perf_counter()
        answer = remote.ask("run", batches=threads, seconds=seconds)
        return {**answer, "joules": joules() - before, "asked_s": time.perf_counter() - begin}

    answers = take_turns(gathering.present(setup), turn, setup.repeats, deadline)
    still.append(idle_watts(joules, min(IDLE_S, max(0.2, seconds))))
    team.close_feeds()
    idle = sum(still) / len(still)
    return {
        name: {
            **rate_figures(turns),
            "joules_per_million": spread_of(turns, lambda a: per_million(a, idle)),
            "watts": spread_of(turns, lambda a: a["joules"] / a["asked_s"]),
            "idle_watts": idle,
        }
        for name, turns in answers.items()
    }


def per_million(answer: Mapping[str, Any], idle: float) -> float:
    """Joules for a million images above ``idle`` watts; never below 0, which noise would be."""
    above_idle: float = 1e6 * (answer["joules"] - idle * answer["asked_s"]) / answer["images"]
    return max(0.0, above_idle)


def describe(result: Mapping[str, Any]) -> str:
    """A contender's figures in words."""
    each, rate = result["joules_per_million"], result["images_per_s"]
    return (
        f"{each['median']:,.0f} J per million images ({extent(each, ',.0f')}), "
        f"{result['watts']['median']:.0f} W at {rate['median']:,.0f} images/s, {result['idle_watts']:.0f} W idle"
    )
