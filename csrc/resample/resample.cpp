// The resampler's control flow: the source pixels that a window needs, the order of the passes, the row buffers.
#include "resample/resample.h"

#include <algorithm>
#include <cstring>

#include "base/simd_level.h"
#include "resample/float_job.h"
#include "resample/kernels.h"

namespace fastload {
namespace {

// What a pass does to an axis.
enum class Pass { keep, convolve, pick };

// Nearest neighbour as in Pillow's affine scaling: the position is accumulated, not multiplied, so that rounding errors
// are the same. -1: outside the source (Pillow leaves zeros there).
void pick_positions(int source_size, float low, float high, int out_size, int begin, int count,
                    std::vector<int>& picks) {
  const double step = static_cast<double>(high - low) / out_size;
  double position = static_cast<double>(low) + step * 0.5;
  picks.resize(count);
  for (int i = 0; i < begin + count; ++i, position += step) {
    if (i < begin) continue;
    const int pick = position < 0.0 ? -1 : static_cast<int>(position);
    picks[i - begin] = pick < source_size ? pick : -1;
  }
}

void span_of(const std::vector<int>& picks, int& first, int& extent) {
  int last = -1;
  first = -1;
  for (int pick : picks) {
    if (pick < 0) continue;
    first = first < 0 ? pick : std::min(first, pick);
    last = std::max(last, pick);
  }
  first = std::max(first, 0);
  extent = std::max(last, first) - first + 1;
}

void pick_pixels(const std::vector<int>& picks, int channels, const std::uint8_t* source, std::uint8_t* out) {
  for (const int pick : picks) {
    const std::uint8_t* pixel = source + static_cast<std::ptrdiff_t>(pick) * channels;
    if (pick < 0) {
      std::memset(out, 0, channels);
    } else if (channels == 3) {
      std::memcpy(out, pixel, 3);
    } else {
      *out = *pixel;
    }
    out += channels;
  }
}

std::ptrdiff_t padded(std::ptrdiff_t bytes) {
  const std::ptrdiff_t rounded = (bytes + kReadSlack + 63) / 64 * 64;
  return rounded % 4096 == 0 ? rounded + 64 : rounded;  // rows 4096 bytes apart would share a cache set
}

std::string describe(const char* rule, int a, int b) {
  return std::string(rule) + ", got " + std::to_string(a) + " x " + std::to_string(b);
}

// Those of the level in use.
const Kernels& kernels_in_use() {
  switch (simd_level()) {
#if defined(__x86_64__)
    case SimdLevel::avx2: return kAvx2Kernels;
    case SimdLevel::avx512: return kAvx512Kernels;
#elif defined(__aarch64__)
    case SimdLevel::neon: return kNeonKernels;
#endif
    default: return kPortableKernels;
  }
}

}  // namespace

PassOrder pass_order(PassRule rule, int width, int height, int out_width, int out_height) {
  const std::int64_t less_height = static_cast<std::int64_t>(height) - out_height;
  const std::int64_t less_width = static_cast<std::int64_t>(width) - out_width;
  bool vertical_first = false;
  switch (rule) {
    case PassRule::horizontal_first: break;
    case PassRule::tall_vertical_first: vertical_first = less_height > 0 && less_height > 2 * less_width; break;
    case PassRule::sliver_vertical_first: vertical_first = less_height > 0 && height > std::int64_t{100} * width; break;
  }
  return vertical_first ? PassOrder::vertical_first : PassOrder::horizontal_first;
}

struct Resampler::State {
  ResizeJob job;
  PixelBox region;
  FloatResampler floats;  // does it all for its filters
  const Kernels* kernels = nullptr;

  Pass x_pass = Pass::keep;
  Pass y_pass = Pass::keep;
  Axis x_axis, y_axis;
  PackedAxis x_packed;
  std::vector<int> x_picks, y_picks;  // nearest, and rows to keep: relative to the region; -1: zeros
  bool vertical_first = false;
  int window_rows = 0;  // rows that the vertical pass needs at once, including the newest

  // State of one run.
  std::uint8_t* out = nullptr;
  std::ptrdiff_t out_stride = 0;
  int pushed = 0;   // rows of the region received
  int written = 0;  // rows of the window written

