// What the resampler's parts share: an axis's weights, and the kernels that each instruction set provides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#include "resample/resample.h"

namespace fastload {

// Pillow keeps 32 - 8 - 2 bits: 8 for the pixel, 2 for overshoot and sign.
constexpr int kPrecisionBits = 22;
constexpr std::int32_t kHalf = 1 << (kPrecisionBits - 1);

// Bytes that a kernel may read past the last pixel of a row that it resamples horizontally.
constexpr int kReadSlack = 128;

// Rows that a horizontal kernel takes at once.
constexpr int kRowsAtOnce = 2;

// 64-byte aligned bytes, kept from image to image; what a rare huge image needed is given back.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  ~AlignedBuffer() { std::free(data_); }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;

  // At least `size` bytes, contents unspecified.
  std::uint8_t* require(std::size_t size) {
    if (size > capacity_ || (capacity_ > kKeptBytes && size < capacity_ / 4)) {
      const std::size_t rounded = (size + 4095) / 4096 * 4096;
      void* fresh = std::aligned_alloc(64, rounded);
      if (fresh == nullptr) throw std::bad_alloc();
      std::free(data_);
      data_ = static_cast<std::uint8_t*>(fresh);
      capacity_ = rounded;
    }
    return data_;
  }
  std::uint8_t* data() { return data_; }
  const std::uint8_t* data() const { return data_; }

 private:
  static constexpr std::size_t kKeptBytes = std::size_t{4} << 20;

  std::uint8_t* data_ = nullptr;
  std::size_t capacity_ = 0;
};

// One axis of a convolution: for each position of the output window, where its taps begin and their fixed-point
// weights.
struct Axis {
  int first = 0;  // the source pixels in use: [first, first + extent)
  int extent = 0;
  int count = 0;           // output positions
  int taps = 0;            // the most that any position has
  int stride = 0;          // ints from one position's weights to the next's: taps rounded up to 4, the rest zero
  std::vector<int> start;  // relative to `first`
  std::vector<int> size;
  std::vector<std::int32_t> weights;  // count * stride, and 16 more (readable, unspecified)
  bool digits_fit = true;             // every weight can be written as three signed 8-bit digits

  std::vector<double> centers, sizes, totals, exact;  // while they are made
  std::vector<std::int32_t> column;

  const std::int32_t* row(int position) const { return &weights[static_cast<std::size_t>(position) * stride]; }
};

// The filter's weights for output positions [begin, begin + count) of `out_size`, from source interval [low, high) of
// `source_size` pixels; torch's filters take the whole source. Filter::nearest is not a convolution and not for here.
void make_axis(Filter filter, int source_size, float low, float high, int out_size, int begin, int count, Axis& axis);

// Prepares an axis for horizontal kernels: mirrored if asked, and every position's `taps` taps lie within the extent.
void settle_horizontal(bool mirror, Axis& axis);

// Weights rearranged as one instruction set's horizontal kernel wants them.
struct PackedAxis {
  AlignedBuffer bytes;
  AlignedBuffer scratch;
  std::vector<int> offsets;
  int mode = 0;
};

struct Kernels {
  void (*pack)(const Axis& axis, int channels, PackedAxis& packed);

  // Up to kRowsAtOnce rows: axis.count pixels from source pixels [first, first + extent), of which sources[row] is the
  // first. Reads up to kReadSlack bytes past them, writes exactly axis.count * channels bytes. Several rows share the
  // loads of weights.
  void (*horizontal)(const Axis& axis, const PackedAxis& packed, int channels, const std::uint8_t* const* sources,
                     std::uint8_t* const* outs, int rows);

  // One row of `bytes` bytes from `taps` rows. `rows` and `weights` have entries up to taps rounded up to 4: rows that
  // may be read, weights zero.
  void (*vertical)(const std::uint8_t* const* rows, const std::int32_t* weights, int taps, std::uint8_t* out,
                   int bytes);

  // Copies a row with its pixels in reverse.
  void (*reverse)(const std::uint8_t* source, std::uint8_t* out, int pixels, int channels);
};

extern const Kernels kPortableKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#elif defined(__aarch64__)
extern const Kernels kNeonKernels;
#endif

const Kernels& kernels_for(SimdLevel level);

}  // namespace fastload
