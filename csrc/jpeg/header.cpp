#include "jpeg/header.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/tiff.h"

namespace fastload {
namespace {

constexpr std::uint32_t kMaxSide = 65500;  // libjpeg's JPEG_MAX_DIMENSION

// A marker segment's payload, without marker and length.
struct Segment {
  const std::uint8_t* data;
  std::size_t size;

  template <std::size_t N>
  bool starts_with(const char (&text)[N]) const {  // without the literal's terminating zero
    return size >= N - 1 && std::memcmp(data, text, N - 1) == 0;
  }
};

// Whether Pillow reads a TIFF tag directory without a warning: all entries, the offset of the next directory and all
// values are present, and the values together are no larger than the segment.
bool directory_is_sound(const TiffReader& tiff, std::size_t directory) {
  // Bytes per value, by type; Pillow skips other types.
  constexpr std::size_t value_bytes[] = {0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8};
  if (!tiff.has(directory, 2)) return false;
  const std::size_t entries = tiff.u16(directory);
  if (!tiff.has(directory + 2, 12 * entries + 4)) return false;
  std::size_t total = 0;
  for (std::size_t i = 0; i < entries; ++i) {
    const std::size_t entry = directory + 2 + 12 * i;
    const std::uint32_t type = tiff.u16(entry + 2);
    if (type >= std::size(value_bytes)) continue;
    const std::size_t size = value_bytes[type] * tiff.u32(entry + 4);
    if (size > 4 && (!tiff.has(tiff.u32(entry + 8), size) || !tiff.has(0, total += size))) return false;
  }
  return true;
}

// While opening a file, Pillow reads the resolution from Exif data and only warns about most damage. But it fails on an
// XResolution that is a sequence of fewer than two values (IndexError, so "cannot identify"). Normally it is a single
// value; anything else is doubtful.
bool exif_opens(Segment exif) {
  // Pillow strips "Exif\0\0" once or twice; before version 13, every time it occurs.
  for (int i = 0; i < 2 && exif.starts_with("Exif\0\0"); ++i) exif = {exif.data + 6, exif.size - 6};
  if (exif.starts_with("Exif\0\0")) return false;
  if (exif.size < 8) return true;
  const TiffReader tiff(exif.data, exif.size, exif.data[0] == 'I');
  const std::size_t directory = tiff.u32(4);
  if (!directory_is_sound(tiff, directory)) return false;
  constexpr std::uint32_t x_resolution = 0x011A, resolution_unit = 0x0128, short_type = 3, rational = 5;
  for (std::size_t i = 0; i < tiff.u16(directory); ++i) {
    const std::size_t entry = directory + 2 + 12 * i;
    const std::uint32_t tag = tiff.u16(entry);
    if (tag != x_resolution && tag != resolution_unit) continue;
    const std::uint32_t type = tag == x_resolution ? rational : short_type;
    if (tiff.u16(entry + 2) != type || tiff.u32(entry + 4) != 1) return false;
  }
  return true;
}

// Pillow reads the index of multi-picture files, which phones write. How it treats a damaged index depends on its
// version: before version 13 a list shorter than its count raises struct.error, so "cannot identify". So the index must
// be valid: one count of pictures, and one list with an entry for each.
bool multi_picture_opens(Segment index) {
  constexpr std::uint32_t count_tag = 0xB001, list_tag = 0xB002, long_type = 4, undefined_type = 7;
  if (!index.starts_with("II*\0") && !index.starts_with("MM\0*")) return false;
  if (index.size < 8) return false;
  const TiffReader tiff(index.data, index.size, index.data[0] == 'I');
  const std::size_t directory = tiff.u32(4);
  if (!directory_is_sound(tiff, directory)) return false;
  std::uint32_t pictures = 0;
  std::size_t list_size = 0;
  for (std::size_t i = 0; i < tiff.u16(directory); ++i) {
    const std::size_t entry = directory + 2 + 12 * i;
    const std::uint32_t tag = tiff.u16(entry), type = tiff.u16(entry + 2), count = tiff.u32(entry + 4);
    if (tag == count_tag) {
      if (pictures != 0 || type != long_type || count != 1) return false;
      pictures = tiff.u32(entry + 8);
      if (pictures == 0) return false;
    } else if (tag == list_tag) {
      if (list_size != 0 || type != undefined_type || count < 16) return false;
      list_size = count;
    }
  }
  return pictures != 0 && pictures <= list_size / 16;
}

// Pillow walks Photoshop's resource blocks and raises IndexError for a block that ends right before its name.
bool photoshop_opens(Segment segment) {
  std::size_t at = 14;
  while (at + 4 <= segment.size && std::memcmp(segment.data + at, "8BIM", 4) == 0) {
    at += 6;
    if (at > segment.size) return true;
    if (at == segment.size) return false;
    at += std::size_t{1} + segment.data[at];
    at += at & 1;
    if (at + 4 > segment.size) return true;
    const std::size_t length =
        std::size_t{big_endian_16(segment.data + at)} << 16 | big_endian_16(segment.data + at + 2);
    at += 4 + length;
    at += at & 1;
  }
  return true;
}

// Checks what Pillow reads from application segments while it opens a file.
class Metadata {
 public:
  bool opens(int marker, Segment segment) {
    switch (marker) {
      case 0xE0: return !segment.starts_with("JFIF") || segment.size >= 14;
      case 0xE1:
        if (!segment.starts_with("Exif\0\0")) return true;
        // Pillow joins a second one to the first. No camera writes two.
        return !std::exchange(has_exif_, true) && exif_opens(segment);
      case 0xE2:
        if (segment.starts_with("MPF\0")) return multi_picture_opens({segment.data + 4, segment.size - 4});
        return !segment.starts_with("ICC_PROFILE\0") || segment.size >= 14;
      case 0xED: return !segment.starts_with("Photoshop 3.0\0") || photoshop_opens(segment);
      case 0xEE: return !segment.starts_with("Adobe") || segment.size >= 12;
      default: return true;
    }
  }

