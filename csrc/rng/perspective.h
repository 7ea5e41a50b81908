// The coefficients of torchvision's perspective transforms. Knows neither Python nor torch.
#pragma once

#include <array>
#include <optional>

#include "rng/generator.h"

namespace fastload {

// Width and height of an image, and where its corners go: x and y of the top left, top right, bottom right, bottom left
// one. Whole numbers.
using Corners = std::array<double, 10>;
using Coefficients = std::array<double, 8>;

// RandomPerspective.get_params (v1) and make_params (v2), which draw the same numbers; `distortion` from 0 to 1.
Corners draw_corners(Generator& generator, double distortion, int width, int height);

// torchvision.transforms.functional._get_perspective_coeffs, float32 numbers; none if they depend on how torch's least
// squares round. That is so where one of them is 0, which torch's are not quite.
std::optional<Coefficients> perspective_coefficients(const Corners& corners);

}  // namespace fastload
