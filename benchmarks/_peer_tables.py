"""Format the tables of the peer benchmarks: their columns, and who is ahead.

A contender that is ahead of FastLoader is marked, and a sentence says by how much.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fastload.measurement.record import has_one_repeat

NATIVE, WORKERS = "fastload", "fastload-workers"
OURS = (NATIVE, WORKERS, "fastload-cpu", "fastload-gpu")
NO_PEER = (*OURS, "ceiling")
MARK = " ▲"
_GAP = "–"


@dataclass(frozen=True)
class Column:
    """One figure of every contender.

    Attributes:
        title: What stands above it.
        values: Median by contender; contenders without one are absent.
        show: A figure in words.
        more_is_better: Which way is ahead.
        spread: Smallest and largest of the repeats, by contender, where there are repeats.
        bounds: Contenders whose figure is a lower bound.
        is_ranked: Whether one figure is better than another at all.
    """

    title: str
    values: dict[str, float]
    show: Callable[[float], str]
    more_is_better: bool
    spread: dict[str, tuple[float, float]]
    bounds: frozenset[str] = frozenset()
    is_ranked: bool = True

    def ahead(self, engine: str = NATIVE) -> list[str]:
        """Peers that do better than one of FastLoader's engines, the best first."""
        own = self.values.get(engine)
        if own is None or not self.is_ranked:
            return []
        sign = 1 if self.more_is_better else -1
        better = [name for name, value in self.values.items() if name not in NO_PEER and sign * (value - own) > 0]
        return sorted(better, key=lambda name: -sign * self.values[name])

    def lead(self, name: str, engine: str = NATIVE) -> float:
        """How many times better a peer is."""
        own, other = self.values[engine], self.values[name]
        return other / own if self.more_is_better else own / other


def rate(value: float) -> str:
    """Images per second."""
    return f"{value:,.0f}"


def column(
    title: str,
    point: dict[str, Any],
    figure: str,
    show: Callable[[float], str] = rate,
    *,
    more_is_better: bool = True,
) -> Column:
    """The column of one point of a record."""
    figures = {name: result[figure] for name, result in point["contenders"].items() if result.get(figure) is not None}
    spreads = {name: value for name, value in figures.items() if isinstance(value, dict) and not has_one_repeat(value)}
    return Column(
        title=title,
        values={name: float(value["median"] if isinstance(value, dict) else value) for name, value in figures.items()},
        show=show,
        more_is_better=more_is_better,
        spread={name: (value["min"], value["max"]) for name, value in spreads.items()},
        bounds=frozenset(name for name, result in point["contenders"].items() if result.get("lower_bound")),
    )


def table(record: dict[str, Any], columns: list[Column], *, spread: bool) -> str:
    """Format contenders as rows, or as columns if there are more columns than contenders."""
    rows = [["", *(one.title for one in columns)]]
    for name, known in record["contenders"].items():
        if any(name in one.values for one in columns):
            title = f"**{known['title']}**" if name in OURS else known["title"]
            rows.append([title, *(cell(one, name, spread=spread) for one in columns)])
    if len(columns) >= len(rows):
        rows = [list(row) for row in zip(*rows, strict=True)]
    rule = "|" + "|".join(["---"] + ["--:"] * (len(rows[0]) - 1)) + "|"
    head, *body = ("| " + " | ".join(row) + " |" for row in rows)
    notes = []
    if any(_GAP in row for row in rows):
        notes.append(f"{_GAP}: not asked, or not measured.")
    if any(one.bounds for one in columns):
        notes.append("≥: what the library pins by itself cannot be seen.")
    return "\n".join([head, rule, *body, *(["", " ".join(notes)] if notes else [])])


def cell(one: Column, name: str, *, spread: bool) -> str:
    if name not in one.values:
        return _GAP
    text = one.show(one.values[name])
    if name in one.bounds:
        text = f"≥ {text}"
    if spread and name in one.spread:
        low, high = one.spread[name]
        text = _with_spread(text, one.show(max(high - one.values[name], one.values[name] - low)))
    return text + MARK if name in one.ahead() else text


def _with_spread(text: str, spread: str) -> str:
    """``34.1 ± 10.7%`` of ``34.1%`` and ``10.7%``: the unit once."""
    unit = spread.lstrip("0123456789.,")
    return f"{text.removesuffix(unit)} ± {spread}"


def who_is_ahead(record: dict[str, Any], columns: list[Column]) -> str:
    """In which columns a peer is ahead of which engine, and by how much."""
    sentences = []
    for engine in (NATIVE, WORKERS):
        if not any(engine in one.values and set(one.values) - set(NO_PEER) for one in columns):
            continue
        title = record["contenders"][engine]["title"]
        places = []
        for one in columns:
            peers = {name: record["contenders"][name]["title"] for name in one.ahead(engine)}
            leaders = [f"{peer} by {_times(one.lead(name, engine))}" for name, peer in peers.items()]
            if leaders:
                places.append(f"{one.title.partition('<br>')[0]}: {', '.join(leaders)}")
        mark = f"{MARK.strip()} ahead" if engine == NATIVE else "Ahead"
        sentences.append(
            f"{mark} of {title}. {'; '.join(places)}." if places else f"No peer that was measured is ahead of {title}."
        )
    return "\n\n".join(sentences)


