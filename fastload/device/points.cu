// Finds where the segments of a scan begin in files that the index does not know: a part of decode.cu.
//
// A Huffman-coded scan synchronizes itself: a decoder that starts at any bit soon decodes the same symbols as one that
// started at the scan's beginning (Weissenberger and Schmidt, "Massively Parallel Huffman Decoding on GPUs", 2018, and
// "Accelerating JPEG Decompression on GPUs", arXiv 2111.09219). The scan is cut into subsequences of equal length.
// `subsequences` decodes each from its first bit on. `synchronize` decodes on from where each ended, until it is in the
// state in which a later one has ended: a link. `chain` follows the links from the scan's first bit on, which is what a
// sequential decoder would do, and adds up blocks and DC differences. `points` decodes once more, along the chain, and
// writes the points. Whatever does not come out even (links, numbers of blocks, restarts, the end of the data) makes the
// image bad: the host decodes it.

#include "decode_layout.h"
#include "huffman.cu"

namespace fastload {
namespace {

constexpr int kFindThreads = 256;  // as in decode.py
constexpr int kChainThreads = 512;
constexpr u32 kNoLink = 0xFFFFFFFF, kEndLink = 0xFFFFFFFE;

// A sequential decoder that keeps no values but the sums of DC differences. It may start anywhere.
struct Walk {
  const Tables& tables;
  const u32* data;
  const u32* ends;  // of the restart intervals, in bytes
  u32 words, intervals;
  u32 first_kinds, last_kind, blocks_per_mcu;

  u32 position, now, next, after;  // bits; the words at and behind the position
  u32 kinds, block, k;             // as in `huffman`; the block of the MCU and the zigzag index that come next
  u32 interval, end;               // of the interval, in bits
  u32 blocks;                      // that have ended
  int sums[3];                     // of each component's DC differences since the last restart
  bool restarted, finished, wrong;

  __device__ __forceinline__ Walk(const Tables& tables, const u8* batch, const StagedImage& image)
      : tables(tables),
        data(reinterpret_cast<const u32*>(batch + image.data)),
        ends(reinterpret_cast<const u32*>(batch + image.intervals)),
        words((image.data_bytes + 3) / 4),
        intervals(static_cast<u32>(image.interval_count)) {
    const int luma = image.across * image.down, count = luma + image.components - 1;
    first_kinds = 0;
    for (int i = 0; i < count; ++i) {
      const int c = i < luma ? 0 : i - luma + 1;
      first_kinds |= static_cast<u32>(c | (image.dc[c] << 2) | ((image.ac[c] - kEachCodes) << 3)) << (4 * i);
    }
    last_kind = static_cast<u32>(4 * (count - 1));
    blocks_per_mcu = static_cast<u32>(count);
  }

  __device__ __forceinline__ u32 word(u32 i) const { return i < words ? __byte_perm(__ldg(data + i), 0, 0x0123) : 0; }
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

  // Begins at a bit, with a block of the MCU and a zigzag index.
  __device__ __forceinline__ void begin(u32 bit, u32 state) {
    finished = state == kFinishedState;
    if (finished) state = 0;
    seek(bit);
    block = state >> 8;
    k = state & 255;
    kinds = block == 0 ? first_kinds
                       : first_kinds >> (4 * block) | (first_kinds << (4 * (blocks_per_mcu - block)) &
                                                       ((2u << (last_kind + 3)) - 1));
    blocks = 0;
    sums[0] = sums[1] = sums[2] = 0;
    restarted = wrong = false;
    u32 low = 0, high = intervals - 1;  // the first interval that ends behind the bit
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
    if (state == 0 && !finished) settle();
  }
  __device__ __forceinline__ u32 state() const { return block << 8 | k; }

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
    if (interval + 1 >= intervals) {
      finished = true;
      return;
    }
    seek(end);
    end = ends[++interval] * 8;
    restarted = true;
    sums[0] = sums[1] = sums[2] = 0;
  }

