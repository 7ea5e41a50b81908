// Changes of colour with AVX2. Included by the files of levels that have it.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include "base/planes_avx2.h"
#include "image/color/kernels.h"

namespace fastload {
namespace {

// Image.convert("L") of 8 pixels: red * 19595 + green * 38470 + blue * 7471, with half of green's weight in each pair,
// which must be below 2^15.
FASTLOAD_AVX2 inline __m256i gray_of(__m256i red_green, __m256i green_blue) {
  const __m256i sum = _mm256_add_epi32(_mm256_madd_epi16(red_green, _mm256_set1_epi32(19235 << 16 | 19595)),
                                       _mm256_madd_epi16(green_blue, _mm256_set1_epi32(7471 << 16 | 19235)));
  return _mm256_srli_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(0x8000)), 16);
}

FASTLOAD_AVX2 inline __m256i gray_of_16(__m256i red, __m256i green, __m256i blue) {
  return _mm256_packs_epi32(gray_of(_mm256_unpacklo_epi16(red, green), _mm256_unpacklo_epi16(green, blue)),
                            gray_of(_mm256_unpackhi_epi16(red, green), _mm256_unpackhi_epi16(green, blue)));
}

FASTLOAD_AVX2 inline void gray_of(const Planes& planes, std::uint8_t* gray) {
  const __m256i zero = _mm256_setzero_si256();
  const __m256i red = _mm256_load_si256(reinterpret_cast<const __m256i*>(planes.red));
  const __m256i green = _mm256_load_si256(reinterpret_cast<const __m256i*>(planes.green));
  const __m256i blue = _mm256_load_si256(reinterpret_cast<const __m256i*>(planes.blue));
  const __m256i low =
      gray_of_16(_mm256_unpacklo_epi8(red, zero), _mm256_unpacklo_epi8(green, zero), _mm256_unpacklo_epi8(blue, zero));
  const __m256i high =
      gray_of_16(_mm256_unpackhi_epi8(red, zero), _mm256_unpackhi_epi8(green, zero), _mm256_unpackhi_epi8(blue, zero));
  _mm256_store_si256(reinterpret_cast<__m256i*>(gray), _mm256_packus_epi16(low, high));
}

// blended() of 8 values. The packs below clip at 0, to which NaN goes as well: min returns its second operand for NaN,
// and the conversion the lowest integer.
FASTLOAD_AVX2 inline __m256i blend(__m256i from, __m256i difference, __m256 factor) {
  const __m256 value = _mm256_add_ps(_mm256_cvtepi32_ps(from), _mm256_mul_ps(factor, _mm256_cvtepi32_ps(difference)));
  return _mm256_cvttps_epi32(_mm256_min_ps(_mm256_set1_ps(255.0f), value));
}

FASTLOAD_AVX2 inline __m256i blend_16(__m256i from, __m256i to, __m256 factor) {
  const __m256i zero = _mm256_setzero_si256();
  const __m256i difference = _mm256_sub_epi16(to, from);
  const __m256i sign = _mm256_srai_epi16(difference, 15);
  return _mm256_packs_epi32(blend(_mm256_unpacklo_epi16(from, zero), _mm256_unpacklo_epi16(difference, sign), factor),
                            blend(_mm256_unpackhi_epi16(from, zero), _mm256_unpackhi_epi16(difference, sign), factor));
}

// Blends kBlock bytes; the result replaces `to`.
FASTLOAD_AVX2 inline void blend(const std::uint8_t* from, std::uint8_t* to, float factor) {
  const __m256i zero = _mm256_setzero_si256();
  const __m256 factors = _mm256_set1_ps(factor);
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(to));
  const __m256i low = blend_16(_mm256_unpacklo_epi8(a, zero), _mm256_unpacklo_epi8(b, zero), factors);
  const __m256i high = blend_16(_mm256_unpackhi_epi8(a, zero), _mm256_unpackhi_epi8(b, zero), factors);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_packus_epi16(low, high));
}

}  // namespace
}  // namespace fastload
