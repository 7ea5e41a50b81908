// One image from its encoded bytes to its place in the batch, step by step: for the pool's threads, and for callers on
// their own. Knows neither Python nor torch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/source.h"
#include "base/status.h"
#include "jpeg/decoder.h"
#include "jpeg/header.h"
#include "resample/resample.h"
#include "rng/draw_plan.h"

namespace fastload {

// One image: the file at `path` or, if data is not null, the borrowed bytes at `data`: an encoded image or, if `height`
// is not 0, RGB pixels.
struct Input {
  std::string path;
  const std::uint8_t* data = nullptr;
  std::size_t size = 0;  // of an encoded image
  std::uint32_t height = 0;
  std::uint32_t width = 0;
  // Bytes from a row, a pixel, a channel to the next. Gray pixels have channels 0 bytes apart.
  std::array<std::ptrdiff_t, 3> strides{};
  std::optional<HashKey> key{};  // that the file was tagged with

  bool is_decoded() const { return height != 0; }
};

// The result of processing one image.
struct Outcome {
  Status status = Status::cancelled;  // until the image is processed
  int error_number = 0;               // errno if `unreadable`
  std::uint32_t width = 0;            // of the whole image; 0: unknown
  std::uint32_t height = 0;
  std::size_t bytes = 0;  // of the file
  bool drawn = false;     // `geometry` is valid
  Geometry geometry;
  std::string detail;  // message about the status, or empty
};

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

// Begins to fetch an image's pixels into the cache. They may be anywhere in a dataset's memory, and are then waited for
// longer than their transforms take.
void prefetch(const Input& input);

// Completes a geometry: a crop of height 0 becomes the whole image, out_height 0 the crop's size, and a window of
// height 0 the whole output.
void complete(Geometry& geometry, const JpegHeader& header);

// Opens the input (a file into the buffer of `source`) and reads its header. On false, outcome.status says why the
// core does not take this image. Never throws.
bool load(const Input& input, std::uint64_t max_pixels, ByteSource& source, JpegHeader& header, Outcome& outcome);

// Whether a source closed since load() could be opened again; the file must not have changed. Never throws.
bool reopen(const Input& input, ByteSource& source);

// Decodes outcome.geometry into `target` and sets outcome.status. Reopens a source closed since load(). On failure the
// target's contents are unspecified. Never throws.
void decode(const Input& input, ByteSource& source, const JpegHeader& header, const SampleOptions& options,
            const Target& target, Outcome& outcome);

// Reads only the header, on the calling thread; outcome.status is scan_header's or ByteSource::open's. Never throws.
void load_header(const Input& input, JpegHeader& header, Outcome& outcome);

// All steps, on the calling thread. Never throws.
void process(const Input& input, const Geometry& geometry, const SampleOptions& options, const Target& target,
             Outcome& outcome);

// Whether the crop lies within the image, and the window within what is made of it.
bool has_valid_boxes(const ImageHeader& header, const Geometry& geometry);

// The job of resizing `source`, which has its size in pixels of the decoder's output.
ResizeJob job_of(const PixelBox& source, const Geometry& geometry, const SampleOptions& options);

Region to_region(const PixelBox& box);

// Only libjpeg-turbo's region decode: rows are decoded and dropped, the rest of the file is not read. The lower bound
// for benchmarks.
Status decode_and_drop(ByteSource& source, const JpegHeader& header, const Region& region, std::string& detail);

}  // namespace fastload
