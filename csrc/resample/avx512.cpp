// Horizontal and vertical passes for AVX-512 with VBMI and VNNI (Ice Lake, Zen 4 and later).
//
// vpdpbusd adds four products of unsigned by signed bytes to each dword, so a weight is written as three signed 8-bit
// digits, weight = d2 * 2^16 + d1 * 2^8 + d0. The three sums are combined at the end, modulo 2^32 like the portable
// sums.
#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "resample/kernels.h"

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns about its own headers: their "undefined" vectors are written as uninitialized variables (GCC bug
// 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#define FASTLOAD_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni")))

namespace fastload {
namespace {

enum Mode { kPortable, kGroups, kPixels };

constexpr int kLanes = 16;  // dwords (output bytes) per group

// Adding this bias and flipping the sign bits leaves the signed digits in the bytes: each digit d becomes d + 128 in
// [0, 255] without a borrow, and ^ 0x80 takes the 128 away again.
constexpr std::int32_t kDigitBias = 0x808080;

// The rounding half, where the sums of the highest digits start: kHalf = kHalfHigh * 2^16.
constexpr int kHalfHigh = kHalf >> 16;

// An unclipped 8-bit result per dword from `kQuads` quads of taps. Each digit's sum starts from the previous one,
// shifted, so no additions are needed besides those in the products.
template <int kQuads>
FASTLOAD_AVX512 inline __m512i convolve(const __m512i* taps, const __m512i* d0, const __m512i* d1, const __m512i* d2) {
  __m512i sum = _mm512_set1_epi32(kHalfHigh);
  for (int q = 0; q < kQuads; ++q) sum = _mm512_dpbusd_epi32(sum, taps[q], d2[q]);
  sum = _mm512_slli_epi32(sum, 8);
  for (int q = 0; q < kQuads; ++q) sum = _mm512_dpbusd_epi32(sum, taps[q], d1[q]);
  sum = _mm512_slli_epi32(sum, 8);
  for (int q = 0; q < kQuads; ++q) sum = _mm512_dpbusd_epi32(sum, taps[q], d0[q]);
  return _mm512_srai_epi32(sum, kPrecisionBits);
}

// The same from three sums, for too many taps to keep in registers.
FASTLOAD_AVX512 inline __m512i whole(__m512i s0, __m512i s1, __m512i s2) {
  const __m512i high = _mm512_add_epi32(s1, _mm512_slli_epi32(s2, 8));
  return _mm512_srai_epi32(_mm512_add_epi32(s0, _mm512_slli_epi32(high, 8)), kPrecisionBits);
}

// Splits four weights into dwords: digit 0 of each, digit 1 of each, digit 2 of each (and one unused dword).
FASTLOAD_AVX512 inline __m128i digits_of(const std::int32_t* weights) {
  const __m128i transpose = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m128i biased =
      _mm_add_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(weights)), _mm_set1_epi32(kDigitBias));
  return _mm_shuffle_epi8(_mm_xor_si128(biased, _mm_set1_epi32(kDigitBias)), transpose);
}

// kGroups: 16 output bytes at a time, from at most 64 consecutive source bytes per four taps. One vpermb gives each
// dword its four bytes. Per group and four taps: 16 dwords each of byte indices, d0, d1 and d2.
FASTLOAD_AVX512 bool pack_groups(const Axis& axis, int channels, PackedAxis& packed) {
  const int quads = (axis.taps + 3) / 4;
  const int bytes = axis.count * channels;
  const int groups = (bytes + 4 * kLanes - 1) / (4 * kLanes) * 4;
  const int padded = axis.count + 2 * kLanes;
  packed.offsets.resize(static_cast<std::size_t>(groups) * quads);

  // Per pixel: its start, then its digits per quad.
  auto* starts = reinterpret_cast<std::int32_t*>(
      packed.scratch.require(sizeof(std::int32_t) * padded * (1 + 3 * static_cast<std::size_t>(quads))));
  std::int32_t* digits = starts + padded;
  for (int p = 0; p < padded; ++p) {
    const int pixel = std::min(p, axis.count - 1);
    starts[p] = axis.start[pixel] * channels;
    for (int q = 0; q < quads; ++q) {
      alignas(16) std::int32_t dwords[4];
      _mm_store_si128(reinterpret_cast<__m128i*>(dwords), digits_of(axis.row(pixel) + 4 * q));
      for (int d = 0; d < 3; ++d) digits[(3 * q + d) * padded + p] = dwords[d];
    }
  }

  auto* out = reinterpret_cast<__m512i*>(packed.bytes.require(static_cast<std::size_t>(groups) * quads * 256));
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i steps = _mm512_set1_epi32(channels == 3 ? 0x09060300 : 0x03020100);
  for (int g = 0; g < groups; ++g) {
    const int first = std::min(g * kLanes / channels, axis.count - 1);
    const int phase = g * kLanes - g * kLanes / channels * channels;
    __m512i pixel = _mm512_add_epi32(lane, _mm512_set1_epi32(phase)), channel = _mm512_setzero_si512();
    if (channels == 3) {  // x / 3 == x * 11 >> 5 for x < 32
      const __m512i third = _mm512_srli_epi32(_mm512_mullo_epi32(pixel, _mm512_set1_epi32(11)), 5);
      channel = _mm512_sub_epi32(pixel, _mm512_mullo_epi32(third, _mm512_set1_epi32(3)));
      pixel = third;
    }
    const __m512i from = _mm512_add_epi32(channel, _mm512_permutexvar_epi32(pixel, _mm512_loadu_si512(starts + first)));
    const int base = _mm512_reduce_min_epi32(from);
    const __m512i index = _mm512_sub_epi32(from, _mm512_set1_epi32(base));
    if (_mm512_reduce_max_epi32(index) + 3 * channels > 63) return false;
    const __m512i indices = _mm512_add_epi32(_mm512_mullo_epi32(index, _mm512_set1_epi32(0x01010101)), steps);
    for (int q = 0; q < quads; ++q) {
      packed.offsets[g * quads + q] = base + 4 * channels * q;
      *out++ = indices;
      for (int d = 0; d < 3; ++d) {
        *out++ = _mm512_permutexvar_epi32(pixel, _mm512_loadu_si512(digits + (3 * q + d) * padded + first));
      }
    }
  }
  return true;
}

// kPixels: one pixel per 128-bit lane, which reads 16 source bytes per four taps from any address. Vector i of a group
// of 16 pixels has pixels i, i + 4, i + 8 and i + 12. Per vector and four taps: 4 times d0, d1, d2, unused.
FASTLOAD_AVX512 void pack_pixels(const Axis& axis, PackedAxis& packed) {
  const int quads = (axis.taps + 3) / 4;
  const int groups = (axis.count + 15) / 16;
  const auto pixel_at = [&axis](int g, int i) { return std::min(16 * g + i, axis.count - 1); };
  packed.offsets.resize(static_cast<std::size_t>(groups) * 16);
  auto* out = reinterpret_cast<__m128i*>(packed.bytes.require(static_cast<std::size_t>(groups) * quads * 256));
  for (int g = 0; g < groups; ++g) {
    for (int i = 0; i < 16; ++i) packed.offsets[16 * g + i] = 3 * axis.start[pixel_at(g, i)];
    for (int i = 0; i < 4; ++i) {
      for (int q = 0; q < quads; ++q) {
        for (int lane = 0; lane < 4; ++lane) *out++ = digits_of(axis.row(pixel_at(g, 4 * lane + i)) + 4 * q);
      }
    }
  }
}

void pack(const Axis& axis, int channels, PackedAxis& packed) {
  if (pack_groups(axis, channels, packed)) {
    packed.mode = kGroups;
  } else if (channels == 3) {
    packed.mode = kPixels;
    pack_pixels(axis, packed);
  } else {
    packed.mode = kPortable;
  }
}

// Stores the first `bytes` bytes, 64 at most. Masked only if needed, because masked stores are slower on some CPUs.
FASTLOAD_AVX512 inline void store_bytes(std::uint8_t* out, __m512i value, int bytes) {
  if (bytes >= 64) {
    _mm512_storeu_si512(out, value);
  } else {
    _mm512_mask_storeu_epi8(out, (1ull << bytes) - 1, value);
  }
}

// kQuads > 0: number of tap quads known at compile time; 0: read from `quads`.
template <int kQuads, int kRows>
FASTLOAD_AVX512 void horizontal_groups(const PackedAxis& packed, int quads, const std::uint8_t* const* sources,
                                       std::uint8_t* const* outs, int bytes) {
  // Undoes the interleaving of the four groups' dwords that packing leaves.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const auto* tables = reinterpret_cast<const __m512i*>(packed.bytes.data());
  const int* offsets = packed.offsets.data();
  for (int done = 0; done < bytes; done += 4 * kLanes) {
    __m512i groups[kRows][4];
    for (int g = 0; g < 4; ++g) {
      if constexpr (kQuads > 0) {
        __m512i d0[kQuads], d1[kQuads], d2[kQuads], taps[kRows][kQuads];
        for (int q = 0; q < kQuads; ++q, tables += 4, ++offsets) {
          for (int row = 0; row < kRows; ++row) {
            taps[row][q] = _mm512_permutexvar_epi8(tables[0], _mm512_loadu_si512(sources[row] + *offsets));
          }
          d0[q] = tables[1], d1[q] = tables[2], d2[q] = tables[3];
        }
        for (int row = 0; row < kRows; ++row) groups[row][g] = convolve<kQuads>(taps[row], d0, d1, d2);
      } else {
        __m512i s0[kRows], s1[kRows], s2[kRows];
        for (int row = 0; row < kRows; ++row) {
          s0[row] = _mm512_set1_epi32(kHalf);
          s1[row] = s2[row] = _mm512_setzero_si512();
        }
        for (int q = 0; q < quads; ++q, tables += 4, ++offsets) {
          for (int row = 0; row < kRows; ++row) {
            const __m512i taps = _mm512_permutexvar_epi8(tables[0], _mm512_loadu_si512(sources[row] + *offsets));
            s0[row] = _mm512_dpbusd_epi32(s0[row], taps, tables[1]);
            s1[row] = _mm512_dpbusd_epi32(s1[row], taps, tables[2]);
            s2[row] = _mm512_dpbusd_epi32(s2[row], taps, tables[3]);
          }
        }
        for (int row = 0; row < kRows; ++row) groups[row][g] = whole(s0[row], s1[row], s2[row]);
      }
    }
    for (int row = 0; row < kRows; ++row) {
      const __m512i words = _mm512_packus_epi16(_mm512_packs_epi32(groups[row][0], groups[row][1]),
                                                _mm512_packs_epi32(groups[row][2], groups[row][3]));
      store_bytes(outs[row] + done, _mm512_permutexvar_epi32(order, words), bytes - done);
    }
  }
}

FASTLOAD_AVX512 inline __m512i load_four(const std::uint8_t* source, const int* offsets) {
  const auto load = [source](int offset) __attribute__((target("avx512f"))) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + offset));
  };
  __m512i four = _mm512_castsi128_si512(load(offsets[0]));
  four = _mm512_inserti32x4(four, load(offsets[4]), 1);
  four = _mm512_inserti32x4(four, load(offsets[8]), 2);
  return _mm512_inserti32x4(four, load(offsets[12]), 3);
}

