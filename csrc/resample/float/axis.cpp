// torch's weights of a resize in float. The order and the precision of every operation matters; compile with
// -ffp-contract=off.
#include <algorithm>
#include <cmath>
#include <limits>

#include "resample/float/kernels.h"

namespace fastload {
namespace {

// As many taps, from the first on, are rounded before they are added. A compiler that computes four products by one
// vector and adds them in order does not fuse these.
int separate_taps(Products products, int taps) {
  if (products == Products::rounded) return taps;
  return products == Products::fused ? 1 : 1 + (taps - 1) / 4 * 4;
}

float product_and_sum(bool fused, float a, float b, float c) { return fused ? std::fmaf(a, b, c) : a * b + c; }

float weight_at(bool bicubic, bool fused, float x) {
  x = std::fabs(x);
  if (!bicubic) return x < 1.0f ? 1.0f - x : 0.0f;
  constexpr float a = -0.5f;
  if (x < 1.0f) return product_and_sum(fused, product_and_sum(fused, a + 2, x, -(a + 3)) * x, x, 1.0f);
  if (x >= 2.0f) return 0.0f;
  return product_and_sum(fused, product_and_sum(fused, product_and_sum(fused, a, x, -5 * a), x, 8 * a), x, -4 * a);
}

}  // namespace

void make_float_axis(bool bicubic, Products products, int source_size, int out_size, int begin, int count,
                     FloatAxis& axis) {
  const bool fused = products != Products::rounded;
  const float scale = static_cast<float>(source_size) / static_cast<float>(out_size);
  const double half_width = bicubic ? 2.0 : 1.0;
  const auto support = static_cast<float>(scale >= 1.0f ? half_width * static_cast<double>(scale) : half_width);
  const float inverse = scale >= 1.0f ? static_cast<float>(1.0 / static_cast<double>(scale)) : 1.0f;
  const int most = static_cast<int>(std::ceil(support)) * 2 + 1;

  const bool is_kept = source_size == out_size;  // torch leaves that side out, which keeps zeros' signs and infinities

  axis.count = count;
  axis.stride = is_kept ? 1 : std::min(most, source_size);
  axis.start.resize(static_cast<std::size_t>(count));
  axis.size.resize(static_cast<std::size_t>(count));
  axis.separate.resize(static_cast<std::size_t>(count));
  axis.weights.resize(static_cast<std::size_t>(count) * static_cast<std::size_t>(axis.stride));
  int first = std::numeric_limits<int>::max(), last = 0;
  for (int i = 0; i < count; ++i) {
    float* const weights = &axis.weights[static_cast<std::size_t>(i) * static_cast<std::size_t>(axis.stride)];
    const auto center = static_cast<float>(static_cast<double>(scale) * (begin + i + 0.5));
    const auto edge = [](float at) { return static_cast<std::int64_t>(static_cast<double>(at) + 0.5); };
    const auto from = is_kept ? begin + i : static_cast<int>(std::max<std::int64_t>(edge(center - support), 0));
    const auto to = is_kept ? from + 1 : static_cast<int>(std::min<std::int64_t>(edge(center + support), source_size));
    const int taps = std::clamp(to - from, 1, axis.stride);
    float total = 0.0f;
    for (int t = 0; t < taps; ++t) {
      const double at = (static_cast<double>(static_cast<float>(t + from) - center) + 0.5) * inverse;
      weights[t] = weight_at(bicubic, fused, static_cast<float>(at));
      total += weights[t];
    }
    for (int t = 0; t < taps && total != 0.0f; ++t) weights[t] /= total;
    axis.start[static_cast<std::size_t>(i)] = from;
    axis.size[static_cast<std::size_t>(i)] = taps;
    axis.separate[static_cast<std::size_t>(i)] = separate_taps(products, taps);
    first = std::min(first, from);
    last = std::max(last, from + taps);
  }
  axis.first = first;
  axis.extent = last - first;
  for (int& start : axis.start) start -= first;
}

void mirror(FloatAxis& axis) {
  std::reverse(axis.start.begin(), axis.start.end());
  std::reverse(axis.size.begin(), axis.size.end());
  std::reverse(axis.separate.begin(), axis.separate.end());
  for (int i = 0, j = axis.count - 1; i < j; ++i, --j) {
    float* const row = &axis.weights[static_cast<std::size_t>(i) * static_cast<std::size_t>(axis.stride)];
    std::swap_ranges(row, row + axis.stride, &axis.weights[static_cast<std::size_t>(j) * axis.stride]);
  }
}

}  // namespace fastload
