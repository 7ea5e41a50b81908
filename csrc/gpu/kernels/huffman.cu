// Entropy decoding, and where decode threads have done it: a part of decode.cu.

#include "decode_layout.h"
#include "pixel_words.h"

namespace fastload {
namespace {

constexpr int kDcBits = 9;  // of a code's beginning, by which symbols are looked up
constexpr int kAcBits = 12;
constexpr int kWorkThreads = 64;  // as in csrc/gpu/staging.cpp
constexpr int kTableThreads = 256;

// A symbol: from the lowest bit on, 4 bits for the bits of its value, 5 for all of its bits, the rest for how much the
// zigzag index grows before the value, or kBlockEnd. 0 if the symbol is not known.
//
// An index below 64 is valid. Bit 6 is set in 64 to 78, where a wrong symbol may lead, and not in what kBlockEnd leads
// to.
constexpr int kBlockEnd = 127;
constexpr u32 kWrongIndex = 64;

__device__ __forceinline__ u32 packed(int symbol, int length, bool ac) {
  const int size = symbol & 15, run = symbol >> 4;
  if (size > (ac ? 10 : 11)) return 0;
  const int skipped = !ac ? 0 : size != 0 || run == 15 ? run : kBlockEnd;
  return static_cast<u32>(size | (length + size) << 4 | skipped << 9);
}

// The number in the block. The compiler cannot ask for it again and again, which takes long.
__device__ __forceinline__ int thread_number() {
#ifdef __CUDA_ARCH__
  int number;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
  return number;
#else
  return static_cast<int>(threadIdx.x);
#endif
}

// Where codes of each length are.
struct Code {
  u32 ends[17];  // behind the last code of each length, left-justified in 16 bits
  int offsets[17];
};

constexpr int kDcSymbols = 1 << kDcBits, kAcSymbols = 1 << kAcBits, kEachCodes = kStagedCodes / 2;

// What symbols are looked up in: by the beginnings of their codes, or, if these are longer, by length.
struct Tables {
  u16 dc[kEachCodes][kDcSymbols], ac[kEachCodes][kAcSymbols];
  Code codes[kStagedCodes];
  u8 symbols[kStagedCodes][kStagedCodeBytes - 16];
};
static_assert(sizeof(Tables) == kStagedTableBytes && sizeof(Tables) % 16 == 0);

// The symbol at the beginning of 16 bits, whose code has at least `from` bits, or 0.
template <typename Tables>
__device__ __forceinline__ u32 symbol_of(const Tables& tables, int which, u32 next, int from, int to) {
  const Code& code = tables.codes[which];
  int length = from;
  for (int shorter = from; shorter < to; ++shorter) length += next >= code.ends[shorter];
  if (next >= code.ends[length]) return 0;
  const int symbol = tables.symbols[which][(code.offsets[length] + static_cast<int>(next >> (16 - length))) & 255];
  return packed(symbol, length, which >= kEachCodes);
}

}  // namespace

// Makes the tables of codes that the batch's images share. Grid: any number of blocks, tables.
extern "C" __global__ void __launch_bounds__(kTableThreads)
    tables(const u8* __restrict__ batch, long long codes, Tables* __restrict__ made) {
  __shared__ Tables local;
  const u8* const from = batch + codes + static_cast<u64>(blockIdx.y) * (kStagedCodes * kStagedCodeBytes);
  Tables& to = made[blockIdx.y];
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kStagedCodes) {
    Code& code = local.codes[thread];
    const u8* const counts = from + thread * kStagedCodeBytes;
    u32 next = 0;
    int count = 0;
    code.ends[0] = 0;
    code.offsets[0] = 0;
    for (int length = 1; length <= 16; ++length, next <<= 1) {
      code.offsets[length] = count - static_cast<int>(next);
      count += counts[length - 1];
      next += counts[length - 1];
      code.ends[length] = next << (16 - length);
    }
    if (blockIdx.x == 0) to.codes[thread] = code;
  }
  for (int i = 0; i < kStagedCodes; ++i) local.symbols[i][thread] = from[i * kStagedCodeBytes + 16 + thread];
  __syncthreads();
  const int begin = static_cast<int>(blockIdx.x) * kTableThreads + thread;
  const int step = static_cast<int>(gridDim.x) * kTableThreads;
  for (int i = 0; i < kStagedCodes; ++i) {
    const int bits = i < kEachCodes ? kDcBits : kAcBits;
    u16* const entries = i < kEachCodes ? to.dc[i] : to.ac[i - kEachCodes];
    for (int j = begin; j < 1 << bits; j += step) {
      entries[j] = static_cast<u16>(symbol_of(local, i, static_cast<u32>(j) << (16 - bits), 1, bits));
    }
    if (blockIdx.x == 0) to.symbols[i][thread] = local.symbols[i][thread];
  }
}