template <int kRows>
FASTLOAD_AVX512 void horizontal_pixels(const Axis& axis, const PackedAxis& packed, const std::uint8_t* const* sources,
                                       std::uint8_t* const* outs) {
  // The first four of 5 interleaved pixels: reds, greens, blues, unused.
  const __m512i planes = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11, -1, -1, -1, -1));
  // Drops every fourth byte.
  alignas(64) static const std::uint8_t kRgb[64] = {0,  1,  2,  4,  5,  6,  8,  9,  10, 12, 13, 14, 16, 17, 18, 20,
                                                    21, 22, 24, 25, 26, 28, 29, 30, 32, 33, 34, 36, 37, 38, 40, 41,
                                                    42, 44, 45, 46, 48, 49, 50, 52, 53, 54, 56, 57, 58, 60, 61, 62};
  const __m512i rgb = _mm512_load_si512(kRgb);
  const int quads = (axis.taps + 3) / 4;
  const auto* tables = reinterpret_cast<const __m512i*>(packed.bytes.data());
  const int* offsets = packed.offsets.data();
  for (int done = 0; done < axis.count; done += 16, offsets += 16) {
    __m512i pixels[kRows][4];
    for (int i = 0; i < 4; ++i) {
      __m512i s0[kRows], s1[kRows], s2[kRows];
      for (int row = 0; row < kRows; ++row) {
        s0[row] = _mm512_set1_epi32(kHalf);
        s1[row] = s2[row] = _mm512_setzero_si512();
      }
      for (int q = 0; q < quads; ++q) {
        const __m512i digits = *tables++;
        const __m512i d0 = _mm512_shuffle_epi32(digits, _MM_PERM_AAAA);
        const __m512i d1 = _mm512_shuffle_epi32(digits, _MM_PERM_BBBB);
        const __m512i d2 = _mm512_shuffle_epi32(digits, _MM_PERM_CCCC);
        for (int row = 0; row < kRows; ++row) {
          const __m512i taps = _mm512_shuffle_epi8(load_four(sources[row] + 12 * q, offsets + i), planes);
          s0[row] = _mm512_dpbusd_epi32(s0[row], taps, d0);
          s1[row] = _mm512_dpbusd_epi32(s1[row], taps, d1);
          s2[row] = _mm512_dpbusd_epi32(s2[row], taps, d2);
        }
      }
      for (int row = 0; row < kRows; ++row) pixels[row][i] = whole(s0[row], s1[row], s2[row]);
    }
    for (int row = 0; row < kRows; ++row) {
      const __m512i words = _mm512_packus_epi16(_mm512_packs_epi32(pixels[row][0], pixels[row][1]),
                                                _mm512_packs_epi32(pixels[row][2], pixels[row][3]));
      store_bytes(outs[row] + 3 * done, _mm512_permutexvar_epi8(rgb, words), std::min(3 * (axis.count - done), 48));
    }
  }
}

