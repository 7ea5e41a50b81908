// Pillow's resampling weights. The order of every floating-point operation matters here; compile with
// -ffp-contract=off.
#include <algorithm>
#include <cmath>

#include "resample_kernels.h"

namespace fastload {
namespace {

constexpr double kPi = 3.14159265358979323846;

struct Box {
  static constexpr double support = 0.5;
  static double at(double x) { return x > -0.5 && x <= 0.5 ? 1.0 : 0.0; }
};

struct Bilinear {
  static constexpr double support = 1.0;
  static double at(double x) {
    x = std::fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
  }
};

struct Hamming {
  static constexpr double support = 1.0;
  static double at(double x) {
    x = std::fabs(x);
    if (x == 0.0) return 1.0;
    if (x >= 1.0) return 0.0;
    x *= kPi;
    // Pillow's two constants are floats.
    return std::sin(x) / x * (0.54f + 0.46f * std::cos(x));
  }
};

struct Bicubic {
  static constexpr double support = 2.0;
  static double at(double x) {
    constexpr double a = -0.5;
    x = std::fabs(x);
    if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
    return 0.0;
  }
};

struct Lanczos {
  static constexpr double support = 3.0;
  static double sinc(double x) {
    if (x == 0.0) return 1.0;
    x *= kPi;
    return std::sin(x) / x;
  }
  static double at(double x) { return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0; }
};

std::int32_t fixed_point(double weight) {
  const double scaled = weight * (1 << kPrecisionBits);
  return static_cast<std::int32_t>(weight < 0 ? -0.5 + scaled : 0.5 + scaled);
}

template <class F>
void make_axis_with(int source_size, float low, float high, int out_size, int begin, Axis& axis) {
  const double scale = static_cast<double>(high - low) / out_size;
  const double filter_scale = std::max(scale, 1.0);
  const double inverse = 1.0 / filter_scale;
  const double support = F::support * filter_scale;
  const int most = static_cast<int>(std::ceil(support)) * 2 + 1;

  axis.stride = (most + 3) / 4 * 4;
  axis.start.resize(axis.count);
  axis.size.resize(axis.count);
  axis.weights.resize(static_cast<std::size_t>(axis.count) * axis.stride + 16);
  std::vector<double> scratch(most);
  int first = source_size, last = 0, taps = 1;
  std::int32_t lowest = 0, highest = 0;
  for (int i = 0; i < axis.count; ++i) {
    const double center = low + (begin + i + 0.5) * scale;
    int from = std::max(static_cast<int>(center - support + 0.5), 0);
    int size = std::min(static_cast<int>(center + support + 0.5), source_size) - from;
    double total = 0.0;
    for (int x = 0; x < size; ++x) {
      scratch[x] = F::at((x + from - center + 0.5) * inverse);
      total += scratch[x];
    }
    if (total != 0.0) {
      for (int x = 0; x < size; ++x) scratch[x] /= total;
    }
    std::int32_t* weights = &axis.weights[static_cast<std::size_t>(i) * axis.stride];
    for (int x = 0; x < size; ++x) weights[x] = fixed_point(scratch[x]);
    // Taps of weight zero at either end need not be read, nor decoded.
    while (size > 1 && weights[size - 1] == 0) --size;
    int skip = 0;
    while (size > 1 && weights[skip] == 0) ++skip, --size;
    if (size < 1) weights[0] = 0, size = 1, from = std::min(from, source_size - 1);
    if (skip > 0) std::copy(weights + skip, weights + skip + size, weights);
    std::fill(weights + size, weights + axis.stride, 0);
    from += skip;
    for (int x = 0; x < size; ++x) {
      lowest = std::min(lowest, weights[x]);
      highest = std::max(highest, weights[x]);
    }
    axis.start[i] = from;
    axis.size[i] = size;
    first = std::min(first, from);
    last = std::max(last, from + size);
    taps = std::max(taps, size);
  }
  axis.first = first;
  axis.extent = last - first;
  axis.taps = taps;
  for (int& from : axis.start) from -= first;
  // Signed digits reach from -0x808080 to 0x7f7f7f.
  axis.digits_fit = lowest >= -0x808080 && highest <= 0x7f7f7f;
  // Most positions have fewer taps than `most`: bring their weights closer together.
  const int stride = (taps + 3) / 4 * 4;
  if (stride < axis.stride) {
    for (int i = 1; i < axis.count; ++i) {
      const std::int32_t* weights = &axis.weights[static_cast<std::size_t>(i) * axis.stride];
      std::copy(weights, weights + stride, &axis.weights[static_cast<std::size_t>(i) * stride]);
    }
    axis.stride = stride;
  }
}

}  // namespace

void make_axis(Filter filter, int source_size, float low, float high, int out_size, int begin, int count, Axis& axis) {
  axis.count = count;
  switch (filter) {
    case Filter::nearest:
    case Filter::box:
      return make_axis_with<Box>(source_size, low, high, out_size, begin, axis);
    case Filter::bilinear:
      return make_axis_with<Bilinear>(source_size, low, high, out_size, begin, axis);
    case Filter::hamming:
      return make_axis_with<Hamming>(source_size, low, high, out_size, begin, axis);
    case Filter::bicubic:
      return make_axis_with<Bicubic>(source_size, low, high, out_size, begin, axis);
    case Filter::lanczos:
      return make_axis_with<Lanczos>(source_size, low, high, out_size, begin, axis);
  }
}

void settle_horizontal(bool mirror, Axis& axis) {
  if (mirror) {
    std::reverse(axis.start.begin(), axis.start.end());
    std::reverse(axis.size.begin(), axis.size.end());
    for (int i = 0, j = axis.count - 1; i < j; ++i, --j) {
      std::int32_t* a = &axis.weights[static_cast<std::size_t>(i) * axis.stride];
      std::swap_ranges(a, a + axis.stride, &axis.weights[static_cast<std::size_t>(j) * axis.stride]);
    }
  }
  for (int i = 0; i < axis.count; ++i) {
    const int shift = std::min(axis.start[i], axis.start[i] + axis.taps - axis.extent);
    if (shift <= 0) continue;
    std::int32_t* weights = &axis.weights[static_cast<std::size_t>(i) * axis.stride];
    std::copy_backward(weights, weights + axis.size[i], weights + axis.size[i] + shift);
    std::fill(weights, weights + shift, 0);
    axis.start[i] -= shift;
    axis.size[i] += shift;
  }
}

}  // namespace fastload
