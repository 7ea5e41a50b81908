"""Headings, texts and tables of docs/benchmarks.md about peers, and README's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from benchmarks._peer_tables import (
    WORKERS,
    Column,
    cell,
    cpu,
    energy,
    firstbatch,
    loaders,
    memory,
    multigpu,
    one_model,
    scaling,
    table,
    train,
    who_is_ahead,
)
from fastload.bench._steps import whole_bursts


def absent(record: dict[str, Any]) -> str:
    """Who did not take part, or ended on the way, and why."""
    reasons = []
    for known in record["contenders"].values():
        reason = known.get("missing") or known.get("failed")
        if reason:
            reasons.append(f"* {known['title']}: {_first_words(reason)}")
    return "Not measured, or not everywhere:\n\n" + "\n".join(reasons) if reasons else ""


def _first_words(reason: str, most: int = 200) -> str:
    line = " ".join(reason.split()).replace("|", "/").replace("<", "‹").replace(">", "›")
    return line if len(line) <= most else line[:most].rsplit(" ", 1)[0] + " …"


def _without_slots(record: dict[str, Any]) -> str:
    turns = [turn for point in record["points"] for turn in point["contenders"].get(WORKERS, {}).get("turns", ())]
    without = sum(1 for turn in turns if not turn["pinned"]["arena_bytes"])
    if not without or not record["environment"]["gpu"]:
        return ""
    return (
        "FastLoader's workers begin on torch's path while their slots are made; "
        f"in {without} of {len(turns)} turns they had none yet at the end."
    )


@dataclass(frozen=True)
class Topic:
    """One question.

    Attributes:
        columns: Of a record.
        heading: In docs/benchmarks.md.
        text: What is measured.
        drawn: Titles of the columns in its chart; none: all of them.
        note: What is to be known of this record.
    """

    columns: Callable[[dict[str, Any]], list[Column]]
    heading: str
    text: str
    drawn: tuple[str, ...] = ()
    note: Callable[[dict[str, Any]], str] = lambda record: ""


def _pixels(record: dict[str, Any]) -> str:
    """Whose whole images differ from Pillow's, and by how much."""
    off = []
    for known in record["contenders"].values():
        seen = known.get("check", {})
        if seen.get("mean_difference"):
            off.append(f"{known['title']} {seen['mean_difference']:.2f} (at most {seen['largest_difference']:.0f})")
    return f"Mean difference from Pillow's pixels, of 255, in whole resized images: {'; '.join(off)}." if off else ""


