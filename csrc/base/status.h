// The result of one image. The names are stable: they are part of the Python interface.
#pragma once

#include <cstdint>

namespace fastload {

enum class Status : std::uint8_t {
  ok = 0,        // the pixels are Pillow's
  not_jpeg,      // does not start with FF D8 FF; may be another format that Pillow reads
  cmyk,          // four components: CMYK or YCCK
  twelve_bit,    // samples of 12 bits
  arithmetic,    // arithmetic coding, which this libjpeg-turbo was built without
  lossless,      // lossless JPEG
  bomb,          // more pixels than the caller's limit
  truncated,     // the file ends before the image or its end marker
  corrupt,       // damaged; Pillow may decode it, or raise
  unreadable,    // the file cannot be read; errno says why
  unsupported,   // valid, but this core cannot decode it with Pillow's exact bits
  bad_geometry,  // the crop, window or output does not fit the image
  cancelled,     // the pool was closed before this image's turn
};

inline constexpr int status_count = 13;

const char* name_of(Status status);

}  // namespace fastload
