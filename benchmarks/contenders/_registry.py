"""The contenders by name."""

from __future__ import annotations

import importlib
import importlib.metadata
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.contenders._job import Feed, Job

RECIPES = ("crops", "randaugment", "trivialaugment")
"""What training does beside random crops and flips; ``_job`` has their transforms."""

COMMON = ("torch", "torchvision", "numpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Largest allowed difference between a contender's pixels and those of torchvision with Pillow.

    In steps of 1/255 before normalization.

    Attributes:
        mean: Of all values.
        why: Where the difference comes from.
    """

    mean: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One way to load images.

    Attributes:
        title: What tables call it.
        module: Below this package; has ``missing(variant, device)`` and ``open_feed(job, variant)``.
        variant: Passed to both.
        packages: Distributions whose versions are recorded.
        tolerance: ``None``: the same bits as torch's DataLoader from the same seed, crops and flips included.
        draws_itself: Whether its crops and flips are others than torch's from the same seed.
        needs_gpu: Whether it means nothing without one.
        loads: Whether it loads at all; the ceiling does not.
        pins_itself: Whether it pins memory otherwise than through torch.
        sweeps: Whether it times a few settings when it opens, and takes the fastest.
        any_recipe: Whether it has any of the job's recipes: torchvision's transforms as they are, or its own like them.
    """

    title: str
    module: str
    variant: str = ""
    packages: tuple[str, ...] = ()
    tolerance: Tolerance | None = None
    draws_itself: bool = False
    needs_gpu: bool = False
    loads: bool = True
    pins_itself: bool = False
    sweeps: bool = False
    any_recipe: bool = False

    @property
    def group(self) -> str:
        """Contenders of one library share a group, and with it interpreter and packages."""
        return self.module

    def missing(self, device: str) -> str | None:
        """Why it cannot take part in this process; ``None`` when it can."""
        if self.needs_gpu and not device.startswith("cuda"):
            return "needs a GPU"
        try:
            module = self._import()
        except ImportError as error:
            return f"{type(error).__name__}: {error}"
        reason: str | None = module.missing(self.variant, device)
        return reason

    def open_feed(self, job: Job) -> Feed:
        """Begin to load."""
        feed: Feed = self._import().open_feed(job, self.variant)
        return feed

    def versions(self) -> dict[str, str]:
        """Of the distributions that are installed."""
        found = {}
        for name in (*COMMON, *self.packages):
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
        return found

    def _import(self) -> Any:
        return importlib.import_module(f"benchmarks.contenders.{self.module}")


_FFCV = Contender(
    title="FFCV, JPEG",
    module="ffcv_loader",
    variant="jpg",
    packages=("ffcv", "numba", "cupy-cuda13x", "cupy-cuda12x", "cupy"),
    tolerance=Tolerance(mean=0.01, why="float32 arithmetic of its own"),
    draws_itself=True,
)

_FASTLOAD = Contender(
    title="FastLoader, native",
    module="fastload_loaders",
    variant="native",
    packages=("fastload", "pillow"),
    any_recipe=True,
)

CONTENDERS: dict[str, Contender] = {
    "torch": Contender(
        title="DataLoader", module="torch_loaders", variant="plain", packages=("pillow",), any_recipe=True
    ),
    "torch-pinned": Contender(
        title="DataLoader, pinned", module="torch_loaders", variant="pinned", packages=("pillow",), any_recipe=True
    ),
    "torch-simd": Contender(
        title="DataLoader, pinned, Pillow-SIMD",
        module="torch_simd",
        packages=("pillow-simd",),
        tolerance=Tolerance(mean=1.0, why="Pillow-SIMD rounds its resize otherwise"),
    ),
    "torch-decode-jpeg": Contender(
        title="DataLoader, pinned, decode_jpeg and v2",
        module="torch_loaders",
        variant="decode_jpeg",
        tolerance=Tolerance(mean=0.5, why="torch's uint8 resize instead of Pillow's"),
    ),
    "dali-cpu": Contender(
        title="DALI, CPU decode",
        module="dali",
        variant="cpu",
        packages=("nvidia-dali-cuda130", "nvidia-dali-cuda120"),
        tolerance=Tolerance(mean=0.5, why="the same filter in other arithmetic"),
        draws_itself=True,
        pins_itself=True,
        sweeps=True,
        any_recipe=True,
    ),
    "dali-gpu": Contender(
        title="DALI, GPU decode",
        module="dali",
        variant="mixed",
        packages=("nvidia-dali-cuda130", "nvidia-dali-cuda120", "nvidia-nvimgcodec-cu13"),
        tolerance=Tolerance(mean=2.0, why="nvJPEG's decoder and DALI's resize"),
        draws_itself=True,
        needs_gpu=True,
        pins_itself=True,
        sweeps=True,
        any_recipe=True,
    ),
    "torchvision-gpu": Contender(
        title="torchvision decode_jpeg, GPU",
        module="nvjpeg_lists",
        variant="torchvision",
        tolerance=Tolerance(mean=2.0, why="nvJPEG's decoder and torch's float32 resize"),
        draws_itself=True,
        needs_gpu=True,
        sweeps=True,
    ),
    "torchcodec-gpu": Contender(
        title="torchcodec decode_jpeg, GPU",
        module="nvjpeg_lists",
        variant="torchcodec",
        packages=("torchcodec",),
        tolerance=Tolerance(mean=2.0, why="nvJPEG's decoder and torch's float32 resize"),
        draws_itself=True,
        needs_gpu=True,
        sweeps=True,
    ),
    "timm": Contender(
        title="timm PrefetchLoader",
        module="timm_prefetch",
        packages=("timm", "pillow"),
        tolerance=Tolerance(mean=0.001, why="normalizes on the GPU, which rounds otherwise"),
    ),
    "spdl": Contender(
        title="SPDL",
        module="spdl_io",
        packages=("spdl", "spdl-core", "spdl-io"),
        tolerance=Tolerance(mean=1.0, why="FFmpeg's color conversion and resize"),
        draws_itself=True,
    ),
    "ffcv": _FFCV,
    "ffcv-raw": replace(_FFCV, title="FFCV, raw pixels", variant="raw"),
    "fastload-workers": Contender(
        title="FastLoader, workers",
        module="fastload_loaders",
        variant="workers",
        packages=("fastload", "pillow"),
        any_recipe=True,
    ),
    "fastload": _FASTLOAD,
    "fastload-cpu": replace(
        _FASTLOAD,
        title="FastLoader, native, decoding on the CPU",
        variant="native-cpu",
        needs_gpu=True,
    ),
    "fastload-gpu": replace(
        _FASTLOAD,
        title="FastLoader, native, decoding on the GPU",
        variant="native-gpu",
        needs_gpu=True,
    ),
    "ceiling": Contender(title="data on the GPU already", module="ceiling", loads=False, any_recipe=True),
}


def loading() -> list[str]:
    """Names of the contenders that load."""
    return [name for name, contender in CONTENDERS.items() if contender.loads]
