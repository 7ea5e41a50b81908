// Pixels of regions of random coefficients, many of them absurd: the same at every level of SIMD that this machine has,
// and libjpeg-turbo's where its headers are. A separate program, so that it also runs under emulation: for NEON (the
// first two lines are one command),
//   aarch64-linux-gnu-g++ -std=c++17 -O2 -ffp-contract=off -static -Icsrc csrc/base/simd_level.cpp csrc/resample/*.cpp
//     csrc/jpeg/entropy/huffman.cpp csrc/jpeg/pixels/*.cpp csrc/jpeg/region_pixels.cpp csrc/tests/pixels.cpp -o pixels
//   qemu-aarch64 ./pixels 300
// JSIMD_FORCENONE=1 and JSIMD_FORCESSE2=1 in the environment choose libjpeg-turbo's instructions.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#if __has_include(<jpeglib.h>) && __has_include(<jconfig.h>)
#define HAVE_LIBJPEG
#include <jpeglib.h>
#endif

#include "base/simd_level.h"
#include "jpeg/region_pixels.h"

using namespace fastload;

namespace {

std::mt19937 generator(1);

int between(int low, int high) { return low + static_cast<int>(generator() % static_cast<unsigned>(high - low + 1)); }

struct Picture {
  BaselineHeader header;
  std::uint32_t width, height;
  std::vector<std::int16_t> blocks[kMaxComponents];  // in natural order, row by row, with those that fill up MCUs

