// The kernels as loops, which each level's file includes once and compiles for its instructions: before the include it
// defines FASTLOAD_TARGET, the attribute of every function here, and declares in fastload's unnamed namespace how to
// split, merge and look up blocks of pixels.
//
// Compilers vectorize these loops without changing a bit: floats are rounded after each operation, as Pillow's are.

namespace fastload {
namespace {

// Runs `step(bytes, arguments...)` on each block of an image's pixels. The last of a row is padded with black.
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

// Image.blend of one value. Outside [0, 255], and for a factor of NaN, it clips as Pillow does; inside, that changes
// nothing. Nor do Pillow's shortcuts for factors of 0 and 1.
FASTLOAD_TARGET inline std::uint8_t blend(int from, int to, float factor) {
  float value = static_cast<float>(from) + factor * static_cast<float>(to - from);
  value = value > 0.0f ? value : 0.0f;
  value = value < 255.0f ? value : 255.0f;
  return static_cast<std::uint8_t>(static_cast<int>(value));
}

// Image.convert("L"). Every product and sum is a whole number below 2^24, so floats are exact.
FASTLOAD_TARGET inline void gray_of(const Planes& planes, std::uint8_t* gray) {
  for (int i = 0; i < kBlock; ++i) {
    const float sum = static_cast<float>(planes.red[i]) * 19595.0f + static_cast<float>(planes.green[i]) * 38470.0f +
                      static_cast<float>(planes.blue[i]) * 7471.0f + 32768.0f;
    gray[i] = static_cast<std::uint8_t>(static_cast<int>(sum * (1.0f / 65536.0f)));
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

struct BlendWithLevel {
  int level;
  float factor;

  FASTLOAD_TARGET void operator()(std::uint8_t* bytes) {
    for (int i = 0; i < kBlockBytes; ++i) bytes[i] = blend(level, bytes[i], factor);
  }
};

struct BlendWithGray {
  float factor;

  FASTLOAD_TARGET void operator()(std::uint8_t* bytes) {
    Planes planes;
    alignas(32) std::uint8_t gray[kBlock];
    split(bytes, planes);
    gray_of(planes, gray);
    for (int i = 0; i < kBlock; ++i) {
      planes.red[i] = blend(gray[i], planes.red[i], factor);
      planes.green[i] = blend(gray[i], planes.green[i], factor);
      planes.blue[i] = blend(gray[i], planes.blue[i], factor);
    }
    merge(planes, bytes);
  }
};

struct ToGrayscale {
  FASTLOAD_TARGET void operator()(std::uint8_t* bytes) {
    Planes planes;
    split(bytes, planes);
    gray_of(planes, planes.red);
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

// To Pillow's HSV, whose hue goes from 0 to 255, and back. Pillow computes in a mixture of float and double; a test
// compares all colours and thereby every rounding below. One of the channels is the highest, one the lowest; hue is the
// highest's (0, 2, 4) plus or minus the distance of the middle one.
struct ShiftHue {
  int shift;

  FASTLOAD_TARGET void operator()(std::uint8_t* bytes) {
    Planes planes;
    split(bytes, planes);
    for (int i = 0; i < kBlock; ++i) {
      const int red = planes.red[i], green = planes.green[i], blue = planes.blue[i];
      const int rg_high = red > green ? red : green, rg_low = red > green ? green : red;
      const int high = rg_high > blue ? rg_high : blue;
      const int low = rg_low < blue ? rg_low : blue;
      const int middle = red + green + blue - high - low;
      const int range = high - low;

      // In Pillow's formulas the lowest channel's distance is exactly 1, the highest's 0.
      const float distance = static_cast<float>(high - middle) / static_cast<float>(range > 1 ? range : 1);
      const float if_red = green >= blue ? 1.0f : -1.0f;
      const float if_green = red >= blue ? 1.0f : 3.0f;
      const float if_blue = green >= red ? 3.0f : 5.0f;
      const float base = red == high ? if_red : green == high ? if_green : if_blue;
      const bool falls = (base == 1.0f) == (red == high) && base != -1.0f && (base != 3.0f || green == high);
      const float angle = base + (falls ? -distance : distance);
      const float turn = angle / 6.0f + (angle < 0.0f ? 1.0f : 0.0f);
      const int hue = (static_cast<int>(turn * 255.0f) + shift) & 255;
      const int saturation =
          static_cast<int>(static_cast<float>(range * 255) / static_cast<float>(high > 1 ? high : 1));

      const int sextant = (hue * 6 * 257 + 257) >> 16;  // hue * 6 / 255
      const int rest = hue * 6 - sextant * 255;
      const int weight = (sextant & 1) != 0 ? rest : 255 - rest;
      const float value = static_cast<float>(high);
      const int lowest = static_cast<int>(value * static_cast<float>(255 - saturation) * (1.0f / 255.0f) + 0.5f);
      const int between =
          static_cast<int>(value * static_cast<float>(65025 - saturation * weight) * (1.0f / 65025.0f) + 0.5f);
      // Sextant 6 is hue 255, and the same as 0.
      const bool is_first = sextant == 0 || sextant == 6;
      planes.red[i] = static_cast<std::uint8_t>(is_first || sextant == 5       ? high
                                                : sextant == 1 || sextant == 4 ? between
                                                                               : lowest);
      planes.green[i] = static_cast<std::uint8_t>(sextant == 1 || sextant == 2   ? high
                                                  : sextant == 4 || sextant == 5 ? lowest
                                                                                 : between);
      planes.blue[i] = static_cast<std::uint8_t>(sextant == 3 || sextant == 4 ? high
                                                 : is_first || sextant == 1   ? lowest
                                                                              : between);
    }
    merge(planes, bytes);
  }
};

FASTLOAD_TARGET void apply_table(const LevelTable& table, Image image) {
  ApplyTable step{LookUp(table)};
  for_each_block(image, step);
}

FASTLOAD_TARGET void blend_with_level(int level, float factor, Image image) {
  BlendWithLevel step{level, factor};
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

FASTLOAD_TARGET void to_grayscale(Image image) {
  ToGrayscale step;
  for_each_block(image, step);
}

FASTLOAD_TARGET std::uint64_t sum_of_gray(ConstImage image) {
  SumOfGray step;
  for_each_block(image, step);
  return step.sum;
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

FASTLOAD_TARGET void blend_row(const std::uint8_t* __restrict from, const std::uint8_t* __restrict to, float factor,
                               std::uint8_t* __restrict out, int bytes) {
  for (int i = 0; i < bytes; ++i) out[i] = blend(from[i], to[i], factor);
}

FASTLOAD_TARGET void blend_with_smooth(float factor, Image image) {
  const int bytes = image.width * 3;
  const std::size_t size = static_cast<std::size_t>(bytes);
  const auto rows = std::make_unique<std::uint8_t[]>(size * 3);
  const auto columns = std::make_unique<std::uint16_t[]>(size);
  std::uint8_t* above = rows.get();
  std::uint8_t* here = above + size;
  std::uint8_t* smooth = here + size;
  for (int y = 0; y < image.height; ++y) {
    std::uint8_t* row = image.row(y);
    std::memcpy(here, row, size);
    std::memcpy(smooth, row, size);  // pixels at the border stay
    if (y > 0 && y + 1 < image.height) smooth_row(above, here, image.row(y + 1), columns.get(), smooth, bytes);
    blend_row(smooth, here, factor, row, bytes);
    std::swap(above, here);
  }
}

constexpr ColorKernels kLoops = {apply_table, blend_with_level, blend_with_gray, blend_with_smooth,
                                 shift_hue,   to_grayscale,     sum_of_gray,     bounds};

}  // namespace
}  // namespace fastload
