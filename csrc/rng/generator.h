// torch's CPU generator and its draws, bit for bit, and what a worker has besides. Knows neither Python nor torch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "rng/python_random.h"

namespace fastload {

// How the installed torch turns 24 random bits into uniform_(from, to). Versions and CPU kernels differ in the last
// bit, so the caller determines the rule by comparing a few draws.
struct UniformRule {
  bool fused = true;           // one rounding for x * (to - from) + from (FMA kernels), else two
  bool excludes_upper = true;  // a result that rounds up to `to` becomes `from`
};

// torch's CPU generator: at::mt19937. Copyable (2.5 KB; 7.5 with the generators of Python and NumPy).
class Generator {
 public:
  static constexpr std::size_t kStateBytes = 5056;  // of torch.Generator.get_state()

  explicit Generator(std::uint64_t seed = 5489) { this->seed(seed); }

  // Those of Python and NumPy, if any transform draws from them.
  std::optional<OtherGenerators> others;
  void seed_others(std::uint64_t seed);  // as a sample whose draws depend only on its index is seeded

  void seed(std::uint64_t seed);  // torch.manual_seed(seed); as there, only the low 32 bits affect the stream
  std::uint32_t random();
  std::uint64_t random64();
  float uniform(double from, double to, UniformRule rule);                      // torch.empty(1).uniform_(from, to)
  float rand() { return static_cast<float>(random() & 0xffffffu) * 0x1p-24f; }  // torch.rand(1)
  // torch.rand(1, dtype=torch.float64)
  double rand_double() { return static_cast<double>(random64() & ((std::uint64_t{1} << 53) - 1)) * 0x1p-53; }
  std::int64_t randint(std::int64_t low, std::int64_t high);  // torch.randint(low, high, (1,)); low < high

  void randperm(int* order, int count);  // torch.randperm(count)

  // What torch.empty(count).normal_() draws in float32. Its values depend on the CPU, for count < 16 on the C library's
  // logarithm and sine.
  void skip_normals(std::uint64_t count);

  // torch.Generator's get_state() and set_state() layout, including cached normal samples; then the states of `others`,
  // if there are any: Python's and NumPy's.
  std::size_t state_bytes() const { return kStateBytes + (others ? OtherGenerators::kStateBytes : 0); }
  void get_state(std::uint8_t* out) const;
  bool set_state(const std::uint8_t* in, std::size_t bytes);  // false, and no change, if the state is invalid

 private:
  void next_block();
  void skip(std::uint64_t count);  // calls of random()

  std::uint64_t initial_seed_ = 0;
  int left_ = 1;            // torch's counters: numbers left in the block + 1 ...
  std::uint32_t next_ = 0;  // ... and the index of the next one
  std::array<std::uint32_t, 624> state_{};
  std::array<std::uint8_t, 40> normals_{};
};

// The seed of one sample when randomness depends only on (seed, epoch, index), not on workers or batch order. 63 bits,
// so that torch.initial_seed() fits into an int64 tensor.
std::uint64_t seed_for_index(std::uint64_t seed, std::uint64_t epoch, std::uint64_t index);

}  // namespace fastload
