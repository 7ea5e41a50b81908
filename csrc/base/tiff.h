// Reads the numbers of TIFF data, as Exif and other segments of JPEG files hold it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

inline std::uint32_t big_endian_16(const std::uint8_t* p) { return static_cast<std::uint32_t>(p[0] << 8 | p[1]); }

// Offsets must be within the data: see has().
class TiffReader {
 public:
  TiffReader(const std::uint8_t* data, std::size_t size, bool little_endian)
      : data_(data), size_(size), little_endian_(little_endian) {}
  bool has(std::size_t offset, std::size_t count) const { return offset <= size_ && count <= size_ - offset; }
  std::uint32_t u16(std::size_t at) const {
    const std::uint8_t* p = data_ + at;
    return little_endian_ ? static_cast<std::uint32_t>(p[1] << 8 | p[0]) : big_endian_16(p);
  }
  std::uint32_t u32(std::size_t at) const {
    return little_endian_ ? u16(at + 2) << 16 | u16(at) : u16(at) << 16 | u16(at + 2);
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
  bool little_endian_;
};

}  // namespace fastload
