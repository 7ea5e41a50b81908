// Shared by the transforms' files: Pillow's arithmetic for single pixels, and the kernels that AVX2 provides.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "image/transform/transform.h"

namespace fastload {

struct Point {
  double x, y;
};

// Where the centre (x, y) of an output pixel lies in the source. The order of the operations gives Pillow's bits.
struct AffineMap {
  std::array<double, 6> a;
  Point operator()(double x, double y) const { return {a[0] * x + a[1] * y + a[2], a[3] * x + a[4] * y + a[5]}; }
};

struct PerspectiveMap {
  std::array<double, 8> a;
  Point operator()(double x, double y) const {
    const double scale = a[6] * x + a[7] * y + 1;
    return {(a[0] * x + a[1] * y + a[2]) / scale, (a[3] * x + a[4] * y + a[5]) / scale};
  }
};

// One pixel, or `fill` outside the source.
void nearest_pixel(const ConstImage& in, Point p, const Color& fill, std::uint8_t* out);
void bilinear_pixel(const ConstImage& in, Point p, const Color& fill, std::uint8_t* out);
void bicubic_pixel(const ConstImage& in, Point p, const Color& fill, std::uint8_t* out);

// Pillow's affine matrix for nearest neighbour, in 16.16 fixed point. Sums wrap.
struct FixedMatrix {
  std::uint32_t x_x, x_y, x_0;  // the source's x at output (x, y): x_x * x + x_y * y + x_0
  std::uint32_t y_x, y_y, y_0;
};

// How Pillow goes through the pixels of an affine transform with nearest neighbour: it picks columns and rows of a
// matrix that only scales and moves, and of others adds up positions in fixed point, or as doubles where these do not
// fit.
enum class AffineWay { picks, fixed, doubles };

AffineWay affine_way(const std::array<double, 6>& matrix, int out_height, int out_width);
// Of the first pixel's centre.
FixedMatrix fixed_matrix(const std::array<double, 6>& matrix);
// The source's pixel at each position, which Pillow accumulates; -1: outside.
std::vector<int> picked_columns(const std::array<double, 6>& matrix, int out_width, int in_width);
std::vector<int> picked_rows(const std::array<double, 6>& matrix, int out_height, int in_height);

// The part of a row from `begin` to `end`; (x, y) is the fixed-point position of pixel `begin`.
void fixed_pixels(const ConstImage& in, std::uint8_t* out, int begin, int end, std::uint32_t x, std::uint32_t y,
                  const FixedMatrix& matrix, const Color& fill);

// Turns the part `part` of the source by 90 degrees.
void quarter_turn(const ConstImage& in, const Image& out, bool anticlockwise, const PixelBox& part);

#if defined(__x86_64__)
void affine_fixed_avx2(const ConstImage& in, const Image& out, FixedMatrix matrix, const Color& fill);
void bilinear_avx2(const ConstImage& in, const Image& out, const AffineMap& map, const Color& fill);
void bilinear_avx2(const ConstImage& in, const Image& out, const PerspectiveMap& map, const Color& fill);
void bicubic_avx2(const ConstImage& in, const Image& out, const AffineMap& map, const Color& fill);
void bicubic_avx2(const ConstImage& in, const Image& out, const PerspectiveMap& map, const Color& fill);
void flip_row_avx2(const std::uint8_t* in, std::uint8_t* out, int width);
void quarter_turn_avx2(const ConstImage& in, const Image& out, bool anticlockwise);
#endif

}  // namespace fastload
