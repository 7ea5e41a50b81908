#include "rng/draw_crop.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

namespace fastload {
namespace {

// The crop that RandomResizedCrop derives from an area and an aspect ratio.
Size size_of(double area, float ratio) {
  return {round_half_even(std::sqrt(area / ratio)), round_half_even(std::sqrt(area * ratio))};
}

// Draws the next area and aspect ratio and computes the size. On false, `unresolved` must be known first.
bool draw_size(const DrawOp& op, UniformRule rule, const std::vector<Answer>& known, Size image, Generator& generator,
               Size& size, Question& unresolved) {
  const double area = static_cast<double>(image.height) * image.width;
  const double target_area = area * generator.uniform(op.scale[0], op.scale[1], rule);
  const float x = generator.uniform(op.log_ratio[0], op.log_ratio[1], rule);
  // torch's float32 exp depends on the CPU and the math library (MKL, Sleef, libm). All of them err by less than 1 ulp,
  // so the result is the correctly rounded value or one of its two neighbours. Width and height are monotonic in it: if
  // the neighbours give the same size, torch gets it too.
  const auto ratio = static_cast<float>(std::exp(static_cast<double>(x)));
  size = size_of(target_area, std::nextafter(ratio, 0.0f));
  if (size == size_of(target_area, std::nextafter(ratio, std::numeric_limits<float>::infinity()))) return true;
  unresolved = {Question::Kind::exp, {x}};
  const Answer* answer = find(known, unresolved);
  if (answer != nullptr && answer->numbers) size = size_of(target_area, static_cast<float>((*answer->numbers)[0]));
  return answer != nullptr;
}

PixelBox draw_place(Size size, Size image, Generator& generator) {
  const auto top = static_cast<int>(generator.randint(0, image.height - size.height + 1));
  const auto left = static_cast<int>(generator.randint(0, image.width - size.width + 1));
  return {top, left, size.height, size.width};
}

}  // namespace

const Answer* find(const std::vector<Answer>& known, const Question& question) {
  const auto found =
      std::find_if(known.begin(), known.end(), [&](const Answer& answer) { return answer.question == question; });
  return found == known.end() ? nullptr : &*found;
}

void draw_noise(const DrawOp& op, PixelBox box, Generator& generator, Geometry& geometry) {
  if (op.noise == DrawOp::Noise::none) return;
  if (geometry.noise == nullptr) {
    const auto before = std::make_shared<Generator>(generator);
    before->others.reset();
    geometry.noise = before;
  }
  const bool pixels = op.noise == DrawOp::Noise::pixels;
  generator.skip_normals(
      pixels ? std::uint64_t{3} * static_cast<std::uint64_t>(box.height) * static_cast<std::uint64_t>(box.width) : 3);
}

// Its aspect ratio is height by width, but a crop's
// is width by height. The box is shorter than the image on both sides, or nothing is erased.
DrawStatus draw_erasing(const DrawOp& op, UniformRule rule, const std::vector<Answer>& known, Size image,
                        Generator& generator, Geometry& geometry, Question& unresolved) {
  for (int attempt = 0; attempt < 10; ++attempt) {
    Size size{};
    if (!draw_size(op, rule, known, image, generator, size, unresolved)) return DrawStatus::ambiguous;
    std::swap(size.height, size.width);
    if (size.height < image.height && size.width < image.width) {
      draw_noise(op, {0, 0, size.height, size.width}, generator, geometry);
      geometry.erased.push_back(draw_place(size, image, generator));
      break;
    }
  }
  return DrawStatus::ok;
}

DrawStatus draw_resized_crop(const DrawOp& op, UniformRule rule, const std::vector<Answer>& known, Size image,
                             Generator& generator, PixelBox& box, Question& unresolved) {
  for (int attempt = 0; attempt < 10; ++attempt) {
    Size size{};
    if (!draw_size(op, rule, known, image, generator, size, unresolved)) return DrawStatus::ambiguous;
    if (0 < size.width && size.width <= image.width && 0 < size.height && size.height <= image.height) {
      box = draw_place(size, image, generator);
      return DrawStatus::ok;
    }
  }
  const double in_ratio = static_cast<double>(image.width) / image.height;
  Size size = image;
  if (in_ratio < op.ratio[0]) {
    size.height = round_half_even(image.width / op.ratio[0]);
  } else if (in_ratio > op.ratio[1]) {
    size.width = round_half_even(image.height * op.ratio[1]);
  }
  box = {(image.height - size.height) / 2, (image.width - size.width) / 2, size.height, size.width};
  return size.height > 0 && size.width > 0 ? DrawStatus::ok : DrawStatus::crop_too_large;
}

}  // namespace fastload
