#include "codecs/inflate.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <memory>

namespace fastload {
namespace {

std::uint64_t load(const std::uint8_t* at) {
  std::uint64_t value;
  std::memcpy(&value, at, sizeof value);
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
  value = __builtin_bswap64(value);
#endif
  return value;
}

void copy_16(std::uint8_t* to, const std::uint8_t* from) {
  std::uint64_t values[2];
  std::memcpy(values, from, sizeof values);
  std::memcpy(to, values, sizeof values);
}

// The stream's bits, the first one lowest. Zeros follow its end.
struct Bits {
  const std::uint8_t* next;  // byte to be loaded
  const std::uint8_t* end;
  std::uint64_t bits = 0;
  std::uint64_t count = 0;  // of bits that are loaded; only the low byte counts
  std::size_t missing = 0;  // bytes behind the end that were loaded

  std::size_t left() const { return static_cast<std::size_t>(end - next); }
  // Makes at least 56 bits available, if there are 8 bytes left.
  void refill_fast() {
    bits |= load(next) << (count & 63);
    next += 7 - (count >> 3 & 7);
    count |= 56;
  }
  // Makes at least 56 bits available. False if bits behind the end were taken.
  bool refill() {
    if (left() >= 8) {
      refill_fast();
      return true;
    }
    for (count &= 63; count < 56; count += 8) {
      if (next < end) {
        bits |= std::uint64_t{*next++} << count;
      } else {
        ++missing;
      }
    }
    return missing <= count / 8;
  }
  std::uint64_t peek(int width) const { return bits & ((std::uint64_t{1} << width) - 1); }
  // Only the low byte of `width` counts.
  void drop(std::uint64_t width) {
    bits >>= width & 63;
    count -= width;
  }
  std::uint64_t take(int width) {
    const std::uint64_t value = peek(width);
    drop(static_cast<std::uint64_t>(width));
    return value;
  }
  // Moves `next` to the first byte of which no bit was taken. False as for refill().
  bool align() {
    const std::size_t unread = (count & 63) / 8;
    if (missing > unread) return false;
    next -= unread - missing;
    bits = count = missing = 0;
    return true;
  }
};

// What a code stands for. Low byte: the bits to take, with those that follow the code. Bits 8 to 11: the code's own.
// From bit 16 on: one literal or two, or what the bits that follow are added to.
using Entry = std::uint32_t;
constexpr Entry kSpecial = 1u << 12, kLiteral = 1u << 13, kTwo = 1u << 14;
constexpr Entry kLong = kSpecial, kEnd = kSpecial | 1u << 16, kRefused = kSpecial | 2u << 16;
constexpr int kLongest = 15;

bool is_literal(Entry entry) { return (entry & kLiteral) != 0; }

// What an entry stands for; `bits` begin with its code.
std::uint32_t value_of(Entry entry, std::uint64_t bits) {
  const std::uint64_t taken = bits & ((std::uint64_t{1} << (entry & 63)) - 1);
  return (entry >> 16) + static_cast<std::uint32_t>(taken >> (entry >> 8 & 15));
}

// The meanings of symbols, which Code adds lengths to.
constexpr auto kLiterals = [] {
  std::array<Entry, 288> entries{};
  for (Entry i = 0; i < 256; ++i) entries[i] = kLiteral | i << 16;
  entries[256] = kEnd;
  Entry base = 3;
  for (Entry i = 257; i < 285; ++i) {
    const Entry more = i < 265 ? 0 : (i - 261) / 4;
    entries[i] = base << 16 | more;
    base += 1u << more;
  }
  entries[285] = 258u << 16;
  entries[286] = entries[287] = kRefused;
  return entries;
}();
constexpr auto kDistances = [] {
  std::array<Entry, 32> entries{};
  Entry base = 1;
  for (Entry i = 0; i < 30; ++i) {
    const Entry more = i < 4 ? 0 : (i - 2) / 2;
    entries[i] = base << 16 | more;
    base += 1u << more;
  }
  entries[30] = entries[31] = kRefused;
  return entries;
}();
constexpr auto kLengths = [] {
  std::array<Entry, 19> entries{};
  for (Entry i = 0; i < 19; ++i) entries[i] = i << 16;
  return entries;
}();

// The low `width` bits in the opposite order; at most 16.
std::uint32_t reversed(std::uint32_t code, int width) {
  code = (code & 0x5555) << 1 | (code >> 1 & 0x5555);
  code = (code & 0x3333) << 2 | (code >> 2 & 0x3333);
  code = (code & 0x0F0F) << 4 | (code >> 4 & 0x0F0F);
  return ((code & 0xFF) << 8 | code >> 8) >> (16 - width);
}

// A Huffman code: codes of up to kBits bits are in a table, longer ones are found by their order.
template <int kBits, std::size_t kMost>
class Code {
 public:
  // Reads each symbol's length; those without a code have 0. False if zlib refuses them.
  bool set(const std::uint8_t* lengths, std::size_t symbols, const std::array<Entry, kMost>& meanings) {
    std::uint32_t counts[kLongest + 1] = {}, places[kLongest + 1];
    for (std::size_t i = 0; i < symbols; ++i) ++counts[lengths[i]];
    counts[0] = 0;
    std::uint32_t code = 0, place = 0;  // of the first symbol of a length
    for (int length = 1; length <= kLongest; ++length) {
      code = (code + counts[length - 1]) << 1;
      if (code + counts[length] > 1u << length) return false;
      limit_[length] = (code + counts[length]) << (kLongest - length);
      offset_[length] = place - code;
      places[length] = place;
      place += counts[length];
    }
    // If not all bits have a meaning, zlib takes a single code of one bit, or none, but no such code of lengths.
    const bool is_complete = limit_[kLongest] == 1u << kLongest;
    if (!is_complete && (place != counts[1] || meanings.size() == kLengths.size())) return false;
    for (std::size_t i = 0; i < symbols; ++i) {
      const std::uint32_t length = lengths[i];
      if (length != 0) ordered_[places[length]++] = (meanings[i] + length) | length << 8;
    }
    table_[0] = is_complete ? kLong : kRefused;  // where there is no short code
    code = place = 0;
    for (int length = 1; length <= kBits; ++length, code <<= 1) {
      std::memcpy(table_ + (std::size_t{1} << (length - 1)), table_, sizeof(Entry) << (length - 1));
      for (const std::uint32_t end = code + counts[length]; code < end; ++code) {
        table_[reversed(code, length)] = ordered_[place++];
      }
    }
    return true;
  }

