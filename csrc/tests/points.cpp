// Random crops of random JPEG files, good and damaged, with an index and by libjpeg-turbo: the same pixels, statuses
// and messages. Damaged and foreign lists of points: nothing outside of the file and the lists is read. The limit of an
// index.
//
//   points [COUNT]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/simd_level.h"
#include "index/jpeg_index.h"
#include "jpeg/baseline.h"
#include "jpeg/decoder.h"
#include "jpeg/entropy/scan_points.h"
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

Geometry random_geometry(int height, int width) {
  Geometry geometry;
  geometry.crop.top = between(0, height - 1);
  geometry.crop.left = between(0, width - 1);
  geometry.crop.height = between(1, height - geometry.crop.top);
  geometry.crop.width = between(1, width - geometry.crop.left);
  return geometry;
}

struct Result {
  Outcome outcome;
  Bytes pixels;
};

Result run(const Bytes& file, const Geometry& geometry, JpegIndex* index) {
  Result result;
  SampleOptions options;
  options.height = geometry.crop.height;
  options.width = geometry.crop.width;
  options.index = index;
  result.pixels.resize(std::size_t{3} * static_cast<std::size_t>(options.height * options.width));
  process({"", file.data(), file.size()}, geometry, options, {result.pixels.data(), std::ptrdiff_t{3} * options.width},
          result.outcome);
  return result;
}

// Returns whether both are ok.
bool compare(const Bytes& file, const Geometry& geometry, JpegIndex& index, int number) {
  set_own_decoder(false);
  const Result expected = run(file, geometry, nullptr);
  set_own_decoder(true);
  const Result result = run(file, geometry, &index);
  demand(result.outcome.status == expected.outcome.status, "the status differs", number);
  demand(result.outcome.detail == expected.outcome.detail, "the message differs", number);
  const bool ok = expected.outcome.status == Status::ok;
  demand(!ok || result.pixels == expected.pixels, "the pixels differ", number);
  return ok;
}

void check_crops(const Bytes& file, const JpegHeader& header, bool is_taken, int number) {
  const int height = static_cast<int>(header.height), width = static_cast<int>(header.width);
  JpegIndex index(1 << 20);
  const int crops = between(2, 8);
  for (int i = 0; i < crops; ++i)
    demand(compare(file, random_geometry(height, width), index, number), "a good crop fails", number);
  const JpegIndex::Totals totals = index.totals();
  demand(totals.files == (is_taken ? 1 : 0), "the file is not kept", number);
  demand(totals.found == (is_taken ? static_cast<std::uint64_t>(crops - 1) : 0), "the points are not found", number);
  // Files of the same size with other bytes, some of them damaged.
  for (int i = 0; i < 6; ++i) {
    Bytes changed = file;
    for (int k = between(1, 3); k > 0; --k) {
      changed[static_cast<std::size_t>(between(2, static_cast<int>(file.size()) - 1))] ^= 1 << between(0, 7);
    }
    if (between(0, 5) == 0) changed.resize(static_cast<std::size_t>(between(1, static_cast<int>(file.size()))));
    JpegHeader other;
    Outcome seen;
    load_header({"", changed.data(), changed.size()}, other, seen);
    if (seen.status != Status::ok || other.width > 700 || other.height > 700) continue;
    for (int k = 0; k < 3; ++k) {
      compare(changed, random_geometry(static_cast<int>(other.height), static_cast<int>(other.width)), index, number);
    }
  }
  demand(compare(file, random_geometry(height, width), index, number), "the file has become bad", number);
}

// Files that are damaged at their end only, from the top down: what a first visit did not see counts for the second.
void check_ends(const Bytes& file, const JpegHeader& header, int number) {
  const auto end = file.size() - 2;  // the end marker
  Bytes more = file, other = file, none(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(end));
  more.insert(more.begin() + static_cast<std::ptrdiff_t>(end), 3, 0x55);
  other[end + 1] = 0xC0;
  for (const Bytes& damaged : {more, other, none}) {
    JpegIndex index(1 << 20);
    Geometry top;
    top.crop = {0, 0, 1, static_cast<int>(header.width)};
    Geometry all = top;
    all.crop.height = static_cast<int>(header.height);
    compare(damaged, top, index, number);
    compare(damaged, top, index, number);
    const std::uint64_t before = decode_counts().own;
    compare(damaged, all, index, number);
    demand(decode_counts().own == before, "a damaged end is not left to libjpeg-turbo", number);
  }
}

