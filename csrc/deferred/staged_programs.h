// Prepares the images of a batch's tensors for the kernels of a GPU, which make their levels. Knows neither Python nor
// torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "deferred/tensor_program.h"
#include "gpu/staging.h"

namespace fastload {

struct StagedPrograms {
  std::unique_ptr<Staging> staging;
  // Of each image of the staging, where it is among all tensors' images: those of one file are next to each other.
  std::vector<std::int32_t> order;
  std::vector<Staging::Chunk> chunks;
};

// Images of one tensor are next to each other in the pixels; those of tensor i begin at byte first[i]. `memory` and
// `most_bytes` are as for Staging and its finish(). Each file is staged once. Throws std::bad_alloc, and
// std::invalid_argument as Staging.
StagedPrograms stage_programs(const std::vector<std::shared_ptr<TensorProgram>>& tensors,
                              const std::vector<std::size_t>& first, std::uint8_t* memory, std::size_t size,
                              std::size_t most_bytes);

}  // namespace fastload
