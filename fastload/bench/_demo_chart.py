"""The demo's picture: images/s of two loaders, with their spread."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastload.measurement.record import has_one_repeat

if TYPE_CHECKING:
    from collections.abc import Mapping

_COLOURS: Final = {"torch DataLoader": "#6b7785", "FastLoader": "#2a7f62"}


def draw_race(record: Mapping[str, Any], path: str | Path) -> None:
    """Draw the record of ``fastload bench demo``; whiskers are the slowest and fastest repeat."""
    from matplotlib.figure import Figure

    rates = record["images_per_s"]
    names, medians = list(rates), [spread["median"] for spread in rates.values()]
    below = [spread["median"] - spread["min"] for spread in rates.values()]
    above = [spread["max"] - spread["median"] for spread in rates.values()]
    figure = Figure(figsize=(8, 3), dpi=120, layout="constrained")
    axes = figure.subplots()
    colours = [_COLOURS[name] for name in names]
    labels = [f"{name}\n{median:,.0f} images/s" for name, median in zip(names, medians, strict=True)]
    labels[-1] += f", {medians[-1] / medians[0]:.1f}×"
    whiskers = None if any(map(has_one_repeat, rates.values())) else [below, above]
    axes.barh(labels, medians, xerr=whiskers, color=colours, ecolor="#222222", capsize=4, height=0.6)
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
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(str(path))
