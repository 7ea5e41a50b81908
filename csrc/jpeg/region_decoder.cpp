#include "jpeg/region_decoder.h"

#include <algorithm>
#include <new>

#include "jpeg/entropy/scan_points.h"

namespace fastload {

struct RegionDecoder::State {
  HuffmanTables tables;
  BaselineHeader baseline;
  ScanDecoder scan;
  RegionPixels pixels;
  std::uint32_t row;          // of pixels: the next one
  std::uint32_t next_row;     // of MCUs
  std::uint32_t checked_row;  // of MCUs: the last one to look at
  ByteSource* source;
  JpegIndex* index;  // null: decode without
  JpegIndex::Key key;
  JpegIndex::Points points;
  CodedPoints known;  // reads `points`
  PointRecorder recorder;

  bool start(ByteSource& from, const JpegHeader& header, const Region& region, JpegIndex* points_of, PixelBytes bytes);
  bool start_scan(std::uint64_t mcu);
  bool decode_row();
  bool finish();
  void keep_points();
  std::uint64_t first_mcu(std::uint32_t mcu_row) const { return std::uint64_t{mcu_row} * baseline.scan.mcu_columns; }
};

bool RegionDecoder::State::start(ByteSource& from, const JpegHeader& header, const Region& region, JpegIndex* points_of,
                                 PixelBytes bytes) {
  source = &from;
  index = points_of;
  if (region.width == 0 || region.height == 0 || region.left > header.width || region.top > header.height ||
      region.width > header.width - region.left || region.height > header.height - region.top ||
      !read_baseline(from, header, tables, baseline)) {
    return false;
  }
  pixels.start(baseline, header.width, header.height, region.left, region.width, region.top, region.top + region.height,
               bytes);
  row = region.top;
  next_row = pixels.mcus().first_row;
  // An index for kernels on a GPU names points in all rows.
  checked_row = index != nullptr && index->whole() ? baseline.scan.mcu_rows - 1 : pixels.mcus().checked_row;
  return start_scan(first_mcu(next_row) + pixels.mcus().first_column);
}

bool RegionDecoder::State::start_scan(std::uint64_t mcu) {
  known = CodedPoints();
  points.reset();
  if (index != nullptr && (!PointRecorder::takes(baseline.scan) || !index->key_of(*source, key))) index = nullptr;
  if (index == nullptr) return scan.start(*source, baseline.scan) && scan.skip_to(mcu);
  points = index->find(key);
  if (points != nullptr) known.open(points->data(), points->size(), baseline.scan);
  recorder.begin(baseline.scan, known);
  return scan.start(*source, baseline.scan, mcu, known, recorder);
}

bool RegionDecoder::State::decode_row() {
  return scan.skip_to(first_mcu(next_row) + pixels.mcus().first_column) &&
         scan.decode(pixels.mcus().columns, pixels.blocks(next_row)) && pixels.add(next_row++);
}

// Of rows with points, the rest was sound when it was first decoded: all that scan.finish() could see behind the last
// of them, or the scan's end if they are all rows.
bool RegionDecoder::State::finish() {
  if (checked_row < known.rows()) return true;
  if (!scan.skip_to(first_mcu(checked_row + 1))) return false;
  const bool at_end = checked_row + 1 == baseline.scan.mcu_rows;
  if ((at_end || known.rows() == 0) && !scan.finish()) return false;
  if (index != nullptr) keep_points();
  return true;
}

// Unless the bytes have changed since the start.
void RegionDecoder::State::keep_points() try {
  JpegIndex::Key now;
  if (index->key_of(*source, now) && now == key) index->keep(key, recorder.encode(checked_row + 1));
} catch (const std::bad_alloc&) {
}

RegionDecoder::RegionDecoder() : state_(new State) {}
RegionDecoder::~RegionDecoder() = default;

bool RegionDecoder::start(ByteSource& source, const JpegHeader& header, const Region& region, RowLayout& layout,
                          JpegIndex* index, PixelBytes bytes) try {
  if (!state_->start(source, header, region, index, bytes)) return false;
  layout = {region.left, region.width};
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

std::size_t RegionDecoder::scan_bytes(ByteSource& source, const JpegHeader& header) try {
  if (!read_baseline(source, header, state_->tables, state_->baseline)) return 0;
  return source.size() - std::min(state_->baseline.scan.data_at, source.size());
} catch (const std::bad_alloc&) {
  return 0;
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

bool RegionDecoder::finish() try { return state_->finish(); } catch (const std::bad_alloc&) {
  return false;
}

}  // namespace fastload
