// The kernels as loops, which each level's file includes once and compiles for its instructions: before the include it
// defines FASTLOAD_TARGET, the attribute of every function here, and declares in fastload's unnamed namespace how to
// split, merge, look up and blend blocks of pixels.
//
// Compilers vectorize these loops without changing a bit: floats are rounded after each operation, as Pillow's are.

namespace fastload {
namespace {

// Runs `step(bytes)` on each block of an image's pixels. The last of a row is padded with black.
template <typename AnyImage, typename Step>
FASTLOAD_TARGET inline void for_each_block(const AnyImage& image, Step& step) {
  for (int y = 0; y < image.height; ++y) {
    auto* row = image.row(y);
    int x = 0;
    for (; x + kBlock <= image.width; x += kBlock, row += kBlockBytes) step(row);
    if (x == image.width) continue;
    std::uint8_t rest[kBlockBytes] = {};
    const std::size_t bytes = static_cast<std::size_t>(image.width - x) * 3;
    std::memcpy(rest, row, bytes);
    step(rest);
    if constexpr (std::is_same_v<AnyImage, Image>) std::memcpy(row, rest, bytes);
  }
}

struct ApplyTable {
  LookUp look_up;

  FASTLOAD_TARGET void operator()(std::uint8_t* bytes) {
    Planes planes;
    split(bytes, planes);
    look_up(planes);
    merge(planes, bytes);
  }
};

struct BlendWithGray {
  float factor;

  FASTLOAD_TARGET void operator()(std::uint8_t* bytes) {
    Planes planes;
    alignas(32) std::uint8_t gray[kBlock];
    split(bytes, planes);
    gray_of(planes, gray);
    blend(gray, planes.red, factor);
    blend(gray, planes.green, factor);
    blend(gray, planes.blue, factor);
    merge(planes, bytes);
  }
};

struct PillowGray {
  using Level = std::uint8_t;
  FASTLOAD_TARGET static void of(const Planes& planes, Level* gray) { gray_of(planes, gray); }
};

// torchvision's of a tensor, before it is truncated. torch fuses add_(b, alpha=a) into one rounding.
struct TorchGray {
  using Level = std::int32_t;
  FASTLOAD_TARGET static void of(const Planes& planes, Level* gray) {
    for (int i = 0; i < kBlock; ++i) {
      const float red = static_cast<float>(planes.red[i]) * 0.2989f;
      const float both = std::fma(static_cast<float>(planes.green[i]), 0.587f, red);
      gray[i] = static_cast<std::int32_t>(std::fma(static_cast<float>(planes.blue[i]), 0.114f, both));
    }
  }
};

template <typename Gray>
struct ToGrayscale {
  FASTLOAD_TARGET void operator()(std::uint8_t* bytes) {
    Planes planes;
    alignas(32) typename Gray::Level gray[kBlock];
    split(bytes, planes);
    Gray::of(planes, gray);
    for (int i = 0; i < kBlock; ++i) planes.red[i] = static_cast<std::uint8_t>(gray[i]);
    std::memcpy(planes.green, planes.red, kBlock);
    std::memcpy(planes.blue, planes.red, kBlock);
    merge(planes, bytes);
  }
};

struct SumOfGray {
  std::uint64_t sum = 0;

  FASTLOAD_TARGET void operator()(const std::uint8_t* bytes) {
    Planes planes;
    alignas(32) std::uint8_t gray[kBlock];
    split(bytes, planes);
    gray_of(planes, gray);
    int block = 0;
    for (int i = 0; i < kBlock; ++i) block += gray[i];
    sum += static_cast<std::uint64_t>(block);
  }
};

struct TorchGrays {
  std::uint8_t* out;

  FASTLOAD_TARGET void operator()(const std::uint8_t* bytes) {
    Planes planes;
    alignas(32) std::int32_t gray[kBlock];
    split(bytes, planes);
    TorchGray::of(planes, gray);
    for (int i = 0; i < kBlock; ++i) out[i] = static_cast<std::uint8_t>(gray[i]);
    out += kBlock;
  }
};

struct TorchBlendWithGray {
  float factor;
  float share;

