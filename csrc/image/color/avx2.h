// Between pixels and planes, with AVX2. Included by the files of levels that have it.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include "base/planes.h"
#include "image/color/kernels.h"

// Not a compiler flag for the whole file: the linker could then keep an AVX2 copy of a standard-library inline function
// for the whole program.
#define FASTLOAD_AVX2 __attribute__((target("avx2,fma")))

namespace fastload {
namespace {

// pshufb's indices from 48 bytes of pixels to 16 of each plane, and back; 0x80 gives 0.
struct Shuffles {
  alignas(16) std::uint8_t split[3][3][16] = {};  // [plane][16 bytes of pixels]
  alignas(16) std::uint8_t merge[3][3][16] = {};  // [16 bytes of pixels][plane]

  constexpr Shuffles() {
    for (int i = 0; i < 48; ++i) {
      for (int part = 0; part < 3; ++part) {
        split[i % 3][part][i / 3] = i / 16 == part ? static_cast<std::uint8_t>(i % 16) : 0x80;
        merge[i / 16][part][i % 16] = i % 3 == part ? static_cast<std::uint8_t>(i / 3) : 0x80;
      }
    }
  }
};

constexpr Shuffles kShuffles;

FASTLOAD_AVX2 inline __m128i load_half(const std::uint8_t* bytes) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
}

FASTLOAD_AVX2 inline __m256i gather_bytes(__m256i a, __m256i b, __m256i c, const std::uint8_t (&shuffles)[3][16]) {
  const __m256i from_a = _mm256_shuffle_epi8(a, _mm256_broadcastsi128_si256(load_half(shuffles[0])));
  const __m256i from_b = _mm256_shuffle_epi8(b, _mm256_broadcastsi128_si256(load_half(shuffles[1])));
  const __m256i from_c = _mm256_shuffle_epi8(c, _mm256_broadcastsi128_si256(load_half(shuffles[2])));
  return _mm256_or_si256(_mm256_or_si256(from_a, from_b), from_c);
}

// The upper lanes hold the block's second half.
FASTLOAD_AVX2 inline void split(const std::uint8_t* bytes, Planes& planes) {
  const auto load = [bytes](int part) FASTLOAD_AVX2 {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load_half(bytes + part * 16)),
                                   load_half(bytes + kBlockBytes / 2 + part * 16), 1);
  };
  const __m256i a = load(0), b = load(1), c = load(2);
  _mm256_store_si256(reinterpret_cast<__m256i*>(planes.red), gather_bytes(a, b, c, kShuffles.split[0]));
  _mm256_store_si256(reinterpret_cast<__m256i*>(planes.green), gather_bytes(a, b, c, kShuffles.split[1]));
  _mm256_store_si256(reinterpret_cast<__m256i*>(planes.blue), gather_bytes(a, b, c, kShuffles.split[2]));
}

FASTLOAD_AVX2 inline void merge(const Planes& planes, std::uint8_t* bytes) {
  const __m256i red = _mm256_load_si256(reinterpret_cast<const __m256i*>(planes.red));
  const __m256i green = _mm256_load_si256(reinterpret_cast<const __m256i*>(planes.green));
  const __m256i blue = _mm256_load_si256(reinterpret_cast<const __m256i*>(planes.blue));
  for (int part = 0; part < 3; ++part) {
    const __m256i pixels = gather_bytes(red, green, blue, kShuffles.merge[part]);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes + part * 16), _mm256_castsi256_si128(pixels));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes + kBlockBytes / 2 + part * 16),
                     _mm256_extracti128_si256(pixels, 1));
  }
}

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
