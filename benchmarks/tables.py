"""Markdown tables of records in ``benchmarks/results``, a function for each kind of record.

A peer that is ahead of FastLoader is marked, and a sentence says by how much.
"""

from __future__ import annotations

import json
import math
import operator
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from benchmarks._checkout import RESULTS
from benchmarks.recipes import AROUND, LAZY, NATIVE
from fastload.bench._steps import whole_bursts
from fastload.measurement.record import extent, has_one_repeat

OURS: Final = ("fastload", "fastload-new", "fastload-kept", "fastload-workers", "fastload-cpu", "fastload-gpu")
NO_PEER: Final = (*OURS, "ceiling")
MARK: Final = " ▲"
GAP: Final = "–"


FEWEST_LOOKS: Final = 0.01  # of an image, to name the line: fewer are those of the first images

IN_SHORT: Final = ("torch-pinned", "dali-cpu", "dali-gpu", "fastload")
"""Contenders of the first table of README and documentation."""

IN_BRIEF: Final = ("torch-pinned", "dali-cpu", "dali-gpu", "torchvision-gpu", "torchcodec-gpu", "ffcv", "fastload")
"""Contenders of README's sentence about loaders alone."""


def table(header: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """Format a table whose first ``texts`` columns are text, and the others figures."""
    rule = ["---"] * texts + ["--:"] * (len(header) - texts)
    lines = [f"| {' | '.join(row)} |" for row in (header, *rows)]
    return "\n".join([lines[0], f"|{'|'.join(rule)}|", *lines[1:]])


def median(value: Any) -> float:
    """The middle of the repeats, or a figure that has none."""
    return float(value["median"] if isinstance(value, dict) else value)


def with_farthest(record: dict[str, Any], form: str, unit: str) -> str:
    """Format the median of :meth:`Spread.record` and its distance to the farthest repeat."""
    if has_one_repeat(record):
        return f"{record['median']:{form}}{unit}"
    farthest = max(record["max"] - record["median"], record["median"] - record["min"])
    return f"{record['median']:{form}} ± {farthest:{form}}{unit}"


def where(record: dict[str, Any], name: str) -> str:
    """The machine, versions and date of a record, and its name."""
    ran = record["environment"]
    all_cores = ran.get("cpus", ran["usable_cpus"])  # older records do not say
    of_all = f" of {all_cores}" if all_cores > ran["usable_cpus"] else ""
    machine = f"{ran['gpu'] or ran['cpu']}, {ran['usable_cpus']}{of_all} cores"
    return f"{machine}, torch {ran['torch']}, {ran['date'][:10]}; {name}"


def _percent(share: float | None) -> str:
    return GAP if share is None else f"{100 * share:.0f}%"


def ladder(record: dict[str, Any]) -> str:
    """The climb, rung by rung."""
    rows = [
        [
            f"{rung['number']}. {rung['name']}" if rung["number"] else rung["name"],
            str(rung["workers"] or GAP),
            f"{median(rung['images_per_s']):,.0f}",
            "{min:,.0f} to {max:,.0f}".format(**rung["images_per_s"]),
            f"{median(rung['ms_per_step']):.1f}",
            _percent(rung["wait_share"]),
            _percent(rung["gpu_busy_share"]),
            GAP if rung["h2d_gb_per_s"] is None else f"{rung['h2d_gb_per_s']:.1f}",
        ]
        for rung in record["rungs"]
    ]
    header = ["rung", "workers", "images/s", "range", "ms/step", "GPU waited", "GPU busy", "GB/s to the GPU"]
    return table(header, rows)


def step(record: dict[str, Any]) -> str:
    """The cost of the device side."""
    ms = record["ms_per_step"]
    rows = [["ResNet-50 step, data on the GPU already", f"{median(ms['resident']):.2f} ms", "1"]]
    for name, how in (("fed", "fed by `prefetch_to_device`"), ("inline", "copying on the compute stream")):
        ratio = f"{median(record[f'{name}_over_resident']):.4f}"
        rows.append([f"the same step, {how}", f"{median(ms[name]):.2f} ms", ratio])
    rows += [[f"`next()` of {name}, batch ready", f"{median(us):.0f} µs", ""] for name, us in record["next_us"].items()]
    parity = record["parity"]["fastloader_over_dataloader"]
    rows.append(["no GPU, worker processes: images/s of FastLoader over DataLoader", "", f"{median(parity):.3f}"])
    return table(["", "median", "ratio"], rows)


def slots(record: dict[str, Any]) -> str:
    """Slots beside torch's pinning."""
    rows = []
    for name, case in record["cases"].items():
        large, held = case["batch_bytes"] > 2**20, case["held_bytes"]
        key, unit = ("gigabytes_per_s", "GB/s") if large else ("batches_per_s", "batches/s")
        rates = [f"{median(case[key][who]):,.1f} {unit}" for who in ("torch", "fastload")]
        bytes_held = [f"{held[who]['third epoch'] / 1e6:,.0f} MB" for who in ("torch", "fastload")]
        rows.append([name, *rates, f"{median(case['speedup']):.1f}×", *bytes_held])
    header = ["delivered on the GPU", "torch, pinned", "FastLoader", "speed-up"]
    return table([*header, "torch holds, third epoch", "FastLoader holds, third epoch"], rows)


_DECODERS: Final = {
    "torchvision": "torchvision on Pillow",
    "DALI": "DALI, CPU",
    "libjpeg-turbo alone": "libjpeg-turbo's region decode alone, no resize (from memory)",
    "fastload on libjpeg-turbo": "fastload with libjpeg-turbo in the place of its own decoder",
    "fastload": "fastload",
    "fastload, from memory": "fastload, from memory",
    "fastload, indexed": "fastload, with an index",
    "fastload, indexed, from memory": "fastload, with an index, from memory",
}


def decode(record: dict[str, Any]) -> str:
    """The core beside other decoders."""
    core = record["one core"]
    rows = []
    for name, shown in _DECODERS.items():
        if (time := core["microseconds_per_image"].get(name)) is None:
            continue
        ratio = ""
        if name in core:
            alone = name == "libjpeg-turbo alone"
            ratio = f"{median(core[name]):.2f}× its time" if alone else f"{median(core[name]):.1f}× as fast"
        if (indexed := core.get("indexed", {}).get(name)) is not None:
            ratio += f", with an index {median(indexed):.2f}×"
        rows.append([shown, f"{median(time):,.0f} µs", ratio])
    elsewhere = []
    for path in sorted(RESULTS.glob("decode-*.json")):
        other = json.loads(path.read_text())
        ratio, ran = f"{median(other['one core']['torchvision']):.1f}×", other["environment"]
        elsewhere.append(f"{ratio} ({ran['cpu']}, {ran['usable_cpus']} cores, `{path.name}`)")
    others = f"\n\nBeside torchvision on other machines: {', '.join(elsewhere)}." if elsewhere else ""
    return f"{table(['one core', 'per image', 'fastload is'], rows)}{others}"


def recipes(record: dict[str, Any]) -> str:
    """Well-known training programs, one by one."""
    counts = record["counts"]
    text = "{same} of {recipes} give torch's batches, bit for bit; {native} run wholly on decode threads; {faster} are"
    counted = f"{text.format(**counts)} faster than 1.3 times torch's DataLoader."
    counted += f"{_skipped(counts)}{_cut_off(record, 'recipes')}"
    return f"{counted}\n\n{onecore(record)}"


def onecore(record: dict[str, Any]) -> str:
    """Recipes, where each ran and how fast."""
    rows = []
    for row in record["rows"]:
        known = [row["recipe"], row["what"]]
        if (gain := row.get("speedup")) is None:
            rows.append([*known, row.get("skipped", "different batches"), *[GAP] * 3])
            continue
        place = row["where"].removeprefix("workers, ")
        rows.append([*known, place, *_rates(row, "torch", "fastload"), with_farthest(gain, ".1f", "×")])
    header = ["recipe", "transforms", "runs on", "torch, images/s", "fastload, images/s", "speed-up"]
    return table(header, rows, texts=3)


def _rates(row: dict[str, Any], *names: str) -> list[str]:
    return [f"{median(row['images_per_s'][name]):,.0f}" for name in names]


def sources(record: dict[str, Any]) -> str:
    """Loaders over each source, beside what its users would use otherwise."""
    rows = []
    for row in record["rows"]:
        if "images_per_s" not in row:
            rows.append([row["what"], row.get("skipped", "different batches"), *[GAP] * 4])
            continue
        beside = row["beside"]
        for name, gain in row["speedup"].items():
            known = [row["what"], f"{name}, beside {beside}", "yes" if name in row["compared"] else GAP]
            rows.append([*known, *_rates(row, beside, name), with_farthest(gain, ".1f", "×")])
    header = ["source", "loaders", "same bits", "beside, images/s", "images/s", "speed-up"]
    return table(header, rows, texts=3)


def programs(record: dict[str, Any]) -> str:
    """Programs of today, kind by kind, and where they read deferred pixels."""
    found = record["counts"]
    text = (
        f"{found['same']} of {found['compared']} programs get torch's batches, bit for bit, and "
        f"{found['states_same']} of {found['measured']} the same states of generators; {found['native']} run wholly on "
        f"decode threads; {found['faster']} are faster than 1.3 times torch's DataLoader, {found['slower']} are slower "
        f"than it.{_skipped(found)}"
    )
    chance = [row["program"] for row in record["rows"] if row.get("same", False) is None]
    if chance:
        text += f" Not compared, because epochs of torch's own loader differ: {', '.join(chance)}."
    rows, looks = [], []
    for row in sorted(record["rows"], key=operator.itemgetter("family")):  # stable: else as they ran
        known = [row["family"], f"`{row['program']}`", row["what"], row["reads"]]
        if (gain := row.get("speedup")) is None:
            reason = row.get("skipped") or row.get("failed") or "different batches"
            rows.append([*known, " ".join(reason.split()).replace("|", "/"), *[GAP] * 4])
            continue
        place, saving = row["where"].removeprefix("workers, "), row["processor_saving"]
        spent = with_farthest(saving, ".1f", "×") if saving else GAP
        rows.append([*known, place, *_rates(row, "torch", "fastload"), with_farthest(gain, ".2f", "×"), spent])
        if row["looks_per_image"] >= FEWEST_LOOKS and row["looks_at"] is not None:
            line = row["looks_at"].replace("|", "/").replace("`", "'")
            looks.append([f"`{row['program']}`", f"`{line}`", f"{row['looks_per_image']:.2f}"])
    header = ["kind", "program", "loads", "reads with", "runs on", "torch, images/s", "fastload, images/s", "speed-up"]
    said = [f"{text}{_cut_off(record, 'programs')}", table([*header, "processor time saved"], rows, texts=5)]
    if looks:
        header = ["program", "line that reads deferred pixels most", "looks an image"]
        said += ["Where programs read pixels that could have been made later:", table(header, looks, texts=2)]
    return "\n\n".join(said)


def trained(record: dict[str, Any]) -> str:
    """Programs of today: the share of the training speed that each loader leaves.

    That is the speed with data on the GPU.
    """
    rows = []
    for row in record["train"]:
        known = [f"`{row['program']}`", row["what"]]
        if (shares := row.get("share_of_ceiling")) is None:
            rows.append([*known, row.get("skipped") or row.get("failed"), *[GAP] * 4])
            continue
        ms = row["ms_per_step"]
        times = [with_farthest(ms[name], ".1f", " ms") for name in ("resident", "torch", "fastload")]
        rows.append([*known, *times, *(with_farthest(shares[name], ".0%", "") for name in ("torch", "fastload"))])
    header = ["program", "loads", "step, data on the GPU", "from torch's DataLoader", "from fastload"]
    return table([*header, "share, torch", "share, fastload"], rows, texts=2)


def _skipped(found: dict[str, int]) -> str:
    return f" {found['skipped']} were skipped." if found["skipped"] else ""


def _cut_off(record: dict[str, Any], what: str) -> str:
    """The end of a run that was cut off, and the record's note."""
    ended = "" if record.get("complete", True) else f" The run ended early: the other {what} were not measured."
    return f"{ended} {record.get('note') or ''}".rstrip()


def overhead(record: dict[str, Any]) -> str:
    """Torch's time over FastLoader's, of programs that gain nothing, with 95% intervals of paired turns."""

    def shown(found: dict[str, float]) -> str:
        return f"{found['mean']:.2f} ({found['low']:.2f} to {found['high']:.2f})"

    rows = [[name, shown(one["processor"]), shown(one["clock"])] for name, one in record["programs"].items()]
    return table(["samples", "processor time, torch over fastload", "time"], rows)


def epochs(record: dict[str, Any]) -> str:
    """Seconds to the first batch of an epoch, by loader."""

    def ms(seconds: float) -> str:
        return f"{1e3 * seconds:,.0f} ms"

    rows = []
    for name, one in record["loaders"].items():
        start = one["start_s"]
        later = start | {key: 1e3 * start[key] for key in ("median", "min", "max")}
        rows.append([name, with_farthest(later, ",.1f", " ms"), ms(one["first_start_s"]), ms(one["longest_wait_s"])])
    header = ["loader", "first batch of a later epoch", "of the first epoch", "longest wait of the first two"]
    sizes = record["parameters"]
    said = f"Epochs of {sizes['images']:,} images in batches of {sizes['batch_size']}"
    said += f", {sizes['threads']} threads or workers{', with RandAugment' if sizes['augment'] else ''}"
    return f"{table(header, rows)}\n\n{said}. Median ± the farthest epoch."


def arrays(record: dict[str, Any]) -> str:
    """CIFAR-10's loop: what each loader gives, and its share of the reference."""
    reference = "ceiling" if record["benchmark"] == "arrays-train" else "torch"
    rows = []
    for point in record["points"]:
        for name, of in point["contenders"].items():
            rate, share = of["images_per_s"], of[f"of_{reference}"]
            shown = GAP if name == reference else with_farthest(share, ".2f", "×")
            rows.append([f"{point['batch_size']}", name, with_farthest(rate, ",.0f", ""), shown])
    sizes = record["parameters"]
    said = f"Turns of {sizes['steps']} steps" if "train" in sizes["what"] else "Turns of an epoch"
    ended = _cut_off(record, "batch sizes")
    header = ["batch", "images from", "images/s", f"times {reference}"]
    return f"{table(header, rows, texts=2)}\n\n{said}, {sizes['workers']} threads or workers.{ended}"


def verdicts(record: dict[str, Any]) -> str:
    """What the verdict named of what was planted, by the steps of a run."""
    lengths: dict[str, list[str]] = {"30": [], "60": [], "300 or 360": []}
    rows = []
    for name, plant in record["plants"].items():
        judged: dict[str, list[str]] = {length: [] for length in lengths}
        for row in plant["rows"]:
            judged[next((length for length in lengths if str(row["steps"]) == length), "300 or 360")].append(
                row["judged"]
            )
        cells = [", ".join(f"{found.count(word)} {word}" for word in dict.fromkeys(found)) for found in judged.values()]
        rows.append([name, *cells])
    counts = ", ".join(f"{number} {judged}" for judged, number in record["judged"].items())
    header = ["planted", *(f"after {length} steps" for length in lengths)]
    return f"{table(header, rows, texts=4)}\n\nIn all {counts}.{_cut_off(record, 'bottlenecks')}"


def minutes(record: dict[str, Any]) -> str:
    """What the verdict named at every epoch of trainings of minutes."""
    rows = []
    for name, plant in record["plants"].items():
        said, last = [row["judged"] for row in plant["rows"]], plant["rows"][-1]
        judged = [f"{said.count(word)}" for word in ("right", "too early", "wrong")]
        load = sum(row["load"] for row in plant["rows"]) / len(said)
        lasted = f"{last['after_s'] / 60:.1f} minutes, {last['steps']:,} steps"
        rows.append([name, lasted, f"{len(said)}", *judged, f"{load:.1f}"])
    header = ["planted", "training", "epochs", "right", "too early", "wrong", "load average"]
    return f"{table(header, rows, texts=2)}{_cut_off(record, 'bottlenecks')}"


_FITS: Final[dict[str | None, tuple[str, str]]] = {
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
        "any other dataset and transforms that open images with Pillow, also by `datasets`, webdataset or MONAI",
        "torch's workers, your code as it is; only what is used of a file is decoded, natively",
    ),
    "decoded": ("files that `torchvision.io` or OpenCV decodes", "torch's workers, your code as it is"),
    None: ("anything else: other arrays, text, audio", "torch's workers, into pinned slots"),
}
"""Kinds of pipelines, by the place they run at, or what they read with."""


