// What both fuzz targets check.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "base/source.h"
#include "sample/whole_image.h"

namespace fastload {

constexpr std::uint8_t kGuard = 0xA5;
constexpr std::size_t kGuardBytes = 64;

inline void demand(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

// Of bytes with guards before and behind them.
inline void check_guards(const std::vector<std::uint8_t>& guarded) {
  for (std::size_t i = 0; i < kGuardBytes; ++i) {
    demand(guarded[i] == kGuard && guarded[guarded.size() - 1 - i] == kGuard, "wrote outside of the output");
  }
}

// Decodes the file as OpenCV is asked to, in a way that its size chooses: what is taken is sound, with these pixels.
// `rgb` is null if the file is not sound.
inline void check_whole_image(const std::uint8_t* data, std::size_t size, const std::uint8_t* rgb) {
  ByteSource source(data, size);
  WholeImage image;
  if (!scan_whole_image(source, static_cast<WantedPixels>(size % 4), size % 8 < 4, image)) return;
  const std::size_t pixels = std::size_t{image.header.width} * image.header.height;
  std::vector<std::uint8_t> out(image.row_bytes() * image.header.height + 2 * kGuardBytes, kGuard);
  const bool is_sound = decode_whole_image(source, image, out.data() + kGuardBytes);
  check_guards(out);
  demand(!is_sound || rgb != nullptr, "what OpenCV's functions are given is sound");
  if (image.header.format == Format::png) demand(is_sound == (rgb != nullptr), "a plain file decodes as any other");
  const std::uint8_t* const made = out.data() + kGuardBytes;
  const bool is_luma = image.bytes == PixelBytes::luma, is_bgr = image.bytes == PixelBytes::bgr;
  if (!is_sound || (is_luma && image.header.components != 1)) return;  // colours do not tell the luma
  for (std::size_t i = 0; i < 3 * pixels; ++i) {
    demand(made[is_luma ? i / 3 : is_bgr ? i / 3 * 3 + 2 - i % 3 : i] == rgb[i], "OpenCV's pixels are the same");
  }
}

}  // namespace fastload
