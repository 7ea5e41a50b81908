// The passes of a resize in float, 16 values at a time; each sums its taps in order, as torch does.
#include "resample/float/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns about its own headers, see resample/avx512.cpp.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#endif

namespace fastload {
namespace {

constexpr int kBlock = 16;  // bytes of a row that are spread at once

void spread(const std::uint8_t* const* rows, int bytes, float* lanes) {
  for (int i = 0; i < bytes; ++i, lanes += kLanes) {
    for (int row = 0; row < kLanes; ++row) lanes[row] = rows[row][i];
  }
}

void horizontal(const FloatAxis& axis, int channels, const float* lanes, float* out) {
  for (int i = 0; i < axis.count; ++i) {
    const float* weights = axis.row(i);
    const int taps = axis.size[i], separate = axis.separate[i];
    for (int channel = 0; channel < channels; ++channel, out += kLanes) {
      const float* source = lanes + static_cast<std::ptrdiff_t>(axis.start[i] * channels + channel) * kLanes;
      float sums[kLanes];
      for (int row = 0; row < kLanes; ++row) sums[row] = source[row] * weights[0];
      for (int t = 1; t < taps; ++t) {
        source += static_cast<std::ptrdiff_t>(channels) * kLanes;
        if (t < separate) {
          for (int row = 0; row < kLanes; ++row) sums[row] += source[row] * weights[t];
        } else {
          for (int row = 0; row < kLanes; ++row) sums[row] = std::fmaf(source[row], weights[t], sums[row]);
        }
      }
      std::copy(sums, sums + kLanes, out);
    }
  }
}

// The rest of a row from column `x` on.
void vertical_from(int x, const float* const* rows, const float* weights, int taps, int separate, float* out,
                   int count) {
  for (; x < count; ++x) {
    float sum = rows[0][x] * weights[0];
    for (int t = 1; t < separate; ++t) sum += rows[t][x] * weights[t];
    for (int t = separate; t < taps; ++t) sum = std::fmaf(rows[t][x], weights[t], sum);
    out[x] = sum;
  }
}

void vertical(const float* const* rows, const float* weights, int taps, int separate, float* out, int count) {
  vertical_from(0, rows, weights, taps, separate, out, count);
}

void round_from(int x, const float* values, int count, std::uint8_t* out) {
  for (; x < count; ++x) out[x] = static_cast<std::uint8_t>(std::clamp(std::nearbyint(values[x]), 0.0f, 255.0f));
}

void round(const float* values, int count, std::uint8_t* out) { round_from(0, values, count, out); }

}  // namespace

const FloatKernels kPortableFloatKernels = {spread, horizontal, vertical, round};

#if defined(__x86_64__)

#define FASTLOAD_AVX2 __attribute__((target("avx2,fma")))
#define FASTLOAD_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))

namespace {

// Transposes kBlock bytes of kLanes rows: `columns[i]` gets byte i of each row.
inline void transpose(const std::uint8_t* const* rows, std::ptrdiff_t at, __m128i* columns) {
  static_assert(kLanes == 16 && kBlock == 16, "a square of bytes");
  __m128i a[16], b[16];
  for (int i = 0; i < 16; ++i) a[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[i] + at));
  // Each step interleaves row i with row i + 8, which turns the bits of a byte's place by one.
  const auto step = [](const __m128i* from, __m128i* to) {
    for (int i = 0; i < 8; ++i) {
      to[2 * i] = _mm_unpacklo_epi8(from[i], from[i + 8]);
      to[2 * i + 1] = _mm_unpackhi_epi8(from[i], from[i + 8]);
    }
  };
  step(a, b);
  step(b, a);
  step(a, b);
  step(b, columns);
}

// Calls `put(columns, count, lanes)` for each block of bytes.
template <class Put>
inline void spread_blocks(const std::uint8_t* const* rows, int bytes, float* lanes, Put put) {
  __m128i columns[kBlock];
  int at = 0;
  for (; at + kBlock <= bytes; at += kBlock, lanes += kBlock * kLanes) {
    transpose(rows, at, columns);
    put(columns, kBlock, lanes);
  }
  if (at == bytes) return;
  std::uint8_t rest[kLanes][kBlock];
  const std::uint8_t* copies[kLanes];
  for (int row = 0; row < kLanes; ++row) {
    std::memcpy(rest[row], rows[row] + at, static_cast<std::size_t>(bytes - at));
    std::memset(rest[row] + bytes - at, 0, static_cast<std::size_t>(kBlock - (bytes - at)));
    copies[row] = rest[row];
  }
  transpose(copies, 0, columns);
  put(columns, bytes - at, lanes);
}

FASTLOAD_AVX2 void put_avx2(const __m128i* columns, int count, float* lanes) {
  for (int i = 0; i < count; ++i, lanes += kLanes) {
    _mm256_store_ps(lanes, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(columns[i])));
    _mm256_store_ps(lanes + 8, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(columns[i], 8))));
  }
}

