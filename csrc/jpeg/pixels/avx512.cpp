// From coefficients to RGB for AVX-512: AVX2's instructions with twice as many registers, which hold two blocks at
// once.
#if defined(__x86_64__)

#define FASTLOAD_TARGET __attribute__((target("avx2,avx512f,avx512bw,avx512vl")))
#define FASTLOAD_PAIRS

#include "jpeg/pixels/avx2.h"

namespace fastload {
namespace {

// 16-bit lanes as 32-bit ones.
struct Halves {
  __m256i low, high;
};

FASTLOAD_INLINE Halves operator+(Halves a, Halves b) {
  return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}

FASTLOAD_INLINE Halves operator-(Halves a, Halves b) {
  return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)};
}

FASTLOAD_INLINE Halves interleaved(__m256i a, __m256i b) {
  return {_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b)};
}

FASTLOAD_INLINE Halves combine(Halves pairs, int a, int b) {
  return {combine(pairs.low, a, b), combine(pairs.high, a, b)};
}

FASTLOAD_INLINE Halves shifted(__m256i x, __m256i bias) {
  const Halves high = interleaved(_mm256_setzero_si256(), x);
  return {_mm256_add_epi32(_mm256_srai_epi32(high.low, 3), bias),
          _mm256_add_epi32(_mm256_srai_epi32(high.high, 3), bias)};
}

template <int kShift>
FASTLOAD_INLINE __m256i narrowed(Halves x) {
  return _mm256_packs_epi32(_mm256_srai_epi32(x.low, kShift), _mm256_srai_epi32(x.high, kShift));
}

// transform_eight() of two blocks with values of 16 bits; results that do not fit are clipped.
template <int kShift, bool kHalf>
FASTLOAD_INLINE void transform_sixteen(__m256i (&x)[8], int bias) {
  const __m256i zero = _mm256_setzero_si256(), rounding = _mm256_set1_epi32(bias);
  const __m256i four = kHalf ? zero : x[4], five = kHalf ? zero : x[5], six = kHalf ? zero : x[6],
                seven = kHalf ? zero : x[7];
  const Halves sum = shifted(_mm256_add_epi16(x[0], four), rounding);
  const Halves difference = shifted(_mm256_sub_epi16(x[0], four), rounding);
  const Halves two_six = interleaved(x[2], six);
  const Halves a = combine(two_six, 4433, -10704), b = combine(two_six, 10703, 4433);
  const Halves even[4] = {sum + b, difference + a, difference - a, sum - b};
  const Halves sums = interleaved(_mm256_add_epi16(x[3], seven), _mm256_add_epi16(x[1], five));
  const Halves c = combine(sums, -6436, 9633), d = combine(sums, 9633, 6437);
  const Halves one_seven = interleaved(x[1], seven), three_five = interleaved(x[3], five);
  const Halves odd[4] = {combine(one_seven, 4926, -7373) + d, combine(three_five, 4177, -20995) + c,
                         combine(three_five, -20995, -4176) + d, combine(one_seven, -7373, -4927) + c};
  for (int i = 0; i < 4; ++i) {
    x[i] = narrowed<kShift>(even[i] + odd[i]);
    x[7 - i] = narrowed<kShift>(even[i] - odd[i]);
  }
}

