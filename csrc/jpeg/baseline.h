// The header of a baseline JPEG as this core's own decoder needs it. Knows neither Python nor torch.
#pragma once

#include <array>
#include <cstdint>

#include "base/source.h"
#include "jpeg/entropy/huffman.h"
#include "jpeg/entropy/scan.h"
#include "jpeg/header.h"

namespace fastload {

struct BaselineHeader {
  Scan scan;
  // Of each component, in natural order.
  std::array<std::uint16_t, kBlockSize> quantization[kMaxComponents];
};

// Whether this core decodes the file itself: 8 bits, Huffman coding, one scan of gray, or of YCbCr with a sampling of
// 4:4:4, 4:2:2 or 4:2:0. `header` is scan_header's result, which was `ok`. The tables stay valid until the next call.
// Throws std::bad_alloc.
bool read_baseline(ByteSource& source, const JpegHeader& header, HuffmanTables& tables, BaselineHeader& baseline);

}  // namespace fastload
