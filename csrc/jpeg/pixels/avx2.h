// From coefficients to RGB with AVX2's instructions, compiled by each level's file that has them for its own: before
// the include it defines FASTLOAD_TARGET, the attribute of every function here.
#pragma once

#include <initializer_list>

#include "base/planes_avx2.h"
#include "jpeg/pixels/kernels.h"

#define FASTLOAD_INLINE FASTLOAD_TARGET inline __attribute__((always_inline))

namespace fastload {
namespace {

// Two 16-bit values in each 32-bit lane.
FASTLOAD_INLINE __m256i pair(__m256i low, __m256i high) {
  return _mm256_blend_epi16(low, _mm256_slli_epi32(high, 16), 0xAA);
}

// low * a + high * b of each pair.
FASTLOAD_INLINE __m256i combine(__m256i pairs, int a, int b) {
  return _mm256_madd_epi16(pairs, _mm256_set1_epi32((a & 0xFFFF) | static_cast<int>(static_cast<unsigned>(b) << 16)));
}

// One pass, as transform_eight() in portable.cpp, for eight columns. Values fit into 16 bits, and so do sums of
// two. With kHalf, the last four of each eight are 0.
template <int kShift, bool kHalf>
FASTLOAD_INLINE void transform_eight(__m256i (&x)[8], int bias) {
  const __m256i rounding = _mm256_set1_epi32(bias);
  __m256i sum = _mm256_add_epi32(_mm256_slli_epi32(x[0], 13), rounding), difference = sum;
  __m256i two_six = x[2], one_seven = x[1], three_five = x[3], sums = pair(x[3], x[1]);
  if constexpr (kHalf) {
    const __m256i low = _mm256_set1_epi32(0xFFFF);
    two_six = _mm256_and_si256(two_six, low);
    one_seven = _mm256_and_si256(one_seven, low);
    three_five = _mm256_and_si256(three_five, low);
  } else {
    const __m256i four = _mm256_slli_epi32(x[4], 13);
    sum = _mm256_add_epi32(sum, four);
    difference = _mm256_sub_epi32(difference, four);
    two_six = pair(two_six, x[6]);
    one_seven = pair(one_seven, x[7]);
    three_five = pair(three_five, x[5]);
    sums = _mm256_add_epi16(sums, pair(x[7], x[5]));
  }
  const __m256i a = combine(two_six, 4433, -10704), b = combine(two_six, 10703, 4433);
  const __m256i even[4] = {_mm256_add_epi32(sum, b), _mm256_add_epi32(difference, a), _mm256_sub_epi32(difference, a),
                           _mm256_sub_epi32(sum, b)};
  const __m256i c = combine(sums, -6436, 9633), d = combine(sums, 9633, 6437);
  const __m256i odd[4] = {
      _mm256_add_epi32(combine(one_seven, 4926, -7373), d), _mm256_add_epi32(combine(three_five, 4177, -20995), c),
      _mm256_add_epi32(combine(three_five, -20995, -4176), d), _mm256_add_epi32(combine(one_seven, -7373, -4927), c)};
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm256_srai_epi32(_mm256_add_epi32(even[i], odd[i]), kShift);
    x[7 - i] = _mm256_srai_epi32(_mm256_sub_epi32(even[i], odd[i]), kShift);
  }
}

template <bool kHalf>  // only the upper half of the result is needed
FASTLOAD_INLINE void transpose(__m256i (&x)[8]) {
  __m256i pairs[8], quads[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_epi32(x[i], x[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_epi32(x[i], x[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    quads[i] = _mm256_unpacklo_epi64(pairs[i], pairs[i + 2]);
    quads[i + 1] = _mm256_unpackhi_epi64(pairs[i], pairs[i + 2]);
    quads[i + 2] = _mm256_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    quads[i + 3] = _mm256_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm256_permute2x128_si256(quads[i], quads[i + 4], 0x20);
    if (!kHalf) x[i + 4] = _mm256_permute2x128_si256(quads[i], quads[i + 4], 0x31);
  }
}

// With kCorner, only coefficients of the first four rows and columns are not 0.
template <bool kCorner>
FASTLOAD_INLINE bool transform_block(const std::int16_t* block, const std::int32_t* quantization, std::uint8_t* out,
                                     std::size_t stride) {
  __m256i x[8], seen = _mm256_setzero_si256();
  for (int i = 0; i < (kCorner ? 4 : 8); ++i) {
    const __m256i row = _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 8 * i)));
    x[i] = _mm256_madd_epi16(row, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(quantization + 8 * i)));
    seen = _mm256_or_si256(seen, _mm256_abs_epi32(x[i]));
  }
  transform_eight<11, kCorner>(x, 1 << 10);
  for (const __m256i& row : x) seen = _mm256_or_si256(seen, _mm256_abs_epi32(row));
  transpose<kCorner>(x);
  transform_eight<18, kCorner>(x, (128 << 18) + (1 << 17));
  // Lane by lane: columns 0 and 1 of four rows, and so on.
  const __m256i words[4] = {_mm256_packs_epi32(x[0], x[1]), _mm256_packs_epi32(x[2], x[3]),
                            _mm256_packs_epi32(x[4], x[5]), _mm256_packs_epi32(x[6], x[7])};
  __m256i levels = _mm256_setzero_si256();
  for (const __m256i& word : words) {
    levels = _mm256_or_si256(levels, _mm256_add_epi16(word, _mm256_set1_epi16(kMostBelow)));
  }
  const __m256i columns_to_rows =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m256i left = _mm256_shuffle_epi8(_mm256_packus_epi16(words[0], words[1]), columns_to_rows);
  const __m256i right = _mm256_shuffle_epi8(_mm256_packus_epi16(words[2], words[3]), columns_to_rows);
  const __m256i first = _mm256_unpacklo_epi32(left, right), second = _mm256_unpackhi_epi32(left, right);
  const auto store = [out, stride](std::size_t y, __m128i two_rows) FASTLOAD_TARGET {
    _mm_storel_pi(reinterpret_cast<__m64*>(out + y * stride), _mm_castsi128_ps(two_rows));
    _mm_storeh_pi(reinterpret_cast<__m64*>(out + (y + 1) * stride), _mm_castsi128_ps(two_rows));
  };
  store(0, _mm256_castsi256_si128(first));
  store(2, _mm256_castsi256_si128(second));
  store(4, _mm256_extracti128_si256(first, 1));
  store(6, _mm256_extracti128_si256(second, 1));
  const __m256i too_much =
      _mm256_or_si256(_mm256_and_si256(seen, _mm256_set1_epi32(~(kMostValue - 1))),
                      _mm256_and_si256(levels, _mm256_set1_epi16(static_cast<short>(~(kMostResults - 1)))));
  return _mm256_testz_si256(too_much, too_much) != 0;
}

FASTLOAD_TARGET inline bool transform_block(const std::int16_t* block, int last, const std::int32_t* quantization,
                                            std::uint8_t* out, std::size_t stride) {
  return last < kCornerEnd ? transform_block<true>(block, quantization, out, stride)
                           : transform_block<false>(block, quantization, out, stride);
}

FASTLOAD_TARGET inline void stretch_sixteen(const std::uint16_t* sums, __m256i left, __m256i right, __m128i shift,
                                            std::uint8_t* out) {
  const auto* const at = reinterpret_cast<const __m256i*>(sums + 1);
  const __m256i middle = _mm256_loadu_si256(at);
  const __m256i most = _mm256_add_epi16(middle, _mm256_add_epi16(middle, middle));
  const __m256i before = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums));
  const __m256i after = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums + 2));
  const __m256i even = _mm256_srl_epi16(_mm256_add_epi16(_mm256_add_epi16(most, before), left), shift);
  const __m256i odd = _mm256_srl_epi16(_mm256_add_epi16(_mm256_add_epi16(most, after), right), shift);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_or_si256(even, _mm256_slli_epi16(odd, 8)));
}

