#include "gpu/stage_image.h"

#include <algorithm>
#include <cstring>

#include "jpeg/entropy/unstuff.h"

namespace fastload {
namespace {

static_assert(kSegmentMcus == kHalfSpacing);
static_assert(kStagedComponents == kMaxComponents);
static_assert(kStagedCodeBytes == sizeof(HuffmanCode));
static_assert(kSegmentMcus * 2 == kPointSpacing);
static_assert(kStagedPlanes == ProgressiveDecoder::kMostPlanes);
static_assert(kStagedScans >= ProgressiveDecoder::kMostScans);

constexpr std::size_t kAlignment = 16;
constexpr std::size_t kZeros = kStagedZeros;
static_assert(kZeros >= kUnstuffSlack);
// Beyond it a resize shrinks so much that its weights would take more memory than the file.
constexpr std::size_t kMostWeights = std::size_t{1} << 15;
// Bytes of a scan whose points the kernels find: they count its bits.
constexpr std::size_t kMostToFind = std::size_t{1} << 28;

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::size_t bytes_of(const AxisTable& axis) { return axis.numbers.size() * sizeof axis.numbers[0]; }

// The window's blocks of one component, and where they are in a progressive image's.
struct WindowBlocks {
  std::size_t rows, columns, first;

  WindowBlocks(const McuWindow& mcus, const ScanComponent& shape, std::size_t stride) {
    const auto across = static_cast<std::size_t>(shape.columns), down = static_cast<std::size_t>(shape.rows);
    rows = (mcus.last_row - mcus.first_row + 1) * down;
    columns = mcus.columns * across;
    first = mcus.first_row * down * stride + mcus.first_column * across;
  }
  std::size_t count() const { return rows * columns; }
};

void describe_mcus(const Scan& scan, const McuWindow& mcus, StagedImage& image) {
  image.components = scan.components;
  image.across = scan.component[0].columns;
  image.down = scan.component[0].rows;
  image.mcu_column = static_cast<int>(mcus.first_column);
  image.mcu_columns = static_cast<int>(mcus.columns);
  image.mcu_row = static_cast<int>(mcus.first_row);
  image.mcu_rows = static_cast<int>(mcus.last_row - mcus.first_row + 1);
}

void stage_quantization(const BaselineHeader& header, StagedImage& image) {
  for (int c = 0; c < header.scan.components; ++c) {
    std::copy(header.quantization[c].begin(), header.quantization[c].end(), image.quantization[c]);
  }
}

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

// Of the points of a whole scan, which begin at image.points, uses those of the image's window.
void use_all_points(const Scan& scan, StagedImage& image) {
  const std::uint32_t in_row = (scan.mcu_columns + kSegmentMcus - 1) / kSegmentMcus;
  const auto first = static_cast<std::uint32_t>(image.mcu_column) / kPointSpacing * 2;
  image.points_in_row = static_cast<int>(in_row);
  image.points += (static_cast<unsigned>(image.mcu_row) * in_row + first) * static_cast<unsigned>(sizeof(StagedPoint));
}

void describe_scan(const Scan& scan, const McuWindow& mcus, StagedImage& image) {
  describe_mcus(scan, mcus, image);
  image.scan_columns = static_cast<int>(scan.mcu_columns);
  image.restart_interval = static_cast<int>(scan.restart_interval);
}

McuWindow window_of(const Scan& scan, const ImageHeader& header, const Region& region) {
  return mcus_of(scan, header.width, header.height, region.left, region.width, region.top, region.top + region.height);
}

// The pixels of the file that an image is made of.
Region region_of(const StagedImage& image) {
  return {static_cast<std::uint32_t>(image.top), static_cast<std::uint32_t>(image.left),
          static_cast<std::uint32_t>(image.height), static_cast<std::uint32_t>(image.width)};
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

// Empty if the scan is not sound.
std::vector<std::uint8_t> ImageStager::scan_for_points(ByteSource& source) {
  static thread_local ScanDecoder decoder;
  static thread_local PointRecorder recorder;
  const Scan& scan = baseline_.scan;
  recorder.begin(scan, CodedPoints());
  const bool is_sound = decoder.start(source, scan, 0, CodedPoints(), recorder) &&
                        decoder.skip(std::uint64_t{scan.mcu_columns} * scan.mcu_rows) && decoder.finish();
  return is_sound ? recorder.encode(scan.mcu_rows) : std::vector<std::uint8_t>();
}

// The whole scan's data, whose points are to be found.
bool ImageStager::prepare_to_find(ByteSource& source, StagedImage& image) {
  const Scan& scan = baseline_.scan;
  const std::uint64_t mcus = std::uint64_t{scan.mcu_columns} * scan.mcu_rows;
  const std::size_t size = source.size() - std::min(source.size(), scan.data_at);
  const std::uint64_t intervals = scan.restart_interval == 0 ? 1 : (mcus - 1) / scan.restart_interval + 1;
  // Each interval and block takes some bits, and positions of bits have 32.
  if (size >= kMostToFind || intervals > size || mcus > 8 * std::uint64_t{size}) return false;
  data_bytes_ = size;
  intervals_ = static_cast<std::size_t>(intervals);
  points_.clear();
  image.interval_count = static_cast<unsigned>(intervals_);
  image.scan_rows = static_cast<int>(scan.mcu_rows);
  use_all_points(scan, image);
  return true;
}

bool ImageStager::prepare_scan(ByteSource& source, const JpegHeader& header, const Region& region, JpegIndex* index,
                               NewFile new_file, StagedImage& image) {
  if (!read_baseline(source, header, tables_, baseline_)) return false;
  const Scan& scan = baseline_.scan;
  const McuWindow mcus = window_of(scan, header, region);
  JpegIndex::Points points;
  CodedPoints known;
  if (index != nullptr) {
    if (!index->key_of(source, key_)) return false;
    points = index->find(key_);
  }
  bool knows = points != nullptr && known.open(points->data(), points->size(), scan) && mcus.checked_row < known.rows();
  is_new_ = !knows;
  std::vector<std::uint8_t> scanned;
  if (!knows && new_file == NewFile::scan && index != nullptr && PointRecorder::takes(scan)) {
    scanned = scan_for_points(source);
    knows = known.open(scanned.data(), scanned.size(), scan);
  }
  const bool finds = new_file == NewFile::keep || (!knows && new_file == NewFile::find);
  if ((!knows && !finds) || !stage_codes(scan, codes_, image)) return false;
  describe_scan(scan, mcus, image);
  if (!(finds ? prepare_to_find(source, image) : prepare_rows(source, known, mcus))) return false;
  if (!finds) image.points_in_row = static_cast<int>(segments_) + 1;
  JpegIndex::Key now;
  if (!scanned.empty() && index->key_of(source, now) && now == key_) index->keep(key_, std::move(scanned));
  stage_quantization(baseline_, image);
  return true;
}

// Decodes the coefficients of a progressive file.
bool ImageStager::prepare_coefficients(ByteSource& source, const JpegHeader& header, const Region& region,
                                       StagedImage& image) {
  if (!progressive_.start(source, header)) return false;
  const Scan& scan = progressive_.frame().scan;
  const McuWindow mcus = window_of(scan, header, region);
  if (!progressive_.decode(mcus)) return false;
  describe_mcus(scan, mcus, image);
  stage_quantization(progressive_.frame(), image);
  for (const ProgressiveDecoder::Values& values : progressive_.scans()) {
    image.scan_components[image.scan_count++] = static_cast<unsigned char>(values.component);
  }
  coefficient_bytes_ = aligned((1 + progressive_.row_ends().size()) * sizeof(std::uint32_t)) +
                       aligned(progressive_.value_count() * sizeof(std::uint32_t));
  for (int c = 0; c < scan.components; ++c) {
    const ProgressiveDecoder::Component& component = progressive_.component(c);
    const WindowBlocks blocks(mcus, scan.component[c], component.stride);
    image.plane_count[c] = component.planes;
    coefficient_bytes_ += aligned(blocks.count() * sizeof component.dc[0]);
    if (component.planes > 0) {
      coefficient_bytes_ +=
          aligned(static_cast<std::size_t>(component.planes + 1) * blocks.count() * sizeof component.negative[0]);
    }
  }
  return true;
}

// What the kernels need beside the file's data, and which of its pixels.
bool ImageStager::prepare_pixels(const Region& crop, const ResizeJob& job, StagedImage& image) {
  image = StagedImage{};
  is_new_ = false;
  steps_.clear();
  points_.clear();
  data_bytes_ = intervals_ = coefficient_bytes_ = 0;
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
  image.out_width = job.window.width;
  image.out_height = job.window.height;
  image.vertical_first = axes_.vertical_first;
  image.flip_vertical = job.flip_vertical;
  image.x_taps = axes_.x->taps;
  image.y_taps = axes_.y->taps;
  return true;
}

bool ImageStager::prepare(ByteSource& source, const JpegHeader& header, const Region& crop, const ResizeJob& job,
                          JpegIndex* index, StagedData data, NewFile new_file, StagedImage& image) {
  if (!prepare_pixels(crop, job, image)) return false;
  const Region region = data == StagedData::whole ? Region{0, 0, header.height, header.width} : region_of(image);
  if (data != StagedData::shared &&
      !(header.progressive ? prepare_coefficients(source, header, region, image)
                           : prepare_scan(source, header, region, index, new_file, image))) {
    return false;
  }
  image.image_width = static_cast<int>(header.width);
  image.image_height = static_cast<int>(header.height);
  return true;
}

bool ImageStager::prepare_kept(const KeptFile& file, const Region& crop, const ResizeJob& job, StagedImage& image) {
  if (!prepare_pixels(crop, job, image)) return false;
  describe_scan(file.scan, window_of(file.scan, file.header, region_of(image)), image);
  const KeptFile::Tables& tables = *file.tables;
  codes_ = tables.codes;
  for (int c = 0; c < file.scan.components; ++c) {
    image.dc[c] = tables.dc[c];
    image.ac[c] = tables.ac[c];
    std::copy(tables.quantization[c].begin(), tables.quantization[c].end(), image.quantization[c]);
  }
  image.kept = file.address;
  image.data_bytes = file.data_bytes;
  image.points = file.points;
  use_all_points(file.scan, image);
  image.image_width = static_cast<int>(file.header.width);
  image.image_height = static_cast<int>(file.header.height);
  return true;
}

KeptFile ImageStager::to_keep(const JpegHeader& header, const StagedImage& image) const {
  auto tables = std::make_shared<KeptFile::Tables>();
  KeptFile file;
  file.header = header;
  file.scan = baseline_.scan;
  for (int c = 0; c < file.scan.components; ++c) {
    file.scan.component[c].dc = nullptr;
    file.scan.component[c].ac = nullptr;
    tables->dc[c] = image.dc[c];
    tables->ac[c] = image.ac[c];
    tables->quantization[c] = baseline_.quantization[c];
  }
  tables->codes = codes_;
  file.tables = std::move(tables);
  return file;
}

std::size_t ImageStager::bytes() const {
  return aligned(data_bytes_ + kZeros) + coefficient_bytes_ + aligned(points_.size() * sizeof(StagedPoint)) +
         aligned(intervals_ * sizeof(unsigned)) + aligned(steps_.size()) + aligned(bytes_of(*axes_.x)) +
         aligned(bytes_of(*axes_.y));
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

// Writes all data of a scan, and where its restart intervals end. False unless there are data, as many intervals as the
// header says, their markers count on, and the end marker follows.
bool ImageStager::write_scan(ByteSource& source, const std::uint8_t* begin, unsigned* ends) {
  std::size_t from = baseline_.scan.data_at;
  for (std::size_t interval = 0; interval < intervals_;) {
    const Span span = source.at(from, kChunkBytes);
    if (span.size < 2) return false;
    const std::uint8_t* at = span.data;
    const std::uint8_t* const end = span.data + span.size;
    while (true) {
      unstuff(at, end, end, data_, data_ + (end - at));
      if (end - at < 2) break;
      const bool is_last = interval + 1 == intervals_;
      if (at[1] != (is_last ? 0xD9 : 0xD0 + interval % 8)) return false;
      ends[interval++] = static_cast<unsigned>(data_ - begin);
      at += 2;
      if (is_last) return data_ != begin;
    }
    if (at == span.data) return false;  // half a marker, and nothing behind it
    from += static_cast<std::size_t>(at - span.data);
  }
  return false;
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

// Returns where it has ended; `memory` begins at byte `at` of the batch.
std::uint8_t* ImageStager::write_coefficients(std::uint8_t* memory, std::size_t at, StagedImage& image) const {
  std::uint8_t* to = memory;
  const auto place = [&] { return static_cast<unsigned>(at + static_cast<std::size_t>(to - memory)); };
  const std::vector<std::uint32_t>& ends = progressive_.row_ends();
  image.row_ends = place();
  std::memset(to, 0, sizeof ends[0]);
  std::memcpy(to + sizeof ends[0], ends.data(), ends.size() * sizeof ends[0]);
  to += aligned((1 + ends.size()) * sizeof ends[0]);
  image.data = place();
  image.data_bytes = static_cast<unsigned>(progressive_.value_count() * sizeof(std::uint32_t));
  std::memcpy(to, progressive_.values(), image.data_bytes);
  to += aligned(image.data_bytes);
  for (int c = 0; c < image.components; ++c) {
    const ProgressiveDecoder::Component& component = progressive_.component(c);
    const WindowBlocks blocks(progressive_.window(), progressive_.frame().scan.component[c], component.stride);
    const auto append = [&](const auto& values) {
      for (std::size_t row = 0; row < blocks.rows; ++row, to += blocks.columns * sizeof values[0]) {
        std::memcpy(to, values.data() + blocks.first + row * component.stride, blocks.columns * sizeof values[0]);
      }
    };
    const auto align = [&] { to = memory + aligned(static_cast<std::size_t>(to - memory)); };
    image.dc_values[c] = place();
    append(component.dc);
    align();
    image.planes[c] = place();
    if (component.planes > 0) append(component.negative);
    for (int i = 0; i < component.planes; ++i) append(component.plane[i]);
    align();
  }
  return to;
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
  if (image.scan_count > 0) to = write_coefficients(to, at + static_cast<std::size_t>(to - memory), image);
  const auto place = [&] { return static_cast<unsigned>(at + static_cast<std::size_t>(to - memory)); };
  auto* const points = reinterpret_cast<StagedPoint*>(to);
  auto* const ends = reinterpret_cast<unsigned*>(to);
  if (image.kept == 0) (intervals_ > 0 ? image.intervals : image.points) = place();
  to += intervals_ > 0 ? aligned(intervals_ * sizeof(unsigned)) : aligned(points_.size() * sizeof(StagedPoint));
  data_ = to;
  if (image.scan_count > 0 || image.kept != 0) return true;
  image.data = place();
  if (intervals_ > 0 && !write_scan(source, to, ends)) return false;
  for (std::size_t i = 0; i < points_.size(); i += segments_ + 1) {
    const bool is_last = i + segments_ + 1 == points_.size();
    if (!write_row(source, &points_[i], to, is_last, points + i)) return false;
  }
  image.data_bytes = static_cast<unsigned>(data_ - to);
  std::memset(data_, 0, kZeros);
  return true;
}

}  // namespace fastload
