#include "gpu/stage_image.h"

#include <algorithm>
#include <cstring>

#include "jpeg/entropy/unstuff.h"

namespace fastload {
namespace {

static_assert(kSegmentMcus == kHalfSpacing);
static_assert(kStagedComponents == kMaxComponents);
static_assert(kStagedCodeBytes == sizeof(HuffmanCode));

constexpr std::size_t kAlignment = 16;
constexpr std::size_t kZeros = 32;  // that kernels may read behind the data
static_assert(kZeros >= kUnstuffSlack);
// Beyond it a resize shrinks so much that its weights would take more memory than the file.
constexpr std::size_t kMostWeights = std::size_t{1} << 15;

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::size_t bytes_of(const AxisTable& axis) { return axis.numbers.size() * sizeof axis.numbers[0]; }

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

}  // namespace

// Reads where the segments of the window's rows begin, from a whole point on, whose predictors are known, and where the
// last one ends. Rows share no data but for a byte, so points that claim more than there is cannot be the file's.
bool ImageStager::prepare_rows(ByteSource& source, const CodedPoints& known, const McuWindow& mcus) {
  const std::uint32_t first = mcus.first_column / kPointSpacing * 2;
  const std::uint32_t last = (mcus.first_column + mcus.columns - 1) / kHalfSpacing;
  const bool to_the_right = last + 1 == known.in_row();
  segments_ = last - first + 1;
  open_end_ = false;
  points_.clear();
  data_bytes_ = 0;
  for (std::uint32_t row = mcus.first_row; row <= mcus.last_row; ++row) {
    const std::size_t begin = points_.size();
    known.read_row(row, first, to_the_right ? last : last + 1, points_);
    if (to_the_right && row + 1 < known.rows()) {
      known.read_row(row + 1, 0, 0, points_);
    } else if (to_the_right) {
      open_end_ = true;
      ScanPoint end;
      end.byte = end_of_data(source, points_.back().byte);
      points_.push_back(end);
    }
    for (std::size_t i = begin; i + 1 < points_.size(); ++i) {
      if (points_[i + 1].byte < points_[i].byte) return false;
    }
    data_bytes_ += points_.back().byte - points_[begin].byte + (points_.back().bit != 0 ? 1 : 0);
  }
  return data_bytes_ <= source.size() + (mcus.last_row - mcus.first_row + 1);
}

bool ImageStager::prepare_scan(ByteSource& source, const JpegHeader& header, const Region& region, JpegIndex& index,
                               StagedImage& image) {
  if (!read_baseline(source, header, tables_, baseline_)) return false;
  const Scan& scan = baseline_.scan;
  const McuWindow mcus =
      mcus_of(scan, header.width, header.height, region.left, region.width, region.top, region.top + region.height);
  JpegIndex::Key key;
  if (!index.key_of(source, key)) return false;
  const JpegIndex::Points points = index.find(key);
  CodedPoints known;
  if (points == nullptr || !known.open(points->data(), points->size(), scan) || mcus.checked_row >= known.rows()) {
    return false;
  }
  if (!stage_codes(scan, codes_, image) || !prepare_rows(source, known, mcus)) return false;
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
    std::copy(baseline_.quantization[c].begin(), baseline_.quantization[c].end(), image.quantization[c]);
  }
  return true;
}

bool ImageStager::prepare(ByteSource& source, const JpegHeader& header, const Region& crop, const ResizeJob& job,
                          JpegIndex& index, StagedData data, StagedImage& image) {
  image = StagedImage{};
  steps_.clear();
  if (!uses_own_decoder()) return false;
  axes_ = axis_tables(job);
  if (axes_.x == nullptr || axes_.x->extent > kStagedWidth || axes_.x->numbers.size() > kMostWeights ||
      axes_.y->numbers.size() > kMostWeights) {
    return false;
  }
  image.left = static_cast<int>(crop.left) + axes_.x->first;
  image.top = static_cast<int>(crop.top) + axes_.y->first;
  image.width = axes_.x->extent;
  image.height = axes_.y->extent;
  const Region region = data == StagedData::whole
                            ? Region{0, 0, header.height, header.width}
                            : Region{static_cast<std::uint32_t>(image.top), static_cast<std::uint32_t>(image.left),
                                     static_cast<std::uint32_t>(image.height), static_cast<std::uint32_t>(image.width)};
  if (data == StagedData::shared) {
    points_.clear();
    data_bytes_ = 0;
  } else if (!prepare_scan(source, header, region, index, image)) {
    return false;
  }
  image.image_width = static_cast<int>(header.width);
  image.image_height = static_cast<int>(header.height);
  image.out_width = job.window.width;
  image.out_height = job.window.height;
  image.vertical_first = axes_.vertical_first;
  image.flip_vertical = job.flip_vertical;
  image.x_taps = axes_.x->taps;
  image.y_taps = axes_.y->taps;
  return true;
}

