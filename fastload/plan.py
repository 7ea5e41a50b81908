"""A loader's plan, ``print(loader.plan)``: its steps, and the reasons for anything unchanged."""

from __future__ import annotations

import inspect
import os
import textwrap
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.data import IterableDataset, Subset, default_collate, default_convert

from fastload._display import card, paragraphs, table
from fastload._result import Result
from fastload.autoscale.policy import NATIVE_STREAMS, AutoWorkers, cores_for_loading
from fastload.loader_state import state_of
from fastload.memory.limits import pinned_limit, pins, slots_wanted, unpinned_because
from fastload.options import LEVELS_OFF, can_pin, has_state, has_streams, makes_itself, resolve_device
from fastload.stats.diagnosis import at_most

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.options import LoaderConfig
    from fastload.pipeline.recipe import Recipe
    from fastload.route import Route
    from fastload.stats.stats import Stats

FOR_OPENCV: Final = "; JPEG and PNG files that cv2 reads are decoded natively"
ON_LAZY_IMAGES: Final = ", on lazy images: of a JPEG file only what is used is decoded, natively"
"""How a plan's step says that Pillow's images are lazy there."""

WIDTH: Final = 74
"""Most columns of a printed plan, as wide as a code block of the documentation."""

PLACE_MAX: Final = 24
"""Longest ``where`` that a step's ``what`` stands beside; else it stands below."""


READ_AGAIN: Final = (
    "load_state_dict() reads this IterableDataset again, up to its place, unless its iterator has a state_dict()"
)
_UNCHANGED: Final = "the dataset and its transforms run as they are: "


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a batch's processing.

    Attributes:
        name: The profile's name for the step, if the profile shows it.
        where: The process, thread or stream that it runs on.
        what: A description of the step.
    """

    name: str
    where: str
    what: str


@dataclass(frozen=True, slots=True)
class Plan(Result):
    """A loader's plan; ``str()`` formats it like a database's EXPLAIN.

    Attributes:
        engine: ``"torch"`` (the plain DataLoader, apart from lazy images), ``"workers"`` (torch's workers, FastLoader's
            device side), or ``"native"`` (decode threads; in worker processes where a ``collate_fn`` or the like runs).
        device: The device of the finished batches.
        steps: A batch's processing steps, in order.
        batch_bytes: Mean bytes per batch copied to the device so far; ``None`` before the first.
        notes: Optimizations not applied, why, and how to change that.
    """

    engine: str
    device: torch.device
    steps: tuple[Step, ...]
    batch_bytes: int | None
    notes: tuple[str, ...]

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the dataset and its transforms run unchanged: the notes on that."""
        return tuple(note.removeprefix(_UNCHANGED) for note in self.notes if note.startswith(_UNCHANGED))

    def __repr__(self) -> str:
        steps = ", ".join(step.name for step in self.steps)
        return f"Plan({self.engine!r}, batches on {self.device}: {steps}; {len(self.notes)} notes)"

    def _repr_html_(self) -> str:
        """Show the plan in a notebook."""
        steps = table(((step.name, step.where, step.what) for step in self.steps), ("step", "where", "what"))
        size = () if self.batch_bytes is None else (f"{self.batch_bytes / 1e6:,.2f} MB per batch to {self.device}",)
        notes = (f"note: {note}" for note in self.notes)
        return card(f"engine {self.engine}, batches on {self.device}", steps, paragraphs((*size, *notes)))

    def __str__(self) -> str:
        names = max(len(step.name) for step in self.steps)
        places = max(len(step.where) for step in self.steps)
        lines = [f"engine {self.engine}, batches on {self.device}"]
        for step in self.steps:
            if places <= PLACE_MAX:
                lines += _wrapped(f"  {step.name:<{names}}  {step.where:<{places}}  ", step.what)
            else:
                lines += [f"  {step.name:<{names}}  {step.where}", *_wrapped(" " * (names + 4), step.what)]
        if self.batch_bytes is not None:
            lines.append(f"  {self.batch_bytes / 1e6:,.2f} MB per batch to {self.device}")
        for note in self.notes:
            lines += _wrapped("  note: ", note)
        return "\n".join(lines)


def _wrapped(head: str, text: str) -> list[str]:
    """Lines of at most ``WIDTH`` columns, aligned behind ``head``; a longer word stays whole."""
    below = " " * len(head)
    return textwrap.wrap(
        text, WIDTH, initial_indent=head, subsequent_indent=below, break_long_words=False, break_on_hyphens=False
    ) or [head]


def make_plan(loader: LoaderConfig[Any], route: Route, stats: Stats) -> Plan:
    """Describe the epoch that ``route`` says of ``loader``."""
    plan = _plan_of(loader, route, stats)
    if loader.on_error != "raise":
        plan = replace(plan, notes=(*plan.notes, _on_error(loader, stats)))
    if (unknown := state_of(loader).not_asked_by(loader)) is None:
        return plan
    return replace(plan, notes=(*plan.notes, f"{unknown}: if it makes one itself, none of this is true of that"))