  FASTLOAD_TARGET void operator()(std::uint8_t* bytes) {
    Planes planes;
    alignas(32) std::int32_t gray[kBlock];
    split(bytes, planes);
    TorchGray::of(planes, gray);
    blend_plane(gray, planes.red);
    blend_plane(gray, planes.green);
    blend_plane(gray, planes.blue);
    merge(planes, bytes);
  }

 private:
  FASTLOAD_TARGET void blend_plane(const std::int32_t* __restrict gray, std::uint8_t* __restrict plane) const {
    for (int i = 0; i < kBlock; ++i) {
      float value = std::fma(static_cast<float>(gray[i]), share, static_cast<float>(plane[i]) * factor);
      value = value > 0.0f ? value : 0.0f;
      value = value < 255.0f ? value : 255.0f;
      plane[i] = static_cast<std::uint8_t>(static_cast<int>(value));
    }
  }
};

// To Pillow's HSV, whose hue goes from 0 to 255, and back. Pillow computes in a mixture of float and double; a test
// compares all colours, and thereby every rounding below.
struct ShiftHue {
  int shift;

  FASTLOAD_TARGET void operator()(std::uint8_t* bytes) {
    Planes planes;
    split(bytes, planes);
    for (int i = 0; i < kBlock; ++i) {
      const int red = planes.red[i], green = planes.green[i], blue = planes.blue[i];
      const int high = larger(larger(red, green), blue);
      const int low = smaller(smaller(red, green), blue);
      const int range = high - low;

      // The angle in sixths of a turn: 0, 2 or 4 for the highest channel, plus or minus how far the middle one is from
      // the lowest. Any will do for grays, whose saturation is 0. Branches would keep compilers from vectorizing.
      const int is_red = red == high;
      const int is_green = (green == high) & (red != high);
      const int is_blue = 1 - is_red - is_green;
      const int is_plus = (is_red & (green >= blue)) | (is_green & (blue > red)) | (is_blue & (red > green));
      const int sign = is_plus * 2 - 1;
      const float distance =  // of the middle from the highest; the lowest's is 1
          static_cast<float>(high * 2 + low - red - green - blue) / static_cast<float>(larger(range, 1));
      const float angle = static_cast<float>(is_green * 2 + is_blue * 4 + sign) - static_cast<float>(sign) * distance;
      const auto wrap = static_cast<float>(is_red & (blue > green));  // the angle is negative
      const int hue = (static_cast<int>((angle / 6.0f + wrap) * 255.0f) + shift) & 255;
      const int saturation = static_cast<int>(static_cast<float>(range * 255) / static_cast<float>(larger(high, 1)));

      // How far each channel is from the highest, in units of the saturation / 255.
      const int sixths = hue * 6;
      planes.red[i] = level(high, saturation, 510 - distance_of(sixths, 765));
      planes.green[i] = level(high, saturation, distance_of(sixths, 510) - 255);
      planes.blue[i] = level(high, saturation, distance_of(sixths, 1020) - 255);
    }
    merge(planes, bytes);
  }

 private:
  FASTLOAD_TARGET static int larger(int a, int b) { return a > b ? a : b; }
  FASTLOAD_TARGET static int smaller(int a, int b) { return a < b ? a : b; }
  FASTLOAD_TARGET static int distance_of(int a, int b) { return larger(a, b) - smaller(a, b); }

  FASTLOAD_TARGET static std::uint8_t level(int high, int saturation, int weight) {
    const int share = 65025 - saturation * smaller(larger(weight, 0), 255);
    const float exact = static_cast<float>(high) * static_cast<float>(share);  // below 2^24
    return static_cast<std::uint8_t>(static_cast<int>(exact * (1.0f / 65025.0f) + 0.5f));
  }
};

// torchvision's adjust_hue of a tensor: to HSV, in float32 from 0 to 1, and back. Hues are in turns. A test compares
// all colours, and thereby every rounding.
struct TorchHue {
  float shift;

