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

  // A dimension of what an image becomes in another order; the stride is in values.
  struct Axis {
    std::size_t size = 1, stride = 0;
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
  // If not empty, an image becomes this of its values, the outermost dimension first: parts of them in another order,
  // or several times. `first` is where it begins.
  std::vector<Axis> axes;
  std::size_t first = 0;
  // If not empty, what these programs describe, one behind the other. `images` are all of theirs; the rest is not used.
  std::vector<std::shared_ptr<const TensorProgram>> parts;

  // The program that has an image, which is this one or a part; `image` becomes its number there.
  const TensorProgram& owner_of(std::size_t& image) const;
  // Bytes of an image of a program without parts.
  std::size_t image_bytes() const;
  // Bytes from the beginning to an image.
  std::size_t place_of(std::size_t image) const;
  std::size_t nbytes() const { return place_of(images.size()); }
  // Writes one image's values to `out`, aligned to their size. If the result is not `ok`, `out` is unspecified.
  // Thread-safe; needs no lock. Never throws.
  Status paint(std::size_t image, void* out) const;
  // The same of an image of 3 channels from the pixels of its whole file, (height, width, 3) without gaps.
  Status paint_whole(std::size_t image, const std::uint8_t* pixels, std::uint32_t file_height, std::uint32_t file_width,
                     void* out) const;
  // The same from levels that were made elsewhere, (height, width, 3) without gaps. Not `ok` only without memory.
  Status paint_levels(std::size_t image, const std::uint8_t* levels, void* out) const;
  // Writes all images' values to a file, from `offset` on; an image whose status is not `ok` is unspecified there.
  // Returns an errno, or 0. Thread-safe; needs no lock. Never throws.
  int write(int file, std::int64_t offset, Status* statuses) const;

 private:
  std::size_t values() const { return channels * static_cast<std::size_t>(height) * static_cast<std::size_t>(width); }
  void paint_picked(std::size_t image, void* out) const;
  Status paint_input(std::size_t image, const Input& input, void* out) const;
  // These write the values in their own order.
  Status paint_values(std::size_t image, const Input& input, void* out) const;
  void paint_values(std::size_t image, const std::uint8_t* levels, void* out) const;
  void paint_fills(std::size_t image, void* out) const;
  // Calls `paint` with memory for an image's values, which it puts in the order of the axes.
  template <class Paint>
  Status in_order(void* out, const Paint& paint) const;
};

// Appends the images of a program without axes and parts that has the same size, rule and table, and their fills. False
// if it has not.
bool append(const TensorProgram& program, TensorProgram& to);

}  // namespace fastload
