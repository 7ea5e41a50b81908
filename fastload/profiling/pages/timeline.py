"""Arrange a recording in rows of bars, one row per thread or stream.

The rows: main thread, feeder, workers or decode threads, copy streams, decoding (of deferred samples: painting) on the
GPU, compute streams. ``html``
shows them in a browser; :func:`draw` draws them as a picture.
"""

from __future__ import annotations

import itertools
import textwrap
import zlib
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from fastload.nvtx.stages import COLOURS as STAGE_COLOURS
from fastload.profiling.analysis.findings import decode_kernels
from fastload.profiling.pages.palette import DARK, LIGHT, contrast, readable_on
from fastload.profiling.recording.trace import DECODING, OPERATOR, STAGES, STEP, Kernel, shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fastload.profiling.analysis.findings import Findings
    from fastload.profiling.recording.trace import Copy, Range, Recording, Span, Thread, ThreadKey

COLOURS: Final[dict[str, str]] = {
    **{name: f"#{argb & 0xFFFFFF:06x}" for name, argb in STAGE_COLOURS.items()},
    "kernel": "#5c6b7a",
    "layout conversion": "#c2185b",
    "copy, pinned": "#f28e2b",
    "copy, pageable": "#d62728",
    "copy": "#f7c08a",
    "operator": "#8fa3b5",
    "call": "#b9b2a6",
}
"""Colours of the loader's stages, those that Nsight shows, and of work on the device."""

_TITLES: Final = {"h2d": "h2d, copy from pinned memory", "call": "call of CUDA", "copy": "copy to the host"}
_DECODING: Final = {"decode": "decoding", "paint": "painting"}
_PALETTE: Final = ("#8cb369", "#c9a227", "#5b8e7d", "#bc6c4b", "#7d70ba", "#3d9fb8", "#a1887f", "#9c6644")
DEPTH_MAX: Final = 5  # levels of nested ranges to draw; deeper ones are left out
BARS_MAX: Final = 20_000  # most bars per row; above this, bars that nearly touch are joined
APART_MAX: Final = 3  # most threads of one kind that have a row each in the picture
GAPS: Final = 3  # idle intervals of the device that the picture shows
_LETTERS: Final = 110  # letters that fit in the picture's width
_OWN: Final = 22  # letters of a name of the program's own in the legend
_CALL_SHARE: Final = 1 / 2000  # share of the window; shorter calls of the CUDA API are left out


@dataclass(frozen=True, slots=True)
class Bar:
    """An event in a row."""

    start_ns: int  # time since the window's start
    length_ns: int
    name: str
    colour: str  # colour as #rrggbb
    depth: int = 0  # depth of nesting
    detail: str = ""

    @property
    def end_ns(self) -> int:
        """End, relative to the window's start."""
        return self.start_ns + self.length_ns


@dataclass(frozen=True, slots=True)
class Row:
    """One thread or stream."""

    label: str
    kind: Literal["host", "device"]
    bars: tuple[Bar, ...]  # events in order of their start
    tells: str = ""  # ids and names

    @property
    def depth(self) -> int:
        """Number of nested levels, at least 1."""
        return max((bar.depth for bar in self.bars), default=0) + 1


@dataclass(frozen=True, slots=True)
class Timeline:
    """All rows of a recording, from top to bottom."""

    rows: tuple[Row, ...]
    length_ns: int
    steps: tuple[int, ...]  # starts of the training steps, since the window's start
    gaps: tuple[tuple[int, int], ...]  # start and length of the device's longest idle intervals

    @property
    def legend(self) -> list[tuple[str, str]]:
        """Names and colours in use: stages, work on the device, the program's own ranges."""
        present = dict.fromkeys((bar.name, bar.colour) for row in self.rows for bar in row.bars)
        colours = {colour for _, colour in present}
        found = [name for name in STAGES if (name, COLOURS[name]) in present]
        # A pinned copy has the colour of h2d, the call that issues it.
        found += [n for n in COLOURS if n not in STAGES and COLOURS[n] in colours and n != "copy, pinned"]
        own: dict[str, str] = {}
        for name, colour in present:
            if colour in _PALETTE:
                own[colour] = f"{own[colour].removesuffix(' ...')} ..." if colour in own else name
        return [(_TITLES.get(name, name), COLOURS[name]) for name in found] + [(own[c], c) for c in own]


