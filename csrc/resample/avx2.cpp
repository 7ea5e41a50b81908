// Horizontal and vertical passes for AVX2.
//
// AVX2 multiplies pairs of 16-bit integers (pmaddwd), so a 22-bit weight is split into weight = high * 2^16 + low, both
// signed 16-bit. The two sums are combined at the end, modulo 2^32 like the portable sums.
#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "resample/kernels.h"

// Not a compiler flag for the whole file: the linker could then keep an AVX2 copy of a standard-library inline function
// for the whole program.
#define FASTLOAD_AVX2 __attribute__((target("avx2")))

namespace fastload {
namespace {

constexpr int kGroup = 8;  // pixels per step of the horizontal kernel

std::uint32_t low_pair(std::int32_t a, std::int32_t b) {
  return (static_cast<std::uint32_t>(a) & 0xffffu) | static_cast<std::uint32_t>(b) << 16;
}

std::uint32_t high_pair(std::int32_t a, std::int32_t b) {
  // (weight - low) / 2^16, low being signed: carry its sign.
  const auto high = [](std::int32_t weight) { return (weight + 0x8000) >> 16; };
  return (static_cast<std::uint32_t>(high(a)) & 0xffffu) | static_cast<std::uint32_t>(high(b)) << 16;
}

// Per group of 8 pixels, per pixel pair (i, i + 4), per pair of taps: 8 dwords of low pairs, 8 of high pairs. Each
// pixel has a 128-bit lane with red, green, blue and one unused dword.
void pack(const Axis& axis, int channels, PackedAxis& packed) {
  if (channels != 3) return;
  const int pairs = (axis.taps + 1) / 2;
  const int groups = (axis.count + kGroup - 1) / kGroup;
  packed.mode = pairs;
  packed.offsets.resize(static_cast<std::size_t>(groups) * kGroup);
  auto* out = reinterpret_cast<std::uint32_t*>(packed.bytes.require(static_cast<std::size_t>(groups) * 4 * pairs * 64));
  for (int g = 0; g < groups; ++g) {
    for (int i = 0; i < kGroup; ++i) {
      packed.offsets[g * kGroup + i] = axis.start[std::min(g * kGroup + i, axis.count - 1)] * 3;
    }
    for (int i = 0; i < 4; ++i) {
      const std::int32_t* a = axis.row(std::min(g * kGroup + i, axis.count - 1));
      const std::int32_t* b = axis.row(std::min(g * kGroup + i + 4, axis.count - 1));
      for (int t = 0; t < pairs; ++t, out += 16) {
        std::fill(out, out + 4, low_pair(a[2 * t], a[2 * t + 1]));
        std::fill(out + 4, out + 8, low_pair(b[2 * t], b[2 * t + 1]));
        std::fill(out + 8, out + 12, high_pair(a[2 * t], a[2 * t + 1]));
        std::fill(out + 12, out + 16, high_pair(b[2 * t], b[2 * t + 1]));
      }
    }
  }
}

FASTLOAD_AVX2 inline __m256i load_two(const std::uint8_t* a, const std::uint8_t* b) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a))),
                                 _mm_loadu_si128(reinterpret_cast<const __m128i*>(b)), 1);
}

FASTLOAD_AVX2 inline __m256i whole(__m256i low, __m256i high) {
  return _mm256_srai_epi32(_mm256_add_epi32(low, _mm256_slli_epi32(high, 16)), kPrecisionBits);
}

// Stores eight pixels from four vectors of two; writes 28 bytes if there is room, else only `pixels` pixels.
FASTLOAD_AVX2 inline void store_group(std::uint8_t* out, const __m256i* pairs, int pixels) {
  const __m256i rgb = _mm256_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1,  //
                                       0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
  const __m256i bytes = _mm256_shuffle_epi8(
      _mm256_packus_epi16(_mm256_packs_epi32(pairs[0], pairs[1]), _mm256_packs_epi32(pairs[2], pairs[3])), rgb);
  const __m128i left = _mm256_castsi256_si128(bytes), right = _mm256_extracti128_si256(bytes, 1);
  if (pixels >= kGroup + 2) {  // each store writes 4 bytes too many; the next one overwrites them
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), left);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 12), right);
  } else {
    std::uint8_t last[32];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(last), left);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(last + 12), right);
    std::memcpy(out, last, static_cast<std::size_t>(std::min(pixels, kGroup)) * 3);
  }
}

