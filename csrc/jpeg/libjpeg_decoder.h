// Decodes any region of a JPEG image with libjpeg-turbo, bit for bit as Pillow does. Knows neither Python nor torch.
#pragma once

#include <cstdint>
#include <memory>

#include "jpeg/decoder.h"

namespace fastload {

// As Decoder, which checks that the header is supported. Keeps its message until it is cleared.
class LibjpegDecoder {
 public:
  LibjpegDecoder();
  ~LibjpegDecoder();
  LibjpegDecoder(const LibjpegDecoder&) = delete;
  LibjpegDecoder& operator=(const LibjpegDecoder&) = delete;

  Status start(ByteSource& source, const JpegHeader& header, const Region& region, const DecodeOptions& options,
               RowLayout& layout);
  Status read(std::uint8_t* const* rows, int count);
  Status finish();

  void clear_message();
  const char* message() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fastload
