// Turns crops, resizes, flips and steps, one after the other, into the Geometry of one image.
#pragma once

#include <cstdint>
#include <utility>

#include "rng/draw_plan.h"

namespace fastload {

struct Size {
  int height;
  int width;
  bool operator==(const Size& other) const { return height == other.height && width == other.width; }
};

// What to make of an image by the ops so far. Crops, one resize and flips become part of the region decode; what cannot
// becomes a step. A flip mirrors every later crop.
struct GeometryBuilder {
  Geometry& geometry;
  Size size;  // of the image after the ops so far
  bool resized = false;

  bool decoded() const { return !geometry.steps.empty(); }

  void crop(int top, int left, int height, int width) {
    if (decoded()) {
      if (Size{height, width} == size) return;
      add(Step::Kind::crop).box = {top, left, height, width};
    } else {
      if (geometry.flip_vertical) top = size.height - top - height;
      if (geometry.flip_horizontal) left = size.width - left - width;
      PixelBox& box = resized ? geometry.window : geometry.crop;
      box = {box.top + top, box.left + left, height, width};
      if (!resized) set_target(height, width);
    }
    size = {height, width};
  }

  void resize(int height, int width, Filter filter) {
    // Pillow's resize is not exactly symmetric, so flip-then-resize differs from resize-then-flip.
    if (decoded() || resized || geometry.flip_horizontal || geometry.flip_vertical) {
      Step& step = add(Step::Kind::resize);
      step.box = {0, 0, height, width};
      step.filter = filter;
    } else {
      set_target(height, width);
      geometry.filter = filter;
      resized = true;
    }
    size = {height, width};
  }

  void flip_horizontally() {
    if (decoded()) {
      add(Step::Kind::flip_horizontal);
    } else {
      geometry.flip_horizontal ^= true;
    }
  }

  void flip_vertically() {
    if (decoded()) {
      add(Step::Kind::flip_vertical);
    } else {
      geometry.flip_vertical ^= true;
    }
  }

  Step& add(Step::Kind kind) {
    geometry.steps.emplace_back().kind = kind;
    return geometry.steps.back();
  }

  // Returns false if the step does not fit the image.
  bool append(Step step) {
    PixelBox& box = step.box;
    switch (step.kind) {
      case Step::Kind::pad:  // its box holds the margins: top, left, bottom, right
        if (std::int64_t{size.height} + box.top + box.height > kLargestSide ||
            std::int64_t{size.width} + box.left + box.width > kLargestSide) {
          return false;
        }
        size = {size.height + box.top + box.height, size.width + box.left + box.width};
        box.height = size.height;
        box.width = size.width;
        break;
      case Step::Kind::rotate_90:
      case Step::Kind::rotate_270: std::swap(size.height, size.width); break;
      default: break;
    }
    geometry.steps.push_back(step);
    return true;
  }

  void set_target(int height, int width) {
    geometry.out_height = height;
    geometry.out_width = width;
    geometry.window = {0, 0, height, width};
  }

 private:
  static constexpr std::int64_t kLargestSide = 1 << 20;
};

}  // namespace fastload
