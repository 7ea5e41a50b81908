// A file's bytes, by one open, fstat and read. Knows neither Python nor torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "status.h"

namespace fastload {

// Bytes whose memory is kept from use to use and never filled with zeros.
class Buffer {
 public:
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

// Larger files are not images: `unsupported`, unread.
inline constexpr std::size_t kMaxFileBytes = std::size_t{1} << 30;

// Reads the regular file `path`. `unreadable`: error_number is the errno. `unsupported`: a pipe, a device, or more than
// kMaxFileBytes. A file that shrinks meanwhile yields what was there to read. Thread-safe.
Status read_file(const char* path, Buffer& buffer, int& error_number);

}  // namespace fastload
