#include "jpeg/entropy/scan_points.h"

#include <algorithm>
#include <array>
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

int width_of(std::uint64_t value) { return value == 0 ? 0 : 64 - __builtin_clzll(value); }

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

// At most 56 bits at a time; of what is more, something is lost.
class BitWriter {
 public:
  // So many bits in all.
  explicit BitWriter(std::uint64_t bits) : bytes_(static_cast<std::size_t>((bits + 7) / 8) + kPadding) {}
  void write(std::uint64_t value, int bits) {
    std::uint8_t* const to = bytes_.data() + at_ / 8;
    value = (value & (bits < 64 ? (std::uint64_t{1} << bits) - 1 : ~std::uint64_t{0})) << (at_ % 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    value = __builtin_bswap64(value);
#endif
    std::uint64_t before;
    std::memcpy(&before, to, sizeof before);
    value |= before;
    std::memcpy(to, &value, sizeof value);
    at_ += static_cast<std::uint64_t>(bits);
  }
  std::vector<std::uint8_t> take() { return std::move(bytes_); }

 private:
  std::vector<std::uint8_t> bytes_;
  std::uint64_t at_ = 0;
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
  left_in_row_ = columns_;
  points_.clear();
}

void PointRecorder::add(const ScanPoint& point) {
  points_.push_back(point);
  const std::uint32_t mcus = std::min(kHalfSpacing, left_in_row_);
  next_ += mcus;
  left_in_row_ -= mcus;
  if (left_in_row_ == 0) left_in_row_ = columns_;
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
  // Visits a row's first point; its distance from the one before for each half point; each other one and the one
  // before.
  const auto visit = [&](const auto& first, const auto& half, const auto& next) {
    for (std::uint32_t row = 0; row < rows; ++row) {
      const ScanPoint* const point = points_.data() + std::size_t{row} * in_row;
      first(point[0]);
      for (std::uint32_t i = 1; i < in_row; ++i) {
        if (i % 2 != 0) {
          half(place_of(point[i]) - place_of(point[i - 1]));
        } else {
          next(point[i], point[i - 2]);
        }
      }
    }
  };
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max(), least_half = least;
  visit([](const ScanPoint&) {}, [&](std::uint64_t distance) { least_half = std::min(least_half, distance); },
        [&](const ScanPoint& point, const ScanPoint& before) {
          least = std::min(least, place_of(point) - place_of(before));
        });
  if (rows == 0 || in_row <= 2) least = 0;  // all are first ones, or half
  if (rows == 0 || in_row == 1) least_half = 0;
  using Fields = std::array<std::uint64_t, kFields>;
  const auto fields_of = [](const ScanPoint& point, const ScanPoint& before, std::uint64_t origin) {
    Fields fields;
    fields[0] = place_of(point) - origin;
    for (int c = 0; c < kMaxComponents; ++c) {
      fields[static_cast<std::size_t>(c + 1)] = folded(point.predictors[c] - before.predictors[c]);
    }
    return fields;
  };
  const auto first_fields = [&](const ScanPoint& point) { return fields_of(point, {}, std::uint64_t{data_at_} * 8); };
  const auto next_fields = [&](const ScanPoint& point, const ScanPoint& before) {
    return fields_of(point, before, place_of(before) + least);
  };
  Fields first{}, next{};  // all bits that are set, and then how many these are
  std::uint64_t half = 0;
  const auto add = [](Fields& to, const Fields& fields) {
    for (std::size_t f = 0; f < kFields; ++f) to[f] |= fields[f];
  };
  visit([&](const ScanPoint& point) { add(first, first_fields(point)); },
        [&](std::uint64_t distance) { half |= distance - least_half; },
        [&](const ScanPoint& point, const ScanPoint& before) { add(next, next_fields(point, before)); });
  int first_widths[kFields], next_widths[kFields], half_width = width_of(half);
  std::uint64_t first_bits = 0, next_bits = 0;
  for (std::size_t f = 0; f < kFields; ++f) {
    first_bits += static_cast<std::uint64_t>(first_widths[f] = width_of(first[f]));
    next_bits += static_cast<std::uint64_t>(next_widths[f] = width_of(next[f]));
  }
  BitWriter out(kHeaderBits + rows * (first_bits + next_bits * (points_in_row(columns_) - 1) +
                                      static_cast<std::uint64_t>(half_width) * halves_in_row(columns_)));
  out.write(rows, kRowsBits);
  for (std::size_t f = 0; f < kFields; ++f) {
    out.write(static_cast<std::uint64_t>(first_widths[f]), kWidthBits);
    out.write(static_cast<std::uint64_t>(next_widths[f]), kWidthBits);
  }
  out.write(least, kLeastBits);
  out.write(static_cast<std::uint64_t>(half_width), kWidthBits);
  out.write(least_half, kLeastBits);
  const auto write = [&](const Fields& fields, const int* widths) {
    for (std::size_t f = 0; f < kFields; ++f) out.write(fields[f], widths[f]);
  };
  visit([&](const ScanPoint& point) { write(first_fields(point), first_widths); },
        [&](std::uint64_t distance) { out.write(distance - least_half, half_width); },
        [&](const ScanPoint& point, const ScanPoint& before) { write(next_fields(point, before), next_widths); });
  return out.take();
}

}  // namespace fastload