def fit(record: dict[str, Any]) -> str:
    """Kinds of pipelines, where each runs, and the speed-ups of its programs."""
    gains: dict[str | None, list[float]] = {kind: [] for kind in _FITS}
    for row in record["rows"]:
        if "speedup" in row:
            gains[_fits(row)].append(median(row["speedup"]))
    rows = []
    for kind, what in _FITS.items():
        ends = dict.fromkeys(f"{value:.1f}" for value in (min(found), max(found))) if (found := gains[kind]) else ()
        middle = f", median {statistics.median(found):.1f}×" if len(ends) > 1 else ""
        rows.append([*what, str(len(found)), f"{' to '.join(ends)}×{middle}" if ends else "not measured"])
    return table(["you have", "it runs on", "programs", "loader's speed-up over torch's"], rows, texts=2)


def _fits(row: dict[str, Any]) -> str | None:
    """Return the kind of a program's pipeline, a key of :data:`_FITS`."""
    if row["where"] in (NATIVE, AROUND):
        return str(row["where"])
    known = {"PIL": LAZY, "torchvision.io": "decoded", "cv2": "decoded"}
    return next((kind for reader, kind in known.items() if row["reads"].startswith(reader)), None)


def objectstore(record: dict[str, Any]) -> str:
    """Images per second, and a core's time, of a store beside a folder."""
    rows = []
    for point in record["points"]:
        for name, row in point["contenders"].items():
            rate, share, cpu = (median(row[key]) for key in ("images_per_s", "of_folder", "cpu_us_per_image"))
            rows.append([f"{point['latency_ms']:g} ms", name, f"{rate:,.0f}", f"{share:.0%}", f"{cpu:,.0f} µs"])
    shown = table(["latency", "from", "images/s", "of the folder", "a core's time for an image"], rows, texts=2)
    threads, cores = record["parameters"]["threads"], record["cores"]["loader"]
    size = f"photographs of {record['dataset']['mean_bytes'] / 1e3:.0f} KB"
    return f"{shown}\n\nMedians; {threads} decode threads on {cores} core{'s' * (cores > 1)}, {size}."


