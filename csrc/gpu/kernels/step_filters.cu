// Steps whose pixels depend on neighbours: sharpness, blurs and resizes. Included by steps.cu.

#include "step_images.h"

namespace fastload {
namespace {

// Pillow's SMOOTH, blended with the pixel. Two channels share a word: sums have at most 12 bits.
__device__ __noinline__ u32 sharpened(const Words& in, int y, int x, float factor) {
  const u32 here = in.at(y, x);
  u32 red_and_blue = 0, green = 0;
  const bool inside = y > 0 && y + 1 < in.height && x > 0 && x + 1 < in.width;
  if (inside) {
    for (int down = -1; down <= 1; ++down) {
      for (int across = -1; across <= 1; ++across) {
        const u32 pixel = in.at(y + down, x + across);
        red_and_blue += pixel & 0xFF00FF;
        green += pixel >> 8 & 255;
      }
    }
    red_and_blue += 4 * (here & 0xFF00FF);
    green += 4 * (here >> 8 & 255);
  }
  const auto blend = [&](int c, u32 sum) {
    const int level = channel_of(here, c);
    return blended(inside ? static_cast<int>(((sum + 6) * 5042) >> 16) : level, level, factor);
  };
  return joined(blend(0, red_and_blue & 0xFFFF), blend(1, green), blend(2, red_and_blue >> 16));
}

struct Sums {
  u32 red, green, blue;

  __device__ __forceinline__ void add(u32 pixel, u32 times) {
    red += (pixel & 255) * times;
    green += (pixel >> 8 & 255) * times;
    blue += (pixel >> 16 & 255) * times;
  }
};

// As in csrc/image/filters/blur.h.
struct Box {
  int radius;
  u32 whole, far;

  __device__ __forceinline__ explicit Box(const int* numbers)
      : radius(numbers[0]), whole(static_cast<u32>(numbers[1])), far(static_cast<u32>(numbers[2])) {}
  // `inside`: of the whole pixels. `before` and `after` are next to them.
  __device__ __forceinline__ u32 pixel(const Sums& inside, u32 before, u32 after) const {
    Sums edges{1u << 23, 1u << 23, 1u << 23};
    edges.add(before, far);
    edges.add(after, far);
    return joined(static_cast<int>((inside.red * whole + edges.red) >> 24),
                  static_cast<int>((inside.green * whole + edges.green) >> 24),
                  static_cast<int>((inside.blue * whole + edges.blue) >> 24));
  }
};

// Larger boxes take a sum that moves along a row. That loads fewer pixels, but those of a warp's lanes are in as many
// rows, and memory gives one row at a time.
constexpr int kMostWhole = 32;
static_assert((2 * kMostWhole + 1) * 255 < 1 << 16);

// One pass along rows, which adds up each box by itself. Two channels share a word.
__device__ __noinline__ void blur_rows(const Words& in, const Box& box, const Sink& to) {
  const int last = in.width - 1;
  for_each_at(in.height, in.width, to, [&](int y, int x) {
    const u32* const row = in.pixels + y * in.width;
    u32 red_and_blue = 0, green = 0;
    for (int i = x - box.radius; i <= x + box.radius; ++i) {
      const u32 pixel = row[clamped(i, 0, last)];
      red_and_blue += pixel & 0xFF00FF;
      green += pixel >> 8 & 255;
    }
    return box.pixel({red_and_blue & 0xFFFF, green, red_and_blue >> 16}, row[clamped(x - box.radius - 1, 0, last)],
                     row[clamped(x + box.radius + 1, 0, last)]);
  });
}

// One of the lines of an image along which a box moves.
struct Line {
  const u32* pixels;
  int length, step;