TOPICS = {
    "loaders": Topic(
        loaders,
        "The loader alone",
        "Images per second, delivered as normalized float32 on the GPU; nothing is done with them.",
        drawn=("16 threads",),
    ),
    "loaders-two-cores": Topic(
        loaders, "Without a GPU", "Images per second on two cores, delivered as normalized float32 in host memory."
    ),
    "train": Topic(
        train,
        "Training",
        "bf16 training as a share of the same step with its data on the GPU already. Cores: loader and training loop "
        "may use no more.",
        drawn=("ResNet-50, 6 cores", "ResNet-50, 16 cores", "ResNet-18, 6 cores", "ViT-S/16, 6 cores"),
    ),
    "loaders-augmented": Topic(
        loaders,
        "The loader alone, with augmentation",
        "Images per second, with torchvision's policies and RandomErasing; delivered as normalized float32 on the GPU.",
    ),
    "train-augmented": Topic(
        train,
        "Training with augmentation",
        "bf16 training with torchvision's policies and RandomErasing, as a share of the same step with its data on the "
        "GPU already. Loader and training loop may use no more than these cores.",
    ),
    "loaders-decode": Topic(
        loaders,
        "Decoding on threads and on the GPU, the loader alone",
        "Images per second once the index knows the files, from the second epoch on; delivered as normalized float32 "
        "on the GPU; nothing is done with them. 16 threads were asked minutes later, when the machine was slower for "
        "all.",
        drawn=("16 threads",),
        note=_pixels,
    ),
    "loaders-ffcv": Topic(
        loaders,
        "Decoding on the GPU beside FFCV, the loader alone",
        "A run a quarter of an hour before, on the same machine, beside FFCV and nvJPEG instead of DALI.",
        drawn=("16 threads",),
        note=_pixels,
    ),
    "train-decode": Topic(
        train,
        "Decoding on threads and on the GPU, training",
        "bf16 training once the index knows the files, as a share of the same step with its data on the GPU already. "
        "Loader and training loop may use no more than these cores. FastLoader, native, chooses batch by batch where "
        "to decode. RandAugment comes with RandomErasing; DALI's are its own.",
    ),
    "loaders-nvjpeg": Topic(
        loaders,
        "Decoding on the GPU beside nvJPEG, the loader alone",
        "An earlier run, beside two ways to nvJPEG instead of DALI.",
        drawn=("16 threads",),
        note=_pixels,
    ),
    "train-gpudecode": Topic(
        train,
        "Decoding on the GPU, training on few cores",
        "A later run of more models, and with RandAugment. Turns are short: the time in which "
        "FastLoader, native chooses counts.",
    ),
    "scaling-decode": Topic(
        scaling,
        "Decoding on threads and on the GPU, size of images and batches",
        "Images per second once the index knows the files, cropped and resized to 224 px. Batches of 1024, and "
        "photographs of 256 px, are of another run, on another such host.",
    ),
    "memory-decode": Topic(
        memory,
        "Decoding on threads and on the GPU, memory",
        "Added by a running loader at its peak, from its start on; of the GPU all that the driver says is in use.",
    ),
    "energy": Topic(
        energy,
        "Energy of the GPU",
        "What the driver counts while the loader runs alone, less what the GPU takes while nothing runs.",
    ),
    "multigpu-decode": Topic(
        multigpu,
        "Decoding on the GPU, one GPU and several",
        "Images per second in all, under torchrun with DistributedDataParallel and a DistributedSampler; all processes "
        "share the same cores.",
    ),
    "train-resnet50": Topic(
        one_model,
        "Training, one model",
        "bf16 training with FFCV's JPEG, too, and what `next()` takes of the training loop's thread. Cores: loader and "
        "training loop may use no more.",
    ),
    "firstbatch": Topic(
        firstbatch, "Time to the first batch", "From making the loader, in a process where everything is imported."
    ),
    "memory": Topic(
        memory,
        "Memory",
        "Added by a running loader at its peak, from its start on; shared and pinned memory count, for everybody.",
        note=_without_slots,
    ),
    "firstbatch-workers": Topic(
        firstbatch,
        "Time to the first batch, transforms in worker processes",
        "With a step that is not known before the usual ones, a later run: workers have lazy images and send uint8.",
    ),
    "memory-workers": Topic(
        memory, "Memory, transforms in worker processes", "The same loaders as in the table of first batches."
    ),
    "cpu": Topic(cpu, "Processor time", "All threads and processes of the loader; and `next()` in the training loop."),
    "scaling": Topic(
        scaling,
        "Size of images and batches",
        "Images per second of the loader alone, cropped and resized to 224 px.",
        drawn=("256 px, 16 KB, batches of 256", "1000 px, 208 KB, batches of 64", "4000 px, 3,625 KB, batches of 16"),
    ),
    "multigpu": Topic(
        multigpu,
        "One GPU and several",
        "Images per second in all, under torchrun with DistributedDataParallel and a DistributedSampler.",
        drawn=("1 GPU", "4 GPUs"),
    ),
}


DECODES_ON_GPU_SINCE = "2026-11-24"


IN_SHORT = ("torch-pinned", "dali-cpu", "dali-gpu", "fastload")
"""Contenders of the first table of README and documentation."""


IN_BRIEF = ("torch-pinned", "dali-cpu", "dali-gpu", "torchvision-gpu", "torchcodec-gpu", "ffcv", "fastload")
"""Contenders of README's sentence about loaders alone."""


def share(record: dict[str, Any]) -> str:
    """The first table: one model's share of full GPU speed."""
    points = [point for point in record["points"] if point["model"] == "resnet50"]
    columns = [
        replace(one, title=one.title.partition(", ")[2].partition("<br>")[0]) for one in train({"points": points})
    ]
    few = {name: known for name, known in record["contenders"].items() if name in IN_SHORT}
    head = "| ResNet-50, share of full GPU speed |"
    shown = table({"contenders": few}, columns, spread=True).replace("|  |", head, 1)
    columns = [replace(one, values={who: one.values[who] for who in few}) for one in columns]
    ahead = who_is_ahead({"contenders": few}, columns)
    return f"{shown}\n\nMedian ± the farthest of five repeats. {ahead} {_age(record)}".rstrip()


