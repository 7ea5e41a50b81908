"""The roofline: what bounds a kernel, by the device's measured ceilings."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

Class: TypeAlias = Literal["compute-bound", "memory-bound", "latency-bound"]

TENSOR: Final = ("tensor", "tf32", "fp8", "int8", "fp64_tensor")
"""Kinds of arithmetic on tensor cores; ``"tensor"`` is bfloat16 and float16, at one rate."""

SCALAR: Final = ("fp16", "fp32", "fp64")  # kinds of arithmetic on other cores
NEAR: Final = 0.6  # share of a ceiling from which it bounds a kernel; below all, latency does
_BYTES: Final = 1 << 30
_SIDE: Final = 8192
_REPEATS: Final = 7
_PRODUCTS: Final = {
    "tensor_flops": ("bfloat16", 1, "highest"),
    "fp32_flops": ("float32", 2, "highest"),
    "fp64_flops": ("float64", 4, "highest"),
    "tf32_flops": ("float32", 1, "high"),
}
"""Matrix products by name: type, divisor of the side, torch's float32 precision."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The best rates of one device: bytes, and operations of matrix products, per second."""

    device: str
    bytes_per_s: float  # bytes between L2 and device memory, read and written together
    tensor_flops: float  # products in bfloat16, on tensor cores
    fp32_flops: float  # products in float32 without TF32
    fp64_flops: float  # products in float64, on tensor cores where they can do it
    tf32_flops: float | None = None  # products in float32 with TF32; None in files written without it

    def flops(self, kind: str) -> float:
        """The ceiling of one kind of arithmetic.

        Rates that are not measured follow from the ratios that NVIDIA documents. On tensor cores (data sheets of A100
        and H100): int8 and fp8 run at twice bfloat16's rate, TF32 at half of it. On other cores (CUDA C++ Programming
        Guide, throughput of native arithmetic instructions): float16 runs at twice float32's rate on most devices (four
        times on an A100), float64 at most at half of it.
        """
        ceilings = {
            "tensor": self.tensor_flops,
            "tf32": self.tensor_flops / 2 if self.tf32_flops is None else self.tf32_flops,
            "fp8": 2 * self.tensor_flops,
            "int8": 2 * self.tensor_flops,
            "fp64_tensor": self.fp64_flops,
            "fp16": 2 * self.fp32_flops,
            "fp32": self.fp32_flops,
            "fp64": min(self.fp64_flops, self.fp32_flops / 2),
        }
        return ceilings[kind]

    @property
    def ridge(self) -> float:
        """Operations per byte above which tensor cores, not memory, are the ceiling."""
        return self.tensor_flops / self.bytes_per_s


def classify(seconds: float, size_bytes: float, operations: Mapping[str, float], ceilings: Ceilings) -> Class:
    """Classify work by its ``seconds``, ``size_bytes`` moved and ``operations`` of each kind."""
    memory, compute = shares(seconds, size_bytes, operations, ceilings)
    if max(memory, compute) < NEAR:
        return "latency-bound"
    return "memory-bound" if memory >= compute else "compute-bound"


def shares(
    seconds: float, size_bytes: float, operations: Mapping[str, float], ceilings: Ceilings
) -> tuple[float, float]:
    """The achieved shares of the ceilings of bandwidth and of arithmetic.

    All kinds on tensor cores compete for them, so their times add up; the other kinds run in parallel.
    """
    if seconds <= 0:
        return 0.0, 0.0
    reached = {kind: count / seconds / ceilings.flops(kind) for kind, count in operations.items()}
    on_tensor_cores = sum(reached.pop(kind, 0.0) for kind in TENSOR)
    return size_bytes / seconds / ceilings.bytes_per_s, max(on_tensor_cores, *reached.values(), 0.0)


def measure() -> Ceilings:
    """Measure the current CUDA device. About two seconds and 3 GB; blocks."""
    import torch

    device = torch.device("cuda", torch.cuda.current_device())

    def copy_s() -> float:
        source = torch.ones(_BYTES, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        return _median_s(lambda: target.copy_(source))

    rates = {name: product_flops(device, name) for name in _PRODUCTS}
    return Ceilings(torch.cuda.get_device_name(device), 2 * _BYTES / copy_s(), **rates)


def product_flops(device: torch.device, name: str) -> float:
    """Measure a large matrix product, named as in :class:`Ceilings`, in operations/s. Blocks."""
    import torch

    dtype, parts, precision = _PRODUCTS[name]
    side = _SIDE // parts
    left, right = (torch.randn(side, side, dtype=getattr(torch, dtype), device=device) for _ in range(2))
    out = torch.empty_like(left)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        return 2 * side**3 / _median_s(lambda: torch.mm(left, right, out=out))
    finally:
        torch.set_float32_matmul_precision(before)


def _median_s(work: Callable[[], object]) -> float:
    import torch

    times_s: list[float] = []
    for _ in range(_REPEATS + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        work()
        end.record()
        end.synchronize()
        times_s.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times_s[2:])  # the first two warm up
