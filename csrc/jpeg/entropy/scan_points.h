// Where decoding can begin within a scan: at every kPointSpacing-th MCU of each row, for the rows that were decoded,
// from the top down. In between there are half points, whose predictors are not known: for those who decode from the
// point before as well. Compactly coded, and read row by row. Knows no files and no pixels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "jpeg/entropy/scan.h"

namespace fastload {

inline constexpr std::uint32_t kPointSpacing = 8;  // MCUs
inline constexpr std::uint32_t kHalfSpacing = kPointSpacing / 2;

// Coded points, which may come from anywhere: whatever they say, nothing outside of them is read. Not thread-safe.
class CodedPoints {
 public:
  // No points.
  CodedPoints() = default;
  // False, and no points, unless the bytes are a list for a scan of this size. They must stay valid.
  bool open(const std::uint8_t* data, std::size_t size, const Scan& scan);

  // How many of the scan's first rows of MCUs were sound. They have points; others don't.
  std::uint32_t rows() const { return rows_; }
  // The last point at or before an MCU; there must be points. It may lie outside of the file if the bytes are not those
  // that encode() made of this scan.
  ScanPoint before(std::uint64_t mcu) const;
  // Number of points and half points in each row that has some.
  std::uint32_t in_row() const;
  // Appends some of them, [first, last] counted from the left.
  void read_row(std::uint32_t row, std::uint32_t first, std::uint32_t last, std::vector<ScanPoint>& points) const;

 private:
  static constexpr int kFields = 1 + kMaxComponents;  // the place and the predictors

  template <typename Visit>
  void walk_row(std::uint64_t row, std::uint64_t last, Visit visit) const;

  const std::uint8_t* data_ = nullptr;
  std::uint32_t rows_ = 0;
  std::uint32_t columns_ = 1;
  std::size_t data_at_ = 0;
  int first_widths_[kFields] = {}, next_widths_[kFields] = {};  // bits of a row's first point, and of its others
  std::uint64_t row_bits_ = 0;
  std::uint64_t least_ = 0;  // bits of the file between two points of a row
  int half_width_ = 0;
  std::uint64_t least_half_ = 0;

  friend class PointRecorder;
};

// Makes the list of points while a scan is decoded. Not thread-safe. Throws std::bad_alloc.
class PointRecorder {
 public:
  // Whether a scan is worth points, and they take little memory.
  static bool takes(const Scan& scan);

  // Empties the list, and goes on behind those points. `scan` and they are copied.
  void begin(const Scan& scan, const CodedPoints& known);
  // The MCU of the first point that is missing; the scan's number of MCUs if there is none.
  std::uint64_t next_mcu() const { return next_; }
  // Adds the point, or half point, at next_mcu().
  void add(const ScanPoint& point);
  // The known and new points of the first `rows` rows, which must all be there.
  std::vector<std::uint8_t> encode(std::uint32_t rows);

 private:
  std::uint32_t columns_ = 1, left_in_row_ = 1;  // MCUs of a row; those of the next point's row from it on
  std::uint64_t mcus_ = 0, next_ = 0;
  std::size_t data_at_ = 0;
  CodedPoints known_;
  std::vector<ScanPoint> points_;  // behind the known ones
};

}  // namespace fastload
