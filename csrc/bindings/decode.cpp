// Images on the calling thread, and the index that decoding uses.
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <sys/stat.h>

#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/pool.h"
#include "codecs/codecs.h"
#include "index/jpeg_index.h"
#include "jpeg/baseline.h"
#include "sample/whole_image.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastload {
namespace {

// (status, errno, file bytes, width, height, components, subsampling, progressive, format)
nb::tuple jpeg_header(nb::handle data) {
  std::vector<BytesView> views;
  const Input input = input_from(data, views);
  JpegHeader header;
  Outcome outcome;
  {
    nb::gil_scoped_release release;
    load_header(input, header, outcome);
  }
  return nb::make_tuple(name_of(outcome.status), outcome.error_number, outcome.bytes, header.width, header.height,
                        header.components, name_of(header.subsampling), header.progressive, name_of(header.format));
}

// Whether libjpeg decodes the file's only scan without a warning: all of its codes are read, and no pixels made.
bool has_sound_scan(ByteSource& source, const JpegHeader& header) {
  static thread_local HuffmanTables tables;
  static thread_local ScanDecoder decoder;
  BaselineHeader baseline;
  if (!read_baseline(source, header, tables, baseline)) return false;
  const std::uint64_t mcus = std::uint64_t{baseline.scan.mcu_columns} * baseline.scan.mcu_rows;
  return decoder.start(source, baseline.scan) && decoder.skip(mcus) && decoder.finish();
}

// Where the file's only scan ends, or 0 if the core may not decode it or decoding could fail; with `codes`, also if
// libjpeg would warn of the scan.
std::size_t scan_end(nb::bytes data, std::uint64_t max_pixels, bool codes) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(data.data());
  const std::size_t size = data.size();
  JpegHeader header;
  ByteSource source(bytes, size);
  if (scan_header(source, header) != Status::ok || check_supported(header, max_pixels) != Status::ok) return 0;
  const std::size_t end = end_of_scan(bytes, size, header);
  if (end == 0 || !codes) return end;
  nb::gil_scoped_release release;
  return has_sound_scan(source, header) ? end : 0;
}

// `out`: NHWC with N = 1.
nb::tuple decode_one(nb::handle data, Images out, const std::array<std::int32_t, 12>& geometry,
                     const std::string& filter, const std::string& pass_rule, std::uint64_t max_pixels, bool fast,
                     const std::shared_ptr<JpegIndex>& index) {
  std::vector<BytesView> views;
  const Input input = input_from(data, views);
  require_layout(out, 1);
  SampleOptions options = options_from(out, filter, pass_rule, max_pixels, fast);
  options.index = index.get();
  Outcome outcome;
  {
    nb::gil_scoped_release release;
    process(input, geometry_from(geometry.data()), options, {out.data(), out.stride(1)}, outcome);
  }
  return to_tuple(outcome);
}

// What OpenCV makes of a file, in an array that allocate(shape) makes; None if OpenCV has to read it. A path must be a
// str that is UTF-8.
nb::object decode_for_opencv(nb::handle data, const std::string& pixels, bool upright, nb::handle allocate) {
  const WantedPixels wanted = named<WantedPixels>({{"bgr", WantedPixels::bgr},
                                                   {"rgb", WantedPixels::rgb},
                                                   {"gray", WantedPixels::gray},
                                                   {"as stored", WantedPixels::as_stored}},
                                                  pixels, "pixels");
  static thread_local Buffer buffer;  // kept between files
  std::vector<BytesView> views;
  const Input input = input_from(data, views);
  ByteSource source;
  WholeImage image;
  bool done = false;
  {
    nb::gil_scoped_release release;
    if (input.data != nullptr) {
      source.borrow(input.data, input.size);
      done = scan_whole_image(source, wanted, upright, image);
    } else if (struct stat about; ::stat(input.path.c_str(), &about) == 0 && S_ISREG(about.st_mode)) {
      source.set_buffer(std::move(buffer));
      done = source.open(input.path.c_str()) == Status::ok && scan_whole_image(source, wanted, upright, image);
    }
  }
  nb::object made = nb::none();
  if (done) {
    const auto [height, width] = std::make_pair(image.header.height, image.header.width);
    made = allocate(image.bytes == PixelBytes::luma ? nb::make_tuple(height, width) : nb::make_tuple(height, width, 3));
    const auto array = nb::cast<nb::ndarray<std::uint8_t, nb::c_contig, nb::device::cpu>>(made);
    if (array.nbytes() != image.row_bytes() * height) throw nb::value_error("allocate must give arrays of that shape");
    nb::gil_scoped_release release;
    done = decode_whole_image(source, image, array.data());
  }
  if (input.data == nullptr) buffer = source.take_buffer();
  return done ? made : nb::none();
}

