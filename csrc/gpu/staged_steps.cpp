#include "gpu/staged_steps.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "image/filters/blur.h"
#include "image/filters/gaussian.h"
#include "image/transform/kernels.h"

namespace fastload {
namespace {

using Kind = Step::Kind;

constexpr std::size_t kAlignment = 16;
constexpr int kLevels = 256;
// One block of threads runs all steps on an image, and takes too long for a larger one.
constexpr std::int64_t kMostPixels = std::int64_t{1} << 21;
// Of a convolution's weights with the pixels, for the same reason.
constexpr std::int64_t kMostProducts = std::int64_t{1} << 27;
// As of a resize while decoding; see stage_image.cpp.
constexpr std::size_t kMostWeights = std::size_t{1} << 15;

unsigned pixel_of(const Color& color) {
  return color[0] | static_cast<unsigned>(color[1]) << 8 | static_cast<unsigned>(color[2]) << 16;
}

// Steps on an image whose size is known, as what the kernel reads.
class StagedSteps {
 public:
  StagedSteps(PassRule pass_rule, int height, int width) : pass_rule_(pass_rule), height_(height), width_(width) {}

  int height() const { return height_; }
  int width() const { return width_; }
  std::int64_t most_pixels() const { return most_pixels_; }
  // Whether a step's result, or what it makes first, has to go to another image than its source.
  bool needs_two() const {
    for (const StagedStep& step : steps_) {
      const bool has_passes =
          step.kind == StagedKind::blur || step.kind == StagedKind::resize || step.kind == StagedKind::filter;
      if (has_passes || (step.kind >= StagedKind::sharpness && &step != &steps_.back())) return true;
    }
    return false;
  }
  const std::vector<StagedStep>& steps() const { return steps_; }

  // Behind the steps.
  void append_data(std::vector<std::uint8_t>& bytes) const { bytes.insert(bytes.end(), data_.begin(), data_.end()); }
  // Makes offsets in the data count from `begin`.
  void move_data(std::size_t begin) {
    for (StagedStep& step : steps_) {
      step.data += static_cast<unsigned>(begin);
      step.more += static_cast<unsigned>(begin);
    }
  }

  // Whether an intermediate image may have that size, which is then one of those that there must be room for.
  bool fits(int height, int width) {
    const std::int64_t pixels = std::int64_t{height} * width;
    most_pixels_ = std::max(most_pixels_, pixels);
    return pixels <= kMostPixels;
  }

  bool add(const Step& step) {
    switch (step.kind) {
      case Kind::brightness:
      case Kind::invert:
      case Kind::posterize:
      case Kind::solarize:
      case Kind::solarize_add:
      case Kind::torch_brightness: return add_table(step);
      case Kind::contrast: return add_factor(StagedKind::contrast, step.value);
      case Kind::saturation: return add_factor(StagedKind::saturation, step.value);
      case Kind::sharpness: return add_factor(StagedKind::sharpness, step.value);
      case Kind::torch_contrast:
        return step.twice == 0 && std::int64_t{height_} * width_ <= kMostExactGrays &&
               add_factor(StagedKind::torch_contrast, step.value);
      case Kind::torch_saturation: return add_factor(StagedKind::torch_saturation, step.value);
      case Kind::hue: append(StagedKind::hue).numbers[0] = static_cast<std::uint8_t>(step.value); return true;
      case Kind::grayscale: append(StagedKind::grayscale); return true;
      case Kind::autocontrast: append(StagedKind::autocontrast); return true;
      case Kind::equalize: append(StagedKind::equalize); return true;
      case Kind::torch_grayscale: append(StagedKind::torch_grayscale); return true;
      case Kind::torch_autocontrast: append(StagedKind::torch_autocontrast); return true;
      case Kind::flip_horizontal: return add_move(height_, width_, width_ - 1, -1, width_);
      case Kind::flip_vertical: return add_move(height_, width_, (height_ - 1) * width_, 1, -width_);
      case Kind::rotate_90: return add_move(width_, height_, width_ - 1, width_, -1);
      case Kind::rotate_180: return add_move(height_, width_, height_ * width_ - 1, -1, -width_);
      case Kind::rotate_270: return add_move(width_, height_, (height_ - 1) * width_, -width_, 1);
      case Kind::crop: {
        const PixelBox& box = step.box;
        return fastload::fits(step, height_, width_) &&
               add_move(box.height, box.width, box.top * width_ + box.left, 1, width_);
      }
      case Kind::pad: return add_pad(step);
      case Kind::affine: return add_affine(step);
      case Kind::perspective: return add_map(step, step.coefficients);
      case Kind::gaussian_blur: return add_blur(step);
      case Kind::resize: return add_resize(step);
      case Kind::gaussian_filter: return add_filter(step);
      case Kind::convolve: return add_convolution(step);
      case Kind::torch_sharpness:
      case Kind::torch_hue:
      case Kind::gather:
      case Kind::permute: return false;  // no kernel does these
    }
    return false;
  }

