// libFuzzer target: decodes any bytes as a JPEG file: header, whole image, region, resize and reduced size.
//
// Besides crashes and sanitizer reports, it checks that the core's own decoder gives the same pixels, status and
// message as libjpeg-turbo, with an index and without, that a region equals that part of the whole image, that a
// streamed resize equals that of the whole image, that OpenCV's functions are given the same, and that nothing is
// written outside the output. The same of the bytes with a few changes, with the index of the unchanged ones. Lists of
// points that are not of the file give some pixels.
#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/simd_level.h"
#include "fuzz/checks.h"
#include "gpu/staging.h"
#include "index/jpeg_index.h"
#include "sample/sample.h"

using namespace fastload;

namespace {

constexpr std::uint64_t kMaxPixels = 1 << 18;  // larger images only take longer
constexpr std::size_t kControlBytes = 8;
constexpr std::size_t kPointsHeader = 15;  // bytes of a list of points before its first one

struct Output {
  std::vector<std::uint8_t> bytes;
  int height, width;

  Output(int rows, int columns)
      : bytes(std::size_t{3} * rows * columns + 2 * kGuardBytes, kGuard), height(rows), width(columns) {}
  std::uint8_t* pixels() { return bytes.data() + kGuardBytes; }
  std::size_t size() const { return bytes.size() - 2 * kGuardBytes; }
  void check() const { check_guards(bytes); }
};

// Of one input: what it finds does not depend on the inputs before.
std::unique_ptr<JpegIndex> learned;

Outcome run_once(const Input& input, const Geometry& geometry, SampleOptions options, Output& output) {
  options.height = output.height;
  options.width = output.width;
  options.max_pixels = kMaxPixels;
  Outcome outcome;
  process(input, geometry, options, {output.pixels(), std::ptrdiff_t{3} * output.width}, outcome);
  output.check();
  return outcome;
}

void check(const Outcome& outcome, const Output& output, const Outcome& reference, const Output& expected) {
  demand(outcome.status == reference.status, "the own decoder's status is libjpeg-turbo's");
  demand(outcome.detail == reference.detail, "the own decoder's message is libjpeg-turbo's");
  demand(outcome.status != Status::ok || output.bytes == expected.bytes,
         "the own decoder's pixels are libjpeg-turbo's");
}

Status run(const Input& input, const Geometry& geometry, const SampleOptions& options, Output& output) {
  Output expected(output.height, output.width);
  set_own_decoder(false);
  const Outcome reference = run_once(input, geometry, options, expected);
  set_own_decoder(true);
  const Outcome outcome = run_once(input, geometry, options, output);
  check(outcome, output, reference, expected);
  SampleOptions indexed = options;
  indexed.index = learned.get();
  for (int visit = 0; visit < 2; ++visit) {
    Output again(output.height, output.width);
    check(run_once(input, geometry, indexed, again), again, reference, expected);
  }
  return outcome.status;
}

// Where kernels look for points.
void check_search(const StagedImage& image, const std::vector<std::uint8_t>& bytes) {
  demand(image.data_bytes > 0, "a scan whose points are to be found has data");
  std::vector<unsigned> ends(image.interval_count);
  demand(image.intervals + ends.size() * sizeof(unsigned) <= image.data, "the ends of intervals are before the data");
  std::memcpy(ends.data(), bytes.data() + image.intervals, ends.size() * sizeof(unsigned));
  demand(std::is_sorted(ends.begin(), ends.end()), "intervals follow each other");
  demand(ends.back() == image.data_bytes, "the last interval ends with the data");
  const int last_row = image.mcu_row + image.mcu_rows, last_column = image.mcu_column + image.mcu_columns;
  demand(last_row <= image.scan_rows && last_column <= image.scan_columns, "the scan has all MCUs");
  demand(image.points_in_row == (image.scan_columns + kSegmentMcus - 1) / kSegmentMcus, "rows have all points");
  const int first = image.mcu_row * image.points_in_row + image.mcu_column / (2 * kSegmentMcus) * 2;
  demand(image.points == static_cast<unsigned>(first) * sizeof(StagedPoint), "the first point is the window's");
}

// The coefficients of a progressive file.
void check_coefficients(const StagedImage& image, const std::vector<std::uint8_t>& bytes) {
  std::size_t ends = 0;
  for (int i = 0; i < image.scan_count; ++i) {
    ends += static_cast<std::size_t>(image.mcu_rows * (image.scan_components[i] == 0 ? image.down : 1));
  }
  demand(image.row_ends + (1 + ends) * sizeof(unsigned) <= image.data, "there is an end for each row of blocks");
  unsigned before = 0, end = 0;
  for (std::size_t i = 0; i <= ends; ++i, before = end) {
    std::memcpy(&end, bytes.data() + image.row_ends + i * sizeof end, sizeof end);
    demand(end >= before && std::size_t{end} * sizeof end <= image.data_bytes, "rows of blocks follow each other");
  }
}

// Prepares the file for a GPU, by what the index has learned of it; then as part of a batch with so many bytes. `whole`
// is what libjpeg-turbo says of the file.
void stage_new(const Input& input, const JpegHeader& header, const Geometry& geometry, const SampleOptions& options,
               NewFile new_file, std::size_t room, Status whole) {
  static ImageStager stager;
  ByteSource source(input.data, input.size);
  StagedImage image;
  if (!stage_sample(source, header, geometry, options, stager, StagedData::of_crop, new_file, image)) return;
  std::vector<std::uint8_t> bytes(stager.bytes());
  if (!stager.write(source, bytes.data(), 0, image)) return;
  demand(image.data + std::size_t{image.data_bytes} <= bytes.size(), "a staged scan lies within its bytes");
  demand(image.mcu_rows > 0 && image.mcu_columns > 0, "a staged image has MCUs");
  demand(image.scan_count == 0 || whole == Status::ok, "coefficients are of a good image");
  if (image.scan_count > 0) check_coefficients(image, bytes);
  demand(image.interval_count == 0 || new_file == NewFile::find, "points are found only if they may be");
  if (image.interval_count > 0) check_search(image, bytes);

  std::vector<std::uint8_t> memory(sizeof(StagedImage) + bytes.size() + room);
  Staging batch(memory.data(), memory.size(), 1, 1, new_file);
  if (!batch.add(0, source, header, geometry, options, 0)) return;
  batch.finish(1 << 20);
  demand(batch.used() + batch.search().point_bytes <= memory.size(), "a batch lies within its memory");
  demand(batch.search().images == (image.interval_count > 0 ? 1 : 0), "points are found where they are not known");
}

void stage(const Input& input, const JpegHeader& header, const Geometry& geometry, SampleOptions options,
           Status whole) {
  options.height = geometry.window.height;
  options.width = geometry.window.width;
  for (JpegIndex* index : {static_cast<JpegIndex*>(nullptr), learned.get()}) {
    options.index = index;
    for (const NewFile new_file : {NewFile::refuse, NewFile::find, NewFile::scan}) {
      stage_new(input, header, geometry, options, new_file, input.size * 37 % 4096, whole);
    }
  }
}

// The case that the control bytes choose.
struct Choice {
  const std::uint8_t* bytes;
  int at = 0;
  int below(int limit) { return static_cast<int>(bytes[at++ % kControlBytes]) * limit / 256; }
};

// Numbers that the control bytes decide.
std::minstd_rand numbers_of(const std::uint8_t* control) {
  std::seed_seq seed(control, control + kControlBytes);
  return std::minstd_rand(seed);
}

void change_bits(std::vector<std::uint8_t>& bytes, std::size_t first, std::minstd_rand& draw) {
  if (bytes.size() <= first) return;
  for (auto left = 1 + draw() % 3; left > 0; --left) {
    bytes[first + draw() % (bytes.size() - first)] ^= static_cast<std::uint8_t>(1u << draw() % 8);
  }
}

// Bytes that differ from what the index has learned, mostly in the scan.
void run_changed(const Input& input, Geometry geometry, std::minstd_rand& draw) {
  std::vector<std::uint8_t> bytes(input.data, input.data + input.size);
  change_bits(bytes, draw() % 4 != 0 ? bytes.size() / 2 : 0, draw);
  const Input changed{"", bytes.data(), bytes.size()};
  JpegHeader header;
  Outcome seen;
  load_header(changed, header, seen);
  if (seen.status != Status::ok || check_supported(header, kMaxPixels) != Status::ok) return;
  const int height = static_cast<int>(header.height), width = static_cast<int>(header.width);
  PixelBox& crop = geometry.crop;
  crop.top = std::min(crop.top, height - 1);
  crop.left = std::min(crop.left, width - 1);
  crop.height = std::min(crop.height, height - crop.top);
  crop.width = std::min(crop.width, width - crop.left);
  Output part(crop.height, crop.width);
  run(changed, geometry, SampleOptions{}, part);
}

// Leaves an index whose points of the input were changed.
void spoil_points(const Input& input, std::minstd_rand& draw) {
  ByteSource source(input.data, input.size);
  JpegIndex::Key key;
  if (!learned->key_of(source, key)) return;
  const JpegIndex::Points points = learned->find(key);
  if (points == nullptr) return;
  std::vector<std::uint8_t> changed = *points;
  change_bits(changed, draw() % 4 != 0 ? kPointsHeader : 0, draw);
  auto spoiled = std::make_unique<JpegIndex>(std::size_t{1} << 20);
  if (spoiled->key_of(source, key)) spoiled->keep(key, std::move(changed));
  learned = std::move(spoiled);
}

PixelBox choose_box(Choice& choice, int height, int width) {
  PixelBox box;
  box.top = choice.below(height);
  box.left = choice.below(width);
  box.height = 1 + choice.below(height - box.top);
  box.width = 1 + choice.below(width - box.left);
  return box;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  set_trusted_subsamplings(0xFF);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < kControlBytes) return 0;
  Choice choice{data + size - kControlBytes};  // at the end, so that seeds are JPEG files with a few extra bytes
  const Input input{"", data, size - kControlBytes};
  JpegHeader header;
  Outcome seen;
  load_header(input, header, seen);
  if (seen.status != Status::ok || check_supported(header, kMaxPixels) != Status::ok) return 0;
  learned = std::make_unique<JpegIndex>(std::size_t{1} << 20, size % 3 == 0);
  set_simd_level(size % 4 == 0 ? SimdLevel::portable : best_simd_level());
  const int height = static_cast<int>(header.height), width = static_cast<int>(header.width);

