// Runs the steps on the decoded images of a batch, with the bits of the decode threads (csrc/image). steps_layout.h
// says what these have prepared. Compiled at run time (decode.py); includes no other headers.
//
// One block of threads makes all steps of an image, one after the other. Floats and doubles are rounded after each
// operation, as on the host: the program is compiled without fused operations but those that torch fuses.

#include "decode_layout.h"
#include "pixel_words.h"
#include "steps_layout.h"

namespace fastload {
namespace {

constexpr int kStepThreads = 512;
constexpr int kWarp = 32;
// Pixels that a thread loads before it stores one, where it would otherwise wait for memory. Elsewhere the warps of a
// processor compute for longer than a load takes.
constexpr int kAtOnce = 4;
constexpr int kLevels = 256;
constexpr int kChannels = 3;
// Neighbouring pixels are often alike: lanes of a warp count in different copies, which begin in different banks.
constexpr int kCopies = 8;
constexpr int kCopy = kChannels * kLevels + 1;

struct StepMemory {
  union {
    u32 counts[kCopies * kCopy];
    struct {
      u32 low[kStepThreads], high[kStepThreads];
    } bounds;
    u64 sums[kStepThreads];
  };
  u32 quanta[kChannels];
  u8 tables[kChannels][kLevels];
};

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

// As in csrc/image/color_blocks.h.
__device__ __forceinline__ int within_levels(float value) {
  value = value > 0.0f ? value : 0.0f;
  value = value < 255.0f ? value : 255.0f;
  return static_cast<int>(value);
}

__device__ __forceinline__ int blended(int from, int to, float factor) {
  return within_levels(static_cast<float>(from) + factor * static_cast<float>(to - from));
}

// The following are as in csrc/image/color_loops.h and color.cpp.
__device__ __forceinline__ int gray_of(u32 pixel) {
  return (channel_of(pixel, 0) * 19595 + channel_of(pixel, 1) * 38470 + channel_of(pixel, 2) * 7471 + 0x8000) >> 16;
}

__device__ __forceinline__ int torch_gray_of(u32 pixel) {
  const float red = static_cast<float>(channel_of(pixel, 0)) * 0.2989f;
  const float both = fmaf(static_cast<float>(channel_of(pixel, 1)), 0.587f, red);
  return static_cast<int>(fmaf(static_cast<float>(channel_of(pixel, 2)), 0.114f, both));
}

__device__ __forceinline__ int torch_blended(int gray, int level, float factor, float share) {
  return within_levels(fmaf(static_cast<float>(gray), share, static_cast<float>(level) * factor));
}

__device__ __forceinline__ int hue_level(int high, int saturation, int weight) {
  const int share = 65025 - saturation * clamped(weight, 0, 255);
  const float exact = static_cast<float>(high) * static_cast<float>(share);
  return static_cast<int>(exact * (1.0f / 65025.0f) + 0.5f);
}

__device__ __noinline__ u32 shifted_hue(u32 pixel, int shift) {
  const int red = channel_of(pixel, 0), green = channel_of(pixel, 1), blue = channel_of(pixel, 2);
  const int high = max(max(red, green), blue), low = min(min(red, green), blue), range = high - low;
  const bool is_red = red == high, is_green = green == high && !is_red, is_blue = !is_red && !is_green;
  const bool is_plus = (is_red && green >= blue) || (is_green && blue > red) || (is_blue && red > green);
  const int sign = is_plus ? 1 : -1, sector = is_green ? 2 : is_blue ? 4 : 0;
  const float distance = static_cast<float>(high * 2 + low - red - green - blue) / static_cast<float>(max(range, 1));
  const float angle = static_cast<float>(sector + sign) - static_cast<float>(sign) * distance;
  const float wrap = is_red && blue > green ? 1.0f : 0.0f;
  const int hue = (static_cast<int>((angle / 6.0f + wrap) * 255.0f) + shift) & 255;
  const int saturation = static_cast<int>(static_cast<float>(range * 255) / static_cast<float>(max(high, 1)));
  const int sixths = hue * 6;
  return joined(hue_level(high, saturation, 510 - abs(sixths - 765)),
                hue_level(high, saturation, abs(sixths - 510) - 255),
                hue_level(high, saturation, abs(sixths - 1020) - 255));
}

__device__ __forceinline__ u32 look_up(const StepMemory& memory, u32 pixel) {
  return joined(memory.tables[0][channel_of(pixel, 0)], memory.tables[1][channel_of(pixel, 1)],
                memory.tables[2][channel_of(pixel, 2)]);
}

// Sums up what `value(pixel)` is of each pixel.
template <typename Value>
__device__ __noinline__ u64 sum_of(StepMemory& memory, const u32* pixels, int count, Value value) {
  u64 sum = 0;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kStepThreads) sum += static_cast<u64>(value(pixels[i]));
  memory.sums[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kStepThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) memory.sums[threadIdx.x] += memory.sums[threadIdx.x + half];
    __syncthreads();
  }
  return memory.sums[0];
}