def cluster(record: dict[str, Any]) -> str:
    """Images per second, and a core's time, of tasks beside workers."""
    rows = []
    for point in record["points"]:
        for name, row in point["contenders"].items():
            rate, cpu = median(row["images_per_s"]), median(row["cpu_ms_per_image"])
            rows.append([point["transform"], name, f"{rate:,.0f}", f"{cpu:.1f} ms"])
    shown = table(["transform", "made by", "images/s", "a core's time for an image"], rows, texts=2)
    ran = record["parameters"]
    tasks = f"{ran['workers']} workers or tasks, epochs of {ran['images']} images"
    return f"{shown}\n\nMedians; {tasks}, Ray {record['ray']}."


def own(record: dict[str, Any]) -> str:
    """Programs with a dataset of their own: their Python alone, the loaders, training."""
    threads = str(record["parameters"]["threads"])
    alone = record.get("python", {}).get("processes", {})
    said = []
    rows = []
    for row in record.get("loader", {}).get("rows", []):
        known = [row["recipe"], row["what"]]
        if (gain := row.get("speedup")) is None:
            reason = row.get("skipped") or row.get("failed") or "different batches"
            rows.append([*known, " ".join(reason.split()).replace("|", "/"), *[GAP] * 6])
            continue
        most = alone.get(threads, {}).get(row["recipe"])
        limits = [GAP, GAP]
        if most is not None:
            allowed = median(most["images_per_s"])
            limits = [f"{allowed:,.0f}", _percent(median(row["images_per_s"]["deferred=True"]) / allowed)]
        place = row["where"].removeprefix("workers, ")
        rates = _rates(row, "torch", "deferred=False", "deferred=True")
        rows.append([*known, place, *rates, with_farthest(gain, ".1f", "×"), *limits])
    if rows:
        header = ["program", "transforms", "runs on", "torch, images/s", "`deferred=False`", "`deferred=True`"]
        said.append(table([*header, "speed-up", "its Python allows", "of that"], rows, texts=3))
    allows = [
        f"{count} processes "
        + ", ".join(f"{name.partition(', ')[2]} {median(of['images_per_s']):,.0f}" for name, of in by.items())
        for count, by in alone.items()
    ]
    if allows:
        said.append(f"The Python of an own dataset alone allows, in images/s: {'; '.join(allows)}.")
    trained = record.get("step", {})
    rows = [
        [name, *(with_farthest(of["ms_per_step"][who], ".1f", " ms") for who in of["ms_per_step"])]
        + [f"{median(share):.1%}" for share in of["share_of_ceiling"].values()]
        for name, of in trained.get("recipes", {}).items()
    ]
    if rows:
        columns = ["data on the GPU", "`deferred=False`", "`deferred=True`"]
        header = [f"a {_model(trained['model'])} step from", *columns, *(f"share, {name}" for name in columns[1:])]
        said.append(table(header, rows))
    for name in record["parameters"]["parts"]:
        part = record.get(name, {})
        if reason := part.get("skipped") or part.get("failed"):
            said.append(f"Not measured: {name}, {' '.join(reason.split())}.")
    data = record["dataset"]
    return "\n\n".join([*said, f"{threads} workers; {data['images']} images of {data['mean_kb']:,.0f} KB."])


