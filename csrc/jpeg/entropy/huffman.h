// Huffman tables of a baseline scan, arranged to decode several symbols with one look-up. Knows no files.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace fastload {

// A code as a file defines it.
struct HuffmanCode {
  std::array<std::uint8_t, 16> counts{};    // of codes of 1 to 16 bits
  std::array<std::uint8_t, 256> symbols{};  // in the order of their codes, then zeros

  bool operator==(const HuffmanCode& other) const { return counts == other.counts && symbols == other.symbols; }
};

inline constexpr int kBlockSize = 64;  // coefficients
// A coefficient's index in the block by its place in the zigzag. 0 behind the block's end: the DC coefficient, which is
// stored last.
extern const std::uint8_t kNaturalOrder[256];

// What an end-of-block symbol adds to the zigzag position: more than a block's symbols could add, so that the sum tells
// a block that was ended from one that ran over its end.
inline constexpr unsigned kEndOfBlock = 128;
inline constexpr unsigned kZeroRun = 64;

// What a code's symbols say.
enum class SymbolKind { dc, ac, progressive_ac };

// Symbols one at a time.
//
// A symbol is packed as: bits of code and value, bits of the code, zigzag advance, 63 - bits of the value; 8 bits each,
// from the lowest on. 0: no code, or one that no 8-bit image needs. In progressive scans, an end of block has the
// length of the run of such blocks for a value, and kZeroRun is the advance of 16 zeros.
struct SymbolTable {
  static constexpr int kBits = 9;

  bool build(const HuffmanCode& code, SymbolKind kind);
  // Of a code that is longer than kBits; `next` is the next 16 bits.
  std::uint32_t long_symbol(std::uint32_t next) const;
  std::uint32_t symbol(std::uint64_t bits) const {
    const std::uint32_t found = first[bits >> (64 - kBits)];
    return found != 0 ? found : long_symbol(static_cast<std::uint32_t>(bits >> 48));
  }

  HuffmanCode code;
  std::uint32_t first[1 << kBits];
  std::uint32_t ends[17];    // behind the last code of each length, left-justified in 16 bits
  std::int32_t offsets[17];  // of a code's symbol, from the code
  std::array<std::uint32_t, 256> symbols;
};

using DcTable = SymbolTable;

struct AcTable : SymbolTable {
  static constexpr int kPairBits = 10;
  static constexpr int kSkipBits = 12;

  bool build(const HuffmanCode& code);

  // One or two symbols; the first one's value lies within the window, the second's may reach beyond it. From the lowest
  // bits on, 8 bits each: all bits, advance, advance to the first value, start of the second value, 63 - its bits; from
  // bit 48 on: the first value. A single symbol is the second. 0: no such symbol.
  std::uint64_t pairs[1 << kPairBits];
  // As many symbols as fit. Low byte: their bits; high byte: their advance. 0: no such symbol.
  std::uint16_t skips[1 << kSkipBits];
};

// Tables by their content, because building them takes longer than a small image. Not thread-safe.
class HuffmanTables {
 public:
  // Null if the code is not valid. Valid during the next `kKept - 1` calls. Throws std::bad_alloc.
  const DcTable* dc(const HuffmanCode& code) { return dc_.find(code); }
  const AcTable* ac(const HuffmanCode& code) { return ac_.find(code); }

  static constexpr std::size_t kKept = 8;

 private:
  template <typename Table>
  class Cache {
   public:
    const Table* find(const HuffmanCode& code);

   private:
    struct Entry {
      HuffmanCode code;
      std::unique_ptr<Table> table;
    };
    std::vector<Entry> entries_;  // the last used first
  };

  Cache<DcTable> dc_;
  Cache<AcTable> ac_;
};

}  // namespace fastload
