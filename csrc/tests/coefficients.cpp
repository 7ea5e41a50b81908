// Coefficients of random JPEG files, decoded by this core and by libjpeg-turbo: whole scans, and from recorded points.
//
//   coefficients [COUNT]
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <jpeglib.h>

#include "base/simd_level.h"
#include "jpeg/baseline.h"
#include "tests/random_file.h"

using namespace fastload;

namespace {

[[noreturn]] void fail(const char* what, int number) {
  std::printf("file %d: %s\n", number, what);
  std::exit(1);
}

// One row of MCUs of a window, by component and row of blocks.
struct Row {
  std::vector<std::int16_t> blocks[kMaxComponents][kMaxBlockRows];
  std::vector<std::uint8_t> last[kMaxComponents][kMaxBlockRows];

  BlockRows to(const Scan& scan, std::uint32_t mcus) {
    BlockRows rows;
    for (int c = 0; c < scan.components; ++c) {
      for (int y = 0; y < scan.component[c].rows; ++y) {
        const std::size_t count = mcus * static_cast<std::size_t>(scan.component[c].columns);
        blocks[c][y].assign(count * kBlockSize, -1);
        last[c][y].assign(count, 255);
        rows.component[c][y] = {blocks[c][y].data(), last[c][y].data()};
      }
    }
    return rows;
  }
};

struct Reference {
  jpeg_decompress_struct info;
  jpeg_error_mgr errors;
  jvirt_barray_ptr* arrays;

  explicit Reference(const std::vector<std::uint8_t>& file) {
    info.err = jpeg_std_error(&errors);
    jpeg_create_decompress(&info);
    jpeg_mem_src(&info, file.data(), file.size());
    jpeg_read_header(&info, TRUE);
    arrays = jpeg_read_coefficients(&info);
  }
  ~Reference() { jpeg_destroy_decompress(&info); }

  const JCOEF* block(int component, std::uint32_t y, std::uint32_t x) {
    JBLOCKARRAY rows =
        (*info.mem->access_virt_barray)(reinterpret_cast<j_common_ptr>(&info), arrays[component], y, 1, FALSE);
    return rows[0][x];
  }
};

void compare(Reference& reference, const Scan& scan, Row& row, std::uint32_t mcu_row, std::uint32_t first,
             std::uint32_t mcus, int number) {
  for (int c = 0; c < scan.components; ++c) {
    const auto columns = static_cast<std::uint32_t>(scan.component[c].columns);
    const auto rows = static_cast<std::uint32_t>(scan.component[c].rows);
    for (std::uint32_t y = 0; y < rows; ++y) {
      for (std::uint32_t x = 0; x < mcus * columns; ++x) {
        const JCOEF* expected = reference.block(c, mcu_row * rows + y, first * columns + x);
        if (std::memcmp(expected, &row.blocks[c][y][x * kBlockSize], kBlockSize * sizeof(JCOEF)) != 0) {
          fail("a block differs", number);
        }
        for (int k = row.last[c][y][x] + 1; k < kBlockSize; ++k) {
          if (expected[kNaturalOrder[k]] != 0) fail("a coefficient lies behind the last", number);
        }
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 2000;
  long points_used = 0;
  HuffmanTables tables;
  ScanDecoder decoder;
  for (int number = 0; number < count; ++number) {
    set_simd_level(number % 2 != 0 ? SimdLevel::portable : best_simd_level());
    const std::vector<std::uint8_t> file = random_file(number % 40 == 0 ? 600 : 70);
    ByteSource source(file.data(), file.size());
    JpegHeader header;
    if (scan_header(source, header) != Status::ok) fail("bad header", number);
    BaselineHeader baseline;
    if (!read_baseline(source, header, tables, baseline)) fail("not taken", number);
    const Scan& scan = baseline.scan;
    Reference reference(file);
    Row row;
    std::vector<ScanPoint> points;
    if (!decoder.start(source, scan)) fail("no start", number);
    for (std::uint32_t y = 0; y < scan.mcu_rows; ++y) {
      const auto first = static_cast<std::uint32_t>(between(0, static_cast<int>(scan.mcu_columns) - 1));
      const auto mcus = static_cast<std::uint32_t>(between(1, static_cast<int>(scan.mcu_columns - first)));
      points.emplace_back();
      if (!decoder.point(points.back()) || points.back().mcu != std::uint64_t{y} * scan.mcu_columns)
        fail("no point", number);
      if (!decoder.skip(first)) fail("no skip", number);
      points.emplace_back();
      if (!decoder.point(points.back())) fail("no point", number);
      if (!decoder.decode(mcus, row.to(scan, mcus))) fail("no decode", number);
      compare(reference, scan, row, y, first, mcus, number);
      if (!decoder.skip(scan.mcu_columns - first - mcus)) fail("no skip", number);
    }
    if (!decoder.finish()) fail("no end", number);
    for (const ScanPoint& point : points) {
      const auto y = static_cast<std::uint32_t>(point.mcu / scan.mcu_columns);
      const auto x = static_cast<std::uint32_t>(point.mcu % scan.mcu_columns);
      const std::uint32_t mcus = scan.mcu_columns - x;
      if (!decoder.start(source, scan, &point)) fail("no start from a point", number);
      if (!decoder.decode(mcus, row.to(scan, mcus))) fail("no decode from a point", number);
      compare(reference, scan, row, y, x, mcus, number);
      if (!decoder.finish()) fail("no end from a point", number);
      ++points_used;
    }
  }
  std::printf("%d files, %ld starts from a point\n", count, points_used);
  return 0;
}