// The lowest and the highest level of each channel.
__device__ __noinline__ void find_bounds(StepMemory& memory, const u32* pixels, int count, u32& low, u32& high) {
  low = 0xFFFFFFFF;
  high = 0;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kStepThreads) {
    const u32 pixel = pixels[i];
    low = __vminu4(low, pixel);
    high = __vmaxu4(high, pixel);
  }
  memory.bounds.low[threadIdx.x] = low;
  memory.bounds.high[threadIdx.x] = high;
  __syncthreads();
  for (int half = kStepThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) {
      memory.bounds.low[threadIdx.x] = __vminu4(memory.bounds.low[threadIdx.x], memory.bounds.low[threadIdx.x + half]);
      memory.bounds.high[threadIdx.x] =
          __vmaxu4(memory.bounds.high[threadIdx.x], memory.bounds.high[threadIdx.x + half]);
    }
    __syncthreads();
  }
  low = memory.bounds.low[0];
  high = memory.bounds.high[0];
}

// Makes `make(channel, level)` for each.
template <typename Make>
__device__ __forceinline__ void fill_tables(StepMemory& memory, Make make) {
  for (int i = static_cast<int>(threadIdx.x); i < kChannels * kLevels; i += kStepThreads) {
    memory.tables[i / kLevels][i % kLevels] = static_cast<u8>(make(i / kLevels, i % kLevels));
  }
  __syncthreads();
}

// The first copy then has how many pixels each level has in each channel.
__device__ __noinline__ void count_levels(StepMemory& memory, const u32* pixels, int count) {
  for (int i = static_cast<int>(threadIdx.x); i < kCopies * kCopy; i += kStepThreads) memory.counts[i] = 0;
  __syncthreads();
  u32* const counts = memory.counts + threadIdx.x % kCopies * kCopy;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kStepThreads) {
    const u32 pixel = pixels[i];
    for (int c = 0; c < kChannels; ++c) atomicAdd(counts + c * kLevels + channel_of(pixel, c), 1u);
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kChannels * kLevels; i += kStepThreads) {
    u32 sum = 0;
    for (int copy = 0; copy < kCopies; ++copy) sum += memory.counts[copy * kCopy + i];
    memory.counts[i] = sum;
  }
  __syncthreads();
}

__device__ __noinline__ void make_equalizing(StepMemory& memory, const u32* pixels, int count) {
  count_levels(memory, pixels, count);
  if (threadIdx.x < kChannels) {
    u32* const counts = memory.counts + threadIdx.x * kLevels;
    u32 below = 0, highest = 0;
    for (int level = 0; level < kLevels; ++level) {
      const u32 here = counts[level];
      counts[level] = below;
      below += here;
      highest = here != 0 ? here : highest;
    }
    memory.quanta[threadIdx.x] = (below - highest) / 255;
  }
  __syncthreads();
  fill_tables(memory, [&](int c, int level) {
    const u32 quantum = memory.quanta[c];
    return quantum == 0 ? static_cast<u32>(level)
                        : min((quantum / 2 + memory.counts[c * kLevels + level]) / quantum, 255u);
  });
}

