// The portable kernels, whose bits every other instruction set must reproduce.
#include <algorithm>
#include <cstring>

#include "resample/kernels.h"

namespace fastload {
namespace {

std::uint8_t clip8(std::uint32_t sum) {
  const std::int32_t value = static_cast<std::int32_t>(sum) >> kPrecisionBits;
  return static_cast<std::uint8_t>(std::clamp(value, 0, 255));
}

// All kernels compute sums modulo 2^32 (unsigned, so that wrapping is defined). With weights that add up to 1 they do
// not wrap.
void horizontal_row(const Axis& axis, int channels, const std::uint8_t* source, std::uint8_t* out) {
  for (int i = 0; i < axis.count; ++i) {
    const std::int32_t* weights = axis.row(i);
    const std::uint8_t* pixel = source + static_cast<std::ptrdiff_t>(axis.start[i]) * channels;
    if (channels == 3) {
      std::uint32_t red = kHalf, green = kHalf, blue = kHalf;
      for (int x = 0; x < axis.size[i]; ++x, pixel += 3) {
        const auto weight = static_cast<std::uint32_t>(weights[x]);
        red += pixel[0] * weight;
        green += pixel[1] * weight;
        blue += pixel[2] * weight;
      }
      out[0] = clip8(red);
      out[1] = clip8(green);
      out[2] = clip8(blue);
      out += 3;
    } else {
      std::uint32_t sum = kHalf;
      for (int x = 0; x < axis.size[i]; ++x) sum += pixel[x] * static_cast<std::uint32_t>(weights[x]);
      *out++ = clip8(sum);
    }
  }
}

void horizontal(const Axis& axis, const PackedAxis&, int channels, const std::uint8_t* const* sources,
                std::uint8_t* const* outs, int rows) {
  for (int row = 0; row < rows; ++row) horizontal_row(axis, channels, sources[row], outs[row]);
}

void vertical(const std::uint8_t* const* rows, const std::int32_t* weights, int taps, std::uint8_t* out, int bytes) {
  constexpr int kTile = 256;
  std::uint32_t sums[kTile];
  for (int x0 = 0; x0 < bytes; x0 += kTile) {
    const int n = std::min(kTile, bytes - x0);
    std::fill(sums, sums + n, static_cast<std::uint32_t>(kHalf));
    for (int t = 0; t < taps; ++t) {
      const auto weight = static_cast<std::uint32_t>(weights[t]);
      const std::uint8_t* row = rows[t] + x0;
      for (int x = 0; x < n; ++x) sums[x] += row[x] * weight;
    }
    for (int x = 0; x < n; ++x) out[x0 + x] = clip8(sums[x]);
  }
}

void reverse(const std::uint8_t* source, std::uint8_t* out, int pixels, int channels) {
  if (channels == 1) {
    std::reverse_copy(source, source + pixels, out);
    return;
  }
  for (const std::uint8_t* pixel = source + 3 * static_cast<std::ptrdiff_t>(pixels); pixel != source; out += 3) {
    pixel -= 3;
    out[0] = pixel[0];
    out[1] = pixel[1];
    out[2] = pixel[2];
  }
}

}  // namespace

const Kernels kPortableKernels = {[](const Axis&, int, PackedAxis&) {}, horizontal, vertical, reverse};

}  // namespace fastload