// A PNG file of one channel, gray or with a palette, as Pillow's levels or indices. False: not decoded.
bool decode_levels(nb::bytes data, const nb::ndarray<std::uint8_t, nb::shape<-1, -1, 1>, nb::c_contig>& out) {
  ByteSource source(reinterpret_cast<const std::uint8_t*>(data.data()), data.size());
  const auto height = static_cast<std::uint32_t>(out.shape(0)), width = static_cast<std::uint32_t>(out.shape(1));
  nb::gil_scoped_release release;
  return decode_png_levels(source, height, width, out.data()) == Status::ok;
}

// New bytes, and an array of their memory to fill them by.
nb::tuple unfilled_bytes(std::size_t size) {
  const auto made = nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
  if (!made.is_valid()) throw nb::python_error();
  auto* const memory = reinterpret_cast<std::uint8_t*>(PyBytes_AS_STRING(made.ptr()));
  return nb::make_tuple(made, nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(memory, {size}, made));
}

// The lower bound in `python -m benchmarks decode`: region decodes whose rows are dropped.
void decode_and_drop_all(nb::sequence images, const std::vector<std::vector<std::uint32_t>>& boxes) {
  std::vector<BytesView> views;
  for (nb::handle image : images) views.emplace_back(image);
  if (views.size() != boxes.size()) throw nb::value_error("there must be one box for each image");
  for (const auto& box : boxes) {
    if (box.size() != 4) throw nb::value_error("a box must be (top, left, height, width)");
  }
  std::string detail;
  Status status = Status::ok;
  {
    nb::gil_scoped_release release;
    for (std::size_t i = 0; i < views.size() && status == Status::ok; ++i) {
      JpegHeader header;
      ByteSource source(views[i].data(), views[i].size());
      status = scan_header(source, header);
      if (status != Status::ok) break;
      status = decode_and_drop(source, header, {boxes[i][0], boxes[i][1], boxes[i][2], boxes[i][3]}, detail);
    }
  }
  if (status != Status::ok) throw nb::value_error((std::string(name_of(status)) + " " + detail).c_str());
}

}  // namespace

void bind_decode(nb::module_& m) {
  m.def("decode_and_drop", &decode_and_drop_all, "images"_a, "boxes"_a);
  m.def("jpeg_header", &jpeg_header, "data"_a);
  m.def("decode_for_opencv", &decode_for_opencv, "data"_a, "pixels"_a, "upright"_a, "allocate"_a);
  m.def("decode_levels", &decode_levels, "data"_a, "out"_a.noconvert());
  m.def("unfilled_bytes", &unfilled_bytes, "size"_a);
  m.def("scan_end", &scan_end, "data"_a, "max_pixels"_a = 0, "codes"_a = false);
  m.def("decode", &decode_one, "data"_a, "out"_a.noconvert(), "geometry"_a, nb::kw_only(), "filter"_a = "bilinear",
        "pass_rule"_a = "horizontal_first", "max_pixels"_a = 0, "fast"_a = false, "index"_a = nb::none());
}

void bind_index(nb::module_& m) {
  nb::class_<JpegIndex>(m, "JpegIndex")
      .def(nb::new_([](std::size_t max_bytes, bool whole) { return std::make_shared<JpegIndex>(max_bytes, whole); }),
           "max_bytes"_a, "whole"_a = false)
      .def_prop_ro("max_bytes", &JpegIndex::most_bytes)
      .def("totals", [](const JpegIndex& self) {
        const JpegIndex::Totals totals = self.totals();
        return nb::make_tuple(totals.bytes, totals.files, totals.found, totals.missed, totals.evicted);
      });
}

}  // namespace fastload
