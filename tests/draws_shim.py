"""The core's random draws through the ctypes library of native_shim."""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from native_shim import library

OP_KINDS = [
    "random_resized_crop",
    "random_crop_v1",
    "random_crop_v2",
    "center_crop",
    "resize",
    "resize_shorter",
    "horizontal_flip",
    "vertical_flip",
]


class _Op(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int),
        ("height", ctypes.c_int),
        ("width", ctypes.c_int),
        ("max_size", ctypes.c_int),
        ("p", ctypes.c_double),
        ("scale", ctypes.c_double * 2),
        ("ratio", ctypes.c_double * 2),
        ("log_ratio", ctypes.c_float * 2),
    ]


@dataclass(frozen=True)
class UniformRule:
    """How the installed torch rounds ``uniform_``."""

    fused: bool
    excludes_upper: bool


@cache
def uniform_rule() -> UniformRule:
    """The rule that reproduces the installed torch, found by drawing."""
    for fused in (True, False):
        for excludes_upper in (True, False):
            rule = UniformRule(fused, excludes_upper)
            if all(
                np.array_equal(Generator(5).uniform(low, high, rule, 1000), torch_uniform(5, low, high, 1000))
                for low, high in ((0.08, 1.0), (-0.3, 0.3), (1.0, float(np.nextafter(np.float32(1), np.float32(2)))))
            ):
                return rule
    raise AssertionError("no rule reproduces torch's uniform_")


def torch_uniform(seed: int, low: float, high: float, count: int) -> np.ndarray:
    """Draw one element at a time, as a transform does."""
    generator = torch.Generator().manual_seed(seed)
    draws = [torch.empty(1).uniform_(low, high, generator=generator).item() for _ in range(count)]
    return np.array(draws, np.float32)


def seed_for_index(seed: int, epoch: int, index: int) -> int:
    function = library().shim_seed_for_index
    function.restype, function.argtypes = ctypes.c_uint64, [ctypes.c_uint64] * 3
    return int(function(seed, epoch, index))


class Generator:
    """The core's generator."""

    def __init__(self, seed: int) -> None:
        self.pointer = ctypes.create_string_buffer(library().shim_generator_bytes())
        library().shim_seed(self.pointer, ctypes.c_uint64(seed))

    def get_state(self) -> bytes:
        out = ctypes.create_string_buffer(5056)
        library().shim_get_state(self.pointer, out)
        return out.raw

    def set_state(self, state: bytes) -> bool:
        assert len(state) == 5056
        return bool(library().shim_set_state(self.pointer, state))

    def uniform(self, low: float, high: float, rule: UniformRule, count: int) -> np.ndarray:
        out = np.empty(count, np.float32)
        bounds = (ctypes.c_double(low), ctypes.c_double(high), rule.fused, rule.excludes_upper)
        library().shim_uniform(self.pointer, *bounds, count, ctypes.c_void_p(out.ctypes.data))
        return out

    def rand(self, count: int) -> np.ndarray:
        out = np.empty(count, np.float32)
        library().shim_rand(self.pointer, count, ctypes.c_void_p(out.ctypes.data))
        return out

    def randint(self, low: int, high: int, count: int) -> np.ndarray:
        out = np.empty(count, np.int64)
        bounds = (ctypes.c_int64(low), ctypes.c_int64(high))
        library().shim_randint(self.pointer, *bounds, count, ctypes.c_void_p(out.ctypes.data))
        return out


class DrawPlan:
    """A list of ops: ``(kind, {field: value})``."""

    def __init__(self, *ops: tuple[str, dict[str, object]], rule: UniformRule | None = None) -> None:
        array = (_Op * len(ops))()
        for op, (kind, fields) in zip(array, ops, strict=True):
            op.kind, op.p = OP_KINDS.index(kind), 0.5
            op.scale[:], op.ratio[:] = (0.08, 1.0), (3 / 4, 4 / 3)
            for name, value in fields.items():
                if isinstance(value, tuple):
                    getattr(op, name)[:] = value
                else:
                    setattr(op, name, value)
            op.log_ratio[:] = torch.log(torch.tensor(tuple(op.ratio))).tolist()
        rule = rule or uniform_rule()
        library().shim_plan.restype = ctypes.c_void_p
        self.pointer = library().shim_plan(array, len(ops), rule.fused, rule.excludes_upper)
        if not self.pointer:
            raise ValueError(library().shim_error().decode())
        weakref.finalize(self, library().shim_free_plan, ctypes.c_void_p(self.pointer))
        self.ambiguous = 0
        self.known: list[tuple[float, float]] = []

    def draw(self, generator: Generator, sizes: np.ndarray) -> np.ndarray:
        """Draw a sample per (width, height).

        Returns:
            12 numbers each: crop, out size, window (top, left, height, width), flips.
        """
        sizes = np.ascontiguousarray(sizes, np.int32)
        self.ambiguous = 0
        out = np.empty((len(sizes), 12), np.int32)
        status, unresolved = ctypes.c_int(), ctypes.c_float()
        done, known = 0, list(self.known)
        while done < len(sizes):
            pairs = np.array(known, np.float32)
            done += library().shim_draw(
                ctypes.c_void_p(self.pointer),
                generator.pointer,
                len(sizes) - done,
                ctypes.c_void_p(sizes[done:].ctypes.data),
                ctypes.c_void_p(pairs.ctypes.data),
                len(known),
                ctypes.c_void_p(out[done:].ctypes.data),
                ctypes.byref(status),
                ctypes.byref(unresolved),
            )
            if status.value == 2:
                raise ValueError(f"crop too large at sample {done}")
            if status.value == 1:
                self.ambiguous += 1
                known.append((unresolved.value, torch.exp(torch.tensor([unresolved.value])).item()))
        return out
