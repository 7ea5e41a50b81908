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

}  // namespace fastload