// Nothing is kept of bytes that change while they are decoded.
void check_change(Bytes file, const JpegHeader& header, int number) {
  file.push_back(0);  // behind the end
  JpegIndex index(1 << 20);
  for (const bool changes : {true, false}) {
    ByteSource source(file.data(), file.size());
    DecodeOptions options;
    options.index = &index;
    RowLayout layout;
    Decoder& decoder = thread_decoder();
    demand(decoder.start(source, header, {0, 0, 1, header.width}, options, layout) == Status::ok, "no start", number);
    Bytes row(std::size_t{3} * layout.width);
    std::uint8_t* const rows = row.data();
    demand(decoder.read(&rows, 1) == Status::ok, "no row", number);
    if (changes) ++file.back();
    demand(decoder.finish() == Status::ok, "no end", number);
    demand(index.totals().files == (changes ? 0 : 1), "what is kept is not what was read", number);
  }
}

// Records the points of the first `rows` rows behind those that are known.
Bytes record(ScanDecoder& decoder, ByteSource& source, const Scan& scan, const Bytes& known_bytes, std::uint32_t rows,
             int number) {
  CodedPoints known;
  if (!known_bytes.empty()) {
    demand(known.open(known_bytes.data(), known_bytes.size(), scan), "a list is refused", number);
  }
  PointRecorder recorder;
  recorder.begin(scan, known);
  const std::uint64_t end = std::uint64_t{rows} * scan.mcu_columns;
  demand(decoder.start(source, scan, 0, known, recorder) && decoder.skip_to(end), "no pass", number);
  return recorder.encode(rows);
}

// Runs the decoder over whatever a list says.
void use_list(ScanDecoder& decoder, ByteSource& source, const Scan& scan, const CodedPoints& known) {
  PointRecorder recorder;
  recorder.begin(scan, known);
  const std::uint64_t all = std::uint64_t{scan.mcu_columns} * scan.mcu_rows;
  std::vector<std::int16_t> blocks(std::size_t{scan.mcu_columns} * 2 * kBlockSize);
  Bytes last(std::size_t{scan.mcu_columns} * 2);
  bool sound =
      decoder.start(source, scan, static_cast<std::uint64_t>(between(0, static_cast<int>(all) - 1)), known, recorder);
  while (sound && decoder.mcu() < all) {
    BlockRows rows;
    rows.component[0][0] = {blocks.data(), last.data()};
    const auto count = static_cast<std::uint32_t>(scan.mcu_columns - decoder.mcu() % scan.mcu_columns);
    sound = decoder.decode(count, rows);
    sound = sound && decoder.skip_to(std::min(decoder.mcu() + static_cast<std::uint64_t>(between(0, 60)), all));
  }
  if (sound) decoder.finish();
}