template <int kRows>
void horizontal_rows(const PackedAxis& packed, int quads, const std::uint8_t* const* sources, std::uint8_t* const* outs,
                     int bytes) {
  switch (quads) {
    case 1: return horizontal_groups<1, kRows>(packed, quads, sources, outs, bytes);
    case 2: return horizontal_groups<2, kRows>(packed, quads, sources, outs, bytes);
    case 3: return horizontal_groups<3, kRows>(packed, quads, sources, outs, bytes);
    default: return horizontal_groups<0, kRows>(packed, quads, sources, outs, bytes);
  }
}

void horizontal(const Axis& axis, const PackedAxis& packed, int channels, const std::uint8_t* const* sources,
                std::uint8_t* const* outs, int rows) {
  static_assert(kRowsAtOnce == 2, "one or two rows");
  const int quads = (axis.taps + 3) / 4;
  if (packed.mode == kGroups && rows == 2)
    return horizontal_rows<2>(packed, quads, sources, outs, axis.count * channels);
  if (packed.mode == kGroups) return horizontal_rows<1>(packed, quads, sources, outs, axis.count * channels);
  if (packed.mode == kPortable) return kPortableKernels.horizontal(axis, packed, channels, sources, outs, rows);
  if (rows == 2) return horizontal_pixels<2>(axis, packed, sources, outs);
  horizontal_pixels<1>(axis, packed, sources, outs);
}

