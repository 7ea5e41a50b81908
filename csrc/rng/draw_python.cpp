#include "rng/draw_python.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "image/filters/blur.h"

namespace fastload {
namespace {

using Kind = DrawOp::Kind;

constexpr double kLargestSide = 1 << 20;

// Python's round() to a whole number, or 0 if that is no side of an image.
int side_of(double length) {
  const double rounded = std::nearbyint(length);
  return rounded >= 1 && rounded <= kLargestSide ? static_cast<int>(rounded) : 0;
}

int below(PythonRandom& python, int count) {
  return static_cast<int>(python.randbelow(static_cast<std::uint32_t>(count)));
}

bool all_finite(const double (&pair)[2]) { return std::isfinite(pair[0]) && std::isfinite(pair[1]); }

// The argument that timm's functions make of a magnitude, in their order of operations.
double argument_of(const DrawOp::Level& level, double magnitude, PythonRandom& python) {
  double value = magnitude / 10.0 * level.slope + level.intercept;
  if (level.negates && python.random_double() > 0.5) value = -value;
  if (level.whole) value = std::trunc(value);
  value = std::min(value, level.most);
  if (level.subtracts) {
    value = level.base - value;
  } else if (level.base != 0) {
    value = level.base + value;
  }
  return std::max(value, level.least);
}

}  // namespace

bool draws_from_others(const DrawOp& op) {
  switch (op.kind) {
    case Kind::python_chance:
    case Kind::python_blur:
    case Kind::python_choose:
    case Kind::python_choose_weighted:
    case Kind::python_shuffle:
    case Kind::numpy_choose:
    case Kind::python_resized_crop:
    case Kind::python_crop_or_pad:
    case Kind::resize_keep_ratio:
    case Kind::python_augment:
    case Kind::python_erasing: return true;
    default: break;
  }
  return std::any_of(op.branches.begin(), op.branches.end(), [](const std::vector<DrawOp>& branch) {
    return std::any_of(branch.begin(), branch.end(), draws_from_others);
  });
}

std::string fault_of_python(const DrawOp& op) {
  const std::size_t branches = op.branches.size();
  constexpr std::size_t kMostBranches = 1000;
  switch (op.kind) {
    case Kind::python_chance:
      if (std::isnan(op.p)) return "p must be a number";
      return branches == 1 || branches == 2 ? "" : "a chance has one or two branches";
    case Kind::python_blur: {
      const auto valid = [](double radius) { return radius >= 0 && radius <= kMostBlurRadius; };
      return valid(op.scale[0]) && valid(op.scale[1]) ? "" : "a radius must be from 0 to 100000";
    }
    case Kind::python_choose_weighted:
      if (op.chances.size() != branches || !std::is_sorted(op.chances.begin(), op.chances.end()) || branches == 0 ||
          !(op.chances.front() >= 0 && op.chances.back() > 0 && std::isfinite(op.chances.back()))) {
        return "a weighted choice needs the sum of the weights so far for each transform";
      }
      return branches > kMostBranches ? "there are too many transforms to choose from" : "";
    case Kind::python_choose:
    case Kind::numpy_choose:
      if (branches == 0 || branches > kMostBranches) return "there must be 1 to 1000 transforms to choose from";
      return op.count < 0 || op.count > 1000 ? "count must be from 0 to 1000" : "";
    case Kind::python_shuffle: return branches > kMostBranches ? "there are too many transforms to shuffle" : "";
    case Kind::python_resized_crop:
    case Kind::resize_keep_ratio:
    case Kind::python_crop_or_pad:
    case Kind::center_crop_or_pad: {
      if (op.height < 1 || op.width < 1 || op.height > kLargestSide || op.width > kLargestSide) {
        return "sizes must be > 0, got " + std::to_string(op.height) + " x " + std::to_string(op.width);
      }
      const bool positive = op.scale[0] >= 0 && op.scale[1] >= 0 && op.ratio[0] > 0 && op.ratio[1] > 0;
      return positive && all_finite(op.scale) && all_finite(op.ratio) && all_finite(op.logs) &&
                     std::isfinite(op.longest)
                 ? ""
                 : "scale and ratio must be pairs of positive numbers";
    }
    case Kind::python_augment: {
      const DrawOp::Level& level = op.level;
      const double numbers[] = {level.magnitude, level.highest, level.slope, level.intercept, level.base};
      const bool finite =
          std::all_of(std::begin(numbers), std::end(numbers), [](double n) { return std::fabs(n) < 1e6; });
      return finite && level.deviation >= 0 && op.p >= 0 ? "" : "a magnitude's numbers must be finite";
    }
    case Kind::python_erasing: {
      const auto small = [](const double (&pair)[2]) { return std::fabs(pair[0]) <= 20 && std::fabs(pair[1]) <= 20; };
      if (!(op.scale[0] >= 0 && op.scale[1] >= 0 && small(op.scale) && small(op.logs))) {
        return "areas must be from 0 to 20, and the logarithms of aspects from -20 to 20";
      }
      return op.count >= 0 && op.count <= op.most_count && op.most_count <= 1000 ? "" : "counts must be from 0 to 1000";
    }
    default: return "";
  }
}

std::vector<std::size_t> draw_branches(const DrawOp& op, OtherGenerators& others) {
  const std::size_t count = op.branches.size();
  PythonRandom& python = others.python;
  switch (op.kind) {
    case Kind::python_chance: {
      const double drawn = python.random_double();
      const bool met = op.comparison == DrawOp::Comparison::less_or_equal ? drawn <= op.p : drawn < op.p;
      const std::size_t branch = met ? 0 : 1;
      if (branch == count) return {};
      return {branch};
    }
    case Kind::python_choose: return {python.randbelow(static_cast<std::uint32_t>(count))};
    case Kind::python_choose_weighted: {  // random.choices: bisect_right among all but the last
      const double drawn = python.random_double() * op.chances.back();
      return {static_cast<std::size_t>(std::upper_bound(op.chances.begin(), op.chances.end() - 1, drawn) -
                                       op.chances.begin())};
    }
    case Kind::python_shuffle: {
      std::vector<std::size_t> order(count);
      std::iota(order.begin(), order.end(), std::size_t{0});
      for (std::size_t i = count; i-- > 1;)
        std::swap(order[i], order[python.randbelow(static_cast<std::uint32_t>(i + 1))]);
      return order;
    }
    default: {  // numpy_choose
      std::vector<std::size_t> chosen(static_cast<std::size_t>(op.count));
      for (std::size_t& one : chosen) one = others.numpy.randint(static_cast<std::uint32_t>(count));
      return chosen;
    }
  }
}

Filter draw_filter(const DrawOp& op, OtherGenerators& others) {
  if (op.filters.empty()) return op.filter;
  return op.filters[others.python.randbelow(static_cast<std::uint32_t>(op.filters.size()))];
}

PixelBox draw_python_crop(const DrawOp& op, OtherGenerators& others, int height, int width) {
  PythonRandom& python = others.python;
  const double area = static_cast<double>(height) * width;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double target_area = python.uniform(op.scale[0], op.scale[1]) * area;
    const double ratio = std::exp(python.uniform(op.logs[0], op.logs[1]));
    const double across = std::nearbyint(std::sqrt(target_area * ratio));
    const double down = std::nearbyint(std::sqrt(target_area / ratio));
    if (!(across <= width && down <= height)) continue;
    const int top = below(python, height - static_cast<int>(down) + 1);
    const int left = below(python, width - static_cast<int>(across) + 1);
    return {top, left, static_cast<int>(down), static_cast<int>(across)};
  }
  const double least = std::min(op.ratio[0], op.ratio[1]), most = std::max(op.ratio[0], op.ratio[1]);
  const double in_ratio = static_cast<double>(width) / height;
  int down = height, across = width;
  if (in_ratio < least) down = side_of(across / least);
  if (in_ratio > most) across = side_of(down * most);
  return {(height - down) / 2, (width - across) / 2, down, across};
}

