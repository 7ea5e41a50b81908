// Pillow's ImageFilter.GaussianBlur on uint8 RGB images, bit for bit. Knows neither Python nor torch.
#pragma once

#include "image/image.h"

namespace fastload {

// The largest radius that gaussian_blur takes.
constexpr float kMostBlurRadius = 100000;

// ImageFilter.GaussianBlur((x_radius, y_radius)), in place: three extended box blurs of the rows, then of the columns.
// A negative radius acts as its absolute value, as in Pillow.
void gaussian_blur(Image image, float x_radius, float y_radius);

}  // namespace fastload