// The 8 by 8 values of each block.
FASTLOAD_INLINE void transpose_sixteen(__m256i (&x)[8]) {
  __m256i pairs[8], quads[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_epi16(x[i], x[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_epi16(x[i], x[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    quads[i] = _mm256_unpacklo_epi32(pairs[i], pairs[i + 2]);
    quads[i + 1] = _mm256_unpackhi_epi32(pairs[i], pairs[i + 2]);
    quads[i + 2] = _mm256_unpacklo_epi32(pairs[i + 1], pairs[i + 3]);
    quads[i + 3] = _mm256_unpackhi_epi32(pairs[i + 1], pairs[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = _mm256_unpacklo_epi64(quads[i], quads[i + 4]);
    x[2 * i + 1] = _mm256_unpackhi_epi64(quads[i], quads[i + 4]);
  }
}

// Columns of words to rows of bytes: of two rows, each the first block's eight bytes and then the second's.
FASTLOAD_INLINE void store_rows(const __m256i (&x)[8], std::uint8_t* out, std::size_t stride) {
  __m256i bytes[4];
  for (int i = 0; i < 4; ++i) bytes[i] = _mm256_packus_epi16(x[i], x[i + 4]);
  const __m256i left[2] = {_mm256_unpacklo_epi8(bytes[0], bytes[1]), _mm256_unpacklo_epi8(bytes[2], bytes[3])};
  const __m256i right[2] = {_mm256_unpackhi_epi8(bytes[0], bytes[1]), _mm256_unpackhi_epi8(bytes[2], bytes[3])};
  const Halves lefts = interleaved(left[0], left[1]), rights = interleaved(right[0], right[1]);
  const __m256i rows[4] = {_mm256_unpacklo_epi32(lefts.low, rights.low), _mm256_unpackhi_epi32(lefts.low, rights.low),
                           _mm256_unpacklo_epi32(lefts.high, rights.high),
                           _mm256_unpackhi_epi32(lefts.high, rights.high)};
  for (const __m256i& two : rows) {
    const __m256i both = _mm256_permute4x64_epi64(two, 0xD8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(both));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + stride), _mm256_extracti128_si256(both, 1));
    out += 2 * stride;
  }
}

// Two blocks that lie side by side: transform_block() of both.
template <bool kCorner>
FASTLOAD_INLINE bool transform_pair(const std::int16_t* blocks, const std::int32_t* quantization, std::uint8_t* out,
                                    std::size_t stride) {
  __m256i x[8], seen = _mm256_setzero_si256(), overflow = seen, levels = seen;
  for (int i = 0; i < (kCorner ? 4 : 8); ++i) {
    const auto* const row = reinterpret_cast<const __m128i*>(blocks + 8 * i);
    const __m256i values =
        _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(row)), _mm_loadu_si128(row + 8), 1);
    const __m256i wide = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(quantization + 8 * i));
    const __m256i factors = _mm256_permute4x64_epi64(_mm256_packs_epi32(wide, wide), 0x88);
    x[i] = _mm256_mullo_epi16(values, factors);
    const __m256i sign = _mm256_srai_epi16(x[i], 15);
    overflow = _mm256_or_si256(overflow, _mm256_xor_si256(_mm256_mulhi_epi16(values, factors), sign));
    seen = _mm256_or_si256(seen, _mm256_abs_epi16(x[i]));
  }
  transform_sixteen<11, kCorner>(x, 1 << 10);
  for (const __m256i& row : x) seen = _mm256_or_si256(seen, _mm256_abs_epi16(row));
  transpose_sixteen(x);
  transform_sixteen<18, kCorner>(x, (128 << 18) + (1 << 17));
  for (const __m256i& column : x) {
    levels = _mm256_or_si256(levels, _mm256_add_epi16(column, _mm256_set1_epi16(kMostBelow)));
  }
  store_rows(x, out, stride);
  const __m256i too_much =
      _mm256_or_si256(_mm256_and_si256(seen, _mm256_set1_epi16(static_cast<short>(~(kMostValue - 1)))),
                      _mm256_and_si256(levels, _mm256_set1_epi16(static_cast<short>(~(kMostResults - 1)))));
  const __m256i wrong = _mm256_or_si256(too_much, overflow);
  return _mm256_testz_si256(wrong, wrong) != 0;
}

FASTLOAD_TARGET inline bool transform_pair(const std::int16_t* blocks, int last, const std::int32_t* quantization,
                                           std::uint8_t* out, std::size_t stride) {
  return last < kCornerEnd ? transform_pair<true>(blocks, quantization, out, stride)
                           : transform_pair<false>(blocks, quantization, out, stride);
}

}  // namespace
}  // namespace fastload

#include "jpeg/pixels/loops.h"

namespace fastload {
const PixelKernels kAvx512Pixels = kPixelLoops;
}  // namespace fastload

#endif
