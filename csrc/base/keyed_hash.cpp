#include "base/keyed_hash.h"

#include <algorithm>
#include <cstring>
#include <random>

namespace fastload {
namespace {

void put_little_endian(std::uint64_t value, std::uint8_t* to) {
  for (int i = 0; i < 8; ++i) to[i] = static_cast<std::uint8_t>(value >> 8 * i);
}

std::uint64_t load64(const std::uint8_t* data) {
  std::uint64_t value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

// The halves of a product of 128 bits, folded: every bit of it depends on all of both factors.
std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

// SipHash-2-4, by Aumasson and Bernstein.
class SipHash {
 public:
  explicit SipHash(const std::array<std::uint64_t, 2>& key)
      : v_{key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d, key[0] ^ 0x6c7967656e657261,
           key[1] ^ 0x7465646279746573} {}
  std::uint64_t of(const std::uint8_t* data, std::size_t size) {
    std::uint64_t last = std::uint64_t{size} << 56;
    for (; size >= 8; data += 8, size -= 8) add_word(little_endian(data));
    for (std::size_t i = 0; i < size; ++i) last |= std::uint64_t{data[i]} << 8 * i;
    add_word(last);
    v_[2] ^= 0xFF;
    rounds(4);
    return v_[0] ^ v_[1] ^ v_[2] ^ v_[3];
  }

 private:
  void add_word(std::uint64_t word) {
    v_[3] ^= word;
    rounds(2);
    v_[0] ^= word;
  }
  static std::uint64_t rotated(std::uint64_t value, int by) { return value << by | value >> (64 - by); }
  void rounds(int count) {
    for (; count > 0; --count) {
      v_[0] += v_[1];
      v_[1] = rotated(v_[1], 13) ^ v_[0];
      v_[0] = rotated(v_[0], 32);
      v_[2] += v_[3];
      v_[3] = rotated(v_[3], 16) ^ v_[2];
      v_[0] += v_[3];
      v_[3] = rotated(v_[3], 21) ^ v_[0];
      v_[2] += v_[1];
      v_[1] = rotated(v_[1], 17) ^ v_[2];
      v_[2] = rotated(v_[2], 32);
    }
  }

  std::uint64_t v_[4];
};

}  // namespace

HashKey HashKey::random() {
  std::random_device random;
  std::uint8_t bytes[kBytes];
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
  return of(bytes);
}

HashKey HashKey::of(const std::uint8_t* bytes) {
  HashKey key;
  for (std::size_t i = 0; i < 4; ++i) key.checksum[i] = little_endian(bytes + 8 * i) | 1;
  for (std::size_t i = 0; i < 2; ++i) key.tag[i] = little_endian(bytes + 8 * (4 + i));
  return key;
}

std::uint64_t HashKey::tag_of(const std::uint8_t* data, std::size_t size) const { return SipHash(tag).of(data, size); }

std::uint64_t HashKey::id_of(const FileKey& key) const {
  std::uint8_t words[16];
  put_little_endian(key.size, words);
  put_little_endian(key.checksum, words + 8);
  return tag_of(words, sizeof words);
}

Checksum::Checksum(const HashKey& key) : secrets_(key.checksum) { std::copy(secrets_.begin(), secrets_.end(), lanes_); }

void Checksum::add(const std::uint8_t* data, std::size_t blocks) {
  for (; blocks > 0; --blocks, data += kBlock) {
    for (std::size_t lane = 0; lane < 4; ++lane) {
      lanes_[lane] = mixed(load64(data + 16 * lane) ^ lanes_[lane], load64(data + 16 * lane + 8) ^ secrets_[lane]);
    }
  }
}

FileKey Checksum::finish(const std::uint8_t* rest, std::uint64_t size) {
  std::uint8_t last[kBlock] = {};
  if (size % kBlock != 0) std::memcpy(last, rest, size % kBlock);
  add(last, 1);
  const std::uint64_t first = mixed(lanes_[0] ^ secrets_[1], lanes_[1] ^ secrets_[2]);
  const std::uint64_t second = mixed(lanes_[2] ^ secrets_[3], lanes_[3] ^ secrets_[0]);
  return {size, mixed(first ^ secrets_[2], second ^ size ^ secrets_[1])};
}

Tags tags_of(const HashKey& key, const std::uint8_t* data, std::size_t size) {
  Checksum checksum(key);
  checksum.add(data, size / Checksum::kBlock);
  const FileKey file = checksum.finish(data + size / Checksum::kBlock * Checksum::kBlock, size);
  Tags tags;
  put_little_endian(size, tags.data());
  put_little_endian(key.tag_of(tags.data(), 8), tags.data() + 8);
  put_little_endian(key.id_of(file), tags.data() + 16);
  return tags;
}

bool is_tagged(const HashKey& key, const Tags& tags, std::uint64_t size) {
  return little_endian(tags.data()) == size && little_endian(tags.data() + 8) == key.tag_of(tags.data(), 8);
}

}  // namespace fastload