// Fills the tables of a step that is one for each channel.
__device__ __noinline__ void make_tables(StepMemory& memory, const StagedStep& step, const u8* data, const u32* pixels,
                                         int count) {
  const float factor = step.factor, share = step.share;
  u32 low, high;
  switch (step.kind) {
    case StagedKind::table: return fill_tables(memory, [=](int, int level) { return data[step.data + level]; });
    case StagedKind::contrast: {
      const u64 sum = sum_of(memory, pixels, count, [](u32 pixel) { return gray_of(pixel); });
      const int mean = static_cast<int>((2 * sum + static_cast<u64>(count)) / (2 * static_cast<u64>(count)));
      return fill_tables(memory, [=](int, int level) { return blended(mean, level, factor); });
    }
    case StagedKind::torch_contrast: {
      const u64 sum = sum_of(memory, pixels, count, [](u32 pixel) { return torch_gray_of(pixel); });
      const float mean = static_cast<float>(sum) / static_cast<float>(count);
      return fill_tables(
          memory, [=](int, int level) { return within_levels(fmaf(mean, share, static_cast<float>(level) * factor)); });
    }
    case StagedKind::autocontrast:
      find_bounds(memory, pixels, count, low, high);
      return fill_tables(memory, [=](int c, int level) {
        const int from = channel_of(low, c), to = channel_of(high, c);
        const double scale = to > from ? 255.0 / (to - from) : 1.0, offset = to > from ? -from * scale : 0.0;
        return clamped(static_cast<int>(level * scale + offset), 0, 255);
      });
    case StagedKind::torch_autocontrast:
      find_bounds(memory, pixels, count, low, high);
      return fill_tables(memory, [=](int c, int level) {
        const int range = channel_of(high, c) - channel_of(low, c), from = range == 0 ? 0 : channel_of(low, c);
        const float scale = range == 0 ? 1.0f : static_cast<float>(range) * static_cast<float>(1.0 / 255);
        return within_levels(static_cast<float>(level - from) / scale);
      });
    default: return make_equalizing(memory, pixels, count);
  }
}

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

// The position within [0, size) that a position outside shows; as in csrc/image/transform.cpp.
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

// A pixel of an affine or perspective transform; as in csrc/image/transform.cpp.
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

struct Sums {
  u32 red, green, blue;

  __device__ __forceinline__ void add(u32 pixel, u32 times) {
    red += (pixel & 255) * times;
    green += (pixel >> 8 & 255) * times;
    blue += (pixel >> 16 & 255) * times;
  }
};

// As in csrc/image/blur.h.
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

// One half of a symmetric kernel, from half of its center on; as in csrc/image/gaussian.cpp.
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

