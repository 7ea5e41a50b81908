// The kernels as loops, which each level's file includes once and compiles for its instructions: before the include it
// defines FASTLOAD_TARGET, the attribute of every function here, and declares in fastload's unnamed namespace
//   transform_block(), stretch(), to_planes() of kBlock pixels, and merge() of planes.
// With FASTLOAD_PAIRS, also transform_pair() of two blocks that lie side by side, whose last index is the greater one.
#include <cstring>

#include "base/planes.h"
#include "jpeg/pixels/kernels.h"

namespace fastload {
namespace {

// Eight rows of eight equal bytes.
FASTLOAD_TARGET inline void fill_block(std::int32_t level, std::uint8_t* out, std::size_t stride) {
  level = level < 0 ? 0 : level > 255 ? 255 : level;
  const std::uint64_t bytes = static_cast<std::uint64_t>(level) * 0x0101010101010101u;
  for (std::size_t y = 0; y < 8; ++y) std::memcpy(out + y * stride, &bytes, 8);
}

FASTLOAD_TARGET bool transform(const std::int16_t* blocks, const std::uint8_t* last, std::uint32_t count,
                               const std::int32_t* quantization, std::uint8_t* out, std::size_t stride) {
  bool fits = true;
  for (std::uint32_t i = 0; i < count; ++i, blocks += 64, out += 8) {
#ifdef FASTLOAD_PAIRS
    if (i + 1 < count && last[i] != 0 && last[i + 1] != 0) {
      fits &= transform_pair(blocks, last[i] > last[i + 1] ? last[i] : last[i + 1], quantization, out, stride);
      ++i, blocks += 64, out += 8;
      continue;
    }
#endif
    if (last[i] != 0) {
      fits &= transform_block(blocks, last[i], quantization, out, stride);
      continue;
    }
    const std::int32_t level = ((blocks[0] * quantization[0] + 4) >> 3) + 128;
    fits &= level >= -kMostBelow && level < kMostResults - kMostBelow;
    fill_block(level, out, stride);
  }
  return fits;
}

FASTLOAD_TARGET void add_rows(const std::uint8_t* __restrict near, const std::uint8_t* __restrict far,
                              std::size_t count, std::uint16_t* __restrict sums) {
  for (std::size_t i = 0; i < count; ++i) sums[i] = static_cast<std::uint16_t>(3 * near[i] + far[i]);
}

FASTLOAD_TARGET inline void block_to_rgb(const std::uint8_t* y, const std::uint8_t* cb, const std::uint8_t* cr,
                                         bool bgr, std::uint8_t* out) {
  Planes planes;
  if (cb != nullptr) {
    to_planes(y, cb, cr, planes);
  } else {
    for (std::uint8_t* plane : {planes.red, planes.green, planes.blue}) std::memcpy(plane, y, kBlock);
  }
  if (bgr) {
    std::uint8_t red[kBlock];
    std::memcpy(red, planes.red, kBlock);
    std::memcpy(planes.red, planes.blue, kBlock);
    std::memcpy(planes.blue, red, kBlock);
  }
  merge(planes, out);
}

FASTLOAD_TARGET void to_rgb(const std::uint8_t* y, const std::uint8_t* cb, const std::uint8_t* cr, std::size_t count,
                            bool bgr, std::uint8_t* out) {
  static_assert(kBlock <= kSampleSlack);
  const std::size_t step = cb != nullptr ? kBlock : 0;
  for (; count >= kBlock; count -= kBlock, y += kBlock, cb += step, cr += step, out += kBlockBytes) {
    block_to_rgb(y, cb, cr, bgr, out);
  }
  if (count == 0) return;
  std::uint8_t rest[kBlockBytes];
  block_to_rgb(y, cb, cr, bgr, rest);
  std::memcpy(out, rest, count * 3);
}

constexpr PixelKernels kPixelLoops = {&transform, &add_rows, &stretch, &to_rgb};

}  // namespace
}  // namespace fastload
