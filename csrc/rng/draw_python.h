// Draws of the transforms that take their random numbers from Python's or NumPy's generator: torchvision's v1
// RandomChoice and RandomOrder, and timm's. Knows neither Python nor torch.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "rng/draw_plan.h"

namespace fastload {

bool draws_from_others(const DrawOp& op);  // or one of its branches does

// Why the arguments of such a transform are invalid; empty if they are not.
std::string fault_of_python(const DrawOp& op);

// Which branches to apply, in order.
std::vector<std::size_t> draw_branches(const DrawOp& op, OtherGenerators& others);

// The filter of a resize: drawn if there are several.
Filter draw_filter(const DrawOp& op, OtherGenerators& others);

// timm's RandomResizedCropAndInterpolation. Height or width 0: timm raises.
PixelBox draw_python_crop(const DrawOp& op, OtherGenerators& others, int height, int width);

// timm's ResizeKeepRatio: the new height and width, in a box at (0, 0). Both 0: timm raises.
PixelBox draw_kept_ratio(const DrawOp& op, OtherGenerators& others, int height, int width);

// timm's RandomCropOrPad and CenterCropOrPad: where to crop an image of height x width. Negative: where to pad it.
PixelBox draw_crop_or_pad(const DrawOp& op, OtherGenerators* others, int height, int width);

// Boxes of timm's RandomErasing.
std::vector<PixelBox> draw_python_boxes(const DrawOp& op, OtherGenerators& others, int height, int width);

// What timm's AugmentOp does to an image.
struct Augmentation {
  std::optional<Step> step;     // none: nothing
  std::optional<double> angle;  // rotate by that instead, with the step's sampling and fill
  bool valid = true;            // false: Pillow may raise
};
Augmentation draw_augmentation(const DrawOp& op, OtherGenerators& others, int height, int width);

}  // namespace fastload
