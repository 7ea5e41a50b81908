// From coefficients to resized pixels: a part of decode.cu.

#include "decode_layout.h"
#include "pixel_words.h"

namespace fastload {
namespace {

constexpr int kBlocksAtOnce = 32;
constexpr int kPixelThreads = 128;
constexpr int kRowsAtOnce = 4;  // at most

__constant__ u8 kNaturalOrder[64] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,
                                     12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
                                     35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
                                     58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

// As in csrc/jpeg/pixels/kernels.h.
constexpr int kMostValue = 8192;
constexpr int kMostBelow = 384;
constexpr int kMostResults = 1024;

// One pass over eight values: the factorization of Loeffler, Ligtenberg and Moschytz, as in
// csrc/jpeg/pixels/portable.cpp.
__device__ __forceinline__ void transform_eight(const int (&in)[8], int (&out)[8], int shift, int bias) {
  const int sum = (in[0] + in[4]) * 8192 + bias, difference = (in[0] - in[4]) * 8192 + bias;
  const int a = in[2] * 4433 - in[6] * 10704, b = in[2] * 10703 + in[6] * 4433;
  const int even[4] = {sum + b, difference + a, difference - a, sum - b};
  const int c = (in[3] + in[7]) * -6436 + (in[1] + in[5]) * 9633, d = (in[3] + in[7]) * 9633 + (in[1] + in[5]) * 6437;
  const int odd[4] = {in[1] * 4926 - in[7] * 7373 + d, in[3] * 4177 - in[5] * 20995 + c,
                      in[3] * -20995 - in[5] * 4176 + d, in[1] * -7373 - in[7] * 4927 + c};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[i] = (even[i] + odd[i]) >> shift;
    out[7 - i] = (even[i] - odd[i]) >> shift;
  }
}

}  // namespace

