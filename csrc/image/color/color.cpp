#include "image/color/color.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/planes.h"
#include "base/simd_level.h"
#include "image/color/kernels.h"

namespace fastload {
namespace {

const ColorKernels& kernels() {
#if defined(__x86_64__)
  switch (simd_level()) {
    case SimdLevel::avx2: return kAvx2Color;
    case SimdLevel::avx512: return kAvx512Color;
    default: break;
  }
#endif
  return kPortableColor;
}

constexpr std::size_t kKeptBytes = std::size_t{1} << 20;

// The same pixels as one row, if there is nothing between rows.
Image joined(Image image) {
  const std::int64_t pixels = static_cast<std::int64_t>(image.height) * image.width;
  if (image.stride != static_cast<std::ptrdiff_t>(image.width) * 3 || pixels > std::numeric_limits<int>::max() / 3) {
    return image;
  }
  image.height = 1;
  image.width = static_cast<int>(pixels);
  return image;
}

template <typename Change>
void for_each_byte(Image image, Change change) {
  image = joined(image);
  for (int y = 0; y < image.height; ++y) {
    std::uint8_t* row = image.row(y);
    for (int i = 0; i < image.width * 3; ++i) row[i] = change(row[i]);
  }
}

using Histogram = std::array<std::array<std::int64_t, 256>, 3>;

Histogram histogram_of(ConstImage image) {
  // Neighbours are often equal. Separate counts let one be added before the last is stored.
  Histogram even{}, odd{};
  const auto count = [](const std::uint8_t* pixel, Histogram& counts) {
    for (int channel = 0; channel < 3; ++channel) ++counts[channel][pixel[channel]];
  };
  for (int y = 0; y < image.height; ++y) {
    const std::uint8_t* pixel = image.row(y);
    for (int x = 1; x < image.width; x += 2, pixel += 6) {
      count(pixel, even);
      count(pixel + 3, odd);
    }
    if (image.width % 2 != 0) count(pixel, even);
  }
  for (int channel = 0; channel < 3; ++channel) {
    for (int level = 0; level < 256; ++level) even[channel][level] += odd[channel][level];
  }
  return even;
}

void blend_with_level(int level, double factor, Image image) {
  LevelTable table;
  for (int i = 0; i < 256; ++i) table[0][i] = blended(level, i, static_cast<float>(factor));
  table[1] = table[2] = table[0];
  apply_table(table, image);
}

// clamp_(0, 255).to(uint8)
std::uint8_t truncated(float value) { return static_cast<std::uint8_t>(std::clamp(value, 0.0f, 255.0f)); }

bool is_empty(const Image& image) { return image.height == 0 || image.width == 0; }

}  // namespace

void to_planes(const std::uint8_t* pixels, std::size_t count, std::uint8_t* out) {
  kernels().to_planes(pixels, count, out);
}

void from_planes(const std::uint8_t* red, std::ptrdiff_t channel, std::size_t count, std::uint8_t* pixels) {
  kernels().from_planes(red, channel, count, pixels);
}

void apply_table(const LevelTable& table, Image image) { kernels().apply_table(table, joined(image)); }

void adjust_brightness(Image image, double factor) { blend_with_level(0, factor, image); }

void adjust_contrast(Image image, double factor) {
  if (is_empty(image)) return;
  const auto sum = static_cast<double>(kernels().sum_of_gray(joined(image)));
  const double mean = sum / (static_cast<double>(image.height) * image.width);
  blend_with_level(static_cast<int>(mean + 0.5), factor, image);
}

void adjust_saturation(Image image, double factor) {
  kernels().blend_with_gray(static_cast<float>(factor), joined(image));
}

void adjust_hue(Image image, std::uint8_t shift) { kernels().shift_hue(shift, joined(image)); }

void adjust_sharpness(Image image, double factor) { kernels().blend_with_smooth(static_cast<float>(factor), image); }

void to_grayscale(Image image) { kernels().to_grayscale(joined(image)); }

void invert(Image image) {
  for_each_byte(image, [](std::uint8_t value) { return static_cast<std::uint8_t>(255 - value); });
}

void posterize(Image image, int bits) {
  const int mask = ~((1 << (8 - bits)) - 1);
  for_each_byte(image, [mask](std::uint8_t value) { return static_cast<std::uint8_t>(value & mask); });
}

void solarize(Image image, double threshold) {
  int kept = 0;  // levels below the threshold; none if that is NaN
  while (kept < 256 && kept < threshold) ++kept;
  if (kept == 0) return invert(image);
  const auto last = static_cast<std::uint8_t>(kept - 1);
  for_each_byte(image,
                [last](std::uint8_t value) { return value <= last ? value : static_cast<std::uint8_t>(255 - value); });
}

void solarize_add(Image image, int added) {
  for_each_byte(image, [added](std::uint8_t value) {
    return value < 128 ? static_cast<std::uint8_t>(std::min(255, value + added)) : value;
  });
}

void autocontrast(Image image) {
  if (is_empty(image)) return;
  const Bounds bounds = kernels().bounds(joined(image));
  LevelTable table;
  for (int channel = 0; channel < 3; ++channel) {
    const int low = bounds.low[channel], high = bounds.high[channel];
    const double scale = high > low ? 255.0 / (high - low) : 1.0;
    const double offset = high > low ? -low * scale : 0.0;
    for (int level = 0; level < 256; ++level) {
      table[channel][level] = static_cast<std::uint8_t>(std::clamp(static_cast<int>(level * scale + offset), 0, 255));
    }
  }
  apply_table(table, image);
}

void equalize(Image image) {
  const Histogram histogram = histogram_of(joined(image));
  LevelTable table;
  for (int channel = 0; channel < 3; ++channel) {
    const auto& counts = histogram[channel];
    std::int64_t below_highest = 0, highest = 0;  // pixels below the highest level in use, and at it
    for (const std::int64_t count : counts) {
      if (count == 0) continue;
      below_highest += highest;
      highest = count;
    }
    const std::int64_t step = below_highest / 255;
    std::int64_t below = step / 2;
    for (int level = 0; level < 256; ++level) {
      table[channel][level] = static_cast<std::uint8_t>(step == 0 ? level : std::min<std::int64_t>(below / step, 255));
      below += counts[level];
    }
  }
  apply_table(table, image);
}

void torch_brightness(Image image, double factor) {
  LevelTable table;
  for (int level = 0; level < 256; ++level) {
    table[0][level] = truncated(static_cast<float>(level) * static_cast<float>(factor));
  }
  table[1] = table[2] = table[0];
  apply_table(table, image);
}

void torch_contrast(Image image, double factor, unsigned twice, bool planar) {
  if (is_empty(image)) return;
  static thread_local Buffer grays;
  const std::size_t count = static_cast<std::size_t>(image.height) * static_cast<std::size_t>(image.width);
  grays.resize(count + kBlock);
  kernels().torch_grays(joined(image), grays.data());
  const float mean = kernels().torch_sum(grays.data(), count) / static_cast<float>(count);
  grays.shrink(kKeptBytes);
  const auto share = static_cast<float>(1.0 - factor);
  const float added = mean * share;
  std::vector<std::pair<std::uint8_t*, std::uint8_t>> rounded_twice;
  for (std::size_t place = 3 * count; twice != 0 && place-- > 0; twice >>= 1) {
    if ((twice & 1) == 0) continue;
    const std::size_t channel = planar ? place / count : place % 3, pixel = planar ? place % count : place / 3;
    const auto width = static_cast<std::size_t>(image.width);
    std::uint8_t* const level = image.row(static_cast<int>(pixel / width)) + 3 * (pixel % width) + channel;
    rounded_twice.emplace_back(level, truncated(static_cast<float>(*level) * static_cast<float>(factor) + added));
  }
  LevelTable table;
  for (int level = 0; level < 256; ++level) {
    const float scaled = static_cast<float>(level) * static_cast<float>(factor);
    table[0][level] = truncated(std::fma(mean, share, scaled));
  }
  table[1] = table[2] = table[0];
  apply_table(table, image);
  for (const auto& [level, value] : rounded_twice) *level = value;
}

void torch_saturation(Image image, double factor) {
  kernels().torch_blend_with_gray(static_cast<float>(factor), static_cast<float>(1.0 - factor), joined(image));
}

void torch_sharpness(Image image, double factor) {
  kernels().blend_into_smooth(static_cast<float>(1.0 - factor), image);
}

void torch_hue(Image image, double factor) { kernels().torch_hue(static_cast<float>(factor), joined(image)); }

void permute_channels(Image image, const ChannelOrder& order) { kernels().permute(order, joined(image)); }

void torch_grayscale(Image image) { kernels().torch_to_grayscale(joined(image)); }

void torch_autocontrast(Image image) {
  if (is_empty(image)) return;
  const Bounds bounds = kernels().bounds(joined(image));
  LevelTable table;
  for (int channel = 0; channel < 3; ++channel) {
    const bool flat = bounds.low[channel] == bounds.high[channel];
    const int low = flat ? 0 : bounds.low[channel], range = bounds.high[channel] - bounds.low[channel];
    const float scale = flat ? 1.0f : static_cast<float>(range) * static_cast<float>(1.0 / 255);
    for (int level = 0; level < 256; ++level) {
      table[channel][level] = truncated(static_cast<float>(level - low) / scale);
    }
  }
  apply_table(table, image);
}

}  // namespace fastload