namespace {

constexpr int kRing = 32;           // words of its data that a thread has in shared memory
constexpr int kLoad = 8;            // words loaded at a time
constexpr int kSymbolsPerLoad = 7;  // that take no more bits than that, with two words to spare
static_assert(kSymbolsPerLoad * (16 + 11) <= (kLoad - 2) * 32);
constexpr int kSegmentBlocks = kSegmentMcus * 6;  // at most

// An image's data, a bit at a time; zeros follow it. A warp loads together and ahead: a load that a single thread waits
// for would hold up the others.
struct Bits {
  const uint4* data;
  u32* ring;  // of this thread; its words are kWorkThreads apart
  u32 count;  // loads of 4 words with data
  u32 position, loaded;
  u32 now, next, after;

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
    after = word(bit / 32 + 2);
  }
  __device__ __forceinline__ bool has_room() const { return loaded - position / 32 <= kRing - kLoad; }
  __device__ __forceinline__ u32 peek() const { return __funnelshift_l(next, now, position & 31); }
  // At most 32.
  __device__ __forceinline__ void take(u32 bits) {
    const u32 before = position;
    position += bits;
    if (((position ^ before) & 32) != 0) {
      now = next;
      next = after;
      after = word(position / 32 + 2);
    }
  }
};

}  // namespace

