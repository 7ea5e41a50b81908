// Convolution of an RGB image with float32 weights, in the order of torch's conv2d on the CPU. Knows neither Python nor
// torch.
#pragma once

#include "base/image.h"

namespace fastload {

// `height` rows of `width` weights, one behind the other; both odd.
struct Weights {
  const float* values = nullptr;
  int height = 0;
  int width = 0;
};

// Each value of `out`, 3 * in.width in each of in.height rows, is the sum of all products, row by row, every one added
// with a single rounding (fma). Beyond the edges comes the mirrored image. Returns false if half of the weights' side
// is not smaller than the image's, so that the image cannot be mirrored.
bool convolve(const ConstImage& in, const Weights& weights, float* out);
// The same, of sums rounded half to even, within the levels. `out` must not overlap `in`.
bool convolve(const ConstImage& in, const Weights& weights, const Image& out);

}  // namespace fastload
