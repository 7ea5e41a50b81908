#include "sample/sample.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "codecs/codecs.h"
#include "image/color/color.h"
#include "image/steps.h"

namespace fastload {
namespace {

constexpr int kRows = Resampler::kRowsAhead;  // rows decoded at a time; they stay in the L1 cache until resized
constexpr std::size_t kKeptScratchBytes = std::size_t{1} << 20;

// libjpeg-turbo writes vector-aligned rows straight to memory, past the cache. We read them again at once, so each row
// starts one pixel (three bytes) after an aligned address. (Aligned rows cost 90 of the 590 us of a RandomResizedCrop
// of a 500x400 photo.)
constexpr int kLateBytes = 3;

std::size_t late_stride(std::size_t row_bytes) { return (row_bytes + kLateBytes + 63) / 64 * 64; }

bool lies_within(const PixelBox& box, std::int64_t width, std::int64_t height) {
  return box.left >= 0 && box.top >= 0 && box.width > 0 && box.height > 0 && box.width <= width - box.left &&
         box.height <= height - box.top;
}

DecodeOptions decode_options(const SampleOptions& options, int scale_denominator = 1) {
  return {options.max_pixels, scale_denominator, false, options.index};
}

PixelBox moved(PixelBox box, int down, int right) {
  box.top += down;
  box.left += right;
  return box;
}

// One image's data and the thread's decoder.
struct Encoded {
  ByteSource& source;
  const JpegHeader& header;
  Decoder& decoder;
};

Status fail(const Encoded& image, Status status, std::string& detail) {
  detail = image.decoder.message();
  return status;
}

// Decodes `box`, kRows rows at a time: `rows_for(i)` returns where the i-th next row goes, `take(count)` consumes them.
template <typename Begin, typename RowsFor, typename Take>
Status stream(const Encoded& image, const PixelBox& box, const DecodeOptions& options, std::string& detail, Begin begin,
              RowsFor rows_for, Take take) {
  RowLayout layout;
  Status status = image.decoder.start(image.source, image.header, to_region(box), options, layout);
  if (status != Status::ok) return fail(image, status, detail);
  begin(layout);
  std::uint8_t* rows[kRows];
  for (int left = box.height; left > 0;) {
    if (image.source.stopped()) return Status::cancelled;
    const int count = std::min(left, kRows);
    for (int i = 0; i < count; ++i) rows[i] = rows_for(i);
    status = image.decoder.read(rows, count);
    if (status != Status::ok) return fail(image, status, detail);
    take(count);
    left -= count;
  }
  status = image.decoder.finish();
  return status == Status::ok ? status : fail(image, status, detail);
}

void copy_row(const std::uint8_t* from, std::uint8_t* to, int width, bool mirror) {
  if (!mirror) {
    std::memcpy(to, from, static_cast<std::size_t>(width) * 3);
    return;
  }
  for (from += std::ptrdiff_t{3} * (width - 1); width > 0; --width, from -= 3, to += 3) std::memcpy(to, from, 3);
}

// Decodes the crop's window without a resize.
Status copy_window(const Encoded& image, const Geometry& geometry, const SampleOptions& options, const Target& target,
                   std::string& detail) {
  static thread_local Buffer scratch;
  const PixelBox box = moved(geometry.window, geometry.crop.top, geometry.crop.left);
  std::size_t stride = 0, skipped = 0;
  int y = 0;
  const Status status = stream(
      image, box, decode_options(options), detail,
      [&](const RowLayout& layout) {
        stride = late_stride(std::size_t{layout.width} * 3);
        skipped = (static_cast<std::uint32_t>(box.left) - layout.left) * std::size_t{3} + kLateBytes;
        scratch.resize(stride * kRows);
      },
      [&](int i) { return scratch.data() + stride * static_cast<std::size_t>(i) + kLateBytes; },
      [&](int count) {
        for (int i = 0; i < count; ++i, ++y) {
          const int to = geometry.flip_vertical ? box.height - 1 - y : y;
          copy_row(scratch.data() + stride * static_cast<std::size_t>(i) + skipped,
                   target.data + target.row_stride * to, box.width, geometry.flip_horizontal);
        }
      });
  scratch.shrink(kKeptScratchBytes);
  return status;
}

// The fewest bytes of a scan for each pixel of the crop at which the core's own decoder takes less time for all pixels
// than libjpeg-turbo for those of an image reduced by n. Measured with AVX-512, on photos of 512 to 4000 pixels, 4:2:0
// and 4:4:4, whole and halved, with an index and without: the lowest of all, as the other is slower by up to 4.7 times.
constexpr double bytes_per_pixel_for_own(int reduced_by) {
  return reduced_by == 8 ? 0.19 : reduced_by == 4 ? 0.12 : 0.04;
}

// Largest denominator at which libjpeg's reduced crop is no smaller than the resize's target; 1 if the whole one is
// made in less time.
int shrinkage(const Encoded& image, const Geometry& geometry) {
  const PixelBox& crop = geometry.crop;
  for (const int by : {8, 4, 2}) {
    if (crop.width < by * geometry.out_width || crop.height < by * geometry.out_height) continue;
    const double least = bytes_per_pixel_for_own(by) * crop.width * crop.height;
    return static_cast<double>(image.decoder.own_scan_bytes(image.source, image.header)) >= least ? 1 : by;
  }
  return 1;
}

Resampler& thread_resampler() {
  static thread_local Resampler resampler;
  return resampler;
}

Status resize_window(const Encoded& image, const Geometry& geometry, const SampleOptions& options, const Target& target,
                     std::string& detail) {
  Resampler& resampler = thread_resampler();
  const int by = options.fast ? shrinkage(image, geometry) : 1;
  const PixelBox& crop = geometry.crop;
  PixelBox source = crop;  // in pixels of libjpeg's output
  if (by > 1) {
    source.left = crop.left / by;
    source.top = crop.top / by;
    source.width = (crop.left + crop.width + by - 1) / by - source.left;
    source.height = (crop.top + crop.height + by - 1) / by - source.top;
  }
  ResizeJob job = job_of(source, geometry, options);
  if (by > 1) {
    job.whole = false;
    const auto scaled = [by](int position, int origin) {
      return static_cast<float>(static_cast<double>(position) / by - origin);
    };
    job.box_left = scaled(crop.left, source.left);
    job.box_top = scaled(crop.top, source.top);
    job.box_right = scaled(crop.left + crop.width, source.left);
    job.box_bottom = scaled(crop.top + crop.height, source.top);
  }
  if (!resampler.prepare(job, detail)) return Status::bad_geometry;
  return stream(
      image, moved(resampler.region(), source.top, source.left), decode_options(options, by), detail,
      [&](const RowLayout& layout) {
        resampler.begin(static_cast<int>(layout.left) - source.left - 1, static_cast<int>(layout.width) + 1,
                        target.data, target.row_stride);
      },
      [&](int i) { return resampler.row(i) + kLateBytes; }, [&](int count) { resampler.push(count); });
}

// Whether the window has the output's size.
bool fits(const Geometry& geometry, const SampleOptions& options) {
  return geometry.window.height == options.height && geometry.window.width == options.width;
}

bool is_valid(const ImageHeader& header, const Geometry& geometry, const SampleOptions& options) {
  return (!geometry.steps.empty() || fits(geometry, options)) && has_valid_boxes(header, geometry);
}

bool resizes(const Geometry& geometry) {
  return geometry.out_width != geometry.crop.width || geometry.out_height != geometry.crop.height;
}

Image image_of(const Target& target, const SampleOptions& options) {
  return {target.data, target.row_stride, options.height, options.width};
}

// Makes the window with `make(target)`, then applies the steps.
template <typename Make>
Status with_steps(const ImageHeader& header, const Geometry& geometry, const SampleOptions& options,
                  const Target& target, Make make) {
  if (!is_valid(header, geometry, options)) return Status::bad_geometry;
  const PixelBox& window = geometry.window;
  static thread_local Buffer made;  // what the steps begin with, if it does not fit the target
  Target first = target;
  if (!fits(geometry, options)) {
    first.row_stride = std::ptrdiff_t{3} * window.width;
    made.resize(static_cast<std::size_t>(first.row_stride) * static_cast<std::size_t>(window.height));
    first.data = made.data();
  }
  Status status = make(first);
  if (status == Status::ok && !geometry.steps.empty() &&
      !apply_steps(geometry.steps, options.pass_rule, {first.data, first.row_stride, window.height, window.width},
                   image_of(target, options))) {
    status = Status::bad_geometry;
  }
  made.shrink(kKeptScratchBytes);
  return status;
}

// Makes the window of a crop whose pixels are there.
Status make_window(const ConstImage& crop, const Geometry& geometry, const SampleOptions& options, const Target& target,
                   std::string& detail) {
  const PixelBox& window = geometry.window;
  if (resizes(geometry)) {
    if (!thread_resampler().prepare(job_of(geometry.crop, geometry, options), detail)) return Status::bad_geometry;
    thread_resampler().run({crop.data, crop.stride, {0, 0, crop.height, crop.width}}, target.data, target.row_stride);
    return Status::ok;
  }
  const std::uint8_t* from = crop.row(window.top) + std::ptrdiff_t{3} * window.left;
  for (int y = 0; y < window.height; ++y, from += crop.stride) {
    const int to = geometry.flip_vertical ? window.height - 1 - y : y;
    copy_row(from, target.data + target.row_stride * to, window.width, geometry.flip_horizontal);
  }
  return Status::ok;
}

// Decodes `geometry` of the image into `target`. If the status is not `ok`, the target's contents are unspecified and
// `detail` has a message. Returns `cancelled` soon after the source is stopped. Throws std::bad_alloc only.
Status decode_sample(ByteSource& source, const JpegHeader& header, const Geometry& geometry,
                     const SampleOptions& options, const Target& target, std::string& detail) {
  if (header.format != Format::jpeg) {
    return with_steps(header, geometry, options, target, [&](const Target& first) {
      ConstImage crop;
      const Status status = decode_other(source, header, to_region(geometry.crop), crop);
      return status == Status::ok ? make_window(crop, geometry, options, first, detail) : status;
    });
  }
  const Encoded image{source, header, thread_decoder()};
  return with_steps(header, geometry, options, target, [&](const Target& first) {
    return resizes(geometry) ? resize_window(image, geometry, options, first, detail)
                             : copy_window(image, geometry, options, first, detail);
  });
}

// The same for an image that is RGB pixels, row by row; of the header only the size counts.
Status transform_pixels(const std::uint8_t* pixels, const JpegHeader& header, const Geometry& geometry,
                        const SampleOptions& options, const Target& target, std::string& detail) {
  if (!is_valid(header, geometry, options)) return Status::bad_geometry;
  const std::ptrdiff_t stride = std::ptrdiff_t{3} * header.width;
  const auto part = [stride](const std::uint8_t* origin, const PixelBox& box) {
    return ConstImage(origin + stride * box.top + std::ptrdiff_t{3} * box.left, stride, box.height, box.width);
  };
  const ConstImage crop = part(pixels, geometry.crop);
  if (geometry.steps.empty() || resizes(geometry) || geometry.flip_horizontal || geometry.flip_vertical) {
    return with_steps(header, geometry, options, target,
                      [&](const Target& first) { return make_window(crop, geometry, options, first, detail); });
  }
  const ConstImage window = part(crop.data, geometry.window);  // the pixels need no copy before the steps
  return apply_steps_to_copy(geometry.steps, options.pass_rule, window, image_of(target, options))
             ? Status::ok
             : Status::bad_geometry;
}

// The calling thread's file buffer, kept between images.
Buffer& thread_buffer() {
  static thread_local Buffer buffer;
  return buffer;
}

// The image's pixels row by row, in the caller's memory or in the thread's.
const std::uint8_t* packed_pixels(const Input& input) {
  const auto [row, pixel, channel] = input.strides;
  if (channel == 1 && pixel == 3 && row == pixel * static_cast<std::ptrdiff_t>(input.width)) return input.data;
  static thread_local std::vector<std::uint8_t> packed;
  packed.resize(std::size_t{input.height} * input.width * 3);
  std::uint8_t* out = packed.data();
  for (std::uint32_t y = 0; y < input.height; ++y) {
    const std::uint8_t* from = input.data + row * static_cast<std::ptrdiff_t>(y);
    if (pixel == 1) {  // as of CIFAR
      from_planes(from, channel, input.width, out);
      out += std::size_t{3} * input.width;
      continue;
    }
    for (std::uint32_t x = 0; x < input.width; ++x, from += pixel, out += 3) {
      out[0] = from[0];
      out[1] = from[channel];
      out[2] = from[2 * channel];
    }
  }
  return packed.data();
}

Status open(const Input& input, ByteSource& source) {
  try {
    return source.open(input.path.c_str(), input.key ? &*input.key : nullptr);
  } catch (const std::bad_alloc&) {
    return Status::unsupported;
  }
}

Status scan(const Input& input, ByteSource& source, JpegHeader& header, Outcome& outcome) {
  Status status = Status::ok;
  if (input.data != nullptr) {
    source.borrow(input.data, input.size);
  } else {
    status = open(input, source);
  }
  if (status == Status::ok) {
    outcome.bytes = source.size();
    status = scan_header(source, header);
    if (status == Status::not_jpeg) status = scan_other_header(source, header);
    outcome.width = header.width;
    outcome.height = header.height;
  }
  outcome.error_number = source.error_number();
  return status;
}

}  // namespace

void prefetch(const Input& input) {
  constexpr std::ptrdiff_t kMostBytes = 16384;  // a larger image is read in a stream that the CPU foresees
  constexpr std::ptrdiff_t kCacheLine = 64;
  const auto [row, pixel, channel] = input.strides;
  const std::ptrdiff_t bytes = std::max(row * static_cast<std::ptrdiff_t>(input.height), channel * 3);
  for (std::ptrdiff_t at = 0; at < std::min(bytes, kMostBytes); at += kCacheLine) {
    __builtin_prefetch(input.data + at);
  }
}

void complete(Geometry& geometry, const JpegHeader& header) {
  if (geometry.crop.height == 0) {
    geometry.crop = {0, 0, static_cast<int>(header.height), static_cast<int>(header.width)};
  }
  if (geometry.out_height == 0) {
    geometry.out_height = geometry.crop.height;
    geometry.out_width = geometry.crop.width;
  }
  if (geometry.window.height == 0) geometry.window = {0, 0, geometry.out_height, geometry.out_width};
}

bool load(const Input& input, std::uint64_t max_pixels, ByteSource& source, JpegHeader& header, Outcome& outcome) {
  if (input.is_decoded()) {
    header.height = outcome.height = input.height;
    header.width = outcome.width = input.width;
    return true;
  }
  Status status = scan(input, source, header, outcome);
  if (status == Status::ok) status = check_supported(header, max_pixels);
  if (status != Status::ok) outcome.status = status;
  return status == Status::ok;
}

bool reopen(const Input& input, ByteSource& source) { return source.is_open() || open(input, source) == Status::ok; }

void load_header(const Input& input, JpegHeader& header, Outcome& outcome) {
  ByteSource source;
  source.set_buffer(std::move(thread_buffer()));
  outcome.status = scan(input, source, header, outcome);
  thread_buffer() = source.take_buffer();
}

void decode(const Input& input, ByteSource& source, const JpegHeader& header, const SampleOptions& options,
            const Target& target, Outcome& outcome) {
  try {
    if (input.is_decoded()) {
      outcome.status =
          transform_pixels(packed_pixels(input), header, outcome.geometry, options, target, outcome.detail);
      return;
    }
    outcome.status = source.is_open() ? Status::ok : open(input, source);
    if (outcome.status == Status::ok) {
      outcome.status = decode_sample(source, header, outcome.geometry, options, target, outcome.detail);
    } else if (outcome.status == Status::corrupt) {
      outcome.detail = "the file has changed since its header was read";
    }
  } catch (const std::bad_alloc&) {
    outcome.status = Status::unsupported;
  }
  outcome.error_number = source.error_number();
}

void process(const Input& input, const Geometry& geometry, const SampleOptions& options, const Target& target,
             Outcome& outcome) {
  ByteSource source;
  source.set_buffer(std::move(thread_buffer()));
  JpegHeader header;
  if (load(input, options.max_pixels, source, header, outcome)) {
    outcome.geometry = geometry;
    outcome.drawn = true;
    complete(outcome.geometry, header);
    decode(input, source, header, options, target, outcome);
  }
  thread_buffer() = source.take_buffer();
}

bool has_valid_boxes(const ImageHeader& header, const Geometry& geometry) {
  return lies_within(geometry.crop, header.width, header.height) &&
         lies_within(geometry.window, geometry.out_width, geometry.out_height);
}

ResizeJob job_of(const PixelBox& source, const Geometry& geometry, const SampleOptions& options) {
  ResizeJob job;
  job.width = source.width;
  job.height = source.height;
  job.out_width = geometry.out_width;
  job.out_height = geometry.out_height;
  job.window = geometry.window;
  job.flip_horizontal = geometry.flip_horizontal;
  job.flip_vertical = geometry.flip_vertical;
  job.filter = geometry.filter.value_or(options.filter);
  job.order = pass_order(options.pass_rule, job.width, job.height, job.out_width, job.out_height);
  return job;
}

Region to_region(const PixelBox& box) {
  return {static_cast<std::uint32_t>(box.top), static_cast<std::uint32_t>(box.left),
          static_cast<std::uint32_t>(box.height), static_cast<std::uint32_t>(box.width)};
}

Status decode_and_drop(ByteSource& source, const JpegHeader& header, const Region& region, std::string& detail) {
  static thread_local Buffer scratch;
  Decoder& decoder = thread_decoder();
  RowLayout layout;
  DecodeOptions options;
  options.libjpeg_only = true;
  Status status = decoder.start(source, header, region, options, layout);
  const std::size_t stride = late_stride(std::size_t{layout.width} * 3);
  scratch.resize(stride * kRows);
  std::uint8_t* rows[kRows];
  for (int i = 0; i < kRows; ++i) rows[i] = scratch.data() + stride * static_cast<std::size_t>(i) + kLateBytes;
  for (std::uint32_t left = region.height; left > 0 && status == Status::ok;) {
    const int count = static_cast<int>(std::min<std::uint32_t>(left, kRows));
    status = decoder.read(rows, count);
    left -= static_cast<std::uint32_t>(count);
  }
  if (status != Status::ok) detail = decoder.message();
  return status;
}

}  // namespace fastload