std::size_t ImageStager::bytes() const {
  return aligned(data_bytes_ + kZeros) + aligned(points_.size() * sizeof(StagedPoint)) + aligned(steps_.size()) +
         aligned(bytes_of(*axes_.x)) + aligned(bytes_of(*axes_.y));
}

// Writes the file's bytes [from, to) without stuffing and restart markers. False if there are other markers, or the
// source has fewer bytes.
bool ImageStager::write_data(ByteSource& source, std::size_t from, std::size_t to) {
  while (from < to) {
    const Span span = source.at(from, std::min(to - from, kChunkBytes));
    const std::size_t size = std::min(span.size, to - from);
    if (size == 0) return false;
    const std::uint8_t* at = span.data;
    const std::uint8_t* const end = span.data + size;
    while (true) {
      unstuff(at, end, span.data + span.size, data_, data_ + size);
      if (end - at < 2) break;
      if (at[1] < 0xD0 || at[1] > 0xD7) return false;  // no restart marker
      at += 2;
    }
    if (at != end && (size == to - from || at == span.data)) return false;  // half a marker
    from += static_cast<std::size_t>(at - span.data);
  }
  return true;
}

bool ImageStager::write_row(ByteSource& source, const ScanPoint* point, const std::uint8_t* begin, bool is_last,
                            StagedPoint* to) {
  const auto put = [&] {
    *to = {static_cast<unsigned>(8 * static_cast<std::size_t>(data_ - begin) + static_cast<std::size_t>(point->bit)),
           {},
           0};
    std::copy(std::begin(point->predictors), std::end(point->predictors), to->predictors);
    ++to;
  };
  for (std::size_t i = 0; i < segments_; ++i, ++point) {
    put();
    if (!write_data(source, point[0].byte, point[1].byte)) return false;
  }
  if (open_end_ && is_last) {
    *to = {kNoStagedPoint, {}, 0};
    return true;
  }
  put();
  if (point->bit == 0) return true;
  const Span span = source.at(point->byte, 1);  // a byte shared with what follows
  if (span.size == 0) return false;
  *data_++ = span.data[0];
  return true;
}

bool ImageStager::write(ByteSource& source, std::uint8_t* memory, std::size_t at, StagedImage& image) {
  std::uint8_t* to = memory;
  const auto append = [&](const void* data, std::size_t bytes) {
    const std::size_t begin = at + static_cast<std::size_t>(to - memory);
    if (bytes > 0) std::memcpy(to, data, bytes);
    to += aligned(bytes);
    return static_cast<unsigned>(begin);
  };
  image.steps = append(steps_.data(), steps_.size());
  image.x_axis = append(axes_.x->numbers.data(), bytes_of(*axes_.x));
  image.y_axis = append(axes_.y->numbers.data(), bytes_of(*axes_.y));
  image.points = static_cast<unsigned>(at + static_cast<std::size_t>(to - memory));
  auto* points = reinterpret_cast<StagedPoint*>(to);
  to += aligned(points_.size() * sizeof(StagedPoint));
  image.data = static_cast<unsigned>(at + static_cast<std::size_t>(to - memory));
  data_ = to;
  for (std::size_t i = 0; i < points_.size(); i += segments_ + 1) {
    const bool is_last = i + segments_ + 1 == points_.size();
    if (!write_row(source, &points_[i], to, is_last, points + i)) return false;
  }
  image.data_bytes = static_cast<unsigned>(data_ - to);
  std::memset(data_, 0, kZeros);
  return true;
}

}  // namespace fastload