def gpudecode(record: dict[str, Any]) -> str:
    """The kernels, a step beside them, the crops compared; reasons for parts without figures."""
    parts = _measured(record)
    said = [words(parts[name]) for name, words in _GPU_PARTS.items() if name in parts]
    for name in record["parameters"].get("parts", _GPU_PARTS):
        part = record.get(name, {"skipped": "not asked"})
        if reason := part.get("skipped") or part.get("failed"):
            said.append(f"Not measured: {name}, {' '.join(str(reason).split())}.")
    if parts.keys() & {"kernels", "epochs", "step"}:
        data = record["dataset"]
        threads = record["parameters"]["threads"]
        said.append(f"{threads} threads; {data['images']} images of {data['mean_kb']:,.0f} KB.")
    return "\n\n".join(said)


def _gpudecode_in_brief(record: dict[str, Any]) -> str:
    parts = _measured(record)
    said = []
    if (total := parts.get("kernels", {}).get("decode_ms")) is not None:
        first = parts["kernels"]["new"]["decode_ms"]["median"]
        count = parts["kernels"]["batch_size"]
        said.append(f"The kernels take {total['median']:.2f} ms for {count} images, {first:.2f} ms at a first visit.")
    if "epochs" in parts:
        rates = parts["epochs"]["images_per_s"]
        first, later = (
            [_listed(_of(rates, side, epoch)) for side in ("auto", "threads")] for epoch in ("first", "later")
        )
        said.append(
            f"With {_listed(rates)} threads FastLoader makes {first[0]} images/s in a first epoch, whose files are all "
            f"new, and {later[0]} in later ones; decode threads alone make {first[1]} and {later[1]}."
        )
    said += [words(parts[name]) for name, words in (("step", _step), ("verify", _verify)) if name in parts]
    return " ".join(said)


