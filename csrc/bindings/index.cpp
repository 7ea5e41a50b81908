#include <cstring>
#include <memory>
#include <string>

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "bindings/bindings.h"
#include "index/index_file.h"
#include "index/jpeg_index.h"
#include "jpeg/region_decoder.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastload {
namespace {

std::string as_bytes(std::uint64_t tag) {
  std::string text;
  for (int i = 0; i < 8; ++i) text.push_back(static_cast<char>(tag >> 8 * i & 255));
  return text;
}

std::shared_ptr<IndexFile> open_file(const nb::bytes& path, const nb::bytes& key) {
  std::string error;
  auto file = IndexFile::open(path.c_str(), key_from(key), error);
  if (file == nullptr) throw nb::value_error(error.c_str());
  return file;
}

std::shared_ptr<JpegIndex> make_index(std::size_t max_bytes, bool whole, const std::shared_ptr<IndexFile>& file) {
  return file == nullptr ? std::make_shared<JpegIndex>(max_bytes, whole)
                         : std::make_shared<JpegIndex>(max_bytes, whole, file);
}

nb::tuple index_points(const nb::bytes& path, const nb::bytes& key) {
  const HashKey secrets = key_from(key);
  Status status;
  FileKey file;
  std::string list;
  {
    nb::gil_scoped_release release;
    Points points;
    status = points_of(path.c_str(), secrets, file, points);
    if (points != nullptr) {
      list = as_bytes(secrets.tag_of(file, points->data(), points->size()));
      list.append(reinterpret_cast<const char*>(points->data()), points->size());
    }
  }
  return nb::make_tuple(name_of(status), secrets.id_of(file), nb::bytes(list.data(), list.size()));
}

}  // namespace

void bind_index(nb::module_& m) {
  nb::class_<IndexFile>(m, "IndexFile")
      .def(nb::new_(&open_file), "path"_a, "key"_a)
      .def_prop_ro("files", &IndexFile::files)
      .def_prop_ro("bytes", &IndexFile::bytes);
  nb::class_<JpegIndex>(m, "JpegIndex")
      .def(nb::new_(&make_index), "max_bytes"_a, "whole"_a = false, "file"_a = nb::none())
      .def_prop_ro("max_bytes", &JpegIndex::most_bytes)
      .def("totals", [](const JpegIndex& self) {
        const JpegIndex::Totals totals = self.totals();
        return nb::make_tuple(totals.bytes, totals.files, totals.found, totals.missed, totals.evicted,
                              totals.from_file);
      });
  m.def("index_points", &index_points, "path"_a, "key"_a);
  m.def(
      "index_tag",
      [](const nb::bytes& data, const nb::bytes& key) {
        const std::string tag =
            as_bytes(key_from(key).tag_of(static_cast<const std::uint8_t*>(data.data()), data.size()));
        return nb::bytes(tag.data(), tag.size());
      },
      "data"_a, "key"_a);
}

}  // namespace fastload