// Coefficients are stored as in the scan, MCU by MCU, in zigzag order.
extern "C" __global__ void __launch_bounds__(kWorkThreads)
    huffman(const u8* __restrict__ batch, const StagedWork* __restrict__ work, const Tables* __restrict__ tables_of,
            short* __restrict__ coefficients, int* __restrict__ bad) {
  extern __shared__ uint4 shared[];
  Tables& tables = *reinterpret_cast<Tables*>(shared);
  u32* const rings = reinterpret_cast<u32*>(shared + sizeof(Tables) / 16);
  short* const differences = reinterpret_cast<short*>(rings + kRing * kWorkThreads);  // of each block's first value
  const StagedWork item = work[blockIdx.x];
  const StagedImage& image = reinterpret_cast<const StagedImage*>(batch)[item.image];
  const int thread = thread_number();
  const uint4* const made = reinterpret_cast<const uint4*>(tables_of + image.code_set);
  for (int i = thread; i < static_cast<int>(sizeof(Tables) / 16); i += kWorkThreads) shared[i] = __ldg(made + i);
  __syncthreads();

  // This thread's segment.
  constexpr int kTwo = 2 * kSegmentMcus;
  const int end_column = image.mcu_column + image.mcu_columns, begin_column = image.mcu_column / kTwo * kTwo;
  const int threads = ((end_column - 1) / kTwo - image.mcu_column / kTwo + 1) * 2;  // of a row
  const int row = min((item.thread + thread) / threads, image.mcu_rows - 1);
  const int number = item.thread + thread - row * threads;
  const int first = begin_column + number * kSegmentMcus;
  const int whole = min(first + kSegmentMcus, image.scan_columns), end = min(whole, end_column);
  const int luma = image.across * image.down, blocks = luma + image.components - 1;
  // Blocks left of the window, and all.
  const int outside = max(image.mcu_column - first, 0) * blocks;
  const int count = number < threads ? max(end - first, 0) * blocks : 0;
  const u8* const file = image.kept != 0 ? reinterpret_cast<const u8*>(image.kept) : batch;
  const StagedPoint* const point =
      reinterpret_cast<const StagedPoint*>(file + image.points) + row * image.points_in_row + (count > 0 ? number : 0);
  const bool is_odd = number % 2 != 0;

  Bits in;
  in.data = reinterpret_cast<const uint4*>(file + image.data);
  in.ring = rings + thread;
  in.count = (image.data_bytes + 15) / 16;
  in.seek(point->bit);

  // For each block of an MCU its component and codes, 4 bits each, from the lowest on; the next one is lowest.
  u32 kinds = 0;
  for (int i = 0; i < blocks; ++i) {
    const int c = i < luma ? 0 : i - luma + 1;
    kinds |= static_cast<u32>(c | (image.dc[c] << 2) | ((image.ac[c] - kEachCodes) << 3)) << (4 * i);
  }
  const u32 first_kinds = kinds;
  const int last_kind = 4 * (blocks - 1);
  // Blocks before the next restart, of this segment.
  const u32 interval = image.restart_interval;
  const u64 scan_mcu = static_cast<u64>(image.mcu_row + row) * image.scan_columns + first;
  const u32 mcus_left = interval == 0 ? 0xFFFF : interval - static_cast<u32>(scan_mcu % interval);
  const int until_restart = static_cast<int>(min(mcus_left, 0xFFFFu)) * blocks;
  const int interval_blocks = static_cast<int>(interval) * blocks;
  int restart = until_restart;
  short* const own = coefficients + static_cast<u64>(image.coefficients) * 8 +
                     static_cast<long long>(row * image.mcu_columns + first - image.mcu_column) * blocks * 64;
  int n = 0, k = 0;
  u32 error = 0;
  // One symbol at a time: threads do not wait for each other's blocks to end.
  while (n < count) {
    const bool loads = in.has_room();
    uint4 ahead[kLoad / 4];
    if (loads) {
#pragma unroll
      for (int i = 0; i < kLoad / 4; ++i) ahead[i] = in.four(in.loaded + 4 * i);
    }
#pragma unroll 1
    for (int symbols = 0; symbols < kSymbolsPerLoad && n < count; ++symbols) {
      const u32 next = in.peek();
      const u16* const dc = tables.dc[0] + (kinds >> 2 & 1) * kDcSymbols + (next >> (32 - kDcBits));
      const u16* const ac = tables.ac[0] + (kinds >> 3 & 1) * kAcSymbols + (next >> (32 - kAcBits));
      u32 symbol = *(k == 0 ? dc : ac);
      if (symbol == 0) {
        symbol = k == 0 ? symbol_of(tables, kinds >> 2 & 1, next >> 16, kDcBits + 1, 16)
                        : symbol_of(tables, (kinds >> 3 & 1) + kEachCodes, next >> 16, kAcBits + 1, 16);
        if (symbol == 0) {
          error = kWrongIndex;
          break;
        }
      }
      const u32 size = symbol & 15, bits = symbol >> 4 & 31;
      const int at = k + static_cast<int>(symbol >> 9);
      in.take(bits);
      // A value whose first bit is 0 is negative.
      const u32 tail = next << (bits - size);
      const int value = static_cast<int>(tail >> 1 >> (31 - size)) +
                        (static_cast<int>(tail) < 0 ? 0 : 1 - static_cast<int>(1u << size));
      if (size != 0 && at < 64 && n >= outside) own[n * 64 + at] = static_cast<short>(value);
      if (k == 0) differences[n * kWorkThreads + thread] = static_cast<short>(value);
      error |= static_cast<u32>(at);
      const bool ends = at >= 63;
      k = ends ? 0 : at + 1;
      n += ends ? 1 : 0;
      kinds = ends ? kinds >> 4 | (kinds & 15) << last_kind : kinds;
      if (ends && n == restart) {
        restart += interval_blocks;
        in.take(-in.position & 7);
      }
    }
    if ((error & kWrongIndex) != 0) break;
    if (loads) {
#pragma unroll
      for (int i = 0; i < kLoad / 4; ++i) in.keep(in.loaded + 4 * i, ahead[i]);
      in.loaded += kLoad;
    }
  }
  // The first values are differences from the ones before.
  int predictors[3] = {0, 0, 0};
  u32 overflow = 0;
  const auto add_up = [&] {
    u32 kind = first_kinds;
    int until = until_restart;
    for (int i = 0; i < n; ++i) {
      const u32 component = kind & 3;
      kind = kind >> 4 | (kind & 15) << last_kind;
      const int value = differences[i * kWorkThreads + thread] + (component == 0   ? predictors[0]
                                                                  : component == 1 ? predictors[1]
                                                                                   : predictors[2]);
      overflow |= static_cast<u32>(value + 32768) >> 16;
      if (i >= outside) own[i * 64] = static_cast<short>(value);
      predictors[0] = component == 0 ? value : predictors[0];
      predictors[1] = component == 1 ? value : predictors[1];
      predictors[2] = component == 2 ? value : predictors[2];
      if (i + 1 == until) {
        until += interval_blocks;
        predictors[0] = predictors[1] = predictors[2] = 0;
      }
    }
  };
  // Odd segments go on with what the ones before them have reached.
  int* const reached = reinterpret_cast<int*>(rings);
  __syncthreads();  // no thread needs its data any more
  if (!is_odd) {
    for (int c = 0; c < 3; ++c) predictors[c] = point->predictors[c];
    add_up();
  }
  for (int c = 0; c < 3; ++c) reached[c * kWorkThreads + thread] = predictors[c];
  __syncthreads();
  if (is_odd) {
    for (int c = 0; c < 3; ++c) predictors[c] = reached[c * kWorkThreads + thread - 1];
    add_up();
  }
  bool sound = overflow == 0 && (error & kWrongIndex) == 0;
  // The segment must end where the next one begins.
  if (count > 0 && end == whole) {
    const StagedPoint after = point[1];
    const bool is_half = !is_odd && whole < image.scan_columns;
    sound = sound && (after.bit == kNoStagedPoint ||
                      (in.position == after.bit &&
                       (is_half || (predictors[0] == after.predictors[0] && predictors[1] == after.predictors[1] &&
                                    predictors[2] == after.predictors[2]))));
  }
  if (!sound) bad[item.image] = 1;
}

