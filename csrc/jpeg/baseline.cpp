#include "jpeg/baseline.h"

#include <algorithm>
#include <cstring>

namespace fastload {
namespace {

constexpr std::uint16_t kMaxFactor = 0x7FFF;  // larger ones are negative in libjpeg

std::uint32_t big_endian_16(const std::uint8_t* p) { return static_cast<std::uint32_t>(p[0] << 8 | p[1]); }

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
      segment.size != 6 + std::size_t{3} * segment.data[5] || header.components > kMaxComponents) {
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
  scan.restart_interval = found.restart_interval;
  if (!found.geometry(header, scan)) return false;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint8_t* const selector = segment.data + 1 + 2 * i;
    if (selector[0] != found.id[i] || selector[1] >> 4 > 3 || (selector[1] & 15) > 3) return false;
    ScanComponent& component = scan.component[i];
    component.dc = tables.dc(found.dc[selector[1] >> 4]);
    component.ac = tables.ac(found.ac[selector[1] & 15]);
    if (component.dc == nullptr || component.ac == nullptr) return false;
    if (!found.quantization_of(static_cast<int>(i), baseline.quantization[i])) return false;
  }
  return true;
}

}  // namespace

bool next_segment(ByteSource& source, std::size_t& at, int& marker, Segment& segment) {
  while (true) {
    const Span start = source.at(at, 4);
    if (start.size < 2 || start.data[0] != 0xFF) return false;
    marker = start.data[1];
    if (marker == 0xFF) {  // a fill byte
      ++at;
      continue;
    }
    segment = {};
    if (marker == kEndMarker) {
      at += 2;
      return true;
    }
    if (start.size < 4) return false;
    const std::size_t length = big_endian_16(start.data + 2);
    const Span span = source.at(at + 2, length);
    if (length < 2 || span.size < length) return false;
    segment = {span.data + 2, length - 2};
    at += 2 + length;
    return true;
  }
}

bool Definitions::add(int marker, Segment segment, const JpegHeader& header) {
  switch (marker) {
    case 0xC0:
    case 0xC1: return !header.progressive && read_frame(segment, header, *this);
    case 0xC2: return header.progressive && read_frame(segment, header, *this);
    case 0xC4: return read_huffman(segment, *this);
    case 0xDB: return read_quantization(segment, *this);
    case 0xDD:
      if (segment.size != 2) return false;
      restart_interval = big_endian_16(segment.data);
      return true;
    case 0xE0:
      if (segment.size >= 14 && std::memcmp(segment.data, "JFIF", 5) == 0) jfif = true;
      return true;
    case 0xEE:
      if (segment.size >= 12 && std::memcmp(segment.data, "Adobe", 5) == 0 && segment.data[11] != 1) {
        other_colors = true;
      }
      return true;
    default: return marker == 0xFE || (marker >= 0xE1 && marker <= 0xEF);
  }
}

bool Definitions::geometry(const JpegHeader& header, Scan& scan) const {
  if (components == 0 || !is_gray_or_ycc(*this)) return false;
  for (int i = 0; i < components; ++i) {
    scan.component[i].columns = factors[i] >> 4;
    scan.component[i].rows = factors[i] & 15;
    if (i > 0 && factors[i] != 0x11) return false;
  }
  if (factors[0] != 0x11 && (components == 1 || (factors[0] != 0x21 && factors[0] != 0x22))) return false;
  // libjpeg stretches a chroma of up to two columns by repetition.
  if (scan.component[0].columns == 2 && header.width < 5) return false;
  const auto per_mcu = [](std::uint32_t pixels, int blocks) {
    const std::uint32_t side = 8 * static_cast<std::uint32_t>(blocks);
    return (pixels + side - 1) / side;
  };
  scan.components = components;
  scan.mcu_columns = per_mcu(header.width, scan.component[0].columns);
  scan.mcu_rows = per_mcu(header.height, scan.component[0].rows);
  return true;
}

bool Definitions::quantization_of(int component, std::array<std::uint16_t, kBlockSize>& factors_of_it) const {
  factors_of_it = quantization[table[component]];
  return std::all_of(factors_of_it.begin(), factors_of_it.end(),
                     [](std::uint16_t factor) { return factor <= kMaxFactor; });
}

bool read_baseline(ByteSource& source, const JpegHeader& header, HuffmanTables& tables, BaselineHeader& baseline) {
  if (!header.tables_complete) return false;
  Definitions found;
  int marker;
  Segment segment;
  for (std::size_t at = 2; next_segment(source, at, marker, segment);) {
    if (marker == kScanMarker) {
      if (!read_scan(segment, found, header, tables, baseline)) return false;
      baseline.scan.data_at = at;
      return true;
    }
    if (!found.add(marker, segment, header)) return false;
  }
  return false;
}

}  // namespace fastload
