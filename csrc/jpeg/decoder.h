// Decodes any region of a JPEG image, bit for bit as libjpeg-turbo and Pillow do. Knows neither Python nor torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/header.h"
#include "base/source.h"
#include "base/status.h"
#include "jpeg/header.h"

namespace fastload {

// Columns of a decoded row: the region's, and the margin that the decoder needs around them.
struct RowLayout {
  std::uint32_t left = 0;   // image column of a row's first pixel, <= Region::left
  std::uint32_t width = 0;  // pixels per row; RGB, 3 bytes each
};

class JpegIndex;

struct DecodeOptions {
  std::uint64_t max_pixels = 0;  // larger images are `bomb`; 0: no limit
  int scale_denominator = 1;   // 1, 2, 4, 8: decode at 1/n of the size (not Pillow's bits); Region counts scaled pixels
  bool libjpeg_only = false;   // for comparisons
  JpegIndex* index = nullptr;  // where to begin within files decoded before; changes the time only
};

// `ok`, or why this core does not decode images with this header. Thread-safe.
Status check_supported(const JpegHeader& header, std::uint64_t max_pixels);

// One bit per Subsampling that this libjpeg decodes as the installed Pillow does; all others are `unsupported`.
// Initially gray, 4:4:4, 4:2:2 and 4:2:0; calibration sets the rest. Thread-safe.
void set_trusted_subsamplings(std::uint32_t mask);
std::uint32_t trusted_subsamplings();

// Whether this core's own decoder takes the files that it supports (the default with AVX2 or NEON); libjpeg-turbo takes
// all others, and those that are not sound. Both give the same pixels, statuses and messages. Thread-safe.
void set_own_decoder(bool enabled);
bool uses_own_decoder();

// Images that this process decoded or read to the end, by what did it. Thread-safe.
struct DecodeCounts {
  std::uint64_t own = 0;
  std::uint64_t libjpeg = 0;   // libjpeg-turbo, for all rows
  std::uint64_t replaced = 0;  // libjpeg-turbo, after the own decoder gave up below the region's first row
};
DecodeCounts decode_counts();

// Decodes one image at a time:
//
//   Status status = decoder.start(source, header, region, options, layout);
//   while rows are left and status is ok: status = decoder.read(rows, count);
//   status = decoder.finish();   // the pixels are valid only if this is `ok`
//
// State is reused between images. Not thread-safe: use one per thread. The source must stay valid until finish() or the
// next start(); once it is stopped, all methods soon return `cancelled`. Throws std::bad_alloc
// only.
class Decoder {
 public:
  Decoder();
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // Bytes behind the header of a file that the core's own decoder takes at its full size; 0 if libjpeg-turbo does.
  std::size_t own_scan_bytes(ByteSource& source, const JpegHeader& header);
  // `header` is scan_header's result for the same bytes. The region must lie within the (scaled) image. An image with
  // too many scans for its size is `unsupported` (see kMaxScannedPixels).
  Status start(ByteSource& source, const JpegHeader& header, const Region& region, const DecodeOptions& options,
               RowLayout& layout);
  // Decodes the next `count` rows of the region; each pointer has room for RowLayout::width * 3 bytes.
  Status read(std::uint8_t* const* rows, int count);
  // Stops decoding and checks that the rest of the file is valid, as Pillow requires.
  Status finish();
  // libjpeg's message about the last image if its status was not ok; else empty.
  const char* message() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The calling thread's decoder.
Decoder& thread_decoder();

// "libjpeg-turbo 2.1.5 (API 62)": the library that this build was compiled against.
std::string libjpeg_version();

}  // namespace fastload