// Eight threads a block of coefficients, or its two of chroma; grid: any number of blocks, images.
//
// Samples are luma, row by row, then chroma, whose two components alternate.
extern "C" __global__ void __launch_bounds__(8 * kBlocksAtOnce)
    transform(const u8* __restrict__ batch, long long first_image, const short* __restrict__ coefficients,
              u8* __restrict__ samples, int* __restrict__ bad) {
  __shared__ int between[kBlocksAtOnce][8][9];
  __shared__ uint4 quantization[kStagedComponents][8];  // in zigzag order, as are coefficients
  __shared__ uint2 order[8];
  const int number = static_cast<int>(first_image) + static_cast<int>(blockIdx.y),
            thread = static_cast<int>(threadIdx.x);
  const StagedImage& image = reinterpret_cast<const StagedImage*>(batch)[number];
  if (image.owner != number) return;
  if (thread < 64) reinterpret_cast<u8*>(order)[thread] = kNaturalOrder[thread];
  if (thread < kStagedComponents * 64) {
    reinterpret_cast<u16*>(quantization)[thread] = image.quantization[thread / 64][kNaturalOrder[thread % 64]];
  }
  __syncthreads();
  const int luma = image.across * image.down, per_mcu = luma + image.components - 1;
  const int mcus = image.mcu_rows * image.mcu_columns, luma_units = mcus * luma;
  const int units = luma_units + (image.components > 1 ? mcus : 0);
  const int across_shift = image.across - 1, luma_shift = across_shift + image.down - 1;  // of 1 or 2
  const int local = thread / 8, lane = thread % 8, last_of_warp = local | 3;
  const short* const from = coefficients + static_cast<u64>(image.coefficients) * 8;
  u8* const to = samples + static_cast<u64>(image.samples) * 16;
  const uint2 places = order[lane];
  bool fits = true;
  for (int base = static_cast<int>(blockIdx.x) * kBlocksAtOnce; base < units;
       base += static_cast<int>(gridDim.x) * kBlocksAtOnce) {
    const int unit = base + local, of_luma = unit < luma_units;
    const int mcu = of_luma ? unit >> luma_shift : unit - luma_units, in_mcu = of_luma ? unit & (luma - 1) : luma;
    const int parts = base + last_of_warp < luma_units ? 1 : 2;
    u32 words[2][2] = {};
    for (int part = 0; part < parts; ++part) {
      const bool inside = unit < units && (part == 0 || !of_luma);
      if (inside) {
        const int c = of_luma ? 0 : part + 1;
        const uint4 values =
            __ldg(reinterpret_cast<const uint4*>(from + (static_cast<u64>(mcu) * per_mcu + in_mcu + part) * 64) + lane);
        const uint4 by = quantization[c][lane];
        const u32 four[4] = {values.x, values.y, values.z, values.w}, factors[4] = {by.x, by.y, by.z, by.w};
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          const int value = static_cast<short>(four[k / 2] >> (16 * (k % 2))) *
                            static_cast<int>(factors[k / 2] >> (16 * (k % 2)) & 0xFFFF);
          const int place = static_cast<int>((k < 4 ? places.x : places.y) >> (8 * (k % 4)) & 63);
          fits = fits && value > -kMostValue && value < kMostValue;
          between[local][place / 8][place % 8] = value;
        }
      }
      __syncwarp();
      int in[8], out[8];
      if (inside) {
#pragma unroll
        for (int k = 0; k < 8; ++k) in[k] = between[local][k][lane];
        transform_eight(in, out, 11, 1 << 10);
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          fits = fits && out[k] > -kMostValue && out[k] < kMostValue;
          between[local][k][lane] = out[k];
        }
      }
      __syncwarp();
      if (inside) {
#pragma unroll
        for (int k = 0; k < 8; ++k) in[k] = between[local][lane][k];
        transform_eight(in, out, 18, (128 << 18) + (1 << 17));
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          fits = fits && out[k] >= -kMostBelow && out[k] < kMostResults - kMostBelow;
          words[part][k / 4] |= static_cast<u32>(clipped(out[k])) << (8 * (k % 4));
        }
      }
      __syncwarp();
    }
    if (unit >= units) continue;
    const int mcu_y = mcu / image.mcu_columns, mcu_x = mcu - mcu_y * image.mcu_columns;
    if (of_luma) {
      const u64 y = static_cast<u64>(mcu_y * image.down + (in_mcu >> across_shift)) * 8 + lane;
      const int x = (mcu_x << across_shift) + (in_mcu & across_shift);
      u8* const at = to + y * image.mcu_columns * image.across * 8 + x * 8;
      *reinterpret_cast<uint2*>(at) = make_uint2(words[0][0], words[0][1]);
    } else {
      const u64 y = static_cast<u64>(mcu_y) * 8 + lane;
      u8* const at = to + static_cast<u64>(luma_units) * 64 + (y * image.mcu_columns + mcu_x) * 16;
      *reinterpret_cast<uint4*>(at) =
          make_uint4(__byte_perm(words[0][0], words[1][0], 0x5140), __byte_perm(words[0][0], words[1][0], 0x7362),
                     __byte_perm(words[0][1], words[1][1], 0x5140), __byte_perm(words[0][1], words[1][1], 0x7362));
    }
  }
  if (!fits) bad[number] = 1;
}

namespace {

// Makes pixels of one row of a region, four at a time.
struct Row {
  const u8* luma;   // of the image's first column
  const u16* near;  // chroma of that row, of the image's first column
  const u16* far;   // and of the one above or below it
  int components, across, down;
  int first, last;  // columns of chroma that there are

  __device__ Row(const StagedImage& image, const u8* samples, int y)
      : components(image.components), across(image.across), down(image.down) {
    const int first_row = image.mcu_row * 8, stride = image.mcu_columns * 8, image_y = y + image.top;
    first = image.mcu_column * 8;
    last = min((image.image_width + across - 1) >> (across - 1), first + stride) - 1;
    luma = samples + static_cast<long long>(image_y - first_row * down) * stride * across - first * across;
    const int row = image_y >> (down - 1), rows = (image.image_height + down - 1) >> (down - 1);
    const int other = down == 1 ? row : (image_y & 1) != 0 ? min(row + 1, rows - 1) : max(row - 1, 0);
    const u16* const plane = reinterpret_cast<const u16*>(samples + static_cast<long long>(image.mcu_rows) *
                                                                        image.mcu_columns * across * down * 64) -
                             first;
    near = plane + static_cast<long long>(row - first_row) * stride;
    far = plane + static_cast<long long>(other - first_row) * stride;
  }

  // Both components of a column, 16 bits each.
  static __device__ __forceinline__ u32 pair(const u16* row, int column) {
    const u32 two = __ldg(row + column);
    return __byte_perm(two, 0, 0x4140);
  }
  __device__ __forceinline__ u32 column(int at) const {
    at = min(max(at, first), last);
    return down == 1 ? pair(near, at) : 3 * pair(near, at) + pair(far, at);
  }

