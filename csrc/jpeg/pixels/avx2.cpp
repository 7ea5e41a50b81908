// From coefficients to RGB for AVX2.
#if defined(__x86_64__)

#define FASTLOAD_TARGET __attribute__((target("avx2")))

#include "jpeg/pixels/avx2.h"

#include "jpeg/pixels/loops.h"

namespace fastload {
const PixelKernels kAvx2Pixels = kPixelLoops;
}  // namespace fastload

#endif
