// PNG and WebP files: their headers, and their pixels as Pillow's Image.open(file).convert("RGB") gives them. What
// Pillow may read otherwise, or warn about, is refused. Knows neither Python nor torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/header.h"
#include "base/image.h"
#include "base/source.h"
#include "base/status.h"

namespace fastload {

// One bit per Format that decodes to the installed Pillow's pixels; others are `not_jpeg`. Initially none; calibration
// sets those that this build can decode. Thread-safe.
void set_trusted_formats(std::uint32_t mask);
std::uint32_t trusted_formats();

// "PNG, WebP with libwebp 1.2.4": what this build decodes beside JPEG.
std::string codec_versions();

// A library that this build uses: the file that it was linked with, and the one that the process has loaded for it,
// which may be another that has the same name. `version` is the loaded one's; libjpeg-turbo cannot be asked, and its
// is that of the headers.
struct LinkedLibrary {
  std::string name, version, built_with, loaded;
};
std::vector<LinkedLibrary> linked_libraries();

// Reads the header of a file that is no JPEG. `ok` means that Pillow opens it without a warning; `not_jpeg` that it is
// neither PNG nor WebP. Reads no more of a large file than needed.
Status scan_other_header(ByteSource& source, ImageHeader& header);

// Decodes the whole file, `header` being scan_other_header's result for it, and checks its end as Pillow would. `image`
// is the region, in memory of this thread that stays valid until the next call. Thread-safe. Throws std::bad_alloc
// only.
Status decode_other(ByteSource& source, const ImageHeader& header, const Region& region, ConstImage& image);

// The parts of both. Without libwebp, WebP files are `not_jpeg`.
Status scan_png(ByteSource& source, ImageHeader& header);
Status decode_png(ByteSource& source, const ImageHeader& header, const Region& region, ConstImage& image);
Status scan_webp(ByteSource& source, ImageHeader& header);
Status decode_webp(ByteSource& source, const ImageHeader& header, const Region& region, ConstImage& image);
std::string webp_version();

// Decodes a whole file of one channel, gray or with a palette, to height rows of width bytes: Pillow's levels or
// indices. `ok` as decode_other(); `bad_geometry` for another size. Throws std::bad_alloc only.
Status decode_png_levels(ByteSource& source, std::uint32_t height, std::uint32_t width, std::uint8_t* out);

// Reads a whole file. `ok` means that it holds hardly more than pixels, gray, RGB or RGBA of 8 bits and not interlaced,
// in chunks of ordinary size with the right checksums. So whatever libpng reads without a warning, decode_png() does.
Status scan_plain_png(ByteSource& source, ImageHeader& header);

// Bytes of each buffer that a thread keeps for its next image, at most.
inline constexpr std::size_t kKeptCodecBytes = std::size_t{4} << 20;

}  // namespace fastload
