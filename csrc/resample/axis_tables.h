// The weights of a resize for code that does it elsewhere, as tables that are kept: few distinct sizes are cropped
// again and again. Knows neither Python nor torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "resample/resample.h"

namespace fastload {

// One axis of a resize. The numbers are those of Resampler::weights().
struct AxisTable {
  int first = 0, extent = 0;  // the source pixels in use, from the source's first on
  int taps = 0;
  bool convolves = false;  // neither kept nor picked by the nearest filter
  std::vector<std::int32_t> numbers;
};

struct AxisTables {
  std::shared_ptr<const AxisTable> x, y;
  bool vertical_first = false;
};

// Most memory for tables, over all threads. A batch's 512 tables of RandomResizedCrop(224) take 3 MB, all of 500 px
// wide photographs 5 MB.
inline constexpr std::size_t kAxisTablesBytes = std::size_t{16} << 20;

// Returns the tables of a job that resizes its whole source, or null ones if Resampler::prepare() refuses it or its
// filter's weights are floats.
// Thread-safe. Throws std::bad_alloc.
AxisTables axis_tables(const ResizeJob& job);

}  // namespace fastload
