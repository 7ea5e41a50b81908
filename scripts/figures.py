"""Write the README's tables and chart from the JSON files in benchmarks/results: no figure there is typed by hand.

``python scripts/figures.py`` writes them; ``--check`` says whether they are up to date and changes nothing.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
README = ROOT / "README.md"
CHART = ROOT / "docs" / "ladder.png"


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join(["---"] + ["--:"] * (len(header) - 1)) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def _where(record: dict[str, Any], name: str) -> str:
    ran = record["environment"]
    machine = f"{ran['gpu']}, {ran['usable_cpus']} cores" if ran["gpu"] else f"{ran['cpu']}, {ran['usable_cpus']} cores"
    return f"{machine}, torch {ran['torch']}, {ran['date'][:10]}; [{name}](benchmarks/results/{name})"


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
                f"{_median(rung['ms_per_step']):.1f}",
                _percent(rung["wait_share"]),
                _percent(rung["gpu_busy_share"]),
                "–" if link is None else f"{link:.1f}",
            ]
        )
    header = ["rung", "workers", "images/s", "ms/step", "GPU waited", "GPU busy", "GB/s to the GPU"]
    return f"{_table(header, rows)}\n\n{_where(record, 'ladder.json')}."


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
    rows.append(["no GPU: images/s of FastLoader over DataLoader", "", f"{_median(parity):.3f}"])
    return f"{_table(['', 'median', 'ratio'], rows)}\n\n{_where(record, 'step.json')}."


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
    header = ["delivered on the GPU", "torch, pinned", "FastLoader", "speed-up", "held by torch", "held by FastLoader"]
    return f"{_table(header, rows)}\n\n{_where(record, 'slots.json')}."


def decode(record: dict[str, Any]) -> str:
    """The core beside other decoders."""
    core = record["one core"]
    times = core["microseconds_per_image"]
    names = {
        "torchvision": "torchvision on Pillow",
        "DALI": "DALI, CPU",
        "libjpeg-turbo alone": "libjpeg-turbo's region decode alone, no resize (from memory)",
        "fastload": "fastload",
        "fastload, from memory": "fastload, from memory",
    }
    rows = []
    for name, shown in names.items():
        if name not in times:
            continue
        quotient = core.get(name, {}).get("median")
        ratio = ""
        if quotient is not None:
            ratio = f"{quotient:.2f}× its time" if name == "libjpeg-turbo alone" else f"{quotient:.1f}× as fast"
        rows.append([shown, f"{_median(times[name]):,.0f} µs", ratio])
    return f"{_table(['one core', 'per image', 'fastload is'], rows)}\n\n{_where(record, 'decode.json')}."


SECTIONS = {"ladder": ladder, "step": step, "slots": slots, "decode": decode}


def render(readme: str) -> str:
    """``readme`` with what stands between its markers made anew."""
    for name, section in SECTIONS.items():
        path = RESULTS / f"{name}.json"
        if not path.exists():
            continue
        body = f"<!-- figures: {name} -->\n{section(json.loads(path.read_text()))}\n<!-- end -->"
        readme, count = re.subn(
            rf"<!-- figures: {name} -->.*?<!-- end -->", lambda _, body=body: body, readme, flags=re.S
        )
        if count != 1:
            raise ValueError(f"README.md must have the markers of {name!r} once, found {count}")
    return readme


def main() -> int:
    """Write, or check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when something is out of date")
    arguments = parser.parse_args()
    before = README.read_text()
    after = render(before)
    if arguments.check:
        if before != after:
            sys.stderr.write("README.md is out of date: run 'make figures'\n")
        return int(before != after)
    README.write_text(after)
    from fastload.bench._chart import draw

    if (RESULTS / "ladder.json").exists():
        CHART.parent.mkdir(exist_ok=True)
        draw(json.loads((RESULTS / "ladder.json").read_text()), CHART)
    return 0


if __name__ == "__main__":
    sys.exit(main())