  // Decodes a symbol. True if an MCU comes next.
  __device__ __forceinline__ bool step() {
    const u32 bits_ahead = peek();
    const u16* const dc = tables.dc[0] + (kinds >> 2 & 1) * kDcSymbols + (bits_ahead >> (32 - kDcBits));
    const u16* const ac = tables.ac[0] + (kinds >> 3 & 1) * kAcSymbols + (bits_ahead >> (32 - kAcBits));
    u32 symbol = *(k == 0 ? dc : ac);
    if (symbol == 0) {
      symbol = k == 0 ? symbol_of(tables, kinds >> 2 & 1, bits_ahead >> 16, kDcBits + 1, 16)
                      : symbol_of(tables, (kinds >> 3 & 1) + kEachCodes, bits_ahead >> 16, kAcBits + 1, 16);
      if (symbol == 0) {
        wrong = true;
        take(1);
        block = k = 0;
        kinds = first_kinds;
        if (position >= end) leave();
        return false;
      }
    }
    const u32 size = symbol & 15, bits = symbol >> 4 & 31, at = k + (symbol >> 9);
    take(bits);
    if (k == 0) {
      const u32 tail = bits_ahead << (bits - size);
      const int value = static_cast<int>(tail >> 1 >> (31 - size)) +
                        (static_cast<int>(tail) < 0 ? 0 : 1 - static_cast<int>(1u << size));
      const u32 component = kinds & 3;
      sums[0] += component == 0 ? value : 0;
      sums[1] += component == 1 ? value : 0;
      sums[2] += component == 2 ? value : 0;
    }
    wrong |= (at & kWrongIndex) != 0;
    if (at < 63) {
      k = at + 1;
      return false;
    }
    k = 0;
    ++blocks;
    kinds = kinds >> 4 | (kinds & 15) << last_kind;
    if (++block < blocks_per_mcu) {
      if (position > end) settle();
      return false;
    }
    block = 0;
    settle();
    return true;
  }
};

__device__ __forceinline__ const Tables& load_tables(const Tables* from, uint4* shared) {
  const uint4* const made = reinterpret_cast<const uint4*>(from);
  for (int i = thread_number(); i < static_cast<int>(sizeof(Tables) / 16); i += kFindThreads) {
    shared[i] = __ldg(made + i);
  }
  return *reinterpret_cast<const Tables*>(shared);
}

__device__ __forceinline__ u32 subsequences_of(const StagedImage& image) {
  return (image.data_bytes * 8 + kSubsequenceBits - 1) / kSubsequenceBits;
}

// An image's runs: those of `subsequences`, of `synchronize`, and the beginnings that `chain` writes.
struct Runs {
  FoundRun *own, *linked, *begun;
  u32 count;
  __device__ __forceinline__ Runs(const StagedImage& image, u8* scratch) : count(subsequences_of(image)) {
    own = reinterpret_cast<FoundRun*>(scratch + static_cast<u64>(image.runs) * 16);
    linked = own + count;
    begun = linked + count;
  }
};

__device__ __forceinline__ void store(const Walk& walk, u32 link, FoundRun& to) {
  to = {walk.position, walk.finished ? kFinishedState : walk.state(),         walk.blocks, {walk.sums[0], walk.sums[1], walk.sums[2]},
        link,          walk.restarted ? 1u : 0u};
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kFindThreads)
    subsequences(const u8* __restrict__ batch, const StagedWork* __restrict__ work,
                 const Tables* __restrict__ tables_of, u8* __restrict__ scratch) {
  __shared__ uint4 shared[sizeof(Tables) / 16];
  const StagedWork item = work[blockIdx.x];
  const StagedImage& image = reinterpret_cast<const StagedImage*>(batch)[item.image];
  const Tables& tables = load_tables(tables_of + image.code_set, shared);
  __syncthreads();
  const Runs runs(image, scratch);
  const u32 last = min(static_cast<u32>(item.thread) + kFindsPerBlock, runs.count);
  Walk walk(tables, batch, image);
  for (u32 number = static_cast<u32>(item.thread + thread_number()); number < last; number += kFindThreads) {
    const u32 until = (number + 1) * kSubsequenceBits;
    walk.begin(number * kSubsequenceBits, 0);
    while (walk.position < until && !walk.finished) walk.step();
    store(walk, kNoLink, runs.own[number]);
  }
}

extern "C" __global__ void __launch_bounds__(kFindThreads)
    synchronize(const u8* __restrict__ batch, const StagedWork* __restrict__ work,
                const Tables* __restrict__ tables_of, u8* __restrict__ scratch) {
  __shared__ uint4 shared[sizeof(Tables) / 16];
  __shared__ u32 taken;
  const StagedWork item = work[blockIdx.x];
  const StagedImage& image = reinterpret_cast<const StagedImage*>(batch)[item.image];
  const Tables& tables = load_tables(tables_of + image.code_set, shared);
  if (thread_number() == 0) taken = kFindThreads;
  __syncthreads();
  const Runs runs(image, scratch);
  const u32 first = static_cast<u32>(item.thread), last = min(first + kFindsPerBlock, runs.count);
  Walk walk(tables, batch, image);
  u32 number = first + static_cast<u32>(thread_number()), target = 0, until = 0;
  bool begins = true;
  // A symbol at a time, so that threads take the next run while others of their warp still decode.
  while (number < last) {
    if (begins) {
      const FoundRun& own = runs.own[number];
      walk.begin(own.bit, own.state);
      target = number + 1;
      until = (target + 1) * kSubsequenceBits;
      begins = false;
    }
    if (!walk.finished && walk.position < until) {
      walk.step();
      continue;
    }
    u32 link = kEndLink;
    if (!walk.finished && target < runs.count) {
      const FoundRun& other = runs.own[target];
      const bool same = other.bit == walk.position && other.state == walk.state();
      if (!same && target - number < kLinkMax) {
        ++target;
        until += kSubsequenceBits;
        continue;
      }
      link = same ? target : kNoLink;
    }
    store(walk, link, runs.linked[number]);
    number = first + atomicAdd(&taken, 1u);
    begins = true;
  }
}

// A block for each image.
extern "C" __global__ void __launch_bounds__(kChainThreads)
    chain(const u8* __restrict__ batch, long long first_image, u8* __restrict__ scratch, u32* __restrict__ found,
          int* __restrict__ bad) {
  struct Sum {
    u32 links, blocks, restarted;
    int sums[3];
    __device__ __forceinline__ void add(const Sum& later) {
      links += later.links;
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
    carried = {1, own.blocks, own.restarted, {own.sums[0], own.sums[1], own.sums[2]}};
    entry = 0;
    runs.begun[0] = {0, 0, 0, {0, 0, 0}, kNoLink, 0};  // up to the end of the first subsequence
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
    if (is_on) sum = {1, linked.blocks, linked.restarted, {linked.sums[0], linked.sums[1], linked.sums[2]}};
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
    if (is_on) {
      const Sum before = thread == 0 ? carried : scanned[thread - 1];
      runs.begun[before.links] = {number, 0, before.blocks, {before.sums[0], before.sums[1], before.sums[2]}, linked.link, 0};
      const bool ends = linked.link == kEndLink;
      if (ends || linked.link == kNoLink) {
        const u32 blocks = static_cast<u32>(image.across * image.down + image.components - 1);
        const u64 whole = static_cast<u64>(image.scan_columns) * static_cast<u64>(image.scan_rows) * blocks;
        const bool sound = ends && linked.state == kFinishedState && sum.blocks == whole;
        if (!sound) bad[image_number] = 1;
        found[image_number] = sound ? sum.links : 0;
      }
    }
    __syncthreads();
    if (is_on && (linked.link >= base + count)) entry = linked.link;
    if (thread == 0) carried = scanned[kChainThreads - 1];
    __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(kFindThreads)
    points(u8* __restrict__ batch, const StagedWork* __restrict__ work, const Tables* __restrict__ tables_of,
           u8* __restrict__ scratch, const u32* __restrict__ found, int* __restrict__ bad) {
  __shared__ uint4 shared[sizeof(Tables) / 16];
  __shared__ u32 taken;
  const StagedWork item = work[blockIdx.x];
  const StagedImage& image = reinterpret_cast<const StagedImage*>(batch)[item.image];
  const u32 first = static_cast<u32>(item.thread), last = min(first + kFindsPerBlock, found[item.image]);
  if (first >= last) return;
  const Tables& tables = load_tables(tables_of + image.code_set, shared);
  if (thread_number() == 0) taken = kFindThreads;
  __syncthreads();
  const Runs runs(image, scratch);
  Walk walk(tables, batch, image);
  StagedPoint* const to = reinterpret_cast<StagedPoint*>(batch + image.found_points);
  const u32 columns = static_cast<u32>(image.scan_columns), rows = static_cast<u32>(image.scan_rows);
  const u32 in_row = (columns + kSegmentMcus - 1) / kSegmentMcus;
  const u32 every = static_cast<u32>(image.restart_interval);
  u32 number = first + static_cast<u32>(thread_number()), until = 0, row = 0, column = 0, until_restart = 0;
  int before[3] = {0, 0, 0};
  bool begins = true, sound = true;
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
  while (number < last) {
    if (begins) {
      const FoundRun begun = runs.begun[number];
      const bool from_start = number == 0;
      const FoundRun own = runs.own[begun.bit];
      walk.begin(from_start ? 0 : own.bit, from_start ? 0 : own.state);
      until = from_start ? own.bit : begun.link == kEndLink ? 0xFFFFFFFFu : runs.own[begun.link].bit;
      for (int c = 0; c < 3; ++c) before[c] = begun.sums[c];
      const u32 mcu = begun.blocks / walk.blocks_per_mcu;
      sound = sound && (walk.finished || begun.blocks - mcu * walk.blocks_per_mcu == walk.block);
      row = mcu / columns;
      column = mcu - row * columns;
      until_restart = every == 0 ? 0xFFFFFFFFu : every - mcu % every;
      begins = false;
      if (walk.state() == 0 && !walk.finished) put();
    }
    if (!walk.finished && walk.position < until) {
      const u32 interval = walk.interval;
      if (walk.step()) {
        ++column;
        if (column == columns) {
          column = 0;
          ++row;
        }
        --until_restart;
        // Restarts are where the interval says, and nowhere else.
        const bool left = walk.interval != interval || walk.finished;
        sound = sound && (walk.finished || left == (until_restart == 0));
        if (until_restart == 0) until_restart = every;
        if (!walk.finished) put();
      }
      continue;
    }
    sound = sound && !walk.wrong;
    if (walk.finished) {
      sound = sound && row == rows && column == 0;
      to[rows * in_row] = {kNoStagedPoint, {}, 0};
    }
    number = first + atomicAdd(&taken, 1u);
    begins = true;
  }
  if (!sound) bad[item.image] = 1;
}

// Counts the bytes FF between points, so that the host can tell where they are in the file. Grid: any number of blocks,
// images.
extern "C" __global__ void __launch_bounds__(kFindThreads)
    stuffed(u8* __restrict__ batch, long long first_image, const u32* __restrict__ found) {
  const u32 image_number = static_cast<u32>(first_image) + blockIdx.y;
  const StagedImage& image = reinterpret_cast<const StagedImage*>(batch)[image_number];
  if (image.interval_count == 0 || found[image_number] == 0) return;
  const u8* const data = batch + image.data;
  StagedPoint* const points = reinterpret_cast<StagedPoint*>(batch + image.found_points);
  const u32 count = static_cast<u32>(image.scan_rows) * static_cast<u32>(image.points_in_row);
  const u32 step = gridDim.x * kFindThreads;
  for (u32 i = blockIdx.x * kFindThreads + static_cast<u32>(thread_number()) + 1; i < count; i += step) {
    const u32 end = min(points[i].bit / 8, image.data_bytes);
    u32 bytes = 0;
    for (u32 at = points[i - 1].bit / 8; at < end; ++at) bytes += data[at] == 255 ? 1 : 0;
    points[i].stuffed = static_cast<unsigned short>(bytes);
  }
}

}  // namespace fastload
