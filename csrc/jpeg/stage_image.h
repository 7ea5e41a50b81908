// Prepares one JPEG file for the CUDA kernels that decode it (fastload/device/decode.cu). Knows neither Python nor
// CUDA.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "fastload/device/decode_layout.h"
#include "jpeg/file.h"
#include "jpeg/jpeg.h"
#include "jpeg/jpeg_index.h"
#include "resample/resample.h"

namespace fastload {

// The codes of one image.
using StagedCodes = std::array<std::array<std::uint8_t, kStagedCodeBytes>, kStagedCodes>;

// Writes what the kernels need to decode and resize as `job` says, whose source is `crop` of the image. Offsets count
// from the beginning of `bytes`, which loses its contents. `codes` are the image's, without a number. False if the file
// has to be decoded here: the core does not decode it, or the index lacks points for it. Thread-safe: uses thread-local
// state. Throws std::bad_alloc.
bool stage_image(ByteSource& source, const JpegHeader& header, const Region& crop, const ResizeJob& job,
                 JpegIndex& index, std::vector<std::uint8_t>& bytes, StagedCodes& codes, StagedImage& image);

}  // namespace fastload
