// NVTX ranges of the decode threads: which batch each one works on. Does nothing without a profiler.
#pragma once

#include <cstdint>

namespace fastload {

// One per thread, not shared. At most one range is open; the destructor closes it.
class DecodeRange {
 public:
  DecodeRange() = default;
  ~DecodeRange() { leave(); }
  DecodeRange(const DecodeRange&) = delete;
  DecodeRange& operator=(const DecodeRange&) = delete;

  // The thread starts to work on batch `number`. `job` tells batches with equal numbers apart.
  void enter(const void* job, std::uint64_t number) {
    if (job == job_ && number == number_) return;
    leave();
    job_ = job;
    number_ = number;
    open(number);
  }
  // The thread becomes idle.
  void leave() {
    if (job_ != nullptr) close();
    job_ = nullptr;
  }

 private:
  static void open(std::uint64_t number);
  static void close();

  const void* job_ = nullptr;
  std::uint64_t number_ = 0;
};

}  // namespace fastload
