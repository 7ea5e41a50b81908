// The instruction set in use.
#pragma once

namespace fastload {

// Run-time dispatch, chosen once by the CPU's features (avx2: Haswell's set with FMA and BMI2; avx512: Ice Lake's set
// with VBMI and VNNI besides). All levels give the same bits.
enum class SimdLevel { portable, avx2, avx512, neon };

const char* name_of(SimdLevel level);
SimdLevel best_simd_level();  // of this CPU and this build
SimdLevel simd_level();       // in use
// For tests and benchmarks. False, and no change, if this CPU or build lacks the level. Affects jobs prepared later.
bool set_simd_level(SimdLevel level);

}  // namespace fastload
