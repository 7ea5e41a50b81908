// The program that decodes, crops and resizes the JPEG files of a batch, and runs the steps that follow, with the bits
// of libjpeg-turbo and Pillow. The layouts say what decode threads have prepared. Compiled at run time (decode.py);
// includes no other headers.
//
// The kernels run one after the other. huffman.cu: `huffman` decodes the coefficients of the MCUs that the crops need,
// one thread for each segment, with the symbols that `tables` has looked up. pixels.cu: `transform` makes samples of
// them (libjpeg's accurate integer IDCT); `rows` stretches chroma by a triangle filter, converts to RGB and resizes the
// rows, `second_pass` the columns, with weights of 22 fractional bits; where columns are resized first, `columns_first`
// does so in between. steps.cu: `steps`.
//
// Whatever the bytes say, nothing is read or written outside of what the batch owns. An image that turns out not to be
// what the index promised is marked as bad, and decoded again on the host.

#include "decode_layout.h"
#include "steps_layout.h"

namespace fastload {
namespace {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned;
using u64 = unsigned long long;

__constant__ u8 kNaturalOrder[64] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,
                                     12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
                                     35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
                                     58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

__device__ __forceinline__ int clipped(int value) { return min(max(value, 0), 255); }

// A pixel is a word: red, green, blue from the lowest byte on.
__device__ __forceinline__ u32 pixel_of(int red, int green, int blue) {
#ifdef __CUDA_ARCH__
  u32 pixel;
  asm("cvt.pack.sat.u8.s32.b32 %0, 0, %1, 0;" : "=r"(pixel) : "r"(blue));
  asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %0;" : "+r"(pixel) : "r"(green), "r"(red));
  return pixel;
#else
  return static_cast<u32>(clipped(red) | clipped(green) << 8 | clipped(blue) << 16);
#endif
}

}  // namespace
}  // namespace fastload

#include "huffman.cu"
#include "pixels.cu"
#include "steps.cu"
