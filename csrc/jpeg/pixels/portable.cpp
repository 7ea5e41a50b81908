// From coefficients to RGB in plain C++.
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "base/planes.h"
#include "jpeg/pixels/kernels.h"

#define FASTLOAD_TARGET

namespace fastload {
namespace {

// One pass over eight values that are `step` apart: the factorization of Loeffler, Ligtenberg and Moschytz, scaled by
// sqrt(8), in fixed point of 13 bits. `bias` includes the rounding.
inline void transform_eight(const std::int32_t* in, std::int32_t* out, int step, int shift, std::int32_t bias) {
  const std::int32_t x1 = in[step], x2 = in[2 * step], x3 = in[3 * step], x5 = in[5 * step], x6 = in[6 * step],
                     x7 = in[7 * step];
  const std::int32_t sum = (in[0] + in[4 * step]) * 8192 + bias, difference = (in[0] - in[4 * step]) * 8192 + bias;
  const std::int32_t a = x2 * 4433 - x6 * 10704, b = x2 * 10703 + x6 * 4433;
  const std::int32_t even[4] = {sum + b, difference + a, difference - a, sum - b};
  const std::int32_t c = (x3 + x7) * -6436 + (x1 + x5) * 9633, d = (x3 + x7) * 9633 + (x1 + x5) * 6437;
  const std::int32_t odd[4] = {x1 * 4926 - x7 * 7373 + d, x3 * 4177 - x5 * 20995 + c, x3 * -20995 - x5 * 4176 + d,
                               x1 * -7373 - x7 * 4927 + c};
  for (int i = 0; i < 4; ++i) {
    out[i * step] = (even[i] + odd[i]) >> shift;
    out[(7 - i) * step] = (even[i] - odd[i]) >> shift;
  }
}

bool transform_block(const std::int16_t* block, int, const std::int32_t* quantization, std::uint8_t* out,
                     std::size_t stride) {
  std::int32_t values[64], between[64], results[64];
  bool fits = true;
  for (int i = 0; i < 64; ++i) {
    values[i] = block[i] * quantization[i];
    fits &= values[i] > -kMostValue && values[i] < kMostValue;
  }
  if (!fits) return false;
  for (int x = 0; x < 8; ++x) transform_eight(values + x, between + x, 8, 11, 1 << 10);
  for (int i = 0; i < 64; ++i) fits &= between[i] > -kMostValue && between[i] < kMostValue;
  if (!fits) return false;
  for (int y = 0; y < 8; ++y) transform_eight(between + 8 * y, results + 8 * y, 1, 18, (128 << 18) + (1 << 17));
  for (int i = 0; i < 64; ++i) {
    const std::int32_t level = results[i];
    fits &= level >= -kMostBelow && level < kMostResults - kMostBelow;
    out[static_cast<std::size_t>(i / 8) * stride + static_cast<std::size_t>(i % 8)] =
        static_cast<std::uint8_t>(level < 0     ? 0
                                  : level > 255 ? 255
                                                : level);
  }
  return fits;
}

void stretch(const std::uint16_t* __restrict sums, std::size_t count, unsigned left_bias, unsigned right_bias,
             unsigned shift, std::uint8_t* __restrict out) {
  const auto left = static_cast<std::uint16_t>(left_bias), right = static_cast<std::uint16_t>(right_bias);
  for (std::size_t i = 0; i < count; ++i) {
    const auto most = static_cast<std::uint16_t>(3 * sums[i + 1]);
    out[2 * i] = static_cast<std::uint8_t>(static_cast<std::uint16_t>(most + sums[i] + left) >> shift);
    out[2 * i + 1] = static_cast<std::uint8_t>(static_cast<std::uint16_t>(most + sums[i + 2] + right) >> shift);
  }
}

inline std::uint8_t clipped(std::int32_t value) {
  return static_cast<std::uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value);
}

inline void to_planes(const std::uint8_t* y, const std::uint8_t* cb, const std::uint8_t* cr, Planes& planes) {
  for (int i = 0; i < kBlock; ++i) {
    const std::int32_t blue = cb[i] - 128, red = cr[i] - 128;
    planes.red[i] = clipped(y[i] + ((91881 * red + 32768) >> 16));
    planes.green[i] = clipped(y[i] + ((-22554 * blue - 46802 * red + 32768) >> 16));
    planes.blue[i] = clipped(y[i] + ((116130 * blue + 32768) >> 16));
  }
}

inline void merge(const Planes& planes, std::uint8_t* bytes) {
  for (int i = 0; i < kBlock; ++i) {
    bytes[i * 3] = planes.red[i];
    bytes[i * 3 + 1] = planes.green[i];
    bytes[i * 3 + 2] = planes.blue[i];
  }
}

}  // namespace
}  // namespace fastload

#include "jpeg/pixels/loops.h"

namespace fastload {
const PixelKernels kPortablePixels = kPixelLoops;
}  // namespace fastload
