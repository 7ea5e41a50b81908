"""Draw the demo's loaders and the ladder's rungs as bars of images/s."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastload.measurement.record import has_one_repeat
from fastload.profiling.pages.palette import DARK, LIGHT

if TYPE_CHECKING:
    from collections.abc import Mapping

_RUNGS: Final = (
    *("few\nworkers", "more\nworkers", "channels_\nlast", "more workers\nagain", "pinned\nmemory"),
    *("side stream,\n1 ahead", "pinned\nslots", "native\nengine"),
)
_CEILING: Final = "ceiling\ndata on\nthe GPU"
_NOTE: Final = "busy: share of the time in which the GPU ran a kernel; w: worker processes (8: threads)"


def draw_race(record: Mapping[str, Any], path: str | Path) -> None:
    """Draw the record of ``fastload bench demo``; whiskers are the slowest and fastest repeat."""
    from matplotlib.figure import Figure

    rates = record["images_per_s"]
    medians = [spread["median"] for spread in rates.values()]
    figure = Figure(figsize=(8, 3), dpi=120, layout="constrained")
    axes = figure.subplots()
    labels = [f"{name}\n{median:,.0f} images/s" for name, median in zip(rates, medians, strict=True)]
    labels[-1] += f", {medians[-1] / medians[0]:.1f}×"
    below = [spread["median"] - spread["min"] for spread in rates.values()]
    above = [spread["max"] - spread["median"] for spread in rates.values()]
    whiskers = None if any(map(has_one_repeat, rates.values())) else [below, above]
    colours = [LIGHT["peer"], LIGHT["own"]]
    axes.barh(labels, medians, xerr=whiskers, color=colours, ecolor=LIGHT["ink"], capsize=4, height=0.6)
    parameters, environment = record["parameters"], record["environment"]
    axes.invert_yaxis()
    axes.set_title(
        f"{record['same_batches']} batches of {parameters['batch_size']}, bit for bit the same; "
        f"{parameters['workers']} workers on {environment['usable_cpus']} cores",
        loc="left",
        fontsize=11,
    )
    axes.set_xlabel("images/s: JPEG files to normalized 224 px crops")
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


def draw_ladder(record: Mapping[str, Any], path: str | Path, *, dark: bool = False) -> None:
    """Draw a ladder's JSON record.

    Above a bar stand images/s; the line on it reaches from the slowest climb to the fastest. Below stand the share of
    the time that the GPU was busy, and the number of workers. The suffix of ``path`` names the format (``.png``,
    ``.svg`` ...); ``dark`` is for dark pages.
    """
    from matplotlib.figure import Figure

    colours = DARK if dark else LIGHT
    figure = Figure(figsize=(8.2, 5.2), dpi=180, layout="constrained", facecolor=colours["card"])
    axes: Any = figure.subplots()
    axes.set_facecolor(colours["card"])
    measured = {rung["number"]: rung for rung in record["rungs"]}
    reasons = {skip["number"]: skip["reason"] for skip in record["skipped"]}
    ticks = []
    for index, (number, name) in enumerate([*enumerate(_RUNGS, start=1), (0, _CEILING)]):
        rung = measured.get(number)
        ticks.append("\n".join([f"{number}\n{name}" if number else name, *_below(rung)]))
        if rung is None:
            why = reasons.get(number, "not measured")
            axes.text(index, 0, f" {why}", rotation=90, ha="center", va="bottom", color=colours["muted"])
        else:
            _bar(axes, index, rung["images_per_s"], colours["own" if number else "ceiling"], colours["ink"])
    environment, parameters = record["environment"], record["parameters"]
    cores = f"{environment['usable_cpus']} CPU cores"
    machine = f"{environment['gpu']}, {cores}" if record["trained"] and environment["gpu"] else cores
    title = f"Training {parameters['model']}, bf16, batch {parameters['batch_size']}"
    if not record["trained"]:
        title = "The loader alone"
    axes.set_title(
        f"{title}: each rung keeps what the one before it has", loc="left", color=colours["ink"], pad=26, fontsize=11
    )
    axes.set_ylabel("images/s", color=colours["ink"])
    axes.set_xticks(range(len(ticks)), ticks, fontsize=8, linespacing=1.3, color=colours["ink"])
    axes.set_xlim(-0.6, len(ticks) - 0.4)
    axes.margins(y=0.08)
    axes.set_ylim(bottom=0)
    axes.tick_params(axis="x", length=0)
    axes.tick_params(axis="y", colors=colours["ink"])
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(colours["rule"])
    _legend(axes, machine, colours)
    figure.supxlabel(_NOTE, x=0.01, ha="left", fontsize=9, color=colours["muted"])
    _save(figure, path)


def _below(rung: Mapping[str, Any] | None) -> list[str]:
    """The lines below a rung's name."""
    if rung is None:
        return ["", ""]
    busy = "" if rung["gpu_busy_share"] is None else f"{rung['gpu_busy_share']:.0%} busy"
    return [busy, f"{rung['workers']} w" if rung["workers"] else ""]


def _bar(axes: Any, at: int, rates: Mapping[str, float], colour: str, ink: str) -> None:
    low, middle, high = (rates[name] for name in ("min", "median", "max"))
    axes.bar(at, middle, color=colour, width=0.6)
    if high > low:
        axes.errorbar(at, middle, [[middle - low], [high - middle]], color=ink, capsize=3, lw=1.2)
    place = {"textcoords": "offset points", "xytext": (0, 4), "ha": "center", "fontsize": 8.5, "color": ink}
    axes.annotate(f"{middle:,.0f}", (at, high), **place)


def _legend(axes: Any, ours: str, colours: Mapping[str, str]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        Patch(color=colours["own"], label=ours),
        Patch(color=colours["ceiling"], label="ceiling of this run"),
        Line2D([], [], color=colours["ink"], lw=1.2, label="slowest to fastest climb"),
    ]
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 3, "borderaxespad": 0.2, "columnspacing": 1.2}
    axes.legend(handles=handles, frameon=False, fontsize=8.5, labelcolor=colours["ink"], **place)


def _save(figure: Any, path: str | Path) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(str(path))