def _times(lead: float) -> str:
    return f"{100 * (lead - 1):.1f}%" if lead < 1.1 else f"{lead:.1f}×" if lead < 10 else f"{lead:.0f}×"


def loaders(record: dict[str, Any]) -> list[Column]:
    """Images per second against threads."""
    return [column(f"{_threads(point)}{_recipe(point)}", point, "images_per_s") for point in _by_threads(record)]


def train(record: dict[str, Any]) -> list[Column]:
    """Share of the ceiling; the ceiling itself in images per second stands in the title."""
    columns = []
    models = [point["model"] for point in record["points"]]
    for point in sorted(_by_threads(record), key=lambda point: models.index(point["model"])):
        top = point["contenders"].get("ceiling")
        images = f"<br>of {rate(top['images_per_s']['median'])}/s" if top else ""
        shares = column(
            f"{_model(point['model'])}, {_cores(point)}{_recipe(point)}{images}",
            point,
            "share_of_ceiling",
            lambda x: f"{x:.1%}",
        )
        columns.append(shares)
    return columns


def one_model(record: dict[str, Any]) -> list[Column]:
    """Show images per second, the share of the ceiling, and the training thread's time."""
    (point,) = record["points"]
    return [
        column(f"{_model(point['model'])}, {_cores(point)}: images/s", point, "images_per_s"),
        column("of the ceiling", point, "share_of_ceiling", lambda x: f"{x:.1%}"),
        _main_thread(point),
    ]


def firstbatch(record: dict[str, Any]) -> list[Column]:
    """Seconds to the first batch."""
    return [
        column(_threads(point), point, "first_batch_s", lambda s: f"{s:.2f} s", more_is_better=False)
        for point in _by_threads(record)
    ]


def memory(record: dict[str, Any]) -> list[Column]:
    """Megabytes of host and device."""
    columns = []
    for point in _by_threads(record):
        for what, figure in (("host", "host_bytes"), ("GPU", "device_bytes")):
            one = column(f"{what}, {_threads(point)}", point, figure, _megabytes, more_is_better=False)
            if one.values:
                columns.append(one)
    return columns


def cpu(record: dict[str, Any]) -> list[Column]:
    """Processor time per image, and the main thread's per batch."""
    columns = []
    for point in _by_threads(record):
        columns += [
            column(
                f"per image, {_threads(point)}",
                point,
                "processor_ms_per_image",
                lambda ms: f"{ms:.2f} ms",
                more_is_better=False,
            ),
            _main_thread(point),
        ]
    return columns


def _main_thread(point: dict[str, Any]) -> Column:
    return column(
        "main thread per batch", point, "main_thread_us_per_batch", lambda us: f"{us:,.0f} µs", more_is_better=False
    )


def scaling(record: dict[str, Any]) -> list[Column]:
    """Images per second against the size of images and batches."""
    columns = []
    for point in sorted(record["points"], key=lambda point: (point.get("edge_px", math.inf), point["batch_size"])):
        size = f"batches of {point['batch_size']}"
        if "edge_px" in point:
            size = f"{point['edge_px']} px, {point['dataset']['mean_kb']:,.0f} KB, {size}"
        columns.append(column(size, point, "images_per_s"))
    return columns


def multigpu(record: dict[str, Any]) -> list[Column]:
    """Show images per second of all GPUs, and the scaling efficiency against one GPU."""
    columns = []
    for point in record["points"]:
        count = point["processes"]
        columns.append(column(f"{count} GPU{'s' if count > 1 else ''}", point, "images_per_s"))
        if count > 1:
            columns.append(column(f"scaling, {count} GPUs", point, "scaling_efficiency", lambda x: f"{x:.1%}"))
    return columns


def _by_threads(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The points, which several commands may have measured in any order."""
    return sorted(record["points"], key=operator.itemgetter("threads"))


def _threads(point: dict[str, Any]) -> str:
    return f"{point['threads']} thread{'s' if point['threads'] > 1 else ''}"


def _cores(point: dict[str, Any]) -> str:
    return _threads(point) if point["cores"] is None else f"{point['cores']} cores"


def _recipe(point: dict[str, Any]) -> str:
    names = {"crops": "", "randaugment": ", RandAugment", "trivialaugment": ", TrivialAugmentWide"}
    return names[point.get("recipe", "crops")]  # older records do not say


def _model(name: str) -> str:
    return {"resnet50": "ResNet-50", "resnet18": "ResNet-18", "vit_s_16": "ViT-S/16"}.get(name, name)


def _megabytes(value: float) -> str:
    return f"{value / 1e6:,.0f} MB"


def energy(record: dict[str, Any]) -> list[Column]:
    """Show joules per million images, and the power and rate that they come from."""
    columns = []
    for point in _by_threads(record):
        threads = _threads(point)
        each = column(f"per million images, {threads}", point, "joules_per_million", _joules, more_is_better=False)
        watts = column("power", point, "watts", lambda watts: f"{watts:,.0f} W", more_is_better=False)
        columns += [each, replace(watts, is_ranked=False), column(f"images/s, {threads}", point, "images_per_s")]
    return columns


def _joules(joules: float) -> str:
    return f"{joules:,.0f} J"
