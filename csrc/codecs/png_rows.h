// Rows of PNG images: from filtered bytes to RGB. Knows neither Python nor torch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

inline constexpr int kPngFilters = 5;  // none, sub, up, average, Paeth

// Undoes a row's filter in place. `above` is the row above it, all zeros for the first one. `pixel_bytes` is 1 to 4.
// Reads one byte behind each of both rows.
void unfilter(int filter, std::uint8_t* row, const std::uint8_t* above, std::size_t bytes, int pixel_bytes);

// Unpacks `count` pixels from the one at `first` on. `bits` per sample is 8 or, for one channel, 1, 2 or 4; of channels
// there are 1 (gray), 2 (gray and alpha), 3 (RGB) or 4 (and alpha). Pixels are written `step` bytes apart.
void unpack(const std::uint8_t* row, int bits, int channels, std::size_t first, std::size_t count, std::uint8_t* rgb,
            std::size_t step = 3);
// The same of one channel: a byte for each pixel, `scale` times what is stored.
void unpack_levels(const std::uint8_t* row, int bits, std::size_t count, unsigned scale, std::uint8_t* levels,
                   std::size_t step);

}  // namespace fastload
