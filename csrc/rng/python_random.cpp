#include "rng/python_random.h"

#include <cmath>
#include <cstring>

namespace fastload {
namespace {

constexpr std::size_t kWords = 624, kShift = 397, kUsedAt = kWords * 4, kNormalAt = kUsedAt + 8;

}  // namespace

void Twister::fill(std::uint32_t seed) {
  words_[0] = seed;
  for (std::uint32_t i = 1; i < kWords; ++i) words_[i] = 1812433253u * (words_[i - 1] ^ (words_[i - 1] >> 30)) + i;
  used_ = kWords;
}

std::uint32_t Twister::random() {
  if (used_ == kWords) {
    for (std::size_t i = 0; i < kWords; ++i) {
      const std::uint32_t mixed = (words_[i] & 0x80000000u) | (words_[(i + 1) % kWords] & 0x7fffffffu);
      words_[i] = words_[(i + kShift) % kWords] ^ (mixed >> 1) ^ (mixed & 1u ? 0x9908b0dfu : 0u);
    }
    used_ = 0;
  }
  std::uint32_t y = words_[used_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

double Twister::random_double() {
  const std::uint32_t high = random() >> 5, low = random() >> 6;
  return (high * 67108864.0 + low) * 0x1p-53;
}

void Twister::get_state(std::uint8_t out[kStateBytes]) const {
  const std::uint32_t counts[] = {used_, has_normal_ ? 1u : 0u};
  std::memcpy(out, words_.data(), kUsedAt);
  std::memcpy(out + kUsedAt, counts, sizeof counts);
  std::memcpy(out + kNormalAt, &normal_, sizeof normal_);
}

bool Twister::set_state(const std::uint8_t in[kStateBytes]) {
  std::uint32_t counts[2];
  std::memcpy(counts, in + kUsedAt, sizeof counts);
  if (counts[0] > kWords || counts[1] > 1) return false;
  std::memcpy(words_.data(), in, kUsedAt);
  used_ = counts[0];
  has_normal_ = counts[1] != 0;
  std::memcpy(&normal_, in + kNormalAt, sizeof normal_);
  return true;
}

// The reference implementation's init_by_array (Matsumoto, Nishimura 2002), of the seed's words of 32 bits.
PythonRandom::PythonRandom(std::uint64_t seed) {
  const std::uint32_t key[] = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  const std::uint32_t length = key[1] == 0 ? 1 : 2;
  fill(19650218u);
  std::size_t i = 1;
  const auto step = [&](std::uint32_t factor) { words_[i] ^= (words_[i - 1] ^ (words_[i - 1] >> 30)) * factor; };
  const auto advance = [&] {
    if (++i == kWords) {
      words_[0] = words_[kWords - 1];
      i = 1;
    }
  };
  for (std::uint32_t k = 0; k < kWords; ++k, advance()) {
    step(1664525u);
    words_[i] += key[k % length] + k % length;
  }
  for (std::size_t k = 1; k < kWords; ++k, advance()) {
    step(1566083941u);
    words_[i] -= static_cast<std::uint32_t>(i);
  }
  words_[0] = 0x80000000u;
}

std::uint32_t PythonRandom::randbelow(std::uint32_t count) {
  int bits = 0;
  for (std::uint32_t rest = count; rest != 0; rest >>= 1) ++bits;
  std::uint32_t drawn;
  do {
    drawn = random() >> (32 - bits);
  } while (drawn >= count);
  return drawn;
}

double PythonRandom::gauss(double mean, double deviation) {
  double normal = normal_;
  if (!has_normal_) {
    const double angle = random_double() * (2.0 * 3.14159265358979323846);
    const double radius = std::sqrt(-2.0 * std::log(1.0 - random_double()));
    normal = std::cos(angle) * radius;
    normal_ = std::sin(angle) * radius;
  } else {
    normal_ = 0;
  }
  has_normal_ = !has_normal_;
  return mean + normal * deviation;
}

std::uint32_t NumpyRandom::randint(std::uint32_t count) {
  const std::uint32_t most = count - 1;
  if (most == 0) return 0;
  std::uint32_t mask = most;
  for (int shift = 1; shift < 32; shift *= 2) mask |= mask >> shift;
  std::uint32_t drawn;
  do {
    drawn = random() & mask;
  } while (drawn > most);
  return drawn;
}

}  // namespace fastload
