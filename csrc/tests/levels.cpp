// Random resizes at every SIMD level that this machine has, compared with the portable kernels. A separate program, so
// that it also runs under emulation: for NEON (the first two lines are one command),
//   aarch64-linux-gnu-g++ -std=c++17 -O2 -ffp-contract=off -static -Icsrc
//     csrc/base/simd_level.cpp csrc/resample/*.cpp csrc/tests/levels.cpp -o levels
//   qemu-aarch64 ./levels 300
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/simd_level.h"
#include "resample/resample.h"

using namespace fastload;

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 300;
  std::mt19937 random(1);
  const auto between = [&random](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  Resampler resampler;
  std::string error;
  int compared = 0;
  for (int i = 0; i < count; ++i) {
    const int most = i % 3 == 0 ? 12 : 260;
    ResizeJob job;
    job.width = between(1, most);
    job.height = between(1, most);
    job.out_width = between(1, i % 5 == 0 ? 8 : 150);
    job.out_height = between(1, i % 7 == 0 ? 8 : 150);
    if (i % 11 == 0) job.width = between(1500, 4000), job.out_width = between(2, 9);  // hundreds of taps
    job.filter = static_cast<Filter>(between(0, 8));
    job.order = static_cast<PassOrder>(between(0, 1));
    job.channels = i % 4 == 3 ? 1 : 3;
    job.flip_horizontal = random() % 2 != 0;
    job.flip_vertical = random() % 2 != 0;
    const std::ptrdiff_t stride = static_cast<std::ptrdiff_t>(job.width) * job.channels;
    const std::ptrdiff_t out_stride = static_cast<std::ptrdiff_t>(job.out_width) * job.channels;
    std::vector<std::uint8_t> source(stride * job.height), expected(out_stride * job.out_height);
    for (auto& byte : source) byte = static_cast<std::uint8_t>(i % 2 != 0 ? random() : (random() & 1) * 255);

    for (const SimdLevel level : {SimdLevel::portable, SimdLevel::avx2, SimdLevel::avx512, SimdLevel::neon}) {
      if (!set_simd_level(level)) continue;
      if (!resampler.prepare(job, error)) {
        std::printf("prepare: %s\n", error.c_str());
        return 1;
      }
      std::vector<std::uint8_t> out(expected.size());
      resampler.run({source.data(), stride, {0, 0, job.height, job.width}}, out.data(), out_stride);
      if (level == SimdLevel::portable) {
        expected = out;
        continue;
      }
      ++compared;
      if (out != expected) {
        std::printf("%s differs from portable: %d x %d to %d x %d, filter %d, order %d, %d channels\n", name_of(level),
                    job.width, job.height, job.out_width, job.out_height, static_cast<int>(job.filter),
                    static_cast<int>(job.order), job.channels);
        return 1;
      }
    }
  }
  std::printf("%d comparisons, best level %s\n", compared, name_of(best_simd_level()));
  return 0;
}
