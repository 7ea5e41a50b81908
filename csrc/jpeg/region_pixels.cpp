#include "jpeg/region_pixels.h"

#include <algorithm>
#include <cstring>

#include "base/simd_level.h"

namespace fastload {
namespace {

constexpr std::uint32_t kSide = 8;  // of a block

const PixelKernels& kernels() {
#if defined(__x86_64__)
  if (simd_level() == SimdLevel::avx2) return kAvx2Pixels;
  if (simd_level() == SimdLevel::avx512) return kAvx512Pixels;
#elif defined(__aarch64__)
  if (simd_level() == SimdLevel::neon) return kNeonPixels;
#endif
  return kPortablePixels;
}

// Gives out parts of one piece of memory; with null only counts them.
class Parts {
 public:
  explicit Parts(std::uint8_t* memory) : memory_(memory) {}
  template <typename T>
  T* take(std::size_t count) {
    const std::size_t at = used_;
    used_ += (count * sizeof(T) + 63) / 64 * 64;
    return memory_ != nullptr ? reinterpret_cast<T*>(memory_ + at) : nullptr;
  }
  std::size_t used() const { return used_; }

 private:
  std::uint8_t* memory_;
  std::size_t used_ = 0;
};

}  // namespace

McuWindow mcus_of(const Scan& scan, std::uint32_t image_width, std::uint32_t image_height, std::uint32_t left,
                  std::uint32_t width, std::uint32_t top, std::uint32_t bottom) {
  const auto across = static_cast<std::uint32_t>(scan.component[0].columns);
  const auto down = static_cast<std::uint32_t>(scan.component[0].rows);
  McuWindow mcus;
  // Where chroma is stretched, a pixel depends on its neighbours' chroma.
  const std::uint32_t right = std::min(left + width - 1 + (across - 1), image_width - 1);
  mcus.first_column = (left - std::min(left, across - 1)) / (kSide * across);
  mcus.columns = right / (kSide * across) - mcus.first_column + 1;
  mcus.first_row = (top - std::min(top, down - 1)) / (kSide * down);
  mcus.last_row = std::min(bottom - 1 + (down - 1), image_height - 1) / (kSide * down);
  // With two rows of luma blocks in an MCU, libjpeg decodes the MCUs below before it puts out an MCU's last two rows.
  mcus.checked_row = std::min(bottom - 1 + 2 * (down - 1), image_height - 1) / (kSide * down);
  return mcus;
}

void RegionPixels::start(const BaselineHeader& baseline, std::uint32_t image_width, std::uint32_t image_height,
                         std::uint32_t left, std::uint32_t width, std::uint32_t top, std::uint32_t bottom,
                         PixelBytes bytes) {
  kernels_ = &kernels();
  bytes_ = bytes;
  count_ = bytes == PixelBytes::luma ? 1 : baseline.scan.components;
  image_height_ = image_height;
  left_ = left;
  width_ = width;
  top_ = top;
  bottom_ = bottom;
  const auto across = static_cast<std::uint32_t>(baseline.scan.component[0].columns);
  const auto down = static_cast<std::uint32_t>(baseline.scan.component[0].rows);
  mcus_ = mcus_of(baseline.scan, image_width, image_height, left, width, top, bottom);
  for (int i = 0; i < count_; ++i) {
    Component& component = component_[i];
    component.columns = baseline.scan.component[i].columns;
    component.rows = baseline.scan.component[i].rows;
    component.width = i == 0 ? image_width : (image_width + across - 1) / across;
    component.height = i == 0 ? image_height : (image_height + down - 1) / down;
    component.stride =
        (std::size_t{mcus_.columns} * kSide * static_cast<std::size_t>(component.columns) + 63) / 64 * 64;
    std::copy(baseline.quantization[i].begin(), baseline.quantization[i].end(), component.quantization.begin());
  }
  const auto lay_out = [this](Parts parts) {
    for (int i = 0; i < count_; ++i) {
      Component& component = component_[i];
      const std::size_t blocks =
          std::size_t{mcus_.columns} * static_cast<std::size_t>(component.columns * component.rows);
      component.samples = parts.take<std::uint8_t>(
          component.stride * 2 * kSide * static_cast<std::size_t>(component.rows) + kSampleSlack);
      component.blocks = parts.take<std::int16_t>(blocks * kBlockSize);
      component.last = parts.take<std::uint8_t>(blocks);
    }
    const std::size_t samples = std::size_t{mcus_.columns} * kSide;
    sums_ = parts.take<std::uint16_t>(samples + 2 + kStretchSlack);
    for (auto& chroma : chroma_) chroma = parts.take<std::uint8_t>(2 * (samples + kStretchSlack) + kSampleSlack);
    return parts.used();
  };
  lay_out(Parts(memory_.require(lay_out(Parts(nullptr)))));
}

std::uint32_t RegionPixels::needed_row(std::uint32_t y) const {
  const auto down = static_cast<std::uint32_t>(component_[0].rows);
  return std::min(y + (down - 1), image_height_ - 1) / (kSide * down);
}

BlockRows RegionPixels::blocks(std::uint32_t row) {
  BlockRows to;
  for (int i = 0; i < count_; ++i) {
    const Component& component = component_[i];
    const auto rows = static_cast<std::uint32_t>(component.rows);
    for (std::uint32_t y = 0; y < rows; ++y) {
      // Rows of luma above and below the region are there for their chroma.
      const std::uint32_t first = (row * rows + y) * kSide;
      if (i == 0 && (first >= bottom_ || first + kSide <= top_)) continue;
      const std::size_t at = std::size_t{y} * mcus_.columns * static_cast<std::size_t>(component.columns);
      to.component[i][y] = {component.blocks + at * kBlockSize, component.last + at};
    }
  }
  return to;
}

bool RegionPixels::add(std::uint32_t row) {
  const BlockRows from = blocks(row);
  bool fits = true;
  for (int i = 0; i < count_; ++i) {
    const Component& component = component_[i];
    const auto rows = static_cast<std::uint32_t>(component.rows);
    for (std::uint32_t y = 0; y < rows; ++y) {
      const BlockRows::Row& blocks = from.component[i][y];
      if (blocks.blocks == nullptr) continue;
      fits &= kernels_->transform(
          blocks.blocks, blocks.last, mcus_.columns * static_cast<std::uint32_t>(component.columns),
          component.quantization.data(), row_of(component, (row * rows + y) * kSide), component.stride);
    }
  }
  return fits;
}

std::uint8_t* RegionPixels::row_of(const Component& component, std::uint32_t y) {
  return component.samples + y % (2 * kSide * static_cast<std::uint32_t>(component.rows)) * component.stride;
}

// Row `y` of the image of a chroma component, as wide as luma; returns the sample of column `left_`.
const std::uint8_t* RegionPixels::stretched(const Component& component, std::uint32_t y, std::uint8_t* out) {
  const Component& luma = component_[0];
  const std::uint32_t origin = mcus_.first_column * kSide;
  if (luma.columns == 1) return row_of(component, y) + (left_ - origin);
  const std::uint32_t first = left_ / 2, last = (left_ + width_ - 1) / 2;
  // With a neighbour on each side; at the image's edges, and where no pixel depends on it, the same sample again.
  const std::uint32_t begin = std::max(first, origin + 1) - 1;
  const std::uint32_t end = std::min({last + 2, component.width, origin + mcus_.columns * kSide});
  std::uint16_t* const sums = sums_ + (begin + 1 - first);
  if (luma.rows == 2) {
    const std::uint32_t near = y / 2;
    const std::uint32_t far = y % 2 != 0 ? std::min(near + 1, component.height - 1) : std::max(near, 1u) - 1;
    kernels_->add_rows(row_of(component, near) + (begin - origin), row_of(component, far) + (begin - origin),
                       end - begin, sums);
  } else {
    const std::uint8_t* const samples = row_of(component, y) + (begin - origin);
    std::copy(samples, samples + (end - begin), sums);
  }
  if (begin == first) sums_[0] = sums_[1];
  if (end == last + 1) sums_[end - first + 1] = sums_[end - first];
  if (luma.rows == 2) {
    kernels_->stretch(sums_, last - first + 1, 8, 7, 4, out);
  } else {
    kernels_->stretch(sums_, last - first + 1, 1, 2, 2, out);
  }
  return out + (left_ - 2 * first);
}

void RegionPixels::write(std::uint32_t y, std::uint8_t* out) {
  const std::uint8_t* const luma =
      row_of(component_[0], y) +
      (left_ - mcus_.first_column * kSide * static_cast<std::uint32_t>(component_[0].columns));
  if (bytes_ == PixelBytes::luma) {
    std::memcpy(out, luma, width_);
    return;
  }
  const std::uint8_t *blue = nullptr, *red = nullptr;
  if (count_ == 3) {
    blue = stretched(component_[1], y, chroma_[0]);
    red = stretched(component_[2], y, chroma_[1]);
  }
  kernels_->to_rgb(luma, blue, red, width_, bytes_ == PixelBytes::bgr, out);
}

}  // namespace fastload