def lay_out(recording: Recording, findings: Findings) -> Timeline:
    """Arrange a recording in rows."""
    by_thread: dict[ThreadKey, list[Range]] = defaultdict(list)
    for span in recording.ranges:
        by_thread[span.thread].append(span)
    rows = []
    main = recording.main
    steps: list[int] = []
    if main is not None:
        own = by_thread[main]
        steps = [max(0, s.start_ns - recording.start_ns) for s in own if s.name == STEP]
        rows.append(Row("main thread", "host", _host_bars(recording, own), _ids(recording.threads[main])))
        if operators := [span for span in own if span.domain == OPERATOR]:
            bars = _thinned(recording, (_bar(recording, span, span.name, COLOURS["operator"]) for span in operators))
            rows.append(Row("torch operators", "host", bars, "of the main thread"))
    for role in ("feeder", "worker", "decode", "backward"):
        threads = [thread for thread in recording.of_role(role) if by_thread[thread.key]]
        for number, thread in enumerate(threads):
            name = "decode thread" if role == "decode" else role
            name += "" if role == "backward" or len(threads) == 1 else f" {number}"
            rows.append(Row(name, "host", _host_bars(recording, by_thread[thread.key]), _ids(thread)))
    rows += _streams(recording)
    gaps = tuple((round(gap.start_s * 1e9), round(gap.length_s * 1e9)) for gap in findings.gaps)
    return Timeline(tuple(rows), recording.window_ns, tuple(steps), gaps)


def colour_of(name: str) -> str:
    """The colour of a range: fixed for stages, from a small palette for others."""
    return COLOURS.get(name) or _PALETTE[zlib.crc32(name.encode()) % len(_PALETTE)]


def _ids(thread: Thread) -> str:
    name = f"{thread.name}, " if thread.name else ""
    return f"{name}process {thread.key.process}, thread {thread.key.thread}"


def _bar(recording: Recording, span: Span, name: str, colour: str, depth: int = 0, detail: str = "") -> Bar:
    """The part of an event that lies in the window."""
    start, end = max(span.start_ns, recording.start_ns), min(span.end_ns, recording.end_ns)
    return Bar(start - recording.start_ns, end - start, name, colour, depth, detail)


def _host_bars(recording: Recording, ranges: Iterable[Range]) -> tuple[Bar, ...]:
    """Bars of ranges by nesting depth, and below them of long CUDA calls."""
    bars: list[Bar] = []
    open_until: list[int] = []
    deepest = -1
    thread: ThreadKey | None = None
    for span in sorted(ranges, key=lambda span: (span.start_ns, -span.end_ns)):
        thread = span.thread
        if span.domain == OPERATOR or span.name == STEP:
            continue
        if span.end_ns <= recording.start_ns or span.start_ns >= recording.end_ns:
            continue
        while open_until and open_until[-1] <= span.start_ns:
            open_until.pop()
        depth = len(open_until)
        open_until.append(span.end_ns)
        if depth < DEPTH_MAX:
            deepest = max(deepest, depth)
            batch = "" if span.payload is None else f"batch {span.payload}"
            bars.append(_bar(recording, span, span.name, colour_of(span.name), depth, batch))
    for call in recording.calls:
        if call.thread == thread:
            bar = _bar(recording, call, call.name, COLOURS["call"], deepest + 1)
            bars += [bar] if bar.length_ns >= recording.window_ns * _CALL_SHARE else []
    return _thinned(recording, bars)


def _streams(recording: Recording) -> list[Row]:
    decodes = {id(kernel): name for name in DECODING for kernel in decode_kernels(recording, (name,))}
    work: dict[tuple[int, int], list[Kernel | Copy]] = defaultdict(list)
    decoding: dict[tuple[int, int], dict[str, list[Kernel | Copy]]] = defaultdict(lambda: defaultdict(list))
    computing: Counter[tuple[int, int]] = Counter()
    copying: Counter[tuple[int, int]] = Counter()
    items: list[Kernel | Copy] = [*recording.kernels, *recording.copies]
    for item in items:
        key = item.device, item.stream
        if (name := decodes.get(id(item))) is not None:
            decoding[key][name].append(item)
        else:
            work[key].append(item)
            (computing if isinstance(item, Kernel) else copying)[key] += item.length_ns
    main = {device: max((k for k in computing if k[0] == device), key=computing.__getitem__) for device, _ in computing}
    many = len({device for device, _ in [*work, *decoding]}) > 1
    rows = []
    # Copies above kernels, as in the order of a batch's path.
    for key in sorted({*work, *decoding}, key=lambda key: (key[0], key == main.get(key[0]), computing[key], key)):
        label = "stream"
        if key == main.get(key[0]):
            label = "compute stream"
        elif copying[key] > computing[key]:
            label = "copy stream"
        device = f"GPU {key[0]}: " if many else ""
        tells = f"stream {key[1]} of {recording.devices.get(key[0], 'GPU')} {key[0]}"
        if key in work:
            rows.append(Row(device + label, "device", _device_bars(recording, work[key]), tells))
        for name, kernels in decoding.get(key, {}).items():  # in rows of their own, though the stream is that of copies
            bars = _device_bars(recording, kernels, name)
            rows.append(Row(f"{device}{_DECODING[name]} on the GPU", "device", bars, tells))
    return rows


