#include "sample/whole_image.h"

#include <algorithm>
#include <cstring>

#include "base/tiff.h"
#include "codecs/codecs.h"
#include "jpeg/baseline.h"
#include "jpeg/region_decoder.h"

namespace fastload {
namespace {

constexpr std::uint32_t kRows = 16;                            // decoded at a time
constexpr std::uint64_t kMostPixels = std::uint64_t{1} << 30;  // OpenCV raises for more

RegionDecoder& decoder() {
  static thread_local RegionDecoder decoder;
  return decoder;
}

template <std::size_t N>
bool starts_with(Segment segment, const char (&text)[N]) {  // without the literal's terminating zero
  return segment.size >= N - 1 && std::memcmp(segment.data, text, N - 1) == 0;
}

// Whether Exif data says that the image is upright, or nothing of it, in the standard's form.
bool is_upright(Segment exif) {
  const Segment data{exif.data + 6, exif.size - 6};  // behind "Exif\0\0"
  if (data.size < 8 || (!starts_with(data, "II*\0") && !starts_with(data, "MM\0*"))) return false;
  constexpr std::uint32_t orientation = 0x0112, short_type = 3;
  const TiffReader tiff(data.data, data.size, data.data[0] == 'I');
  const std::size_t directory = tiff.u32(4);
  if (!tiff.has(directory, 2) || !tiff.has(directory + 2, std::size_t{12} * tiff.u16(directory))) return false;
  for (std::size_t i = 0; i < tiff.u16(directory); ++i) {
    const std::size_t entry = directory + 2 + 12 * i;
    if (tiff.u16(entry) != orientation) continue;
    if (tiff.u16(entry + 2) != short_type || tiff.u32(entry + 4) != 1 || tiff.u16(entry + 8) != 1) return false;
  }
  return true;
}

// Whether a segment before the scan changes nothing for OpenCV, and libjpeg-turbo does not warn of it.
bool is_plain(int marker, Segment segment, bool upright) {
  if (marker == 0xE0 && starts_with(segment, "JFIF")) return segment.size > 5 && segment.data[5] == 1;  // the version
  if (marker != 0xE1 || !upright) return true;
  // OpenCV's versions before 5 look for Exif data behind the first 6 bytes, whatever these are; XMP has none there.
  return starts_with(segment, "Exif\0\0") ? is_upright(segment) : starts_with(segment, "http://ns.adobe.com/");
}

// The same of all segments before the scan, if the own decoder takes the file.
bool is_plain(ByteSource& source, bool upright, const JpegHeader& header) {
  int marker = 0;
  Segment segment;
  for (std::size_t at = 2; marker != kScanMarker;) {
    if (!next_segment(source, at, marker, segment) || !is_plain(marker, segment, upright)) return false;
  }
  return decoder().scan_bytes(source, header) > 0;
}

bool read_jpeg(ByteSource& source, const WholeImage& image, std::uint8_t* out) {
  RowLayout layout;
  const std::uint32_t width = image.header.width, height = image.header.height;
  if (!decoder().start(source, image.header, {0, 0, height, width}, layout, nullptr, image.bytes)) return false;
  for (std::uint32_t y = 0; y < height;) {
    std::uint8_t* rows[kRows];
    const std::uint32_t count = std::min(kRows, height - y);
    for (std::uint32_t i = 0; i < count; ++i, ++y, out += image.row_bytes()) rows[i] = out;
    if (!decoder().read(rows, static_cast<int>(count))) return false;
  }
  return decoder().finish();
}

void copy_row(const std::uint8_t* rgb, PixelBytes bytes, std::uint32_t width, std::uint8_t* out) {
  if (bytes == PixelBytes::rgb) {
    std::memcpy(out, rgb, std::size_t{3} * width);
  } else {
    for (const std::uint8_t* const end = rgb + std::size_t{3} * width; rgb != end; rgb += 3, out += 3) {
      out[0] = rgb[2];
      out[1] = rgb[1];
      out[2] = rgb[0];
    }
  }
}

bool read_png(ByteSource& source, const WholeImage& image, std::uint8_t* out) {
  const std::uint32_t width = image.header.width, height = image.header.height;
  if (image.bytes == PixelBytes::luma) return decode_png_levels(source, height, width, out) == Status::ok;
  ConstImage rgb;
  if (decode_png(source, image.header, {0, 0, height, width}, rgb) != Status::ok) return false;
  for (int y = 0; y < rgb.height; ++y, out += image.row_bytes()) copy_row(rgb.row(y), image.bytes, width, out);
  return true;
}

}  // namespace

bool scan_whole_image(ByteSource& source, WantedPixels wanted, bool upright, WholeImage& image) {
  Status status = scan_header(source, image.header);
  const bool is_png = status == Status::not_jpeg;
  if (is_png) status = scan_plain_png(source, image.header);
  if (status != Status::ok || (!is_png && !is_plain(source, upright, image.header))) return false;
  if (std::uint64_t{image.header.width} * image.header.height > kMostPixels) return false;
  const int components = image.header.components;
  const bool is_gray = wanted == WantedPixels::gray || (wanted == WantedPixels::as_stored && components == 1);
  image.bytes = is_gray ? PixelBytes::luma : wanted == WantedPixels::rgb ? PixelBytes::rgb : PixelBytes::bgr;
  // libpng makes other gray of colours, and OpenCV keeps what is transparent.
  return !is_png || (is_gray ? components == 1 : wanted != WantedPixels::as_stored || components == 3);
}

bool decode_whole_image(ByteSource& source, const WholeImage& image, std::uint8_t* out) {
  return (image.header.format == Format::png ? read_png : read_jpeg)(source, image, out);
}

}  // namespace fastload