FASTLOAD_AVX512 void put_avx512(const __m128i* columns, int count, float* lanes) {
  for (int i = 0; i < count; ++i, lanes += kLanes) {
    _mm512_store_ps(lanes, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(columns[i])));
  }
}

void spread_avx2(const std::uint8_t* const* rows, int bytes, float* lanes) {
  spread_blocks(rows, bytes, lanes, put_avx2);
}

void spread_avx512(const std::uint8_t* const* rows, int bytes, float* lanes) {
  spread_blocks(rows, bytes, lanes, put_avx512);
}

template <int kChannels>
FASTLOAD_AVX2 void horizontal_avx2_of(const FloatAxis& axis, const float* lanes, float* out) {
  for (int i = 0; i < axis.count; ++i) {
    const float* weights = axis.row(i);
    const float* source = lanes + static_cast<std::ptrdiff_t>(axis.start[i]) * kChannels * kLanes;
    const int taps = axis.size[i], separate = axis.separate[i];
    __m256 sums[2 * kChannels];
    __m256 weight = _mm256_set1_ps(weights[0]);
    for (int k = 0; k < 2 * kChannels; ++k) sums[k] = _mm256_mul_ps(_mm256_load_ps(source + 8 * k), weight);
    int t = 1;
    for (; t < separate; ++t) {
      source += kChannels * kLanes;
      weight = _mm256_set1_ps(weights[t]);
      for (int k = 0; k < 2 * kChannels; ++k) {
        sums[k] = _mm256_add_ps(sums[k], _mm256_mul_ps(_mm256_load_ps(source + 8 * k), weight));
      }
    }
    for (; t < taps; ++t) {
      source += kChannels * kLanes;
      weight = _mm256_set1_ps(weights[t]);
      for (int k = 0; k < 2 * kChannels; ++k) {
        sums[k] = _mm256_fmadd_ps(_mm256_load_ps(source + 8 * k), weight, sums[k]);
      }
    }
    for (int k = 0; k < 2 * kChannels; ++k, out += 8) _mm256_store_ps(out, sums[k]);
  }
}

void horizontal_avx2(const FloatAxis& axis, int channels, const float* lanes, float* out) {
  if (channels == 3) return horizontal_avx2_of<3>(axis, lanes, out);
  horizontal_avx2_of<1>(axis, lanes, out);
}

template <int kChannels>
FASTLOAD_AVX512 void horizontal_avx512_of(const FloatAxis& axis, const float* lanes, float* out) {
  for (int i = 0; i < axis.count; ++i) {
    const float* weights = axis.row(i);
    const float* source = lanes + static_cast<std::ptrdiff_t>(axis.start[i]) * kChannels * kLanes;
    const int taps = axis.size[i], separate = axis.separate[i];
    __m512 sums[kChannels];
    __m512 weight = _mm512_set1_ps(weights[0]);
    for (int k = 0; k < kChannels; ++k) sums[k] = _mm512_mul_ps(_mm512_load_ps(source + kLanes * k), weight);
    int t = 1;
    for (; t < separate; ++t) {
      source += kChannels * kLanes;
      weight = _mm512_set1_ps(weights[t]);
      for (int k = 0; k < kChannels; ++k) {
        sums[k] = _mm512_add_ps(sums[k], _mm512_mul_ps(_mm512_load_ps(source + kLanes * k), weight));
      }
    }
    for (; t < taps; ++t) {
      source += kChannels * kLanes;
      weight = _mm512_set1_ps(weights[t]);
      for (int k = 0; k < kChannels; ++k) {
        sums[k] = _mm512_fmadd_ps(_mm512_load_ps(source + kLanes * k), weight, sums[k]);
      }
    }
    for (int k = 0; k < kChannels; ++k, out += kLanes) _mm512_store_ps(out, sums[k]);
  }
}