def _device_bars(recording: Recording, items: Iterable[Kernel | Copy], colour: str | None = None) -> tuple[Bar, ...]:
    bars = (_device_bar(recording, item, colour) for item in items)
    return _thinned(recording, [bar for bar in bars if bar.length_ns > 0])


def _device_bar(recording: Recording, item: Kernel | Copy, colour: str | None) -> Bar:
    if isinstance(item, Kernel):
        colour = colour or ("layout conversion" if item.converts_layout else "kernel")
        return _bar(recording, item, item.name, COLOURS[colour])
    colour = "copy"
    if item.direction == "host to device":
        colour = "copy, pageable" if item.memory == "pageable" else "copy, pinned"
    detail = f"{item.size_bytes / 1e6:.2f} MB, {item.memory}, {item.size_bytes / max(1, item.length_ns):.1f} GB/s"
    return _bar(recording, item, f"copy {item.direction}", COLOURS[colour], 0, detail)


def _thinned(recording: Recording, bars: Iterable[Bar]) -> tuple[Bar, ...]:
    return tuple(thinned(sorted(bars, key=lambda bar: bar.start_ns), recording.window_ns))


def thinned(bars: Sequence[Bar], window_ns: int, most: int = BARS_MAX) -> Sequence[Bar]:
    """Join neighbours of the same colour and depth until at most ``most`` are left."""
    apart_ns = window_ns // 200_000
    while len(bars) > most:
        bars = _joined(bars, apart_ns)
        apart_ns = apart_ns * 2 + 1
    return bars


def _joined(bars: Sequence[Bar], apart_ns: int) -> list[Bar]:
    joined: list[Bar] = []
    last: dict[int, int] = {}  # the number of the last bar by depth
    for bar in bars:
        before = joined[last[bar.depth]] if bar.depth in last else None
        if before and before.colour == bar.colour and 0 <= bar.start_ns - before.end_ns <= apart_ns:
            length_ns = bar.end_ns - before.start_ns
            joined[last[bar.depth]] = replace(before, length_ns=length_ns, detail="and others after it")
        else:
            last[bar.depth] = len(joined)
            joined.append(bar)
    return joined


def from_record(record: Mapping[str, Any]) -> Timeline:
    """The timeline of a record, which ``dataclasses.asdict`` made."""
    rows = (Row(**{**row, "bars": tuple(Bar(**bar) for bar in row["bars"])}) for row in record["rows"])
    return Timeline(tuple(rows), record["length_ns"], tuple(record["steps"]), tuple(map(tuple, record["gaps"])))


