#include "codecs/codecs.h"

#include <atomic>

namespace fastload {
namespace {

std::atomic<std::uint32_t> trusted{0};

}  // namespace

void set_trusted_formats(std::uint32_t mask) { trusted.store(mask, std::memory_order_relaxed); }
std::uint32_t trusted_formats() { return trusted.load(std::memory_order_relaxed); }

std::string codec_versions() {
  const std::string webp = webp_version();
  return webp.empty() ? "PNG" : "PNG, WebP with libwebp " + webp;
}

Status scan_other_header(ByteSource& source, ImageHeader& header) {
  Status status = Status::not_jpeg;
  for (const auto scan : {scan_png, scan_webp}) {
    if (status != Status::not_jpeg) break;
    header = ImageHeader{};
    status = scan(source, header);
  }
  if (status != Status::not_jpeg && (trusted_formats() & 1u << static_cast<int>(header.format)) == 0) {
    header = ImageHeader{};
    status = Status::not_jpeg;
  }
  return status;
}

Status decode_other(ByteSource& source, const ImageHeader& header, const Region& region, ConstImage& image) {
  return (header.format == Format::png ? decode_png : decode_webp)(source, header, region, image);
}

}  // namespace fastload
