#include "jpeg/progressive/decoder.h"

#include <algorithm>
#include <cstring>

#include "jpeg/entropy/unstuff.h"

namespace fastload {
namespace {

// Larger images are rare, and take much memory.
constexpr std::uint64_t kMostPixels = std::uint64_t{1} << 26;
constexpr std::size_t kKeptBytes = std::size_t{4} << 20;  // of each part, between images
constexpr std::size_t kZeros = kProgressiveSlack + 16;    // behind the data
static_assert(kZeros >= kUnstuffSlack);
constexpr int kFirstRestart = 0xD0;

std::uint32_t blocks_of(std::uint32_t pixels, int own, int most) {
  const auto side = 8 * static_cast<std::uint32_t>(most);
  return (pixels * static_cast<std::uint32_t>(own) + side - 1) / side;
}

// Values have 16 bits for their place in a row of blocks.
constexpr std::uint32_t kMostColumns = (1 << 16) / kBlockSize;

// Frees memory for a rare large image, if this one's part is much smaller.
template <typename T>
void trim(std::vector<T>& part, std::size_t size) {
  if (part.capacity() * sizeof(T) > kKeptBytes && size < part.capacity() / 4) std::vector<T>().swap(part);
}

const std::uint8_t* position(const BitState& state) { return state.next - (state.count + 7) / 8; }

}  // namespace

bool ProgressiveDecoder::start(ByteSource& source, const JpegHeader& header) {
  if (!header.progressive || std::uint64_t{header.width} * header.height > kMostPixels) {
    return false;
  }
  source_ = &source;
  header_ = header;
  found_ = Definitions();
  frame_ = BaselineHeader();
  kernels_ = &progressive_kernels();
  int marker;
  Segment segment;
  for (at_ = 2; next_segment(source, at_, marker, segment) && marker != kEndMarker;) {
    if (marker == kScanMarker) {
      at_ -= segment.size + 4;  // it is read again
      if (!found_.geometry(header, frame_.scan)) return false;
      for (int i = 0; i < found_.components; ++i) {
        // Without a table libjpeg fails.
        if (!found_.quantization_of(i, frame_.quantization[i]) || frame_.quantization[i][0] == 0) return false;
      }
      return true;
    }
    if (!found_.add(marker, segment, header)) return false;
  }
  return false;
}

bool ProgressiveDecoder::decode(const McuWindow& window) {
  window_ = window;
  const Scan& geometry = frame_.scan;
  if (window.columns * static_cast<std::uint32_t>(geometry.component[0].columns) > kMostColumns) return false;
  for (int i = 0; i < geometry.components; ++i) {
    Component& component = component_[i];
    const ScanComponent &own = geometry.component[i], &most = geometry.component[0];
    component.columns = blocks_of(header_.width, own.columns, most.columns);
    component.rows = blocks_of(header_.height, own.rows, most.rows);
    component.stride = geometry.mcu_columns * static_cast<std::uint32_t>(own.columns);
    const std::size_t blocks = std::size_t{component.stride} * geometry.mcu_rows * static_cast<std::size_t>(own.rows);
    trim(component.dc, blocks);
    trim(component.known, blocks);
    trim(component.negative, blocks);
    for (auto& plane : component.plane) trim(plane, blocks);
    component.dc.assign(blocks, 0);
    component.known.assign(blocks, 0);
    component.planes = 0;
    component.low.fill(kNothing);
  }
  scans_.clear();
  row_ends_.clear();
  value_count_ = 0;
  trim(data_, source_->size());
  trim(values_, source_->size());  // most coefficients take a byte
  int marker;
  Segment segment;
  for (int scans = 0; next_segment(*source_, at_, marker, segment);) {
    if (marker == kEndMarker) {
      return std::all_of(component_, component_ + geometry.components, [](const Component& component) {
        return std::all_of(component.low.begin(), component.low.end(), [](std::int8_t low) { return low == 0; });
      });
    }
    if (marker == kScanMarker) {
      ScanHeader scan;
      if (++scans > kMostScans || !read_scan(segment, scan) || !decode_scan(scan)) return false;
    } else if ((marker != 0xC4 && marker != 0xDD) || !found_.add(marker, segment, header_)) {
      return false;
    }
  }
  return false;
}

// Reads a scan's header and notes what it adds, which must be the next bit of each coefficient.
bool ProgressiveDecoder::read_scan(Segment segment, ScanHeader& scan) {
  if (segment.size < 6) return false;
  scan.components = segment.data[0];
  if (scan.components != 1 && scan.components != found_.components) return false;
  if (segment.size != 4 + 2 * static_cast<std::size_t>(scan.components)) return false;
  const std::uint8_t* const ids = segment.data + 1;
  const std::uint8_t* const last = ids + 2 * scan.components;
  scan.component = static_cast<int>(std::find(found_.id, found_.id + found_.components, ids[0]) - found_.id);
  if (scan.component == found_.components) return false;
  scan.selectors = ids + 1;
  scan.first = last[0];
  scan.last = last[1];
  scan.high = last[2] >> 4;
  scan.low = last[2] & 15;
  const bool is_dc = scan.first == 0;
  if (scan.last > kBlockSize - 1 || scan.last < scan.first || (is_dc ? scan.last != 0 : scan.components != 1) ||
      scan.low > (is_dc ? 13 : kMostPlanes)) {
    return false;
  }
  for (int i = 0; i < scan.components; ++i) {
    if (scan.components > 1 && ids[2 * i] != found_.id[i]) return false;
    Component& component = component_[scan.components > 1 ? i : scan.component];
    if (!is_dc && component.low[0] == kNothing) return false;
    for (unsigned k = scan.first; k <= scan.last; ++k) {
      std::int8_t& low = component.low[k];
      if (scan.high == 0 ? low != kNothing : (low != scan.high || scan.low != scan.high - 1)) return false;
      low = static_cast<std::int8_t>(scan.low);
    }
    const int selector = scan.selectors[2 * i];
    if (selector >> 4 > 3 || (selector & 15) > 3) return false;
    if (is_dc && scan.high == 0 && !dc_[i].build(found_.dc[selector >> 4], SymbolKind::dc)) return false;
    if (!is_dc && !ac_.build(found_.ac[selector & 15], SymbolKind::progressive_ac)) return false;
  }
  return true;
}

bool ProgressiveDecoder::decode_scan(const ScanHeader& scan) {
  return scan.first == 0 ? decode_dc(scan) : decode_ac(scan);
}

// Makes the data up to the next marker ready.
bool ProgressiveDecoder::load(BitState& state, const std::uint8_t*& limit) {
  end_ = data_.data();
  while (true) {
    const Span span = source_->at(at_, 2);
    if (span.size < 2) return false;
    const auto used = static_cast<std::size_t>(end_ - data_.data());
    if (data_.size() - used < span.size + kZeros) {
      data_.resize(std::max(2 * data_.size(), used + span.size + kZeros));
      end_ = data_.data() + used;
    }
    const std::uint8_t* from = span.data;
    const std::uint8_t* const end = span.data + span.size;
    unstuff(from, end, end, end_, end_ + span.size);
    at_ += static_cast<std::size_t>(from - span.data);
    if (end - from >= 2) break;
    if (from == span.data) return false;
  }
  std::memset(end_, 0, kZeros);
  state.bits = state.count = 0;
  state.next = data_.data();
  limit = end_ + 8;
  return true;
}

bool ProgressiveDecoder::ends_here(const BitState& state) const {
  return position(state) + (state.count % 8 != 0 ? 1 : 0) == end_;
}

// Decodes rows of MCUs, interval by interval. `part(run, row, column, count)` decodes some of a row.
template <typename Run, typename Part>
bool ProgressiveDecoder::decode_rows(Run& run, std::uint32_t columns, std::uint32_t rows, Part part) {
  const std::uint32_t interval = found_.restart_interval;
  std::uint32_t left = interval;
  unsigned restarts = 0;
  if (!load(run, run.limit)) return false;
  for (std::uint32_t row = 0; row < rows; ++row) {
    if (source_->stopped()) return false;
    for (std::uint32_t column = 0; column < columns;) {
      if (interval != 0 && left == 0) {
        const Span marker = source_->at(at_, 2);
        if (!ends_here(run) || marker.size < 2 || marker.data[1] != kFirstRestart + restarts % 8) return false;
        ++restarts;
        at_ += 2;
        left = interval;
        if (!load(run, run.limit) || !run.restart()) return false;
      }
      const std::uint32_t count = interval == 0 ? columns : std::min(left, columns - column);
      if (!part(run, row, column, count) || position(run) > end_) return false;
      column += count;
      left -= count;
    }
  }
  return ends_here(run) && run.restart();
}

bool ProgressiveDecoder::decode_dc(const ScanHeader& scan) {
  const bool is_first = scan.high == 0;
  DcRun run;
  run.low = scan.low;
  const Scan& geometry = frame_.scan;
  const bool is_single = scan.components == 1;
  const Component& only = component_[scan.component];
  const std::uint32_t columns = is_single ? only.columns : geometry.mcu_columns;
  const std::uint32_t rows = is_single ? only.rows : geometry.mcu_rows;
  return decode_rows(
      run, columns, rows, [&](DcRun& part, std::uint32_t row, std::uint32_t column, std::uint32_t count) {
        part.mcus = count;
        part.blocks = 0;
        for (int i = 0; i < scan.components; ++i) {
          Component& component = component_[is_single ? scan.component : i];
          const int across = is_single ? 1 : geometry.component[i].columns,
                    down = is_single ? 1 : geometry.component[i].rows;
          for (int y = 0; y < down; ++y) {
            const std::size_t block_row = std::size_t{row} * static_cast<unsigned>(down) + static_cast<unsigned>(y);
            for (int x = 0; x < across; ++x) {
              const std::size_t block = block_row * component.stride +
                                        std::size_t{column} * static_cast<unsigned>(across) + static_cast<unsigned>(x);
              part.block[part.blocks++] = {i, &dc_[i], component.dc.data() + block, across};
            }
          }
        }
        return is_first ? kernels_->first_dc(part) : kernels_->refine_dc(part);
      });
}

bool ProgressiveDecoder::decode_ac(const ScanHeader& scan) {
  const bool is_first = scan.high == 0;
  const ScanComponent& shape = frame_.scan.component[scan.component];
  Component& component = component_[scan.component];
  const auto across = static_cast<std::uint32_t>(shape.columns), down = static_cast<std::uint32_t>(shape.rows);
  const std::uint32_t first_row = window_.first_row * down, end_row = (window_.last_row + 1) * down;
  for (; component.planes < scan.low; ++component.planes) {
    component.plane[component.planes].assign(component.known.size(), 0);
    if (component.planes == 0) component.negative.assign(component.known.size(), 0);
  }
  AcRun run;
  run.table = &ac_;
  run.first = scan.first;
  run.last = scan.last;
  run.low = scan.low;
  if (is_first) {
    scans_.push_back({scan.component, row_ends_.size()});
    row_ends_.resize(row_ends_.size() + (end_row - first_row));
  }
  const auto part_of = [&](AcRun& part, std::uint32_t row, std::uint32_t column, std::uint32_t count) {
    const std::size_t block = std::size_t{row} * component.stride + column;
    part.blocks = count;
    part.known = component.known.data() + block;
    if (!is_first) {
      part.plane = component.plane[scan.low].data() + block;
      part.negative = component.negative.data() + block;
      return kernels_->refine_ac(part);
    }
    const std::size_t most = value_count_ + std::size_t{count} * kBlockSize;
    if (values_.size() < most) values_.resize(2 * most);
    const bool inside = row >= first_row && row < end_row;
    part.values = values_.data() + value_count_;
    part.column = column - window_.first_column * across;
    part.columns = inside ? window_.columns * across : 0;
    if (!kernels_->first_ac(part)) return false;
    value_count_ = static_cast<std::size_t>(part.values - values_.data());
    if (inside) row_ends_[scans_.back().ends + (row - first_row)] = static_cast<std::uint32_t>(value_count_);
    return true;
  };
  if (!decode_rows(run, component.columns, component.rows, part_of)) return false;
  if (is_first && end_row > component.rows) {  // rows that only fill up an MCU
    std::fill(row_ends_.end() - (end_row - component.rows), row_ends_.end(), static_cast<std::uint32_t>(value_count_));
  }
  return true;
}

}  // namespace fastload
