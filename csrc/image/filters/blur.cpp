// Blurs columns, in strips that fit into the cache; rows are columns of the image turned by 90 degrees (a box is
// symmetric, so the direction of the turn doesn't matter).
#include "image/filters/blur.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/simd_level.h"
#include "image/transform/transform.h"

namespace fastload {
namespace {

constexpr int kPasses = 3;
constexpr int kStrip = 32;  // bytes of a row

// Pillow's extended box for a Gaussian: doubles where it has them, floats elsewhere.
float box_radius(float radius) {
  const float variance = radius * radius / kPasses;
  const float length = static_cast<float>(std::sqrt(12.0 * variance + 1.0));
  const float whole = static_cast<float>(std::floor((length - 1.0) / 2.0));
  float part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance);
  part /= 6 * (variance - (whole + 1) * (whole + 1));
  return whole + part;
}

// One pass over a strip of `height` rows. Rows beyond the edges repeat the edge. Inlined into functions for each
// instruction set, for which the compiler vectorizes the loops over a row.
inline __attribute__((always_inline)) void blur_strip(const std::uint8_t* in, std::uint8_t* out, int height,
                                                      const BlurBox& box) {
  const auto row = [in, height](std::int64_t y) { return in + kStrip * std::clamp<std::int64_t>(y, 0, height - 1); };
  std::uint32_t sums[kStrip] = {};  // of the rows from y - radius to y + radius; first for y = -1
  const auto add = [&sums](const std::uint8_t* values, std::uint32_t times) {
    for (int i = 0; i < kStrip; ++i) sums[i] += values[i] * times;
  };
  const int inside = std::min(box.radius, height);
  add(row(0), static_cast<std::uint32_t>(box.radius) + 1);
  for (int y = 0; y < inside; ++y) add(row(y), 1);
  add(row(height - 1), static_cast<std::uint32_t>(box.radius - inside));
  for (int y = 0; y < height; ++y, out += kStrip) {
    const std::uint8_t* before = row(std::int64_t{y} - box.radius - 1);
    const std::uint8_t* newest = row(std::int64_t{y} + box.radius);
    const std::uint8_t* after = row(std::int64_t{y} + box.radius + 1);
    for (int i = 0; i < kStrip; ++i) {
      sums[i] += static_cast<std::uint32_t>(newest[i]) - before[i];
      const std::uint32_t far = static_cast<std::uint32_t>(before[i]) + after[i];
      out[i] = static_cast<std::uint8_t>((sums[i] * box.whole + far * box.far + (1u << 23)) >> 24);
    }
  }
}

inline __attribute__((always_inline)) void blur_passes(std::uint8_t* a, std::uint8_t* b, int height,
                                                       const BlurBox& box) {
  blur_strip(a, b, height, box);
  blur_strip(b, a, height, box);
  blur_strip(a, b, height, box);
}

// From `a` to `b`, using both.
void blur_portable(std::uint8_t* a, std::uint8_t* b, int height, const BlurBox& box) { blur_passes(a, b, height, box); }

#if defined(__x86_64__)
__attribute__((target("avx2"))) void blur_avx2(std::uint8_t* a, std::uint8_t* b, int height, const BlurBox& box) {
  blur_passes(a, b, height, box);
}
#endif

void blur_columns(const Image& image, const BlurBox& box) {
  auto blur = &blur_portable;
#if defined(__x86_64__)
  if (simd_level() == SimdLevel::avx2 || simd_level() == SimdLevel::avx512) blur = &blur_avx2;
#endif
  const std::size_t size = static_cast<std::size_t>(kStrip) * image.height;
  std::vector<std::uint8_t> strips(2 * size);
  for (int left = 0; left < 3 * image.width; left += kStrip) {
    const int bytes = std::min(kStrip, 3 * image.width - left);
    for (int y = 0; y < image.height; ++y) std::memcpy(&strips[kStrip * y], image.row(y) + left, bytes);
    blur(strips.data(), strips.data() + size, image.height, box);
    for (int y = 0; y < image.height; ++y) std::memcpy(image.row(y) + left, &strips[size + kStrip * y], bytes);
  }
}

}  // namespace

BlurBox gaussian_box(float radius) {
  BlurBox box;
  radius = box_radius(radius);
  if (radius == 0) return box;
  box.radius = static_cast<int>(radius);
  box.whole = static_cast<std::uint32_t>(static_cast<float>(1 << 24) / (radius * 2 + 1));
  box.far = ((1u << 24) - (static_cast<std::uint32_t>(box.radius) * 2 + 1) * box.whole) / 2;
  return box;
}

void gaussian_blur(Image image, float x_radius, float y_radius) {
  const BlurBox across = gaussian_box(x_radius), down = gaussian_box(y_radius);
  if (across.whole != 0) {
    std::vector<std::uint8_t> pixels(std::size_t{3} * image.height * image.width);
    const Image turned{pixels.data(), std::ptrdiff_t{3} * image.height, image.width, image.height};
    transpose(image, turned, Transpose::rotate_90);
    blur_columns(turned, across);
    transpose(turned, image, Transpose::rotate_270);
  }
  if (down.whole != 0) blur_columns(image, down);
}

}  // namespace fastload
