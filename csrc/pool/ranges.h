// NVTX ranges of the decode threads: which batch each of them was at, and when. Nothing at all without a tool.
#pragma once

#include <cstdint>

namespace fastload {

// One per thread, used by it alone. At most one range is open; it is closed in the end.
class DecodeRange {
 public:
  DecodeRange() = default;
  ~DecodeRange() { leave(); }
  DecodeRange(const DecodeRange&) = delete;
  DecodeRange& operator=(const DecodeRange&) = delete;

  // The thread works on batch `number` from here on. `job` tells batches apart whose numbers are equal.
  void enter(const void* job, std::uint64_t number) {
    if (job == job_ && number == number_) return;
    leave();
    job_ = job;
    number_ = number;
    open(number);
  }
  // The thread has nothing to do.
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
