"""Processor seconds per image, and what loading takes from the thread that trains: ``python -m benchmarks cpu``.

All processes and threads of a contender are counted, at a number of threads where nobody waits for a core. The main
thread's share is what the training loop spends in ``next()``: Python, and starting copies and kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks._peers import by_threads, run
from benchmarks._setup import add_peer_arguments, add_threads_argument
from benchmarks.loaders import measure

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from benchmarks._peers import Question
    from benchmarks._setup import Setup

THREADS = (8,)


def describe(result: Mapping[str, Any]) -> str:
    """A contender's figures in words."""
    per_image, main_thread = result["processor_ms_per_image"], result["main_thread_us_per_batch"]
    return (
        f"{per_image['median']:.3f} ms of processor per image ({per_image['min']:.3f} to {per_image['max']:.3f}), "
        f"{main_thread['median']:,.0f} µs of the main thread per batch"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``python -m benchmarks cpu``."""
    add_peer_arguments(parser)
    add_threads_argument(parser, THREADS)


def question(args: argparse.Namespace, setup: Setup) -> Question:
    """What is asked."""
    return by_threads("cpu", args, setup, THREADS, measure, describe)


def main(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks cpu``."""
    return run(args, question)