def _of(rates: dict[str, Any], side: str, epoch: str) -> list[str]:
    return [f"{by_side[side][epoch]['median']:,.0f}" for by_side in rates.values()]


def _listed(values: Iterable[str]) -> str:
    return " / ".join(values)


def _measured(record: dict[str, Any]) -> dict[str, Any]:
    parts = {name: record[name] for name in _GPU_PARTS if name in record}
    return {name: part for name, part in parts.items() if not part.keys() & {"skipped", "failed"}}


def _kernels(part: dict[str, Any]) -> str:
    both = [part["new"], part]  # every file new, and none
    names = dict.fromkeys(
        name for of in both for name, one in of["ms"].items() if "." in name and one["median"] >= 0.0005
    )

    def cells(times: Iterable[dict[str, float] | None], bold: str = "") -> list[str]:
        return [f"{bold}{with_farthest(one, '.3f', ' ms')}{bold}" if one and one["median"] else "" for one in times]

    rows = [[f"`{name.rpartition('.')[2]}`", *cells(of["ms"].get(name) for of in both)] for name in names]
    if any(of["decode_ms"] for of in both):
        rows.append(["all that decode", *cells((of["decode_ms"] for of in both), "**")])
    profiled = {name for of in both for name, ms in of["profiled_ms"].items() if ms >= 0.005}
    for name in sorted(profiled, key=lambda name: -max(of["profiled_ms"].get(name, 0.0) for of in both)):
        times = [f"{ms:.3f} ms" if (ms := of["profiled_ms"].get(name)) is not None else "" for of in both]
        rows.append([f"profiler: `{_short(name)}`", *times])
    shown = table([f"for {part['batch_size']} images that the GPU decodes", "first visit", "later visits"], rows)
    return f"{shown}\n\n{part['images'] / part['of_images']:.1%} of the images were decoded on the GPU."


_SIDES: Final = {
    "auto": '`decode="auto"`',
    "threads": "decode threads",
    "find": "the GPU, which finds its way",
    "scan": "the GPU, threads scan new files",
}


def _epochs(part: dict[str, Any]) -> str:
    rows = []
    for threads, by_side in part["images_per_s"].items():
        for side, what in _SIDES.items():
            rates = (with_farthest(by_side[side][of], ",.0f", "") for of in ("first", "later"))
            rows.append([threads, what, *rates])
    shown = table(["threads", "decoded by", "first epoch, images/s", "later epochs, images/s"], rows, texts=2)
    starts = [by_side["auto"]["start_s"]["median"] for by_side in part["images_per_s"].values()]
    return (
        f"{shown}\n\nThe loader alone, epochs of {part['images']:,} files, each new to a first epoch's loader; without "
        f"the first batches, in which threads start and queues fill ({min(starts):.2f} to {max(starts):.2f} s)."
    )


def _short(name: str, most: int = 60) -> str:
    """A kernel's name without its arguments; the templates of torch's kernels are long."""
    line = name.partition("(")[0].removeprefix("void ").replace("|", "/").replace("`", "").strip()
    return line if len(line) <= most else line[:most] + " …"


def _step(part: dict[str, Any]) -> str:
    over, ms = part["fed_over_resident"], part["ms_per_step"]
    new = part["new_over_resident"]
    return (
        f"A {_model(part['model'])} step takes {ms['resident']['median']:.2f} ms with its data on the GPU already, "
        f"{ms['fed']['median']:.2f} ms while the GPU also decodes the next batch: {over['median']:.4f} times as long "
        f"({extent(over, '.4f')}); {new['median']:.4f} times ({extent(new, '.4f')}) if all its files are new."
    )


def _verify(part: dict[str, Any]) -> str:
    if not part["on_gpu"]:
        return f"{part['pillow_crops']:,} crops by decode threads beside Pillow's: {part['differ']} differ."
    return (
        f"{part['differ']:,} of {part['crops']:,} random crops of varied files differ in a bit from the decode "
        f"threads'. The GPU decoded {part['gpu_staged']:,} of them with an index"
        + (f" and {part['new_staged']:,} without" if "new_staged" in part else "")
        + f"; {part['pillow_crops']:,} were compared with Pillow's, too."
    )


