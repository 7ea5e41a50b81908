// Transforms for AVX2, with the portable kernels' arithmetic. Pixels whose neighbourhood leaves the source, or whose
// row could be read past its end by a vector, are left to the portable kernels.
#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "image/transform/kernels.h"

// Not a compiler flag for the whole file: see resample/avx2.cpp.
#define FASTLOAD_AVX2 __attribute__((target("avx2")))

namespace fastload {
namespace {

// Four pixels, one per dword, to 12 bytes.
FASTLOAD_AVX2 inline __m128i packed_rgb() {
  return _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
}

// 12 bytes to four pixels, one per dword.
FASTLOAD_AVX2 inline __m128i unpacked_rgb() {
  return _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
}

FASTLOAD_AVX2 inline __m128i load_12(const std::uint8_t* p) {
  std::int32_t last;
  std::memcpy(&last, p + 8, 4);
  return _mm_insert_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)), last, 2);
}

FASTLOAD_AVX2 inline void store_12(std::uint8_t* p, __m128i bytes) {
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), bytes);
  const std::int32_t last = _mm_extract_epi32(bytes, 2);
  std::memcpy(p + 8, &last, 4);
}

FASTLOAD_AVX2 inline __m256i spread(std::uint32_t value) { return _mm256_set1_epi32(static_cast<int>(value)); }

// Three channels, truncated and clipped to bytes.
FASTLOAD_AVX2 inline void store_pixel(std::uint8_t* out, __m256d value) {
  const __m128i dwords = _mm256_cvttpd_epi32(value);
  const __m128i words = _mm_packs_epi32(dwords, dwords);
  const std::int32_t pixel = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
  std::memcpy(out, &pixel, 3);
}

FASTLOAD_AVX2 inline __m256d linear(__m256d a, __m256d difference, __m256d d) {
  return _mm256_add_pd(a, _mm256_mul_pd(difference, d));
}

// One channel, from bit `shift` of each of four pixels and of their right neighbours, weighted.
FASTLOAD_AVX2 inline __m256d linear_pixels(__m128i left, __m128i right, int shift, __m256d d) {
  const __m128i byte = _mm_set1_epi32(255);
  left = _mm_and_si128(_mm_srli_epi32(left, shift), byte);
  right = _mm_and_si128(_mm_srli_epi32(right, shift), byte);
  return linear(_mm256_cvtepi32_pd(left), _mm256_cvtepi32_pd(_mm_sub_epi32(right, left)), d);
}

// a * x + b * y + c at four positions in a row.
FASTLOAD_AVX2 inline __m256d plane(double a, double b, double c, __m256d x, double y) {
  return _mm256_add_pd(_mm256_add_pd(_mm256_mul_pd(_mm256_set1_pd(a), x), _mm256_set1_pd(b * y)), _mm256_set1_pd(c));
}

struct Points {
  __m256d x, y;
};

// The maps of transform_kernels.h at four positions in a row.
FASTLOAD_AVX2 inline Points map_four(const AffineMap& map, __m256d x, double y) {
  const auto& a = map.a;
  return {plane(a[0], a[1], a[2], x, y), plane(a[3], a[4], a[5], x, y)};
}

FASTLOAD_AVX2 inline Points map_four(const PerspectiveMap& map, __m256d x, double y) {
  const auto& a = map.a;
  const __m256d scale = plane(a[6], a[7], 1, x, y);
  return {_mm256_div_pd(plane(a[0], a[1], a[2], x, y), scale), _mm256_div_pd(plane(a[3], a[4], a[5], x, y), scale)};
}

FASTLOAD_AVX2 inline bool all_within(__m256d v, double most) {
  const __m256d low = _mm256_cmp_pd(v, _mm256_setzero_pd(), _CMP_GE_OQ);  // false for NaN
  return _mm256_movemask_pd(_mm256_and_pd(low, _mm256_cmp_pd(v, _mm256_set1_pd(most), _CMP_LT_OQ))) == 15;
}

