"""Compile ``normalize.cu`` with g++ and run its threads one by one, without a GPU.

This checks its indices.
Its speed and NVRTC's compilation need a device (tests/gpu).
"""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import torch

from fastload.device import nvrtc

# Loads and stores check their addresses, because a GPU faults on unaligned ones. Each launch runs twice: in the first
# run a thread finds only part of the table in "shared" memory, because threads run one after another.
SHIM = """
#include <cstdint>
struct Index { unsigned x; };
static Index threadIdx, blockIdx, gridDim;
static long long faults;
static const unsigned char *levels_begin, *levels_end;
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __shared__ static
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 {
    unsigned x, y, z, w;
    uint4(unsigned a, unsigned b, unsigned c, unsigned d) : x(a), y(b), z(c), w(d) {}
    uint4& operator=(const uint4& other) {
        faults += reinterpret_cast<std::uintptr_t>(this) % 16 != 0;
        __builtin_memcpy(static_cast<void*>(this), &other, sizeof other);
        return *this;
    }
};
static uint4 make_uint4(unsigned a, unsigned b, unsigned c, unsigned d) { return uint4(a, b, c, d); }
template <class T>
static T __ldg(const T* from) {
    const auto* begin = reinterpret_cast<const unsigned char*>(from);
    T value{};
    const bool outside = begin < levels_begin || begin + sizeof(T) > levels_end;
    if (outside || reinterpret_cast<std::uintptr_t>(from) % sizeof(T) != 0) {
        ++faults;
    } else {
        __builtin_memcpy(&value, from, sizeof(T));
    }
    return value;
}
static void __syncthreads() {}
#include "normalize.cu"
extern "C" long long run(int planar, unsigned blocks, const unsigned char* levels, const Value* table, Value* out,
                         long long images, long long plane, long long wide) {
    levels_begin = levels;
    levels_end = levels + images * plane * CHANNELS;
    faults = 0;
    gridDim.x = blocks;
    for (int pass = 0; pass < 2; ++pass)
        for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
            for (threadIdx.x = 0; threadIdx.x < THREADS; ++threadIdx.x)
                (planar ? look_up_nchw : look_up_nhwc)(levels, table, out, images, plane, wide);
    return faults;
}
"""


class KernelOnCpu:
    """One compilation of the source.

    Args:
        folder: Folder for build products.
        value_bytes: The source's macro ``VALUE_BYTES``.
        channels: The source's macro ``CHANNELS``.
    """

    def __init__(self, folder: Path, value_bytes: int, channels: int) -> None:
        source = folder / f"epilogue_{value_bytes}_{channels}.cpp"
        source.write_text(SHIM)
        (folder / "normalize.cu").write_text(nvrtc.source("normalize.cu"))
        target = source.with_suffix(".so")
        flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-fno-strict-aliasing", "-Wall", "-Wno-unknown-pragmas"]
        macros = [f"-DVALUE_BYTES={value_bytes}", f"-DCHANNELS={channels}"]
        subprocess.run(["g++", *flags, *macros, str(source), "-o", str(target)], check=True)
        self._run = ctypes.CDLL(str(target)).run
        self._run.restype = ctypes.c_longlong
        pointers, sizes = [ctypes.c_void_p] * 3, [ctypes.c_longlong] * 3
        self._run.argtypes = [ctypes.c_int, ctypes.c_uint, *pointers, *sizes]

    def __call__(
        self, images: torch.Tensor, values: torch.Tensor, memory_format: torch.memory_format, blocks: int
    ) -> torch.Tensor:
        """Like :func:`fastload.device.nvrtc.look_up`, and check that nothing around the result changes."""
        count, height, width, channels = images.shape
        guard = 64 // values.element_size()
        size = images.numel()
        room = torch.full((size + 2 * guard + 64,), 77, dtype=values.dtype)
        start = guard + (-(room.data_ptr() // values.element_size()) % (16 // values.element_size()))
        flat = room[start : start + size]
        wide = nvrtc.is_wide(images.data_ptr(), flat.data_ptr(), height * width, values.element_size(), memory_format)
        planar = memory_format == torch.contiguous_format
        faults = self._run(
            planar, blocks, images.data_ptr(), values.data_ptr(), flat.data_ptr(), count, height * width, wide
        )
        assert faults == 0
        assert bool((room[:start] == 77).all())
        assert bool((room[start + size :] == 77).all())
        if planar:
            return flat.view(count, channels, height, width)
        return flat.view(count, height, width, channels).permute(0, 3, 1, 2)
