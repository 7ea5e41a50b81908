"""The table of probes, which touch tensors made from images, and how they run."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torchvision.transforms as v1
from photos import MEAN, STD
from PIL import Image
from torchvision.transforms import v2

from .outcomes import described, raised
from .programs import Counting

SIZE = 48
FILES = ("420.jpg", "444.jpg", "large.jpg")
KINDS: dict[str, Callable[[Image.Image], torch.Tensor]] = {
    "floats": v1.Compose(
        [v1.RandomResizedCrop(SIZE), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)]
    ),
    "bytes": v1.Compose([v1.RandomResizedCrop(SIZE), v1.PILToTensor()]),
    "image": v2.Compose(
        [v2.RandomResizedCrop(SIZE), v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    ),
}


@dataclass(frozen=True)
class Probe:
    """A way of touching a tensor.

    Attributes:
        name: A unique one.
        run: Gets the tensor, and :class:`Maker` if it takes two arguments; returns what it has seen.
        alone: Whether it may change what is possible in its process, which then runs nothing else.
        slow: Whether it takes long.
        forks: Whether it calls ``os.fork``, which runs our code in the child, with torch's loader too.
    """

    name: str
    run: Callable[..., Any]
    alone: bool = False
    slow: bool = False
    forks: bool = False


PROBES: dict[str, Probe] = {}


def probe(run: Callable[..., Any] | None = None, **how: bool) -> Any:
    """Enter a function into the table."""
    if run is None:
        return lambda run: probe(run, **how)
    enter(run.__name__, run, **how)
    return run


def enter(name: str, run: Callable[..., Any], **how: bool) -> None:
    assert name not in PROBES, name
    PROBES[name] = Probe(name, run, **how)


def enter_all(runs: dict[str, Callable[..., Any]], **how: bool) -> None:
    for name, run in runs.items():
        enter(name, run, **how)


class Maker:
    """Makes tensors, and keeps them to be sent once the probe has been.

    Attributes:
        made: The tensors. A probe clears it if it must hold the only reference.
        stock: Tensors that were made before, in another context.
    """

    def __init__(self, kind: str, folder: Path, file: str) -> None:
        self.kind = kind
        self.folder = folder
        self.file = file
        self.made: list[torch.Tensor] = []
        self.stock: list[torch.Tensor] = []

    def image(self) -> Image.Image:
        return Image.open(self.folder / self.file).convert("RGB")

    def __call__(self, kind: str | None = None) -> torch.Tensor:
        if self.stock and kind is None:
            return self.stock.pop()
        x = KINDS[kind or self.kind](self.image())
        self.made.append(x)
        return x

    def left(self) -> list[torch.Tensor]:
        """Return tensors that workers can send."""
        return [x for x in self.made if x.is_leaf and not x.is_meta and x.layout == torch.strided]


def _here(run: Callable[[], Any]) -> Any:
    return run()


def in_thread(run: Callable[[], Any]) -> Any:
    """Run a function in a new thread; return its result, or the error."""
    results: list[Any] = []

    def target() -> None:
        try:
            results.append(run())
        except Exception as error:
            results.append(raised(error))

    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    return results[0]


def in_child(run: Callable[[], Any]) -> Any:
    """Run a function in a forked child; return its described result, or its end."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(readable)
            try:
                value = described(run())
            except Exception as error:
                value = raised(error)
            with open(writable, "wb") as file:
                file.write(pickle.dumps(value))
            code = 0
        finally:
            os._exit(code)
    os.close(writable)
    with open(readable, "rb") as file:
        data = file.read()
    _, status = os.waitpid(child, 0)
    return pickle.loads(data) if status == 0 else f"the child ended by {status}"


def _disabled(run: Callable[[], Any]) -> Any:
    with torch._C.DisableTorchFunction():
        return run()


def _disabled_for_subclasses(run: Callable[[], Any]) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return run()


def _in_mode(run: Callable[[], Any]) -> Any:
    with Counting():
        return run()


def _in_inference(run: Callable[[], Any]) -> Any:
    with torch.inference_mode():
        return run()


def _traced(run: Callable[[], Any]) -> Any:
    lines = []

    def trace(frame: Any, event: str, argument: Any) -> Any:
        lines.append(frame.f_lineno)
        return trace if "/deferred/" in frame.f_code.co_filename else None

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        return run()
    finally:
        sys.settrace(former)


WAYS: dict[str, Callable[[Callable[[], Any]], Any]] = {
    "here": _here,
    "in a thread": in_thread,
    "in a forked child": in_child,
    "with functions disabled": _disabled,
    "with functions disabled for subclasses": _disabled_for_subclasses,
    "in a mode": _in_mode,
    "in inference mode": _in_inference,
    "traced": _traced,
}
"""Contexts in which a probe touches tensors that were made before."""


@dataclass(frozen=True)
class Trial:
    """A probe in a context, with a kind of tensor."""

    probe: str
    way: str = "here"
    kind: str = "floats"

    def __str__(self) -> str:
        return f"{self.probe}, {self.way}, with {self.kind}"


class Trials:
    """Runs trials by their numbers. The module of the probes is imported where they run."""

    def __init__(self, trials: Sequence[Trial], folder: Path) -> None:
        self.trials = trials
        self.folder = folder

    def __call__(self, number: int) -> Any:
        from . import probes  # noqa: F401  # fills the table

        trial = self.trials[number]
        make = Maker(trial.kind, self.folder, FILES[sum(map(ord, trial.probe)) % len(FILES)])
        if trial.way != "here":
            make.stock += [make() for _ in range(3)]
        run = PROBES[trial.probe].run
        takes_maker = "make" in getattr(getattr(run, "__code__", None), "co_varnames", ())
        try:
            value = WAYS[trial.way](lambda: run(make(), make) if takes_maker else run(make()))
            seen = described(value)
        except Exception as error:
            seen = raised(error)
        left = make.left()
        return {"seen": seen, "versions": [x._version for x in left if not x.is_inference()], "left": left}
