// The coefficients of progressive files: a part of decode.cu.

#include "decode_layout.h"
#include "pixel_words.h"

namespace fastload {
namespace {

constexpr int kCoefficientThreads = 128;

}  // namespace

// Stores them as `huffman` does, a row of a component's blocks at a time. Grid: any number of blocks, images.
extern "C" __global__ void __launch_bounds__(kCoefficientThreads)
    coefficients(const u8* __restrict__ batch, long long first_image, short* all) {
  const StagedImage& image = reinterpret_cast<const StagedImage*>(batch)[first_image + blockIdx.y];
  if (image.scan_count == 0) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int luma = image.across * image.down, per_mcu = luma + image.components - 1;
  const int luma_rows = image.mcu_rows * image.down, rows = luma_rows + image.mcu_rows * (image.components - 1);
  const u32* const values = reinterpret_cast<const u32*>(batch + image.data);
  const u32* const row_ends = reinterpret_cast<const u32*>(batch + image.row_ends);
  const u32 count = image.data_bytes / 4;
  short* const own = all + static_cast<u64>(image.coefficients) * 8;
  for (int row = static_cast<int>(blockIdx.x); row < rows; row += static_cast<int>(gridDim.x)) {
    const int c = row < luma_rows ? 0 : 1 + (row - luma_rows) / image.mcu_rows;
    const int y = c == 0 ? row : (row - luma_rows) % image.mcu_rows;
    const int across = c == 0 ? image.across : 1, down = c == 0 ? image.down : 1;
    const int columns = image.mcu_columns * across;
    const int first = y / down * image.mcu_columns * per_mcu + (c == 0 ? y % down * across : luma + c - 1);
    const auto block_at = [&](int x) {
      return own + static_cast<long long>(first + x / across * per_mcu + x % across) * 64;
    };
    int before = 0;  // rows of the scans before
    for (int scan = 0; scan < image.scan_count; ++scan) {
      const int component = image.scan_components[scan];
      if (component == c) {
        const u32 end = min(row_ends[before + y + 1], count);
        for (u32 i = row_ends[before + y] + static_cast<u32>(thread); i < end; i += kCoefficientThreads) {
          const u32 value = values[i];
          const int x = static_cast<int>(value >> 6 & 1023);
          if (x < columns) block_at(x)[value & 63] = static_cast<short>(value >> 16);
        }
      }
      before += component == 0 ? luma_rows : image.mcu_rows;
    }
    __syncthreads();
    // Eight threads a block. Of each word the highest byte is the first thread's, and its highest bit that one's first.
    const int planes = image.plane_count[c];
    const long long of_plane = static_cast<long long>(columns) * (c == 0 ? luma_rows : image.mcu_rows) * 8;
    for (int unit = thread; unit < columns * 8; unit += kCoefficientThreads) {
      const int x = unit / 8, lane = unit % 8;
      const long long block = static_cast<long long>(y) * columns + x;
      const u8* const words = batch + image.planes[c] + block * 8 + (7 - lane);
      short* const to = block_at(x) + lane * 8;
      u32 bits[kStagedPlanes], any = 0;
#pragma unroll
      for (int i = 0; i < kStagedPlanes; ++i) any |= bits[i] = i < planes ? words[(i + 1) * of_plane] : 0;
      if (any != 0) {
        const u32 negative = words[0];
        uint4& eight = *reinterpret_cast<uint4*>(to);
        const uint4 had = eight;
        u32 pairs[4] = {had.x, had.y, had.z, had.w};
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          int added = 0;
#pragma unroll
          for (int i = 0; i < kStagedPlanes; ++i) added |= static_cast<int>(bits[i] >> (7 - k) & 1) << i;
          const int value = static_cast<short>(pairs[k / 2] >> (16 * (k % 2)));
          const bool is_negative = value != 0 ? value < 0 : (negative >> (7 - k) & 1) != 0;
          const u32 sum = static_cast<u32>(is_negative ? value - added : value + added) & 0xFFFF;
          pairs[k / 2] = (pairs[k / 2] & (0xFFFFu << (16 * (1 - k % 2)))) | sum << (16 * (k % 2));
        }
        eight = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
      }
      if (lane == 0) *to = reinterpret_cast<const short*>(batch + image.dc_values[c])[block];
    }
  }
}

}  // namespace fastload
