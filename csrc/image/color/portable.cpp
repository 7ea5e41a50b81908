// Changes of colour in plain C++.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include "base/planes.h"
#include "image/color/kernels.h"

#define FASTLOAD_TARGET

namespace fastload {
namespace {

inline void split(const std::uint8_t* bytes, Planes& planes) {
  for (int i = 0; i < kBlock; ++i) {
    planes.red[i] = bytes[i * 3];
    planes.green[i] = bytes[i * 3 + 1];
    planes.blue[i] = bytes[i * 3 + 2];
  }
}

inline void merge(const Planes& planes, std::uint8_t* bytes) {
  for (int i = 0; i < kBlock; ++i) {
    bytes[i * 3] = planes.red[i];
    bytes[i * 3 + 1] = planes.green[i];
    bytes[i * 3 + 2] = planes.blue[i];
  }
}

// Image.convert("L").
inline void gray_of(const Planes& planes, std::uint8_t* gray) {
  for (int i = 0; i < kBlock; ++i) {
    gray[i] = static_cast<std::uint8_t>(
        (planes.red[i] * 19595 + planes.green[i] * 38470 + planes.blue[i] * 7471 + 0x8000) >> 16);
  }
}

// Blends kBlock bytes; the result replaces `to`.
inline void blend(const std::uint8_t* __restrict from, std::uint8_t* __restrict to, float factor) {
  for (int i = 0; i < kBlock; ++i) to[i] = blended(from[i], to[i], factor);
}

class LookUp {
 public:
  explicit LookUp(const LevelTable& table) : table_(table) {}

  void operator()(Planes& planes) const {
    for (int i = 0; i < kBlock; ++i) {
      planes.red[i] = table_[0][planes.red[i]];
      planes.green[i] = table_[1][planes.green[i]];
      planes.blue[i] = table_[2][planes.blue[i]];
    }
  }

 private:
  const LevelTable& table_;
};

}  // namespace
}  // namespace fastload

#include "image/color/loops.h"

namespace fastload {
const ColorKernels kPortableColor = kLoops;
}  // namespace fastload
