"""Record the small Nsight files that the parsers' tests read (tests/data/).

Needs a machine with a GPU, nsys and ncu.

    python scripts/record_sample.py OUT

A tiny training loop runs under ``fastload profile`` and ``fastload kernels``: one FastLoader with two worker processes,
one on the native engine, and one plain pageable copy per step, into a model in NCHW, so that cuDNN converts layouts.
The recordings are cut down to what a test needs and lie in OUT/data then; copy that to tests/data. In OUT are the logs
of the programs that wrote them. About two minutes; a step that fails, or takes too long, is logged, and the others go
on.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import signal
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
    """A plain Python data set of JPEG noise, which is written on first use."""

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
    """Train until the recording is complete."""
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


def log(out: Path, name: str, limit_s: float, command: list[str]) -> None:
    """Run ``command`` for so long at most, and keep what it says."""
    start = time.perf_counter()
    path = out / f"{name}.log"
    with path.open("w") as file:
        file.write(f"$ {' '.join(command)}\n")
        file.flush()
        # A file, and a group of its own: a profiler leaves processes behind that would keep a pipe open.
        running = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = f"exit code {running.wait(limit_s)}"
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
            code = "took too long"
        file.write(f"\n{code}, {time.perf_counter() - start:.1f} s\n")
    text = path.read_text(errors="replace")
    say(text if len(text) < 4000 else f"{text[:1500]}\n[...]\n{text[-1500:]}")


def command_of(what: str, *options: str) -> list[str]:
    """A command line of fastload's."""
    return [sys.executable, "-m", "fastload", what, "--warmup", str(WARMUP), *options]


def record_systems(out: Path, program: list[str]) -> None:
    """Nsight Systems."""
    pictures = ["--html", str(out / "nsys.html"), "--png", str(out / "nsys.png")]
    kept = ["--steps", str(STEPS), "--with", "nsys", "--keep", str(out / "nsys")]
    log(out, "nsys", 60, command_of("profile", *kept, *pictures, *program))
    say(f"nsys.sqlite: {shrink(out / 'nsys' / 'profile.sqlite', out / 'data' / 'nsys.sqlite')} bytes")


def record_modules(out: Path, program: list[str]) -> None:
    """Nsight Compute, by module."""
    files = ["--csv", str(out / "kernels.csv"), "--png", str(out / "kernels.png")]
    log(out, "kernels", 60, command_of("kernels", "--range", "forward", "--keep", str(out / "ncu"), *files, *program))
    keep(out, "ncu")


def record_torch(out: Path, program: list[str]) -> None:
    """Torch.profiler, and the loader's ranges in files."""
    pictures = ["--html", str(out / "torch.html"), "--png", str(out / "torch.png")]
    kept = ["--steps", str(STEPS), "--with", "torch", "--keep", str(out / "torch")]
    log(out, "torch", 40, command_of("profile", *kept, *pictures, *program))
    (out / "data" / "torch").mkdir()
    for path in (out / "torch").glob("*.json*"):
        if path.name == "profile.json":
            (out / "data" / "torch" / "profile.json.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        else:
            shutil.copy(path, out / "data" / "torch" / path.name)


def record_product(out: Path, program: list[str]) -> None:
    """Nsight Compute on one large matrix product, which is bound by arithmetic if anything is."""
    product = "import torch; a = torch.randn(4096, 4096, device='cuda', dtype=torch.bfloat16)\n"
    product += "from fastload import DataLoader\nfor _ in DataLoader(range(99), device='cpu'): a @ a"
    kept = ["--range", "step", "--keep", str(out / "product")]
    log(out, "product", 40, command_of("kernels", *kept, "--", sys.executable, "-c", product))
    keep(out, "product")


def keep(out: Path, name: str) -> None:
    """Put what ``fastload kernels --keep`` kept among the files for the tests."""
    (out / "data" / name).mkdir()
    for file in ("ncu.csv", "ceilings.json"):
        shutil.copy(out / name / file, out / "data" / name / file)


def shrink(database: Path, small: Path) -> int:
    """Copy what the parsers read into ``small``; describe the rest as text.

    The text has the whole schema and the number of rows.
    """
    if not database.exists():  # connecting would make an empty one
        raise FileNotFoundError(database)
    small.unlink(missing_ok=True)
    source = sqlite3.connect(database)
    tables = dict(source.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall())
    rows = {name: source.execute(f"SELECT COUNT(*) FROM {name}").fetchone()[0] for name in tables}
    schema = "\n".join(f"-- {rows[name]} rows\n{sql};" for name, sql in tables.items())
    database.with_name("schema.txt").write_text(schema)
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
                f"SELECT globalTid / 0x1000000 FROM source.{of}" for of in ("OSRT_API", "NVTX_EVENTS") if of in tables
            )
            where = f" WHERE {own} / 0x1000000 IN ({seen})"
        target.execute(tables[name])
        target.execute(f"INSERT INTO {name} SELECT * FROM source.{name}{where}")
        for _, column, *_ in target.execute(f"PRAGMA table_info({name})").fetchall():
            if name != "StringIds" and column.endswith(("nameId", "NameId", "textId", "TextId", "Name")):
                used.update(value for (value,) in target.execute(f"SELECT DISTINCT {column} FROM {name}"))
    target.execute("CREATE TEMP TABLE used (id INTEGER PRIMARY KEY)")
    target.executemany("INSERT OR IGNORE INTO used VALUES (?)", [(value,) for value in used if isinstance(value, int)])
    target.execute("DELETE FROM StringIds WHERE id NOT IN used")
    target.commit()
    target.execute("VACUUM")
    target.close()
    return small.stat().st_size


def main() -> None:
    """Record everything, or be what is recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--train", action="store_true", help="be the program that is recorded")
    args = parser.parse_args()
    if args.train:
        train(args.out)
        return
    shutil.rmtree(args.out / "data", ignore_errors=True)
    (args.out / "data").mkdir(parents=True)
    (args.out / "pictures").mkdir(exist_ok=True)
    Pictures(args.out / "pictures")
    program = ["--", sys.executable, __file__, "--train", str(args.out / "pictures")]
    for step in (record_systems, record_modules, record_torch, record_product):
        try:
            step(args.out, program)
        except Exception:  # noqa: BLE001 - the others may still work
            traceback.print_exc()
    shutil.rmtree(args.out / "pictures", ignore_errors=True)


if __name__ == "__main__":
    main()
