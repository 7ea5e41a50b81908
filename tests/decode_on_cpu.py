"""Compile the decode and step kernels with g++, and run their threads one by one.

This checks indices, memory accesses and bits. Speed, races and NVRTC's compilation need a device (tests/gpu).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from native_shim import compiled_text

from fastload import _core
from fastload.device import nvrtc
from fastload.device.decode import files as decode

# Each thread of a block has a stack of its own, which a barrier leaves for the next one. It is made once: to make one
# takes system calls, as does swapcontext().
SHIM = """
#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>
#include <ucontext.h>
struct Index { unsigned x, y, z; };
static Index threadIdx, blockIdx, gridDim, blockDim;
#define __global__
#define __device__
#define __constant__ static const
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __noinline__ __attribute__((noinline))
#define __shared__ static
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
struct Thread {
    jmp_buf place;
    Index index;
    bool has_stack = false, ended = true;
    std::vector<char> stack = std::vector<char>(1 << 15);
};
static jmp_buf block;
static Thread* current;
static void __syncthreads() {
    if (_setjmp(current->place) == 0) _longjmp(block, 1);
}
static void __syncwarp() { __syncthreads(); }
template <class T> static T __ldg(const T* from) { return *from; }
static unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return shift == 0 ? high : high << shift | low >> (32 - shift);
}
static unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    const std::uint64_t bytes = std::uint64_t{high} << 32 | low;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) result |= unsigned(bytes >> (8 * (selector >> (4 * i) & 7)) & 255) << (8 * i);
    return result;
}
static int __popc(unsigned word) { return __builtin_popcount(word); }
static unsigned atomicAdd(unsigned* to, unsigned value) { return (*to += value) - value; }
static unsigned __vminu4(unsigned a, unsigned b) {
    unsigned all = 0;
    for (unsigned mask = 255; mask != 0; mask <<= 8) all |= std::min(a & mask, b & mask);
    return all;
}
static unsigned __vmaxu4(unsigned a, unsigned b) { return ~__vminu4(~a, ~b); }
using std::max;
using std::min;
#include "decode_source.cu"
static std::vector<Thread> threads(1024);
static const void* launched;
static void (*called)(const void*);
static void live() {
    for (;;) {
        called(launched);
        current->ended = true;
        __syncthreads();
    }
}
static void go_on(Thread& thread) {
    current = &thread;
    threadIdx = thread.index;
    if (_setjmp(block) != 0) return;
    if (thread.has_stack) _longjmp(thread.place, 1);
    thread.has_stack = true;
    static ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = thread.stack.data();
    context.uc_stack.ss_size = thread.stack.size();
    makecontext(&context, live, 0);
    setcontext(&context);
}
static void run_block(unsigned count) {
    for (unsigned i = 0; i < count; ++i) {
        threads[i].index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
        threads[i].ended = false;
    }
    for (bool all_ended = false; !all_ended;) {
        all_ended = true;
        for (unsigned i = 0; i < count; ++i) {
            if (threads[i].ended) continue;
            go_on(threads[i]);
            all_ended = all_ended && threads[i].ended;
        }
    }
}
template <class F>
static void all(const unsigned* grid, const unsigned* shape, const F& kernel) {
    launched = &kernel;
    called = [](const void* f) { (*static_cast<const F*>(f))(); };
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {shape[0], shape[1], shape[2]};
    for (unsigned i = 0; i < grid[0] * grid[1] * grid[2]; ++i) {
        blockIdx = {i % grid[0], i / grid[0] % grid[1], i / grid[0] / grid[1]};
        run_block(shape[0] * shape[1] * shape[2]);
    }
}
using namespace fastload;
extern "C" void run(const char* name, const unsigned* grid, const unsigned* shape, const std::int64_t* a) {
    const auto at = [&](int i) { return reinterpret_cast<unsigned char*>(a[i]); };
    const std::string_view kernel(name);
    all(grid, shape, [&] {
        if (kernel == "tables")
            tables(at(0), a[1], (Tables*)at(2));
        else if (kernel == "find_tables")
            find_tables((const Tables*)at(0), (FindTables*)at(1));
        else if (kernel == "subsequences")
            subsequences(at(0), (const StagedWork*)at(1), (const FindTables*)at(2), at(3));
        else if (kernel == "synchronize")
            synchronize(at(0), (const StagedWork*)at(1), (const FindTables*)at(2), at(3));
        else if (kernel == "chain")
            chain(at(0), a[1], at(2), (int*)at(3));
        else if (kernel == "points")
            points(at(0), (const StagedWork*)at(1), (const FindTables*)at(2), at(3), (int*)at(4));
        else if (kernel == "stuffed")
            stuffed(at(0), a[1], (const int*)at(2));
        else if (kernel == "keep")
            keep(at(0), (const StagedKeep*)at(1));
        else if (kernel == "huffman")
            huffman(at(0), (const StagedWork*)at(1), (const Tables*)at(2), (short*)at(3), (int*)at(4));
        else if (kernel == "coefficients")
            coefficients(at(0), a[1], (short*)at(2));
        else if (kernel == "transform")
            transform(at(0), a[1], (const short*)at(2), at(3), (int*)at(4));
        else if (kernel == "rows")
            rows(at(0), a[1], at(2), a[3]);
        else if (kernel == "columns_first")
            columns_first(at(0), a[1], at(2));
        else if (kernel == "second_pass")
            second_pass(at(0), a[1], at(2), at(3));
        else
            steps(at(0), a[1], at(2), at(3));
    });
}
extern "C" void shift_hues(unsigned* pixels, long long count, int shift) {
    for (long long i = 0; i < count; ++i) pixels[i] = shifted_hue(pixels[i], shift);
}
"""


class Finished:
    """A staging of another process, from its layout."""

    table_bytes, find_table_bytes = _core.Staging.table_bytes, _core.Staging.find_table_bytes

    def __init__(self, layout: decode.StagedLayout, owners: list[int]) -> None:
        self._layout = layout
        self.used, self.search, self.codes, self.owner = layout.used, layout.search, layout.codes, owners.__getitem__
        self.keeps = layout.keeps

    def finish(self, most_bytes: int) -> list[tuple[int, ...]]:
        """Return the chunks."""
        return self._layout.chunks

    def has(self) -> bytes:
        """Say which images are staged."""
        return self._layout.has


_MARGIN = 1 << 12  # bytes that kernels must not write


class KernelsOnCpu:
    """The compiled source.

    Args:
        step_threads: Of a block that runs steps. A GPU has more, which take longer here.
    """

    def __init__(self, step_threads: int = 64) -> None:
        text = nvrtc.source(*decode.KERNELS)
        for device, host in (
            ("extern __shared__ u32 pixels[];", f"static u32 pixels[{1 << 14}];"),
            ("extern __shared__ uint4 shared[];", f"static uint4 shared[{1 << 14}];"),
            (f"kStepThreads = {decode._STEP_THREADS};", f"kStepThreads = {step_threads};"),
        ):
            assert text.count(device) == 1
            text = text.replace(device, host)
        self._step_threads = step_threads
        text = SHIM.replace('#include "decode_source.cu"', text)
        self._library = ctypes.CDLL(compiled_text(text, "-O1", "-ffp-contract=off", "-Wno-unknown-pragmas"))
        self._chunks: Any = None

    def hues(self, pixels: np.ndarray[Any, Any], shift: int) -> np.ndarray[Any, Any]:
        """Return pixels, one in each word, with another hue."""
        result = pixels.copy()
        self._library.shift_hues(ctypes.c_void_p(result.ctypes.data), ctypes.c_longlong(result.size), shift)
        return result

    def decode(
        self, staging: Any, memory: torch.Tensor, pixels: torch.Tensor, images: int, *, again: bool = False
    ) -> list[int]:
        """Decode into ``pixels``, and return the numbers of the images that could not be.

        ``again`` decodes the last batch anew.
        """
        bad = torch.zeros(images, dtype=torch.int32)
        self._chunks = chunks = self._chunks if again else staging.finish(decode.SCRATCH_MAX_BYTES)
        tables = torch.full((staging.codes[1] * staging.table_bytes // 8,), -1)
        search = staging.search
        files = torch.full((staging.used + search[4] + _MARGIN,), 0xA5, dtype=torch.uint8)
        files[: staging.used] = memory[: staging.used]
        memory = files
        if staging.codes[1]:
            self._launch(decode.table_launch(staging.codes, memory.data_ptr(), tables.data_ptr()))
        if search[0]:
            runs = torch.full((search[3] + 2 * _MARGIN,), 0xA5, dtype=torch.uint8)
            find_tables = torch.full((staging.codes[1] * staging.find_table_bytes,), 0xA5, dtype=torch.uint8)
            addresses = [tensor.data_ptr() for tensor in (memory, tables, find_tables, runs[_MARGIN:-_MARGIN], bad)]
            for launch in decode.find_launches(search, images, staging.codes[1], *addresses):
                self._launch(launch)
            assert set(runs[:_MARGIN].tolist() + runs[-_MARGIN:].tolist()) == {0xA5}
        if staging.keeps[1]:
            self._launch(decode.keep_launch(staging.keeps, memory.data_ptr()))
        for chunk in chunks:
            blocks = [torch.full((size + 2 * _MARGIN,), 0xA5, dtype=torch.uint8) for size in chunk[4:6]]
            coefficients, scratch = (block[_MARGIN:-_MARGIN] for block in blocks)
            coefficients.zero_()
            addresses = [tensor.data_ptr() for tensor in (memory, tables, coefficients, scratch, pixels, bad)]
            for launch in decode.launches(chunk, *addresses):
                self._launch(launch)
            for block in blocks:
                assert set(block[:_MARGIN].tolist() + block[-_MARGIN:].tolist()) == {0xA5}
        assert set(memory[-_MARGIN:].tolist()) == {0xA5}
        self.points, self.bad = memory[staging.used : -_MARGIN], bad  # the points that were found
        has = staging.has()
        return [image for image in range(images) if has[image] and bad[staging.owner(image)]]

    def _launch(self, launch: Any) -> None:
        name, grid, block, arguments = launch
        self._library.run(
            name.encode(),
            (ctypes.c_uint * 3)(*[*grid, 1, 1][:3]),
            (ctypes.c_uint * 3)(self._step_threads if name == "steps" else block[0], 1, 1),
            (ctypes.c_int64 * len(arguments))(*arguments),
        )


@pytest.fixture(scope="module", name="kernels")
def kernels_fixture() -> KernelsOnCpu:
    """The kernels, for the tests of a module."""
    return KernelsOnCpu()


@pytest.fixture(name="pool")
def pool_fixture() -> Iterator[_core.Pool]:
    """Two decode threads, for a test."""
    pool = _core.Pool(2)
    yield pool
    pool.close()