// kPairs > 0: number of tap pairs known at compile time; 0: read from `packed`.
template <int kPairs, int kRows>
FASTLOAD_AVX2 void horizontal_rgb(const Axis& axis, const PackedAxis& packed, const std::uint8_t* const* sources,
                                  std::uint8_t* const* outs) {
  const int pairs = kPairs > 0 ? kPairs : packed.mode;
  // Of 5 interleaved pixels: the first two, or the third and fourth, as 16-bit (red, red), (green, green), (blue,
  // blue).
  const __m256i first = _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1,  //
                                         0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1);
  const __m256i second = _mm256_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1,  //
                                          6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
  const auto* weights = reinterpret_cast<const __m256i*>(packed.bytes.data());
  const int* offsets = packed.offsets.data();
  for (int done = 0; done < axis.count; done += kGroup, offsets += kGroup) {
    __m256i pixels[kRows][4];
    for (int i = 0; i < 4; ++i) {
      const std::ptrdiff_t a = offsets[i], b = offsets[i + 4];
      __m256i low[kRows], high[kRows];
      for (int row = 0; row < kRows; ++row) {
        low[row] = _mm256_set1_epi32(kHalf);
        high[row] = _mm256_setzero_si256();
      }
      for (int t = 0; t < pairs; t += 2) {
        const int at = 6 * t;
        const bool both = t + 1 < pairs;
        for (int row = 0; row < kRows; ++row) {
          const __m256i bytes = load_two(sources[row] + a + at, sources[row] + b + at);
          const __m256i taps = _mm256_shuffle_epi8(bytes, first);
          low[row] = _mm256_add_epi32(low[row], _mm256_madd_epi16(taps, weights[0]));
          high[row] = _mm256_add_epi32(high[row], _mm256_madd_epi16(taps, weights[1]));
          if (!both) continue;
          const __m256i more = _mm256_shuffle_epi8(bytes, second);
          low[row] = _mm256_add_epi32(low[row], _mm256_madd_epi16(more, weights[2]));
          high[row] = _mm256_add_epi32(high[row], _mm256_madd_epi16(more, weights[3]));
        }
        weights += both ? 4 : 2;
      }
      for (int row = 0; row < kRows; ++row) pixels[row][i] = whole(low[row], high[row]);
    }
    for (int row = 0; row < kRows; ++row) store_group(outs[row] + 3 * done, pixels[row], axis.count - done);
  }
}

template <int kRows>
void horizontal_rows(const Axis& axis, const PackedAxis& packed, const std::uint8_t* const* sources,
                     std::uint8_t* const* outs) {
  switch (packed.mode) {
    case 1: return horizontal_rgb<1, kRows>(axis, packed, sources, outs);
    case 2: return horizontal_rgb<2, kRows>(axis, packed, sources, outs);
    case 3: return horizontal_rgb<3, kRows>(axis, packed, sources, outs);
    case 4: return horizontal_rgb<4, kRows>(axis, packed, sources, outs);
    default: return horizontal_rgb<0, kRows>(axis, packed, sources, outs);
  }
}

void horizontal(const Axis& axis, const PackedAxis& packed, int channels, const std::uint8_t* const* sources,
                std::uint8_t* const* outs, int rows) {
  static_assert(kRowsAtOnce == 2, "one or two rows");
  if (channels != 3) return kPortableKernels.horizontal(axis, packed, channels, sources, outs, rows);
  if (rows == 2) return horizontal_rows<2>(axis, packed, sources, outs);
  return horizontal_rows<1>(axis, packed, sources, outs);
}