void horizontal_avx512(const FloatAxis& axis, int channels, const float* lanes, float* out) {
  if (channels == 3) return horizontal_avx512_of<3>(axis, lanes, out);
  horizontal_avx512_of<1>(axis, lanes, out);
}

FASTLOAD_AVX2 void vertical_avx2(const float* const* rows, const float* weights, int taps, int separate, float* out,
                                 int count) {
  int x = 0;
  for (; x + kLanes <= count; x += kLanes) {
    __m256 weight = _mm256_set1_ps(weights[0]);
    __m256 low = _mm256_mul_ps(_mm256_loadu_ps(rows[0] + x), weight);
    __m256 high = _mm256_mul_ps(_mm256_loadu_ps(rows[0] + x + 8), weight);
    int t = 1;
    for (; t < separate; ++t) {
      weight = _mm256_set1_ps(weights[t]);
      low = _mm256_add_ps(low, _mm256_mul_ps(_mm256_loadu_ps(rows[t] + x), weight));
      high = _mm256_add_ps(high, _mm256_mul_ps(_mm256_loadu_ps(rows[t] + x + 8), weight));
    }
    for (; t < taps; ++t) {
      weight = _mm256_set1_ps(weights[t]);
      low = _mm256_fmadd_ps(_mm256_loadu_ps(rows[t] + x), weight, low);
      high = _mm256_fmadd_ps(_mm256_loadu_ps(rows[t] + x + 8), weight, high);
    }
    _mm256_storeu_ps(out + x, low);
    _mm256_storeu_ps(out + x + 8, high);
  }
  vertical_from(x, rows, weights, taps, separate, out, count);
}

FASTLOAD_AVX2 void round_avx2(const float* values, int count, std::uint8_t* out) {
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5);
  int x = 0;
  for (; x + kLanes <= count; x += kLanes) {
    const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_loadu_ps(values + x)),
                                             _mm256_cvtps_epi32(_mm256_loadu_ps(values + x + 8)));
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(words, words), order);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + x), _mm256_castsi256_si128(bytes));
  }
  round_from(x, values, count, out);
}

inline __mmask16 first_of(int count) { return static_cast<__mmask16>(count >= kLanes ? 0xFFFF : (1 << count) - 1); }

FASTLOAD_AVX512 void vertical_avx512(const float* const* rows, const float* weights, int taps, int separate, float* out,
                                     int count) {
  for (int x = 0; x < count; x += kLanes) {
    const __mmask16 wanted = first_of(count - x);
    __m512 sum = _mm512_mul_ps(_mm512_maskz_loadu_ps(wanted, rows[0] + x), _mm512_set1_ps(weights[0]));
    int t = 1;
    for (; t < separate; ++t) {
      const __m512 values = _mm512_maskz_loadu_ps(wanted, rows[t] + x);
      sum = _mm512_add_ps(sum, _mm512_mul_ps(values, _mm512_set1_ps(weights[t])));
    }
    for (; t < taps; ++t) {
      sum = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(wanted, rows[t] + x), _mm512_set1_ps(weights[t]), sum);
    }
    _mm512_mask_storeu_ps(out + x, wanted, sum);
  }
}

FASTLOAD_AVX512 void round_avx512(const float* values, int count, std::uint8_t* out) {
  for (int x = 0; x < count; x += kLanes) {
    const __mmask16 wanted = first_of(count - x);
    const __m512i levels = _mm512_cvtps_epi32(_mm512_maskz_loadu_ps(wanted, values + x));
    _mm_mask_storeu_epi8(out + x, wanted, _mm512_cvtusepi32_epi8(_mm512_max_epi32(levels, _mm512_setzero_si512())));
  }
}

}  // namespace

const FloatKernels kAvx2FloatKernels = {spread_avx2, horizontal_avx2, vertical_avx2, round_avx2};
const FloatKernels kAvx512FloatKernels = {spread_avx512, horizontal_avx512, vertical_avx512, round_avx512};

#endif

}  // namespace fastload
