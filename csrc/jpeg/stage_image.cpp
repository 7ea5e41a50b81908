#include "jpeg/stage_image.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "jpeg/baseline.h"
#include "jpeg/region_pixels.h"
#include "jpeg/scan_points.h"

namespace fastload {
namespace {

static_assert(kSegmentMcus == kHalfSpacing);
static_assert(kStagedComponents == kMaxComponents);
static_assert(kStagedCodeBytes == sizeof(HuffmanCode));

constexpr std::size_t kAlignment = 16;
constexpr std::size_t kZeros = 32;  // that kernels may read behind the data
// Beyond it a resize shrinks so much that its weights would take more memory than the file.
constexpr std::size_t kMostWeights = std::size_t{1} << 15;

template <typename T>
std::uint32_t append(std::vector<std::uint8_t>& bytes, const T* data, std::size_t count) {
  bytes.resize((bytes.size() + kAlignment - 1) / kAlignment * kAlignment);
  const auto at = static_cast<std::uint32_t>(bytes.size());
  const auto* const begin = reinterpret_cast<const std::uint8_t*>(data);
  bytes.insert(bytes.end(), begin, begin + count * sizeof(T));
  return at;
}

// Appends the file's bytes [from, to) without stuffing and restart markers. False if there are other markers, or the
// source has fewer bytes.
bool append_data(ByteSource& source, std::size_t from, std::size_t to, std::vector<std::uint8_t>& data) {
  while (from < to) {
    const Span span = source.at(from, 2);
    if (span.size == 0) return false;
    const std::size_t most = std::min(span.size, to - from);
    const void* const found = std::memchr(span.data, 0xFF, most);
    std::size_t count =
        found == nullptr ? most : static_cast<std::size_t>(static_cast<const std::uint8_t*>(found) - span.data);
    std::size_t skipped = 0;
    if (found != nullptr) {
      const Span marker = source.at(from + count, 2);
      if (marker.size < 2 || to - from - count < 2) return false;
      const bool stuffed = marker.data[1] == 0;
      if (!stuffed && (marker.data[1] < 0xD0 || marker.data[1] > 0xD7)) return false;
      count += stuffed ? 1 : 0;
      skipped = stuffed ? 1 : 2;
    }
    const Span piece = source.at(from, count);
    if (piece.size < count) return false;
    data.insert(data.end(), piece.data, piece.data + count);
    from += count + skipped;
  }
  return true;
}

// The data of one image, and where its segments begin.
struct StagedScan {
  std::vector<std::uint8_t> data;
  std::vector<StagedPoint> points;

