// Random numbers, and random JPEG files that this core decodes itself.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include <jpeglib.h>

namespace fastload {

inline std::mt19937 generator(1);

inline int between(int low, int high) {
  return low + static_cast<int>(generator() % static_cast<unsigned>(high - low + 1));
}

// Of at most that many pixels a side.
inline std::vector<std::uint8_t> random_file(int most) {
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  errors.output_message = [](j_common_ptr) {};
  jpeg_create_compress(&info);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &bytes, &size);
  info.image_width = static_cast<JDIMENSION>(between(5, most));
  info.image_height = static_cast<JDIMENSION>(between(1, most));
  const bool gray = between(0, 4) == 0;
  info.input_components = gray ? 1 : 3;
  info.in_color_space = gray ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, between(1, 100), between(0, 1));
  info.comp_info[0].h_samp_factor = gray ? 1 : between(1, 2);
  info.comp_info[0].v_samp_factor = info.comp_info[0].h_samp_factor == 2 ? between(1, 2) : 1;
  info.optimize_coding = between(0, 1);
  info.restart_interval = between(0, 2) == 0 ? static_cast<unsigned>(between(1, 12)) : 0;
  jpeg_start_compress(&info, TRUE);
  std::vector<std::uint8_t> row(std::size_t{3} * info.image_width);
  const int noise = 1 << between(0, 8), step = between(1, 40);
  for (JDIMENSION y = 0; y < info.image_height; ++y) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      row[i] = static_cast<std::uint8_t>(128 + (static_cast<int>(i + y) * step + between(0, noise)) % 128);
    }
    JSAMPROW rows = row.data();
    jpeg_write_scanlines(&info, &rows, 1);
  }
  jpeg_finish_compress(&info);
  std::vector<std::uint8_t> file(bytes, bytes + size);
  jpeg_destroy_compress(&info);
  std::free(bytes);
  return file;
}

}  // namespace fastload