  FASTLOAD_TARGET void operator()(std::uint8_t* bytes) {
    Planes planes;
    split(bytes, planes);
    for (int i = 0; i < kBlock; ++i) {
      constexpr float unit = 1.0f / 255.0f;
      const float red = static_cast<float>(planes.red[i]) * unit, green = static_cast<float>(planes.green[i]) * unit,
                  blue = static_cast<float>(planes.blue[i]) * unit;
      const float high = larger(larger(red, green), blue), range = high - smaller(smaller(red, green), blue);
      const float divisor = range > 0.0f ? range : 1.0f;
      const float saturation = range / (range > 0.0f ? high : 1.0f);
      const float from_red = (high - red) / divisor, from_green = (high - green) / divisor,
                  from_blue = (high - blue) / divisor;
      const float of_green = (from_red + 2.0f) - from_blue, of_blue = (from_green + 4.0f) - from_red;
      const float sixths = high == red ? from_blue - from_green : high == green ? of_green : of_blue;
      float hue = sixths * (1.0f / 6.0f) + 1.0f;
      hue = hue >= 1.0f ? hue - 1.0f : hue;
      hue += shift;
      hue = hue >= 1.0f ? hue - 1.0f : hue;
      hue = hue < 0.0f ? hue + 1.0f : hue;  // which may be 1

      const float angle = hue * 6.0f;
      const auto sector = static_cast<float>(static_cast<int>(angle));
      const float within = saturation * (angle - sector), rest = 1.0f - saturation;
      const float falling = clipped((1.0f - within) * high), rising = clipped((within + rest) * high),
                  low = clipped(rest * high);
      const bool is_0 = sector == 0.0f || sector == 6.0f, is_1 = sector == 1.0f, is_2 = sector == 2.0f,
                 is_3 = sector == 3.0f, is_4 = sector == 4.0f;
      planes.red[i] = level(is_0 ? high : is_1 ? falling : is_2 || is_3 ? low : is_4 ? rising : high);
      planes.green[i] = level(is_0 ? rising : is_1 || is_2 ? high : is_3 ? falling : low);
      planes.blue[i] = level(is_0 || is_1 ? low : is_2 ? rising : is_3 || is_4 ? high : falling);
    }
    merge(planes, bytes);
  }

 private:
  FASTLOAD_TARGET static float larger(float a, float b) { return a > b ? a : b; }
  FASTLOAD_TARGET static float smaller(float a, float b) { return a < b ? a : b; }
  FASTLOAD_TARGET static float clipped(float value) { return smaller(larger(value, 0.0f), 1.0f); }
  FASTLOAD_TARGET static std::uint8_t level(float value) {
    return static_cast<std::uint8_t>(static_cast<int>(value * 255.999f));
  }
};

struct Permute {
  ChannelOrder order;

