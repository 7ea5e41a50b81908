#include "jpeg/baseline.h"

#include <cstring>
#include <utility>

namespace fastload {
namespace {

constexpr std::uint16_t kMaxFactor = 0x7FFF;  // larger ones are negative in libjpeg

std::uint32_t big_endian_16(const std::uint8_t* p) { return static_cast<std::uint32_t>(p[0] << 8 | p[1]); }

// What the segments before the scan define. scan_header has checked their lengths, but of these bytes only if the file
// has not changed.
struct Definitions {
  std::array<std::uint16_t, kBlockSize> quantization[4] = {};
  HuffmanCode dc[4], ac[4];
  std::uint32_t restart_interval = 0;
  bool jfif = false;
  bool other_colors = false;  // Adobe's marker names no YCbCr
  int components = 0;
  std::uint8_t id[kMaxComponents] = {}, factors[kMaxComponents] = {}, table[kMaxComponents] = {};
};

struct Segment {
  const std::uint8_t* data;
  std::size_t size;
};

bool read_quantization(Segment segment, Definitions& found) {
  while (segment.size > 0) {
    const bool wide = segment.data[0] >> 4 != 0;
    const std::size_t used = wide ? 129 : 65;
    if (used > segment.size || (segment.data[0] & 15) > 3) return false;
    auto& table = found.quantization[segment.data[0] & 3];
    for (std::size_t i = 0; i < kBlockSize; ++i) {
      table[kNaturalOrder[i]] =
          static_cast<std::uint16_t>(wide ? big_endian_16(segment.data + 1 + 2 * i) : segment.data[1 + i]);
    }
    segment = {segment.data + used, segment.size - used};
  }
  return true;
}

bool read_huffman(Segment segment, Definitions& found) {
  while (segment.size >= 17) {
    const int kind = segment.data[0] >> 4, slot = segment.data[0] & 15;
    if (kind > 1 || slot > 3) return false;
    HuffmanCode& code = (kind != 0 ? found.ac : found.dc)[slot];
    code = HuffmanCode{};
    std::size_t symbols = 0;
    for (std::size_t i = 0; i < 16; ++i) symbols += code.counts[i] = segment.data[1 + i];
    if (symbols > code.symbols.size() || symbols > segment.size - 17) return false;
    std::memcpy(code.symbols.data(), segment.data + 17, symbols);
    segment = {segment.data + 17 + symbols, segment.size - 17 - symbols};
  }
  return segment.size == 0;
}

bool read_frame(Segment segment, const JpegHeader& header, Definitions& found) {
  if (segment.size < 6 || segment.data[0] != 8 || big_endian_16(segment.data + 1) != header.height ||
      big_endian_16(segment.data + 3) != header.width || segment.data[5] != header.components ||
      segment.size != 6 + std::size_t{3} * segment.data[5]) {
    return false;
  }
  found.components = header.components;
  for (int i = 0; i < found.components; ++i) {
    const std::uint8_t* const component = segment.data + 6 + 3 * i;
    found.id[i] = component[0];
    found.factors[i] = component[1];
    found.table[i] = component[2];
    if (found.table[i] > 3) return false;
  }
  return true;
}

// Whether libjpeg takes the components for gray or YCbCr.
bool is_gray_or_ycc(const Definitions& found) {
  if (found.components == 1) return true;
  const bool rgb_ids = found.id[0] == 'R' && found.id[1] == 'G' && found.id[2] == 'B';
  return !found.other_colors && (found.jfif || !rgb_ids);
}

bool read_scan(Segment segment, const Definitions& found, const JpegHeader& header, HuffmanTables& tables,
               BaselineHeader& baseline) {
  const std::size_t count = static_cast<std::size_t>(found.components);
  if (count == 0 || segment.size != 4 + 2 * count || segment.data[0] != count) return false;
  const std::uint8_t* const spectral = segment.data + 1 + 2 * count;
  if (spectral[0] != 0 || spectral[1] != 63 || spectral[2] != 0) return false;
  Scan& scan = baseline.scan;
  scan = Scan{};
  scan.components = found.components;
  scan.restart_interval = found.restart_interval;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint8_t* const selector = segment.data + 1 + 2 * i;
    if (selector[0] != found.id[i] || selector[1] >> 4 > 3 || (selector[1] & 15) > 3) return false;
    ScanComponent& component = scan.component[i];
    component.columns = found.factors[i] >> 4;
    component.rows = found.factors[i] & 15;
    component.dc = tables.dc(found.dc[selector[1] >> 4]);
    component.ac = tables.ac(found.ac[selector[1] & 15]);
    if (component.dc == nullptr || component.ac == nullptr) return false;
    baseline.quantization[i] = found.quantization[found.table[i]];
    for (const std::uint16_t factor : baseline.quantization[i]) {
      if (factor > kMaxFactor) return false;
    }
    if (i > 0 && found.factors[i] != 0x11) return false;
  }
  const int factors = found.factors[0];
  if (factors != 0x11 && (count == 1 || (factors != 0x21 && factors != 0x22))) return false;
  const auto per_mcu = [](std::uint32_t pixels, int blocks) {
    const std::uint32_t side = 8 * static_cast<std::uint32_t>(blocks);
    return (pixels + side - 1) / side;
  };
  // libjpeg stretches a chroma of up to two columns by repetition.
  if (scan.component[0].columns == 2 && header.width < 5) return false;
  scan.mcu_columns = per_mcu(header.width, scan.component[0].columns);
  scan.mcu_rows = per_mcu(header.height, scan.component[0].rows);
  return true;
}

}  // namespace

bool read_baseline(ByteSource& source, const JpegHeader& header, HuffmanTables& tables, BaselineHeader& baseline) {
  if (!header.tables_complete) return false;
  Definitions found;
  for (std::size_t at = 2;;) {
    const Span start = source.at(at, 4);
    if (start.size < 4 || start.data[0] != 0xFF) return false;
    const int marker = start.data[1];
    if (marker == 0xFF) {  // a fill byte
      ++at;
      continue;
    }
    const std::size_t length = big_endian_16(start.data + 2);
    const Span span = source.at(at + 2, length);
    if (length < 2 || span.size < length) return false;
    const Segment segment{span.data + 2, length - 2};
    at += 2 + length;
    switch (marker) {
      case 0xC0:
      case 0xC1:
        if (!read_frame(segment, header, found)) return false;
        break;
      case 0xC4:
        if (!read_huffman(segment, found)) return false;
        break;
      case 0xDA:
        if (!is_gray_or_ycc(found) || !read_scan(segment, found, header, tables, baseline)) return false;
        baseline.scan.data_at = at;
        return true;
      case 0xDB:
        if (!read_quantization(segment, found)) return false;
        break;
      case 0xDD:
        if (segment.size != 2) return false;
        found.restart_interval = big_endian_16(segment.data);
        break;
      case 0xE0:
        if (segment.size >= 14 && std::memcmp(segment.data, "JFIF", 5) == 0) found.jfif = true;
        break;
      case 0xEE:
        if (segment.size >= 12 && std::memcmp(segment.data, "Adobe", 5) == 0 && segment.data[11] != 1) {
          found.other_colors = true;
        }
        break;
      default:
        if (marker != 0xFE && (marker < 0xE1 || marker > 0xEF)) return false;
    }
  }
}

}  // namespace fastload