def brief(record: dict[str, Any]) -> str:
    """What README says of loaders alone: few contenders, the fastest first."""
    few = {name: known for name, known in record["contenders"].items() if name in IN_BRIEF}
    columns = [
        replace(one, values={name: one.values[name] for name in few if name in one.values}) for one in loaders(record)
    ]
    order = sorted(few, key=lambda name: -columns[-1].values.get(name, 0.0))
    rates = [
        f"{few[name]['title']} {' / '.join(cell(one, name, spread=False) for one in columns)}"
        for name in order
        if any(name in one.values for one in columns)
    ]
    threads = " / ".join(one.title.partition(" ")[0] for one in columns)
    ahead = who_is_ahead({"contenders": few}, columns).replace("\n\n", " ")
    return f"Images per second with {threads} threads: {'; '.join(rates)}. {ahead}"


def long(name: str, record: dict[str, Any]) -> str:
    """Format the long table: with the repeats' spread, the method, and missing contenders."""
    topic = TOPICS[name]
    columns = topic.columns(record)
    parts = [
        f"## {topic.heading}",
        f"{topic.text} Median ± the farthest repeat.",
        f"![{topic.heading}, as bars](charts/{name}.svg)",
        table(record, columns, spread=True),
        who_is_ahead(record, columns),
        _age(record),
        topic.note(record),
        absent(record),
        _how(record),
        _versions(record),
    ]
    return "\n\n".join(part for part in parts if part)


def _age(record: dict[str, Any]) -> str:
    """Say if a record is older than decoding on the GPU."""
    environment = record["environment"]
    if not environment["gpu"] or environment["date"] >= DECODES_ON_GPU_SINCE or "fastload" not in record["contenders"]:
        return ""
    return "Recorded before FastLoader decoded on the GPU, too."


def _how(record: dict[str, Any]) -> str:
    asked, points = record["parameters"], record["points"]
    said = []
    for key, one, what in (("repeats", "repeat", "repeats"), ("batch_size", "image a batch", "images a batch")):
        found = sorted({point.get(key, asked.get(key)) for point in points} - {None})
        if found:
            said.append(f"{' or '.join(map(str, found))} {one if found == [1] else what}")
    if isinstance(asked.get("threads"), int):
        said.append(f"{asked['threads']} threads")
    if threads := sorted({point["threads"] for point in points if "processes" in point}):
        said.append(f"{' or '.join(map(str, threads))} threads a process")
    said += _turns(asked, [result for point in points for result in point["contenders"].values()], points)
    for data in [record["dataset"], *(point["dataset"] for point in points if "dataset" in point)]:
        cached = data.get("page_cache_share")
        share = "" if cached is None else f", {cached:.0%} of them in the page cache"
        said.append(f"{data['images']} images of {data['mean_kb']:,.0f} KB{share}")
    return f"{'; '.join(dict.fromkeys(said))}."


def _turns(asked: dict[str, Any], results: list[dict[str, Any]], points: list[dict[str, Any]]) -> list[str]:
    """How long the turns were."""
    limits = sorted({point["row_seconds"] for point in points if point.get("row_seconds")})
    if steps := sorted({result["steps"] for result in results if "steps" in result}):
        said = [f"turns of {' to '.join(map(str, dict.fromkeys((steps[0], steps[-1]))))} steps"]
    elif asked.get("steps"):
        steps = sorted({whole_bursts(asked["steps"], point["threads"]) for point in points})
        said = [f"turns of {' or '.join(map(str, steps))} steps"]
    elif any("images_per_s" in result for result in results):
        seconds = sorted({point.get("seconds", asked["seconds"]) for point in points})
        said = [f"turns of {'up to' if limits else 'at least'} {' or '.join(f'{one:g}' for one in seconds)} s"]
    else:
        return []
    return said + [f"about {' or '.join(f'{one:g}' for one in limits)} s for all turns of a column" for _ in limits[:1]]


def _versions(record: dict[str, Any]) -> str:
    found: dict[str, str] = {}
    for known in record["contenders"].values():
        found |= known.get("versions", {})
    return f"Versions: {', '.join(f'{name} {version}' for name, version in sorted(found.items()))}." if found else ""