 private:
  bool has_exif_ = false;
};

// The frame's components, kept for the scan that refers to them.
struct Frame {
  bool seen = false;
  int count = 0;  // of components
  std::uint8_t id[3], quantization[3];

  void keep(Segment segment) {
    seen = true;
    count = segment.data[5];
    for (int i = 0; i < count && i < 3; ++i) {
      id[i] = segment.data[6 + 3 * i];
      quantization[i] = segment.data[8 + 3 * i];
    }
  }
};

// Tables defined before the first scan, one bit per slot.
struct Tables {
  unsigned quantization = 0, dc = 0, ac = 0;

  bool add_quantization(Segment segment) {
    std::size_t at = 0;
    while (at < segment.size) {
      const int precision = segment.data[at] >> 4, slot = segment.data[at] & 15;
      if (precision > 1 || slot > 3) return false;
      quantization |= 1u << slot;
      at += 1 + (precision ? 128 : 64);
    }
    return at == segment.size;
  }

  bool add_huffman(Segment segment) {
    std::size_t at = 0;
    while (at + 17 <= segment.size) {
      const int kind = segment.data[at] >> 4, slot = segment.data[at] & 15;
      if (kind > 1 || slot > 3) return false;
      (kind ? ac : dc) |= 1u << slot;
      std::size_t symbols = 0;
      std::uint32_t code = 0;  // the next one of the length
      for (int i = 1; i <= 16; ++i, code <<= 1) {
        const std::uint8_t count = segment.data[at + static_cast<std::size_t>(i)];
        symbols += count;
        code += count;
        if (count != 0 && code >= 1u << i) return false;  // libjpeg keeps the code of all ones free
      }
      at += 17;
      if (symbols > 256 || symbols > segment.size - at) return false;
      const bool too_large = kind == 0 && std::any_of(segment.data + at, segment.data + at + symbols,
                                                      [](std::uint8_t symbol) { return symbol > 15; });
      if (too_large) return false;
      at += symbols;
    }
    return at == segment.size;
  }

