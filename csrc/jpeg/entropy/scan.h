// Decodes the entropy-coded data of a baseline JPEG's only scan, as libjpeg-turbo does, or not at all: whatever
// libjpeg-turbo might warn about, refuse or read otherwise is refused here. Knows no pixels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/source.h"
#include "jpeg/entropy/huffman.h"

namespace fastload {

inline constexpr int kMaxComponents = 3;
inline constexpr int kMaxBlockRows = 2;  // of one component in an MCU
inline constexpr int kMaxMcuBlocks = 6;  // of all components

// One component of an MCU, which has `columns` by `rows` of its blocks.
struct ScanComponent {
  int columns = 1;
  int rows = 1;
  const DcTable* dc = nullptr;
  const AcTable* ac = nullptr;
};

struct Scan {
  int components = 0;
  ScanComponent component[kMaxComponents];
  std::uint32_t mcu_columns = 0;
  std::uint32_t mcu_rows = 0;
  std::uint32_t restart_interval = 0;  // MCUs; 0: none
  std::size_t data_at = 0;             // where the data begins in the file, bytes
};

// Where decoding can begin: before an MCU. The default is the scan's beginning (`byte` is then Scan::data_at).
struct ScanPoint {
  std::uint64_t mcu = 0;  // row by row
  std::size_t byte = 0;   // of the file: the one with the MCU's first bit
  int bit = 0;            // bits of that byte that belong to earlier MCUs
  std::int16_t predictors[kMaxComponents] = {};
};

// Where the coefficients of a window of one row of MCUs go: 64 per block, in natural order, not yet multiplied.
struct BlockRows {
  struct Row {
    std::int16_t* blocks = nullptr;  // null: not wanted
    std::uint8_t* last = nullptr;    // of each block the zigzag index behind which all are 0; 0: DC only
  };
  Row component[kMaxComponents][kMaxBlockRows];
};

// The next bits are the upper `count` ones of `bits`, then those from `next` on.
struct BitState {
  std::uint64_t bits = 0;
  std::uint64_t count = 0;
  const std::uint8_t* next = nullptr;
};

// The loops' state.
struct ScanState : BitState {
  struct Block {
    int component;
    int row;  // of the component's blocks in an MCU
    const DcTable* dc;
    const AcTable* ac;
  };
  const std::uint8_t* limit = nullptr;  // more bytes are needed once `next` is behind it
  int predictors[kMaxComponents] = {};
  int blocks = 0;  // per MCU
  Block block[kMaxMcuBlocks];
};

class CodedPoints;
class PointRecorder;

// Decodes one scan at a time, MCU by MCU. All methods return false if the file is not sound as far as they looked, or
// the source gave no more bytes; what earlier calls decoded is right even so. Not thread-safe. Throws std::bad_alloc.
class ScanDecoder {
 public:
  // `source` and the scan's tables must stay valid until the last call.
  bool start(ByteSource& source, const Scan& scan, const ScanPoint* from = nullptr);
  // The same, at an MCU: skip_to() then begins at the points of `known`, and what is decoded or passed over adds those
  // that are missing to `recorder`, which has begun behind them. Both must stay valid.
  bool start(ByteSource& source, const Scan& scan, std::uint64_t mcu, const CodedPoints& known,
             PointRecorder& recorder);
  // Decodes the next `count` MCUs, all of one row.
  bool decode(std::uint32_t count, BlockRows to) { return run(count, &to); }
  // Passes over the next `count` MCUs.
  bool skip(std::uint64_t count) { return run(count, nullptr); }
  // Passes over the MCUs before that one. Does nothing if it is behind them.
  bool skip_to(std::uint64_t mcu);
  // The MCU that comes next; the scan's number of MCUs at its end.
  std::uint64_t mcu() const { return std::uint64_t{scan_.mcu_columns} * scan_.mcu_rows - mcus_left_; }
  // The current position. False at the scan's end.
  bool point(ScanPoint& at);
  // Checks that nothing but the scan's data, and behind the last MCU none, precedes the end marker.
  bool finish();

 private:
  bool run(std::uint64_t count, BlockRows* to);
  bool begin(ByteSource& source, const Scan& scan);
  bool jump(const ScanPoint& to, std::size_t bytes);
  bool begin_segment(int bit, std::size_t bytes);
  bool restart();
  bool fill();
  bool extend(std::size_t bytes);
  const std::uint8_t* position() const { return state_.next - (state_.count + 7) / 8; }
  int position_bit() const { return static_cast<int>((8 - state_.count % 8) % 8); }
  void seek(const std::uint8_t* byte, int bit);
  void move_anchor(const std::uint8_t* to);
  bool is_sound() const;

  Scan scan_;
  ScanState state_;
  const struct ScanKernels* kernels_ = nullptr;
  ByteSource* source_ = nullptr;
  const CodedPoints* known_ = nullptr;
  PointRecorder* recorder_ = nullptr;
  std::vector<std::uint8_t> buffer_;      // data without stuffing, as far as the next marker
  std::uint8_t* end_ = nullptr;           // of that data; zeros follow
  std::size_t file_at_ = 0;               // of what follows it, or follows the marker
  int marker_ = 0;                        // that ended it; 0: not yet
  const std::uint8_t* anchor_ = nullptr;  // a byte of the buffer
  std::size_t anchor_at_ = 0;             // and its place in the file
  std::uint64_t mcus_left_ = 0;
  std::uint64_t interval_left_ = 0;  // MCUs before the next restart
  unsigned restarts_ = 0;
};

}  // namespace fastload
