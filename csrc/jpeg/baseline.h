// What a JPEG file defines before its data, as this core's own decoders need it. Knows neither Python nor torch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/source.h"
#include "jpeg/entropy/huffman.h"
#include "jpeg/entropy/scan.h"
#include "jpeg/header.h"

namespace fastload {

// A marker segment's payload, without marker and length.
struct Segment {
  const std::uint8_t* data = nullptr;
  std::size_t size = 0;
};

// Reads the marker at `at`, and its segment unless it is the end marker; moves `at` behind them. False if there is no
// such thing. The segment is valid until the source's next call.
bool next_segment(ByteSource& source, std::size_t& at, int& marker, Segment& segment);

inline constexpr int kEndMarker = 0xD9;
inline constexpr int kScanMarker = 0xDA;

// What the segments so far define. scan_header has checked the lengths of those before the first scan, but of these
// bytes only if the file has not changed.
struct Definitions {
  std::array<std::uint16_t, kBlockSize> quantization[4] = {};  // in natural order
  HuffmanCode dc[4], ac[4];
  std::uint32_t restart_interval = 0;
  bool jfif = false;
  bool other_colors = false;  // Adobe's marker names no YCbCr
  int components = 0;
  std::uint8_t id[kMaxComponents] = {}, factors[kMaxComponents] = {}, table[kMaxComponents] = {};

  // Adds a segment that is no scan's. False if it is damaged, or of a kind that the own decoders do not know.
  bool add(int marker, Segment segment, const JpegHeader& header);
  // The geometry of a scan of all components. False if they are not gray, or YCbCr with a sampling of 4:4:4, 4:2:2 or
  // 4:2:0, in libjpeg's eyes.
  bool geometry(const JpegHeader& header, Scan& scan) const;
  // A component's quantization. False if libjpeg takes a factor for negative.
  bool quantization_of(int component, std::array<std::uint16_t, kBlockSize>& factors_of_it) const;
};

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
