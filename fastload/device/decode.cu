// Decodes, crops and resizes the JPEG files of a batch, with the bits of libjpeg-turbo and Pillow. decode_layout.h says
// what decode threads have prepared. Compiled at run time (decode.py); includes no other headers.
//
// The kernels run one after the other: `huffman` decodes the coefficients of the MCUs that the crops need, one thread
// for each segment; `transform` makes samples of them (libjpeg's accurate integer IDCT); `rows` stretches chroma by a
// triangle filter, converts to RGB and resizes the rows, `second_pass` the columns, with weights of 22 fractional bits.
// Where columns are resized first, `columns_first` does so in between.
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

constexpr int kDcBits = 9;  // of a code's beginning, by which symbols are looked up
constexpr int kAcBits = 12;
constexpr int kWorkThreads = 64;  // as in csrc/pool/staging.cpp
constexpr int kBlocksAtOnce = 32;
constexpr int kRowThreads = 128;

// As in csrc/jpeg/pixel_kernels.h.
constexpr int kMostValue = 8192;
constexpr int kMostBelow = 384;
constexpr int kMostResults = 1024;

__constant__ u8 kNaturalOrder[64] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,
                                     12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
                                     35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
                                     58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

// A symbol: from the lowest bit on, 4 bits for the bits of the value, 4 for those of the code less one, 5 for the
// zigzag advance (0: the end of a block); then kKnown.
constexpr u32 kKnown = 1 << 15;

__device__ __forceinline__ u32 packed(int symbol, int length, bool ac) {
  const u32 size = symbol & 15, run = symbol >> 4;
  if (size > (ac ? 10 : 11)) return 0;
  const u32 advance = !ac ? 1 : size != 0 || run == 15 ? run + 1 : 0;
  return size | static_cast<u32>(length - 1) << 4 | advance << 8 | kKnown;
}

// A code in shared memory, but for the symbols by their beginnings.
struct Code {
  u32 ends[17];  // behind the last code of each length, left-justified in 16 bits
  int offsets[17];
};

// Symbols by the beginnings of their codes, one code after the other.
constexpr int kDcSymbols = 1 << kDcBits, kAcSymbols = 1 << kAcBits;
constexpr int kSymbols = kStagedCodes / 2 * (kDcSymbols + kAcSymbols);

// The symbol at the beginning of 16 bits, or 0.
__device__ u32 symbol_of(const Code& code, const u8* symbols, u32 next, int from, int to, bool ac) {
  for (int length = from; length <= to; ++length) {
    if (next < code.ends[length]) {
      return packed(symbols[(code.offsets[length] + static_cast<int>(next >> (16 - length))) & 255], length, ac);
    }
  }
  return 0;
}

