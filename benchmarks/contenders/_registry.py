"""The contenders by name."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from fastload._version import DISTRIBUTION

if TYPE_CHECKING:
    from benchmarks.contenders._job import Feed, Job

RECIPES = ("crops", "randaugment", "trivialaugment")
"""Transforms of training, beside random crops and flips; ``_job`` has them."""

COMMON = ("torch", "torchvision", "numpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Largest allowed difference between a contender's pixels and those of torchvision with Pillow."""

    mean: float  # largest mean difference of all values, in steps of 1/255 before normalization
    why: str  # cause of the difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One way to load images."""

    title: str  # name in tables
    # module of this package that has open_feed(job, variant), and missing(variant, device) if there is a reason why it
    # cannot take part beside those that `imports` tells. Contenders of one library share it, and with it interpreter
    # and packages.
    module: str
    variant: str = ""  # argument of both
    imports: tuple[str, ...] = ()  # modules that it needs
    install: str = ""  # how to get them
    packages: tuple[str, ...] = ()  # distributions whose versions are recorded
    # largest difference of pixels; None: the same bits as torch's DataLoader from the same seed, crops and flips
    # included
    tolerance: Tolerance | None = None
    draws_itself: bool = False  # whether its crops and flips differ from torch's of the same seed
    needs_gpu: bool = False  # whether it cannot run without a GPU
    loads: bool = True  # whether it loads at all; the ceiling does not
    pins_itself: bool = False  # whether it pins memory otherwise than through torch
    sweeps: bool = False  # whether it times a few settings when it opens, and takes the fastest
    any_recipe: bool = False  # whether it has all recipes: torchvision's transforms as they are, or its own like them

    def missing(self, device: str) -> str | None:
        """Why it cannot take part in this process; ``None`` when it can."""
        if self.needs_gpu and not device.startswith("cuda"):
            return "needs a GPU"
        for name in (*self.imports, self._module):
            try:
                module = importlib.import_module(name)
            except (ImportError, OSError, RuntimeError, AttributeError) as error:
                hint = f"; {self.install}" if isinstance(error, ModuleNotFoundError) and self.install else ""
                return f"{name} cannot be imported: {type(error).__name__}: {error}{hint}"
        check = getattr(module, "missing", None)
        return None if check is None else cast("str | None", check(self.variant, device))

    def open_feed(self, job: Job) -> Feed:
        """Begin to load."""
        return cast("Feed", importlib.import_module(self._module).open_feed(job, self.variant))

    def versions(self) -> dict[str, str]:
        """Versions of the distributions that are installed."""
        found = {}
        for name in (*COMMON, *self.packages):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                found[name] = importlib.metadata.version(name)
        return found

    @property
    def _module(self) -> str:
        return f"benchmarks.contenders.{self.module}"


_FFCV = Contender(
    title="FFCV, JPEG",
    module="ffcv_loader",
    variant="jpg",
    imports=("ffcv.loader",),
    install="PyPI has its source alone, which pip builds where pkg-config, OpenCV's headers and libturbojpeg's are "
    "(Debian: pkg-config libopencv-dev libturbojpeg0-dev)",
    packages=("ffcv", "numba", "cupy-cuda13x", "cupy-cuda12x", "cupy"),
    tolerance=Tolerance(mean=0.01, why="float32 arithmetic of its own"),
    draws_itself=True,
)

_FASTLOAD = Contender(
    title="FastLoader, native",
    module="fastload_loaders",
    variant="native",
    packages=(DISTRIBUTION, "pillow"),
    any_recipe=True,
)

_TORCH = Contender(title="DataLoader", module="torch_loaders", variant="plain", packages=("pillow",), any_recipe=True)

_DALI = Contender(
    title="DALI, CPU decode",
    module="dali",
    variant="cpu",
    imports=("nvidia.dali.plugin.pytorch",),
    install="pip install nvidia-dali-cuda130, or --site dali=DIR",
    packages=("nvidia-dali-cuda130", "nvidia-dali-cuda120", "nvidia-nvimgcodec-cu13"),
    tolerance=Tolerance(mean=0.5, why="the same filter in other arithmetic"),
    draws_itself=True,
    pins_itself=True,
    sweeps=True,
    any_recipe=True,
)

_NVJPEG = Contender(
    title="torchvision decode_jpeg, GPU",
    module="nvjpeg_lists",
    variant="torchvision",
    tolerance=Tolerance(mean=2.0, why="nvJPEG's decoder and torch's float32 resize"),
    draws_itself=True,
    needs_gpu=True,
    sweeps=True,
)

CONTENDERS: dict[str, Contender] = {
    "torch": _TORCH,
    "torch-pinned": replace(_TORCH, title="DataLoader, pinned", variant="pinned"),
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
    "dali-cpu": _DALI,
    "dali-gpu": replace(
        _DALI,
        title="DALI, GPU decode",
        variant="mixed",
        tolerance=Tolerance(mean=2.0, why="nvJPEG's decoder and DALI's resize"),
        needs_gpu=True,
    ),
    "torchvision-gpu": _NVJPEG,
    "torchcodec-gpu": replace(
        _NVJPEG, title="torchcodec decode_jpeg, GPU", variant="torchcodec", packages=("torchcodec",)
    ),
    "timm": Contender(
        title="timm PrefetchLoader",
        module="timm_prefetch",
        imports=("timm",),
        install="pip install timm",
        packages=("timm", "pillow"),
        tolerance=Tolerance(mean=0.001, why="normalizes on the GPU, which rounds otherwise"),
    ),
    "spdl": Contender(
        title="SPDL",
        module="spdl_io",
        imports=("spdl.io.utils",),
        install="pip install spdl, or --site spdl_io=DIR",
        packages=("spdl", "spdl-core", "spdl-io"),
        tolerance=Tolerance(mean=1.0, why="FFmpeg's color conversion and resize"),
        draws_itself=True,
    ),
    "ffcv": _FFCV,
    "ffcv-raw": replace(_FFCV, title="FFCV, raw pixels", variant="raw"),
    "fastload-workers": replace(_FASTLOAD, title="FastLoader, workers", variant="workers"),
    "fastload": _FASTLOAD,
    "fastload-new": replace(_FASTLOAD, title="FastLoader, native, first visit", variant="native-new"),
    "fastload-kept": replace(
        _FASTLOAD, title="FastLoader, native, files kept on the GPU", variant="native-kept", needs_gpu=True
    ),
    "fastload-cpu": replace(
        _FASTLOAD, title="FastLoader, native, decoding on the CPU", variant="native-cpu", needs_gpu=True
    ),
    "fastload-gpu": replace(
        _FASTLOAD, title="FastLoader, native, decoding on the GPU", variant="native-gpu", needs_gpu=True
    ),
    "ceiling": Contender(title="data on the GPU already", module="ceiling", loads=False, any_recipe=True),
}


def loading() -> list[str]:
    """Names of the contenders that load."""
    return [name for name, contender in CONTENDERS.items() if contender.loads]