  // The pixels of the four image columns from `x` on, a multiple of 4.
  __device__ __forceinline__ void pixels(int x, u32 (&out)[4]) const {
    const u32 levels = __ldg(reinterpret_cast<const u32*>(luma + x));
    u32 chroma[4] = {0x800080, 0x800080, 0x800080, 0x800080};
    if (components > 1 && across == 2) {
      // libjpeg's triangle filter: a sample counts three times as much as its neighbour, in both directions.
      const int c = x >> 1, shift = down == 1 ? 2 : 4;
      const u32 before = column(c - 1), left = column(c), right = column(c + 1), after = column(c + 2);
      const u32 even = down == 1 ? 0x10001 : 0x80008, odd = down == 1 ? 0x20002 : 0x70007;
      chroma[0] = (3 * left + before + even) >> shift & 0xFF00FF;
      chroma[1] = (3 * left + right + odd) >> shift & 0xFF00FF;
      chroma[2] = (3 * right + left + even) >> shift & 0xFF00FF;
      chroma[3] = (3 * right + after + odd) >> shift & 0xFF00FF;
    } else if (components > 1) {
#pragma unroll
      for (int i = 0; i < 4; ++i) chroma[i] = column(x + i);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int y = static_cast<int>(levels >> (8 * i) & 255);
      const int b = static_cast<int>(chroma[i] & 255) - 128, r = static_cast<int>(chroma[i] >> 16) - 128;
      out[i] = pixel_of(y + ((91881 * r + 32768) >> 16), y + ((-22554 * b - 46802 * r + 32768) >> 16),
                        y + ((116130 * b + 32768) >> 16));
    }
  }
};

// Makes pixels of up to `rows` rows, and resizes them unless columns are resized first.
template <int rows>
__device__ __forceinline__ void make_rows(const u8* batch, const StagedImage& image, const u8* samples, u32* rgb,
                                          u32* between, u32* pixels, int y) {
  const int thread = static_cast<int>(threadIdx.x), count = min(rows, image.height - y);
  const int begin = image.left & ~3, groups = (image.left + image.width - begin + 3) / 4;
  // A warp makes a row.
  for (int i = thread / 32; i < count; i += kPixelThreads / 32) {
    const Row row(image, samples, y + i);
    u32* const out = image.vertical_first ? rgb + static_cast<u64>(y + i) * image.width : pixels + i * image.width;
    for (int group = thread % 32; group < groups; group += 32) {
      u32 four[4];
      row.pixels(begin + 4 * group, four);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int x = begin + 4 * group + j - image.left;
        if (x >= 0 && x < image.width) out[x] = four[j];
      }
    }
  }
  if (image.vertical_first) return;
  __syncthreads();
  for (int x = thread; x < image.out_width; x += kPixelThreads) {
    const Weights weights(batch, image.x_axis, image.out_width, x);
    const int* weight = weights.weight;
    const u32* from = pixels + weights.first;
    Sum sums[rows];
    for (int t = 0; t < weights.taps; ++t, ++from, weight += weights.count) {
      const int by = __ldg(weight);
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        if (i < count) sums[i].add(from[i * image.width], by);
      }
    }
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      if (i < count) between[static_cast<u64>(y + i) * image.out_width + x] = sums[i].pixel();
    }
  }
  __syncthreads();
}

}  // namespace

// Makes pixels of rows, and resizes them unless columns are resized first. Grid: any number of rows, images.
extern "C" __global__ void __launch_bounds__(kPixelThreads)
    rows(const u8* __restrict__ batch, long long first_image, u8* __restrict__ memory, long long at_once) {
  extern __shared__ u32 pixels[];  // of `at_once` rows, 1 or kRowsAtOnce, as wide as the widest region
  const StagedImage& image = reinterpret_cast<const StagedImage*>(batch)[first_image + blockIdx.y];
  const u8* const samples = memory + static_cast<u64>(image.samples) * 16;
  u32* const rgb = reinterpret_cast<u32*>(memory + static_cast<u64>(image.rgb) * 16);
  u32* const between = reinterpret_cast<u32*>(memory + static_cast<u64>(image.between) * 16);
  const int count = static_cast<int>(at_once), step = static_cast<int>(gridDim.x) * count;
  for (int y = static_cast<int>(blockIdx.x) * count; y < image.height; y += step) {
    if (count == kRowsAtOnce) {
      make_rows<kRowsAtOnce>(batch, image, samples, rgb, between, pixels, y);
    } else {
      make_rows<1>(batch, image, samples, rgb, between, pixels, y);
    }
  }
}

