// What is prepared of random JPEG files for a GPU: the data without stuffing, segment by segment, and the weights of
// the resize. Damaged lists of points: nothing outside of the file and of the memory is touched.
//
//   staging [COUNT]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/simd_level.h"
#include "gpu/stage_image.h"
#include "jpeg/entropy/unstuff.h"
#include "sample/sample.h"
#include "tests/random_file.h"

using namespace fastload;

namespace {

using Bytes = std::vector<std::uint8_t>;

void demand(bool condition, const char* what, int number) {
  if (condition) return;
  std::printf("file %d: %s\n", number, what);
  std::exit(1);
}

// Data without stuffing, byte by byte; also says how much of it was read.
Bytes plain_unstuffed(const Bytes& data, std::size_t most, std::size_t& used) {
  Bytes out;
  for (used = 0; used < data.size() && out.size() < most; ++used) {
    if (data[used] == 0xFF) {
      if (used + 1 == data.size() || data[used + 1] != 0) break;
      out.push_back(0xFF);
      ++used;
    } else {
      out.push_back(data[used]);
    }
  }
  return out;
}

void check_unstuff(int number) {
  const int rarity = 1 << between(0, 8);
  Bytes data(static_cast<std::size_t>(between(0, 400)));
  for (std::size_t i = 0; i < data.size(); ++i) {
    data[i] = static_cast<std::uint8_t>(between(0, rarity) == 0 ? 0xFF : between(0, 255));
    if (i > 0 && data[i - 1] == 0xFF && between(0, 40) != 0) data[i] = 0;
  }
  data.shrink_to_fit();  // so that sanitizers know where it ends
  const auto readable = static_cast<std::size_t>(between(0, static_cast<int>(data.size())));
  const Bytes part(data.begin(), data.begin() + static_cast<std::ptrdiff_t>(readable));
  const auto most = static_cast<std::size_t>(between(0, 500));
  std::size_t used;
  const Bytes expected = plain_unstuffed(part, most, used);
  Bytes out(most + kUnstuffSlack);
  const std::uint8_t* from = data.data();
  std::uint8_t* to = out.data();
  unstuff(from, data.data() + readable, data.data() + data.size(), to, out.data() + most);
  demand(static_cast<std::size_t>(from - data.data()) == used, "unstuffing stops elsewhere", number);
  out.resize(static_cast<std::size_t>(to - out.data()));
  demand(out == expected, "unstuffed data differs", number);
}

const HashKey& secrets() {
  static const HashKey all = HashKey::random();
  return all;
}

struct Sample {
  Region crop;
  ResizeJob job;
};

Sample random_sample(const JpegHeader& header) {
  const int height = static_cast<int>(header.height), width = static_cast<int>(header.width);
  Sample sample;
  sample.crop.top = static_cast<std::uint32_t>(between(0, height - 1));
  sample.crop.left = static_cast<std::uint32_t>(between(0, width - 1));
  sample.job.height = between(1, height - static_cast<int>(sample.crop.top));
  sample.job.width = between(1, width - static_cast<int>(sample.crop.left));
  sample.crop.height = static_cast<std::uint32_t>(sample.job.height);
  sample.crop.width = static_cast<std::uint32_t>(sample.job.width);
  sample.job.out_height = between(0, 5) == 0 ? sample.job.height : between(1, 40);
  sample.job.out_width = between(0, 5) == 0 ? sample.job.width : between(1, 40);
  sample.job.window.top = between(0, sample.job.out_height - 1);
  sample.job.window.left = between(0, sample.job.out_width - 1);
  sample.job.window.height = between(1, sample.job.out_height - sample.job.window.top);
  sample.job.window.width = between(1, sample.job.out_width - sample.job.window.left);
  sample.job.flip_horizontal = between(0, 1) != 0;
  sample.job.filter = static_cast<Filter>(between(0, static_cast<int>(Filter::fma4_bicubic)));
  sample.job.order = between(0, 1) != 0 ? PassOrder::vertical_first : PassOrder::horizontal_first;
  return sample;
}

void check_weights(const StagedImage& image, const Bytes& memory, const Sample& sample, int number) {
  Resampler resampler;
  std::string error;
  demand(resampler.prepare(sample.job, error), "a resize is refused", number);
  const PixelBox& region = resampler.region();
  demand(image.left == static_cast<int>(sample.crop.left) + region.left && image.width == region.width &&
             image.top == static_cast<int>(sample.crop.top) + region.top && image.height == region.height,
         "the region differs", number);
  for (const bool along_x : {true, false}) {
    std::vector<std::int32_t> numbers;
    demand(resampler.weights(along_x, numbers) == (along_x ? image.x_taps : image.y_taps), "taps differ", number);
    demand(std::memcmp(&memory[along_x ? image.x_axis : image.y_axis], numbers.data(), 4 * numbers.size()) == 0,
           "weights differ", number);
  }
  const bool vertical_first =
      sample.job.order == PassOrder::vertical_first && resampler.convolves(false) && !is_torch(sample.job.filter);
  demand((image.vertical_first != 0) == vertical_first, "the order of the passes differs", number);
}

// The data between two bytes of the file, and where it has a marker that is no restart.
Bytes plain_data(const Bytes& file, std::size_t from, std::size_t to, bool& sound) {
  Bytes out;
  for (; from < to; ++from) {
    if (file[from] != 0xFF) {
      out.push_back(file[from]);
      continue;
    }
    sound = sound && from + 1 < to && (file[from + 1] == 0 || (file[from + 1] & 0xF8) == 0xD0);
    if (!sound) return out;
    if (file[++from] == 0) out.push_back(0xFF);
  }
  return out;
}

void check_scan(const StagedImage& image, const Bytes& memory, const Bytes& file, const CodedPoints& known,
                int number) {
  StagedPoint staged;
  Bytes data;
  const auto at = [&](std::size_t i) {
    std::memcpy(&staged, &memory[image.points + i * sizeof staged], sizeof staged);
    return staged;
  };
  const auto first = static_cast<std::uint32_t>(image.mcu_column) / kPointSpacing * 2;
  const auto last = static_cast<std::uint32_t>(image.mcu_column + image.mcu_columns - 1) / kHalfSpacing;
  std::size_t number_of_point = 0;
  for (auto row = static_cast<std::uint32_t>(image.mcu_row);
       row < static_cast<std::uint32_t>(image.mcu_row + image.mcu_rows); ++row) {
    std::vector<ScanPoint> points;
    known.read_row(row, 0, known.in_row() - 1, points);
    const bool open = last + 1 == known.in_row() && row + 1 == known.rows();
    if (last + 1 == known.in_row() && !open) known.read_row(row + 1, 0, 0, points);
    for (std::uint32_t i = first; i <= last; ++i, ++number_of_point) {
      demand(at(number_of_point).bit == 8 * data.size() + static_cast<std::size_t>(points[i].bit),
             "a segment begins elsewhere", number);
      demand(std::memcmp(staged.predictors, points[i].predictors, sizeof staged.predictors) == 0, "a predictor differs",
             number);
      bool sound = true;
      const std::size_t end = i + 1 < points.size() ? points[i + 1].byte : file.size() - 2;
      const Bytes more = plain_data(file, points[i].byte, end, sound);
      demand(sound, "there is a marker", number);
      data.insert(data.end(), more.begin(), more.end());
    }
    if (open) {
      demand(at(number_of_point++).bit == kNoStagedPoint, "the last row has an end", number);
      continue;
    }
    const ScanPoint& end = points[last + 1];
    demand(at(number_of_point++).bit == 8 * data.size() + static_cast<std::size_t>(end.bit), "a row ends elsewhere",
           number);
    if (end.bit != 0) data.push_back(file[end.byte]);
  }
  demand(image.data_bytes == data.size() && std::memcmp(&memory[image.data], data.data(), data.size()) == 0,
         "the data differs", number);
  demand(std::all_of(&memory[image.data] + data.size(), &memory[image.data] + data.size() + 32,
                     [](std::uint8_t byte) { return byte == 0; }),
         "no zeros follow", number);
}

// Returns whether the file was staged.
bool stage(const Bytes& file, const JpegHeader& header, const Sample& sample, JpegIndex& index, StagedImage& image,
           Bytes& memory, int number) {
  static ImageStager stager;
  ByteSource source(file.data(), file.size());
  if (!stager.prepare(source, header, sample.crop, sample.job, &index, StagedData::of_crop, NewFile::refuse, image))
    return false;
  const std::size_t weights = 2 * 4 * (std::size_t{1} << 15),
                    points = sizeof(StagedPoint) * (file.size() + header.height);
  demand(stager.bytes() <= file.size() + header.height + weights + points + 2048, "more memory than a file can need",
         number);
  memory.assign(stager.bytes(), 0xAA);
  memory.shrink_to_fit();
  return stager.write(source, memory.data(), 0, image);
}

// Stages the first row of a file whose points are put at these bytes, the last of which begins the second row.
bool stage_row(const Bytes& file, const JpegHeader& header, const Scan& scan, std::size_t second, std::size_t rest,
               int bit, int number) {
  PointRecorder recorder;
  recorder.begin(scan, CodedPoints());
  const std::uint64_t all = std::uint64_t{scan.mcu_columns} * scan.mcu_rows;
  while (recorder.next_mcu() < all) {
    ScanPoint point;
    point.mcu = recorder.next_mcu();
    point.byte = point.mcu < scan.mcu_columns ? (point.mcu == 0 ? scan.data_at : second) : rest;
    point.bit = point.mcu < scan.mcu_columns ? 0 : bit;
    recorder.add(point);
  }
  JpegIndex index(1 << 20, true, secrets());
  JpegIndex::Key key;
  ByteSource source(file.data(), file.size());
  demand(index.key_of(source, key), "no key", number);
  index.keep(key, recorder.encode(scan.mcu_rows));
  demand(index.find(key) != nullptr, "crafted points are not kept", number);
  Sample sample;
  sample.crop = {0, 0, 1, header.width};
  sample.job.width = static_cast<int>(header.width);
  sample.job.height = sample.job.out_height = sample.job.window.height = 1;
  sample.job.out_width = sample.job.window.width = 8;
  StagedImage image;
  Bytes memory;
  return stage(file, header, sample, index, image, memory, number);
}

// Points that lie within the file but cannot be its own.
void check_crafted(const Bytes& file, const JpegHeader& header, const Scan& scan, int number, int& crafted) {
  const std::size_t end = file.size() - 2;  // the end marker
  const auto first = std::find(file.begin() + static_cast<std::ptrdiff_t>(scan.data_at), file.end() - 2, 0xFF);
  const auto stuffed = static_cast<std::size_t>(first - file.begin());
  if (scan.mcu_rows < 2 || scan.mcu_columns <= kHalfSpacing) return;
  ++crafted;
  demand(stage_row(file, header, scan, scan.data_at, end, 0, number), "a row of all data is refused", number);
  demand(!stage_row(file, header, scan, scan.data_at, file.size(), 0, number), "a marker is taken for data", number);
  if (stuffed < end) {
    demand(!stage_row(file, header, scan, stuffed + 1, end, 0, number), "a segment ends within a byte's stuffing",
           number);
  }
  const Bytes cut(file.begin(), file.end() - 2);
  demand(stage_row(cut, header, scan, scan.data_at, cut.size(), 0, number), "data to the file's end is refused",
         number);
  demand(!stage_row(cut, header, scan, scan.data_at, cut.size(), 3, number), "a byte behind the file is read", number);
  demand(!stage_row(cut, header, scan, scan.data_at, cut.size() + 1, 0, number), "data behind the file is read",
         number);
  demand(!stage_row(file, header, scan, scan.data_at, 20 * file.size(), 0, number), "more data than there is", number);
}

void check_file(const Bytes& file, int number, int& staged, int& refused, int& crafted) {
  ByteSource source(file.data(), file.size());
  JpegHeader header;
  demand(scan_header(source, header) == Status::ok, "no header", number);
  JpegIndex index(1 << 20, true, secrets());
  SampleOptions options;
  Geometry geometry;
  geometry.crop = {0, 0, 1, 1};
  options.height = options.width = 1;
  options.index = &index;
  std::uint8_t pixel[3];
  Outcome outcome;
  process({"", file.data(), file.size()}, geometry, options, {pixel, 3}, outcome);
  demand(outcome.status == Status::ok, "no decoding", number);
  JpegIndex::Key key;
  demand(index.key_of(source, key), "no key", number);
  const JpegIndex::Points list = index.find(key);
  if (list == nullptr) return;
  HuffmanTables tables;
  BaselineHeader baseline;
  CodedPoints known;
  demand(read_baseline(source, header, tables, baseline) && known.open(list->data(), list->size(), baseline.scan),
         "no points", number);
  StagedImage image;
  Bytes memory;
  for (int i = 0; i < 4; ++i) {
    const Sample sample = random_sample(header);
    if (!stage(file, header, sample, index, image, memory, number)) {
      demand(sample.job.filter >= Filter::bicubic, "a good file is not staged", number);  // too many weights
      continue;
    }
    demand(!is_float(sample.job.filter), "weights in float are staged", number);
    ++staged;
    check_weights(image, memory, sample, number);
    check_scan(image, memory, file, known, number);
  }
  check_crafted(file, header, baseline.scan, number, crafted);
  for (int i = 0; i < 8; ++i) {
    Bytes changed = *list;
    for (int k = between(1, 4); k > 0; --k) {
      changed[static_cast<std::size_t>(between(0, static_cast<int>(changed.size()) - 1))] ^= 1 << between(0, 7);
    }
    JpegIndex other(1 << 20, true, secrets());
    other.keep(key, std::move(changed));
    refused += stage(file, header, random_sample(header), other, image, memory, number) ? 0 : 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 1000;
  set_own_decoder(true);
  int staged = 0, refused = 0, crafted = 0;
  for (int number = 0; number < count; ++number) {
    set_simd_level(number % 2 != 0 ? SimdLevel::portable : best_simd_level());
    for (int i = 0; i < 20; ++i) check_unstuff(number);
    check_file(random_file(number % 10 == 0 ? 600 : 200), number, staged, refused, crafted);
  }
  demand(staged > count && refused > count && crafted > count / 4, "files are not tried", 0);
  std::printf("%d crops of %d files staged, %d damaged lists refused\n", staged, count, refused);
  return 0;
}
