// The loops over a progressive scan's symbols, which each level's file includes once: see scan_loops.h. With
// FASTLOAD_BMI2, bits are placed by its instructions.
#include <algorithm>
#include <cstdint>

#include "jpeg/entropy/bits.h"
#include "jpeg/progressive/scan.h"

#if defined(FASTLOAD_BMI2)
#include <immintrin.h>
#endif

namespace fastload {
namespace {

// The lowest bits of `bits` at the places that `mask` has.
FASTLOAD_INLINE std::uint64_t deposited(std::uint64_t bits, std::uint64_t mask) {
#if defined(FASTLOAD_BMI2)
  return _pdep_u64(bits, mask);
#else
  std::uint64_t result = 0;
  for (; bits != 0 && mask != 0; bits >>= 1, mask &= mask - 1) {
    if ((bits & 1) != 0) result |= mask & (~mask + 1);
  }
  return result;
#endif
}

FASTLOAD_INLINE unsigned ones(std::uint64_t bits) { return static_cast<unsigned>(__builtin_popcountll(bits)); }

// As many bits as an end of block has behind its code, which has been found, and that length of the run.
FASTLOAD_INLINE std::uint32_t run_of(const Bits& bits, std::uint32_t symbol) {
  const std::uint64_t less = symbol >> 24;
  const std::uint64_t rest = bits.bits << (symbol >> 8 & 63);
  return (1u << (63 - less)) + static_cast<std::uint32_t>(rest >> 1 >> less);
}

FASTLOAD_INLINE std::uint64_t take_corrections(Bits& bits, std::uint64_t mask, unsigned count) {
  const std::uint64_t result = deposited(bits.bits >> 1 >> (63 - count), mask);
  bits.take(count);
  return result;
}

// Takes a bit for each coefficient of `mask`, the next one for the highest. `bits` holds at least 32.
FASTLOAD_INLINE std::uint64_t corrections(Bits& bits, std::uint64_t mask) {
  constexpr unsigned kAtOnce = 32;
  const unsigned count = ones(mask);
  if (__builtin_expect(count <= kAtOnce, 1)) return take_corrections(bits, mask, count);
  std::uint64_t first = mask;  // all but the lowest kAtOnce
  for (unsigned i = 0; i < kAtOnce; ++i) first &= first - 1;
  const std::uint64_t result = take_corrections(bits, first, count - kAtOnce);
  bits.refill();
  return result | take_corrections(bits, mask ^ first, kAtOnce);
}

FASTLOAD_TARGET bool first_dc(DcRun& run) {
  Bits bits(run);
  bool fits = true;
  for (std::uint32_t mcu = 0; mcu < run.mcus; ++mcu) {
    if (bits.next > run.limit) return false;
    for (int i = 0; i < run.blocks; ++i) {
      DcRun::Block& block = run.block[i];
      bits.refill();
      const std::uint32_t symbol = block.table->symbol(bits.bits);
      if (symbol == 0) return false;
      int& predictor = run.predictors[block.component];
      predictor += value_at(bits.bits, symbol >> 8, symbol >> 24);
      bits.take(symbol);
      const int value = predictor * (1 << run.low);
      fits = fits && value == static_cast<std::int16_t>(value) && predictor == static_cast<std::int16_t>(predictor);
      *block.to = static_cast<std::int16_t>(value);
      block.to += block.step;
    }
    if (!fits) return false;
  }
  bits.save(run);
  return true;
}

FASTLOAD_TARGET bool refine_dc(DcRun& run) {
  Bits bits(run);
  for (std::uint32_t mcu = 0; mcu < run.mcus; ++mcu) {
    if (bits.next > run.limit) return false;
    bits.refill();
    for (int i = 0; i < run.blocks; ++i) {
      DcRun::Block& block = run.block[i];
      *block.to = static_cast<std::int16_t>(*block.to | static_cast<int>(bits.bits >> 63) << run.low);
      block.to += block.step;
      bits.take(1);
    }
  }
  bits.save(run);
  return true;
}

FASTLOAD_TARGET bool first_ac(AcRun& run) {
  Bits bits(run);
  const SymbolTable& table = *run.table;
  std::uint32_t* to = run.values;
  std::uint32_t left = run.empty_blocks;
  for (std::uint32_t i = 0; i < run.blocks; ++i) {
    if (left > 0) {
      const std::uint32_t empty = std::min(left, run.blocks - i);
      left -= empty;
      i += empty - 1;
      continue;
    }
    if (bits.next > run.limit) return false;
    const std::uint32_t column = run.column + i;
    std::uint32_t* const begin = to;
    std::uint64_t found = 0;
    unsigned k = run.first - 1;
    while (true) {
      bits.refill();
      const std::uint32_t symbol = table.symbol(bits.bits);
      const unsigned advance = symbol >> 16 & 255;
      if (symbol == 0) return false;
      if (advance < kZeroRun) {
        k += advance;
        if (k > run.last) return false;
        const int value = value_at(bits.bits, symbol >> 8, symbol >> 24) * (1 << run.low);
        bits.take(symbol);
        *to++ = (column * 64 + k) | static_cast<std::uint32_t>(value) << 16;
        found |= std::uint64_t{1} << (63 - k);
        if (k == run.last) break;
      } else if (advance == kZeroRun) {
        k += 16;
        if (k >= run.last) return false;
        bits.take(symbol);
      } else {
        left = run_of(bits, symbol) - 1;
        bits.take(symbol);
        break;
      }
    }
    run.known[i] |= found;
    if (column >= run.columns) to = begin;  // outside of the window
  }
  run.values = to;
  run.empty_blocks = left;
  bits.save(run);
  return true;
}

FASTLOAD_TARGET bool refine_ac(AcRun& run) {
  Bits bits(run);
  const SymbolTable& table = *run.table;
  std::uint32_t left = run.empty_blocks;
  const std::uint64_t band = ~std::uint64_t{0} >> run.first & ~std::uint64_t{0} << (63 - run.last);
  for (std::uint32_t i = 0; i < run.blocks; ++i) {
    if (bits.next > run.limit) return false;
    const std::uint64_t known = run.known[i];
    std::uint64_t plane = 0, negative = 0, fresh = 0, rest = band;
    while (left == 0) {
      bits.refill();
      const std::uint32_t symbol = table.symbol(bits.bits);
      if (symbol == 0) return false;
      const unsigned advance = symbol >> 16 & 255;
      if (advance >= kEndOfBlock) {
        left = run_of(bits, symbol);
        bits.take(symbol);
        break;
      }
      // The coefficient behind as many of those that are still 0.
      const std::uint64_t zeros = rest & ~known;
      const unsigned count = ones(zeros), skipped = advance == kZeroRun ? 15 : advance - 1;
      if (skipped >= count) return false;
      const std::uint64_t target = deposited(std::uint64_t{1} << (count - 1 - skipped), zeros);
      if (advance != kZeroRun) {
        if (symbol >> 24 != 62) return false;  // a value of one bit
        fresh |= target;
        if (value_at(bits.bits, symbol >> 8, symbol >> 24) < 0) negative |= target;
      }
      bits.take(symbol);
      plane |= corrections(bits, rest & known & ~(target - 1));
      rest &= target - 1;
      if (rest == 0) break;
    }
    if (left > 0) {
      bits.refill();
      plane |= corrections(bits, rest & known);
      --left;
    }
    run.plane[i] |= plane | fresh;
    run.negative[i] |= negative;
    run.known[i] = known | fresh;
  }
  run.empty_blocks = left;
  bits.save(run);
  return true;
}

#undef FASTLOAD_INLINE

}  // namespace
}  // namespace fastload
