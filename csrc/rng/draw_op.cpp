#include <algorithm>
#include <cmath>

#include "image/filters/blur.h"
#include "image/filters/gaussian.h"
#include "rng/draw_plan.h"
#include "rng/draw_python.h"

namespace fastload {
namespace {

bool is_pair(const double (&pair)[2], double least) {
  return least <= pair[0] && pair[0] <= pair[1] && std::isfinite(pair[1]);
}

// The same for a rotation or an affine transform.
std::string affine_fault(const DrawOp& op) {
  using Kind = DrawOp::Kind;
  const bool affine = op.kind == Kind::random_affine_v1 || op.kind == Kind::random_affine_v2;
  if (!affine && op.kind != Kind::random_rotation) return "";
  const auto small = [](double value) { return std::fabs(value) <= 1e9; };  // false for NaN
  for (const DrawOp::Jitter& range : op.jitters) {
    if (range.on && !(range.low <= range.high && small(range.low) && small(range.high))) {
      return "degrees, scale and shear must be (min, max) pairs";
    }
  }
  if (!op.jitters[0].on) return "degrees must be a (min, max) pair";
  if (affine && op.jitters[1].on && !(op.jitters[1].low >= 1e-9)) return "scale must be greater than 0";
  if (op.center && !(small((*op.center)[0]) && small((*op.center)[1]))) return "center must be two numbers";
  if (!op.translate) return "";
  const auto [x, y] = *op.translate;
  return x >= 0 && x <= 1 && y >= 0 && y <= 1 ? "" : "translate must be two numbers from 0 to 1";
}

}  // namespace

std::string fault(const DrawOp& op) {
  using Kind = DrawOp::Kind;
  const bool crops = op.kind == Kind::random_crop_v1 || op.kind == Kind::random_crop_v2 || op.kind == Kind::center_crop;
  const bool draws_size = op.kind == Kind::random_resized_crop || op.kind == Kind::random_erasing;
  const bool chances = op.kind == Kind::horizontal_flip || op.kind == Kind::vertical_flip ||
                       op.kind == Kind::random_erasing || op.kind == Kind::chance;
  if (chances && !(op.p >= 0.0 && op.p <= 1.0)) return "p must be within [0, 1], got " + std::to_string(op.p);
  if (crops || op.kind == Kind::random_resized_crop || op.kind == Kind::resize || op.kind == Kind::resize_shorter) {
    if (op.height < 1 || (op.kind != Kind::resize_shorter && op.width < 1)) {
      return "sizes must be > 0, got " + std::to_string(op.height) + " x " + std::to_string(op.width);
    }
  }
  if (op.kind == Kind::resize_shorter && op.max_size != 0 && op.max_size <= op.height) {
    return "max_size must be greater than the size, got " + std::to_string(op.max_size);
  }
  if (draws_size &&
      !(is_pair(op.scale, 0) && is_pair(op.ratio, 0) && op.ratio[0] > 0 && op.log_ratio[0] <= op.log_ratio[1])) {
    return "scale and ratio must be positive (min, max) pairs";
  }
  const std::size_t branches = op.branches.size();
  if (op.kind == Kind::choose && branches == 0) return "there is nothing to choose from";
  if (op.kind == Kind::chance && (branches < 1 || branches > 2)) return "a chance has one or two branches";
  if (op.kind == Kind::auto_augment_v1 && (branches == 0 || branches % 4 != 0 || op.chances.size() != branches / 2)) {
    return "a policy has four branches and two chances";
  }
  if (op.kind == Kind::color_jitter || op.kind == Kind::torch_color_jitter) {
    for (const DrawOp::Jitter& jitter : op.jitters) {
      if (jitter.on && !(jitter.low <= jitter.high && std::isfinite(jitter.low) && std::isfinite(jitter.high))) {
        return "a jitter must be a (min, max) pair";
      }
    }
    const DrawOp::Jitter& hue = op.jitters[3];
    if (hue.on && op.kind == Kind::torch_color_jitter) return "hue is not known on tensors";
    if (hue.on && (hue.low < -0.5 || hue.high > 0.5)) return "hue must be within [-0.5, 0.5]";
  }
  if (std::string reason = affine_fault(op); !reason.empty()) return reason;
  if (std::string reason = fault_of_python(op); !reason.empty()) return reason;
  if (op.kind == Kind::random_perspective && !(op.step.value >= 0 && op.step.value <= 1)) {
    return "a perspective's distortion must be from 0 to 1";
  }
  if (op.kind == Kind::random_gaussian) {
    const auto odd = [](int taps) { return taps % 2 == 1 && taps >= 1 && taps <= kMostTaps; };
    const DrawOp::Jitter& sigma = op.jitters[0];
    if (!odd(op.height) || !odd(op.width)) return "a kernel's sides must be odd, and at most 999";
    if (!(sigma.on && sigma.low >= 1e-9 && sigma.low <= sigma.high && sigma.high <= 1e9)) {
      return "sigma must be a (min, max) pair of positive numbers";
    }
  }
  if (op.kind == Kind::shuffle && branches > 1000) return "there are too many transforms to shuffle";
  if (op.kind == Kind::choose_weighted) {
    const auto valid = [](double weight) { return weight >= 0 && weight <= 1; };
    if (branches == 0 || op.chances.size() != branches || !std::all_of(op.chances.begin(), op.chances.end(), valid) ||
        static_cast<float>(*std::max_element(op.chances.begin(), op.chances.end())) == 0) {
      return "a weighted choice needs a weight from 0 to 1 for each transform, and one above 0";
    }
  }
  if (op.kind == Kind::step && op.step.kind == Step::Kind::pad) {
    const PixelBox& margins = op.step.box;
    if (margins.top < 0 || margins.left < 0 || margins.height < 0 || margins.width < 0) return "margins must be >= 0";
  }
  if (op.kind == Kind::step && op.step.kind == Step::Kind::gaussian_blur) {
    for (const float radius : op.step.radii) {
      if (!(radius >= 0 && radius <= kMostBlurRadius)) return "a radius must be from 0 to 100000";
    }
  }
  for (const std::vector<DrawOp>& branch : op.branches) {
    for (const DrawOp& inner : branch) {
      if (inner.kind == Kind::random_erasing || inner.kind == Kind::python_erasing) return "an erasing must come last";
      if (std::string reason = fault(inner); !reason.empty()) return reason;
    }
  }
  return "";
}

}  // namespace fastload
