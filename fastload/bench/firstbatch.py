"""Time from making a loader to its first batch, beside its peers: ``fastload bench firstbatch``.

Libraries are imported, the GPU is ready, the list of files is known to whoever needs one; everything else that a loader
does before its first batch counts: starting processes or threads, building pipelines, FastLoader's check of its recipe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastload._machine import usable_cpus
from fastload.bench._measure import write_json
from fastload.bench._peers import add_peer_arguments, gathered, numbers, setup_of, spread_of, take_turns
from fastload.bench._show import console, refuse
from fastload.bench.contenders._job import Job

if TYPE_CHECKING:
    import argparse

    from fastload.bench._peers import Gathering, Setup
    from fastload.bench.contenders._remote import Remote

THREADS = (8,)


def measure(gathering: Gathering, setup: Setup, threads: int) -> dict[str, Any]:
    """Every contender at one number of threads; the first loader of each process is not counted."""
    job = Job(data=gathering.folder, threads=threads, batch_size=setup.batch_size, device=setup.device)

    def turn(remote: Remote) -> dict[str, Any]:
        answer = remote.ask("open", **job.record())
        remote.ask("close")
        return answer

    gathering.team.open(job)
    gathering.team.close_feeds()
    answers = take_turns(gathering.team.present, turn, setup.repeats)
    return {
        name: {
            "first_batch_s": spread_of(turns, lambda a: a["first_batch_s"]),
            "constructed_s": spread_of(turns, lambda a: a["constructed_s"]),
        }
        for name, turns in answers.items()
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``fastload bench firstbatch``."""
    add_peer_arguments(parser)
    parser.add_argument("--threads", type=numbers, help="threads or workers (default: 8)")


def main(args: argparse.Namespace) -> int:
    """Run ``fastload bench firstbatch``."""
    try:
        setup = setup_of(args)
        counts = args.threads or ((min(2, usable_cpus()),) if setup.quick else THREADS)
        with gathered("firstbatch", setup, {"threads": counts}) as gathering:
            points = []
            for threads in counts:
                results = measure(gathering, setup, threads)
                points.append({"threads": threads, "contenders": results})
                for name, result in results.items():
                    first = result["first_batch_s"]
                    console().print(
                        f"{threads:3} threads, {gathering.team.title(name)}: first batch after {first['median']:.3f} s "
                        f"({first['min']:.3f} to {first['max']:.3f})"
                    )
            record = {**gathering.finished(), "points": points}
            right = gathering.all_right
    except (ValueError, FileNotFoundError) as error:
        return refuse(error)
    if args.json:
        console().print(f"figures: {write_json(args.json, record)}")
    return 0 if right else 1
