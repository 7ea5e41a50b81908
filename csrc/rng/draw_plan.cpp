#include "rng/draw_plan.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "image/filters/blur.h"
#include "image/filters/gaussian.h"
#include "rng/draw_crop.h"
#include "rng/draw_python.h"

namespace fastload {
namespace {

bool is_pair(const double (&pair)[2], double least) {
  return least <= pair[0] && pair[0] <= pair[1] && std::isfinite(pair[1]);
}

// fault() of a rotation or an affine transform.
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

bool is_odd(int taps) { return taps % 2 == 1 && taps >= 1 && taps <= kMostTaps; }

// fault() of a step that convolves.
std::string weights_fault(const Step& step) {
  const PixelBox& box = step.box;
  if (!is_odd(box.height) || !is_odd(box.width)) return "the weights' sides must be odd, and at most 999";
  const auto count = static_cast<std::size_t>(box.height) * static_cast<std::size_t>(box.width);
  const auto finite = [](float weight) { return std::isfinite(weight); };
  if (step.weights == nullptr || step.weights->size() != count ||
      !std::all_of(step.weights->begin(), step.weights->end(), finite)) {
    return "the weights must be height x width finite numbers";
  }
  return "";
}

// Why an op's arguments are invalid; empty if they are not.
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
    const DrawOp::Jitter& sigma = op.jitters[0];
    if (!is_odd(op.height) || !is_odd(op.width)) return "a kernel's sides must be odd, and at most 999";
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
  if (op.step.kind == Step::Kind::convolve) {
    if (std::string reason = weights_fault(op.step); !reason.empty()) return reason;
  }
  if (op.step.kind == Step::Kind::gather && op.step.places == nullptr) return "places are missing";
  if (op.kind == Kind::step && op.step.kind == Step::Kind::permute) {
    for (const int channel : op.step.order) {
      if (channel < 0 || channel > 2) return "a channel must be from 0 to 2";
    }
  }
  if (op.kind == Kind::step && (op.step.kind == Step::Kind::pad || op.step.kind == Step::Kind::crop)) {
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

// What to make of an image by the ops so far. Crops, one resize and flips become part of the region decode; what cannot
// becomes a step. A flip mirrors every later crop.
struct GeometryBuilder {
  Geometry& geometry;
  Size size;  // of the image after the ops so far
  bool resized = false;

  bool decoded() const { return !geometry.steps.empty(); }

  void crop(int top, int left, int height, int width) {
    if (decoded()) {
      if (Size{height, width} == size) return;
      add(Step::Kind::crop).box = {top, left, height, width};
    } else {
      if (geometry.flip_vertical) top = size.height - top - height;
      if (geometry.flip_horizontal) left = size.width - left - width;
      PixelBox& box = resized ? geometry.window : geometry.crop;
      box = {box.top + top, box.left + left, height, width};
      if (!resized) set_target(height, width);
    }
    size = {height, width};
  }

  void resize(int height, int width, Filter filter) {
    // Pillow's resize is not exactly symmetric, so flip-then-resize differs from resize-then-flip.
    if (decoded() || resized || geometry.flip_horizontal || geometry.flip_vertical) {
      Step& step = add(Step::Kind::resize);
      step.box = {0, 0, height, width};
      step.filter = filter;
    } else {
      set_target(height, width);
      geometry.filter = filter;
      resized = true;
    }
    size = {height, width};
  }

  void flip_horizontally() {
    if (decoded()) {
      add(Step::Kind::flip_horizontal);
    } else {
      geometry.flip_horizontal ^= true;
    }
  }

  void flip_vertically() {
    if (decoded()) {
      add(Step::Kind::flip_vertical);
    } else {
      geometry.flip_vertical ^= true;
    }
  }

  Step& add(Step::Kind kind) {
    geometry.steps.emplace_back().kind = kind;
    return geometry.steps.back();
  }

  // Returns false if the step does not fit the image.
  bool append(Step step) {
    PixelBox& box = step.box;
    switch (step.kind) {
      case Step::Kind::pad:  // its box holds the margins: top, left, bottom, right
        if (std::int64_t{size.height} + box.top + box.height > kLargestSide ||
            std::int64_t{size.width} + box.left + box.width > kLargestSide) {
          return false;
        }
        size = {size.height + box.top + box.height, size.width + box.left + box.width};
        box.height = size.height;
        box.width = size.width;
        break;
      case Step::Kind::crop:  // so does its box
        if (std::int64_t{box.top} + box.height >= size.height || std::int64_t{box.left} + box.width >= size.width) {
          return false;
        }
        size = {size.height - box.top - box.height, size.width - box.left - box.width};
        box.height = size.height;
        box.width = size.width;
        break;
      case Step::Kind::gather:
        if (step.places->height != size.height || step.places->width != size.width) return false;
        break;
      case Step::Kind::rotate_90:
      case Step::Kind::rotate_270: std::swap(size.height, size.width); break;
      default: break;
    }
    geometry.steps.push_back(step);
    return true;
  }

  void set_target(int height, int width) {
    geometry.out_height = height;
    geometry.out_width = width;
    geometry.window = {0, 0, height, width};
  }

 private:
  static constexpr std::int64_t kLargestSide = 1 << 20;
};

// torchvision's size for the shorter side; Python's int() truncates.
Size shorter_side_to(const DrawOp& op, Size image) {
  const int shorter = std::min(image.height, image.width), longer = std::max(image.height, image.width);
  int new_shorter = op.height;
  auto new_longer = static_cast<int>(static_cast<double>(op.height) * longer / shorter);
  if (op.max_size != 0 && new_longer > op.max_size) {
    new_shorter = static_cast<int>(static_cast<double>(op.max_size) * new_shorter / new_longer);
    new_longer = op.max_size;
  }
  return image.width <= image.height ? Size{new_longer, new_shorter} : Size{new_shorter, new_longer};
}

bool meets(float r, double p, DrawOp::Comparison comparison) {
  switch (comparison) {
    case DrawOp::Comparison::less: return r < static_cast<float>(p);
    case DrawOp::Comparison::less_or_equal: return r <= static_cast<float>(p);
    case DrawOp::Comparison::less_as_double: break;
  }
  return static_cast<double>(r) < p;
}

void jitter(const DrawOp& op, UniformRule rule, Generator& generator, GeometryBuilder& builder) {
  static constexpr Step::Kind kinds[] = {Step::Kind::brightness, Step::Kind::contrast, Step::Kind::saturation,
                                         Step::Kind::hue};
  static constexpr Step::Kind torch_kinds[] = {Step::Kind::torch_brightness, Step::Kind::torch_contrast,
                                               Step::Kind::torch_saturation, Step::Kind::hue};
  std::array<int, 4> order;
  generator.randperm(order.data(), 4);
  double values[4] = {};
  for (std::size_t i = 0; i < 4; ++i) {
    const DrawOp::Jitter& range = op.jitters[i];
    if (range.on) values[i] = generator.uniform(range.low, range.high, rule);
  }
  for (const int i : order) {
    const auto index = static_cast<std::size_t>(i);
    if (!op.jitters[index].on) continue;
    Step& step = builder.add(op.kind == DrawOp::Kind::torch_color_jitter ? torch_kinds[index] : kinds[index]);
    // torchvision's adjust_hue truncates the shift to a whole number, which wraps around at 256.
    step.value = step.kind == Step::Kind::hue
                     ? static_cast<std::uint8_t>(static_cast<std::int32_t>(values[index] * 255))
                     : values[index];
  }
}

class Run {
 public:
  Run(UniformRule rule, const std::vector<Answer>& known, Generator& generator, Geometry& geometry, Size size)
      : rule_(rule), known_(known), generator_(generator), builder_{geometry, size} {
    builder_.crop(0, 0, size.height, size.width);
  }

  DrawStatus apply(const std::vector<DrawOp>& ops) {
    for (const DrawOp& op : ops) {
      const DrawStatus status = apply(op);
      if (status != DrawStatus::ok) return status;
    }
    return DrawStatus::ok;
  }

  Question unresolved;

 private:
  DrawStatus apply(const DrawOp& op);
  DrawStatus apply_policy(const DrawOp& op);
  DrawStatus apply_shuffled(const DrawOp& op);
  DrawStatus apply_weighted(const DrawOp& op);
  DrawStatus apply_augmentation(const DrawOp& op);
  DrawStatus crop_or_pad(const DrawOp& op, OtherGenerators* others);
  void rotate(double angle, const std::optional<std::array<double, 2>>& center, const Step& how);
  void transform(const DrawOp& op);
  DrawStatus apply_perspective(const Step& how);

  double drawn(const DrawOp::Jitter& range, double otherwise) {
    return range.on ? generator_.uniform(range.low, range.high, rule_) : otherwise;
  }
  std::array<double, 2> or_middle(const std::optional<std::array<double, 2>>& center) const {
    return center.value_or(std::array<double, 2>{builder_.size.width * 0.5, builder_.size.height * 0.5});
  }
  void add_affine(const Step& how, const std::array<double, 6>& matrix) {
    Step& step = builder_.add(Step::Kind::affine);
    step.matrix = matrix;
    step.sampling = how.sampling;
    step.fill = how.fill;
  }

  UniformRule rule_;
  const std::vector<Answer>& known_;
  Generator& generator_;
  GeometryBuilder builder_;
};

// torchvision's first AutoAugment draws for both of a policy's steps before it looks at either. A policy's branches are
// its first step with a negative and a positive magnitude, then its second.
DrawStatus Run::apply_policy(const DrawOp& op) {
  const auto policies = static_cast<std::int64_t>(op.branches.size() / 4);
  const auto policy = static_cast<std::size_t>(generator_.randint(0, policies));
  const float draws[] = {generator_.rand(), generator_.rand()};
  const std::int64_t signs[] = {generator_.randint(0, 2), generator_.randint(0, 2)};
  for (std::size_t i = 0; i < 2; ++i) {
    if (!meets(draws[i], op.chances[2 * policy + i], DrawOp::Comparison::less_or_equal)) continue;
    const auto sign = static_cast<std::size_t>(signs[i]);
    const DrawStatus status = apply(op.branches[4 * policy + 2 * i + sign]);
    if (status != DrawStatus::ok) return status;
  }
  return DrawStatus::ok;
}

DrawStatus Run::apply_shuffled(const DrawOp& op) {
  std::vector<int> order(op.branches.size());
  generator_.randperm(order.data(), static_cast<int>(order.size()));
  for (const int index : order) {
    const DrawStatus status = apply(op.branches[static_cast<std::size_t>(index)]);
    if (status != DrawStatus::ok) return status;
  }
  return DrawStatus::ok;
}

// torch.multinomial with one sample: the largest of the weights, each divided by a number drawn by exponential_.
DrawStatus Run::apply_weighted(const DrawOp& op) {
  constexpr double kClose = 1e-6;  // more than what torch's and the C library's functions and float32 round away
  std::size_t chosen = 0;
  double most = -1, second = -1;
  for (std::size_t i = 0; i < op.chances.size(); ++i) {
    const double drawn = -std::log1p(-generator_.rand_double());
    if (drawn < 1e-30) return DrawStatus::crop_too_large;
    const double value = static_cast<float>(op.chances[i]) / drawn;
    second = std::max(second, std::min(value, most));
    if (value > most) {
      most = value;
      chosen = i;
    }
  }
  return second >= most * (1 - kClose) ? DrawStatus::crop_too_large : apply(op.branches[chosen]);
}

// Image.rotate, which copies or transposes at some angles.
void Run::rotate(double angle, const std::optional<std::array<double, 2>>& center, const Step& how) {
  const double turned = modulo_360(angle);
  const bool square = builder_.size.height == builder_.size.width;
  if (!center && turned == 0) return;
  if (!center && (turned == 180 || (square && (turned == 90 || turned == 270)))) {
    builder_.add(turned == 90    ? Step::Kind::rotate_90
                 : turned == 180 ? Step::Kind::rotate_180
                                 : Step::Kind::rotate_270);
    return;
  }
  add_affine(how, rotation_matrix(angle, or_middle(center)));
}

DrawStatus Run::apply_augmentation(const DrawOp& op) {
  const Size image = builder_.size;
  const Augmentation made = draw_augmentation(op, *generator_.others, image.height, image.width);
  if (!made.valid) return DrawStatus::crop_too_large;
  if (made.angle) {
    rotate(*made.angle, std::nullopt, *made.step);
  } else if (made.step) {
    builder_.geometry.steps.push_back(*made.step);
  }
  return DrawStatus::ok;
}

// timm's crop_or_pad and center_crop_or_pad.
DrawStatus Run::crop_or_pad(const DrawOp& op, OtherGenerators* others) {
  const Size image = builder_.size;
  const PixelBox box = draw_crop_or_pad(op, others, image.height, image.width);
  const int top = std::max(-box.top, 0), left = std::max(-box.left, 0);
  const int bottom = std::max(box.top + box.height - image.height, 0);
  const int right = std::max(box.left + box.width - image.width, 0);
  if (top > 0 || left > 0 || bottom > 0 || right > 0) {
    Step step = op.step;
    step.kind = Step::Kind::pad;
    step.box = {top, left, bottom, right};
    if (!builder_.append(step)) return DrawStatus::crop_too_large;
  }
  builder_.crop(std::max(box.top, 0), std::max(box.left, 0), box.height, box.width);
  return DrawStatus::ok;
}

// torchvision's RandomAffine.
void Run::transform(const DrawOp& op) {
  const double angle = drawn(op.jitters[0], 0);
  std::array<double, 2> translate{};
  if (op.translate) {
    const double sides[] = {static_cast<double>(builder_.size.width), static_cast<double>(builder_.size.height)};
    for (std::size_t i = 0; i < 2; ++i) {
      const double most = (*op.translate)[i] * sides[i];
      translate[i] = round_half_even(generator_.uniform(-most, most, rule_));
    }
  }
  const double scale = drawn(op.jitters[1], 1);
  const double shear_x = drawn(op.jitters[2], 0), shear_y = drawn(op.jitters[3], 0);
  const bool v2 = op.kind == DrawOp::Kind::random_affine_v2;
  add_affine(op.step, inverse_affine_matrix(or_middle(op.center), angle, translate, scale, {shear_x, shear_y}, v2));
}

// torchvision's RandomPerspective where its chance is met.
DrawStatus Run::apply_perspective(const Step& how) {
  const Question question{Question::Kind::perspective,
                          draw_corners(generator_, how.value, builder_.size.width, builder_.size.height)};
  std::optional<Coefficients> coefficients = perspective_coefficients(question.numbers);
  if (!coefficients) {
    const Answer* answer = find(known_, question);
    unresolved = question;
    if (answer == nullptr) return DrawStatus::ambiguous;
    if (!answer->numbers) return DrawStatus::crop_too_large;
    coefficients = answer->numbers;
  }
  Step& step = builder_.add(Step::Kind::perspective);
  step.coefficients = *coefficients;
  step.sampling = how.sampling;
  step.fill = how.fill;
  return DrawStatus::ok;
}

DrawStatus Run::apply(const DrawOp& op) {
  using Kind = DrawOp::Kind;
  const Size image = builder_.size;
  const bool is_crop =
      op.kind == Kind::random_crop_v1 || op.kind == Kind::random_crop_v2 || op.kind == Kind::center_crop;
  if (is_crop && (op.height > image.height || op.width > image.width)) return DrawStatus::crop_too_large;
  const int spare_height = image.height - op.height, spare_width = image.width - op.width;
  switch (op.kind) {
    case Kind::random_resized_crop: {
      PixelBox box;
      const DrawStatus status = draw_resized_crop(op, rule_, known_, image, generator_, box, unresolved);
      if (status != DrawStatus::ok) return status;
      builder_.crop(box.top, box.left, box.height, box.width);
      builder_.resize(op.height, op.width, op.filter);
      break;
    }
    case Kind::random_crop_v1:
    case Kind::random_crop_v2: {
      const bool always = op.kind == Kind::random_crop_v1 && (spare_height > 0 || spare_width > 0);
      const auto top = always || spare_height > 0 ? generator_.randint(0, spare_height + 1) : 0;
      const auto left = always || spare_width > 0 ? generator_.randint(0, spare_width + 1) : 0;
      builder_.crop(static_cast<int>(top), static_cast<int>(left), op.height, op.width);
      break;
    }
    case Kind::center_crop:
      builder_.crop(round_half_even(spare_height / 2.0), round_half_even(spare_width / 2.0), op.height, op.width);
      break;
    case Kind::resize: builder_.resize(op.height, op.width, op.filter); break;
    case Kind::resize_shorter: {
      const Size size = shorter_side_to(op, image);
      if (size.height < 1 || size.width < 1) return DrawStatus::crop_too_large;
      builder_.resize(size.height, size.width, op.filter);
      break;
    }
    // torch compares the float32 draw with p rounded to float32. v1 flips if r < p, v2 returns early if r >= p.
    case Kind::horizontal_flip:
      if (generator_.rand() < static_cast<float>(op.p)) builder_.flip_horizontally();
      break;
    case Kind::vertical_flip:
      if (generator_.rand() < static_cast<float>(op.p)) builder_.flip_vertically();
      break;
    case Kind::step: return builder_.append(op.step) ? DrawStatus::ok : DrawStatus::crop_too_large;
    case Kind::choose: {
      const auto branches = static_cast<std::int64_t>(op.branches.size());
      return apply(op.branches[static_cast<std::size_t>(generator_.randint(0, branches))]);
    }
    case Kind::chance:
      if (meets(generator_.rand(), op.p, op.comparison)) return apply(op.branches[0]);
      if (op.branches.size() > 1) return apply(op.branches[1]);
      break;
    case Kind::auto_augment_v1: return apply_policy(op);
    case Kind::color_jitter:
    case Kind::torch_color_jitter: jitter(op, rule_, generator_, builder_); break;
    case Kind::random_rotation: rotate(drawn(op.jitters[0], 0), op.center, op.step); break;
    case Kind::random_affine_v1:
    case Kind::random_affine_v2: transform(op); break;
    case Kind::random_perspective: return apply_perspective(op.step);
    case Kind::random_gaussian: {
      Step& step = builder_.add(Step::Kind::gaussian_filter);
      step.value = drawn(op.jitters[0], 0);
      step.box = {0, 0, op.height, op.width};
      break;
    }
    case Kind::shuffle: return apply_shuffled(op);
    case Kind::choose_weighted: return apply_weighted(op);
    case Kind::python_blur: {
      const auto radius = static_cast<float>(generator_.others->python.uniform(op.scale[0], op.scale[1]));
      builder_.add(Step::Kind::gaussian_blur).radii.fill(radius);
      break;
    }
    case Kind::python_chance:
    case Kind::python_choose:
    case Kind::python_choose_weighted:
    case Kind::python_shuffle:
    case Kind::numpy_choose:
      for (const std::size_t branch : draw_branches(op, *generator_.others)) {
        const DrawStatus status = apply(op.branches[branch]);
        if (status != DrawStatus::ok) return status;
      }
      break;
    case Kind::python_resized_crop: {
      const PixelBox box = draw_python_crop(op, *generator_.others, image.height, image.width);
      const Filter filter = draw_filter(op, *generator_.others);
      if (box.height < 1 || box.width < 1) return DrawStatus::crop_too_large;
      builder_.crop(box.top, box.left, box.height, box.width);
      builder_.resize(op.height, op.width, filter);
      break;
    }
    case Kind::resize_keep_ratio: {
      const PixelBox box = draw_kept_ratio(op, *generator_.others, image.height, image.width);
      const Filter filter = draw_filter(op, *generator_.others);
      if (box.height < 1 || box.width < 1) return DrawStatus::crop_too_large;
      builder_.resize(box.height, box.width, filter);
      break;
    }
    case Kind::python_crop_or_pad: return crop_or_pad(op, &*generator_.others);
    case Kind::center_crop_or_pad: return crop_or_pad(op, nullptr);
    case Kind::python_augment: return apply_augmentation(op);
    case Kind::random_erasing:
      if (!(generator_.rand() < static_cast<float>(op.p))) break;
      return draw_erasing(op, rule_, known_, image, generator_, builder_.geometry, unresolved);
    case Kind::python_erasing:
      builder_.geometry.erased = draw_python_boxes(op, *generator_.others, image.height, image.width);
      for (const PixelBox& box : builder_.geometry.erased) draw_noise(op, box, generator_, builder_.geometry);
      break;
  }
  return DrawStatus::ok;
}

}  // namespace

bool DrawPlan::add(const DrawOp& op, std::string& error) {
  error = erases_ ? "nothing can follow an erasing" : fault(op);
  if (!error.empty()) return false;
  erases_ = op.kind == DrawOp::Kind::random_erasing || op.kind == DrawOp::Kind::python_erasing;
  draws_others_ = draws_others_ || draws_from_others(op);
  views_.back().push_back(op);
  return true;
}

void DrawPlan::begin_view() {
  views_.emplace_back();
  erases_ = false;
}

DrawStatus DrawPlan::run(Generator& generator, int width, int height, const std::vector<Answer>& known,
                         Geometry& geometry, Question& unresolved, std::size_t view) const {
  geometry = {};
  geometry.steps.reserve(views_[view].size());
  if (draws_others_ && !generator.others) return DrawStatus::crop_too_large;
  const Generator before = generator;
  Run run(uniform_rule, known, generator, geometry, {height, width});
  const DrawStatus status = run.apply(views_[view]);
  unresolved = run.unresolved;
  if (status != DrawStatus::ok) generator = before;
  return status;
}

}  // namespace fastload
