// Images on the calling thread, and the index that decoding uses.
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/pool.h"
#include "index/jpeg_index.h"

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

// Where the file's only scan ends, or 0 if the core may not decode it or decoding could fail.
std::size_t scan_end(nb::bytes data, std::uint64_t max_pixels) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(data.data());
  JpegHeader header;
  ByteSource source(bytes, data.size());
  if (scan_header(source, header) != Status::ok || check_supported(header, max_pixels) != Status::ok) return 0;
  return end_of_scan(bytes, data.size(), header);
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
  m.def("scan_end", &scan_end, "data"_a, "max_pixels"_a = 0);
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
