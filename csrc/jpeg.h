// JPEG headers and pixels through libjpeg-turbo. Knows neither Python nor torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace fastload {

// Chroma subsampling as the field writes it; `other` is any sampling-factor combination without a name.
enum class Subsampling { gray, s444, s422, s420, s440, s411, s410, other };

const char* name_of(Subsampling subsampling);

struct JpegHeader {
  std::uint32_t width = 0;   // pixels
  std::uint32_t height = 0;  // pixels
  int components = 0;        // 1 gray, 3 YCbCr or RGB, 4 CMYK or YCCK
  Subsampling subsampling = Subsampling::other;
  bool progressive = false;
};

// Reads the header of the JPEG file in `data`, no pixels. On failure returns false and says why in `error`; `header` is
// then unspecified. Thread-safe; allocates only libjpeg's decompressor state, which it frees.
bool read_header(const std::uint8_t* data, std::size_t size, JpegHeader& header, std::string& error);

// "libjpeg-turbo 2.1.5 (API 62)": the library that this build was compiled against.
std::string libjpeg_version();

}  // namespace fastload
