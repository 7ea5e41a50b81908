"""Record the small Nsight files that the parsers' tests read (tests/data/), on a machine with a GPU, nsys and ncu.

    python scripts/record_sample.py OUT

A tiny training loop runs for six steps under Nsight Systems: one FastLoader with two worker processes, one on the
native engine, and one plain pageable copy per step, into a model in NCHW, so that cuDNN converts layouts. What was
recorded is exported to SQLite and cut down to what a test needs. Then the same loop runs under Nsight Compute, which
measures the kernels of its range ``forward``. Next to each file lies the log of the programs that wrote it. About one
minute and a half; a step that fails is logged, and the others go on.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import subprocess
import sys
import time
import traceback
from pathlib import Path

from fastload._checks_gpu import find_nsight
from fastload.insight import nsight

SIZE_PX = 64
WARMUP = 4
STEPS = 6

METRICS = (
    "gpu__time_duration.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum",
    "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum",
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    "smsp__sass_thread_inst_executed_op_hadd_pred_on.sum",
    "smsp__sass_thread_inst_executed_op_hmul_pred_on.sum",
    "smsp__sass_thread_inst_executed_op_hfma_pred_on.sum",
    "sm__inst_executed_pipe_tensor.sum",
)


def say(text: str) -> None:
    """One message, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


# ---- the program that is recorded


class Pictures:
    """JPEG files of noise, written on first use; a plain Python data set that reads them."""

    def __init__(self, folder: Path, count: int = 256) -> None:
        from PIL import Image

        self.paths = []
        for number in range(count):
            path = folder / f"{number % 4}" / f"{number}.jpg"
            self.paths.append(path)
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.frombytes("RGB", (160, 120), os.urandom(160 * 120 * 3)).save(path, quality=80)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int):
        import torch
        from PIL import Image

        with Image.open(self.paths[index]) as image:
            small = image.convert("RGB").resize((SIZE_PX, SIZE_PX))
        pixels = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8)
        return pixels.view(SIZE_PX, SIZE_PX, 3).permute(2, 0, 1) / 255, index % 4


def train(folder: Path) -> None:
    """Train a few steps, and have ``STEPS`` of them recorded."""
    import torch
    from torch.cuda import nvtx
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    from fastload import FastLoader

    pictures = Pictures(folder)
    crop = [transforms.RandomResizedCrop(SIZE_PX), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    common = {"batch_size": 16, "shuffle": True, "num_workers": 2, "drop_last": True, "memory_format": None}
    in_workers = FastLoader(pictures, **common)
    natively = FastLoader(ImageFolder(str(folder), transforms.Compose(crop)), **common)
    layers = [torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3), torch.nn.AdaptiveAvgPool2d(1)]
    model = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(64, 4)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss_of = torch.nn.CrossEntropyLoss()
    own = torch.rand(16, 3, SIZE_PX, SIZE_PX)
    for step, ((images, labels), (others, targets)) in enumerate(zip(in_workers, natively, strict=False)):
        if step == WARMUP:
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
        if step == WARMUP + STEPS:
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()
            break
        nvtx.range_push("step")
        nvtx.range_push("forward")
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_of(model(images), labels) + loss_of(model(others), targets)
            loss = loss + model(own.cuda()).float().mean()
        nvtx.range_pop()
        nvtx.range_push("backward")
        loss.backward()
        nvtx.range_pop()
        nvtx.range_push("optimizer")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        nvtx.range_pop()
        nvtx.range_pop()
        time.sleep(0.002)  # the GPU idles, and the host is seen to sleep
    say(f"{in_workers.plan}\n\n{natively.plan}")


# ---- recording


def log(out: Path, name: str, command: list[str]) -> str:
    """Run ``command``, keep what it says, and return it."""
    start = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    text = f"$ {' '.join(command)}\n{done.stdout}\nexit code {done.returncode}, {time.perf_counter() - start:.1f} s\n"
    (out / f"{name}.log").write_text(text)
    say(text if len(text) < 4000 else f"{text[:1500]}\n[...]\n{text[-1500:]}")
    return done.stdout