namespace {

constexpr int kCoefficientThreads = 128;

}  // namespace

// Stores what threads have decoded of progressive files as `huffman` does, a row of a component's blocks at a time.
// Grid: any number of blocks, images.
extern "C" __global__ void __launch_bounds__(kCoefficientThreads)
    coefficients(const u8* __restrict__ batch, long long first_image, short* all) {
  const StagedImage& image = reinterpret_cast<const StagedImage*>(batch)[first_image + blockIdx.y];
  if (image.scan_count == 0) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int luma = image.across * image.down, per_mcu = luma + image.components - 1;
  const int luma_rows = image.mcu_rows * image.down, rows = luma_rows + image.mcu_rows * (image.components - 1);
  const u32* const values = reinterpret_cast<const u32*>(batch + image.data);
  const u32* const row_ends = reinterpret_cast<const u32*>(batch + image.row_ends);
  const u32 count = image.data_bytes / 4;
  short* const own = all + static_cast<u64>(image.coefficients) * 8;
  for (int row = static_cast<int>(blockIdx.x); row < rows; row += static_cast<int>(gridDim.x)) {
    const int c = row < luma_rows ? 0 : 1 + (row - luma_rows) / image.mcu_rows;
    const int y = c == 0 ? row : (row - luma_rows) % image.mcu_rows;
    const int across = c == 0 ? image.across : 1, down = c == 0 ? image.down : 1;
    const int columns = image.mcu_columns * across;
    const int first = y / down * image.mcu_columns * per_mcu + (c == 0 ? y % down * across : luma + c - 1);
    const auto block_at = [&](int x) {
      return own + static_cast<long long>(first + x / across * per_mcu + x % across) * 64;
    };
    int before = 0;  // rows of the scans before
    for (int scan = 0; scan < image.scan_count; ++scan) {
      const int component = image.scan_components[scan];
      if (component == c) {
        const u32 end = min(row_ends[before + y + 1], count);
        for (u32 i = row_ends[before + y] + static_cast<u32>(thread); i < end; i += kCoefficientThreads) {
          const u32 value = values[i];
          const int x = static_cast<int>(value >> 6 & 1023);
          if (x < columns) block_at(x)[value & 63] = static_cast<short>(value >> 16);
        }
      }
      before += component == 0 ? luma_rows : image.mcu_rows;
    }
    __syncthreads();
    // Eight threads a block. Of each word the highest byte is the first thread's, and its highest bit that one's first.
    const int planes = image.plane_count[c];
    const long long of_plane = static_cast<long long>(columns) * (c == 0 ? luma_rows : image.mcu_rows) * 8;
    for (int unit = thread; unit < columns * 8; unit += kCoefficientThreads) {
      const int x = unit / 8, lane = unit % 8;
      const long long block = static_cast<long long>(y) * columns + x;
      const u8* const words = batch + image.planes[c] + block * 8 + (7 - lane);
      short* const to = block_at(x) + lane * 8;
      u32 bits[kStagedPlanes], any = 0;
#pragma unroll
      for (int i = 0; i < kStagedPlanes; ++i) any |= bits[i] = i < planes ? words[(i + 1) * of_plane] : 0;
      if (any != 0) {
        const u32 negative = words[0];
        uint4& eight = *reinterpret_cast<uint4*>(to);
        const uint4 had = eight;
        u32 pairs[4] = {had.x, had.y, had.z, had.w};
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          int added = 0;
#pragma unroll
          for (int i = 0; i < kStagedPlanes; ++i) added |= static_cast<int>(bits[i] >> (7 - k) & 1) << i;
          const int value = static_cast<short>(pairs[k / 2] >> (16 * (k % 2)));
          const bool is_negative = value != 0 ? value < 0 : (negative >> (7 - k) & 1) != 0;
          const u32 sum = static_cast<u32>(is_negative ? value - added : value + added) & 0xFFFF;
          pairs[k / 2] = (pairs[k / 2] & (0xFFFFu << (16 * (1 - k % 2)))) | sum << (16 * (k % 2));
        }
        eight = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
      }
      if (lane == 0) *to = reinterpret_cast<const short*>(batch + image.dc_values[c])[block];
    }
  }
}

}  // namespace fastload