PixelBox draw_kept_ratio(const DrawOp& op, OtherGenerators& others, int height, int width) {
  PythonRandom& python = others.python;
  const double tall = static_cast<double>(height) / op.height, wide = static_cast<double>(width) / op.width;
  const double ratio = std::max(tall, wide) * op.longest + std::min(tall, wide) * (1.0 - op.longest);
  double down = 1, across = 1;
  if (op.p > 0 && python.random_double() < op.p) {
    double factor = python.uniform(op.scale[0], op.scale[1]);
    if (op.by_area) factor = 1.0 / std::sqrt(factor);
    down = across = factor;
  }
  if (op.aspect_p > 0 && python.random_double() < op.aspect_p) {
    const double factor = std::sqrt(std::exp(python.uniform(op.logs[0], op.logs[1])));
    down = down / factor;
    across = across * factor;
  }
  const PixelBox box{0, 0, side_of(height * down / ratio), side_of(width * across / ratio)};
  return box.height > 0 && box.width > 0 ? box : PixelBox{};
}

PixelBox draw_crop_or_pad(const DrawOp& op, OtherGenerators* others, int height, int width) {
  const auto place = [others](int spare) {
    if (others != nullptr) {
      const int drawn = below(others->python, std::abs(spare) + 1);
      return spare < 0 ? -drawn : drawn;
    }
    return spare < 0 ? -(-spare / 2) : static_cast<int>(std::nearbyint(spare / 2.0));
  };
  const int top = place(height - op.height);
  const int left = place(width - op.width);
  return {top, left, op.height, op.width};
}

