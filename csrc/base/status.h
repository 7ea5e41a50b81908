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

inline const char* name_of(Status status) {
  switch (status) {
    case Status::ok: return "ok";
    case Status::not_jpeg: return "not_jpeg";
    case Status::cmyk: return "cmyk";
    case Status::twelve_bit: return "twelve_bit";
    case Status::arithmetic: return "arithmetic";
    case Status::lossless: return "lossless";
    case Status::bomb: return "bomb";
    case Status::truncated: return "truncated";
    case Status::corrupt: return "corrupt";
    case Status::unreadable: return "unreadable";
    case Status::unsupported: return "unsupported";
    case Status::bad_geometry: return "bad_geometry";
    case Status::cancelled: return "cancelled";
  }
  return "unknown";
}

}  // namespace fastload