  std::uint32_t blocks_across(int component) const {
    return header.scan.mcu_columns * static_cast<std::uint32_t>(header.scan.component[component].columns);
  }
};

// A block whose dequantized values are about `size` altogether.
void fill_block(std::int16_t* block, const std::uint16_t* quantization, int size) {
  static constexpr int kCounts[] = {1, 1, 2, 4, 9, 64};
  const int count = kCounts[between(0, 5)];
  const int behind = between(0, 2) == 0 ? 1 : between(0, 1) == 0 ? kCornerEnd : 64;
  for (int i = 0; i < count; ++i) {
    const int at = kNaturalOrder[between(0, behind - 1)];
    const int wanted = size * between(-100, 100) / 100 / static_cast<int>(std::sqrt(count)) / quantization[at];
    block[at] = static_cast<std::int16_t>(std::clamp(wanted, -1023, 1023));
  }
}

Picture random_picture() {
  Picture picture;
  Scan& scan = picture.header.scan;
  const int most = between(0, 9) == 0 ? 200 : 50;
  picture.width = static_cast<std::uint32_t>(between(5, most));
  picture.height = static_cast<std::uint32_t>(between(1, most));
  scan.components = between(0, 4) == 0 ? 1 : 3;
  const int sampling = scan.components == 1 ? 0 : between(0, 2);
  scan.component[0].columns = sampling > 0 ? 2 : 1;
  scan.component[0].rows = sampling > 1 ? 2 : 1;
  const auto mcus = [](std::uint32_t side, int blocks) {
    return (side + 8 * static_cast<std::uint32_t>(blocks) - 1) / (8 * static_cast<std::uint32_t>(blocks));
  };
  scan.mcu_columns = mcus(picture.width, scan.component[0].columns);
  scan.mcu_rows = mcus(picture.height, scan.component[0].rows);
  static constexpr int kMostFactors[] = {1, 30, 255, 32767};
  static constexpr int kSizes[] = {60, 600, 2500, 4500, 9000, 70000};
  const int most_factor = kMostFactors[between(0, 3)], size = kSizes[between(0, 5)];
  const int unusual = between(1, 60);  // one block in so many is of this size, others are small
  for (int c = 0; c < scan.components; ++c) {
    for (auto& factor : picture.header.quantization[c]) factor = static_cast<std::uint16_t>(between(1, most_factor));
    if (c == 2) picture.header.quantization[2] = picture.header.quantization[1];
    const std::size_t count =
        std::size_t{picture.blocks_across(c)} * scan.mcu_rows * static_cast<std::size_t>(scan.component[c].rows);
    picture.blocks[c].resize(count * kBlockSize);
    for (std::size_t i = 0; i < count; ++i) {
      fill_block(&picture.blocks[c][i * kBlockSize], picture.header.quantization[c].data(),
                 between(1, unusual) == 1 ? size : 500);
    }
  }
  return picture;
}

// False if the coefficients are not accepted.
bool write_region(RegionPixels& pixels, const Picture& picture, std::uint32_t left, std::uint32_t top,
                  std::uint32_t width, std::uint32_t height, std::uint8_t* out) {
  const Scan& scan = picture.header.scan;
  pixels.start(picture.header, picture.width, picture.height, left, width, top, top + height);
  std::uint32_t next = pixels.mcus().first_row;
  for (std::uint32_t y = top; y < top + height; ++y, out += std::size_t{3} * width) {
    for (; next <= pixels.needed_row(y); ++next) {
      const BlockRows rows = pixels.blocks(next);
      for (int c = 0; c < scan.components; ++c) {
        const auto across = static_cast<std::uint32_t>(scan.component[c].columns);
        const auto down = static_cast<std::uint32_t>(scan.component[c].rows);
        for (std::uint32_t row = 0; row < down; ++row) {
          const BlockRows::Row& to = rows.component[c][row];
          if (to.blocks == nullptr) continue;
          const std::size_t first =
              std::size_t{next * down + row} * picture.blocks_across(c) + pixels.mcus().first_column * across;
          const std::int16_t* const from = picture.blocks[c].data() + first * kBlockSize;
          const std::uint32_t count = pixels.mcus().columns * across;
          std::copy(from, from + count * kBlockSize, to.blocks);
          for (std::uint32_t i = 0; i < count; ++i) {
            int last = 63;
            while (last > 0 && from[i * kBlockSize + kNaturalOrder[last]] == 0) --last;
            to.last[i] = static_cast<std::uint8_t>(last);
          }
        }
      }
      if (!pixels.add(next)) return false;
    }
    pixels.write(y, out);
  }
  return true;
}

#ifdef HAVE_LIBJPEG
std::vector<std::uint8_t> encoded(const Picture& picture) {
  const Scan& scan = picture.header.scan;
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  errors.emit_message = [](j_common_ptr, int) {};
  jpeg_create_compress(&info);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &bytes, &size);
  info.image_width = picture.width;
  info.image_height = picture.height;
  info.input_components = scan.components;
  info.in_color_space = scan.components == 1 ? JCS_GRAYSCALE : JCS_YCbCr;
  jpeg_set_defaults(&info);
  jvirt_barray_ptr arrays[kMaxComponents];
  for (int c = 0; c < scan.components; ++c) {
    const auto down = static_cast<JDIMENSION>(scan.component[c].rows);
    info.comp_info[c].h_samp_factor = scan.component[c].columns;
    info.comp_info[c].v_samp_factor = scan.component[c].rows;
    if (c < 2) {
      unsigned factors[kBlockSize];
      std::copy(picture.header.quantization[c].begin(), picture.header.quantization[c].end(), factors);
      jpeg_add_quant_table(&info, c, factors, 100, FALSE);
    }
    arrays[c] = (*info.mem->request_virt_barray)(reinterpret_cast<j_common_ptr>(&info), JPOOL_IMAGE, TRUE,
                                                 picture.blocks_across(c), scan.mcu_rows * down, down);
  }
  jpeg_write_coefficients(&info, arrays);
  for (int c = 0; c < scan.components; ++c) {
    const std::int16_t* from = picture.blocks[c].data();
    const JDIMENSION rows = scan.mcu_rows * static_cast<JDIMENSION>(scan.component[c].rows);
    for (JDIMENSION y = 0; y < rows; ++y, from += picture.blocks_across(c) * kBlockSize) {
      JBLOCKARRAY row = (*info.mem->access_virt_barray)(reinterpret_cast<j_common_ptr>(&info), arrays[c], y, 1, TRUE);
      std::copy(from, from + picture.blocks_across(c) * kBlockSize, &row[0][0][0]);
    }
  }
  jpeg_finish_compress(&info);
  std::vector<std::uint8_t> file(bytes, bytes + size);
  jpeg_destroy_compress(&info);
  std::free(bytes);
  return file;
}

std::vector<std::uint8_t> decoded(const std::vector<std::uint8_t>& file) {
  jpeg_decompress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, file.data(), file.size());
  jpeg_read_header(&info, TRUE);
  info.out_color_space = JCS_RGB;
  jpeg_start_decompress(&info);
  const std::size_t stride = std::size_t{3} * info.output_width;
  std::vector<std::uint8_t> pixels(stride * info.output_height);
  while (info.output_scanline < info.output_height) {
    JSAMPROW row = pixels.data() + info.output_scanline * stride;
    jpeg_read_scanlines(&info, &row, 1);
  }
  jpeg_finish_decompress(&info);
  jpeg_destroy_decompress(&info);
  return pixels;
}
#endif

