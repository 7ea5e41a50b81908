#include <memory>

#include <nanobind/stl/shared_ptr.h>

#include "bindings/bindings.h"
#include "index/jpeg_index.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastload {

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
