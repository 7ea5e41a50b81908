// What kernels have found in the files of a batch that the index did not know (gpu/kernels/points.cu), until the index
// knows it. Knows neither Python nor CUDA.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "gpu/kernels/decode_layout.h"
#include "index/jpeg_index.h"
#include "jpeg/entropy/scan.h"

namespace fastload {

class FoundPoints {
 public:
  struct File {
    JpegIndex::Key key;
    Scan scan;
    std::size_t first = 0;  // byte of the points where its own begin
  };

  // The StagedPoints of all files, which are copied.
  FoundPoints(std::vector<File> files, const std::uint8_t* points, std::size_t bytes)
      : files_(std::move(files)), points_(points, points + bytes) {}

  // Notes one more file in the index. Nothing happens if there is none left, or its points are not in order, or the
  // index wants none of such files. Throws std::bad_alloc. Thread-safe.
  void learn(JpegIndex& index);
  bool done() const { return next_.load(std::memory_order_relaxed) >= files_.size(); }

 private:
  const std::vector<File> files_;
  const std::vector<std::uint8_t> points_;
  std::atomic<std::size_t> next_{0};
};

}  // namespace fastload
