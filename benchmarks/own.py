"""Measure programs with a dataset of their author's own: ``python -m benchmarks own``.

* ``python``: images/s that the program's Python alone allows, in so many processes, and in two. Each calls the
  dataset's ``__getitem__`` with deferred tensors and drops the samples, so that no pixel is made and nothing is sent.
* ``loader``: images/s of FastLoader with ``deferred=True`` and ``False`` and of torch's DataLoader, in turn, after the
  batches were compared with torch's, bit for bit. With a GPU all bring their batches there. Each turn is an epoch whose
  length is chosen by the loader's speed.
* ``step``: a training step fed by both FastLoaders beside the same step with its data on the GPU already, in turn.

``python`` is skipped where tensors cannot be deferred; ``step`` without a GPU, unless the run is quick. For few cores:
``taskset -c 0-1 python -m benchmarks own --parts python,step --threads 2``.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import multiprocessing
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils.data import DataLoader

from benchmarks._peers import prepared
from benchmarks._recipes import ELSEWHERE, OWN, Source, TrainingRecipe
from benchmarks.commands import OWN_PARTS
from benchmarks.contenders import ceiling
from benchmarks.contenders._job import Job
from benchmarks.recipes import choose, to_gpu, where
from fastload import FastLoader, verify
from fastload._arguments import check_names
from fastload.bench._compare import lengthen, race
from fastload.bench._data import ENDLESS, EndlessDraws, check_shared_memory
from fastload.bench._steps import TrainingStep, check_model, fixed_shapes, time_steps, whole_bursts
from fastload.measurement.clock import clock_for
from fastload.measurement.console import console
from fastload.measurement.record import Spread, environment, interleave, ratio, save
from fastload.torch_workers.processes import forking_workers
from fastload.workers.start import install_lazy_images

DEFERRED: Final = {"deferred=False": False, "deferred=True": True}
"""Both FastLoaders by name."""

ALONE: Final = OWN[:3]  # of `python`; the fourth reads pixels
TRAINED: Final = OWN[:2]
FEW: Final = 2  # processes of `python`, beside --threads
IDLE_S: Final = 120.0  # after which a process of `python` ends by itself

Keep = Callable[[dict[str, Any]], object]


class Alone:
    """Makes samples of which no pixel is read, in a process of its own.

    Args:
        datasets: Datasets by the recipes' names.
        batch_size: Number of samples that are kept until the next ones.
    """

    def __init__(self, datasets: dict[str, Any], batch_size: int) -> None:
        self._datasets, self._batch_size = datasets, batch_size
        self._deferral: Any = install_lazy_images(deferred=True)

    @property
    def can_defer(self) -> bool:
        """Whether tensors can be deferred here."""
        return self._deferral is not None

    def turn(self, name: str, seconds: float) -> tuple[float, float, int]:
        """Return images/s, deferred tensors per image, and how often pixels were read."""
        dataset = self._datasets[name]
        order = torch.randint(len(dataset), (1 << 16,)).tolist()
        begin, images = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            with self._deferral:
                samples = [dataset[order[(images + place) % len(order)]] for place in range(self._batch_size)]
            images += len(samples)
            del samples
        rate = images / (time.perf_counter() - begin)
        deferred, looks, _ = self._deferral.take_counts()
        return rate, deferred / images, looks


def _serve(pipe: Any, datasets: dict[str, Any], args: argparse.Namespace) -> None:
    """Answer each name with a turn."""
    torch.set_num_threads(1)
    torch.manual_seed(os.getpid())
    alone = Alone(datasets, args.batch_size)
    pipe.send(alone.can_defer)
    while pipe.poll(IDLE_S):
        pipe.send(alone.turn(pipe.recv(), args.turn_seconds))


@contextlib.contextmanager
def processes(count: int, *arguments: Any) -> Iterator[list[Any]]:
    """Fork processes that serve, as torch does its workers; yield a pipe to each.

    Raises:
        RuntimeError: One has ended.
    """
    context = multiprocessing.get_context("fork")
    running: list[tuple[Any, Any]] = []
    try:
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, *arguments), daemon=True)
            with forking_workers():
                process.start()
            theirs.close()  # before the next fork, so that the pipe ends with its process
            running.append((process, ours))
        yield [ours for _, ours in running]
    except (EOFError, ConnectionError) as error:
        raise RuntimeError("a process of 'python' ended early; what it wrote stands above") from error
    finally:
        for process, ours in running:
            process.kill()
            process.join()
            process.close()
            ours.close()


def python(args: argparse.Namespace, source: Source, recipes: Sequence[TrainingRecipe], keep: Keep) -> dict[str, Any]:
    """Measure what the Python of datasets allows, by the number of processes."""
    datasets = {recipe.name: recipe.arguments(source)["dataset"] for recipe in recipes if recipe in ALONE}
    result: dict[str, Any] = {"processes": {}}
    for count in sorted({FEW, args.threads}):
        if _late(args):
            break
        found: dict[str, dict[str, list[float]]] = {
            name: {"images_per_s": [], "deferred_per_image": [], "looks": []} for name in datasets
        }
        with processes(count, datasets, args) as pipes:
            if not all(pipe.recv() for pipe in pipes):
                return {"skipped": "tensors cannot be deferred here: there are no guard pages"}
            for number in range(args.repeats + 1):
                for name, of in found.items():
                    for pipe in pipes:
                        pipe.send(name)
                    rates, shares, looks = zip(*(pipe.recv() for pipe in pipes), strict=True)
                    if number:  # the first warms up
                        of["images_per_s"].append(sum(rates))
                        of["deferred_per_image"].append(sum(shares) / count)
                        of["looks"].append(sum(looks))
        result["processes"][str(count)] = {
            name: {figure: Spread.of(values).record() for figure, values in of.items()} for name, of in found.items()
        }
        keep(result)
    return result


def loader(args: argparse.Namespace, source: Source, recipes: Sequence[TrainingRecipe], keep: Keep) -> dict[str, Any]:
    """Measure the loaders alone, recipe by recipe."""
    result: dict[str, Any] = {"rows": []}
    for recipe in recipes:
        if _late(args):
            break
        try:
            row = measure(args, recipe, source)
        except Exception as error:  # noqa: BLE001 - one recipe's end does not end the others
            row = {"failed": f"{type(error).__name__}: {error}"}
        result["rows"].append({"recipe": recipe.name, "what": recipe.what, **row})
        console().print(_line(result["rows"][-1]), markup=False)
        keep(result)
    return result


def measure(args: argparse.Namespace, recipe: TrainingRecipe, source: Source) -> dict[str, Any]:
    """Compare, then time one recipe."""
    if recipe.needs is not None and importlib.util.find_spec(recipe.needs) is None:
        return {"skipped": f"{recipe.needs} is not installed"}
    on_gpu = torch.cuda.is_available()
    given = {"batch_size": args.batch_size, "num_workers": args.threads, "pin_memory": on_gpu}
    given |= {"persistent_workers": True, **recipe.arguments(source)}
    for deferred in DEFERRED.values():
        make = functools.partial(FastLoader, **given, deferred=deferred)
        if not (same := verify(make, batches=max(4, args.threads))):
            return {"same": False, "difference": f"with deferred={deferred} {same}"}
    receive = {"torch": to_gpu} if on_gpu else {}
    # Indices of each loader's epochs, at first a batch of each worker; a stream has an epoch of its own.
    first = range(args.batch_size * args.threads if given.pop("shuffle", False) else 0)
    orders = {name: [index % source.images for index in first] for name in ("torch", *DEFERRED)}

    def opened(name: str) -> Any:
        sampled = {**given, "sampler": orders[name]} if first else given
        return DataLoader(**sampled) if name == "torch" else FastLoader(**sampled, deferred=DEFERRED[name])

    loaders = {name: opened(name) for name in orders}
    try:
        lengthen(loaders, orders, args.turn_seconds, receive)
        images = {name: len(order) or source.images for name, order in orders.items()}
        ours = loaders["deferred=True"]
        before = ours.stats()
        speeds = race(loaders, images, args.repeats, receive)
        stats, plan, raced = ours.stats(), ours.plan, images["deferred=True"] * (args.repeats + 1)
    finally:
        for name in DEFERRED:
            loaders[name].close()
    return {
        "same": True,
        "engine": plan.engine,
        "where": where(plan),
        "images": images,
        "images_per_s": {name: spread.record() for name, spread in speeds.items()},
        "speedup": ratio(speeds["deferred=True"], speeds["torch"]).record(),
        "over_undeferred": ratio(speeds["deferred=True"], speeds["deferred=False"]).record(),
        "deferred_per_image": (stats.deferred_images - before.deferred_images) / raced,
        "looks": stats.looks - before.looks,
        "looks_at": list(stats.fetch.looks_at),
    }


def step(args: argparse.Namespace, source: Source, recipes: Sequence[TrainingRecipe], keep: Keep) -> dict[str, Any]:
    """Train from own datasets and from data on the device, in turn."""
    if not torch.cuda.is_available() and not args.quick:
        return {"skipped": "torch finds no CUDA device here"}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size = {"threads": args.threads, "batch_size": args.step_batch_size}
    resident = ceiling.open_feed(Job(data=str(source.folder), device=device.type, **size), "").batches
    train = TrainingStep(args.model, device, channels_last=device.type == "cuda")
    clock, steps = clock_for(device), whole_bursts(args.steps, args.threads)
    result: dict[str, Any] = {"model": args.model, "steps": steps, "batch_size": args.step_batch_size, "recipes": {}}
    for recipe in recipes:
        if recipe not in TRAINED or _late(args):
            continue
        dataset = recipe.arguments(source)["dataset"]
        draws = EndlessDraws(range(len(dataset)), ENDLESS)
        given = {"batch_size": args.step_batch_size, "num_workers": args.threads, "sampler": draws, "device": device}
        loaders = {name: FastLoader(dataset, **given, deferred=deferred) for name, deferred in DEFERRED.items()}
        feeds = {"resident": resident, **{name: _pairs(loader) for name, loader in loaders.items()}}

        def ms(name: str, feeds: dict[str, Any] = feeds) -> float:
            times = time_steps(feeds[name], train, clock, steps, warm=2 * args.threads + 4)  # what was ready is used up
            return float(1e3 * times.seconds / steps)

        turns = {name: functools.partial(ms, name) for name in feeds}
        try:
            with fixed_shapes():
                interleave(turns, 1)
                taken = interleave(turns, args.repeats)
            stats = loaders["deferred=True"].stats()
        finally:
            for each in loaders.values():
                each.close()
        result["recipes"][recipe.name] = {
            "ms_per_step": {name: spread.record() for name, spread in taken.items()},
            "share_of_ceiling": {name: ratio(taken["resident"], taken[name]).record() for name in loaders},
            "deferred_per_image": stats.deferred_images / max(1, stats.images),
        }
        keep(result)
    return result


def _pairs(batches: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for batch in batches:
        yield batch["pixel_values"], batch["label"]


def _late(args: argparse.Namespace) -> bool:
    return args.deadline is not None and time.monotonic() > args.deadline


def _line(row: dict[str, Any]) -> str:
    if "speedup" not in row:
        return f"{row['recipe']}: {row.get('skipped') or row.get('failed') or row['difference']}"
    speed = ", ".join(f"{name} {of['median']:,.0f}" for name, of in row["images_per_s"].items())
    deferred = f"{row['deferred_per_image']:.2f} deferred tensors an image, {row['looks']} looks"
    return f"{row['recipe']}: images/s {speed}; {row['speedup']['median']:.2f}× torch, {deferred}"


def describe(part: str, result: dict[str, Any]) -> str:
    """A part's figures in words."""
    if reason := result.get("skipped") or result.get("failed"):
        return f"{part}: not measured, {reason}"
    if part == "python":
        return "\n".join(
            f"Python alone, {count} processes: "
            + ", ".join(f"{name} {of['images_per_s']['median']:,.0f} images/s" for name, of in by.items())
            for count, by in result["processes"].items()
        )
    if part == "step":
        return "\n".join(
            f"{result['model']} from {name}, share of the ceiling: "
            + ", ".join(f"{who} {share['median']:.1%}" for who, share in of["share_of_ceiling"].items())
            for name, of in result["recipes"].items()
        )
    return f"loader: {len(result['rows'])} recipes"


