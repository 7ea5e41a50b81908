// The loops over a scan's symbols, which each level's file includes once and compiles for its instructions: before the
// include it defines FASTLOAD_TARGET, the attribute of every function here.
#include <cstdint>
#include <cstring>

#include "jpeg/entropy/bits.h"
#include "jpeg/entropy/scan.h"

namespace fastload {

constexpr std::uint64_t kNotSound = ~std::uint64_t{0};

struct ScanKernels {
  // Pass over or decode up to `count` MCUs, until `state.next` is behind `state.limit`; the data goes on for at least
  // kMcuBytes behind that. Return how many are left, or kNotSound; `to` and the state go on behind the last one.
  std::uint64_t (*skip)(ScanState& state, std::uint64_t count);
  std::uint64_t (*decode)(ScanState& state, std::uint64_t count, BlockRows& to);
};

extern const ScanKernels kPortableScan;
#if defined(__x86_64__)
extern const ScanKernels kBmi2Scan;  // also needs AVX2
#endif

namespace {

FASTLOAD_INLINE bool decode_dc(Bits& bits, const DcTable& table, int& predictor) {
  bits.refill();
  const std::uint32_t symbol = table.symbol(bits.bits);
  if (symbol == 0) return false;
  predictor += value_at(bits.bits, symbol >> 8, symbol >> 24);
  bits.take(symbol);
  return true;
}

// Whether a block may end at this sum of advances: its last coefficient, or an end-of-block symbol before that.
FASTLOAD_INLINE bool ends_well(unsigned k) {
  return k == kBlockSize - 1 || (k >= kEndOfBlock && k < kEndOfBlock + kBlockSize - 1);
}

constexpr unsigned kBad = 0;  // no block ends so

// The rest of a block from zigzag position `k` on, symbol by symbol.
template <bool kKeep>
FASTLOAD_TARGET __attribute__((noinline)) unsigned decode_slowly(Bits& bits, const AcTable& table, unsigned k,
                                                                 std::int16_t* block) {
  while (k < kBlockSize - 1) {
    bits.refill();
    const std::uint32_t symbol = table.symbol(bits.bits);
    if (symbol == 0) return kBad;
    k += symbol >> 16 & 255;
    if (kKeep) {
      block[kNaturalOrder[k]] = static_cast<std::int16_t>(value_at(bits.bits, symbol >> 8, symbol >> 24));
    }
    bits.take(symbol);
  }
  return ends_well(k) ? k : kBad;
}

// One look-up: adds its advance to `k` and takes its bits. Returns the entry, 0 if there is no such symbol; its low
// bytes are the bits and the advance.
template <bool kKeep>
FASTLOAD_INLINE std::uint64_t look_up(Bits& bits, const AcTable& table, unsigned& k, std::int16_t* block) {
  std::uint64_t entry;
  if constexpr (kKeep) {
    entry = table.pairs[bits.bits >> (64 - AcTable::kPairBits)];
    if (__builtin_expect(entry != 0, 1)) {
      block[kNaturalOrder[k + (entry >> 16 & 255)]] = static_cast<std::int16_t>(entry >> 48);
      k += entry >> 8 & 255;
      block[kNaturalOrder[k]] = static_cast<std::int16_t>(value_at(bits.bits, entry >> 24, entry >> 32));
      bits.take(entry);
      return entry;
    }
  } else {
    entry = table.skips[bits.bits >> (64 - AcTable::kSkipBits)];
    if (__builtin_expect(entry != 0, 1)) {
      k += static_cast<unsigned>(entry >> 8);
      bits.take(entry);
      return entry;
    }
  }
  const std::uint32_t symbol = table.symbol(bits.bits);
  const unsigned advance = symbol >> 16 & 255;
  k += advance;
  if constexpr (kKeep) {
    block[kNaturalOrder[k]] = static_cast<std::int16_t>(value_at(bits.bits, symbol >> 8, symbol >> 24));
  }
  bits.take(symbol);
  return symbol == 0 ? 0 : (symbol & 255) | advance << 8;
}

// A block's AC coefficients. `bits` holds at least 29 bits. Returns the sum of advances; kBad if the block is not
// sound.
template <bool kKeep>
FASTLOAD_INLINE unsigned decode_ac(Bits& bits, const AcTable& table, std::int16_t* block) {
  unsigned k = 0;
  std::uint64_t entry;
  while (true) {
    entry = look_up<kKeep>(bits, table, k, block);
    if (entry == 0) return kBad;
    if (k >= kBlockSize - 1) break;
    bits.refill();
    entry = look_up<kKeep>(bits, table, k, block);
    if (entry == 0) return kBad;
    if (k >= kBlockSize - 1) break;
  }
  if (__builtin_expect(ends_well(k), 1)) return k;
  // The last look-up took symbols of the next block. What it stored within the block belongs there.
  Bits copy = bits;  // only its address leaves the registers
  copy.go_back(entry & 255);
  k = decode_slowly<kKeep>(copy, table, k - (entry >> 8 & 255), block);
  bits = copy;
  return k;
}

FASTLOAD_TARGET std::uint64_t skip_mcus(ScanState& state, std::uint64_t count) {
  Bits bits(state);
  const ScanState::Block* const end = state.block + state.blocks;
  for (; count > 0 && bits.next <= state.limit; --count) {
    for (const ScanState::Block* block = state.block; block != end; ++block) {
      if (!decode_dc(bits, *block->dc, state.predictors[block->component])) return kNotSound;
      if (decode_ac<false>(bits, *block->ac, nullptr) == kBad) return kNotSound;
    }
  }
  bits.save(state);
  return count;
}

FASTLOAD_TARGET std::uint64_t decode_mcus(ScanState& state, std::uint64_t count, BlockRows& to) {
  Bits bits(state);
  const ScanState::Block* const end = state.block + state.blocks;
  for (; count > 0 && bits.next <= state.limit; --count) {
    for (const ScanState::Block* block = state.block; block != end; ++block) {
      int& predictor = state.predictors[block->component];
      if (!decode_dc(bits, *block->dc, predictor)) return kNotSound;
      BlockRows::Row& row = to.component[block->component][block->row];
      if (row.blocks == nullptr) {
        if (decode_ac<false>(bits, *block->ac, nullptr) == kBad) return kNotSound;
        continue;
      }
      std::int16_t* const at = row.blocks;
      for (int i = 0; i < kBlockSize; i += 16) std::memset(at + i, 0, 16 * sizeof *at);  // a single one would be a call
      const unsigned k = decode_ac<true>(bits, *block->ac, at);
      if (k == kBad) return kNotSound;
      at[0] = static_cast<std::int16_t>(predictor);
      *row.last++ = static_cast<std::uint8_t>(k & (kEndOfBlock - 1));
      row.blocks += kBlockSize;
    }
  }
  bits.save(state);
  return count;
}

#undef FASTLOAD_INLINE

}  // namespace
}  // namespace fastload
