// JPEG pixels through libjpeg-turbo: any region of an image, with the bits of Pillow's full decode. Neither Python nor
// torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "jpeg/file.h"
#include "jpeg/jpeg_header.h"
#include "jpeg/status.h"

namespace fastload {

struct Region {
  std::uint32_t top = 0;
  std::uint32_t left = 0;
  std::uint32_t height = 0;
  std::uint32_t width = 0;
};

// What a decoded row holds: the region's columns and whatever the decoder needs around them to get them right.
struct RowLayout {
  std::uint32_t left = 0;   // image column of a row's first pixel, <= Region::left
  std::uint32_t width = 0;  // pixels per row; RGB, 3 bytes each
};

struct DecodeOptions {
  std::uint64_t max_pixels = 0;  // larger images are `bomb`; 0: no limit
  int scale_denominator = 1;  // 1, 2, 4, 8: decode at 1/n of the size (not Pillow's bits); Region counts scaled pixels
};

// `ok`, or why this core would not decode an image with this header. Thread-safe.
Status check_supported(const JpegHeader& header, std::uint64_t max_pixels);

// One bit per Subsampling: those which this libjpeg decodes as the installed Pillow's does. All others are
// `unsupported`. Starts with gray, 4:4:4, 4:2:2 and 4:2:0; whoever compares sets the rest. Thread-safe.
void set_trusted_subsamplings(std::uint32_t mask);
std::uint32_t trusted_subsamplings();

// Decodes one image at a time:
//
//   Status status = decoder.start(source, header, region, options, layout);
//   while rows are left and status is ok: status = decoder.read(rows, count);
//   status = decoder.finish();   // only now is it known whether the pixels are good
//
// The state is reused from image to image. Not thread-safe: one per thread. The source must stay until finish() or the
// next start(); once it is stopped, all of them soon return `cancelled`. Never throws.
class Decoder {
 public:
  Decoder();
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // `header` is scan_header's of the same bytes. The region must lie within the (scaled) image. An image whose scans
  // are very many for its size is `unsupported` (see kMaxScannedPixels).
  Status start(ByteSource& source, const JpegHeader& header, const Region& region, const DecodeOptions& options,
               RowLayout& layout);
  // Decodes the next `count` rows of the region; each pointer has room for RowLayout::width * 3 bytes.
  Status read(std::uint8_t* const* rows, int count);
  // Stops decoding, and looks whether the rest of the file is in order, as it must be for Pillow.
  Status finish();
  // libjpeg's words on the last image, when its status was not ok; else empty.
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
