// The parts of a progressive scan that its loops decode at a time. Knows no files.
#pragma once

#include <cstdint>

#include "jpeg/entropy/huffman.h"
#include "jpeg/entropy/scan.h"

namespace fastload {

// The data of a part goes on for at least kProgressiveSlack bytes behind `limit`.
inline constexpr std::size_t kProgressiveSlack = 1536;

// MCUs of one row, in a scan of DC coefficients.
struct DcRun : BitState {
  struct Block {
    int component;
    const SymbolTable* table;
    std::int16_t* to;
    int step;  // to the next MCU's
  };
  const std::uint8_t* limit = nullptr;
  int low = 0;  // the lowest bit that the scan has
  std::uint32_t mcus = 0;
  int predictors[kMaxComponents] = {};
  int blocks = 0;  // per MCU
  Block block[kMaxMcuBlocks];

  // Begins behind a restart marker, or ends the scan. False if something is left to do before.
  bool restart() {
    for (int& predictor : predictors) predictor = 0;
    return true;
  }
};

// Blocks of one row, in a scan of one component's AC coefficients. In masks, the coefficient with the zigzag index k is
// bit 63 - k.
struct AcRun : BitState {
  const std::uint8_t* limit = nullptr;
  const SymbolTable* table = nullptr;
  unsigned first = 0, last = 0;    // zigzag indices
  int low = 0;                     // as above
  std::uint32_t empty_blocks = 0;  // that the last end of block has announced
  std::uint32_t blocks = 0;
  std::uint64_t* known = nullptr;  // of each block, the coefficients that are not 0
  // A first scan's results: column of the block in the window * 64 + k, and in the upper half the coefficient.
  std::uint32_t* values = nullptr;
  std::uint32_t column = 0, columns = 0;  // the first block's in the window; those of the window, others are left out
  // A refinement's: the bits that it adds, and which of the new coefficients are negative.
  std::uint64_t* plane = nullptr;
  std::uint64_t* negative = nullptr;

  bool restart() const { return empty_blocks == 0; }
};

// Each decodes what the run says, and moves its state on. False if it is not sound: then the state is undefined.
struct ProgressiveKernels {
  bool (*first_dc)(DcRun& run);
  bool (*refine_dc)(DcRun& run);
  bool (*first_ac)(AcRun& run);
  bool (*refine_ac)(AcRun& run);
};

// The fastest ones here.
const ProgressiveKernels& progressive_kernels();

extern const ProgressiveKernels kPortableProgressive;
#if defined(__x86_64__)
extern const ProgressiveKernels kBmi2Progressive;
#endif

}  // namespace fastload
