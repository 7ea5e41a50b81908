// The steps of one image: read its bytes and header, then decode its pixels. Used by the pool's threads and by callers
// on their own threads. Knows neither Python nor torch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "jpeg/file.h"
#include "jpeg/jpeg_header.h"
#include "jpeg/status.h"
#include "pool/decode_sample.h"
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

}  // namespace fastload
