// What a JPEG file says of itself, read without libjpeg, and whether Pillow would open it. Neither Python nor torch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "jpeg/file.h"
#include "jpeg/status.h"

namespace fastload {

// Chroma subsampling as the field writes it; `other` is any sampling-factor combination without a name.
enum class Subsampling : std::uint8_t { gray, s444, s422, s420, s440, s411, s410, other };

inline constexpr int subsampling_count = 8;

const char* name_of(Subsampling subsampling);

struct JpegHeader {
  std::uint32_t width = 0;   // pixels
  std::uint32_t height = 0;  // pixels
  int components = 0;        // 1 gray, 3 YCbCr or RGB, 4 CMYK or YCCK
  Subsampling subsampling = Subsampling::other;
  bool progressive = false;
  bool arithmetic = false;
  // One interleaved scan whose quantization and Huffman tables all stand before it, so that no table of an image
  // decoded earlier can be taken for one of this image's.
  bool tables_complete = false;
};

// Walks the marker segments up to the first scan. `ok` means: every segment is well formed, and neither Pillow's
// marker parser nor libjpeg would complain. Whatever leaves a doubt gets a status, so that the caller asks Pillow.
// `header` holds what was read before the walk ended (width 0: nothing). Of a large file no more is read than the walk
// needs. Allocates nothing.
Status scan_header(ByteSource& source, JpegHeader& header);

}  // namespace fastload
