"""Write the tables and charts of README and docs from benchmarks/results.

No figure is typed by hand.

``python -m benchmarks figures`` writes them; ``--check`` says whether they are up to date and changes nothing.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks import _gpu_tables, _peer_charts, _peer_topics, _source_tables
from benchmarks._checkout import ROOT
from fastload.bench.recipes import AROUND, LAZY, NATIVE
from fastload.measurement.record import with_farthest

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from typing import TypeAlias

    Sections: TypeAlias = dict[str, Callable[[dict[str, Any]], str]]

RESULTS = ROOT / "benchmarks" / "results"
README = ROOT / "README.md"
INDEX = ROOT / "docs" / "index.md"
FIT = ROOT / "docs" / "fit.md"
LADDER = ROOT / "docs" / "ladder.md"
SOURCES = ROOT / "docs" / "sources.md"
CLUSTER = ROOT / "docs" / "cluster.md"
BENCHMARKS = ROOT / "docs" / "benchmarks.md"
CHARTS = ROOT / "docs" / "charts"


def _table(header: list[str], rows: list[list[str]], texts: int = 1) -> str:
    """A table whose first ``texts`` columns are text, and the others figures."""
    rule = ["---"] * texts + ["--:"] * (len(header) - texts)
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join(rule) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def _where(record: dict[str, Any], name: str) -> str:
    ran = record["environment"]
    all_cores = ran.get("cpus", ran["usable_cpus"])  # older records do not say
    of_all = f" of {all_cores}" if all_cores > ran["usable_cpus"] else ""
    machine = f"{ran['gpu'] or ran['cpu']}, {ran['usable_cpus']}{of_all} cores"
    return f"{machine}, torch {ran['torch']}, {ran['date'][:10]}; {name}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f}%"


def ladder(record: dict[str, Any]) -> str:
    """The climb, rung by rung."""
    rows = []
    for rung in record["rungs"]:
        link = rung["h2d_gb_per_s"]
        rows.append(
            [
                f"{rung['number']}. {rung['name']}" if rung["number"] else rung["name"],
                str(rung["workers"] or "–"),
                f"{_median(rung['images_per_s']):,.0f}",
                "{min:,.0f} to {max:,.0f}".format(**rung["images_per_s"]),
                f"{_median(rung['ms_per_step']):.1f}",
                _percent(rung["wait_share"]),
                _percent(rung["gpu_busy_share"]),
                "–" if link is None else f"{link:.1f}",
            ]
        )
    header = ["rung", "workers", "images/s", "range", "ms/step", "GPU waited", "GPU busy", "GB/s to the GPU"]
    return _table(header, rows)


def _median(value: Any) -> float:
    return float(value["median"] if isinstance(value, dict) else value)


def step(record: dict[str, Any]) -> str:
    """What the device side costs."""
    ms = record["ms_per_step"]
    rows = [
        ["ResNet-50 step, data on the GPU already", f"{_median(ms['resident']):.2f} ms", "1"],
        *(
            [
                f"the same step, {how}",
                f"{_median(ms[name]):.2f} ms",
                f"{_median(record[f'{name}_over_resident']):.4f}",
            ]
            for name, how in (("fed", "fed by `prefetch_to_device`"), ("inline", "copying on the compute stream"))
        ),
        *([f"`next()` of {name}, batch ready", f"{_median(us):.0f} µs", ""] for name, us in record["next_us"].items()),
    ]
    parity = record["parity"]["fastloader_over_dataloader"]
    rows.append(["no GPU, worker processes: images/s of FastLoader over DataLoader", "", f"{_median(parity):.3f}"])
    return _table(["", "median", "ratio"], rows)


def slots(record: dict[str, Any]) -> str:
    """Slots beside torch's pinning."""
    rows = []
    for name, case in record["cases"].items():
        large = case["batch_bytes"] > 2**20
        key, unit = ("gigabytes_per_s", "GB/s") if large else ("batches_per_s", "batches/s")
        held = case["held_bytes"]
        rows.append(
            [
                name,
                *(f"{_median(case[key][who]):,.1f} {unit}" for who in ("torch", "fastload")),
                f"{_median(case['speedup']):.1f}×",
                *(f"{held[who]['third epoch'] / 1e6:,.0f} MB" for who in ("torch", "fastload")),
            ]
        )
    header = ["delivered on the GPU", "torch, pinned", "FastLoader", "speed-up"]
    header += ["torch holds, third epoch", "FastLoader holds, third epoch"]
    return _table(header, rows)


