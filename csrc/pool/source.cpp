#include "pool/source.h"

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "codecs/codecs.h"

namespace fastload {
namespace {

// The calling thread's file buffer, kept between images.
Buffer& thread_buffer() {
  static thread_local Buffer buffer;
  return buffer;
}

// The image's pixels row by row, in the caller's memory or in the thread's.
const std::uint8_t* packed_pixels(const Input& input) {
  const auto [row, pixel, channel] = input.strides;
  if (channel == 1 && pixel == 3 && row == pixel * static_cast<std::ptrdiff_t>(input.width)) return input.data;
  static thread_local std::vector<std::uint8_t> packed;
  packed.resize(std::size_t{input.height} * input.width * 3);
  std::uint8_t* out = packed.data();
  for (std::uint32_t y = 0; y < input.height; ++y) {
    const std::uint8_t* from = input.data + row * static_cast<std::ptrdiff_t>(y);
    for (std::uint32_t x = 0; x < input.width; ++x, from += pixel, out += 3) {
      out[0] = from[0];
      out[1] = from[channel];
      out[2] = from[2 * channel];
    }
  }
  return packed.data();
}

// A larger image is read in a stream that the CPU foresees.
constexpr std::ptrdiff_t kPrefetchedBytes = 16384;
constexpr std::ptrdiff_t kCacheLine = 64;

Status open(const Input& input, ByteSource& source) {
  try {
    return source.open(input.path.c_str(), input.key ? &*input.key : nullptr);
  } catch (const std::bad_alloc&) {
    return Status::unsupported;
  }
}

Status scan(const Input& input, ByteSource& source, JpegHeader& header, Outcome& outcome) {
  Status status = Status::ok;
  if (input.data != nullptr) {
    source.borrow(input.data, input.size);
  } else {
    status = open(input, source);
  }
  if (status == Status::ok) {
    outcome.bytes = source.size();
    status = scan_header(source, header);
    if (status == Status::not_jpeg) status = scan_other_header(source, header);
    outcome.width = header.width;
    outcome.height = header.height;
  }
  outcome.error_number = source.error_number();
  return status;
}

}  // namespace

void prefetch(const Input& input) {
  const auto [row, pixel, channel] = input.strides;
  const std::ptrdiff_t bytes = std::max(row * static_cast<std::ptrdiff_t>(input.height), channel * 3);
  for (std::ptrdiff_t at = 0; at < std::min(bytes, kPrefetchedBytes); at += kCacheLine) {
    __builtin_prefetch(input.data + at);
  }
}

void complete(Geometry& geometry, const JpegHeader& header) {
  if (geometry.crop.height == 0) {
    geometry.crop = {0, 0, static_cast<int>(header.height), static_cast<int>(header.width)};
  }
  if (geometry.out_height == 0) {
    geometry.out_height = geometry.crop.height;
    geometry.out_width = geometry.crop.width;
  }
  if (geometry.window.height == 0) geometry.window = {0, 0, geometry.out_height, geometry.out_width};
}

bool load(const Input& input, std::uint64_t max_pixels, ByteSource& source, JpegHeader& header, Outcome& outcome) {
  if (input.is_decoded()) {
    header.height = outcome.height = input.height;
    header.width = outcome.width = input.width;
    return true;
  }
  Status status = scan(input, source, header, outcome);
  if (status == Status::ok) status = check_supported(header, max_pixels);
  if (status != Status::ok) outcome.status = status;
  return status == Status::ok;
}

bool reopen(const Input& input, ByteSource& source) { return source.is_open() || open(input, source) == Status::ok; }

void load_header(const Input& input, JpegHeader& header, Outcome& outcome) {
  ByteSource source;
  source.set_buffer(std::move(thread_buffer()));
  outcome.status = scan(input, source, header, outcome);
  thread_buffer() = source.take_buffer();
}

void decode(const Input& input, ByteSource& source, const JpegHeader& header, const SampleOptions& options,
            const Target& target, Outcome& outcome) {
  try {
    if (input.is_decoded()) {
      outcome.status =
          transform_pixels(packed_pixels(input), header, outcome.geometry, options, target, outcome.detail);
      return;
    }
    outcome.status = source.is_open() ? Status::ok : open(input, source);
    if (outcome.status == Status::ok) {
      outcome.status = decode_sample(source, header, outcome.geometry, options, target, outcome.detail);
    } else if (outcome.status == Status::corrupt) {
      outcome.detail = "the file has changed since its header was read";
    }
  } catch (const std::bad_alloc&) {
    outcome.status = Status::unsupported;
  }
  outcome.error_number = source.error_number();
}

void process(const Input& input, const Geometry& geometry, const SampleOptions& options, const Target& target,
             Outcome& outcome) {
  ByteSource source;
  source.set_buffer(std::move(thread_buffer()));
  JpegHeader header;
  if (load(input, options.max_pixels, source, header, outcome)) {
    outcome.geometry = geometry;
    outcome.drawn = true;
    complete(outcome.geometry, header);
    decode(input, source, header, options, target, outcome);
  }
  thread_buffer() = source.take_buffer();
}

}  // namespace fastload
