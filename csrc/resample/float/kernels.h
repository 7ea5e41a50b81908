// Shared by the files of the resize in float: the weights of an axis, and the kernels that each instruction set has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastload {

// How products are rounded before they are added: all, none, or those in groups of four after the first one.
enum class Products { rounded, fused, fused_but_fours };

// Rows that the horizontal pass takes at once: value i of row r stands at i * kLanes + r.
constexpr int kLanes = 16;

// One axis: the first tap and the weights of each position in the output window.
struct FloatAxis {
  int first = 0;  // the source pixels in use: [first, first + extent)
  int extent = 0;
  int count = 0;               // output positions
  int stride = 0;              // floats from one position's weights to the next's
  std::vector<int> start;      // relative to `first`
  std::vector<int> size;       // taps, at least one
  std::vector<int> separate;   // of these, from the first on: rounded before they are added. The others are fused
  std::vector<float> weights;  // count * stride

  const float* row(int position) const { return &weights[static_cast<std::size_t>(position) * stride]; }
};

// The weights of output positions [begin, begin + count) of `out_size`.
void make_float_axis(bool bicubic, Products products, int source_size, int out_size, int begin, int count,
                     FloatAxis& axis);

// Reverses the order of the output positions.
void mirror(FloatAxis& axis);

struct FloatKernels {
  // Writes `bytes` bytes of kLanes rows as lanes of floats.
  void (*spread)(const std::uint8_t* const* rows, int bytes, float* lanes);
  // Makes lanes of axis.count pixels of those of axis.extent.
  void (*horizontal)(const FloatAxis& axis, int channels, const float* lanes, float* out);
  // Makes a row of `count` values of rows.
  void (*vertical)(const float* const* rows, const float* weights, int taps, int separate, float* out, int count);
  // Rounds values to levels, half to even.
  void (*round)(const float* values, int count, std::uint8_t* out);
};

extern const FloatKernels kPortableFloatKernels;
#if defined(__x86_64__)
extern const FloatKernels kAvx2FloatKernels;
extern const FloatKernels kAvx512FloatKernels;
#endif

}  // namespace fastload