void check_lists(const Bytes& file, const Scan& scan, int number, long& used) {
  static ScanDecoder decoder;
  ByteSource source(file.data(), file.size());
  Bytes list;
  for (std::uint32_t rows = 0; rows < scan.mcu_rows;) {  // it may grow in steps
    rows += static_cast<std::uint32_t>(between(1, static_cast<int>(scan.mcu_rows - rows)));
    list = record(decoder, source, scan, list, rows, number);
  }
  demand(list == record(decoder, source, scan, {}, scan.mcu_rows, number), "a list that grew differs", number);
  CodedPoints points;
  demand(points.open(list.data(), list.size(), scan) && points.rows() == scan.mcu_rows, "a list is refused", number);
  demand(decoder.start(source, scan), "no start", number);
  const auto same_place = [](const ScanPoint& a, const ScanPoint& b) {
    return a.mcu == b.mcu && a.byte == b.byte && a.bit == b.bit;
  };
  std::vector<ScanPoint> of_row;
  for (std::uint32_t row = 0; row < scan.mcu_rows; ++row) {
    of_row.clear();
    points.read_row(row, 0, points.in_row() - 1, of_row);
    demand(of_row.size() == (scan.mcu_columns + kHalfSpacing - 1) / kHalfSpacing, "points are missing", number);
    for (std::uint32_t x = 0; x < scan.mcu_columns; x += kHalfSpacing) {
      const std::uint64_t mcu = std::uint64_t{row} * scan.mcu_columns + x;
      ScanPoint expected;
      demand(decoder.skip_to(mcu) && decoder.point(expected), "no point", number);
      demand(same_place(of_row[x / kHalfSpacing], expected), "a point or half point differs", number);
      if (x % kPointSpacing != 0) continue;
      const ScanPoint point =
          points.before(mcu + static_cast<std::uint64_t>(
                                  between(0, static_cast<int>(std::min(kPointSpacing, scan.mcu_columns - x)) - 1)));
      demand(same_place(point, expected) &&
                 std::memcmp(point.predictors, expected.predictors, sizeof point.predictors) == 0,
             "a point differs", number);
    }
  }
  for (int i = 0; i < 20; ++i) {
    Bytes changed = list;
    const int first = between(0, 3) != 0 ? 18 : 0;  // behind the header most of the time
    for (int k = between(1, 4); k > 0; --k) {
      changed[static_cast<std::size_t>(between(first, static_cast<int>(list.size()) - 1))] ^= 1 << between(0, 7);
    }
    if (between(0, 9) == 0) changed.resize(static_cast<std::size_t>(between(0, static_cast<int>(list.size()))));
    changed.shrink_to_fit();
    if (!points.open(changed.data(), changed.size(), scan) || points.rows() == 0) continue;
    use_list(decoder, source, scan, points);
    ++used;
  }
}

// What no list of this scan says, whatever its size.
void check_refusals(const Bytes& file, const Scan& scan, int number) {
  CodedPoints points;
  Bytes wide(26 + 8, 0xFF);  // a header and the padding; all fields have 63 bits, of no rows
  std::fill_n(wide.begin(), 4, std::uint8_t{0});
  for (std::size_t size = 0; size < wide.size(); ++size) {
    demand(!points.open(wide.data(), size, scan), "fields that are too wide are taken", number);
  }
  static ScanDecoder decoder;
  ByteSource source(file.data(), file.size());
  ScanPoint good;
  good.byte = scan.data_at;
  demand(decoder.start(source, scan, &good), "the scan's beginning is refused", number);
  const auto refuses = [&](auto change) {
    ScanPoint bad = good;
    change(bad);
    demand(!decoder.start(source, scan, &bad), "a point outside of the scan is taken", number);
  };
  refuses([&](ScanPoint& bad) { bad.mcu = std::uint64_t{scan.mcu_columns} * scan.mcu_rows; });
  refuses([&](ScanPoint& bad) { bad.byte = scan.data_at - 1; });
  refuses([&](ScanPoint& bad) { bad.byte = file.size(); });
  refuses([&](ScanPoint& bad) { bad.bit = 8; });
  refuses([&](ScanPoint& bad) { bad.bit = -1; });
}

// Bytes that have changed since their header was read: what is accepted fits the header, and the rest is not read.
void check_other_header(const Bytes& file, const JpegHeader& header, int number, int& accepted) {
  static HuffmanTables tables;
  static BaselineHeader baseline;
  const auto most = static_cast<int>(header.scan_at) - 1;
  for (int i = 0; i < 20; ++i) {
    Bytes changed = file;
    for (int k = between(1, 3); k > 0; --k) {
      changed[static_cast<std::size_t>(between(2, most))] = static_cast<std::uint8_t>(between(0, 255));
    }
    if (between(0, 2) == 0) changed.resize(static_cast<std::size_t>(between(2, most)));
    changed.shrink_to_fit();  // so that sanitizers know where it ends
    ByteSource source(changed.data(), changed.size());
    if (!read_baseline(source, header, tables, baseline)) continue;
    ++accepted;
    const Scan& scan = baseline.scan;
    JpegHeader other;
    if (scan_header(source, other) == Status::ok) {
      demand(other.width == header.width && other.height == header.height && other.components == header.components,
             "another image's frame is taken", number);
    }
    demand(scan.components == header.components && scan.data_at <= changed.size(), "another scan is taken", number);
    for (int c = 0; c < scan.components; ++c) {
      const ScanComponent& component = scan.component[c];
      demand(component.dc != nullptr && component.ac != nullptr, "a table is missing", number);
      demand(c == 0 || (component.columns == 1 && component.rows == 1), "chroma is subsampled otherwise", number);
    }
    static ScanDecoder decoder;
    if (decoder.start(source, scan) && decoder.skip_to(std::uint64_t{scan.mcu_columns} * scan.mcu_rows)) {
      decoder.finish();
    }
  }
}

