#include "jpeg/region_decoder.h"

#include <algorithm>
#include <new>

#include "jpeg/region_pixels.h"

namespace fastload {

struct RegionDecoder::State {
  HuffmanTables tables;
  BaselineHeader baseline;
  ScanDecoder scan;
  RegionPixels pixels;
  std::uint32_t row;          // of pixels: the next one
  std::uint32_t next_row;     // of MCUs
  std::uint32_t checked_row;  // of MCUs: the last one that libjpeg decodes for the region

  bool start(ByteSource& source, const JpegHeader& header, const Region& region);
  bool decode_row();
};

bool RegionDecoder::State::start(ByteSource& source, const JpegHeader& header, const Region& region) {
  if (region.width == 0 || region.height == 0 || region.left > header.width || region.top > header.height ||
      region.width > header.width - region.left || region.height > header.height - region.top ||
      !read_baseline(source, header, tables, baseline) || !scan.start(source, baseline.scan)) {
    return false;
  }
  const std::uint32_t bottom = region.top + region.height;
  pixels.start(baseline, header.width, header.height, region.left, region.width, region.top, bottom);
  row = region.top;
  next_row = pixels.first_row();
  // With two rows of luma blocks in an MCU, libjpeg decodes the MCUs below before it puts out an MCU's last two rows.
  const auto down = static_cast<std::uint32_t>(baseline.scan.component[0].rows);
  checked_row = std::min(bottom - 1 + 2 * (down - 1), header.height - 1) / (8 * down);
  return scan.skip(std::uint64_t{next_row} * baseline.scan.mcu_columns);
}

bool RegionDecoder::State::decode_row() {
  const std::uint32_t before = pixels.first_column(), after = baseline.scan.mcu_columns - before - pixels.columns();
  return scan.skip(before) && scan.decode(pixels.columns(), pixels.blocks(next_row)) && scan.skip(after) &&
         pixels.add(next_row++);
}

RegionDecoder::RegionDecoder() : state_(new State) {}
RegionDecoder::~RegionDecoder() = default;

bool RegionDecoder::start(ByteSource& source, const JpegHeader& header, const Region& region, RowLayout& layout) try {
  if (!state_->start(source, header, region)) return false;
  layout = {region.left, region.width};
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

bool RegionDecoder::read(std::uint8_t* const* rows, int count) try {
  State& s = *state_;
  for (int i = 0; i < count; ++i, ++s.row) {
    while (s.next_row <= s.pixels.needed_row(s.row)) {
      if (!s.decode_row()) return false;
    }
    s.pixels.write(s.row, rows[i]);
  }
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

bool RegionDecoder::finish() try {
  State& s = *state_;
  return s.scan.skip(std::uint64_t{s.checked_row + 1 - s.next_row} * s.baseline.scan.mcu_columns) && s.scan.finish();
} catch (const std::bad_alloc&) {
  return false;
}

}  // namespace fastload