def _verify_with_files(part: dict[str, Any]) -> str:
    kinds = ("colour", "grey", "progressive", "CMYK")
    files = ", ".join(f"{part['files'][kind]:,} {kind}" for kind in kinds if kind in part["files"])
    return f"{_verify(part)} Files: {files}; {len(part['by_transform'])} transforms."


_GPU_PARTS: Final = {"kernels": _kernels, "epochs": _epochs, "step": _step, "verify": _verify_with_files}


@dataclass(frozen=True)
class Column:
    """One figure of every contender.

    Attributes:
        title: Heading of the column.
        figure: Name of the figure.
        values: Medians by contender; contenders without one are absent.
        show: Function that formats a figure.
        more_is_better: Whether the larger figure is ahead.
        spread: Smallest and largest repeat by contender, where there are several.
        bounds: Contenders whose figure is a lower bound.
    """

    title: str
    figure: str
    values: dict[str, float]
    show: Callable[[float], str]
    more_is_better: bool
    spread: dict[str, tuple[float, float]]
    bounds: frozenset[str] = frozenset()

    @property
    def is_ranked(self) -> bool:
        """Whether one value is better than another at all."""
        return self.figure != "watts"

    def ahead(self, engine: str = "fastload") -> list[str]:
        """Peers that do better than one of FastLoader's engines, the best first."""
        if engine not in self.values or not self.is_ranked:
            return []
        is_better = operator.gt if self.more_is_better else operator.lt
        own, peers = self.values[engine], [name for name in self.values if name not in NO_PEER]
        better = [name for name in peers if is_better(self.values[name], own)]
        return sorted(better, key=self.values.__getitem__, reverse=self.more_is_better)

    def lead(self, name: str, engine: str = "fastload") -> float:
        """How many times better a peer is."""
        own, other = self.values[engine], self.values[name]
        return other / own if self.more_is_better else own / other

    def only(self, names: Sequence[str]) -> Column:
        """The same column of some contenders."""
        return replace(self, values={name: self.values[name] for name in names if name in self.values})

    def cell(self, name: str, *, spread: bool) -> str:
        """A contender's figure."""
        if name not in self.values:
            return GAP
        value = self.values[name]
        text = self.show(value)
        if name in self.bounds:
            text = f"≥ {text}"
        if spread and name in self.spread:
            low, high = self.spread[name]
            farthest = self.show(max(high - value, value - low))
            unit = farthest.lstrip("0123456789.,")  # of "34.1%" and "10.7%" once: "34.1 ± 10.7%"
            text = f"{text.removesuffix(unit)} ± {farthest}"
        return text + MARK if name in self.ahead() else text


FIGURES: Final[dict[str, tuple[bool, Callable[[float], str]]]] = {
    "images_per_s": (True, "{:,.0f}".format),
    "share_of_ceiling": (True, "{:.1%}".format),
    "scaling_efficiency": (True, "{:.1%}".format),
    "first_batch_s": (False, "{:.2f} s".format),
    "total_s": (False, "{:.1f} s".format),
    "processor_ms_per_image": (False, "{:.2f} ms".format),
    "main_thread_us_per_batch": (False, "{:,.0f} µs".format),
    "host_bytes": (False, lambda value: f"{value / 1e6:,.0f} MB"),
    "device_bytes": (False, lambda value: f"{value / 1e6:,.0f} MB"),
    "joules_per_million": (False, "{:,.0f} J".format),
    "watts": (False, "{:,.0f} W".format),
}
"""Whether more is better, and the format, of each figure of a contender."""


def column(title: str, point: dict[str, Any], figure: str) -> Column:
    """The column of one point of a record."""
    figures = {name: result[figure] for name, result in point["contenders"].items() if result.get(figure) is not None}
    spreads = {name: value for name, value in figures.items() if isinstance(value, dict) and not has_one_repeat(value)}
    more_is_better, show = FIGURES[figure]
    return Column(
        title=title,
        figure=figure,
        values={name: median(value) for name, value in figures.items()},
        show=show,
        more_is_better=more_is_better,
        spread={name: (value["min"], value["max"]) for name, value in spreads.items()},
        bounds=frozenset(name for name, result in point["contenders"].items() if result.get("lower_bound")),
    )


def _by_threads(*figures: tuple[str, str]) -> Callable[[dict[str, Any]], list[Column]]:
    """Return columns of figures by title, in which ``THREADS`` stands for the threads."""

    def columns(record: dict[str, Any]) -> list[Column]:
        found = [
            column(title.replace("THREADS", _threads(point)) + _recipe(point), point, figure)
            for point in _in_order(record)
            for title, figure in figures
        ]
        return [one for one in found if one.values or one.figure != "device_bytes"]

    return columns


def _train(record: dict[str, Any]) -> list[Column]:
    """Shares of the ceiling, whose images per second stand in the title."""
    columns = []
    models = [point["model"] for point in record["points"]]
    for point in sorted(_in_order(record), key=lambda point: models.index(point["model"])):
        top = point["contenders"].get("ceiling")
        images = f"<br>of {median(top['images_per_s']):,.0f}/s" if top else ""
        title = f"{_model(point['model'])}, {_cores(point)}{_recipe(point)}{images}"
        columns.append(column(title, point, "share_of_ceiling"))
    return columns