def main(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks own``; 1 if batches differ from torch's or a part fails."""
    args.deadline = None if args.seconds is None else time.monotonic() + args.seconds
    parts = args.parts.split(",")
    check_names("--parts", parts, OWN_PARTS)
    check_model(args.model)
    recipes = choose((*OWN, *ELSEWHERE), args.only)
    check_shared_memory(args.threads, 4 * args.batch_size)  # DINOv2's views
    folder, described = prepared(args.data, quick=args.quick)
    sizes = ("images", "batch_size", "threads", "turn_seconds", "repeats", "model", "step_batch_size", "steps")
    parameters = {name: getattr(args, name) for name in (*sizes, "only", "seconds", "quick")}
    record: dict[str, Any] = {"benchmark": "own", "environment": environment(), "dataset": described}
    record |= {"parameters": {**parameters, "parts": parts}, "complete": False}
    torch.set_num_threads(1)

    def keep(part: str, result: dict[str, Any]) -> None:
        record[part] = result
        save(args.json, record)

    with tempfile.TemporaryDirectory(prefix="fastload-own-") as scratch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")  # fewer cores than workers
        source = Source(Path(folder), args.images, Path(scratch), args.batch_size, args.threads)
        for part in parts:
            run = {"python": python, "loader": loader, "step": step}[part]
            try:
                result = run(args, source, recipes, functools.partial(keep, part))
            except (ValueError, RuntimeError, ImportError) as error:
                result = {"failed": f"{type(error).__name__}: {error}"}
            console().print(describe(part, result), markup=False)
            keep(part, result)
    record["complete"] = True
    save(args.json, record)
    rows = record.get("loader", {}).get("rows", [])
    return int(
        any("failed" in record[part] for part in parts)
        or any("failed" in row or not row.get("same", True) for row in rows)
    )
