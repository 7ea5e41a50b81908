// Decodes, crops and resizes the JPEG files of a batch, with the bits of libjpeg-turbo and Pillow. decode_layout.h says
// what decode threads have prepared. Compiled at run time (kernels.py); includes no other headers.
//
// The kernels run one after the other: `huffman` decodes the coefficients of the MCUs that the crops need, one thread
// for each segment; `transform` makes samples of them (libjpeg's accurate integer IDCT); `to_rgb` stretches chroma by a
// triangle filter and converts to RGB; `first_pass` and `second_pass` resize with weights of 22 fractional bits.
//
// Whatever the bytes say, nothing is read or written outside of what the batch owns. An image that turns out not to be
// what the index promised is marked as bad, and decoded again on the host.

#include "decode_layout.h"

namespace fastload {
namespace {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned;
using u64 = unsigned long long;

constexpr int kWindowBits = 9;
constexpr int kWindow = 1 << kWindowBits;
constexpr int kWorkThreads = 64;  // as in csrc/pool/staging.cpp
constexpr int kBlocksAtOnce = 32;

// As in csrc/jpeg/pixel_kernels.h.
constexpr int kMostValue = 8192;
constexpr int kMostBelow = 384;
constexpr int kMostResults = 1024;

__constant__ u8 kNaturalOrder[64] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,
                                     12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
                                     35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
                                     58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

// A symbol: bits of code and value, bits of the code, zigzag advance, bits of the value; 8 bits each, from the lowest
// on. 0: no code. The advance behind the end of a block is 64.
__device__ __forceinline__ u32 packed(int symbol, int length, bool ac) {
  const int size = symbol & 15, run = symbol >> 4;
  if (size > (ac ? 10 : 11)) return 0;
  const int advance = !ac ? 1 : size != 0 || run == 15 ? run + 1 : 64;
  return static_cast<u32>(length + size) | length << 8 | advance << 16 | size << 24;
}

// A code's tables in shared memory.
struct Code {
  u32 first[kWindow];
  u32 ends[17];  // behind the last code of each length, left-justified in 16 bits
  int offsets[17];
};

__device__ u32 long_symbol(const Code& code, const u8* symbols, u32 next, bool ac) {
  for (int length = kWindowBits + 1; length <= 16; ++length) {
    if (next < code.ends[length]) {
      return packed(symbols[code.offsets[length] + static_cast<int>(next >> (16 - length)) & 255], length, ac);
    }
  }
  return 0;
}

__device__ void build(Code& code, const u8* from, bool ac) {
  const u8 *counts = from, *symbols = from + 16;
  if (threadIdx.x == 0) {
    u32 next = 0;
    int count = 0;
    for (int length = 1; length <= 16; ++length, next <<= 1) {
      code.offsets[length] = count - static_cast<int>(next);
      count += counts[length - 1];
      next += counts[length - 1];
      code.ends[length] = next << (16 - length);
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kWindow; i += blockDim.x) {
    const u32 next = static_cast<u32>(i) << (16 - kWindowBits);
    u32 entry = 0;
    for (int length = 1; length <= kWindowBits; ++length) {
      if (next < code.ends[length]) {
        entry = packed(symbols[(code.offsets[length] + static_cast<int>(next >> (16 - length))) & 255], length, ac);
        break;
      }
    }
    code.first[i] = entry;
  }
}

__device__ __forceinline__ int segments_per_row(const StagedImage& image) {
  return (image.mcu_column + image.mcu_columns - 1) / kSegmentMcus - image.mcu_column / kSegmentMcus + 1;
}

// Blocks of the components before component `c`.
__device__ __forceinline__ int blocks_before(const StagedImage& image, int c) {
  const int mcus = image.mcu_rows * image.mcu_columns;
  return c == 0 ? 0 : mcus * (image.across * image.down + c - 1);
}

// The next bits of an image's data, from the highest on.
struct Bits {
  const u32* words;
  u32 count;  // words with data; zeros are read behind them
  u32 next;
  u64 bits;
  int have;

  __device__ __forceinline__ u32 load() {
    const u32 word = next < count ? __byte_perm(__ldg(words + next), 0, 0x0123) : 0;
    ++next;
    return word;
  }
  __device__ __forceinline__ void seek(u32 bit) {
    next = bit >> 5;
    bits = static_cast<u64>(load()) << 32;
    bits |= load();
    bits <<= bit & 31;
    have = 64 - static_cast<int>(bit & 31);
  }
  __device__ __forceinline__ void refill() {
    if (have > 32) return;
    bits |= static_cast<u64>(load()) << (32 - have);
    have += 32;
  }
  __device__ __forceinline__ void take(u32 count_of) {
    bits <<= count_of;
    have -= static_cast<int>(count_of);
  }
  __device__ __forceinline__ u32 position() const { return next * 32 - static_cast<u32>(have); }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(kWorkThreads)
    huffman(const u8* __restrict__ batch, const StagedWork* __restrict__ work, short* __restrict__ coefficients,
            int* __restrict__ bad) {
  __shared__ Code codes[kStagedCodes];
  __shared__ u8 order[64];
  const StagedWork item = work[blockIdx.x];
  const StagedImage& image = reinterpret_cast<const StagedImage*>(batch)[item.image];
  for (int i = 0; i < kStagedCodes; ++i) {
    build(codes[i], batch + image.codes + i * kStagedCodeBytes, i >= kStagedCodes / 2);
  }
  if (threadIdx.x < 64) order[threadIdx.x] = kNaturalOrder[threadIdx.x];
  __syncthreads();

  const int per_row = segments_per_row(image);
  const int segment = item.segment + static_cast<int>(threadIdx.x);
  if (segment >= per_row * image.mcu_rows) return;
  const int row = segment / per_row, number = segment % per_row;
  const StagedPoint* const point =
      reinterpret_cast<const StagedPoint*>(batch + image.points) + row * (per_row + 1) + number;
  const int first = (image.mcu_column / kSegmentMcus + number) * kSegmentMcus;
  const int whole = min(first + kSegmentMcus, image.scan_columns);
  const int end = min(whole, image.mcu_column + image.mcu_columns);
  const u64 scan_row = static_cast<u64>(image.mcu_row + row) * image.scan_columns;

  Bits in;
  in.words = reinterpret_cast<const u32*>(batch + image.data);
  in.count = (image.data_bytes + 3) / 4;
  in.seek(point->bit);
  int predictors[kStagedComponents];
  for (int c = 0; c < kStagedComponents; ++c) predictors[c] = point->predictors[c];

  const int luma = image.across * image.down, blocks = luma + image.components - 1;
  short* const of_image = coefficients + static_cast<u64>(image.coefficients) * 8;
  bool sound = true;
  for (int column = first; column < end && sound; ++column) {
    if (image.restart_interval != 0 && column != first && (scan_row + column) % image.restart_interval == 0) {
      in.take(static_cast<u32>(in.have & 7));
      in.refill();
      for (int c = 0; c < kStagedComponents; ++c) predictors[c] = 0;
    }
    const int x = column - image.mcu_column;
    for (int b = 0; b < blocks; ++b) {
      const int c = b < luma ? 0 : b - luma + 1;
      short* block = nullptr;
      if (x >= 0) {
        int at;
        if (c == 0) {
          at = (row * image.down + b / image.across) * image.mcu_columns * image.across + x * image.across +
               b % image.across;
        } else {
          at = blocks_before(image, c) + row * image.mcu_columns + x;
        }
        block = of_image + static_cast<u64>(at) * 64;
      }
      const Code* code = &codes[image.dc[c]];
      int k = 0;
      while (true) {
        in.refill();
        const bool ac = k != 0;
        u32 symbol = code->first[in.bits >> (64 - kWindowBits)];
        if (symbol == 0) {
          const int which = static_cast<int>(code - codes);
          symbol = long_symbol(*code, batch + image.codes + which * kStagedCodeBytes + 16,
                               static_cast<u32>(in.bits >> 48), ac);
          if (symbol == 0) {
            sound = false;
            break;
          }
        }
        const int size = static_cast<int>(symbol >> 24);
        int value = 0;
        if (size != 0) {
          const u32 bits = static_cast<u32>((in.bits << (symbol >> 8 & 255)) >> (64 - size));
          value = static_cast<int>(bits) - ((bits >> (size - 1)) != 0 ? 0 : (1 << size) - 1);
        }
        in.take(symbol & 255);
        if (!ac) {
          predictors[c] += value;
          if (block != nullptr) block[0] = static_cast<short>(predictors[c]);
          code = &codes[image.ac[c]];
          k = 1;
          continue;
        }
        const int advance = static_cast<int>(symbol >> 16 & 255);
        k += advance;
        if (advance == 64) break;
        if (k > 64) {
          sound = false;
          break;
        }
        if (size != 0 && block != nullptr) block[order[k - 1]] = static_cast<short>(value);
        if (k == 64) break;
      }
      if (!sound) break;
    }
    for (int c = 0; c < kStagedComponents; ++c) sound = sound && predictors[c] == static_cast<short>(predictors[c]);
  }
  // The segment must end where the next one begins.
  const StagedPoint after = point[1];
  if (sound && end == whole && after.bit != kNoStagedPoint) {
    const int next_column = whole == image.scan_columns ? 0 : whole;
    const u64 next_mcu = whole == image.scan_columns ? scan_row + image.scan_columns : scan_row + next_column;
    if (image.restart_interval != 0 && next_mcu % image.restart_interval == 0) {
      in.take(static_cast<u32>(in.have & 7));
      for (int c = 0; c < kStagedComponents; ++c) predictors[c] = 0;
    }
    sound = in.position() == after.bit;
    for (int c = 0; c < kStagedComponents; ++c) sound = sound && predictors[c] == after.predictors[c];
  }
  if (!sound) bad[item.image] = 1;
}

namespace {

// One pass over eight values: the factorization of Loeffler, Ligtenberg and Moschytz, as in
// csrc/jpeg/pixel_portable.cpp.
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

__device__ __forceinline__ int clipped(int value) { return min(max(value, 0), 255); }

}  // namespace

// Eight threads a block of coefficients; grid: any number of blocks, images.
extern "C" __global__ void __launch_bounds__(8 * kBlocksAtOnce)
    transform(const u8* __restrict__ batch, long long first_image, const short* __restrict__ coefficients,
              u8* __restrict__ samples, int* __restrict__ bad) {
  __shared__ int between[kBlocksAtOnce][8][9];
  const int number = static_cast<int>(first_image) + static_cast<int>(blockIdx.y);
  const StagedImage& image = reinterpret_cast<const StagedImage*>(batch)[number];
  const int blocks = image.mcu_rows == 0 ? 0 : blocks_before(image, image.components - 1) +
                     image.mcu_rows * image.mcu_columns * (image.components == 1 ? image.across * image.down : 1);
  const int local = static_cast<int>(threadIdx.x) / 8, lane = static_cast<int>(threadIdx.x) % 8;
  const short* const from = coefficients + static_cast<u64>(image.coefficients) * 8;
  u8* const to = samples + static_cast<u64>(image.samples) * 16;
  bool fits = true;
  for (int base = static_cast<int>(blockIdx.x) * kBlocksAtOnce; base < blocks;
       base += static_cast<int>(gridDim.x) * kBlocksAtOnce) {
    const int block = base + local;
    const bool inside = block < blocks;
    int c = 0, in_component = block;
    if (inside) {
      if (image.components == 3 && block >= blocks_before(image, 2)) {
        c = 2;
      } else if (image.components == 3 && block >= blocks_before(image, 1)) {
        c = 1;
      }
      in_component = block - blocks_before(image, c);
      int in[8], out[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        in[k] = from[static_cast<u64>(block) * 64 + k * 8 + lane] * static_cast<int>(image.quantization[c][k * 8 + lane]);
        fits = fits && in[k] > -kMostValue && in[k] < kMostValue;
      }
      transform_eight(in, out, 11, 1 << 10);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        fits = fits && out[k] > -kMostValue && out[k] < kMostValue;
        between[local][k][lane] = out[k];
      }
    }
    __syncwarp();
    if (inside) {
      int in[8], out[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) in[k] = between[local][lane][k];
      transform_eight(in, out, 18, (128 << 18) + (1 << 17));
      u32 words[2] = {0, 0};
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        fits = fits && out[k] >= -kMostBelow && out[k] < kMostResults - kMostBelow;
        words[k / 4] |= static_cast<u32>(clipped(out[k])) << (8 * (k % 4));
      }
      const int columns = image.mcu_columns * (c == 0 ? image.across : 1);
      u8* const at = to + static_cast<u64>(blocks_before(image, c)) * 64 +
                     (static_cast<u64>(in_component / columns) * 8 + lane) * columns * 8 + in_component % columns * 8;
      *reinterpret_cast<uint2*>(at) = make_uint2(words[0], words[1]);
    }
    __syncwarp();
  }
  if (!fits) bad[number] = 1;
}

// Grid: columns, rows, images. A thread makes a pixel of each of several rows.
extern "C" __global__ void to_rgb(const u8* __restrict__ batch, long long first_image, u8* __restrict__ memory) {
  const StagedImage& image = reinterpret_cast<const StagedImage*>(batch)[first_image + blockIdx.z];
  const int x = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (image.mcu_rows == 0 || x >= image.width) return;
  const u8* const samples = memory + static_cast<u64>(image.samples) * 16;
  const int luma_stride = image.mcu_columns * image.across * 8, chroma_stride = image.mcu_columns * 8;
  const u8* const chroma[2] = {samples + static_cast<u64>(blocks_before(image, 1)) * 64,
                               samples + static_cast<u64>(blocks_before(image, 2)) * 64};
  const int chroma_width = (image.image_width + image.across - 1) / image.across;
  const int chroma_height = (image.image_height + image.down - 1) / image.down;
  const int left = image.mcu_column * 8, top = image.mcu_row * 8;  // of the chroma samples
  for (int y = static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y); y < image.height;
       y += static_cast<int>(gridDim.y * blockDim.y)) {
    const int image_x = x + image.left, image_y = y + image.top;
    const int luma = samples[static_cast<u64>(image_y - top * image.down) * luma_stride + (image_x - left * image.across)];
    int red = luma, green = luma, blue = luma;
    if (image.components == 3) {
      int values[2];
      const int column = image_x / image.across, row = image_y / image.down;
      for (int c = 0; c < 2; ++c) {
        if (image.across == 1) {
          values[c] = chroma[c][static_cast<u64>(row - top) * chroma_stride + (column - left)];
          continue;
        }
        const int beside = (image_x & 1) != 0 ? min(column + 1, chroma_width - 1) : max(column - 1, 0);
        const u8* const near = chroma[c] + static_cast<u64>(row - top) * chroma_stride;
        if (image.down == 1) {
          const int bias = (image_x & 1) != 0 ? 2 : 1;
          values[c] = (3 * near[column - left] + near[beside - left] + bias) >> 2;
          continue;
        }
        const int other = (image_y & 1) != 0 ? min(row + 1, chroma_height - 1) : max(row - 1, 0);
        const u8* const far = chroma[c] + static_cast<u64>(other - top) * chroma_stride;
        const int sum = 3 * near[column - left] + far[column - left];
        const int next = 3 * near[beside - left] + far[beside - left];
        values[c] = (3 * sum + next + ((image_x & 1) != 0 ? 7 : 8)) >> 4;
      }
      const int b = values[0] - 128, r = values[1] - 128;
      red = clipped(luma + ((91881 * r + 32768) >> 16));
      green = clipped(luma + ((-22554 * b - 46802 * r + 32768) >> 16));
      blue = clipped(luma + ((116130 * b + 32768) >> 16));
    }
    u8* const out = memory + static_cast<u64>(image.rgb) * 16 + (static_cast<u64>(y) * image.width + x) * 3;
    out[0] = static_cast<u8>(red);
    out[1] = static_cast<u8>(green);
    out[2] = static_cast<u8>(blue);
  }
}

namespace {

constexpr int kPrecisionBits = 22;  // of Pillow's weights

// Resizes along one axis: pixels of `from` that are `step` bytes apart, with the weights of position `at` of `count`.
__device__ __forceinline__ void convolve(const u8* batch, unsigned axis, int count, int at, const u8* from, u64 step,
                                         u8* out) {
  const int* const numbers = reinterpret_cast<const int*>(batch + axis);
  const int first = __ldg(numbers + 2 * at), taps = __ldg(numbers + 2 * at + 1);
  const int* weight = numbers + 2 * count + at;
  int red = 1 << (kPrecisionBits - 1), green = red, blue = red;
  from += first * step;
  for (int t = 0; t < taps; ++t, from += step, weight += count) {
    const int by = __ldg(weight);
    red += from[0] * by;
    green += from[1] * by;
    blue += from[2] * by;
  }
  out[0] = static_cast<u8>(clipped(red >> kPrecisionBits));
  out[1] = static_cast<u8>(clipped(green >> kPrecisionBits));
  out[2] = static_cast<u8>(clipped(blue >> kPrecisionBits));
}

}  // namespace

// Grid: columns, rows, images; threads along x.
extern "C" __global__ void first_pass(const u8* __restrict__ batch, long long first_image, u8* __restrict__ memory) {
  const StagedImage& image = reinterpret_cast<const StagedImage*>(batch)[first_image + blockIdx.z];
  if (image.mcu_rows == 0) return;
  const int width = image.vertical_first ? image.width : image.out_width;
  const int height = image.vertical_first ? image.out_height : image.height;
  const u8* const rgb = memory + static_cast<u64>(image.rgb) * 16;
  u8* const between = memory + static_cast<u64>(image.between) * 16;
  const u64 stride = static_cast<u64>(image.width) * 3;
  const int x = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (x >= width) return;
  for (int y = static_cast<int>(blockIdx.y); y < height; y += static_cast<int>(gridDim.y)) {
    u8* const out = between + (static_cast<u64>(y) * width + x) * 3;
    if (image.vertical_first) {
      convolve(batch, image.y_axis, height, y, rgb + 3 * x, stride, out);
    } else {
      convolve(batch, image.x_axis, width, x, rgb + y * stride, 3, out);
    }
  }
}

extern "C" __global__ void second_pass(const u8* __restrict__ batch, long long first_image,
                                       const u8* __restrict__ memory, u8* __restrict__ pixels) {
  const StagedImage& image = reinterpret_cast<const StagedImage*>(batch)[first_image + blockIdx.z];
  if (image.mcu_rows == 0) return;
  const int width = image.out_width, height = image.out_height;
  const u8* const between = memory + static_cast<u64>(image.between) * 16;
  const u64 stride = static_cast<u64>(image.vertical_first ? image.width : image.out_width) * 3;
  const int x = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (x >= width) return;
  for (int y = static_cast<int>(blockIdx.y); y < height; y += static_cast<int>(gridDim.y)) {
    const int row = image.flip_vertical ? height - 1 - y : y;
    u8* const out = pixels + image.out + (static_cast<u64>(row) * width + x) * 3;
    if (image.vertical_first) {
      convolve(batch, image.x_axis, width, x, between + y * stride, 3, out);
    } else {
      convolve(batch, image.y_axis, height, y, between + 3 * x, stride, out);
    }
  }
}

}  // namespace fastload
