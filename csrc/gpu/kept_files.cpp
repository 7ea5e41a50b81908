#include "gpu/kept_files.h"

#include <algorithm>
#include <utility>

namespace fastload {
namespace {

// Sets of tables that are compared with a new file's: those of as many kinds of files in a row share theirs.
constexpr std::size_t kMostTables = 16;

}  // namespace

bool KeptFile::Tables::operator==(const Tables& other) const {
  return std::equal(std::begin(quantization), std::end(quantization), std::begin(other.quantization)) &&
         codes == other.codes && std::equal(std::begin(dc), std::end(dc), std::begin(other.dc)) &&
         std::equal(std::begin(ac), std::end(ac), std::begin(other.ac));
}

std::uint64_t KeptFiles::mixed(const Place& place) {
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15;
  const std::uint64_t number = std::uint64_t{place.inode} * kOdd + std::uint64_t{place.device};
  return (number ^ number >> 32) * kOdd;
}

bool KeptFiles::wants_file(const ByteSource& source) const {
  const FileVersion* const version = source.version();
  return wants && version != nullptr && source.tells_changes() &&
         source.opened_at() - version->changed.tv_sec > settle_seconds_;
}

KeptFiles::Known KeptFiles::find(const FileVersion& version) {
  const Place place = place_of(version);
  Known known;
  {
    Shard& shard = shard_of(place);
    const std::lock_guard<std::mutex> lock(shard.mutex);
    const auto found = shard.files.find(place);
    if (found != shard.files.end() && found->second->version == version) known = found->second;
  }
  (known != nullptr ? found_ : missed_).fetch_add(1, std::memory_order_relaxed);
  return known;
}

std::shared_ptr<const KeptFile::Tables> KeptFiles::shared(const std::shared_ptr<const KeptFile::Tables>& tables) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& kept : tables_) {
    auto same = kept.lock();
    if (same != nullptr && *same == *tables) return same;
  }
  if (tables_.size() < kMostTables) tables_.emplace_back();
  tables_[next_++ % kMostTables] = tables;
  return tables;
}

void KeptFiles::keep(KeptFile&& file) {
  file.tables = shared(file.tables);
  const Place place = place_of(file.version);
  Known kept = std::make_shared<const KeptFile>(std::move(file));
  Shard& shard = shard_of(place);
  const std::lock_guard<std::mutex> lock(shard.mutex);
  if (kept->memory->forgotten) return;
  Known& known = shard.files[place];
  if (known == nullptr) files_.fetch_add(1, std::memory_order_relaxed);
  known.swap(kept);
}

void KeptFiles::forget(const KeptMemory& memory) {
  memory.state_->forgotten = true;
  for (Shard& shard : shards_) {
    const std::lock_guard<std::mutex> lock(shard.mutex);
    for (auto at = shard.files.begin(); at != shard.files.end();) {
      if (memory.holds(*at->second)) {
        at = shard.files.erase(at);
        files_.fetch_sub(1, std::memory_order_relaxed);
      } else {
        ++at;
      }
    }
  }
}

KeptFiles::Totals KeptFiles::totals() const { return {files_.load(), found_.load(), missed_.load()}; }

}  // namespace fastload
