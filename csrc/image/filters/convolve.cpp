#include "image/filters/convolve.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/simd_level.h"

namespace fastload {
namespace {

// Values of a row that are summed up side by side, so that additions need not wait for each other. Rows have room for
// so many more.
constexpr int kMostSums = 128;

// rows[i] begins with the first value that the leftmost weight of row i is for.
void sum_up_portable(const float* const* rows, const Weights& weights, float* out, int count) {
  constexpr int kSums = 16;
  for (int x = 0; x < count; x += kSums) {
    float total[kSums] = {};
    const float* weight = weights.values;
    for (int i = 0; i < weights.height; ++i) {
      const float* from = rows[i] + x;
      for (int j = 0; j < weights.width; ++j, from += 3, ++weight) {
        for (int k = 0; k < kSums; ++k) total[k] = std::fma(from[k], *weight, total[k]);
      }
    }
    std::copy_n(total, std::min(kSums, count - x), out + x);
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void sum_up_avx2(const float* const* rows, const Weights& weights, float* out,
                                                     int count) {
  constexpr int kVectors = 8, kLanes = 8, kSums = kVectors * kLanes;
  for (int x = 0; x < count; x += kSums) {
    __m256 total[kVectors];
    for (__m256& each : total) each = _mm256_setzero_ps();
    const float* weight = weights.values;
    for (int i = 0; i < weights.height; ++i) {
      const float* from = rows[i] + x;
      for (int j = 0; j < weights.width; ++j, from += 3, ++weight) {
        const __m256 factor = _mm256_set1_ps(*weight);
        for (int k = 0; k < kVectors; ++k) {
          total[k] = _mm256_fmadd_ps(_mm256_loadu_ps(from + k * kLanes), factor, total[k]);
        }
      }
    }
    float sums[kSums];
    for (int k = 0; k < kVectors; ++k) _mm256_storeu_ps(sums + k * kLanes, total[k]);
    std::copy_n(sums, std::min(kSums, count - x), out + x);
  }
}

__attribute__((target("avx512f"))) void sum_up_avx512(const float* const* rows, const Weights& weights, float* out,
                                                      int count) {
  constexpr int kVectors = 8, kLanes = 16, kSums = kVectors * kLanes;
  static_assert(kSums == kMostSums);
  for (int x = 0; x < count; x += kSums) {
    __m512 total[kVectors];
    for (__m512& each : total) each = _mm512_setzero_ps();
    const float* weight = weights.values;
    for (int i = 0; i < weights.height; ++i) {
      const float* from = rows[i] + x;
      for (int j = 0; j < weights.width; ++j, from += 3, ++weight) {
        const __m512 factor = _mm512_set1_ps(*weight);
        for (int k = 0; k < kVectors; ++k) {
          total[k] = _mm512_fmadd_ps(_mm512_loadu_ps(from + k * kLanes), factor, total[k]);
        }
      }
    }
    float sums[kSums];
    for (int k = 0; k < kVectors; ++k) _mm512_storeu_ps(sums + k * kLanes, total[k]);
    std::copy_n(sums, std::min(kSums, count - x), out + x);
  }
}
#endif

auto summer() {
#if defined(__x86_64__)
  if (simd_level() == SimdLevel::avx512) return &sum_up_avx512;
  if (simd_level() == SimdLevel::avx2) return &sum_up_avx2;
#endif
  return &sum_up_portable;
}

int mirrored(int position, int size) {
  if (position < 0) return -position;
  return position >= size ? 2 * size - 2 - position : position;
}

// Added to a level, it leaves no bits for a fraction. Rounds in a loop without calls, which rint() needs before SSE4.1.
constexpr float kNoFraction = 12582912.0f;  // 1.5 * 2^23: its lowest byte is 0

// To the nearest level, half to even; not a number is 0.
std::uint8_t rounded(float sum) {
  const float within = sum > 0.0f ? std::min(sum, 255.0f) : 0.0f;
  return static_cast<std::uint8_t>(static_cast<int>(within + kNoFraction));
}

// Makes each row of sums in the memory that `begin(y)` returns, and calls `end(y)` then.
template <typename Begin, typename End>
bool convolve_rows(const ConstImage& in, const Weights& weights, Begin begin, End end) {
  const int down = weights.height / 2, across = weights.width / 2, count = 3 * in.width;
  if (down >= in.height || across >= in.width) return false;
  const auto sum_up = summer();
  const std::size_t stride = static_cast<std::size_t>(count + 6 * across + kMostSums);
  std::vector<float> kept(stride * static_cast<std::size_t>(weights.height));
  std::vector<const float*> rows(static_cast<std::size_t>(weights.height));
  const auto row = [&](int y) { return kept.data() + stride * static_cast<std::size_t>(y % weights.height); };
  int ready = 0;  // rows of the image
  for (int y = 0; y < in.height; ++y) {
    for (; ready < in.height && ready <= y + down; ++ready) {
      float* const middle = row(ready) + 3 * across;
      std::copy_n(in.row(ready), count, middle);
      for (int k = 1; k <= across; ++k) {
        std::copy_n(middle + 3 * k, 3, middle - 3 * k);
        std::copy_n(middle + count - 3 - 3 * k, 3, middle + count - 3 + 3 * k);
      }
    }
    for (int i = 0; i < weights.height; ++i) rows[static_cast<std::size_t>(i)] = row(mirrored(y - down + i, in.height));
    sum_up(rows.data(), weights, begin(y), count);
    end(y);
  }
  return true;
}

}  // namespace

bool convolve(const ConstImage& in, const Weights& weights, float* out) {
  const std::size_t count = 3 * static_cast<std::size_t>(in.width);
  const auto row = [&](int y) { return out + count * static_cast<std::size_t>(y); };
  return convolve_rows(in, weights, row, [](int) {});
}

bool convolve(const ConstImage& in, const Weights& weights, const Image& out) {
  std::vector<float> sums(3 * static_cast<std::size_t>(in.width));
  const auto round = [&](int y) { std::transform(sums.begin(), sums.end(), out.row(y), rounded); };
  return convolve_rows(in, weights, [&](int) { return sums.data(); }, round);
}

}  // namespace fastload