  // Lets the table find two literals at once, where both are short.
  void join_literals() {
    for (std::uint32_t i = 1u << kBits; i-- > 0;) {  // downwards, so that the second one is still by itself
      const Entry first = table_[i], second = table_[i >> (first & 15)];
      if (is_literal(first) && is_literal(second) && (first & 15) + (second & 15) <= kBits) {
        table_[i] = (first + (second & 15)) | kTwo | second >> 16 << 24;
      }
    }
  }

  Entry short_entry(const Bits& bits) const { return table_[bits.peek(kBits)]; }
  Entry long_entry(const Bits& bits) const {
    const std::uint32_t code = reversed(static_cast<std::uint32_t>(bits.peek(kLongest)), kLongest);
    int length = kBits + 1;
    while (code >= limit_[length]) ++length;
    return ordered_[(code >> (kLongest - length)) + offset_[length]];
  }

 private:
  Entry table_[1 << kBits];
  Entry ordered_[kMost];
  std::uint32_t limit_[kLongest + 1];   // the first longer code, in as many bits as the longest code has
  std::uint32_t offset_[kLongest + 1];  // a symbol's place less its code, modulo 2^32
};

struct Codes {
  Code<7, 19> lengths;
  Code<11, 288> literals;  // and lengths of matches
  Code<9, 32> distances;
  bool are_fixed = false;

  bool set(const std::uint8_t* all, std::size_t literal_count, std::size_t distance_count) {
    if (!literals.set(all, literal_count, kLiterals)) return false;
    literals.join_literals();
    return distances.set(all + literal_count, distance_count, kDistances);
  }

  void fix() {
    if (are_fixed) return;
    std::uint8_t all[288 + 32];
    std::fill(all, all + 144, 8);
    std::fill(all + 144, all + 256, 9);
    std::fill(all + 256, all + 280, 7);
    std::fill(all + 280, all + 288, 8);
    std::fill(all + 288, all + 320, 5);
    are_fixed = set(all, 288, 32);
  }

