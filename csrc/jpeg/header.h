// Parses a JPEG header without libjpeg, and predicts whether Pillow opens the file. Knows neither Python nor torch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/header.h"
#include "base/source.h"
#include "base/status.h"

namespace fastload {

// Chroma subsampling; `other` is any combination of sampling factors without a name.
enum class Subsampling : std::uint8_t { gray, s444, s422, s420, s440, s411, s410, other };

inline constexpr int subsampling_count = 8;

const char* name_of(Subsampling subsampling);

struct JpegHeader : ImageHeader {
  Subsampling subsampling = Subsampling::other;
  bool progressive = false;
  bool arithmetic = false;
  // One interleaved scan, preceded by all of its quantization and Huffman tables, so that no table left from an earlier
  // image can be used for this one.
  bool tables_complete = false;
};

// Walks the marker segments up to the first scan. `ok` means that every segment is well formed and neither Pillow's
// marker parser nor libjpeg would complain. Doubtful files get another status, so that the caller asks Pillow. `header`
// holds what was read before the walk ended (width 0: nothing). Reads no more of a large file than needed. Allocates
// nothing.
Status scan_header(ByteSource& source, JpegHeader& header);

// The end of a file's only scan, behind the end marker, bytes. 0 if decoding could fail: the file is not baseline with
// one scan, or has other markers in it than restarts. Otherwise libjpeg decodes the whole image, whatever the scan's
// bits are.
std::size_t end_of_scan(const std::uint8_t* data, std::size_t size, const JpegHeader& header);

}  // namespace fastload
