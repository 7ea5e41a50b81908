// Values of pixels by a table, as batches need them on the host. Knows neither Python nor torch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

// What to look up. A value has 1, 2, 4 or 8 bytes, which are copied.
struct LookUpJob {
  const std::uint8_t* levels = nullptr;  // `images` * `pixels` * `stride`, of which the first `channels` count
  std::size_t images = 0;
  std::size_t pixels = 0;  // of an image
  int channels = 3;        // 1 to 4
  std::ptrdiff_t stride = 3;
  const void* table = nullptr;  // 256 values for each channel
  std::size_t value_bytes = 4;
  void* out = nullptr;  // as many values, aligned to their size
  bool planar = true;   // channels are outermost within an image, else innermost
};

void look_up(const LookUpJob& job);

// What to pick of an image of one channel, and to look up.
struct PickJob {
  const std::uint8_t* levels = nullptr;  // rows of `row_stride` levels
  std::ptrdiff_t row_stride = 0;
  const std::int32_t* rows = nullptr;  // which row each row of the values is of, and which column each column
  const std::int32_t* columns = nullptr;
  std::size_t height = 0, width = 0;  // of the values
  const void* table = nullptr;        // 256 values
  std::size_t value_bytes = 4;        // as for look_up()
  void* out = nullptr;                // aligned to the values' size
  std::size_t out_stride = 0;         // values from a row to the next
};

void pick(const PickJob& job);

// Asks for large pages where memory is about to be written for the first time: its 4-KiB pages cost more than what
// is written to them. A hint only.
void advise_large_pages(void* memory, std::size_t bytes);

}  // namespace fastload
