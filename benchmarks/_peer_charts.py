"""Draw the charts of docs/benchmarks.md and of README from the records of the peer benchmarks."""

from __future__ import annotations

from typing import Any

from benchmarks._charts import Bar, Panel, draw
from benchmarks._peer_tables import MARK, NATIVE, NO_PEER, OURS, cell, rate
from benchmarks._peer_topics import TOPICS


def chart(name: str, record: dict[str, Any]) -> str:
    """Draw a topic's columns as bars, with the repeats' range; mark peers that are ahead."""
    topic = TOPICS[name]
    every = {one.title.partition("<br>")[0]: one for one in topic.columns(record)}
    columns = [every[title] for title in topic.drawn if title in every] or list(every.values())
    more_is_better = columns[0].more_is_better  # as the legend says of all
    columns = [one for one in columns if one.is_ranked and one.more_is_better is more_is_better]
    panels = []
    for one in columns:
        bars = []
        for contender, known in record["contenders"].items():
            if contender in one.values:
                value = one.values[contender]
                low, high = one.spread.get(contender, (value, value))
                kind = "own" if contender in OURS else "ceiling" if contender in NO_PEER else "peer"
                bars.append(Bar(known["title"], value, low, high, cell(one, contender, spread=False), kind))
        unit = ": images/s" if one.show is rate and "images/s" not in one.title else ""
        panels.append(Panel(one.title.replace("<br>", ": share ") + unit, bars))
    which = "longer is better" if more_is_better else "shorter is better"
    legend = f"Bar: median, {which}. Line: smallest to largest repeat."
    if any(one.ahead() for one in columns):
        legend += f"\n{MARK.strip()} ahead of {record['contenders'][NATIVE]['title']}"
    return draw(f"{topic.heading}: {'; '.join(panel.title for panel in panels)}", panels, legend)
