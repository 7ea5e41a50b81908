"""The ladder as a picture: the reference run and ours, rung by rung."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

REFERENCE_NAME = "reference run: one V100, 2021"
REFERENCE_RATES = (450, 690, 850, 950, 1070, 1090)
REFERENCE_BUSY = (0.50, 0.90, 0.68, 0.83, 0.94, 0.96)
"""The classic sequence of optimizations of a ResNet-50 run, rungs 1 to 6: images/s and GPU utilization."""

_STEPS = (
    "few\nworkers",
    "more\nworkers",
    "channels_\nlast",
    "more workers\nagain",
    "pinned\nmemory",
    "side stream,\n1 ahead",
    "pinned\nslots",
    "native\nengine",
)
_CEILING_NAME = "ceiling\ndata on\nthe GPU"
_INK = "#222222"
_MUTED = "#8d99a6"
_OURS = "#2a7f62"
_CEILING = "#d9a441"


@dataclass(frozen=True, slots=True)
class _Bar:
    name: str
    rate: float | None
    busy: float | None = None
    workers: int | None = None
    missing: str = ""


def draw(record: Mapping[str, Any], path: str | Path) -> None:
    """Draw a ladder's JSON record beside the reference run.

    Both panels have the same rungs and an axis of their own, from zero: what compares is the shape of the climb. Above
    a bar stand images/s and how many times rung 1 they are, below it the share of the time that the GPU was busy.

    Args:
        record: What ``fastload bench ladder --json`` writes.
        path: The picture; its suffix names the format (``.png``, ``.svg`` ...).
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 6), dpi=120, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(6, 9))
    _panel(left, REFERENCE_NAME, [_Bar(*row) for row in zip(_STEPS, REFERENCE_RATES, REFERENCE_BUSY, strict=False)])

    measured = {rung["number"]: rung for rung in record["rungs"]}
    reasons = {skip["number"]: skip["reason"] for skip in record["skipped"]}
    bars = []
    for number, name in [*enumerate(_STEPS, start=1), (0, _CEILING_NAME)]:
        if number in measured:
            rung = measured[number]
            bars.append(_Bar(name, rung["images_per_s"]["median"], rung["gpu_busy_share"], rung["workers"]))
        else:
            bars.append(_Bar(name, None, missing=reasons.get(number, "not measured")))
    environment, parameters = record["environment"], record["parameters"]
    cores = f"{environment['usable_cpus']} CPU cores"
    machine = f"{environment['gpu']}, {cores}" if record["trained"] and environment["gpu"] else cores
    _panel(right, f"this run: {machine}", bars, color=_OURS)

    title = f"Training {parameters['model']}, bf16, batch {parameters['batch_size']}"
    if not record["trained"]:
        title = "The loader alone"
    title += ": each rung keeps what the one before it has"
    note = "(number of workers)  ·  busy: share of the time in which the GPU ran a kernel"
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, color=_INK)
    figure.supxlabel(note, x=0.01, ha="left", fontsize=9, color=_MUTED)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(str(path))


def _panel(axes: Any, title: str, bars: Sequence[_Bar], color: str = _MUTED) -> None:
    from matplotlib.ticker import StrMethodFormatter

    first = bars[0].rate
    top = max(bar.rate for bar in bars if bar.rate is not None)
    has_busy = any(bar.busy is not None for bar in bars)
    has_workers = any(bar.workers is not None for bar in bars)
    ticks = []
    for index, bar in enumerate(bars):
        is_rung = bar.name != _CEILING_NAME
        rows = [bar.name if not is_rung else f"{index + 1}\n{bar.name}"]
        if has_workers:
            rows.append(f"({bar.workers})" if bar.workers else "")
        if has_busy:
            rows.append("-" if bar.busy is None else f"{bar.busy:.0%} busy")
        ticks.append("\n".join(rows))
        if bar.rate is None:
            axes.text(index, top * 0.02, bar.missing, rotation=90, ha="center", va="bottom", color=_MUTED)
            continue
        axes.bar(index, bar.rate, color=color if is_rung else _CEILING, width=0.72)
        label = f"{bar.rate:,.0f}" + (f"\n×{bar.rate / first:.1f}" if first and index else "")
        axes.annotate(label, (index, bar.rate), textcoords="offset points", xytext=(0, 3), ha="center", fontsize=9.5)
    axes.set_title(title, loc="left", color=_INK, fontsize=11)
    axes.set_xticks(range(len(bars)), ticks, fontsize=8.5, linespacing=1.35)
    axes.set_xlim(-0.6, len(bars) - 0.4)
    axes.set_ylim(0, top * 1.14)
    axes.set_ylabel("images/s", color=_INK)
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="x", length=0)
