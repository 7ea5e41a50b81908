"""Tables of object stores and clusters, from records that ``_objectstore`` and ``_cluster`` write."""

from __future__ import annotations

from typing import Any


def objectstore(record: dict[str, Any]) -> str:
    """Images per second, and a core's time, of a store beside a folder."""
    lines = ["| latency | from | images/s | of the folder | a core's time for an image |", "|---|---|--:|--:|--:|"]
    for point in record["points"]:
        for name, row in point["contenders"].items():
            rate, share, cpu = (row[key]["median"] for key in ("images_per_s", "of_folder", "cpu_us_per_image"))
            lines.append(f"| {point['latency_ms']:g} ms | {name} | {rate:,.0f} | {share:.0%} | {cpu:,.0f} µs |")
    threads, cores = record["parameters"]["threads"], record["cores"]["loader"]
    bytes_ = record["dataset"]["mean_bytes"]
    ran = f"{threads} decode threads on {cores} core{'s' * (cores > 1)}, photographs of {bytes_ / 1e3:.0f} KB"
    return "\n".join([*lines, "", f"Medians; {ran}."])


def cluster(record: dict[str, Any]) -> str:
    """Images per second, and a core's time, of tasks beside workers."""
    lines = ["| transform | made by | images/s | a core's time for an image |", "|---|---|--:|--:|"]
    for point in record["points"]:
        for name, row in point["contenders"].items():
            rate, cpu = row["images_per_s"]["median"], row["cpu_ms_per_image"]["median"]
            lines.append(f"| {point['transform']} | {name} | {rate:,.0f} | {cpu:.1f} ms |")
    ran = record["parameters"]
    return "\n".join(
        [
            *lines,
            "",
            f"Medians; {ran['workers']} workers or tasks, epochs of {ran['images']} images, Ray {record['ray']}.",
        ]
    )