def record_systems(out: Path) -> None:
    """Nsight Systems: ``nsys.sqlite``."""
    nsys = find_nsight("nsys")
    log(out, "nsys-version", [str(nsys), "--version"])
    recorder = nsight.find_recorder(out)
    say(f"recorder: {recorder}")
    program = [sys.executable, __file__, "--train", str(out / "pictures")]
    output = out / "sample"
    log(out, "nsys", recorder.command(output, program))
    database = recorder.finish(output)
    size = shrink(database, out / "nsys.sqlite")
    say(f"nsys.sqlite: {size} bytes")


def shrink(database: Path, small: Path) -> int:
    """Copy what the parsers read into ``small``; the whole schema and the number of rows go into a text beside it."""
    small.unlink(missing_ok=True)
    source = sqlite3.connect(database)
    tables = dict(source.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall())
    rows = {name: source.execute(f"SELECT COUNT(*) FROM {name}").fetchone()[0] for name in tables}
    schema = "\n".join(f"-- {rows[name]} rows\n{sql};" for name, sql in tables.items())
    small.with_suffix(".schema.txt").write_text(schema)
    kept = [
        name
        for name in tables
        if name.startswith(("CUPTI_ACTIVITY_KIND_", "NVTX_", "ENUM_CUDA", "ENUM_NVTX", "CUDNN", "CUBLAS", "PROFILER_"))
        or name in ("OSRT_API", "ThreadNames", "PROCESSES", "TARGET_INFO_GPU", "ANALYSIS_DETAILS", "StringIds")
    ]
    target = sqlite3.connect(small)
    target.execute("ATTACH ? AS source", (str(database),))
    used: set[int] = set()
    for name in kept:
        where = " WHERE end - start > 20000" if name == "OSRT_API" else ""
        target.execute(tables[name])
        target.execute(f"INSERT INTO {name} SELECT * FROM source.{name}{where}")
        for _, column, *_ in target.execute(f"PRAGMA table_info({name})").fetchall():
            if name != "StringIds" and (column.endswith("Id") or column.endswith("Name")) and column != "globalTid":
                used.update(value for (value,) in target.execute(f"SELECT DISTINCT {column} FROM {name}"))
    target.execute("CREATE TEMP TABLE used (id INTEGER PRIMARY KEY)")
    target.executemany("INSERT OR IGNORE INTO used VALUES (?)", [(value,) for value in used if isinstance(value, int)])
    target.execute("DELETE FROM StringIds WHERE id NOT IN used")
    target.commit()
    target.execute("VACUUM")
    target.close()
    return small.stat().st_size


def record_compute(out: Path) -> None:
    """Nsight Compute: ``ncu*.csv``."""
    ncu = str(find_nsight("ncu"))
    log(out, "ncu-version", [ncu, "--version"])
    log(out, "ncu-sets", [ncu, "--list-sets"])
    log(out, "ncu-metrics", [ncu, "--query-metrics", "--chips", "gh100"])
    program = [sys.executable, __file__, "--train", str(out / "pictures")]
    common = [ncu, "--nvtx", "--clock-control", "none", "--profile-from-start", "off", "--target-processes", "all"]
    common += ["--launch-count", "24", "--csv", "--page", "raw"]
    for name, options in {
        "ncu": ["--nvtx-include", "forward/", "--metrics", ",".join(METRICS)],
        "ncu-full": ["--nvtx-include", "forward/", "--set", "full", "--launch-count", "4"],
        "ncu-stack": ["--nvtx-include", "regex:forward/", "--launch-count", "2", "--set", "basic"],
    }.items():
        log(out, name, [*common, *options, "--log-file", str(out / f"{name}.csv"), *program])


def main() -> None:
    """Record both, or be what is recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--train", action="store_true", help="be the program that is recorded")
    args = parser.parse_args()
    if args.train:
        train(args.out)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    Pictures(args.out / "pictures")
    for step in (record_systems, record_compute):
        try:
            step(args.out)
        except Exception:  # noqa: BLE001 - the other one may still work
            traceback.print_exc()
    for heavy in [*args.out.glob("probe*"), *args.out.glob("sample.sqlite"), *args.out.glob("*.qdstrm")]:
        heavy.unlink()
    for path in (args.out / "pictures").glob("*/*.jpg"):
        path.unlink()


if __name__ == "__main__":
    main()
