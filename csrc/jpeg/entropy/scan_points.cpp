#include "jpeg/entropy/scan_points.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace fastload {
namespace {

// A list is: rows, the widths of the fields, the least distances; then row by row its first point, and of each other
// the distance from the one before in bits of the file, less the least, and the predictors' differences. A half point,
// of which only the distance is there, follows the point before it. All rows are of one size. Numbers begin with their
// lowest bit.
constexpr int kRowsBits = 32, kWidthBits = 6, kLeastBits = 40;
constexpr int kMaxPlaceBits = 40, kMaxPredictorBits = 17;  // the latter of a difference of 16-bit numbers
constexpr int kHeaderBits = kRowsBits + 2 * (1 + kMaxComponents) * kWidthBits + kLeastBits + kWidthBits + kLeastBits;
// Behind the last bit, so that fields can be read eight bytes at a time.
constexpr std::size_t kPadding = 8;
// A scan with fewer MCUs is decoded about as fast without; the points of one with more take much memory.
constexpr std::uint64_t kFewestMcus = 64, kMostMcus = 1 << 21;

int width_of(std::uint64_t value) {
  int bits = 0;
  for (; value != 0; value >>= 1) ++bits;
  return bits;
}

// Small numbers of both signs as small ones of one.
std::uint64_t folded(int value) {
  const auto doubled = static_cast<std::uint32_t>(value) << 1;
  return value < 0 ? std::uint32_t{~doubled} : doubled;
}

int unfolded(std::uint64_t value) {
  const auto half = static_cast<int>(value >> 1);
  return (value & 1) != 0 ? -half - 1 : half;
}

// At most 56 bits at a time, of memory that goes on for kPadding.
class BitReader {
 public:
  BitReader(const std::uint8_t* data, std::uint64_t at) : data_(data), at_(at) {}
  std::uint64_t read(int bits) {
    std::uint64_t value;
    std::memcpy(&value, data_ + at_ / 8, sizeof value);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    value = __builtin_bswap64(value);
#endif
    value = value >> (at_ % 8) & ((std::uint64_t{1} << bits) - 1);
    at_ += static_cast<std::uint64_t>(bits);
    return value;
  }

 private:
  const std::uint8_t* data_;
  std::uint64_t at_;
};

class BitWriter {
 public:
  void write(std::uint64_t value, int bits) {
    for (; bits > 0; value >>= 8) {
      const int count = std::min(bits, 8);
      rest_ |= (value & ((1u << count) - 1)) << used_;
      used_ += count;
      bits -= count;
      if (used_ < 8) continue;
      bytes_.push_back(static_cast<std::uint8_t>(rest_));
      rest_ >>= 8;
      used_ -= 8;
    }
  }
  std::vector<std::uint8_t> take() {
    if (used_ > 0) bytes_.push_back(static_cast<std::uint8_t>(rest_));
    bytes_.resize(bytes_.size() + kPadding);
    return std::move(bytes_);
  }

 private:
  std::vector<std::uint8_t> bytes_;
  std::uint64_t rest_ = 0;
  int used_ = 0;
};

std::uint64_t place_of(const ScanPoint& point) {
  return std::uint64_t{point.byte} * 8 + static_cast<std::uint64_t>(point.bit);
}

std::uint32_t points_in_row(std::uint32_t columns) { return (columns + kPointSpacing - 1) / kPointSpacing; }

bool has_half(std::uint32_t columns, std::uint64_t point) { return point * kPointSpacing + kHalfSpacing < columns; }

std::uint32_t halves_in_row(std::uint32_t columns) { return (columns + kHalfSpacing - 1) / kPointSpacing; }

}  // namespace

bool CodedPoints::open(const std::uint8_t* data, std::size_t size, const Scan& scan) {
  *this = CodedPoints();
  if (size < (kHeaderBits + 7) / 8 + kPadding) return false;
  BitReader in(data, 0);
  const auto rows = static_cast<std::uint32_t>(in.read(kRowsBits));
  std::uint64_t first_bits = 0, next_bits = 0;
  bool fits = rows <= scan.mcu_rows;
  for (int f = 0; f < kFields; ++f) {
    first_bits += static_cast<std::uint64_t>(first_widths_[f] = static_cast<int>(in.read(kWidthBits)));
    next_bits += static_cast<std::uint64_t>(next_widths_[f] = static_cast<int>(in.read(kWidthBits)));
    const int most = f == 0 ? kMaxPlaceBits : f <= scan.components ? kMaxPredictorBits : 0;
    fits = fits && first_widths_[f] <= most && next_widths_[f] <= most;
  }
  least_ = in.read(kLeastBits);
  half_width_ = static_cast<int>(in.read(kWidthBits));
  least_half_ = in.read(kLeastBits);
  fits = fits && half_width_ <= kMaxPlaceBits;
  row_bits_ = first_bits + next_bits * (points_in_row(scan.mcu_columns) - 1) +
              static_cast<std::uint64_t>(half_width_) * halves_in_row(scan.mcu_columns);
  if (!fits || size != (kHeaderBits + row_bits_ * rows + 7) / 8 + kPadding) {
    *this = CodedPoints();
    return false;
  }
  data_ = data;
  rows_ = rows;
  columns_ = scan.mcu_columns;
  data_at_ = scan.data_at;
  return true;
}

ScanPoint CodedPoints::before(std::uint64_t mcu) const {
  mcu = std::min(mcu, std::uint64_t{rows_} * columns_ - 1);
  ScanPoint point;
  walk_row(mcu / columns_, mcu % columns_ / kPointSpacing, [&](const ScanPoint& at, bool half) {
    if (!half) point = at;
  });
  return point;
}

