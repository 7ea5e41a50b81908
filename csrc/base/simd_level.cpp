#include "base/simd_level.h"

#include <algorithm>
#include <atomic>
#include <initializer_list>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace fastload {
namespace {

#if defined(__x86_64__)
// Asks the CPU itself: __builtin_cpu_supports says no to everything where the compiler's runtime library lacks the
// support, as Zig's does.
SimdLevel detect() {
  const auto has = [](unsigned flags, std::initializer_list<int> bits) {
    return std::all_of(bits.begin(), bits.end(), [flags](int bit) { return (flags >> bit & 1) != 0; });
  };
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr int fma = 12, popcnt = 23, osxsave = 27;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || !has(ecx, {fma, popcnt, osxsave})) return SimdLevel::portable;
  constexpr int lzcnt = 5;
  if (__get_cpuid(0x80000001, &eax, &ebx, &ecx, &edx) == 0 || !has(ecx, {lzcnt})) return SimdLevel::portable;
  unsigned saved = 0, high = 0;  // registers that the system saves: bits 1 and 2 for AVX, 5 to 7 for AVX-512 besides
  __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  constexpr int bmi = 3, avx2 = 5, bmi2 = 8;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || !has(ebx, {bmi, avx2, bmi2}) || !has(saved, {1, 2})) {
    return SimdLevel::portable;
  }
  constexpr int f = 16, dq = 17, bw = 30, vl = 31, vbmi = 1, vnni = 11;
  const bool avx512 = has(ebx, {f, dq, bw, vl}) && has(ecx, {vbmi, vnni}) && has(saved, {5, 6, 7});
  return avx512 ? SimdLevel::avx512 : SimdLevel::avx2;
}
#else
SimdLevel detect() {
#if defined(__aarch64__)
  return SimdLevel::neon;
#else
  return SimdLevel::portable;
#endif
}
#endif

std::atomic<SimdLevel>& level_in_use() {
  static std::atomic<SimdLevel> level{best_simd_level()};
  return level;
}

}  // namespace

const char* name_of(SimdLevel level) {
  switch (level) {
    case SimdLevel::portable: return "portable";
    case SimdLevel::avx2: return "avx2";
    case SimdLevel::avx512: return "avx512";
    case SimdLevel::neon: return "neon";
  }
  return "unknown";
}

SimdLevel best_simd_level() {
  static const SimdLevel best = detect();
  return best;
}

SimdLevel simd_level() { return level_in_use().load(std::memory_order_relaxed); }

bool set_simd_level(SimdLevel level) {
  const SimdLevel best = best_simd_level();
  const bool have =
      level == SimdLevel::portable || level == best || (level == SimdLevel::avx2 && best == SimdLevel::avx512);
  if (have) level_in_use().store(level, std::memory_order_relaxed);
  return have;
}

}  // namespace fastload
