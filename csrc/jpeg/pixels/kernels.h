// From a block's coefficients to RGB, one set of kernels per level of SIMD. All give libjpeg-turbo's bits: its accurate
// integer IDCT ("ISLOW"), its "fancy" upsampling with a triangle filter, and its colours.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

// Bytes that kernels may read behind the samples that they are given.
constexpr int kSampleSlack = 64;
// Sums that stretch() may read behind those that it is given, and half the bytes that it may write too many.
constexpr int kStretchSlack = 16;

// The first zigzag index outside of a block's upper left quarter.
constexpr int kCornerEnd = 10;

struct PixelKernels {
  // Transforms `count` blocks that lie side by side. `last` has each one's zigzag index behind which all coefficients
  // are 0. Returns false if values are so large that libjpeg-turbo's instruction sets differ.
  bool (*transform)(const std::int16_t* blocks, const std::uint8_t* last, std::uint32_t count,
                    const std::int32_t* quantization, std::uint8_t* out, std::size_t stride);

  // sums = 3 * near + far.
  void (*add_rows)(const std::uint8_t* near, const std::uint8_t* far, std::size_t count, std::uint16_t* sums);

  // Two values from each of sums[1] to sums[count]: 3/4 of it and 1/4 of the one to the left, then of that to the
  // right.
  void (*stretch)(const std::uint16_t* sums, std::size_t count, unsigned left_bias, unsigned right_bias, unsigned shift,
                  std::uint8_t* out);

  // Gray if `cb` is null. With `bgr`, blue comes first.
  void (*to_rgb)(const std::uint8_t* y, const std::uint8_t* cb, const std::uint8_t* cr, std::size_t count, bool bgr,
                 std::uint8_t* out);
};

extern const PixelKernels kPortablePixels;
#if defined(__x86_64__)
extern const PixelKernels kAvx2Pixels;
extern const PixelKernels kAvx512Pixels;
#elif defined(__aarch64__)
extern const PixelKernels kNeonPixels;
#endif

// Dequantized coefficients, and values between the two passes, must be below this: then 16 bits hold every sum that
// libjpeg-turbo's SIMD makes of them. In images they are below 4096, plus what quantization adds.
constexpr std::int32_t kMostValue = 8192;
// So far from a level of 0 to 255 results may lie: libjpeg-turbo without SIMD clips no more.
constexpr std::int32_t kMostBelow = 384;
constexpr std::int32_t kMostResults = 1024;

}  // namespace fastload
