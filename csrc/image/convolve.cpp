#include "image/convolve.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "resample/resample.h"

namespace fastload {
namespace {

// Values of a row that are summed up side by side, so that additions need not wait for each other: as many as the
// registers hold. Rows have room for so many more.
constexpr int kSumsPortable = 16, kSumsAvx2 = 64, kSumsAvx512 = 128;
constexpr int kMostSums = kSumsAvx512;

// rows[i] begins with the first value that the leftmost weight of row i is for.
template <int sums>
inline __attribute__((always_inline)) void sum_up(const float* const* rows, const Weights& weights, float* out,
                                                  int count) {
  for (int x = 0; x < count; x += sums) {
    float total[sums] = {};
    const float* weight = weights.values;
    for (int i = 0; i < weights.height; ++i) {
      const float* from = rows[i] + x;
      for (int j = 0; j < weights.width; ++j, from += 3) {
        const float factor = *weight++;
        for (int k = 0; k < sums; ++k) total[k] = __builtin_fmaf(from[k], factor, total[k]);
      }
    }
    std::copy_n(total, std::min(sums, count - x), out + x);
  }
}

void sum_up_portable(const float* const* rows, const Weights& weights, float* out, int count) {
  sum_up<kSumsPortable>(rows, weights, out, count);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void sum_up_avx2(const float* const* rows, const Weights& weights, float* out,
                                                     int count) {
  sum_up<kSumsAvx2>(rows, weights, out, count);
}

__attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,fma,prefer-vector-width=512"))) void sum_up_avx512(
    const float* const* rows, const Weights& weights, float* out, int count) {
  sum_up<kSumsAvx512>(rows, weights, out, count);
}
#endif

auto summer() {
#if defined(__x86_64__)
  static const bool has_fma = __builtin_cpu_supports("fma");
  if (has_fma && simd_level() == SimdLevel::avx512) return &sum_up_avx512;
  if (has_fma && simd_level() == SimdLevel::avx2) return &sum_up_avx2;
#endif
  return &sum_up_portable;
}

int mirrored(int position, int size) {
  if (position < 0) return -position;
  return position >= size ? 2 * size - 2 - position : position;
}

}  // namespace

bool convolve(const ConstImage& in, const Weights& weights, float* out) {
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
    sum_up(rows.data(), weights, out + static_cast<std::size_t>(count) * static_cast<std::size_t>(y), count);
  }
  return true;
}

}  // namespace fastload
