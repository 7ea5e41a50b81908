// Finds where the segments of a scan begin in files that the index does not know: a part of decode.cu.
//
// A Huffman-coded scan synchronizes itself: a decoder that starts at any bit soon decodes the same symbols as one that
// started at the scan's beginning (Weissenberger and Schmidt, "Massively Parallel Huffman Decoding on GPUs", 2018, and
// "Accelerating JPEG Decompression on GPUs", arXiv 2111.09219). The scan is cut into subsequences of equal length.
// `subsequences` decodes each from its first bit on. `synchronize` decodes on from where each ended, until it is in the
// state in which a later one has ended: a link. All end behind a block. `chain` follows the links from the scan's first
// bit on, which is what a sequential decoder would do, and adds up blocks and DC differences. `points` decodes once
// more, along the chain, and writes the points: each thread from where `synchronize` has come into a subsequence.
// `stuffed` says where the points are in the file. Whatever does not come out even (links, numbers of blocks, restarts,
// the end of the data) makes the image bad: the host decodes it.

#include "decode_layout.h"
#include "huffman.cu"

namespace fastload {
namespace {

constexpr int kFindThreads = kFindsPerBlock;  // as in files.py, as the next line
constexpr int kChainThreads = 512;
constexpr u32 kNoLink = 0xFFFFFFFF, kEndLink = 0xFFFFFFFE;
constexpr int kAdvanceBits = 11;  // by which AC symbols are looked up, as many at once as these bits have
constexpr int kAdvances = 1 << kAdvanceBits;
constexpr int kRare = 256;
constexpr u32 kEnds = 1u << 12;  // of an advance: the block has no more symbols

// What symbols are looked up in: by the beginning of a DC symbol, or of as many AC symbols as these bits have. An
// entry: from the lowest bit on, 5 bits for the bits of its symbols and their values, 7 for how much the zigzag index
// grows; then the DC symbol's size, or kEnds. 0 if no symbol is known.
//
// AC symbols with codes of more bits are looked up by 16 bits, from the least of these codes on, if they are few.
struct FindTables {
  u16 dc[kEachCodes][kDcSymbols], ac[kEachCodes][kAdvances], rare[kEachCodes][kRare];
  u32 rare_from[kEachCodes], unused[2];
  Code codes[kStagedCodes];
  u8 symbols[kStagedCodes][kStagedCodeBytes - 16];
};
static_assert(sizeof(FindTables) == kFindTableBytes && sizeof(FindTables) % 16 == 0);

// A symbol as an entry.
__device__ __forceinline__ u32 entry_of(u32 symbol, bool ac) {
  if (symbol == 0) return 0;
  const u32 bits = symbol >> 4 & 31, skipped = symbol >> 9;
  if (!ac) return bits | 1 << 5 | (symbol & 15) << 12;
  return skipped == kBlockEnd ? bits | kEnds : bits | (skipped + 1) << 5;
}

// The entry of the symbol that 16 bits begin with.
template <typename Tables>
__device__ __noinline__ u32 single(const Tables& tables, int which, u32 next) {
#pragma unroll 1
  for (int length = 1; length <= 16; ++length) {
    if (next < tables.codes[which].ends[length]) {
      return entry_of(symbol_of(tables, which, next, length, length), which >= kEachCodes);
    }
  }
  return 0;
}

// The entry of the AC symbols that bits begin with.
__device__ __forceinline__ u32 advance_of(const Tables& tables, int which, u32 bits) {
  u32 taken = 0, grown = 0, ends = 0;
  while (taken < kAdvanceBits && ends == 0) {
    const u32 left = kAdvanceBits - taken, next = bits << (taken + 16 - kAdvanceBits) & 0xFFFF;
    const u32 found = entry_of(symbol_of(tables, which, next, 1, static_cast<int>(left)), true);
    const u32 length = found & 31, more = found >> 5 & 127;
    if (found == 0 || (taken > 0 && (length > left || grown + more > 63))) break;
    taken += length;
    grown += more;
    ends = found & kEnds;
  }
  return taken | grown << 5 | ends;
}

// What a block of threads has in shared memory: an image's tables, and the data from its first subsequence on.
constexpr u32 kSubsequenceWords = kSubsequenceBits / 32;
constexpr u32 kWindowWords = (kFindsPerBlock + 16) * kSubsequenceWords;
static_assert(kSubsequenceWords % 2 == 0);  // so that threads read words of different banks, with the gaps
struct Window {
  FindTables tables;
  u32 words[kWindowWords + kWindowWords / kSubsequenceWords];
  u32 first;  // the image's word that is here first
  int bad;    // whether the image was before
};
static_assert(sizeof(Window) <= 48 << 10);

__device__ __forceinline__ u32 word_of(const u8* batch, const StagedImage& image, u32 number) {
  if (number >= (image.data_bytes + 3) / 4) return 0;
  return __byte_perm(__ldg(reinterpret_cast<const u32*>(batch + image.data) + number), 0, 0x0123);
}

__device__ __forceinline__ void load(const u8* batch, const StagedImage& image, const FindTables* tables, u32 first,
                                     int bad, Window& to) {
  const u32 thread = static_cast<u32>(thread_number());
  const uint4* const made = reinterpret_cast<const uint4*>(tables + image.code_set);
  for (u32 i = thread; i < sizeof(FindTables) / 16; i += kFindThreads) {
    reinterpret_cast<uint4*>(&to.tables)[i] = __ldg(made + i);
  }
  for (u32 i = thread; i < kWindowWords; i += kFindThreads) {
    to.words[i + i / kSubsequenceWords] = word_of(batch, image, first * kSubsequenceWords + i);
  }
  if (thread == 0) {
    to.first = first * kSubsequenceWords;
    to.bad = bad;
  }
  __syncthreads();
}

// A sequential decoder that keeps no values but the sums of DC differences. It may start anywhere.
struct Walk {
  const Window& window;
  const u8* batch;
  const StagedImage& image;
  const u32* ends;  // of the restart intervals, in bytes
  u32 first_kinds, last_kind, blocks_per_mcu;