// The four bytes at `p` as dwords: a pixel and one more.
FASTLOAD_AVX2 inline __m128i load_pixel(const std::uint8_t* p) {
  std::int32_t pixel;
  std::memcpy(&pixel, p, 4);
  return _mm_cvtepu8_epi32(_mm_cvtsi32_si128(pixel));
}

// The same factors as cubic() in transform.cpp; those of bytes are exact, in whatever order.
FASTLOAD_AVX2 inline __m256d cubic(__m256d v0, __m256d v1, __m256d v2, __m256d v3, double d) {
  const __m256d difference = _mm256_sub_pd(v0, v1), at = _mm256_set1_pd(d);
  const __m256d p2 = _mm256_sub_pd(v2, v0);
  const __m256d p3 = _mm256_sub_pd(_mm256_add_pd(_mm256_add_pd(difference, difference), v2), v3);
  const __m256d p4 = _mm256_add_pd(_mm256_sub_pd(_mm256_sub_pd(v1, v0), v2), v3);
  const __m256d inner = _mm256_add_pd(p3, _mm256_mul_pd(at, p4));
  return _mm256_add_pd(v1, _mm256_mul_pd(at, _mm256_add_pd(p2, _mm256_mul_pd(at, inner))));
}

// Four neighbours in a row of 13 readable bytes, weighted.
FASTLOAD_AVX2 inline __m256d cubic_row(const std::uint8_t* p, double d) {
  return cubic(_mm256_cvtepi32_pd(load_pixel(p)), _mm256_cvtepi32_pd(load_pixel(p + 3)),
               _mm256_cvtepi32_pd(load_pixel(p + 6)), _mm256_cvtepi32_pd(load_pixel(p + 9)), d);
}

template <class Map>
FASTLOAD_AVX2 void bilinear(const ConstImage& in, const Image& out, const Map& map, const Color& fill) {
  // Two columns, and a byte beyond them; two rows.
  const double most_x = in.width - 2, most_y = in.height - 1;
  const __m256d half = _mm256_set1_pd(0.5);
  const auto* pixels = reinterpret_cast<const int*>(in.data);
  const auto* right = reinterpret_cast<const int*>(in.data + 3);
  const __m128i stride = _mm_set1_epi32(static_cast<int>(in.stride)), three = _mm_set1_epi32(3);
  for (int y = 0; y < out.height; ++y) {
    std::uint8_t* target = out.row(y);
    for (int x = 0; x < out.width; x += 4, target += 12) {
      const __m256d centers = _mm256_add_pd(_mm256_set1_pd(x + 0.5), _mm256_setr_pd(0, 1, 2, 3));
      const Points p = map_four(map, centers, y + 0.5);
      const __m256d lefts = _mm256_sub_pd(p.x, half), tops = _mm256_sub_pd(p.y, half);
      if (x + 4 > out.width || !all_within(lefts, most_x) || !all_within(tops, most_y)) {
        for (int i = 0; i < std::min(4, out.width - x); ++i) {
          bilinear_pixel(in, map(x + i + 0.5, y + 0.5), fill, target + 3 * i);
        }
        continue;
      }
      const __m256d dx = _mm256_sub_pd(lefts, _mm256_floor_pd(lefts)), dy = _mm256_sub_pd(tops, _mm256_floor_pd(tops));
      const __m128i above = _mm_add_epi32(_mm_mullo_epi32(_mm256_cvttpd_epi32(tops), stride),
                                          _mm_mullo_epi32(_mm256_cvttpd_epi32(lefts), three));
      const __m128i below = _mm_add_epi32(above, stride);
      const __m128i above_left = _mm_i32gather_epi32(pixels, above, 1),
                    above_right = _mm_i32gather_epi32(right, above, 1);
      const __m128i below_left = _mm_i32gather_epi32(pixels, below, 1),
                    below_right = _mm_i32gather_epi32(right, below, 1);
      __m128i result = _mm_setzero_si128();
      for (int shift = 0; shift < 24; shift += 8) {
        const __m256d high = linear_pixels(above_left, above_right, shift, dx);
        const __m256d low = linear_pixels(below_left, below_right, shift, dx);
        const __m128i value = _mm256_cvttpd_epi32(linear(high, _mm256_sub_pd(low, high), dy));
        result = _mm_or_si128(result, _mm_slli_epi32(value, shift));
      }
      store_12(target, _mm_shuffle_epi8(result, packed_rgb()));
    }
  }
}

