#include "index/jpeg_index.h"

#include <utility>

namespace fastload {
namespace {

// Memory of an entry beside its points, roughly.
constexpr std::size_t kEntryBytes = 200;
// When there is no room, the files that are kept stay: each epoch visits every file once, and replacing files would
// leave fewer that are found. A file that was not found while the others were found kOldRounds times on average is not
// visited any more; nor is one if kFoundWeight times as many look-ups found nothing.
constexpr std::uint64_t kOldRounds = 3, kFoundWeight = 16;

}  // namespace

JpegIndex::JpegIndex(std::size_t most_bytes, bool whole, const HashKey& secrets)
    : most_bytes_(most_bytes), whole_(whole), secrets_(secrets) {}

bool JpegIndex::key_of(ByteSource& source, Key& key) const {
  Checksum checksum(secrets_);
  const std::size_t size = source.size();
  std::size_t at = 0;
  while (size - at >= Checksum::kBlock) {
    const Span span = source.at(at, Checksum::kBlock);
    const std::size_t blocks = span.size / Checksum::kBlock;
    if (blocks == 0) return false;
    checksum.add(span.data, blocks);
    at += blocks * Checksum::kBlock;
  }
  const Span rest = source.at(at, size - at);
  if (rest.size != size - at) return false;
  key = checksum.finish(rest.data, size);
  return source.size() == size;
}

std::size_t JpegIndex::bytes_of(const Entry& entry) { return entry.points->size() + kEntryBytes; }

JpegIndex::Points JpegIndex::find(const Key& key) {
  Shard& shard = shard_of(key);
  const std::lock_guard<std::mutex> lock(shard.mutex);
  const auto found = shard.by_key.find(key);
  if (found == shard.by_key.end()) {
    ++shard.clock;
    missed_.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  shard.clock += kFoundWeight;
  found_.fetch_add(1, std::memory_order_relaxed);
  found->second->used_at = shard.clock;
  shard.entries.splice(shard.entries.begin(), shard.entries, found->second);
  return found->second->points;
}

bool JpegIndex::is_old(const Shard& shard) {
  const std::uint64_t age = shard.clock - shard.entries.back().used_at;
  return age > kOldRounds * kFoundWeight * shard.entries.size();
}

void JpegIndex::drop_last(Shard& shard) {
  const std::size_t bytes = bytes_of(shard.entries.back());
  shard.by_key.erase(shard.entries.back().key);
  shard.entries.pop_back();
  shard.bytes -= bytes;
  bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  files_.fetch_sub(1, std::memory_order_relaxed);
}

void JpegIndex::keep(const Key& key, std::vector<std::uint8_t>&& points) {
  points.shrink_to_fit();
  Entries made;  // so that nothing below can throw once the shard has changed
  made.push_back({key, std::make_shared<const std::vector<std::uint8_t>>(std::move(points)), 0});
  const std::size_t size = bytes_of(made.front()), most = most_bytes_ / kShards;
  Shard& shard = shard_of(key);
  const std::lock_guard<std::mutex> lock(shard.mutex);
  const auto known = shard.by_key.find(key);
  if (known != shard.by_key.end()) {
    Entry& entry = *known->second;
    const std::size_t before = bytes_of(entry);
    if (size <= before || shard.bytes - before + size > most) return;
    entry.points.swap(made.front().points);
    shard.bytes += size - before;
    bytes_.fetch_add(size - before, std::memory_order_relaxed);
    return;
  }
  if (size > most) return;
  while (shard.bytes + size > most) {
    if (!is_old(shard)) return;
    drop_last(shard);
    evicted_.fetch_add(1, std::memory_order_relaxed);
  }
  made.front().used_at = shard.clock;
  shard.by_key.emplace(key, made.begin());
  shard.entries.splice(shard.entries.begin(), made);
  shard.bytes += size;
  bytes_.fetch_add(size, std::memory_order_relaxed);
  files_.fetch_add(1, std::memory_order_relaxed);
}

JpegIndex::Totals JpegIndex::totals() const {
  return {bytes_.load(std::memory_order_relaxed), files_.load(std::memory_order_relaxed),
          found_.load(std::memory_order_relaxed), missed_.load(std::memory_order_relaxed),
          evicted_.load(std::memory_order_relaxed)};
}

}  // namespace fastload
