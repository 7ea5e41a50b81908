// Pixels in words, and their resize, for the kernels of decode.cu and steps.cu.
#pragma once

namespace fastload {
namespace {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned;
using u64 = unsigned long long;

__device__ __forceinline__ int clipped(int value) { return min(max(value, 0), 255); }

// A pixel is a word: red, green, blue from the lowest byte on.
__device__ __forceinline__ u32 pixel_of(int red, int green, int blue) {
#ifdef __CUDA_ARCH__
  u32 pixel;
  asm("cvt.pack.sat.u8.s32.b32 %0, 0, %1, 0;" : "=r"(pixel) : "r"(blue));
  asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %0;" : "+r"(pixel) : "r"(green), "r"(red));
  return pixel;
#else
  return static_cast<u32>(clipped(red) | clipped(green) << 8 | clipped(blue) << 16);
#endif
}

constexpr int kPrecisionBits = 22;  // of Pillow's weights

// The weights of one position of an axis.
struct Weights {
  const int* weight;
  int first, taps, count;

  __device__ __forceinline__ Weights(const u8* batch, unsigned axis, int count, int at) : count(count) {
    const int* const numbers = reinterpret_cast<const int*>(batch + axis);
    const int2 span = __ldg(reinterpret_cast<const int2*>(numbers) + at);
    weight = numbers + 2 * count + at;
    first = span.x;
    taps = span.y;
  }
};

struct Sum {
  int red = 1 << (kPrecisionBits - 1), green = red, blue = red;

  __device__ __forceinline__ void add(u32 pixel, int by) {
    red += static_cast<int>(pixel & 255) * by;
    green += static_cast<int>(pixel >> 8 & 255) * by;
    blue += static_cast<int>(pixel >> 16) * by;
  }
  __device__ __forceinline__ u32 pixel() const {
    return pixel_of(red >> kPrecisionBits, green >> kPrecisionBits, blue >> kPrecisionBits);
  }
};

// Resizes along one axis: words of `from` that are `step` apart, with the weights of position `at` of `count`.
__device__ __forceinline__ u32 convolve(const u8* batch, unsigned axis, int count, int at, const u32* from, int step) {
  const Weights weights(batch, axis, count, at);
  Sum sum;
  from += static_cast<long long>(weights.first) * step;
  const int* weight = weights.weight;
  for (int t = 0; t < weights.taps; ++t, from += step, weight += count) sum.add(*from, __ldg(weight));
  return sum.pixel();
}

}  // namespace
}  // namespace fastload
