#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

#include "codecs/codecs.h"
#include "codecs/inflate.h"
#include "codecs/png_rows.h"

namespace fastload {
namespace {

constexpr std::uint8_t kSignature[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
constexpr std::uint32_t kMostSide = 65535;                         // JPEG's, which all callers expect
constexpr std::size_t kMostMetadata = kChunkBytes - 4;             // of one chunk, bytes
constexpr std::uint64_t kMostOfAll = std::uint64_t{16} << 20;      // of all; Pillow's limit for texts is 64 MiB
constexpr std::size_t kMostUseless = std::size_t{1} << 20;         // bytes by which a file may exceed its pixels
constexpr std::size_t kMostDeflateRatio = 1032;                    // of any data
constexpr std::size_t kMostInflatedText = std::size_t{512} << 10;  // of one chunk; Pillow's limit is 1 MiB
constexpr std::size_t kSurelySmall = kMostInflatedText / kMostDeflateRatio;

constexpr std::uint32_t type_of(const char (&name)[5]) {
  return static_cast<std::uint32_t>(name[0]) << 24 | static_cast<std::uint32_t>(name[1]) << 16 |
         static_cast<std::uint32_t>(name[2]) << 8 | static_cast<std::uint32_t>(name[3]);
}

std::uint32_t big_endian_32(const std::uint8_t* p) {
  return static_cast<std::uint32_t>(p[0]) << 24 | static_cast<std::uint32_t>(p[1]) << 16 |
         static_cast<std::uint32_t>(p[2]) << 8 | p[3];
}

struct Chunk {
  std::uint32_t type = 0;
  std::size_t at = 0;  // of its data
  std::size_t size = 0;

  std::size_t end() const { return at + size + 4; }
};

// A chunk's data, or a part of it.
struct Bytes {
  const std::uint8_t* data;
  std::size_t size;

  // Takes what precedes the first zero, and the zero. False if there is none.
  bool take_string(Bytes& string) {
    const void* const zero = size == 0 ? nullptr : std::memchr(data, 0, size);
    if (zero == nullptr) return false;
    string = {data, static_cast<std::size_t>(static_cast<const std::uint8_t*>(zero) - data)};
    data += string.size + 1;
    size -= string.size + 1;
    return true;
  }
  template <std::size_t N>
  bool is(const char (&text)[N]) const {
    return size == N - 1 && std::memcmp(data, text, N - 1) == 0;
  }
};

// The next chunk's type and place. False if the file ends, or has no chunk there.
bool read_chunk(ByteSource& source, std::size_t at, Chunk& chunk) {
  const Span span = source.at(at, 8);
  if (span.size < 8) return false;
  const std::uint32_t size = big_endian_32(span.data);
  const auto is_letter = [](std::uint8_t c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); };
  if (size > 0x7FFFFFFF || !std::all_of(span.data + 4, span.data + 8, is_letter)) return false;
  chunk = {big_endian_32(span.data + 4), at + 8, size};
  return chunk.end() <= source.size();
}

// Reads a chunk's data and checks its checksum.
bool read_data(ByteSource& source, const Chunk& chunk, Bytes& data) {
  if (chunk.size > kMostMetadata) return false;
  const Span span = source.at(chunk.at - 4, chunk.size + 8);
  if (span.size < chunk.size + 8) return false;
  data = {span.data + 4, chunk.size};
  return crc_32(span.data, chunk.size + 4) == big_endian_32(data.data + chunk.size);
}

// What the first chunk says of the image.
struct Layout {
  std::uint32_t width = 0, height = 0;
  int bits = 0;  // of a sample
  int channels = 0;
  bool has_palette = false;
  bool interlaced = false;

  std::size_t row_bytes(std::uint32_t pixels) const {
    return (std::size_t{pixels} * static_cast<std::size_t>(bits * channels) + 7) / 8;
  }
  int pixel_bytes() const { return bits < 8 ? 1 : channels; }
};

// Adam7: the columns and rows of each pass. An image that is not interlaced is one pass with all of them.
struct Pass {
  std::uint32_t left, top, right_step, down_step;