FASTLOAD_TARGET void stretch(const std::uint16_t* sums, std::size_t count, unsigned left_bias, unsigned right_bias,
                             unsigned shift, std::uint8_t* out) {
  const __m256i left = _mm256_set1_epi16(static_cast<short>(left_bias));
  const __m256i right = _mm256_set1_epi16(static_cast<short>(right_bias));
  const __m128i shifts = _mm_cvtsi32_si128(static_cast<int>(shift));
  static_assert(kStretchSlack >= 15);
  for (std::size_t i = 0; i < count; i += 16) stretch_sixteen(sums + i, left, right, shifts, out + 2 * i);
}

// Twice `value` times `factor` / 65536, then half of it, rounded: 16 bits hold everything.
FASTLOAD_INLINE __m256i scaled(__m256i value, int factor) {
  const __m256i twice =
      _mm256_mulhi_epi16(_mm256_add_epi16(value, value), _mm256_set1_epi16(static_cast<short>(factor)));
  return _mm256_srai_epi16(_mm256_add_epi16(twice, _mm256_set1_epi16(1)), 1);
}

FASTLOAD_INLINE __m256i green_of(__m256i pairs) {
  const __m256i sum = _mm256_add_epi32(combine(pairs, -22554, 65536 - 46802), _mm256_set1_epi32(32768));
  return _mm256_srai_epi32(sum, 16);
}

FASTLOAD_INLINE __m256i load_words(const std::uint8_t* bytes) { return _mm256_cvtepu8_epi16(load_half(bytes)); }

struct Words {
  __m256i red, green, blue;
};

FASTLOAD_INLINE Words to_words(const std::uint8_t* y, const std::uint8_t* cb, const std::uint8_t* cr) {
  const __m256i middle = _mm256_set1_epi16(128);
  const __m256i luma = load_words(y);
  const __m256i blue = _mm256_sub_epi16(load_words(cb), middle), red = _mm256_sub_epi16(load_words(cr), middle);
  const __m256i green =
      _mm256_packs_epi32(green_of(_mm256_unpacklo_epi16(blue, red)), green_of(_mm256_unpackhi_epi16(blue, red)));
  return {_mm256_add_epi16(luma, _mm256_add_epi16(red, scaled(red, 91881 - 65536))),
          _mm256_add_epi16(luma, _mm256_sub_epi16(green, red)),
          _mm256_add_epi16(luma, _mm256_add_epi16(_mm256_add_epi16(blue, blue), scaled(blue, 116130 - 131072)))};
}

FASTLOAD_TARGET inline void to_planes(const std::uint8_t* y, const std::uint8_t* cb, const std::uint8_t* cr,
                                      Planes& planes) {
  static_assert(kBlock == 32);
  const Words a = to_words(y, cb, cr), b = to_words(y + 16, cb + 16, cr + 16);
  const auto store = [](__m256i low, __m256i high, std::uint8_t* plane) FASTLOAD_TARGET {
    const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(low, high), 0xD8);
    _mm256_store_si256(reinterpret_cast<__m256i*>(plane), bytes);
  };
  store(a.red, b.red, planes.red);
  store(a.green, b.green, planes.green);
  store(a.blue, b.blue, planes.blue);
}

}  // namespace
}  // namespace fastload