  Output whole(height, width);
  const Status whole_status = run(input, Geometry{}, SampleOptions{}, whole);
  check_whole_image(input.data, input.size, whole_status == Status::ok ? whole.pixels() : nullptr);

  Geometry geometry;
  geometry.crop = choose_box(choice, height, width);
  const PixelBox& crop = geometry.crop;
  Output part(crop.height, crop.width);
  const Status part_status = run(input, geometry, SampleOptions{}, part);
  if (whole_status == Status::ok) {
    demand(part_status == Status::ok, "a region of a good image is good");
    for (int y = 0; y < crop.height; ++y) {
      const std::size_t row = (std::size_t(crop.top + y) * width + crop.left) * 3;
      demand(std::memcmp(part.pixels() + std::size_t{3} * y * crop.width, whole.pixels() + row,
                         std::size_t{3} * crop.width) == 0,
             "a region's pixels are the whole image's");
    }
  }

  geometry.out_height = 1 + choice.below(40);
  geometry.out_width = 1 + choice.below(40);
  geometry.flip_horizontal = choice.below(2) != 0;
  geometry.flip_vertical = choice.below(2) != 0;
  SampleOptions options;
  options.filter = static_cast<Filter>(choice.below(9));
  options.pass_rule = static_cast<PassRule>(choice.below(3));
  geometry.window = choose_box(choice, geometry.out_height, geometry.out_width);
  Output resized(geometry.window.height, geometry.window.width);
  const Status resized_status = run(input, geometry, options, resized);
  if (whole_status == Status::ok && geometry.out_width != crop.width && geometry.out_height != crop.height) {
    demand(resized_status == Status::ok, "a resize of a good image is good");
    ResizeJob job;
    job.width = crop.width;
    job.height = crop.height;
    job.out_width = geometry.out_width;
    job.out_height = geometry.out_height;
    job.window = geometry.window;
    job.flip_horizontal = geometry.flip_horizontal;
    job.flip_vertical = geometry.flip_vertical;
    job.filter = options.filter;
    job.order = pass_order(options.pass_rule, job.width, job.height, job.out_width, job.out_height);
    static thread_local Resampler resampler;
    std::string error;
    demand(resampler.prepare(job, error), "what was resized can be resized");
    SourceView view;
    view.data = part.pixels();
    view.stride = std::ptrdiff_t{3} * crop.width;
    view.box = {0, 0, crop.height, crop.width};
    Output again(resized.height, resized.width);
    resampler.run(view, again.pixels(), std::ptrdiff_t{3} * again.width);
    again.check();
    demand(again.bytes == resized.bytes, "a resize of rows as they come is the whole image's");
  }
  stage(input, header, geometry, options, whole_status);
  options.fast = true;  // which of both decoders takes it does not depend on the index
  const Outcome reduced = run_once(input, geometry, options, resized);
  options.index = learned.get();
  Output indexed(resized.height, resized.width);
  check(run_once(input, geometry, options, indexed), indexed, reduced, resized);

  std::minstd_rand draw = numbers_of(choice.bytes);
  Geometry cropped;
  cropped.crop = crop;
  run_changed(input, cropped, draw);
  spoil_points(input, draw);
  SampleOptions spoiled;
  spoiled.index = learned.get();
  run_once(input, cropped, spoiled, part);
  stage(input, header, geometry, options, whole_status);
  return 0;
}