def _scaling(record: dict[str, Any]) -> list[Column]:
    columns = []
    for point in sorted(record["points"], key=lambda point: (point.get("edge_px", math.inf), point["batch_size"])):
        size = f"batches of {point['batch_size']}"
        if "edge_px" in point:
            size = f"{point['edge_px']} px, {point['dataset']['mean_kb']:,.0f} KB, {size}"
        columns.append(column(size, point, "images_per_s"))
    return columns


def _multigpu(record: dict[str, Any]) -> list[Column]:
    """Images per second of all GPUs, and the scaling efficiency against one GPU."""
    columns = []
    for point in record["points"]:
        count = point["processes"]
        columns.append(column(f"{count} GPU{'s' if count > 1 else ''}", point, "images_per_s"))
        if count > 1:
            columns.append(column(f"scaling, {count} GPUs", point, "scaling_efficiency"))
    return columns


def _in_order(record: dict[str, Any]) -> list[dict[str, Any]]:
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


_loaders = _by_threads(("THREADS", "images_per_s"))

COLUMNS: Final[dict[str, Callable[[dict[str, Any]], list[Column]]]] = {
    "loaders": _loaders,
    "train": _train,
    "firstbatch": _by_threads(("THREADS", "first_batch_s")),
    "total": _by_threads(("THREADS", "total_s"), ("first batch, THREADS", "first_batch_s")),
    "cpu": _by_threads(
        ("per image, THREADS", "processor_ms_per_image"), ("main thread per batch", "main_thread_us_per_batch")
    ),
    "scaling": _scaling,
    "memory": _by_threads(("host, THREADS", "host_bytes"), ("GPU, THREADS", "device_bytes")),
    "energy": _by_threads(
        ("per million images, THREADS", "joules_per_million"), ("power", "watts"), ("images/s, THREADS", "images_per_s")
    ),
    "multigpu": _multigpu,
}
"""Columns of the tables of peers, by their names."""


def peers(record: dict[str, Any], columns: list[Column]) -> str:
    """A table of peers, who is ahead, how they were measured, and who is missing."""
    parts = [
        _contenders(record, columns, spread=True),
        who_is_ahead(record, columns),
        _pixels(record),
        _without_slots(record),
        _absent(record),
        _how(record),
        _versions(record),
    ]
    return "\n\n".join(part for part in parts if part)


def share(record: dict[str, Any]) -> str:
    """The first table: one model's share of full GPU speed."""
    points = [point for point in record["points"] if point["model"] == "resnet50"]
    few = {"contenders": {name: known for name, known in record["contenders"].items() if name in IN_SHORT}}
    columns = [
        replace(one.only(list(few["contenders"])), title=one.title.partition(", ")[2].partition("<br>")[0])
        for one in _train({"points": points})
    ]
    shown = _contenders(few, columns, spread=True).replace(
        "|  |", "| ResNet-50, share of full GPU speed in later epochs |", 1
    )
    ahead = who_is_ahead(few, columns)
    said = f"{shown}\n\nLater epochs are those from the second on. Median ± the farthest repeat. {ahead}"
    if (path := RESULTS / "gpudecode-resnet50-2-cores.json").exists():
        first = json.loads(path.read_text())
        share = 1 / first["step"]["new_over_resident"]["median"]
        said += f" In a first epoch, whose files are all new, FastLoader's share is {share:.1%} with "
        said += f"{first['environment']['usable_cpus']} cores ({where(first, f'`{path.name}`')})."
    return said


def beside(record: dict[str, Any]) -> str:
    """Rates of few loaders alone, the fastest first, and the cost of GPU decoding."""
    few = {"contenders": {name: known for name, known in record["contenders"].items() if name in IN_BRIEF}}
    columns = [one.only(list(few["contenders"])) for one in _loaders(record)]
    rates = [
        f"{few['contenders'][name]['title']} {' / '.join(one.cell(name, spread=False) for one in columns)}"
        for name in sorted(few["contenders"], key=lambda name: -columns[-1].values.get(name, 0.0))
        if any(name in one.values for one in columns)
    ]
    threads = " / ".join(one.title.partition(" ")[0] for one in columns)
    ahead = who_is_ahead(few, columns).replace("\n\n", " ")
    parts = [f"Images per second with {threads} threads, from the second epoch on: {'; '.join(rates)}. {ahead}"]
    for path in (RESULTS / "gpudecode.json", RESULTS / "gpudecode-crops.json"):
        if path.exists():
            on_gpu = json.loads(path.read_text())
            if said := _gpudecode_in_brief(on_gpu):
                parts.append(f"{said} {where(on_gpu, f'`{path.name}`')}.")
    return "\n\n".join(parts)


def _contenders(record: dict[str, Any], columns: list[Column], *, spread: bool) -> str:
    """Contenders as rows, or as columns if there are more columns than contenders."""
    rows = [["", *(one.title for one in columns)]]
    for name, known in record["contenders"].items():
        if any(name in one.values for one in columns):
            title = f"**{known['title']}**" if name in OURS else known["title"]
            rows.append([title, *(one.cell(name, spread=spread) for one in columns)])
    if len(columns) >= len(rows):
        rows = [list(row) for row in zip(*rows, strict=True)]
    notes = []
    if any(GAP in row for row in rows):
        notes.append(f"{GAP}: not asked, or not measured.")
    if any(one.bounds for one in columns):
        notes.append("≥: what the library pins by itself cannot be seen.")
    return "\n\n".join([table(rows[0], rows[1:]), *([" ".join(notes)] if notes else [])])


