// Between pixels and planes, with AVX2. Included by the files of levels that have it.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "base/planes.h"

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

}  // namespace
}  // namespace fastload