def decode(record: dict[str, Any]) -> str:
    """The core beside other decoders."""
    core = record["one core"]
    times = core["microseconds_per_image"]
    names = {
        "torchvision": "torchvision on Pillow",
        "DALI": "DALI, CPU",
        "libjpeg-turbo alone": "libjpeg-turbo's region decode alone, no resize (from memory)",
        "fastload on libjpeg-turbo": "fastload with libjpeg-turbo in the place of its own decoder",
        "fastload": "fastload",
        "fastload, from memory": "fastload, from memory",
        "fastload, indexed": "fastload, with an index",
        "fastload, indexed, from memory": "fastload, with an index, from memory",
    }
    rows = []
    for name, shown in names.items():
        if name not in times:
            continue
        quotient = core.get(name, {}).get("median")
        ratio = ""
        if quotient is not None:
            ratio = f"{quotient:.2f}× its time" if name == "libjpeg-turbo alone" else f"{quotient:.1f}× as fast"
        indexed = core.get("indexed", {}).get(name)
        if indexed is not None:
            ratio += f", with an index {_median(indexed):.2f}×"
        rows.append([shown, f"{_median(times[name]):,.0f} µs", ratio])
    elsewhere = []
    for path in sorted(RESULTS.glob("decode-*.json")):
        other = json.loads(path.read_text())
        quotient, ran = _median(other["one core"]["torchvision"]), other["environment"]
        elsewhere.append(f"{quotient:.1f}× ({ran['cpu']}, {ran['usable_cpus']} cores, `{path.name}`)")
    others = f"\n\nBeside torchvision on other machines: {', '.join(elsewhere)}." if elsewhere else ""
    return f"{_table(['one core', 'per image', 'fastload is'], rows)}{others}"


def recipes(record: dict[str, Any]) -> str:
    """Well-known training programs, one by one."""
    return f"{_counted(record)}\n\n{onecore(record)}"


def onecore(record: dict[str, Any]) -> str:
    """What runs where, and how fast, one by one."""
    rows = []
    for row in record["rows"]:
        speed, gain = row.get("images_per_s"), row.get("speedup")
        if speed is None or gain is None:
            rows.append([row["recipe"], row["what"], row.get("skipped", "different batches"), *["–"] * 3])
            continue
        rates = [f"{_median(speed[name]):,.0f}" for name in ("torch", "fastload")]
        place = row["where"].removeprefix("workers, ")
        rows.append([row["recipe"], row["what"], place, *rates, with_farthest(gain, ".1f", "×")])
    header = ["recipe", "transforms", "runs on", "torch, images/s", "fastload, images/s", "speed-up"]
    return _table(header, rows, texts=3)


def sources(record: dict[str, Any]) -> str:
    """Loaders over each source, beside what its users would use otherwise."""
    rows = []
    for row in record["rows"]:
        if (speeds := row.get("images_per_s")) is None:
            rows.append([row["what"], row.get("skipped", "different batches"), *["–"] * 4])
            continue
        beside = row["beside"]
        for name, gain in row["speedup"].items():
            rates = [f"{_median(speeds[one]):,.0f}" for one in (beside, name)]
            same = "yes" if name in row["compared"] else "–"
            rows.append([row["what"], f"{name}, beside {beside}", same, *rates, with_farthest(gain, ".1f", "×")])
    header = ["source", "loaders", "same bits", "beside, images/s", "images/s", "speed-up"]
    return _table(header, rows, texts=3)


