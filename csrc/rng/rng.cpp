#include "rng/rng.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

namespace fastload {
namespace {

constexpr std::uint32_t kBlock = 624;
constexpr std::uint32_t kShift = 397;

std::uint32_t twist(std::uint32_t u, std::uint32_t v) {
  const std::uint32_t mixed = (u & 0x80000000u) | (v & 0x7fffffffu);
  return (mixed >> 1) ^ (v & 1u ? 0x9908b0dfu : 0u);
}

template <class T>
T load(const std::uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

template <class T>
void store(std::uint8_t* bytes, T value) {
  std::memcpy(bytes, &value, sizeof value);
}

// torch.Generator's state in memory on 64-bit little-endian machines: the seed; how many numbers are left; whether it
// is seeded; the index of the next number; 624 words of 64 bits each; then cached normal samples.
constexpr std::size_t kSeedAt = 0, kLeftAt = 8, kSeededAt = 12, kNextAt = 16, kWordsAt = 24;
constexpr std::size_t kNormalsAt = kWordsAt + kBlock * sizeof(std::uint64_t);

// Python's int(round(x)): ties to even, as nearbyint rounds in the default mode.
int round_half_even(double x) { return static_cast<int>(std::nearbyint(x)); }

struct Size {
  int height;
  int width;
  bool operator==(const Size& other) const { return height == other.height && width == other.width; }
};

// The crop that RandomResizedCrop derives from an area and an aspect ratio.
Size size_of(double area, float ratio) {
  return {round_half_even(std::sqrt(area / ratio)), round_half_even(std::sqrt(area * ratio))};
}

// The geometry of the ops so far. A flip mirrors every later op.
struct Course {
  Geometry& geometry;
  Size size;  // of the image after the ops so far
  bool resized = false;

  void crop(int top, int left, int height, int width) {
    if (geometry.flip_vertical) top = size.height - top - height;
    if (geometry.flip_horizontal) left = size.width - left - width;
    PixelBox& box = resized ? geometry.window : geometry.crop;
    box = {box.top + top, box.left + left, height, width};
    if (!resized) set_target(height, width);
    size = {height, width};
  }

  void resize(int height, int width) {
    set_target(height, width);
    size = {height, width};
    resized = true;
  }

  void set_target(int height, int width) {
    geometry.out_height = height;
    geometry.out_width = width;
    geometry.window = {0, 0, height, width};
  }
};

}  // namespace

void Generator::seed(std::uint64_t seed) {
  initial_seed_ = seed;
  left_ = 1;
  next_ = 0;
  state_[0] = static_cast<std::uint32_t>(seed);
  for (std::uint32_t i = 1; i < kBlock; ++i) state_[i] = 1812433253u * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
  normals_.fill(0);
}

void Generator::next_block() {
  for (std::uint32_t i = 0; i < kBlock - kShift; ++i) state_[i] = state_[i + kShift] ^ twist(state_[i], state_[i + 1]);
  for (std::uint32_t i = kBlock - kShift; i < kBlock - 1; ++i) {
    state_[i] = state_[i + kShift - kBlock] ^ twist(state_[i], state_[i + 1]);
  }
  state_[kBlock - 1] = state_[kShift - 1] ^ twist(state_[kBlock - 1], state_[0]);
  left_ = kBlock;
  next_ = 0;
}

std::uint32_t Generator::random() {
  if (--left_ == 0) next_block();
  std::uint32_t y = state_[next_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

std::uint64_t Generator::random64() {
  const std::uint64_t high = random();
  return high << 32 | random();
}

float Generator::uniform(double from_double, double to_double, UniformRule rule) {
  const auto from = static_cast<float>(from_double), to = static_cast<float>(to_double);
  const float x = rand(), span = to - from;
  const float value = rule.fused ? std::fma(x, span, from) : x * span + from;
  return rule.excludes_upper && value == to ? from : value;
}

std::int64_t Generator::randint(std::int64_t low, std::int64_t high) {
  const std::uint64_t range = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
  const std::uint64_t bits = range >= 1ull << 28 ? random64() : random();
  return static_cast<std::int64_t>(bits % range + static_cast<std::uint64_t>(low));
}

void Generator::get_state(std::uint8_t out[kStateBytes]) const {
  store<std::uint64_t>(out + kSeedAt, initial_seed_);
  store<std::int32_t>(out + kLeftAt, left_);
  store<std::int32_t>(out + kSeededAt, 1);
  store<std::uint64_t>(out + kNextAt, next_);
  for (std::uint32_t i = 0; i < kBlock; ++i) store<std::uint64_t>(out + kWordsAt + 8 * i, state_[i]);
  std::memcpy(out + kNormalsAt, normals_.data(), normals_.size());
}

bool Generator::set_state(const std::uint8_t in[kStateBytes]) {
  const auto left = load<std::int32_t>(in + kLeftAt);
  const auto next = load<std::uint64_t>(in + kNextAt);
  // `left` and `next` are redundant, except before the first block.
  const bool fresh = left == 1 && next == 0;
  const bool inside =
      left >= 1 && left <= static_cast<std::int32_t>(kBlock) && next == kBlock + 1 - static_cast<std::uint64_t>(left);
  if (load<std::int32_t>(in + kSeededAt) != 1 || !(fresh || inside)) return false;
  for (std::uint32_t i = 0; i < kBlock; ++i) {
    if (load<std::uint64_t>(in + kWordsAt + 8 * i) > std::numeric_limits<std::uint32_t>::max()) return false;
  }
  initial_seed_ = load<std::uint64_t>(in + kSeedAt);
  left_ = left;
  next_ = static_cast<std::uint32_t>(next);
  for (std::uint32_t i = 0; i < kBlock; ++i) {
    state_[i] = static_cast<std::uint32_t>(load<std::uint64_t>(in + kWordsAt + 8 * i));
  }
  std::memcpy(normals_.data(), in + kNormalsAt, normals_.size());
  return true;
}

std::uint64_t seed_for_index(std::uint64_t seed, std::uint64_t epoch, std::uint64_t index) {
  // SplitMix64's steps (Steele, Lea, Flood 2014), absorbing one number after the other.
  std::uint64_t state = 0;
  for (const std::uint64_t word : {seed, epoch, index}) {
    state = (state ^ word) + 0x9e3779b97f4a7c15ull;
    state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9ull;
    state = (state ^ (state >> 27)) * 0x94d049bb133111ebull;
    state ^= state >> 31;
  }
  return state & std::numeric_limits<std::int64_t>::max();
}

bool DrawPlan::add(const DrawOp& op, std::string& error) {
  using Kind = DrawOp::Kind;
  const bool is_flip = op.kind == Kind::horizontal_flip || op.kind == Kind::vertical_flip;
  const bool erases = op.kind == Kind::random_erasing;
  const bool resizes =
      op.kind == Kind::random_resized_crop || op.kind == Kind::resize || op.kind == Kind::resize_shorter;
  error.clear();
  if (erases_) {
    error = "nothing can follow an erasing";
  } else if (is_flip || erases) {
    if (!(op.p >= 0.0 && op.p <= 1.0)) error = "p must be within [0, 1], got " + std::to_string(op.p);
  } else if (op.height < 1 || (op.kind != Kind::resize_shorter && op.width < 1)) {
    error = "sizes must be > 0, got " + std::to_string(op.height) + " x " + std::to_string(op.width);
  } else if (op.kind == Kind::resize_shorter && op.max_size != 0 && op.max_size <= op.height) {
    error = "max_size must be greater than the size, got " + std::to_string(op.max_size);
  } else if (resizes && (resizes_ || flips_)) {
    // Pillow's resize is not exactly symmetric, so flip-then-resize differs from resize-then-flip.
    error = resizes_ ? "only one transform may resize" : "a resize cannot follow a flip";
  }
  if (error.empty() && (op.kind == Kind::random_resized_crop || erases)) {
    const bool scale_ok = 0 <= op.scale[0] && op.scale[0] <= op.scale[1] && std::isfinite(op.scale[1]);
    const bool ratio_ok = 0 < op.ratio[0] && op.ratio[0] <= op.ratio[1] && std::isfinite(op.ratio[1]);
    if (!scale_ok || !ratio_ok || !(op.log_ratio[0] <= op.log_ratio[1])) {
      error = "scale and ratio must be positive (min, max) pairs";
    }
  }
  if (!error.empty()) return false;
  resizes_ = resizes_ || resizes;
  flips_ = flips_ || is_flip;
  erases_ = erases;
  ops_.push_back(op);
  return true;
}

namespace {

// Draws the next area and aspect ratio and computes the size. On false, exp(`unresolved`) must be known first.
bool draw_size(const DrawOp& op, UniformRule rule, const std::vector<KnownExp>& known, Size image, Generator& generator,
               Size& size, float& unresolved) {
  const double area = static_cast<double>(image.height) * image.width;
  const double target_area = area * generator.uniform(op.scale[0], op.scale[1], rule);
  const float x = generator.uniform(op.log_ratio[0], op.log_ratio[1], rule);
  const auto resolved = std::find_if(known.begin(), known.end(), [x](KnownExp entry) { return entry.input == x; });
  if (resolved != known.end()) {
    size = size_of(target_area, resolved->output);
    return true;
  }
  // torch's float32 exp depends on the CPU and the math library (MKL, Sleef, libm). All of them err by less than 1 ulp,
  // so the result is the correctly rounded value or one of its two neighbours. Width and height are monotonic in it: if
  // the neighbours give the same size, torch gets it too.
  const auto ratio = static_cast<float>(std::exp(static_cast<double>(x)));
  size = size_of(target_area, std::nextafter(ratio, 0.0f));
  unresolved = x;
  return size == size_of(target_area, std::nextafter(ratio, std::numeric_limits<float>::infinity()));
}

PixelBox draw_place(Size size, Size image, Generator& generator) {
  const auto top = static_cast<int>(generator.randint(0, image.height - size.height + 1));
  const auto left = static_cast<int>(generator.randint(0, image.width - size.width + 1));
  return {top, left, size.height, size.width};
}

// torchvision's RandomErasing.get_params (v1) and make_params (v2). Its aspect ratio is height by width, but a crop's
// is width by height. The box is shorter than the image on both sides, or nothing is erased.
DrawStatus draw_erasing(const DrawOp& op, UniformRule rule, const std::vector<KnownExp>& known, Size image,
                        Generator& generator, PixelBox& box, float& unresolved) {
  for (int attempt = 0; attempt < 10; ++attempt) {
    Size size{};
    if (!draw_size(op, rule, known, image, generator, size, unresolved)) return DrawStatus::ambiguous_exp;
    std::swap(size.height, size.width);
    if (size.height < image.height && size.width < image.width) {
      box = draw_place(size, image, generator);
      break;
    }
  }
  return DrawStatus::ok;
}

// torchvision's RandomResizedCrop.get_params (v1) and make_params (v2), which draw the same numbers.
DrawStatus draw_resized_crop(const DrawOp& op, UniformRule rule, const std::vector<KnownExp>& known, Size image,
                             Generator& generator, PixelBox& box, float& unresolved) {
  for (int attempt = 0; attempt < 10; ++attempt) {
    Size size{};
    if (!draw_size(op, rule, known, image, generator, size, unresolved)) return DrawStatus::ambiguous_exp;
    if (0 < size.width && size.width <= image.width && 0 < size.height && size.height <= image.height) {
      box = draw_place(size, image, generator);
      return DrawStatus::ok;
    }
  }
  const double in_ratio = static_cast<double>(image.width) / image.height;
  Size size = image;
  if (in_ratio < op.ratio[0]) {
    size.height = round_half_even(image.width / op.ratio[0]);
  } else if (in_ratio > op.ratio[1]) {
    size.width = round_half_even(image.height * op.ratio[1]);
  }
  box = {(image.height - size.height) / 2, (image.width - size.width) / 2, size.height, size.width};
  return size.height > 0 && size.width > 0 ? DrawStatus::ok : DrawStatus::crop_too_large;
}

// torchvision's size for the shorter side; Python's int() truncates.
Size shorter_side_to(const DrawOp& op, Size image) {
  const int shorter = std::min(image.height, image.width), longer = std::max(image.height, image.width);
  int new_shorter = op.height;
  auto new_longer = static_cast<int>(static_cast<double>(op.height) * longer / shorter);
  if (op.max_size != 0 && new_longer > op.max_size) {
    new_shorter = static_cast<int>(static_cast<double>(op.max_size) * new_shorter / new_longer);
    new_longer = op.max_size;
  }
  return image.width <= image.height ? Size{new_longer, new_shorter} : Size{new_shorter, new_longer};
}

DrawStatus apply(const DrawOp& op, UniformRule rule, const std::vector<KnownExp>& known, Generator& generator,
                 Course& course, float& unresolved) {
  using Kind = DrawOp::Kind;
  const Size image = course.size;
  const bool is_crop =
      op.kind == Kind::random_crop_v1 || op.kind == Kind::random_crop_v2 || op.kind == Kind::center_crop;
  if (is_crop && (op.height > image.height || op.width > image.width)) return DrawStatus::crop_too_large;
  const int spare_height = image.height - op.height, spare_width = image.width - op.width;
  switch (op.kind) {
    case Kind::random_resized_crop: {
      PixelBox box;
      const DrawStatus status = draw_resized_crop(op, rule, known, image, generator, box, unresolved);
      if (status != DrawStatus::ok) return status;
      course.crop(box.top, box.left, box.height, box.width);
      course.resize(op.height, op.width);
      break;
    }
    case Kind::random_crop_v1:
    case Kind::random_crop_v2: {
      const bool always = op.kind == Kind::random_crop_v1 && (spare_height > 0 || spare_width > 0);
      const auto top = always || spare_height > 0 ? generator.randint(0, spare_height + 1) : 0;
      const auto left = always || spare_width > 0 ? generator.randint(0, spare_width + 1) : 0;
      course.crop(static_cast<int>(top), static_cast<int>(left), op.height, op.width);
      break;
    }
    case Kind::center_crop:
      course.crop(round_half_even(spare_height / 2.0), round_half_even(spare_width / 2.0), op.height, op.width);
      break;
    case Kind::resize: course.resize(op.height, op.width); break;
    case Kind::resize_shorter: {
      const Size size = shorter_side_to(op, image);
      if (size.height < 1 || size.width < 1) return DrawStatus::crop_too_large;
      course.resize(size.height, size.width);
      break;
    }
    // torch compares the float32 draw with p rounded to float32. v1 flips if r < p, v2 returns early if r >= p.
    case Kind::horizontal_flip:
      if (generator.rand() < static_cast<float>(op.p)) course.geometry.flip_horizontal ^= true;
      break;
    case Kind::vertical_flip:
      if (generator.rand() < static_cast<float>(op.p)) course.geometry.flip_vertical ^= true;
      break;
    case Kind::random_erasing:
      if (!(generator.rand() < static_cast<float>(op.p))) break;
      return draw_erasing(op, rule, known, image, generator, course.geometry.erased, unresolved);
  }
  return DrawStatus::ok;
}

}  // namespace

DrawStatus DrawPlan::run(Generator& generator, int width, int height, const std::vector<KnownExp>& known,
                         Geometry& geometry, float& unresolved) const {
  const Generator before = generator;
  geometry = {};
  Course course{geometry, {height, width}};
  course.crop(0, 0, height, width);
  for (const DrawOp& op : ops_) {
    const DrawStatus status = apply(op, uniform_rule, known, generator, course, unresolved);
    if (status != DrawStatus::ok) {
      generator = before;
      return status;
    }
  }
  return DrawStatus::ok;
}

}  // namespace fastload
