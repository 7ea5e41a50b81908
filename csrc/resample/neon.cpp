// Horizontal and vertical passes for NEON, whose 32-bit multiply-accumulate computes four portable sums at a time.
#if defined(__aarch64__)

#include <arm_neon.h>

#include <algorithm>
#include <cstring>

#include "resample/kernels.h"

namespace fastload {
namespace {

void pack(const Axis&, int, PackedAxis&) {}

// Three channels and one unused lane. Reads 8 bytes per pixel, 5 of them beyond it.
void horizontal_rgb(const Axis& axis, const std::uint8_t* source, std::uint8_t* out) {
  const int32x4_t half = vdupq_n_s32(kHalf);
  for (int i = 0; i < axis.count; ++i, out += 3) {
    const std::uint8_t* pixel = source + 3 * static_cast<std::ptrdiff_t>(axis.start[i]);
    const std::int32_t* weights = axis.row(i);
    int32x4_t even = half, odd = vdupq_n_s32(0);
    int t = 0;
    for (; t + 2 <= axis.size[i]; t += 2, pixel += 6) {
      const uint16x8_t both = vmovl_u8(vld1_u8(pixel));
      const int32x4_t a = vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(both)));
      const int32x4_t b = vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vextq_u16(both, both, 3))));
      even = vmlaq_n_s32(even, a, weights[t]);
      odd = vmlaq_n_s32(odd, b, weights[t + 1]);
    }
    if (t < axis.size[i]) {
      const int32x4_t a = vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vld1_u8(pixel)))));
      even = vmlaq_n_s32(even, a, weights[t]);
    }
    const uint16x4_t narrow = vqmovun_s32(vshrq_n_s32(vaddq_s32(even, odd), kPrecisionBits));
    const uint8x8_t bytes = vqmovn_u16(vcombine_u16(narrow, narrow));
    out[0] = vget_lane_u8(bytes, 0);
    out[1] = vget_lane_u8(bytes, 1);
    out[2] = vget_lane_u8(bytes, 2);
  }
}

void horizontal(const Axis& axis, const PackedAxis& packed, int channels, const std::uint8_t* const* sources,
                std::uint8_t* const* outs, int rows) {
  if (channels != 3) return kPortableKernels.horizontal(axis, packed, channels, sources, outs, rows);
  for (int row = 0; row < rows; ++row) horizontal_rgb(axis, sources[row], outs[row]);
}

void vertical(const std::uint8_t* const* rows, const std::int32_t* weights, int taps, std::uint8_t* out, int bytes) {
  if (bytes < 16) return kPortableKernels.vertical(rows, weights, taps, out, bytes);
  for (int x = 0;; x += 16) {
    x = std::min(x, bytes - 16);  // the last block overlaps the previous one
    int32x4_t sums[4];
    for (auto& sum : sums) sum = vdupq_n_s32(kHalf);
    for (int t = 0; t < taps; ++t) {
      const uint8x16_t row = vld1q_u8(rows[t] + x);
      const uint16x8_t low = vmovl_u8(vget_low_u8(row)), high = vmovl_u8(vget_high_u8(row));
      sums[0] = vmlaq_n_s32(sums[0], vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))), weights[t]);
      sums[1] = vmlaq_n_s32(sums[1], vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(low))), weights[t]);
      sums[2] = vmlaq_n_s32(sums[2], vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))), weights[t]);
      sums[3] = vmlaq_n_s32(sums[3], vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(high))), weights[t]);
    }
    for (auto& sum : sums) sum = vshrq_n_s32(sum, kPrecisionBits);
    const uint8x8_t low = vqmovn_u16(vcombine_u16(vqmovun_s32(sums[0]), vqmovun_s32(sums[1])));
    const uint8x8_t high = vqmovn_u16(vcombine_u16(vqmovun_s32(sums[2]), vqmovun_s32(sums[3])));
    vst1q_u8(out + x, vcombine_u8(low, high));
    if (x == bytes - 16) return;
  }
}

void reverse(const std::uint8_t* source, std::uint8_t* out, int pixels, int channels) {
  kPortableKernels.reverse(source, out, pixels, channels);
}

}  // namespace

const Kernels kNeonKernels = {pack, horizontal, vertical, reverse};

}  // namespace fastload

#endif
