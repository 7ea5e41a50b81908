#include "jpeg/progressive/scan.h"

#include "base/simd_level.h"

#define FASTLOAD_TARGET
#include "jpeg/progressive/loops.h"

namespace fastload {

const ProgressiveKernels kPortableProgressive = {&first_dc, &refine_dc, &first_ac, &refine_ac};

const ProgressiveKernels& progressive_kernels() {
#if defined(__x86_64__)
  if (simd_level() != SimdLevel::portable) return kBmi2Progressive;
#endif
  return kPortableProgressive;
}

}  // namespace fastload
