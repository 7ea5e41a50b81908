"""The loader alone, against the number of threads, beside its peers: ``fastload bench loaders``.

Nothing is done with the batches: normalized float32 images on the GPU (without one: in host memory). Every contender
has a process of its own, and stands still while another has its turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastload._machine import usable_cpus
from fastload.bench._measure import write_json
from fastload.bench._peers import (
    add_peer_arguments,
    gathered,
    numbers,
    rate_figures,
    setup_of,
    take_turns,
    warm_up,
)
from fastload.bench._show import console, refuse
from fastload.bench.contenders._job import Job

if TYPE_CHECKING:
    import argparse

    from fastload.bench._peers import Gathering, Setup

THREADS = (1, 2, 4, 8, 16)


def measure(gathering: Gathering, setup: Setup, threads: int, batch_size: int) -> dict[str, Any]:
    """Every contender at one number of threads."""
    team = gathering.team
    opened = team.open(Job(data=gathering.folder, threads=threads, batch_size=batch_size, device=setup.device))
    batches = {remote.name: warm_up(remote, threads, setup.seconds) for remote in team.present}
    answers = take_turns(team.present, lambda remote: remote.ask("run", batches=batches[remote.name]), setup.repeats)
    team.close_feeds()
    return {
        name: {**rate_figures(turns), "batches_per_turn": batches[name], "first_batch_s": opened[name]["first_batch_s"]}
        for name, turns in answers.items()
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``fastload bench loaders``."""
    add_peer_arguments(parser)
    parser.add_argument(
        "--threads", type=numbers, help=f"threads or workers, such as 4,16 (default: {','.join(map(str, THREADS))})"
    )


def main(args: argparse.Namespace) -> int:
    """Run ``fastload bench loaders``."""
    try:
        setup = setup_of(args)
        counts = args.threads or tuple(n for n in THREADS if n <= (2 if setup.quick else max(2, usable_cpus())))
        with gathered("loaders", setup, {"threads": counts}) as gathering:
            points = []
            for threads in counts:
                results = measure(gathering, setup, threads, setup.batch_size)
                points.append({"threads": threads, "contenders": results})
                for name, result in results.items():
                    rate = result["images_per_s"]
                    console().print(
                        f"{threads:3} threads, {gathering.team.title(name)}: {rate['median']:,.0f} images/s "
                        f"({rate['min']:,.0f} to {rate['max']:,.0f}), "
                        f"{result['processor_ms_per_image']['median']:.2f} ms of processor per image, "
                        f"main thread {result['main_thread_us_per_batch']['median']:,.0f} µs per batch"
                    )
            record = {**gathering.finished(), "points": points}
            right = gathering.all_right
    except (ValueError, FileNotFoundError) as error:
        return refuse(error)
    if args.json:
        console().print(f"figures: {write_json(args.json, record)}")
    return 0 if right else 1
