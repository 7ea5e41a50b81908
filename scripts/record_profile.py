"""Record the ladder's last rungs with Nsight Systems; write figures and a timeline.

    python scripts/record_profile.py --json benchmarks/results/profile.json --timeline benchmarks/results/timeline.json

ResNet-50 in bfloat16 on photographs, under ``fastload profile``: once fed by worker processes that write into pinned
slots, once by the native engine, of which ``make figures`` draws the picture. Every number is computed from the SQLite
file that nsys exported. About a minute and a half; ``--with torch`` records with torch.profiler instead.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from fastload._machine import usable_cpus
from fastload.bench import TINY
from fastload.bench._data import image_pool, open_images
from fastload.bench._rungs import StepFeed, rungs
from fastload.bench._steps import TrainingStep
from fastload.commands import profile
from fastload.commands.bench import DATA
from fastload.measurement.record import environment, write_json
from fastload.profiling.pages.report import make_report
from fastload.profiling.pages.timeline import lay_out, thinned

RUNGS = {"workers": "pinned slots", "native": "native engine"}
"""What is recorded, by the name of its rung."""

WARMUP = 40
STEPS = 6  # as many as can be told apart in the picture
BARS_KEPT = 300  # of a row; kernels that touch in the picture are one


def train(which: str, args: argparse.Namespace) -> None:
    """Run one rung's loop in the recorded program until the recording is complete."""
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset, _ = open_images(args.data, args.quick)
    rung = next(rung for rung in rungs(usable_cpus()) if rung.name == RUNGS[which])
    batch_size = 8 if args.quick else 256
    feed = StepFeed(rung, dataset, image_pool(dataset), batch_size, device)
    step = TrainingStep(TINY if args.quick else "resnet50", device, channels_last=True)
    for batch in itertools.islice(feed.batches, 4 * (WARMUP + STEPS)):
        images, labels = feed.move(*batch)
        step(feed.lay_out(images), labels)


def record(which: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Record one rung and return the numbers."""
    kept = folder / which
    command = [sys.executable, "-m", "fastload", "profile", "--with", args.tool, "--no-html"]
    command += ["--warmup", str(4 if args.quick else WARMUP), "--steps", str(STEPS), "--keep", str(kept)]
    command += ["--", sys.executable, __file__, "--train", which]
    command += ["--quick"] if args.quick else []
    command += ["--data", str(args.data)] if args.data else []
    subprocess.run(command, check=True)
    recording = profile.read(kept)
    report = make_report(recording, profile.loaders_verdict(kept))
    if which == "native":
        picture = lay_out(recording, report.findings)
        bars = [tuple(thinned(row.bars, picture.length_ns, BARS_KEPT)) for row in picture.rows]
        kept_rows = [dataclasses.replace(row, bars=left) for row, left in zip(picture.rows, bars, strict=True)]
        rows = dataclasses.asdict(dataclasses.replace(picture, rows=tuple(kept_rows)))
        title = f"{report.verdict.name}: {'; '.join(report.verdict.evidence[:2])}"
        write_json(args.timeline, {"environment": environment(), "title": title, "timeline": rows})
    found = report.to_dict()
    for use in found["ranges"]:
        same = [
            span.thread
            for span in recording.ranges
            if (span.domain, span.name) == (use["domain"], use["name"])
            and recording.threads[span.thread].role == use["role"]
        ]
        use["processes"] = len({thread.process for thread in same})
    return {"rung": RUNGS[which], **found}


def main() -> None:
    """Record both, or be what is recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/profile.json"), help="the numbers")
    parser.add_argument(
        "--timeline", type=Path, default=Path("benchmarks/results/timeline.json"), help="what the picture shows"
    )
    parser.add_argument("--keep", type=Path, help="keep the recordings there")
    parser.add_argument("--with", dest="tool", choices=("nsys", "torch"), default="nsys", help="what records")
    parser.add_argument("--quick", action="store_true", help="tiny, to see that it works; the figures mean nothing")
    parser.add_argument("--train", choices=RUNGS, help="be the program that is recorded")
    DATA(parser)
    args = parser.parse_args()
    if args.train:
        train(args.train, args)
        return
    open_images(args.data, args.quick)  # photographs are written before anything is recorded
    with tempfile.TemporaryDirectory(prefix="fastload-record-") as scratch:
        found = {which: record(which, args.keep or Path(scratch), args) for which in RUNGS}
    written = write_json(args.json, {"environment": environment(), "recordings": found})
    sys.stdout.write(f"numbers: {written}\ntimeline: {args.timeline}\n")


if __name__ == "__main__":
    main()