// Computes 32 bytes from `pairs` pairs of rows.
FASTLOAD_AVX2 inline __m256i column_block(const std::uint8_t* const* rows, const std::uint32_t* weights, int pairs,
                                          int x) {
  const __m256i zero = _mm256_setzero_si256();
  __m256i low[4], high[4];
  for (int i = 0; i < 4; ++i) low[i] = _mm256_set1_epi32(kHalf), high[i] = zero;
  for (int t = 0; t < pairs; ++t) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[2 * t] + x));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[2 * t + 1] + x));
    const __m256i ab_low = _mm256_unpacklo_epi8(a, b), ab_high = _mm256_unpackhi_epi8(a, b);
    const __m256i taps[4] = {_mm256_unpacklo_epi8(ab_low, zero), _mm256_unpackhi_epi8(ab_low, zero),
                             _mm256_unpacklo_epi8(ab_high, zero), _mm256_unpackhi_epi8(ab_high, zero)};
    const __m256i low_weights = _mm256_set1_epi32(static_cast<int>(weights[2 * t]));
    const __m256i high_weights = _mm256_set1_epi32(static_cast<int>(weights[2 * t + 1]));
    for (int i = 0; i < 4; ++i) {
      low[i] = _mm256_add_epi32(low[i], _mm256_madd_epi16(taps[i], low_weights));
      high[i] = _mm256_add_epi32(high[i], _mm256_madd_epi16(taps[i], high_weights));
    }
  }
  return _mm256_packus_epi16(_mm256_packs_epi32(whole(low[0], high[0]), whole(low[1], high[1])),
                             _mm256_packs_epi32(whole(low[2], high[2]), whole(low[3], high[3])));
}

template <int kPairs>
FASTLOAD_AVX2 void vertical_blocks(const std::uint8_t* const* rows, const std::uint32_t* weights, int pairs,
                                   std::uint8_t* out, int bytes) {
  for (int x = 0;; x += 32) {
    x = std::min(x, bytes - 32);  // the last block overlaps the previous one
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + x),
                        column_block(rows, weights, kPairs > 0 ? kPairs : pairs, x));
    if (x == bytes - 32) return;
  }
}

void vertical(const std::uint8_t* const* rows, const std::int32_t* weights, int taps, std::uint8_t* out, int bytes) {
  constexpr int kMostPairs = 64;
  const int pairs = (taps + 1) / 2;
  if (bytes < 32 || pairs > kMostPairs) return kPortableKernels.vertical(rows, weights, taps, out, bytes);
  std::uint32_t split[2 * kMostPairs];
  for (int t = 0; t < pairs; ++t) {
    split[2 * t] = low_pair(weights[2 * t], weights[2 * t + 1]);
    split[2 * t + 1] = high_pair(weights[2 * t], weights[2 * t + 1]);
  }
  switch (pairs) {
    case 1: return vertical_blocks<1>(rows, split, pairs, out, bytes);
    case 2: return vertical_blocks<2>(rows, split, pairs, out, bytes);
    case 3: return vertical_blocks<3>(rows, split, pairs, out, bytes);
    default: return vertical_blocks<0>(rows, split, pairs, out, bytes);
  }
}

FASTLOAD_AVX2 void reverse(const std::uint8_t* source, std::uint8_t* out, int pixels, int channels) {
  if (channels != 3) return kPortableKernels.reverse(source, out, pixels, channels);
  // Reverses 5 pixels at the end of 16 bytes; the next store overwrites the extra byte.
  const __m128i turn = _mm_setr_epi8(13, 14, 15, 10, 11, 12, 7, 8, 9, 4, 5, 6, 1, 2, 3, 0);
  for (; pixels > 5; pixels -= 5, out += 15) {
    const auto* last = reinterpret_cast<const __m128i*>(source + 3 * pixels - 16);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_shuffle_epi8(_mm_loadu_si128(last), turn));
  }
  kPortableKernels.reverse(source, out, pixels, channels);
}

}  // namespace

const Kernels kAvx2Kernels = {pack, horizontal, vertical, reverse};

}  // namespace fastload

#endif
