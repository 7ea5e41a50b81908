// Random transforms, transposes, margins and blurs at every SIMD level that this machine has, compared with the
// portable kernels. Each image's last row ends where its memory ends, so that a sanitizer sees any read or write beyond
// it.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "base/simd_level.h"
#include "image/filters/blur.h"
#include "image/filters/convolve.h"
#include "image/filters/gaussian.h"
#include "image/transform/transform.h"

using namespace fastload;

namespace {

// Bytes that end at a page which nobody may touch: sanitizers don't check vector gathers.
struct Fenced {
  std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE)), mapped;
  std::uint8_t *start, *bytes;

  explicit Fenced(std::size_t size) : mapped((size + page - 1) / page * page + page) {
    void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    start = static_cast<std::uint8_t*>(memory);
    bytes = start + mapped - page - size;
    if (mprotect(start + mapped - page, page, PROT_NONE) != 0) std::abort();
  }
  ~Fenced() { munmap(start, mapped); }
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;
};

// An image in memory of its own.
struct Pixels {
  std::size_t size;
  std::unique_ptr<std::uint8_t[]> heap;
  std::unique_ptr<Fenced> fenced;
  std::uint8_t* bytes;
  Image image;

  Pixels(int height, int width, int gap, bool upward, bool fence)
      : size(static_cast<std::size_t>(3 * width + gap) * (height - 1) + 3 * width),
        heap(fence ? nullptr : new std::uint8_t[size]()),
        fenced(fence ? new Fenced(size) : nullptr),
        bytes(fence ? fenced->bytes : heap.get()) {
    const std::ptrdiff_t stride = 3 * width + gap;
    image = {upward ? bytes + stride * (height - 1) : bytes, upward ? -stride : stride, height, width};
  }
};

// Whether `out` is a part of what the whole image becomes by these margins: left, top, right, bottom.
bool is_part(const Image& in, const Image& out, const int (&margins)[4], const int (&skipped)[2], PadMode mode) {
  const Pixels whole(margins[1] + in.height + margins[3], margins[0] + in.width + margins[2], 0, false, false);
  pad(in, whole.image, margins[0], margins[1], mode, {1, 2, 3});
  for (int y = 0; y < out.height; ++y) {
    const std::uint8_t* const part = whole.image.row(skipped[1] + y) + 3 * skipped[0];
    if (std::memcmp(out.row(y), part, std::size_t{3} * static_cast<std::size_t>(out.width)) != 0) {
      std::printf("a part of a padded image differs: mode %d, row %d\n", static_cast<int>(mode), y);
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 2000;
  std::mt19937 random(1);
  const auto between = [&random](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  const double special[] = {0, 1, -1, 1e-9, 4e4, 1e300, std::numeric_limits<double>::infinity(), std::nan("")};
  const auto number = [&](double most) {
    if (between(0, 9) == 0) return special[between(0, 7)];
    return most * (between(-1000, 1000) / 1000.0);
  };
  int compared = 0;
  for (int i = 0; i < count; ++i) {
    const int most = i % 3 == 0 ? 7 : 60, height = between(1, most), width = between(1, most);
    const bool upward = between(0, 3) == 0;
    const int gap = between(0, 2) * between(0, 9), kind = between(0, 6);
    Pixels in(height, width, gap, upward, i % 2 == 0);
    for (std::size_t j = 0; j < in.size; ++j) in.bytes[j] = static_cast<std::uint8_t>(random());

    const std::array<double, 6> affine{number(2), number(1), number(30), number(1), number(2), number(30)};
    const std::array<double, 8> perspective{affine[0], affine[1], affine[2],    affine[3],
                                            affine[4], affine[5], number(0.01), number(0.01)};
    const auto sampling = static_cast<Sampling>(between(0, 2));
    const auto how = static_cast<Transpose>(between(0, 4));
    const auto mode = static_cast<PadMode>(between(0, 3));
    const int margins[4] = {between(0, width - 1), between(0, height - 1), between(0, width - 1),
                            between(0, height - 1)};
    const int taps[2] = {2 * between(0, 12) + 1, 2 * between(0, 12) + 1};
    const float x_radius = between(0, 40) / 10.0f, y_radius = between(0, 40) / 10.0f;
    const int sides[2] = {std::min(taps[0], 2 * height - 1), std::min(taps[1], 2 * width - 1)};  // odd, too
    std::vector<float> weights(static_cast<std::size_t>(sides[0]) * static_cast<std::size_t>(sides[1]));
    for (float& weight : weights) weight = static_cast<float>(number(0.1));
    int skipped[2] = {0, 0};  // columns and rows of the padded image that lie before the part
    int out_height = between(1, most), out_width = between(1, most);
    if (kind == 2) {
      const bool turned = how == Transpose::rotate_90 || how == Transpose::rotate_270;
      out_height = turned ? width : height, out_width = turned ? height : width;
    } else if (kind == 3) {
      out_height = between(1, margins[1] + height + margins[3]);
      out_width = between(1, margins[0] + width + margins[2]);
      skipped[0] = between(0, margins[0] + width + margins[2] - out_width);
      skipped[1] = between(0, margins[1] + height + margins[3] - out_height);
    } else if (kind >= 4) {
      out_height = height, out_width = width;
    }

    std::unique_ptr<Pixels> expected;
    for (const SimdLevel level : {SimdLevel::portable, SimdLevel::avx2, SimdLevel::avx512, SimdLevel::neon}) {
      if (!set_simd_level(level)) continue;
      auto out = std::make_unique<Pixels>(out_height, out_width, gap, upward, i % 4 == 0);
      switch (kind) {
        case 0: transform_affine(in.image, out->image, affine, sampling, {1, 2, 3}); break;
        case 1: transform_perspective(in.image, out->image, perspective, sampling, {1, 2, 3}); break;
        case 2: transpose(in.image, out->image, how); break;
        case 3:
          pad(in.image, out->image, margins[0] - skipped[0], margins[1] - skipped[1], mode, {1, 2, 3});
          if (!is_part(in.image, out->image, margins, skipped, mode)) return 1;
          break;
        case 4:
          for (int y = 0; y < height; ++y) std::memcpy(out->image.row(y), in.image.row(y), std::size_t{3} * width);
          gaussian_blur(out->image, x_radius, y_radius);
          break;
        case 5: gaussian_filter(in.image, out->image, sides[0], sides[1], x_radius + 0.01); break;
        case 6: convolve(in.image, {weights.data(), sides[0], sides[1]}, out->image); break;
      }
      if (level == SimdLevel::portable) {
        expected = std::move(out);
        continue;
      }
      ++compared;
      if (std::memcmp(out->bytes, expected->bytes, out->size) != 0) {
        std::printf("%s differs from portable: kind %d, %d x %d to %d x %d, sampling %d, transpose %d\n",
                    name_of(level), kind, width, height, out_width, out_height, static_cast<int>(sampling),
                    static_cast<int>(how));
        return 1;
      }
    }
  }
  std::printf("%d outputs equal the portable ones\n", compared);
}
