// Decodes whole baseline JPEG files and plain PNG files with the bits of libjpeg-turbo and libpng, and as OpenCV gives
// them: as they are and in silence, or not at all. Knows neither Python nor torch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/source.h"
#include "jpeg/header.h"
#include "jpeg/region_pixels.h"

namespace fastload {

// What OpenCV is asked for. `as_stored` is gray or BGR.
enum class WantedPixels : std::uint8_t { bgr, rgb, gray, as_stored };

struct WholeImage {
  JpegHeader header;  // of a PNG file only what all images have
  PixelBytes bytes = PixelBytes::bgr;

  std::size_t row_bytes() const { return std::size_t{header.width} * (bytes == PixelBytes::luma ? 1 : 3); }
};

// Reads the header. False if OpenCV has to read the file: one that the core does not take, of which OpenCV would warn
// or, if the image is to be `upright`, one that may say that it is turned. Throws std::bad_alloc.
bool scan_whole_image(ByteSource& source, WantedPixels wanted, bool upright, WholeImage& image);

// Decodes all rows, one behind the other. False if the file is not sound; `out` holds anything then. Throws
// std::bad_alloc.
bool decode_whole_image(ByteSource& source, const WholeImage& image, std::uint8_t* out);

}  // namespace fastload
