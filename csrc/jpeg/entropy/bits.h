// Reads bits of entropy-coded data. Each level's file includes it once, with FASTLOAD_TARGET defined: see scan_loops.h.
#include <cstdint>
#include <cstring>

#include "jpeg/entropy/scan.h"

#define FASTLOAD_INLINE FASTLOAD_TARGET inline __attribute__((always_inline))

namespace fastload {

inline std::uint64_t load_big_endian(const std::uint8_t* at) {
  std::uint64_t value;
  std::memcpy(&value, at, sizeof value);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  value = __builtin_bswap64(value);
#endif
  return value;
}

namespace {

// At most 56 bits may be taken between two refills: a DC symbol (27) and an AC symbol (26), or two AC symbols.
struct Bits {
  std::uint64_t bits, count;
  const std::uint8_t* next;

  FASTLOAD_INLINE explicit Bits(const BitState& state) : bits(state.bits), count(state.count), next(state.next) {}
  FASTLOAD_INLINE void save(BitState& state) const {
    state.bits = bits;
    state.count = count;
    state.next = next;
  }
  FASTLOAD_INLINE void refill() {
    bits |= load_big_endian(next) >> count;
    next += (63 - count) >> 3;
    count |= 56;
  }
  // Only the low byte of `length` counts.
  FASTLOAD_INLINE void take(std::uint64_t length) {
    bits <<= length & 63;
    count -= length & 255;
  }
  FASTLOAD_INLINE void go_back(std::uint64_t length) {
    const std::uint64_t unread = count + length;
    seek(next - (unread + 7) / 8, static_cast<int>((8 - unread % 8) % 8));
  }
  FASTLOAD_INLINE void seek(const std::uint8_t* byte, int bit) {
    bits = load_big_endian(byte) << bit;
    count = static_cast<std::uint64_t>(56 - bit);
    next = byte + 7;
  }
};

// The signed value at bit `at` of `bits`, of 63 - `less` bits.
FASTLOAD_INLINE std::int32_t value_at(std::uint64_t bits, std::uint64_t at, std::uint64_t less) {
  const std::uint64_t rest = bits << (at & 63);
  const std::uint64_t sign = ~static_cast<std::uint64_t>(static_cast<std::int64_t>(rest) >> 63);  // ones: negative
  const std::uint64_t magnitude = (rest ^ sign) >> 1 >> (less & 63);
  return static_cast<std::int32_t>((magnitude ^ sign) - sign);
}

}  // namespace
}  // namespace fastload
