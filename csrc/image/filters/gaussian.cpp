#include "image/filters/gaussian.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/simd_level.h"

namespace fastload {
namespace {

constexpr int kMostBits = 17;      // of a weight's fraction: 255 levels with kBetweenBits more bits still fit an int32
constexpr std::size_t kLane = 32;  // a kernel may read and write up to that many values past a row

// For each i below `count`: the sum of (first[k][i] + second[k][i]) * weights[k], rounded to `shift` fewer bits.
struct Sum {
  const std::int16_t* const* first;
  const std::int16_t* const* second;
  const GaussianKernel& kernel;
  int shift;
  std::int16_t* out;
  int count;
};

void add_up_portable(const Sum& sum) {
  constexpr int kBlock = 64;
  const std::vector<std::int16_t>& weights = sum.kernel.weights;
  for (int x = 0; x < sum.count; x += kBlock) {
    std::int32_t values[kBlock];
    const int count = std::min(kBlock, sum.count - x);
    std::fill_n(values, count, 1 << (sum.shift - 1));
    for (std::size_t k = 0; k < weights.size(); ++k) {
      const std::int16_t *a = sum.first[k] + x, *b = sum.second[k] + x;
      const std::int32_t weight = weights[k];
      for (int i = 0; i < count; ++i) values[i] += (a[i] + b[i]) * weight;
    }
    for (int i = 0; i < count; ++i) sum.out[x + i] = static_cast<std::int16_t>(values[i] >> sum.shift);
  }
}

#if defined(__x86_64__)
// Two neighbouring weights, as a multiplication of pairs takes them.
std::int32_t pair_at(const std::vector<std::int16_t>& weights, std::size_t k) {
  std::int32_t pair;
  std::memcpy(&pair, &weights[k], sizeof pair);
  return pair;
}

__attribute__((target("avx2"))) void add_up_avx2(const Sum& sum) {
  const std::vector<std::int16_t>& weights = sum.kernel.weights;
  const __m128i shift = _mm_cvtsi32_si128(sum.shift);
  for (int x = 0; x < sum.count; x += 16) {
    __m256i low = _mm256_set1_epi32(1 << (sum.shift - 1)), high = low;
    for (std::size_t k = 0; k < weights.size(); k += 2) {
      const auto at = [x](const std::int16_t* row) __attribute__((target("avx2"))) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + x));
      };
      const __m256i a = _mm256_add_epi16(at(sum.first[k]), at(sum.second[k]));
      const __m256i b = _mm256_add_epi16(at(sum.first[k + 1]), at(sum.second[k + 1]));
      const __m256i pair = _mm256_set1_epi32(pair_at(weights, k));
      low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), pair));
      high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), pair));
    }
    const __m256i packed = _mm256_packs_epi32(_mm256_sra_epi32(low, shift), _mm256_sra_epi32(high, shift));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(sum.out + x), packed);
  }
}

#define FASTLOAD_AVX512 __attribute__((target("avx512f,avx512bw,avx512vnni")))

FASTLOAD_AVX512 void add_up_avx512(const Sum& sum) {
  const std::vector<std::int16_t>& weights = sum.kernel.weights;
  const __m128i shift = _mm_cvtsi32_si128(sum.shift);
  for (int x = 0; x < sum.count; x += 32) {
    __m512i low = _mm512_set1_epi32(1 << (sum.shift - 1)), high = low;
    for (std::size_t k = 0; k < weights.size(); k += 2) {
      const __m512i a = _mm512_add_epi16(_mm512_loadu_si512(sum.first[k] + x), _mm512_loadu_si512(sum.second[k] + x));
      const __m512i b =
          _mm512_add_epi16(_mm512_loadu_si512(sum.first[k + 1] + x), _mm512_loadu_si512(sum.second[k + 1] + x));
      const __m512i pair = _mm512_set1_epi32(pair_at(weights, k));
      low = _mm512_dpwssd_epi32(low, _mm512_unpacklo_epi16(a, b), pair);
      high = _mm512_dpwssd_epi32(high, _mm512_unpackhi_epi16(a, b), pair);
    }
    const __m512i packed =
        _mm512_packs_epi32(_mm512_maskz_sra_epi32(0xffff, low, shift), _mm512_maskz_sra_epi32(0xffff, high, shift));
    _mm512_storeu_si512(sum.out + x, packed);
  }
}
#endif

