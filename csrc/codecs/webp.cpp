#include "codecs/codecs.h"

#if defined(FASTLOAD_WEBP)

#include <algorithm>
#include <cstring>

#include <webp/decode.h>

namespace fastload {
namespace {

constexpr std::size_t kFileHeader = 12, kChunkHeader = 8;
constexpr std::size_t kMostUseless = std::size_t{1} << 20;  // bytes by which a file may exceed its pixels

std::uint32_t little_endian(const std::uint8_t* p, int bytes) {
  std::uint32_t value = 0;
  for (int i = bytes - 1; i >= 0; --i) value = value << 8 | p[i];
  return value;
}

struct Chunk {
  char type[4];
  std::size_t at = 0;  // of its data
  std::size_t size = 0;

  bool is(const char (&name)[5]) const { return std::memcmp(type, name, 4) == 0; }
  std::size_t end() const { return at + size + (size & 1); }
};

// False if the file ends before the chunk does.
bool read_chunk(ByteSource& source, std::size_t at, Chunk& chunk) {
  const Span span = source.at(at, kChunkHeader);
  if (span.size < kChunkHeader) return false;
  std::memcpy(chunk.type, span.data, 4);
  chunk.size = little_endian(span.data + 4, 4);
  chunk.at = at + kChunkHeader;
  return chunk.end() <= source.size();
}

// Where the chunks are that Pillow's libwebp gets to decode: ALPH, if there is one, and the image.
struct Frame {
  std::size_t begin = 0, end = 0;
};

// The size in a lossy or lossless image's own header.
bool read_size(ByteSource& source, const Chunk& chunk, ImageHeader& header) {
  const Span span = source.at(chunk.at, std::min<std::size_t>(chunk.size, 10));
  const std::uint8_t* const p = span.data;
  if (chunk.is("VP8 ")) {
    if (chunk.size < 10 || span.size < 10 || (p[0] & 1) != 0 || p[3] != 0x9D || p[4] != 0x01 || p[5] != 0x2A) {
      return false;
    }
    header.format = Format::webp_lossy;
    header.width = little_endian(p + 6, 2) & 0x3FFF;
    header.height = little_endian(p + 8, 2) & 0x3FFF;
  } else {
    if (chunk.size < 5 || span.size < 5 || p[0] != 0x2F) return false;
    const std::uint32_t bits = little_endian(p + 1, 4);
    header.format = Format::webp_lossless;
    header.width = (bits & 0x3FFF) + 1;
    header.height = (bits >> 14 & 0x3FFF) + 1;
  }
  return header.width != 0 && header.height != 0;
}

// The chunks of an extended file in their order: VP8X, perhaps ICCP and ALPH, the image, perhaps EXIF and XMP.
Status scan_extended(ByteSource& source, const Chunk& first, ImageHeader& header, Frame& frame) {
  constexpr std::uint8_t animated = 0x02, alpha = 0x10, known = 0x3E;
  const Span span = source.at(first.at, 10);
  if (first.size != 10 || span.size < 10) return source.failure_or(Status::corrupt);
  const std::uint8_t flags = span.data[0];
  const std::uint32_t width = little_endian(span.data + 4, 3) + 1, height = little_endian(span.data + 7, 3) + 1;
  header.width = width;
  header.height = height;
  if ((flags & animated) != 0 || (flags & ~known) != 0) return Status::unsupported;
  Chunk chunk;
  std::size_t at = first.end();
  bool has_alpha = false, has_image = false;
  int stage = 0;
  for (; at < source.size(); at = chunk.end()) {
    if (!read_chunk(source, at, chunk)) return source.failure_or(Status::corrupt);
    const bool is_image = chunk.is("VP8 ") || chunk.is("VP8L");
    const int place = chunk.is("ICCP")   ? 1
                      : chunk.is("ALPH") ? 2
                      : is_image         ? 3
                      : chunk.is("EXIF") ? 4
                      : chunk.is("XMP ") ? 5
                                         : 0;
    if (place <= stage) return Status::unsupported;
    stage = place;
    has_alpha |= place == 2;
    if (place == 2 || (place == 3 && !has_alpha)) frame.begin = at;
    if (!is_image) continue;
    has_image = true;
    frame.end = chunk.end();
    if (!read_size(source, chunk, header)) return source.failure_or(Status::corrupt);
  }
  if (!has_image || header.width != width || header.height != height) return Status::corrupt;
  header.components = 3;
  const bool needs_alpha = header.format == Format::webp_lossy && (flags & alpha) != 0;
  return has_alpha == needs_alpha ? Status::ok : Status::unsupported;
}

Status scan_file(ByteSource& source, ImageHeader& header, Frame& frame) {
  const Span start = source.at(0, kFileHeader);
  if (start.size < kFileHeader || std::memcmp(start.data, "RIFF", 4) != 0 ||
      std::memcmp(start.data + 8, "WEBP", 4) != 0) {
    return source.failure_or(Status::not_jpeg);
  }
  header.format = Format::webp_lossy;
  Chunk chunk;
  if (little_endian(start.data + 4, 4) + std::size_t{8} != source.size()) return Status::corrupt;
  if (!read_chunk(source, kFileHeader, chunk)) return source.failure_or(Status::corrupt);
  if (chunk.is("VP8X")) return scan_extended(source, chunk, header, frame);
  header.components = 3;
  frame = {kFileHeader, chunk.end()};
  if (!read_size(source, chunk, header) || chunk.end() != source.size()) return source.failure_or(Status::corrupt);
  return Status::ok;
}

// The whole file in one piece.
Span whole(ByteSource& source, Buffer& copy) {
  if (source.size() <= kChunkBytes) return source.at(0, source.size());
  const Span all = source.at(0, kChunkBytes);
  if (all.size >= source.size()) return all;
  copy.resize(source.size());
  std::size_t done = 0;
  while (done < copy.size()) {
    const Span span = source.at(done, std::min(kChunkBytes, copy.size() - done));
    const std::size_t count = std::min(span.size, copy.size() - done);
    if (count == 0) break;
    std::memcpy(copy.data() + done, span.data, count);
    done += count;
  }
  return {copy.data(), done};
}

}  // namespace

std::string webp_version() {
  const int version = WebPGetDecoderVersion();
  return std::to_string(version >> 16) + "." + std::to_string(version >> 8 & 0xFF) + "." +
         std::to_string(version & 0xFF);
}

Status scan_webp(ByteSource& source, ImageHeader& header) {
  Frame frame;
  return scan_file(source, header, frame);
}

Status decode_webp(ByteSource& source, const ImageHeader& header, const Region& region, ConstImage& image) {
  static thread_local Buffer copy, pixels;
  for (Buffer* const buffer : {&copy, &pixels}) buffer->shrink(kKeptCodecBytes);
  ImageHeader found;
  Frame frame;
  const Status status = scan_file(source, found, frame);
  if (status != Status::ok) return status;
  if (found.width != header.width || found.height != header.height || found.format != header.format) {
    return Status::corrupt;
  }
  if (source.size() > std::size_t{4} * header.width * header.height + kMostUseless) return Status::unsupported;
  const Span file = whole(source, copy);
  if (file.size < frame.end) return source.failure_or(Status::corrupt);
  if (source.stopped()) return Status::cancelled;
  // libwebp decodes the alpha channel, too, though it has no place for it: damage to it is found.
  const std::size_t stride = std::size_t{3} * header.width;
  pixels.resize(stride * header.height);
  if (WebPDecodeRGBInto(file.data + frame.begin, frame.end - frame.begin, pixels.data(), pixels.size(),
                        static_cast<int>(stride)) == nullptr) {
    return Status::corrupt;
  }
  image = {pixels.data() + stride * region.top + std::size_t{3} * region.left, static_cast<std::ptrdiff_t>(stride),
           static_cast<int>(region.height), static_cast<int>(region.width)};
  return Status::ok;
}

}  // namespace fastload

#else

namespace fastload {

std::string webp_version() { return {}; }
Status scan_webp(ByteSource&, ImageHeader&) { return Status::not_jpeg; }
Status decode_webp(ByteSource&, const ImageHeader&, const Region&, ConstImage&) { return Status::not_jpeg; }

}  // namespace fastload

#endif
