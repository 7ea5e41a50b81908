// The images between two steps, and how the threads of a block go through them.
#pragma once

#include "pixel_words.h"
#include "steps_layout.h"

namespace fastload {
namespace {

constexpr int kStepThreads = 512;
constexpr int kWarp = 32;
constexpr int kChannels = 3;
// Pixels that a thread loads before it stores one, where it would otherwise wait for memory. Elsewhere the warps of a
// processor compute for longer than a load takes.
constexpr int kAtOnce = 4;
// Where a step's pixels go: to words of an intermediate image, or as bytes to the batch's pixels.
struct Sink {
  u32* words;
  u8* bytes;

  __device__ __forceinline__ void put(int i, u32 pixel) const {
    if (words != nullptr) {
      words[i] = pixel;
      return;
    }
    u8* const out = bytes + static_cast<long long>(i) * 3;
    out[0] = static_cast<u8>(pixel);
    out[1] = static_cast<u8>(pixel >> 8);
    out[2] = static_cast<u8>(pixel >> 16);
  }
};

// An intermediate image.
struct Words {
  const u32* pixels;
  int height, width;

  __device__ __forceinline__ u32 at(int y, int x) const { return pixels[y * width + x]; }
  __device__ __forceinline__ bool has(int y, int x) const { return x >= 0 && x < width && y >= 0 && y < height; }
};

__device__ __forceinline__ int channel_of(u32 pixel, int c) { return static_cast<int>(pixel >> (8 * c) & 255); }

__device__ __forceinline__ u32 joined(int red, int green, int blue) {
  return static_cast<u32>(red) | static_cast<u32>(green) << 8 | static_cast<u32>(blue) << 16;
}

__device__ __forceinline__ int clamped(int value, int low, int high) { return min(max(value, low), high); }

// Makes `make(i)` for each of `count` pixels. A pixel may replace itself.
template <int kCount = 1, typename Make>
__device__ __forceinline__ void for_each(int count, const Sink& to, Make make) {
  for (int begin = static_cast<int>(threadIdx.x); begin < count; begin += kCount * kStepThreads) {
    u32 made[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (begin + k * kStepThreads < count) made[k] = make(begin + k * kStepThreads);
    }
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (begin + k * kStepThreads < count) to.put(begin + k * kStepThreads, made[k]);
    }
  }
}

// Makes `make(y, x)` for each pixel of another image than the source.
template <int kCount = 1, typename Make>
__device__ __forceinline__ void for_each_at(int height, int width, const Sink& to, Make make) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int y = static_cast<int>(threadIdx.x) / kWarp; y < height; y += kStepThreads / kWarp) {
    for (int begin = lane; begin < width; begin += kCount * kWarp) {
      u32 made[kCount];
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        if (begin + k * kWarp < width) made[k] = make(y, begin + k * kWarp);
      }
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        if (begin + k * kWarp < width) to.put(y * width + begin + k * kWarp, made[k]);
      }
    }
  }
}

// As in csrc/base/planes.h.
__device__ __forceinline__ int within_levels(float value) {
  value = value > 0.0f ? value : 0.0f;
  value = value < 255.0f ? value : 255.0f;
  return static_cast<int>(value);
}

__device__ __forceinline__ int blended(int from, int to, float factor) {
  return within_levels(static_cast<float>(from) + factor * static_cast<float>(to - from));
}

}  // namespace
}  // namespace fastload