  void add(const ScanPoint& at) {
    StagedPoint point{static_cast<unsigned>(data.size() * 8 + static_cast<std::size_t>(at.bit)), {}, 0};
    std::copy(std::begin(at.predictors), std::end(at.predictors), point.predictors);
    points.push_back(point);
  }
};

// Where the data of the scan's last row ends.
std::size_t end_of_data(ByteSource& source, std::size_t from) {
  for (;; ++from) {
    const Span span = source.at(from, 2);
    if (span.size < 2) return source.size();
    const void* const found = std::memchr(span.data, 0xFF, span.size - 1);
    if (found == nullptr) {
      from += span.size - 2;
      continue;
    }
    from += static_cast<std::size_t>(static_cast<const std::uint8_t*>(found) - span.data);
    const int marker = source.at(from, 2).data[1];
    if (marker == 0xD9) return from;
  }
}

// The segments of the window's part of a row, from a whole point on, whose predictors are known, to one.
bool add_row(ByteSource& source, const CodedPoints& known, const Scan& scan, const McuWindow& mcus, std::uint32_t row,
             StagedScan& staged) {
  static thread_local std::vector<ScanPoint> points, next_row;
  known.read_row(row, points);
  const std::uint32_t first = mcus.first_column / kPointSpacing * 2;
  const std::uint32_t last = (mcus.first_column + mcus.columns - 1) / kHalfSpacing;
  bool has_end = last + 1 < points.size();
  if (!has_end && row + 1 < known.rows()) {
    known.read_row(row + 1, next_row);
    points.push_back(next_row.front());
    has_end = true;
  }
  std::size_t at = points[first].byte;
  if (at < scan.data_at) return false;
  for (std::uint32_t i = first; i <= last; ++i) {
    staged.add(points[i]);
    const std::size_t end = i + 1 < points.size() ? points[i + 1].byte : end_of_data(source, at);
    if (end < at || !append_data(source, at, end, staged.data)) return false;
    at = end;
  }
  if (!has_end) {
    staged.points.push_back({kNoStagedPoint, {}, 0});
    return true;
  }
  staged.add(points[last + 1]);
  if (points[last + 1].bit == 0) return true;
  const Span span = source.at(at, 1);  // a byte shared with what follows
  if (span.size == 0) return false;
  staged.data.push_back(span.data[0]);
  return true;
}

// Numbers the scan's codes. False if there are more than baseline files have.
bool stage_codes(const Scan& scan, StagedCodes& codes, StagedImage& image) {
  codes = StagedCodes{};
  constexpr int kEach = kStagedCodes / 2;
  const SymbolTable* found[kStagedCodes] = {};
  const auto number_of = [&](const SymbolTable* table, int begin) {
    for (int i = begin; i < begin + kEach; ++i) {
      if (found[i] == nullptr) {
        found[i] = table;
        std::memcpy(codes[static_cast<std::size_t>(i)].data(), &table->code, kStagedCodeBytes);
      }
      if (found[i] == table) return i;
    }
    return -1;
  };
  for (int c = 0; c < scan.components; ++c) {
    image.dc[c] = number_of(scan.component[c].dc, 0);
    image.ac[c] = number_of(scan.component[c].ac, kEach);
    if (image.dc[c] < 0 || image.ac[c] < 0) return false;
  }
  return true;
}

bool stage_scan(ByteSource& source, const JpegHeader& header, const Region& region, JpegIndex& index,
                std::vector<std::uint8_t>& bytes, StagedCodes& codes, StagedImage& image) {
  static thread_local HuffmanTables tables;
  static thread_local BaselineHeader baseline;
  static thread_local StagedScan staged;
  if (!read_baseline(source, header, tables, baseline)) return false;
  const Scan& scan = baseline.scan;
  const McuWindow mcus =
      mcus_of(scan, header.width, header.height, region.left, region.width, region.top, region.top + region.height);
  JpegIndex::Key key;
  if (!index.key_of(source, key)) return false;
  const JpegIndex::Points points = index.find(key);
  CodedPoints known;
  if (points == nullptr || !known.open(points->data(), points->size(), scan) || mcus.checked_row >= known.rows()) {
    return false;
  }
  if (!stage_codes(scan, codes, image)) return false;
  staged.data.clear();
  staged.points.clear();
  for (std::uint32_t row = mcus.first_row; row <= mcus.last_row; ++row) {
    if (!add_row(source, known, scan, mcus, row, staged)) return false;
  }
  image.data_bytes = static_cast<unsigned>(staged.data.size());
  staged.data.resize(staged.data.size() + kZeros);
  image.data = append(bytes, staged.data.data(), staged.data.size());
  image.points = append(bytes, staged.points.data(), staged.points.size());
  image.components = scan.components;
  image.across = scan.component[0].columns;
  image.down = scan.component[0].rows;
  image.mcu_column = static_cast<int>(mcus.first_column);
  image.mcu_columns = static_cast<int>(mcus.columns);
  image.mcu_row = static_cast<int>(mcus.first_row);
  image.mcu_rows = static_cast<int>(mcus.last_row - mcus.first_row + 1);
  image.scan_columns = static_cast<int>(scan.mcu_columns);
  image.restart_interval = static_cast<int>(scan.restart_interval);
  for (int c = 0; c < scan.components; ++c) {
    std::copy(baseline.quantization[c].begin(), baseline.quantization[c].end(), image.quantization[c]);
  }
  return true;
}

}  // namespace

bool stage_image(ByteSource& source, const JpegHeader& header, const Region& crop, const ResizeJob& job,
                 JpegIndex& index, std::vector<std::uint8_t>& bytes, StagedCodes& codes, StagedImage& image) {
  static thread_local Resampler resampler;
  static thread_local std::vector<std::int32_t> numbers;
  std::string error;
  image = StagedImage{};
  bytes.clear();
  if (!uses_own_decoder() || !resampler.prepare(job, error)) return false;
  const PixelBox& needed = resampler.region();
  if (needed.width > kStagedWidth) return false;
  image.left = static_cast<int>(crop.left) + needed.left;
  image.top = static_cast<int>(crop.top) + needed.top;
  image.width = needed.width;
  image.height = needed.height;
  const Region region{static_cast<std::uint32_t>(image.top), static_cast<std::uint32_t>(image.left),
                      static_cast<std::uint32_t>(needed.height), static_cast<std::uint32_t>(needed.width)};
  if (!stage_scan(source, header, region, index, bytes, codes, image)) return false;
  image.image_width = static_cast<int>(header.width);
  image.image_height = static_cast<int>(header.height);
  image.out_width = job.window.width;
  image.out_height = job.window.height;
  image.vertical_first = resampler.vertical_first();
  image.flip_vertical = job.flip_vertical;
  const auto stage_axis = [&](bool along_x, unsigned& at, int& taps) {
    numbers.clear();
    taps = resampler.weights(along_x, numbers);
    at = append(bytes, numbers.data(), numbers.size());
    return numbers.size() <= kMostWeights;
  };
  return stage_axis(true, image.x_axis, image.x_taps) && stage_axis(false, image.y_axis, image.y_taps);
}

}  // namespace fastload
