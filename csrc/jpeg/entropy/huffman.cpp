#include "jpeg/entropy/huffman.h"

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>

namespace fastload {
namespace {

// The largest values of 8-bit images: libjpeg takes more, and is asked.
constexpr int kMostAcBits = 10;
constexpr int kMostDcBits = 11;

constexpr int code_bits(std::uint32_t symbol) { return static_cast<int>(symbol >> 8 & 255); }
constexpr int all_bits(std::uint32_t symbol) { return static_cast<int>(symbol & 255); }
constexpr unsigned advance(std::uint32_t symbol) { return symbol >> 16 & 255; }
constexpr int value_bits(std::uint32_t symbol) { return all_bits(symbol) - code_bits(symbol); }
constexpr bool ends_block(std::uint32_t symbol) { return advance(symbol) == kEndOfBlock; }

constexpr std::uint32_t pack_symbol(int symbol, int length, SymbolKind kind) {
  const int run = symbol >> 4;
  int size = symbol & 15;
  if (size > (kind == SymbolKind::dc ? kMostDcBits : kMostAcBits)) return 0;
  unsigned advance = 0;
  if (kind != SymbolKind::dc) advance = size != 0 || run == 15 ? static_cast<unsigned>(run) + 1 : kEndOfBlock;
  if (kind == SymbolKind::progressive_ac && size == 0) {
    if (run == 15) {
      advance = kZeroRun;
    } else {
      size = run;
    }
  }
  return static_cast<std::uint32_t>(length + size) | static_cast<std::uint32_t>(length) << 8 | advance << 16 |
         static_cast<std::uint32_t>(63 - size) << 24;
}

// The value of a symbol at the top of `window`, all of whose bits are known.
int value_in(std::uint32_t symbol, std::uint32_t window, int window_bits) {
  const int size = value_bits(symbol);
  if (size == 0) return 0;
  const int value = static_cast<int>(window >> (window_bits - all_bits(symbol))) & ((1 << size) - 1);
  return value >> (size - 1) != 0 ? value : value - (1 << size) + 1;
}

std::uint64_t pack_pair(int bits, unsigned advance, unsigned first_advance, int second_at, int second_bits,
                        int first_value) {
  return static_cast<std::uint64_t>(bits) | std::uint64_t{advance} << 8 | std::uint64_t{first_advance} << 16 |
         static_cast<std::uint64_t>(second_at) << 24 | static_cast<std::uint64_t>(63 - second_bits) << 32 |
         std::uint64_t{static_cast<std::uint16_t>(first_value)} << 48;
}

// The symbols by the next `bits` bits; 0 where the code is longer.
void fill_window(const SymbolTable& table, const HuffmanCode& code, int bits, std::uint32_t* window) {
  std::size_t at = 0, symbol = 0;
  for (int length = 1; length <= bits; ++length) {
    for (int i = 0; i < code.counts[static_cast<std::size_t>(length - 1)]; ++i, ++symbol) {
      const std::size_t count = std::size_t{1} << (bits - length);
      std::fill_n(window + at, count, table.symbols[symbol]);
      at += count;
    }
  }
  std::fill(window + at, window + (std::size_t{1} << bits), 0u);
}

}  // namespace

const std::uint8_t kNaturalOrder[256] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,
                                         12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
                                         35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
                                         58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

bool SymbolTable::build(const HuffmanCode& from, SymbolKind kind) {
  code = from;
  std::uint32_t next = 0;  // code of the current length
  int count = 0;
  for (int length = 1; length <= 16; ++length, next <<= 1) {
    const std::uint32_t of_length = code.counts[static_cast<std::size_t>(length - 1)];
    offsets[length] = count - static_cast<std::int32_t>(next);
    if (count + static_cast<int>(of_length) > 256) return false;
    for (std::uint32_t i = 0; i < of_length; ++i, ++count) {
      const int symbol = code.symbols[static_cast<std::size_t>(count)];
      if (kind == SymbolKind::dc && symbol > 15) return false;
      symbols[static_cast<std::size_t>(count)] = pack_symbol(symbol, length, kind);
    }
    next += of_length;
    if (of_length != 0 && next >= 1u << length) return false;  // libjpeg keeps the code of all ones free
    ends[length] = next << (16 - length);
  }
  fill_window(*this, code, kBits, first);
  return true;
}

std::uint32_t SymbolTable::long_symbol(std::uint32_t next) const {
  if (next < ends[kBits]) return 0;
  for (int length = kBits + 1; length <= 16; ++length) {
    if (next < ends[length]) {
      return symbols[static_cast<std::size_t>(offsets[length] + static_cast<std::int32_t>(next >> (16 - length)))];
    }
  }
  return 0;
}

bool AcTable::build(const HuffmanCode& code) {
  if (!SymbolTable::build(code, SymbolKind::ac)) return false;
  std::uint32_t window[1 << kSkipBits];
  fill_window(*this, code, kPairBits, window);
  constexpr std::uint32_t pair_mask = (1u << kPairBits) - 1;
  for (std::uint32_t bits = 0; bits <= pair_mask; ++bits) {
    std::uint32_t symbol = window[bits];
    int at = 0, value = 0;
    unsigned first_advance = advance(symbol), reach = 0;
    if (symbol != 0 && !ends_block(symbol) && all_bits(symbol) < kPairBits) {
      const std::uint32_t second = window[bits << all_bits(symbol) & pair_mask];
      if (second != 0 && code_bits(second) <= kPairBits - all_bits(symbol)) {
        at = all_bits(symbol);
        reach = first_advance;
        value = value_in(symbol, bits, kPairBits);
        symbol = second;
      }
    }
    reach += advance(symbol);
    pairs[bits] = symbol == 0 ? 0
                              : pack_pair(at + all_bits(symbol), reach, first_advance, at + code_bits(symbol),
                                          value_bits(symbol), value);
  }
  fill_window(*this, code, kSkipBits, window);
  constexpr std::uint32_t skip_mask = (1u << kSkipBits) - 1;
  for (std::uint32_t bits = 0; bits <= skip_mask; ++bits) {
    int length = 0;
    unsigned reach = 0;
    while (length < kSkipBits && reach < kEndOfBlock) {
      const std::uint32_t symbol = window[bits << length & skip_mask];
      if (symbol == 0 || code_bits(symbol) > kSkipBits - length) break;
      if (!ends_block(symbol) && reach + advance(symbol) >= kBlockSize) break;
      reach += advance(symbol);
      length += all_bits(symbol);
    }
    skips[bits] = static_cast<std::uint16_t>(static_cast<unsigned>(length) | reach << 8);
  }
  return true;
}

template <typename Table>
const Table* HuffmanTables::Cache<Table>::find(const HuffmanCode& code) {
  auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.code == code; });
  if (found == entries_.end()) {
    auto table = std::make_unique<Table>();
    bool valid;
    if constexpr (std::is_same_v<Table, AcTable>) {
      valid = table->build(code);
    } else {
      valid = table->build(code, SymbolKind::dc);
    }
    if (!valid) return nullptr;
    if (entries_.size() == kKept) entries_.pop_back();
    entries_.push_back({code, std::move(table)});
    found = entries_.end() - 1;
  }
  std::rotate(entries_.begin(), found, found + 1);
  return entries_.front().table.get();
}

template class HuffmanTables::Cache<DcTable>;
template class HuffmanTables::Cache<AcTable>;

}  // namespace fastload
