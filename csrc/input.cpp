#include "input.h"

#include <new>

namespace fastload {
namespace {

// What a thread keeps of its own file buffer between images.
constexpr std::size_t kKeptBytes = std::size_t{4} << 20;

Buffer& thread_file() {
  static thread_local Buffer file;
  return file;
}

Status scan(const Input& input, Buffer& file, JpegHeader& header, Outcome& outcome) {
  const std::uint8_t* data = input.data;
  outcome.bytes = input.size;
  if (data == nullptr) {
    try {
      const Status status = read_file(input.path.c_str(), file, outcome.error_number);
      if (status != Status::ok) return status;
    } catch (const std::bad_alloc&) {
      return Status::unsupported;
    }
    data = file.data();
    outcome.bytes = file.size();
  }
  const Status status = scan_header(data, outcome.bytes, header);
  outcome.width = header.width;
  outcome.height = header.height;
  return status;
}

}  // namespace

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

bool load(const Input& input, std::uint64_t max_pixels, Buffer& file, JpegHeader& header, Outcome& outcome) {
  Status status = scan(input, file, header, outcome);
  if (status == Status::ok) status = check_supported(header, max_pixels);
  if (status != Status::ok) outcome.status = status;
  return status == Status::ok;
}

void load_header(const Input& input, JpegHeader& header, Outcome& outcome) {
  Buffer& file = thread_file();
  outcome.status = scan(input, file, header, outcome);
  file.shrink(kKeptBytes);
}

void decode(const Input& input, const Buffer& file, const JpegHeader& header, const SampleOptions& options,
            const Target& target, const std::atomic<bool>* stop, Outcome& outcome) {
  try {
    outcome.status = decode_sample(input.data != nullptr ? input.data : file.data(), outcome.bytes, header,
                                   outcome.geometry, options, target, stop, outcome.detail);
  } catch (const std::bad_alloc&) {
    outcome.status = Status::unsupported;
  }
}

void process(const Input& input, const Geometry& geometry, const SampleOptions& options, const Target& target,
             Outcome& outcome) {
  Buffer& file = thread_file();
  JpegHeader header;
  if (load(input, options.max_pixels, file, header, outcome)) {
    outcome.geometry = geometry;
    outcome.drawn = true;
    complete(outcome.geometry, header);
    decode(input, file, header, options, target, nullptr, outcome);
  }
  file.shrink(kKeptBytes);
}

}  // namespace fastload
