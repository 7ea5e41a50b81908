// Steps that move pixels, as in csrc/image/transform/transform.cpp. Included by steps.cu.

#include "step_images.h"

namespace fastload {
namespace {

// The position within [0, size) that a position outside shows; as in csrc/image/transform/transform.cpp.
__device__ __forceinline__ int mirrored(int position, int size, int mode) {
  const int skipped = mode == 2 ? 1 : 0;
  if (mode >= 2) {
    if (position < 0) position = -position - 1 + skipped;
    if (position >= size) position = 2 * size - 1 - skipped - position;
  }
  return clamped(position, 0, size - 1);
}

__device__ __forceinline__ u32 padded(const Words& in, const StagedStep& step, int y, int x) {
  y -= step.numbers[0];
  x -= step.numbers[1];
  const int mode = step.numbers[2];
  if (mode == 0 && !in.has(y, x)) return step.fill;
  return in.at(mirrored(y, in.height, mode), mirrored(x, in.width, mode));
}

__device__ __forceinline__ u32 moved_by(const Words& in, const StagedStep& step, int y, int x) {
  const u32* const n = reinterpret_cast<const u32*>(step.numbers);
  const u32 right = static_cast<u32>(x), down = static_cast<u32>(y);
  const int column = static_cast<int>(n[2] + right * n[0] + down * n[1]) >> 16;
  const int row = static_cast<int>(n[5] + right * n[3] + down * n[4]) >> 16;
  return in.has(row, column) ? in.at(row, column) : step.fill;
}

__device__ __forceinline__ double linear(double a, double b, double d) { return a + (b - a) * d; }

__device__ __forceinline__ double cubic(double v0, double v1, double v2, double v3, double d) {
  const double p2 = v2 - v0, p3 = 2 * (v0 - v1) + v2 - v3, p4 = v1 - v0 - v2 + v3;
  return v1 + d * (p2 + d * (p3 + d * p4));
}

// A pixel of an affine or perspective transform; as in csrc/image/transform/transform.cpp.
__device__ __noinline__ u32 mapped(const Words& in, const StagedStep& step, int y, int x) {
  const double* const a = step.coefficients;
  const double across = x + 0.5, down = y + 0.5;
  double px = a[0] * across + a[1] * down + a[2], py = a[3] * across + a[4] * down + a[5];
  if (a[6] != 0 || a[7] != 0) {
    const double scale = a[6] * across + a[7] * down + 1;
    px /= scale;
    py /= scale;
  }
  if (px < 0.0 || px >= in.width || py < 0.0 || py >= in.height) return step.fill;
  const int sampling = step.numbers[0];
  if (px != px || py != py) return sampling == 0 ? step.fill : 0;
  if (sampling == 0) return in.at(static_cast<int>(py), static_cast<int>(px));
  px -= 0.5;
  py -= 0.5;
  const int column = px < 0 ? -1 : static_cast<int>(px), row = py < 0 ? -1 : static_cast<int>(py);
  const double dx = px - column, dy = py - row;
  int levels[kChannels];
  if (sampling == 1) {
    const int top = max(row, 0), bottom = min(row + 1, in.height - 1);
    const int left = max(column, 0), right = min(column + 1, in.width - 1);
    const u32 corners[4] = {in.at(top, left), in.at(top, right), in.at(bottom, left), in.at(bottom, right)};
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      levels[c] = static_cast<int>(linear(linear(channel_of(corners[0], c), channel_of(corners[1], c), dx),
                                          linear(channel_of(corners[2], c), channel_of(corners[3], c), dx), dy));
    }
  } else {
    double rows[4][kChannels];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int source = clamped(row - 1 + i, 0, in.height - 1);
      u32 pixels[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) pixels[j] = in.at(source, clamped(column - 1 + j, 0, in.width - 1));
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        rows[i][c] = cubic(channel_of(pixels[0], c), channel_of(pixels[1], c), channel_of(pixels[2], c),
                           channel_of(pixels[3], c), dx);
      }
    }
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      const double value = cubic(rows[0][c], rows[1][c], rows[2][c], rows[3][c], dy);
      levels[c] = static_cast<int>(value < 0.0 ? 0.0 : value > 255.0 ? 255.0 : value);
    }
  }
  return joined(levels[0], levels[1], levels[2]);
}

}  // namespace
}  // namespace fastload
