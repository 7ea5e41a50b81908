"""Format what ``python -m benchmarks gpudecode`` measured: a sentence for README, a section for docs/benchmarks.md.

A part that was not measured is left out, or named with its reason.
"""

from __future__ import annotations

from typing import Any

from fastload.measurement.record import extent, with_farthest

_KINDS = ("colour", "grey", "progressive", "CMYK")


def brief(record: dict[str, Any]) -> str:
    """What README says."""
    parts = measured(record)
    said = []
    if (total := parts.get("kernels", {}).get("decode_ms")) is not None:
        kernels = parts["kernels"]
        said.append(f"The kernels take {total['median']:.2f} ms for {kernels['batch_size']} images.")
    if "step" in parts:
        said.append(_step(parts["step"]))
    if "verify" in parts:
        said.append(_verify(parts["verify"]))
    return " ".join(said)


def long(record: dict[str, Any]) -> str:
    """The section of docs/benchmarks.md."""
    parts = measured(record)
    said = [
        "## Decoding on the GPU",
        "Kernels by CUDA events around their launches, the loader alone, from the second epoch on; the profiler's "
        "times are the device's own, and show copies and fills, too.",
    ]
    if "kernels" in parts:
        said.append(_kernels(parts["kernels"]))
    if "step" in parts:
        said.append(_step(parts["step"]))
    if "verify" in parts:
        said.append(_verify(parts["verify"]) + _kinds(parts["verify"]))
    said += [f"Not measured: {name}, {reason}." for name, reason in missing(record).items()]
    data = record.get("dataset") or {}
    if "kernels" in parts or "step" in parts:
        asked = record["parameters"]
        said.append(f"{asked['threads']} threads; {data['images']} images of {data['mean_kb']:,.0f} KB.")
    return "\n\n".join(said)


def measured(record: dict[str, Any]) -> dict[str, Any]:
    """The parts that have figures."""
    parts = {name: record[name] for name in ("kernels", "step", "verify") if name in record}
    return {name: part for name, part in parts.items() if not part.keys() & {"skipped", "failed"}}


def missing(record: dict[str, Any]) -> dict[str, str]:
    """Why the others have none."""
    reasons = {}
    for name in ("kernels", "step", "verify"):
        part = record.get(name, {"skipped": "not asked"})
        reason = part.get("skipped") or part.get("failed")
        if reason:
            reasons[name] = " ".join(str(reason).split())
    return reasons


def _kernels(part: dict[str, Any]) -> str:
    rows = [
        f"| `{name.rpartition('.')[2]}` | {_ms(one)} |" for name, one in part["ms"].items() if one["median"] >= 0.0005
    ]
    if part["decode_ms"] is not None:
        rows.append(f"| all that decode | **{_ms(part['decode_ms'])}** |")
    profiled = sorted(part["profiled_ms"].items(), key=lambda item: -item[1])
    rows += [f"| profiler: `{_short(name)}` | {ms:.3f} ms |" for name, ms in profiled if ms >= 0.005]
    head = f"| for {part['batch_size']} images that the GPU decodes | |\n|---|--:|"
    share = part["images"] / part["of_images"]
    return "\n".join([head, *rows]) + f"\n\n{share:.1%} of the images were decoded on the GPU."


def _ms(spread: dict[str, float]) -> str:
    return with_farthest(spread, ".3f", " ms")


def _short(name: str) -> str:
    """A kernel's name without its arguments; the templates of torch's kernels are long."""
    line = name.partition("(")[0].removeprefix("void ").replace("|", "/").replace("`", "").strip()
    return line if len(line) <= 60 else line[:60] + " …"


def _step(part: dict[str, Any]) -> str:
    over, ms = part["fed_over_resident"], part["ms_per_step"]
    model = {"resnet50": "ResNet-50"}.get(part["model"], part["model"])
    return (
        f"A {model} step takes {ms['resident']['median']:.2f} ms with its data on the GPU already, "
        f"{ms['fed']['median']:.2f} ms while the GPU also decodes the next batch: {over['median']:.4f} times as long "
        f"({extent(over, '.4f')})."
    )


def _verify(part: dict[str, Any]) -> str:
    if not part["on_gpu"]:
        return f"{part['pillow_crops']:,} crops by decode threads beside Pillow's: {part['differ']} differ."
    return (
        f"{part['differ']:,} of {part['crops']:,} random crops of varied files differ in a bit from the decode "
        f"threads'. The GPU decoded {part['gpu_staged']:,} of them; {part['pillow_crops']:,} were compared with "
        "Pillow's, too."
    )


def _kinds(part: dict[str, Any]) -> str:
    files = ", ".join(f"{part['files'][kind]:,} {kind}" for kind in _KINDS if kind in part["files"])
    return f" Files: {files}; {len(part['by_transform'])} transforms."