template <class Map>
FASTLOAD_AVX2 void bicubic(const ConstImage& in, const Image& out, const Map& map, const Color& fill) {
  // Columns -1 to 2, and a byte beyond them; rows -1 to 2.
  const double most_x = in.width - 3, most_y = in.height - 2;
  for (int y = 0; y < out.height; ++y) {
    std::uint8_t* target = out.row(y);
    for (int x = 0; x < out.width; ++x, target += 3) {
      const Point p = map(x + 0.5, y + 0.5);
      const double left = p.x - 0.5, top = p.y - 0.5;
      if (!(left >= 1 && left < most_x && top >= 1 && top < most_y)) {
        bicubic_pixel(in, p, fill, target);
        continue;
      }
      const double d = left - std::floor(left);
      const std::uint8_t* source = in.row(static_cast<int>(top) - 1) + 3 * (static_cast<int>(left) - 1);
      store_pixel(target,
                  cubic(cubic_row(source, d), cubic_row(source + in.stride, d), cubic_row(source + 2 * in.stride, d),
                        cubic_row(source + 3 * in.stride, d), top - std::floor(top)));
    }
  }
}

}  // namespace

FASTLOAD_AVX2 void affine_fixed_avx2(const ConstImage& in, const Image& out, FixedMatrix matrix, const Color& fill) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i x_lanes = _mm256_mullo_epi32(lanes, spread(matrix.x_x)), x_step = spread(8 * matrix.x_x);
  const __m256i y_lanes = _mm256_mullo_epi32(lanes, spread(matrix.y_x)), y_step = spread(8 * matrix.y_x);
  const __m256i none = _mm256_set1_epi32(-1), three = _mm256_set1_epi32(3);
  const __m256i width = _mm256_set1_epi32(in.width), height = _mm256_set1_epi32(in.height);
  const __m256i stride = _mm256_set1_epi32(static_cast<int>(in.stride));
  const __m256i last = _mm256_set1_epi32(3 * in.width - 4);  // the last of a row's bytes where a dword can be read
  const __m256i color = _mm256_set1_epi32(fill[0] | fill[1] << 8 | fill[2] << 16);
  const __m256i rgb = _mm256_broadcastsi128_si256(packed_rgb());
  for (int y = 0; y < out.height; ++y) {
    std::uint8_t* target = out.row(y);
    __m256i xs = _mm256_add_epi32(spread(matrix.x_0), x_lanes), ys = _mm256_add_epi32(spread(matrix.y_0), y_lanes);
    int x = 0;
    for (; x + 10 <= out.width; x += 8) {  // each store writes 4 bytes too many; the next one overwrites them
      const __m256i column = _mm256_srai_epi32(xs, 16), row = _mm256_srai_epi32(ys, 16);
      const __m256i inside =
          _mm256_and_si256(_mm256_and_si256(_mm256_cmpgt_epi32(column, none), _mm256_cmpgt_epi32(width, column)),
                           _mm256_and_si256(_mm256_cmpgt_epi32(row, none), _mm256_cmpgt_epi32(height, row)));
      const __m256i byte = _mm256_mullo_epi32(column, three), from = _mm256_min_epi32(byte, last);
      const __m256i late = _mm256_and_si256(inside, _mm256_slli_epi32(_mm256_sub_epi32(byte, from), 3));
      const __m256i pixels = _mm256_srlv_epi32(
          _mm256_mask_i32gather_epi32(color, reinterpret_cast<const int*>(in.data),
                                      _mm256_add_epi32(_mm256_mullo_epi32(row, stride), from), inside, 1),
          late);
      const __m256i bytes = _mm256_shuffle_epi8(pixels, rgb);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(target + 3 * x), _mm256_castsi256_si128(bytes));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(target + 3 * x + 12), _mm256_extracti128_si256(bytes, 1));
      xs = _mm256_add_epi32(xs, x_step);
      ys = _mm256_add_epi32(ys, y_step);
    }
    const std::uint32_t done = static_cast<std::uint32_t>(x);
    fixed_pixels(in, target, x, out.width, matrix.x_0 + done * matrix.x_x, matrix.y_0 + done * matrix.y_x, matrix,
                 fill);
    matrix.x_0 += matrix.x_y;
    matrix.y_0 += matrix.y_y;
  }
}

