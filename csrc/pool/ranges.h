// NVTX ranges of the decode threads: which batch each one works on, and whether it only reads files for a GPU. Does
// nothing without a profiler.
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

  enum class Work { decode, read };

  // The thread starts to work on batch `number`. `job` tells batches with equal numbers apart.
  void enter(const void* job, std::uint64_t number, Work work) {
    if (job == job_ && number == number_ && work == work_) return;
    leave();
    job_ = job;
    number_ = number;
    work_ = work;
    open(number, work);
  }
  // It decodes an image itself that it has only read so far.
  void decode() {
    if (job_ != nullptr) enter(job_, number_, Work::decode);
  }
  // The thread becomes idle.
  void leave() {
    if (job_ != nullptr) close();
    job_ = nullptr;
  }

 private:
  static void open(std::uint64_t number, Work work);
  static void close();

  const void* job_ = nullptr;
  std::uint64_t number_ = 0;
  Work work_ = Work::decode;
};

}  // namespace fastload