def _plan_of(loader: LoaderConfig[Any], route: Route, stats: Stats) -> Plan:
    own = state_of(loader).makes_own(loader)
    batch_bytes, device, around = _bytes_of_a_batch(stats), route.device, route.recipe
    if around is not None and (route.maker == "threads" or (route.maker == "next" and not around.in_python)):
        return _native_plan(loader, route, around, stats)
    reads = "next(dataset)" if isinstance(loader.dataset, IterableDataset) else "dataset[index]"
    workers = loader.num_workers
    place = f"{workers} worker process{'es' if workers != 1 else ''}" if workers else "main process"
    is_lazy = route.is_lazy and around is None
    lazy = (ON_LAZY_IMAGES if is_lazy else "") + (FOR_OPENCV if route.for_opencv and around is None else "")
    fetch = Step("fetch", place, f"{reads} of {type(loader.dataset).__name__}, unchanged{lazy}{_seeded(loader)}")
    of_dataset = _UNCHANGED if around is None else "decode threads of this process make no batches: "
    notes = [*(f"{of_dataset}{reason}" for reason in route.reasons), *_old_index(loader.dataset)]
    if is_lazy and route.is_deferred:
        notes.append(_deferred(loader, route, stats))
    if around is not None:
        threads = f"{place}, a decode thread each" if workers else f"{cores_for_loading()} decode threads, in next()"
        fetch = Step("decode", threads, f"{_decodes(loader, around)}, then {_becomes(around)}")
        beside = around.in_python or ("worker_init_fn",)
        notes.append(f"run in Python, beside samples made natively: {', '.join(beside)}")
        if (why := state_of(loader).refused_in_workers) is not None:
            notes.append(f"of late workers have made samples as torch does, for {why}")
    if isinstance(loader.dataset, IterableDataset) and not has_state(loader.dataset) and not own:
        notes.append(READ_AGAIN)
    steps = [fetch, Step("collate", place, _name_of(loader.collate_fn))]
    if isinstance(workers, AutoWorkers):
        notes.append(f"num_workers='auto': {workers.sizing.why}")
    if device.type == "cpu":
        if loader.copies_own_batches and has_streams(target := resolve_device(loader.device)):
            return _own_batches_plan(loader, target, steps, notes, batch_bytes)
        if own:
            notes.append(
                f"this loader makes its iterator itself: {makes_itself(loader)}, whose batches stay in host memory; "
                "fastload.prefetch_to_device(loader) moves them"
            )
        elif loader.device == "auto":
            this = "" if lazy else "this is torch's DataLoader, "
            notes.append(f"no accelerator here: {this}batches stay in host memory")
        if not workers and around is None:
            notes.append("num_workers=0: the main process loads between steps; num_workers >= 1 loads beside them")
        if loader.pin_memory and can_pin():
            where = "pin-memory thread" if workers else "main process"
            steps.append(Step("pin", where, "page-locked copy, as pin_memory=True asks"))
        casts = loader.dtype is not None and not own
        if casts:
            steps.append(Step("epilogue", "main process", _epilogue(loader, device)))
        return Plan(route.engine, device, tuple(steps), batch_bytes, tuple(notes))
    streams = has_streams(device)
    if route.no_slots is None:
        into = "stacked into" if loader.collate_fn is default_collate else "packed into"
        size = f"{stats.slots} × {stats.slot_bytes / 1e6:,.2f} MB" if stats.slots else f"up to {slots_wanted(loader)}"
        limit = f"{stats.pinned_bytes / 1e6:,.1f} of at most {pinned_limit(loader) / 1e6:,.0f} MB pinned"
        steps.append(Step("slots", place, f"{into} pinned shared slots: {size}, {limit}"))
        notes += [f"{count} batches took torch's ordinary path: {why}" for why, count in stats.missed.items()]
    elif pins(loader, device):
        notes.append(f"no slots: {route.no_slots}")
        steps.append(Step("pin", "pin-memory thread" if workers else "main process", "page-locked copy"))
    else:
        notes.append(f"no pinned memory ({unpinned_because(loader, device)}): copies are slower and hold the host")
    if streams and loader.device_prefetch:
        ahead = f"up to {loader.device_prefetch} batch{'es' if loader.device_prefetch > 1 else ''} ahead"
        if not workers:
            ahead = "when the batch has been loaded"
            notes.append("num_workers=0: the main process loads between steps; num_workers >= 1 loads beside them")
        elif not pins(loader, device):
            ahead = "when the consumer asks"
        steps.append(Step("h2d", "copy stream", ahead))
        where = "copy stream"
    else:
        steps.append(Step("h2d", "consumer's stream", "when the consumer asks"))
        if streams:
            notes.append("device_prefetch=0: copies wait for the step before them; 1 or more runs them beside it")
        where = "consumer's stream"
    if epilogue := _epilogue(loader, device):
        steps.append(Step("epilogue", where, epilogue))
    return Plan(route.engine, device, tuple(steps), batch_bytes, tuple(notes))