// Interleaves four rows: dword i of the result's n-th vector is column 4 * n + i of each 16-column lane.
FASTLOAD_AVX512 inline void interleave_rows(const std::uint8_t* const* rows, int x, __mmask64 wanted, __m512i* taps) {
  const __m512i r0 = _mm512_maskz_loadu_epi8(wanted, rows[0] + x);
  const __m512i r1 = _mm512_maskz_loadu_epi8(wanted, rows[1] + x);
  const __m512i r2 = _mm512_maskz_loadu_epi8(wanted, rows[2] + x);
  const __m512i r3 = _mm512_maskz_loadu_epi8(wanted, rows[3] + x);
  const __m512i low01 = _mm512_unpacklo_epi8(r0, r1), high01 = _mm512_unpackhi_epi8(r0, r1);
  const __m512i low23 = _mm512_unpacklo_epi8(r2, r3), high23 = _mm512_unpackhi_epi8(r2, r3);
  taps[0] = _mm512_unpacklo_epi16(low01, low23);
  taps[1] = _mm512_unpackhi_epi16(low01, low23);
  taps[2] = _mm512_unpacklo_epi16(high01, high23);
  taps[3] = _mm512_unpackhi_epi16(high01, high23);
}

// Packing within lanes undoes interleave_rows' unpacking within lanes.
FASTLOAD_AVX512 inline void store_columns(std::uint8_t* out, const __m512i* values, int bytes) {
  store_bytes(out,
              _mm512_packus_epi16(_mm512_packs_epi32(values[0], values[1]),  //
                                  _mm512_packs_epi32(values[2], values[3])),
              bytes);
}

