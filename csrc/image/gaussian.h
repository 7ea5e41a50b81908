// torchvision's gaussian_blur on uint8 RGB images, at most one level off. Knows neither Python nor torch.
#pragma once

#include "image/image.h"

namespace fastload {

constexpr int kMostTaps = 999;  // of a kernel

// Convolves with a Gaussian of `height` by `width` taps, both odd, and standard deviation `sigma` > 0, beyond the edges
// with the mirrored image. torchvision rounds the sum of all products of one large kernel; this filters rows, then
// columns, with weights of 16 bits, so that sums near a half may round to the other side. `out` must not overlap `in`.
// Returns false if half a kernel is not smaller than the image's side, which torchvision refuses.
bool gaussian_filter(const ConstImage& in, const Image& out, int height, int width, double sigma);

}  // namespace fastload
