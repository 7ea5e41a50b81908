#include "rng/generator.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
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
// Among these: the second of two samples in double, and whether there is one.
constexpr std::size_t kSecondAt = 8, kHasSecondAt = 24;

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

void Generator::skip(std::uint64_t count) {
  for (; count >= static_cast<std::uint64_t>(left_); next_ = 1) {
    count -= static_cast<std::uint64_t>(left_);
    next_block();
  }
  left_ -= static_cast<int>(count);
  next_ += static_cast<std::uint32_t>(count);
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

void Generator::randperm(int* order, int count) {
  std::iota(order, order + count, 0);
  for (int i = 0; i < count - 1; ++i) {
    std::swap(order[i], order[i + static_cast<int>(random() % static_cast<std::uint32_t>(count - i))]);
  }
}

void Generator::skip_normals(std::uint64_t count) {
  constexpr std::uint64_t kVector = 16;  // a number each; the last 16 samples are drawn again if others precede them
  if (count >= kVector) return skip(count % kVector == 0 ? count : count + kVector);
  for (; count > 0; --count) {
    const bool had_second = load<std::int32_t>(normals_.data() + kHasSecondAt) != 0;
    double second = 0;
    if (!had_second) {
      const double angle = 2.0 * 3.14159265358979323846 * rand_double();
      second = std::sqrt(-2.0 * std::log1p(-rand_double())) * std::sin(angle);
    }
    store<double>(normals_.data() + kSecondAt, second);
    store<std::int32_t>(normals_.data() + kHasSecondAt, had_second ? 0 : 1);
  }
}

void Generator::seed_others(std::uint64_t seed) {
  others = OtherGenerators{PythonRandom(seed), NumpyRandom(static_cast<std::uint32_t>(seed))};
}

void Generator::get_state(std::uint8_t* out) const {
  store<std::uint64_t>(out + kSeedAt, initial_seed_);
  store<std::int32_t>(out + kLeftAt, left_);
  store<std::int32_t>(out + kSeededAt, 1);
  store<std::uint64_t>(out + kNextAt, next_);
  for (std::uint32_t i = 0; i < kBlock; ++i) store<std::uint64_t>(out + kWordsAt + 8 * i, state_[i]);
  std::memcpy(out + kNormalsAt, normals_.data(), normals_.size());
  if (!others) return;
  others->python.get_state(out + kStateBytes);
  others->numpy.get_state(out + kStateBytes + Twister::kStateBytes);
}

bool Generator::set_state(const std::uint8_t* in, std::size_t bytes) {
  std::optional<OtherGenerators> beyond;
  if (bytes == kStateBytes + OtherGenerators::kStateBytes) {
    beyond.emplace();
    const std::uint8_t* const at = in + kStateBytes;
    if (!beyond->python.set_state(at) || !beyond->numpy.set_state(at + Twister::kStateBytes)) return false;
  } else if (bytes != kStateBytes) {
    return false;
  }
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
  others = beyond;
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

}  // namespace fastload
