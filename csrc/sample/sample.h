// One image from its encoded bytes to its place in the batch. Knows neither Python nor torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/source.h"
#include "jpeg/decoder.h"
#include "resample/resample.h"
#include "rng/draw_plan.h"

namespace fastload {

// Options common to all images of a batch.
struct SampleOptions {
  int height = 0;  // of every output image, pixels
  int width = 0;
  Filter filter = Filter::bilinear;
  PassRule pass_rule = PassRule::horizontal_first;
  std::uint64_t max_pixels = 0;  // larger images are `bomb`; 0: no limit
  // Let libjpeg shrink by 2, 4 or 8 if the crop is at least that much larger than the output. Not Pillow's bits.
  bool fast = false;
  JpegIndex* index = nullptr;  // see DecodeOptions
};

// Where an image's pixels go: `height` rows of `width` RGB pixels.
struct Target {
  std::uint8_t* data = nullptr;
  std::ptrdiff_t row_stride = 0;  // bytes
};

// Decodes `geometry` of the image into `target`. If the status is not `ok`, the target's contents are unspecified and
// `detail` has a message. Returns `cancelled` soon after the source is stopped. Thread-safe: uses thread-local state.
// Throws std::bad_alloc only.
Status decode_sample(ByteSource& source, const JpegHeader& header, const Geometry& geometry,
                     const SampleOptions& options, const Target& target, std::string& detail);

// The same for an image that is RGB pixels, row by row; of the header only the size counts.
Status transform_pixels(const std::uint8_t* pixels, const JpegHeader& header, const Geometry& geometry,
                        const SampleOptions& options, const Target& target, std::string& detail);

// Whether the crop lies within the image, and the window within what is made of it.
bool has_valid_boxes(const ImageHeader& header, const Geometry& geometry);

// The job of resizing `source`, which has its size in pixels of the decoder's output.
ResizeJob job_of(const PixelBox& source, const Geometry& geometry, const SampleOptions& options);

Region to_region(const PixelBox& box);

// Only libjpeg-turbo's region decode: rows are decoded and dropped, the rest of the file is not read. The lower bound
// for benchmarks.
Status decode_and_drop(ByteSource& source, const JpegHeader& header, const Region& region, std::string& detail);

}  // namespace fastload
