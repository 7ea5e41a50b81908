// Shared by the resampler's files: the weights of an axis, and the kernels that each instruction set provides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/buffer.h"
#include "resample/resample.h"

namespace fastload {

// Pillow keeps 32 - 8 - 2 bits: 8 for the pixel, 2 for overshoot and sign.
constexpr int kPrecisionBits = 22;
constexpr std::int32_t kHalf = 1 << (kPrecisionBits - 1);

// Bytes that a kernel may read past the last pixel of a row that it resamples horizontally.
constexpr int kReadSlack = 128;

// Rows that a horizontal kernel takes at once.
constexpr int kRowsAtOnce = 2;

// One axis of a convolution: the first tap and the fixed-point weights of each position in the output window.
struct Axis {
  int first = 0;  // the source pixels in use: [first, first + extent)
  int extent = 0;
  int count = 0;           // output positions
  int taps = 0;            // maximum over all positions
  int stride = 0;          // ints from one position's weights to the next's: taps rounded up to 4, the rest zero
  std::vector<int> start;  // relative to `first`
  std::vector<int> size;
  std::vector<std::int32_t> weights;  // count * stride, and 16 more (readable, unspecified)
  bool digits_fit = true;             // every weight can be written as three signed 8-bit digits

  std::vector<double> centers, sizes, totals, exact;  // scratch for computing the weights
  std::vector<std::int32_t> column;

  const std::int32_t* row(int position) const { return &weights[static_cast<std::size_t>(position) * stride]; }
};

// The filter's weights for output positions [begin, begin + count) of `out_size`, from source interval [low, high) of
// `source_size` pixels; torch's filters take the whole source. Not for Filter::nearest, which is no convolution.
void make_axis(Filter filter, int source_size, float low, float high, int out_size, int begin, int count, Axis& axis);

// Prepares an axis for horizontal kernels: mirrors it if requested, and moves every position's `taps` taps into the
// extent.
void settle_horizontal(bool mirror, Axis& axis);

// Weights rearranged for one instruction set's horizontal kernel.
struct PackedAxis {
  AlignedBuffer bytes;
  AlignedBuffer scratch;
  std::vector<int> offsets;
  int mode = 0;
};

struct Kernels {
  void (*pack)(const Axis& axis, int channels, PackedAxis& packed);

  // Resamples up to kRowsAtOnce rows: axis.count pixels from source pixels [first, first + extent), where sources[row]
  // points to the first. Reads up to kReadSlack bytes past them, writes exactly axis.count * channels bytes. The rows
  // share the loads of weights.
  void (*horizontal)(const Axis& axis, const PackedAxis& packed, int channels, const std::uint8_t* const* sources,
                     std::uint8_t* const* outs, int rows);

  // Computes one row of `bytes` bytes from `taps` rows. `rows` and `weights` are padded to a multiple of 4 taps with
  // readable rows and zero weights.
  void (*vertical)(const std::uint8_t* const* rows, const std::int32_t* weights, int taps, std::uint8_t* out,
                   int bytes);

  // Copies a row with its pixels in reverse order.
  void (*reverse)(const std::uint8_t* source, std::uint8_t* out, int pixels, int channels);
};

extern const Kernels kPortableKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#elif defined(__aarch64__)
extern const Kernels kNeonKernels;
#endif

}  // namespace fastload
