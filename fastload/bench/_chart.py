"""The ladder as a picture: our run and the reference run on one axis."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastload.profiling.palette import DARK, LIGHT

if TYPE_CHECKING:
    from collections.abc import Mapping

REFERENCE_NAME = "reference run: ResNet-50 on one V100, 2021"
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


def draw(record: Mapping[str, Any], path: str | Path, *, dark: bool = False) -> None:
    """Draw a ladder's JSON record and the reference run.

    Both runs stand on one axis, as multiples of their own first rung: what compares is the shape of the climb. Above a
    bar stand images/s; the line on it reaches from the slowest climb to the fastest. Below stand the share of the time
    that the GPU was busy, and the number of workers.

    Args:
        record: What ``fastload bench ladder --json`` writes.
        path: The picture; its suffix names the format (``.png``, ``.svg`` ...).
        dark: For a dark page.
    """
    from matplotlib.figure import Figure

    colours = DARK if dark else LIGHT
    figure = Figure(figsize=(8.2, 6), dpi=180, layout="constrained", facecolor=colours["card"])
    axes: Any = figure.subplots()
    axes.set_facecolor(colours["card"])
    measured = {rung["number"]: rung for rung in record["rungs"]}
    reasons = {skip["number"]: skip["reason"] for skip in record["skipped"]}
    base = next((measured[n]["images_per_s"]["median"] for n in sorted(measured) if n), None) or 1.0
    ticks = []
    for index, (number, name) in enumerate([*enumerate(_STEPS, start=1), (0, _CEILING_NAME)]):
        rung = measured.get(number)
        ticks.append("\n".join([f"{number}\n{name}" if number else name, *_below(index, rung)]))
        if rung is None:
            why = reasons.get(number, "not measured")
            axes.text(index, 0.05, why, rotation=90, ha="center", va="bottom", color=colours["muted"])
        else:
            kind = "own" if number else "ceiling"
            _bar(axes, index + 0.2 * (index < len(REFERENCE_RATES)), rung["images_per_s"], base, kind, colours)
        if index < len(REFERENCE_RATES):
            rate = REFERENCE_RATES[index]
            _bar(axes, index - 0.2, {"median": rate, "min": rate, "max": rate}, REFERENCE_RATES[0], "peer", colours)
    environment, parameters = record["environment"], record["parameters"]
    cores = f"{environment['usable_cpus']} CPU cores"
    machine = f"{environment['gpu']}, {cores}" if record["trained"] and environment["gpu"] else cores
    title = f"Training {parameters['model']}, bf16, batch {parameters['batch_size']}"
    if not record["trained"]:
        title = "The loader alone"
    axes.set_title(
        f"{title}: each rung keeps what the one before it has", loc="left", color=colours["ink"], pad=42, fontsize=11
    )
    axes.set_ylabel("times its own rung 1; above the bars: images/s", color=colours["ink"])
    axes.set_xticks(range(len(ticks)), ticks, fontsize=8, linespacing=1.3, color=colours["ink"])
    axes.set_xlim(-0.6, len(ticks) - 0.4)
    axes.margins(y=0.08)
    axes.set_ylim(bottom=0)
    axes.tick_params(axis="x", length=0)
    axes.tick_params(axis="y", colors=colours["ink"])
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(colours["rule"])
    _legend(axes, f"this run: {machine}", colours)
    note = "busy: share of the time in which the GPU ran a kernel (reference run, this run); w: workers of this run"
    figure.supxlabel(note, x=0.01, ha="left", fontsize=9, color=colours["muted"])
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(str(path))


def _below(index: int, rung: Mapping[str, Any] | None) -> list[str]:
    """The lines below a rung's name."""
    busy = [f"{REFERENCE_BUSY[index]:.0%}"] if index < len(REFERENCE_BUSY) else []
    if rung is not None and rung["gpu_busy_share"] is not None:
        busy.append(f"{rung['gpu_busy_share']:.0%}")
    workers = f"{rung['workers']} w" if rung is not None and rung["workers"] else ""
    return [*(busy or [""]), *([""] if len(busy) < 2 else []), "busy" if busy else "", workers]


def _bar(axes: Any, at: float, rates: Mapping[str, float], base: float, kind: str, colours: Mapping[str, str]) -> None:
    low, middle, high = (rates[name] / base for name in ("min", "median", "max"))
    alone = at == int(at)
    axes.bar(at, middle, color=colours[kind], width=0.6 if alone else 0.38)
    if high > low:
        axes.errorbar(at, middle, [[middle - low], [high - middle]], color=colours["ink"], capsize=3, lw=1.2)
    axes.annotate(
        f"{rates['median']:,.0f}",
        (at, high),
        textcoords="offset points",
        xytext=(0, 4),
        ha="center",
        fontsize=8.5,
        color=colours["ink"] if kind != "peer" else colours["muted"],
    )


def _legend(axes: Any, ours: str, colours: Mapping[str, str]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        Patch(color=colours["own"], label=ours),
        Patch(color=colours["peer"], label=REFERENCE_NAME),
        Patch(color=colours["ceiling"], label="ceiling of this run"),
        Line2D([], [], color=colours["ink"], lw=1.2, label="slowest to fastest climb"),
    ]
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 2, "borderaxespad": 0.2, "columnspacing": 1.2}
    axes.legend(handles=handles, frameon=False, fontsize=8.5, labelcolor=colours["ink"], **place)
