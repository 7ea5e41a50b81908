#include "jpeg/baseline.h"

#include "jpeg/definitions.h"

namespace fastload {
namespace {

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
