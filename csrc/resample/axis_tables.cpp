#include "resample/axis_tables.h"

#include <array>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include <pthread.h>

namespace fastload {
namespace {

// What a table depends on. Weights along x are settled for other code, which those along y are not.
struct Key {
  bool along_x;
  int size, out_size, begin, count;
  Filter filter;
  bool mirror;

  bool operator==(const Key& other) const {
    return along_x == other.along_x && size == other.size && out_size == other.out_size && begin == other.begin &&
           count == other.count && filter == other.filter && mirror == other.mirror;
  }
};

std::size_t hash_of(const Key& key) {
  std::uint64_t hash = 0;
  for (const int part : {static_cast<int>(key.along_x), key.size, key.out_size, key.begin, key.count,
                         static_cast<int>(key.filter), static_cast<int>(key.mirror)}) {
    hash = (hash ^ static_cast<std::uint32_t>(part)) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
  }
  return static_cast<std::size_t>(hash);
}

using Table = std::shared_ptr<const AxisTable>;

class Tables {
 public:
  Table find(const Key& key) {
    Shard& shard = shard_of(key);
    const std::lock_guard<std::mutex> lock(shard.mutex);
    const auto found = shard.tables.find(key);
    return found == shard.tables.end() ? nullptr : found->second;
  }
  // A shard without room drops all of its tables: those in use are soon made again.
  void keep(const Key& key, const Table& table) {
    constexpr std::size_t most = kAxisTablesBytes / kShards;
    const std::size_t bytes = table->numbers.capacity() * sizeof(std::int32_t) + 200;
    if (bytes > most) return;
    Shard& shard = shard_of(key);
    const std::lock_guard<std::mutex> lock(shard.mutex);
    if (shard.bytes + bytes > most) {
      shard.tables.clear();
      shard.bytes = 0;
    }
    if (shard.tables.emplace(key, table).second) shard.bytes += bytes;
  }

  void lock() {
    for (Shard& shard : shards_) shard.mutex.lock();
  }
  void unlock() {
    for (Shard& shard : shards_) shard.mutex.unlock();
  }

 private:
  struct Hash {
    std::size_t operator()(const Key& key) const { return hash_of(key); }
  };
  struct Shard {
    std::mutex mutex;
    std::unordered_map<Key, Table, Hash> tables;
    std::size_t bytes = 0;
  };
  static constexpr std::size_t kShards = 16;

  Shard& shard_of(const Key& key) { return shards_[hash_of(key) >> 7 & (kShards - 1)]; }

  std::array<Shard, kShards> shards_;
};

// Never destroyed, as threads of a pool may outlive the end of main(). Locked during a fork, whose child has no other
// thread that would unlock one.
Tables& tables() {
  static auto* const all = [] {
    pthread_atfork([] { tables().lock(); }, [] { tables().unlock(); }, [] { tables().unlock(); });
    return new Tables;
  }();
  return *all;
}

}  // namespace

AxisTables axis_tables(const ResizeJob& job) {
  if (is_float(job.filter)) return {};
  const Key x{true, job.width, job.out_width, job.window.left, job.window.width, job.filter, job.flip_horizontal};
  const Key y{false, job.height, job.out_height, job.window.top, job.window.height, job.filter, false};
  AxisTables found{tables().find(x), tables().find(y), false};
  if (found.x == nullptr || found.y == nullptr) {
    static thread_local Resampler resampler;
    static thread_local std::string error;
    if (!resampler.prepare(job, error)) return {};
    const auto made = [&](bool along_x) {
      auto table = std::make_shared<AxisTable>();
      const PixelBox& region = resampler.region();
      table->first = along_x ? region.left : region.top;
      table->extent = along_x ? region.width : region.height;
      table->convolves = resampler.convolves(along_x);
      table->taps = resampler.weights(along_x, table->numbers);
      table->numbers.shrink_to_fit();
      tables().keep(along_x ? x : y, table);
      return table;
    };
    if (found.x == nullptr) found.x = made(true);
    if (found.y == nullptr) found.y = made(false);
  }
  found.vertical_first = runs_vertical_first(job, found.y->convolves);
  return found;
}

}  // namespace fastload