  // Reads a block's own codes.
  bool read(Bits& bits) {
    constexpr std::uint8_t order[] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    are_fixed = false;
    if (!bits.refill()) return false;
    const std::size_t literal_count = 257 + bits.take(5), distance_count = 1 + bits.take(5), count = 4 + bits.take(4);
    if (literal_count > 286 || distance_count > 30) return false;
    std::uint8_t all[286 + 30] = {};
    for (std::size_t i = 0; i < count; ++i) {
      if (!bits.refill()) return false;
      all[order[i]] = static_cast<std::uint8_t>(bits.take(3));
    }
    if (!lengths.set(all, 19, kLengths)) return false;
    for (std::size_t i = 0; i < literal_count + distance_count;) {
      if (!bits.refill()) return false;
      const Entry entry = lengths.short_entry(bits);
      bits.drop(entry);
      const Entry symbol = entry >> 16;
      std::uint8_t length = 0;
      std::size_t repeats = 1;
      if (symbol < 16) {
        length = static_cast<std::uint8_t>(symbol);
      } else if (symbol == 16) {
        if (i == 0) return false;
        length = all[i - 1];
        repeats = 3 + bits.take(2);
      } else {
        repeats = symbol == 17 ? 3 + bits.take(3) : 11 + bits.take(7);
      }
      if (repeats > literal_count + distance_count - i) return false;
      std::fill(all + i, all + i + repeats, length);
      i += repeats;
    }
    return all[256] != 0 && set(all, literal_count, distance_count);
  }
};

// Repeats what was made before. Writes up to 31 bytes more.
void copy_match(std::uint8_t* to, std::size_t distance, std::size_t length) {
  const std::uint8_t* from = to - distance;
  std::uint8_t* const end = to + length;
  if (distance == 1) {
    std::memset(to, *from, length);
    return;
  }
  for (; distance < 16; distance *= 2) {  // so many bytes are right each time
    copy_16(to, from);
    to += distance;
  }
  for (; to < end; to += 32, from += 32) {
    copy_16(to, from);
    copy_16(to + 16, from + 16);
  }
}

enum class Reached { end_of_block, limit, error };

// Makes a block's bytes from `made` on; some may be written behind `end`. `limit`: to be continued without kFast, as
// there is little input left.
template <bool kFast>
Reached inflate_symbols(Bits& stream, const Codes& codes, const std::uint8_t* begin, std::uint8_t*& made,
                        const std::uint8_t* end) {
  constexpr std::size_t kBytes = 24;  // that are loaded for a match and literals before it, at most
  if (kFast && stream.left() < kBytes) return Reached::limit;
  Bits bits = stream;  // a copy, as bytes that are written might be `stream` for all that the compiler knows
  std::uint8_t* to = made;
  const auto refill = [&bits] { return kFast ? (bits.refill_fast(), true) : bits.refill(); };
  const auto put = [&to](Entry literals) {
    to[0] = static_cast<std::uint8_t>(literals >> 16);
    to[1] = static_cast<std::uint8_t>(literals >> 24);
    to += (literals & kTwo) != 0 ? 2 : 1;
  };
  if (!refill()) return Reached::error;
  Entry entry = codes.literals.short_entry(bits);
  while (to <= end && (!kFast || bits.left() >= kBytes)) {
    std::uint64_t before = bits.bits;
    const auto drop = [&] {
      before = bits.bits;
      bits.drop(entry);
    };
    bits.drop(entry);
    if (is_literal(entry)) {
      put(entry);
      entry = codes.literals.short_entry(bits);
      drop();
      if (is_literal(entry)) {
        put(entry);
        entry = codes.literals.short_entry(bits);
        drop();
      }
    }
    if (entry == kLong) {
      entry = codes.literals.long_entry(bits);
      drop();
    }
    if (is_literal(entry)) {
      put(entry);
      entry = codes.literals.short_entry(bits);
      if (!refill()) return Reached::error;
      continue;
    }
    if ((entry & kSpecial) != 0) {
      stream = bits;
      made = to;
      return (entry & kEnd) == kEnd ? Reached::end_of_block : Reached::error;
    }
    if (!refill()) return Reached::error;
    const std::uint32_t length = value_of(entry, before);
    entry = codes.distances.short_entry(bits);
    if (entry == kLong) entry = codes.distances.long_entry(bits);
    drop();
    const std::uint32_t distance = value_of(entry, before);
    if ((entry & kSpecial) != 0 || distance > static_cast<std::size_t>(to - begin) || !refill()) return Reached::error;
    entry = codes.literals.short_entry(bits);
    copy_match(to, distance, length);
    to += length;
  }
  stream = bits;
  made = to;
  return kFast && to <= end ? Reached::limit : Reached::error;
}

bool copy_stored(Bits& bits, std::uint8_t*& to, const std::uint8_t* end) {
  if (!bits.align() || bits.left() < 4) return false;
  const std::uint8_t* const p = bits.next;
  const std::size_t length = std::size_t{p[0]} | std::size_t{p[1]} << 8;
  if ((p[0] ^ p[2]) != 255 || (p[1] ^ p[3]) != 255) return false;
  bits.next += 4;
  if (length > bits.left() || to > end || length > static_cast<std::size_t>(end - to)) return false;
  std::memcpy(to, bits.next, length);
  bits.next += length;
  to += length;
  return true;
}

std::uint32_t adler_32(const std::uint8_t* data, std::size_t size) {
  constexpr std::uint32_t prime = 65521;
  constexpr std::size_t lanes = 32, steps = 22;  // with more, 16 bits would overflow
  std::uint32_t a = 1, b = 0;
  for (; size >= lanes * steps; size -= lanes * steps) {
    std::uint16_t sums[lanes] = {}, sums_of_sums[lanes] = {};
    for (std::size_t step = 0; step < steps; ++step, data += lanes) {
      for (std::size_t i = 0; i < lanes; ++i) {
        sums_of_sums[i] = static_cast<std::uint16_t>(sums_of_sums[i] + sums[i]);
        sums[i] = static_cast<std::uint16_t>(sums[i] + data[i]);
      }
    }
    b += a * lanes * steps;
    for (std::uint32_t i = 0; i < lanes; ++i) {
      a += sums[i];
      b += lanes * sums_of_sums[i] + (lanes - i) * sums[i];
    }
    a %= prime;
    b %= prime;
  }
  for (; size > 0; --size) b += a += *data++;
  return b % prime << 16 | a % prime;
}

}  // namespace

bool inflate(const std::uint8_t* data, std::size_t size, std::uint8_t* to, std::size_t most, std::size_t& made) {
  static thread_local std::unique_ptr<Codes> kept;
  if (kept == nullptr) kept = std::make_unique<Codes>();
  Codes& codes = *kept;
  constexpr int deflate = 8, needs_dictionary = 32;
  if (size < 2 || (data[0] & 15) != deflate || data[0] >> 4 > 7 || (data[1] & needs_dictionary) != 0 ||
      (data[0] << 8 | data[1]) % 31 != 0) {
    return false;
  }
  Bits bits{data + 2, data + size};
  const std::uint8_t *const begin = to, *const end = to + most;
  for (bool is_last = false; !is_last;) {
    if (!bits.refill()) return false;
    is_last = bits.take(1) != 0;
    const std::uint64_t kind = bits.take(2);
    if (kind == 0) {
      if (!copy_stored(bits, to, end)) return false;
      continue;
    }
    if (kind == 1) codes.fix();
    if (kind == 3 || (kind == 2 && !codes.read(bits))) return false;
    Reached reached = inflate_symbols<true>(bits, codes, begin, to, end);
    if (reached == Reached::limit) reached = inflate_symbols<false>(bits, codes, begin, to, end);
    if (reached != Reached::end_of_block) return false;
  }
  made = static_cast<std::size_t>(to - begin);
  if (made > most || !bits.align() || bits.left() != 4) return false;
  const std::uint8_t* const p = bits.next;
  return adler_32(begin, made) ==
         (std::uint32_t{p[0]} << 24 | std::uint32_t{p[1]} << 16 | std::uint32_t{p[2]} << 8 | p[3]);
}

std::uint32_t crc_32(const std::uint8_t* data, std::size_t size) {
  // tables[n]: of a byte that n others follow.
  static constexpr auto tables = [] {
    std::array<std::array<std::uint32_t, 256>, 8> values{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      values[0][i] = i;
      for (int bit = 0; bit < 8; ++bit) {
        values[0][i] = values[0][i] >> 1 ^ ((values[0][i] & 1) != 0 ? 0xEDB88320u : 0);
      }
    }
    for (std::size_t n = 1; n < 8; ++n) {
      for (std::size_t i = 0; i < 256; ++i) values[n][i] = values[n - 1][i] >> 8 ^ values[0][values[n - 1][i] & 255];
    }
    return values;
  }();
  std::uint32_t crc = ~std::uint32_t{0};
  for (; size >= 8; size -= 8, data += 8) {
    std::uint32_t next = 0;
    for (std::size_t n = 0; n < 4; ++n)
      next ^= tables[7 - n][(crc >> 8 * n ^ data[n]) & 255] ^ tables[3 - n][data[4 + n]];
    crc = next;
  }
  for (; size > 0; --size) crc = crc >> 8 ^ tables[0][(crc ^ *data++) & 255];
  return ~crc;
}

}  // namespace fastload