  u32 position, now, next, after;  // bits; the words at and behind the position
  u32 kinds, block, k;             // as in `huffman`; the block of the MCU and the zigzag index that come next
  u32 interval, end;               // of the interval, in bits
  u32 blocks;                      // that have ended
  int sums[3];                     // of each component's DC differences since the last restart
  bool restarted, finished, wrong;

  __device__ __forceinline__ Walk(const Window& window, const u8* batch, const StagedImage& image)
      : window(window), batch(batch), image(image), ends(reinterpret_cast<const u32*>(batch + image.intervals)) {
    const int luma = image.across * image.down, count = luma + image.components - 1;
    first_kinds = 0;
    for (int i = 0; i < count; ++i) {
      const int c = i < luma ? 0 : i - luma + 1;
      first_kinds |= static_cast<u32>(c | (image.dc[c] << 2) | ((image.ac[c] - kEachCodes) << 3)) << (4 * i);
    }
    last_kind = static_cast<u32>(4 * (count - 1));
    blocks_per_mcu = static_cast<u32>(count);
  }

  __device__ __forceinline__ u32 word(u32 number) const {
    const u32 i = number - window.first;
    return i < kWindowWords ? window.words[i + i / kSubsequenceWords] : word_of(batch, image, number);
  }
  __device__ __forceinline__ u32 peek() const { return __funnelshift_l(next, now, position & 31); }
  __device__ __forceinline__ void seek(u32 bit) {
    position = bit;
    now = word(bit / 32);
    next = word(bit / 32 + 1);
    after = word(bit / 32 + 2);
  }
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