  static std::uint32_t count(std::uint32_t side, std::uint32_t begin, std::uint32_t step) {
    return side <= begin ? 0 : (side - begin + step - 1) / step;
  }
  std::uint32_t columns(const Layout& layout) const { return count(layout.width, left, right_step); }
  std::uint32_t rows(const Layout& layout) const {
    return columns(layout) == 0 ? 0 : count(layout.height, top, down_step);
  }
};
constexpr Pass kWhole[] = {{0, 0, 1, 1}};
constexpr Pass kInterlaced[] = {{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4},
                                {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}};

struct Passes {
  const Pass *first, *last;
  const Pass* begin() const { return first; }
  const Pass* end() const { return last; }
};

Passes passes_of(const Layout& layout) {
  return layout.interlaced ? Passes{std::begin(kInterlaced), std::end(kInterlaced)}
                           : Passes{std::begin(kWhole), std::end(kWhole)};
}

// Bytes of all rows with their filters.
std::size_t inflated_bytes(const Layout& layout) {
  std::size_t bytes = 0;
  for (const Pass& pass : passes_of(layout)) {
    bytes += (layout.row_bytes(pass.columns(layout)) + 1) * pass.rows(layout);
  }
  return bytes;
}

Status read_layout(ByteSource& source, Layout& layout, bool takes_palettes = false) {
  Chunk chunk;
  Bytes data;
  if (!read_chunk(source, sizeof kSignature, chunk) || chunk.type != type_of("IHDR") || chunk.size != 13 ||
      !read_data(source, chunk, data)) {
    return source.failure_or(Status::corrupt);
  }
  layout.width = big_endian_32(data.data);
  layout.height = big_endian_32(data.data + 4);
  const int bits = layout.bits = data.data[8], color = data.data[9];
  if (layout.width == 0 || layout.height == 0 || data.data[11] != 0 || data.data[12] > 1) {
    return Status::corrupt;
  }
  layout.interlaced = data.data[12] == 1;
  layout.has_palette = color == 3 && takes_palettes;
  layout.channels = color == 0 || layout.has_palette ? 1 : color == 4 ? 2 : color == 2 ? 3 : color == 6 ? 4 : 0;
  const bool is_packed = layout.channels == 1 && (bits == 1 || bits == 2 || bits == 4);
  const bool taken = layout.channels != 0 && (bits == 8 || is_packed);
  return taken && layout.width <= kMostSide && layout.height <= kMostSide ? Status::ok : Status::unsupported;
}

// Pillow puts texts among its own notes on the image, of which these have a meaning.
bool is_harmless_key(Bytes key) {
  return !key.is("transparency") && !key.is("interlace") && !key.is("bbox") && !key.is("default_image") &&
         !key.is("exif") && !key.is("icc_profile") && !key.is("loop") && !key.is("duration") && !key.is("disposal") &&
         !key.is("blend") && !key.is("gamma") && !key.is("srgb") && !key.is("dpi") && !key.is("xmp");
}

// Whether the data inflates to less than Pillow's limit.
bool inflates_to_little(Bytes data) {
  if (data.size <= kSurelySmall) return true;
  static thread_local Buffer text;
  text.resize(kMostInflatedText + kInflatePadding);
  std::size_t made = 0;
  const bool is_little = inflate(data.data, data.size, text.data(), kMostInflatedText, made);
  text.shrink(0);
  return is_little;
}

bool compressed_opens(Bytes data) {
  return data.size >= 1 && data.data[0] == 0 && inflates_to_little({data.data + 1, data.size - 1});
}

bool international_opens(Bytes data) {
  Bytes language, translated;
  if (data.size < 2) return false;
  const bool is_compressed = data.data[0] != 0;
  if (data.data[0] > 1 || data.data[1] != 0) return false;
  data = {data.data + 2, data.size - 2};
  return data.take_string(language) && data.take_string(translated) && (!is_compressed || inflates_to_little(data));
}

// Checks what Pillow reads from chunks without pixels.
class Metadata {
 public:
  explicit Metadata(const Layout& layout) : layout_(layout) {}