FASTLOAD_AVX2 void bilinear_avx2(const ConstImage& in, const Image& out, const AffineMap& map, const Color& fill) {
  bilinear(in, out, map, fill);
}

FASTLOAD_AVX2 void bilinear_avx2(const ConstImage& in, const Image& out, const PerspectiveMap& map, const Color& fill) {
  bilinear(in, out, map, fill);
}

FASTLOAD_AVX2 void bicubic_avx2(const ConstImage& in, const Image& out, const AffineMap& map, const Color& fill) {
  bicubic(in, out, map, fill);
}

FASTLOAD_AVX2 void bicubic_avx2(const ConstImage& in, const Image& out, const PerspectiveMap& map, const Color& fill) {
  bicubic(in, out, map, fill);
}

FASTLOAD_AVX2 void flip_row_avx2(const std::uint8_t* in, std::uint8_t* out, int width) {
  const __m128i reversed = _mm_setr_epi8(12, 13, 14, 9, 10, 11, 6, 7, 8, 3, 4, 5, 0, 1, 2, -1);
  int x = 0;  // pixels done, from the output's start; five at once, with a byte read and written beside them
  for (; x + 6 <= width; x += 5) {
    const __m128i five = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + 3 * (width - x - 5) - 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 3 * x), _mm_shuffle_epi8(_mm_srli_si128(five, 1), reversed));
  }
  for (; x < width; ++x) std::memcpy(out + 3 * x, in + 3 * (width - 1 - x), 3);
}

FASTLOAD_AVX2 void quarter_turn_avx2(const ConstImage& in, const Image& out, bool anticlockwise) {
  constexpr int kBlock = 16;  // rows whose pixels lie in one cache line of the output
  const int height = in.height / 4 * 4, width = in.width / 4 * 4;
  for (int top = 0; top < height; top += kBlock) {
    for (int x = 0; x < width; x += 4) {
      for (int y = top; y < std::min(top + kBlock, height); y += 4) {
        __m128i rows[4];
        for (int i = 0; i < 4; ++i) {
          const std::uint8_t* source = in.row(anticlockwise ? y + i : y + 3 - i) + 3 * x;
          rows[i] = _mm_shuffle_epi8(load_12(source), unpacked_rgb());
        }
        const __m128i low_a = _mm_unpacklo_epi32(rows[0], rows[1]), low_b = _mm_unpacklo_epi32(rows[2], rows[3]);
        const __m128i high_a = _mm_unpackhi_epi32(rows[0], rows[1]), high_b = _mm_unpackhi_epi32(rows[2], rows[3]);
        const __m128i columns[4] = {_mm_unpacklo_epi64(low_a, low_b), _mm_unpackhi_epi64(low_a, low_b),
                                    _mm_unpacklo_epi64(high_a, high_b), _mm_unpackhi_epi64(high_a, high_b)};
        const int left = anticlockwise ? y : in.height - 4 - y;
        for (int i = 0; i < 4; ++i) {
          std::uint8_t* target = out.row(anticlockwise ? in.width - 1 - x - i : x + i) + 3 * left;
          store_12(target, _mm_shuffle_epi8(columns[i], packed_rgb()));
        }
      }
    }
  }
  quarter_turn(in, out, anticlockwise, {0, width, height, in.width - width});
  quarter_turn(in, out, anticlockwise, {height, 0, in.height - height, in.width});
}

}  // namespace fastload

#endif
