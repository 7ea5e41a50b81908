#include "image/steps.h"

#include <cstring>
#include <string>

#include "base/buffer.h"
#include "image/filters/blur.h"
#include "image/filters/convolve.h"
#include "image/filters/gaussian.h"

namespace fastload {
namespace {

using Kind = Step::Kind;

constexpr std::size_t kKeptBytes = std::size_t{1} << 20;

// The image between two steps. It lies in the caller's memory, in one of two buffers, or in the output.
class Work {
 public:
  // `image` may lie in `out`, and is left as it is if it is `lent`.
  Work(Image image, bool lent, Image out, PassRule pass_rule)
      : image_(image), lent_(lent), out_(out), in_out_(image.data == out.data), pass_rule_(pass_rule) {}
  ~Work() {
    for (Buffer& buffer : buffers()) buffer.shrink(kKeptBytes);
  }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  // Applies all of `steps`.
  bool apply(const std::vector<Step>& steps) {
    const std::size_t count = steps.size();
    for (std::size_t i = 0; i < count; ++i) {
      // Only the crop of a padded image is made.
      const bool pads_and_crops = i + 1 < count && steps[i].kind == Kind::pad && steps[i + 1].kind == Kind::crop;
      const Step* const crop = pads_and_crops ? &steps[++i] : nullptr;
      last_ = i + 1 == count;
      if (crop != nullptr ? !pad_and_crop(steps[i - 1], *crop) : !apply(steps[i])) return false;
    }
    return true;
  }

  // Brings the result to the output.
  bool finish() {
    if (image_.height != out_.height || image_.width != out_.width) return false;
    if (image_.data != out_.data) copy(image_, out_);
    return true;
  }

 private:
  bool apply(const Step& step) {
    const PixelBox& box = step.box;
    switch (step.kind) {
      case Kind::brightness: adjust_brightness(own(), step.value); return true;
      case Kind::contrast: adjust_contrast(own(), step.value); return true;
      case Kind::saturation: adjust_saturation(own(), step.value); return true;
      case Kind::hue: adjust_hue(own(), static_cast<std::uint8_t>(step.value)); return true;
      case Kind::sharpness: adjust_sharpness(own(), step.value); return true;
      case Kind::grayscale: to_grayscale(own()); return true;
      case Kind::invert: invert(own()); return true;
      case Kind::posterize: posterize(own(), static_cast<int>(step.value)); return true;
      case Kind::solarize: solarize(own(), static_cast<int>(step.value)); return true;
      case Kind::solarize_add: solarize_add(own(), static_cast<int>(step.value)); return true;
      case Kind::autocontrast: autocontrast(own()); return true;
      case Kind::equalize: equalize(own()); return true;
      case Kind::torch_brightness: torch_brightness(own(), step.value); return true;
      case Kind::torch_contrast: torch_contrast(own(), step.value, step.twice, step.planar); return true;
      case Kind::torch_saturation: torch_saturation(own(), step.value); return true;
      case Kind::torch_sharpness: torch_sharpness(own(), step.value); return true;
      case Kind::torch_hue: torch_hue(own(), step.value); return true;
      case Kind::permute: permute_channels(own(), step.order); return true;
      case Kind::torch_grayscale: torch_grayscale(own()); return true;
      case Kind::torch_autocontrast: torch_autocontrast(own()); return true;
      case Kind::flip_horizontal: return turn(Transpose::flip_horizontal);
      case Kind::flip_vertical: return turn(Transpose::flip_vertical);
      case Kind::rotate_90: return turn(Transpose::rotate_90);
      case Kind::rotate_180: return turn(Transpose::rotate_180);
      case Kind::rotate_270: return turn(Transpose::rotate_270);
      case Kind::affine: {
        const Image next = other(image_.height, image_.width);
        transform_affine(image_, next, step.matrix, step.sampling, step.fill);
        become(next);
        return true;
      }
      case Kind::perspective: {
        const Image next = other(image_.height, image_.width);
        transform_perspective(image_, next, step.coefficients, step.sampling, step.fill);
        become(next);
        return true;
      }
      case Kind::gather: {
        const PixelPlaces& places = *step.places;
        if (places.height != image_.height || places.width != image_.width) return false;
        const Image next = other(image_.height, image_.width);
        gather(image_, next, places, step.fill);
        become(next);
        return true;
      }
      case Kind::gaussian_blur: gaussian_blur(own(), step.radii[0], step.radii[1]); return true;
      case Kind::crop:
        if (!fits(step, image_.height, image_.width)) return false;
        image_ = {image_.row(box.top) + std::ptrdiff_t{3} * box.left, image_.stride, box.height, box.width};
        return true;
      case Kind::pad: return pad(step, {0, 0, box.height, box.width});
      case Kind::gaussian_filter: {
        const Image source = image_, next = other(source.height, source.width);
        become(next);
        return gaussian_filter(source, next, box.height, box.width, step.value);
      }
      case Kind::convolve: {
        const Image source = image_, next = other(source.height, source.width);
        become(next);
        return convolve(source, {step.weights->data(), box.height, box.width}, next);
      }
      case Kind::resize: return resize(box.height, box.width, step.filter);
    }
    return false;
  }

  static std::array<Buffer, 2>& buffers() {
    static thread_local std::array<Buffer, 2> both;
    return both;
  }

  static void copy(ConstImage from, const Image& to) {
    for (int y = 0; y < to.height; ++y) std::memmove(to.row(y), from.row(y), static_cast<std::size_t>(to.width) * 3);
  }

  // Memory of this size that does not hold the image: a buffer, or the output for the last step.
  Image other(int height, int width) {
    if (last_ && !in_out_ && height == out_.height && width == out_.width) return out_;
    which_ = 1 - which_;
    Buffer& buffer = buffers()[static_cast<std::size_t>(which_)];
    const std::ptrdiff_t stride = std::ptrdiff_t{3} * width;
    buffer.resize(static_cast<std::size_t>(stride) * static_cast<std::size_t>(height));
    return {buffer.data(), stride, height, width};
  }

  void become(const Image& next) {
    image_ = next;
    lent_ = in_out_ = false;
  }

  // The image, to be changed.
  const Image& own() {
    if (lent_) {
      const Image next = other(image_.height, image_.width);
      copy(image_, next);
      become(next);
    }
    return image_;
  }

  // Makes a window of the padded image.
  bool pad(const Step& step, const PixelBox& window) {
    if (!fits(step, image_.height, image_.width)) return false;
    const Image next = other(window.height, window.width);
    fastload::pad(image_, next, step.box.left - window.left, step.box.top - window.top, step.mode, step.fill);
    become(next);
    return true;
  }

  bool pad_and_crop(const Step& step, const Step& crop) {
    return fits(crop, step.box.height, step.box.width) && pad(step, crop.box);
  }

  bool turn(Transpose how) {
    const bool swaps = how == Transpose::rotate_90 || how == Transpose::rotate_270;
    const Image next = swaps ? other(image_.width, image_.height) : other(image_.height, image_.width);
    transpose(image_, next, how);
    become(next);
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
    become(next);
    return true;
  }

  Image image_;
  bool lent_;
  Image out_;
  bool in_out_;  // the image lies in the output
  bool last_ = false;
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
  Work work(image, false, out, pass_rule);
  return work.apply(steps) && work.finish();
}

bool apply_steps_to_copy(const std::vector<Step>& steps, PassRule pass_rule, ConstImage image, Image out) {
  Work work({const_cast<std::uint8_t*>(image.data), image.stride, image.height, image.width}, true, out, pass_rule);
  return work.apply(steps) && work.finish();
}

}  // namespace fastload
