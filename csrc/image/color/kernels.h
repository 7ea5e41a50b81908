// Kernels behind color.h, one set per level of SIMD. All sets give the same bits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/planes.h"
#include "image/color/color.h"

namespace fastload {

// Image.blend of one value. Outside [0, 255], and for a factor of NaN, it clips as Pillow does; inside, that changes
// nothing. Nor do Pillow's shortcuts for factors of 0 and 1.
inline std::uint8_t blended(int from, int to, float factor) {
  float value = static_cast<float>(from) + factor * static_cast<float>(to - from);
  value = value > 0.0f ? value : 0.0f;
  value = value < 255.0f ? value : 255.0f;
  return static_cast<std::uint8_t>(static_cast<int>(value));
}

struct Bounds {
  std::array<std::uint8_t, 3> low{255, 255, 255};
  std::array<std::uint8_t, 3> high{};
};

struct ColorKernels {
  void (*apply_table)(const LevelTable& table, Image image);
  void (*blend_with_gray)(float factor, Image image);
  void (*blend_with_smooth)(float factor, Image image);
  void (*blend_into_smooth)(float share, Image image);  // share: of the smooth image
  void (*shift_hue)(std::uint8_t shift, Image image);
  void (*to_grayscale)(Image image);
  std::uint64_t (*sum_of_gray)(ConstImage image);
  void (*torch_blend_with_gray)(float factor, float share, Image image);  // share: of the gray
  void (*torch_to_grayscale)(Image image);
  void (*torch_grays)(ConstImage image, std::uint8_t* out);  // without gaps; `out` has kBlock bytes more
  float (*torch_sum)(const std::uint8_t* levels, std::size_t count);
  void (*torch_hue)(float shift, Image image);
  void (*permute)(const ChannelOrder& order, Image image);
  Bounds (*bounds)(ConstImage image);  // of each channel; `image` has at least one pixel
  void (*to_planes)(const std::uint8_t* pixels, std::size_t count, std::uint8_t* out);
  void (*from_planes)(const std::uint8_t* red, std::ptrdiff_t channel, std::size_t count, std::uint8_t* pixels);
};

extern const ColorKernels kPortableColor;
#if defined(__x86_64__)
extern const ColorKernels kAvx2Color;
extern const ColorKernels kAvx512Color;
#endif

}  // namespace fastload