 private:
  StagedStep& append(StagedKind kind) {
    StagedStep& step = steps_.emplace_back();
    step.kind = kind;
    step.height = height_;
    step.width = width_;
    return step;
  }

  template <typename T>
  unsigned append_numbers(const std::vector<T>& numbers) {
    data_.resize((data_.size() + kAlignment - 1) / kAlignment * kAlignment);
    const auto at = static_cast<unsigned>(data_.size());
    const auto* const begin = reinterpret_cast<const std::uint8_t*>(numbers.data());
    data_.insert(data_.end(), begin, begin + numbers.size() * sizeof(T));
    return at;
  }

  // Takes the levels from what the threads would make of a row with each of them.
  bool add_table(const Step& step) {
    std::vector<std::uint8_t> levels(kLevels), pixels(3 * kLevels);
    for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i / 3);
    const Image row{pixels.data(), 3 * kLevels, 1, kLevels};
    if (!apply_steps({step}, pass_rule_, row, row)) return false;
    for (std::size_t i = 0; i < levels.size(); ++i) levels[i] = pixels[3 * i];
    if (!steps_.empty() && steps_.back().kind == StagedKind::table) {  // one table does what both do
      std::uint8_t* const before = data_.data() + steps_.back().data;
      std::transform(before, before + kLevels, before, [&levels](std::uint8_t level) { return levels[level]; });
      return true;
    }
    append(StagedKind::table).data = append_numbers(levels);
    return true;
  }

  bool add_factor(StagedKind kind, double factor) {
    StagedStep& step = append(kind);
    step.factor = static_cast<float>(factor);
    step.share = static_cast<float>(1.0 - factor);
    return true;
  }

  StagedStep& append(StagedKind kind, int height, int width) {
    height_ = height;
    width_ = width;
    return append(kind);
  }

  bool add_move(int height, int width, int first, int across, int down) {
    StagedStep& step = append(StagedKind::move, height, width);
    step.numbers[0] = first;
    step.numbers[1] = across;
    step.numbers[2] = down;
    return true;
  }

  bool add_pad(const Step& step) {
    if (!fastload::fits(step, height_, width_) || !fits(step.box.height, step.box.width)) return false;
    StagedStep& staged = append(StagedKind::pad, step.box.height, step.box.width);
    staged.numbers[0] = step.box.top;
    staged.numbers[1] = step.box.left;
    staged.numbers[2] = static_cast<int>(step.mode);
    staged.fill = pixel_of(step.fill);
    return true;
  }

  bool add_affine(const Step& step) {
    const auto& a = step.matrix;
    if (step.sampling != Sampling::nearest) return add_map(step, {a[0], a[1], a[2], a[3], a[4], a[5], 0, 0});
    switch (affine_way(a, height_, width_)) {
      case AffineWay::picks: {
        std::vector<int> picks = picked_columns(a, width_, width_);
        const std::vector<int> rows = picked_rows(a, height_, height_);
        picks.insert(picks.end(), rows.begin(), rows.end());
        StagedStep& staged = append(StagedKind::pick, height_, width_);
        staged.data = append_numbers(picks);
        staged.fill = pixel_of(step.fill);
        return true;
      }
      case AffineWay::fixed: {
        const FixedMatrix matrix = fixed_matrix(a);
        StagedStep& staged = append(StagedKind::affine, height_, width_);
        const std::uint32_t numbers[] = {matrix.x_x, matrix.x_y, matrix.x_0, matrix.y_x, matrix.y_y, matrix.y_0};
        std::transform(std::begin(numbers), std::end(numbers), staged.numbers,
                       [](std::uint32_t number) { return static_cast<int>(number); });
        staged.fill = pixel_of(step.fill);
        return true;
      }
      // Each position is a sum of all before it in its row, rounded after each addition: that has no parallel form with
      // the same bits. Only matrices that move pixels by more than 32768 come here.
      case AffineWay::doubles: return false;
    }
    return false;
  }

  bool add_map(const Step& step, const std::array<double, 8>& coefficients) {
    StagedStep& staged = append(StagedKind::map, height_, width_);
    std::copy(coefficients.begin(), coefficients.end(), staged.coefficients);
    staged.numbers[0] = static_cast<int>(step.sampling);
    staged.fill = pixel_of(step.fill);
    return true;
  }

