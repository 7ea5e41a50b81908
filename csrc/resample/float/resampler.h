// torch.nn.functional.interpolate(antialias=True) of float32 tensors of levels or of their values. Rows come in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/buffer.h"
#include "base/image.h"
#include "resample/float/kernels.h"

namespace fastload {

// What to compute, as of ResizeJob: a whole source, and a part of its target.
struct FloatResize {
  bool bicubic = false;
  Products products = Products::rounded;
  int width = 0, height = 0;
  int out_width = 0, out_height = 0;
  PixelBox window;
  bool flip_horizontal = false, flip_vertical = false;
  int channels = 3;
};

class FloatResampler {
 public:
  // Computes the weights of a job that is sound. Throws std::bad_alloc.
  void prepare(const FloatResize& job);
  // The source pixels that the window needs.
  PixelBox region() const;
  // Rounds what is made to levels again, as torchvision's first transforms do on uint8 tensors: Resampler is for that.
  void start(std::uint8_t* out, std::ptrdiff_t out_stride);
  // Resizes values of levels: 256 for each of 3 channels, which come first in `out`, or last.
  void start(const float* values, float* out, bool planar);
  // Takes up to kLanes more rows of the region, of exactly its width.
  void take(const std::uint8_t* const* rows, int count);
  bool finished() const { return written_ == window_.height; }

 private:
  void spread(const std::uint8_t* const* rows, float* lanes) const;
  void put(const float* row, int number);
  float* ring_row(int y) { return reinterpret_cast<float*>(ring_.data()) + (y % ring_rows_) * ring_stride_; }

  PixelBox window_;
  int channels_ = 3;
  bool flips_ = false;  // vertically
  const FloatKernels* kernels_ = nullptr;
  FloatAxis x_axis_, y_axis_;
  AlignedBuffer lanes_, made_;  // of the rows taken: before the horizontal pass and after it
  AlignedBuffer ring_;          // rows between the passes
  int ring_rows_ = 0;
  std::ptrdiff_t ring_stride_ = 0;
  std::vector<const float*> taps_;
  std::vector<float> row_;
  std::uint8_t* out_ = nullptr;
  std::ptrdiff_t out_stride_ = 0;
  const float* values_ = nullptr;  // null: the levels
  float* out_values_ = nullptr;
  bool planar_ = false;
  int pushed_ = 0, written_ = 0;
};

}  // namespace fastload