def _own_batches_plan(
    loader: LoaderConfig[Any], device: torch.device, steps: list[Step], notes: list[str], batch_bytes: int | None
) -> Plan:
    """The plan of a loader whose own iterators' batches are copied under ``fastload run``."""
    if pins(loader, device):
        threaded = loader.pin_memory and loader.num_workers
        steps.append(Step("pin", "pin-memory thread" if threaded else "main process", "page-locked copy"))
    where = "copy stream" if loader.device_prefetch else "consumer's stream"
    steps.append(Step("h2d", where, "when the consumer asks"))
    if epilogue := _epilogue(loader, device):
        steps.append(Step("epilogue", where, epilogue))
    notes.append(
        f"this loader makes its iterator itself: {makes_itself(loader)}; no batch is read ahead of the consumer, so "
        "that its state_dict() is as of the last batch handed over"
    )
    return Plan("torch", device, tuple(steps), batch_bytes, tuple(notes))


def _bytes_of_a_batch(stats: Stats) -> int | None:
    return stats.device_bytes // stats.copied if stats.copied else None


def _native_plan(loader: LoaderConfig[Any], route: Route, recipe: Recipe, stats: Stats) -> Plan:
    batch_bytes, device = _bytes_of_a_batch(stats), route.device
    workers = loader.num_workers
    count = workers or cores_for_loading()
    threads = f"{count} decode thread{'s' if count != 1 else ''}{'' if workers else ', in next()'}"
    if isinstance(workers, AutoWorkers):
        threads = f"1 to {cores_for_loading()} decode threads"
    steps = [Step("decode", threads, _decodes(loader, recipe) + _indexed(loader, recipe))]
    table, becomes = recipe.pipeline.table, _becomes(recipe)
    place = "a process of their own" if workers else "the main process"
    notes = _old_index(loader.dataset)
    if not recipe.in_memory:
        notes.append(f"files that threads do not take (CMYK, damaged) go through the transforms, in {place}")
    if recipe.first_call is not None:
        notes.append("random draws start from the states that worker_init_fn seeds")
    if not workers:
        notes.append("num_workers=0: batches are made between steps; num_workers >= 1 makes them beside the steps")
    if (approximate := recipe.pipeline.approximate) is not None:
        notes.append(f"exact=False: {approximate} is approximate, at most {LEVELS_OFF} of 256 levels off torchvision's")
    if isinstance(workers, AutoWorkers):
        now = "" if workers.sizing.threads is None else f", {workers.sizing.threads} of late"
        streams = f"random draws are those of {NATIVE_STREAMS} workers"
        notes.append(f"num_workers='auto': as many threads as keep the consumer fed{now}; {streams}")
    if device.type == "cpu":
        cast = f", {_epilogue(loader, device)}" if loader.dtype is not None else ""
        steps.append(Step("epilogue", threads, becomes + cast))
        return Plan("native", device, tuple(steps), batch_bytes, tuple(notes))
    if table is not None:
        from fastload.device import nvrtc

        if (why := nvrtc.lacking(device, table.dtype, len(table))) is not None:
            notes.append(f"torch looks values up instead of one CUDA kernel, same bits but slower: {why}")
    notes.append(_decoded_on_gpu(loader, route, stats))
    where = "copy stream" if loader.device_prefetch else "consumer's stream"
    memory = "pinned memory" if pins(loader, device) else "pageable memory"
    erasing = recipe.pipeline.erasing
    values = ", and values of erased boxes" if erasing is not None and erasing.color is None else ""
    steps.append(Step("h2d", where, f"uint8{values}, from {memory}"))
    steps.append(Step("epilogue", where, ", ".join(part for part in (becomes, _epilogue(loader, device)) if part)))
    return Plan("native", device, tuple(steps), batch_bytes, tuple(notes))


def _decodes(loader: LoaderConfig[Any], recipe: Recipe) -> str:
    counts = Counter(recipe.pipeline.sizes)
    sizes = ", ".join(
        f"{height}x{width}" + (f" ({count} views)" if len(counts) > 1 else "")
        for (height, width), count in counts.items()
    )
    names = ", ".join(recipe.pipeline.names)
    names += " (with torch's arithmetic for tensors)" if recipe.pipeline.resizes_tensors else ""
    if (views := recipe.pipeline.views) > 1:
        what = "images of each sample" if recipe.images > 1 else "views of each"
        names = f"{views} {what}, in all {names}"
    from fastload.pipeline.installed.decodes import calibrate  # imports Pillow's plugins

    formats = ["JPEG", *sorted({name.split()[0] for name in calibrate().formats})]
    source = "arrays" if recipe.in_memory else f"{', '.join(formats)} files"
    return f"{source} to {sizes} pixels, uint8: {names}{_seeded(loader)}"