  bool add_blur(const Step& step) {
    const BlurBox across = gaussian_box(step.radii[0]), down = gaussian_box(step.radii[1]);
    if (across.whole == 0 && down.whole == 0) return true;
    StagedStep& staged = append(StagedKind::blur, height_, width_);
    const std::uint32_t numbers[] = {static_cast<std::uint32_t>(across.radius), across.whole, across.far,
                                     static_cast<std::uint32_t>(down.radius),   down.whole,   down.far};
    std::transform(std::begin(numbers), std::end(numbers), staged.numbers,
                   [](std::uint32_t number) { return static_cast<int>(number); });
    return true;
  }

  bool add_resize(const Step& step) {
    static thread_local Resampler resampler;
    const int height = step.box.height, width = step.box.width;
    if (height == height_ && width == width_) return true;
    if (!fits(height, width)) return false;
    ResizeJob job;
    job.height = height_;
    job.width = width_;
    job.out_height = height;
    job.out_width = width;
    job.filter = step.filter;
    job.order = pass_order(pass_rule_, width_, height_, width, height);
    std::string error;
    if (!resampler.prepare(job, error)) return false;
    const PixelBox& region = resampler.region();
    const bool columns_first = resampler.vertical_first();
    if (!fits(columns_first ? height : region.height, columns_first ? region.width : width)) return false;
    StagedStep& staged = append(StagedKind::resize, height, width);
    std::vector<std::int32_t> x_axis, y_axis;
    resampler.weights(true, x_axis);
    resampler.weights(false, y_axis);
    staged.data = append_numbers(x_axis);
    staged.more = append_numbers(y_axis);
    staged.numbers[0] = region.top;
    staged.numbers[1] = region.left;
    staged.numbers[2] = region.height;
    staged.numbers[3] = region.width;
    staged.numbers[4] = columns_first ? 1 : 0;
    return x_axis.size() <= kMostWeights && y_axis.size() <= kMostWeights;
  }

  bool add_filter(const Step& step) {
    const PixelBox& box = step.box;
    if (box.height / 2 >= height_ || box.width / 2 >= width_) return false;
    const GaussianKernel across = gaussian_kernel(box.width, step.value);
    const GaussianKernel down = gaussian_kernel(box.height, step.value);
    StagedStep& staged = append(StagedKind::filter, height_, width_);
    staged.data = append_numbers(across.weights);
    staged.more = append_numbers(down.weights);
    staged.numbers[0] = static_cast<int>(across.weights.size());
    staged.numbers[1] = across.bits;
    staged.numbers[2] = static_cast<int>(down.weights.size());
    staged.numbers[3] = down.bits;
    return fits(height_, 2 * width_);  // between its passes a pixel takes twice as much
  }

  bool add_convolution(const Step& step) {
    const int rows = step.box.height, columns = step.box.width;
    if (rows / 2 >= height_ || columns / 2 >= width_) return false;
    if (std::int64_t{height_} * width_ * rows * columns > kMostProducts) return false;
    const int stride = (columns + 3) / 4 * 4;
    std::vector<float> weights(static_cast<std::size_t>((rows + 2 * (kConvolvedRows - 1)) * stride));
    for (int i = 0; i < rows; ++i) {
      std::copy_n(step.weights->begin() + i * columns, columns, weights.begin() + (kConvolvedRows - 1 + i) * stride);
    }
    StagedStep& staged = append(StagedKind::convolve, height_, width_);
    staged.data = append_numbers(weights);
    staged.numbers[0] = rows;
    staged.numbers[1] = columns;
    return true;
  }

  PassRule pass_rule_;
  int height_, width_;
  std::int64_t most_pixels_ = 0;
  std::vector<StagedStep> steps_;
  std::vector<std::uint8_t> data_;
};

}  // namespace

bool stage_steps(const std::vector<Step>& steps, PassRule pass_rule, int height, int width, int out_height,
                 int out_width, std::vector<std::uint8_t>& bytes, StagedImage& image) {
  StagedSteps staged(pass_rule, height, width);
  if (!staged.fits(height, width)) return false;
  for (const Step& step : steps) {
    if (!staged.add(step)) return false;
  }
  if (staged.height() != out_height || staged.width() != out_width) return false;
  if (staged.steps().empty()) return true;
  const auto aligned = [](std::size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; };
  const std::size_t at = aligned(bytes.size()), size = staged.steps().size() * sizeof(StagedStep);
  staged.move_data(aligned(size));
  bytes.resize(at);
  const auto* const begin = reinterpret_cast<const std::uint8_t*>(staged.steps().data());
  bytes.insert(bytes.end(), begin, begin + size);
  bytes.resize(at + aligned(size));
  staged.append_data(bytes);
  image.steps = static_cast<unsigned>(at);
  image.step_pixels = static_cast<unsigned>(staged.most_pixels());
  image.step_count = static_cast<int>(staged.steps().size());
  image.step_images = staged.needs_two() ? 2 : 1;
  return true;
}

}  // namespace fastload
