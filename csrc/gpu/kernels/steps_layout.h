// Steps on the decoded images of a batch, as decode threads write them (csrc/gpu/staged_steps.cpp) and the kernel in
// steps.cu reads them. Numbers only: it is compiled by the host's compiler and by NVRTC, which may lack headers.
#pragma once

namespace fastload {

// What a step does; its numbers are listed behind it. Those of csrc/image/steps.h of which the result depends on one
// level alone are all tables, and those that move whole pixels are all moves.
enum class StagedKind : int {
  table,               // data: 256 levels
  contrast,            // factor
  saturation,          // factor
  hue,                 // numbers: the shift
  grayscale,           //
  autocontrast,        //
  equalize,            //
  torch_contrast,      // factor, share
  torch_saturation,    // factor, share
  torch_grayscale,     //
  torch_autocontrast,  //
  // The result of these is another image than their source.
  sharpness,  // factor
  move,       // numbers: the source of the first pixel, and how far that of the next column's and row's is
  pad,        // numbers: margins at the top and left, PadMode; fill
  affine,     // numbers: FixedMatrix, whose sums wrap; fill
  pick,       // data: the source's column of each column, then the row of each row, -1 outside; fill
  map,        // coefficients, numbers: Sampling; fill
  blur,       // numbers: radius, weights of a whole pixel and of a part, along x and then y; weight 0: not
  resize,     // data, more: axes as in StagedImage; numbers: top, left, height, width, whether columns first
  filter,     // data, more: weights along x and y; numbers: how many, fractional bits; along x and then y
  convolve,   // data: weights, row by row; numbers: their height and width
};

constexpr int kStagedNumbers = 6;
// A thread convolves so many pixels of a column. For all but the first, so many less one rows of zeros come before the
// weights, and for all but the last behind them. Rows end with zeros, up to a multiple of four.
constexpr int kConvolvedRows = 4;

struct StagedStep {
  StagedKind kind;
  int height, width;    // of the result, pixels
  unsigned data, more;  // bytes from the image's steps
  unsigned fill;        // a pixel: red, green, blue from the lowest byte on
  float factor, share;
  int numbers[kStagedNumbers];
  double coefficients[8];
};

}  // namespace fastload
