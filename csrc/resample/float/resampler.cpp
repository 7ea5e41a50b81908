#include "resample/float/resampler.h"

#include <algorithm>

#include "base/simd_level.h"

namespace fastload {
namespace {

const FloatKernels& kernels_in_use() {
  switch (simd_level()) {
#if defined(__x86_64__)
    case SimdLevel::avx2: return kAvx2FloatKernels;
    case SimdLevel::avx512: return kAvx512FloatKernels;
#endif
    default: return kPortableFloatKernels;
  }
}

// Writes `count` values of each of the first `rows` lanes to its row.
void gather(const float* lanes, int count, int rows, float* const* out) {
  constexpr int kTile = 16;  // values whose lanes are in as many cache lines
  for (int x = 0; x < count; x += kTile) {
    const int n = std::min(kTile, count - x);
    for (int row = 0; row < rows; ++row) {
      for (int i = 0; i < n; ++i) out[row][x + i] = lanes[(x + i) * kLanes + row];
    }
  }
}

}  // namespace

void FloatResampler::prepare(const FloatResize& job) {
  window_ = job.window;
  channels_ = job.channels;
  flips_ = job.flip_vertical;
  kernels_ = &kernels_in_use();
  make_float_axis(job.bicubic, job.products, job.width, job.out_width, window_.left, window_.width, x_axis_);
  make_float_axis(job.bicubic, job.products, job.height, job.out_height, window_.top, window_.height, y_axis_);
  if (job.flip_horizontal) mirror(x_axis_);
  taps_.resize(static_cast<std::size_t>(y_axis_.stride));
  row_.resize(static_cast<std::size_t>(window_.width * channels_));
  const auto floats = [](int count) { return static_cast<std::size_t>(count) * kLanes * sizeof(float); };
  lanes_.require(floats(x_axis_.extent * channels_));
  made_.require(floats(window_.width * channels_));
  ring_rows_ = *std::max_element(y_axis_.size.begin(), y_axis_.size.end()) + kLanes;
  ring_stride_ = (window_.width * channels_ + 31) / 16 * 16;
  ring_.require(static_cast<std::size_t>(ring_rows_ * ring_stride_) * sizeof(float));
}

PixelBox FloatResampler::region() const { return {y_axis_.first, x_axis_.first, y_axis_.extent, x_axis_.extent}; }

void FloatResampler::start(std::uint8_t* out, std::ptrdiff_t out_stride) {
  out_ = out;
  out_stride_ = out_stride;
  values_ = nullptr;
  pushed_ = written_ = 0;
}

void FloatResampler::start(const float* values, float* out, bool planar) {
  values_ = values;
  out_values_ = out;
  planar_ = planar;
  pushed_ = written_ = 0;
}

void FloatResampler::spread(const std::uint8_t* const* rows, float* lanes) const {
  const int bytes = x_axis_.extent * channels_;
  if (values_ == nullptr) return kernels_->spread(rows, bytes, lanes);
  for (int i = 0; i < bytes; ++i, lanes += kLanes) {
    const float* values = values_ + i % 3 * 256;
    for (int row = 0; row < kLanes; ++row) lanes[row] = values[rows[row][i]];
  }
}

// Puts a finished row to its place in the output.
void FloatResampler::put(const float* row, int number) {
  const std::ptrdiff_t to = flips_ ? window_.height - 1 - number : number;
  const int width = window_.width, count = width * channels_;
  if (values_ == nullptr) {
    kernels_->round(row, count, out_ + to * out_stride_);
  } else if (planar_) {
    const std::ptrdiff_t plane = static_cast<std::ptrdiff_t>(window_.height) * width;
    float* const out = out_values_ + to * width;
    for (int x = 0; x < width; ++x) {
      for (int channel = 0; channel < 3; ++channel) out[channel * plane + x] = row[3 * x + channel];
    }
  } else {
    std::copy(row, row + count, out_values_ + to * count);
  }
}

void FloatResampler::take(const std::uint8_t* const* rows, int count) {
  const std::uint8_t* sources[kLanes];
  float* targets[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    sources[i] = rows[std::min(i, count - 1)];
    targets[i] = ring_row(pushed_ + i);
  }
  auto* const lanes = reinterpret_cast<float*>(lanes_.data());
  auto* const made = reinterpret_cast<float*>(made_.data());
  const int values = window_.width * channels_;
  spread(sources, lanes);
  kernels_->horizontal(x_axis_, channels_, lanes, made);
  gather(made, values, count, targets);
  pushed_ += count;
  for (; written_ < window_.height; ++written_) {
    const auto i = static_cast<std::size_t>(written_);
    const int from = y_axis_.start[i], size = y_axis_.size[i];
    if (from + size > pushed_) break;
    for (int t = 0; t < size; ++t) taps_[static_cast<std::size_t>(t)] = ring_row(from + t);
    kernels_->vertical(taps_.data(), y_axis_.row(written_), size, y_axis_.separate[i], row_.data(), values);
    put(row_.data(), written_);
  }
}

}  // namespace fastload