  // `ok`, or why Pillow may not read the chunk as all others.
  Status check(const Chunk& chunk, Bytes data, bool before_pixels) {
    Bytes key;
    bytes_ += data.size;
    if (bytes_ > kMostOfAll) return Status::unsupported;
    switch (chunk.type) {
      case type_of("tEXt"):
      case type_of("zTXt"):
      case type_of("iTXt"):
        if (chunk.type != type_of("tEXt")) bytes_ += kMostInflatedText;
        if (!data.take_string(key) || !is_harmless_key(key)) return Status::unsupported;
        if (chunk.type == type_of("tEXt")) return Status::ok;
        return (chunk.type == type_of("zTXt") ? compressed_opens : international_opens)(data) ? Status::ok
                                                                                              : Status::unsupported;
      case type_of("iCCP"): return data.take_string(key) && compressed_opens(data) ? Status::ok : Status::unsupported;
      case type_of("tRNS"): {
        const std::size_t size = layout_.channels == 3 ? 6 : layout_.channels == 1 && !layout_.has_palette ? 2 : 0;
        return before_pixels && size != 0 && data.size == size ? Status::ok : Status::unsupported;
      }
      case type_of("PLTE"): {
        const bool fits = !layout_.has_palette || (data.size != 0 && data.size <= 768 && data.size % 3 == 0);
        const bool may_be = layout_.channels >= 3 || layout_.has_palette;
        return before_pixels && may_be && fits ? Status::ok : Status::unsupported;
      }
      case type_of("gAMA"): return at_least(data, 4);
      case type_of("cHRM"): return at_least(data, 32);
      case type_of("sRGB"): return at_least(data, 1);
      case type_of("pHYs"): return at_least(data, 9);
      case type_of("acTL"):  // of animations
      case type_of("fcTL"):
      case type_of("fdAT"): return Status::unsupported;
      default: return chunk.type >> 24 >= 'a' ? Status::ok : Status::unsupported;  // of the others only ancillary ones
    }
  }

 private:
  static Status at_least(Bytes data, std::size_t size) { return data.size >= size ? Status::ok : Status::corrupt; }

