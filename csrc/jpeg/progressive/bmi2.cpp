// A progressive scan's loops for BMI2, which places bits with one instruction.
#if defined(__x86_64__)

#define FASTLOAD_BMI2
#define FASTLOAD_TARGET __attribute__((target("avx2,bmi,bmi2,popcnt,lzcnt")))
#include "jpeg/progressive/loops.h"

namespace fastload {

const ProgressiveKernels kBmi2Progressive = {&first_dc, &refine_dc, &first_ac, &refine_ac};

}  // namespace fastload

#endif