  // Conditioning of arithmetic coding, of which libjpeg also reads what nothing uses.
  static bool conditions_are_sound(Segment segment) {
    for (std::size_t at = 0; at + 2 <= segment.size; at += 2) {
      const int slot = segment.data[at], value = segment.data[at + 1];
      if (slot > 31 || (slot < 16 && (value & 15) > value >> 4)) return false;
    }
    return segment.size % 2 == 0;
  }

  // Whether the scan has all of the frame's components and all of their tables. At most three components.
  bool suffice(const Frame& frame, Segment scan) const {
    if (scan.size != std::size_t{4} + 2 * frame.count || scan.data[0] != frame.count) return false;
    for (int i = 0; i < frame.count; ++i) {
      const std::uint8_t* selector = scan.data + 1 + 2 * i;
      if (selector[0] != frame.id[i]) return false;
      if (!has(quantization, frame.quantization[i]) || !has(dc, selector[1] >> 4) || !has(ac, selector[1] & 15)) {
        return false;
      }
    }
    return true;
  }

 private:
  static bool has(unsigned slots, int slot) { return slot < 4 && (slots >> slot & 1) != 0; }
};

Subsampling subsampling_of(const std::uint8_t* components, int count) {
  if (count == 1) return Subsampling::gray;
  int h[3], v[3];
  for (int i = 0; i < 3; ++i) {
    h[i] = components[3 * i + 1] >> 4;
    v[i] = components[3 * i + 1] & 15;
  }
  if (h[1] != h[2] || v[1] != v[2] || h[0] % h[1] != 0 || v[0] % v[1] != 0) return Subsampling::other;
  switch (h[0] / h[1] * 10 + v[0] / v[1]) {
    case 11: return Subsampling::s444;
    case 21: return Subsampling::s422;
    case 22: return Subsampling::s420;
    case 12: return Subsampling::s440;
    case 41: return Subsampling::s411;
    case 42: return Subsampling::s410;
    default: return Subsampling::other;
  }
}

Status read_frame(int marker, Segment frame, JpegHeader& header) {
  if (frame.size < 6) return Status::corrupt;
  const int bits = frame.data[0];
  header.height = big_endian_16(frame.data + 1);
  header.width = big_endian_16(frame.data + 3);
  header.components = frame.data[5];
  header.progressive = marker == 0xC2 || marker == 0xC6 || marker == 0xCA || marker == 0xCE;
  header.arithmetic = marker >= 0xC9;
  if (frame.size != 6 + std::size_t{3} * frame.data[5]) return Status::corrupt;
  if (header.width == 0 || header.height == 0 || std::max(header.width, header.height) > kMaxSide) {
    return Status::corrupt;
  }
  const std::uint8_t* components = frame.data + 6;
  int blocks = 0;
  for (int i = 0; i < header.components; ++i) {
    const int h = components[3 * i + 1] >> 4, v = components[3 * i + 1] & 15;
    if (h < 1 || h > 4 || v < 1 || v > 4) return Status::corrupt;
    blocks += h * v;
    for (int j = 0; j < i; ++j)
      if (components[3 * i] == components[3 * j]) return Status::corrupt;
  }
  if (header.components == 1 || header.components == 3) {
    header.subsampling = subsampling_of(components, header.components);
  }
  switch (marker) {
    case 0xC3:
    case 0xC7:
    case 0xCB:
    case 0xCF: return Status::lossless;
    case 0xC5:
    case 0xC6:
    case 0xCD:
    case 0xCE: return Status::unsupported;  // hierarchical
    default: break;
  }
  if (bits == 12) return Status::twelve_bit;
  if (bits != 8) return Status::corrupt;
  if (header.components == 4) return Status::cmyk;
  if (header.components != 1 && header.components != 3) return Status::unsupported;
  if (header.components == 3 && blocks > 10) return Status::unsupported;  // exceeds the limit of an interleaved MCU
  return Status::ok;
}

bool may_precede_scan(int marker) {
  if (marker >= 0xC0 && marker <= 0xCF) return marker != 0xC8;
  return marker == 0xDA || marker == 0xDB || marker == 0xDD || (marker >= 0xE0 && marker <= 0xEF) || marker == 0xFE;
}

}  // namespace

const char* name_of(Subsampling subsampling) {
  switch (subsampling) {
    case Subsampling::gray: return "gray";
    case Subsampling::s444: return "4:4:4";
    case Subsampling::s422: return "4:2:2";
    case Subsampling::s420: return "4:2:0";
    case Subsampling::s440: return "4:4:0";
    case Subsampling::s411: return "4:1:1";
    case Subsampling::s410: return "4:1:0";
    case Subsampling::other: break;
  }
  return "other";
}

Status scan_header(ByteSource& source, JpegHeader& header) {
  header = JpegHeader{};
  const Span start = source.at(0, 3);
  if (start.size < 3 || start.data[0] != 0xFF || start.data[1] != 0xD8 || start.data[2] != 0xFF) {
    return source.failure_or(Status::not_jpeg);
  }
  std::size_t at = 2;
  Status frame_status = Status::ok;
  Frame frame;
  Metadata metadata;
  Tables tables;
  while (true) {
    Span span = source.at(at, 2);
    if (span.size > 0 && span.data[0] != 0xFF) return Status::corrupt;
    std::size_t fill = 0;
    while (fill < span.size && span.data[fill] == 0xFF) {  // fill bytes may precede any marker
      if (++fill < span.size) continue;
      at += std::exchange(fill, 0);
      span = source.at(at, 1);
    }
    if (span.size == 0) return source.failure_or(Status::truncated);
    const int marker = span.data[fill];
    at += fill + 1;
    span = source.at(at, 2);
    if (span.size < 2) return source.failure_or(Status::truncated);
    const std::size_t length = big_endian_16(span.data);
    if (!may_precede_scan(marker) || length < 2) return Status::corrupt;
    span = source.at(at, length);
    if (span.size < length) return source.failure_or(Status::truncated);
    const Segment segment{span.data + 2, length - 2};
    at += length;
    if (marker == 0xDD && length != 4) return Status::corrupt;
    if (marker == 0xDA) {
      header.scan_at = at;
      if (!frame.seen) return Status::corrupt;
      if (frame_status == Status::ok && !header.progressive && !header.arithmetic) {
        header.tables_complete = tables.suffice(frame, segment);
      }
      return frame_status;
    }
    if (marker == 0xDB) {
      if (!tables.add_quantization(segment)) return Status::corrupt;
    } else if (marker == 0xC4) {
      if (!tables.add_huffman(segment)) return Status::corrupt;
    } else if (marker == 0xCC) {
      if (!Tables::conditions_are_sound(segment)) return Status::corrupt;
    } else if (marker >= 0xE0 && marker <= 0xEF) {
      if (!metadata.opens(marker, segment)) return Status::corrupt;
    } else if (marker >= 0xC0 && marker <= 0xCF) {
      if (frame.seen) return Status::corrupt;
      frame_status = read_frame(marker, segment, header);
      if (frame_status == Status::corrupt) return frame_status;
      frame.keep(segment);
    }
  }
}

std::size_t end_of_scan(const std::uint8_t* data, std::size_t size, const JpegHeader& header) {
  if (!header.tables_complete || header.scan_at == 0) return 0;
  const std::uint8_t* const end = data + size;
  const std::uint8_t* at = data + header.scan_at;
  while (at < end) {
    const auto left = static_cast<std::size_t>(end - at);
    at = static_cast<const std::uint8_t*>(std::memchr(at, 0xFF, left));
    if (at == nullptr || end - at < 2) return 0;
    if (at[1] == 0xD9) return static_cast<std::size_t>(at + 2 - data);
    if (at[1] != 0 && !(at[1] >= 0xD0 && at[1] <= 0xD7)) return 0;
    at += 2;
  }
  return 0;
}

}  // namespace fastload
