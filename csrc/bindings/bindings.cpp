#include "bindings/bindings.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "codecs/codecs.h"
#include "jpeg/jpeg.h"
#include "pool/decode_sample.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastload {
namespace {

// The lower bound in `fastload bench decode`: region decodes whose rows are dropped.
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

std::vector<std::string> status_names() {
  std::vector<std::string> names;
  for (int i = 0; i < status_count; ++i) names.emplace_back(name_of(static_cast<Status>(i)));
  return names;
}

std::vector<std::string> subsampling_names() {
  std::vector<std::string> names;
  for (int i = 0; i < subsampling_count; ++i) names.emplace_back(name_of(static_cast<Subsampling>(i)));
  return names;
}

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (int i = 0; i < format_count; ++i) names.emplace_back(name_of(static_cast<Format>(i)));
  return names;
}

}  // namespace

void bind_jpeg(nb::module_& m) {
  m.def("decode_and_drop", &decode_and_drop_all, "images"_a, "boxes"_a);
  m.def("status_names", &status_names);
  m.def("subsampling_names", &subsampling_names);
  m.def("trusted_subsamplings", &trusted_subsamplings);
  m.def("set_trusted_subsamplings", &set_trusted_subsamplings, "mask"_a);
  m.def("format_names", &format_names);
  m.def("trusted_formats", &trusted_formats);
  m.def("set_trusted_formats", &set_trusted_formats, "mask"_a);
  m.def("codec_versions", &codec_versions);
  m.def("libjpeg_version", &libjpeg_version);
  m.def("linked_libraries", [] {
    nb::list found;
    for (const LinkedLibrary& one : linked_libraries()) {
      found.append(nb::make_tuple(one.name, one.version, one.built_with, one.loaded));
    }
    return found;
  });
  m.def("uses_own_decoder", &uses_own_decoder);
  m.def("set_own_decoder", &set_own_decoder, "enabled"_a);
  m.def("decode_counts", [] {
    const DecodeCounts counts = decode_counts();
    return nb::make_tuple(counts.own, counts.libjpeg, counts.replaced);
  });
}

}  // namespace fastload

NB_MODULE(_core, m) {
  // Pools and plans may outlive the interpreter; that is not a leak.
  nb::set_leak_warnings(false);
  fastload::bind_jpeg(m);
  fastload::bind_resample(m);
  fastload::bind_draws(m);
  fastload::bind_decode(m);
  fastload::bind_batch(m);
  fastload::bind_lists(m);
  fastload::bind_tagged(m);
  fastload::bind_stamp(m);
  fastload::bind_color(m);
  fastload::bind_transform(m);
  fastload::bind_python_random(m);
}
