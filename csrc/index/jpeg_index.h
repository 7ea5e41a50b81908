// Remembers where to begin within JPEG files that were decoded before, by their content. Knows no pixels.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/keyed_hash.h"
#include "base/source.h"

namespace fastload {

// The points (see CodedPoints) of as many files as fit. Thread-safe.
class JpegIndex {
 public:
  // With `whole`, a file's first decode goes on to the file's end, so that there are points for any crop.
  explicit JpegIndex(std::size_t most_bytes, bool whole = false, const HashKey& secrets = HashKey::random());
  JpegIndex(const JpegIndex&) = delete;
  JpegIndex& operator=(const JpegIndex&) = delete;

  using Key = FileKey;
  using Points = std::shared_ptr<const std::vector<std::uint8_t>>;
  // False if the source gave fewer bytes than it has.
  bool key_of(ByteSource& source, Key& key) const;

  // Null if there are none.
  Points find(const Key& key);
  // Keeps the points instead of those kept before, if there is room or others have long not been used. Throws
  // std::bad_alloc; what was kept then stays.
  void keep(const Key& key, std::vector<std::uint8_t>&& points);

  struct Totals {
    std::size_t bytes = 0;      // kept
    std::size_t files = 0;      // kept
    std::uint64_t found = 0;    // look-ups that found points
    std::uint64_t missed = 0;   // and that did not
    std::uint64_t evicted = 0;  // files whose place another one got
  };
  // Takes no lock.
  Totals totals() const;
  std::size_t most_bytes() const { return most_bytes_; }
  bool whole() const { return whole_; }

 private:
  struct Entry {
    Key key;
    Points points;
    std::uint64_t used_at;  // the shard's clock
  };
  struct Hash {
    std::size_t operator()(const Key& key) const { return static_cast<std::size_t>(key.checksum); }
  };
  using Entries = std::list<Entry>;
  struct Shard {
    std::mutex mutex;
    Entries entries;  // the last used first
    std::unordered_map<Key, Entries::iterator, Hash> by_key;
    std::size_t bytes = 0;
    std::uint64_t clock = 0;
  };
  static constexpr std::size_t kShards = 16;

  Shard& shard_of(const Key& key) { return shards_[key.checksum >> 60]; }
  static std::size_t bytes_of(const Entry& entry);
  static bool is_old(const Shard& shard);
  void drop_last(Shard& shard);

  const std::size_t most_bytes_;
  const bool whole_;
  const HashKey secrets_;
  std::array<Shard, kShards> shards_;
  std::atomic<std::size_t> bytes_{0}, files_{0};
  std::atomic<std::uint64_t> found_{0}, missed_{0}, evicted_{0};
};

}  // namespace fastload
