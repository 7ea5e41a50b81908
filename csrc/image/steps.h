// Steps on a decoded image, one after the other. Knows neither Python nor torch.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "base/image.h"
#include "image/color/color.h"
#include "image/transform/transform.h"
#include "resample/resample.h"

namespace fastload {

// One step with all its parameters. Fields not listed for its kind are ignored.
struct Step {
  enum class Kind {
    brightness,    // value: the factor
    contrast,      // value
    saturation,    // value
    hue,           // value: the shift, 0 to 255
    sharpness,     // value
    grayscale,     //
    invert,        //
    posterize,     // value: bits
    solarize,      // value: the threshold, a whole number
    solarize_add,  // value: what is added to levels below 128, at most to 255; a whole number
    autocontrast,  //
    equalize,      //
    // The next are torchvision's on uint8 tensors; the others that it has there give the same values.
    torch_brightness,    // value
    torch_contrast,      // value, twice, planar
    torch_saturation,    // value
    torch_sharpness,     // value
    torch_hue,           // value: the factor
    permute,             // order
    torch_grayscale,     //
    torch_autocontrast,  //
    flip_horizontal,     //
    flip_vertical,       //
    rotate_90,           // anticlockwise, as are the others
    rotate_180,          //
    rotate_270,          //
    affine,              // matrix, sampling, fill
    perspective,         // coefficients, sampling, fill
    gather,              // places, fill
    gaussian_blur,       // radii
    crop,                // box
    pad,                 // box: margins at the top and left, and the new size; mode, fill
    resize,              // box: the new size; filter
    gaussian_filter,     // box: height and width of the kernel; value: sigma. At most one level off torchvision's
    convolve,            // box: height and width of the weights, both odd; weights: row by row
  };
  Kind kind = Kind::invert;
  double value = 0;
  std::array<double, 6> matrix{};
  std::array<double, 8> coefficients{};
  std::array<float, 2> radii{};  // along x and y, pixels
  Sampling sampling = Sampling::nearest;
  Color fill{};
  PixelBox box;
  PadMode mode = PadMode::constant;
  Filter filter = Filter::bilinear;
  std::shared_ptr<const std::vector<float>> weights;
  std::shared_ptr<const PixelPlaces> places;
  unsigned twice = 0;
  bool planar = false;
  ChannelOrder order{0, 1, 2};
};

// Whether a crop or a pad fits an image of height x width.
bool fits(const Step& step, int height, int width);

// Applies `steps` to `image`, whose memory may change, and writes the result into `out`. Both may be the same image.
// Returns false if a step does not fit its image or the result does not fit `out`; the contents are then unspecified.
// Thread-safe: uses thread-local buffers. Throws std::bad_alloc only.
bool apply_steps(const std::vector<Step>& steps, PassRule pass_rule, Image image, Image out);
// The same of an image that stays as it is, and does not overlap `out`.
bool apply_steps_to_copy(const std::vector<Step>& steps, PassRule pass_rule, ConstImage image, Image out);

}  // namespace fastload
