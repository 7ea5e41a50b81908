// Images in memory, and parts of them. Knows neither Python nor torch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

// `height` rows of `width` RGB pixels, three bytes each; rows are `stride` bytes apart.
struct Image {
  std::uint8_t* data = nullptr;
  std::ptrdiff_t stride = 0;
  int height = 0;
  int width = 0;

  std::uint8_t* row(int y) const { return data + stride * y; }
};

// The same, for reading only.
struct ConstImage {
  const std::uint8_t* data = nullptr;
  std::ptrdiff_t stride = 0;
  int height = 0;
  int width = 0;

  ConstImage() = default;
  ConstImage(const std::uint8_t* data, std::ptrdiff_t stride, int height, int width)
      : data(data), stride(stride), height(height), width(width) {}
  ConstImage(const Image& image) : ConstImage(image.data, image.stride, image.height, image.width) {}

  const std::uint8_t* row(int y) const { return data + stride * y; }
};

// A rectangle of whole pixels.
struct PixelBox {
  int top = 0;
  int left = 0;
  int height = 0;
  int width = 0;
};

}  // namespace fastload
