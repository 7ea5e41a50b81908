// The steps of one image: its bytes and header, then its pixels. What the pool's threads do, and what a caller can do
// on a thread of its own. Knows neither Python nor torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "jpeg/file.h"
#include "jpeg/jpeg_header.h"
#include "jpeg/status.h"
#include "pool/decode_sample.h"
#include "rng/rng.h"

namespace fastload {

// One image: the file at `path`, or if data is not null, the bytes there, which are borrowed.
struct Input {
  std::string path;
  const std::uint8_t* data = nullptr;
  std::size_t size = 0;
};

// What became of one image.
struct Outcome {
  Status status = Status::cancelled;  // until it is known otherwise
  int error_number = 0;               // of `unreadable`
  std::uint32_t width = 0;            // of the whole image; 0: unknown
  std::uint32_t height = 0;
  std::size_t bytes = 0;  // of the file
  bool drawn = false;     // `geometry` is valid
  Geometry geometry;
  std::string detail;  // more words on the status, or empty
};

// Fills in what a geometry left open: a crop of height 0 is the whole image, out_height 0 the crop's own size, and a
// window of height 0 all of the output.
void complete(Geometry& geometry, const JpegHeader& header);

// Opens the input (a file with the buffer that was lent to `source`) and reads its header. False: outcome.status says
// why the core does not take this image. Never throws.
bool load(const Input& input, std::uint64_t max_pixels, ByteSource& source, JpegHeader& header, Outcome& outcome);

// Decodes outcome.geometry into `target`, and sets outcome.status. A source that was closed since load() is opened
// again. On failure the target's contents are unspecified. Never throws.
void decode(const Input& input, ByteSource& source, const JpegHeader& header, const SampleOptions& options,
            const Target& target, Outcome& outcome);

// The header alone, on the calling thread; outcome.status is scan_header's or ByteSource::open's. Never throws.
void load_header(const Input& input, JpegHeader& header, Outcome& outcome);

// All of it, on the calling thread. Never throws.
void process(const Input& input, const Geometry& geometry, const SampleOptions& options, const Target& target,
             Outcome& outcome);

}  // namespace fastload