  // Begins at a bit, with a block of the MCU, or at the end.
  __device__ __forceinline__ void begin(u32 bit, u32 state) {
    finished = state == kFinishedState;
    seek(bit);
    block = finished ? 0 : state;
    k = 0;
    kinds = block == 0 ? first_kinds
                       : first_kinds >> (4 * block) |
                             (first_kinds << (4 * (blocks_per_mcu - block)) & ((2u << (last_kind + 3)) - 1));
    blocks = 0;
    sums[0] = sums[1] = sums[2] = 0;
    restarted = wrong = false;
    u32 low = 0, high = image.interval_count - 1;  // the first interval that ends behind the bit
    while (low < high) {
      const u32 middle = (low + high) / 2;
      if (ends[middle] * 8 > bit) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    interval = low;
    end = ends[low] * 8;
    if (state == 0) settle();
  }
  // Decodes up to the first end of a block at a bit or behind it.
  __device__ __forceinline__ void run(u32 until) {
    bool ends = true;
    while (!ends || (position < until && !finished)) ends = step();  // one loop: lanes don't wait for others' blocks
  }
  __device__ __forceinline__ u32 state() const { return finished ? kFinishedState : block; }

  // Before an MCU: goes on to the next interval, or finishes, if only the padding of this one is left.
  __device__ __forceinline__ void settle() {
    const u32 left = end - position;
    if (static_cast<int>(left) < 0) {
      wrong = true;
      leave();
    } else if (left < 8 && (left == 0 || peek() >> (32 - left) == (1u << left) - 1)) {
      leave();
    }
  }
  __device__ __forceinline__ void leave() {
    block = k = 0;
    kinds = first_kinds;
    if (interval + 1 >= image.interval_count) {
      finished = true;
      return;
    }
    seek(end);
    end = ends[++interval] * 8;
    restarted = true;
    sums[0] = sums[1] = sums[2] = 0;
  }

  // Decodes a DC symbol, or as many AC symbols as an entry has. True if a block has ended.
  __device__ __forceinline__ bool step() {
    const u32 ahead = peek();
    const bool ac = k != 0;
    const u32 which = kinds >> (ac ? 3 : 2) & 1;
    const u16* const table = ac ? window.tables.ac[which] : window.tables.dc[which];
    u32 found = table[ahead >> (ac ? 32 - kAdvanceBits : 32 - kDcBits)];
    u32 ends = ac ? found & kEnds : 0;
    if (found == 0 && ac) {
      const u32 number = (ahead >> 16) - window.tables.rare_from[which];
      if (number < kRare) found = window.tables.rare[which][number];
      ends = found & kEnds;
    }
    // Symbols behind a block's last value are another's.
    if (found == 0 || k + (found >> 5 & 127) + (ends != 0 ? 1 : 0) > 64) {
      found = single(window.tables, static_cast<int>(ac ? which + kEachCodes : which), ahead >> 16);
      ends = ac ? found & kEnds : 0;
      if (found == 0) {
        wrong = true;
        take(1);
        block = k = 0;
        kinds = first_kinds;
        if (position >= end) leave();
        return true;
      }
    }
    const u32 bits = found & 31;
    if (!ac) {
      const u32 size = found >> 12, tail = ahead << (bits - size);
      const int value = static_cast<int>(tail >> 1 >> (31 - size)) +
                        (static_cast<int>(tail) < 0 ? 0 : 1 - static_cast<int>(1u << size));
      const u32 component = kinds & 3;
      sums[0] += component == 0 ? value : 0;
      sums[1] += component == 1 ? value : 0;
      sums[2] += component == 2 ? value : 0;
    }
    take(bits);
    k += found >> 5 & 127;
    if (ends == 0 && k < 64) return false;
    wrong |= ends == 0 && k > 64;
    k = 0;
    ++blocks;
    kinds = kinds >> 4 | (kinds & 15) << last_kind;
    ++block;
    if (block == blocks_per_mcu) block = 0;
    const int left = static_cast<int>(end - position);
    if (left < 0 || (left < 8 && block == 0)) settle();
    return true;
  }
};

__device__ __forceinline__ u32 subsequences_of(const StagedImage& image) {
  return (image.data_bytes * 8 + kSubsequenceBits - 1) / kSubsequenceBits;
}

// An image's runs: those of `subsequences`, those of `synchronize`, and the beginnings that `chain` writes: first the
// scan's, then for each run its own. Then where each run of `synchronize` was on its way, kPassedMax for each. For each
// subsequence but the first the run of the chain that has come into it.
struct Runs {
  FoundRun *own, *linked, *begun, *passed;
  u32* owner;
  u32 count;
  __device__ __forceinline__ Runs(const StagedImage& image, u8* scratch) : count(subsequences_of(image)) {
    own = reinterpret_cast<FoundRun*>(scratch + static_cast<u64>(image.runs) * 16);
    linked = own + count;
    begun = linked + count;
    passed = begun + count + 1;
    owner = reinterpret_cast<u32*>(passed + static_cast<u64>(count) * kPassedMax);
  }
};

__device__ __forceinline__ void store(const Walk& walk, u32 link, u32 passed, FoundRun& to) {
  FoundRun made = {walk.position, walk.state(), walk.blocks, {walk.sums[0], walk.sums[1], walk.sums[2]}, link, 0, 0};
  made.restarted = walk.restarted ? 1 : 0;
  made.passed = passed;
  to = made;
}

}  // namespace

// Makes the tables for the kernels that follow of those that the batch's images share. Grid: any number of blocks,
// tables.
extern "C" __global__ void __launch_bounds__(kTableThreads)
    find_tables(const Tables* __restrict__ tables_of, FindTables* __restrict__ made) {
  const Tables& from = tables_of[blockIdx.y];
  FindTables& to = made[blockIdx.y];
  const int thread = thread_number(), begin = static_cast<int>(blockIdx.x) * kTableThreads + thread;
  const int step = static_cast<int>(gridDim.x) * kTableThreads;
  for (int i = 0; i < kEachCodes; ++i) {
    for (int j = begin; j < kDcSymbols; j += step) to.dc[i][j] = static_cast<u16>(entry_of(from.dc[i][j], false));
    for (int j = begin; j < kAdvances; j += step) {
      to.ac[i][j] = static_cast<u16>(advance_of(from, i + kEachCodes, static_cast<u32>(j)));
    }
  }
  if (blockIdx.x != 0) return;
  for (int i = 0; i < kEachCodes; ++i) {
    const u32 least = from.codes[i + kEachCodes].ends[kAdvanceBits];
    if (thread == 0) to.rare_from[i] = least;
    for (u32 j = static_cast<u32>(thread); j < kRare; j += kTableThreads) {
      to.rare[i][j] = least + j > 0xFFFF ? 0 : static_cast<u16>(single(from, i + kEachCodes, least + j));
    }
  }
  if (thread < kStagedCodes) to.codes[thread] = from.codes[thread];
  for (int i = 0; i < kStagedCodes; ++i) to.symbols[i][thread] = from.symbols[i][thread];
}

extern "C" __global__ void __launch_bounds__(kFindThreads)
    subsequences(const u8* __restrict__ batch, const StagedWork* __restrict__ work,
                 const FindTables* __restrict__ tables, u8* __restrict__ scratch) {
  __shared__ Window window;
  const StagedWork item = work[blockIdx.x];
  const StagedImage& image = reinterpret_cast<const StagedImage*>(batch)[item.image];
  if (image.interval_count == 0) return;  // taken out
  const u32 first = static_cast<u32>(item.thread), number = first + static_cast<u32>(thread_number());
  load(batch, image, tables, first, 0, window);
  const Runs runs(image, scratch);
  if (number >= runs.count) return;
  Walk walk(window, batch, image);
  walk.begin(number * kSubsequenceBits, 0);
  walk.run((number + 1) * kSubsequenceBits);
  store(walk, kNoLink, 0, runs.own[number]);
}

extern "C" __global__ void __launch_bounds__(kFindThreads)
    synchronize(const u8* __restrict__ batch, const StagedWork* __restrict__ work,
                const FindTables* __restrict__ tables, u8* __restrict__ scratch) {
  __shared__ Window window;
  const StagedWork item = work[blockIdx.x];
  const StagedImage& image = reinterpret_cast<const StagedImage*>(batch)[item.image];
  if (image.interval_count == 0) return;  // taken out
  const u32 first = static_cast<u32>(item.thread), number = first + static_cast<u32>(thread_number());
  load(batch, image, tables, first, 0, window);
  const Runs runs(image, scratch);
  if (number >= runs.count) return;
  Walk walk(window, batch, image);
  walk.begin(runs.own[number].bit, runs.own[number].state);
  u32 target = number + 1, until = (target + 1) * kSubsequenceBits, passed = 0;
  // One loop: lanes look for their links while others of their warp still decode.
  for (bool ends = true;;) {
    if (!ends || (walk.position < until && !walk.finished)) {
      ends = walk.step();
      continue;
    }
    u32 link = walk.finished ? kEndLink : kNoLink;
    if (!walk.finished && target < runs.count) {
      const FoundRun& other = runs.own[target];
      if (other.bit == walk.position && other.state == walk.state()) {
        link = target;
      } else if (target - number < kLinkMax) {
        if (passed < kPassedMax) store(walk, kNoLink, 0, runs.passed[static_cast<u64>(number) * kPassedMax + passed++]);
        ++target;
        until += kSubsequenceBits;
        continue;
      }
    }
    store(walk, link, passed, runs.linked[number]);
    return;
  }
}

// A block for each image.
extern "C" __global__ void __launch_bounds__(kChainThreads)
    chain(const u8* __restrict__ batch, long long first_image, u8* __restrict__ scratch, int* __restrict__ bad) {
  struct Sum {
    u32 blocks, restarted;
    int sums[3];
    __device__ __forceinline__ void add(const Sum& later) {
      blocks += later.blocks;
      restarted |= later.restarted;
      for (int c = 0; c < 3; ++c) sums[c] = later.sums[c] + (later.restarted != 0 ? 0 : sums[c]);
    }
  };
  __shared__ u32 jumps[kChainThreads], on_chain[kChainThreads];
  __shared__ Sum scanned[kChainThreads];
  __shared__ Sum carried;
  __shared__ u32 entry;  // the next run of the chain
  const u32 image_number = static_cast<u32>(first_image) + blockIdx.x;
  const StagedImage& image = reinterpret_cast<const StagedImage*>(batch)[image_number];
  if (image.interval_count == 0) return;  // nothing to find
  const Runs runs(image, scratch);
  const u32 thread = static_cast<u32>(thread_number());
  if (thread == 0) {
    const FoundRun& own = runs.own[0];
    carried = {own.blocks, own.restarted, {own.sums[0], own.sums[1], own.sums[2]}};
    entry = 0;
    runs.begun[0] = {0, 0, 0, {0, 0, 0}, 0, 1, 0};  // up to the end of the first subsequence
  }
  __syncthreads();
  for (u32 base = 0; base < runs.count; base += kChainThreads) {
    const u32 number = base + thread, count = min(static_cast<u32>(kChainThreads), runs.count - base);
    FoundRun linked = {};
    if (thread < count) linked = runs.linked[number];
    // Doubling: after n rounds all runs of the chain that are fewer than 2^n links away are known.
    u32 jump = thread < count && linked.link < base + count ? linked.link - base : kNoLink;
    bool is_on = number == entry;
    jumps[thread] = jump;
    on_chain[thread] = is_on ? 1 : 0;
    __syncthreads();
    for (u32 reach = 1; reach < count; reach *= 2) {
      is_on = on_chain[thread] != 0;
      const u32 beyond = jump != kNoLink ? jumps[jump] : kNoLink;
      __syncthreads();
      if (is_on && jump != kNoLink) on_chain[jump] = 1;
      jumps[thread] = jump = beyond;
      __syncthreads();
    }
    is_on = on_chain[thread] != 0;
    Sum sum = {};
    if (is_on) sum = {linked.blocks, linked.restarted, {linked.sums[0], linked.sums[1], linked.sums[2]}};
    if (thread == 0) {
      Sum all = carried;
      all.add(sum);
      sum = all;
    }
    scanned[thread] = sum;
    __syncthreads();
    for (u32 distance = 1; distance < kChainThreads; distance *= 2) {
      Sum before = {};
      if (thread >= distance) before = scanned[thread - distance];
      __syncthreads();
      if (thread >= distance) {
        before.add(sum);
        scanned[thread] = sum = before;
      }
      __syncthreads();
    }
    if (thread < count) {
      const Sum before = thread == 0 ? carried : scanned[thread - 1];
      const FoundRun& own = runs.own[number];
      FoundRun begun = {
          own.bit, own.state, before.blocks, {before.sums[0], before.sums[1], before.sums[2]}, linked.link, 0, 0};
      begun.restarted = is_on ? 1 : 0;
      begun.passed = linked.passed;
      runs.begun[number + 1] = begun;
      if (is_on) {
        const u32 last = min(linked.link, runs.count);
        for (u32 i = number + 1; i <= last; ++i) runs.owner[i] = number;
      }
      if (is_on && linked.link == kNoLink) bad[image_number] = 1;
    }
    __syncthreads();
    if (is_on && (linked.link >= base + count)) entry = linked.link;
    if (thread == 0) carried = scanned[kChainThreads - 1];
    __syncthreads();
  }
}

namespace {

// Writes the points of a subsequence; number 0 is the first one's beginning. False if it is not sound.
__device__ __forceinline__ bool find(const Runs& runs, u32 number, const StagedImage& image, Walk& walk,
                                     StagedPoint* __restrict__ to) {
  const u32 columns = static_cast<u32>(image.scan_columns), rows = static_cast<u32>(image.scan_rows);
  const u32 in_row = (columns + kSegmentMcus - 1) / kSegmentMcus;
  const u32 every = static_cast<u32>(image.restart_interval);
  // The run that has come into this subsequence, and which of its parts lies in it.
  const u32 run = number == 0 ? 0 : runs.owner[number], part = number == 0 ? 0 : number - run - 1;
  const FoundRun begun = runs.begun[number == 0 ? 0 : run + 1];
  if (number > 0 && part > begun.passed) return true;  // it has passed several ends at once
  const FoundRun* const passed = runs.passed + static_cast<u64>(run) * kPassedMax;
  u32 blocks = begun.blocks, bit = begun.bit, state = begun.state;
  int before[3] = {begun.sums[0], begun.sums[1], begun.sums[2]};
  if (part > 0) {
    const FoundRun& from = passed[part - 1];
    bit = from.bit;
    state = from.state;
    blocks += from.blocks;
    for (int c = 0; c < 3; ++c) before[c] = from.sums[c] + (from.restarted != 0 ? 0 : before[c]);
  }
  const u32 until = number > 0 && part < begun.passed ? passed[part].bit
                    : begun.link == kEndLink          ? 0xFFFFFFFFu
                                                      : runs.own[begun.link].bit;
  walk.begin(bit, state);
  const u32 mcu = blocks / walk.blocks_per_mcu;
  bool sound = true;
  u32 row = mcu / columns, column = mcu - row * columns, until_restart = every == 0 ? 0xFFFFFFFFu : every - mcu % every;
  const auto put = [&] {
    if (column % kSegmentMcus == 0 && row < rows) {
      StagedPoint point;
      point.bit = walk.position;
      for (int c = 0; c < 3; ++c) {
        const int value = walk.sums[c] + (walk.restarted ? 0 : before[c]);
        sound = sound && static_cast<u32>(value + 32768) < 65536;
        point.predictors[c] = static_cast<short>(value);
      }
      point.stuffed = 0;
      to[row * in_row + column / kSegmentMcus] = point;
    }
  };
  if (walk.state() == 0) put();
  while (!walk.finished && walk.position < until) {
    const u32 interval = walk.interval;
    if (!walk.step() || walk.block != 0) continue;
    ++column;
    if (column == columns) {
      column = 0;
      ++row;
    }
    --until_restart;
    // Restarts are where the interval says, and nowhere else.
    sound = sound && (walk.finished || (walk.interval != interval) == (until_restart == 0));
    if (until_restart == 0) until_restart = every;
    if (!walk.finished) put();
  }
  sound = sound && !walk.wrong;
  if (walk.finished) {
    sound = sound && row == rows && column == 0;
    to[rows * in_row] = {kNoStagedPoint, {}, 0};
  }
  return sound;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kFindThreads)
    points(u8* __restrict__ batch, const StagedWork* __restrict__ work, const FindTables* __restrict__ tables,
           u8* __restrict__ scratch, int* __restrict__ bad) {
  __shared__ Window window;
  const StagedWork item = work[blockIdx.x];
  const StagedImage& image = reinterpret_cast<const StagedImage*>(batch)[item.image];
  if (image.interval_count == 0) return;  // taken out
  const Runs runs(image, scratch);
  const u32 first = static_cast<u32>(item.thread), number = first + static_cast<u32>(thread_number());
  load(batch, image, tables, first, bad[item.image], window);
  if (window.bad != 0 || number > runs.count) return;
  Walk walk(window, batch, image);
  StagedPoint* const to = reinterpret_cast<StagedPoint*>(batch + image.found_points);
  if (!find(runs, number, image, walk, to)) bad[item.image] = 1;
}

namespace {

// How many of a word's bytes are FF.
__device__ __forceinline__ u32 full_bytes(u32 word) {
  const u32 inverse = ~word, carried = (inverse & 0x7F7F7F7F) + 0x7F7F7F7F;
  return static_cast<u32>(__popc(~(carried | inverse | 0x7F7F7F7F)));
}

}  // namespace

// Counts the bytes FF between points, so that the host can tell where they are in the file. Grid: any number of blocks,
// images.
extern "C" __global__ void __launch_bounds__(kFindThreads)
    stuffed(u8* __restrict__ batch, long long first_image, const int* __restrict__ bad) {
  const u32 image_number = static_cast<u32>(first_image) + blockIdx.y;
  const StagedImage& image = reinterpret_cast<const StagedImage*>(batch)[image_number];
  if (image.interval_count == 0 || bad[image_number] != 0) return;  // bad points may be far apart
  const u32* const words = reinterpret_cast<const u32*>(batch + image.data);
  StagedPoint* const points = reinterpret_cast<StagedPoint*>(batch + image.found_points);
  const u32 count = static_cast<u32>(image.scan_rows) * static_cast<u32>(image.points_in_row);
  const u32 step = gridDim.x * kFindThreads;
  for (u32 i = blockIdx.x * kFindThreads + static_cast<u32>(thread_number()) + 1; i < count; i += step) {
    const u32 begin = points[i - 1].bit / 8, end = min(points[i].bit / 8, image.data_bytes);
    u32 bytes = 0;
    for (u32 at = begin / 4; at * 4 < end; ++at) {
      const u32 word = __ldg(words + at);
      const u32 below = begin > at * 4 ? (1u << (8 * (begin - at * 4))) - 1 : 0;  // bytes that are not counted
      const u32 above = end < at * 4 + 4 ? ~((1u << (8 * (end - at * 4))) - 1) : 0;
      bytes += full_bytes(word & ~(below | above));
    }
    points[i].stuffed = static_cast<unsigned short>(bytes);
  }
}

// Copies data and points of files that are kept. Grid: any number of blocks, files.
extern "C" __global__ void __launch_bounds__(kFindThreads)
    keep(const u8* __restrict__ batch, const StagedKeep* __restrict__ files) {
  const StagedKeep& file = files[blockIdx.y];
  const uint4* const data = reinterpret_cast<const uint4*>(batch + file.data);
  const uint4* const points = reinterpret_cast<const uint4*>(batch + file.points);
  uint4* const to = reinterpret_cast<uint4*>(file.to);
  const u32 step = gridDim.x * kFindThreads;
  for (u32 i = blockIdx.x * kFindThreads + static_cast<u32>(thread_number()); i < file.data_words + file.point_words;
       i += step) {
    to[i] = i < file.data_words ? data[i] : points[i - file.data_words];
  }
}

}  // namespace fastload
