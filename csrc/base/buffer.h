// Memory that is kept from one image to the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

namespace fastload {

// A reusable byte buffer that is never zero-filled.
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
  // Loses the contents. Throws std::bad_alloc.
  void resize(std::size_t size) {
    if (size > capacity_) {
      constexpr std::size_t step = 1 << 16;
      const std::size_t capacity = (size + step - 1) / step * step;
      data_.reset();
      capacity_ = size_ = 0;
      data_.reset(new std::uint8_t[capacity]);
      capacity_ = capacity;
    }
    size_ = size;
  }
  // Keeps the first `size` bytes; size <= size().
  void truncate(std::size_t size) { size_ = size; }
  // Frees the memory if it is more than `bytes`.
  void shrink(std::size_t bytes) {
    if (capacity_ <= bytes) return;
    data_.reset();
    capacity_ = size_ = 0;
  }

 private:
  std::unique_ptr<std::uint8_t[]> data_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

// A 64-byte aligned buffer, reused between images; memory for a rare huge image is freed.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  ~AlignedBuffer() { std::free(data_); }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;

  // At least `size` bytes, contents unspecified.
  std::uint8_t* require(std::size_t size) {
    if (size > capacity_ || (capacity_ > kKeptBytes && size < capacity_ / 4)) {
      const std::size_t rounded = (size + 4095) / 4096 * 4096;
      void* fresh = std::aligned_alloc(64, rounded);
      if (fresh == nullptr) throw std::bad_alloc();
      std::free(data_);
      data_ = static_cast<std::uint8_t*>(fresh);
      capacity_ = rounded;
    }
    return data_;
  }
  std::uint8_t* data() { return data_; }
  const std::uint8_t* data() const { return data_; }

 private:
  static constexpr std::size_t kKeptBytes = std::size_t{4} << 20;

  std::uint8_t* data_ = nullptr;
  std::size_t capacity_ = 0;
};

}  // namespace fastload
