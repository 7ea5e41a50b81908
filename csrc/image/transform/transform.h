// Pillow's Image.transform, transpose and torchvision's pad on uint8 RGB images, bit for bit. Knows neither Python nor
// torch.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/image.h"

namespace fastload {

enum class Sampling { nearest, bilinear, bicubic };  // Pillow's filters for transforms

using Color = std::array<std::uint8_t, 3>;

// Image.transform(size of `out`, AFFINE, matrix, sampling, fillcolor=fill). `out` must not overlap `in`, which must not
// be empty. Any matrix is valid, also with infinities and NaN.
void transform_affine(ConstImage in, Image out, const std::array<double, 6>& matrix, Sampling sampling, Color fill);
// The same with PERSPECTIVE and eight coefficients.
void transform_perspective(ConstImage in, Image out, const std::array<double, 8>& coefficients, Sampling sampling,
                           Color fill);

// Where an image of height x width takes its pixels from in one of that size: numbers of these, row by row; -1:
// outside.
struct PixelPlaces {
  int height = 0, width = 0;
  std::vector<std::int32_t> numbers;
};

// Takes each pixel from its place, or `fill` outside. Both images must be of the places' size, and must not overlap.
void gather(ConstImage in, Image out, const PixelPlaces& places, Color fill);

enum class Transpose { flip_horizontal, flip_vertical, rotate_90, rotate_180, rotate_270 };  // Pillow's, anticlockwise

// Image.transpose. `out` must not overlap `in`.
void transpose(ConstImage in, Image out, Transpose how);

enum class PadMode { constant, edge, reflect, symmetric };  // torchvision's

// A part of torchvision's pad: `out` is what lies from `left` columns and `top` rows before `in` on, or behind its
// first ones if they are negative. reflect needs margins smaller than the side, symmetric at most as large.
void pad(ConstImage in, Image out, int left, int top, PadMode mode, Color fill);

// The matrix with which Image.rotate(angle, center=center), without expand, calls Image.transform. Pillow's center is
// (width / 2, height / 2) if the caller gives none. Multiples of 90 degrees without a center are transposes instead.
std::array<double, 6> rotation_matrix(double angle, std::array<double, 2> center);

// Python's angle % 360.0.
double modulo_360(double angle);

// _get_inverse_affine_matrix of torchvision.transforms.functional or, with other rounding, of
// torchvision.transforms.v2.functional._geometry. `angle` and `shear` in degrees; scale must not be 0.
std::array<double, 6> inverse_affine_matrix(std::array<double, 2> center, double angle, std::array<double, 2> translate,
                                            double scale, std::array<double, 2> shear, bool v2);

}  // namespace fastload
