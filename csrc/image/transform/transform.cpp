// Pillow's transforms: its choice among fixed point, accumulated positions and general maps, and the portable kernels.
#include "image/transform/transform.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "base/simd_level.h"
#include "image/transform/kernels.h"

namespace fastload {
namespace {

void copy_pixel(const std::uint8_t* pixel, std::uint8_t* out) { std::memcpy(out, pixel, 3); }

void fill_row(std::uint8_t* out, int begin, int end, const Color& fill) {
  if (begin < end && fill[0] == fill[1] && fill[0] == fill[2]) {
    std::memset(out + 3 * begin, fill[0], 3 * static_cast<std::size_t>(end - begin));
    return;
  }
  for (int x = begin; x < end; ++x) copy_pixel(fill.data(), out + 3 * x);
}

bool use_avx2() { return simd_level() == SimdLevel::avx2 || simd_level() == SimdLevel::avx512; }

// Whether AVX2's kernels with 32-bit offsets and dwords per pixel can read `in`.
[[maybe_unused]] bool can_gather(const ConstImage& in) {
  const std::int64_t span = std::max(std::abs(in.stride) * std::int64_t{in.height}, std::int64_t{3} * in.width);
  return use_avx2() && in.width >= 2 && span < (1 << 30);
}

// What a C compiler makes of int(floor(value)) on this CPU, also where the int overflows.
int to_int(double value) {
  value = std::floor(value);
  if (value >= -2147483648.0 && value < 2147483648.0) return static_cast<int>(value);
#if defined(__x86_64__) || defined(__i386__)
  return std::numeric_limits<int>::min();
#else
  if (std::isnan(value)) return 0;
  return value < 0 ? std::numeric_limits<int>::min() : std::numeric_limits<int>::max();
#endif
}

using PixelFunction = void (*)(const ConstImage&, Point, const Color&, std::uint8_t*);

template <PixelFunction pixel, class Map>
void map_pixels(const ConstImage& in, const Image& out, const Map& map, const Color& fill) {
  for (int y = 0; y < out.height; ++y) {
    std::uint8_t* target = out.row(y);
    for (int x = 0; x < out.width; ++x, target += 3) pixel(in, map(x + 0.5, y + 0.5), fill, target);
  }
}

template <class Map>
void transform(const ConstImage& in, const Image& out, const Map& map, Sampling sampling, const Color& fill) {
  switch (sampling) {
    case Sampling::nearest: return map_pixels<nearest_pixel>(in, out, map, fill);
    case Sampling::bilinear:
#if defined(__x86_64__)
      if (can_gather(in)) return bilinear_avx2(in, out, map, fill);
#endif
      return map_pixels<bilinear_pixel>(in, out, map, fill);
    case Sampling::bicubic:
#if defined(__x86_64__)
      if (use_avx2()) return bicubic_avx2(in, out, map, fill);
#endif
      return map_pixels<bicubic_pixel>(in, out, map, fill);
  }
}

std::vector<int> accumulated(double position, double step, int count, int size) {
  std::vector<int> picks(count);
  for (int& pick : picks) {
    pick = position >= 0.0 && position < size ? static_cast<int>(position) : -1;
    position += step;
  }
  return picks;
}

// Nearest neighbour of a matrix that only scales and moves.
void affine_scale(const ConstImage& in, const Image& out, const std::array<double, 6>& a, const Color& fill) {
  const std::vector<int> columns = picked_columns(a, out.width, in.width);
  const std::vector<int> rows = picked_rows(a, out.height, in.height);
  int begin = 0, end = out.width;  // positions are monotonic, so the columns inside are a range
  while (begin < end && columns[begin] < 0) ++begin;
  while (begin < end && columns[end - 1] < 0) --end;
  bool adjacent = true;
  for (int x = begin + 1; x < end; ++x) adjacent = adjacent && columns[x] == columns[x - 1] + 1;
  for (int y = 0; y < out.height; ++y) {
    std::uint8_t* target = out.row(y);
    if (rows[y] < 0 || begin == end) {
      fill_row(target, 0, out.width, fill);
      continue;
    }
    const std::uint8_t* source = in.row(rows[y]);
    fill_row(target, 0, begin, fill);
    fill_row(target, end, out.width, fill);
    if (adjacent) {
      std::memcpy(target + 3 * begin, source + 3 * columns[begin], 3 * static_cast<std::size_t>(end - begin));
    } else {
      for (int x = begin; x < end; ++x) copy_pixel(source + 3 * columns[x], target + 3 * x);
    }
  }
}

void affine_fixed(const ConstImage& in, const Image& out, const std::array<double, 6>& a, const Color& fill) {
  FixedMatrix matrix = fixed_matrix(a);
#if defined(__x86_64__)
  if (can_gather(in)) return affine_fixed_avx2(in, out, matrix, fill);
#endif
  for (int y = 0; y < out.height; ++y) {
    fixed_pixels(in, out.row(y), 0, out.width, matrix.x_0, matrix.y_0, matrix, fill);
    matrix.x_0 += matrix.x_y;
    matrix.y_0 += matrix.y_y;
  }
}

// Nearest neighbour of a matrix beyond fixed point: positions accumulate along a row, and their starts along the rows.
void affine_accumulated(const ConstImage& in, const Image& out, const std::array<double, 6>& a, const Color& fill) {
  Point start{a[2] + a[1] * 0.5 + a[0] * 0.5, a[5] + a[4] * 0.5 + a[3] * 0.5};
  for (int y = 0; y < out.height; ++y) {
    Point p = start;
    for (int x = 0; x < out.width; ++x) {
      nearest_pixel(in, p, fill, out.row(y) + 3 * x);
      p.x += a[0];
      p.y += a[3];
    }
    start.x += a[1];
    start.y += a[4];
  }
}

bool outside(const ConstImage& in, Point p) { return p.x < 0.0 || p.x >= in.width || p.y < 0.0 || p.y >= in.height; }

// Outside the source, and for NaN, which Pillow's comparisons take for inside and its arithmetic makes black.
bool outside_or_nan(const ConstImage& in, Point p, const Color& fill, std::uint8_t* out) {
  if (outside(in, p)) {
    copy_pixel(fill.data(), out);
    return true;
  }
  if (!std::isnan(p.x) && !std::isnan(p.y)) return false;
  std::memset(out, 0, 3);
  return true;
}

double linear(double a, double b, double d) { return a + (b - a) * d; }

template <class Number>
double cubic(Number v0, Number v1, Number v2, Number v3, double d) {
  const double p2 = v2 - v0;
  const double p3 = 2 * (v0 - v1) + v2 - v3;
  const double p4 = v1 - v0 - v2 + v3;
  return v1 + d * (p2 + d * (p3 + d * p4));
}

// Correctly rounded to 15 decimals, as Python's round(): printf and strtod are exact, with ties to even.
double round_15(double value) {
  char digits[400];
  std::snprintf(digits, sizeof digits, "%.15f", value);
  return std::strtod(digits, nullptr);
}

// Python calls the library's functions one by one; a compiler may not join them into another, such as sincos.
double (*const volatile cosine)(double) = std::cos;
double (*const volatile sine)(double) = std::sin;
double (*const volatile tangent)(double) = std::tan;

double radians(double degrees) { return degrees * (3.14159265358979323846 / 180.0); }

// The position within [0, size) that a position outside shows.
int mirrored(int position, int size, PadMode mode) {
  const int skipped = mode == PadMode::reflect ? 1 : 0;  // reflect doesn't repeat the edge
  if (mode == PadMode::reflect || mode == PadMode::symmetric) {
    if (position < 0) position = -position - 1 + skipped;
    if (position >= size) position = 2 * size - 1 - skipped - position;
  }
  return std::clamp(position, 0, size - 1);
}

}  // namespace

void nearest_pixel(const ConstImage& in, Point p, const Color& fill, std::uint8_t* out) {
  const bool inside = p.x >= 0.0 && p.x < in.width && p.y >= 0.0 && p.y < in.height;  // false for NaN
  copy_pixel(inside ? in.row(static_cast<int>(p.y)) + 3 * static_cast<int>(p.x) : fill.data(), out);
}

void bilinear_pixel(const ConstImage& in, Point p, const Color& fill, std::uint8_t* out) {
  if (outside_or_nan(in, p, fill, out)) return;
  p = {p.x - 0.5, p.y - 0.5};
  const int x = p.x < 0 ? -1 : static_cast<int>(p.x), y = p.y < 0 ? -1 : static_cast<int>(p.y);
  const double dx = p.x - x, dy = p.y - y;
  const std::uint8_t* top = in.row(std::max(y, 0));
  const std::uint8_t* bottom = in.row(std::min(y + 1, in.height - 1));
  const int left = 3 * std::max(x, 0), right = 3 * std::min(x + 1, in.width - 1);
  for (int c = 0; c < 3; ++c) {
    out[c] = static_cast<std::uint8_t>(
        linear(linear(top[left + c], top[right + c], dx), linear(bottom[left + c], bottom[right + c], dx), dy));
  }
}

void bicubic_pixel(const ConstImage& in, Point p, const Color& fill, std::uint8_t* out) {
  if (outside_or_nan(in, p, fill, out)) return;
  p = {p.x - 0.5, p.y - 0.5};
  const int x = p.x < 0 ? -1 : static_cast<int>(p.x), y = p.y < 0 ? -1 : static_cast<int>(p.y);
  const double dx = p.x - x, dy = p.y - y;
  const std::uint8_t* rows[4];
  int columns[4];
  for (int i = 0; i < 4; ++i) {
    rows[i] = in.row(std::clamp(y - 1 + i, 0, in.height - 1));
    columns[i] = 3 * std::clamp(x - 1 + i, 0, in.width - 1);
  }
  for (int c = 0; c < 3; ++c) {
    const auto across = [&](const std::uint8_t* row) {
      return cubic<int>(row[columns[0] + c], row[columns[1] + c], row[columns[2] + c], row[columns[3] + c], dx);
    };
    const double value = cubic(across(rows[0]), across(rows[1]), across(rows[2]), across(rows[3]), dy);
    out[c] = static_cast<std::uint8_t>(std::clamp(value, 0.0, 255.0));
  }
}

AffineWay affine_way(const std::array<double, 6>& a, int out_height, int out_width) {
  if (a[1] == 0 && a[3] == 0) return AffineWay::picks;
  const auto fits = [&a](int x, int y) {
    return std::fabs(x * a[0] + y * a[1] + a[2]) < 32768.0 && std::fabs(x * a[3] + y * a[4] + a[5]) < 32768.0;
  };
  const bool fixed = fits(0, 0) && fits(out_width, out_height) && fits(0, out_height) && fits(out_width, 0);
  return fixed ? AffineWay::fixed : AffineWay::doubles;
}

FixedMatrix fixed_matrix(const std::array<double, 6>& a) {
  const auto fixed = [](double value) { return static_cast<std::uint32_t>(to_int(value * 65536.0 + 0.5)); };
  return {fixed(a[0]), fixed(a[1]), fixed(a[2] + a[0] * 0.5 + a[1] * 0.5),
          fixed(a[3]), fixed(a[4]), fixed(a[5] + a[3] * 0.5 + a[4] * 0.5)};
}

std::vector<int> picked_columns(const std::array<double, 6>& a, int out_width, int in_width) {
  return accumulated(a[2] + a[0] * 0.5, a[0], out_width, in_width);
}

std::vector<int> picked_rows(const std::array<double, 6>& a, int out_height, int in_height) {
  return accumulated(a[5] + a[4] * 0.5, a[4], out_height, in_height);
}

void fixed_pixels(const ConstImage& in, std::uint8_t* out, int begin, int end, std::uint32_t x, std::uint32_t y,
                  const FixedMatrix& matrix, const Color& fill) {
  for (int i = begin; i < end; ++i) {
    const int column = static_cast<std::int32_t>(x) >> 16, row = static_cast<std::int32_t>(y) >> 16;
    const bool inside = column >= 0 && column < in.width && row >= 0 && row < in.height;
    copy_pixel(inside ? in.row(row) + 3 * column : fill.data(), out + 3 * i);
    x += matrix.x_x;
    y += matrix.y_x;
  }
}

void transform_affine(ConstImage in, Image out, const std::array<double, 6>& a, Sampling sampling, Color fill) {
  if (sampling != Sampling::nearest) return transform(in, out, AffineMap{a}, sampling, fill);
  switch (affine_way(a, out.height, out.width)) {
    case AffineWay::picks: return affine_scale(in, out, a, fill);
    case AffineWay::fixed: return affine_fixed(in, out, a, fill);
    case AffineWay::doubles: return affine_accumulated(in, out, a, fill);
  }
}

void transform_perspective(ConstImage in, Image out, const std::array<double, 8>& coefficients, Sampling sampling,
                           Color fill) {
  transform(in, out, PerspectiveMap{coefficients}, sampling, fill);
}

void transpose(ConstImage in, Image out, Transpose how) {
  if (how == Transpose::flip_vertical) {
    for (int y = 0; y < in.height; ++y) {
      std::memcpy(out.row(in.height - 1 - y), in.row(y), 3 * static_cast<std::size_t>(in.width));
    }
  } else if (how == Transpose::flip_horizontal || how == Transpose::rotate_180) {
    for (int y = 0; y < in.height; ++y) {
      const std::uint8_t* source = in.row(y);
      std::uint8_t* target = out.row(how == Transpose::rotate_180 ? in.height - 1 - y : y);
#if defined(__x86_64__)
      if (use_avx2()) {
        flip_row_avx2(source, target, in.width);
        continue;
      }
#endif
      for (int x = 0; x < in.width; ++x) copy_pixel(source + 3 * x, target + 3 * (in.width - 1 - x));
    }
  } else {
    const bool anticlockwise = how == Transpose::rotate_90;
#if defined(__x86_64__)
    if (use_avx2()) return quarter_turn_avx2(in, out, anticlockwise);
#endif
    quarter_turn(in, out, anticlockwise, {0, 0, in.height, in.width});
  }
}

void quarter_turn(const ConstImage& in, const Image& out, bool anticlockwise, const PixelBox& part) {
  constexpr int kBlock = 16;  // rows whose pixels lie in one cache line of the output
  for (int top = part.top; top < part.top + part.height; top += kBlock) {
    const int bottom = std::min(top + kBlock, part.top + part.height);
    for (int x = part.left; x < part.left + part.width; ++x) {
      std::uint8_t* target = out.row(anticlockwise ? in.width - 1 - x : x);
      for (int y = top; y < bottom; ++y) {
        copy_pixel(in.row(y) + 3 * x, target + 3 * (anticlockwise ? y : in.height - 1 - y));
      }
    }
  }
}

void gather(ConstImage in, Image out, const PixelPlaces& places, Color fill) {
  const std::int32_t* number = places.numbers.data();
  const bool has_gaps = in.stride != std::ptrdiff_t{3} * in.width;
  for (int y = 0; y < out.height; ++y) {
    std::uint8_t* target = out.row(y);
    for (int x = 0; x < out.width; ++x, ++number, target += 3) {
      const std::int32_t at = *number;
      if (at < 0) {
        copy_pixel(fill.data(), target);
      } else {
        copy_pixel(has_gaps ? in.row(at / in.width) + 3 * (at % in.width) : in.data + std::ptrdiff_t{3} * at, target);
      }
    }
  }
}

void pad(ConstImage in, Image out, int left, int top, PadMode mode, Color fill) {
  const int begin = std::clamp(left, 0, out.width), end = std::clamp(left + in.width, begin, out.width);
  for (int y = 0; y < out.height; ++y) {
    std::uint8_t* target = out.row(y);
    if (mode == PadMode::constant && (y < top || y >= top + in.height)) {
      fill_row(target, 0, out.width, fill);
      continue;
    }
    const std::uint8_t* source = in.row(mirrored(y - top, in.height, mode));
    const auto margin = [&](int from, int to) {
      if (mode == PadMode::constant) return fill_row(target, from, to, fill);
      for (int x = from; x < to; ++x) copy_pixel(source + 3 * mirrored(x - left, in.width, mode), target + 3 * x);
    };
    margin(0, begin);
    if (begin < end) {
      std::memcpy(target + 3 * begin, source + 3 * (begin - left), 3 * static_cast<std::size_t>(end - begin));
    }
    margin(end, out.width);
  }
}

double modulo_360(double angle) {
  angle = std::fmod(angle, 360.0);
  return angle < 0 ? angle + 360.0 : std::fabs(angle);  // no -0.0
}

std::array<double, 6> rotation_matrix(double angle, std::array<double, 2> center) {
  angle = -radians(modulo_360(angle));
  const double a = round_15(cosine(angle)), b = round_15(sine(angle)), d = round_15(-sine(angle));
  const double x = -center[0], y = -center[1];
  return {a, b, a * x + b * y + 0.0 + center[0], d, a, d * x + a * y + 0.0 + center[1]};
}

std::array<double, 6> inverse_affine_matrix(std::array<double, 2> center, double angle, std::array<double, 2> translate,
                                            double scale, std::array<double, 2> shear, bool v2) {
  const double turn = radians(angle), sx = radians(shear[0]), sy = radians(shear[1]);
  if (v2) {
    const double a = cosine(turn - sy) / cosine(sy), c = sine(turn - sy) / cosine(sy), t = tangent(sx);
    const double b = -(a * t + sine(turn)), d = cosine(turn) - c * t;
    const double x = center[0] + translate[0], y = center[1] + translate[1];
    std::array<double, 6> m{d / scale, -b / scale, 0.0, -c / scale, a / scale, 0.0};
    m[2] += center[0] - m[0] * x - m[1] * y;
    m[5] += center[1] - m[3] * x - m[4] * y;
    return m;
  }
  const double a = cosine(turn - sy) / cosine(sy);
  const double b = -cosine(turn - sy) * tangent(sx) / cosine(sy) - sine(turn);
  const double c = sine(turn - sy) / cosine(sy);
  const double d = -sine(turn - sy) * tangent(sx) / cosine(sy) + cosine(turn);
  const double x = -center[0] - translate[0], y = -center[1] - translate[1];
  std::array<double, 6> m{d / scale, -b / scale, 0.0 / scale, -c / scale, a / scale, 0.0 / scale};
  m[2] += m[0] * x + m[1] * y;
  m[5] += m[3] * x + m[4] * y;
  m[2] += center[0];
  m[5] += center[1];
  return m;
}

}  // namespace fastload
