// Coefficients of random progressive JPEG files, decoded by this core and by libjpeg-turbo; of damaged ones, what the
// core takes is what libjpeg-turbo decodes without a warning.
//
//   progressive [COUNT]
#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include <jpeglib.h>
// jerror.h needs jpeglib.h before it.
#include <jerror.h>

#include "base/simd_level.h"
#include "jpeg/progressive/decoder.h"
#include "tests/random_file.h"

using namespace fastload;

namespace {

using Bytes = std::vector<std::uint8_t>;

[[noreturn]] void fail(const char* what, int number) {
  std::printf("file %d: %s\n", number, what);
  std::exit(1);
}

struct Reference {
  jpeg_decompress_struct info;
  jpeg_error_mgr errors;
  std::jmp_buf escape;
  jvirt_barray_ptr* arrays = nullptr;

  // Without arrays if libjpeg-turbo has anything to say against the file, or smooths its blocks.
  explicit Reference(const Bytes& file) {
    info.err = jpeg_std_error(&errors);
    errors.emit_message = [](j_common_ptr about, int level) {
      // These two do not affect the pixels.
      const int code = about->err->msg_code;
      if (level < 0 && code != JWRN_ADOBE_XFORM && code != JWRN_JFIF_MAJOR) ++about->err->num_warnings;
    };
    errors.error_exit = [](j_common_ptr about) {
      std::longjmp(static_cast<Reference*>(about->client_data)->escape, 1);
    };
    jpeg_create_decompress(&info);
    info.client_data = this;
    if (setjmp(escape) != 0) {
      arrays = nullptr;
      return;
    }
    jpeg_mem_src(&info, file.data(), file.size());
    jpeg_read_header(&info, TRUE);
    arrays = jpeg_read_coefficients(&info);
    if (errors.num_warnings > 0) arrays = nullptr;
    for (int c = 0; c < info.num_components; ++c) {
      for (int k = 0; k < kBlockSize; ++k) {
        if (info.coef_bits[c][k] != 0) arrays = nullptr;
      }
    }
  }
  ~Reference() { jpeg_destroy_decompress(&info); }