__device__ void build(Code (&codes)[kStagedCodes], u16 (&first)[kSymbols], const u8* from) {
  if (threadIdx.x < kStagedCodes) {
    Code& code = codes[threadIdx.x];
    const u8* const counts = from + threadIdx.x * kStagedCodeBytes;
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
  for (int i = 0; i < kStagedCodes; ++i) {
    const bool ac = i >= kStagedCodes / 2;
    const int bits = ac ? kAcBits : kDcBits;
    u16* const to = first + (ac ? kStagedCodes / 2 * kDcSymbols + (i - kStagedCodes / 2) * kAcSymbols : i * kDcSymbols);
    const u8* const symbols = from + i * kStagedCodeBytes + 16;
    for (int j = threadIdx.x; j < 1 << bits; j += blockDim.x) {
      to[j] = static_cast<u16>(symbol_of(codes[i], symbols, static_cast<u32>(j) << (16 - bits), 1, bits, ac));
    }
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

constexpr int kRing = 64;            // words of its data that a thread has in shared memory
constexpr int kLoad = 16;            // words loaded at a time
constexpr int kSymbolsPerLoad = 16;  // that take no more bits than that, with two words to spare
static_assert(kSymbolsPerLoad * (16 + 11) <= (kLoad - 2) * 32);

// An image's data, a bit at a time; zeros follow it. A warp loads together and ahead: a load that a single thread waits
// for would hold up the others.
struct Bits {
  const uint4* data;
  u32* ring;  // of this thread; its words are kWorkThreads apart
  u32 count;  // loads of 4 words with data
  u32 position, loaded;
  u32 now, next;

  __device__ __forceinline__ uint4 four(u32 word) const {
    return word / 4 < count ? __ldg(data + word / 4) : make_uint4(0, 0, 0, 0);
  }
  __device__ __forceinline__ void keep(u32 word, const uint4& four) {
    u32* const to = ring + word % kRing * kWorkThreads;
    to[0] = __byte_perm(four.x, 0, 0x0123);
    to[kWorkThreads] = __byte_perm(four.y, 0, 0x0123);
    to[2 * kWorkThreads] = __byte_perm(four.z, 0, 0x0123);
    to[3 * kWorkThreads] = __byte_perm(four.w, 0, 0x0123);
  }
  __device__ __forceinline__ u32 word(u32 i) const { return ring[i % kRing * kWorkThreads]; }
  __device__ __forceinline__ void seek(u32 bit) {
    position = bit;
    loaded = bit / 128 * 4;
    for (int i = 0; i < 2 * kLoad; i += 4, loaded += 4) keep(loaded, four(loaded));
    now = word(bit / 32);
    next = word(bit / 32 + 1);
  }
  __device__ __forceinline__ bool has_room() const { return loaded - position / 32 <= kRing - kLoad; }
  __device__ __forceinline__ u32 peek() const { return __funnelshift_l(next, now, position & 31); }
  // At most 32.
  __device__ __forceinline__ void take(u32 bits) {
    const u32 before = position / 32;
    position += bits;
    if (position / 32 != before) {
      now = next;
      next = word(position / 32 + 1);
    }
  }
  __device__ __forceinline__ void align() { take(-position & 7); }
};

}  // namespace

// Coefficients are stored as in the scan: MCU by MCU.
extern "C" __global__ void __launch_bounds__(kWorkThreads)
    huffman(const u8* __restrict__ batch, const StagedWork* __restrict__ work, short* __restrict__ coefficients,
            int* __restrict__ bad) {
  __shared__ Code codes[kStagedCodes];
  __shared__ u16 first_symbols[kSymbols];
  __shared__ u32 rings[kRing * kWorkThreads];
  __shared__ u8 order[64];
  const StagedWork item = work[blockIdx.x];
  const StagedImage& image = reinterpret_cast<const StagedImage*>(batch)[item.image];
  const int luma = image.across * image.down, blocks = luma + image.components - 1;
  build(codes, first_symbols, batch + image.codes);
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
  // MCUs until the next restart, if any.
  const u32 interval = image.restart_interval;
  const u64 scan_mcu = static_cast<u64>(image.mcu_row + row) * image.scan_columns + first;
  u32 until_restart = interval == 0 ? 0xFFFFFFFF : interval - static_cast<u32>(scan_mcu % interval);

  Bits in;
  in.data = reinterpret_cast<const uint4*>(batch + image.data);
  in.ring = rings + threadIdx.x;
  in.count = (image.data_bytes + 15) / 16;
  in.seek(point->bit);
  int predictor0 = point->predictors[0], predictor1 = point->predictors[1], predictor2 = point->predictors[2];

  // For each block of an MCU its component and codes, 4 bits each, from the lowest on.
  u32 kinds = 0;
  for (int i = 0; i < blocks; ++i) {
    const int c = i < luma ? 0 : i - luma + 1;
    kinds |= static_cast<u32>(c | (image.dc[c] << 2) | ((image.ac[c] - kStagedCodes / 2) << 3)) << (4 * i);
  }
  u32 overflow = 0;
  int column = first, b = 0, k = 0;
  int x = first - image.mcu_column;
  short* block = coefficients + static_cast<u64>(image.coefficients) * 8 +
                 static_cast<long long>(row * image.mcu_columns + x) * blocks * 64;
  u32 kind = kinds & 15;
  const u16* symbols_of_code = first_symbols + (kind >> 2 & 1) * kDcSymbols;
  int shift = 32 - kDcBits;
  // One symbol at a time: lanes do not wait for each other's blocks to end.
  bool going = true;
  while (going) {
    const bool loads = in.has_room();
    uint4 ahead[kLoad / 4];
    if (loads) {
#pragma unroll
      for (int i = 0; i < kLoad / 4; ++i) ahead[i] = in.four(in.loaded + 4 * i);
    }
    for (int symbols = 0; symbols < kSymbolsPerLoad; ++symbols) {
      const u32 next = in.peek();
      u32 symbol = symbols_of_code[next >> shift];
      if (symbol == 0) {
        const u32 which = k == 0 ? kind >> 2 & 1 : (kind >> 3) + kStagedCodes / 2;
        symbol = symbol_of(codes[which], batch + image.codes + which * kStagedCodeBytes + 16, next >> 16,
                           (k == 0 ? kDcBits : kAcBits) + 1, 16, k != 0);
        if (symbol == 0) {
          going = false;
          break;
        }
      }
      const u32 size = symbol & 15, length = (symbol >> 4 & 15) + 1, advance = symbol >> 8 & 31;
      in.take(length + size);
      const u32 bits = next << length;
      // A value whose first bit is 0 is negative.
      const int negative = ~static_cast<int>(bits) >> 31;
      int value = static_cast<int>(bits >> 1 >> (31 - size)) + (negative & (1 - (1 << size)));
      if (k == 0) {
        const u32 component = kind & 3;
        value += component == 0 ? predictor0 : component == 1 ? predictor1 : predictor2;
        overflow |= static_cast<u32>(value + 32768) >> 16;
        predictor0 = component == 0 ? value : predictor0;
        predictor1 = component == 1 ? value : predictor1;
        predictor2 = component == 2 ? value : predictor2;
        symbols_of_code = first_symbols + kStagedCodes / 2 * kDcSymbols + (kind >> 3) * kAcSymbols;
        shift = 32 - kAcBits;
      }
      if (advance != 0) {
        const int at = k + static_cast<int>(advance) - 1;
        if (at > 63) {
          going = false;
          break;
        }
        if ((size != 0 || k == 0) && x >= 0) block[order[at]] = static_cast<short>(value);
        k = at + 1;
        if (k < 64) continue;
      }
      k = 0;
      if (++b == blocks) {
        b = 0;
        ++x;
        if (--until_restart == 0) {
          until_restart = interval;
          in.align();
          predictor0 = predictor1 = predictor2 = 0;
        }
        if (++column == end) {
          going = false;
          break;
        }
      }
      block += 64;
      kind = kinds >> (4 * b) & 15;
      symbols_of_code = first_symbols + (kind >> 2 & 1) * kDcSymbols;
      shift = 32 - kDcBits;
    }
    if (loads) {
#pragma unroll
      for (int i = 0; i < kLoad / 4; ++i) in.keep(in.loaded + 4 * i, ahead[i]);
      in.loaded += kLoad;
    }
  }
  bool sound = column == end && overflow == 0;
  // The segment must end where the next one begins.
  const StagedPoint after = point[1];
  if (end == whole && after.bit != kNoStagedPoint) {
    sound = sound && in.position == after.bit && predictor0 == after.predictors[0] &&
            predictor1 == after.predictors[1] && predictor2 == after.predictors[2];
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
  const int luma = image.across * image.down, per_mcu = luma + image.components - 1;
  const int blocks = image.mcu_rows * image.mcu_columns * per_mcu;
  const int local = static_cast<int>(threadIdx.x) / 8, lane = static_cast<int>(threadIdx.x) % 8;
  const short* const from = coefficients + static_cast<u64>(image.coefficients) * 8;
  u8* const to = samples + static_cast<u64>(image.samples) * 16;
  bool fits = true;
  for (int base = static_cast<int>(blockIdx.x) * kBlocksAtOnce; base < blocks;
       base += static_cast<int>(gridDim.x) * kBlocksAtOnce) {
    const int block = base + local;
    const bool inside = block < blocks;
    const int mcu = block / per_mcu, in_mcu = block % per_mcu, c = in_mcu < luma ? 0 : in_mcu - luma + 1;
    if (inside) {
      int in[8], out[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        in[k] =
            from[static_cast<u64>(block) * 64 + k * 8 + lane] * static_cast<int>(image.quantization[c][k * 8 + lane]);
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
      const int across = c == 0 ? image.across : 1, down = c == 0 ? image.down : 1,
                columns = image.mcu_columns * across;
      const int y = mcu / image.mcu_columns * down + (c == 0 ? in_mcu / across : 0);
      const int x = mcu % image.mcu_columns * across + (c == 0 ? in_mcu % across : 0);
      u8* const at =
          to + static_cast<u64>(blocks_before(image, c)) * 64 + (static_cast<u64>(y) * 8 + lane) * columns * 8 + x * 8;
      *reinterpret_cast<uint2*>(at) = make_uint2(words[0], words[1]);
    }
    __syncwarp();
  }
  if (!fits) bad[number] = 1;
}

namespace {

// A pixel is a word: red, green, blue from the lowest byte on.
__device__ __forceinline__ u32 pixel_of(int red, int green, int blue) {
  return static_cast<u32>(clipped(red) | clipped(green) << 8 | clipped(blue) << 16);
}

// Makes pixels of one row of a region.
struct Row {
  const u8* luma;                // of the region's first column
  const u8* near[2];             // chroma of that row, of the image's first column
  const u8* far[2];              // and of the one above or below it
  int left, across, down, last;  // the last column of chroma

  __device__ Row(const StagedImage& image, const u8* samples, int y) {
    left = image.left;
    across = image.across;
    down = image.down;
    last = (image.image_width + across - 1) / across - 1;
    const int image_y = y + image.top, first_row = image.mcu_row * 8, first_column = image.mcu_column * 8;
    const int stride = image.mcu_columns * 8;
    luma =
        samples + static_cast<long long>(image_y - first_row * down) * stride * across + (left - first_column * across);
    const int row = image_y / down, rows = (image.image_height + down - 1) / down;
    const int other = down == 1 ? row : (image_y & 1) != 0 ? min(row + 1, rows - 1) : max(row - 1, 0);
    for (int c = 0; c < 2; ++c) {
      const u8* const plane = samples + static_cast<long long>(blocks_before(image, c + 1)) * 64 - first_column;
      near[c] = plane + static_cast<long long>(row - first_row) * stride;
      far[c] = plane + static_cast<long long>(other - first_row) * stride;
    }
  }

  // libjpeg's triangle filter: a sample counts three times as much as its neighbour, in both directions.
  __device__ __forceinline__ int chroma(int c, int image_x) const {
    if (across == 1) return near[c][image_x];
    const int column = image_x >> 1, odd = image_x & 1;
    const int beside = odd != 0 ? min(column + 1, last) : max(column - 1, 0);
    if (down == 1) return (3 * near[c][column] + near[c][beside] + 1 + odd) >> 2;
    const int sum = 3 * near[c][column] + far[c][column], next = 3 * near[c][beside] + far[c][beside];
    return (3 * sum + next + 8 - odd) >> 4;
  }

  __device__ __forceinline__ u32 pixel(int x) const {
    const int y = luma[x], b = chroma(0, x + left) - 128, r = chroma(1, x + left) - 128;
    return pixel_of(y + ((91881 * r + 32768) >> 16), y + ((-22554 * b - 46802 * r + 32768) >> 16),
                    y + ((116130 * b + 32768) >> 16));
  }
};

constexpr int kPrecisionBits = 22;  // of Pillow's weights

// Resizes along one axis: words of `from` that are `step` apart, with the weights of position `at` of `count`.
__device__ __forceinline__ u32 convolve(const u8* batch, unsigned axis, int count, int at, const u32* from, int step) {
  const int* const numbers = reinterpret_cast<const int*>(batch + axis);
  const int2 span = __ldg(reinterpret_cast<const int2*>(numbers) + at);
  const int* weight = numbers + 2 * count + at;
  int red = 1 << (kPrecisionBits - 1), green = red, blue = red;
  from += static_cast<long long>(span.x) * step;
  for (int t = 0; t < span.y; ++t, from += step, weight += count) {
    const int by = __ldg(weight);
    const u32 pixel = *from;
    red += static_cast<int>(pixel & 255) * by;
    green += static_cast<int>(pixel >> 8 & 255) * by;
    blue += static_cast<int>(pixel >> 16) * by;
  }
  return pixel_of(red >> kPrecisionBits, green >> kPrecisionBits, blue >> kPrecisionBits);
}

}  // namespace

// Makes pixels of a row, and resizes it unless columns are resized first. Grid: any number of rows, images.
extern "C" __global__ void __launch_bounds__(kRowThreads)
    rows(const u8* __restrict__ batch, long long first_image, u8* __restrict__ memory) {
  extern __shared__ u32 pixels[];  // as many as the widest region has
  const StagedImage& image = reinterpret_cast<const StagedImage*>(batch)[first_image + blockIdx.y];
  const u8* const samples = memory + static_cast<u64>(image.samples) * 16;
  u32* const rgb = reinterpret_cast<u32*>(memory + static_cast<u64>(image.rgb) * 16);
  u32* const between = reinterpret_cast<u32*>(memory + static_cast<u64>(image.between) * 16);
  for (int y = static_cast<int>(blockIdx.x); y < image.height; y += static_cast<int>(gridDim.x)) {
    const Row row(image, samples, y);
    u32* const out = image.vertical_first ? rgb + static_cast<u64>(y) * image.width : pixels;
    for (int x = static_cast<int>(threadIdx.x); x < image.width; x += kRowThreads) {
      const int level = row.luma[x];
      out[x] = image.components == 1 ? pixel_of(level, level, level) : row.pixel(x);
    }
    if (image.vertical_first) continue;
    __syncthreads();
    for (int x = static_cast<int>(threadIdx.x); x < image.out_width; x += kRowThreads) {
      between[static_cast<u64>(y) * image.out_width + x] = convolve(batch, image.x_axis, image.out_width, x, pixels, 1);
    }
    __syncthreads();
  }
}

// Resizes columns where these are first. Grid: columns, any number of rows, images.
extern "C" __global__ void __launch_bounds__(kRowThreads)
    columns_first(const u8* __restrict__ batch, long long first_image, u8* __restrict__ memory) {
  const StagedImage& image = reinterpret_cast<const StagedImage*>(batch)[first_image + blockIdx.z];
  const int x = static_cast<int>(blockIdx.x * kRowThreads + threadIdx.x);
  if (!image.vertical_first || x >= image.width) return;
  const u32* const rgb = reinterpret_cast<const u32*>(memory + static_cast<u64>(image.rgb) * 16);
  u32* const between = reinterpret_cast<u32*>(memory + static_cast<u64>(image.between) * 16);
  for (int y = static_cast<int>(blockIdx.y); y < image.out_height; y += static_cast<int>(gridDim.y)) {
    between[static_cast<u64>(y) * image.width + x] =
        convolve(batch, image.y_axis, image.out_height, y, rgb + x, image.width);
  }
}

// Grid: columns, any number of rows, images.
extern "C" __global__ void __launch_bounds__(kRowThreads)
    second_pass(const u8* __restrict__ batch, long long first_image, u8* __restrict__ memory, u8* __restrict__ pixels) {
  const StagedImage& image = reinterpret_cast<const StagedImage*>(batch)[first_image + blockIdx.z];
  const int width = image.out_width, height = image.out_height;
  const int x = static_cast<int>(blockIdx.x * kRowThreads + threadIdx.x);
  if (x >= width) return;
  const u32* const between = reinterpret_cast<const u32*>(memory + static_cast<u64>(image.between) * 16);
  for (int y = static_cast<int>(blockIdx.y); y < height; y += static_cast<int>(gridDim.y)) {
    const u32 pixel = image.vertical_first
                          ? convolve(batch, image.x_axis, width, x, between + static_cast<u64>(y) * image.width, 1)
                          : convolve(batch, image.y_axis, height, y, between + x, width);
    const int row = image.flip_vertical ? height - 1 - y : y;
    if (image.step_count > 0) {
      u32* const first = reinterpret_cast<u32*>(memory + static_cast<u64>(image.stepped[0]) * 16);
      first[static_cast<u64>(row) * width + x] = pixel;
      continue;
    }
    u8* const out = pixels + image.out + (static_cast<u64>(row) * width + x) * 3;
    out[0] = static_cast<u8>(pixel);
    out[1] = static_cast<u8>(pixel >> 8);
    out[2] = static_cast<u8>(pixel >> 16);
  }
}

}  // namespace fastload
