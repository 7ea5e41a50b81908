"""torch's DataLoader, pinned, where Pillow is Pillow-SIMD: in an environment of its own."""

from __future__ import annotations

from benchmarks.contenders import torch_loaders
from benchmarks.contenders._job import Feed, Job


def missing(variant: str, device: str) -> str | None:
    """Why this cannot take part: the interpreter has the ordinary Pillow."""
    import PIL

    if "post" not in PIL.__version__:
        found = f"the Pillow of this interpreter is {PIL.__version__}, not Pillow-SIMD"
        return f"{found}; name one: --python torch_simd=FILE"
    return None


def open_feed(job: Job, variant: str) -> Feed:
    """As the pinned DataLoader."""
    return torch_loaders.open_feed(job, "pinned")
