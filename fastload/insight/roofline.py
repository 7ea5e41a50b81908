"""The roofline: what bounds a kernel, by the device's own ceilings, as measured and not as advertised."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Class: TypeAlias = Literal["compute-bound", "memory-bound", "latency-bound"]

NEAR: Final = 0.6
"""A kernel that reaches this share of a ceiling is bound by it; one that reaches it of none, by latency."""

_BYTES: Final = 1 << 30
_SIDE: Final = 8192
_REPEATS: Final = 7


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What one device reaches at best.

    Attributes:
        device: Its name.
        bytes_per_s: Between L2 and device memory: a large copy, read and written bytes together.
        tensor_flops: Operations per second on tensor cores: a large bfloat16 matrix product.
        fp32_flops: On the float32 cores: a large float32 matrix product without TF32.
        fp64_flops: In float64.
    """

    device: str
    bytes_per_s: float
    tensor_flops: float
    fp32_flops: float
    fp64_flops: float

    def flops(self, kind: str) -> float:
        """The ceiling of one kind of arithmetic. Float16 off the tensor cores runs at most at twice float32's rate."""
        known = {"tensor": self.tensor_flops, "fp32": self.fp32_flops, "fp64": self.fp64_flops}
        return 2 * self.fp32_flops if kind == "fp16" else known[kind]

    @property
    def ridge(self) -> float:
        """Operations per byte from which tensor cores, and not memory, are the ceiling."""
        return self.tensor_flops / self.bytes_per_s

    def to_dict(self) -> dict[str, Any]:
        """As JSON writes it."""
        return asdict(self)


def classify(seconds: float, size_bytes: float, operations: Mapping[str, float], ceilings: Ceilings) -> Class:
    """Say what bounds work that took ``seconds``, moved ``size_bytes`` and did ``operations`` of each kind."""
    memory, compute = shares(seconds, size_bytes, operations, ceilings)
    if max(memory, compute) < NEAR:
        return "latency-bound"
    return "memory-bound" if memory >= compute else "compute-bound"


def shares(
    seconds: float, size_bytes: float, operations: Mapping[str, float], ceilings: Ceilings
) -> tuple[float, float]:
    """Shares of the ceilings that were reached: of bandwidth, and of arithmetic (kinds run side by side)."""
    if seconds <= 0:
        return 0.0, 0.0
    compute = max((count / seconds / ceilings.flops(kind) for kind, count in operations.items()), default=0.0)
    return size_bytes / seconds / ceilings.bytes_per_s, compute


def measure() -> Ceilings:
    """Measure the current CUDA device. About two seconds and 3 GB; blocks."""
    import torch

    device = torch.device("cuda", torch.cuda.current_device())

    def copy_s() -> float:
        source = torch.ones(_BYTES, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        return _median_s(lambda: target.copy_(source))

    def product_s(dtype: torch.dtype, side: int) -> float:
        left, right = (torch.randn(side, side, dtype=dtype, device=device) for _ in range(2))
        out = torch.empty_like(left)
        return _median_s(lambda: torch.mm(left, right, out=out))

    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        rates = [
            2 * side**3 / product_s(dtype, side)
            for dtype, side in ((torch.bfloat16, _SIDE), (torch.float32, _SIDE // 2), (torch.float64, _SIDE // 4))
        ]
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    return Ceilings(torch.cuda.get_device_name(device), 2 * _BYTES / copy_s(), *rates)


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