// Resizes columns where these are first. Grid: columns, any number of rows, images.
extern "C" __global__ void __launch_bounds__(kPixelThreads)
    columns_first(const u8* __restrict__ batch, long long first_image, u8* __restrict__ memory) {
  const StagedImage& image = reinterpret_cast<const StagedImage*>(batch)[first_image + blockIdx.z];
  const int x = static_cast<int>(blockIdx.x * kPixelThreads + threadIdx.x);
  if (!image.vertical_first || x >= image.width) return;
  const u32* const rgb = reinterpret_cast<const u32*>(memory + static_cast<u64>(image.rgb) * 16);
  u32* const between = reinterpret_cast<u32*>(memory + static_cast<u64>(image.between) * 16);
  for (int y = static_cast<int>(blockIdx.y); y < image.out_height; y += static_cast<int>(gridDim.y)) {
    between[static_cast<u64>(y) * image.width + x] =
        convolve(batch, image.y_axis, image.out_height, y, rgb + x, image.width);
  }
}

// Makes the result, or what steps begin with. Grid: any number of pixels, images.
extern "C" __global__ void __launch_bounds__(kPixelThreads)
    second_pass(const u8* __restrict__ batch, long long first_image, u8* __restrict__ memory, u8* __restrict__ pixels) {
  const StagedImage& image = reinterpret_cast<const StagedImage*>(batch)[first_image + blockIdx.y];
  const int width = image.out_width, height = image.out_height;
  const int begin = static_cast<int>(blockIdx.x * kPixelThreads + threadIdx.x);
  const int step = static_cast<int>(gridDim.x) * kPixelThreads;
  const u32* const between = reinterpret_cast<const u32*>(memory + static_cast<u64>(image.between) * 16);
  u8* const out = pixels + image.out;
  const bool by_four = width % 4 == 0 && image.out % 4 == 0 && !image.vertical_first;
  const int per_row = by_four ? width / 4 : width;
  for (int i = begin; i < per_row * height; i += step) {
    const int y = i / per_row, x = (i - y * per_row) * (by_four ? 4 : 1);
    const int row = image.flip_vertical ? height - 1 - y : y;
    const u64 place = static_cast<u64>(row) * width + x;
    u8* const at = out + place * 3;
    u32* const first = reinterpret_cast<u32*>(memory + static_cast<u64>(image.stepped[0]) * 16) + place;
    if (by_four) {
      const Weights weights(batch, image.y_axis, height, y);
      const uint4* from = reinterpret_cast<const uint4*>(between + static_cast<u64>(weights.first) * width + x);
      const int* weight = weights.weight;
      Sum sums[4];
      for (int t = 0; t < weights.taps; ++t, from += per_row, weight += weights.count) {
        const int by = __ldg(weight);
        const uint4 four = *from;
        sums[0].add(four.x, by);
        sums[1].add(four.y, by);
        sums[2].add(four.z, by);
        sums[3].add(four.w, by);
      }
      const u32 a = sums[0].pixel(), b = sums[1].pixel(), c = sums[2].pixel(), d = sums[3].pixel();
      if (image.step_count > 0) {
        *reinterpret_cast<uint4*>(first) = make_uint4(a, b, c, d);
        continue;
      }
      u32* const words = reinterpret_cast<u32*>(at);
      words[0] = a | b << 24;
      words[1] = b >> 8 | c << 16;
      words[2] = c >> 16 | d << 8;
    } else {
      const u32 pixel = image.vertical_first
                            ? convolve(batch, image.x_axis, width, x, between + static_cast<u64>(y) * image.width, 1)
                            : convolve(batch, image.y_axis, height, y, between + x, width);
      if (image.step_count > 0) {
        *first = pixel;
        continue;
      }
      at[0] = static_cast<u8>(pixel);
      at[1] = static_cast<u8>(pixel >> 8);
      at[2] = static_cast<u8>(pixel >> 16);
    }
  }
}

}  // namespace fastload
