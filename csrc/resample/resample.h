// Pillow's or torch's resize of uint8 pixels, bit for bit: crop, resize, window and flips in one pass over the data.
// Knows neither Python nor torch.
//
// Pillow's arithmetic: two passes of fixed-point convolution. The weights are computed in double, normalized, rounded
// to 22 fractional bits; each pass rounds to nearest and clips to 8 bits. The order of the passes affects the bits and
// depends on Pillow's version (PassRule).
//
// torch.nn.functional.interpolate(antialias=True) on uint8 tensors, as built for AVX2, has the same weights in double
// but rounds them to 16 bits, with as many fractional bits p as fit, and always runs the horizontal pass first. A
// weight w with p fractional bits gives the same pixels as w << (22 - p) with 22, so both share the kernels.
//
// Of float32 tensors its weights are floats, and each pass sums products of floats in the order of the taps, again
// horizontally first. torchvision's first transforms resize uint8 tensors so, and round the result to levels. How torch
// was compiled decides whether a product is rounded before it is added: always (float), never (fma), or only in groups
// of four taps after the first one (fma4).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/image.h"

namespace fastload {

enum class Filter {
  nearest,
  box,
  bilinear,
  hamming,
  bicubic,
  lanczos,
  torch_bilinear,
  torch_bicubic,
  torch_lanczos,
  float_bilinear,
  float_bicubic,
  fma_bilinear,
  fma_bicubic,
  fma4_bilinear,
  fma4_bicubic,
};

constexpr bool is_torch(Filter filter) { return filter >= Filter::torch_bilinear; }
constexpr bool is_float(Filter filter) { return filter >= Filter::float_bilinear; }

enum class PassOrder { horizontal_first, vertical_first };

// Which pass Pillow runs first. horizontal_first: up to 12.1. sliver_vertical_first: 12.2 and 12.3, which run the
// vertical pass first if the height shrinks and is more than 100 times the width. tall_vertical_first: 13.0, which runs
// it first if the height shrinks by more than twice as many pixels as the width.
enum class PassRule { horizontal_first, tall_vertical_first, sliver_vertical_first };

PassOrder pass_order(PassRule rule, int width, int height, int out_width, int out_height);

// What to compute. "Source" is the image on which Image.resize would be called. For a resized crop that is only the
// crop, since pixels outside it must not be read. Coordinates are relative to its top left corner.
struct ResizeJob {
  int width = 0;  // source pixels
  int height = 0;
  int out_width = 0;  // full target of the resize
  int out_height = 0;
  bool whole = true;  // resize the whole source; else `box_*` (Image.resize's box=)
  float box_left = 0, box_top = 0, box_right = 0, box_bottom = 0;  // float, as Pillow keeps them
  PixelBox window;               // the part of the target to compute. Height 0: all of it
  bool flip_horizontal = false;  // mirror the window's columns
  bool flip_vertical = false;    // mirror the window's rows
  Filter filter = Filter::bilinear;
  PassOrder order = PassOrder::horizontal_first;  // of Pillow's filters
  int channels = 3;                               // 3 (interleaved) or 1
};

// Whether the vertical pass runs first; `y_convolves` as Resampler::convolves().
constexpr bool runs_vertical_first(const ResizeJob& job, bool y_convolves) {
  return job.order == PassOrder::vertical_first && y_convolves && !is_torch(job.filter);
}

// A buffer with any part of the source that covers Resampler::region(). `data` points to source pixel (box.left,
// box.top), which may be negative (a decoder's margin outside the crop). stride >= box.width * channels.
struct SourceView {
  const std::uint8_t* data = nullptr;
  std::ptrdiff_t stride = 0;  // bytes
  PixelBox box;               // the buffer's rectangle in source coordinates
};

// A resampler that reuses its buffers between images. Not thread-safe; use one per thread.
//
//   if (!resampler.prepare(job, error)) ...
//   decode resampler.region() (+ margin) into a buffer;   resampler.run(view, out, out_stride);
// or, so that rows stay in cache:
//   resampler.begin(left, width, out, out_stride);
//   for each row of region(), from the top: write it to resampler.row(0 .. kRowsAhead - 1), then push(rows written)
class Resampler {
 public:
  Resampler();
  ~Resampler();
  Resampler(const Resampler&) = delete;
  Resampler& operator=(const Resampler&) = delete;

  // Computes the weights. On misuse returns false, with the reason in `error`. Throws std::bad_alloc only.
  bool prepare(const ResizeJob& job, std::string& error);

  // The source pixels that the window needs. Never empty; within the source.
  const PixelBox& region() const;

  // The weights along x and y for code that resizes by itself, in the order and with the arithmetic of the first lines
  // above: for each of the window's columns, mirrored if requested, or rows, the first pixel of the region and the
  // number of taps; then all first weights, all second ones and so on, with 22 fractional bits. Appends them to
  // `numbers`, and returns the largest number of taps. Not for filters in float.
  int weights(bool along_x, std::vector<std::int32_t>& numbers) const;
  bool vertical_first() const;
  // Whether pixels are weighted along that axis, rather than kept or picked by the nearest filter.
  bool convolves(bool along_x) const;

  // Resizes from a buffer into `out`: window.height rows of window.width * channels bytes, `out_stride` bytes apart.
  // Reads nothing outside the view, writes nothing outside these rows.
  void run(const SourceView& source, std::uint8_t* out, std::ptrdiff_t out_stride);

  // Streaming. Rows come in order, from region().top to its last; each begins at source column `left` (<=
  // region().left, may be negative) and has `width` pixels (left + width >= region().left + region().width).
  void begin(int left, int width, std::uint8_t* out, std::ptrdiff_t out_stride);
  // Where to write the `ahead`-th row after those pushed. Valid until the next push(); 0 <= ahead < kRowsAhead. Rows
  // below the region also have a place (to be written but not pushed).
  std::uint8_t* row(int ahead);
  // Call after writing the next `rows` rows (<= kRowsAhead): resizes as much as possible. Rows below the region are
  // ignored.
  void push(int rows);
  // Whether the whole window is written.
  bool finished() const;

  static constexpr int kRowsAhead = 16;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fastload