  const Layout& layout_;
  std::uint64_t bytes_ = 0;  // of texts as if they were inflated
};

// Reads chunks from `at` on, up to one of type `last`, at which `at` is then.
Status skip_metadata(ByteSource& source, Metadata& metadata, std::uint32_t last, std::size_t& at) {
  Chunk chunk;
  Bytes data{};
  while (true) {
    if (!read_chunk(source, at, chunk)) return source.failure_or(Status::corrupt);
    if (chunk.type == last) return Status::ok;
    if (!read_data(source, chunk, data)) return source.failure_or(Status::corrupt);
    const Status status = metadata.check(chunk, data, last == type_of("IDAT"));
    if (status != Status::ok) return status;
    at = chunk.end();
  }
}

// Joins the data of the chunks with pixels, at most `most` bytes, which begin at `at`, and checks those after them.
Status read_encoded(ByteSource& source, Metadata& metadata, std::size_t at, std::size_t most, Buffer& encoded) {
  if (at > source.size()) return Status::corrupt;  // the file has shrunk
  encoded.resize(std::min(source.size() - at, most));
  std::size_t used = 0;
  Chunk chunk;
  while (read_chunk(source, at, chunk) && chunk.type == type_of("IDAT")) {
    for (std::size_t done = 0; done < chunk.size;) {
      const Span span = source.at(chunk.at + done, std::min(chunk.size - done, kChunkBytes));
      const std::size_t count = std::min(span.size, chunk.size - done);
      if (count == 0 || count > encoded.size() - used) return source.failure_or(Status::corrupt);
      std::memcpy(encoded.data() + used, span.data, count);
      used += count;
      done += count;
    }
    at = chunk.end();
  }
  encoded.truncate(used);
  Bytes data{};
  const Status status = skip_metadata(source, metadata, type_of("IEND"), at);
  if (status != Status::ok) return status;
  if (!read_chunk(source, at, chunk) || chunk.size != 0 || !read_data(source, chunk, data)) {
    return source.failure_or(Status::corrupt);
  }
  return Status::ok;
}

// Of a sound file, bytes.
std::size_t most_encoded(const Layout& layout) {
  const std::size_t size = inflated_bytes(layout);
  return size + size / 64 + kMostUseless;
}

// zlib's window must reach as far back as any data can refer to; decoders differ in whether they check it.
bool has_sound_window(const Buffer& encoded, std::size_t size) {
  return encoded.size() >= 2 && (encoded.data()[0] >> 4) <= 7 &&
         std::size_t{256} << (encoded.data()[0] >> 4) >= std::min(size, std::size_t{32768});
}

// Undoes the filters of a pass's rows, as far as `used_rows`. `rows` has one such row of zeros before it.
bool unfilter_rows(std::uint8_t* rows, const std::uint8_t* zeros, std::size_t row_bytes, std::uint32_t count,
                   std::uint32_t used_rows, int pixel_bytes) {
  for (std::uint32_t y = 0; y < count; ++y) {
    if (rows[y * (row_bytes + 1)] >= kPngFilters) return false;
  }
  const std::uint8_t* above = zeros;
  for (std::uint32_t y = 0; y < std::min(count, used_rows); ++y) {
    std::uint8_t* const row = rows + y * (row_bytes + 1) + 1;
    unfilter(row[-1], row, above, row_bytes, pixel_bytes);
    above = row;
  }
  return true;
}

// Writes a pass's pixels that are in the region.
void unpack_pass(const std::uint8_t* rows, const Layout& layout, const Pass& pass, const Region& region,
                 std::uint8_t* rgb) {
  const std::size_t row_bytes = layout.row_bytes(pass.columns(layout));
  const std::uint32_t first = Pass::count(region.left, pass.left, pass.right_step);
  const std::uint32_t last = Pass::count(region.left + region.width, pass.left, pass.right_step);
  for (std::uint32_t y = Pass::count(region.top, pass.top, pass.down_step);
       y < Pass::count(region.top + region.height, pass.top, pass.down_step) && first < last; ++y) {
    const std::size_t to = std::size_t{pass.top + y * pass.down_step - region.top} * region.width +
                           (pass.left + first * pass.right_step - region.left);
    unpack(rows + y * (row_bytes + 1) + 1, layout.bits, layout.channels, first, last - first, rgb + 3 * to,
           std::size_t{3} * pass.right_step);
  }
}

// Inflates all rows, and undoes their filters as far as the region goes. Gives each pass's rows to `use(pass, rows)`.
template <typename Use>
Status decode_passes(Buffer& encoded, const Layout& layout, const Region& region, Buffer& rows, Use use) {
  const std::size_t size = inflated_bytes(layout);
  if (!has_sound_window(encoded, size)) return Status::unsupported;
  const std::size_t zeros = layout.row_bytes(layout.width) + 1;
  rows.resize(zeros + size + kInflatePadding);
  std::memset(rows.data(), 0, zeros);
  std::size_t made = 0;
  if (!inflate(encoded.data(), encoded.size(), rows.data() + zeros, size, made) || made != size) {
    return Status::corrupt;
  }
  std::uint8_t* at = rows.data() + zeros;
  for (const Pass& pass : passes_of(layout)) {
    const std::size_t row_bytes = layout.row_bytes(pass.columns(layout));
    const std::uint32_t used = Pass::count(region.top + region.height, pass.top, pass.down_step);
    if (!unfilter_rows(at, rows.data(), row_bytes, pass.rows(layout), used, layout.pixel_bytes())) {
      return Status::corrupt;
    }
    use(pass, at);
    at += (row_bytes + 1) * pass.rows(layout);
  }
  return Status::ok;
}

Status decode_rows(Buffer& encoded, const Layout& layout, const Region& region, Buffer& rows, Buffer& pixels,
                   ConstImage& image) {
  const bool is_rgb = layout.channels == 3 && !layout.interlaced;
  if (!is_rgb) pixels.resize(std::size_t{3} * region.width * region.height);
  const Status status = decode_passes(encoded, layout, region, rows, [&](const Pass& pass, const std::uint8_t* at) {
    if (!is_rgb) unpack_pass(at, layout, pass, region, pixels.data());
  });
  if (status != Status::ok) return status;
  image.height = static_cast<int>(region.height);
  image.width = static_cast<int>(region.width);
  image.data = pixels.data();
  image.stride = std::ptrdiff_t{3} * image.width;
  if (is_rgb) {
    const std::size_t stride = layout.row_bytes(layout.width) + 1;  // of the zeros before them, too
    image.stride = static_cast<std::ptrdiff_t>(stride);
    image.data = rows.data() + stride * (std::size_t{region.top} + 1) + 1 + std::size_t{3} * region.left;
  }
  return Status::ok;
}

}  // namespace

Status scan_png(ByteSource& source, ImageHeader& header) try {
  const Span start = source.at(0, sizeof kSignature);
  if (start.size < sizeof kSignature || std::memcmp(start.data, kSignature, sizeof kSignature) != 0) {
    return source.failure_or(Status::not_jpeg);
  }
  header.format = Format::png;
  Layout layout;
  Status status = read_layout(source, layout);
  header.width = layout.width;
  header.height = layout.height;
  header.components = layout.channels;
  if (status != Status::ok) return status;
  Metadata metadata(layout);
  std::size_t at = sizeof kSignature + 25;
  status = skip_metadata(source, metadata, type_of("IDAT"), at);
  header.scan_at = at;
  return status;
} catch (const std::bad_alloc&) {
  return Status::unsupported;
}

Status scan_plain_png(ByteSource& source, ImageHeader& header) {
  const Status status = scan_png(source, header);
  if (status != Status::ok) return status;
  Layout layout;
  if (read_layout(source, layout) != Status::ok || layout.bits != 8 || layout.channels == 2 || layout.interlaced) {
    return source.failure_or(Status::unsupported);
  }
  const Span compression = source.at(sizeof kSignature + 18, 1);
  if (compression.size == 0 || compression.data[0] != 0) return source.failure_or(Status::unsupported);
  bool has_density = false;
  Chunk chunk;
  Bytes data{};
  for (std::size_t at = sizeof kSignature + 25; read_chunk(source, at, chunk) && read_data(source, chunk, data);
       at = chunk.end()) {
    switch (chunk.type) {
      case type_of("IEND"): return chunk.end() == source.size() ? Status::ok : Status::unsupported;
      case type_of("IDAT"):
        if (chunk.size == 0) return Status::unsupported;
        break;
      case type_of("pHYs"):
        if (chunk.size != 9 || at > header.scan_at || std::exchange(has_density, true)) return Status::unsupported;
        break;
      default: return Status::unsupported;
    }
  }
  return source.failure_or(Status::unsupported);
}

Status decode_png(ByteSource& source, const ImageHeader& header, const Region& region, ConstImage& image) {
  static thread_local Buffer encoded, rows, pixels;
  Layout layout;
  Status status = read_layout(source, layout);
  if (status != Status::ok) return status;
  if (layout.width != header.width || layout.height != header.height) return Status::corrupt;
  for (Buffer* const buffer : {&encoded, &rows, &pixels}) buffer->shrink(kKeptCodecBytes);
  Metadata metadata(layout);
  status = read_encoded(source, metadata, header.scan_at, most_encoded(layout), encoded);
  if (status != Status::ok) return status;
  return source.stopped() ? Status::cancelled : decode_rows(encoded, layout, region, rows, pixels, image);
}

Status decode_png_levels(ByteSource& source, std::uint32_t height, std::uint32_t width, std::uint8_t* out) {
  static thread_local Buffer encoded, rows;
  const Span start = source.at(0, sizeof kSignature);
  if (start.size < sizeof kSignature || std::memcmp(start.data, kSignature, sizeof kSignature) != 0) {
    return source.failure_or(Status::not_jpeg);
  }
  Layout layout;
  Status status = read_layout(source, layout, true);
  if (status != Status::ok) return status;
  if (layout.channels != 1) return Status::unsupported;
  if (layout.width != width || layout.height != height) return Status::bad_geometry;
  for (Buffer* const buffer : {&encoded, &rows}) buffer->shrink(kKeptCodecBytes);
  Metadata metadata(layout);
  std::size_t at = sizeof kSignature + 25;
  status = skip_metadata(source, metadata, type_of("IDAT"), at);
  if (status == Status::ok) status = read_encoded(source, metadata, at, most_encoded(layout), encoded);
  if (status != Status::ok) return status;
  const unsigned scale = layout.has_palette ? 1 : 255 / ((1u << layout.bits) - 1);
  const auto use = [&](const Pass& pass, const std::uint8_t* rows_of_pass) {
    const std::uint32_t columns = pass.columns(layout);
    const std::size_t stride = layout.row_bytes(columns) + 1;
    for (std::uint32_t y = 0; y < pass.rows(layout); ++y) {
      std::uint8_t* const to = out + std::size_t{pass.top + y * pass.down_step} * width + pass.left;
      unpack_levels(rows_of_pass + y * stride + 1, layout.bits, columns, scale, to, pass.right_step);
    }
  };
  return decode_passes(encoded, layout, {0, 0, height, width}, rows, use);
}

}  // namespace fastload
