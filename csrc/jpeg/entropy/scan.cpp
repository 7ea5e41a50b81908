#include "jpeg/entropy/scan.h"

#include <algorithm>
#include <cstring>

#include "base/simd_level.h"
#include "jpeg/entropy/scan_points.h"
#include "jpeg/entropy/unstuff.h"

#define FASTLOAD_TARGET
#include "jpeg/entropy/scan_loops.h"

namespace fastload {

const ScanKernels kPortableScan = {&skip_mcus, &decode_mcus};

namespace {

// Upper bound on an MCU's data: six blocks, each with a DC symbol of 27 bits and 63 AC symbols of 26.
constexpr std::size_t kMcuBytes = 1536;
// Data without stuffing that is kept ready; it stays in the cache.
constexpr std::size_t kBufferBytes = std::size_t{32} << 10;
// Of that, what is made ready at a point: about a row of MCUs.
constexpr std::size_t kJumpBytes = std::size_t{8} << 10;
// Points ahead by fewer MCUs are not worth a jump.
constexpr std::uint64_t kFewestJumped = 8;
constexpr std::size_t kZeros = kMcuBytes + 16;
static_assert(kZeros >= kUnstuffSlack);
// At most so many at once: predictors cannot overflow.
constexpr std::uint64_t kMcusAtOnce = 1 << 16;
// Upper bound on a coefficient's bytes in the file.
constexpr std::uint64_t kMaxCoefficientBytes = 8;

constexpr int kEndMarker = 0xD9;
constexpr int kFirstRestart = 0xD0;
bool is_restart(int marker) { return marker >= kFirstRestart && marker < kFirstRestart + 8; }

const ScanKernels& kernels() {
#if defined(__x86_64__)
  if (simd_level() != SimdLevel::portable) return kBmi2Scan;
#endif
  return kPortableScan;
}

}  // namespace

// Prepares all but the position.
bool ScanDecoder::begin(ByteSource& source, const Scan& scan) {
  scan_ = scan;
  source_ = &source;
  known_ = nullptr;
  recorder_ = nullptr;
  kernels_ = &kernels();
  buffer_.resize(kBufferBytes + kZeros);
  state_.blocks = 0;
  for (int i = 0; i < scan.components; ++i) {
    const ScanComponent& component = scan.component[i];
    for (int row = 0; row < component.rows; ++row) {
      for (int column = 0; column < component.columns; ++column) {
        if (state_.blocks == kMaxMcuBlocks) return false;
        state_.block[state_.blocks++] = {i, row, component.dc, component.ac};
      }
    }
  }
  return true;
}

bool ScanDecoder::start(ByteSource& source, const Scan& scan, const ScanPoint* from) {
  ScanPoint first;
  first.byte = scan.data_at;
  return begin(source, scan) && jump(from != nullptr ? *from : first, kBufferBytes);
}

bool ScanDecoder::start(ByteSource& source, const Scan& scan, std::uint64_t mcu, const CodedPoints& known,
                        PointRecorder& recorder) {
  if (!begin(source, scan)) return false;
  if (known.rows() > 0) known_ = &known;
  recorder_ = &recorder;
  ScanPoint first;
  first.byte = scan.data_at;
  const bool jumps = known_ != nullptr && mcu >= kFewestJumped;
  return jump(jumps ? known.before(mcu) : first, jumps ? kJumpBytes : kBufferBytes) && skip_to(mcu);
}

// Goes on at a point; `bytes` of the data behind it are made ready.
bool ScanDecoder::jump(const ScanPoint& to, std::size_t bytes) {
  mcus_left_ = std::uint64_t{scan_.mcu_columns} * scan_.mcu_rows;
  if (to.mcu >= mcus_left_ || to.byte < scan_.data_at || to.bit < 0 || to.bit > 7) return false;
  mcus_left_ -= to.mcu;
  interval_left_ = mcus_left_;
  restarts_ = 0;
  if (scan_.restart_interval != 0) {
    interval_left_ = scan_.restart_interval - to.mcu % scan_.restart_interval;
    restarts_ = static_cast<unsigned>(to.mcu / scan_.restart_interval % 8);
  }
  file_at_ = to.byte;
  std::copy(std::begin(to.predictors), std::end(to.predictors), state_.predictors);
  return begin_segment(to.bit, bytes);
}

bool ScanDecoder::skip_to(std::uint64_t mcu) {
  if (known_ != nullptr && mcu >= this->mcu() + kFewestJumped) {
    const ScanPoint point = known_->before(mcu);
    if (point.mcu >= this->mcu() + kFewestJumped && !jump(point, kJumpBytes)) return false;
  }
  return mcu <= this->mcu() || skip(mcu - this->mcu());
}

// Begins to read at `file_at_`.
bool ScanDecoder::begin_segment(int bit, std::size_t bytes) {
  marker_ = 0;
  anchor_ = end_ = buffer_.data();
  anchor_at_ = file_at_;
  if (!extend(bytes)) return false;
  seek(buffer_.data(), bit);
  return true;
}

void ScanDecoder::seek(const std::uint8_t* byte, int bit) {
  state_.bits = load_big_endian(byte) << bit;
  state_.count = static_cast<std::uint64_t>(56 - bit);
  state_.next = byte + 7;
}

// Moves the data that is not yet used up to the buffer's front, and fills the rest.
bool ScanDecoder::fill() {
  if (marker_ != 0) return false;  // no more data, but the segment's MCUs need some
  const std::uint8_t* const from = position();
  const int bit = position_bit();
  move_anchor(from);
  end_ = std::copy(from, static_cast<const std::uint8_t*>(end_), buffer_.data());
  anchor_ = buffer_.data();
  if (!extend(kBufferBytes)) return false;
  seek(buffer_.data(), bit);
  return true;
}

// Fills the buffer's first `bytes` from `end_` on, up to the next marker.
bool ScanDecoder::extend(std::size_t bytes) {
  const std::uint8_t* const full = buffer_.data() + bytes;
  while (end_ < full && marker_ == 0) {
    const Span span = source_->at(file_at_, 2);
    if (span.size < 2) return false;
    const std::uint8_t* from = span.data;
    const std::uint8_t* const end = span.data + span.size;
    unstuff(from, end, end, end_, full);
    file_at_ += static_cast<std::size_t>(from - span.data);
    if (from != span.data || end_ == full) continue;
    marker_ = from[1];  // of two bytes or more, the first is FF and the second not 0
    file_at_ += 2;
    if (marker_ != kEndMarker && !is_restart(marker_)) return false;
  }
  std::memset(end_, 0, kZeros);
  state_.limit = marker_ == 0 ? end_ - kMcuBytes : end_ + 8;
  return true;
}

// Whether all data has been there, and predictors are what coefficients can be.
bool ScanDecoder::is_sound() const {
  if (position() > end_ || (position() == end_ && position_bit() != 0)) return false;
  return std::all_of(std::begin(state_.predictors), std::end(state_.predictors),
                     [](int predictor) { return predictor == static_cast<std::int16_t>(predictor); });
}

// Goes on behind a restart marker, which must be the next one and follow the data at once.
bool ScanDecoder::restart() {
  if (marker_ == 0 && !fill()) return false;
  const std::uint8_t* const used = position() + (position_bit() != 0 ? 1 : 0);
  if (used != end_ || marker_ != kFirstRestart + static_cast<int>(restarts_ % 8)) return false;
  ++restarts_;
  interval_left_ = scan_.restart_interval;
  std::fill(std::begin(state_.predictors), std::end(state_.predictors), 0);
  return begin_segment(0, kBufferBytes);
}

bool ScanDecoder::run(std::uint64_t count, BlockRows* to) {
  if (count > mcus_left_) return false;
  while (count > 0) {
    if (interval_left_ == 0 && !restart()) return false;
    std::uint64_t wanted = std::min({count, interval_left_, kMcusAtOnce});
    if (recorder_ != nullptr) {
      if (mcu() == recorder_->next_mcu()) {
        ScanPoint here;
        if (!point(here)) return false;
        recorder_->add(here);
      }
      if (mcu() < recorder_->next_mcu()) wanted = std::min(wanted, recorder_->next_mcu() - mcu());
    }
    const std::uint64_t left = to != nullptr ? kernels_->decode(state_, wanted, *to) : kernels_->skip(state_, wanted);
    if (left == kNotSound) return false;
    count -= wanted - left;
    mcus_left_ -= wanted - left;
    interval_left_ -= wanted - left;
    if (!is_sound() || (left > 0 && !fill())) return false;
  }
  return true;
}

void ScanDecoder::move_anchor(const std::uint8_t* to) {
  const auto stuffed = std::count(anchor_, to, std::uint8_t{0xFF});
  anchor_at_ += static_cast<std::size_t>(to - anchor_ + stuffed);
  anchor_ = to;
}

bool ScanDecoder::point(ScanPoint& at) {
  if (mcus_left_ == 0 || (interval_left_ == 0 && !restart())) return false;
  move_anchor(position());
  at.mcu = mcu();
  at.byte = anchor_at_;
  at.bit = position_bit();
  for (int i = 0; i < kMaxComponents; ++i) at.predictors[i] = static_cast<std::int16_t>(state_.predictors[i]);
  return true;
}

bool ScanDecoder::finish() {
  if (mcus_left_ == 0) {
    if (marker_ == 0 && !fill()) return false;
    return marker_ == kEndMarker && position() + (position_bit() != 0 ? 1 : 0) == end_;
  }
  const std::uint64_t coefficients =
      std::uint64_t{scan_.mcu_columns} * scan_.mcu_rows * static_cast<std::uint64_t>(state_.blocks) * kBlockSize;
  const std::uint64_t most = scan_.data_at + coefficients * kMaxCoefficientBytes;
  while (marker_ != kEndMarker) {
    const Span span = source_->at(file_at_, 2);
    if (span.size < 2 || file_at_ > most) return false;
    const void* const found = std::memchr(span.data, 0xFF, span.size - 1);
    if (found == nullptr) {
      file_at_ += span.size - 1;
      continue;
    }
    const auto* const at = static_cast<const std::uint8_t*>(found);
    file_at_ += static_cast<std::size_t>(at - span.data) + 2;
    if (at[1] == 0) continue;
    marker_ = at[1];
    if (marker_ != kEndMarker && !is_restart(marker_)) return false;
  }
  return true;
}

}  // namespace fastload