std::uint32_t CodedPoints::in_row() const { return points_in_row(columns_) + halves_in_row(columns_); }

void CodedPoints::read_row(std::uint32_t row, std::uint32_t first, std::uint32_t last,
                           std::vector<ScanPoint>& points) const {
  std::uint32_t number = 0;
  walk_row(row, last / 2, [&](const ScanPoint& at, bool) {
    if (number >= first && number <= last) points.push_back(at);
    ++number;
  });
}

// Visits the row's points up to one of them and its half point.
template <typename Visit>
void CodedPoints::walk_row(std::uint64_t row, std::uint64_t last, Visit visit) const {
  BitReader in(data_, kHeaderBits + row_bits_ * row);
  std::uint64_t place = std::uint64_t{data_at_} * 8 + in.read(first_widths_[0]);
  ScanPoint point;
  for (std::uint64_t number = 0;; ++number) {
    const int* const widths = number == 0 ? first_widths_ : next_widths_;
    if (number > 0) place += least_ + in.read(widths[0]);
    for (int c = 0; c < kMaxComponents; ++c) {
      point.predictors[c] = static_cast<std::int16_t>(point.predictors[c] + unfolded(in.read(widths[c + 1])));
    }
    point.mcu = row * columns_ + number * kPointSpacing;
    point.byte = static_cast<std::size_t>(place / 8);
    point.bit = static_cast<int>(place % 8);
    visit(point, false);
    if (has_half(columns_, number)) {
      const std::uint64_t middle = place + least_half_ + in.read(half_width_);
      ScanPoint half;
      half.mcu = point.mcu + kHalfSpacing;
      half.byte = static_cast<std::size_t>(middle / 8);
      half.bit = static_cast<int>(middle % 8);
      visit(half, true);
    }
    if (number == last) return;
  }
}

bool PointRecorder::takes(const Scan& scan) {
  const std::uint64_t mcus = std::uint64_t{scan.mcu_columns} * scan.mcu_rows;
  return mcus >= kFewestMcus && mcus <= kMostMcus;
}

void PointRecorder::begin(const Scan& scan, const CodedPoints& known) {
  columns_ = scan.mcu_columns;
  mcus_ = std::uint64_t{scan.mcu_columns} * scan.mcu_rows;
  data_at_ = scan.data_at;
  known_ = known;
  next_ = std::uint64_t{known.rows()} * columns_;
  points_.clear();
}

void PointRecorder::add(const ScanPoint& point) {
  points_.push_back(point);
  next_ += std::min<std::uint64_t>(kHalfSpacing, columns_ - next_ % columns_);
}

std::vector<std::uint8_t> PointRecorder::encode(std::uint32_t rows) {
  if (known_.rows() > 0) {
    std::vector<ScanPoint> all;
    for (std::uint32_t row = 0; row < known_.rows(); ++row) known_.read_row(row, 0, known_.in_row() - 1, all);
    points_.insert(points_.begin(), all.begin(), all.end());
    known_ = CodedPoints();
  }
  constexpr int kFields = CodedPoints::kFields;
  const std::uint32_t in_row = points_in_row(columns_) + halves_in_row(columns_);
  const std::size_t count = std::size_t{rows} * in_row;
  const auto is_first = [&](std::size_t i) { return i % in_row == 0; };
  const auto is_half = [&](std::size_t i) { return i % in_row % 2 != 0; };
  const auto distance = [&](std::size_t i) {
    return place_of(points_[i]) - place_of(points_[i - (is_half(i) ? 1 : 2)]);
  };
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max(), least_half = least;
  for (std::size_t i = 0; i < count; ++i) {
    if (is_first(i)) continue;
    std::uint64_t& lowest = is_half(i) ? least_half : least;
    lowest = std::min(lowest, distance(i));
  }
  if (in_row <= 2) least = 0;  // all are first ones, or half
  if (in_row == 1) least_half = 0;
  struct Fields {
    std::uint64_t value[kFields];
  };
  const auto fields_of = [&](std::size_t i) {
    static constexpr std::int16_t kNone[kMaxComponents] = {};
    const std::int16_t* const before = is_first(i) ? kNone : points_[i - 2].predictors;
    Fields fields{};
    fields.value[0] = is_first(i) ? place_of(points_[i]) - std::uint64_t{data_at_} * 8 : distance(i) - least;
    for (int c = 0; c < kMaxComponents; ++c) fields.value[c + 1] = folded(points_[i].predictors[c] - before[c]);
    return fields;
  };
  std::uint64_t first[kFields] = {}, next[kFields] = {}, half = 0;  // all bits that are set
  for (std::size_t i = 0; i < count; ++i) {
    if (is_half(i)) {
      half |= distance(i) - least_half;
      continue;
    }
    const Fields fields = fields_of(i);
    for (int f = 0; f < kFields; ++f) (is_first(i) ? first : next)[f] |= fields.value[f];
  }
  BitWriter out;
  out.write(rows, kRowsBits);
  for (int f = 0; f < kFields; ++f) {
    out.write(static_cast<std::uint64_t>(width_of(first[f])), kWidthBits);
    out.write(static_cast<std::uint64_t>(width_of(next[f])), kWidthBits);
  }
  out.write(least, kLeastBits);
  out.write(static_cast<std::uint64_t>(width_of(half)), kWidthBits);
  out.write(least_half, kLeastBits);
  for (std::size_t i = 0; i < count; ++i) {
    if (is_half(i)) {
      out.write(distance(i) - least_half, width_of(half));
      continue;
    }
    const Fields fields = fields_of(i);
    for (int f = 0; f < kFields; ++f) out.write(fields.value[f], width_of((is_first(i) ? first : next)[f]));
  }
  return out.take();
}

}  // namespace fastload
