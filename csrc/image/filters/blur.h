// Pillow's ImageFilter.GaussianBlur on uint8 RGB images, bit for bit. Knows neither Python nor torch.
#pragma once

#include <cstdint>

#include "base/image.h"

namespace fastload {

// The largest radius that gaussian_blur takes.
constexpr float kMostBlurRadius = 100000;

// A box of 2 * radius + 1 whole pixels and a fraction of one more on each side; weights have 24 fractional bits.
struct BlurBox {
  int radius = 0;
  std::uint32_t whole = 0;  // 0: there is nothing to blur
  std::uint32_t far = 0;
};

// The box of which three passes make a Gaussian blur.
BlurBox gaussian_box(float radius);

// ImageFilter.GaussianBlur((x_radius, y_radius)), in place: three extended box blurs of the rows, then of the columns.
// A negative radius acts as its absolute value, as in Pillow.
void gaussian_blur(Image image, float x_radius, float y_radius);

}  // namespace fastload
