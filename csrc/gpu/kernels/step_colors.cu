// Steps that change colours, as in csrc/image/color/loops.h and color.cpp. Included by steps.cu.

#include "step_images.h"

namespace fastload {
namespace {

constexpr int kLevels = 256;
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

__shared__ StepMemory memory;  // of the block

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

__device__ __forceinline__ u32 look_up(u32 pixel) {
  return joined(memory.tables[0][channel_of(pixel, 0)], memory.tables[1][channel_of(pixel, 1)],
                memory.tables[2][channel_of(pixel, 2)]);
}

// Sums up what `value(pixel)` is of each pixel.
template <typename Value>
__device__ __noinline__ u64 sum_of(const u32* pixels, int count, Value value) {
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
__device__ __noinline__ void find_bounds(const u32* pixels, int count, u32& low, u32& high) {
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
__device__ __forceinline__ void fill_tables(Make make) {
  for (int i = static_cast<int>(threadIdx.x); i < kChannels * kLevels; i += kStepThreads) {
    memory.tables[i / kLevels][i % kLevels] = static_cast<u8>(make(i / kLevels, i % kLevels));
  }
  __syncthreads();
}

// The first copy then has how many pixels each level has in each channel.
__device__ __noinline__ void count_levels(const u32* pixels, int count) {
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

__device__ __noinline__ void make_equalizing(const u32* pixels, int count) {
  count_levels(pixels, count);
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
  fill_tables([&](int c, int level) {
    const u32 quantum = memory.quanta[c];
    return quantum == 0 ? static_cast<u32>(level)
                        : min((quantum / 2 + memory.counts[c * kLevels + level]) / quantum, 255u);
  });
}

// Fills the tables of a step that is one for each channel.
__device__ __noinline__ void make_tables(const StagedStep& step, const u8* data, const u32* pixels, int count) {
  const float factor = step.factor, share = step.share;
  u32 low, high;
  switch (step.kind) {
    case StagedKind::table: return fill_tables([=](int, int level) { return data[step.data + level]; });
    case StagedKind::contrast: {
      const u64 sum = sum_of(pixels, count, [](u32 pixel) { return gray_of(pixel); });
      const int mean = static_cast<int>((2 * sum + static_cast<u64>(count)) / (2 * static_cast<u64>(count)));
      return fill_tables([=](int, int level) { return blended(mean, level, factor); });
    }
    case StagedKind::torch_contrast: {
      const u64 sum = sum_of(pixels, count, [](u32 pixel) { return torch_gray_of(pixel); });
      const float mean = static_cast<float>(sum) / static_cast<float>(count);
      return fill_tables(
          [=](int, int level) { return within_levels(fmaf(mean, share, static_cast<float>(level) * factor)); });
    }
    case StagedKind::autocontrast:
      find_bounds(pixels, count, low, high);
      return fill_tables([=](int c, int level) {
        const int from = channel_of(low, c), to = channel_of(high, c);
        const double scale = to > from ? 255.0 / (to - from) : 1.0, offset = to > from ? -from * scale : 0.0;
        return clamped(static_cast<int>(level * scale + offset), 0, 255);
      });
    case StagedKind::torch_autocontrast:
      find_bounds(pixels, count, low, high);
      return fill_tables([=](int c, int level) {
        const int range = channel_of(high, c) - channel_of(low, c), from = range == 0 ? 0 : channel_of(low, c);
        const float scale = range == 0 ? 1.0f : static_cast<float>(range) * static_cast<float>(1.0 / 255);
        return within_levels(static_cast<float>(level - from) / scale);
      });
    default: return make_equalizing(pixels, count);
  }
}

}  // namespace
}  // namespace fastload