// Three blocks at a time whose levels lie about the limits, or whose products do not fit into 16 bits.
bool compare_limits(int count) {
  const PixelKernels* const others[] = {
#if defined(__x86_64__)
      set_simd_level(SimdLevel::avx2) ? &kAvx2Pixels : nullptr,
      set_simd_level(SimdLevel::avx512) ? &kAvx512Pixels : nullptr,
#elif defined(__aarch64__)
      &kNeonPixels,
#endif
      nullptr};
  constexpr int kBlocks = 3, kBytes = kBlocks * kBlockSize, kStride = kBlocks * 8;
  int accepted = 0;
  for (int number = 0; number < count; ++number) {
    alignas(32) std::int32_t quantization[kBlockSize];
    alignas(32) std::int16_t blocks[kBytes] = {};
    for (auto& factor : quantization) factor = between(0, 3) == 0 ? 1 << between(6, 14) : 1;
    std::uint8_t last[kBlocks];
    for (int i = 0; i < kBlocks; ++i) {
      std::int16_t* const block = blocks + i * kBlockSize;
      const int behind = between(0, 1) == 0 ? kCornerEnd : kBlockSize;
      if (between(0, 9) != 0) {
        // About 512 above or below the middle in one pixel.
        const int sign = between(0, 1) == 0 ? 1 : -1, first = between(1300, 2040);
        const int rest = static_cast<int>((512 - first / 8.0) / 0.1734) + between(-30, 30);
        block[0] = static_cast<std::int16_t>(sign * first / quantization[0]);
        block[1] = static_cast<std::int16_t>(rest * (between(0, 1) == 0 ? 1 : -1) / quantization[1]);
        block[8] = static_cast<std::int16_t>(between(-3, 3) / quantization[8]);
      }
      if (between(0, 3) == 0) {
        const int at = kNaturalOrder[between(0, behind - 1)];
        block[at] = static_cast<std::int16_t>(quantization[at] > 1 ? 65536 / quantization[at] : between(-30, 30));
      }
      if (between(0, 9) == 0) block[0] = block[32] = 32767;  // whose sum is small in 16 bits
      last[i] = 63;
      while (last[i] > 0 && block[kNaturalOrder[last[i]]] == 0) --last[i];
    }
    std::uint8_t expected[kBytes] = {};
    const bool is_expected = kPortablePixels.transform(blocks, last, kBlocks, quantization, expected, kStride);
    accepted += is_expected ? 1 : 0;
    for (const PixelKernels* const kernels : others) {
      if (kernels == nullptr) continue;
      std::uint8_t out[kBytes] = {};
      const bool is_accepted = kernels->transform(blocks, last, kBlocks, quantization, out, kStride);
      if (is_accepted != is_expected || (is_expected && !std::equal(out, out + kBytes, expected))) return false;
    }
  }
  return accepted > count / 20 && accepted < count * 19 / 20;
}

[[noreturn]] void fail(const std::string& what, int number) {
  std::printf("picture %d: %s\n", number, what.c_str());
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 300;
  constexpr int kRegions = 4;
  int accepted = 0, compared = 0;
  RegionPixels pixels;
  if (!compare_limits(200 * count)) fail("levels differ at a limit, or no block was near one", 0);
  for (int number = 0; number < count; ++number) {
    const Picture picture = random_picture();
    std::vector<std::uint8_t> reference;
#ifdef HAVE_LIBJPEG
    reference = decoded(encoded(picture));
#endif
    for (int i = 0; i < kRegions; ++i) {
      std::uint32_t left = 0, top = 0, width = picture.width, height = picture.height;
      if (i > 0) {
        left = static_cast<std::uint32_t>(between(0, static_cast<int>(width) - 1));
        top = static_cast<std::uint32_t>(between(0, static_cast<int>(height) - 1));
        width = static_cast<std::uint32_t>(between(1, static_cast<int>(width - left)));
        height = static_cast<std::uint32_t>(between(1, static_cast<int>(height - top)));
      }
      bool is_expected = false;
      std::vector<std::uint8_t> expected;
      for (const SimdLevel level : {SimdLevel::portable, SimdLevel::avx2, SimdLevel::avx512, SimdLevel::neon}) {
        if (!set_simd_level(level)) continue;
        std::vector<std::uint8_t> out(std::size_t{3} * width * height);
        const bool is_accepted = write_region(pixels, picture, left, top, width, height, out.data());
        if (level == SimdLevel::portable) {
          is_expected = is_accepted;
          expected = out;
          continue;
        }
        ++compared;
        if (is_accepted != is_expected) fail(std::string(name_of(level)) + " decides otherwise than portable", number);
        if (is_accepted && out != expected) fail(std::string(name_of(level)) + " differs from portable", number);
      }
      accepted += is_expected ? 1 : 0;
      if (!is_expected || reference.empty()) continue;
      for (std::uint32_t y = 0; y < height; ++y) {
        const std::uint8_t* const row = expected.data() + std::size_t{3} * width * y;
        if (!std::equal(row, row + std::size_t{3} * width,
                        reference.data() + (std::size_t{top + y} * picture.width + left) * 3)) {
          fail("differs from libjpeg-turbo in row " + std::to_string(top + y), number);
        }
      }
    }
  }
  std::printf("%d comparisons of levels, %d of %d regions accepted, best level %s\n", compared, accepted,
              count * kRegions, name_of(best_simd_level()));
  return accepted > count * kRegions / 2 && accepted < count * kRegions * 9 / 10 ? 0 : 1;
}
