// From coefficients to RGB for NEON.
#if defined(__aarch64__)

#include <arm_neon.h>

#include <initializer_list>

#include "base/planes.h"
#include "jpeg/pixels/kernels.h"

#define FASTLOAD_TARGET

namespace fastload {
namespace {

struct Wide {
  int32x4_t low, high;
};

inline Wide operator+(Wide a, Wide b) { return {vaddq_s32(a.low, b.low), vaddq_s32(a.high, b.high)}; }
inline Wide operator-(Wide a, Wide b) { return {vsubq_s32(a.low, b.low), vsubq_s32(a.high, b.high)}; }

inline Wide product(int16x8_t x, std::int16_t factor) {
  return {vmull_n_s16(vget_low_s16(x), factor), vmull_high_n_s16(x, factor)};
}

inline Wide add_product(Wide sum, int16x8_t x, std::int16_t factor) {
  return {vmlal_n_s16(sum.low, vget_low_s16(x), factor), vmlal_high_n_s16(sum.high, x, factor)};
}

inline Wide shifted(int16x8_t x, std::int32_t bias) {
  const int32x4_t biases = vdupq_n_s32(bias);
  return {vaddq_s32(vshll_n_s16(vget_low_s16(x), 13), biases), vaddq_s32(vshll_high_n_s16(x, 13), biases)};
}

template <int kShift>
inline int16x8_t narrowed(Wide x) {
  return vqmovn_high_s32(vqmovn_s32(vshrq_n_s32(x.low, kShift)), vshrq_n_s32(x.high, kShift));
}

// One pass, as transform_eight() in portable.cpp, for eight columns. Sums of two values fit into 16 bits; results
// that do not are clipped. With kHalf, the last four of each eight are 0.
template <int kShift, bool kHalf>
inline void transform_eight(int16x8_t (&x)[8], std::int32_t bias) {
  Wide sum = shifted(x[0], bias), difference = sum;
  Wide a = product(x[2], 4433), b = product(x[2], 10703);
  Wide odd[4] = {product(x[1], 4926), product(x[3], 4177), product(x[3], -20995), product(x[1], -7373)};
  int16x8_t three = x[3], one = x[1];
  if constexpr (!kHalf) {
    sum = shifted(vaddq_s16(x[0], x[4]), bias);
    difference = shifted(vsubq_s16(x[0], x[4]), bias);
    a = add_product(a, x[6], -10704);
    b = add_product(b, x[6], 4433);
    odd[0] = add_product(odd[0], x[7], -7373);
    odd[1] = add_product(odd[1], x[5], -20995);
    odd[2] = add_product(odd[2], x[5], -4176);
    odd[3] = add_product(odd[3], x[7], -4927);
    three = vaddq_s16(three, x[7]);
    one = vaddq_s16(one, x[5]);
  }
  const Wide c = add_product(product(three, -6436), one, 9633), d = add_product(product(three, 9633), one, 6437);
  const Wide even[4] = {sum + b, difference + a, difference - a, sum - b};
  for (int i = 0; i < 4; ++i) {
    const Wide other = odd[i] + (i % 2 == 0 ? d : c);
    x[i] = narrowed<kShift>(even[i] + other);
    x[7 - i] = narrowed<kShift>(even[i] - other);
  }
}

inline void transpose(int16x8_t (&x)[8]) {
  int32x4_t pairs[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = vreinterpretq_s32_s16(vtrn1q_s16(x[i], x[i + 1]));
    pairs[i + 1] = vreinterpretq_s32_s16(vtrn2q_s16(x[i], x[i + 1]));
  }
  int64x2_t quads[8];
  for (int i : {0, 1, 4, 5}) {
    quads[i] = vreinterpretq_s64_s32(vtrn1q_s32(pairs[i], pairs[i + 2]));
    quads[i + 2] = vreinterpretq_s64_s32(vtrn2q_s32(pairs[i], pairs[i + 2]));
  }
  for (int i = 0; i < 4; ++i) {
    x[i] = vreinterpretq_s16_s64(vtrn1q_s64(quads[i], quads[i + 4]));
    x[i + 4] = vreinterpretq_s16_s64(vtrn2q_s64(quads[i], quads[i + 4]));
  }
}

// With kCorner, only coefficients of the first four rows and columns are not 0.
template <bool kCorner>
inline bool transform_block(const std::int16_t* block, const std::int32_t* quantization, std::uint8_t* out,
                            std::size_t stride) {
  int16x8_t x[8], seen = vdupq_n_s16(0);
  for (int i = 0; i < (kCorner ? 4 : 8); ++i) {
    const int16x8_t row = vld1q_s16(block + 8 * i);
    const int16x8_t factors =
        vmovn_high_s32(vmovn_s32(vld1q_s32(quantization + 8 * i)), vld1q_s32(quantization + 8 * i + 4));
    x[i] =
        vqmovn_high_s32(vqmovn_s32(vmull_s16(vget_low_s16(row), vget_low_s16(factors))), vmull_high_s16(row, factors));
    seen = vmaxq_s16(seen, vqabsq_s16(x[i]));
  }
  transform_eight<11, kCorner>(x, 1 << 10);
  for (const int16x8_t& row : x) seen = vmaxq_s16(seen, vqabsq_s16(row));
  transpose(x);
  transform_eight<18, kCorner>(x, (128 << 18) + (1 << 17));
  transpose(x);
  uint16x8_t levels = vdupq_n_u16(0);
  for (std::size_t y = 0; y < 8; ++y) {
    levels = vmaxq_u16(levels, vreinterpretq_u16_s16(vaddq_s16(x[y], vdupq_n_s16(kMostBelow))));
    vst1_u8(out + y * stride, vqmovun_s16(x[y]));
  }
  return vmaxvq_s16(seen) < kMostValue && vmaxvq_u16(levels) < kMostResults;
}

inline bool transform_block(const std::int16_t* block, int last, const std::int32_t* quantization, std::uint8_t* out,
                            std::size_t stride) {
  return last < kCornerEnd ? transform_block<true>(block, quantization, out, stride)
                           : transform_block<false>(block, quantization, out, stride);
}

void stretch(const std::uint16_t* sums, std::size_t count, unsigned left_bias, unsigned right_bias, unsigned shift,
             std::uint8_t* out) {
  static_assert(kStretchSlack >= 7);
  const uint16x8_t left = vdupq_n_u16(static_cast<std::uint16_t>(left_bias));
  const uint16x8_t right = vdupq_n_u16(static_cast<std::uint16_t>(right_bias));
  const int16x8_t shifts = vdupq_n_s16(static_cast<std::int16_t>(-static_cast<int>(shift)));
  for (std::size_t i = 0; i < count; i += 8) {
    const uint16x8_t most = vmulq_n_u16(vld1q_u16(sums + i + 1), 3);
    const uint16x8_t even = vaddq_u16(vaddq_u16(most, vld1q_u16(sums + i)), left);
    const uint16x8_t odd = vaddq_u16(vaddq_u16(most, vld1q_u16(sums + i + 2)), right);
    const uint8x8x2_t both = {{vmovn_u16(vshlq_u16(even, shifts)), vmovn_u16(vshlq_u16(odd, shifts))}};
    vst2_u8(out + 2 * i, both);  // a macro of Clang's, to which the braces would be two arguments
  }
}

// value * factor / 65536, rounded.
inline int16x8_t scaled(Wide products) { return vrshrn_high_n_s32(vrshrn_n_s32(products.low, 16), products.high, 16); }

inline void to_planes(const std::uint8_t* y, const std::uint8_t* cb, const std::uint8_t* cr, Planes& planes) {
  const uint8x8_t middle = vdup_n_u8(128);
  for (int i = 0; i < kBlock; i += 8) {
    const int16x8_t luma = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(y + i)));
    const int16x8_t blue = vreinterpretq_s16_u16(vsubl_u8(vld1_u8(cb + i), middle));
    const int16x8_t red = vreinterpretq_s16_u16(vsubl_u8(vld1_u8(cr + i), middle));
    // Factors without the part that is a whole number.
    const int16x8_t more_red = vaddq_s16(red, scaled(product(red, 91881 - 65536)));
    const int16x8_t less_green = vsubq_s16(red, scaled(add_product(product(blue, -22554), red, 65536 - 46802)));
    const int16x8_t more_blue = vaddq_s16(vaddq_s16(blue, blue), scaled(product(blue, 116130 - 131072)));
    vst1_u8(planes.red + i, vqmovun_s16(vaddq_s16(luma, more_red)));
    vst1_u8(planes.green + i, vqmovun_s16(vsubq_s16(luma, less_green)));
    vst1_u8(planes.blue + i, vqmovun_s16(vaddq_s16(luma, more_blue)));
  }
}

inline void merge(const Planes& planes, std::uint8_t* bytes) {
  for (int i = 0; i < kBlock; i += 16) {
    const uint8x16x3_t rgb = {{vld1q_u8(planes.red + i), vld1q_u8(planes.green + i), vld1q_u8(planes.blue + i)}};
    vst3q_u8(bytes + 3 * i, rgb);
  }
}

}  // namespace
}  // namespace fastload

#include "jpeg/pixels/loops.h"

namespace fastload {
const PixelKernels kNeonPixels = kPixelLoops;
}  // namespace fastload

#endif
