// Pillow's and torch's resampling weights. The order of every floating-point operation matters; compile with
// -ffp-contract=off.
#include <algorithm>
#include <cmath>

#include "resample/kernels.h"

namespace fastload {
namespace {

constexpr double kPi = 3.14159265358979323846;

struct Box {
  static constexpr double support = 0.5;
  static double at(double x) { return x > -0.5 && x <= 0.5 ? 1.0 : 0.0; }
};

struct Bilinear {
  static constexpr double support = 1.0;
  static double at(double x) { return std::max(1.0 - std::fabs(x), 0.0); }
};

struct Hamming {
  static constexpr double support = 1.0;
  static double at(double x) {
    x = std::fabs(x);
    if (x == 0.0) return 1.0;
    if (x >= 1.0) return 0.0;
    x *= kPi;
    // These two constants are floats in Pillow.
    return std::sin(x) / x * (0.54f + 0.46f * std::cos(x));
  }
};

struct Bicubic {
  static constexpr double support = 2.0;
  static double at(double x) {
    constexpr double a = -0.5;
    x = std::fabs(x);
    const double inner = ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    const double outer = (((x - 5) * x + 8) * x - 4) * a;
    return x < 1.0 ? inner : (x < 2.0 ? outer : 0.0);
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

// Rounds half away from zero, as Pillow and torch do.
std::int32_t fixed_point(double weight, int bits) {
  return static_cast<std::int32_t>(std::copysign(0.5, weight) + weight * (1 << bits));
}

// The number of fractional bits at which torch's largest weight still fits into an int16.
int torch_precision(double largest) {
  int bits = 0;
  while (bits < kPrecisionBits && static_cast<int>(0.5 + largest * (1 << (bits + 1))) < 1 << 15) ++bits;
  return bits;
}

// Computes tap by tap, each for all positions at once, so that the compiler can vectorize. A position's weights are
// still summed in the order of its taps, and the zeros beyond its last tap do not change the sum.
template <class F>
void exact_weights(int source_size, float low, float high, int out_size, int begin, bool clamp_taps, Axis& axis) {
  const double scale = static_cast<double>(high - low) / out_size;
  const double filter_scale = std::max(scale, 1.0);
  const double inverse = 1.0 / filter_scale;
  const double support = F::support * filter_scale;
  const int count = axis.count;

  axis.start.resize(count);
  axis.size.resize(count);
  axis.centers.resize(count);
  axis.sizes.resize(count);
  axis.totals.assign(count, 0.0);
  int* start = axis.start.data();
  int* size = axis.size.data();
  double* centers = axis.centers.data();
  double* sizes = axis.sizes.data();
  double* totals = axis.totals.data();
  const int most_taps = clamp_taps ? static_cast<int>(std::ceil(static_cast<float>(support))) * 2 + 1 : source_size;
  int most = 1;
  for (int i = 0; i < count; ++i) {
    const double center = low + (begin + i + 0.5) * scale;
    const int from = std::max(static_cast<int>(center - support + 0.5), 0);
    const int to = std::min({static_cast<int>(center + support + 0.5), source_size, from + most_taps});
    centers[i] = center;
    start[i] = from;
    size[i] = to - from;
    sizes[i] = to - from;
    most = std::max(most, to - from);
  }
  axis.taps = most;
  axis.exact.resize(static_cast<std::size_t>(most) * count);
  for (int t = 0; t < most; ++t) {
    double* exact = axis.exact.data() + static_cast<std::size_t>(t) * count;
    for (int i = 0; i < count; ++i) {
      const double weight = F::at((t + start[i] - centers[i] + 0.5) * inverse);
      exact[i] = t < sizes[i] ? weight : 0.0;
      totals[i] += exact[i];
    }
  }
  for (int i = 0; i < count; ++i) totals[i] = totals[i] != 0.0 ? totals[i] : 1.0;
}

double largest_weight(const Axis& axis) {
  double largest = 0;
  for (int t = 0; t < axis.taps; ++t) {
    const double* exact = axis.exact.data() + static_cast<std::size_t>(t) * axis.count;
    for (int i = 0; i < axis.count; ++i) largest = std::max(largest, exact[i] / axis.totals[i]);
  }
  return largest;
}

// Rounds the weights to `precision` bits and stores them with kPrecisionBits.
void round_weights(int precision, Axis& axis) {
  const int count = axis.count, most = axis.taps;
  const double* totals = axis.totals.data();
  const std::int32_t unit = 1 << (kPrecisionBits - precision);
  const int stride = (most + 3) / 4 * 4;
  axis.stride = stride;
  axis.weights.assign(static_cast<std::size_t>(count) * stride + 16, 0);
  axis.column.resize(count);
  std::int32_t* column = axis.column.data();
  std::uint32_t bits = 0;
  for (int t = 0; t < most; ++t) {
    const double* exact = axis.exact.data() + static_cast<std::size_t>(t) * count;
    for (int i = 0; i < count; ++i) {
      column[i] = fixed_point(exact[i] / totals[i], precision) * unit;
      bits |= static_cast<std::uint32_t>(column[i]) + 0x808080u;
    }
    std::int32_t* weights = axis.weights.data() + t;
    for (int i = 0; i < count; ++i) weights[static_cast<std::size_t>(i) * stride] = column[i];
  }
  // Three signed digits can represent -0x808080 to 0x7f7f7f.
  axis.digits_fit = bits <= 0xffffffu;
}

template <class F>
void make_axis_with(int source_size, float low, float high, int out_size, int begin, Axis& axis) {
  exact_weights<F>(source_size, low, high, out_size, begin, false, axis);
  round_weights(kPrecisionBits, axis);
}

// The precision depends on the whole axis, even if only part of it is needed.
template <class F>
void make_torch_axis_with(int source_size, int out_size, int begin, Axis& axis) {
  const auto high = static_cast<float>(source_size);
  const int count = axis.count;
  axis.count = out_size;
  exact_weights<F>(source_size, 0, high, out_size, 0, true, axis);
  const int precision = torch_precision(largest_weight(axis));
  axis.count = count;
  if (count != out_size) exact_weights<F>(source_size, 0, high, out_size, begin, true, axis);
  round_weights(precision, axis);
}

// Zero-weight taps at either end need not be read or decoded.
void trim(int source_size, Axis& axis) {
  int first = source_size, last = 0, taps = 1;
  for (int i = 0; i < axis.count; ++i) {
    std::int32_t* weights = &axis.weights[static_cast<std::size_t>(i) * axis.stride];
    int from = std::min(axis.start[i], source_size - 1), size = std::max(axis.size[i], 1);
    while (size > 1 && weights[size - 1] == 0) --size;
    if (weights[0] == 0) {
      int skip = 0;
      while (size > 1 && weights[skip] == 0) ++skip, --size;
      std::copy(weights + skip, weights + skip + size, weights);
      std::fill(weights + size, weights + size + skip, 0);
      from += skip;
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

  const int stride = (taps + 3) / 4 * 4;
  if (stride == axis.stride) return;
  for (int i = 1; i < axis.count; ++i) {
    const std::int32_t* weights = &axis.weights[static_cast<std::size_t>(i) * axis.stride];
    std::copy(weights, weights + stride, &axis.weights[static_cast<std::size_t>(i) * stride]);
  }
  axis.stride = stride;
}

}  // namespace

void make_axis(Filter filter, int source_size, float low, float high, int out_size, int begin, int count, Axis& axis) {
  axis.count = count;
  switch (filter) {
    case Filter::nearest:
    case Filter::box: make_axis_with<Box>(source_size, low, high, out_size, begin, axis); break;
    case Filter::bilinear: make_axis_with<Bilinear>(source_size, low, high, out_size, begin, axis); break;
    case Filter::hamming: make_axis_with<Hamming>(source_size, low, high, out_size, begin, axis); break;
    case Filter::bicubic: make_axis_with<Bicubic>(source_size, low, high, out_size, begin, axis); break;
    case Filter::lanczos: make_axis_with<Lanczos>(source_size, low, high, out_size, begin, axis); break;
    case Filter::torch_bilinear: make_torch_axis_with<Bilinear>(source_size, out_size, begin, axis); break;
    case Filter::torch_bicubic: make_torch_axis_with<Bicubic>(source_size, out_size, begin, axis); break;
    case Filter::torch_lanczos: make_torch_axis_with<Lanczos>(source_size, out_size, begin, axis); break;
    default: return;  // its weights are floats
  }
  trim(source_size, axis);
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
