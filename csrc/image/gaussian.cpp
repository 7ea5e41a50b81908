#include "image/gaussian.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "resample/resample.h"

namespace fastload {
namespace {

// One half of a symmetric kernel, from its center on, without what is too small to matter.
std::vector<float> half_kernel(int taps, double sigma) {
  std::vector<double> weights(static_cast<std::size_t>(taps / 2 + 1));
  double sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double x = static_cast<double>(i) / sigma;
    weights[i] = std::exp(-0.5 * x * x);
    sum += i == 0 ? weights[i] : 2 * weights[i];
  }
  while (weights.size() > 1 && weights.back() < 1e-8 * sum) weights.pop_back();
  std::vector<float> half;
  for (const double weight : weights) half.push_back(static_cast<float>(weight / sum));
  return half;
}

// The row or column that is shown beyond an edge, without the edge itself once more.
int mirrored(int position, int size) {
  if (position < 0) return -position;
  return position >= size ? 2 * size - 2 - position : position;
}

// Inlined into functions for each instruction set, for which the compiler vectorizes the loops over a row. None fuses
// multiplications with additions, so all give the same bits.
inline __attribute__((always_inline)) void filter_rows(const ConstImage& in, const Image& out,
                                                       const std::vector<float>& down, const std::vector<float>& across,
                                                       float* padded, float* sums) {
  const int count = 3 * in.width, margin = static_cast<int>(across.size()) - 1;
  float* const middle = padded + 3 * margin;
  for (int y = 0; y < in.height; ++y) {
    const std::uint8_t* row = in.row(y);
    for (int x = 0; x < count; ++x) middle[x] = static_cast<float>(row[x]) * down[0];
    for (int k = 1; k < static_cast<int>(down.size()); ++k) {
      const std::uint8_t* above = in.row(mirrored(y - k, in.height));
      const std::uint8_t* below = in.row(mirrored(y + k, in.height));
      const float weight = down[static_cast<std::size_t>(k)];
      for (int x = 0; x < count; ++x) middle[x] += static_cast<float>(above[x] + below[x]) * weight;
    }
    for (int k = 1; k <= margin; ++k) {
      std::memcpy(middle - 3 * k, middle + 3 * k, 3 * sizeof(float));
      std::memcpy(middle + count - 3 + 3 * k, middle + count - 3 - 3 * k, 3 * sizeof(float));
    }
    for (int x = 0; x < count; ++x) sums[x] = middle[x] * across[0];
    for (int k = 1; k <= margin; ++k) {
      const float weight = across[static_cast<std::size_t>(k)];
      const float *left = middle - 3 * k, *right = middle + 3 * k;
      for (int x = 0; x < count; ++x) sums[x] += (left[x] + right[x]) * weight;
    }
    std::uint8_t* target = out.row(y);
    for (int x = 0; x < count; ++x) target[x] = static_cast<std::uint8_t>(static_cast<int>(sums[x] + 0.5f));
  }
}

void filter_portable(const ConstImage& in, const Image& out, const std::vector<float>& down,
                     const std::vector<float>& across, float* padded, float* sums) {
  filter_rows(in, out, down, across, padded, sums);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void filter_avx2(const ConstImage& in, const Image& out, const std::vector<float>& down,
                                                 const std::vector<float>& across, float* padded, float* sums) {
  filter_rows(in, out, down, across, padded, sums);
}
#endif

}  // namespace

bool gaussian_filter(const ConstImage& in, const Image& out, int height, int width, double sigma) {
  if (height / 2 >= in.height || width / 2 >= in.width) return false;
  const std::vector<float> down = half_kernel(height, sigma), across = half_kernel(width, sigma);
  const std::size_t count = std::size_t{3} * static_cast<std::size_t>(in.width);
  std::vector<float> padded(count + 6 * across.size()), sums(count);
  auto filter = &filter_portable;
#if defined(__x86_64__)
  if (simd_level() == SimdLevel::avx2 || simd_level() == SimdLevel::avx512) filter = &filter_avx2;
#endif
  filter(in, out, down, across, padded.data(), sums.data());
  return true;
}

}  // namespace fastload
