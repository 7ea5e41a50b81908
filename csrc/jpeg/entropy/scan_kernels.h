// Shared by the scan decoder's files: its state, and the loops that each instruction set provides.
#pragma once

#include <cstdint>
#include <cstring>

#include "jpeg/entropy/scan.h"

namespace fastload {

constexpr std::uint64_t kNotSound = ~std::uint64_t{0};

struct ScanKernels {
  // Pass over or decode up to `count` MCUs, until `state.next` is behind `state.limit`; the data goes on for at least
  // kMcuBytes behind that. Return how many are left, or kNotSound; `to` and the state go on behind the last one.
  std::uint64_t (*skip)(ScanState& state, std::uint64_t count);
  std::uint64_t (*decode)(ScanState& state, std::uint64_t count, BlockRows& to);
};

extern const ScanKernels kPortableScan;
#if defined(__x86_64__)
extern const ScanKernels kBmi2Scan;  // also needs AVX2
#endif

inline std::uint64_t load_big_endian(const std::uint8_t* at) {
  std::uint64_t value;
  std::memcpy(&value, at, sizeof value);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  value = __builtin_bswap64(value);
#endif
  return value;
}

}  // namespace fastload
