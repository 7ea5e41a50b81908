// The Python class of a batch's staging.
#pragma once

#include <memory>

#include <nanobind/ndarray.h>

#include "gpu/staging.h"

namespace fastload {

using StagingMemory = nanobind::ndarray<std::uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

// A batch's staging, and the Python object whose memory it uses.
struct BoundStaging {
  std::shared_ptr<Staging> staging;
  StagingMemory memory;
};

}  // namespace fastload
