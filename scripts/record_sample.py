"""Record the small Nsight files that the parsers' tests read (tests/data/), on a machine with a GPU, nsys and ncu.

    python scripts/record_sample.py OUT

A tiny training loop runs under ``fastload profile`` and ``fastload kernels``: one FastLoader with two worker processes,
one on the native engine, and one plain pageable copy per step, into a model in NCHW, so that cuDNN converts layouts.
The recording is cut down to what a test needs. Next to each file lies the log of the program that wrote it. About two
minutes; a step that fails is logged, and the others go on.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import subprocess
import sys
import time
import traceback
from pathlib import Path

SIZE_PX = 64
STEPS = 8
WARMUP = 6


def say(text: str) -> None:
    """One message, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


# ---- the program that is recorded


class Pictures:
    """JPEG files of noise, written on first use; a plain Python data set that reads them."""

    def __init__(self, folder: Path, count: int = 512) -> None:
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
    """Train until whoever records has seen enough."""
    import torch
    from torch.cuda import nvtx
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    from fastload import FastLoader, annotate_modules

    pictures = Pictures(folder)
    crop = [transforms.RandomResizedCrop(SIZE_PX), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    common = {"batch_size": 16, "shuffle": True, "num_workers": 2, "drop_last": True, "memory_format": None}
    in_workers = FastLoader(pictures, **common)
    natively = FastLoader(ImageFolder(str(folder), transforms.Compose(crop)), **common)
    layers = [torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3), torch.nn.AdaptiveAvgPool2d(1)]
    device = "cuda" if torch.cuda.is_available() else "cpu"  # to try the program itself
    model = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(64, 4)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss_of = torch.nn.CrossEntropyLoss()
    own = torch.rand(16, 3, SIZE_PX, SIZE_PX)
    annotate_modules(model)
    for (images, labels), (others, targets) in zip(in_workers, natively, strict=False):
        nvtx.range_push("forward")
        with torch.autocast(device, dtype=torch.float16 if device == "cuda" else torch.bfloat16):
            loss = loss_of(model(images), labels) + loss_of(model(others), targets)
            loss = loss + model(own.to(device)).float().mean()
        nvtx.range_pop()
        nvtx.range_push("backward")
        loss.backward()
        nvtx.range_pop()
        nvtx.range_push("optimizer")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        nvtx.range_pop()
        time.sleep(0.012)  # the GPU idles, and the host is seen to sleep


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
    """Nsight Systems: ``nsys.sqlite``; and torch.profiler: the folder ``torch``."""
    fastload = [sys.executable, "-m", "fastload", "profile", "--warmup", str(WARMUP), "--steps", str(STEPS)]
    program = ["--", sys.executable, __file__, "--train", str(out / "pictures")]
    pictures = ["--html", str(out / "nsys.html"), "--png", str(out / "nsys.png")]
    log(out, "nsys", [*fastload, "--with", "nsys", "--keep", str(out / "nsys"), *pictures, *program])
    pictures = ["--html", str(out / "torch.html"), "--png", str(out / "torch.png")]
    log(out, "torch", [*fastload, "--with", "torch", "--keep", str(out / "torch"), *pictures, *program])
    say(f"nsys.sqlite: {shrink(out / 'nsys' / 'profile.sqlite', out / 'nsys.sqlite')} bytes")


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
        where = " WHERE end - start > 50000" if name == "OSRT_API" else ""
        if name in ("ThreadNames", "PROCESSES"):  # of the whole system
            own = "globalTid" if name == "ThreadNames" else "globalPid"
            seen = " UNION ".join(
                f"SELECT globalTid / 0x1000000 FROM source.{of}" for of in ("OSRT_API", "NVTX_EVENTS")
            )
            where = f" WHERE {own} / 0x1000000 IN ({seen})"
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
    """Nsight Compute: ``forward/ncu.csv`` by module, ``full/ncu.csv`` with ncu's full set."""
    fastload = [sys.executable, "-m", "fastload", "kernels", "--range", "forward", "--warmup", str(WARMUP)]
    program = ["--", sys.executable, __file__, "--train", str(out / "pictures")]
    files = ["--csv", str(out / "kernels.csv"), "--png", str(out / "kernels.png")]
    log(out, "kernels", [*fastload, "--keep", str(out / "forward"), *files, *program])
    log(out, "full", [*fastload, "--set", "full", "--most", "4", "--keep", str(out / "full"), *program])
    product = "import torch; a = torch.randn(4096, 4096, device='cuda', dtype=torch.bfloat16)\n"
    product += "from fastload import DataLoader\nfor _ in DataLoader(range(99), device='cpu'): a @ a"
    log(
        out,
        "product",
        [*fastload, "--range", "step", "--keep", str(out / "product"), "--", sys.executable, "-c", product],
    )


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
    shutil.rmtree(args.out / "pictures", ignore_errors=True)


if __name__ == "__main__":
    main()
