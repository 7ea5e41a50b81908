// What the header of an image's file says, whatever its format, and a part of such an image.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

enum class Format : std::uint8_t { jpeg, png, webp_lossy, webp_lossless };

inline constexpr int format_count = 4;

inline const char* name_of(Format format) {
  switch (format) {
    case Format::jpeg: return "JPEG";
    case Format::png: return "PNG";
    case Format::webp_lossy: return "WebP (lossy)";
    case Format::webp_lossless: break;
  }
  return "WebP (lossless)";
}

struct ImageHeader {
  Format format = Format::jpeg;
  std::uint32_t width = 0;   // pixels
  std::uint32_t height = 0;  // pixels
  int components = 0;        // 1 gray, 3 YCbCr or RGB, 4 CMYK or YCCK
  std::size_t scan_at = 0;   // where the first scan's data begins, bytes; 0: not found
};

struct Region {
  std::uint32_t top = 0;
  std::uint32_t left = 0;
  std::uint32_t height = 0;
  std::uint32_t width = 0;
};

}  // namespace fastload