def programs(record: dict[str, Any]) -> str:
    """Programs as their authors wrote them, one by one."""
    counts = record["counts"]
    text = (
        f"{counts['same']} of {counts['programs']} runs get torch's batches, bit for bit; {counts['native']} run "
        f"wholly on decode threads; {counts['faster']} are faster than 1.3 times torch's DataLoader, "
        f"{counts['decoding_faster']} of the {counts['decoding']} among them whose samples take a third of their time "
        f"or more to decode."
    )
    for row in record["not_compared"]:
        text += (
            f" Not counted: {row['repository']}, {row['program']}, where two epochs of torch's own loader differ "
            f"({row['speedup']['median']:.2f}×)."
        )
    rows = []
    for row in record["rows"]:
        rates = [f"{_median(row['images_per_s'][name]):,.0f}" for name in ("torch", "fastload")]
        gain = row["speedup"]
        texts = [row["repository"], row["program"], str(row["workers"]), row["where"].removeprefix("workers, ")]
        rows.append([*texts, _percent(row["decode_share"]), *rates, with_farthest(gain, ".2f", "×")])
    header = ["repository", "program", "workers", "runs on", "decoding", "torch, images/s", "fastload, images/s"]
    return f"{text}\n\n{_table([*header, 'speed-up'], rows, texts=4)}"


def _counted(record: dict[str, Any]) -> str:
    counts = record["counts"]
    text = "{same} of {recipes} give torch's batches, bit for bit; {native} run wholly on decode threads; {faster} are"
    skipped = f" {counts['skipped']} were skipped." if counts["skipped"] else ""
    cut_off = "" if record.get("complete", True) else " The run ended early: the other recipes were not measured."
    note = f"{cut_off} {record['note'] or ''}".rstrip()
    return f"{text.format(**counts)} faster than 1.3 times torch's DataLoader.{skipped}{note}"


_FITS = {
    NATIVE: (
        "JPEG, PNG or WebP files in `ImageFolder` or another dataset that the plan knows, in archives or object "
        "stores, or arrays of CIFAR's and MNIST's kind; crops, flips, resizes, colours, `RandAugment` and the like "
        "of torchvision or timm",
        "C++ decode threads, no worker processes",
    ),
    AROUND: (
        "the same with a `collate_fn`, `target_transform` or `worker_init_fn` of your own",
        "torch's workers; samples are made natively in them",
    ),
    LAZY: (
        "any other dataset and transforms that open JPEG files with Pillow",
        "torch's workers, your code as it is; only what is used of a file is decoded, natively",
    ),
}


def fit(record: dict[str, Any]) -> str:
    """What runs where, and how much faster the recipes of that kind are."""
    rows = []
    for place, what in _FITS.items():
        gains = [_median(row["speedup"]) for row in record["rows"] if row.get("where") == place and row.get("speedup")]
        ends = dict.fromkeys(f"{value:.1f}" for value in (min(gains), max(gains))) if gains else ()
        rows.append([*what, f"{' to '.join(ends)}×" if ends else "not measured"])
    rest = "anything else: other arrays, text, audio"
    rows.append([rest, "torch's workers, into pinned slots", "none, but for the copy to the GPU"])
    rows.append(["a model that keeps the GPU busy already", "–", "none"])
    return _table(["you have", "it runs on", "loader's speed-up over torch's"], rows, texts=3)


def beside(record: dict[str, Any]) -> str:
    """Loaders alone, and what decoding on the GPU costs where that was measured."""
    path = RESULTS / "gpudecode.json"
    on_gpu = _gpu_tables.brief(json.loads(path.read_text())) if path.exists() else ""
    return f"{_peer_topics.brief(record)}\n\n{on_gpu}".rstrip()