  __device__ __forceinline__ u32 at(int i) const { return pixels[clamped(i, 0, length - 1) * step]; }
};

// One pass along rows or columns. A thread begins with the sum over a box, and moves that.
__device__ __noinline__ void blur_lines(const Words& in, const Box& box, bool along_x, const Sink& to) {
  const int radius = box.radius;
  const int length = along_x ? in.width : in.height, lines = along_x ? in.height : in.width;
  const int step = along_x ? 1 : in.width, line_step = along_x ? in.width : 1;
  const int segment = min(kWarp + 2 * radius, length), segments = (length + segment - 1) / segment;
  for (int task = static_cast<int>(threadIdx.x); task < lines * segments; task += kStepThreads) {
    const int first = task % lines * line_step, begin = task / lines * segment, end = min(begin + segment, length);
    const Line line{in.pixels + first, length, step};
    // Of the box around the pixel before the segment.
    const int low = begin - 1 - radius, high = begin - 1 + radius;
    Sums sums{0, 0, 0};
    sums.add(line.at(0), static_cast<u32>(max(min(high, -1) - low + 1, 0)));
    for (int i = max(low, 0); i <= min(high, length - 1); ++i) sums.add(line.at(i), 1);
    sums.add(line.at(length - 1), static_cast<u32>(max(high - max(low, length) + 1, 0)));
    u32 newest = line.at(begin + radius);
    for (int i = begin; i < end; ++i) {
      const u32 before = line.at(i - radius - 1), after = line.at(i + radius + 1);
      sums.add(newest, 1);
      sums.add(before, 0xFFFFFFFF);
      to.put(first + i * step, box.pixel(sums, before, after));
      newest = after;
    }
  }
}

// One half of a symmetric kernel, from half of its center on; as in csrc/image/filters/gaussian.cpp.
struct HalfKernel {
  const short* weights;
  int count, shift;

  // `at(i)` has the values i positions away.
  template <typename At>
  __device__ __forceinline__ void sum_up(At at, int (&sums)[kChannels]) const {
    for (int c = 0; c < kChannels; ++c) sums[c] = 1 << (shift - 1);
    for (int k = 0; k < count; ++k) {
      int before[kChannels], after[kChannels];
      at(-k, before);
      at(k, after);
      for (int c = 0; c < kChannels; ++c) sums[c] += (before[c] + after[c]) * weights[k];
    }
    for (int c = 0; c < kChannels; ++c) sums[c] >>= shift;
  }
};

__device__ __forceinline__ int reflected(int position, int size) {
  position = position < 0 ? -position : position >= size ? 2 * size - 2 - position : position;
  return clamped(position, 0, size - 1);
}

constexpr int kBetweenBits = 6;  // fractional bits between a Gaussian filter's passes

// `between` has room for two words a pixel.
__device__ __noinline__ void filter(const Words& in, const StagedStep& step, const u8* data, u32* between,
                                    const Sink& to) {
  const auto weights = [&](unsigned at) { return reinterpret_cast<const short*>(data + at); };
  const HalfKernel across{weights(step.data), step.numbers[0], step.numbers[1] - kBetweenBits};
  const HalfKernel down{weights(step.more), step.numbers[2], step.numbers[3] + kBetweenBits};
  uint2* const rows = reinterpret_cast<uint2*>(between);
  const int width = in.width;
  for (int i = static_cast<int>(threadIdx.x); i < in.height * width; i += kStepThreads) {
    const int y = i / width, x = i % width;
    int sums[kChannels];
    across.sum_up(
        [&](int k, int (&levels)[kChannels]) {
          const u32 pixel = in.at(y, reflected(x + k, width));
          for (int c = 0; c < kChannels; ++c) levels[c] = channel_of(pixel, c);
        },
        sums);
    rows[i] = make_uint2(static_cast<u32>(sums[0]) | static_cast<u32>(sums[1]) << 16, static_cast<u32>(sums[2]));
  }
  __syncthreads();
  for_each_at(in.height, width, to, [&](int y, int x) {
    int sums[kChannels];
    down.sum_up(
        [&](int k, int (&values)[kChannels]) {
          const uint2 pixel = rows[reflected(y + k, in.height) * width + x];
          values[0] = static_cast<int>(pixel.x & 0xFFFF);
          values[1] = static_cast<int>(pixel.x >> 16);
          values[2] = static_cast<int>(pixel.y);
        },
        sums);
    return joined(sums[0] & 255, sums[1] & 255, sums[2] & 255);
  });
}

// Adds up all products of a pixel one after the other, each with one rounding, as csrc/image/filters/convolve.cpp: for
// the pixels of a column, so that few weights are loaded for a pixel of the source. Products with the zeros around the
// weights leave sums as they are. `column(j)` is the source's of the weights' column j.
template <typename Column>
__device__ __forceinline__ void sum_up(const Words& in, const StagedStep& step, const u8* data, int top, Column column,
                                       float (&sums)[kConvolvedRows][kChannels]) {
  const int rows = step.numbers[0], quads = (step.numbers[1] + 3) / 4;
  const float4* const weights = reinterpret_cast<const float4*>(data + step.data);
  for (int i = 0; i < rows + kConvolvedRows - 1; ++i) {  // rows of the source
    const u32* const row = in.pixels + reflected(top + i - rows / 2, in.height) * in.width;
    for (int quad = 0; quad < quads; ++quad) {
      float4 factors[kConvolvedRows];
#pragma unroll
      for (int k = 0; k < kConvolvedRows; ++k) factors[k] = weights[(i - k + kConvolvedRows - 1) * quads + quad];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const u32 pixel = row[column(4 * quad + j)];
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
          const float level = static_cast<float>(channel_of(pixel, c));
#pragma unroll
          for (int k = 0; k < kConvolvedRows; ++k) {
            const float4& four = factors[k];
            sums[k][c] = fmaf(level, j == 0 ? four.x : j == 1 ? four.y : j == 2 ? four.z : four.w, sums[k][c]);
          }
        }
      }
    }
  }
}

