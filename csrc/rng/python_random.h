// The global generators of CPython's `random` and NumPy's `numpy.random`, bit for bit. Knows neither Python nor NumPy.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace fastload {

// The Mersenne Twister that both have, and the second of two normal samples that both keep.
class Twister {
 public:
  static constexpr std::size_t kStateBytes = 624 * 4 + 16;

  std::uint32_t random();
  double random_double();  // 53 bits: random.random()

  // 624 words, how many of them are used up and whether a normal sample is kept (each as 32 bits), and that sample.
  void get_state(std::uint8_t out[kStateBytes]) const;
  bool set_state(const std::uint8_t in[kStateBytes]);  // false, and no change, if the state is invalid

 protected:
  void fill(std::uint32_t seed);

  std::array<std::uint32_t, 624> words_{};
  std::uint32_t used_ = 624;
  bool has_normal_ = false;
  double normal_ = 0;
};

class PythonRandom : public Twister {
 public:
  explicit PythonRandom(std::uint64_t seed = 0);  // random.seed(seed)

  std::uint32_t randbelow(std::uint32_t count);  // random.randrange(count); count from 1 to 2**31
  double uniform(double from, double to) { return from + (to - from) * random_double(); }
  double gauss(double mean, double deviation);
};

class NumpyRandom : public Twister {
 public:
  explicit NumpyRandom(std::uint32_t seed = 0) { fill(seed); }  // numpy.random.seed(seed)

  std::uint32_t randint(std::uint32_t count);  // numpy.random.randint(0, count), as choice() draws it; count >= 1
};

// What a worker has besides torch's generator. Copied by code, not as bytes: an optional of it that has no value is
// then copied without them.
struct OtherGenerators {
  static constexpr std::size_t kStateBytes = 2 * Twister::kStateBytes;

  OtherGenerators() = default;
  OtherGenerators(const PythonRandom& python, const NumpyRandom& numpy) : python(python), numpy(numpy) {}
  OtherGenerators(const OtherGenerators& other) : OtherGenerators(other.python, other.numpy) {}
  OtherGenerators& operator=(const OtherGenerators& other) {
    python = other.python;
    numpy = other.numpy;
    return *this;
  }

  PythonRandom python;
  NumpyRandom numpy;
};

}  // namespace fastload