def _indexed(loader: LoaderConfig[Any], recipe: Recipe) -> str:
    if recipe.in_memory or not loader.max_index_bytes:
        return ""
    most = f"at most {loader.max_index_bytes / 1e6:.0f} MB"
    return f"; an index of {most} says where to begin in files decoded before"


def _old_index(dataset: Any) -> list[str]:
    """Name a file that earlier versions took from the dataset's root."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    root = inspect.getattr_static(dataset, "root", None)  # runs nothing of the user's
    path = os.path.join(root, "fastload.index") if isinstance(root, str | Path) else ""
    return [f"{path} is not used any more, and may be deleted"] if os.path.isfile(path) else []


def _decoded_on_gpu(loader: LoaderConfig[Any], route: Route, stats: Stats) -> str:
    if loader.decode == "cpu":
        return "decode='cpu': decode threads decode every image"
    state, device = state_of(loader), route.device
    if (why := route.not_on_gpu or state.not_decoding_because(device)) is not None:
        return f"decode threads decode every image: {why}"
    what = "JPEG files, and transforms their images"
    when = "the GPU decodes" if loader.decode == "gpu" else "the GPU decodes, where that makes the loop faster,"
    made = {"the GPU": stats.gpu_images, "threads": stats.thread_images, "Python": stats.python_images}
    counts = ", ".join(f"{count:,} by {who}" for who, count in made.items() if count)
    so_far = f"; images so far: {counts}" if counts else ""
    if stats.kept_images:
        so_far += f"; {stats.kept_images:,} files were in the GPU's memory, and not read"
    if state.compiles(device):
        so_far += "; now threads decode, as the GPU's kernels are being compiled"
    elif (policy := state.decode_policies.get(device)) is not None and stats.images:
        side = "the GPU decodes" if policy.on_gpu else "threads decode"
        so_far += f"; now {side}, as {policy.why}"
    return f"{when} {what}{so_far}"


def _deferred(loader: LoaderConfig[Any], route: Route, stats: Stats) -> str:
    """How pixels of deferred images are made, and what looked at them before."""
    why_not = route.no_slots or route.not_on_gpu or state_of(loader).not_decoding_because(route.device)
    painter = "the GPU, from slots, makes" if route.device.type == "cuda" and why_not is None else "the workers make"
    said = f"deferred: {painter} the pixels when a batch is sent"
    if stats.deferred_images:
        said += (
            f"; so far of {stats.deferred_images:,} images, which the program looked at {stats.looks:,} times before"
        )
    return said + at_most(stats.fetch.looks_at)


def _becomes(recipe: Recipe) -> str:
    """What images become of their pixels."""
    table, erasing = recipe.pipeline.table, recipe.pipeline.erasing
    steps = ", ".join(type(step).__name__ for step in recipe.pipeline.tensor)
    becomes = "as uint8" if table is None else f"{steps}, by a table of {str(table.dtype).removeprefix('torch.')}"
    if erasing is None:
        return becomes
    values = "" if erasing.color is not None else " with values made by torch"
    return f"{becomes}, then {type(erasing.step).__name__}{values}"


def _on_error(loader: LoaderConfig[Any], stats: Stats) -> str:
    left = "left out of their batches" if loader.on_error == "skip" else "replaced by the next that work"
    most = f"{loader.max_errors:.3g} of all" if isinstance(loader.max_errors, float) else f"{loader.max_errors:,}"
    return f"on_error={loader.on_error!r}: samples that raise are {left}, at most {most}; {stats.errors:,} so far"


def _seeded(loader: LoaderConfig[Any]) -> str:
    return "" if loader.randomness == "worker" else "; random draws by (seed, epoch, index)"


def _epilogue(loader: LoaderConfig[Any], device: torch.device) -> str:
    parts = []
    if loader.dtype is not None:
        parts.append(f"floating-point tensors to {str(loader.dtype).removeprefix('torch.')}")
    if loader.memory_format not in (None, torch.preserve_format) and device.type != "cpu":
        parts.append(f"4-D images to {str(loader.memory_format).removeprefix('torch.')}")
    return ", ".join(parts)


def _name_of(collate_fn: Callable[[Any], Any]) -> str:
    if collate_fn is default_collate:
        return "default_collate"
    if collate_fn is default_convert:
        return "no batching: tensors from arrays and numbers"
    return f"{getattr(collate_fn, '__qualname__', type(collate_fn).__name__)}, unchanged"
