// One image's encoded bytes, from memory or from a file. Knows neither Python nor torch.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

#include "base/buffer.h"
#include "base/keyed_hash.h"
#include "base/status.h"

namespace fastload {

// Files up to this size are read whole, with one open, fstat and read.
inline constexpr std::size_t kWholeFileBytes = std::size_t{1} << 20;
// Larger files are read in pieces of this size, when the decoder needs them.
inline constexpr std::size_t kChunkBytes = std::size_t{256} << 10;

// A regular file and its version, as the file system knows them.
struct FileVersion {
  dev_t device = 0;
  ino_t inode = 0;
  off_t size = 0;
  timespec modified{};
  timespec changed{};  // of its data or anything else about it; programs cannot choose it, as they can the other

  // Whether the data are the same; a file may have been renamed, say.
  bool has_data_of(const FileVersion& other) const;
  bool operator==(const FileVersion& other) const;
};

// False if there is no regular file, or it cannot be asked for.
bool version_of(const char* path, FileVersion& version);

// Bytes that the source owns or borrows; valid until its next call.
struct Span {
  const std::uint8_t* data = nullptr;
  std::size_t size = 0;
};

// Reads borrowed bytes or a file. Not thread-safe; may be moved between threads.
class ByteSource {
 public:
  ByteSource() = default;
  ByteSource(const std::uint8_t* data, std::size_t size) { borrow(data, size); }
  ~ByteSource() { close(); }
  ByteSource(ByteSource&& other) noexcept { *this = std::move(other); }
  ByteSource& operator=(ByteSource&& other) noexcept;

  // Reads these bytes, which must stay valid.
  void borrow(const std::uint8_t* data, std::size_t size) {
    data_ = data;
    size_ = size;
  }

  // Once `stop` is true, the source gives no more bytes and failure() is `cancelled`.
  void watch(const std::atomic<bool>* stop) { stop_ = stop; }
  bool stopped() const { return stop_ != nullptr && stop_->load(std::memory_order_relaxed); }

  // Gives the source memory for file contents. take_buffer() returns it and closes the file.
  void set_buffer(Buffer&& buffer) { buffer_ = std::move(buffer); }
  Buffer take_buffer();

  // Opens the regular file `path`. Returns `unreadable` (see error_number()) or `unsupported` (a pipe or a device). A
  // closed source may be opened again; `corrupt` then means that the file was replaced or written to. A file that
  // shrinks while it is read ends at the bytes that could be read. With `key`, the file must have been tagged with it,
  // and is always read whole: `unreadable` (EBADMSG) if it was not. Throws std::bad_alloc.
  Status open(const char* path, const HashKey* key = nullptr);
  // Makes open() give `corrupt` unless the file's data are those of that version.
  void expect(const FileVersion& version) {
    version_ = version;
    known_ = true;
  }
  // The file that was opened last, and when, in seconds since 1970; null if there is none.
  const FileVersion* version() const { return known_ ? &version_ : nullptr; }
  time_t opened_at() const { return opened_at_; }
  // Whether its file system is one that is known to change the version with each write(), at once and for all to see: a
  // local one. None does for a write through a mapping.
  bool tells_changes() const { return known_ && tells_changes_; }
  // Whether at() can give bytes without open().
  bool is_open() const { return data_ != nullptr || descriptor_ >= 0; }
  // Memory that holds a whole file; 0 if the bytes are borrowed or read in chunks.
  std::size_t held_bytes() const { return is_open() && descriptor_ < 0 ? buffer_.capacity() : 0; }

  // Total number of bytes.
  std::size_t size() const { return size_; }
  // At least `count` (<= kChunkBytes) bytes from `offset` on, fewer at the end or after a failure. Never throws.
  Span at(std::size_t offset, std::size_t count);
  // Why at() gave fewer bytes than exist: `cancelled` or `unreadable`; `ok` if it did not.
  Status failure() const { return failure_; }
  // The status for a reader that runs out of bytes: failure(), or `at_end` if there was none.
  Status failure_or(Status at_end) const { return failure_ != Status::ok ? failure_ : at_end; }
  int error_number() const { return error_number_; }

 private:
  void close();
  Status examine();
  std::size_t read(std::size_t offset, std::uint8_t* to, std::size_t wanted);
  void fill(std::size_t offset, std::size_t wanted);
  bool read_tagged(const HashKey& key);
  Status fail(int error_number);

  const std::uint8_t* data_ = nullptr;  // all bytes; null if they are read in chunks
  std::size_t size_ = 0;
  Buffer buffer_;
  int descriptor_ = -1;
  std::size_t chunk_at_ = 0;  // file offset of the buffer's bytes
  bool known_ = false;        // `version_` is valid
  time_t opened_at_ = 0;
  bool tells_changes_ = false;
  FileVersion version_{};
  const std::atomic<bool>* stop_ = nullptr;
  Status failure_ = Status::ok;
  int error_number_ = 0;
};

}  // namespace fastload
