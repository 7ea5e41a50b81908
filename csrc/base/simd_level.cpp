#include "base/simd_level.h"

#include <atomic>

namespace fastload {
namespace {

SimdLevel detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni")) {
    return SimdLevel::avx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return SimdLevel::avx2;
#elif defined(__aarch64__)
  return SimdLevel::neon;
#endif
  return SimdLevel::portable;
}

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