// Grid: images.
extern "C" __global__ void __launch_bounds__(kStepThreads, 2)
    steps(const u8* __restrict__ batch, long long first_image, u8* memory, u8* pixels) {
  __shared__ StepMemory shared;
  const StagedImage& image = reinterpret_cast<const StagedImage*>(batch)[first_image + blockIdx.x];
  const int count = image.step_count;
  if (count == 0) return;
  const u8* const data = batch + image.steps;
  u32* here = reinterpret_cast<u32*>(memory + static_cast<u64>(image.stepped[0]) * 16);
  u32* there = reinterpret_cast<u32*>(memory + static_cast<u64>(image.stepped[1]) * 16);
  Words in{here, image.out_height, image.out_width};
  for (int i = 0; i < count; ++i) {
    const StagedStep& step = reinterpret_cast<const StagedStep*>(data)[i];
    const Sink out{nullptr, pixels + image.out};
    const bool last = i + 1 == count;
    const int area = in.height * in.width;
    const Sink same = last ? out : Sink{here, nullptr}, other = last ? out : Sink{there, nullptr};
    bool moved = false;  // the result is there, not here
    switch (step.kind) {
      case StagedKind::saturation:
        for_each(area, same, [&](int at) {
          const u32 pixel = here[at];
          const int gray = gray_of(pixel);
          return joined(blended(gray, channel_of(pixel, 0), step.factor),
                        blended(gray, channel_of(pixel, 1), step.factor),
                        blended(gray, channel_of(pixel, 2), step.factor));
        });
        break;
      case StagedKind::torch_saturation:
        for_each(area, same, [&](int at) {
          const u32 pixel = here[at];
          const int gray = torch_gray_of(pixel);
          return joined(torch_blended(gray, channel_of(pixel, 0), step.factor, step.share),
                        torch_blended(gray, channel_of(pixel, 1), step.factor, step.share),
                        torch_blended(gray, channel_of(pixel, 2), step.factor, step.share));
        });
        break;
      case StagedKind::hue: for_each(area, same, [&](int at) { return shifted_hue(here[at], step.numbers[0]); }); break;
      case StagedKind::grayscale:
        for_each<kAtOnce>(area, same, [&](int at) { return static_cast<u32>(gray_of(here[at])) * 0x010101; });
        break;
      case StagedKind::torch_grayscale:
        for_each(area, same, [&](int at) { return static_cast<u32>(torch_gray_of(here[at])) * 0x010101; });
        break;
      case StagedKind::table:
      case StagedKind::contrast:
      case StagedKind::autocontrast:
      case StagedKind::equalize:
      case StagedKind::torch_contrast:
      case StagedKind::torch_autocontrast:
        make_tables(shared, step, data, here, area);
        for_each<kAtOnce>(area, same, [&](int at) { return look_up(shared, here[at]); });
        break;
      case StagedKind::sharpness:
        for_each_at(in.height, in.width, other, [&](int y, int x) { return sharpened(in, y, x, step.factor); });
        moved = true;
        break;
      case StagedKind::move:
        for_each_at<kAtOnce>(step.height, step.width, other, [&](int y, int x) {
          return here[step.numbers[0] + x * step.numbers[1] + y * step.numbers[2]];
        });
        moved = true;
        break;
      case StagedKind::pad:
        for_each_at(step.height, step.width, other, [&](int y, int x) { return padded(in, step, y, x); });
        moved = true;
        break;
      case StagedKind::affine:
        for_each_at<kAtOnce>(in.height, in.width, other, [&](int y, int x) { return moved_by(in, step, y, x); });
        moved = true;
        break;
      case StagedKind::pick: {
        const int* const columns = reinterpret_cast<const int*>(data + step.data);
        const int* const rows = columns + in.width;
        for_each_at<kAtOnce>(in.height, in.width, other, [&](int y, int x) {
          const int column = columns[x], row = rows[y];
          return in.has(row, column) ? in.at(row, column) : step.fill;
        });
        moved = true;
        break;
      }
      case StagedKind::map:
        for_each_at(in.height, in.width, other, [&](int y, int x) { return mapped(in, step, y, x); });
        moved = true;
        break;
      case StagedKind::blur: {
        const int passes = (step.numbers[1] != 0 ? 3 : 0) + (step.numbers[4] != 0 ? 3 : 0);
        const bool has_x = step.numbers[1] != 0;
        for (int pass = 0; pass < passes; ++pass) {
          const bool along_x = has_x && pass < 3;
          const Words source{moved ? there : here, in.height, in.width};
          const Sink next{moved ? here : there, nullptr};
          const Box box(step.numbers + (along_x ? 0 : 3));
          const Sink target = last && pass + 1 == passes ? out : next;
          if (along_x && box.radius <= kMostWhole) {
            blur_rows(source, box, target);
          } else {
            blur_lines(source, box, along_x, target);
          }
          __syncthreads();
          moved = !moved;
        }
        break;
      }
      case StagedKind::resize: resize(in, step, data, there, same); break;
      case StagedKind::filter: filter(in, step, data, there, same); break;
    }
    __syncthreads();
    if (moved) {
      u32* const swapped = here;
      here = there;
      there = swapped;
    }
    in = {here, step.height, step.width};
  }
}

}  // namespace fastload
