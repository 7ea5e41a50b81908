// One image's encoded bytes, from memory or from a file. Knows neither Python nor torch.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

#include "jpeg/status.h"

namespace fastload {

// Bytes whose memory is kept from use to use and never filled with zeros.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    capacity_ = std::exchange(other.capacity_, 0);
    return *this;
  }
  std::uint8_t* data() { return data_.get(); }
  const std::uint8_t* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  std::size_t capacity() const { return capacity_; }
  // Contents are lost. Throws std::bad_alloc.
  void resize(std::size_t size);
  // The first `size` bytes are what counts; size <= size().
  void truncate(std::size_t size) { size_ = size; }
  // Gives memory back unless it is at most `bytes`.
  void shrink(std::size_t bytes);

 private:
  std::unique_ptr<std::uint8_t[]> data_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

// A file of at most this size is read as a whole, by one open, fstat and read.
inline constexpr std::size_t kWholeFileBytes = std::size_t{1} << 20;
// A larger one is read in pieces of this size, as the decoder gets to them.
inline constexpr std::size_t kChunkBytes = std::size_t{256} << 10;

// Bytes that the source owns or borrows; good until its next call.
struct Span {
  const std::uint8_t* data = nullptr;
  std::size_t size = 0;
};

// Borrowed bytes, or a file's. Not thread-safe; may be handed from thread to thread.
class ByteSource {
 public:
  ByteSource() = default;
  ByteSource(const std::uint8_t* data, std::size_t size) { borrow(data, size); }
  ~ByteSource() { close(); }
  ByteSource(ByteSource&& other) noexcept { *this = std::move(other); }
  ByteSource& operator=(ByteSource&& other) noexcept;

  // These bytes, which must stay where they are.
  void borrow(const std::uint8_t* data, std::size_t size) {
    data_ = data;
    size_ = size;
  }

  // Once `stop` is true, there are no more bytes; failure() then is `cancelled`.
  void watch(const std::atomic<bool>* stop) { stop_ = stop; }
  bool stopped() const { return stop_ != nullptr && stop_->load(std::memory_order_relaxed); }

  // Memory for what is read from files, and the same back; a file is closed by that.
  void lend(Buffer&& buffer) { buffer_ = std::move(buffer); }
  Buffer take_buffer();

  // Opens the regular file `path`. `unreadable`: error_number() says why. `unsupported`: a pipe or a device. A source
  // that was closed may be opened again; `corrupt` then says that this is another file than before, or has been
  // written to. A file that shrinks meanwhile has the bytes that were there to read. Throws std::bad_alloc.
  Status open(const char* path);
  // Whether at() has bytes to give without open().
  bool is_open() const { return data_ != nullptr || descriptor_ >= 0; }
  // Memory that holds a whole file; 0 if the bytes are borrowed or read in chunks.
  std::size_t held_bytes() const { return is_open() && descriptor_ < 0 ? buffer_.capacity() : 0; }

  // Of all bytes.
  std::size_t size() const { return size_; }
  // The bytes from `offset` on: at least `count` (at most kChunkBytes), or fewer at the end or after a failure. Never
  // throws.
  Span at(std::size_t offset, std::size_t count);
  // Why at() gave fewer bytes than there are: `cancelled`, `unreadable`, or `ok` if it did not.
  Status failure() const { return failure_; }
  // What a reader that misses bytes has to say: failure(), or else `at_end`.
  Status failure_or(Status at_end) const { return failure_ != Status::ok ? failure_ : at_end; }
  int error_number() const { return error_number_; }

 private:
  // Which file it was, and as of when.
  struct Identity {
    dev_t device;
    ino_t inode;
    off_t size;
    timespec modified;
  };

  void close();
  Status examine();
  void fill(std::size_t offset, std::size_t wanted);
  Status fail(int error_number);

  const std::uint8_t* data_ = nullptr;  // all bytes, unless they are read in chunks
  std::size_t size_ = 0;
  Buffer buffer_;
  int descriptor_ = -1;
  std::size_t chunk_at_ = 0;  // where in the file the buffer's bytes are from
  bool known_ = false;        // `identity_` is
  Identity identity_{};
  const std::atomic<bool>* stop_ = nullptr;
  Status failure_ = Status::ok;
  int error_number_ = 0;
};

}  // namespace fastload