  AlignedBuffer ring;  // rows buffered for the vertical pass, and streamed rows
  int ring_rows = 0;
  std::ptrdiff_t ring_stride = 0;
  AlignedBuffer stage;  // streamed rows that need no buffering
  std::ptrdiff_t stage_stride = 0;
  std::ptrdiff_t column_offset = 0;  // bytes from a streamed row's first pixel to the region's
  AlignedBuffer scratch;             // rows between the passes
  std::ptrdiff_t scratch_stride = 0;
  std::vector<const std::uint8_t*> taps;

  bool prepare(const ResizeJob& job, std::string& error);
  void prepare_axes();
  void start(std::uint8_t* out, std::ptrdiff_t out_stride);
  bool in_float() const { return is_float(job.filter); }
  bool rows_wait() const { return vertical_first || x_pass == Pass::keep; }
  std::uint8_t* ring_row(int y) { return ring.data() + (y % ring_rows) * ring_stride; }
  std::uint8_t* out_row(int i) const {
    const std::ptrdiff_t row = job.flip_vertical ? job.window.height - 1 - i : i;
    return out + row * out_stride;
  }
  void x_steps(const std::uint8_t* const* sources, std::uint8_t* const* targets, int rows);
  void x_step(const std::uint8_t* source, std::uint8_t* target) { x_steps(&source, &target, 1); }
  template <class RowAt>
  void y_steps(RowAt row_at);
  void take_rows(const std::uint8_t* const* sources, int rows);
  void pick_row(int y, const std::uint8_t* source);
};

bool Resampler::State::prepare(const ResizeJob& wanted, std::string& error) {
  job = wanted;
  PixelBox& window = job.window;
  if (window.height == 0) window = {0, 0, job.out_height, job.out_width};
  constexpr int kMost = 1 << 24;  // beyond it, Pillow's float box is no longer exact
  const auto valid = [](int size) { return size >= 1 && size <= kMost; };
  if (!valid(job.width) || !valid(job.height)) {
    error = describe("the source's sides must be 1 to 2^24 pixels", job.width, job.height);
  } else if (!valid(job.out_width) || !valid(job.out_height)) {
    error = describe("the target's sides must be 1 to 2^24 pixels", job.out_width, job.out_height);
  } else if (window.top < 0 || window.left < 0 || window.height < 1 || window.width < 1 ||
             window.height > job.out_height - window.top || window.width > job.out_width - window.left) {
    error = describe("the window must lie within the target", window.width, window.height);
  } else if (job.channels != 1 && job.channels != 3) {
    error = "channels must be 1 or 3, got " + std::to_string(job.channels);
  } else if (is_torch(job.filter) && !job.whole) {
    error = "torch's filters resize the whole source, not a box of it";
  } else {
    if (job.whole) {
      job.box_left = job.box_top = 0;
      job.box_right = static_cast<float>(job.width);
      job.box_bottom = static_cast<float>(job.height);
    }
    if (job.box_left >= 0 && job.box_top >= 0 && job.box_right <= job.width && job.box_bottom <= job.height &&
        job.box_left < job.box_right && job.box_top < job.box_bottom) {
      prepare_axes();
      return true;
    }
    error = "box must lie within the source and must not be empty";
  }
  return false;
}

void Resampler::State::prepare_axes() {
  if (in_float()) {
    floats.prepare(float_resize(job));
    region = floats.region();
    return;
  }
  const PixelBox& window = job.window;
  const auto pass_for = [this](int size, float low, float high, int out_size) {
    if (size == out_size && low == 0 && high == static_cast<float>(out_size)) return Pass::keep;
    return job.filter == Filter::nearest ? Pass::pick : Pass::convolve;
  };
  x_pass = pass_for(job.width, job.box_left, job.box_right, job.out_width);
  y_pass = pass_for(job.height, job.box_top, job.box_bottom, job.out_height);
  kernels = &kernels_in_use();

  if (x_pass == Pass::convolve) {
    make_axis(job.filter, job.width, job.box_left, job.box_right, job.out_width, window.left, window.width, x_axis);
    region.left = x_axis.first;
    region.width = x_axis.extent;
  } else if (x_pass == Pass::pick) {
    pick_positions(job.width, job.box_left, job.box_right, job.out_width, window.left, window.width, x_picks);
    span_of(x_picks, region.left, region.width);
    for (int& pick : x_picks) pick = pick < 0 ? -1 : pick - region.left;
    if (job.flip_horizontal) std::reverse(x_picks.begin(), x_picks.end());
  } else {
    region.left = window.left;
    region.width = window.width;
  }
  if (y_pass == Pass::convolve) {
    make_axis(job.filter, job.height, job.box_top, job.box_bottom, job.out_height, window.top, window.height, y_axis);
    region.top = y_axis.first;
    region.height = y_axis.extent;
  } else if (y_pass == Pass::pick) {
    pick_positions(job.height, job.box_top, job.box_bottom, job.out_height, window.top, window.height, y_picks);
    span_of(y_picks, region.top, region.height);
    for (int& pick : y_picks) pick = pick < 0 ? -1 : pick - region.top;
  } else {
    region.top = window.top;
    region.height = window.height;
  }

  if ((x_pass == Pass::convolve && !x_axis.digits_fit) || (y_pass == Pass::convolve && !y_axis.digits_fit)) {
    kernels = &kPortableKernels;
  }
  if (x_pass == Pass::convolve) {
    settle_horizontal(job.flip_horizontal, x_axis);
    kernels->pack(x_axis, job.channels, x_packed);
  }
  vertical_first = runs_vertical_first(job, y_pass == Pass::convolve);
  window_rows = 1;
  if (y_pass == Pass::convolve) {
    int reached = 0;
    for (int i = 0; i < y_axis.count; ++i) {
      reached = std::max(reached, y_axis.start[i] + y_axis.size[i]);
      window_rows = std::max(window_rows, reached - y_axis.start[i]);
    }
    taps.resize(y_axis.stride);
  }
  const std::ptrdiff_t widest = static_cast<std::ptrdiff_t>(std::max(region.width, window.width)) * job.channels;
  scratch_stride = padded(widest);
  scratch.require(kRowsAtOnce * scratch_stride);
}

void Resampler::State::start(std::uint8_t* target, std::ptrdiff_t target_stride) {
  if (in_float()) floats.start(target, target_stride);
  out = target;
  out_stride = target_stride;
  pushed = 0;
  written = 0;
}

// The horizontal step for up to kRowsAtOnce rows: from the region's columns to the window's, mirrored if requested.
void Resampler::State::x_steps(const std::uint8_t* const* sources, std::uint8_t* const* targets, int rows) {
  const int width = job.window.width, channels = job.channels;
  if (x_pass == Pass::convolve) return kernels->horizontal(x_axis, x_packed, channels, sources, targets, rows);
  for (int row = 0; row < rows; ++row) {
    if (x_pass == Pass::pick) {
      pick_pixels(x_picks, channels, sources[row], targets[row]);
    } else if (job.flip_horizontal) {
      kernels->reverse(sources[row], targets[row], width, channels);
    } else {
      std::memcpy(targets[row], sources[row], static_cast<std::size_t>(width) * channels);
    }
  }
}

// The vertical step, for as many rows of the window as the rows so far allow. row_at(y): row y of the region, after the
// horizontal pass if that comes first.
template <class RowAt>
void Resampler::State::y_steps(RowAt row_at) {
  const int bytes = (rows_wait() ? region.width : job.window.width) * job.channels;
  const bool x_left = rows_wait() && (x_pass != Pass::keep || job.flip_horizontal);
  const std::uint8_t* sources[kRowsAtOnce];
  std::uint8_t* targets[kRowsAtOnce];
  int waiting = 0;
  for (; written < job.window.height; ++written) {
    const int from = y_axis.start[written], size = y_axis.size[written];
    if (from + size > pushed) break;
    for (int t = 0; t < size; ++t) taps[t] = row_at(from + t);
    std::fill(taps.begin() + size, taps.begin() + (size + 3) / 4 * 4, taps[0]);
    std::uint8_t* target = out_row(written);
    if (!x_left) {
      kernels->vertical(taps.data(), y_axis.row(written), size, target, bytes);
      continue;
    }
    std::uint8_t* between = scratch.data() + waiting * scratch_stride;
    kernels->vertical(taps.data(), y_axis.row(written), size, between, bytes);
    sources[waiting] = between;
    targets[waiting] = target;
    if (++waiting == kRowsAtOnce) {
      x_steps(sources, targets, waiting);
      waiting = 0;
    }
  }
  if (waiting > 0) x_steps(sources, targets, waiting);
}

// Takes up to kRowsAtOnce more rows of the region, if the vertical pass does not need them unchanged.
void Resampler::State::take_rows(const std::uint8_t* const* sources, int rows) {
  const int y = pushed;
  pushed += rows;
  if (y_pass == Pass::pick) {
    for (int i = 0; i < rows; ++i) pick_row(y + i, sources[i]);
    return;
  }
  std::uint8_t* targets[kRowsAtOnce];
  for (int i = 0; i < rows; ++i) targets[i] = y_pass == Pass::convolve ? ring_row(y + i) : out_row(y + i);
  x_steps(sources, targets, rows);
  if (y_pass == Pass::convolve) {
    y_steps([this](int row) { return ring_row(row); });
  } else {
    written = pushed;
  }
}

// Nearest: writes all rows of the window that equal row y of the region.
void Resampler::State::pick_row(int y, const std::uint8_t* source) {
  const std::size_t bytes = static_cast<std::size_t>(job.window.width) * job.channels;
  const std::uint8_t* previous = nullptr;
  for (; written < job.window.height && y_picks[written] <= y; ++written) {
    std::uint8_t* target = out_row(written);
    if (y_picks[written] < 0) {
      std::memset(target, 0, bytes);
    } else if (previous != nullptr) {
      std::memcpy(target, previous, bytes);
    } else {
      x_step(source, target);
      previous = target;
    }
  }
}

Resampler::Resampler() : state_(std::make_unique<State>()) {}
Resampler::~Resampler() = default;

bool Resampler::prepare(const ResizeJob& job, std::string& error) { return state_->prepare(job, error); }

const PixelBox& Resampler::region() const { return state_->region; }

int Resampler::weights(bool along_x, std::vector<std::int32_t>& numbers) const {
  const State& s = *state_;
  const Pass pass = along_x ? s.x_pass : s.y_pass;
  const int count = along_x ? s.job.window.width : s.job.window.height;
  if (pass == Pass::convolve) {
    const Axis& axis = along_x ? s.x_axis : s.y_axis;
    for (int i = 0; i < count; ++i) numbers.insert(numbers.end(), {axis.start[i], axis.size[i]});
    const int taps = *std::max_element(axis.size.begin(), axis.size.begin() + count);
    for (int t = 0; t < taps; ++t) {
      for (int i = 0; i < count; ++i) numbers.push_back(t < axis.size[i] ? axis.row(i)[t] : 0);
    }
    return taps;
  }
  // A single weight of one; of zero where nearest picks nothing.
  const std::vector<int>& picks = along_x ? s.x_picks : s.y_picks;
  const auto pick = [&](int i) {
    return pass == Pass::pick ? picks[i] : along_x && s.job.flip_horizontal ? count - 1 - i : i;
  };
  for (int i = 0; i < count; ++i) numbers.insert(numbers.end(), {std::max(pick(i), 0), 1});
  for (int i = 0; i < count; ++i) numbers.push_back(pick(i) < 0 ? 0 : 1 << kPrecisionBits);
  return 1;
}

bool Resampler::vertical_first() const { return state_->vertical_first; }

bool Resampler::convolves(bool along_x) const { return (along_x ? state_->x_pass : state_->y_pass) == Pass::convolve; }

bool Resampler::finished() const {
  return state_->in_float() ? state_->floats.finished() : state_->written == state_->job.window.height;
}

void Resampler::run(const SourceView& source, std::uint8_t* out, std::ptrdiff_t out_stride) {
  State& s = *state_;
  s.start(out, out_stride);
  const int channels = s.job.channels;
  const std::uint8_t* origin = source.data + (s.region.top - source.box.top) * source.stride +
                               static_cast<std::ptrdiff_t>(s.region.left - source.box.left) * channels;
  if (s.in_float()) {
    for (int y = 0; y < s.region.height; y += kLanes) {
      const std::uint8_t* rows[kLanes];
      const int count = std::min(kLanes, s.region.height - y);
      for (int i = 0; i < count; ++i) rows[i] = origin + (y + i) * source.stride;
      s.floats.take(rows, count);
    }
    return;
  }
  if (s.y_pass == Pass::convolve && s.rows_wait()) {
    s.pushed = s.region.height;
    s.y_steps([&](int row) { return origin + row * source.stride; });
    return;
  }
  s.ring_rows = s.window_rows + kRowsAtOnce - 1;
  s.ring_stride = padded(static_cast<std::ptrdiff_t>(s.job.window.width) * channels);
  s.ring.require(s.ring_rows * s.ring_stride);
  // Horizontal kernels read past a row's end. Rows where that would leave the buffer are copied.
  const std::size_t row_bytes = static_cast<std::size_t>(s.region.width) * channels;
  const std::uint8_t* end =
      source.data + (source.box.height - 1) * source.stride + static_cast<std::ptrdiff_t>(source.box.width) * channels;
  for (int y = 0; y < s.region.height; y += kRowsAtOnce) {
    const std::uint8_t* rows[kRowsAtOnce];
    const int count = std::min(kRowsAtOnce, s.region.height - y);
    for (int i = 0; i < count; ++i) {
      rows[i] = origin + (y + i) * source.stride;
      if (s.x_pass == Pass::convolve && rows[i] + row_bytes + kReadSlack > end) {
        std::uint8_t* copy = s.scratch.data() + i * s.scratch_stride;
        std::memcpy(copy, rows[i], row_bytes);
        rows[i] = copy;
      }
    }
    s.take_rows(rows, count);
  }
}

void Resampler::begin(int left, int width, std::uint8_t* out, std::ptrdiff_t out_stride) {
  State& s = *state_;
  s.start(out, out_stride);
  const std::ptrdiff_t channels = s.job.channels;
  s.column_offset = (s.region.left - left) * channels;
  const std::ptrdiff_t streamed = padded(width * channels);
  if (s.in_float()) {
    s.stage_stride = streamed;
    s.stage.require(kRowsAhead * streamed);
    return;
  }
  if (s.y_pass == Pass::convolve && s.rows_wait()) {
    s.ring_rows = s.window_rows + kRowsAhead - 1;
    s.ring_stride = streamed;
  } else {
    s.stage_stride = streamed;
    s.stage.require(kRowsAhead * streamed);
    s.ring_rows = s.window_rows + kRowsAtOnce - 1;
    s.ring_stride = padded(s.job.window.width * channels);
  }
  s.ring.require(s.ring_rows * s.ring_stride);
}

std::uint8_t* Resampler::row(int ahead) {
  State& s = *state_;
  if (!s.in_float() && s.y_pass == Pass::convolve && s.rows_wait()) return s.ring_row(s.pushed + ahead);
  return s.stage.data() + ahead * s.stage_stride;
}

void Resampler::push(int rows) {
  State& s = *state_;
  if (s.in_float()) {
    static_assert(kRowsAhead <= kLanes, "rows are taken at once");
    const std::uint8_t* sources[kRowsAhead];
    rows = std::min(rows, s.region.height - s.pushed);
    for (int i = 0; i < rows; ++i) sources[i] = s.stage.data() + i * s.stage_stride + s.column_offset;
    if (rows > 0) s.floats.take(sources, rows);
    s.pushed += std::max(rows, 0);
    return;
  }
  rows = std::min(rows, s.region.height - s.pushed);
  if (s.y_pass == Pass::convolve && s.rows_wait()) {
    s.pushed += rows;
    s.y_steps([&s](int row) { return s.ring_row(row) + s.column_offset; });
    return;
  }
  for (int y = 0; y < rows; y += kRowsAtOnce) {
    const std::uint8_t* sources[kRowsAtOnce];
    const int count = std::min(kRowsAtOnce, rows - y);
    for (int i = 0; i < count; ++i) sources[i] = s.stage.data() + (y + i) * s.stage_stride + s.column_offset;
    s.take_rows(sources, count);
  }
}

}  // namespace fastload
