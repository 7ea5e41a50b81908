#include "jpeg_header.h"

#include <cstring>

namespace fastload {
namespace {

// A marker segment's payload, without marker and length.
struct Segment {
  const std::uint8_t* data;
  std::size_t size;

  template <std::size_t N>
  bool starts_with(const char (&text)[N]) const {  // the literal's terminating zero is not compared
    return size >= N - 1 && std::memcmp(data, text, N - 1) == 0;
  }
};

std::uint32_t big_endian_16(const std::uint8_t* p) { return static_cast<std::uint32_t>(p[0] << 8 | p[1]); }

class TiffReader {
 public:
  TiffReader(Segment segment, bool little_endian) : segment_(segment), little_endian_(little_endian) {}
  bool has(std::size_t offset, std::size_t count) const {
    return offset <= segment_.size && count <= segment_.size - offset;
  }
  std::uint32_t u16(std::size_t at) const {
    const std::uint8_t* p = segment_.data + at;
    return little_endian_ ? static_cast<std::uint32_t>(p[1] << 8 | p[0]) : big_endian_16(p);
  }
  std::uint32_t u32(std::size_t at) const {
    return little_endian_ ? u16(at + 2) << 16 | u16(at) : u16(at) << 16 | u16(at + 2);
  }

 private:
  Segment segment_;
  bool little_endian_;
};

// Pillow reads the resolution out of Exif data while it opens a file, and takes nearly any damage there lightly. What
// it does not survive is an XResolution that is a sequence of fewer than two values (IndexError, so "cannot identify").
// An ordinary one is a single RATIONAL; any other leaves a doubt.
bool exif_opens(Segment exif) {
  // Pillow strips "Exif\0\0" once or twice.
  for (int i = 0; i < 2 && exif.starts_with("Exif\0\0"); ++i) exif = {exif.data + 6, exif.size - 6};
  if (exif.size < 8) return true;
  const bool little_endian = exif.data[0] == 'I';
  const TiffReader tiff(exif, little_endian);
  const std::size_t directory = tiff.u32(4);
  if (!tiff.has(directory, 2)) return true;
  const std::uint32_t count = tiff.u16(directory);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::size_t entry = directory + 2 + std::size_t{12} * i;
    if (!tiff.has(entry, 12)) return true;
    constexpr std::uint32_t x_resolution = 0x011A, rational = 5;
    if (tiff.u16(entry) == x_resolution && (tiff.u16(entry + 2) != rational || tiff.u32(entry + 4) != 1)) return false;
  }
  return true;
}

// Pillow walks Photoshop's resource blocks; a block that ends right before its name raises IndexError there.
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

bool application_segment_opens(int marker, Segment segment) {
  switch (marker) {
    case 0xE0: return !segment.starts_with("JFIF") || segment.size >= 14;
    case 0xE1: return !segment.starts_with("Exif\0\0") || exif_opens(segment);
    case 0xE2: return !segment.starts_with("ICC_PROFILE\0") || segment.size >= 14;
    case 0xED: return !segment.starts_with("Photoshop 3.0\0") || photoshop_opens(segment);
    case 0xEE: return !segment.starts_with("Adobe") || segment.size >= 12;
    default: return true;
  }
}

// The tables that stand before the first scan: one bit per slot.
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
      for (int i = 1; i <= 16; ++i) symbols += segment.data[at + i];
      at += 17 + symbols;
    }
    return at == segment.size;
  }

  // Whether one scan of all of the frame's components follows, with nothing missing.
  bool suffice(Segment frame, Segment scan) const {
    const int count = frame.data[5];
    if (scan.size != std::size_t{4} + 2 * count || scan.data[0] != count) return false;
    for (int i = 0; i < count; ++i) {
      const std::uint8_t* component = frame.data + 6 + 3 * i;
      const std::uint8_t* selector = scan.data + 1 + 2 * i;
      if (selector[0] != component[0]) return false;
      if (!has(quantization, component[2]) || !has(dc, selector[1] >> 4) || !has(ac, selector[1] & 15)) return false;
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
  if (header.width == 0 || header.height == 0) return Status::corrupt;
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
  if (header.components == 3 && blocks > 10) return Status::unsupported;  // more than an interleaved MCU may hold
  return Status::ok;
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

const char* name_of(Status status) {
  switch (status) {
    case Status::ok: return "ok";
    case Status::not_jpeg: return "not_jpeg";
    case Status::cmyk: return "cmyk";
    case Status::twelve_bit: return "twelve_bit";
    case Status::arithmetic: return "arithmetic";
    case Status::lossless: return "lossless";
    case Status::bomb: return "bomb";
    case Status::truncated: return "truncated";
    case Status::corrupt: return "corrupt";
    case Status::unreadable: return "unreadable";
    case Status::unsupported: return "unsupported";
    case Status::bad_geometry: return "bad_geometry";
    case Status::cancelled: return "cancelled";
  }
  return "unknown";
}

Status scan_header(const std::uint8_t* data, std::size_t size, JpegHeader& header) {
  header = JpegHeader{};
  if (size < 3 || data[0] != 0xFF || data[1] != 0xD8 || data[2] != 0xFF) return Status::not_jpeg;
  std::size_t at = 2;
  Status frame_status = Status::ok;
  Segment frame{nullptr, 0};
  Tables tables;
  while (true) {
    if (at >= size) return Status::truncated;
    if (data[at] != 0xFF) return Status::corrupt;
    while (at < size && data[at] == 0xFF) ++at;  // fill bytes may precede any marker
    if (at >= size) return Status::truncated;
    const int marker = data[at++];
    if (size - at < 2) return Status::truncated;
    const std::size_t length = big_endian_16(data + at);
    switch (marker) {
      case 0xC0:
      case 0xC1:
      case 0xC2:
      case 0xC3:
      case 0xC4:
      case 0xC5:
      case 0xC6:
      case 0xC7:
      case 0xC9:
      case 0xCA:
      case 0xCB:
      case 0xCC:
      case 0xCD:
      case 0xCE:
      case 0xCF:
      case 0xDA:
      case 0xDB:
      case 0xDD:
      case 0xFE: break;
      default:
        if (marker >= 0xE0 && marker <= 0xEF) break;
        return Status::corrupt;  // nothing else belongs before the first scan
    }
    if (length < 2) return Status::corrupt;
    if (length > size - at) return Status::truncated;
    const Segment segment{data + at + 2, length - 2};
    at += length;
    if (marker == 0xDA) {
      if (frame.data == nullptr) return Status::corrupt;
      if (frame_status == Status::ok && !header.progressive && !header.arithmetic) {
        header.tables_complete = tables.suffice(frame, segment);
      }
      return frame_status;
    }
    if (marker == 0xDB) {
      if (!tables.add_quantization(segment)) return Status::corrupt;
    } else if (marker == 0xC4) {
      if (!tables.add_huffman(segment)) return Status::corrupt;
    } else if (marker >= 0xE0 && marker <= 0xEF) {
      if (!application_segment_opens(marker, segment)) return Status::corrupt;
    } else if (marker >= 0xC0 && marker <= 0xCF && marker != 0xCC) {
      if (frame.data != nullptr) return Status::corrupt;
      frame = segment;
      frame_status = read_frame(marker, segment, header);
      if (frame_status == Status::corrupt) return frame_status;
    }
  }
}

}  // namespace fastload
