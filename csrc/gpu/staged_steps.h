// Prepares the steps on a decoded image for the CUDA kernel that runs them (gpu/kernels/steps.cu). Knows neither
// Python nor CUDA.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu/kernels/decode_layout.h"
#include "gpu/kernels/steps_layout.h"
#include "image/steps.h"

namespace fastload {

// Appends steps on an image of height x width to `bytes`, and sets in `image` what belongs to them. False if the
// result is not out_height x out_width, a step does not fit its image, or the kernel does not run one. Thread-safe:
// uses thread-local state. Throws std::bad_alloc.
bool stage_steps(const std::vector<Step>& steps, PassRule pass_rule, int height, int width, int out_height,
                 int out_width, std::vector<std::uint8_t>& bytes, StagedImage& image);

}  // namespace fastload
