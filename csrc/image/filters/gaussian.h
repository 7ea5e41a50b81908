// torchvision's gaussian_blur on uint8 RGB images, at most one level off. Knows neither Python nor torch.
#pragma once

#include <cstdint>
#include <vector>

#include "base/image.h"

namespace fastload {

constexpr int kMostTaps = 999;  // of a kernel

constexpr int kBetweenBits = 6;  // fractional bits between the passes: twice a level still fits an int16

// One half of a symmetric kernel, from half of its center on. All sum up to 2^(bits - 1).
struct GaussianKernel {
  std::vector<std::int16_t> weights;  // an even number
  int bits = 0;

  int reach() const { return static_cast<int>(weights.size()) - 1; }
};

GaussianKernel gaussian_kernel(int taps, double sigma);

// Convolves with a Gaussian of `height` by `width` taps, both odd, and standard deviation `sigma` > 0, beyond the edges
// with the mirrored image. torchvision rounds the sum of all products of one large kernel; this filters rows, then
// columns, with weights of 16 bits, so that sums near a half may round to the other side. `out` must not overlap `in`.
// Returns false if half a kernel is not smaller than the image's side, which torchvision refuses.
bool gaussian_filter(const ConstImage& in, const Image& out, int height, int width, double sigma);

}  // namespace fastload
