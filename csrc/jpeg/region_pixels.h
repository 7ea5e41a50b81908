// Turns rows of MCUs of a window of a baseline JPEG into rows of pixels. Knows no Huffman codes and no files.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/buffer.h"
#include "jpeg/baseline.h"
#include "jpeg/pixels/kernels.h"

namespace fastload {

// The MCUs that a region's pixels depend on.
struct McuWindow {
  std::uint32_t first_column = 0, columns = 0;
  std::uint32_t first_row = 0, last_row = 0;
  std::uint32_t checked_row = 0;  // the last one that libjpeg decodes for the region
};

McuWindow mcus_of(const Scan& scan, std::uint32_t image_width, std::uint32_t image_height, std::uint32_t left,
                  std::uint32_t width, std::uint32_t top, std::uint32_t bottom);

// What a pixel's bytes are: three, or its luma.
enum class PixelBytes : std::uint8_t { rgb, bgr, luma };

// The rows of MCUs and pixels of one region at a time, from the top down. Not thread-safe. Throws std::bad_alloc.
class RegionPixels {
 public:
  // The region is columns [left, left + width) and rows [top, bottom) of an image of `image_width` by `image_height`.
  void start(const BaselineHeader& baseline, std::uint32_t image_width, std::uint32_t image_height, std::uint32_t left,
             std::uint32_t width, std::uint32_t top, std::uint32_t bottom, PixelBytes bytes = PixelBytes::rgb);

  const McuWindow& mcus() const { return mcus_; }
  // The row of MCUs that must have been added before row `y` of pixels can be written.
  std::uint32_t needed_row(std::uint32_t y) const;

  // Where the coefficients of row `row` of MCUs go. Then add() them, if they are sound. False if they are so large that
  // libjpeg-turbo's pixels depend on the instructions that it uses.
  BlockRows blocks(std::uint32_t row);
  bool add(std::uint32_t row);
  // Writes row `y`. It and the row before the next one to be added may be written, and those between them.
  void write(std::uint32_t y, std::uint8_t* out);

 private:
  struct Component {
    int columns, rows;            // blocks per MCU
    std::uint32_t width, height;  // samples in the image
    std::size_t stride;           // samples in the window
    std::uint8_t* samples;        // of two rows of MCUs: a ring
    std::int16_t* blocks;         // of one row of MCUs
    std::uint8_t* last;
    alignas(32) std::array<std::int32_t, kBlockSize> quantization;
  };

  static std::uint8_t* row_of(const Component& component, std::uint32_t y);
  const std::uint8_t* stretched(const Component& component, std::uint32_t y, std::uint8_t* out);

  const PixelKernels* kernels_ = nullptr;
  PixelBytes bytes_ = PixelBytes::rgb;
  int count_ = 0;  // of components that are used
  Component component_[kMaxComponents];
  std::uint32_t image_height_, left_, width_, top_, bottom_;
  McuWindow mcus_;
  AlignedBuffer memory_;
  std::uint16_t* sums_ = nullptr;
  std::uint8_t* chroma_[2] = {};
};

}  // namespace fastload