auto adder() {
#if defined(__x86_64__)
  if (simd_level() == SimdLevel::avx2) return &add_up_avx2;
  if (simd_level() == SimdLevel::avx512) return &add_up_avx512;
#endif
  return &add_up_portable;
}

// The row that is shown beyond an edge, without the edge itself once more; any, if a kernel's padding reaches further.
int mirrored(int position, int size) {
  if (position < 0) return -position;
  return position >= size ? std::max(0, 2 * size - 2 - position) : position;
}

}  // namespace

// Weights beyond 5 sigma are left out: 1/7000 of a level.
GaussianKernel gaussian_kernel(int taps, double sigma) {
  const auto reach = static_cast<std::size_t>(std::min(5 * sigma + 1, taps / 2.0));
  std::vector<double> shares(reach + 1);
  double sum = 0;
  for (std::size_t i = 0; i <= reach; ++i) {
    const double x = static_cast<double>(i) / sigma;
    shares[i] = std::exp(-0.5 * x * x) / (i == 0 ? 2 : 1);
    sum += 2 * shares[i];
  }
  GaussianKernel kernel;
  kernel.bits = kMostBits;
  while (*std::max_element(shares.begin(), shares.end()) / sum * (1 << kernel.bits) > 32700) --kernel.bits;
  kernel.weights.resize((reach + 2) / 2 * 2);
  double outer = 0;
  int given = 0;
  for (std::size_t i = reach; i > 0; --i) {  // what one weight's rounding takes away, the next gets
    outer += shares[i] / sum * (1 << kernel.bits);
    kernel.weights[i] = static_cast<std::int16_t>(std::lround(outer) - given);
    given += kernel.weights[i];
  }
  kernel.weights[0] = static_cast<std::int16_t>((1 << (kernel.bits - 1)) - given);
  return kernel;
}

bool gaussian_filter(const ConstImage& in, const Image& out, int height, int width, double sigma) {
  if (height / 2 >= in.height || width / 2 >= in.width) return false;
  const GaussianKernel down = gaussian_kernel(height, sigma), across = gaussian_kernel(width, sigma);
  const auto add_up = adder();
  const int count = 3 * in.width, held = 2 * down.reach() + 1, margin = across.reach();
  const std::size_t stride = static_cast<std::size_t>(count) + kLane;
  std::vector<std::int16_t> padded(stride + 6 * across.weights.size()), rows(stride * static_cast<std::size_t>(held));
  std::vector<std::int16_t> finished(stride);
  std::vector<const std::int16_t*> left, right, above(down.weights.size()), below(down.weights.size());
  std::int16_t* const middle = padded.data() + 3 * margin;
  for (int k = 0; k <= margin; ++k) {
    left.push_back(middle - 3 * k);
    right.push_back(middle + 3 * k);
  }
  const auto row = [&](int y) {
    return rows.data() + stride * static_cast<std::size_t>(mirrored(y, in.height) % held);
  };
  int filtered = 0;  // rows of the image
  for (int y = 0; y < in.height; ++y) {
    for (; filtered < in.height && filtered <= y + down.reach(); ++filtered) {
      std::copy_n(in.row(filtered), count, middle);
      for (int k = 1; k <= margin && k < in.width; ++k) {
        std::copy_n(middle + 3 * k, 3, middle - 3 * k);
        std::copy_n(middle + count - 3 - 3 * k, 3, middle + count - 3 + 3 * k);
      }
      add_up({left.data(), right.data(), across, across.bits - kBetweenBits, row(filtered), count});
    }
    for (int k = 0; k <= down.reach(); ++k) {
      above[static_cast<std::size_t>(k)] = row(y - k);
      below[static_cast<std::size_t>(k)] = row(y + k);
    }
    add_up({above.data(), below.data(), down, down.bits + kBetweenBits, finished.data(), count});
    std::copy_n(finished.data(), count, out.row(y));
  }
  return true;
}

}  // namespace fastload
