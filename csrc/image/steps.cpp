#include "image/steps.h"

#include <cstring>
#include <string>

#include "image/blur.h"
#include "image/color.h"
#include "image/gaussian.h"
#include "jpeg/file.h"

namespace fastload {
namespace {

using Kind = Step::Kind;

constexpr std::size_t kKeptBytes = std::size_t{1} << 20;

// The image between two steps. It lies in the caller's memory or in one of two buffers.
class Work {
 public:
  Work(Image image, PassRule pass_rule) : image_(image), pass_rule_(pass_rule) {}
  ~Work() {
    for (Buffer& buffer : buffers()) buffer.shrink(kKeptBytes);
  }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  const Image& image() const { return image_; }

  bool apply(const Step& step) {
    const PixelBox& box = step.box;
    switch (step.kind) {
      case Kind::brightness: adjust_brightness(image_, step.value); return true;
      case Kind::contrast: adjust_contrast(image_, step.value); return true;
      case Kind::saturation: adjust_saturation(image_, step.value); return true;
      case Kind::hue: adjust_hue(image_, static_cast<std::uint8_t>(step.value)); return true;
      case Kind::sharpness: adjust_sharpness(image_, step.value); return true;
      case Kind::grayscale: to_grayscale(image_); return true;
      case Kind::invert: invert(image_); return true;
      case Kind::posterize: posterize(image_, static_cast<int>(step.value)); return true;
      case Kind::solarize: solarize(image_, static_cast<int>(step.value)); return true;
      case Kind::solarize_add: solarize_add(image_, static_cast<int>(step.value)); return true;
      case Kind::autocontrast: autocontrast(image_); return true;
      case Kind::equalize: equalize(image_); return true;
      case Kind::torch_brightness: torch_brightness(image_, step.value); return true;
      case Kind::torch_contrast: torch_contrast(image_, step.value); return true;
      case Kind::torch_saturation: torch_saturation(image_, step.value); return true;
      case Kind::torch_grayscale: torch_grayscale(image_); return true;
      case Kind::torch_autocontrast: torch_autocontrast(image_); return true;
      case Kind::flip_horizontal: return turn(Transpose::flip_horizontal);
      case Kind::flip_vertical: return turn(Transpose::flip_vertical);
      case Kind::rotate_90: return turn(Transpose::rotate_90);
      case Kind::rotate_180: return turn(Transpose::rotate_180);
      case Kind::rotate_270: return turn(Transpose::rotate_270);
      case Kind::affine: {
        const Image next = other(image_.height, image_.width);
        transform_affine(image_, next, step.matrix, step.sampling, step.fill);
        image_ = next;
        return true;
      }
      case Kind::perspective: {
        const Image next = other(image_.height, image_.width);
        transform_perspective(image_, next, step.coefficients, step.sampling, step.fill);
        image_ = next;
        return true;
      }
      case Kind::gaussian_blur: gaussian_blur(image_, step.radii[0], step.radii[1]); return true;
      case Kind::crop:
        if (!fits(step, image_.height, image_.width)) return false;
        image_ = {image_.row(box.top) + std::ptrdiff_t{3} * box.left, image_.stride, box.height, box.width};
        return true;
      case Kind::pad: {
        if (!fits(step, image_.height, image_.width)) return false;
        const Image next = other(box.height, box.width);
        fastload::pad(image_, next, box.left, box.top, step.mode, step.fill);
        image_ = next;
        return true;
      }
      case Kind::gaussian_filter: {
        const Image source = image_, next = other(source.height, source.width);
        image_ = next;
        return gaussian_filter(source, next, box.height, box.width, step.value);
      }
      case Kind::resize: return resize(box.height, box.width, step.filter);
    }
    return false;
  }

 private:
  static std::array<Buffer, 2>& buffers() {
    static thread_local std::array<Buffer, 2> both;
    return both;
  }

  // A buffer of this size that does not hold the image.
  Image other(int height, int width) {
    which_ = 1 - which_;
    Buffer& buffer = buffers()[static_cast<std::size_t>(which_)];
    const std::ptrdiff_t stride = std::ptrdiff_t{3} * width;
    buffer.resize(static_cast<std::size_t>(stride) * static_cast<std::size_t>(height));
    return {buffer.data(), stride, height, width};
  }

  bool turn(Transpose how) {
    const bool swaps = how == Transpose::rotate_90 || how == Transpose::rotate_270;
    const Image next = swaps ? other(image_.width, image_.height) : other(image_.height, image_.width);
    transpose(image_, next, how);
    image_ = next;
    return true;
  }

  bool resize(int height, int width, Filter filter) {
    static thread_local Resampler resampler;
    if (height == image_.height && width == image_.width) return true;  // as torchvision and Pillow
    ResizeJob job;
    job.height = image_.height;
    job.width = image_.width;
    job.out_height = height;
    job.out_width = width;
    job.filter = filter;
    job.order = pass_order(pass_rule_, job.width, job.height, width, height);
    std::string error;
    if (!resampler.prepare(job, error)) return false;
    const Image next = other(height, width);
    resampler.run({image_.data, image_.stride, {0, 0, image_.height, image_.width}}, next.data, next.stride);
    image_ = next;
    return true;
  }

  Image image_;
  PassRule pass_rule_;
  int which_ = 0;
};

}  // namespace

bool fits(const Step& step, int height, int width) {
  const PixelBox& box = step.box;
  if (box.top < 0 || box.left < 0) return false;
  if (step.kind == Kind::crop) {
    return box.height >= 1 && box.width >= 1 && box.height <= height - box.top && box.width <= width - box.left;
  }
  const int bottom = box.height - box.top - height, right = box.width - box.left - width;
  if (bottom < 0 || right < 0) return false;
  const int less = step.mode == PadMode::reflect ? 1 : 0;
  const bool repeats = step.mode == PadMode::reflect || step.mode == PadMode::symmetric;
  const int tallest = std::max(box.top, bottom), widest = std::max(box.left, right);
  return !repeats || (tallest <= height - less && widest <= width - less);
}

bool apply_steps(const std::vector<Step>& steps, PassRule pass_rule, Image image, Image out) {
  Work work(image, pass_rule);
  for (const Step& step : steps) {
    if (!work.apply(step)) return false;
  }
  const Image& result = work.image();
  if (result.height != out.height || result.width != out.width) return false;
  if (result.data == out.data) return true;
  for (int y = 0; y < out.height; ++y) std::memmove(out.row(y), result.row(y), static_cast<std::size_t>(out.width) * 3);
  return true;
}

}  // namespace fastload
