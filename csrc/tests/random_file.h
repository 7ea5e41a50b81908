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

// The scans of a progressive file: DC coefficients together or one component at a time, AC coefficients in random
// bands, bits of both in random refinements, in random order.
inline std::vector<jpeg_scan_info> random_scans(int components) {
  std::vector<std::vector<jpeg_scan_info>> tracks;  // each has its own order
  const auto add = [&](int begin, int end, int first, int last, int most) {
    jpeg_scan_info scan{};
    scan.comps_in_scan = end - begin;
    for (int c = begin; c < end; ++c) scan.component_index[c - begin] = c;
    scan.Ss = first;
    scan.Se = last;
    scan.Al = between(0, most);
    std::vector<jpeg_scan_info> track{scan};
    while (scan.Al > 0) {
      scan.Ah = scan.Al--;
      track.push_back(scan);
    }
    tracks.push_back(track);
  };
  const bool together = between(0, 1) != 0;
  for (int c = 0; c < (together ? 1 : components); ++c) add(c, together ? components : c + 1, 0, 0, 3);
  std::vector<jpeg_scan_info> scans;
  for (auto& track : tracks) {  // before AC coefficients
    scans.push_back(track.front());
    track.erase(track.begin());
  }
  for (int c = 0; c < components; ++c) {
    for (int first = 1, last; first < 64; first = last + 1) {
      last = between(0, 1) != 0 ? 63 : between(first, 63);
      if (tracks.size() > 12) last = 63;
      add(c, c + 1, first, last, 3);
    }
  }
  while (!tracks.empty()) {
    const auto at = static_cast<std::size_t>(between(0, static_cast<int>(tracks.size()) - 1));
    if (tracks[at].empty()) {
      tracks.erase(tracks.begin() + static_cast<std::ptrdiff_t>(at));
      continue;
    }
    scans.push_back(tracks[at].front());
    tracks[at].erase(tracks[at].begin());
  }
  return scans;
}

// Of at most that many pixels a side, or that many rows.
inline std::vector<std::uint8_t> random_file(int most, bool progressive = false, int most_rows = 0) {
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  errors.output_message = [](j_common_ptr) {};
  jpeg_create_compress(&info);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &bytes, &size);
  info.image_width = static_cast<JDIMENSION>(between(5, most));
  info.image_height = static_cast<JDIMENSION>(between(1, most_rows > 0 ? most_rows : most));
  const bool gray = between(0, 4) == 0;
  info.input_components = gray ? 1 : 3;
  info.in_color_space = gray ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, between(1, 100), between(0, 1));
  info.comp_info[0].h_samp_factor = gray ? 1 : between(1, 2);
  info.comp_info[0].v_samp_factor = info.comp_info[0].h_samp_factor == 2 ? between(1, 2) : 1;
  info.optimize_coding = between(0, 1);
  std::vector<jpeg_scan_info> scans;
  if (progressive) {
    scans = random_scans(info.num_components);
    info.scan_info = scans.data();
    info.num_scans = static_cast<int>(scans.size());
    if (scans.size() > 32 || between(0, 1) != 0) jpeg_simple_progression(&info);
  }
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
