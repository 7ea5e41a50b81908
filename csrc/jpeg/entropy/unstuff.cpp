#include "jpeg/entropy/unstuff.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/simd_level.h"

namespace fastload {
namespace {

std::size_t most_of(const std::uint8_t* from, const std::uint8_t* from_end, const std::uint8_t* to,
                    const std::uint8_t* to_end) {
  return static_cast<std::size_t>(std::max<std::ptrdiff_t>(0, std::min(from_end - from, to_end - to)));
}

void unstuff_portable(const std::uint8_t*& from, const std::uint8_t* from_end, std::uint8_t*& to,
                      const std::uint8_t* to_end) {
  while (const std::size_t most = most_of(from, from_end, to, to_end)) {
    const void* const found = std::memchr(from, 0xFF, most);
    const std::size_t count =
        found == nullptr ? most : static_cast<std::size_t>(static_cast<const std::uint8_t*>(found) - from);
    std::memcpy(to, from, count);
    from += count;
    to += count;
    if (found == nullptr) continue;
    if (from_end - from < 2 || from[1] != 0) return;
    *to++ = 0xFF;
    from += 2;
  }
}

#if defined(__x86_64__)
// Data has few bytes FF: about one in 200. Each vector is stored whole, and those behind its first FF once more.
__attribute__((target("avx2,bmi"))) void unstuff_avx2(const std::uint8_t*& from, const std::uint8_t* from_end,
                                                      const std::uint8_t* readable_end, std::uint8_t*& to,
                                                      const std::uint8_t* to_end) {
  static_assert(sizeof(__m256i) == kUnstuffSlack);
  const __m256i ones = _mm256_set1_epi8(-1);
  const std::uint8_t* in = from;
  std::uint8_t* out = to;
  while (readable_end - in >= static_cast<std::ptrdiff_t>(sizeof ones)) {
    const std::size_t most = most_of(in, from_end, out, to_end);
    if (most == 0) break;
    const __m256i data = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), data);
    const auto found = static_cast<unsigned>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(data, ones)));
    const std::size_t count = std::min<std::size_t>(most, found == 0 ? sizeof ones : __builtin_ctz(found));
    in += count;
    out += count;
    if (count == most || found == 0) continue;
    if (from_end - in < 2 || in[1] != 0) break;
    in += 2;
    out += 1;  // FF is there already
  }
  from = in;
  to = out;
}
#endif

}  // namespace

void unstuff(const std::uint8_t*& from, const std::uint8_t* from_end, const std::uint8_t* readable_end,
             std::uint8_t*& to, const std::uint8_t* to_end) {
#if defined(__x86_64__)
  if (simd_level() != SimdLevel::portable) unstuff_avx2(from, from_end, readable_end, to, to_end);
#else
  (void)readable_end;
#endif
  unstuff_portable(from, from_end, to, to_end);
}

}  // namespace fastload
