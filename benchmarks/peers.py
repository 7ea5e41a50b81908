"""Put several questions to the same contenders: ``python -m benchmarks peers``.

Example: ``python -m benchmarks peers --json DIR "loaders --threads 4,16" train``.

A dozen libraries are imported, and their outputs checked, once for all of them. What a question does not say it takes
from the command. Each writes a file of its own; one that is asked twice, of others or with other options, adds its
points to those that are there.
"""

from __future__ import annotations

import argparse
import copy
import shlex
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks import arguments
from benchmarks._peers import gathered
from benchmarks._setup import setup_of
from benchmarks.questions import QUESTIONS
from fastload.measurement.console import console, refuse
from fastload.measurement.record import write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from benchmarks._peers import Question

_OF_ALL = ("data", "python", "site", "quick")
_UNLESS_SAID = ("contenders", "repeats", "seconds", "batch_size", "row_seconds")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise ValueError(f"{self.prog}: {message}")


def parse(text: str, common: argparse.Namespace) -> Question:
    """A question such as ``"train --models resnet50 --cores 6"``.

    Raises:
        ValueError: It is none.
    """
    name, *options = shlex.split(text) or [""]
    if name not in QUESTIONS:
        raise ValueError(f"a question must begin with one of {', '.join(QUESTIONS)}, got {text!r}")
    parser = _Parser(prog=name, add_help=False, allow_abbrev=False)
    arguments.QUESTIONS[name](parser)
    args = parser.parse_args(options)
    if args.json or any(getattr(args, option) for option in _OF_ALL):
        raise ValueError(f"{', '.join(_OF_ALL)} and json must be said for all questions, got {text!r}")
    for option in _OF_ALL:
        setattr(args, option, getattr(common, option))
    for option in _UNLESS_SAID:
        if getattr(args, option) is None:
            setattr(args, option, getattr(common, option))
    return QUESTIONS[name].question(args, setup_of(args))


def joined(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join all answers to one question; parameters that differ appear only in the points."""
    whole = copy.deepcopy(dict(records[0]))
    for record in records[1:]:
        whole["points"] += record["points"]
        whole["complete"] &= record["complete"]
        for name, known in record["contenders"].items():  # who failed in one answer has failed
            whole["contenders"][name] = {**known, **whole["contenders"].get(name, {})}
        parameters = whole["parameters"]
        for name, value in record["parameters"].items():
            if parameters[name] != value:
                parameters[name] = None
    return whole


def _writer(path: Path | None, before: Sequence[Mapping[str, Any]]) -> Callable[[dict[str, Any]], object]:
    """Writes a record and those before it, if there is a file to write."""
    return lambda record: write_json(path, joined([*before, record])) if path else None


def main(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks peers``; ``--json`` is a folder."""
    try:
        asked = [parse(text, args) for text in args.questions or QUESTIONS]
        recipes = tuple(dict.fromkeys(question.setup.recipe for question in asked))
        names = tuple(dict.fromkeys(name for question in asked for name in question.setup.names))
        deadline = None if args.total_seconds is None else time.monotonic() + args.total_seconds
        all_right = True
        answers: dict[str, list[Mapping[str, Any]]] = {}
        with gathered(replace(asked[0].setup, names=names, recipe="crops"), recipes, deadline) as gathering:
            for text, question in zip(args.questions or QUESTIONS, asked, strict=True):
                if gathering.late():
                    console().print(f"left out, time is up: {text}", markup=False)
                    continue
                before = answers.setdefault(question.name, [])
                path = args.json / f"{question.name}.json" if args.json else None
                record, right = gathering.answer(question, _writer(path, before))
                before.append(record)
                all_right &= right
                if path:
                    console().print(f"figures: {path}")
    except (ValueError, FileNotFoundError, FileExistsError) as error:
        return refuse(error)
    return 0 if all_right else 1
