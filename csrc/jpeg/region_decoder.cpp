#include "jpeg/region_decoder.h"

#include <algorithm>
#include <new>

#include "/work/wt/tmp_scan/block_pixels_temp.h"

namespace fastload {

struct RegionDecoder::State {
  HuffmanTables tables;
  BaselineHeader baseline;
  ScanDecoder scan;
  TempPixels pixels;
  std::uint32_t width, height;        // of the image
  std::uint32_t row, bottom;          // next row, and where the region ends
  std::uint32_t first_row, last_row;  // of MCUs that the region's pixels depend on
  std::uint32_t first_column, columns;
  std::uint32_t checked_row;  // last row of MCUs that libjpeg decodes for the region
  std::uint32_t next_row;     // of MCUs
  RowLayout layout;

  bool start(ByteSource& source, const JpegHeader& header, const Region& region);
  bool decode_row();
  std::uint32_t rows_ready() const;
};

bool RegionDecoder::State::start(ByteSource& source, const JpegHeader& header, const Region& region) {
  if (region.width == 0 || region.height == 0 || region.left > header.width || region.top > header.height ||
      region.width > header.width - region.left || region.height > header.height - region.top ||
      !read_baseline(source, header, tables, baseline) || !scan.start(source, baseline.scan)) {
    return false;
  }
  const ScanComponent& luma = baseline.scan.component[0];
  if (luma.columns == 2 && header.width < 5) return false;  // libjpeg upsamples two columns of chroma by repetition
  width = header.width;
  height = header.height;
  row = region.top;
  bottom = region.top + region.height;
  // Upsampled pixels depend on their neighbours' chroma.
  const std::uint32_t mcu_width = 8u * luma.columns, mcu_height = 8u * luma.rows;
  const std::uint32_t beside = luma.columns - 1u, above = luma.rows - 1u;
  const std::uint32_t right = region.left + region.width - 1;
  first_column = (region.left - std::min(region.left, beside)) / mcu_width;
  columns = std::min(right + beside, width - 1) / mcu_width - first_column + 1;
  first_row = (row - std::min(row, above)) / mcu_height;
  last_row = std::min(bottom - 1 + above, height - 1) / mcu_height;
  // To put out the last two rows of an MCU with two rows of luma blocks, libjpeg decodes the next one first.
  checked_row = std::min(bottom - 1 + 2 * above, height - 1) / mcu_height;
  pixels.start(baseline, width, height, first_column, columns, first_row, last_row - first_row + 1);
  next_row = first_row;
  layout = {region.left, region.width};
  return scan.skip(std::uint64_t{first_row} * baseline.scan.mcu_columns);
}

bool RegionDecoder::State::decode_row() {
  BlockRows to = pixels.to();
  if (!scan.skip(first_column) || !scan.decode(columns, to) ||
      !scan.skip(baseline.scan.mcu_columns - first_column - columns)) {
    return false;
  }
  pixels.push(next_row++, to);
  return true;
}

RegionDecoder::RegionDecoder() : state_(new State) {}
RegionDecoder::~RegionDecoder() = default;

bool RegionDecoder::start(ByteSource& source, const JpegHeader& header, const Region& region, RowLayout& layout) try {
  if (!state_->start(source, header, region)) return false;
  layout = state_->layout;
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

bool RegionDecoder::read(std::uint8_t* const* rows, int count) try {
  State& s = *state_;
  for (int i = 0; i < count; ++i, ++s.row) {
    const std::uint32_t above = static_cast<std::uint32_t>(s.baseline.scan.component[0].rows) - 1;
    const std::uint32_t last = std::min(s.row + above, s.height - 1) / (8u * (above + 1));
    while (s.next_row <= last) {
      if (!s.decode_row()) return false;
    }
    s.pixels.read(s.row, s.layout.left, s.layout.width, rows[i]);
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