std::vector<PixelBox> draw_python_boxes(const DrawOp& op, OtherGenerators& others, int height, int width) {
  PythonRandom& python = others.python;
  std::vector<PixelBox> boxes;
  if (python.random_double() > op.p) return boxes;
  const double area = static_cast<double>(height) * width;
  const int count = op.count == op.most_count ? op.count : op.count + below(python, op.most_count - op.count + 1);
  for (int i = 0; i < count; ++i) {
    for (int attempt = 0; attempt < 10; ++attempt) {
      const double target_area = python.uniform(op.scale[0], op.scale[1]) * area / count;
      const double ratio = std::exp(python.uniform(op.logs[0], op.logs[1]));
      const double down = std::nearbyint(std::sqrt(target_area * ratio));
      const double across = std::nearbyint(std::sqrt(target_area / ratio));
      if (!(across < width && down < height)) continue;
      const int top = below(python, height - static_cast<int>(down) + 1);
      const int left = below(python, width - static_cast<int>(across) + 1);
      boxes.push_back({top, left, static_cast<int>(down), static_cast<int>(across)});
      break;
    }
  }
  return boxes;
}

Augmentation draw_augmentation(const DrawOp& op, OtherGenerators& others, int height, int width) {
  using Use = DrawOp::Level::Use;
  PythonRandom& python = others.python;
  const DrawOp::Level& level = op.level;
  if (op.p < 1 && python.random_double() > op.p) return {};
  double magnitude = level.magnitude;
  if (level.deviation > 0) {
    magnitude = std::isinf(level.deviation) ? python.uniform(0, magnitude) : python.gauss(magnitude, level.deviation);
  }
  magnitude = std::max(0.0, std::min(magnitude, level.highest));
  Step step = op.step;
  std::optional<double> angle;
  bool valid = true;
  if (level.use == Use::nothing) return {std::move(step), angle, valid};
  step.value = argument_of(level, magnitude, python);
  const auto sampled = [&] {
    if (!level.samplings.empty()) {
      step.sampling = level.samplings[python.randbelow(static_cast<std::uint32_t>(level.samplings.size()))];
    }
  };
  const auto moved = [&](std::size_t at, double by) {
    sampled();
    step.matrix = {1, 0, 0, 0, 1, 0};
    step.matrix[at] = by;
  };
  switch (level.use) {
    case Use::nothing:
    case Use::value: break;
    case Use::bits:
      if (step.value >= 8) return {};
      valid = step.value >= 1;  // Pillow 13 refuses 0
      break;
    case Use::angle:
      sampled();
      angle = step.value;
      break;
    case Use::shear_x: moved(1, step.value); break;
    case Use::shear_y: moved(3, step.value); break;
    case Use::shift_x: moved(2, step.value); break;
    case Use::shift_y: moved(5, step.value); break;
    case Use::part_of_width: moved(2, step.value * width); break;
    case Use::part_of_height: moved(5, step.value * height); break;
    case Use::largest_radius: step.value = python.uniform(0.1, 2.0 * step.value); [[fallthrough]];
    case Use::radius:
      step.radii.fill(static_cast<float>(step.value));
      valid = step.value >= 0 && step.value <= kMostBlurRadius;
      break;
  }
  return {std::move(step), angle, valid};
}

}  // namespace fastload
