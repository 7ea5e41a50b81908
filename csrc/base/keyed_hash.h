// Checksums and tags that only who knows a key can make, and files that end with such tags.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace fastload {

inline std::uint64_t little_endian(const std::uint8_t* data) {
  std::uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | data[i];
  return value;
}

// Of all bytes of a file. Two files with one key are the same file, but with a probability of 2^-64.
struct FileKey {
  std::uint64_t size = 0;
  std::uint64_t checksum = 0;
  bool operator==(const FileKey& other) const { return size == other.size && checksum == other.checksum; }
};

// What makes checksums and tags; who does not know it can make neither two files with one checksum nor a tag.
struct HashKey {
  static constexpr std::size_t kBytes = 48;

  std::array<std::uint64_t, 4> checksum{};
  std::array<std::uint64_t, 2> tag{};

  static HashKey random();
  // From kBytes bytes.
  static HashKey of(const std::uint8_t* bytes);
  // SipHash-2-4.
  std::uint64_t tag_of(const std::uint8_t* data, std::size_t size) const;
  // What may be written of a file's key: checksums, which are not made for it, might tell the secrets.
  std::uint64_t id_of(const FileKey& key) const;
};

// A checksum of blocks of 64 bytes, in four lanes that do not wait for each other. The last block is filled with zeros,
// and there is always one.
class Checksum {
 public:
  static constexpr std::size_t kBlock = 64;

  explicit Checksum(const HashKey& key);
  void add(const std::uint8_t* data, std::size_t blocks);
  // `rest` is what is left of `size` bytes, less than a block.
  FileKey finish(const std::uint8_t* rest, std::uint64_t size);

 private:
  const std::array<std::uint64_t, 4>& secrets_;
  std::uint64_t lanes_[4];
};

// What follows the data of a tagged file: their size, its tag, and the tag of size and checksum, little-endian. The
// first tag is checked before the data are read, so that a file that was not made with the key costs nothing.
inline constexpr std::size_t kTagsBytes = 24;
using Tags = std::array<std::uint8_t, kTagsBytes>;
Tags tags_of(const HashKey& key, const std::uint8_t* data, std::size_t size);
// Whether the tags are those of some data of that size.
bool is_tagged(const HashKey& key, const Tags& tags, std::uint64_t size);

}  // namespace fastload
