// Decodes a region of a baseline JPEG without libjpeg-turbo, with its pixels. Knows neither Python nor torch.
#pragma once

#include <cstdint>
#include <memory>

#include "index/jpeg_index.h"
#include "jpeg/baseline.h"
#include "jpeg/decoder.h"
#include "jpeg/region_pixels.h"

namespace fastload {

// Decodes one image at a time, as Decoder does. All methods return false if libjpeg-turbo has to decode the image: it
// is not supported, not sound, or its source gave no more bytes. Rows that were read until then are right. Not
// thread-safe. Never throws.
class RegionDecoder {
 public:
  RegionDecoder();
  ~RegionDecoder();
  RegionDecoder(const RegionDecoder&) = delete;
  RegionDecoder& operator=(const RegionDecoder&) = delete;

  // With an index, MCUs that were sound before are not decoded again, and finish() keeps those that were not known.
  // Rows and results are the same.
  bool start(ByteSource& source, const JpegHeader& header, const Region& region, RowLayout& layout,
             JpegIndex* index = nullptr, PixelBytes bytes = PixelBytes::rgb);
  // Bytes behind the header of a file that start() takes; 0 if it does not. Ends the image begun before.
  std::size_t scan_bytes(ByteSource& source, const JpegHeader& header);
  // All or none of the rows.
  bool read(std::uint8_t* const* rows, int count);
  bool finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fastload