def who_is_ahead(record: dict[str, Any], columns: list[Column]) -> str:
    """In which columns a peer is ahead of which engine, and by how much."""
    sentences = []
    for engine in ("fastload", "fastload-workers"):
        if not any(engine in one.values and set(one.values) - set(NO_PEER) for one in columns):
            continue
        title = record["contenders"][engine]["title"]
        places = []
        for one in columns:
            leads = [
                f"{record['contenders'][name]['title']} by {_times(one.lead(name, engine))}"
                for name in one.ahead(engine)
            ]
            if leads:
                places.append(f"{one.title.partition('<br>')[0]}: {', '.join(leads)}")
        mark = f"{MARK.strip()} ahead" if engine == "fastload" else "Ahead"
        sentences.append(
            f"{mark} of {title}. {'; '.join(places)}." if places else f"No peer that was measured is ahead of {title}."
        )
    return "\n\n".join(sentences)


def _times(lead: float) -> str:
    return f"{100 * (lead - 1):.1f}%" if lead < 1.1 else f"{lead:.1f}×" if lead < 10 else f"{lead:.0f}×"


def _pixels(record: dict[str, Any]) -> str:
    """Whose whole images differ from Pillow's, and by how much; said of loaders alone."""
    if record["benchmark"] != "loaders":
        return ""
    off = []
    for known in record["contenders"].values():
        seen = known.get("check", {})
        if seen.get("mean_difference"):
            off.append(f"{known['title']} {seen['mean_difference']:.2f} (at most {seen['largest_difference']:.0f})")
    return f"Mean difference from Pillow's pixels, of 255, in whole resized images: {'; '.join(off)}." if off else ""


def _without_slots(record: dict[str, Any]) -> str:
    workers = [point["contenders"].get("fastload-workers", {}) for point in record["points"]]
    turns = [turn for one in workers for turn in one.get("turns", ())]
    without = sum(1 for turn in turns if not turn["pinned"]["arena_bytes"])
    if not without or not record["environment"]["gpu"]:
        return ""
    return (
        "FastLoader's workers begin on torch's path while their slots are made; "
        f"in {without} of {len(turns)} turns they had none yet at the end."
    )


def _absent(record: dict[str, Any]) -> str:
    """Who did not take part, or ended on the way, and why."""
    reasons = [
        f"* {known['title']}: {_first_words(reason)}"
        for known in record["contenders"].values()
        if (reason := known.get("missing") or known.get("failed"))
    ]
    return "Not measured, or not everywhere:\n\n" + "\n".join(reasons) if reasons else ""


def _first_words(reason: str, most: int = 200) -> str:
    line = " ".join(reason.split()).replace("|", "/").replace("<", "‹").replace(">", "›")
    return line if len(line) <= most else line[:most].rsplit(" ", 1)[0] + " …"


def _how(record: dict[str, Any]) -> str:
    asked, points = record["parameters"], record["points"]
    said = []
    for key, one, what in (("repeats", "repeat", "repeats"), ("batch_size", "image a batch", "images a batch")):
        if found := sorted({point.get(key, asked.get(key)) for point in points} - {None}):
            said.append(f"{_or(found)} {one if found == [1] else what}")
    if isinstance(asked.get("threads"), int):
        said.append(f"{asked['threads']} threads")
    if threads := sorted({point["threads"] for point in points if "processes" in point}):
        said.append(f"{_or(threads)} threads a process")
    said += _turns(asked, [result for point in points for result in point["contenders"].values()], points)
    for data in [record["dataset"], *(point["dataset"] for point in points if "dataset" in point)]:
        cached = data.get("page_cache_share")
        part = "" if cached is None else f", {cached:.0%} of them in the page cache"
        said.append(f"{data['images']} images of {data['mean_kb']:,.0f} KB{part}")
    return f"{'; '.join(dict.fromkeys(said))}."


def _turns(asked: dict[str, Any], results: list[dict[str, Any]], points: list[dict[str, Any]]) -> list[str]:
    """The length of the turns."""
    limits = sorted({point["row_seconds"] for point in points if point.get("row_seconds")})
    if steps := sorted({result["steps"] for result in results if "steps" in result}):
        said = [f"turns of {' to '.join(map(str, dict.fromkeys((steps[0], steps[-1]))))} steps"]
    elif asked.get("steps"):
        said = [f"turns of {_or(sorted({whole_bursts(asked['steps'], point['threads']) for point in points}))} steps"]
    elif any("images_per_s" in result for result in results):
        seconds = sorted({point.get("seconds", asked["seconds"]) for point in points})
        said = [f"turns of {'up to' if limits else 'at least'} {_or(seconds)} s"]
    else:
        return []
    return said + [f"about {_or(limits)} s for all turns of a column" for _ in limits[:1]]


def _or(values: Sequence[float]) -> str:
    return " or ".join(f"{value:g}" for value in values)


def _versions(record: dict[str, Any]) -> str:
    found: dict[str, str] = {}
    for known in record["contenders"].values():
        found |= known.get("versions", {})
    return f"Versions: {', '.join(f'{name} {version}' for name, version in sorted(found.items()))}." if found else ""


TABLES: Final[dict[str, Callable[[dict[str, Any]], str]]] = {
    **{
        made.__name__: made for made in (ladder, step, slots, decode, recipes, onecore, sources, programs, trained, fit)
    },
    **{
        made.__name__: made
        for made in (objectstore, cluster, own, gpudecode, overhead, epochs, arrays, share, beside, verdicts, minutes)
    },
}
"""What stands between markers on a page, by the table's name, beside those of :data:`COLUMNS`."""


def shown(name: str, record: dict[str, Any]) -> str:
    """Format a record as the table ``name``."""
    return peers(record, COLUMNS[name](record)) if name in COLUMNS else TABLES[name](record)
