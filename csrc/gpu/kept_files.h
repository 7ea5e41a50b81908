// JPEG files whose data and points stay in a device's memory after their first visit. Knows neither Python nor CUDA.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/source.h"
#include "gpu/kernels/decode_layout.h"
#include "jpeg/baseline.h"
#include "jpeg/header.h"

namespace fastload {

// The codes of one image.
using StagedCodes = std::array<std::array<std::uint8_t, kStagedCodeBytes>, kStagedCodes>;

// A part of a device's memory. Allocates and frees nothing.
class KeptMemory {
 public:
  explicit KeptMemory(std::uint64_t address) : address(address) {}
  const std::uint64_t address;
  // How many files in it are known, or decoded just now.
  std::size_t users() const { return static_cast<std::size_t>(state_.use_count()) - 1; }
  void place(struct KeptFile& file, std::uint64_t at) const;
  bool holds(const struct KeptFile& file) const;

 private:
  friend class KeptFiles;
  friend struct KeptFile;
  struct State {
    std::atomic<bool> forgotten{false};  // then no file of it gets known any more
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

struct KeptFile {
  // What many files have in common, as programs write them all with the same tables.
  struct Tables {
    decltype(BaselineHeader::quantization) quantization;
    StagedCodes codes;
    int dc[kMaxComponents], ac[kMaxComponents];  // of each component
    bool operator==(const Tables& other) const;
  };

  FileVersion version;
  JpegHeader header;
  Scan scan;  // without its tables
  std::shared_ptr<const Tables> tables;
  std::shared_ptr<KeptMemory::State> memory;
  std::uint64_t address = 0;  // of the data, in the device's memory; a multiple of 16
  unsigned data_bytes = 0;    // without stuffing and restart markers; zeros follow
  unsigned points = 0;        // bytes from the data to the points: those of the whole scan, as kernels find them
};

inline void KeptMemory::place(KeptFile& file, std::uint64_t at) const {
  file.memory = state_;
  file.address = at;
}
inline bool KeptMemory::holds(const KeptFile& file) const { return file.memory == state_; }

// The table of such files. Thread-safe.
class KeptFiles {
 public:
  using Known = std::shared_ptr<const KeptFile>;
  // Seconds after which another change of a file is sure to have another time. File systems tell times apart only so
  // far: most of them some milliseconds, FAT two seconds.
  static constexpr int kSettleSeconds = 3;

  explicit KeptFiles(int settle_seconds = kSettleSeconds) : settle_seconds_(settle_seconds) {}

  // Whether the source's file is to be kept: it is wanted, and any later change of it will show.
  bool wants_file(const ByteSource& source) const;
  // The file of that version; null if it is not kept.
  Known find(const FileVersion& version);
  // Keeps another version of the file no longer. Throws std::bad_alloc; nothing has changed then.
  void keep(KeptFile&& file);
  bool empty() const { return files_.load(std::memory_order_relaxed) == 0; }
  // Forgets the files in that memory, also those that batches are to keep there.
  void forget(const KeptMemory& memory);

  // Whether files that are not kept are to be staged as a whole, so that they can be. Anyone may set it.
  std::atomic<bool> wants{false};

  struct Totals {
    std::size_t files = 0;
    std::uint64_t found = 0, missed = 0;  // look-ups
  };
  Totals totals() const;

 private:
  struct Place {
    dev_t device;
    ino_t inode;
    bool operator==(const Place& other) const { return device == other.device && inode == other.inode; }
  };
  struct Hash {
    std::size_t operator()(const Place& place) const { return mixed(place) & 0xFFFFFFFF; }
  };
  struct Shard {
    std::mutex mutex;
    std::unordered_map<Place, Known, Hash> files;
  };
  static constexpr std::size_t kShards = 16;

  static std::uint64_t mixed(const Place& place);
  static Place place_of(const FileVersion& version) { return {version.device, version.inode}; }
  Shard& shard_of(const Place& place) { return shards_[mixed(place) >> 60]; }
  std::shared_ptr<const KeptFile::Tables> shared(const std::shared_ptr<const KeptFile::Tables>& tables);

  const int settle_seconds_;
  std::array<Shard, kShards> shards_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<const KeptFile::Tables>> tables_;  // the latest
  std::size_t next_ = 0;
  std::atomic<std::size_t> files_{0};
  std::atomic<std::uint64_t> found_{0}, missed_{0};
};

}  // namespace fastload
