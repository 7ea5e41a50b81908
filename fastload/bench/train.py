"""Training fed by each loader, as a share of the step with its data on the GPU already: ``fastload bench train``.

bf16 autocast, SGD, channels_last. Times are those of the GPU's clock between the ends of steps. ``--cores`` limits a
contender and all that it starts to so many cores, with as many threads; ``--threads`` leaves it all cores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastload._machine import usable_cpus
from fastload.bench._measure import Spread, ratio, write_json
from fastload.bench._peers import add_peer_arguments, gathered, numbers, setup_of, spread_of, take_turns
from fastload.bench._show import console, refuse
from fastload.bench._steps import VIT_S, check_model
from fastload.bench.contenders._job import Job
from fastload.bench.contenders._remote import ContenderError

if TYPE_CHECKING:
    import argparse

    from fastload.bench._peers import Gathering, Setup

MODELS = ("resnet50", "resnet18", VIT_S)
CEILING = "ceiling"


def measure(gathering: Gathering, setup: Setup, model: str, threads: int, steps: int) -> dict[str, Any]:
    """Every contender, and the ceiling, with one model at one number of threads."""
    team = gathering.team
    team.open(Job(data=gathering.folder, threads=threads, batch_size=setup.batch_size, device=setup.device))
    counted = -(-steps // threads) * threads  # workers' batches come in bursts of as many
    for remote in team.present:
        try:
            with remote.turn():
                remote.ask("train", model=model, steps=1, warm_steps=2 * threads + 4)
        except ContenderError as error:
            team.drop(remote, str(error))
    answers = take_turns(
        team.present,
        lambda remote: remote.ask("train", model=model, steps=counted, warm_steps=max(3, threads // 2)),
        setup.repeats,
    )
    team.close_feeds()
    rates = {
        name: Spread.of([answer["images"] / answer["seconds"] for answer in turns]) for name, turns in answers.items()
    }
    results = {}
    for name, turns in answers.items():
        results[name] = {
            "images_per_s": rates[name].record(),
            "wait_share": spread_of(turns, lambda a: a["wait_share"]),
            "share_of_ceiling": ratio(rates[name], rates[CEILING]).record() if CEILING in rates else None,
        }
    return results


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``fastload bench train``."""
    add_peer_arguments(parser)
    parser.add_argument("--models", help=f"torchvision's names, or {VIT_S} (default: {','.join(MODELS)})")
    parser.add_argument("--threads", type=numbers, help="threads or workers, all cores (default: 6,16)")
    parser.add_argument("--cores", type=numbers, help="cores, and as many threads: 4,8")
    parser.add_argument("--steps", type=int, help="steps per turn (default: 30)")


def main(args: argparse.Namespace) -> int:
    """Run ``fastload bench train``."""
    try:
        setup = setup_of(args)
        models = args.models.split(",") if args.models else (["resnet18"] if setup.quick else list(MODELS))
        for model in models:
            check_model(model)
        steps = args.steps if args.steps is not None else (2 if setup.quick else 30)
        if steps < 1:
            raise ValueError(f"--steps must be >= 1, got {steps}")
        points_asked = _points(args, quick=setup.quick)
        setup = _with_ceiling(setup)
        record: dict[str, Any] = {}
        points = []
        right = True
        for cores in sorted({cores for cores, _ in points_asked}, key=lambda n: n or 1 << 20):
            limited = _limited(setup, cores)
            with gathered("train", limited, {"models": models, "steps": steps, "autocast": "bfloat16"}) as gathering:
                for model in models:
                    for threads in (t for c, t in points_asked if c == cores):
                        results = measure(gathering, limited, model, threads, steps)
                        points.append({"model": model, "cores": cores, "threads": threads, "contenders": results})
                        _show(gathering, model, cores, threads, results)
                record = record or gathering.finished()
                right &= gathering.all_right
    except (ValueError, FileNotFoundError) as error:
        return refuse(error)
    if args.json:
        console().print(f"figures: {write_json(args.json, {**record, 'points': points})}")
    return 0 if right else 1


def _points(args: argparse.Namespace, *, quick: bool) -> list[tuple[int | None, int]]:
    """Pairs of cores (``None``: all) and threads."""
    threads = args.threads or (() if args.cores else (2,) if quick else (6, 16))
    return [(None, count) for count in threads] + [(count, count) for count in args.cores or ()]


def _with_ceiling(setup: Setup) -> Setup:
    from dataclasses import replace

    return setup if CEILING in setup.names else replace(setup, names=(*setup.names, CEILING))


def _limited(setup: Setup, cores: int | None) -> Setup:
    from dataclasses import replace

    if cores is not None and cores > usable_cpus():
        raise ValueError(f"--cores must be <= {usable_cpus()}, the cores that this process may use, got {cores}")
    return replace(setup, surroundings=replace(setup.surroundings, cores=cores))


def _show(gathering: Gathering, model: str, cores: int | None, threads: int, results: dict[str, Any]) -> None:
    where = f"{threads} threads" if cores is None else f"{cores} cores"
    for name, result in results.items():
        rate, share = result["images_per_s"], result["share_of_ceiling"]
        console().print(
            f"{model}, {where}, {gathering.team.title(name)}: {rate['median']:,.0f} images/s"
            + ("" if share is None else f", {share['median']:.1%} of the ceiling")
            + f", GPU waited {result['wait_share']['median']:.0%}"
        )