  FASTLOAD_TARGET void operator()(std::uint8_t* bytes) {
    Planes planes, made;
    split(bytes, planes);
    const std::uint8_t* const from[] = {planes.red, planes.green, planes.blue};
    std::memcpy(made.red, from[order[0]], kBlock);
    std::memcpy(made.green, from[order[1]], kBlock);
    std::memcpy(made.blue, from[order[2]], kBlock);
    merge(made, bytes);
  }
};

FASTLOAD_TARGET void apply_table(const LevelTable& table, Image image) {
  ApplyTable step{LookUp(table)};
  for_each_block(image, step);
}

FASTLOAD_TARGET void blend_with_gray(float factor, Image image) {
  BlendWithGray step{factor};
  for_each_block(image, step);
}

FASTLOAD_TARGET void shift_hue(std::uint8_t shift, Image image) {
  ShiftHue step{shift};
  for_each_block(image, step);
}

template <typename Gray>
FASTLOAD_TARGET void to_grayscale(Image image) {
  ToGrayscale<Gray> step;
  for_each_block(image, step);
}

FASTLOAD_TARGET std::uint64_t sum_of_gray(ConstImage image) {
  SumOfGray step;
  for_each_block(image, step);
  return step.sum;
}

FASTLOAD_TARGET void torch_blend_with_gray(float factor, float share, Image image) {
  TorchBlendWithGray step{factor, share};
  for_each_block(image, step);
}

FASTLOAD_TARGET void torch_grays(ConstImage image, std::uint8_t* out) {
  for (int y = 0; y < image.height; ++y, out += image.width) {
    TorchGrays step{out};
    for_each_block(ConstImage{image.row(y), image.stride, 1, image.width}, step);
  }
}

// The float32 sum of at most 2^24 levels, in the order of torch's one thread: of 4 columns of vectors of 8. Of every 16
// rows the sums go up a level, as do every 16 of those.
FASTLOAD_TARGET float torch_sum(const std::uint8_t* levels, std::size_t count) {
  constexpr std::size_t lanes = 8, columns = 4 * lanes, step = 16;
  constexpr int depth = 4;
  float sums[depth][columns] = {};
  const auto add_row = [&](std::size_t row) {
    for (std::size_t i = 0; i < columns; ++i) sums[0][i] += static_cast<float>(levels[row * columns + i]);
  };
  const std::size_t rows = count / columns;
  std::size_t row = 0;
  while (row + step <= rows) {
    for (const std::size_t end = row + step; row < end; ++row) add_row(row);
    for (int level = 1; level < depth; ++level) {
      for (std::size_t i = 0; i < columns; ++i) sums[level][i] += sums[level - 1][i];
      std::fill_n(sums[level - 1], columns, 0.0f);
      if ((row & ((step - 1) << (4 * level))) != 0) break;
    }
  }
  for (; row < rows; ++row) add_row(row);
  for (int level = 1; level < depth; ++level) {
    for (std::size_t i = 0; i < columns; ++i) sums[0][i] += sums[level][i];
  }
  std::size_t at = rows * columns;
  for (; at + lanes <= count; at += lanes) {
    for (std::size_t i = 0; i < lanes; ++i) sums[0][i] += static_cast<float>(levels[at + i]);
  }
  for (std::size_t i = lanes; i < columns; ++i) sums[0][i % lanes] += sums[0][i];
  float sum = 0.0f;
  for (; at < count; ++at) sum += static_cast<float>(levels[at]);
  for (std::size_t i = 0; i < lanes; ++i) sum += sums[0][i];
  return sum;
}

FASTLOAD_TARGET void torch_hue(float shift, Image image) {
  TorchHue step{shift};
  for_each_block(image, step);
}

FASTLOAD_TARGET void permute(const ChannelOrder& order, Image image) {
  Permute step{order};
  for_each_block(image, step);
}

FASTLOAD_TARGET Bounds bounds(ConstImage image) {
  // A block's bytes keep their channels from one block to the next.
  alignas(32) std::uint8_t low[kBlockBytes];
  alignas(32) std::uint8_t high[kBlockBytes];
  std::memset(low, 255, sizeof low);
  std::memset(high, 0, sizeof high);
  for (int y = 0; y < image.height; ++y) {
    const std::uint8_t* row = image.row(y);
    int x = 0;
    for (; x + kBlock <= image.width; x += kBlock, row += kBlockBytes) {
      for (int i = 0; i < kBlockBytes; ++i) {
        low[i] = row[i] < low[i] ? row[i] : low[i];
        high[i] = row[i] > high[i] ? row[i] : high[i];
      }
    }
    for (int i = 0; i < (image.width - x) * 3; ++i) {
      low[i] = row[i] < low[i] ? row[i] : low[i];
      high[i] = row[i] > high[i] ? row[i] : high[i];
    }
  }
  Bounds all;
  for (int i = 0; i < kBlockBytes; ++i) {
    all.low[i % 3] = low[i] < all.low[i % 3] ? low[i] : all.low[i % 3];
    all.high[i % 3] = high[i] > all.high[i % 3] ? high[i] : all.high[i % 3];
  }
  return all;
}

// ImageFilter.SMOOTH: a sum of weights 1, and 5 in the middle, divided by 13 and rounded. Whole numbers give Pillow's
// bits: a sum / 13 is at least 1 / 26 away from where rounding changes, a thousand times the error of its floats.
FASTLOAD_TARGET void smooth_row(const std::uint8_t* __restrict above, const std::uint8_t* __restrict here,
                                const std::uint8_t* __restrict below, std::uint16_t* __restrict columns,
                                std::uint8_t* __restrict out, int bytes) {
  for (int i = 0; i < bytes; ++i) columns[i] = static_cast<std::uint16_t>(above[i] + here[i] + below[i]);
  for (int i = 3; i < bytes - 3; ++i) {
    const auto sum = static_cast<std::uint16_t>(columns[i - 3] + columns[i] + columns[i + 3] + here[i] * 4 + 6);
    out[i] = static_cast<std::uint8_t>((sum * 5042u) >> 16);  // sum / 13 for sums up to 3321
  }
}

template <bool from_smooth>
FASTLOAD_TARGET void blend_with_smooth(float factor, Image image) {
  const int bytes = image.width * 3;
  const std::size_t size = static_cast<std::size_t>(bytes);
  const std::size_t padded = size + kBlock;
  const auto rows = std::make_unique<std::uint8_t[]>(padded * 3);
  const auto columns = std::make_unique<std::uint16_t[]>(size);
  std::uint8_t* above = rows.get();
  std::uint8_t* here = above + padded;
  std::uint8_t* smooth = here + padded;
  for (int y = 0; y < image.height; ++y) {
    std::uint8_t* row = image.row(y);
    std::memcpy(here, row, size);
    std::memcpy(smooth, row, size);  // pixels at the border stay
    if (y > 0 && y + 1 < image.height) smooth_row(above, here, image.row(y + 1), columns.get(), smooth, bytes);
    std::memcpy(above, here, size);
    std::uint8_t *const from = from_smooth ? smooth : here, *const to = from_smooth ? here : smooth;
    for (int i = 0; i < bytes; i += kBlock) blend(from + i, to + i, factor);
    std::memcpy(row, to, size);
  }
}

FASTLOAD_TARGET void to_planes(const std::uint8_t* pixels, std::size_t count, std::uint8_t* out) {
  Planes planes;
  std::size_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    split(pixels + 3 * i, planes);
    std::memcpy(out + i, planes.red, kBlock);
    std::memcpy(out + count + i, planes.green, kBlock);
    std::memcpy(out + 2 * count + i, planes.blue, kBlock);
  }
  for (; i < count; ++i) {
    for (std::size_t channel = 0; channel < 3; ++channel) out[channel * count + i] = pixels[3 * i + channel];
  }
}

FASTLOAD_TARGET void from_planes(const std::uint8_t* red, std::ptrdiff_t channel, std::size_t count,
                                 std::uint8_t* pixels) {
  const std::uint8_t *const green = red + channel, *const blue = green + channel;
  Planes planes;
  std::size_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    std::memcpy(planes.red, red + i, kBlock);
    std::memcpy(planes.green, green + i, kBlock);
    std::memcpy(planes.blue, blue + i, kBlock);
    merge(planes, pixels + 3 * i);
  }
  for (; i < count; ++i) {
    pixels[3 * i] = red[i];
    pixels[3 * i + 1] = green[i];
    pixels[3 * i + 2] = blue[i];
  }
}

constexpr ColorKernels kLoops = {apply_table,
                                 blend_with_gray,
                                 blend_with_smooth<true>,
                                 blend_with_smooth<false>,
                                 shift_hue,
                                 to_grayscale<PillowGray>,
                                 sum_of_gray,
                                 torch_blend_with_gray,
                                 to_grayscale<TorchGray>,
                                 torch_grays,
                                 torch_sum,
                                 torch_hue,
                                 permute,
                                 bounds,
                                 to_planes,
                                 from_planes};

}  // namespace
}  // namespace fastload