template <int kQuads>
FASTLOAD_AVX512 void vertical_few(const std::uint8_t* const* rows, const std::int32_t* weights, std::uint8_t* out,
                                  int bytes) {
  __m512i d0[kQuads], d1[kQuads], d2[kQuads];
  for (int q = 0; q < kQuads; ++q) {
    const __m128i digits = digits_of(weights + 4 * q);
    d0[q] = _mm512_broadcastd_epi32(digits);
    d1[q] = _mm512_broadcastd_epi32(_mm_srli_si128(digits, 4));
    d2[q] = _mm512_broadcastd_epi32(_mm_srli_si128(digits, 8));
  }
  for (int x = 0; x < bytes; x += 64) {
    const __mmask64 wanted = bytes - x >= 64 ? ~0ull : (1ull << (bytes - x)) - 1;
    __m512i quads[kQuads][4], values[4];
    for (int q = 0; q < kQuads; ++q) interleave_rows(rows + 4 * q, x, wanted, quads[q]);
    for (int i = 0; i < 4; ++i) {
      __m512i taps[kQuads];
      for (int q = 0; q < kQuads; ++q) taps[q] = quads[q][i];
      values[i] = convolve<kQuads>(taps, d0, d1, d2);
    }
    store_columns(out + x, values, bytes - x);
  }
}

constexpr int kMostQuads = 64;

FASTLOAD_AVX512 void vertical_many(const std::uint8_t* const* rows, const std::int32_t* weights, int quads,
                                   std::uint8_t* out, int bytes) {
  alignas(16) std::int32_t digits[kMostQuads][4];
  for (int q = 0; q < quads; ++q) {
    _mm_store_si128(reinterpret_cast<__m128i*>(digits[q]), digits_of(weights + 4 * q));
  }
  for (int x = 0; x < bytes; x += 64) {
    const __mmask64 wanted = bytes - x >= 64 ? ~0ull : (1ull << (bytes - x)) - 1;
    __m512i sums[4][3], taps[4], values[4];
    for (auto& sum : sums) {
      sum[0] = _mm512_set1_epi32(kHalf);
      sum[1] = sum[2] = _mm512_setzero_si512();
    }
    for (int q = 0; q < quads; ++q) {
      interleave_rows(rows + 4 * q, x, wanted, taps);
      for (int d = 0; d < 3; ++d) {
        const __m512i digit = _mm512_set1_epi32(digits[q][d]);
        for (int i = 0; i < 4; ++i) sums[i][d] = _mm512_dpbusd_epi32(sums[i][d], taps[i], digit);
      }
    }
    for (int i = 0; i < 4; ++i) values[i] = whole(sums[i][0], sums[i][1], sums[i][2]);
    store_columns(out + x, values, bytes - x);
  }
}

void vertical(const std::uint8_t* const* rows, const std::int32_t* weights, int taps, std::uint8_t* out, int bytes) {
  const int quads = (taps + 3) / 4;
  if (quads == 1) return vertical_few<1>(rows, weights, out, bytes);
  if (quads == 2) return vertical_few<2>(rows, weights, out, bytes);
  if (quads > kMostQuads) return kPortableKernels.vertical(rows, weights, taps, out, bytes);
  vertical_many(rows, weights, quads, out, bytes);
}

FASTLOAD_AVX512 void reverse(const std::uint8_t* source, std::uint8_t* out, int pixels, int channels) {
  return kAvx2Kernels.reverse(source, out, pixels, channels);
}

}  // namespace

const Kernels kAvx512Kernels = {pack, horizontal, vertical, reverse};

}  // namespace fastload

#endif
