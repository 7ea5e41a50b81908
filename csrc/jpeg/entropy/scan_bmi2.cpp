// The scan's loops for BMI2, whose shifts by a variable take one instruction.
#if defined(__x86_64__)

#define FASTLOAD_TARGET __attribute__((target("avx2,bmi,bmi2")))
#include "jpeg/entropy/scan_loops.h"

namespace fastload {

const ScanKernels kBmi2Scan = {&skip_mcus, &decode_mcus};

}  // namespace fastload

#endif
