// Fuzz target: decodes the bytes as a PNG or WebP file, whole and in a crop, as
// the filtered rows of a PNG file, and as a zlib stream. The last bytes choose crop and kind.
//
// Besides crashes and sanitizer reports, it checks that a crop equals that part of the whole image and has its status,
// that OpenCV's functions are given the same, and that nothing is written outside the output. Changed files mostly get
// sound checksums.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "codecs/codecs.h"
#include "codecs/inflate.h"
#include "fuzz/checks.h"
#include "jpeg/decoder.h"
#include "sample/sample.h"

using namespace fastload;

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace {

constexpr std::uint64_t kMaxPixels = 1 << 18;
constexpr std::size_t kControlBytes = 8;
constexpr std::uint8_t kSignature[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};

void put_32(std::uint8_t* to, std::uint32_t value) {
  for (int i = 0; i < 4; ++i) to[i] = static_cast<std::uint8_t>(value >> (24 - 8 * i));
}

void append_chunk(std::vector<std::uint8_t>& file, const char* name, const std::vector<std::uint8_t>& data) {
  const std::size_t at = file.size();
  file.resize(at + 12 + data.size());
  put_32(&file[at], static_cast<std::uint32_t>(data.size()));
  std::memcpy(&file[at + 4], name, 4);
  std::copy(data.begin(), data.end(), file.begin() + static_cast<std::ptrdiff_t>(at) + 8);
  put_32(&file[at + 8 + data.size()], crc_32(&file[at + 4], data.size() + 4));
}

Status decode_crop(const Input& input, const PixelBox& crop, std::vector<std::uint8_t>& pixels) {
  pixels.assign(std::size_t{3} * crop.height * crop.width + 2 * kGuardBytes, kGuard);
  SampleOptions options;
  options.height = crop.height;
  options.width = crop.width;
  options.max_pixels = kMaxPixels;
  Geometry geometry;
  geometry.crop = crop;
  Outcome outcome;
  process(input, geometry, options, {pixels.data() + kGuardBytes, std::ptrdiff_t{3} * crop.width}, outcome);
  check_guards(pixels);
  return outcome.status;
}

void run(const std::uint8_t* data, std::size_t size, const std::uint8_t* control) {
  const Input input{"", data, size};
  JpegHeader header;
  Outcome seen;
  load_header(input, header, seen);
  if (seen.status != Status::ok || header.format == Format::jpeg) return;
  demand(header.width > 0 && header.height > 0, "a sound header has a size");
  if (check_supported(header, kMaxPixels) != Status::ok) return;
  const int height = static_cast<int>(header.height), width = static_cast<int>(header.width);
  static std::vector<std::uint8_t> whole, part;
  const Status status = decode_crop(input, {0, 0, height, width}, whole);
  check_whole_image(data, size, status == Status::ok ? &whole[kGuardBytes] : nullptr);
  PixelBox crop;
  crop.top = control[0] * height / 256;
  crop.left = control[1] * width / 256;
  crop.height = 1 + control[2] * (height - crop.top) / 256;
  crop.width = 1 + control[3] * (width - crop.left) / 256;
  demand(decode_crop(input, crop, part) == status, "a crop's status is the whole image's");
  for (int y = 0; y < crop.height && status == Status::ok; ++y) {
    const std::size_t row = (std::size_t(crop.top + y) * width + crop.left) * 3;
    demand(std::memcmp(&part[kGuardBytes + std::size_t{3} * y * crop.width], &whole[kGuardBytes + row],
                       std::size_t{3} * crop.width) == 0,
           "a crop's pixels are the whole image's");
  }
}

// The levels or indices of a file that may be a PNG file of one channel, in memory of the size that it says.
void run_levels(const std::vector<std::uint8_t>& file) {
  if (file.size() < 24) return;
  const auto big_endian = [&file](std::size_t at) {
    return std::uint32_t{file[at]} << 24 | std::uint32_t{file[at + 1]} << 16 | std::uint32_t{file[at + 2]} << 8 |
           file[at + 3];
  };
  const std::uint32_t width = big_endian(16), height = big_endian(20);
  if (std::uint64_t{width} * height > kMaxPixels) return;
  std::vector<std::uint8_t> levels(std::size_t{width} * height);
  ByteSource source(file.data(), file.size());
  decode_png_levels(source, height, width, levels.data());
}

// A zlib stream of one block that is not compressed.
std::vector<std::uint8_t> stored(const std::vector<std::uint8_t>& rows) {
  const std::size_t size = rows.size();
  std::vector<std::uint8_t> stream = {0x78, 0x01, 1};
  for (const std::size_t value : {size, ~size}) {
    for (int i = 0; i < 2; ++i) stream.push_back(static_cast<std::uint8_t>(value >> 8 * i));
  }
  std::uint32_t a = 1, b = 0;
  for (const std::uint8_t byte : rows) {
    stream.push_back(byte);
    a = (a + byte) % 65521;
    b = (b + a) % 65521;
  }
  stream.resize(stream.size() + 4);
  put_32(&stream[stream.size() - 4], b << 16 | a);
  return stream;
}

// The bytes as a zlib stream, of which not everything may fit.
void run_stream(std::vector<std::uint8_t> stream, std::uint8_t most) {
  stream.insert(stream.begin(), {0x78, 0x01});
  const std::size_t size = std::size_t{most} * most;
  std::vector<std::uint8_t> made(size + kInflatePadding);
  std::size_t count = 0;
  demand(!inflate(stream.data(), stream.size(), made.data(), size, count) || count <= size, "as much as fits is made");
}

// A file whose rows, with their filters, are these bytes over and over.
void run_rows(const std::uint8_t* data, std::size_t size, const std::uint8_t* control) {
  constexpr std::uint8_t colors[] = {0, 0, 0, 0, 2, 4, 6}, bits[] = {1, 2, 4, 8, 8, 8, 8};
  constexpr unsigned channels[] = {1, 1, 1, 1, 3, 2, 4};
  const unsigned kind = control[4] % 7, width = 1 + control[5] % 40, height = 1 + control[6] % 40;
  const bool interlaced = control[7] % 2 != 0;
  constexpr unsigned left[] = {0, 4, 0, 2, 0, 1, 0}, top[] = {0, 0, 4, 0, 2, 0, 1};
  constexpr unsigned right[] = {8, 8, 4, 4, 2, 2, 1}, down[] = {8, 8, 8, 4, 4, 2, 2};
  std::vector<std::uint8_t> rows;
  std::size_t from = 0;
  for (int pass = 0; pass < (interlaced ? 7 : 1); ++pass) {
    const unsigned columns = interlaced ? (width + right[pass] - 1 - left[pass]) / right[pass] : width;
    const unsigned lines = interlaced ? (height + down[pass] - 1 - top[pass]) / down[pass] : height;
    for (unsigned y = 0; y < lines && columns > 0; ++y) {
      const std::size_t begin = rows.size();
      for (unsigned i = 0; i <= (columns * channels[kind] * bits[kind] + 7) / 8; ++i) {
        rows.push_back(data[from++ % size]);
      }
      rows[begin] %= 5;
    }
  }
  std::vector<std::uint8_t> file(std::begin(kSignature), std::end(kSignature)), header(13);
  put_32(&header[0], width);
  put_32(&header[4], height);
  header[8] = bits[kind];
  header[9] = colors[kind];
  header[12] = interlaced;
  append_chunk(file, "IHDR", header);
  append_chunk(file, "IDAT", stored(rows));
  append_chunk(file, "IEND", {});
  std::vector<std::uint8_t> pixels;
  demand(decode_crop({"", file.data(), file.size()}, {0, 0, static_cast<int>(height), static_cast<int>(width)},
                     pixels) == Status::ok,
         "any rows with known filters are an image");
  run(file.data(), file.size(), control);
}

// Mends the checksums of chunks, and a RIFF file's size.
void mend(std::uint8_t* data, std::size_t size) {
  if (size >= 12 && std::memcmp(data, "RIFF", 4) == 0) {
    const auto rest = static_cast<std::uint32_t>(size - 8);
    for (int i = 0; i < 4; ++i) data[4 + i] = static_cast<std::uint8_t>(rest >> 8 * i);
  }
  if (size < sizeof kSignature || std::memcmp(data, kSignature, sizeof kSignature) != 0) return;
  for (std::size_t at = sizeof kSignature; at + 12 <= size;) {
    const std::size_t length = std::size_t{data[at]} << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3];
    if (length > size - at - 12) return;
    put_32(data + at + 8 + length, crc_32(data + at + 4, length + 4));
    at += 12 + length;
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  set_trusted_formats((1u << format_count) - 1);
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  const std::size_t changed = LLVMFuzzerMutate(data, size, max_size);
  if (seed % 8 != 0 && changed >= kControlBytes) mend(data, changed - kControlBytes);
  return changed;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size <= kControlBytes) return 0;
  const std::uint8_t* const control = data + size - kControlBytes;
  const std::vector<std::uint8_t> file(data, control);  // so that reads behind its end are seen
  run(file.data(), file.size(), control);
  run_levels(file);
  run_rows(file.data(), file.size(), control);
  run_stream(file, control[4]);
  return 0;
}
