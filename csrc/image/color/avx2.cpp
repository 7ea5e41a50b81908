// Changes of colour for AVX2.
#if defined(__x86_64__)

#include "image/color/avx2.h"

#define FASTLOAD_TARGET FASTLOAD_AVX2

namespace fastload {
namespace {

// A table of 256 bytes is 16 rows of 16, and pshufb looks up within one: the byte's low half, or 0 if its high bit is
// set. With 16 subtracted for each row, bytes of row n find something in rows 0 to n, and rows hold the difference
// (xor) to the one before. Bytes from 128 do the same with their high bit flipped; saturation keeps the others
// negative.
class LookUp {
 public:
  FASTLOAD_AVX2 explicit LookUp(const LevelTable& table) {
    for (int channel = 0; channel < 3; ++channel) {
      for (int row = 0; row < 16; ++row) {
        __m128i bytes = load_half(&table[channel][row * 16]);
        if (row % 8 != 0) bytes = _mm_xor_si128(bytes, load_half(&table[channel][row * 16 - 16]));
        rows_[channel][row] = _mm256_broadcastsi128_si256(bytes);
      }
    }
  }

  FASTLOAD_AVX2 void operator()(Planes& planes) const {
    look_up(rows_[0], planes.red);
    look_up(rows_[1], planes.green);
    look_up(rows_[2], planes.blue);
  }

 private:
  FASTLOAD_AVX2 static void look_up(const __m256i* rows, std::uint8_t* plane) {
    auto* place = reinterpret_cast<__m256i*>(plane);
    const __m256i step = _mm256_set1_epi8(16);
    __m256i low = _mm256_load_si256(place);
    __m256i high = _mm256_xor_si256(low, _mm256_set1_epi8(-128));
    __m256i found = _mm256_setzero_si256();
    for (int row = 0; row < 8; ++row) {
      found = _mm256_xor_si256(
          found, _mm256_xor_si256(_mm256_shuffle_epi8(rows[row], low), _mm256_shuffle_epi8(rows[row + 8], high)));
      low = _mm256_subs_epi8(low, step);
      high = _mm256_subs_epi8(high, step);
    }
    _mm256_store_si256(place, found);
  }

  __m256i rows_[3][16];
};

}  // namespace
}  // namespace fastload

#include "image/color/loops.h"

namespace fastload {
const ColorKernels kAvx2Color = kLoops;
}  // namespace fastload

#endif