__device__ __noinline__ void convolved(const Words& in, const StagedStep& step, const u8* data, const Sink& to) {
  const int columns = step.numbers[1], padded = (columns + 3) / 4 * 4;
  const int groups = (in.height + kConvolvedRows - 1) / kConvolvedRows;
  for (int task = static_cast<int>(threadIdx.x); task < groups * in.width; task += kStepThreads) {
    const int x = task % in.width, top = task / in.width * kConvolvedRows, left = x - columns / 2;
    float sums[kConvolvedRows][kChannels] = {};
    if (left >= 0 && left + padded <= in.width) {
      sum_up(in, step, data, top, [=](int j) { return left + j; }, sums);
    } else {
      sum_up(in, step, data, top, [=, width = in.width](int j) { return reflected(left + j, width); }, sums);
    }
#pragma unroll
    for (int k = 0; k < kConvolvedRows; ++k) {
      int levels[kChannels];
      for (int c = 0; c < kChannels; ++c) levels[c] = within_levels(rintf(sums[k][c]));
      if (top + k < in.height) to.put((top + k) * in.width + x, joined(levels[0], levels[1], levels[2]));
    }
  }
}

__device__ __noinline__ void resize(const Words& in, const StagedStep& step, const u8* data, u32* between,
                                    const Sink& to) {
  const int top = step.numbers[0], left = step.numbers[1], height = step.numbers[2], width = step.numbers[3];
  const int out_height = step.height, out_width = step.width;
  const u32* const from = in.pixels + top * in.width + left;
  if (step.numbers[4] != 0) {
    for_each_at(out_height, width, {between, nullptr},
                [&](int y, int x) { return convolve(data, step.more, out_height, y, from + x, in.width); });
    __syncthreads();
    for_each_at(out_height, out_width, to,
                [&](int y, int x) { return convolve(data, step.data, out_width, x, between + y * width, 1); });
  } else {
    for_each_at(height, out_width, {between, nullptr},
                [&](int y, int x) { return convolve(data, step.data, out_width, x, from + y * in.width, 1); });
    __syncthreads();
    for_each_at(out_height, out_width, to,
                [&](int y, int x) { return convolve(data, step.more, out_height, y, between + x, out_width); });
  }
}

}  // namespace
}  // namespace fastload
