#include "image/look_up.h"

#include <cstring>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace fastload {
namespace {

constexpr std::size_t kLargePage = std::size_t{2} << 20;

template <typename Value, int channels, bool planar>
void look_up_in(const LookUpJob& job) {
  const auto* const table = static_cast<const Value*>(job.table);
  const std::size_t pixels = job.pixels;  // copies: a byte that is written might be the job's, to a compiler
  const std::ptrdiff_t stride = job.stride;
  const std::uint8_t* levels = job.levels;
  auto* out = static_cast<Value*>(job.out);
  for (std::size_t image = 0; image < job.images; ++image, out += pixels * channels) {
    for (std::size_t i = 0; i < pixels; ++i, levels += stride) {
      for (std::size_t channel = 0; channel < channels; ++channel) {
        out[planar ? channel * pixels + i : i * channels + channel] = table[256 * channel + levels[channel]];
      }
    }
  }
}

template <typename Value, int channels>
void look_up_as(const LookUpJob& job) {
  return job.planar ? look_up_in<Value, channels, true>(job) : look_up_in<Value, channels, false>(job);
}

template <typename Value>
void look_up_channels(const LookUpJob& job) {
  switch (job.channels) {
    case 1: return look_up_as<Value, 1>(job);
    case 2: return look_up_as<Value, 2>(job);
    case 3: return look_up_as<Value, 3>(job);
    case 4: return look_up_as<Value, 4>(job);
    default: return;
  }
}

template <typename Value>
void pick_as(const PickJob& job) {
  const auto* table = static_cast<const Value*>(job.table);
  auto* out = static_cast<Value*>(job.out);
  for (std::size_t row = 0; row < job.height; ++row, out += job.out_stride) {
    if (row > 0 && job.rows[row] == job.rows[row - 1]) {
      std::memcpy(out, out - job.out_stride, job.width * sizeof(Value));
      continue;
    }
    const std::uint8_t* levels = job.levels + job.rows[row] * job.row_stride;
    for (std::size_t column = 0; column < job.width; ++column) out[column] = table[levels[job.columns[column]]];
  }
}

}  // namespace

void look_up(const LookUpJob& job) {
  switch (job.value_bytes) {
    case 1: return look_up_channels<std::uint8_t>(job);
    case 2: return look_up_channels<std::uint16_t>(job);
    case 4: return look_up_channels<std::uint32_t>(job);
    case 8: return look_up_channels<std::uint64_t>(job);
    default: return;
  }
}

void pick(const PickJob& job) {
  switch (job.value_bytes) {
    case 1: return pick_as<std::uint8_t>(job);
    case 2: return pick_as<std::uint16_t>(job);
    case 4: return pick_as<std::uint32_t>(job);
    case 8: return pick_as<std::uint64_t>(job);
    default: return;
  }
}

void advise_large_pages(void* memory, std::size_t bytes) {
#if defined(__linux__)
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t first = (begin + kLargePage - 1) / kLargePage * kLargePage;
  const std::uintptr_t end = (begin + bytes) / kLargePage * kLargePage;
  if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#else
  static_cast<void>(memory);
  static_cast<void>(bytes);
#endif
}

}  // namespace fastload