  const JCOEF* block(int component, std::uint32_t y, std::uint32_t x) {
    JBLOCKARRAY rows =
        (*info.mem->access_virt_barray)(reinterpret_cast<j_common_ptr>(&info), arrays[component], y, 1, FALSE);
    return rows[0][x];
  }
};

// The coefficients of a window's blocks of one component, in zigzag order.
std::vector<int> assembled(const ProgressiveDecoder& decoder, const McuWindow& window, int c, std::uint32_t columns) {
  const ProgressiveDecoder::Component& component = decoder.component(c);
  const Scan& scan = decoder.frame().scan;
  const std::uint32_t mcu_rows = window.last_row - window.first_row + 1;
  const auto down = static_cast<std::uint32_t>(scan.component[c].rows), rows = mcu_rows * down;
  const auto first_column = window.first_column * static_cast<std::uint32_t>(scan.component[c].columns);
  std::vector<int> all(std::size_t{rows} * columns * kBlockSize, 0);
  std::size_t begin = 0;
  for (const ProgressiveDecoder::Values& values : decoder.scans()) {
    for (std::uint32_t y = 0; y < mcu_rows * static_cast<std::uint32_t>(scan.component[values.component].rows); ++y) {
      const std::size_t end = decoder.row_ends()[values.ends + y];
      for (; begin < end; ++begin) {
        const std::uint32_t value = decoder.values()[begin];
        if (values.component != c) continue;
        all.at(std::size_t{y} * columns * kBlockSize + (value & 0xFFFF)) = static_cast<std::int16_t>(value >> 16);
      }
    }
  }
  for (std::uint32_t y = 0; y < rows; ++y) {
    for (std::uint32_t x = 0; x < columns; ++x) {
      int* const block = &all[(std::size_t{y} * columns + x) * kBlockSize];
      const std::size_t at = std::size_t{window.first_row * down + y} * component.stride + first_column + x;
      block[0] = component.dc[at];
      for (int k = 1; k < kBlockSize; ++k) {
        int added = 0;
        for (int i = 0; i < component.planes; ++i) {
          added |= static_cast<int>(component.plane[i][at] >> (63 - k) & 1) << i;
        }
        const bool is_new = block[k] == 0 && component.planes > 0;
        const bool is_negative = is_new ? (component.negative[at] >> (63 - k) & 1) != 0 : block[k] < 0;
        block[k] += is_negative ? -added : added;
      }
    }
  }
  return all;
}

// Whether the core takes the file; its coefficients must be libjpeg-turbo's.
bool check(const Bytes& file, int number) {
  static std::unique_ptr<ProgressiveDecoder> kept;
  if (number % 2 != 0 || kept == nullptr)
    kept = std::make_unique<ProgressiveDecoder>();  // with no more memory than needed
  ProgressiveDecoder& decoder = *kept;
  ByteSource source(file.data(), file.size());
  JpegHeader header;
  if (scan_header(source, header) != Status::ok || !decoder.start(source, header)) return false;
  const int height = static_cast<int>(header.height), width = static_cast<int>(header.width);
  const int top = between(0, height - 1), left = between(0, width - 1);
  const int bottom = between(top + 1, height), right = between(left + 1, std::min(width, left + 8000));
  const auto of = [](int number_of) { return static_cast<std::uint32_t>(number_of); };
  const McuWindow window =
      mcus_of(decoder.frame().scan, header.width, header.height, of(left), of(right - left), of(top), of(bottom));
  if (!decoder.decode(window)) return false;
  Reference reference(file);
  if (reference.arrays == nullptr) fail("is taken though libjpeg-turbo complains", number);
  for (int c = 0; c < header.components; ++c) {
    const ScanComponent& shape = decoder.frame().scan.component[c];
    const auto columns = window.columns * of(shape.columns), first_column = window.first_column * of(shape.columns);
    const auto first_row = window.first_row * of(shape.rows), end_row = (window.last_row + 1) * of(shape.rows);
    const std::vector<int> all = assembled(decoder, window, c, columns);
    for (std::uint32_t y = first_row; y < std::min(end_row, decoder.component(c).rows); ++y) {
      for (std::uint32_t x = 0; x < std::min(columns, decoder.component(c).columns - first_column); ++x) {
        const JCOEF* expected = reference.block(c, y, first_column + x);
        const int* const block = &all[(std::size_t{y - first_row} * columns + x) * kBlockSize];
        for (int k = 0; k < kBlockSize; ++k) {
          if (block[k] != expected[kNaturalOrder[k]]) fail("a coefficient differs", number);
        }
      }
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 500;
  constexpr int kMutants = 20;
  int taken = 0;
  for (int number = 0; number < count; ++number) {
    set_simd_level(number % 2 != 0 ? SimdLevel::portable : best_simd_level());
    const bool wide = number % 40 == 1;  // so that much may be read behind the data
    const Bytes file = wide ? random_file(30000, true, 16) : random_file(number % 40 == 0 ? 600 : 70, true);
    if (!check(file, number)) fail("not taken", number);
    for (int i = 0; i < kMutants; ++i) {
      Bytes changed = file;
      switch (between(0, 3)) {
        case 0: changed.resize(static_cast<std::size_t>(between(0, static_cast<int>(file.size())))); break;
        case 1: {
          const int begin = between(0, static_cast<int>(file.size()) - 1);
          const int end = between(0, 1) != 0 ? begin + 1 : between(begin + 1, static_cast<int>(file.size()));
          changed.erase(changed.begin() + begin, changed.begin() + end);
          break;
        }
        default:
          for (int bits = between(1, 3); bits > 0; --bits) {
            changed[static_cast<std::size_t>(between(0, static_cast<int>(file.size()) - 1))] ^=
                static_cast<std::uint8_t>(1 << between(0, 7));
          }
      }
      taken += check(changed, number) ? 1 : 0;
    }
  }
  std::printf("%d files; of %d damaged ones, %d are taken\n", count, count * kMutants, taken);
  return 0;
}
