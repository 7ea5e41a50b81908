// Blocks of pixels, on which the kernels of all levels work.
#pragma once

#include <cstdint>

namespace fastload {

constexpr int kBlock = 32;  // pixels
constexpr int kBlockBytes = kBlock * 3;

struct Planes {
  alignas(32) std::uint8_t red[kBlock];
  alignas(32) std::uint8_t green[kBlock];
  alignas(32) std::uint8_t blue[kBlock];
};

// Image.blend of one value. Outside [0, 255], and for a factor of NaN, it clips as Pillow does; inside, that changes
// nothing. Nor do Pillow's shortcuts for factors of 0 and 1.
inline std::uint8_t blended(int from, int to, float factor) {
  float value = static_cast<float>(from) + factor * static_cast<float>(to - from);
  value = value > 0.0f ? value : 0.0f;
  value = value < 255.0f ? value : 255.0f;
  return static_cast<std::uint8_t>(static_cast<int>(value));
}

}  // namespace fastload
