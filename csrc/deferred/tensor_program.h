// What the memory of a tensor of images is to hold, as data: no pixel is made before it is painted. Knows neither
// Python nor torch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/image.h"
#include "base/status.h"
#include "resample/resample.h"
#include "rng/draw_plan.h"
#include "sample/sample.h"

namespace fastload {

// An image in memory, encoded; or its levels, (height, width, channels) without gaps, if it has a height. `owner` keeps
// it.
// `library` decodes what the core does not, see decode_elsewhere().
struct ImageBytes {
  const std::uint8_t* data = nullptr;
  std::size_t size = 0;
  std::shared_ptr<const void> owner;
  std::uint32_t height = 0, width = 0;
  std::string library{};

  bool is_decoded() const { return height != 0; }
};

// One image: a part of a file, its size, flips and steps. Its geometry is complete and has a filter. An image of one
// channel has levels, and the row and the column of each of its pixels there in place of a geometry.
struct ImageProgram {
  ImageBytes file;
  Geometry geometry;
  std::vector<std::int32_t> rows{}, columns{};
  // Where it is in the tensor's image, if it does not take all of that: fills cover the rest.
  std::optional<PixelBox> place{};

  std::size_t channels() const { return rows.empty() ? 3 : 1; }
};

// Images of one size, one behind the other, whose levels are looked up in a table.
struct TensorProgram {
  // A box of an image that has one value in each channel.
  struct Fill {
    std::size_t image = 0;
    PixelBox box;
    std::array<std::array<std::uint8_t, 8>, 3> values{};
  };

  std::vector<std::shared_ptr<const ImageProgram>> images;
  int height = 0, width = 0;
  std::size_t channels = 3;  // 1 or 3
  PassRule pass_rule = PassRule::horizontal_first;
  std::size_t value_bytes = 1;      // 1, 2, 4 or 8
  std::vector<std::uint8_t> table;  // 256 values for each channel
  bool keeps_levels = false;        // the values are the levels
  bool planar = true;               // channels are outermost within an image, else innermost
  std::vector<Fill> fills;          // in order

  std::size_t image_bytes() const;
  std::size_t nbytes() const { return images.size() * image_bytes(); }
  // Writes one image's values to `out`, aligned to their size. If the result is not `ok`, `out` is unspecified.
  // Thread-safe; needs no lock. Never throws.
  Status paint(std::size_t image, void* out) const;
  // The same of an image of 3 channels from the pixels of its whole file, (height, width, 3) without gaps.
  Status paint_whole(std::size_t image, const std::uint8_t* pixels, std::uint32_t file_height, std::uint32_t file_width,
                     void* out) const;
  // The same from levels that were made elsewhere, (height, width, 3) without gaps.
  void paint_levels(std::size_t image, const std::uint8_t* levels, void* out) const;
  // Writes all images' values to a file, from `offset` on; an image whose status is not `ok` is unspecified there.
  // Returns an errno, or 0. Thread-safe; needs no lock. Never throws.
  int write(int file, std::int64_t offset, Status* statuses) const;

 private:
  void paint_picked(std::size_t image, void* out) const;
  Status paint_input(std::size_t image, const Input& input, void* out) const;
  void paint_fills(std::size_t image, void* out) const;
};

// Appends the images of a program that has the same size, rule and table, and their fills. False if it has not.
bool append(const TensorProgram& program, TensorProgram& to);

}  // namespace fastload
