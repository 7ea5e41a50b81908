#include "codecs/png_rows.h"

#include <cstdlib>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace fastload {
namespace {

int paeth(int a, int b, int c) {
  const int pa = std::abs(b - c), pb = std::abs(a - c), pc = std::abs(a + b - 2 * c);
  return pa <= pb && pa <= pc ? a : pb <= pc ? b : c;
}

std::uint8_t sum(int a, int b) { return static_cast<std::uint8_t>(a + b); }

// One byte at a time, for any pixel.
void unfilter_bytes(int filter, std::uint8_t* row, const std::uint8_t* above, std::size_t bytes, std::size_t pixel) {
  for (std::size_t first = 0; first < pixel; ++first) {
    int a = 0, c = 0;  // the bytes to the left and above it
    for (std::size_t i = first; i < bytes; i += pixel) {
      const int b = above[i];
      row[i] = sum(row[i], filter == 1 ? a : filter == 3 ? (a + b) / 2 : paeth(a, b, c));
      a = row[i];
      c = b;
    }
  }
}

#if defined(__SSE2__)

// Pixels of 3 or 4 bytes are read as 4.
template <int kBytes>
struct Pixel {
  static __m128i load(const std::uint8_t* from) {
    std::int32_t bytes;
    std::memcpy(&bytes, from, 4);
    return _mm_cvtsi32_si128(bytes);
  }
  static void store(std::uint8_t* to, __m128i pixel) {
    const std::int32_t bytes = _mm_cvtsi128_si32(pixel);
    std::memcpy(to, &bytes, kBytes);
  }
};

__m128i absolute(__m128i x) { return _mm_max_epi16(x, _mm_sub_epi16(_mm_setzero_si128(), x)); }

__m128i choose(__m128i mask, __m128i yes, __m128i no) {
  return _mm_or_si128(_mm_and_si128(mask, yes), _mm_andnot_si128(mask, no));
}

template <int kBytes>
void unfilter_pixels(int filter, std::uint8_t* row, const std::uint8_t* above, std::size_t bytes) {
  using P = Pixel<kBytes>;
  std::uint8_t* const end = row + bytes;
  const __m128i zero = _mm_setzero_si128();
  __m128i a = zero, c = zero;  // the pixels to the left and above it
  if (filter == 1) {
    for (; row < end; row += kBytes) P::store(row, a = _mm_add_epi8(P::load(row), a));
    return;
  }
  if (filter == 3) {
    const __m128i one = _mm_set1_epi8(1);
    for (; row < end; row += kBytes, above += kBytes) {
      const __m128i b = P::load(above);
      // _mm_avg_epu8 rounds up, PNG rounds down.
      const __m128i average = _mm_sub_epi8(_mm_avg_epu8(a, b), _mm_and_si128(_mm_xor_si128(a, b), one));
      P::store(row, a = _mm_add_epi8(P::load(row), average));
    }
    return;
  }
  for (; row < end; row += kBytes, above += kBytes) {
    const __m128i b = _mm_unpacklo_epi8(P::load(above), zero);
    const __m128i b_less_c = _mm_sub_epi16(b, c), a_less_c = _mm_sub_epi16(a, c);
    const __m128i pa = absolute(b_less_c), pb = absolute(a_less_c), pc = absolute(_mm_add_epi16(b_less_c, a_less_c));
    const __m128i least = _mm_min_epi16(pc, _mm_min_epi16(pa, pb));
    const __m128i nearest = choose(_mm_cmpeq_epi16(least, pa), a, choose(_mm_cmpeq_epi16(least, pb), b, c));
    a = _mm_add_epi8(_mm_unpacklo_epi8(P::load(row), zero), nearest);  // the high bytes stay 0
    P::store(row, _mm_packus_epi16(a, a));
    c = b;
  }
}

#endif

}  // namespace

void unfilter(int filter, std::uint8_t* row, const std::uint8_t* above, std::size_t bytes, int pixel_bytes) {
  if (filter == 0) return;
  if (filter == 2) {
    for (std::size_t i = 0; i < bytes; ++i) row[i] = sum(row[i], above[i]);
    return;
  }
#if defined(__SSE2__)
  if (pixel_bytes == 3) return unfilter_pixels<3>(filter, row, above, bytes);
  if (pixel_bytes == 4) return unfilter_pixels<4>(filter, row, above, bytes);
#endif
  unfilter_bytes(filter, row, above, bytes, static_cast<std::size_t>(pixel_bytes));
}

void unpack_levels(const std::uint8_t* row, int bits, std::size_t count, unsigned scale, std::uint8_t* levels,
                   std::size_t step) {
  if (bits == 8 && step == 1) {
    std::memcpy(levels, row, count);
    return;
  }
  const auto width = static_cast<std::size_t>(bits);
  const unsigned most = (1u << bits) - 1;
  for (std::size_t i = 0; i < count; ++i, levels += step) {
    const unsigned level = row[i * width / 8] >> (8 - width - i * width % 8) & most;
    *levels = static_cast<std::uint8_t>(level * scale);
  }
}

void unpack(const std::uint8_t* row, int bits, int channels, std::size_t first, std::size_t count, std::uint8_t* rgb,
            std::size_t step) {
  const auto each = static_cast<std::size_t>(channels);
  if (bits < 8) {
    const auto width = static_cast<std::size_t>(bits);
    const unsigned most = (1u << bits) - 1;
    for (std::size_t i = first; i < first + count; ++i, rgb += step) {
      const unsigned level = row[i * width / 8] >> (8 - width - i * width % 8) & most;
      rgb[0] = rgb[1] = rgb[2] = static_cast<std::uint8_t>(level * (255 / most));
    }
    return;
  }
  row += first * each;
  if (channels < 3) {
    for (; count > 0; --count, row += each, rgb += step) rgb[0] = rgb[1] = rgb[2] = row[0];
    return;
  }
  for (; count > 0; --count, row += each, rgb += step) {
    rgb[0] = row[0];
    rgb[1] = row[1];
    rgb[2] = row[2];
  }
}

}  // namespace fastload