def _grouped(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows as they are drawn: many threads of one kind stand in one."""
    kinds = itertools.groupby(rows, key=lambda row: row.label.rstrip("0123456789"))
    groups: list[list[Row]] = []
    for _, found in kinds:
        alike = list(found)
        groups += [alike] if len(alike) > APART_MAX else [[row] for row in alike]
    return groups


def _fitting(name: str, share: float) -> str | None:
    """A bar's name, cut to its share of the width; None if too little fits."""
    room = int(share * _LETTERS)
    return shortened(name, room) if room >= 4 else None


def draw(timeline: Timeline, path: str | Path, title: str, *, dark: bool = False) -> None:
    """Draw the rows as a picture; the suffix of ``path`` gives the format. Needs matplotlib.

    More than ``APART_MAX`` threads of one kind are one row: its height is how many of them are busy.
    """
    from matplotlib.figure import Figure

    colours = DARK if dark else LIGHT
    groups = _grouped(timeline.rows)
    heights = [1.6 if len(group) > 1 else 0.45 + 0.35 * group[0].depth for group in groups]
    figure = Figure(figsize=(8.2, 2 + 0.62 * sum(heights)), dpi=180, layout="constrained", facecolor=colours["card"])
    axes: Any = figure.subplots()
    axes.set_facecolor(colours["card"])
    top = 0.0
    ticks: list[float] = []
    labels: list[str] = []
    for group, height in zip(groups, heights, strict=True):
        shade = colours["zone" if len(ticks) % 2 == 0 else "card"]
        axes.axhspan(-top - height, -top, color=shade, lw=0, zorder=0)
        if len(group) > 1:
            _draw_many(axes, group, timeline.length_ns, -top - height, height - 0.15)
            labels.append(f"{len(group)} {group[0].label.rstrip(' 0123456789')}s\n(height: how\nmany are busy)")
        else:
            _draw_row(axes, group[0], timeline.length_ns, -top, colours)
            labels.append(group[0].label)
        ticks.append(-top - height / 2)
        top += height
    for start, length in timeline.gaps[:GAPS]:
        axes.axvspan(start / 1e6, (start + length) / 1e6, color=colours["red"], alpha=0.2, lw=0, zorder=1)
    for number, step in enumerate(timeline.steps):
        axes.axvline(step / 1e6, color=colours["ink"], lw=0.7, zorder=3)
        axes.text(step / 1e6, 0.06, f" {number}", fontsize=9, color=colours["muted"], va="bottom")
    axes.set_yticks(ticks, labels, fontsize=9, color=colours["ink"])
    axes.set_ylim(-top, 0.4)
    axes.set_xlim(0, timeline.length_ns / 1e6)
    axes.set_xlabel("ms", fontsize=9, color=colours["ink"])
    axes.tick_params(axis="x", labelsize=9, colors=colours["ink"])
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(colours["rule"])
    figure.suptitle(
        "\n".join(textwrap.wrap(title, 80)), x=0.01, ha="left", fontsize=11, color=colours["ink"], parse_math=False
    )
    place: dict[str, Any] = {"loc": "outside lower left", "ncols": 4, "fontsize": 9, "frameon": False}
    legend = figure.legend(handles=_legend(timeline, colours), labelcolor=colours["ink"], **place)
    for text in legend.get_texts():
        text.set_parse_math(False)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(str(path))


def _draw_row(axes: Any, row: Row, window_ns: int, top: float, colours: Mapping[str, str]) -> None:
    """Draw a thread's or a stream's bars, nested ones below."""
    for depth in range(row.depth):
        bars = [bar for bar in row.bars if bar.depth == depth]
        spans = [(bar.start_ns / 1e6, max(bar.length_ns, window_ns / 2000) / 1e6) for bar in bars]
        low = top - 0.2 - 0.35 * (depth + 1) + 0.025
        # A fill that is close to the page's colour has an edge that is not.
        edges = [bar.colour if contrast(bar.colour, colours["card"]) >= 3 else colours["muted"] for bar in bars]
        axes.broken_barh(
            spans, (low, 0.32), facecolors=[bar.colour for bar in bars], edgecolors=edges, lw=0.5, zorder=2
        )
        for bar in bars:
            if (name := _fitting(bar.name, bar.length_ns / window_ns)) is not None:
                middle = (bar.start_ns + bar.length_ns / 2) / 1e6
                place = {"ha": "center", "va": "center", "zorder": 4, "parse_math": False}  # a name may have a "$"
                axes.text(middle, low + 0.15, name, fontsize=8, color=readable_on(bar.colour), **place)


def _draw_many(axes: Any, rows: Sequence[Row], window_ns: int, low: float, height: float) -> None:
    """Draw how many threads are in a range of each colour, without nested ones."""
    changes: dict[str, Counter[int]] = defaultdict(Counter)
    for row in rows:
        for bar in row.bars:
            if bar.depth == 0:
                changes[bar.colour][bar.start_ns] += 1
                changes[bar.colour][bar.end_ns] -= 1
    times = sorted({0, window_ns, *(at for one in changes.values() for at in one)})
    below = [0] * len(times)
    for colour, one in changes.items():
        busy = itertools.accumulate(one[at] for at in times)
        above = [under + count for under, count in zip(below, busy, strict=True)]
        edges = [[low + height * count / len(rows) for count in counts] for counts in (below, above)]
        axes.fill_between([at / 1e6 for at in times], *edges, step="post", color=colour, lw=0, zorder=2)
        below = above


def _legend(timeline: Timeline, colours: Mapping[str, str]) -> list[Any]:
    """A mark with a name for all that stands in the picture."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    names = ((shortened(name, _OWN) if colour in _PALETTE else name, colour) for name, colour in timeline.legend)
    marks: list[Any] = [Patch(color=colour, label=name) for name, colour in names]
    if timeline.steps:
        marks.append(Line2D([], [], color=colours["ink"], lw=0.7, label="start of a step"))
    if timeline.gaps:
        marks.append(Patch(color=colours["red"], alpha=0.2, label=f"{GAPS} longest gaps of the GPU"))
    return marks