JpegIndex::Key key(int number) {
  return {1, static_cast<std::uint64_t>(number) * 0x9E3779B97F4A7C15};  // spread over the shards
}

void check_limit() {
  constexpr std::size_t kMost = 1 << 20;
  constexpr int kFiles = 4000;
  JpegIndex index(kMost);
  const auto visit = [&](int number) {
    if (index.find(key(number)) == nullptr) index.keep(key(number), Bytes(static_cast<std::size_t>(400 + number % 7)));
  };
  for (int number = 0; number < kFiles; ++number) visit(number);
  const JpegIndex::Totals full = index.totals();
  demand(full.bytes <= kMost && full.bytes > kMost * 9 / 10, "the limit is not used or passed", 0);
  demand(full.files < kFiles && full.files * 400 < full.bytes && full.found == 0, "files are not counted", 0);
  for (int epoch = 1; epoch < 4; ++epoch) {
    for (int number = 0; number < kFiles; ++number) visit((number * 17) % kFiles);
    demand(index.totals().found == full.files * static_cast<std::uint64_t>(epoch), "files that are used were lost", 0);
  }
  demand(index.totals().evicted == 0, "files that are used were evicted", 0);
  // Some of the files are not visited any more; others get their places.
  for (int epoch = 0; epoch < 12; ++epoch) {
    for (int number = 0; number < kFiles; ++number) visit(number + kFiles / 4);
  }
  demand(index.totals().evicted > 0 && index.totals().bytes <= kMost, "nothing is evicted", 0);
  const std::uint64_t before = index.totals().found;
  for (int number = kFiles / 4; number < kFiles * 5 / 4; ++number) visit(number);
  demand(index.totals().found - before > full.files * 9 / 10, "old files keep their places", 0);
  // More points of a file replace its fewer ones; fewer don't.
  JpegIndex other(kMost);
  other.keep(key(1), Bytes(10));
  other.keep(key(1), Bytes(30));
  other.keep(key(1), Bytes(20));
  demand(other.find(key(1))->size() == 30 && other.totals().files == 1, "the longer list is not kept", 0);
  other.keep(key(2), Bytes(kMost));
  demand(other.find(key(2)) == nullptr && other.totals().files == 1, "a list over the limit is kept", 0);
}

}  // namespace

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 1000;
  set_own_decoder(true);
  check_limit();
  HuffmanTables tables;
  long used = 0;
  int taken = 0, accepted = 0;
  for (int number = 0; number < count; ++number) {
    set_simd_level(number % 2 != 0 ? SimdLevel::portable : best_simd_level());
    const Bytes file = random_file(number % 10 == 0 ? 600 : 150);
    ByteSource source(file.data(), file.size());
    JpegHeader header;
    BaselineHeader baseline;
    demand(scan_header(source, header) == Status::ok && read_baseline(source, header, tables, baseline), "no header",
           number);
    const bool is_taken = PointRecorder::takes(baseline.scan);
    taken += is_taken ? 1 : 0;
    check_lists(file, baseline.scan, number, used);
    check_refusals(file, baseline.scan, number);
    check_other_header(file, header, number, accepted);
    check_crops(file, header, is_taken, number);
    check_ends(file, header, number);
    if (is_taken) check_change(file, header, number);
  }
  demand(accepted > 0, "no changed header is taken", 0);
  std::printf("%d files, %d with an index, %ld damaged lists and %d other headers used\n", count, taken, used,
              accepted);
  return 0;
}