SECTIONS: Sections = {"ladder": ladder, "step": step, "slots": slots, "decode": decode}
SHARE: Sections = {"train": _peer_topics.share}
PAGES: Final[dict[Path, Sections]] = {
    README: {**SHARE, "recipes-h200": fit, "loaders-decode": beside},
    INDEX: SHARE,
    FIT: {"recipes-h200": fit},
    LADDER: SECTIONS,
    BENCHMARKS: {
        "recipes": recipes,
        "recipes-h200": recipes,
        "onecore": onecore,
        "sources": sources,
        "sources-16-cores": sources,
        "programs": programs,
        "gpudecode": _gpu_tables.long,
        **{name: functools.partial(_peer_topics.long, name) for name in _peer_topics.TOPICS},
    },
    SOURCES: dict.fromkeys(("objectstore", "objectstore-16-cores"), _source_tables.objectstore),
    CLUSTER: {"cluster": _source_tables.cluster},
}
"""What stands on a page, by the name of its markers, which is that of the record."""


def render(text: str, page: Path) -> str:
    """Return ``text`` with the content between its markers regenerated.

    The content is empty where there is no result yet.
    """
    for name, section in PAGES[page].items():
        path = RESULTS / f"{name}.json"
        body = f"<!-- figures: {name} -->\n<!-- end -->"
        if path.exists():
            record = json.loads(path.read_text())
            if record.get("parameters", {}).get("quick"):
                raise ValueError(f"{path.name} must not be of a quick run, whose figures mean nothing")
            if not record.get("complete", True) and "rows" not in record:  # each row of recipes is whole by itself
                raise ValueError(f"{path.name} must be of a run that came to its end, but it was cut off")
            link = f"{os.path.relpath(ROOT, page.parent)}/benchmarks/results/{name}.json".removeprefix("./")
            source = f"[{name}.json]({link})" if page == README else f"`benchmarks/results/{name}.json`"
            body = f"<!-- figures: {name} -->\n{section(record)}\n\n{_where(record, source)}.\n<!-- end -->"
        before, *rest = re.split(rf"<!-- figures: {name} -->.*?<!-- end -->", text, flags=re.S)
        if len(rest) != 1:
            raise ValueError(f"{page.name} must have the markers of {name!r} once, found {len(rest)}")
        text = before + body + rest[0]
    return text


def charts() -> dict[Path, str]:
    """The charts beside the tables, by their files."""
    paths = {name: RESULTS / f"{name}.json" for name in _peer_topics.TOPICS}
    return {
        CHARTS / f"{name}.svg": _peer_charts.chart(name, json.loads(path.read_text()))
        for name, path in paths.items()
        if path.exists()
    }


def main(args: argparse.Namespace) -> int:
    """Write, or check."""
    wanted = {page: render(page.read_text(), page) for page in PAGES} | charts()
    stale = {path: text for path, text in wanted.items() if not path.exists() or path.read_text() != text}
    if args.check:
        for path in stale:
            sys.stderr.write(f"{path.name} is out of date: run 'make figures'\n")
        return int(bool(stale))
    CHARTS.mkdir(exist_ok=True)
    for path, text in stale.items():
        path.write_text(text)
    for dark in (False, True):
        draw_pictures(ROOT / "docs", dark=dark)
    return 0


def draw_pictures(folder: Path, *, dark: bool) -> None:
    """Draw the pictures of docs/ladder.md and docs/profiling.md, for light pages or for dark ones."""
    from fastload.bench import _chart
    from fastload.profiling.pages import timeline

    suffix = "-dark.png" if dark else ".png"
    _chart.draw(json.loads((RESULTS / "ladder.json").read_text()), folder / f"ladder{suffix}", dark=dark)
    record = json.loads((RESULTS / "timeline.json").read_text())
    rows = timeline.from_record(record["timeline"])
    timeline.draw(rows, folder / f"timeline{suffix}", record["title"], dark=dark)
