// Draws the boxes of torchvision's RandomResizedCrop and RandomErasing.
#pragma once

#include <cmath>
#include <vector>

#include "rng/draw_plan.h"

namespace fastload {

struct Size {
  int height;
  int width;
  bool operator==(const Size& other) const { return height == other.height && width == other.width; }
};

// Python's int(round(x)): ties to even, as nearbyint rounds in the default mode.
inline int round_half_even(double x) { return static_cast<int>(std::nearbyint(x)); }

const Answer* find(const std::vector<Answer>& known, const Question& question);  // null: none

// RandomResizedCrop.get_params (v1) and make_params (v2), which draw the same numbers.
DrawStatus draw_resized_crop(const DrawOp& op, UniformRule rule, const std::vector<Answer>& known, Size image,
                             Generator& generator, PixelBox& box, Question& unresolved);

// RandomErasing.get_params (v1) and make_params (v2).
DrawStatus draw_erasing(const DrawOp& op, UniformRule rule, const std::vector<Answer>& known, Size image,
                        Generator& generator, Geometry& geometry, Question& unresolved);

// Skips the draws of a box's noise, and notes the generator before the first ones.
void draw_noise(const DrawOp& op, PixelBox box, Generator& generator, Geometry& geometry);

}  // namespace fastload
