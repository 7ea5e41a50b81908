// Decodes the coefficients of a progressive JPEG as libjpeg-turbo does, or not at all: whatever libjpeg-turbo might
// warn about, refuse, smooth or read otherwise is refused here. Knows neither Python nor torch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/source.h"
#include "jpeg/baseline.h"
#include "jpeg/header.h"
#include "jpeg/progressive/scan.h"
#include "jpeg/region_pixels.h"

namespace fastload {

// One file at a time, in parts that say together what its coefficients are: each scan adds some. Not thread-safe.
// Throws std::bad_alloc.
class ProgressiveDecoder {
 public:
  // Most bits that refinements add to AC coefficients.
  static constexpr int kMostPlanes = 4;
  // Encoders write about 10, optimizers up to 20.
  static constexpr int kMostScans = 32;

  struct Component {
    // Blocks that the image has, and in a row of what follows, which is padded to whole MCUs.
    std::uint32_t columns = 0, rows = 0, stride = 0;
    std::vector<std::int16_t> dc;
    std::vector<std::uint64_t> known;  // AC coefficients that are not 0; see AcRun
    // The bits that refinements add to the absolute values, the lowest first; which of the coefficients that have no
    // others are negative.
    int planes = 0;
    std::vector<std::uint64_t> plane[kMostPlanes];
    std::vector<std::uint64_t> negative;
    // Of each zigzag index the lowest bit that is known so far, or kNothing.
    std::array<std::int8_t, kBlockSize> low;
  };
  // A first scan of AC coefficients: see AcRun::values.
  struct Values {
    int component;
    std::size_t ends;  // where row_ends() of the scan begin: one for each of the component's rows in the window
  };

  // Reads the header. False if this core does not decode the file's coefficients: it takes 8 bits, Huffman coding, and
  // the components and samplings that read_baseline() does. `source` must stay valid. `header` is scan_header's result,
  // which was `ok`.
  bool start(ByteSource& source, const JpegHeader& header);
  // The geometry, without tables, and quantization.
  const BaselineHeader& frame() const { return frame_; }
  // Decodes all scans, and keeps the values of the window. False if the file is not sound, or is not complete, or the
  // window has more than 1024 blocks in a row.
  bool decode(const McuWindow& window);

  const McuWindow& window() const { return window_; }
  const Component& component(int number) const { return component_[number]; }
  const std::vector<Values>& scans() const { return scans_; }
  const std::vector<std::uint32_t>& row_ends() const { return row_ends_; }  // as numbers of values
  const std::uint32_t* values() const { return values_.data(); }
  std::size_t value_count() const { return value_count_; }

 private:
  struct ScanHeader {
    int components = 0, component = 0;  // the number of the only one
    unsigned first = 0, last = 0;
    int high = 0, low = 0;
    const std::uint8_t* selectors = nullptr;  // of tables, two bytes apart
  };
  static constexpr std::int8_t kNothing = 127;

  bool read_scan(Segment segment, ScanHeader& scan);
  bool decode_scan(const ScanHeader& scan);
  bool decode_dc(const ScanHeader& scan);
  bool decode_ac(const ScanHeader& scan);
  template <typename Run, typename Part>
  bool decode_rows(Run& run, std::uint32_t columns, std::uint32_t rows, Part part);
  bool load(BitState& state, const std::uint8_t*& limit);
  bool ends_here(const BitState& state) const;

  ByteSource* source_ = nullptr;
  JpegHeader header_;
  Definitions found_;
  BaselineHeader frame_;
  McuWindow window_;
  const ProgressiveKernels* kernels_ = nullptr;
  std::size_t at_ = 0;              // of the file: what comes next
  std::vector<std::uint8_t> data_;  // up to the next marker, without stuffing
  std::uint8_t* end_ = nullptr;     // of that
  SymbolTable dc_[kMaxComponents], ac_;
  Component component_[kMaxComponents];
  std::vector<Values> scans_;
  std::vector<std::uint32_t> row_ends_, values_;
  std::size_t value_count_ = 0;
};

}  // namespace fastload
